//! Which stripe groups are laid over which targets.
//!
//! k follows from the number of live failure domains, never from a wish (DESIGN §3): machines are the domains as soon as
//! there are m+2 of them, or two with m = 1; before that, disks. m+1 domains give 1+m, each more widens the stripes up to
//! the class's default, or what was chosen for it.
//!
//! Where machines are the domains, no group has two targets of one machine.
//!
//! *Equal machines* stand in a ring (`ring`, `docs/decisions/0040-equal-machines-stand-in-a-ring.md`). Each target is in as
//! many groups as a stripe is wide, once with each part. Logs go through the groups in this order, and begin in different
//! ones: as many as there are machines are at each machine equally often, at every moment and in all. And each machine meets
//! each other one about as often, so that what a lost one had is read from the others alike, and made again on them.
//!
//! *Machines with more targets* than others are in more groups, in proportion, as far as a machine can: it is in no group
//! twice. Which machines meet is scrambled, so that each meets each other one, and leaves each out. Each is in each place of a
//! stripe about equally often: who reads or writes some stripes in a row finds all machines with about their share.

use std::collections::{BTreeMap, BTreeSet};

use protocol::fragment::Geometry;
use protocol::id::TargetId;
use protocol::maps::{Class, GroupEntry};

use crate::ring;

/// The widest default for m = 1 and for m ≥ 2.
const DATA_MAX_XOR: usize = 4;
const DATA_MAX_CODED: usize = 8;
/// So many times members are chosen at most, where targets are many: some hundred groups spread the load of a thousand
/// targets, and every map names them all.
const MEMBERSHIPS_MAX: usize = 400;

/// So many groups are formed at most so that machines meet often: every map and every log names them.
const SPREAD_MAX: usize = 100;
/// So often a group that is formed already is drawn again.
const DRAWS_MAX: u64 = 16;

/// The targets of each machine that groups may be laid over.
pub type Machines = BTreeMap<u32, Vec<TargetId>>;

/// The groups over the targets of `machines` for stripes that survive the loss of as many domains as the class says. With
/// too few domains for it the parity shrinks: the volume goes on degraded, and `status` says so.
pub fn groups(machines: &Machines, class: Class, fragment_size: u32) -> Vec<GroupEntry> {
    let targets = ordered(machines.values().flatten());
    if targets.is_empty() {
        return Vec::new();
    }
    let apart = are_domains(machines, class.parity);
    let domains = if apart { occupied(machines).count() } else { targets.len() };
    let (data, parity) = shape(domains, class);
    let geometry = Geometry { data: data as u8, parity: parity as u8, fragment_size };
    let width = data + parity;
    let members = match equal(machines) {
        _ if !apart || width == targets.len() => in_turn(&targets, width),
        Some(machines) if targets.len() <= MEMBERSHIPS_MAX => in_ring(&machines, width),
        _ => across(machines, width),
    };
    members.into_iter().map(|targets| GroupEntry::new(targets, geometry, true)).collect()
}

/// Whether machines are the failure domains, and not disks.
pub fn are_domains(machines: &Machines, parity: u8) -> bool {
    let count = occupied(machines).count();
    count >= usize::from(parity) + 2 || (parity == 1 && count == 2)
}

fn occupied(machines: &Machines) -> impl Iterator<Item = (u32, &Vec<TargetId>)> {
    machines.iter().filter(|(_, targets)| !targets.is_empty()).map(|(&node, targets)| (node, targets))
}

/// k and m for so many domains.
fn shape(domains: usize, class: Class) -> (usize, usize) {
    let parity = usize::from(class.parity).min(domains - 1);
    let by_default = if parity <= 1 { DATA_MAX_XOR } else { DATA_MAX_CODED };
    let data_max = class.data_max.map_or(by_default, |chosen| usize::from(chosen.max(1)));
    let data = if parity == 0 { 1 } else { (domains - parity).min(data_max) };
    (data, parity)
}

/// How many groups so many targets get: as many as there are targets, each then in as many as a stripe is wide, or where
/// these are too many, so many that each is in equally many.
fn count(targets: usize, width: usize) -> usize {
    let memberships = (MEMBERSHIPS_MAX * width / targets).clamp(1, width);
    (targets * memberships).div_ceil(width)
}

/// Every target is a domain: groups are runs of targets, beginning at each in turn.
fn in_turn(targets: &[TargetId], width: usize) -> Vec<Vec<TargetId>> {
    let begins = if width == targets.len() { 1 } else { count(targets.len(), width) };
    let begin = |group: usize| group * targets.len() / begins;
    let member = |at: usize| targets[at % targets.len()];
    (0..begins).map(|group| (0..width).map(|n| member(begin(group) + n)).collect()).collect()
}

/// The targets of each machine, if these are equally many.
fn equal(machines: &Machines) -> Option<Vec<Vec<TargetId>>> {
    let machines: Vec<Vec<TargetId>> = occupied(machines).map(|(_, targets)| ordered(targets.iter())).collect();
    machines.windows(2).all(|two| two[0].len() == two[1].len()).then_some(machines)
}

/// Every machine is a domain, and all are equal: machines stand in a ring, and a figure, turned by the same pace from each
/// group to the next, covers the members. With several targets on each machine the figure goes round as often; which of them
/// meet is drawn by lot, and the next ones of each take their places in the next round.
fn in_ring(machines: &[Vec<TargetId>], width: usize) -> Vec<Vec<TargetId>> {
    let (count, each) = (machines.len(), machines[0].len());
    let figure = ring::figure(count, width);
    let pace = ring::pace(count, &figure);
    let group = |turn: usize, lot: u64, round: usize| {
        let member = |part: usize| {
            let drawn = scramble(lot * count as u64 + turn as u64, part as u32) as usize % each;
            machines[(figure[part] + turn * pace) % count][(drawn + round) % each]
        };
        // A log that goes through the groups lays part p of the stripe over group g at the member p + g, modulo the width.
        (0..width).map(|place| member((place + width - turn % width) % width)).collect::<Vec<_>>()
    };
    let mut formed = BTreeSet::new();
    let mut rounds = vec![Vec::new(); each];
    for turn in 0..count {
        let is_new = |lot: &u64| !formed.contains(&group(turn, *lot, 0));
        let lot = (0..DRAWS_MAX).find(is_new).unwrap_or(0);
        for (round, groups) in rounds.iter_mut().enumerate() {
            formed.insert(group(turn, lot, round));
            groups.push(group(turn, lot, round));
        }
    }
    rounds.concat()
}

/// Every machine is a domain, and some have more targets: each group takes the machines that have had the least of their
/// share, and of each the target that is in the fewest groups.
fn across(machines: &Machines, width: usize) -> Vec<Vec<TargetId>> {
    let mut taken: BTreeMap<u32, usize> = occupied(machines).map(|(node, _)| (node, 0)).collect();
    let mut used: BTreeMap<TargetId, usize> = BTreeMap::new();
    let mut formed: Vec<BTreeSet<TargetId>> = Vec::new();
    for group in 0..count_across(machines, width) as u64 {
        let draw = |lot| draw_across(machines, width, group * DRAWS_MAX + lot, (&taken, &used));
        let new = (0..DRAWS_MAX).map(draw).find(|members| !formed.contains(members));
        let members = new.clone().unwrap_or_else(|| draw(0));
        for target in &members {
            let node = occupied(machines).find(|(_, targets)| targets.contains(target)).expect("drawn from there").0;
            *taken.get_mut(&node).expect("it has a share") += 1;
            *used.entry(*target).or_default() += 1;
        }
        formed.extend(new);
    }
    in_places(&formed, width)
}

/// Orders the members of each group. A log that goes through the groups lays part p of the stripe over group g at the member
/// p + g, modulo the width (`Geometry::member`); that is to be whoever has had part p least so far.
fn in_places(formed: &[BTreeSet<TargetId>], width: usize) -> Vec<Vec<TargetId>> {
    let mut held: BTreeMap<(usize, TargetId), usize> = BTreeMap::new();
    let mut place = |(group, members): (usize, &BTreeSet<TargetId>)| {
        let mut left: Vec<TargetId> = members.iter().copied().collect();
        let mut placed = vec![TargetId(0); width];
        // Who comes first has the choice, so parts take turns at that.
        for part in (0..width).map(|part| (part + group) % width) {
            let held_by = |target: &TargetId| held.get(&(part, *target)).copied().unwrap_or(0);
            let least = (0..left.len()).min_by_key(|&at| held_by(&left[at])).expect("a member for each part");
            let target = left.remove(least);
            *held.entry((part, target)).or_default() += 1;
            placed[(part + group) % width] = target;
        }
        placed
    };
    formed.iter().enumerate().map(&mut place).collect()
}

/// The members of a group, drawn by `lot` among those that have had as little.
fn draw_across(
    machines: &Machines,
    width: usize,
    lot: u64,
    (taken, used): (&BTreeMap<u32, usize>, &BTreeMap<TargetId, usize>),
) -> BTreeSet<TargetId> {
    // Shares are compared as fractions of a number that all counts of targets up to some dozen divide.
    let share = |node: u32| (taken[&node] * 720_720) / machines[&node].len();
    let mut nodes: Vec<u32> = taken.keys().copied().collect();
    nodes.sort_by_cached_key(|&node| (share(node), scramble(lot, node)));
    nodes.truncate(width);
    let least = |target: &&TargetId| (used.get(*target).copied().unwrap_or(0), **target);
    let member = |node: &u32| *machines[node].iter().min_by_key(least).expect("an occupied machine has targets");
    nodes.iter().map(member).collect()
}

/// How many groups are wanted where machines are the domains: so many that each machine is in three times as many as there are
/// others. There may not be so many.
fn count_across(machines: &Machines, width: usize) -> usize {
    let (count_machines, total) = (occupied(machines).count(), machines.values().map(Vec::len).sum());
    let spread = count_machines * (3 * (count_machines - 1)).div_ceil(width);
    count(total, width).max(spread.min(SPREAD_MAX / count_machines * count_machines))
}

fn ordered<'a>(targets: impl Iterator<Item = &'a TargetId>) -> Vec<TargetId> {
    let targets: BTreeSet<_> = targets.copied().collect();
    targets.into_iter().collect()
}

/// A fixed disorder (the finish of splitmix64).
fn scramble(group: u64, node: u32) -> u64 {
    let mut word = (group << 32 | u64::from(node)).wrapping_add(0x9e37_79b9_7f4a_7c15);
    word = (word ^ (word >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    word = (word ^ (word >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    word ^ (word >> 31)
}

#[cfg(test)]
mod tests {
    use super::*;
    use protocol::fragment::FRAGMENT_SIZE;

    /// Machines with so many targets each, numbered through.
    fn machines(counts: &[u32]) -> Machines {
        let mut next = 0..;
        let targets = |count: u32| next.by_ref().take(count as usize).map(TargetId).collect();
        (1..).zip(counts.iter().copied().map(targets)).collect()
    }

    fn formed(counts: &[u32], parity: u8) -> Vec<GroupEntry> {
        groups(&machines(counts), parity.into(), FRAGMENT_SIZE)
    }

    fn shape(counts: &[u32], parity: u8) -> (u8, u8, usize) {
        let groups = formed(counts, parity);
        (groups[0].geometry.data, groups[0].geometry.parity, groups.len())
    }

    /// In how many groups each target is.
    fn memberships(groups: &[GroupEntry]) -> BTreeMap<TargetId, usize> {
        let mut counts = BTreeMap::new();
        groups.iter().flat_map(|group| &group.targets).for_each(|target| *counts.entry(*target).or_default() += 1);
        counts
    }

    #[test]
    fn stripes_widen_with_the_disks_of_one_machine() {
        assert_eq!(shape(&[1], 0), (1, 0, 1));
        assert_eq!(shape(&[2], 1), (1, 1, 1));
        assert_eq!(shape(&[3], 1), (2, 1, 1));
        assert_eq!(shape(&[5], 1), (4, 1, 1));
        assert_eq!(shape(&[6], 1), (4, 1, 6));
        assert_eq!(shape(&[6], 2), (4, 2, 1));
        assert_eq!(shape(&[12], 2), (8, 2, 12));
    }

    #[test]
    fn stripes_are_as_wide_as_was_chosen() {
        let chosen = |counts: &[u32], parity, data| {
            let class = Class { parity, data_max: Some(data) };
            let groups = groups(&machines(counts), class, FRAGMENT_SIZE);
            let memberships = memberships(&groups);
            assert_eq!(memberships.len(), counts.iter().sum::<u32>() as usize, "every target is used");
            (groups[0].geometry.data, groups[0].geometry.parity)
        };
        assert_eq!(chosen(&[1; 8], 2, 4), (4, 2));
        assert_eq!(chosen(&[1; 5], 2, 4), (3, 2), "there are no more");
        assert_eq!(chosen(&[1; 12], 1, 8), (8, 1), "beyond the default");
        assert_eq!(chosen(&[20], 2, 16), (16, 2));
        assert_eq!(chosen(&[1; 3], 1, 1), (1, 1), "mirrors");
    }

    #[test]
    fn too_few_domains_degrade() {
        assert_eq!(shape(&[1], 1), (1, 0, 1));
        assert_eq!(shape(&[2], 2), (1, 1, 1));
    }

    #[test]
    fn machines_are_the_domains_as_soon_as_there_are_enough() {
        assert_eq!(shape(&[3, 3], 1).0, 1);
        assert_eq!(shape(&[3, 3, 3], 1).0, 2);
        assert_eq!(shape(&[3, 3, 3], 2), (7, 2, 1));
        assert_eq!(shape(&[3, 3, 3, 3], 2).0, 2);
        assert_eq!(shape(&[1, 1, 1, 1, 1], 1), (4, 1, 1));
    }

    #[test]
    fn no_group_has_two_targets_of_one_machine() {
        for counts in [&[2, 2][..], &[4, 1, 1], &[3, 3, 3, 3], &[1, 2, 3, 4, 5, 6, 7, 8], &[12; 80]] {
            for parity in 1..3 {
                let machines = machines(counts);
                if !are_domains(&machines, parity) {
                    continue;
                }
                for group in groups(&machines, parity.into(), FRAGMENT_SIZE) {
                    let of = |target| machines.iter().find(|(_, targets)| targets.contains(target)).unwrap().0;
                    let nodes: BTreeSet<_> = group.targets.iter().map(of).collect();
                    assert_eq!(nodes.len(), group.geometry.width(), "{counts:?}");
                }
            }
        }
    }

    /// How often `target` meets each other one, of so many.
    fn met(groups: &[GroupEntry], target: TargetId, count: usize) -> Vec<usize> {
        let of_target = groups.iter().filter(|group| group.targets.contains(&target));
        let mut met = vec![0; count];
        of_target.flat_map(|group| &group.targets).for_each(|other| met[other.0 as usize] += 1);
        met.remove(target.0 as usize);
        met
    }

    #[test]
    fn what_a_machine_has_lies_over_all_others_alike() {
        for count in (6..=21).chain([30]) {
            let groups = formed(&vec![1; count], 1);
            let width = groups[0].geometry.width();
            assert!(
                memberships(&groups).values().all(|&times| times == width),
                "{count}: as often as a stripe is wide"
            );
            let often = (width * (width - 1)).div_ceil(count - 1);
            for target in (0..count as u32).map(TargetId) {
                let met = met(&groups, target, count);
                let (least, most) = (met.iter().min().expect("others"), met.iter().max().expect("others"));
                assert!(*most <= often && *most < width, "{count}: {target:?} meets {met:?}, {often} would be even");
                // No figure of five was found by which all of 20 meet, and none of more than 21 can there be.
                assert!(*least > 0 || [20, 30].contains(&count), "{count}: {target:?} meets {met:?}");
            }
        }
    }

    #[test]
    fn each_target_of_equal_machines_has_each_part_once() {
        for (machines, each) in [(3, 3), (4, 2), (4, 4), (5, 12), (8, 2), (12, 3)] {
            let groups = formed(&vec![each; machines], 1);
            let width = groups[0].geometry.width();
            let distinct: BTreeSet<_> = groups.iter().map(|group| &group.targets).collect();
            assert_eq!((groups.len(), distinct.len()), (machines * each as usize, machines * each as usize));
            let parts = groups.iter().enumerate().flat_map(|(number, group)| {
                let number = number % machines;
                (0..width).map(move |part| (part, group.targets[(part + number) % width]))
            });
            let mut held: BTreeMap<(usize, TargetId), usize> = BTreeMap::new();
            parts.for_each(|place| *held.entry(place).or_default() += 1);
            assert!(
                held.len() == width * groups.len() && held.values().all(|&times| times == 1),
                "{machines}, {each}: {held:?}"
            );
        }
    }

    #[test]
    fn logs_that_go_through_the_groups_are_at_equal_machines_equally_often() {
        for (count, parity) in [(6, 1), (8, 1), (9, 1), (12, 1), (20, 1), (12, 2), (30, 2)] {
            let groups = formed(&vec![1; count], parity);
            let mut used = vec![0; count];
            // One log begins in each group, and all write some stripes, no matter how many.
            for stripe in 0..7 {
                let of_logs = (0..count).flat_map(|log| &groups[(log + stripe) % groups.len()].targets);
                of_logs.for_each(|target| used[target.0 as usize] += 1);
                let even = (stripe + 1) * groups[0].geometry.width();
                assert!(used.iter().all(|&times| times == even), "{count} machines, {stripe}: {used:?}");
            }
        }
    }

    #[test]
    fn every_target_is_in_about_as_many_groups_as_its_share() {
        for counts in [&[6, 6, 6, 6, 6, 6][..], &[1, 2, 3, 4, 5, 6, 7, 8], &[10; 100], &[3, 3, 3, 3]] {
            let memberships = memberships(&formed(counts, 1));
            assert_eq!(memberships.len(), counts.iter().sum::<u32>() as usize, "every target is used");
            let (least, most) = (memberships.values().min().unwrap(), memberships.values().max().unwrap());
            assert!(*most <= 2 * *least, "{counts:?}: {least} to {most} groups");
        }
        // A machine is in no group twice, so one with most of the disks cannot have all its share.
        let memberships = memberships(&formed(&[8, 1, 1], 1));
        assert_eq!(memberships.len(), 10);
    }

    #[test]
    fn who_goes_through_groups_finds_each_machine_with_as_much_of_each_part() {
        for (count, parity) in [(6, 1), (8, 1), (12, 1), (20, 1), (12, 2)] {
            let groups = formed(&vec![1; count], parity);
            let width = groups[0].geometry.width();
            let mut held: BTreeMap<(usize, TargetId), usize> = BTreeMap::new();
            for (number, group) in groups.iter().enumerate() {
                let parts = (0..width).map(|part| (part, group.targets[(part + number) % width]));
                parts.for_each(|place| *held.entry(place).or_default() += 1);
            }
            let even = groups.len() / count;
            for (part, target) in (0..width).flat_map(|part| (0..count as u32).map(move |at| (part, TargetId(at)))) {
                let often = held.get(&(part, target)).copied().unwrap_or(0);
                let is_fair = often.abs_diff(even) <= even.div_ceil(2);
                assert!(is_fair, "{count} machines: {target:?} has part {part} {often} times, {even} would be even");
            }
        }
    }

    #[test]
    fn a_thousand_targets_have_a_few_hundred_groups() {
        for (machine_count, parity) in [(100, 1), (100, 2), (2, 1)] {
            let counts = vec![1000 / machine_count; machine_count as usize];
            let groups = formed(&counts, parity);
            assert!((100..=500).contains(&groups.len()), "{} groups", groups.len());
            assert_eq!(memberships(&groups).len(), 1000);
        }
        assert!(formed(&[1000], 1).len() <= 500);
    }
}
