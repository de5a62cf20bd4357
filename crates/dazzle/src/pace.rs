//! How long it takes to lay bytes anew, or to make them again: as the budget bounds it, and as links do
//! (`docs/decisions/0049-what-a-plan-says-of-time.md`). Pure.
//!
//! Each machine takes its part of the work, and keeps within `rebuild`. What crosses whose link for that follows from where
//! stripes lie and where they go. What a link carries is measured on the machine that plans (`probe`), and the others' are
//! taken to be as fast; where it is not known, the plan says so.

use std::collections::{BTreeMap, BTreeSet};

use protocol::id::{GroupId, TargetId};
use protocol::maps::{GroupEntry, Maps, TargetEntry};
use serde_json::{Value, json};

/// Of what the fullest link carries so much is bytes that move, in hundredths: work comes in batches, and whoever waits for
/// the end of one sends nothing. It was 78 to 91 where links bounded it (`docs/measurements.md`, *A host is drained*).
const LINK_SHARE: u64 = 80;

/// How fast bytes may move.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Pace {
    /// How many bytes each machine reads in a second for it: `rebuild`.
    pub(crate) budget: u64,
    /// How many bytes a machine's link carries in a second, in each direction, where that is known.
    pub(crate) link: Option<u64>,
}

/// What bounds it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Bound {
    /// The settings.
    Budget,
    /// The links, which carry less than the settings allow.
    Links,
    /// The settings at least; what links carry is not known.
    Unknown,
}

/// How long it takes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Estimate {
    pub(crate) seconds: u64,
    /// As the budget alone bounds it.
    pub(crate) seconds_budget: u64,
    pub(crate) bound: Bound,
    /// So many bytes in a second the fullest link would carry in one direction, if nothing but the budget bounded it.
    pub(crate) link_needed: u64,
    /// What a link was found to carry.
    pub(crate) link: Option<u64>,
}

/// What machines have to do.
#[derive(Clone, Debug, Default, PartialEq)]
pub(crate) struct Work {
    /// The bytes that each reads to lay them anew, and to make others again out of them: both go on at once.
    bytes_anew: f64,
    bytes_again: f64,
    /// The bytes that cross the link of each machine: out of it, and into it.
    out_of: BTreeMap<u32, f64>,
    into: BTreeMap<u32, f64>,
}

impl Work {
    /// So many data bytes of a group are laid anew over the current groups of `then`: all who help read their part from
    /// whoever has it, and store it with parity.
    pub(crate) fn lay_anew(&mut self, maps: &Maps, then: &Maps, (group, bytes): (&GroupEntry, u64)) {
        let helpers: Vec<u32> = maps.storing().take(cleaner::helpers(maps)).collect();
        let current: Vec<&GroupEntry> = then.groups.values().filter(|group| group.current).collect();
        let sources = serving(maps, &group.targets, &BTreeSet::new());
        if helpers.is_empty() || current.is_empty() || sources.is_empty() {
            return;
        }
        let each = bytes as f64 / helpers.len() as f64;
        self.bytes_anew += each;
        for &helper in &helpers {
            for &source in &sources {
                self.cross(source, helper, each / sources.len() as f64);
            }
            for group in &current {
                let fragment = each / current.len() as f64 / f64::from(group.geometry.data.max(1));
                for target in &group.targets {
                    self.cross(helper, node_of(then, target), fragment);
                }
            }
        }
    }

    /// What `newcomers` of a group lack is made again, out of so many data bytes: the machines of the group do it in turn.
    pub(crate) fn make_again(
        &mut self,
        maps: &Maps,
        (group, newcomers): (&GroupEntry, &BTreeSet<TargetId>),
        bytes: u64,
    ) {
        let sources = serving(maps, &group.targets, newcomers);
        let machines = maps.storing().count();
        if sources.is_empty() || machines == 0 {
            return;
        }
        self.bytes_again += bytes as f64 / machines as f64;
        let each = bytes as f64 / group.targets.len() as f64;
        for maker in group.targets.iter().map(|target| node_of(maps, target)) {
            for &source in &sources {
                self.cross(source, maker, each / sources.len() as f64);
            }
            for newcomer in newcomers.iter().filter(|newcomer| group.targets.contains(newcomer)) {
                self.cross(maker, node_of(maps, newcomer), each / f64::from(group.geometry.data.max(1)));
            }
        }
    }

    /// How long it takes.
    pub(crate) fn estimate(&self, pace: Pace) -> Estimate {
        let by_budget = self.bytes_anew.max(self.bytes_again) / pace.budget.max(1) as f64;
        let crossing = self.out_of.values().chain(self.into.values()).copied().fold(0.0, f64::max);
        let carried = |link: u64| (link * LINK_SHARE / 100).max(1) as f64;
        let (seconds, bound) = match pace.link.map(|link| crossing / carried(link)) {
            Some(by_links) if by_links > by_budget => (by_links, Bound::Links),
            None if crossing > 0.0 => (by_budget, Bound::Unknown),
            _ => (by_budget, Bound::Budget),
        };
        Estimate {
            seconds: seconds.ceil() as u64,
            seconds_budget: by_budget.ceil() as u64,
            bound,
            link_needed: if by_budget > 0.0 { (crossing / by_budget).round() as u64 } else { 0 },
            link: pace.link,
        }
    }

    /// What stays on its machine crosses no link.
    fn cross(&mut self, from: u32, to: u32, bytes: f64) {
        if from != to {
            *self.out_of.entry(from).or_default() += bytes;
            *self.into.entry(to).or_default() += bytes;
        }
    }
}

impl Estimate {
    /// With what it is bound by, for programs.
    pub(crate) fn in_json(&self) -> Value {
        let bound = match self.bound {
            Bound::Budget => "rebuild",
            Bound::Links => "links",
            Bound::Unknown => "unknown",
        };
        json!({
            "seconds": self.seconds, "seconds_by_rebuild": self.seconds_budget, "bound": bound,
            "link_bytes_per_second": self.link_needed, "link_measured": self.link,
        })
    }
}

/// Data bytes by the group they lie in.
pub(crate) type BytesIn = BTreeMap<GroupId, u64>;

/// The machines of those of `targets` that answer, and are none of `newcomers`.
fn serving(maps: &Maps, targets: &[TargetId], newcomers: &BTreeSet<TargetId>) -> Vec<u32> {
    let serves = |target: &&TargetId| maps.targets.get(target).is_some_and(TargetEntry::serves);
    let sources = targets.iter().filter(serves).filter(|target| !newcomers.contains(target));
    sources.map(|target| node_of(maps, target)).collect()
}

fn node_of(maps: &Maps, target: &TargetId) -> u32 {
    maps.targets.get(target).map_or(0, |entry| entry.node)
}

#[cfg(test)]
mod tests {
    use protocol::maps::{Drain, TargetState};
    use protocol::registry::RegistryRequest;
    use registry::change;

    use super::*;

    const MIB: u64 = 1 << 20;

    /// Machines of one target each, numbered alike from 1, and stripes over all of them.
    fn cluster(machines: u32) -> Maps {
        let targets = (1..=machines).map(|node| (TargetId(node), TargetEntry::new(node, String::new()))).collect();
        change::new_cluster(1, targets, 1, 1)
    }

    /// The fourth of four machines is drained, of whose stripes there are 3,021 MB.
    fn drain(pace: Pace) -> Estimate {
        let maps = cluster(4);
        let (then, _) = change::apply(&maps, RegistryRequest::Drain(vec![TargetId(4)], Drain::Careful, maps.epoch));
        let mut work = Work::default();
        work.lay_anew(&maps, &then.expect("three are left"), (&maps.groups[&GroupId(0)], 3_021_000_000));
        work.estimate(pace)
    }

    #[test]
    fn a_drain_takes_as_long_as_was_measured() {
        // Links of 100 Mbit a second, less the headers of packets: docs/measurements.md, *A host is drained*.
        let link = Some(11_950_000);
        let slow = drain(Pace { budget: 4 * MIB, link });
        assert!((175..=185).contains(&slow.seconds), "185 s were measured: {slow:?}");
        let fast = drain(Pace { budget: 8 * MIB, link });
        assert_eq!(fast.bound, Bound::Links);
        assert_eq!(fast.seconds_budget, 91);
        assert!((165..=189).contains(&fast.seconds), "177 s were measured: {fast:?}");
        let default = drain(Pace { budget: 64 * MIB, link });
        assert_eq!(
            (default.seconds, default.seconds_budget),
            (fast.seconds, 12),
            "a larger budget makes no link faster"
        );
    }

    #[test]
    fn where_links_carry_enough_the_budget_bounds_it_and_where_nobody_knows_it_is_said() {
        let fast = drain(Pace { budget: 8 * MIB, link: Some(118_000_000) });
        assert_eq!((fast.bound, fast.seconds), (Bound::Budget, 91));
        // Of 16 parts of each byte 3 are fetched by each machine and 6 come to be stored on each that stays.
        assert_eq!(fast.link_needed, 4 * 8 * MIB * 9 / 16);
        let unknown = drain(Pace { budget: 8 * MIB, link: None });
        assert_eq!((unknown.bound, unknown.seconds, unknown.link), (Bound::Unknown, 91, None));
        let maps = cluster(1);
        let mut alone = Work::default();
        alone.lay_anew(&maps, &maps, (&maps.groups[&GroupId(0)], 64 * MIB));
        let alone = alone.estimate(Pace { budget: 8 * MIB, link: None });
        assert_eq!((alone.bound, alone.seconds, alone.link_needed), (Bound::Budget, 8, 0), "nothing crosses a link");
        assert_eq!(Work::default().estimate(Pace { budget: 0, link: Some(0) }).seconds, 0);
    }

    #[test]
    fn what_is_made_again_is_read_once_and_one_fragment_of_it_is_sent_on() {
        let mut maps = cluster(5);
        maps.targets.get_mut(&TargetId(5)).expect("one of five").state = TargetState::Behind;
        let group = maps.groups[&GroupId(0)].clone();
        assert_eq!((group.targets.len(), group.geometry.data), (5, 4));
        let mut work = Work::default();
        work.make_again(&maps, (&group, &[TargetId(5)].into()), 400 * MIB);
        // Each of five makes a fifth; four of them fetch three of four parts of it, and send a quarter of it on.
        let (fetched, sent) = (80.0 * 3.0 / 4.0, 80.0 / 4.0);
        let mib = |bytes: f64| (bytes / MIB as f64).round();
        assert_eq!(mib(work.into[&1]), fetched);
        assert_eq!(mib(work.into[&5]), 80.0 + 4.0 * sent, "the new one makes its own, and gets the others'");
        assert_eq!(mib(work.out_of[&1]), 3.0 * 20.0 + 20.0 + sent, "to three others and the new one");
        let by_budget = work.estimate(Pace { budget: 10 * MIB, link: None });
        assert_eq!((by_budget.seconds, by_budget.bound), (8, Bound::Unknown));
        let by_links = work.estimate(Pace { budget: 100 * MIB, link: Some(10 * MIB) });
        assert_eq!((by_links.seconds, by_links.bound), (20, Bound::Links), "160 MiB into one, by 8 MiB a second");
    }
}
