//! Which live pieces become one record in the cleaner's log. Pure.
//!
//! Pieces that follow each other in a file, however scattered they lay, are copied together: cleaning mends what small
//! writes tore apart, and one read brings them from then on.
//!
//! Records never span stripes, so a large one may end a stripe long before it is full. Joined ones are kept small, and
//! among the next few the first is taken that still fits.

use std::collections::VecDeque;

use protocol::manager::Moved;
use protocol::record::HEADER_SIZE;

/// No record grows larger than this by joining pieces: a later cleaner asks about each as a whole.
const RECORD_SIZE: u32 = 512 << 10;
/// Nor larger than this part of a stripe.
const STRIPE_PART: u32 = 16;
/// How many records are tried for what is left of a stripe.
const TRIED: usize = 64;

/// Sorts `pieces` by file and place, cuts those that are larger than `length_max`, and joins neighbours.
pub fn pack(mut pieces: Vec<Moved>, length_max: u32) -> VecDeque<Vec<Moved>> {
    assert!(length_max > 0, "a record has room for something");
    pieces.retain(|piece| piece.old.length > 0);
    pieces.sort_by_key(|piece| (piece.inode, piece.file_offset, piece.old));
    pieces.dedup();
    let joined_max = RECORD_SIZE.min(length_max / STRIPE_PART);
    let mut records: VecDeque<Vec<Moved>> = VecDeque::new();
    let mut length = 0;
    for piece in pieces.into_iter().flat_map(|piece| cut(piece, length_max)) {
        let joins = records.back().and_then(|record| record.last()).is_some_and(|last| follows(last, &piece));
        match records.back_mut() {
            Some(record) if joins && length + piece.old.length <= joined_max => {
                length += piece.old.length;
                record.push(piece);
            }
            _ => {
                length = piece.old.length;
                records.push_back(vec![piece]);
            }
        }
    }
    records
}

/// Takes the next record to append where `left` bytes of the open stripe are not yet taken.
pub fn take_next(records: &mut VecDeque<Vec<Moved>>, left: u32) -> Option<Vec<Moved>> {
    let fits = |record: &Vec<Moved>| length(record) + HEADER_SIZE as u32 <= left;
    let index = records.iter().take(TRIED).position(fits).unwrap_or(0);
    records.remove(index)
}

/// How many bytes a record holds.
pub fn length(record: &[Moved]) -> u32 {
    record.iter().map(|piece| piece.old.length).sum()
}

fn follows(last: &Moved, next: &Moved) -> bool {
    last.inode == next.inode && last.file_offset + u64::from(last.old.length) == next.file_offset
}

/// A stripe of the cleaner's log may be smaller than the one that the piece came from.
fn cut(piece: Moved, length_max: u32) -> impl Iterator<Item = Moved> {
    let starts = (0..piece.old.length).step_by(length_max as usize);
    starts.map(move |skip| {
        let old = piece.old.part(skip, length_max.min(piece.old.length - skip));
        Moved { file_offset: piece.file_offset + u64::from(skip), old, new: old, ..piece }
    })
}

#[cfg(test)]
mod tests {
    use protocol::address::LogAddress;
    use protocol::id::{InodeId, LogId, StripeNumber};

    use super::*;

    fn piece(inode: u64, file_offset: u64, at: u32, length: u32) -> Moved {
        let old = LogAddress { log: LogId(1), stripe: StripeNumber(0), offset: at, length };
        Moved { inode: InodeId(inode), file_offset, old, new: old }
    }

    #[test]
    fn neighbours_in_a_file_are_joined_and_no_others() {
        let pieces = vec![piece(2, 0, 900, 10), piece(1, 10, 0, 10), piece(1, 0, 500, 10), piece(1, 30, 10, 10)];
        let records: Vec<_> = pack(pieces, 1600).iter().map(Vec::len).collect();
        assert_eq!(records, [2, 1, 1]);
    }

    #[test]
    fn what_is_left_of_a_stripe_is_filled() {
        let mut records = pack(vec![piece(1, 0, 0, 90), piece(2, 0, 100, 40), piece(3, 0, 200, 10)], 100);
        let mut take = |left| take_next(&mut records, left).map(|record| length(&record));
        assert_eq!([take(50), take(80), take(0), take(9)], [Some(10), Some(40), Some(90), None]);
    }

    #[test]
    fn large_pieces_are_cut_and_all_bytes_stay() {
        let records = pack(vec![piece(1, 5, 0, 250), piece(1, 300, 400, 0)], 100);
        let places: Vec<_> =
            records.iter().flatten().map(|it| (it.file_offset, it.old.offset, it.old.length)).collect();
        assert_eq!(places, [(5, 0, 100), (105, 100, 100), (205, 200, 50)]);
    }
}
