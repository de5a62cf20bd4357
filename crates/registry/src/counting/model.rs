//! All that can happen to the copies of one node, exhaustively for few of them: disks fail and come back, the node stops at any
//! moment, and what it said arrives late, or twice. What was promised is known to whoever goes on.

use std::collections::{BTreeMap, BTreeSet, VecDeque};

use protocol::FastMap;
use protocol::maps::TargetEntry;

use super::*;
use crate::change::new_cluster;

/// Generations and epochs that are further apart than this are so far apart: each try takes two.
const APART_MAX: u8 = 4;

/// The targets of a set, one bit for each.
type Bits = u8;

/// What a rule is left out of, to see that the model misses it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Breach {
    None,
    /// A start writes what it found, however few that are.
    WritesFew,
    /// The cluster agrees to whatever it is asked.
    AgreesAlways,
    /// What was said before the cluster was looked at last counts.
    HearsLate,
    /// As many as ever may be lost at once.
    LosesMore,
    /// A start goes on with what is left, and asks nobody.
    AsksNobody,
    /// A smaller set begins with the next generation.
    SkipsNothing,
    /// Generations are written that others may know nothing of.
    ClaimsNothing,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
struct Copy {
    /// Nothing was written there yet: no bits.
    set: Bits,
    /// Its generation, and how many records are in it.
    place: (u8, u8),
    /// The generation that somebody was about to write.
    claim: u8,
    /// What was ever to be promised, one bit for each, as far as it knows.
    knows: Bits,
    works: bool,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
struct Process {
    set: Bits,
    place: (u8, u8),
    /// Its last checkpoint reached enough copies.
    is_settled: bool,
    knows: Bits,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
struct Said {
    from: Option<Bits>,
    to: Bits,
    seen: u8,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash)]
struct State {
    copies: Vec<Copy>,
    process: Option<Process>,
    /// What the cluster knows, since when, and its epoch.
    known: (Bits, u8, u8),
    flying: BTreeSet<Said>,
    /// What was promised, and how much was to be.
    promised: Bits,
    tried: u8,
    failures: u8,
}

struct Model {
    spare: u8,
    breach: Breach,
    promises: u8,
    failures: u8,
    /// So much of what is said arrives later at most.
    flying: usize,
    /// The maps of a node with so many copies.
    maps: Maps,
}

fn bits(of: &Set) -> Bits {
    of.iter().fold(0, |bits, target| bits | 1 << target.0)
}

fn set_of(bits: Bits) -> Set {
    (0..8).filter(|n| bits & (1 << n) != 0).map(TargetId).collect()
}

fn count(bits: Bits) -> usize {
    bits.count_ones() as usize
}

/// All ways to take some of these.
fn parts(of: Bits) -> impl Iterator<Item = Bits> {
    (0..=of).filter(move |part| part & !of == 0)
}

/// Smaller numbers for these, as far apart, but not further than that.
fn small(numbers: BTreeSet<u8>) -> BTreeMap<u8, u8> {
    let (mut before, mut last) = (0, 0);
    let smaller = |number: u8| {
        last += (number - before).min(APART_MAX);
        before = number;
        (number, last)
    };
    numbers.into_iter().map(smaller).collect()
}

impl State {
    fn begin(copies: usize) -> State {
        let all: Bits = (1 << copies) - 1;
        let copy = Copy { set: all, place: (1, 0), claim: 0, knows: 0, works: true };
        State {
            copies: vec![copy; copies],
            process: Some(Process { set: all, place: (1, 0), is_settled: true, knows: 0 }),
            known: (all, 1, 1),
            flying: BTreeSet::new(),
            promised: 0,
            tried: 0,
            failures: 0,
        }
    }

    fn working(&self) -> Bits {
        self.copies.iter().enumerate().filter(|(_, copy)| copy.works).fold(0, |bits, (n, _)| bits | 1 << n)
    }

    /// Beyond all generations that there are.
    fn beyond(&self, process: Process) -> u8 {
        self.copies.iter().map(|copy| copy.place.0.max(copy.claim)).max().unwrap_or(0).max(process.place.0)
    }

    /// Does something to these copies.
    fn on(&mut self, some: Bits, mut it: impl FnMut(&mut Copy)) {
        self.copies.iter_mut().enumerate().filter(|(n, _)| some & (1 << n) != 0).for_each(|(_, copy)| it(copy));
    }

    /// These copies hold what the process has.
    fn store(&mut self, on: Bits, Process { set, place, knows, .. }: Process) {
        self.on(on, |copy| *copy = Copy { set, place, knows, ..*copy });
    }

    /// The same with small numbers: of generations and epochs it counts which are greater, and by how little.
    fn normal(mut self) -> State {
        // Who claims no more than what is there claims nothing.
        self.copies.iter_mut().for_each(|copy| copy.claim = copy.claim.max(copy.place.0));
        let generations = self.copies.iter().flat_map(|copy| [copy.place.0, copy.claim]);
        let generations = generations.chain(self.process.map(|process| process.place.0));
        let generations = small(generations.collect());
        let epochs = [self.known.1, self.known.2].into_iter().chain(self.flying.iter().map(|said| said.seen));
        let epochs = small(epochs.collect());
        self.copies
            .iter_mut()
            .for_each(|copy| (copy.place.0, copy.claim) = (generations[&copy.place.0], generations[&copy.claim]));
        if let Some(process) = &mut self.process {
            process.place.0 = generations[&process.place.0];
        }
        (self.known.1, self.known.2) = (epochs[&self.known.1], epochs[&self.known.2]);
        self.flying = self.flying.into_iter().map(|said| Said { seen: epochs[&said.seen], ..said }).collect();
        self
    }
}

impl Model {
    /// What the cluster makes of what a node says, by the product's own rules.
    fn hear(&self, state: &mut State, Said { from, to, seen }: Said) -> bool {
        let mut maps = self.maps.clone();
        maps.epoch = MapEpoch(state.known.2.into());
        let known = Counted { targets: set_of(state.known.0), since: MapEpoch(state.known.1.into()) };
        maps.nodes.get_mut(&1).expect("it is there").copies = known;
        let (from, seen) = match self.breach {
            Breach::AgreesAlways => (None, state.known.2),
            Breach::HearsLate => (from, state.known.2),
            Breach::LosesMore if from == Some(state.known.0) => (None, seen),
            _ => (from, seen),
        };
        let heard = set(&mut maps, (1, MapEpoch(seen.into())), from.map(set_of), set_of(to)).is_ok();
        let copies = &maps.nodes[&1].copies;
        let since = copies.since.0 as u8;
        state.known = (bits(&copies.targets), since, since.max(state.known.2));
        heard
    }

    /// The same with a set that the others agreed to, beyond all that the other copies may be at.
    fn narrowed(&self, state: &State, process: Process, set: Bits) -> Process {
        let skips = self.breach != Breach::SkipsNothing;
        let generation = if skips { state.beyond(process) } else { process.place.0 };
        Process { set, place: (generation, 0), is_settled: false, ..process }
    }

    fn must_write(&self, set: Bits) -> usize {
        must_write(count(set), self.spare)
    }

    /// What a node does that has `set` and can write `left` alone: what becomes of it, and whether it goes on.
    fn consent(&self, state: &State, from: Bits, to: Bits) -> Vec<(State, bool)> {
        if to == 0 {
            return Vec::new();
        }
        if self.breach == Breach::AsksNobody {
            return vec![(state.clone(), true)];
        }
        let said = Said { from: Some(from), to, seen: state.known.2 };
        let mut heard = state.clone();
        let goes_on = self.hear(&mut heard, said);
        let mut outcomes = vec![(heard, goes_on)];
        if state.flying.len() < self.flying {
            let mut late = state.clone();
            late.flying.insert(said);
            outcomes.push((late, false));
        }
        outcomes
    }

    /// The start of a process, if it comes to one; whatever it writes before it is stopped again.
    fn starts(&self, state: &State) -> Vec<State> {
        let found = state.copies.iter().filter(|copy| copy.works);
        let Some(newest) = found.clone().map(|copy| copy.place).max() else { return Vec::new() };
        let claimed = found.clone().map(|copy| copy.place.0.max(copy.claim)).max().expect("there is one");
        let begun = |copy: &Copy| Process { set: copy.set, place: (claimed, 0), is_settled: false, knows: copy.knows };
        found.filter(|copy| copy.place == newest).flat_map(|copy| self.starts_from(state, begun(copy))).collect()
    }

    fn starts_from(&self, state: &State, found: Process) -> Vec<State> {
        let there = state.working() & found.set;
        if count(there) < must_read(count(found.set), self.spare) {
            return Vec::new();
        }
        if count(there) >= self.must_write(found.set) || self.breach == Breach::WritesFew {
            return self.ended(self.checkpoint(state, found, there));
        }
        let mut outcomes = Vec::new();
        for (next, goes_on) in self.consent(state, found.set, there) {
            match goes_on {
                true => outcomes.extend(self.ended(self.checkpoint(&next, self.narrowed(&next, found, there), there))),
                false => outcomes.push(next),
            }
        }
        outcomes
    }

    /// A start that did not write enough ends.
    fn ended(&self, mut outcomes: Vec<State>) -> Vec<State> {
        for next in &mut outcomes {
            next.process = next.process.filter(|process| process.is_settled);
        }
        outcomes
    }

    /// A checkpoint on these copies: the process goes on, or it was stopped or failed with some of them written.
    fn checkpoint(&self, state: &State, process: Process, on: Bits) -> Vec<State> {
        let mut outcomes = Vec::new();
        let (mut state, mut process) = (State { process: None, ..state.clone() }, process);
        let next = |process: Process| Process { place: (process.place.0 + 1, 0), ..process };
        if !process.is_settled && self.breach != Breach::ClaimsNothing {
            process = next(process);
            let claim = |copy: &mut Copy| copy.claim = process.place.0 + 1;
            for part in parts(on) {
                let mut claimed = state.clone();
                claimed.on(part, claim);
                outcomes.push(claimed);
            }
            state.on(on, claim);
            if count(on) < must_read(count(process.set), self.spare) {
                outcomes.push(State { process: Some(process), ..state });
                return outcomes;
            }
        }
        process = next(process);
        for part in parts(on) {
            let mut written = state.clone();
            written.store(part, process);
            outcomes.push(written.clone());
            let is_settled = part == on && count(on) >= self.must_write(process.set);
            if part == on || count(part) < self.must_write(process.set) {
                outcomes.push(State { process: Some(Process { is_settled, ..process }), ..written });
            }
        }
        outcomes
    }

    /// One more promise, or another try.
    fn writes(&self, state: &State, process: Process) -> Vec<State> {
        let on = state.working() & process.set;
        if !process.is_settled {
            return self.mends(state, process, on);
        }
        let mut outcomes = Vec::new();
        let (generation, records) = process.place;
        let next = Process { place: (generation, records + 1), knows: process.knows | 1 << state.tried, ..process };
        let state = &State { tried: state.tried + 1, ..state.clone() };
        for part in parts(on) {
            let mut stopped = State { process: None, ..state.clone() };
            stopped.store(part, next);
            outcomes.push(stopped);
        }
        let mut written = state.clone();
        written.store(on, next);
        if count(on) >= self.must_write(process.set) {
            outcomes.push(State { process: Some(next), promised: state.promised | next.knows, ..written });
        } else {
            outcomes.push(State { process: Some(Process { is_settled: false, ..next }), ..written });
        }
        outcomes
    }

    /// All anew, where too few were written; on those that are left, if the others agree.
    fn mends(&self, state: &State, process: Process, on: Bits) -> Vec<State> {
        let mut outcomes = self.checkpoint(state, process, on);
        if count(on) < self.must_write(process.set) {
            for (next, goes_on) in self.consent(state, process.set, on) {
                match goes_on {
                    true => outcomes.extend(self.checkpoint(&next, self.narrowed(&next, process, on), on)),
                    false => outcomes.push(next),
                }
            }
        }
        for next in &mut outcomes {
            if let Some(process) = next.process.filter(|process| process.is_settled) {
                next.promised |= process.knows;
            }
        }
        outcomes
    }

    /// A copy that does not count is taken in. Where that fails it goes on as before, and writes all anew.
    fn takes_in(&self, state: &State, process: Process, other: Bits) -> Vec<State> {
        let mut outcomes = Vec::new();
        let wider = Process { set: process.set | other, ..process };
        for next in self.checkpoint(state, wider, state.working() & wider.set) {
            match next.process.filter(|process| !process.is_settled) {
                None => outcomes.push(next),
                Some(failed) => {
                    let before = Process { set: process.set, ..failed };
                    outcomes.extend(self.checkpoint(&next, before, next.working() & before.set));
                }
            }
        }
        outcomes
    }

    fn nexts(&self, state: &State) -> Vec<State> {
        let mut nexts = Vec::new();
        for n in 0..state.copies.len() {
            if state.copies[n].works && state.failures < self.failures {
                let mut next = state.clone();
                next.copies[n].works = false;
                next.failures += 1;
                nexts.push(next);
            } else if !state.copies[n].works {
                let mut next = state.clone();
                next.copies[n].works = true;
                nexts.push(next);
            }
        }
        for said in &state.flying {
            let mut heard = state.clone();
            let is_agreed = self.hear(&mut heard, *said);
            let narrows = heard.process.filter(|process| is_agreed && said.from == Some(process.set));
            if let Some(process) = narrows {
                nexts.extend(self.checkpoint(
                    &heard,
                    self.narrowed(&heard, process, said.to),
                    heard.working() & said.to,
                ));
            }
            nexts.push(heard.clone());
            heard.flying.remove(said);
            nexts.push(heard);
        }
        let Some(process) = state.process else {
            nexts.extend(self.starts(state));
            return nexts;
        };
        nexts.push(State { process: None, ..state.clone() });
        if state.tried < self.promises || !process.is_settled {
            nexts.extend(self.writes(state, process));
        }
        if !process.is_settled {
            return nexts;
        }
        if state.flying.len() < self.flying {
            let failed = process.set & !state.working();
            let say = |from, to| {
                let mut next = state.clone();
                next.flying.insert(Said { from, to, seen: state.known.2 });
                next
            };
            if state.known.0 != process.set {
                nexts.push(say(None, process.set));
            } else if failed != 0 && failed != process.set && count(failed) <= usize::from(self.spare) {
                nexts.push(say(Some(process.set), process.set & !failed));
            }
        }
        for n in 0..state.copies.len() {
            if process.set & (1 << n) == 0 && state.copies[n].works {
                nexts.extend(self.takes_in(state, process, 1 << n));
            }
        }
        nexts
    }

    /// Looks at all that can come: how many states there are, or the way to one in which somebody goes on who does not know
    /// what was promised.
    fn look(&self) -> Result<usize, Vec<State>> {
        let first = State::begin(self.maps.targets.len());
        let mut before: FastMap<State, Option<State>> = [(first.clone(), None)].into_iter().collect();
        let mut open = VecDeque::from([first]);
        while let Some(state) = open.pop_front() {
            for next in self.nexts(&state) {
                let next = next.normal();
                if before.contains_key(&next) {
                    continue;
                }
                before.insert(next.clone(), Some(state.clone()));
                // Whoever tries still has promised nothing yet.
                let settled = next.process.filter(|process| process.is_settled);
                if settled.is_some_and(|process| next.promised & !process.knows != 0) {
                    let mut way: Vec<State> =
                        std::iter::successors(Some(next), |state| before[state].clone()).collect();
                    way.reverse();
                    return Err(way);
                }
                open.push_back(next);
            }
        }
        Ok(before.len())
    }
}

/// So many copies of which so many may be lost, so much that is to be promised, so many failures and late words.
struct Size(u32, u8, u8, u8, usize);

fn model(Size(copies, spare, promises, failures, flying): Size, breach: Breach) -> Model {
    let targets = (0..copies).map(|n| (TargetId(n), TargetEntry::new(1, n.to_string())));
    Model { spare, breach, promises, failures, flying, maps: new_cluster(1, targets.collect(), 1, spare) }
}

fn hold(sizes: impl IntoIterator<Item = Size>) {
    for size in sizes {
        let Size(copies, spare, ..) = size;
        let states = model(size, Breach::None).look().unwrap_or_else(|way| {
            way.iter().for_each(|state| eprintln!("{state:?}"));
            panic!("{copies} copies, {spare} may be lost: a promise is forgotten");
        });
        eprintln!("{copies} copies, {spare} may be lost: {states} states, and whoever goes on knows what was promised");
    }
}

#[test]
fn who_goes_on_knows_what_was_promised() {
    hold([Size(1, 1, 2, 2, 1), Size(2, 1, 2, 2, 0), Size(2, 1, 1, 1, 1), Size(3, 1, 1, 1, 0)]);
}

#[test]
fn each_rule_is_missed() {
    use Breach::*;
    for (breach, size) in [
        (WritesFew, Size(2, 1, 2, 2, 0)),
        (AgreesAlways, Size(2, 1, 2, 2, 0)),
        (AsksNobody, Size(2, 1, 2, 2, 0)),
        (SkipsNothing, Size(2, 1, 2, 2, 0)),
        (HearsLate, Size(2, 1, 1, 2, 1)),
        (LosesMore, Size(3, 1, 1, 3, 0)),
        (ClaimsNothing, Size(3, 1, 1, 2, 0)),
    ] {
        assert!(model(size, breach).look().is_err(), "{breach:?} is not missed");
    }
}
