//! Where the newest journal record of each slot ends: who is told what a slot has is told when that is safe. Decides, never
//! awaits.
//!
//! Invariant: a record is noted under the locks of its slots, before anybody sees what it changes.

use std::sync::{Mutex, PoisonError};

use protocol::address::Position;
use protocol::id::{SLOT_COUNT, SlotId};

/// The ends, by slot.
pub(crate) struct Newest(Vec<Mutex<Position>>);

impl Default for Newest {
    fn default() -> Newest {
        Newest((0..SLOT_COUNT).map(|_| Mutex::default()).collect())
    }
}

impl Newest {
    /// A record that ends here changes these slots.
    pub(crate) fn note(&self, slots: impl Iterator<Item = SlotId>, end: Position) {
        slots.for_each(|slot| *self.lock(slot) = end);
    }

    /// Where the journal must be safe for all that these slots have to be.
    pub(crate) fn of(&self, slots: &[SlotId]) -> Position {
        slots.iter().map(|&slot| *self.lock(slot)).max().unwrap_or_default()
    }

    fn lock(&self, slot: SlotId) -> std::sync::MutexGuard<'_, Position> {
        self.0[usize::from(slot.0)].lock().unwrap_or_else(PoisonError::into_inner)
    }
}
