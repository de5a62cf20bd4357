//! The model as the checker sees it: steps and properties.

use protocol::maps::{Maps, NodeState};
use stateright::{Model, Property};

use crate::rules::Breach;
use crate::state::{HOLDER, Rates, Renewal, State};
use crate::{machine, registry};

/// A question to the checker: how large, and who breaks which rule.
#[derive(Clone)]
pub(crate) struct OneLease {
    /// The clocks; all of these are tried.
    pub(crate) rates: Vec<Rates>,
    /// Seconds that go by.
    pub(crate) ticks: u8,
    /// How many renewals the machine may send. Two that it sends at once are one that several leaders hear, or one twice.
    pub(crate) renewals: u8,
    /// How many terms there are; one has begun.
    pub(crate) terms: u8,
    /// How many voters may be started anew.
    pub(crate) restarts: u8,
    /// In how many of the seconds no leader may hear anybody, as when all links are cut.
    pub(crate) outages: u8,
    pub(crate) breach: Breach,
    /// Maps in which the session lives, and in which it is over.
    pub(crate) alive: Maps,
    pub(crate) over: Maps,
}

/// One step of somebody.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) enum Action {
    Tick,
    Outage,
    Renew,
    Arrive { renewal: Renewal, at: usize },
    Confirm { renewal: Renewal, by: usize },
    Grant { renewal: Renewal },
    HearAnswer { renewal: Renewal },
    BeginCall,
    AnswerCall,
    Look { leader: usize },
    Expire { leader: usize, by: usize },
    OthersChange,
    Stand { voter: usize },
    Vote { candidate: usize, by: usize },
    Elect { leader: usize },
    Restart { voter: usize },
}

pub(crate) const NOTHING_STALE: &str = "no call is answered with what others had changed before it began";
pub(crate) const ONE_HOLDS: &str = "nobody is given what a machine holds while its lease does";
pub(crate) const HEARD_OUT: &str = "nobody is given up by a leader that could not hear";

impl OneLease {
    /// One leader, which goes on, and clocks of these kinds.
    pub(crate) fn new(rates: Vec<Rates>) -> OneLease {
        let alive = ::registry::change::new_cluster(1, Vec::new(), HOLDER.0, 1);
        let mut over = alive.clone();
        over.nodes.values_mut().for_each(|node| node.state = NodeState::Gone);
        OneLease { rates, ticks: 5, renewals: 2, terms: 1, restarts: 0, outages: 0, breach: Breach::None, alive, over }
    }

    /// The maps as they are agreed on.
    pub(crate) fn maps(&self, state: &State) -> &Maps {
        if state.expired { &self.over } else { &self.alive }
    }
}

impl std::fmt::Debug for OneLease {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let OneLease { rates, ticks, renewals, terms, restarts, outages, .. } = self;
        let clocks = rates.len();
        write!(f, "{clocks} sets of clocks, {ticks} s, of which {outages} of silence, {renewals} renewals, ")?;
        write!(f, "{terms} terms, {restarts} restarts")
    }
}

impl Model for OneLease {
    type State = State;
    type Action = Action;

    fn init_states(&self) -> Vec<State> {
        self.rates.iter().map(|&rates| State::new(rates, self.breach)).collect()
    }

    fn actions(&self, state: &State, actions: &mut Vec<Action>) {
        if state.ticks < self.ticks {
            actions.push(Action::Tick);
            if state.outages < self.outages {
                actions.push(Action::Outage);
            }
        }
        machine::actions(self, state, actions);
        registry::actions(self, state, actions);
    }

    fn next_state(&self, state: &State, action: Action) -> Option<State> {
        let mut next = state.clone();
        match action {
            Action::Tick => registry::go_on(self, &mut next),
            Action::Outage => registry::hear_nothing(self, &mut next),
            Action::Renew => machine::renew(&mut next),
            Action::Arrive { renewal, at } => registry::arrive(self, &mut next, renewal, at),
            Action::Confirm { renewal, by } => registry::confirm(self, &mut next, renewal, by),
            Action::Grant { renewal } => registry::grant(self, &mut next, renewal),
            Action::HearAnswer { renewal } => machine::hear_answer(self, &mut next, renewal),
            Action::BeginCall => machine::begin_call(&mut next),
            Action::AnswerCall => machine::answer_call(&mut next),
            Action::Look { leader } => registry::look(self, &mut next, leader),
            Action::Expire { leader: _, by } => registry::expire(self, &mut next, by),
            Action::OthersChange => next.changed = true,
            Action::Stand { voter } => registry::stand(&mut next, voter),
            Action::Vote { candidate, by } => registry::vote(&mut next, candidate, by),
            Action::Elect { leader } => registry::elect(self, &mut next, leader),
            Action::Restart { voter } => registry::restart(self, &mut next, voter),
        }
        Some(next)
    }

    fn properties(&self) -> Vec<Property<Self>> {
        let mut properties = vec![
            Property::always(NOTHING_STALE, |_, state: &State| !state.stale),
            Property::always(ONE_HOLDS, |_, state: &State| !(state.expired && state.holds())),
            Property::always(HEARD_OUT, |_, state: &State| !state.misjudged),
            // Without these the model might hold because nothing happens in it.
            Property::sometimes("others are given what the machine held", |_, state: &State| state.changed),
            Property::sometimes("a call may be answered", |_, state: &State| {
                state.holds() && state.machine.call.is_some()
            }),
            Property::sometimes("a call that looked before others change something waits", |_, state: &State| {
                state.changed && state.machine.call.is_some_and(|call| !call.is_behind)
            }),
            Property::sometimes("the machine hears that its session is over", |_, state: &State| state.machine.over),
        ];
        if self.renewals > 1 {
            let held_again = |_: &OneLease, state: &State| state.held_again;
            properties.push(Property::sometimes("a lease that ran out holds again", held_again));
        }
        if self.terms > 1 {
            properties.extend([
                Property::sometimes("a later leader grants a renewal", |_, state: &State| state.granted_later),
                Property::sometimes("a later leader ends the session of whom it never heard", |_, state: &State| {
                    state.expired && state.machine.until.0 > 0 && !state.granted_later && state.leads(0).is_none()
                }),
            ]);
        }
        properties
    }
}
