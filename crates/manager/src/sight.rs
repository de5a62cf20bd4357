//! Where an operation looks below its own changes: into locked slots, or into what was fetched of several managers' slots.
//!
//! Of a locked slot, what an intention is about to change cannot be seen, and what one has read cannot be changed, until
//! it is over; where no intention is under way, that costs one look at an empty map. Of what was fetched, every look is
//! noted, so that it can be compared when the operation is carried out. Decides.

use std::cell::RefCell;

use protocol::id::{InodeId, SlotId};
use protocol::intention::IntentionId;

use crate::key::Key;
use crate::slot::{KeyValue, PageId};
use crate::snapshot::{Looks, Snapshots};
use crate::state::SlotState;
use crate::transaction::{Stop, behind};

/// What an operation sees.
pub(crate) enum Sight<'a> {
    /// The slots that are locked.
    Locked(&'a [&'a SlotState]),
    /// What was fetched, and what of it was looked at.
    Fetched(&'a Snapshots, RefCell<Looks>),
}

impl<'a> Sight<'a> {
    /// A slot, if it is locked.
    pub(crate) fn locked(&self, slot: SlotId) -> Option<&'a SlotState> {
        let Sight::Locked(held) = self else { return None };
        held.iter().find(|state| state.id == slot).copied()
    }

    /// What was looked at.
    pub(crate) fn looks(self) -> Looks {
        match self {
            Sight::Locked(_) => Looks::default(),
            Sight::Fetched(_, looks) => looks.into_inner(),
        }
    }

    /// The value of a key.
    pub(crate) fn value(&self, slot: SlotId, key: &[u8], own: Option<IntentionId>) -> Result<Option<&'a [u8]>, Stop> {
        match self {
            Sight::Locked(_) => {
                let state = self.state(slot)?;
                if !state.intentions.is_free() {
                    unlocked(state, key, &behind(key), own)?;
                }
                Ok(state.records.value(key)?)
            }
            Sight::Fetched(snapshots, looks) => {
                let value = snapshots.value(slot, key)?;
                looks.borrow_mut().range(slot, key, &behind(key));
                Ok(value)
            }
        }
    }

    /// The value of a key, whoever is about to change it.
    pub(crate) fn glance(&self, slot: SlotId, key: &[u8]) -> Result<Option<&'a [u8]>, Stop> {
        match self {
            Sight::Locked(_) => Ok(self.state(slot)?.records.value(key)?),
            Sight::Fetched(snapshots, _) => Ok(snapshots.value(slot, key)?),
        }
    }

    /// The first record from `from` on, before `end`.
    pub(crate) fn next(
        &self,
        slot: SlotId,
        from: &[u8],
        end: &[u8],
        own: Option<IntentionId>,
    ) -> Result<Option<KeyValue<'a>>, Stop> {
        match self {
            Sight::Locked(_) => {
                let state = self.state(slot)?;
                let found = state.records.next(from, end)?;
                if !state.intentions.is_free() {
                    let through = found.map_or_else(|| end.to_vec(), |(key, _)| behind(key));
                    unlocked(state, from, &through, own)?;
                }
                Ok(found)
            }
            Sight::Fetched(snapshots, looks) => {
                let found = snapshots.next(slot, from, end)?;
                let through = found.map_or_else(|| end.to_vec(), |(key, _)| behind(key));
                looks.borrow_mut().range(slot, from, &through);
                Ok(found)
            }
        }
    }

    /// The records from `from` on, before `end`.
    pub(crate) fn range<'k>(
        &'k self,
        slot: SlotId,
        from: &'k [u8],
        end: &'k [u8],
        own: Option<IntentionId>,
    ) -> Result<Records<'k, impl Iterator<Item = Result<KeyValue<'k>, PageId>> + use<'k, 'a>>, Stop> {
        match self {
            Sight::Locked(_) => {
                let state = self.state(slot)?;
                let lock = match state.intentions.is_free() {
                    true => None,
                    false => state.intentions.locked_in(from, end, own),
                };
                // What lies before a locked key can be seen; there, whoever goes on must wait.
                let until = lock.map_or(end, |(key, _)| key);
                let stop = lock.map(|(_, id)| Stop::Held(slot, id));
                Ok(Records::Locked(state.records.range(from, until), stop))
            }
            Sight::Fetched(snapshots, looks) => {
                Ok(Records::Fetched(Walk { snapshots, looks, slot, from, at: from.into(), end }))
            }
        }
    }

    /// Which nodes hold an inode open, of what was fetched.
    pub(crate) fn holders(&self, inode: InodeId) -> Result<&'a [u32], Stop> {
        let Sight::Fetched(snapshots, looks) = self else { return Err(Stop::Unlocked(vec![inode.slot()])) };
        let holders = snapshots.holders(inode)?;
        looks.borrow_mut().holders(inode);
        Ok(holders)
    }

    /// Whether a record can be changed: its page is in memory, and no intention stands in the way.
    pub(crate) fn ready(&self, slot: SlotId, key: &[u8], own: Option<IntentionId>) -> Result<(), Stop> {
        if let Sight::Fetched(..) = self {
            return Ok(());
        }
        let state = self.state(slot)?;
        if !state.intentions.is_free()
            && let Some(id) = state.intentions.lock_on(key, own)
        {
            return Err(Stop::Held(slot, id));
        }
        Ok(state.records.ready(key)?)
    }

    fn state(&self, slot: SlotId) -> Result<&'a SlotState, Stop> {
        self.locked(slot).ok_or_else(|| Stop::Unlocked(vec![slot]))
    }
}

/// Refuses to see what an intention is about to change.
fn unlocked(state: &SlotState, from: &[u8], end: &[u8], own: Option<IntentionId>) -> Result<(), Stop> {
    match state.intentions.locked_in(from, end, own) {
        Some((_, id)) => Err(Stop::Held(state.id, id)),
        None => Ok(()),
    }
}

/// Records, one after the other, and then, where more of the range could not be seen, why.
pub(crate) enum Records<'k, I> {
    /// Of a locked slot.
    Locked(I, Option<Stop>),
    /// Of what was fetched.
    Fetched(Walk<'k>),
}

impl<'k, I: Iterator<Item = Result<KeyValue<'k>, PageId>>> Iterator for Records<'k, I> {
    type Item = Result<KeyValue<'k>, Stop>;

    fn next(&mut self) -> Option<Self::Item> {
        match self {
            Records::Locked(records, stop) => match records.next() {
                Some(record) => Some(record.map_err(Stop::from)),
                None => stop.take().map(Err),
            },
            Records::Fetched(walk) => walk.next().transpose(),
        }
    }
}

/// A walk through what was fetched.
pub(crate) struct Walk<'k> {
    snapshots: &'k Snapshots,
    looks: &'k RefCell<Looks>,
    slot: SlotId,
    from: &'k [u8],
    at: Key,
    end: &'k [u8],
}

impl<'k> Walk<'k> {
    fn next(&mut self) -> Result<Option<KeyValue<'k>>, Stop> {
        let found = self.snapshots.next(self.slot, &self.at, self.end)?;
        self.at = found.map_or_else(|| self.end.to_vec(), |(key, _)| behind(key));
        self.looks.borrow_mut().range(self.slot, self.from, &self.at);
        Ok(found)
    }
}
