//! A recoverer: claim, fence and read, decide, make redundant, record the length. Two of them race.

use crate::model::{Action, Sealing};
use crate::reader::read;
use crate::rules::Breach;
use crate::state::{
    DATA, Ending, Fragments, GROUPS, Length, Parity, Part, RUNS, Reading, Recoverer, Registry, Run, STRIPES, State,
    Stripe, TARGETS, UNFINISHED,
};

pub(crate) fn actions(model: &Sealing, state: &State, who: usize, actions: &mut Vec<Action>) {
    match &state.recoverers[who] {
        Recoverer::Idle => {
            // The two are alike, so the first to claim is called 0.
            let first = who == 0 || state.recoverers[0] != Recoverer::Idle;
            if who < model.recoverers && first && !matches!(state.registry, Registry::Sealed { .. }) {
                actions.push(Action::Claim { who });
            }
        }
        Recoverer::Reading(reading) => reading_actions(model, state, (who, reading), actions),
        Recoverer::Ending(ending) => ending_actions(model, state, (who, ending), actions),
        Recoverer::Done => {}
    }
}

fn reading_actions(model: &Sealing, state: &State, (who, reading): (usize, &Reading), actions: &mut Vec<Action>) {
    let mut wanted = 0_u8;
    let mut enough = true;
    let quorum = if model.breach == Breach::FenceTooFew { DATA - 1 } else { DATA };
    for (number, run) in state.runs().filter(|&(number, _)| reading.unfinished & (1 << number) != 0) {
        let members = GROUPS[run.group as usize];
        wanted |= members.iter().fold(0, |set, target| set | 1 << target);
        let knows = |target: &&usize| match reading.exchanged {
            Some((exchanged, runs)) if model.breach != Breach::EmptyDiskCounts => {
                **target != exchanged as usize || runs & (1 << number) == 0
            }
            _ => true,
        };
        let seen = members.iter().filter(knows).filter(|&target| reading.seen & (1 << target) != 0).count();
        enough &= seen >= quorum.min(members.iter().filter(knows).count());
    }
    for target in (0..TARGETS).filter(|target| wanted & !reading.seen & (1 << target) != 0) {
        if !state.is_lost(target) && state.fence[target] <= reading.epoch {
            actions.push(Action::Fence { who, target });
        }
    }
    let is_mine = state.registry == Registry::Sealing(reading.epoch) || model.breach == Breach::DecidesUnasked;
    if enough && is_mine {
        actions.push(Action::Decide { who });
    }
}

fn ending_actions(model: &Sealing, state: &State, (who, ending): (usize, &Ending), actions: &mut Vec<Action>) {
    let run = state.run(ending.run as usize);
    for stripe in 0..STRIPES {
        let missing = |part: &Part| ending.done[stripe] & part.bit() == 0;
        let mut data_missing = false;
        for part in ending.wanted(stripe).filter(missing) {
            let target = run.target(stripe, part);
            // Parity comes last in `wanted`.
            let in_order = part != Part::Parity || !data_missing;
            data_missing = true;
            if in_order && !state.is_lost(target) && state.fence[target] <= ending.epoch {
                actions.push(Action::Store { who, stripe, part });
            }
        }
    }
    let claimant = state.registry == Registry::Sealing(ending.epoch);
    if ending.complete() {
        if claimant || model.breach == Breach::SealWithoutClaim {
            actions.push(Action::Seal { who });
        }
    } else if claimant && !ending.added && state.run_count() < RUNS {
        let alive = |group: &usize| !GROUPS[*group].iter().any(|&target| state.is_lost(target));
        let groups = (0..GROUPS.len()).filter(|&group| group != run.group as usize).filter(alive);
        actions.extend(groups.map(|group| Action::AddRun { who, group }));
    }
}

pub(crate) fn claim(state: &mut State, who: usize) {
    let epoch = who as u8 + 1;
    let named = || state.runs().filter(|(_, run)| run.named);
    let known = named().count() as u8;
    let unfinished = named().filter(|(_, run)| run.end == UNFINISHED).fold(0, |set, (number, _)| set | 1 << number);
    let view = [[Stripe::EMPTY; STRIPES]; RUNS];
    state.recoverers[who] =
        Recoverer::Reading(Reading { epoch, known, unfinished, exchanged: state.exchanged, seen: 0, view });
    state.registry = Registry::Sealing(epoch);
}

pub(crate) fn fence(state: &mut State, who: usize, target: usize) {
    let Recoverer::Reading(mut reading) = state.recoverers[who] else {
        unreachable!("only a reading recoverer fences")
    };
    state.fence[target] = reading.epoch;
    reading.seen |= 1 << target;
    state.copy_target(target, &mut reading.view);
    // It knows only the runs of its claim's layout.
    for stripes in &mut reading.view[reading.known as usize..] {
        *stripes = [Stripe::EMPTY; STRIPES];
    }
    state.recoverers[who] = Recoverer::Reading(reading);
}

pub(crate) fn decide(model: &Sealing, state: &mut State, who: usize) {
    let Recoverer::Reading(reading) = state.recoverers[who] else { unreachable!("only a reading recoverer decides") };
    let start = tail_start(state, &reading);
    let (length, records) = tail(model, state, &reading, start);
    let run = reading.known - 1;
    let mut done = [0; STRIPES];
    if model.breach == Breach::EndedIsComplete {
        done = ended_stripes(&reading.view[run as usize], &records);
    }
    if model.breach == Breach::ActBeforeSealed {
        state.acted = state.acted.max(Some(length));
    }
    let Reading { epoch, known, .. } = reading;
    let ending = Ending { epoch, known, start: start as u8, length, records, run, added: false, done };
    state.recoverers[who] = Recoverer::Ending(ending);
}

/// The last run's first stripe, or a later one when a header says that all before it are complete.
fn tail_start(state: &State, reading: &Reading) -> usize {
    let last = state.run(reading.known as usize - 1);
    let told = |stripe: usize| state.plan.ordered && reading.view.iter().any(|run| run[stripe].begun());
    let headers = (0..STRIPES).rfind(|&stripe| told(stripe)).unwrap_or(0);
    headers.max(last.from as usize)
}

/// How far the log can be read, and what lies there.
fn tail(model: &Sealing, state: &State, reading: &Reading, start: usize) -> (Length, [[u8; DATA]; STRIPES]) {
    let runs = || state.runs().filter(|&(number, _)| reading.unfinished & (1 << number) != 0).map(as_claimed);
    let mut records = [[0; DATA]; STRIPES];
    let mut length = Length { stripe: start as u8, records: 0 };
    for (stripe, records) in records.iter_mut().enumerate().skip(start) {
        let found = (0..DATA).map(|index| read(&reading.view, runs(), (stripe, index), model.breach));
        let prefix: Vec<_> = found.take_while(|&record| record != 0).collect();
        let count = prefix.len();
        records[..count].copy_from_slice(&prefix);
        if count > 0 {
            length = Length { stripe: stripe as u8, records: count as u8 };
        }
        if !is_whole(model, state, &reading.view, stripe, count) {
            break;
        }
    }
    (length, records)
}

/// A later claimant may have finished the run since; this recoverer does not know.
fn as_claimed((number, run): (usize, Run)) -> (usize, Run) {
    (number, Run { end: UNFINISHED, ..run })
}

/// Whether `count` records are all of a stripe, so that the log goes on in the next.
fn is_whole(model: &Sealing, state: &State, view: &Fragments, stripe: usize, count: usize) -> bool {
    let next_begun = stripe + 1 < STRIPES && view.iter().any(|run| run[stripe + 1].begun());
    if model.breach == Breach::HolesAreSkipped {
        return next_begun;
    }
    if model.breach == Breach::EndedIsBelieved {
        let ended = view.iter().find_map(|run| match run[stripe].parity {
            Parity::Ended(records) => Some(records.iter().filter(|&&record| record != 0).count()),
            Parity::Copies(_) => None,
        });
        if let Some(ended) = ended {
            return count >= ended;
        }
    }
    next_begun && count >= state.plan.lengths[stripe] as usize
}

fn ended_stripes(run: &[Stripe; STRIPES], records: &[[u8; DATA]; STRIPES]) -> [u8; STRIPES] {
    std::array::from_fn(|stripe| if run[stripe].parity == Parity::Ended(records[stripe]) { u8::MAX } else { 0 })
}

pub(crate) fn add_run(state: &mut State, who: usize, group: usize) {
    let Recoverer::Ending(mut ending) = state.recoverers[who] else {
        unreachable!("only an ending recoverer adds a run")
    };
    let run =
        Run { from: ending.start, end: UNFINISHED, group: group as u8, dropped: false, of_writer: false, named: true };
    ending.run = state.run_count() as u8;
    ending.added = true;
    ending.done = [0; STRIPES];
    state.runs[ending.run as usize] = Some(run);
    state.recoverers[who] = Recoverer::Ending(ending);
}

pub(crate) fn store(model: &Sealing, state: &mut State, who: usize, (stripe, part): (usize, Part)) {
    let Recoverer::Ending(mut ending) = state.recoverers[who] else { unreachable!("only an ending recoverer stores") };
    let target = state.run(ending.run as usize).target(stripe, part);
    if model.breach != Breach::WriteDoesNotFence {
        state.fence[target] = ending.epoch;
    }
    let stored = &mut state.fragments[ending.run as usize][stripe];
    match part {
        Part::Data(index) if stored.data[index] != 0 => {}
        Part::Data(index) => stored.data[index] = ending.records[stripe][index],
        Part::Parity => stored.parity = Parity::Ended(ending.records[stripe]),
        Part::Copy(_) => unreachable!("a recoverer makes no copies"),
    }
    ending.done[stripe] |= part.bit();
    state.recoverers[who] = Recoverer::Ending(ending);
}

pub(crate) fn seal(model: &Sealing, state: &mut State, who: usize) {
    let Recoverer::Ending(ending) = state.recoverers[who] else { unreachable!("only an ending recoverer seals") };
    if let Registry::Sealed { length, .. } = state.registry {
        state.length_changed |= length != ending.length;
    }
    let start = if model.breach == Breach::FinishedAtRun { state.run(ending.run as usize).from } else { ending.start };
    for (number, run) in state.runs.iter_mut().enumerate() {
        if let Some(run) = run.as_mut().filter(|_| number != ending.run as usize) {
            run.end = run.end.min(start);
        }
    }
    state.registry = Registry::Sealed { length: ending.length, start: ending.start };
    state.recoverers[who] = Recoverer::Done;
}
