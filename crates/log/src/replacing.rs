//! Who takes the place of members that stay away, and what is left where one of these comes back after all
//! (DESIGN §9, `docs/decisions/0026-a-member-is-replaced.md`). Pure.
//!
//! 1. A group is as safe with its new members as it was with the old ones: no more of them on one machine, as far as that
//!    counts. Where one of the members that stay away cannot be replaced like that, none is: all is laid anew over others.
//! 2. Only where no more members tell nothing, newcomers among them, than parity makes up for: what is left is enough to make
//!    again what is lost, and nobody who may come back with it is forgotten.
//! 3. Only where nothing is written any more, as the registry asks.
//! 4. Nobody takes the place of one that was found to be empty: there is nothing to make again.
//! 5. Who took the fewest places takes the next, so that all share the work; among equals a fixed disorder decides.

use std::collections::{BTreeMap, BTreeSet};

use protocol::fragment::FragmentId;
use protocol::id::{GroupId, TargetId};
use protocol::maps::{Drain, GroupEntry, Maps, NodeState, TargetEntry, TargetState};
use protocol::registry::RegistryRequest;

use crate::exposure::Safety;
use crate::stripes::{Stray, StripeState, is_left};

/// The groups of which members are to be replaced when nobody waits for the targets `given_up`, as they are then.
pub fn replaced(maps: &Maps, given_up: &BTreeSet<TargetId>) -> BTreeMap<GroupId, GroupEntry> {
    let mut taken: BTreeMap<TargetId, usize> = BTreeMap::new();
    maps.groups.values().flat_map(|group| &group.newcomers).for_each(|&it| *taken.entry(it).or_default() += 1);
    let stays_away =
        |target: &TargetId| given_up.contains(target) && is_failed(maps, *target) && !maps.has_nothing(*target);
    if !maps.targets.keys().any(stays_away) {
        return BTreeMap::new();
    }
    let written = maps.written();
    let lacking = maps.groups.iter().filter(|(id, group)| {
        !written.contains(id)
            && group.targets.iter().any(stays_away)
            && group.targets.iter().filter(|&&it| !maps.is_whole_in(group, it)).count()
                <= usize::from(group.geometry.parity)
    });
    let replace = |(&id, group): (&GroupId, &GroupEntry)| {
        let leaving: Vec<TargetId> = group.targets.iter().copied().filter(stays_away).collect();
        let after = leaving.into_iter().try_fold(group.clone(), |group, old| {
            let new = heir(maps, (id, &group), old, &taken)?;
            Some(with(&group, old, new))
        })?;
        after.newcomers.difference(&group.newcomers).for_each(|&new| *taken.entry(new).or_default() += 1);
        Some((id, after))
    };
    lacking.filter_map(replace).collect()
}

/// The places to give, group by group.
pub(crate) fn requests(maps: &Maps, given_up: &BTreeSet<TargetId>) -> Vec<RegistryRequest> {
    let mut requests = Vec::new();
    for (group, after) in replaced(maps, given_up) {
        let places = maps.groups[&group].targets.iter().zip(&after.targets).filter(|(old, new)| old != new);
        requests.extend(places.map(|(&old, &new)| RegistryRequest::ReplaceMember { group, old, new }));
    }
    requests
}

/// Who is to take the place of `old`.
fn heir(
    maps: &Maps,
    (id, group): (GroupId, &GroupEntry),
    old: TargetId,
    taken: &BTreeMap<TargetId, usize>,
) -> Option<TargetId> {
    let all = |group: &GroupEntry| Safety::of_group(maps, group, &BTreeSet::new());
    let is_free = |&(target, entry): &(TargetId, &TargetEntry)| {
        let lives = maps.nodes.get(&entry.node).is_some_and(|node| node.state == NodeState::Alive);
        let serves = lives && entry.state == TargetState::Whole && entry.drain == Drain::No;
        serves && !group.targets.contains(&target) && !group.former.contains(&target)
    };
    let free = maps.present().filter(is_free).map(|(target, _)| target);
    let as_safe = free.filter(|&new| all(&with(group, old, new)) >= all(group));
    as_safe.min_by_key(|new| (taken.get(new).copied().unwrap_or(0), disorder(id, *new)))
}

/// The group with `new` in the place of `old`.
fn with(group: &GroupEntry, old: TargetId, new: TargetId) -> GroupEntry {
    let mut after = group.clone();
    after.targets.iter_mut().filter(|member| **member == old).for_each(|member| *member = new);
    after.newcomers.remove(&old);
    after.newcomers.insert(new);
    after.former.insert(old);
    after
}

fn is_failed(maps: &Maps, target: TargetId) -> bool {
    maps.targets.get(&target).is_some_and(|entry| entry.state == TargetState::Failed)
}

fn disorder(group: GroupId, target: TargetId) -> u64 {
    let word = (u64::from(group.0) << 32 | u64::from(target.0)).wrapping_mul(0x9e37_79b9_7f4a_7c15);
    (word ^ (word >> 29)).wrapping_mul(0xbf58_476d_1ce4_e5b9) >> 16
}

/// The fragments that are of no use any more. Where the present members lack nothing those are what is left of the stripe in
/// runs in which it lies no more, and what former members have, if nothing of the stripe can come to lie there again.
#[derive(Debug, Default)]
pub(crate) struct Astray {
    /// These, and their generations, by the targets on which they lie.
    pub(crate) by_target: BTreeMap<TargetId, Vec<(FragmentId, u64)>>,
    /// What [`Maps::written`] says, once it was asked.
    written: Option<BTreeSet<GroupId>>,
}

impl Astray {
    /// Takes note of a stripe. All are looked at by the same maps.
    pub(crate) fn add(&mut self, maps: &Maps, state: &StripeState) {
        if !state.ended || !state.missing.is_empty() || state.astray.is_empty() {
            return;
        }
        // Of a log that these maps do not know nobody can tell where it lies.
        let Some(entry) = maps.logs.get(&state.log) else { return };
        let written = self.written.get_or_insert_with(|| maps.written());
        let runs = entry.layout.iter().filter(|run| run.covers(state.number));
        let groups: BTreeSet<GroupId> = runs.map(|run| run.group(state.number)).collect();
        let is_needed = |target: &TargetId| {
            groups.iter().any(|id| written.contains(id) || maps.groups[id].targets.contains(target))
        };
        let goes = |stray: &&Stray| is_left(maps, state.log, &stray.id) || !is_needed(&stray.target);
        for &Stray { target, id, generation } in state.astray.iter().filter(goes) {
            self.by_target.entry(target).or_default().push((id, generation));
        }
    }
}

#[cfg(test)]
mod tests {
    use protocol::fragment::{Geometry, Part};
    use protocol::id::{LogId, RunNumber, StripeNumber};
    use protocol::maps::{LogEntry, LogState, NodeEntry, Run, Writer};

    use super::*;

    /// Machines with one target each, numbered alike from 1; groups over some of them, obsolete all but the last.
    fn maps(machines: u32, groups: &[(&[u32], u8)]) -> Maps {
        let node = || NodeEntry::new("", "", true).begun();
        let group = |(number, (targets, parity)): (usize, &(&[u32], u8))| {
            let geometry = Geometry { data: targets.len() as u8 - parity, parity: *parity, fragment_size: 4096 };
            let targets = targets.iter().copied().map(TargetId).collect();
            GroupEntry::new(targets, geometry, number + 1 == groups.len())
        };
        Maps {
            fragment_size: 4096,
            nodes: (1..=machines).map(|number| (number, node())).collect(),
            targets: (1..=machines).map(|node| (TargetId(node), TargetEntry::new(node, String::new()))).collect(),
            groups: (0..).map(GroupId).zip(groups.iter().enumerate().map(group)).collect(),
            ..Maps::empty(1, 1)
        }
    }

    fn set(maps: &mut Maps, target: u32, state: TargetState) {
        maps.targets.get_mut(&TargetId(target)).expect("it is there").state = state;
    }

    fn members(groups: &BTreeMap<GroupId, GroupEntry>, group: u32) -> Vec<u32> {
        groups.get(&GroupId(group)).into_iter().flat_map(|group| &group.targets).map(|target| target.0).collect()
    }

    fn given_up(targets: &[u32]) -> BTreeSet<TargetId> {
        targets.iter().copied().map(TargetId).collect()
    }

    #[test]
    fn each_group_gets_another_member_and_all_share_the_work() {
        let groups: Vec<Vec<u32>> = (2..=7).map(|other| vec![1, other, other % 6 + 2]).collect();
        let mut shapes: Vec<(&[u32], u8)> = groups.iter().map(|group| (&group[..], 1)).collect();
        shapes.push((&[2, 3, 4], 1));
        let mut maps = maps(7, &shapes);
        assert!(replaced(&maps, &given_up(&[1])).is_empty(), "it serves");
        set(&mut maps, 1, TargetState::Failed);
        assert!(replaced(&maps, &given_up(&[])).is_empty(), "it may come back");
        let after = replaced(&maps, &given_up(&[1]));
        assert_eq!(after.len(), 6);
        let heirs: BTreeSet<u32> = (0..6).map(|group| members(&after, group)[0]).collect();
        assert_eq!(heirs.len(), 6, "each of the others takes one place");
        for (id, group) in &after {
            assert_eq!(group.targets[1..], maps.groups[id].targets[1..]);
            assert!(group.newcomers.contains(&group.targets[0]) && group.former == given_up(&[1]));
        }
        assert_eq!(requests(&maps, &given_up(&[1])).len(), 6);
        maps.targets.get_mut(&TargetId(1)).expect("it is there").empty = true;
        assert!(replaced(&maps, &given_up(&[1])).is_empty(), "there is nothing to make again");
    }

    #[test]
    fn nobody_is_replaced_where_there_is_nobody_as_good() {
        let over_all: &[(&[u32], u8)] = &[(&[1, 2, 3], 1), (&[2, 3], 1)];
        let mut of_three = maps(3, over_all);
        set(&mut of_three, 1, TargetState::Failed);
        assert!(replaced(&of_three, &given_up(&[1])).is_empty(), "the others are members");
        let mut of_four = maps(4, over_all);
        set(&mut of_four, 1, TargetState::Failed);
        assert_eq!(members(&replaced(&of_four, &given_up(&[1])), 0), [4, 2, 3]);
        of_four.targets.get_mut(&TargetId(4)).expect("it is there").node = 3;
        assert!(replaced(&of_four, &given_up(&[1])).is_empty(), "both would be lost with one machine");
        of_four.targets.get_mut(&TargetId(4)).expect("it is there").node = 1;
        assert_eq!(members(&replaced(&of_four, &given_up(&[1])), 0), [4, 2, 3], "another disk of the same machine");
        of_four.targets.get_mut(&TargetId(4)).expect("it is there").drain = Drain::Careful;
        assert!(replaced(&of_four, &given_up(&[1])).is_empty(), "it is to go");
    }

    #[test]
    fn nobody_is_forgotten_who_may_have_what_is_needed() {
        let mut maps = maps(6, &[(&[1, 2, 3], 1), (&[4, 5, 6], 1)]);
        set(&mut maps, 1, TargetState::Failed);
        set(&mut maps, 2, TargetState::Failed);
        assert!(replaced(&maps, &given_up(&[1, 2])).is_empty(), "too little is left without them");
        set(&mut maps, 2, TargetState::Behind);
        assert!(replaced(&maps, &given_up(&[1])).is_empty(), "it may have missed what the other one has");
        set(&mut maps, 2, TargetState::Whole);
        maps.groups = replaced(&maps, &given_up(&[1])).into_iter().chain(maps.groups.split_off(&GroupId(1))).collect();
        let newcomer = members(&maps.groups, 0)[0];
        set(&mut maps, newcomer, TargetState::Failed);
        let again = members(&replaced(&maps, &given_up(&[1, newcomer])), 0)[0];
        assert!(again != newcomer && again > 3, "who was to take the place is replaced like anybody else");
        set(&mut maps, 3, TargetState::Failed);
        assert!(replaced(&maps, &given_up(&[newcomer, 3])).is_empty(), "the newcomer had not all yet");
    }

    #[test]
    fn two_members_of_a_group_are_replaced_or_none() {
        let groups: &[(&[u32], u8)] = &[(&[1, 2, 3, 4], 2), (&[3, 4, 5, 6], 2)];
        let mut of_six = maps(6, groups);
        set(&mut of_six, 1, TargetState::Failed);
        set(&mut of_six, 2, TargetState::Failed);
        let after = members(&replaced(&of_six, &given_up(&[1, 2])), 0);
        assert_eq!((after[..2].iter().copied().collect::<BTreeSet<_>>(), &after[2..]), ([5, 6].into(), &[3, 4][..]));
        let mut of_five =
            maps(5, groups[..1].iter().chain([&(&[3_u32, 4, 5][..], 2)]).copied().collect::<Vec<_>>().as_slice());
        set(&mut of_five, 1, TargetState::Failed);
        set(&mut of_five, 2, TargetState::Failed);
        assert!(replaced(&of_five, &given_up(&[1, 2])).is_empty());
    }

    #[test]
    fn nobody_is_replaced_where_something_is_still_written() {
        let mut maps = maps(4, &[(&[1, 2, 3], 1), (&[2, 3, 4], 1)]);
        set(&mut maps, 1, TargetState::Failed);
        let run = Run::new(RunNumber(0), StripeNumber(0), vec![GroupId(0)]);
        let state = LogState::Open(protocol::id::FenceEpoch(1));
        let entry = LogEntry::new((2, 1), Writer::Client, vec![run], state);
        maps.logs.insert(LogId(1), entry);
        assert!(replaced(&maps, &given_up(&[1])).is_empty());
        maps.logs.get_mut(&LogId(1)).expect("it is open").layout[0].end = Some(StripeNumber(9));
        assert_eq!(replaced(&maps, &given_up(&[1])).len(), 1);
    }

    #[test]
    fn what_is_left_of_former_members_goes_once_nobody_needs_it() {
        let mut maps = maps(4, &[(&[1, 2, 3], 1), (&[2, 3, 4], 1)]);
        set(&mut maps, 1, TargetState::Failed);
        let groups = replaced(&maps, &given_up(&[1]));
        maps.groups.extend(groups);
        set(&mut maps, 1, TargetState::Behind);
        let run = |number, end, group| {
            let end = Some(StripeNumber(end));
            Run { end, ..Run::new(RunNumber(number), StripeNumber(0), vec![GroupId(group)]) }
        };
        let state = LogState::Open(protocol::id::FenceEpoch(1));
        let layout = vec![run(0, 9, 0)];
        let entry = LogEntry::new((2, 1), Writer::Client, layout, state);
        maps.logs.insert(LogId(1), entry);
        let id = FragmentId { log: LogId(1), stripe: StripeNumber(4), run: RunNumber(0), part: Part::Data(0) };
        let mut stripe = StripeState {
            log: LogId(1),
            number: StripeNumber(4),
            length: 9,
            ended: true,
            group: GroupId(0),
            cut_off: false,
            missing: vec![],
            astray: vec![Stray { target: TargetId(1), id, generation: 7 }],
        };
        let all = |maps: &Maps, state: &StripeState| {
            let mut astray = Astray::default();
            astray.add(maps, state);
            astray.by_target.len()
        };
        assert_eq!(all(&maps, &stripe), 1);
        let unknown = StripeState { log: LogId(2), ..stripe.clone() };
        assert_eq!(all(&maps, &unknown), 0, "it may have been opened since");
        stripe.missing.push(crate::Damage { id, target: TargetId(4) });
        assert_eq!(all(&maps, &stripe), 0, "it may still be made of that");
        stripe.missing.clear();
        let mut again = maps.clone();
        again.groups.get_mut(&GroupId(1)).expect("one of two").targets[0] = TargetId(1);
        again.logs.get_mut(&LogId(1)).expect("it is open").layout.push(run(1, 9, 1));
        assert_eq!(all(&again, &stripe), 0, "it may lie there in another run");
        let layout = &mut again.logs.get_mut(&LogId(1)).expect("it is open").layout;
        (layout[0].end, layout[1].from, layout[1].end) = (Some(StripeNumber(4)), StripeNumber(4), None);
        assert_eq!(all(&again, &stripe), 1, "it was laid anew, and what it left is not what lies there");
    }
}
