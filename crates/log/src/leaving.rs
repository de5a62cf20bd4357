//! What lies on targets that are to be taken away, and whether nothing does. Pure.
//!
//! 1. A stripe lies on a target as long as a group that names the target is the one in which it counts, whatever the target
//!    itself shows: one that is gone shows nothing, and what it had is needed until it lies elsewhere. Where another has taken
//!    its place, that is so until the other one has it.
//! 2. Nothing lies there only if nothing can be hidden either: an ended stripe has at least m+1 fragments, so of each group
//!    of the past at most m members may be unheard (as `absence`, rule 1).

use std::collections::BTreeSet;
use std::ops::AddAssign;

use protocol::fragment::Part;
use protocol::id::{GroupId, TargetId};
use protocol::maps::{GroupEntry, Maps};

use crate::absence::may_hide;
use crate::stripes::StripeState;

/// How much lies on some targets.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Left {
    /// Stripes of which a part is to be there.
    pub stripes: u64,
    /// The data bytes of these stripes.
    pub bytes_data: u64,
    /// The bytes of their fragments that are to be there.
    pub bytes: u64,
}

impl Left {
    /// What lies on `targets` of one stripe.
    pub fn on(maps: &Maps, state: &StripeState, targets: &BTreeSet<TargetId>) -> Left {
        let Some(group) = maps.groups.get(&state.group) else { return Left::default() };
        let owed = owed(group, state, targets);
        if !is_among(&group.targets, targets) && owed.is_empty() {
            return Left::default();
        }
        let bytes = targets.union(&owed).map(|target| bytes_on(group, state, *target)).sum();
        Left { stripes: 1, bytes_data: u64::from(state.length), bytes }
    }
}

impl AddAssign for Left {
    fn add_assign(&mut self, other: Left) {
        self.stripes += other.stripes;
        self.bytes_data += other.bytes_data;
        self.bytes += other.bytes;
    }
}

/// The bytes of a stripe's fragments that are to be on a target of its group.
pub fn bytes_on(group: &GroupEntry, state: &StripeState, target: TargetId) -> u64 {
    let geometry = group.geometry;
    let lengths = geometry.data_lengths(state.length.min(geometry.stripe_size()));
    let longest = lengths.iter().copied().max().unwrap_or(0);
    let data = (0..geometry.data).map(Part::Data).zip(lengths);
    let parts = data.chain((0..geometry.parity).map(|at| (Part::Parity(at), longest)));
    let there = parts.filter(|(part, _)| group.targets.get(geometry.member(state.number, *part)) == Some(&target));
    there.map(|(_, length)| u64::from(length)).sum()
}

/// The groups of which so many members tell nothing that stripes may lie on `targets` which nobody shows.
pub fn hidden(maps: &Maps, targets: &BTreeSet<TargetId>, silent: &BTreeSet<TargetId>) -> BTreeSet<GroupId> {
    let were_over = |group: &GroupEntry| !group.newcomers.is_empty() && is_among(&group.former, targets);
    let over = maps.groups.iter().filter(|(_, group)| is_among(&group.targets, targets) || were_over(group));
    over.filter(|(_, group)| may_hide(maps, group, silent)).map(|(&id, _)| id).collect()
}

/// The targets that are to be emptied, on which nothing can come to lie any more.
pub fn draining(maps: &Maps) -> impl Iterator<Item = TargetId> {
    let draining = maps.present().filter(|(_, entry)| entry.drains() && !entry.empty);
    draining.map(|(target, _)| target).filter(|&target| !maps.takes_stripes(target))
}

/// On which of them something lies.
#[derive(Debug)]
pub(crate) struct Occupied {
    free: BTreeSet<TargetId>,
}

impl Occupied {
    /// Nothing was looked at yet.
    pub(crate) fn new(maps: &Maps) -> Occupied {
        Occupied { free: draining(maps).collect() }
    }

    /// Takes note of a stripe.
    pub(crate) fn add(&mut self, maps: &Maps, state: &StripeState) {
        self.free.retain(|&target| Left::on(maps, state, &[target].into()).stripes == 0);
    }

    /// Those on which nothing lies once all stripes were looked at, as far as enough tell.
    pub(crate) fn emptied(&self, maps: &Maps, silent: &BTreeSet<TargetId>) -> Vec<TargetId> {
        let is_empty = |target: &&TargetId| hidden(maps, &[**target].into(), silent).is_empty();
        self.free.iter().filter(is_empty).copied().collect()
    }
}

/// The newcomers of a group that lack what lay of a stripe on some of its former members, if `targets` are among these.
fn owed(group: &GroupEntry, state: &StripeState, targets: &BTreeSet<TargetId>) -> BTreeSet<TargetId> {
    let lacks = |target: &TargetId| group.newcomers.contains(target) && is_among(&group.former, targets);
    state.missing.iter().map(|damage| damage.target).filter(lacks).collect()
}

fn is_among<'a>(members: impl IntoIterator<Item = &'a TargetId>, targets: &BTreeSet<TargetId>) -> bool {
    members.into_iter().any(|target| targets.contains(target))
}

#[cfg(test)]
mod tests {
    use protocol::fragment::Geometry;
    use protocol::id::{LogId, StripeNumber};
    use protocol::maps::{Drain, TargetEntry, TargetState};

    use super::*;

    /// Group 0 over targets 0 to 3, group 1 over 0 to 2.
    fn maps() -> Maps {
        let group = |data: u8, current| {
            let geometry = Geometry { data, parity: 1, fragment_size: 4096 };
            GroupEntry::new((0..=u32::from(data)).map(TargetId).collect(), geometry, current)
        };
        Maps {
            fragment_size: 4096,
            targets: (0..4).map(|id| (TargetId(id), TargetEntry::new(id, String::new()))).collect(),
            groups: [(GroupId(0), group(3, false)), (GroupId(1), group(2, true))].into(),
            ..Maps::empty(1, 1)
        }
    }

    fn state(number: u64, group: u32, length: u32) -> StripeState {
        let (number, group) = (StripeNumber(number), GroupId(group));
        StripeState {
            log: LogId(1),
            number,
            length,
            ended: true,
            group,
            cut_off: false,
            missing: vec![],
            astray: vec![],
        }
    }

    #[test]
    fn what_lies_on_a_target_is_told_by_groups_and_not_by_the_target() {
        let (maps, all) = (maps(), [state(0, 0, 9000), state(1, 1, 5000)]);
        let on = |target: u32| {
            let mut left = Left::default();
            all.iter().for_each(|state| left += Left::on(&maps, state, &[TargetId(target)].into()));
            left
        };
        assert_eq!(on(3), Left { stripes: 1, bytes_data: 9000, bytes: on(3).bytes });
        assert_eq!(on(0).stripes, 2);
        let of_group = |group: u32, number: u64| -> u64 {
            let (group, state) = (&maps.groups[&GroupId(group)], &all[number as usize]);
            group.targets.iter().map(|&target| bytes_on(group, state, target)).sum()
        };
        assert_eq!(
            (of_group(0, 0), of_group(1, 1)),
            (9000 + 4096, 5000 + 4096),
            "data, and parity as long as the longest"
        );
    }

    #[test]
    fn what_is_drained_is_empty_when_all_say_so_and_nothing_is_written_there() {
        let mut maps = maps();
        let empty = |maps: &Maps, states: &[StripeState], silent: &[u32]| {
            let mut occupied = Occupied::new(maps);
            states.iter().for_each(|state| occupied.add(maps, state));
            occupied.emptied(maps, &silent.iter().copied().map(TargetId).collect())
        };
        assert_eq!(empty(&maps, &[], &[]), [], "nothing is drained");
        for target in [2, 3] {
            maps.targets.get_mut(&TargetId(target)).expect("one of four").drain = Drain::Careful;
        }
        assert_eq!(empty(&maps, &[], &[]), [TargetId(3)], "the other is written");
        assert_eq!(empty(&maps, &[state(0, 1, 9000)], &[]), [TargetId(3)]);
        assert_eq!(empty(&maps, &[state(0, 0, 9000)], &[]), [], "a stripe lies over it");
        assert_eq!((empty(&maps, &[], &[1]), empty(&maps, &[], &[1, 3])), (vec![TargetId(3)], vec![]));
        maps.targets.get_mut(&TargetId(3)).expect("one of four").empty = true;
        assert_eq!(draining(&maps).next(), None, "it is known");
    }

    #[test]
    fn nothing_lies_where_nobody_shows_it_only_if_enough_tell() {
        let mut maps = maps();
        let hidden = |maps: &Maps, target: u32, silent: &[u32]| {
            let silent = silent.iter().copied().map(TargetId).collect();
            hidden(maps, &[TargetId(target)].into(), &silent).len()
        };
        assert_eq!((hidden(&maps, 3, &[]), hidden(&maps, 3, &[3]), hidden(&maps, 3, &[1, 3])), (0, 0, 1));
        maps.targets.get_mut(&TargetId(1)).expect("one of four").state = TargetState::Failed;
        assert_eq!((hidden(&maps, 3, &[]), hidden(&maps, 3, &[3])), (0, 1));
        maps.targets.get_mut(&TargetId(1)).expect("one of four").state = TargetState::Removed;
        assert_eq!(hidden(&maps, 3, &[3]), 0, "one that was taken away had nothing");
    }
}
