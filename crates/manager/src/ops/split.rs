//! Splits a directory's names between two slots, when one has too many (DESIGN §5; Slice's name hashing).
//!
//! The lower half of the part's cookies goes to a slot in which the directory has no names, some at a time: the boundary
//! between the two parts moves up with them, so every step leaves a directory that is split right, and all else goes on in
//! between. A split that is interrupted leaves parts of unequal size, and the larger will be split again when it grows.

use protocol::id::{InodeId, SlotId};
use protocol::manager::Answer;

use super::{Done, Operation};
use crate::directory::Part;
use crate::entry::hash_last;
use crate::key;
use crate::transaction::{Stop, Transaction};

/// Names that a step moves: bounds the time under the locks and the journal record.
const STEP_NAMES_MAX: usize = if cfg!(test) { 2 } else { 1024 };

/// Where a split that is under way leads.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Way {
    /// The slot that takes the names.
    to: SlotId,
    /// The last cookie that goes there.
    middle: u64,
}

/// One step of splitting what `directory` has in `slot`.
pub(super) fn run(tx: &mut Transaction<'_>, directory: InodeId, slot: SlotId, way: Option<Way>) -> Result<Done, Stop> {
    let nothing = Ok(Answer::Done.into());
    let Some(record) = tx.inode_if_any(directory)? else { return nothing };
    let mut parts = tx.parts(directory)?;
    if parts.is_empty() {
        parts.push(tx.part(directory, 0)?);
    }
    let Some(index) = parts.iter().position(|part| part.slot == slot) else { return nothing };
    if record.links == 0 || !record.is_directory() {
        return nothing;
    }
    let before = index.checked_sub(1).map(|index| parts[index]);
    let way = match way {
        // Names that came meanwhile belong to one of the two; that a third took part is nobody's doing.
        Some(way) if before.is_none_or(|part| part.slot != way.to) => return nothing,
        Some(way) => way,
        None if tx.names_size((slot, directory))? <= tx.placement().part_bytes_max() => return nothing,
        None => match choose(tx, directory, &parts, index) {
            Some(way) => way,
            None => return nothing,
        },
    };
    let (cookies, boundary) = first_names(tx, (slot, directory), way.middle)?;
    tx.move_names(directory, (slot, way.to), (boundary, &cookies))?;
    Ok(if boundary < way.middle {
        Done::Then(Operation::Split { directory, slot, way: Some(way) })
    } else {
        Answer::Done.into()
    })
}

/// A new slot for the lower half of a part. None when there is none, or when all its names have one hash.
fn choose(tx: &Transaction<'_>, directory: InodeId, parts: &[Part], index: usize) -> Option<Way> {
    let first = index.checked_sub(1).map_or(0, |before| parts[before].last + 1);
    let last = parts[index].last;
    let middle = hash_last(first + (last - first) / 2);
    let used: Vec<SlotId> = parts.iter().map(|part| part.slot).collect();
    let to = tx.placement().part(directory, first, &used)?;
    (middle < last).then_some(Way { to, middle })
}

/// The first names of a part, up to the middle, as many as a step moves; names of one hash stay together. Returns their
/// cookies, and the last cookie that goes with them.
fn first_names(
    tx: &Transaction<'_>,
    (slot, directory): (SlotId, InodeId),
    middle: u64,
) -> Result<(Vec<u64>, u64), Stop> {
    let mut cookies = Vec::new();
    let range = (key::entry(directory, 0), key::entry(directory, middle + 1));
    for record in tx.range(slot, &range)? {
        let cookie = key::rest_number(record?.0);
        match cookies.last().map(|&last| hash_last(last)) {
            Some(boundary) if cookies.len() >= STEP_NAMES_MAX && cookie > boundary => return Ok((cookies, boundary)),
            _ => cookies.push(cookie),
        }
    }
    Ok((cookies, middle))
}
