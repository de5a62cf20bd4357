//! What an operation sees and does: the records of the slots that are locked, or what was fetched of several managers'
//! slots, under its own changes.
//!
//! Invariants
//! 1. Nothing outside changes before [`Transaction::finish`] hands over the changes: an operation that stops can be
//!    repeated from its start.
//! 2. Every changed key lies in a page that is in memory, so that applying the changes cannot fail.

use std::cell::RefCell;
use std::collections::BTreeMap;
use std::ops::Bound::{Excluded, Included};

use protocol::file::Time;
use protocol::id::{InodeId, LogId, SlotId, StripeNumber};
use protocol::intention::{Counts, IntentionId};
use protocol::manager::ManagerError;

use crate::encoding::Damaged;
use crate::inode::Inode;
use crate::intention::Turn;
use crate::key::{self, Key, KeyRange};
use crate::ops::Operation;
use crate::placement::Placement;
use crate::sight::Sight;
use crate::slot::{KeyValue, PageId};
use crate::snapshot::{Looks, Snapshots, Wish, count_live};
use crate::state::SlotState;

/// Why an operation did not come to its end.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Stop {
    /// A page must be loaded first. Then: again from the start.
    Absent(PageId),
    /// Other slots are needed. Then: again from the start, with them locked too, or as a two-phase operation when one is
    /// another manager's (DESIGN §5, operations over several slots).
    Unlocked(Vec<SlotId>),
    /// An intention locks what is needed in this slot. Then: again from the start, when it is over.
    Held(SlotId, IntentionId),
    /// More of slots of several managers must be fetched first. Then: again from the start.
    Lacking(Vec<Wish>),
    /// No.
    Refused(ManagerError),
}

impl From<ManagerError> for Stop {
    fn from(error: ManagerError) -> Stop {
        Stop::Refused(error)
    }
}

impl From<PageId> for Stop {
    fn from(page: PageId) -> Stop {
        Stop::Absent(page)
    }
}

impl From<Wish> for Stop {
    fn from(wish: Wish) -> Stop {
        Stop::Lacking(vec![wish])
    }
}

impl From<Damaged> for Stop {
    fn from(damaged: Damaged) -> Stop {
        Stop::Refused(ManagerError::Failed(damaged.to_string()))
    }
}

/// On whose behalf, and when.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Context {
    /// The time that attributes get.
    pub(crate) now: Time,
    /// The node that asks.
    pub(crate) node: u32,
}

/// What an operation does to things that are only in memory, or asks to be done later.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Effect {
    /// The node holds the inode open.
    Open(InodeId, u32),
    /// It no longer does.
    Close(InodeId, u32),
    /// The orphan has too many records to free at once: go on until it is gone.
    Reap(InodeId),
    /// The directory has too many names in this slot: split them.
    Split(InodeId, SlotId),
}

impl Effect {
    /// The operation that it asks for.
    pub(crate) fn later(self) -> Option<Operation> {
        match self {
            Effect::Reap(inode) => Some(Operation::Reap(inode)),
            Effect::Split(directory, slot) => Some(Operation::Split { directory, slot, way: None }),
            Effect::Open(..) | Effect::Close(..) => None,
        }
    }
}

/// Changes of one slot's records: puts, and removals.
pub(crate) type Changes = BTreeMap<Key, Option<Vec<u8>>>;

/// What an operation leads to.
#[derive(Debug, Default)]
pub(crate) struct Consequences {
    pub(crate) changes: Vec<(SlotId, Changes)>,
    pub(crate) effects: Vec<Effect>,
    /// What becomes of intentions, together with the changes.
    pub(crate) turns: Vec<(SlotId, Turn)>,
    /// What an operation over several managers' slots adds to counts: these are locked for nobody.
    pub(crate) counts: Vec<(SlotId, Counts)>,
}

/// An operation at work.
pub(crate) struct Transaction<'a> {
    sight: Sight<'a>,
    placement: &'a Placement,
    context: Context,
    done: Consequences,
    size: usize,
    /// The intention on whose behalf this is: what it locks is not locked for it.
    own: Option<IntentionId>,
    /// The slots of the new inodes, where slots of several managers are seen.
    numbers: Vec<SlotId>,
}

impl<'a> Transaction<'a> {
    /// Over the slots that are locked.
    pub(crate) fn new(held: &'a [&'a SlotState], placement: &'a Placement, context: Context) -> Self {
        Transaction::with(Sight::Locked(held), placement, context)
    }

    /// Over what was fetched of slots of several managers.
    pub(crate) fn over(snapshots: &'a Snapshots, placement: &'a Placement, context: Context) -> Self {
        Transaction::with(Sight::Fetched(snapshots, RefCell::default()), placement, context)
    }

    fn with(sight: Sight<'a>, placement: &'a Placement, context: Context) -> Self {
        Transaction {
            sight,
            placement,
            context,
            done: Consequences::default(),
            size: 0,
            own: None,
            numbers: Vec::new(),
        }
    }

    /// The changes and effects.
    pub(crate) fn finish(self) -> Consequences {
        self.done
    }

    /// The changes and effects, and what was looked at.
    pub(crate) fn finish_looking(self) -> (Consequences, Looks) {
        (self.done, self.sight.looks())
    }

    /// The time that attributes get.
    pub(crate) fn now(&self) -> Time {
        self.context.now
    }

    /// The node that asks.
    pub(crate) fn node(&self) -> u32 {
        self.context.node
    }

    /// Where new directories go.
    pub(crate) fn placement(&self) -> &Placement {
        self.placement
    }

    /// What else is to be done.
    pub(crate) fn effect(&mut self, effect: Effect) {
        self.done.effects.push(effect);
    }

    /// What becomes of an intention in a slot.
    pub(crate) fn turn(&mut self, slot: SlotId, turn: Turn) {
        self.done.turns.push((slot, turn));
    }

    /// From now on this is done for an intention: its own locks are open to it.
    pub(crate) fn act_for(&mut self, intention: IntentionId) {
        self.own = Some(intention);
    }

    /// Whether this operation sees slots of several managers.
    pub(crate) fn spans_managers(&self) -> bool {
        matches!(self.sight, Sight::Fetched(..))
    }

    /// Whether the slot is locked by this operation.
    pub(crate) fn holds(&self, slot: SlotId) -> bool {
        self.sight.locked(slot).is_some()
    }

    /// Everything of a slot of this manager.
    pub(crate) fn state(&self, slot: SlotId) -> Result<&'a SlotState, Stop> {
        self.sight.locked(slot).ok_or_else(|| Stop::Unlocked(vec![slot]))
    }

    /// Asks for all these slots at once; or, of slots of several managers, for what `wishes` says.
    pub(crate) fn need(&self, slots: &[SlotId], wishes: impl Fn() -> Vec<Wish>) -> Result<(), Stop> {
        if let Sight::Fetched(snapshots, _) = &self.sight {
            let lacking: Vec<Wish> = wishes().into_iter().filter(|wish| snapshots.lacks(wish)).collect();
            return if lacking.is_empty() { Ok(()) } else { Err(Stop::Lacking(lacking)) };
        }
        let missing: Vec<SlotId> = slots.iter().copied().filter(|&slot| !self.holds(slot)).collect();
        if missing.is_empty() { Ok(()) } else { Err(Stop::Unlocked(missing)) }
    }

    /// The value of a key.
    pub(crate) fn value(&self, slot: SlotId, key: &[u8]) -> Result<Option<&[u8]>, Stop> {
        match self.changes(slot).and_then(|changes| changes.get(key)) {
            Some(change) => Ok(change.as_deref()),
            None => self.sight.value(slot, key, self.own),
        }
    }

    /// The value of a key, whatever becomes of it meanwhile: others may be about to change it, and nobody compares
    /// it later. For what something else guards.
    pub(crate) fn glance(&self, slot: SlotId, key: &[u8]) -> Result<Option<&[u8]>, Stop> {
        match self.changes(slot).and_then(|changes| changes.get(key)) {
            Some(change) => Ok(change.as_deref()),
            None => self.sight.glance(slot, key),
        }
    }

    /// The first record in a range of keys.
    pub(crate) fn next(&self, slot: SlotId, range: &KeyRange) -> Result<Option<KeyValue<'_>>, Stop> {
        let (from, end) = range;
        let Some(changes) = self.changes(slot) else { return self.sight.next(slot, from, end, self.own) };
        let mut changed = changes.range::<[u8], _>((Included(from.as_slice()), Excluded(end.as_slice()))).peekable();
        let mut below = self.sight.next(slot, from, end, self.own)?;
        loop {
            match (below, changed.peek()) {
                (None, None) => return Ok(None),
                (Some((key, value)), Some((over, _))) if key < over.as_slice() => return Ok(Some((key, value))),
                (Some(record), None) => return Ok(Some(record)),
                (_, Some((over, change))) => {
                    if let Some(value) = change {
                        return Ok(Some((over, value)));
                    }
                    if below.is_some_and(|(key, _)| key == over.as_slice()) {
                        below = self.sight.next(slot, &behind(over), end, self.own)?;
                    }
                    changed.next();
                }
            }
        }
    }

    /// All records in a range of keys, of a slot in which this operation has changed nothing.
    pub(crate) fn range<'k>(
        &'k self,
        slot: SlotId,
        (from, end): &'k KeyRange,
    ) -> Result<impl Iterator<Item = Result<KeyValue<'k>, Stop>>, Stop> {
        assert!(self.changes(slot).is_none(), "what changed would not be seen");
        self.sight.range(slot, from, end, self.own)
    }

    /// Stops while an intention is about to change the inode's record.
    pub(crate) fn stand_clear(&self, inode: InodeId) -> Result<(), Stop> {
        match self.sight.locked(inode.slot()).is_some_and(|state| state.intentions.is_free()) {
            true => Ok(()),
            false => self.value(inode.slot(), &key::inode(inode)).map(drop),
        }
    }

    /// The record of an inode that may get one more user. What has no name, and nobody holds open, is about to be freed, or has
    /// lost a part of its bytes already: whoever found it while it had a name comes too late.
    pub(crate) fn usable(&self, inode: InodeId) -> Result<Inode, Stop> {
        let record = self.inode(inode)?;
        if record.links == 0 && self.open_count(inode)? == 0 {
            return Err(ManagerError::Stale.into());
        }
        Ok(record)
    }

    /// How many nodes hold an inode open.
    pub(crate) fn open_count(&self, inode: InodeId) -> Result<usize, Stop> {
        match &self.sight {
            Sight::Locked(_) => Ok(self.state(inode.slot())?.opens.count(inode)),
            Sight::Fetched(..) => Ok(self.sight.holders(inode)?.len()),
        }
    }

    /// Whether a node other than the one that asks holds an inode open.
    pub(crate) fn is_open_elsewhere(&self, inode: InodeId) -> Result<bool, Stop> {
        let node = self.node();
        match &self.sight {
            Sight::Locked(_) => Ok(self.state(inode.slot())?.opens.held_by_other(inode, node)),
            Sight::Fetched(..) => Ok(self.sight.holders(inode)?.iter().any(|&holder| holder != node)),
        }
    }

    /// Stops where a record cannot be changed now.
    pub(crate) fn ready(&self, slot: SlotId, key: &[u8]) -> Result<(), Stop> {
        self.sight.ready(slot, key, self.own)
    }

    /// Puts a record.
    pub(crate) fn put(&mut self, slot: SlotId, key: Key, value: Vec<u8>) -> Result<(), Stop> {
        self.change(slot, key, Some(value))
    }

    /// Removes a record.
    pub(crate) fn remove(&mut self, slot: SlotId, key: Key) -> Result<(), Stop> {
        self.change(slot, key, None)
    }

    /// A number for a new inode of a slot, where slots of several managers are seen.
    pub(crate) fn number(&mut self, slot: SlotId) -> Result<Option<InodeId>, Stop> {
        let Sight::Fetched(snapshots, _) = &self.sight else { return Ok(None) };
        let taken = self.numbers.iter().filter(|of| **of == slot).count();
        let number = snapshots.number(slot, taken)?;
        self.numbers.push(slot);
        self.count_inodes(slot, 1);
        Ok(Some(number))
    }

    /// Adds to the inodes of a slot, where slots of several managers are seen; whether they are.
    pub(crate) fn count_inodes(&mut self, slot: SlotId, count: i64) -> bool {
        self.counts(slot).map(|counts| counts.inodes += count).is_some()
    }

    /// Adds to the live bytes of a stripe, where slots of several managers are seen; whether they are.
    pub(crate) fn count_live(&mut self, slot: SlotId, place: (LogId, StripeNumber), bytes: i64) -> bool {
        self.counts(slot).map(|counts| count_live(counts, place, bytes)).is_some()
    }

    /// Bytes that were put so far, those put over counted again: bounds the journal record and the time under the locks.
    pub(crate) fn size(&self) -> usize {
        self.size
    }

    fn counts(&mut self, slot: SlotId) -> Option<&mut Counts> {
        if !self.spans_managers() {
            return None;
        }
        let index = match self.done.counts.iter().position(|(of, _)| *of == slot) {
            Some(index) => index,
            None => {
                self.done.counts.push((slot, Counts::default()));
                self.done.counts.len() - 1
            }
        };
        Some(&mut self.done.counts[index].1)
    }

    fn changes(&self, slot: SlotId) -> Option<&Changes> {
        self.done.changes.iter().find(|(id, _)| *id == slot).map(|(_, changes)| changes)
    }

    fn change(&mut self, slot: SlotId, key: Key, value: Option<Vec<u8>>) -> Result<(), Stop> {
        self.sight.ready(slot, &key, self.own)?;
        self.size += key.len() + value.as_ref().map_or(0, Vec::len);
        let index = match self.done.changes.iter().position(|(id, _)| *id == slot) {
            Some(index) => index,
            None => {
                self.done.changes.push((slot, Changes::new()));
                self.done.changes.len() - 1
            }
        };
        self.done.changes[index].1.insert(key, value);
        Ok(())
    }
}

/// The least key greater than `key`.
pub(crate) fn behind(key: &[u8]) -> Key {
    [key, &[0]].concat()
}
