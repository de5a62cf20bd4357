//! Prepares parts of an operation over several slots, all or none: what the operation read must still be so, and what it
//! read and changes is locked until the outcome is known (DESIGN §5, operations over several slots).
//!
//! A lock of another intention is waited for. Whoever prepares holds parts of lower slots alone, so none wait in a circle.

use protocol::intention::{Keep, Part, Prepare};
use protocol::manager::{Answer, ManagerError};

use super::Done;
use crate::intention::{Held, Prepared, Seen, Turn, is_possible};
use crate::key;
use crate::records::encode;
use crate::transaction::{Stop, Transaction};

pub(super) fn run(tx: &mut Transaction<'_>, prepare: &Prepare) -> Result<Done, Stop> {
    let ordered = prepare.parts.windows(2).all(|pair| pair[0].slot < pair[1].slot);
    if !ordered || !prepare.parts.iter().all(is_possible) {
        return Err(ManagerError::Invalid("no part of an operation".into()).into());
    }
    tx.act_for(prepare.intention);
    let mut fresh = Vec::with_capacity(prepare.parts.len());
    for part in &prepare.parts {
        // It may be asked for again, when an answer was lost.
        if tx.state(part.slot)?.intentions.held(prepare.intention).is_some() {
            continue;
        }
        if !stands(tx, part)? {
            return Ok(Answer::Held(false).into());
        }
        fresh.push(part);
    }
    for part in fresh {
        let prepared = Prepared { coordinator: prepare.coordinator, part: part.clone() };
        if prepare.keep == Keep::Journal {
            tx.put(part.slot, key::prepared(prepare.intention), encode(&prepared))?;
        }
        tx.turn(part.slot, Turn::Hold(prepare.intention, Held::new(prepared, prepare.keep)));
    }
    Ok(Answer::Held(true).into())
}

/// Whether all that a part rests on is as it was read, and nothing stands in the way of its changes.
pub(super) fn stands(tx: &Transaction<'_>, part: &Part) -> Result<bool, Stop> {
    for look in &part.looks {
        let range = (look.from.to_vec(), look.end.to_vec());
        let mut seen = Seen::nothing();
        for record in tx.range(part.slot, &range)? {
            let (key, value) = record?;
            seen.record(key, value);
        }
        if seen.hash() != look.seen {
            return Ok(false);
        }
    }
    let opens = &tx.state(part.slot)?.opens;
    if part.holders.iter().any(|(inode, holders)| opens.holders(*inode) != *holders) {
        return Ok(false);
    }
    part.changes.iter().try_for_each(|(key, _)| tx.ready(part.slot, key))?;
    Ok(true)
}
