//! Intentions that this manager coordinates and whose outcome is not yet durable. Decides.
//!
//! Invariants
//! 1. An intention is in flight from before its first part is held until nothing of it is, or until its decision is
//!    `disk`. While it is, nobody is told its outcome.
//! 2. A flight that ends without a decision, whoever gave up waiting for it, lets go of the own slots at once.

use std::collections::BTreeSet;
use std::sync::Mutex;

use protocol::id::{LogId, SlotId};
use protocol::intention::IntentionId;

use crate::intention::Turn;
use crate::manager::Manager;

/// All intentions in flight.
#[derive(Default)]
pub(crate) struct Flights(Mutex<State>);

#[derive(Default)]
struct State {
    next: u64,
    under_way: BTreeSet<IntentionId>,
}

impl Flights {
    /// Whether the outcome is open.
    pub(crate) fn contains(&self, intention: IntentionId) -> bool {
        self.0.lock().expect("nobody panics over flights").under_way.contains(&intention)
    }

    /// Whether none is in flight.
    pub(crate) fn are_over(&self) -> bool {
        self.0.lock().expect("nobody panics over flights").under_way.is_empty()
    }

    /// The outcome is durable, or there is none.
    pub(crate) fn end(&self, intention: IntentionId) {
        self.0.lock().expect("nobody panics over flights").under_way.remove(&intention);
    }

    fn begin(&self, log: LogId) -> IntentionId {
        let mut state = self.0.lock().expect("nobody panics over flights");
        state.next += 1;
        let intention = IntentionId { log, number: state.next };
        state.under_way.insert(intention);
        intention
    }
}

/// One intention in flight.
pub(crate) struct Flight<'a> {
    manager: &'a Manager,
    intention: IntentionId,
    /// Own slots that may hold parts of it, and others'.
    own: Vec<SlotId>,
    others: Vec<SlotId>,
    decided: bool,
}

impl<'a> Flight<'a> {
    /// A new one.
    pub(crate) fn begin(manager: &'a Manager) -> Flight<'a> {
        let intention = manager.flights.begin(manager.writer.log());
        Flight { manager, intention, own: Vec::new(), others: Vec::new(), decided: false }
    }

    /// Its name.
    pub(crate) fn intention(&self) -> IntentionId {
        self.intention
    }

    /// These slots of this manager may hold parts of it from now on.
    pub(crate) fn holds_own(&mut self, slots: impl Iterator<Item = SlotId>) {
        self.own.extend(slots);
    }

    /// These slots of others may hold parts of it from now on.
    pub(crate) fn holds_others(&mut self, slots: impl Iterator<Item = SlotId>) {
        self.others.extend(slots);
    }

    /// The decision is in the journal.
    pub(crate) fn decided(&mut self) {
        self.decided = true;
    }

    /// The decision is `disk`: the others may hear of it.
    pub(crate) fn durable(&mut self, coordinator: SlotId, others: Vec<SlotId>) {
        self.manager.flights.end(self.intention);
        self.manager.tell_done_later(coordinator, self.intention, others);
    }

    /// The slots of others that are to let go, of what was held only to be seen in one moment.
    pub(crate) fn take_others(&mut self) -> Vec<SlotId> {
        std::mem::take(&mut self.others)
    }
}

impl Drop for Flight<'_> {
    fn drop(&mut self) {
        if self.decided {
            return;
        }
        for &slot in &self.own {
            self.manager.table.with(slot, |state| state.intentions.turn(Turn::Release(self.intention)));
        }
        self.manager.flights.end(self.intention);
        // Whom this does not reach asks.
        self.manager.tell_undone_later(self.intention, std::mem::take(&mut self.others));
    }
}
