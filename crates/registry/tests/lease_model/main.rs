//! The danger: a machine that was cut off, or stood still, answers from memory what others have changed since; or a leader of
//! the registry gives away what is still held under a lease that an earlier one granted.
//!
//! All steps that a machine, the network, three voters of a registry and time can take are tried in every order, with clocks
//! that go as wrong as is allowed for. Voters decide by the product's own `Leases` and `Witness`; what awaits
//! (`Registry::renew`, `leader::lead`, `Session`, `client::lease`) is taken apart into steps. Then one rule at a time is
//! broken, and the checker must notice.

mod machine;
mod model;
mod registry;
mod rules;
mod state;

use model::OneLease;
use rules::Breach;
use state::{Rate, Rates, VOTERS};
use stateright::{Checker, HasDiscoveries, Model};

/// One leader, which goes on. A hundredth: two clocks that differ by two are allowed for.
fn one_leader() -> OneLease {
    OneLease::new(worst(10))
}

/// The machine's clock is slow, and those of all voters are fast: the worst for whoever holds something.
fn worst(wrong: Rate) -> Vec<Rates> {
    vec![Rates { machine: 1000 - wrong, voters: [1000 + wrong; VOTERS] }]
}

fn two_leaders() -> OneLease {
    OneLease { terms: 2, renewals: 1, ticks: 4, ..one_leader() }
}

/// One leader, which goes on, and hears nobody for a while.
fn silence() -> OneLease {
    OneLease { outages: 3, ..one_leader() }
}

/// Tries everything, and says how much that was.
#[track_caller]
fn holds(model: OneLease) {
    let checker = model.clone().checker().threads(2).spawn_bfs().join();
    println!("{} states, {} steps deep: {model:?}", checker.unique_state_count(), checker.max_depth());
    checker.assert_properties();
}

/// Tries until a property fails, which must happen.
#[track_caller]
fn fails(breach: Breach, model: OneLease, property: &'static str) {
    let failure = HasDiscoveries::AnyOf([property].into());
    let checker = OneLease { breach, ..model }.checker().finish_when(failure).spawn_bfs().join();
    let steps = checker.assert_any_discovery(property).into_actions();
    println!("{breach:?}: after {} states: {property}: {steps:?}", checker.unique_state_count());
}

#[test]
fn what_a_machine_holds_nobody_is_given() {
    holds(one_leader());
}

#[test]
fn a_new_leader_waits_for_leases_of_the_old_one() {
    holds(two_leaders());
}

#[test]
fn who_could_not_be_heard_is_not_given_up() {
    holds(silence());
}

#[test]
fn a_careless_machine_is_found_out() {
    fails(Breach::ClocksDrift, OneLease { rates: worst(30), ..one_leader() }, model::ONE_HOLDS);
    fails(Breach::ClocksDrift, OneLease { rates: worst(30), ..one_leader() }, model::NOTHING_STALE);
    fails(Breach::CountedFromAnswer, one_leader(), model::NOTHING_STALE);
    fails(Breach::NotConfirmed, one_leader(), model::NOTHING_STALE);
}

#[test]
fn a_careless_leader_is_found_out() {
    fails(Breach::DoomedIsGranted, one_leader(), model::ONE_HOLDS);
    fails(Breach::GrantedAlone, two_leaders(), model::ONE_HOLDS);
    fails(Breach::ConfirmedBefore, two_leaders(), model::ONE_HOLDS);
    fails(Breach::VotersAreNotHeard, two_leaders(), model::ONE_HOLDS);
    fails(Breach::CountedFromBeginning, two_leaders(), model::ONE_HOLDS);
    fails(Breach::DeafIsSilent, silence(), model::HEARD_OUT);
}

#[test]
fn a_careless_voter_is_found_out() {
    fails(Breach::ConfirmedAfterVote, two_leaders(), model::ONE_HOLDS);
    fails(Breach::NotNoted, two_leaders(), model::ONE_HOLDS);
    fails(Breach::LifeIsNoNote, OneLease { restarts: 1, ..two_leaders() }, model::ONE_HOLDS);
}
