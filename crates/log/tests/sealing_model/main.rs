//! The danger: a writer that froze wakes up while others have taken over its log, and a record that was acknowledged is lost,
//! or one that was never acknowledged is believed and then gone.
//!
//! All steps that a writer, the network, four targets and two recoverers can take are tried in every order, on logs of a few
//! records with k = 2 and m = 1, against the rules of `docs/decisions/0003-log-model.md` (DESIGN §3; fencing and ensembles are
//! BookKeeper's). Then one rule at a time is broken, and the checker must notice.

mod model;
mod reader;
mod recoverer;
mod rules;
mod state;
mod writer;

use model::Sealing;
use rules::Breach;
use state::Plan;
use stateright::{Checker, HasDiscoveries, Model};

const ONE_RECORD: Plan = Plan { lengths: [1, 0], ordered: false };
const ONE_STRIPE: Plan = Plan { lengths: [2, 0], ordered: false };
/// Both stripes are ended short.
const SHORT: Plan = Plan { lengths: [1, 1], ordered: false };
const SHORT_ORDERED: Plan = Plan { lengths: [1, 1], ordered: true };
const FULL: Plan = Plan { lengths: [2, 1], ordered: false };
const FULL_ORDERED: Plan = Plan { lengths: [2, 1], ordered: true };

/// One recoverer, a writer that never moves, nothing lost.
fn calm(plan: Plan) -> Sealing {
    Sealing { plan, writer_runs: 1, recoverers: 1, loss: false, exchange: false, breach: Breach::None }
}

/// Two recoverers, a writer that never moves.
fn raced(plan: Plan) -> Sealing {
    Sealing { recoverers: 2, ..calm(plan) }
}

/// One recoverer, a writer that lays its stripes anew once.
fn moved(plan: Plan) -> Sealing {
    Sealing { writer_runs: 2, ..calm(plan) }
}

/// Tries everything, and says how much that was.
#[track_caller]
fn holds(model: Sealing) {
    let checker = model.clone().checker().threads(2).spawn_bfs().join();
    println!("{} states, {} steps deep: {model:?}", checker.unique_state_count(), checker.max_depth());
    checker.assert_properties();
}

/// Tries until a property fails, which must happen.
#[track_caller]
fn fails(breach: Breach, model: Sealing, property: &'static str) {
    let failure = HasDiscoveries::AnyOf([property].into());
    let checker = Sealing { breach, ..model }.checker().finish_when(failure).spawn_bfs().join();
    let steps = checker.assert_any_discovery(property).into_actions();
    println!("{breach:?}: after {} states: {property}: {steps:?}", checker.unique_state_count());
}

#[test]
fn one_recoverer_seals_what_a_writer_acknowledged() {
    holds(Sealing { loss: true, ..calm(FULL) });
    holds(Sealing { loss: true, ..calm(FULL_ORDERED) });
}

#[test]
fn two_recoverers_record_one_length() {
    holds(raced(ONE_STRIPE));
    holds(raced(FULL_ORDERED));
    holds(Sealing { loss: true, ..raced(SHORT) });
}

#[test]
fn a_writer_that_moved_loses_nothing() {
    holds(Sealing { loss: true, ..moved(SHORT_ORDERED) });
    holds(Sealing { loss: true, ..moved(ONE_STRIPE) });
    holds(Sealing { writer_runs: 3, ..calm(ONE_RECORD) });
}

#[test]
fn a_writer_that_moved_and_two_recoverers_lose_nothing() {
    holds(Sealing { recoverers: 2, ..moved(ONE_RECORD) });
}

#[test]
fn an_empty_disk_in_a_lost_ones_place_loses_nothing() {
    holds(Sealing { loss: true, exchange: true, ..calm(FULL) });
    holds(Sealing { loss: true, exchange: true, ..raced(ONE_STRIPE) });
    holds(Sealing { loss: true, exchange: true, ..moved(ONE_RECORD) });
}

/// What takes minutes: run with `--ignored` after a change of the rules.
#[test]
#[ignore = "takes minutes"]
fn larger_logs_hold_too() {
    holds(moved(FULL_ORDERED));
    holds(Sealing { loss: true, ..moved(SHORT) });
    holds(Sealing { recoverers: 2, ..moved(SHORT_ORDERED) });
    holds(Sealing { recoverers: 2, ..moved(ONE_STRIPE) });
    holds(raced(FULL));
}

#[test]
fn a_careless_recoverer_is_found_out() {
    fails(Breach::FenceTooFew, calm(ONE_STRIPE), model::ACKNOWLEDGED_IS_SEALED);
    fails(Breach::ActBeforeSealed, raced(ONE_STRIPE), model::NOTHING_UNDONE);
    fails(Breach::SealWithoutClaim, raced(ONE_STRIPE), model::ONE_LENGTH);
    fails(Breach::HolesAreSkipped, calm(FULL), model::SEALED_IS_WHOLE);
    fails(Breach::EndedIsBelieved, raced(FULL), model::SEALED_IS_WHOLE);
    fails(Breach::EndedIsComplete, calm(ONE_STRIPE), model::SEALED_IS_WHOLE);
    let exchanged = |model| Sealing { loss: true, exchange: true, ..model };
    fails(Breach::EmptyDiskCounts, exchanged(calm(ONE_RECORD)), model::ACKNOWLEDGED_IS_SEALED);
    fails(Breach::ClaimOutlivesDisk, exchanged(raced(ONE_RECORD)), model::ACKNOWLEDGED_IS_SEALED);
    fails(Breach::DecidesUnasked, exchanged(raced(ONE_STRIPE)), model::ACKNOWLEDGED_IS_READABLE);
    fails(Breach::FinishedAtRun, raced(FULL_ORDERED), model::SEALED_IS_WHOLE);
}

#[test]
fn a_careless_writer_is_found_out() {
    fails(Breach::RunWithoutRegistry, moved(ONE_STRIPE), model::NAMED_GROUPS);
    fails(Breach::RunWithoutRegistry, moved(ONE_STRIPE), model::ACKNOWLEDGED_IS_SEALED);
    fails(Breach::AnswersOfTwoRuns, moved(ONE_STRIPE), model::ACKNOWLEDGED_IS_READABLE);
    fails(Breach::ParityBeforeData, calm(ONE_STRIPE), model::ACKNOWLEDGED_IS_READABLE);
    fails(Breach::RepackedStripe, moved(SHORT), model::SAME_BYTES);
    fails(Breach::FinishedEarly, moved(ONE_STRIPE), model::ACKNOWLEDGED_IS_READABLE);
    fails(Breach::RunGoesBack, Sealing { writer_runs: 3, ..calm(SHORT_ORDERED) }, model::ACKNOWLEDGED_IS_SEALED);
    fails(Breach::LateAnswersCount, moved(ONE_STRIPE), model::ACKNOWLEDGED_IS_READABLE);
}

#[test]
fn a_careless_target_or_reader_is_found_out() {
    fails(Breach::RunNotInName, moved(ONE_STRIPE), model::ACKNOWLEDGED_IS_READABLE);
    fails(Breach::WriteDoesNotFence, raced(ONE_STRIPE), model::SEALED_IS_WHOLE);
    fails(Breach::UncutDecoding, calm(ONE_STRIPE), model::ACKNOWLEDGED_IS_READABLE);
}
