//! When a node that could not be reached is dialled again. Pure.

use std::time::Duration;

const FIRST: Duration = Duration::from_millis(50);
const LAST: Duration = Duration::from_secs(1);

/// Failures in a row.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Backoff {
    failures: u32,
    until: Duration,
}

impl Backoff {
    /// Whether it is too early.
    pub(super) fn holds(&self, now: Duration) -> bool {
        now < self.until
    }

    /// A dial failed.
    pub(super) fn failed(&mut self, now: Duration) {
        self.until = now + (FIRST * (1 << self.failures.min(5))).min(LAST);
        self.failures += 1;
    }

    /// The node was reached, or has called, or has another address.
    pub(super) fn clear(&mut self) {
        *self = Backoff::default();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn dials_become_rarer_up_to_one_a_second() {
        let (mut backoff, mut now) = (Backoff::default(), Duration::ZERO);
        let mut waits = Vec::new();
        for _ in 0..7 {
            assert!(!backoff.holds(now));
            backoff.failed(now);
            assert!(backoff.holds(now));
            waits.push((backoff.until - now).as_millis());
            now = backoff.until;
        }
        assert_eq!(waits, [50, 100, 200, 400, 800, 1000, 1000]);
        backoff.clear();
        assert!(!backoff.holds(Duration::ZERO));
    }
}
