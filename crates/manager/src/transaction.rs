//! What an operation sees and does: the records of the slots that are locked, under its own changes.
//!
//! Invariants
//! 1. Nothing outside changes before [`Transaction::finish`] hands over the changes: an operation that stops can be
//!    repeated from its start.
//! 2. Every changed key lies in a page that is in memory, so that applying the changes cannot fail.

use std::collections::BTreeMap;
use std::ops::Bound::{Excluded, Included};

use protocol::file::Time;
use protocol::id::{InodeId, SlotId};
use protocol::manager::ManagerError;

use crate::encoding::Damaged;
use crate::key::{Key, KeyRange};
use crate::ops::Operation;
use crate::placement::Placement;
use crate::slot::{KeyValue, PageId};
use crate::state::SlotState;

/// Why an operation did not come to its end.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Stop {
    /// A page must be loaded first. Then: again from the start.
    Absent(PageId),
    /// Other slots are needed. Then: again from the start, with them locked too, or as a two-phase operation when one is
    /// another manager's (DESIGN §5, operations over several slots).
    Unlocked(Vec<SlotId>),
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
    /// The asking node holds the inode open.
    Open(InodeId),
    /// It no longer does.
    Close(InodeId),
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
            Effect::Open(_) | Effect::Close(_) => None,
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
}

/// An operation at work.
pub(crate) struct Transaction<'a> {
    held: &'a [&'a SlotState],
    placement: &'a Placement,
    context: Context,
    done: Consequences,
    size: usize,
}

impl<'a> Transaction<'a> {
    /// Over the slots that are locked.
    pub(crate) fn new(held: &'a [&'a SlotState], placement: &'a Placement, context: Context) -> Self {
        Transaction { held, placement, context, done: Consequences::default(), size: 0 }
    }

    /// The changes and effects.
    pub(crate) fn finish(self) -> Consequences {
        self.done
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

    /// Whether the slot is locked by this operation.
    pub(crate) fn holds(&self, slot: SlotId) -> bool {
        self.held.iter().any(|state| state.id == slot)
    }

    /// Everything of a slot.
    pub(crate) fn state(&self, slot: SlotId) -> Result<&'a SlotState, Stop> {
        self.held.iter().find(|state| state.id == slot).copied().ok_or_else(|| Stop::Unlocked(vec![slot]))
    }

    /// Asks for all these slots at once.
    pub(crate) fn need(&self, slots: &[SlotId]) -> Result<(), Stop> {
        let missing: Vec<SlotId> = slots.iter().copied().filter(|&slot| !self.holds(slot)).collect();
        if missing.is_empty() { Ok(()) } else { Err(Stop::Unlocked(missing)) }
    }

    /// The value of a key.
    pub(crate) fn value(&self, slot: SlotId, key: &[u8]) -> Result<Option<&[u8]>, Stop> {
        let state = self.state(slot)?;
        match self.changes(slot).and_then(|changes| changes.get(key)) {
            Some(change) => Ok(change.as_deref()),
            None => Ok(state.records.value(key)?),
        }
    }

    /// The first record in a range of keys.
    pub(crate) fn next(&self, slot: SlotId, range: &KeyRange) -> Result<Option<KeyValue<'_>>, Stop> {
        let records = &self.state(slot)?.records;
        let (from, end) = range;
        let Some(changes) = self.changes(slot) else { return Ok(records.next(from, end)?) };
        let mut changed = changes.range::<[u8], _>((Included(from.as_slice()), Excluded(end.as_slice()))).peekable();
        let mut below = records.next(from, end)?;
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
                        below = records.next(&behind(over), end)?;
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
        Ok(self.state(slot)?.records.range(from, end).map(|record| record.map_err(Stop::from)))
    }

    /// Puts a record.
    pub(crate) fn put(&mut self, slot: SlotId, key: Key, value: Vec<u8>) -> Result<(), Stop> {
        self.change(slot, key, Some(value))
    }

    /// Removes a record.
    pub(crate) fn remove(&mut self, slot: SlotId, key: Key) -> Result<(), Stop> {
        self.change(slot, key, None)
    }

    /// Bytes that were put so far, those put over counted again: bounds the journal record and the time under the locks.
    pub(crate) fn size(&self) -> usize {
        self.size
    }

    fn changes(&self, slot: SlotId) -> Option<&Changes> {
        self.done.changes.iter().find(|(id, _)| *id == slot).map(|(_, changes)| changes)
    }

    fn change(&mut self, slot: SlotId, key: Key, value: Option<Vec<u8>>) -> Result<(), Stop> {
        self.state(slot)?.records.ready(&key)?;
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
