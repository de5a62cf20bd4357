//! The model as the checker sees it: steps and properties.

use stateright::{Model, Property};

use crate::reader::read;
use crate::rules::Breach;
use crate::state::{Fragments, Length, Parity, Part, Plan, Recoverer, Registry, State, TARGETS};
use crate::{recoverer, writer};

/// A question to the checker: how large, and who breaks which rule.
#[derive(Clone, Debug)]
pub(crate) struct Sealing {
    pub(crate) plan: Plan,
    /// How many runs the writer may have, the first included.
    pub(crate) writer_runs: usize,
    /// How many recoverers there are, up to two.
    pub(crate) recoverers: usize,
    /// Whether one target may lose all it has before the first claim.
    pub(crate) loss: bool,
    /// Whether an empty disk may take the place of what it lost.
    pub(crate) exchange: bool,
    pub(crate) breach: Breach,
}

/// One step of somebody.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) enum Action {
    Deliver { run: usize, stripe: usize, part: Part },
    WriterAddsRun { from: usize, group: usize },
    WriterFinishes,
    Lose { target: usize },
    Exchange { target: usize },
    Claim { who: usize },
    Fence { who: usize, target: usize },
    Decide { who: usize },
    AddRun { who: usize, group: usize },
    Store { who: usize, stripe: usize, part: Part },
    Seal { who: usize },
}

pub(crate) const ACKNOWLEDGED_IS_READABLE: &str = "an acknowledged record can be read with any one target lost";
pub(crate) const ACKNOWLEDGED_IS_SEALED: &str = "an acknowledged record is within the sealed length";
pub(crate) const SEALED_IS_WHOLE: &str = "all of a sealed log can be read with any one target lost, and it is a prefix";
pub(crate) const ONE_LENGTH: &str = "at most one length is ever recorded";
pub(crate) const SAME_BYTES: &str = "a log address means the same bytes in every copy";
pub(crate) const NAMED_GROUPS: &str = "the writer stores only in groups that its layout names";
pub(crate) const NOTHING_UNDONE: &str = "what somebody acted on is within the sealed length";
pub(crate) const NO_DEAD_END: &str = "when nobody can do anything more the log is sealed";

impl Model for Sealing {
    type State = State;
    type Action = Action;

    fn init_states(&self) -> Vec<State> {
        vec![State::new(self.plan)]
    }

    fn actions(&self, state: &State, actions: &mut Vec<Action>) {
        writer::actions(self, state, actions);
        for who in 0..state.recoverers.len() {
            recoverer::actions(self, state, who, actions);
        }
        // Somebody must be left to claim the log again.
        let can_be_claimed = state.recoverers[..self.recoverers].contains(&Recoverer::Idle);
        if let Some(target) = state.lost.filter(|_| self.exchange && can_be_claimed) {
            actions.push(Action::Exchange { target: target as usize });
        }
        if self.loss && state.lost.is_none() && state.exchanged.is_none() && state.registry == Registry::Open {
            actions.extend((0..TARGETS).map(|target| Action::Lose { target }));
        }
    }

    fn next_state(&self, state: &State, action: Action) -> Option<State> {
        let mut next = *state;
        match action {
            Action::Deliver { run, stripe, part } => writer::deliver(self, &mut next, (run, stripe), part),
            Action::WriterAddsRun { from, group } => writer::add_run(self, &mut next, from, group),
            Action::WriterFinishes => writer::finish(&mut next),
            Action::Lose { target } => next.lost = Some(target as u8),
            Action::Exchange { target } => next.exchange(target, self.breach != Breach::ClaimOutlivesDisk),
            Action::Claim { who } => recoverer::claim(&mut next, who),
            Action::Fence { who, target } => recoverer::fence(&mut next, who, target),
            Action::Decide { who } => recoverer::decide(self, &mut next, who),
            Action::AddRun { who, group } => recoverer::add_run(&mut next, who, group),
            Action::Store { who, stripe, part } => recoverer::store(self, &mut next, who, (stripe, part)),
            Action::Seal { who } => recoverer::seal(self, &mut next, who),
        }
        Some(next)
    }

    fn properties(&self) -> Vec<Property<Self>> {
        vec![
            Property::always(ACKNOWLEDGED_IS_READABLE, acknowledged_is_readable),
            Property::always(ACKNOWLEDGED_IS_SEALED, acknowledged_is_sealed),
            Property::always(SEALED_IS_WHOLE, sealed_is_whole),
            Property::always(ONE_LENGTH, |_, state: &State| !state.length_changed),
            Property::always(SAME_BYTES, same_bytes),
            Property::always(NAMED_GROUPS, |_, state: &State| {
                state.runs().all(|(number, run)| run.named || state.answers[number].iter().all(|&answers| answers == 0))
            }),
            Property::always(NOTHING_UNDONE, nothing_undone),
            Property::always(NO_DEAD_END, no_dead_end),
            // Without these the model might hold because nothing happens in it.
            Property::sometimes("all that was planned is acknowledged and sealed", |model: &Sealing, state: &State| {
                let planned = state.plan.addresses().count();
                matches!(state.registry, Registry::Sealed { .. }) && writer::acknowledged(model, state) == planned
            }),
            Property::sometimes("an unacknowledged record is kept", |model: &Sealing, state: &State| {
                let first_open = state.plan.addresses().nth(writer::acknowledged(model, state));
                sealed_length(state).is_some_and(|length| first_open.is_some_and(|(s, i)| length.contains(s, i)))
            }),
        ]
    }
}

fn sealed_length(state: &State) -> Option<Length> {
    match state.registry {
        Registry::Sealed { length, .. } => Some(length),
        Registry::Open | Registry::Sealing(_) => None,
    }
}

/// Whether these records survive the loss of any one target. When one was lost before the log was sealed, the tail that the
/// sealer made redundant survives another; what lay before the tail is for rebuilding, which is not modelled.
fn survive(model: &Sealing, state: &State, addresses: &[(usize, usize)]) -> bool {
    let readable = |fragments: &Fragments, &(stripe, index): &(usize, usize)| {
        read(fragments, state.runs(), (stripe, index), model.breach) == state.plan.record(stripe, index)
    };
    let made_whole = |&&(stripe, _): &&(usize, usize)| match state.registry {
        _ if state.lost.is_none() && state.exchanged.is_none() => true,
        Registry::Sealed { start, .. } => stripe >= start as usize,
        Registry::Open | Registry::Sealing(_) => false,
    };
    let now = state.visible(u8::MAX);
    addresses.iter().all(|address| readable(&now, address))
        && (0..TARGETS).all(|target| {
            let fragments = state.visible(!(1 << target));
            addresses.iter().filter(made_whole).all(|address| readable(&fragments, address))
        })
}

fn acknowledged_is_readable(model: &Sealing, state: &State) -> bool {
    survive(model, state, &acknowledged(model, state))
}

fn acknowledged_is_sealed(model: &Sealing, state: &State) -> bool {
    let Some(length) = sealed_length(state) else { return true };
    acknowledged(model, state).iter().all(|&(stripe, index)| length.contains(stripe, index))
}

fn acknowledged(model: &Sealing, state: &State) -> Vec<(usize, usize)> {
    state.plan.addresses().take(writer::acknowledged(model, state)).collect()
}

fn sealed_is_whole(model: &Sealing, state: &State) -> bool {
    let Some(length) = sealed_length(state) else { return true };
    let sealed: Vec<_> = state.plan.addresses().filter(|&(stripe, index)| length.contains(stripe, index)).collect();
    length.records <= state.plan.lengths[length.stripe as usize] && survive(model, state, &sealed)
}

fn same_bytes(_: &Sealing, state: &State) -> bool {
    let right = |record: u8, stripe, index| record == 0 || record == state.plan.record(stripe, index);
    state.fragments.iter().flat_map(|run| run.iter().enumerate()).all(|(stripe, stored)| {
        let (Parity::Copies(parity) | Parity::Ended(parity)) = stored.parity;
        let mut fragments = stored.data.iter().enumerate().chain(parity.iter().enumerate());
        fragments.all(|(index, &record)| right(record, stripe, index))
    })
}

fn nothing_undone(_: &Sealing, state: &State) -> bool {
    sealed_length(state).is_none_or(|length| state.acted.is_none_or(|acted| acted <= length))
}

fn no_dead_end(model: &Sealing, state: &State) -> bool {
    if sealed_length(state).is_some() || state.registry == Registry::Open {
        return true;
    }
    let mut actions = Vec::new();
    model.actions(state, &mut actions);
    !actions.is_empty()
}
