//! How many machines and targets may be lost before something is: what groups promise, and where the current ones promise
//! more. Pure.
//!
//! Nothing moves unless asked or redundancy was lost (DESIGN §13, promise 6). A stripe over one machine in a cluster of
//! several lacks redundancy; one of an obsolete group that is as safe as the current ones lacks none, and stays.

use std::collections::{BTreeMap, BTreeSet};

use protocol::id::{GroupId, LogId, StripeNumber, TargetId};
use protocol::maps::{GroupEntry, Maps, TargetEntry, TargetState};

use crate::replacing::replaced;
use crate::stripes::StripeState;

/// What may be lost, whichever it is, before a byte is. Safer is greater: machines count before targets.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Safety {
    /// So many machines.
    pub machines: usize,
    /// So many targets.
    pub targets: usize,
}

impl Safety {
    /// Of stripes over `group` without what lay on the targets `absent`. `None`: too little is left to read them.
    pub fn of_group(maps: &Maps, group: &GroupEntry, absent: &BTreeSet<TargetId>) -> Option<Safety> {
        let left = group.targets.iter().filter(|target| !absent.contains(target));
        Safety::of_parts(maps, usize::from(group.geometry.parity), group.targets.len(), left.copied())
    }

    /// Of a stripe of `parts` fragments, `parity` of which may be lost, of which those on the targets `left` are there.
    pub fn of_parts(maps: &Maps, parity: usize, parts: usize, left: impl Iterator<Item = TargetId>) -> Option<Safety> {
        let mut by_machine: BTreeMap<Option<u32>, usize> = BTreeMap::new();
        left.for_each(|target| *by_machine.entry(maps.targets.get(&target).map(|entry| entry.node)).or_default() += 1);
        let lost = parts.saturating_sub(by_machine.values().sum());
        let targets = parity.checked_sub(lost)?;
        let mut counts: Vec<usize> = by_machine.into_values().collect();
        counts.sort_unstable_by(|a, b| b.cmp(a));
        let mut sum = 0;
        let machines = counts.into_iter().take_while(|count| {
            sum += count;
            sum <= targets
        });
        Some(Safety { machines: machines.count(), targets })
    }

    /// What all current groups promise; `None` when there are none.
    pub fn of_current(maps: &Maps) -> Option<Safety> {
        let current = maps.groups.values().filter(|group| group.current);
        current.map(|group| Safety::of_group(maps, group, &BTreeSet::new())).min().flatten()
    }
}

/// The targets that do not give what they should hold.
pub fn not_whole(maps: &Maps) -> BTreeSet<TargetId> {
    maps.targets.iter().filter(|(_, entry)| entry.state != TargetState::Whole).map(|(&target, _)| target).collect()
}

/// The groups whose stripes are to be laid anew, with what they promise without the targets `absent`: those that the current
/// groups would keep more safely, and those of the past that lie over targets which are being emptied. Where others take the
/// place of what is absent, it is made again there, and nothing is laid anew.
pub fn to_lay_anew(maps: &Maps, absent: &BTreeSet<TargetId>) -> BTreeMap<GroupId, Option<Safety>> {
    let Some(current) = Safety::of_current(maps) else { return BTreeMap::new() };
    let replaced = replaced(maps, absent);
    let groups = maps.groups.iter().map(|(id, group)| (*id, replaced.get(id).unwrap_or(group)));
    let safety = groups.map(|(id, group)| (id, group, Safety::of_group(maps, group, absent)));
    let lacks = |(_, group, safety): &(GroupId, &GroupEntry, Option<Safety>)| {
        *safety < Some(current) || !group.current && is_drained(maps, group)
    };
    safety.filter(lacks).map(|(id, _, safety)| (id, safety)).collect()
}

/// Whether a target of the group is being emptied.
fn is_drained(maps: &Maps, group: &GroupEntry) -> bool {
    group.targets.iter().any(|target| maps.targets.get(target).is_some_and(|entry| entry.drains()))
}

/// How much of what is stored is how safe.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Tally {
    /// Data bytes that are as safe as the current groups keep them, or safer.
    pub bytes_full: u64,
    /// The others, by what may still be lost of them. `None`: too little is left, or answers.
    pub bytes_exposed: BTreeMap<Option<Safety>, u64>,
}

/// Data bytes by what may be lost of them, whatever the current groups promise.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Sums(BTreeMap<Option<Safety>, u64>);

impl Sums {
    /// Takes note of a stripe, as its targets told of it.
    pub fn add(&mut self, maps: &Maps, state: &StripeState) {
        if let Some(group) = maps.groups.get(&state.group).filter(|_| !state.cut_off) {
            *self.0.entry(of_stripe(maps, group, state)).or_default() += u64::from(state.length);
        }
    }
}

impl Tally {
    /// Of all stripes.
    pub fn of(maps: &Maps, sums: Sums) -> Tally {
        let current = Safety::of_current(maps);
        let (exposed, full): (BTreeMap<_, _>, BTreeMap<_, _>) =
            sums.0.into_iter().partition(|(safety, _)| *safety < current);
        Tally { bytes_full: full.into_values().sum(), bytes_exposed: exposed }
    }
}

fn of_stripe(maps: &Maps, group: &GroupEntry, state: &StripeState) -> Option<Safety> {
    // Nobody knows what is missing of a stripe that is still written.
    let missing = || state.missing.iter().map(|damage| damage.target).collect();
    Safety::of_group(maps, group, &if state.ended { missing() } else { not_whole(maps) })
}

/// Whether of a stripe too little is left, or answers. One that is being deleted looks like that for a moment, for it goes
/// from one target after the other: one that is really lost does in every look.
pub fn is_unreadable(maps: &Maps, state: &StripeState) -> bool {
    let group = maps.groups.get(&state.group).filter(|_| !state.cut_off);
    group.is_some_and(|group| of_stripe(maps, group, state).is_none())
}

/// Whether more members of a stripe's group are away, or lack their part, than parity makes up for. What was on them nobody
/// knows, nor whether the rest is enough: of a short stripe some members have nothing.
pub fn may_be_lost(maps: &Maps, state: &StripeState) -> bool {
    let is_away = |target: &TargetId| !maps.targets.get(target).is_some_and(TargetEntry::serves);
    let Some(group) = maps.groups.get(&state.group) else { return false };
    let mut absent: BTreeSet<TargetId> = group.targets.iter().copied().filter(is_away).collect();
    absent.extend(state.missing.iter().map(|damage| damage.target));
    Safety::of_group(maps, group, &absent).is_none()
}

/// The group in which a stripe lies, as the layout of its log says.
pub fn group_of(maps: &Maps, log: LogId, stripe: StripeNumber) -> Option<GroupId> {
    let run = maps.logs.get(&log)?.run(stripe)?;
    Some(run.group(stripe))
}

#[cfg(test)]
mod tests {
    use protocol::fragment::{FragmentId, Geometry, Part};
    use protocol::id::RunNumber;
    use protocol::maps::Drain;

    use super::*;
    use crate::Damage;

    /// Targets 0 to 2 on machine 1, 3 on 2, 4 on 3.
    fn maps(groups: &[(&[u32], u8, bool)]) -> Maps {
        let nodes = [1, 1, 1, 2, 3];
        let entry = |node| TargetEntry::new(node, String::new());
        let group = |&(targets, data, current): &(&[u32], u8, bool)| {
            let geometry = Geometry { data, parity: targets.len() as u8 - data, fragment_size: 4096 };
            GroupEntry::new(targets.iter().copied().map(TargetId).collect(), geometry, current)
        };
        Maps {
            targets: (0..).map(TargetId).zip(nodes.map(entry)).collect(),
            groups: (0..).map(GroupId).zip(groups.iter().map(group)).collect(),
            ..Maps::empty(1, 1)
        }
    }

    fn safety(targets: &[u32], data: u8, absent: &[u32]) -> Option<(usize, usize)> {
        let maps = maps(&[(targets, data, true)]);
        let absent = absent.iter().copied().map(TargetId).collect();
        Safety::of_group(&maps, &maps.groups[&GroupId(0)], &absent).map(|safety| (safety.machines, safety.targets))
    }

    #[test]
    fn machines_and_targets_that_may_be_lost_are_counted() {
        assert_eq!(safety(&[0, 1, 2], 2, &[]), Some((0, 1)), "one machine has all");
        assert_eq!(safety(&[0, 3, 4], 2, &[]), Some((1, 1)));
        assert_eq!(safety(&[0, 3, 4], 2, &[3]), Some((0, 0)));
        assert_eq!(safety(&[0, 3, 4], 2, &[3, 4]), None, "too little is left");
        assert_eq!(safety(&[0, 1, 3, 4], 2, &[]), Some((1, 2)), "machine 1 may be lost, but no other with it");
        assert_eq!(safety(&[0], 1, &[]), Some((0, 0)));
    }

    #[test]
    fn what_is_less_safe_than_the_current_groups_is_exposed_and_nothing_else() {
        let exposed = |groups: &[(&[u32], u8, bool)], absent: &[u32]| -> Vec<u32> {
            let absent = absent.iter().copied().map(TargetId).collect();
            to_lay_anew(&maps(groups), &absent).into_keys().map(|group| group.0).collect()
        };
        let alone: (&[u32], u8, bool) = (&[0, 1, 2], 2, false);
        assert_eq!(exposed(&[alone, (&[0, 3, 4], 2, true)], &[]), [0], "its machine may not be lost");
        assert_eq!(exposed(&[(&[0, 3], 1, false), (&[0, 3, 4], 2, true)], &[]), [0; 0], "it is narrower, and as safe");
        assert_eq!(exposed(&[(&[0, 3], 1, false), (&[0, 4], 1, true)], &[3]), [0], "what it lost is lacking");
        assert_eq!(exposed(&[alone, (&[1, 2], 1, true)], &[]), [0; 0], "one machine is all there is");
        assert_eq!(exposed(&[alone, (&[0], 1, true)], &[]), [0; 0], "the current ones promise less");
        assert_eq!(exposed(&[alone], &[]), [0; 0], "there is nowhere to go");
    }

    #[test]
    fn what_lies_over_a_target_that_is_drained_is_laid_anew_and_lacks_nothing() {
        let mut maps = maps(&[(&[0, 3, 4], 2, false), (&[0, 3], 1, true), (&[0, 4], 1, false)]);
        let none = BTreeSet::new();
        assert_eq!(to_lay_anew(&maps, &none).len(), 0, "all are as safe");
        maps.targets.get_mut(&TargetId(4)).expect("one of five").drain = Drain::Careful;
        let groups = to_lay_anew(&maps, &none);
        assert_eq!(groups.keys().map(|group| group.0).collect::<Vec<_>>(), [0, 2]);
        assert_eq!(groups[&GroupId(0)], Some(Safety { machines: 1, targets: 1 }), "it counts for what it holds");
        maps.groups.get_mut(&GroupId(2)).expect("one of three").current = true;
        assert_eq!(to_lay_anew(&maps, &none).len(), 1, "what is written there is to be there");
        maps.targets.get_mut(&TargetId(4)).expect("one of five").state = TargetState::Removed;
        assert_eq!(to_lay_anew(&maps, &none).len(), 0, "nothing is left there");
    }

    #[test]
    fn bytes_are_told_by_what_may_be_lost_of_them() {
        let maps = maps(&[(&[0, 1, 2], 2, false), (&[0, 3, 4], 2, true)]);
        let state = |number: u64, group: u32, length: u32, missing: &[u32]| {
            let (log, number, group) = (LogId(1), StripeNumber(number), GroupId(group));
            let id = FragmentId { log, stripe: number, run: RunNumber(0), part: Part::Data(0) };
            let missing = missing.iter().map(|&target| Damage { id, target: TargetId(target) }).collect();
            StripeState { log, number, length, ended: true, group, cut_off: false, missing, astray: vec![] }
        };
        let states = [state(0, 0, 100, &[]), state(1, 1, 20, &[]), state(2, 1, 3, &[3]), state(3, 1, 7, &[3, 4])];
        let mut sums = Sums::default();
        states.iter().for_each(|state| sums.add(&maps, state));
        let tally = Tally::of(&maps, sums);
        let safety = |machines, targets| Some(Safety { machines, targets });
        assert_eq!(tally.bytes_full, 20);
        let unreadable = states.iter().filter(|state| is_unreadable(&maps, state)).map(|state| state.number);
        assert_eq!(unreadable.collect::<Vec<_>>(), [StripeNumber(3)]);
        assert_eq!(tally.bytes_exposed, [(None, 7), (safety(0, 0), 3), (safety(0, 1), 100)].into());
    }
}
