//! When slots are shared out anew among living nodes, as the leader of one term decides (`slots` decides how).
//!
//! 1. Nothing is planned while nodes come and go: a restart of one after the other would move the same slots again and again.
//! 2. One plan at a time: the next is made when all slots of the last have moved, or it was given up.
//! 3. Nothing moves while all machines are stopping.

use std::time::Duration;

use host::Moment;
use protocol::maps::Maps;

use crate::leases::Holder;
use crate::{slots, stop};

/// How long the same lives of storing nodes must go on before slots move: longer than a lease, so that who is about to be
/// found dead gets none.
const SETTLED: Duration = Duration::from_secs(5);

/// Which lives a leader sees, and since when.
#[derive(Debug)]
pub struct Balance {
    lives: Vec<Holder>,
    since: Moment,
}

impl Balance {
    /// That of a leader that begins `now`.
    pub fn new(now: Moment) -> Balance {
        Balance { lives: Vec::new(), since: now }
    }

    /// Looks at the maps: whether a plan is due.
    pub fn is_due(&mut self, maps: &Maps, now: Moment) -> bool {
        let lives: Vec<Holder> = maps.storing().map(|node| (node, maps.nodes[&node].session)).collect();
        if lives != self.lives {
            (self.lives, self.since) = (lives, now);
        }
        now >= self.since + SETTLED
            && !stop::goes_on(maps)
            && maps.wishes.is_empty()
            && !slots::rebalance(maps).is_empty()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::change::{apply, new_cluster};
    use protocol::id::TargetId;
    use protocol::maps::TargetEntry;
    use protocol::registry::RegistryRequest;

    fn at(seconds: u64) -> Moment {
        Moment(0) + Duration::from_secs(seconds)
    }

    #[test]
    fn slots_are_shared_out_when_nodes_have_stopped_coming_and_going() {
        let entry = |node: u32| TargetEntry::new(node, String::new());
        let targets = (1..=2).map(|node| (TargetId(node), entry(node))).collect();
        let (mut maps, mut balance) = (new_cluster(1, targets, 1, 1), Balance::new(at(0)));
        assert!(!balance.is_due(&maps, at(90)), "it sees them for the first time");
        assert!(!balance.is_due(&maps, at(94)) && balance.is_due(&maps, at(95)));
        maps = apply(&maps, RegistryRequest::Begin { node: 2, after: 1, address: String::new(), keeps: None })
            .0
            .expect("a new life");
        let began = maps.clone();
        maps = apply(&maps, RegistryRequest::Balance).0.expect("all slots are one node's");
        assert!(!balance.is_due(&began, at(96)), "a node has begun another life");
        assert!(!balance.is_due(&began, at(100)) && balance.is_due(&began, at(101)));
        assert!(!balance.is_due(&maps, at(102)), "it is planned");
        assert!(balance.is_due(&began, at(103)), "and lost");
    }
}
