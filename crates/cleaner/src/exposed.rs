//! When to look for stripes that the current groups would keep more safely (DESIGN §9). Pure.
//!
//! Groups stay in the maps for as long as a log names them, with nothing in them or not. So whether there is anything to do
//! is known only after a look; and a look costs as much as there is.

use std::collections::{BTreeMap, BTreeSet};

use log::exposure::Safety;
use protocol::id::GroupId;

/// So many ticks later what could not be moved is tried again: stripes that are still written, journals that their manager
/// has not covered yet, slots without a manager.
const TICKS: u32 = 10;

/// The groups that are less safe than the current ones, and what is known of them.
#[derive(Debug, Default)]
pub struct Exposed {
    groups: BTreeMap<GroupId, Option<Safety>>,
    /// In these nothing was left: nothing new is laid there.
    empty: BTreeSet<GroupId>,
    bytes: u64,
    ticks: u32,
}

impl Exposed {
    /// Takes note of which groups they are.
    pub fn observe(&mut self, groups: BTreeMap<GroupId, Option<Safety>>) {
        if groups != self.groups {
            self.empty.retain(|group| groups.get(group).is_some_and(|safety| self.groups.get(group) == Some(safety)));
            (self.groups, self.ticks) = (groups, 0);
        }
    }

    /// Whether it is time to look; asked once a tick.
    pub fn is_due(&mut self) -> bool {
        let is_left = self.groups.keys().any(|group| !self.empty.contains(group));
        let is_due = is_left && self.ticks == 0;
        // A look that fails is tried again as late as one that moves nothing.
        self.ticks = if is_due { TICKS } else { self.ticks.saturating_sub(1) };
        is_due
    }

    /// A look found so many bytes in each group; returns how many are exposed. As long as they become fewer, the next look
    /// follows at once.
    pub fn looked(&mut self, bytes_in: &BTreeMap<GroupId, u64>) -> u64 {
        let before = self.bytes;
        self.empty = self.groups.keys().filter(|group| !bytes_in.contains_key(group)).copied().collect();
        self.bytes = self.groups.keys().filter_map(|group| bytes_in.get(group)).sum();
        self.ticks = if self.bytes < before { 0 } else { TICKS };
        self.bytes
    }

    /// All of them.
    pub fn groups(&self) -> BTreeSet<GroupId> {
        self.groups.keys().copied().collect()
    }

    /// How much of a group may be lost.
    pub fn safety(&self, group: GroupId) -> Option<Safety> {
        self.groups.get(&group).copied().flatten()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn groups(numbers: &[u32]) -> BTreeMap<GroupId, Option<Safety>> {
        numbers.iter().map(|&number| (GroupId(number), Some(Safety { machines: 0, targets: 1 }))).collect()
    }

    fn due_in(exposed: &mut Exposed, ticks: u32) -> usize {
        (0..ticks).filter(|_| exposed.is_due()).count()
    }

    #[test]
    fn it_is_looked_until_nothing_is_left_and_rarely_where_nothing_moves() {
        let mut exposed = Exposed::default();
        assert_eq!(due_in(&mut exposed, 99), 0);
        exposed.observe(groups(&[1, 2]));
        assert!(exposed.is_due());
        assert_eq!(exposed.looked(&[(GroupId(1), 100), (GroupId(3), 9)].into()), 100);
        assert_eq!(due_in(&mut exposed, TICKS), 0, "nothing is known to have moved");
        assert!(exposed.is_due());
        exposed.looked(&[(GroupId(1), 40)].into());
        assert!(exposed.is_due(), "it goes on");
        exposed.looked(&BTreeMap::new());
        exposed.observe(groups(&[1, 2]));
        assert_eq!(due_in(&mut exposed, 99), 0, "all are empty");
        exposed.observe(groups(&[1, 2, 7]));
        assert!(exposed.is_due(), "another one is exposed");
    }
}
