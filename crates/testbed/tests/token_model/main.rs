//! The danger: two clients believe to hold what only one may, or one reads from memory what another has changed; because a
//! grant, a call-back, or an answer came late, or twice, or to another manager, or somebody died in between.
//!
//! All steps that clients, the manager of a slot and its successor, and the network between them can take are tried in every
//! order, for one file (`docs/tokens.md`). Both sides decide by the product's own `client::tokens` and `manager::tokens`;
//! what awaits is taken apart into steps. Then one rule at a time is broken, and the checker must notice.

mod granter;
mod holder;
mod model;
mod rules;
mod state;

use model::Handover;
use rules::Breach;
use stateright::{Checker, HasDiscoveries, Model};

/// Two clients, which ask twice each, and a manager that lives. Nothing is lost.
fn calm() -> Handover {
    Handover {
        clients: 2,
        is_shared: true,
        is_made: true,
        asks: 2,
        writes: 1,
        faults: 0,
        forgets: 0,
        deaths: 0,
        epochs: 1,
        breach: Breach::None,
    }
}

/// One client makes the file, and others may find it before that one hears of it.
fn new_file() -> Handover {
    Handover { is_made: false, ..calm() }
}

/// Something is lost, or late.
fn lossy() -> Handover {
    Handover { faults: 1, ..calm() }
}

/// A client may die.
fn deadly() -> Handover {
    Handover { deaths: 1, ..calm() }
}

/// A client may forget what it holds.
fn forgetful() -> Handover {
    Handover { forgets: 1, ..calm() }
}

/// Another manager takes over.
fn taken_over() -> Handover {
    Handover { epochs: 2, ..calm() }
}

/// Nobody used the slot before: who asks first gets all of it.
fn from_whole(model: Handover) -> Handover {
    Handover { is_shared: false, ..model }
}

/// Tries everything, and says how much that was.
#[track_caller]
fn holds(model: Handover) {
    let checker = model.clone().checker().threads(2).spawn_bfs().join();
    println!("{} states, {} steps deep: {model:?}", checker.unique_state_count(), checker.max_depth());
    checker.assert_properties();
}

/// Tries until a property fails, which must happen.
#[track_caller]
fn fails(breach: Breach, model: Handover, property: &'static str) {
    let failure = HasDiscoveries::AnyOf([property].into());
    let checker = Handover { breach, ..model }.checker().finish_when(failure).spawn_bfs().join();
    let steps = checker.assert_any_discovery(property).into_actions();
    println!("{breach:?}: after {} states: {property}: {steps:?}", checker.unique_state_count());
}

#[test]
fn a_file_goes_from_hand_to_hand() {
    holds(Handover { writes: 2, ..calm() });
    holds(Handover { writes: 2, ..from_whole(calm()) });
    holds(Handover { clients: 3, asks: 1, ..lossy() });
}

#[test]
fn what_is_lost_or_late_harms_nobody() {
    holds(lossy());
    holds(from_whole(lossy()));
}

#[test]
fn a_new_file_may_be_found_before_its_maker_hears_of_it() {
    holds(new_file());
    holds(from_whole(new_file()));
    holds(Handover { clients: 3, asks: 1, faults: 1, ..new_file() });
}

#[test]
fn what_is_forgotten_may_be_told_late() {
    holds(forgetful());
    holds(from_whole(forgetful()));
    holds(Handover { forgets: 1, ..from_whole(new_file()) });
}

#[test]
fn who_takes_over_hears_what_all_hold() {
    holds(taken_over());
    holds(from_whole(taken_over()));
}

#[test]
fn what_the_dead_held_is_free_when_their_logs_are_read() {
    holds(deadly());
    holds(from_whole(deadly()));
}

/// What takes minutes: run with `--ignored` after a change of the rules.
#[test]
#[ignore = "takes minutes"]
fn several_misfortunes_together_harm_nobody() {
    holds(Handover { epochs: 2, ..forgetful() });
    holds(Handover { epochs: 2, ..from_whole(forgetful()) });
    holds(Handover { epochs: 2, ..from_whole(new_file()) });
    holds(Handover { epochs: 2, ..lossy() });
    holds(Handover { deaths: 1, ..lossy() });
    holds(Handover { forgets: 1, ..lossy() });
    holds(Handover { faults: 1, ..new_file() });
    holds(Handover { faults: 1, forgets: 1, ..new_file() });
    holds(Handover { deaths: 1, ..taken_over() });
}

#[test]
fn a_careless_client_is_found_out() {
    fails(Breach::CallBackWithoutVersion, calm(), model::ONE_WRITES);
    fails(Breach::LateGrantIsTaken, calm(), model::ONE_WRITES);
    fails(Breach::GivenUpUnstored, calm(), model::NOTHING_STALE);
    fails(Breach::GivenUpPinned, calm(), model::NOTHING_STALE);
    fails(Breach::GrantBehindClaim, taken_over(), model::ONE_WRITES);
    fails(Breach::MadeIsTaken, new_file(), model::ONE_WRITES);
    fails(Breach::MadeIsNew, new_file(), model::NOTHING_STALE);
    fails(Breach::EarlierLifeIsAnswered, deadly(), model::NOTHING_STALE);
}

#[test]
fn a_careless_manager_is_found_out() {
    fails(Breach::ForgottenWithoutVersion, forgetful(), model::ONE_WRITES);
    let reads = Handover { writes: 0, epochs: 2, ..from_whole(forgetful()) };
    fails(Breach::VersionWithoutEpoch, reads, model::ALL_IS_KNOWN);
    fails(Breach::GrantedUnheard, taken_over(), model::ONE_WRITES);
    fails(Breach::VoidedUnreplayed, deadly(), model::NOTHING_STALE);
}
