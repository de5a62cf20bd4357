//! When to look for stripes that the current groups would keep more safely, and whose they are to lay anew (DESIGN §9). Pure.
//!
//! Groups stay in the maps for as long as a log names them, with nothing in them or not. So whether there is anything to do
//! is known only after a look; and a look costs as much as there is.

use std::collections::{BTreeMap, BTreeSet};

use log::exposure::Safety;
use protocol::id::GroupId;
use protocol::maps::Maps;

use crate::policy::Stripe;

/// So many ticks later what could not be moved is tried again: stripes that are still written, journals that their manager
/// has not covered yet, slots without a manager.
const TICKS: u32 = 10;
/// After so many looks at which nothing had moved the leader takes all.
const STILL_MAX: u32 = 3;
/// No more machines than so many take part, for each of them looks at all stripes.
const SHARES_MAX: usize = 16;

/// Whose stripes they are to lay anew: those of one machine in so many.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Share {
    own: u64,
    of: u64,
}

impl Share {
    /// All of them.
    pub const ALL: Share = Share { own: 0, of: 1 };

    /// What `node` takes. None, if it does not store, or so many others do. Who knows other maps for a moment may take what is
    /// another's, or nobody's: that costs a copy, or the time until the next look.
    pub fn of(maps: &Maps, node: u32) -> Option<Share> {
        let machines = helpers(maps);
        let own = maps.storing().take(machines).position(|storing| storing == node)?;
        Some(Share { own: own as u64, of: machines as u64 })
    }

    /// Whether the stripe is one of these.
    pub fn takes(self, (log, number): Stripe) -> bool {
        // Stripes take turns over groups, too; machines and groups must not keep step.
        let mixed = (log.0.rotate_left(32) ^ number.0).wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 32;
        mixed % self.of == self.own
    }
}

/// How many machines lay anew what lacks redundancy.
pub fn helpers(maps: &Maps) -> usize {
    maps.storing().count().min(SHARES_MAX)
}

/// The groups that are less safe than the current ones, and what is known of them.
#[derive(Debug, Default)]
pub struct Exposed {
    groups: BTreeMap<GroupId, Option<Safety>>,
    /// In these nothing was left: nothing new is laid there.
    empty: BTreeSet<GroupId>,
    bytes: u64,
    /// So many looks in a row found no fewer bytes than the one before.
    still: u32,
    /// So many looks in a row failed.
    failed: u32,
    ticks: u32,
}

impl Exposed {
    /// Takes note of which groups they are.
    pub fn observe(&mut self, groups: BTreeMap<GroupId, Option<Safety>>) {
        if groups != self.groups {
            self.empty.retain(|group| groups.get(group).is_some_and(|safety| self.groups.get(group) == Some(safety)));
            (self.groups, self.ticks, self.failed) = (groups, 0, 0);
        }
    }

    /// Whether any of them may have something in it.
    pub fn is_any(&self) -> bool {
        self.groups.keys().any(|group| !self.empty.contains(group))
    }

    /// Whether it is time to look; asked once a tick.
    pub fn is_due(&mut self) -> bool {
        let is_due = self.is_any() && self.ticks == 0;
        if is_due {
            // In case it fails: where a machine was just lost, managers are heard again in a moment.
            self.failed += 1;
            self.ticks = 1_u32.checked_shl(self.failed).map_or(TICKS, |ticks| ticks.min(TICKS));
        } else {
            self.ticks = self.ticks.saturating_sub(1);
        }
        is_due
    }

    /// A look found so many bytes in each group, and so many of those that are exposed are this machine's to lay anew;
    /// returns how many are exposed. As long as they become fewer, and some are its own, the next look follows at once; so
    /// it does after the first one, which finds stripes that are just being ended.
    pub fn looked(&mut self, bytes_in: &BTreeMap<GroupId, u64>, bytes_own: u64) -> u64 {
        let before = self.bytes;
        self.bytes = self.seen(bytes_in);
        let moves = before == 0 || self.bytes < before;
        self.still = if moves { 0 } else { self.still + 1 };
        self.failed = 0;
        self.ticks = if moves && bytes_own > 0 { 0 } else { TICKS };
        self.bytes
    }

    /// The same of a look for another end, after which nothing is laid anew: the next one for this end is due when it was.
    /// Looks for others may come so often that it would never be.
    pub fn seen(&mut self, bytes_in: &BTreeMap<GroupId, u64>) -> u64 {
        self.empty = self.groups.keys().filter(|group| !bytes_in.contains_key(group)).copied().collect();
        self.groups.keys().filter_map(|group| bytes_in.get(group)).sum()
    }

    /// Whether nobody moves anything any more: then somebody does not do its share.
    pub fn is_stuck(&self) -> bool {
        self.still >= STILL_MAX
    }

    /// All of them.
    pub fn groups(&self) -> BTreeSet<GroupId> {
        self.groups.keys().copied().collect()
    }

    /// Whether it is one of them.
    pub fn has(&self, group: GroupId) -> bool {
        self.groups.contains_key(&group)
    }

    /// How much of a group may be lost.
    pub fn safety(&self, group: GroupId) -> Option<Safety> {
        self.groups.get(&group).copied().flatten()
    }
}

#[cfg(test)]
mod tests {
    use protocol::id::{LogId, StripeNumber};
    use protocol::maps::NodeEntry;

    use super::*;

    fn groups(numbers: &[u32]) -> BTreeMap<GroupId, Option<Safety>> {
        numbers.iter().map(|&number| (GroupId(number), Some(Safety { machines: 0, targets: 1 }))).collect()
    }

    #[test]
    fn each_stripe_is_one_machines_and_each_has_as_many() {
        let node = |stores| NodeEntry::new("", "", stores).begun();
        let mut maps = Maps::empty(1, 1);
        maps.nodes = (1..=7).map(|number| (number, node(number != 3))).collect();
        let shares: Vec<Share> = (1..=7).filter_map(|number| Share::of(&maps, number)).collect();
        assert_eq!((shares.len(), helpers(&maps), Share::of(&maps, 3)), (6, 6, None));
        let mut counts = vec![0; shares.len()];
        for stripe in (0..60).flat_map(|log| (0..100).map(move |number| (LogId(log), StripeNumber(number)))) {
            let takers: Vec<usize> = (0..shares.len()).filter(|&at| shares[at].takes(stripe)).collect();
            assert_eq!(takers.len(), 1);
            assert!(Share::ALL.takes(stripe));
            counts[takers[0]] += 1;
        }
        assert!(counts.iter().all(|count| (900..1100).contains(count)), "{counts:?}");
        maps.nodes = (1..=40).map(|number| (number, node(true))).collect();
        assert!(Share::of(&maps, 16).is_some() && Share::of(&maps, 17).is_none(), "each looks at everything");
    }

    #[test]
    fn who_sees_nothing_move_takes_all() {
        let mut exposed = Exposed::default();
        exposed.observe(groups(&[1]));
        for (bytes, is_stuck) in [(100, false), (60, false), (60, false), (61, false), (61, true), (50, false)] {
            exposed.looked(&[(GroupId(1), bytes)].into(), 0);
            assert_eq!(exposed.is_stuck(), is_stuck, "at {bytes}");
            assert!(!exposed.is_due(), "nothing of it is its own");
        }
    }

    fn due_in(exposed: &mut Exposed, ticks: u32) -> usize {
        (0..ticks).filter(|_| exposed.is_due()).count()
    }

    #[test]
    fn a_look_that_fails_is_tried_again_soon_and_later_and_later() {
        let mut exposed = Exposed::default();
        exposed.observe(groups(&[1]));
        let mut pauses = Vec::new();
        for _ in 0..6 {
            assert!(exposed.is_due());
            pauses.push((1..).find(|_| !exposed.is_due() && exposed.ticks == 0).expect("there is another"));
        }
        assert_eq!(pauses, [2, 4, 8, TICKS, TICKS, TICKS]);
        assert!(exposed.is_due());
        exposed.looked(&[(GroupId(1), 100)].into(), 0);
        assert_eq!(due_in(&mut exposed, TICKS), 0, "none of it is its own");
        assert!(exposed.is_due());
        assert_eq!(exposed.ticks, 2, "what worked since counts");
    }

    #[test]
    fn looks_for_other_ends_do_not_put_it_off() {
        let mut exposed = Exposed::default();
        exposed.observe(groups(&[1, 2]));
        assert!(exposed.is_due());
        exposed.looked(&[(GroupId(1), 100)].into(), 0);
        for _ in 0..TICKS {
            assert!(!exposed.is_due());
            assert_eq!(exposed.seen(&[(GroupId(1), 100), (GroupId(3), 9)].into()), 100);
        }
        assert!(exposed.is_due());
        exposed.seen(&BTreeMap::new());
        assert!(!exposed.is_any(), "it is seen that nothing is left");
    }

    #[test]
    fn it_is_looked_until_nothing_is_left_and_rarely_where_nothing_moves() {
        let mut exposed = Exposed::default();
        assert_eq!(due_in(&mut exposed, 99), 0);
        exposed.observe(groups(&[1, 2]));
        assert!(exposed.is_due());
        assert_eq!(exposed.looked(&[(GroupId(1), 100), (GroupId(3), 9)].into(), 100), 100);
        assert!(exposed.is_due(), "more of it may be ended by now");
        assert_eq!(exposed.looked(&[(GroupId(1), 100), (GroupId(3), 9)].into(), 100), 100);
        assert_eq!(due_in(&mut exposed, TICKS), 0, "nothing moves");
        assert!(exposed.is_due());
        exposed.looked(&[(GroupId(1), 40)].into(), 40);
        assert!(exposed.is_due(), "it goes on");
        exposed.looked(&BTreeMap::new(), 0);
        exposed.observe(groups(&[1, 2]));
        assert_eq!(due_in(&mut exposed, 99), 0, "all are empty");
        exposed.observe(groups(&[1, 2, 7]));
        assert!(exposed.is_due(), "another one is exposed");
    }
}
