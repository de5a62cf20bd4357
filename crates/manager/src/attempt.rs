//! One attempt at an operation: lock its slots, run it, put its changes into the journal and then into the slots.
//!
//! The journal record is appended while the slots are locked, so that the records of a slot lie in the log in the order
//! in which they took effect; nothing else is done under the locks, and nothing waits.

use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Mutex, MutexGuard};

use protocol::id::{SLOT_COUNT, SlotId};
use protocol::manager::ManagerError;

use crate::ops::{self, Done, Operation};
use crate::page::Page;
use crate::placement::Placement;
use crate::slot::PageId;
use crate::state::SlotState;
use crate::transaction::{Changes, Consequences, Context, Effect, Stop, Transaction};

/// All slots of a manager, each behind its own lock.
pub(crate) struct SlotTable {
    slots: Vec<Option<Mutex<SlotState>>>,
    mine: Vec<SlotId>,
    placement: Placement,
    resident: AtomicUsize,
}

/// How an attempt ended. `P` is what the journal says of an appended record.
#[derive(Debug)]
pub(crate) enum Attempt<P> {
    /// It is done, or a step of it.
    Done(Done, Option<P>, Vec<Effect>),
    /// This page must be loaded first.
    Load(PageId),
    /// No.
    Refused(ManagerError),
}

impl SlotTable {
    /// Over these slots. A directory is split when its names in one slot take more than so many bytes.
    pub(crate) fn new(states: Vec<SlotState>, part_bytes_max: u64) -> SlotTable {
        let mine: Vec<SlotId> = states.iter().map(|state| state.id).collect();
        let resident = states.iter().map(|state| state.records.resident()).sum();
        let mut slots: Vec<_> = (0..SLOT_COUNT).map(|_| None).collect();
        for state in states {
            let index = usize::from(state.id.0);
            slots[index] = Some(Mutex::new(state));
        }
        let placement = Placement::new(mine.clone(), part_bytes_max);
        SlotTable { slots, mine, placement, resident: AtomicUsize::new(resident) }
    }

    /// The slots of this manager, in order.
    pub(crate) fn mine(&self) -> &[SlotId] {
        &self.mine
    }

    /// Bytes of memory that pages take, over all slots.
    pub(crate) fn resident(&self) -> usize {
        self.resident.load(Ordering::Relaxed)
    }

    /// A slot of this manager, locked.
    pub(crate) fn lock(&self, slot: SlotId) -> Option<MutexGuard<'_, SlotState>> {
        let lock = self.slots.get(usize::from(slot.0))?.as_ref()?;
        Some(lock.lock().expect("no operation panics"))
    }

    /// Works on a slot of this manager; its memory is counted anew.
    pub(crate) fn with<T>(&self, slot: SlotId, work: impl FnOnce(&mut SlotState) -> T) -> Option<T> {
        let mut state = self.lock(slot)?;
        let before = state.records.resident();
        let result = work(&mut state);
        self.count(before, state.records.resident());
        Some(result)
    }

    /// Puts a loaded page in place.
    pub(crate) fn fill(&self, id: &PageId, page: Page) {
        self.with(id.slot, |state| state.records.fill(id, page));
    }

    /// One attempt. `append` puts changes into the journal; when that fails, nothing has changed.
    pub(crate) fn attempt<P>(
        &self,
        operation: &Operation,
        context: Context,
        append: impl FnOnce(&[(SlotId, Changes)]) -> Result<P, ManagerError>,
    ) -> Attempt<P> {
        let mut slots = ops::slots(operation);
        loop {
            // In ascending order, so that no two operations wait for each other.
            let guards: Option<Vec<_>> = slots.iter().map(|&slot| self.lock(slot)).collect();
            let Some(guards) = guards else { return Attempt::Refused(ManagerError::NotMine) };
            match self.run(&guards, operation, context) {
                Ok((done, consequences)) => return self.apply(guards, context, (done, consequences), append),
                Err(Stop::Absent(page)) => return Attempt::Load(page),
                Err(Stop::Refused(error)) => return Attempt::Refused(error),
                Err(Stop::Unlocked(more)) => {
                    // Another manager's slot makes this a two-phase operation, with an intention record here.
                    let locked = slots.len();
                    slots.extend(more);
                    slots.sort_unstable();
                    slots.dedup();
                    assert!(slots.len() > locked, "locked slots are not asked for");
                }
            }
        }
    }

    fn run(
        &self,
        guards: &[MutexGuard<'_, SlotState>],
        operation: &Operation,
        context: Context,
    ) -> Result<(Done, Consequences), Stop> {
        let held: Vec<&SlotState> = guards.iter().map(|guard| &**guard).collect();
        let mut tx = Transaction::new(&held, &self.placement, context);
        let done = ops::run(&mut tx, operation)?;
        Ok((done, tx.finish()))
    }

    fn apply<P>(
        &self,
        mut guards: Vec<MutexGuard<'_, SlotState>>,
        context: Context,
        (done, consequences): (Done, Consequences),
        append: impl FnOnce(&[(SlotId, Changes)]) -> Result<P, ManagerError>,
    ) -> Attempt<P> {
        let mut position = None;
        if !consequences.changes.is_empty() {
            match append(&consequences.changes) {
                Ok(appended) => position = Some(appended),
                Err(error) => return Attempt::Refused(error),
            }
        }
        for (slot, changes) in &consequences.changes {
            let state = guards.iter_mut().find(|state| state.id == *slot).expect("only locked slots change");
            let before = state.records.resident();
            changes.iter().for_each(|(key, value)| state.records.apply(key, value.as_deref()));
            self.count(before, state.records.resident());
        }
        for effect in &consequences.effects {
            let (Effect::Open(inode) | Effect::Close(inode)) = *effect else { continue };
            let state = guards.iter_mut().find(|state| state.id == inode.slot()).expect("opens are in locked slots");
            match effect {
                Effect::Open(_) => state.opens.open(inode, context.node),
                _ => state.opens.close(inode, context.node),
            }
        }
        Attempt::Done(done, position, consequences.effects)
    }

    fn count(&self, before: usize, after: usize) {
        if after >= before {
            self.resident.fetch_add(after - before, Ordering::Relaxed);
        } else {
            self.resident.fetch_sub(before - after, Ordering::Relaxed);
        }
    }
}
