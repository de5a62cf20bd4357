//! What the fragments on a machine's targets tell of logs, runs and groups where the maps are lost or old: every fragment
//! names its log, stripe, run, part, group and geometry (DESIGN §3), and its place in the group follows from these.
//!
//! 1. What one fragment says of its stripe all of the stripe say: a stripe lies in one group in each run.
//! 2. A run picks groups by stripe number in turn. The shortest turn that fits all stripes that are seen is right for these,
//!    and others lie nowhere.
//! 3. A stripe below the greatest *complete below* of its log was complete. What lacks of it was lost or deleted; where
//!    its parity tells and enough of it is left to read it, who lacks a part of it missed something.

use std::collections::{BTreeMap, BTreeSet};

use protocol::address::Position;
use protocol::fragment::{Geometry, Part};
use protocol::id::{FenceEpoch, GroupId, LogId, RunNumber, StripeNumber, TargetId};
use protocol::storage::StoredFragment;

/// A run has no more groups than this.
const TURN_MAX: usize = 4096;
/// Numbers that no file system reaches: what names such is rubbish, though its checksum is right.
const NUMBER_MAX: u64 = 1 << 62;
const NUMBER_SHORT_MAX: u32 = 1 << 30;
/// Those of fences go on behind the one that sealed logs are repaired with.
const EPOCH_MAX: u32 = 1 << 31;

/// What targets hold.
#[derive(Clone, Debug, Default)]
pub struct Evidence {
    logs: BTreeMap<LogId, Trace>,
    groups: BTreeMap<GroupId, Members>,
    fences: BTreeMap<LogId, FenceEpoch>,
    fragments: u64,
}

/// What is there of one log.
#[derive(Clone, Debug, Default)]
pub struct Trace {
    runs: BTreeMap<RunNumber, BTreeMap<StripeNumber, Laid>>,
    complete_below: StripeNumber,
}

/// One stripe in one run.
#[derive(Clone, Debug)]
pub(crate) struct Laid {
    pub group: GroupId,
    pub geometry: Geometry,
    parts: BTreeSet<Part>,
    /// As parity says.
    lengths: Vec<u32>,
    /// How far data reaches that is there.
    reach: u32,
}

/// A group as its fragments show it.
#[derive(Clone, Debug)]
pub(crate) struct Members {
    pub geometry: Geometry,
    /// For each place, how many fragments lie there, by target.
    pub places: Vec<BTreeMap<TargetId, u64>>,
    /// Places of which parts of complete stripes are missing.
    pub missed: BTreeSet<usize>,
}

impl Evidence {
    /// Notes what `target` holds, and the fences that stand there. Call [`Evidence::conclude`] when all are in.
    pub fn add(
        &mut self,
        target: TargetId,
        fragments: impl IntoIterator<Item = StoredFragment>,
        fences: BTreeMap<LogId, FenceEpoch>,
    ) {
        for (log, epoch) in fences.into_iter().filter(|(log, epoch)| log.0 < NUMBER_MAX && epoch.0 < EPOCH_MAX) {
            let known = self.fences.entry(log).or_default();
            *known = epoch.max(*known);
        }
        for fragment in fragments.into_iter().filter(is_possible) {
            self.fragments += 1;
            let (id, geometry) = (fragment.header.id, fragment.header.geometry);
            let group = self.groups.entry(fragment.header.group).or_insert_with(|| Members::of(geometry));
            // A header that contradicts others counts for nothing.
            if group.geometry == geometry {
                let place = geometry.member(id.stripe, id.part);
                *group.places[place].entry(target).or_default() += 1;
                self.logs.entry(id.log).or_default().add(&fragment);
            }
        }
    }

    /// Concludes which places lack something.
    pub fn conclude(mut self) -> Evidence {
        for trace in self.logs.values() {
            for (number, laid) in trace.lacking() {
                let group = self.groups.get_mut(&laid.group).expect("its fragments were counted");
                let missing = laid.expected().into_iter().filter(|part| !laid.parts.contains(part));
                group.missed.extend(missing.map(|part| laid.geometry.member(number, part)));
            }
        }
        self
    }

    /// How many fragments there are.
    pub fn fragments(&self) -> u64 {
        self.fragments
    }

    /// The logs of which anything is there.
    pub fn logs(&self) -> impl Iterator<Item = (LogId, &Trace)> {
        self.logs.iter().map(|(&log, trace)| (log, trace))
    }

    /// What is there of a log.
    pub fn trace(&self, log: LogId) -> Option<&Trace> {
        self.logs.get(&log)
    }

    pub(crate) fn groups(&self) -> &BTreeMap<GroupId, Members> {
        &self.groups
    }

    /// The greatest fence that stands for a log.
    pub(crate) fn fence(&self, log: LogId) -> FenceEpoch {
        self.fences.get(&log).copied().unwrap_or_default()
    }

    /// The greatest number of a log that anything names.
    pub(crate) fn last_log(&self) -> LogId {
        let named = self.logs.keys().chain(self.fences.keys());
        named.copied().max().unwrap_or_default()
    }
}

impl Trace {
    fn add(&mut self, fragment: &StoredFragment) {
        let header = &fragment.header;
        let (id, geometry) = (header.id, header.geometry);
        self.complete_below = self.complete_below.max(header.complete_below);
        let new = || Laid { group: header.group, geometry, parts: BTreeSet::new(), lengths: Vec::new(), reach: 0 };
        let laid = self.runs.entry(id.run).or_default().entry(id.stripe).or_insert_with(new);
        if laid.group != header.group {
            return;
        }
        laid.parts.insert(id.part);
        if let Part::Data(index) | Part::Copy { of: index, .. } = id.part {
            laid.reach = laid.reach.max(u32::from(index) * geometry.fragment_size + fragment.length);
        }
        if header.ended() {
            laid.lengths.clone_from(&header.data_lengths);
        }
    }

    /// The numbers of its stripes.
    pub fn stripes(&self) -> BTreeSet<StripeNumber> {
        self.runs.values().flat_map(|run| run.keys().copied()).collect()
    }

    /// The runs that its stripes were laid under.
    pub(crate) fn runs(&self) -> impl Iterator<Item = (RunNumber, &BTreeMap<StripeNumber, Laid>)> {
        self.runs.iter().map(|(&number, stripes)| (number, stripes))
    }

    /// A stripe in the newest run that it was laid under.
    fn newest(&self, number: StripeNumber) -> Option<&Laid> {
        self.runs.values().rev().find_map(|run| run.get(&number))
    }

    /// Where a log ends of which no record is applied any more: behind all that is left of it. What was cut off when it was
    /// sealed may be among that, and nothing names it.
    pub(crate) fn end(&self) -> Position {
        let Some(&number) = self.stripes().last() else { return Position::START };
        let laid = self.newest(number).expect("it is one of its stripes");
        let summed = || laid.lengths.iter().fold(0, |sum: u32, length| sum.saturating_add(*length));
        let told = (!laid.lengths.is_empty()).then(summed);
        Position::new(number, told.unwrap_or(laid.reach))
    }

    /// Whether it is taken for sealed at its end as it is, if it is known that it `was` sealed, or not. One that lacks nothing
    /// behind what is known to be complete is sealed again to the end that it had: so where the last stripe, as it has no
    /// parity, may be torn.
    pub(crate) fn stays_sealed(&self, was: bool) -> bool {
        let stripes = self.stripes();
        let Some(&last) = stripes.last() else { return false };
        let from = self.complete_below.min(last);
        let has_hole = (stripes.range(from..last).count() as u64) < last.0 - from.0;
        let has_parity = self.newest(last).is_some_and(|laid| laid.geometry.parity > 0);
        has_hole || has_parity && (was || self.has_ended(last))
    }

    /// Whether any parity of a stripe is there.
    fn has_ended(&self, number: StripeNumber) -> bool {
        self.runs.values().filter_map(|run| run.get(&number)).any(|laid| !laid.lengths.is_empty())
    }

    /// Complete stripes that lack parts and can be read.
    fn lacking(&self) -> impl Iterator<Item = (StripeNumber, &Laid)> {
        let complete = self.stripes().into_iter().take_while(|&number| number < self.complete_below);
        complete.filter_map(|number| Some((number, self.newest(number)?))).filter(|(_, laid)| laid.lacks())
    }
}

impl Laid {
    /// The parts of a stripe that has ended.
    fn expected(&self) -> Vec<Part> {
        let data = (0..self.geometry.data).zip(&self.lengths).filter(|(_, length)| **length > 0);
        data.map(|(index, _)| Part::Data(index)).chain((0..self.geometry.parity).map(Part::Parity)).collect()
    }

    fn lacks(&self) -> bool {
        if self.lengths.is_empty() {
            return false;
        }
        let expected = self.expected();
        let missing = expected.iter().filter(|part| !self.parts.contains(part)).count();
        (1..=usize::from(self.geometry.parity)).contains(&missing)
    }
}

impl Members {
    fn of(geometry: Geometry) -> Members {
        Members { geometry, places: vec![BTreeMap::new(); geometry.width()], missed: BTreeSet::new() }
    }
}

fn is_possible(fragment: &StoredFragment) -> bool {
    let (id, group) = (fragment.header.id, fragment.header.group);
    let are_long = id.log.0 >= NUMBER_MAX || id.stripe.0 >= NUMBER_MAX;
    let are_short = id.run.0 >= NUMBER_SHORT_MAX || group.0 >= NUMBER_SHORT_MAX;
    !are_long && !are_short && fragment.contradiction().is_none()
}

/// The groups of a run, of which stripe numbers pick one in turn: the shortest turn in which all these have theirs.
pub(crate) fn turn(stripes: &BTreeMap<StripeNumber, Laid>) -> Option<Vec<GroupId>> {
    let distinct: BTreeSet<GroupId> = stripes.values().map(|laid| laid.group).collect();
    (distinct.len()..=TURN_MAX).find_map(|length| turn_of(stripes, length))
}

fn turn_of(stripes: &BTreeMap<StripeNumber, Laid>, length: usize) -> Option<Vec<GroupId>> {
    let mut turn: Vec<Option<GroupId>> = vec![None; length];
    for (number, laid) in stripes {
        let place = &mut turn[(number.0 % length as u64) as usize];
        if place.get_or_insert(laid.group) != &laid.group {
            return None;
        }
    }
    let any = stripes.values().next()?.group;
    Some(turn.into_iter().map(|group| group.unwrap_or(any)).collect())
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use protocol::fragment::{FragmentHeader, FragmentId};

    const SHAPE: Geometry = Geometry { data: 2, parity: 1, fragment_size: 4096 };

    fn fragment((log, stripe, run): (u64, u64, u32), part: Part, group: u32) -> StoredFragment {
        let ends = matches!(part, Part::Parity(_));
        let header = FragmentHeader {
            id: FragmentId { log: LogId(log), stripe: StripeNumber(stripe), run: RunNumber(run), part },
            group: GroupId(group),
            geometry: SHAPE,
            mark: Position::START,
            previous_end: if stripe == 0 { 0 } else { 5000 },
            complete_below: StripeNumber(stripe.saturating_sub(1)),
            data_lengths: if ends { vec![4096, 904] } else { Vec::new() },
        };
        let length = if part == Part::Data(1) { 904 } else { 4096 };
        StoredFragment { header, length, generation: 0 }
    }

    /// All of a stripe, over targets 0, 1 and 2.
    fn stripe(evidence: &mut Evidence, log: u64, number: u64, without: Option<u32>) {
        for part in [Part::Data(0), Part::Data(1), Part::Parity(0)] {
            let target = SHAPE.member(StripeNumber(number), part) as u32;
            if Some(target) != without {
                evidence.add(TargetId(target), [fragment((log, number, 0), part, 7)], BTreeMap::new());
            }
        }
    }

    #[test]
    fn fragments_tell_who_is_a_member_where_and_who_lacks_something() {
        let mut evidence = Evidence::default();
        for number in 0..6 {
            stripe(&mut evidence, 1, number, (number == 1).then_some(1));
        }
        let evidence = evidence.conclude();
        let group = &evidence.groups()[&GroupId(7)];
        let members: Vec<_> =
            group.places.iter().map(|place| *place.keys().next().expect("somebody is there")).collect();
        assert_eq!(members, [0, 1, 2].map(TargetId));
        assert_eq!(group.missed, [1].into());
        assert_eq!(evidence.trace(LogId(1)).map(Trace::end), Some(Position::new(StripeNumber(5), 5000)));
    }

    #[test]
    fn what_is_open_or_deleted_in_part_is_missed_by_nobody() {
        let mut evidence = Evidence::default();
        // Only one part is left of the first: the others were deleted. The last is being written.
        evidence.add(TargetId(0), [fragment((1, 0, 0), Part::Data(0), 7)], BTreeMap::new());
        stripe(&mut evidence, 1, 4, None);
        evidence.add(TargetId(2), [fragment((1, 5, 0), Part::Data(0), 7)], BTreeMap::new());
        let evidence = evidence.conclude();
        assert!(evidence.groups()[&GroupId(7)].missed.is_empty());
        let trace = evidence.trace(LogId(1)).expect("it is there");
        assert_eq!(trace.end(), Position::new(StripeNumber(5), 4096), "all that is left of it is within");
        assert!(trace.stays_sealed(true) && !trace.stays_sealed(false), "the last stripe has not ended");
    }

    proptest! {
        /// Whatever the groups of a run are, and whichever of its stripes are left: each is found where it lies.
        #[test]
        fn a_turn_fits_every_stripe_that_is_seen(
            groups in proptest::collection::btree_set(0u32..50, 1..12),
            from in 0u64..1000,
            seen in proptest::collection::btree_set(0u64..200, 1..60),
        ) {
            let groups: Vec<GroupId> = groups.into_iter().map(GroupId).collect();
            let laid = |number: u64| Laid {
                group: groups[(number % groups.len() as u64) as usize],
                geometry: SHAPE,
                parts: BTreeSet::new(),
                lengths: Vec::new(),
                reach: 0,
            };
            let stripes: BTreeMap<_, _> = seen.iter().map(|n| (StripeNumber(from + n), laid(from + n))).collect();
            let turn = turn(&stripes).expect("one of at most that length fits");
            prop_assert!(turn.len() <= groups.len());
            for (number, laid) in &stripes {
                prop_assert_eq!(turn[(number.0 % turn.len() as u64) as usize], laid.group);
            }
        }
    }
}
