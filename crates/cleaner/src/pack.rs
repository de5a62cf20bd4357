//! Which live pieces become one record in the cleaner's log. Pure.
//!
//! Pieces that follow each other in a file, however scattered they lay, are copied together: cleaning mends what small
//! writes tore apart, and one read brings them from then on.

use protocol::manager::Moved;

/// No record grows larger than this by joining pieces: a later cleaner asks about each as a whole.
const RECORD_SIZE: u32 = 512 << 10;

/// Sorts `pieces` by file and place, cuts those that are larger than `length_max`, and joins neighbours.
pub fn pack(mut pieces: Vec<Moved>, length_max: u32) -> Vec<Vec<Moved>> {
    assert!(length_max > 0, "a record has room for something");
    pieces.retain(|piece| piece.old.length > 0);
    pieces.sort_by_key(|piece| (piece.inode, piece.file_offset, piece.old));
    pieces.dedup();
    let joined_max = RECORD_SIZE.min(length_max);
    let mut records: Vec<Vec<Moved>> = Vec::new();
    let mut length = 0;
    for piece in pieces.into_iter().flat_map(|piece| cut(piece, length_max)) {
        let joins = records.last().and_then(|record| record.last()).is_some_and(|last| follows(last, &piece));
        match records.last_mut() {
            Some(record) if joins && length + piece.old.length <= joined_max => {
                length += piece.old.length;
                record.push(piece);
            }
            _ => {
                length = piece.old.length;
                records.push(vec![piece]);
            }
        }
    }
    records
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
        let records: Vec<_> = pack(pieces, 100).iter().map(Vec::len).collect();
        assert_eq!(records, [2, 1, 1]);
    }

    #[test]
    fn large_pieces_are_cut_and_all_bytes_stay() {
        let records = pack(vec![piece(1, 5, 0, 250), piece(1, 300, 400, 0)], 100);
        let places: Vec<_> =
            records.iter().flatten().map(|it| (it.file_offset, it.old.offset, it.old.length)).collect();
        assert_eq!(places, [(5, 0, 100), (105, 100, 100), (205, 200, 50)]);
    }
}
