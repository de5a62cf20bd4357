//! Deltas of one log: what a client wrote, applied once, in log order for each slot (DESIGN §5, block maps and deltas).
//!
//! Each slot keeps *applied*(log): up to which delta record it has all, and, between the steps of a long message, how many
//! deltas of it. Whoever sends the same again, the client or its log, goes on exactly where it was left. A client that was
//! not answered may send the same deltas together with later ones: they are then applied a second time, which changes
//! nothing, because no other operation on their files, nor a deletion of their stripes, comes before the answer.

use std::collections::BTreeSet;

use bytes::Bytes;
use protocol::address::Position;
use protocol::delta::{Change, Delta};
use protocol::file::{FILE_SIZE_MAX, INLINE_MAX, Kind};
use protocol::id::{InodeId, LogId, SlotId};
use protocol::manager::{Answer, Deltas};
use serde::{Deserialize, Serialize};

use super::{Done, sorted};
use crate::extent::{Backing, is_possible};
use crate::inode::{Body, Inode};
use crate::key;
use crate::records::{decode, encode};
use crate::transaction::{Stop, Transaction, behind};

/// Bytes of changes after which a step ends: bounds the journal record and the time under the locks.
const STEP_SIZE_MAX: usize = if cfg!(test) { 1 << 10 } else { 256 << 10 };

/// *applied*(log) of one slot.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
struct Applied {
    /// The newest delta record of which this slot has all, as everything before.
    through: Option<Position>,
    /// Of which message it has so many deltas more.
    partly: Option<(Position, u32)>,
}

pub(super) fn run(tx: &mut Transaction<'_>, deltas: &Deltas) -> Result<Done, Stop> {
    for slot in sorted(deltas.list.iter().map(|delta| delta.inode.slot())) {
        if !apply(tx, slot, deltas)? {
            return Ok(Done::Again);
        }
    }
    Ok(Answer::Done.into())
}

/// Forgets *applied*, and the calls, of logs that are no more: numbered before `before`, and not among `known`.
pub(super) fn forget(
    tx: &mut Transaction<'_>,
    slot: SlotId,
    before: LogId,
    known: &BTreeSet<LogId>,
) -> Result<Done, Stop> {
    for (mut from, end) in [key::applied_all(), key::calls_all()] {
        while let Some((at, _)) = tx.next(slot, &(from, end.clone()))? {
            let (key, log) = (at.to_vec(), key::writer_log(at));
            from = behind(&key);
            if log < before && !known.contains(&log) {
                tx.remove(slot, key)?;
            }
            if tx.size() >= STEP_SIZE_MAX {
                return Ok(Done::Again);
            }
        }
    }
    Ok(Answer::Done.into())
}

fn progress(tx: &Transaction<'_>, slot: SlotId, log: LogId) -> Result<Applied, Stop> {
    Ok(tx.value(slot, &key::applied(log))?.map(decode).transpose()?.unwrap_or_default())
}

/// Applies what a slot does not have yet. False when the step ended before the message did.
fn apply(tx: &mut Transaction<'_>, slot: SlotId, deltas: &Deltas) -> Result<bool, Stop> {
    let before = progress(tx, slot, deltas.log)?;
    if before.through.is_some_and(|through| through >= deltas.position) {
        return Ok(true);
    }
    let skip = before.partly.filter(|(position, _)| *position == deltas.position).map_or(0, |(_, count)| count);
    let mine = deltas.list.iter().filter(|delta| delta.inode.slot() == slot).skip(skip as usize);
    let mut open: Option<(InodeId, Inode)> = None;
    let mut count = skip;
    let mut whole = true;
    for delta in mine {
        if tx.size() >= STEP_SIZE_MAX {
            whole = false;
            break;
        }
        // Deltas of one file come in runs: its record is written once a run.
        if open.as_ref().is_none_or(|(inode, _)| *inode != delta.inode) {
            close(tx, open.take())?;
            open = tx.inode_if_any(delta.inode)?.map(|record| (delta.inode, record));
        }
        if let Some((inode, record)) = &mut open
            && !change(tx, *inode, record, delta)?
        {
            whole = false;
            break;
        }
        count += 1;
    }
    close(tx, open)?;
    let applied = match whole {
        true => Applied { through: Some(deltas.position), partly: None },
        false => Applied { partly: Some((deltas.position, count)), ..before },
    };
    tx.put(slot, key::applied(deltas.log), encode(&applied))?;
    Ok(whole)
}

fn close(tx: &mut Transaction<'_>, open: Option<(InodeId, Inode)>) -> Result<(), Stop> {
    open.map_or(Ok(()), |(inode, record)| tx.put_inode(inode, &record))
}

/// Applies one delta; false when its extents need another step. A delta that cannot be, whoever sent it, changes nothing.
fn change(tx: &mut Transaction<'_>, inode: InodeId, record: &mut Inode, delta: &Delta) -> Result<bool, Stop> {
    let is_file = record.kind == Kind::File;
    match &delta.change {
        Change::Extent { offset, address } if is_file && address.length > 0 && is_possible(*address) => {
            let end = offset.saturating_add(u64::from(address.length));
            if end > FILE_SIZE_MAX {
                return Ok(true);
            }
            // The client sends the whole content as extents, in one record, once it is too large to be inline.
            outgrow_inline(record);
            if tx.carve(inode, record, *offset, end)? < end {
                return Ok(false);
            }
            tx.map(inode, record, *offset, Backing::Owned(*address))?;
        }
        Change::Inline { bytes } if is_file && bytes.len() <= INLINE_MAX => {
            outgrow_inline(record);
            if tx.carve(inode, record, 0, u64::MAX)? < u64::MAX {
                return Ok(false);
            }
            record.stored = bytes.len() as u64;
            record.size = record.size.max(record.stored);
            // A copy, lest a few bytes keep a whole message in memory.
            let bytes = Bytes::copy_from_slice(bytes);
            record.body = if bytes.is_empty() { Body::Plain } else { Body::Inline(bytes) };
        }
        Change::Wrote { size, time } if is_file => {
            record.size = record.size.max((*size).min(FILE_SIZE_MAX));
            record.modified = record.modified.max(*time);
            record.changed = record.changed.max(*time);
        }
        Change::Read { time } => record.accessed = record.accessed.max(*time),
        Change::Extent { .. } | Change::Inline { .. } | Change::Wrote { .. } => return Ok(true),
    }
    record.version += 1;
    Ok(true)
}

fn outgrow_inline(record: &mut Inode) {
    if matches!(record.body, Body::Inline(_)) {
        record.body = Body::Plain;
        record.stored = 0;
    }
}
