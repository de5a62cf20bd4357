//! Which groups a log goes on with when targets fail. Pure.
//!
//! A stripe laid anew keeps its bytes and must fit: with fewer data fragments these are larger (DESIGN §3, a target
//! fails while writing). Redundancy is given up last, and only where it is allowed.

use std::collections::{BTreeMap, BTreeSet};

use protocol::checksum::BLOCK_SIZE;
use protocol::fragment::{FRAGMENT_SIZE_MAX, Geometry};
use protocol::id::{GroupId, TargetId};
use protocol::maps::{GroupEntry, Maps};

/// What the groups must be able to do.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Need {
    /// The shape until now.
    pub(crate) geometry: Geometry,
    /// Data bytes a stripe must take.
    pub(crate) capacity: u32,
    /// m as the class asks.
    pub(crate) parity: u8,
    /// The least m that is allowed.
    pub(crate) parity_min: u8,
}

/// Groups to go on with.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Reformed {
    /// Groups that the registry has already.
    Known(Vec<GroupId>),
    /// A group to form.
    New(GroupEntry),
}

impl Reformed {
    /// Whether its stripes are less redundant than is asked for.
    pub(crate) fn is_poor(&self, need: Need) -> bool {
        self.parity(need) < need.parity
    }

    /// m, as far as it is asked for.
    pub(crate) fn parity(&self, need: Need) -> u8 {
        match self {
            Reformed::Known(_) => need.parity,
            Reformed::New(group) => group.geometry.parity,
        }
    }
}

/// Groups over `live` targets alone; `None` when too few live.
pub(crate) fn reform(maps: &Maps, live: &BTreeSet<TargetId>, old: &[TargetId], need: Need) -> Option<Reformed> {
    let wide_enough = |group: &GroupEntry| {
        let geometry = group.geometry;
        group.current
            && geometry.parity >= need.parity
            && geometry.stripe_size() >= need.capacity
            && group.targets.iter().all(|target| live.contains(target))
    };
    let known: Vec<_> = maps.groups.iter().filter(|(_, group)| wide_enough(group)).map(|(id, _)| *id).collect();
    if !known.is_empty() {
        return Some(Reformed::Known(known));
    }
    let targets = choose(maps, &spared(maps, live, need), old, usize::from(need.parity));
    let parity = usize::from(need.parity).min(targets.len().checked_sub(1)?);
    if parity < usize::from(need.parity_min) {
        return None;
    }
    let data = if parity == 0 { 1 } else { (targets.len() - parity).min(usize::from(need.geometry.data)) };
    let fragment_size = need.capacity.div_ceil(data as u32).next_multiple_of(BLOCK_SIZE as u32);
    if fragment_size > FRAGMENT_SIZE_MAX {
        return None;
    }
    let geometry = Geometry { data: data as u8, parity: parity as u8, fragment_size };
    let targets = targets.into_iter().take(geometry.width()).collect();
    Some(Reformed::New(GroupEntry::new(targets, geometry, false)))
}

/// The live targets that are not being emptied, or all of them where these alone would be on fewer machines or disks than
/// redundancy asks for.
fn spared(maps: &Maps, live: &BTreeSet<TargetId>, need: Need) -> BTreeSet<TargetId> {
    let stays = |target: &&TargetId| maps.targets.get(*target).is_some_and(|entry| !entry.drains());
    let staying: BTreeSet<TargetId> = live.iter().filter(stays).copied().collect();
    let domains = |targets: &BTreeSet<TargetId>| {
        let machines: BTreeSet<u32> =
            targets.iter().filter_map(|target| maps.targets.get(target)).map(|entry| entry.node).collect();
        let enough = usize::from(need.parity) + 1;
        (machines.len().min(enough), targets.len().min(enough))
    };
    if domains(live) > domains(&staying) { live.clone() } else { staying }
}

/// The live targets, those of the old group first, one a machine as long as machines are enough to be the domains.
fn choose(maps: &Maps, live: &BTreeSet<TargetId>, old: &[TargetId], parity: usize) -> Vec<TargetId> {
    let spares = live.iter().filter(|target| !old.contains(target));
    let all: Vec<_> = old.iter().filter(|target| live.contains(target)).chain(spares).copied().collect();
    let mut by_node: BTreeMap<u32, usize> = BTreeMap::new();
    let mut first = Vec::new();
    for &target in &all {
        let Some(entry) = maps.targets.get(&target) else { continue };
        let taken = by_node.entry(entry.node).or_default();
        *taken += 1;
        if *taken == 1 {
            first.push(target);
        }
    }
    let machines = by_node.len();
    if machines >= parity + 2 || (machines == 2 && parity == 1) {
        return first;
    }
    let rest: Vec<_> = all.into_iter().filter(|target| !first.contains(target)).collect();
    first.into_iter().chain(rest).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use protocol::fragment::FRAGMENT_SIZE;

    use protocol::maps::{Drain, TargetEntry};

    fn maps(nodes: &[u32]) -> Maps {
        let entry = |node| TargetEntry::new(node, String::new());
        Maps {
            targets: nodes.iter().enumerate().map(|(n, &node)| (TargetId(n as u32), entry(node))).collect(),
            ..Maps::empty(1, 1)
        }
    }

    fn formed(nodes: &[u32], live: &[u32], parity_min: u8) -> Option<GroupEntry> {
        let geometry = Geometry { data: 4, parity: 1, fragment_size: FRAGMENT_SIZE };
        let need = Need { geometry, capacity: geometry.stripe_size(), parity: 1, parity_min };
        let old: Vec<_> = (0..5).map(TargetId).collect();
        match reform(&maps(nodes), &live.iter().map(|&n| TargetId(n)).collect(), &old, need)? {
            Reformed::New(group) => Some(group),
            Reformed::Known(_) => panic!("there are no groups yet"),
        }
    }

    #[test]
    fn a_spare_takes_the_place_of_the_lost() {
        let group = formed(&[1, 2, 3, 4, 5, 6], &[0, 1, 3, 4, 5], 1).expect("five live");
        assert_eq!(group.geometry, Geometry { data: 4, parity: 1, fragment_size: FRAGMENT_SIZE });
        assert!(group.targets.contains(&TargetId(5)) && !group.targets.contains(&TargetId(2)));
    }

    #[test]
    fn fewer_targets_make_larger_fragments() {
        let group = formed(&[1, 2, 3, 4, 5], &[0, 1, 3, 4], 1).expect("four live");
        assert_eq!((group.geometry.data, group.geometry.parity), (3, 1));
        assert!(group.geometry.stripe_size() >= 4 * FRAGMENT_SIZE && group.geometry.fragment_size.is_multiple_of(4096));
        let group = formed(&[1, 2, 3, 4, 5], &[1, 4], 1).expect("two live");
        assert_eq!(group.geometry, Geometry { data: 1, parity: 1, fragment_size: 4 * FRAGMENT_SIZE });
    }

    /// Groups are as wide as one likes, and blocks make their fragments larger than asked for.
    #[test]
    fn the_widest_stripe_can_be_laid_over_two_targets() {
        for data in [7, 8, 16] {
            let fragment_size = (4_u32 << 20).div_ceil(data).next_multiple_of(BLOCK_SIZE as u32).max(FRAGMENT_SIZE);
            let geometry = Geometry { data: data as u8, parity: 1, fragment_size };
            let need = Need { geometry, capacity: geometry.stripe_capacity(), parity: 1, parity_min: 1 };
            let (live, old) = ([TargetId(0), TargetId(1)].into(), [TargetId(0)]);
            let formed = reform(&maps(&[1, 2]), &live, &old, need);
            let Some(Reformed::New(group)) = formed else { panic!("{data} data fragments: {formed:?}") };
            assert_eq!(group.geometry, Geometry { data: 1, parity: 1, fragment_size: FRAGMENT_SIZE_MAX });
        }
    }

    #[test]
    fn redundancy_goes_last_and_only_where_allowed() {
        assert_eq!(formed(&[1, 2, 3, 4, 5], &[3], 1), None);
        assert_eq!(formed(&[1, 2, 3, 4, 5], &[3], 0).expect("one lives").geometry.parity, 0);
        assert_eq!(formed(&[1, 2, 3, 4, 5], &[], 0), None);
    }

    #[test]
    fn machines_are_the_domains_when_there_are_enough() {
        let group = formed(&[1, 1, 2, 2, 3], &[0, 1, 2, 3, 4], 1).expect("three machines");
        assert_eq!((group.geometry.data, group.targets.len()), (2, 3));
    }

    #[test]
    fn what_is_drained_is_taken_only_where_redundancy_asks_for_it() {
        let geometry = Geometry { data: 4, parity: 1, fragment_size: FRAGMENT_SIZE };
        let need = Need { geometry, capacity: geometry.stripe_size(), parity: 1, parity_min: 0 };
        let formed = |nodes: &[u32], drained: &[u32]| {
            let mut maps = maps(nodes);
            let leaving = drained.iter().map(|&target| TargetId(target));
            leaving.for_each(|target| maps.targets.get_mut(&target).expect("it is there").drain = Drain::Careful);
            let live = maps.targets.keys().copied().collect();
            match reform(&maps, &live, &[], need) {
                Some(Reformed::New(group)) => group.targets.iter().map(|target| target.0).collect::<Vec<_>>(),
                other => panic!("{other:?}"),
            }
        };
        assert_eq!(formed(&[1, 2, 3], &[0]), [1, 2]);
        assert_eq!(formed(&[1, 2], &[0]), [0, 1], "one machine is not enough");
        assert_eq!(formed(&[1, 1, 2], &[2]), [0, 2], "nor are its disks, if there is another");
    }
}
