//! The writer and the network between it and the targets.
//!
//! The writer has sent everything that its rules let it send, and the network delivers each part at any later time or never.
//! So a frozen writer that wakes up, a late packet, a target that stops answering and comes back, and a restart are one thing
//! here: steps that happen late. A target's acceptance counts as the writer's answer at once, which is the worst case: what
//! might be acknowledged at any time is taken as acknowledged from now on.

use std::ops::RangeInclusive;

use crate::model::{Action, Sealing};
use crate::rules::Breach;
use crate::state::{DATA, GROUPS, Parity, Part, RUNS, Registry, Run, STRIPES, State, UNFINISHED};

pub(crate) fn actions(model: &Sealing, state: &State, actions: &mut Vec<Action>) {
    for (number, run) in state.runs().filter(|(_, run)| run.of_writer) {
        // Nobody looks at what reaches a dropped run, so only a writer that counts it makes a difference.
        let dropped = run.dropped && model.breach != Breach::LateAnswersCount;
        let end = if dropped { run.end as usize } else { STRIPES };
        for stripe in run.from as usize..end {
            let parts = (0..DATA).map(Part::Data).chain((0..DATA).map(Part::Copy)).chain([Part::Parity]);
            for part in parts.filter(|&part| may_deliver(model, state, (number, stripe), part)) {
                actions.push(Action::Deliver { run: number, stripe, part });
            }
        }
    }
    if may_add_run(model, state) {
        let groups = (1..GROUPS.len()).filter(|&group| !GROUPS[group].iter().any(|&target| state.is_lost(target)));
        let froms = run_beginnings(model, state);
        actions.extend(groups.flat_map(|group| froms.clone().map(move |from| Action::WriterAddsRun { from, group })));
    }
    if may_finish(model, state) {
        actions.push(Action::WriterFinishes);
    }
}

/// Whether the part was sent, is not yet there, and its target takes it.
fn may_deliver(model: &Sealing, state: &State, place: (usize, usize), part: Part) -> bool {
    let (number, stripe) = place;
    let target = state.run(number).target(stripe, part);
    let answered = state.answers[number][stripe] & part.bit() != 0;
    let begun = !state.plan.ordered || stripe == 0 || state.complete_anywhere(stripe - 1);
    if answered || !begun || state.plan.lengths[stripe] == 0 || state.is_lost(target) || state.fence[target] > 0 {
        return false;
    }
    match part {
        Part::Data(index) => state.plan.record(stripe, index) != 0,
        Part::Copy(index) => {
            let open = matches!(state.fragments[number][stripe].parity, Parity::Copies(_));
            open && state.plan.record(stripe, index) != 0
        }
        Part::Parity => {
            let mut data = (0..state.plan.lengths[stripe] as usize).map(|index| Part::Data(index).bit());
            let stored = data.all(|bit| state.answers[number][stripe] & bit != 0);
            // In bulk the parity travels beside the data: where no copy is, none is lost.
            let no_copy = state.fragments[number][stripe].parity == Parity::Copies([0; DATA]);
            stored || no_copy || model.breach == Breach::ParityBeforeData
        }
    }
}

fn may_add_run(model: &Sealing, state: &State) -> bool {
    let open = state.registry == Registry::Open || model.breach == Breach::RunWithoutRegistry;
    let count = state.runs().filter(|(_, run)| run.of_writer).count();
    open && count < model.writer_runs && state.run_count() < RUNS
}

/// A run begins at the lowest stripe that the writer does not know to be complete; when answers were lost that is lower than
/// it need be.
fn run_beginnings(model: &Sealing, state: &State) -> RangeInclusive<usize> {
    let complete = (0..STRIPES - 1).take_while(|&stripe| state.complete_anywhere(stripe)).count();
    let newest = state.run(state.writer_run()).from as usize;
    if model.breach == Breach::RunGoesBack { 0..=complete } else { newest..=complete.max(newest) }
}

fn may_finish(model: &Sealing, state: &State) -> bool {
    let newest = state.writer_run();
    let older = state.runs().filter(|&(number, _)| number < newest);
    let mut unfinished = older.filter(|(_, run)| run.end == UNFINISHED).peekable();
    if state.registry != Registry::Open || unfinished.peek().is_none() {
        return false;
    }
    let from = state.run(newest).from as usize;
    unfinished.all(|(number, _)| {
        (from..STRIPES).all(|stripe| state.answers[number][stripe] == 0 || state.complete(newest, stripe))
    }) || model.breach == Breach::FinishedEarly
}

pub(crate) fn deliver(model: &Sealing, state: &mut State, place: (usize, usize), part: Part) {
    let (number, stripe) = place;
    state.answers[number][stripe] |= part.bit();
    let records: [u8; DATA] = std::array::from_fn(|index| record(model, state, place, index));
    if model.breach == Breach::RunNotInName {
        forget_namesakes(state, place, part);
    }
    let stored = &mut state.fragments[number][stripe];
    match part {
        Part::Data(index) => stored.data[index] = records[index],
        Part::Copy(index) => match &mut stored.parity {
            Parity::Copies(copies) => copies[index] = records[index],
            Parity::Ended(_) => unreachable!("a target refuses copies where parity lies"),
        },
        Part::Parity => stored.parity = Parity::Ended(records),
    }
}

/// The record that the writer sends for an address.
fn record(model: &Sealing, state: &State, (number, stripe): (usize, usize), index: usize) -> u8 {
    let record = state.plan.record(stripe, index);
    if record != 0 && number > 0 && model.breach == Breach::RepackedStripe {
        return 1 + (stripe * DATA + index) as u8;
    }
    record
}

/// Where names lack the run, the first fragment of a stripe in a new run takes the place of the old one on its target.
fn forget_namesakes(state: &mut State, (number, stripe): (usize, usize), part: Part) {
    let target = state.run(number).target(stripe, part);
    for older in 0..number {
        let run = state.run(older);
        for index in (0..DATA).filter(|&index| run.target(stripe, Part::Data(index)) == target) {
            state.fragments[older][stripe].data[index] = 0;
        }
        if run.target(stripe, Part::Parity) == target {
            state.fragments[older][stripe].parity = Parity::Copies([0; DATA]);
        }
    }
}

pub(crate) fn add_run(model: &Sealing, state: &mut State, from: usize, group: usize) {
    let named = model.breach != Breach::RunWithoutRegistry;
    let run = Run { from: from as u8, end: UNFINISHED, group: group as u8, dropped: false, of_writer: true, named };
    state.runs[state.run_count()] = Some(run);
}

pub(crate) fn finish(state: &mut State) {
    let newest = state.writer_run();
    let from = state.run(newest).from;
    for run in state.runs[..newest].iter_mut().flatten() {
        run.end = run.end.min(from);
        run.dropped = true;
    }
}

/// How many records, from the first on, the writer may have acknowledged: those stored in one run on m + 1 targets, or in a
/// complete stripe; in log order.
pub(crate) fn acknowledged(model: &Sealing, state: &State) -> usize {
    state.plan.addresses().take_while(|&address| is_stored(model, state, address)).count()
}

fn is_stored(model: &Sealing, state: &State, (stripe, index): (usize, usize)) -> bool {
    let wanted = Part::Data(index).bit() | Part::Copy(index).bit();
    if model.breach == Breach::AnswersOfTwoRuns {
        let answers = state.answers.iter().fold(0, |sum, run| sum | run[stripe]);
        return answers & wanted == wanted || state.complete_anywhere(stripe);
    }
    (0..RUNS).any(|run| state.answers[run][stripe] & wanted == wanted || state.complete(run, stripe))
}
