//! Which groups a log goes on in when the registry has formed others and no target of its own failed. Pure.
//!
//! Groups never change (Zebra 4.2): when machines come or go, others become the current ones. A log that stayed where it
//! began would be no more redundant than the cluster was on that day (DESIGN §3, where a stripe lies).
//!
//! 1. It is decided once for each set of current groups: a writer that just left one of them, because a target did not
//!    answer *it*, does not go back there before the registry has looked too, or a while has passed (`going_back`).
//! 2. Stripes in memory keep their bytes, so they must fit: a current group whose stripes are too small is taken with larger
//!    fragments.

use std::collections::BTreeSet;

use protocol::checksum::BLOCK_SIZE;
use protocol::fragment::FRAGMENT_SIZE_MAX;
use protocol::id::GroupId;
use protocol::maps::{GroupEntry, Maps};

use crate::lay::Group;
use crate::reform::Need;

/// The groups that new stripes are laid over.
pub(crate) fn current(maps: &Maps) -> BTreeSet<GroupId> {
    maps.groups.iter().filter(|(_, group)| group.current).map(|(&id, _)| id).collect()
}

/// The current groups, in shapes that take what is needed; `None` when `present` are just these already, or there are none. A
/// log that knew only some of them would leave the targets of the others idle.
pub(crate) fn regroup(maps: &Maps, present: &[Group], need: Need) -> Option<Vec<GroupEntry>> {
    let allowed = maps.groups.values().filter(|group| group.current && group.geometry.parity >= need.parity_min);
    let wanted: Vec<GroupEntry> = allowed.filter_map(|group| fitting(group, need.capacity)).collect();
    is_elsewhere(&wanted, present, need.capacity).then_some(wanted)
}

/// Whether the groups `wanted` are any, and others than `present` with room for `capacity` bytes a stripe.
pub(crate) fn is_elsewhere(wanted: &[GroupEntry], present: &[Group], capacity: u32) -> bool {
    let is = |group: &Group, entry: &GroupEntry| {
        let shape = group.geometry;
        let alike = (entry.geometry.data, entry.geometry.parity) == (shape.data, shape.parity);
        alike && entry.targets == group.targets && shape.stripe_size() >= capacity
    };
    let lacks_some = wanted.iter().any(|entry| !present.iter().any(|group| is(group, entry)));
    let has_others = present.iter().any(|group| !wanted.iter().any(|entry| is(group, entry)));
    !wanted.is_empty() && (lacks_some || has_others)
}

/// The number of a group that the registry has already.
pub(crate) fn known(maps: &Maps, wanted: &GroupEntry) -> Option<GroupId> {
    maps.groups.iter().find(|(_, group)| group.lies_as(wanted)).map(|(&id, _)| id)
}

/// The group, with fragments so large that its stripes take `capacity` bytes.
fn fitting(group: &GroupEntry, capacity: u32) -> Option<GroupEntry> {
    let mut fitting = group.clone();
    if group.geometry.stripe_size() < capacity {
        let fragment_size = capacity.div_ceil(u32::from(group.geometry.data)).next_multiple_of(BLOCK_SIZE as u32);
        fitting.geometry.fragment_size = fragment_size;
        fitting.current = false;
    }
    (fitting.geometry.fragment_size <= FRAGMENT_SIZE_MAX).then_some(fitting)
}

#[cfg(test)]
mod tests {
    use protocol::fragment::Geometry;
    use protocol::id::TargetId;

    use super::*;

    fn entry(targets: &[u32], data: u8, current: bool) -> GroupEntry {
        let geometry = Geometry { data, parity: targets.len() as u8 - data, fragment_size: 1 << 20 };
        GroupEntry::new(targets.iter().copied().map(TargetId).collect(), geometry, current)
    }

    fn maps(groups: &[GroupEntry]) -> Maps {
        Maps { groups: (0..).map(GroupId).zip(groups.iter().cloned()).collect(), ..Maps::empty(1, 1) }
    }

    fn regrouped(groups: &[GroupEntry], present: &[usize], parity_min: u8) -> Option<Vec<GroupEntry>> {
        let group = |&at: &usize| {
            let GroupEntry { targets, geometry, .. } = groups[at].clone();
            Group { id: GroupId(at as u32), geometry, targets }
        };
        let present: Vec<Group> = present.iter().map(group).collect();
        let geometry = present[0].geometry;
        let need = Need { geometry, capacity: geometry.stripe_size(), parity: 1, parity_min };
        regroup(&maps(groups), &present, need)
    }

    #[test]
    fn a_log_leaves_a_group_that_is_obsolete_for_all_that_are_current() {
        let groups = [entry(&[0, 1], 1, false), entry(&[0, 2], 1, true), entry(&[1, 3], 1, true)];
        assert_eq!(regrouped(&groups, &[0], 1), Some(groups[1..].to_vec()));
        assert_eq!(regrouped(&groups, &[1, 2], 1), None, "it is there already");
        assert_eq!(regrouped(&groups, &[1], 1), Some(groups[1..].to_vec()), "the others' targets would be idle");
        assert_eq!(current(&maps(&groups)), [GroupId(1), GroupId(2)].into());
        assert_eq!(
            (known(&maps(&groups), &groups[2]), known(&maps(&groups), &entry(&[7, 8], 1, true))),
            (Some(GroupId(2)), None)
        );
    }

    #[test]
    fn stripes_that_were_wider_get_larger_fragments() {
        let groups = [entry(&[0, 1, 2, 3, 4], 4, false), entry(&[0, 5], 1, true)];
        let wanted = regrouped(&groups, &[0], 1).expect("the old group is obsolete");
        assert_eq!(wanted[0].geometry, Geometry { data: 1, parity: 1, fragment_size: 4 << 20 });
        assert!(!wanted[0].current && wanted[0].targets == groups[1].targets);
        let wide = [groups[0].clone(), groups[1].clone(), wanted[0].clone()];
        assert_eq!(regrouped(&wide, &[2], 1), None, "the group of larger fragments stands for the current one");
    }

    #[test]
    fn a_log_stays_where_nothing_that_it_may_use_is_current() {
        let groups = [entry(&[0, 1], 1, false), entry(&[2], 1, true)];
        assert_eq!(regrouped(&groups, &[0], 1), None);
        assert!(regrouped(&groups, &[0], 0).is_some());
        assert_eq!(regrouped(&groups[..1], &[0], 0), None);
    }
}
