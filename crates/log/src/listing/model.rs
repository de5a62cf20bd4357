//! Against a naive one, which collects all that all targets hold before it looks at a stripe: what is held, by whom and since
//! when, is random, and so is who tells of it, and how.

use std::collections::{BTreeMap, BTreeSet};

use proptest::prelude::*;
use protocol::address::Position;
use protocol::fragment::Geometry;
use protocol::id::{FenceEpoch, GroupId};
use protocol::maps::{GroupEntry, LogEntry, LogState, Run, TargetEntry, TargetState, Writer};

use super::*;

const GEOMETRY: Geometry = Geometry { data: 2, parity: 1, fragment_size: 8192 };
const TARGETS: u32 = 5;

/// How a target tells.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Manner {
    Well,
    /// It answers so many questions.
    Until(usize),
    /// It does not say where it goes on, but begins again.
    InCircles,
    /// It tells of each fragment twice.
    Twice,
    /// In no order.
    Mixed,
}

#[derive(Clone, Debug)]
struct Fake {
    manner: Manner,
    fragments: Vec<StoredFragment>,
    asked: usize,
}

impl Fake {
    fn answer(&mut self, after: Option<FragmentId>, page: usize) -> Answer {
        self.asked += 1;
        let behind = |fragment: &&StoredFragment| after.is_none_or(|after| fragment.header.id > after);
        match self.manner {
            Manner::Until(answers) if self.asked > answers => None,
            Manner::InCircles => Some(self.fragments.iter().take(page).cloned().collect()),
            _ => Some(self.fragments.iter().filter(behind).take(page).cloned().collect()),
        }
    }

    fn is_orderly(&self) -> bool {
        !matches!(self.manner, Manner::InCircles | Manner::Mixed)
    }
}

#[derive(Default)]
struct Hearsay {
    complete_below: BTreeMap<LogId, StripeNumber>,
    ends: BTreeMap<Place, u32>,
}

impl Hearsay {
    fn of<'a>(headers: impl Iterator<Item = &'a FragmentHeader>) -> Hearsay {
        let mut hearsay = Hearsay::default();
        for FragmentHeader { id, complete_below, previous_end, .. } in headers {
            let below = hearsay.complete_below.entry(id.log).or_default();
            *below = (*complete_below).max(*below);
            if let Some(previous) = id.stripe.0.checked_sub(1) {
                hearsay.ends.insert((id.log, StripeNumber(previous)), *previous_end);
            }
        }
        hearsay
    }

    fn is_complete(&self, log: LogId, number: StripeNumber, length: u32) -> bool {
        let is_below = self.complete_below.get(&log).is_some_and(|below| number < *below);
        is_below && self.ends.get(&(log, number)).is_none_or(|end| *end == length)
    }
}

/// All stripes, and the targets that did not tell all.
fn list(maps: &Maps, fakes: &mut BTreeMap<TargetId, Fake>, log: Option<LogId>, page: usize) -> Listed {
    let mut stripes: BTreeMap<Place, Held> = BTreeMap::new();
    let mut silent = BTreeSet::new();
    for (target, _) in maps.present() {
        let (fragments, is_all) = list_target(fakes.get_mut(&target).expect("each has one"), log, page);
        if !is_all {
            silent.insert(target);
        }
        for fragment in fragments {
            stripes.entry(place_of(&fragment)).or_default().push((target, fragment));
        }
    }
    let hearsay = Hearsay::of(stripes.values().flatten().map(|(_, fragment)| &fragment.header));
    let state_of = |((log, number), held): (Place, Held)| {
        let mut state = state_of(maps, (log, number), &held)?;
        state.ended |= hearsay.is_complete(log, number, state.length);
        state.missing.retain(|_| state.ended);
        Some(state)
    };
    (stripes.into_iter().filter_map(state_of).collect(), silent)
}

type Listed = (Vec<StripeState>, BTreeSet<TargetId>);

fn list_target(fake: &mut Fake, log: Option<LogId>, page_size: usize) -> (Vec<StoredFragment>, bool) {
    let mut all = Vec::new();
    let mut after = log.map(|log| last_of((LogId(log.0 - 1), StripeNumber(u64::MAX))));
    loop {
        let Some(page) = fake.answer(after, page_size) else { return (all, false) };
        let Some(last) = page.last().map(|fragment| fragment.header.id) else { return (all, true) };
        if !fake.is_orderly() {
            // Of a list that goes back counts what it told before.
            for (at, fragment) in page.iter().enumerate() {
                let before = if at == 0 { after } else { Some(page[at - 1].header.id) };
                let goes_back = before.is_some_and(|before| place_of(fragment) < (before.log, before.stripe));
                if goes_back || after.is_some_and(|after| fragment.header.id <= after) {
                    return (all, false);
                }
                if log.is_some_and(|log| fragment.header.id.log != log) {
                    return (all, true);
                }
                all.push(fragment.clone());
            }
        }
        let done = page.len() < page_size || log.is_some_and(|log| last.log != log);
        if fake.is_orderly() {
            all.extend(page.into_iter().filter(|fragment| log.is_none_or(|log| fragment.header.id.log == log)));
        }
        if done {
            return (all, true);
        }
        after = Some(last);
    }
}

/// The same, stripe by stripe; and no more is held meanwhile than is to be.
fn walk(mut listing: Listing<'_>, fakes: &mut BTreeMap<TargetId, Fake>, page: usize) -> Listed {
    listing.page = page;
    let mut states = Vec::new();
    loop {
        match listing.next() {
            Next::Stripe(state) => states.push(state),
            Next::Ask(questions) => {
                let answer = |(target, after): Question| {
                    (target, fakes.get_mut(&target).expect("each has one").answer(after, page))
                };
                listing.take(questions.into_iter().map(answer));
            }
            Next::End(silent) => return (states, silent),
        }
    }
}

/// Three logs, of two runs each over two of three groups; the third may be forgotten, or not be known yet.
fn maps() -> impl Strategy<Value = Maps> {
    let group = (prop::sample::subsequence((0..TARGETS).collect::<Vec<_>>(), 3).prop_shuffle(), any::<[bool; 2]>());
    let groups = prop::collection::vec(group, 3);
    let log = (0_u64..5, 0_u64..5, 0_u32..3, (0_u64..6, prop::sample::select(vec![0_u32, 4096, 8192, 9000])));
    let logs = prop::collection::vec(log, 2..4);
    let targets = prop::collection::vec(0_u8..6, TARGETS as usize);
    (groups, logs, targets, 3_u64..5).prop_map(|(groups, logs, targets, next_log)| {
        let mut maps = Maps { next_log: LogId(next_log), ..Maps::empty(1, 1) };
        for (id, state) in (0..).map(TargetId).zip(targets) {
            let states = [TargetState::Failed, TargetState::Behind, TargetState::Removed, TargetState::Whole];
            let state_then = states[usize::from(state).min(3)];
            let entry = TargetEntry { state: state_then, empty: state == 5, ..TargetEntry::new(id.0, String::new()) };
            maps.targets.insert(id, entry);
        }
        for (id, (members, [has_former, has_newcomer])) in (0..).map(GroupId).zip(groups) {
            let members: Vec<TargetId> = members.into_iter().map(TargetId).collect();
            let mut entry = GroupEntry::new(members.clone(), GEOMETRY, false);
            entry.former.extend(maps.targets.keys().find(|it| has_former && !members.contains(it)).copied());
            entry.newcomers.extend(members.first().filter(|_| has_newcomer));
            maps.groups.insert(id, entry);
        }
        for (log, (end, from, state, (stripe, offset))) in (1..).map(LogId).zip(logs) {
            let run = |number, from, end| Run { end, ..Run::new(RunNumber(number), from, vec![GroupId(number)]) };
            let layout = vec![run(0, StripeNumber(0), Some(StripeNumber(end))), run(1, StripeNumber(from), None)];
            let state = match state {
                0 => LogState::Open(FenceEpoch(1)),
                1 => LogState::Sealing(FenceEpoch(2)),
                _ => LogState::Sealed(Position::new(StripeNumber(stripe), offset)),
            };
            maps.logs.insert(log, LogEntry::new((1, 1), Writer::Client, layout, state));
        }
        maps
    })
}

fn fragment() -> impl Strategy<Value = StoredFragment> {
    let part = prop_oneof![
        2 => (0_u8..2).prop_map(Part::Data),
        1 => (0_u8..2).prop_map(|of| Part::Copy { of, at: 0 }),
        1 => Just(Part::Parity(0)),
    ];
    let length = || prop::sample::select(vec![4096_u32, 8192]);
    let end = prop::sample::select(vec![0_u32, 4096, 8192, 12_288, 16_384]);
    let id = (1_u64..4, 0_u64..6, 0_u32..3, part);
    (id, (length(), length(), end, 0_u64..6, any::<bool>())).prop_map(
        |((log, stripe, run, part), (length, other, previous_end, below, is_two))| {
            let id = FragmentId { log: LogId(log), stripe: StripeNumber(stripe), run: RunNumber(run), part };
            let lengths = vec![length, if is_two { other } else { 0 }];
            let header = FragmentHeader {
                id,
                group: GroupId(run),
                geometry: GEOMETRY,
                mark: Position::START,
                previous_end,
                complete_below: StripeNumber(below.min(stripe)),
                data_lengths: if header_ends(part) { lengths } else { Vec::new() },
            };
            let stored = StoredFragment { header, length, generation: u64::from(previous_end) + below };
            assert_eq!(stored.contradiction(), None);
            stored
        },
    )
}

fn header_ends(part: Part) -> bool {
    matches!(part, Part::Parity(_))
}

fn fakes() -> impl Strategy<Value = BTreeMap<TargetId, Fake>> {
    let manner = prop_oneof![
        6 => Just(Manner::Well),
        1 => (0_usize..6).prop_map(Manner::Until),
        1 => Just(Manner::InCircles),
        1 => Just(Manner::Twice),
        1 => Just(Manner::Mixed),
    ];
    let fake = (manner, prop::collection::vec(fragment(), 0..40)).prop_map(|(manner, mut fragments)| {
        if manner != Manner::Mixed {
            fragments.sort_by_key(|fragment| fragment.header.id);
            fragments.dedup_by_key(|fragment| fragment.header.id);
        }
        if manner == Manner::Twice {
            fragments = fragments.into_iter().flat_map(|fragment| [fragment.clone(), fragment]).collect();
        }
        Fake { manner, fragments, asked: 0 }
    });
    prop::collection::vec(fake, TARGETS as usize).prop_map(|fakes| (0..).map(TargetId).zip(fakes).collect())
}

/// What each target holds of stripe `number` of a log over all of them, whose parity comes last and whose writer has three
/// under way.
fn part_of(number: u64, part: Part) -> StoredFragment {
    let header = FragmentHeader {
        id: FragmentId { log: LogId(1), stripe: StripeNumber(number), run: RunNumber(0), part },
        group: GroupId(0),
        geometry: GEOMETRY,
        mark: Position::START,
        previous_end: if number > 0 { 16_384 } else { 0 },
        complete_below: StripeNumber(number.saturating_sub(3)),
        data_lengths: if header_ends(part) { vec![8192; 2] } else { Vec::new() },
    };
    StoredFragment { header, length: 8192, generation: 1 }
}

#[test]
fn what_is_held_does_not_grow_with_what_is_stored() {
    let group = GroupEntry::new((0..3).map(TargetId).collect(), GEOMETRY, true);
    let run = Run::new(RunNumber(0), StripeNumber(0), vec![GroupId(0)]);
    let log = LogEntry::new((1, 1), Writer::Client, vec![run], LogState::Open(FenceEpoch(1)));
    let maps = Maps {
        targets: (0..3).map(|id| (TargetId(id), TargetEntry::new(id, String::new()))).collect(),
        groups: [(GroupId(0), group.clone())].into(),
        logs: [(LogId(1), log)].into(),
        ..Maps::empty(1, 1)
    };
    let held_most = |stripes: u64| {
        let mut listing = Listing::new(&maps, None, None);
        listing.page = 64;
        let (mut most, mut count) = ((0, 0), 0);
        loop {
            let told: usize = listing.lists.iter().map(|list| list.told.len()).sum();
            most = (most.0.max(told), most.1.max(listing.hearing.waiting.len() + listing.hearing.settled.len()));
            match listing.next() {
                Next::Stripe(state) => {
                    // The last are under way, or may be.
                    assert_eq!((state.number.0, state.missing.len()), (count, usize::from(state.ended)));
                    assert_eq!(state.ended, count + 4 < stripes);
                    count += 1;
                }
                Next::Ask(questions) => listing.take(questions.into_iter().map(|(target, after)| {
                    let first = after.map_or(0, |after| after.stripe.0 + 1);
                    let parts = [Part::Data(0), Part::Data(1), Part::Parity(0)];
                    let own = |number| {
                        let member =
                            |part: &Part| group.targets[GEOMETRY.member(StripeNumber(number), *part)] == target;
                        parts.into_iter().find(member).filter(|part| !header_ends(*part)).map(|it| part_of(number, it))
                    };
                    (target, Some((first..stripes).filter_map(own).take(64).collect()))
                })),
                Next::End(silent) => {
                    assert_eq!((count, silent), (stripes, BTreeSet::new()));
                    return most;
                }
            }
        }
    };
    let (told, waiting) = held_most(100_000);
    assert!(told <= 3 * 96 && waiting <= 5, "{told} fragments, {waiting} stripes");
    assert_eq!(held_most(1000), (told, waiting));
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 3000, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn stripes_come_one_by_one_as_they_would_together(
        (maps, fakes, page, log) in (maps(), fakes(), 1_usize..9, prop::option::of(1_u64..4))
    ) {
        let log = log.map(LogId);
        let before = log.map(|log| (LogId(log.0 - 1), StripeNumber(u64::MAX)));
        let (mut one, mut other) = (fakes.clone(), fakes);
        // Who answers so many questions is asked as many.
        prop_assert_eq!(walk(Listing::new(&maps, before, log), &mut one, page), list(&maps, &mut other, log, page));
    }

    #[test]
    fn a_walk_that_begins_in_the_middle_tells_the_same_of_the_rest(
        (maps, mut fakes, page, place) in (maps(), fakes(), 1_usize..9, (1_u64..4, 0_u64..6))
    ) {
        let place = (LogId(place.0), StripeNumber(place.1));
        for fake in fakes.values_mut() {
            fake.manner = Manner::Well;
            fake.fragments.sort_by_key(|fragment| fragment.header.id);
            fake.fragments.dedup_by_key(|fragment| fragment.header.id);
        }
        let (mut rest, silent) = list(&maps, &mut fakes, None, page);
        rest.retain(|state| (state.log, state.number) > place);
        prop_assert_eq!(walk(Listing::new(&maps, Some(place), None), &mut fakes, page), (rest, silent));
    }
}
