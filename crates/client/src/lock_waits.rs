//! How many calls wait for locks: so many in all, and of one user no more than leave room for others.
//!
//! Pure.

use std::collections::BTreeMap;

/// So many calls wait for locks at once. Each is a call to a manager, of at least 256 bytes of the 4 MiB that may be under way
/// to another node: what gives locks up has half of that, and never waits behind those that wait for it.
const WAITS_MAX: usize = 8192;

/// The calls that wait, by user; of nobody none is noted.
#[derive(Debug, Default)]
pub(crate) struct LockWaits {
    waiting: BTreeMap<u32, usize>,
}

impl LockWaits {
    /// Whether another call of `user` may wait; it is counted then. Nobody has more than are left for all others: so one user
    /// has half of all at the most, and whoever comes next half of what is left.
    pub(crate) fn begin(&mut self, user: u32) -> bool {
        let left = WAITS_MAX - self.waiting.values().sum::<usize>();
        let own = self.waiting.get(&user).copied().unwrap_or(0);
        let may = own < left;
        if may {
            self.waiting.insert(user, own + 1);
        }
        may
    }

    /// A call of `user` waits no longer.
    pub(crate) fn end(&mut self, user: u32) {
        let own = self.waiting.get_mut(&user).expect("who ends to wait has begun");
        *own -= 1;
        if *own == 0 {
            self.waiting.remove(&user);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// How many more calls of a user may wait.
    fn fill(waits: &mut LockWaits, user: u32) -> usize {
        (0..).take_while(|_| waits.begin(user)).count()
    }

    #[test]
    fn whoever_takes_all_that_one_may_leaves_as_much_to_others() {
        let mut waits = LockWaits::default();
        assert_eq!([1, 2, 3].map(|user| fill(&mut waits, user)), [4096, 2048, 1024]);
        assert_eq!(fill(&mut waits, 1), 0);
        waits.end(2);
        assert!(!waits.begin(1) && !waits.begin(2) && waits.begin(3), "what one gives up is for who has least");
        let others: usize = (4..100).map(|user| fill(&mut waits, user)).sum();
        assert_eq!(others, 1024, "and no more than may wait in all");
    }

    #[test]
    fn nothing_is_known_of_users_whose_calls_have_ended() {
        let mut waits = LockWaits::default();
        assert!((0..3).all(|_| waits.begin(7)) && waits.begin(8));
        (0..3).for_each(|_| waits.end(7));
        assert_eq!(waits.waiting, [(8, 1)].into());
        assert_eq!(fill(&mut waits, 7), 4096);
    }
}
