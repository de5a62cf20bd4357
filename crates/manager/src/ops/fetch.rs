//! Shows records of a slot to the coordinator of an operation over several slots, as of one moment, as many as one answer
//! carries. What an intention is about to change is not shown: where it is wanted, whoever asks waits for the outcome.

use bytes::Bytes;
use protocol::id::SlotId;
use protocol::intention::{Fetch, Fetched, Piece};
use protocol::manager::{Answer, ManagerError};

use super::Done;
use crate::key::KeyRange;
use crate::transaction::{Stop, Transaction, behind};

/// Records and bytes of them that one answer carries.
const RECORDS_MAX: usize = if cfg!(test) { 7 } else { 4096 };
const BYTES_MAX: usize = 256 << 10;
/// Records that an answer carries of a range that is only likely to be wanted.
const LIKELY_MAX: usize = 64;
/// Ranges, holders and numbers that one request may ask for.
const ASKED_MAX: usize = 8192;

pub(super) fn run(tx: &mut Transaction<'_>, fetch: &Fetch) -> Result<Done, Stop> {
    let asked = fetch.ranges.len() + fetch.holders.len() + fetch.numbers as usize;
    if asked > ASKED_MAX || fetch.holders.iter().any(|inode| inode.slot() != fetch.slot) {
        return Err(ManagerError::Invalid("more than one answer carries".into()).into());
    }
    let mut fetched = Fetched::default();
    let mut room = Room { records: RECORDS_MAX, bytes: BYTES_MAX };
    for (number, (from, end)) in fetch.ranges.iter().enumerate().filter(|(_, (from, end))| from < end) {
        let wanted = if number < fetch.wanted as usize { Wanted::Now } else { Wanted::Perhaps };
        fetched.pieces.extend(piece(tx, fetch.slot, &(from.to_vec(), end.to_vec()), wanted, &mut room)?);
    }
    for &inode in &fetch.holders {
        fetched.holders.push((inode, tx.state(fetch.slot)?.opens.holders(inode)));
    }
    for _ in 0..fetch.numbers {
        fetched.numbers.push(tx.reserve(fetch.slot)?);
    }
    Ok(Answer::Fetched(fetched).into())
}

/// Whether whoever asks cannot go on without it.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Wanted {
    Now,
    Perhaps,
}

/// What one answer may still carry.
struct Room {
    records: usize,
    bytes: usize,
}

impl Room {
    fn take(&mut self, size: usize) -> bool {
        let fits = self.records > 0 && self.bytes > 0;
        self.records = self.records.saturating_sub(1);
        self.bytes = self.bytes.saturating_sub(size);
        fits
    }
}

/// The records of a range as far as there is room: of what is wanted, the first in any case.
fn piece(
    tx: &Transaction<'_>,
    slot: SlotId,
    range: &KeyRange,
    wanted: Wanted,
    room: &mut Room,
) -> Result<Option<Piece>, Stop> {
    let (from, end) = (Bytes::copy_from_slice(&range.0), Bytes::copy_from_slice(&range.1));
    let mut piece = Piece { from, end, records: Vec::new() };
    for record in tx.range(slot, range)? {
        let must = wanted == Wanted::Now && piece.records.is_empty();
        match record {
            Ok((key, value)) => {
                let enough = wanted == Wanted::Perhaps && piece.records.len() == LIKELY_MAX;
                if (enough || !room.take(key.len() + value.len())) && !must {
                    piece.end = Bytes::copy_from_slice(key);
                    break;
                }
                piece.records.push((Bytes::copy_from_slice(key), Bytes::copy_from_slice(value)));
            }
            Err(Stop::Held(..)) if !must => {
                piece.end = piece.records.last().map_or_else(|| piece.from.clone(), |(key, _)| behind(key).into());
                break;
            }
            Err(stop) => return Err(stop),
        }
    }
    Ok((piece.from < piece.end).then_some(piece))
}
