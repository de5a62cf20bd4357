//! One attempt at an operation: lock its slots, run it, put its changes into the journal and then into the slots.
//! An operation that needs slots of other managers ends here, and is carried out by `coordinate`.
//!
//! The journal record is appended while the slots are locked, so that the records of a slot lie in the log in the order
//! in which they took effect; nothing else is done under the locks, and nothing waits.

use std::collections::BTreeSet;
use std::ops::{Deref, DerefMut};
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError, RwLock};

use protocol::id::{SLOT_COUNT, SlotId};
use protocol::intention::Part;
use protocol::manager::ManagerError;

use crate::intention::Over;
use crate::needs;
use crate::ops::{self, Done, Operation};
use crate::page::Page;
use crate::placement::Placement;
use crate::slot::PageId;
use crate::snapshot::{Snapshots, Wish};
use crate::state::SlotState;
use crate::tokens::Call;
use crate::transaction::{Changes, Consequences, Context, Effect, Stop, Transaction};

/// All slots of a manager, each behind its own lock. Slots come when they are taken over, and go when they are another's.
pub(crate) struct SlotTable {
    /// A place for every slot there is. One that was managed once keeps its lock, and is empty after it went.
    places: Vec<OnceLock<Mutex<Option<SlotState>>>>,
    mine: RwLock<Mine>,
    part_bytes_max: u64,
    resident: AtomicUsize,
    /// Counts stays of slots.
    stays: AtomicU64,
    /// Slots in which intentions may stand: every one where some do, and some where they are over.
    unsettled: Mutex<BTreeSet<SlotId>>,
}

/// Which slots are here, and what follows from that.
#[derive(Clone)]
struct Mine {
    slots: Arc<[SlotId]>,
    placement: Arc<Placement>,
}

impl Mine {
    fn new(slots: Vec<SlotId>, part_bytes_max: u64) -> Mine {
        Mine { placement: Arc::new(Placement::new(slots.clone(), part_bytes_max)), slots: slots.into() }
    }
}

/// A slot of this manager, locked.
pub(crate) struct Held<'a>(MutexGuard<'a, Option<SlotState>>);

impl Deref for Held<'_> {
    type Target = SlotState;

    fn deref(&self) -> &SlotState {
        self.0.as_ref().expect("only slots that are here are held")
    }
}

impl DerefMut for Held<'_> {
    fn deref_mut(&mut self) -> &mut SlotState {
        self.0.as_mut().expect("only slots that are here are held")
    }
}

/// How an attempt ended. `P` is what the journal says of an appended record.
#[derive(Debug)]
pub(crate) enum Attempt<P> {
    /// It is done, or a step of it.
    Done(Done, Option<P>, Vec<Effect>),
    /// This page must be loaded first.
    Load(PageId),
    /// An intention stands in the way: again when it is over.
    Held(Over),
    /// Slots of other managers are needed too.
    Spans,
    /// A client must give this up first.
    Call(Call),
    /// No.
    Refused(ManagerError),
}

/// How far an operation comes with what was fetched.
#[derive(Debug)]
pub(crate) enum Sketch {
    /// To its end: what it answers, and what it read and changes, in order of slots.
    Whole(Result<Done, ManagerError>, Vec<Part>),
    /// This must be fetched first.
    Lacking(Vec<Wish>),
}

impl SlotTable {
    /// Over these slots. A directory is split when its names in one slot take more than so many bytes.
    pub(crate) fn new(states: Vec<SlotState>, part_bytes_max: u64) -> SlotTable {
        let places = (0..SLOT_COUNT).map(|_| OnceLock::new()).collect();
        let mine = RwLock::new(Mine::new(Vec::new(), part_bytes_max));
        let (resident, stays, unsettled) = Default::default();
        let table = SlotTable { places, mine, part_bytes_max, resident, stays, unsettled };
        table.adopt(states);
        table
    }

    /// Takes in slots that are not here yet.
    pub(crate) fn adopt(&self, states: Vec<SlotState>) {
        let mut slots: Vec<SlotId> = self.mine().iter().copied().chain(states.iter().map(|state| state.id)).collect();
        slots.sort_unstable();
        for mut state in states {
            state.stay = self.stays.fetch_add(1, Ordering::Relaxed);
            self.count(0, state.records.resident());
            if !state.intentions.is_empty() {
                self.unsettled().insert(state.id);
            }
            let place = self.places[usize::from(state.id.0)].get_or_init(Mutex::default);
            let before = place.lock().expect("no operation panics").replace(state);
            assert!(before.is_none(), "a slot is taken over once");
        }
        self.set_mine(slots);
    }

    /// Gives these slots up, wherever they are here. What is under way on them has had its journal record appended, or meets
    /// no slot any more.
    pub(crate) fn give_up(&self, slots: &[SlotId]) -> Vec<SlotState> {
        let left = self.mine().iter().copied().filter(|slot| !slots.contains(slot)).collect();
        self.set_mine(left);
        let take = |slot: &SlotId| {
            let place = self.places[usize::from(slot.0)].get()?;
            place.lock().expect("no operation panics").take()
        };
        let mut given: Vec<SlotState> = slots.iter().filter_map(take).collect();
        for state in &mut given {
            self.count(state.records.resident(), 0);
            state.end_stay();
        }
        given
    }

    fn set_mine(&self, slots: Vec<SlotId>) {
        *self.mine.write().unwrap_or_else(PoisonError::into_inner) = Mine::new(slots, self.part_bytes_max);
    }

    fn known(&self) -> Mine {
        self.mine.read().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// The slots of this manager, in order.
    pub(crate) fn mine(&self) -> Arc<[SlotId]> {
        self.known().slots
    }

    /// Where new directories go.
    pub(crate) fn placement(&self) -> Arc<Placement> {
        self.known().placement
    }

    /// Bytes of memory that pages take, over all slots.
    pub(crate) fn resident(&self) -> usize {
        self.resident.load(Ordering::Relaxed)
    }

    /// A slot of this manager, locked.
    pub(crate) fn lock(&self, slot: SlotId) -> Option<Held<'_>> {
        let place = self.places.get(usize::from(slot.0))?.get()?;
        let guard = place.lock().expect("no operation panics");
        guard.is_some().then_some(Held(guard))
    }

    /// Looks at each slot of this manager in which intentions stand: of thousands few are, and they are looked for every
    /// second.
    pub(crate) fn each_unsettled(&self, mut look: impl FnMut(&SlotState)) {
        let slots: Vec<SlotId> = self.unsettled().iter().copied().collect();
        for slot in slots {
            match self.lock(slot) {
                Some(state) if !state.intentions.is_empty() => look(&state),
                // Whoever has one stand here has the slot locked.
                Some(_state) => drop(self.unsettled().remove(&slot)),
                // It went, or is just coming.
                None => {}
            }
        }
    }

    fn unsettled(&self) -> MutexGuard<'_, BTreeSet<SlotId>> {
        self.unsettled.lock().unwrap_or_else(PoisonError::into_inner)
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

    /// One attempt, under the locks of `slots`, and of those that it turns out to need beside. `append` puts changes into the
    /// journal; when that fails, nothing has changed.
    pub(crate) fn attempt<P>(
        &self,
        (operation, slots): (&Operation, &mut Vec<SlotId>),
        context: Context,
        append: impl FnOnce(&[(SlotId, Changes)]) -> Result<P, ManagerError>,
    ) -> Attempt<P> {
        loop {
            // In ascending order, so that no two operations wait for each other.
            let guards: Option<Vec<_>> = slots.iter().map(|&slot| self.lock(slot)).collect();
            let Some(mut guards) = guards else {
                let placement = self.placement();
                let spans = ops::coordinator(operation, |slot| placement.manages(slot)).is_some();
                return if spans { Attempt::Spans } else { Attempt::Refused(ManagerError::NotMine) };
            };
            if needs::is_early(guards.iter().map(|guard| &**guard), operation) {
                return Attempt::Refused(ManagerError::NotMine);
            }
            if let Err(call) = needs::admit(guards.iter_mut().map(|guard| &mut **guard), operation, context.node) {
                let waits = needs::may_wait(operation);
                return if waits { Attempt::Call(call) } else { Attempt::Refused(ManagerError::Held) };
            }
            match self.run(&guards, operation, context) {
                Ok((mut done, consequences)) => {
                    let held: Vec<&SlotState> = guards.iter().map(|guard| &**guard).collect();
                    let admitted = needs::admit_answer(&held, &mut done, context.node)
                        .and_then(|()| needs::admit_changes(&held, operation, &consequences.changes, context.node));
                    if let Err(call) = admitted {
                        return Attempt::Call(call);
                    }
                    return self.apply(guards, (done, consequences), append);
                }
                Err(Stop::Absent(page)) => return Attempt::Load(page),
                Err(Stop::Refused(error)) => return Attempt::Refused(error),
                Err(Stop::Held(slot, intention)) => {
                    let state = guards.iter().find(|state| state.id == slot).expect("locked slots are looked at");
                    let held = state.intentions.held(intention).expect("what locks is held");
                    return Attempt::Held(held.over());
                }
                Err(Stop::Lacking(_)) => unreachable!("nothing is fetched of slots that are locked"),
                Err(Stop::Unlocked(more)) => {
                    let locked = slots.len();
                    slots.extend(more);
                    slots.sort_unstable();
                    slots.dedup();
                    assert!(slots.len() > locked, "locked slots are not asked for");
                }
            }
        }
    }

    /// Runs an operation over what was fetched of slots of any manager. Nothing changes.
    pub(crate) fn sketch(&self, operation: &Operation, context: Context, snapshots: &Snapshots) -> Sketch {
        let placement = self.placement();
        let mut tx = Transaction::over(snapshots, &placement, context);
        let done = match ops::run(&mut tx, operation) {
            Ok(done) => Ok(done),
            Err(Stop::Refused(error)) => Err(error),
            Err(Stop::Lacking(wishes)) => return Sketch::Lacking(wishes),
            Err(stop) => unreachable!("what is fetched is not locked: {stop:?}"),
        };
        let (consequences, looks) = tx.finish_looking();
        // What is refused changes nothing; but that it is must be true.
        let consequences = if done.is_ok() { consequences } else { Consequences::default() };
        let parts = snapshots.parts(&looks, &consequences);
        Sketch::Whole(done, parts)
    }

    fn run(&self, guards: &[Held<'_>], operation: &Operation, context: Context) -> Result<(Done, Consequences), Stop> {
        let held: Vec<&SlotState> = guards.iter().map(|guard| &**guard).collect();
        let placement = self.placement();
        let mut tx = Transaction::new(&held, &placement, context);
        let done = ops::run(&mut tx, operation)?;
        Ok((done, tx.finish()))
    }

    fn apply<P>(
        &self,
        mut guards: Vec<Held<'_>>,
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
        for (slot, turn) in consequences.turns {
            let state = guards.iter_mut().find(|state| state.id == slot).expect("intentions turn in locked slots");
            state.intentions.turn(turn);
            self.unsettled().insert(slot);
        }
        for effect in &consequences.effects {
            let (Effect::Open(inode, node) | Effect::Close(inode, node)) = *effect else { continue };
            let state = guards.iter_mut().find(|state| state.id == inode.slot()).expect("opens are in locked slots");
            match effect {
                Effect::Open(..) => state.opens.open(inode, node),
                _ => state.opens.close(inode, node),
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
