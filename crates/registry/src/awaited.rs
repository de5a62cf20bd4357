//! For which machines changes wait in vain (`reign`, rule 4).
//!
//! 1. A machine is overdue when it has got nothing for a while, though a change waits until it has that one. Whoever gets on,
//!    however slowly, is waited for.
//! 2. Of one that is overdue its own registry is asked: while that catches up it says so by answering. Where it can store
//!    nothing the lease is granted no more, for a change may go on without a machine only when its session is over.

use std::collections::BTreeMap;
use std::time::Duration;

use host::Moment;

use crate::leases::Holder;

/// Longer than a machine takes to go on without a disk that hangs (`store`), and shorter than calls wait (DESIGN §13).
const PATIENCE: Duration = Duration::from_secs(18);
/// How long nobody need have waited until it counts from the beginning: longer than who was told of a failure takes to ask
/// again.
const GAP: Duration = Duration::from_secs(5);

/// The machines that changes wait for.
#[derive(Debug, Default)]
pub struct Awaited(BTreeMap<Holder, Wait>);

#[derive(Debug)]
struct Wait {
    /// What it has.
    index: Option<u64>,
    since: Moment,
    last: Moment,
}

impl Awaited {
    /// A change waits for this machine, which has entries up to `index`. True: it is overdue. Then it is waited for as long
    /// again.
    pub fn is_overdue(&mut self, holder: Holder, index: Option<u64>, now: Moment) -> bool {
        self.0.retain(|_, wait| now.since(wait.last) <= GAP);
        let wait = self.0.entry(holder).or_insert(Wait { index, since: now, last: now });
        if wait.index != index {
            (wait.index, wait.since) = (index, now);
        }
        wait.last = now;
        let is_overdue = now.since(wait.since) >= PATIENCE;
        if is_overdue {
            wait.since = now;
        }
        is_overdue
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Whether node 2 is overdue at the end of so many seconds, having had these entries in each of them.
    fn after(indices: impl IntoIterator<Item = u64>) -> bool {
        let (mut awaited, mut is_overdue) = (Awaited::default(), false);
        for (second, index) in (0..).zip(indices) {
            is_overdue = awaited.is_overdue((2, 1), Some(index), Moment(0) + Duration::from_secs(second));
        }
        is_overdue
    }

    #[test]
    fn who_gets_nothing_is_overdue_and_who_gets_on_is_not() {
        assert!(!after([7; 18]));
        assert!(after([7; 19]));
        assert!(!after([7; 20]), "it is asked once");
        assert!(after([7; 37]), "and again");
        assert!(!after((0..100).map(|second| second / 15)));
    }

    #[test]
    fn what_was_not_waited_for_lately_counts_from_the_beginning() {
        let mut awaited = Awaited::default();
        let at = |second| Moment(0) + Duration::from_secs(second);
        assert!(!awaited.is_overdue((2, 1), None, at(0)));
        assert!(!awaited.is_overdue((2, 1), None, at(20)));
        assert!(!awaited.is_overdue((2, 2), None, at(24)), "another life");
    }
}
