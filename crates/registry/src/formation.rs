//! Which stripe groups are laid over which targets.
//!
//! k follows from the number of live failure domains, never from a wish (DESIGN §3): machines are the domains as soon as
//! there are m+2 of them, or two with m = 1; on one machine, disks. m+1 domains give 1+m, each more widens the stripes up to
//! the class's default, or what was chosen for it.
//!
//! Where machines are the domains, no group has two targets of one machine. Where there are several and yet too few, none has
//! more than m: any one machine may be lost, or any m disks (`docs/decisions/0052-few-machines.md`).
//!
//! *Equal machines*, with equally many targets of about the same size, stand in a ring (`ring`,
//! `docs/decisions/0040-equal-machines-stand-in-a-ring.md`). Each target is in as many groups as a stripe is wide, once with
//! each part. Logs go through the groups in this order, and begin in different ones: as many as there are machines are at each
//! machine equally often, at every moment and in all. And each machine meets each other one about as often, so that what a
//! lost one had is read from the others alike, and made again on them.
//!
//! *Machines that hold more* than others are in more groups, in proportion, and so are the larger ones of a machine's targets
//! among these: all are full at about the same time (`docs/decisions/0047-targets-are-used-by-their-size.md`). A machine is in
//! no group twice, so one that has more than its part of the width of a stripe is in every group, and some of its room stays
//! empty. Which machines meet is scrambled, so that each meets each other one, and leaves each out. Each is in each place of a
//! stripe about equally often: who reads or writes some stripes in a row finds all machines with about their share.
//!
//! Voters must agree on all of this: integers alone decide.

use std::cmp::Reverse;
use std::collections::{BTreeMap, BTreeSet};

use protocol::fragment::Geometry;
use protocol::id::TargetId;
use protocol::maps::{self, Class, GroupEntry};

use crate::ring;

/// The widest default for m = 1 and for m ≥ 2.
const DATA_MAX_XOR: usize = 4;
const DATA_MAX_CODED: usize = 8;
/// So many times members are chosen at most, where targets are many: some hundred groups spread the load of a thousand
/// targets, and every map names them all.
const MEMBERSHIPS_MAX: usize = 400;

/// So many groups are formed at most so that machines meet often, and the smallest target has its share: every map and every
/// log names them.
const SPREAD_MAX: usize = 100;
/// In so many groups the smallest target is to be, so that its share is no matter of rounding.
const MEMBERSHIPS_LEAST: u128 = 6;
/// So often a group that is formed already is drawn again.
const DRAWS_MAX: u64 = 16;

/// The targets of each machine that groups may be laid over, with the bytes that each can hold; nothing: not told, and taken
/// for one like the others.
pub type Machines = BTreeMap<u32, Vec<(TargetId, Option<u64>)>>;

/// The groups over the targets of `machines` for stripes that survive the loss of as many domains as the class says. With
/// too few domains for it the parity shrinks: the volume goes on degraded, and `status` says so. Two groups may be the same:
/// their targets are in as many more.
pub fn groups(machines: &Machines, class: Class, fragment_size: u32) -> Vec<GroupEntry> {
    let machines = weighed(machines);
    let targets = ordered(&machines);
    if targets.is_empty() {
        return Vec::new();
    }
    let domains = Domains::of(machines.len(), class.parity);
    let with = |most: usize| machines.iter().map(|machine| machine.targets.len().min(most)).sum();
    let (data, parity) = shape(with(domains.most(class.parity)), class);
    let geometry = Geometry { data: data as u8, parity: parity as u8, fragment_size };
    let width = data + parity;
    // A stripe narrower than there are places for lies over as many machines as it can.
    let most = (1..).find(|&most| with(most) >= width).expect("it is no wider than there are targets");
    let are_alike = machines.iter().flat_map(|machine| &machine.targets).all(|(_, size)| *size == ALIKE);
    let disks = || machines.iter().flat_map(Domain::apart).collect::<Vec<_>>();
    let members = match (domains, equal(&machines)) {
        _ if width == targets.len() => vec![targets],
        (Domains::Disks, _) if are_alike => in_turn(&targets, width),
        (Domains::Disks | Domains::Shares, _) => across(&disks(), width, most),
        (Domains::Machines, Some(machines)) if are_alike && targets.len() <= MEMBERSHIPS_MAX => {
            in_ring(&machines, width)
        }
        (Domains::Machines, _) => across(&machines, width, most),
    };
    members.into_iter().map(|targets| GroupEntry::new(targets, geometry, true)).collect()
}

/// What stripes are kept apart by. What survives more is greater.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Domains {
    /// There is one machine, and each of its disks has a fragment of a stripe at most.
    Disks,
    /// There are too few machines for one fragment on each: each has as many as may be lost, on different disks.
    Shares,
    /// Each machine has one fragment of a stripe at most.
    Machines,
}

impl Domains {
    /// Of `machines` machines, for stripes that survive the loss of `parity` fragments.
    fn of(machines: usize, parity: u8) -> Domains {
        match (machines, parity) {
            (0 | 1, _) => Domains::Disks,
            (2, 1) => Domains::Machines,
            _ if machines >= usize::from(parity) + 2 => Domains::Machines,
            _ => Domains::Shares,
        }
    }

    /// Those of the groups over the targets of `machines`.
    pub fn over(machines: &Machines, parity: u8) -> Domains {
        Domains::of(machines.values().filter(|targets| !targets.is_empty()).count(), parity)
    }

    /// So many fragments of a stripe may lie on one machine.
    fn most(self, parity: u8) -> usize {
        match self {
            Domains::Disks => usize::MAX,
            Domains::Shares => usize::from(parity),
            Domains::Machines => 1,
        }
    }
}

/// What has one fragment of a stripe at most, a machine or a disk: its targets in order, with their sizes.
struct Domain {
    machine: u32,
    number: u32,
    targets: Vec<(TargetId, u64)>,
}

impl Domain {
    fn size(&self) -> u128 {
        self.targets.iter().map(|(_, size)| u128::from(*size)).sum()
    }

    /// Each of its disks by itself.
    fn apart(&self) -> impl Iterator<Item = Domain> {
        let disk = |&(target, size): &(TargetId, u64)| (target.0, vec![(target, size)]);
        self.targets.iter().map(disk).map(|(number, targets)| Domain { machine: self.machine, number, targets })
    }
}

/// The size of each target where all are about as large.
const ALIKE: u64 = 1;

/// The machines that have targets. Sizes that differ by little are one, and what was not told is the mean of the others.
fn weighed(machines: &Machines) -> Vec<Domain> {
    let all = || machines.values().flatten().filter_map(|(_, size)| *size);
    let (least, most) = (all().min().unwrap_or(ALIKE), all().max().unwrap_or(ALIKE));
    let mean = all().map(u128::from).sum::<u128>() / (all().count() as u128).max(1);
    let size = |told: Option<u64>| match maps::differ(least, most) {
        true => told.unwrap_or(mean as u64).max(1),
        false => ALIKE,
    };
    let domain = |(&number, targets): (&u32, &Vec<(TargetId, Option<u64>)>)| {
        let sizes: BTreeMap<TargetId, u64> = targets.iter().map(|&(target, told)| (target, size(told))).collect();
        Domain { machine: number, number, targets: sizes.into_iter().collect() }
    };
    machines.iter().filter(|(_, targets)| !targets.is_empty()).map(domain).collect()
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

/// Every target of one machine is a domain, and all are alike: groups are runs of targets, beginning at each in turn.
fn in_turn(targets: &[TargetId], width: usize) -> Vec<Vec<TargetId>> {
    let begins = count(targets.len(), width);
    let begin = |group: usize| group * targets.len() / begins;
    let member = |at: usize| targets[at % targets.len()];
    (0..begins).map(|group| (0..width).map(|n| member(begin(group) + n)).collect()).collect()
}

/// The targets of each machine, if these are equally many.
fn equal(machines: &[Domain]) -> Option<Vec<Vec<TargetId>>> {
    let targets = |machine: &Domain| machine.targets.iter().map(|(target, _)| *target).collect();
    let are_equal = machines.windows(2).all(|two| two[0].targets.len() == two[1].targets.len());
    are_equal.then(|| machines.iter().map(targets).collect())
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

/// Some domains hold more than others: each group takes those that lag most behind their share, and of each the target that
/// does; but no more than `most` of one machine.
fn across(domains: &[Domain], width: usize, most: usize) -> Vec<Vec<TargetId>> {
    let mut drawn = Drawn::new(domains, width, most);
    let mut formed: Vec<BTreeSet<TargetId>> = Vec::new();
    for group in 0..count_across(domains, width) {
        let draw = |lot| drawn.draw(group, lot);
        let members = (0..DRAWS_MAX).map(draw).find(|members| !formed.contains(&drawn.targets(members)));
        let members = members.unwrap_or_else(|| draw(0));
        formed.push(drawn.targets(&members));
        drawn.take(&members);
    }
    in_places(&formed, width)
}

/// How far groups are drawn.
struct Drawn<'a> {
    domains: &'a [Domain],
    width: usize,
    most: usize,
    shares: Shares,
    /// In how many groups each domain is so far, and each of its targets.
    taken: Vec<Vec<u128>>,
}

impl<'a> Drawn<'a> {
    fn new(domains: &'a [Domain], width: usize, most: usize) -> Drawn<'a> {
        let taken = domains.iter().map(|domain| vec![0; domain.targets.len()]).collect();
        Drawn { domains, width, most, shares: Shares::of(domains, width), taken }
    }

    /// The members of a group, by their places, drawn by `lot` among those that lag as much.
    fn draw(&self, group: usize, lot: u64) -> Vec<(usize, usize)> {
        let lot = group as u64 * DRAWS_MAX + lot;
        let lag = |at: usize| self.shares.lag(at, (group + 1) as u128, self.taken[at].iter().sum());
        let mut order: Vec<usize> = (0..self.domains.len()).collect();
        order.sort_by_cached_key(|&at| (Reverse(lag(at)), scramble(lot, self.domains[at].number)));
        let mut on: BTreeMap<u32, usize> = BTreeMap::new();
        order.retain(|&at| {
            let count = on.entry(self.domains[at].machine).or_default();
            *count += 1;
            *count <= self.most
        });
        order.truncate(self.width);
        order.into_iter().map(|at| (at, self.target(at))).collect()
    }

    /// The target of a domain whose share is the least used, when one more is counted half.
    fn target(&self, at: usize) -> usize {
        let targets = &self.domains[at].targets;
        let used = |target: usize| (2 * self.taken[at][target] + 1, u128::from(targets[target].1));
        let less = |&one: &usize, &other: &usize| {
            let (one, other) = (used(one), used(other));
            (one.0 * other.1).cmp(&(other.0 * one.1))
        };
        (0..targets.len()).min_by(less).expect("a domain has targets")
    }

    fn take(&mut self, members: &[(usize, usize)]) {
        members.iter().for_each(|&(at, target)| self.taken[at][target] += 1);
    }

    fn targets(&self, members: &[(usize, usize)]) -> BTreeSet<TargetId> {
        members.iter().map(|&(at, target)| self.domains[at].targets[target].0).collect()
    }
}

/// In what part of the groups each domain is to be: so many of `whole`.
struct Shares {
    parts: Vec<u128>,
    whole: u128,
}

impl Shares {
    /// By size, but no domain is in a group twice: those for which that would be too much are in all of them, and the others
    /// share the rest.
    fn of(domains: &[Domain], width: usize) -> Shares {
        let sizes: Vec<u128> = domains.iter().map(Domain::size).collect();
        let mut in_all = BTreeSet::new();
        loop {
            let left = || (0..sizes.len()).filter(|at| !in_all.contains(at));
            let (whole, places) = (left().map(|at| sizes[at]).sum::<u128>(), (width - in_all.len()) as u128);
            let beyond: Vec<usize> = left().filter(|&at| sizes[at] * places >= whole).collect();
            if beyond.is_empty() {
                let part = |at| if in_all.contains(&at) { whole.max(1) } else { sizes[at] * places };
                return Shares { parts: (0..sizes.len()).map(part).collect(), whole: whole.max(1) };
            }
            in_all.extend(beyond);
        }
    }

    /// How far a domain lags behind its share when it is in `taken` of so many groups, in halves: within one, the lot decides.
    fn lag(&self, at: usize, groups: u128, taken: u128) -> i128 {
        (2 * (groups * self.parts[at]) as i128 - 2 * (taken * self.whole) as i128).div_euclid(self.whole as i128)
    }
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

/// How many groups are wanted where domains differ: so many that each is in three times as many as there are others, and the
/// smallest target in some. There may not be so many.
fn count_across(domains: &[Domain], width: usize) -> usize {
    let total: usize = domains.iter().map(|domain| domain.targets.len()).sum();
    let spread = domains.len() * (3 * (domains.len() - 1)).div_ceil(width);
    let sizes = || domains.iter().flat_map(|domain| &domain.targets).map(|(_, size)| u128::from(*size));
    let (all, least) = (sizes().sum::<u128>(), sizes().min().unwrap_or(1));
    let for_least = (MEMBERSHIPS_LEAST * all).div_ceil(least * width as u128);
    let spread = spread.max(usize::try_from(for_least).unwrap_or(usize::MAX));
    count(total, width).max(spread.min(SPREAD_MAX / domains.len() * domains.len()))
}

fn ordered(machines: &[Domain]) -> Vec<TargetId> {
    let targets: BTreeSet<_> =
        machines.iter().flat_map(|machine| &machine.targets).map(|(target, _)| *target).collect();
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
        let targets = |count: u32| next.by_ref().take(count as usize).map(|target| (TargetId(target), None)).collect();
        (1..).zip(counts.iter().copied().map(targets)).collect()
    }

    /// Machines with targets of these sizes, numbered through.
    fn sized(sizes: &[Vec<u64>]) -> Machines {
        let mut next = (0..).map(TargetId);
        let mut machine =
            |sizes: &Vec<u64>| sizes.iter().map(|&size| (next.next().expect("endless"), Some(size))).collect();
        (1..).zip(sizes.iter().map(&mut machine)).collect()
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
        assert_eq!(shape(&[1, 1, 1], 2), (1, 2, 1));
        assert_eq!(shape(&[3, 3, 3, 3], 2).0, 2);
        assert_eq!(shape(&[1, 1, 1, 1, 1], 1), (4, 1, 1));
    }

    #[test]
    fn of_too_few_machines_one_may_be_lost() {
        assert_eq!((shape(&[3, 3, 3], 2).0, shape(&[3, 3], 2).0, shape(&[2, 1], 2).0), (4, 2, 1));
        assert_eq!((shape(&[9, 9, 9, 9], 3).0, shape(&[1, 1, 1, 1], 3).0), (8, 1), "no wider than by default");
        for counts in [&[3, 3, 3][..], &[3, 3], &[2, 1], &[1, 1], &[9, 1], &[1, 2, 3], &[4, 8, 6, 2], &[5; 5]] {
            for parity in 2..=4 {
                let machines = machines(counts);
                if Domains::over(&machines, parity) == Domains::Machines {
                    continue;
                }
                let groups = groups(&machines, parity.into(), FRAGMENT_SIZE);
                assert_eq!(memberships(&groups).len(), counts.iter().sum::<u32>() as usize, "every target is used");
                for (group, machine) in groups.iter().flat_map(|group| machines.values().map(move |of| (group, of))) {
                    let here = machine.iter().filter(|(target, _)| group.targets.contains(target)).count();
                    let lost = here.min(usize::from(group.geometry.parity));
                    assert_eq!(lost, here, "{counts:?}, parity {parity}: {:?}", group.targets);
                }
            }
        }
        let mirrored = groups(&machines(&[3, 3, 3]), Class { parity: 2, data_max: Some(1) }, FRAGMENT_SIZE);
        let on_each =
            |group: &GroupEntry| group.targets.iter().map(|target| target.0 / 3).collect::<BTreeSet<_>>().len();
        assert!(mirrored.iter().all(|group| on_each(group) == 3), "where there are as many machines, one on each");
        let memberships = memberships(&formed(&[3, 3, 3], 2));
        let (least, most) = (memberships.values().min().unwrap(), memberships.values().max().unwrap());
        assert!(most - least <= 1, "equal disks are used alike: {memberships:?}");
    }

    #[test]
    fn no_group_has_two_targets_of_one_machine() {
        for counts in [&[2, 2][..], &[4, 1, 1], &[3, 3, 3, 3], &[1, 2, 3, 4, 5, 6, 7, 8], &[12; 80]] {
            for parity in 1..3 {
                let machines = machines(counts);
                if Domains::over(&machines, parity) != Domains::Machines {
                    continue;
                }
                for group in groups(&machines, parity.into(), FRAGMENT_SIZE) {
                    let has = |(_, targets): &(&u32, &Vec<_>), target| targets.iter().any(|(own, _)| own == target);
                    let of = |target| machines.iter().find(|machine| has(machine, target)).unwrap().0;
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

    /// Random numbers up to so many, from a seed.
    fn dice(seed: u64) -> impl FnMut(u64) -> u64 {
        let mut throw = 0;
        move |sides| {
            throw += 1;
            1 + scramble(throw, seed as u32) % sides
        }
    }

    /// In what part of the groups a machine is to be by its size: in no more than all.
    fn share(sizes: &[u128], at: usize, width: usize) -> f64 {
        let mut order: Vec<usize> = (0..sizes.len()).collect();
        order.sort_by_key(|&at| Reverse(sizes[at]));
        let (mut left, mut places) = (sizes.iter().sum::<u128>() as f64, width as f64);
        for largest in order {
            let part = (places * sizes[largest] as f64 / left).min(1.0);
            if largest == at {
                return part;
            }
            if part == 1.0 {
                (left, places) = (left - sizes[largest] as f64, places - 1.0);
            }
        }
        unreachable!("each has its turn");
    }

    #[test]
    fn machines_and_their_targets_are_used_by_their_size() {
        let (mut worst_machine, mut worst_target): (f64, f64) = (0.0, 0.0);
        for (count, seed) in (2..=20).flat_map(|count| (0..12).map(move |seed| (count, seed))) {
            let mut roll = dice(1000 * count + seed);
            let sizes: Vec<Vec<u64>> =
                (0..count).map(|_| (0..roll(3)).map(|_| (1 << 36) * roll(16)).collect()).collect();
            let parity = 1 + (seed % 2) as u8;
            let machines = sized(&sizes);
            if Domains::over(&machines, parity) != Domains::Machines {
                continue;
            }
            let groups = groups(&machines, parity.into(), FRAGMENT_SIZE);
            let (width, memberships) = (groups[0].geometry.width(), memberships(&groups));
            if weighed(&machines).iter().all(|machine| machine.targets.len() == 1) && width == machines.len() {
                continue;
            }
            assert!(groups.len() <= MEMBERSHIPS_MAX, "{} groups", groups.len());
            let of_machines: Vec<u128> = weighed(&machines).iter().map(Domain::size).collect();
            for (at, targets) in machines.values().enumerate() {
                let times = |target: &TargetId| memberships.get(target).copied().unwrap_or(0) as f64;
                let used: f64 = targets.iter().map(|(target, _)| times(target)).sum();
                worst_machine = worst_machine.max((used - groups.len() as f64 * share(&of_machines, at, width)).abs());
                for (target, size) in targets {
                    let of_target = used * size.expect("told") as f64 / of_machines[at] as f64;
                    worst_target = worst_target.max((times(target) - of_target).abs());
                }
            }
        }
        assert!(worst_machine <= 1.0, "a machine is in {worst_machine} groups more or less than its share");
        assert!(worst_target < 1.0, "a target is in {worst_target} groups more or less than its share");
    }

    #[test]
    fn disks_of_one_machine_are_used_by_their_size() {
        let disks = sized(&[vec![4 << 40, 4 << 40, 2 << 40, 1 << 40, 1 << 40]]);
        let groups = groups(&disks, Class { parity: 1, data_max: Some(2) }, FRAGMENT_SIZE);
        let memberships: Vec<usize> = memberships(&groups).into_values().collect();
        assert_eq!((groups.len(), memberships), (24, vec![24, 24, 12, 6, 6]));
    }

    #[test]
    fn sizes_that_differ_by_little_change_nothing() {
        for (counts, parity) in
            [(&[1; 8][..], 1), (&[2; 6], 1), (&[1; 12], 2), (&[6], 1), (&[1, 2, 3, 1, 1], 1), (&[10; 50], 1)]
        {
            let mut machines = machines(counts);
            let unknown = groups(&machines, parity.into(), FRAGMENT_SIZE);
            let mut roll = dice(7);
            machines.values_mut().flatten().for_each(|(_, size)| *size = Some((1 << 40) - roll(1 << 37)));
            let near = groups(&machines, parity.into(), FRAGMENT_SIZE);
            assert_eq!(near, unknown, "{counts:?}");
            machines.values_mut().next().expect("a machine")[0].1 = None;
            assert_eq!(groups(&machines, parity.into(), FRAGMENT_SIZE), unknown, "{counts:?}, and one has not told");
            machines.values_mut().next().expect("a machine")[0].1 = Some(1 << 38);
            assert_ne!(groups(&machines, parity.into(), FRAGMENT_SIZE), unknown, "{counts:?}, and one is smaller");
        }
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
