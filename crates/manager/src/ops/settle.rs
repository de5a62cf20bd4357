//! The end of an operation over several slots: its coordinator decides, in one journal record with the changes of its own
//! slots; the others make their changes or drop them when they are told, as often as they are told.

use protocol::id::SlotId;
use protocol::intention::{Admission, Consequence, Counts, IntentionId, Keep, Outcome, Part, Settle};
use protocol::manager::Answer;

use super::prepare::stands;
use super::{Done, Told};
use crate::intention::Turn;
use crate::key;
use crate::late::Premise;
use crate::records::encode;
use crate::transaction::{Effect, Stop, Transaction};

/// What a coordinator decides.
#[derive(Clone, Debug)]
pub(crate) struct Decide {
    pub(crate) intention: IntentionId,
    /// The slot that tells the outcome.
    pub(crate) coordinator: SlotId,
    /// Its stay in which the intention began. In between another manager may have told that nothing came of it.
    pub(crate) stay: u64,
    /// What becomes of the coordinating manager's own slots.
    pub(crate) parts: Vec<Part>,
    /// The slots to be told.
    pub(crate) others: Vec<SlotId>,
    /// What clients must not hold against it, in own slots whose parts are not held.
    pub(crate) admission: Admission,
    /// What the operation rests on.
    pub(crate) premise: Option<Premise>,
}

/// Decides, unless something in the own slots is not as it was read.
pub(super) fn decide(tx: &mut Transaction<'_>, decide: &Decide) -> Result<Done, Stop> {
    tx.act_for(decide.intention);
    if tx.state(decide.coordinator)?.stay != decide.stay {
        return Ok(Done::Told(Told::Decided(false)));
    }
    for part in &decide.parts {
        if !stands(tx, part)? {
            return Ok(Done::Told(Told::Decided(false)));
        }
    }
    for part in &decide.parts {
        make(tx, part)?;
        if tx.state(part.slot)?.intentions.held(decide.intention).is_some() {
            tx.turn(part.slot, Turn::Release(decide.intention));
        }
    }
    if !decide.others.is_empty() {
        tx.put(decide.coordinator, key::decided(decide.intention), encode(&decide.others))?;
        tx.turn(decide.coordinator, Turn::Decide(decide.intention, decide.others.clone()));
    }
    Ok(Done::Told(Told::Decided(true)))
}

/// All slots know the outcome, durably.
pub(super) fn forget(tx: &mut Transaction<'_>, slot: SlotId, intention: IntentionId) -> Result<Done, Stop> {
    if tx.state(slot)?.intentions.decided().contains_key(&intention) {
        tx.remove(slot, key::decided(intention))?;
        tx.turn(slot, Turn::Forget(intention));
    }
    Ok(Answer::Done.into())
}

/// Makes the prepared changes, or drops them. Answers whether all parts were held until now.
pub(super) fn run(tx: &mut Transaction<'_>, settle: &Settle) -> Result<Done, Stop> {
    tx.act_for(settle.intention);
    let mut all = true;
    for &slot in &settle.slots {
        let Some(held) = tx.state(slot)?.intentions.held(settle.intention) else {
            all = false;
            continue;
        };
        if settle.outcome == Outcome::Done {
            make(tx, &held.prepared.part)?;
        }
        if held.keep == Keep::Journal {
            tx.remove(slot, key::prepared(settle.intention))?;
        }
        tx.turn(slot, Turn::Release(settle.intention));
    }
    Ok(Answer::Held(all).into())
}

/// Makes the changes of a part.
fn make(tx: &mut Transaction<'_>, part: &Part) -> Result<(), Stop> {
    for (key, value) in &part.changes {
        match value {
            Some(value) => tx.put(part.slot, key.to_vec(), value.to_vec())?,
            None => tx.remove(part.slot, key.to_vec())?,
        }
    }
    count(tx, part.slot, &part.counts)?;
    for effect in &part.effects {
        tx.effect(match *effect {
            Consequence::Open(inode, node) => Effect::Open(inode, node),
            Consequence::Close(inode, node) => Effect::Close(inode, node),
            Consequence::Reap(inode) => Effect::Reap(inode),
            Consequence::Split(directory, slot) => Effect::Split(directory, slot),
        });
    }
    Ok(())
}

/// Adds to the slot's counts, as they are now. It cannot be refused any more: what would go below nothing is nothing, and
/// an audit tells.
fn count(tx: &mut Transaction<'_>, slot: SlotId, counts: &Counts) -> Result<(), Stop> {
    if *counts == Counts::default() {
        return Ok(());
    }
    let mut head = tx.head(slot)?;
    head.inodes = head.inodes.saturating_add_signed(counts.inodes);
    for &(log, stripe, bytes) in &counts.live {
        head.bytes_live = head.bytes_live.saturating_add_signed(bytes);
        match tx.live(slot, log, stripe)?.saturating_add_signed(bytes) {
            0 => tx.remove(slot, key::live(log, stripe))?,
            live => tx.put(slot, key::live(log, stripe), encode(&live))?,
        }
    }
    tx.put_head(slot, head)
}
