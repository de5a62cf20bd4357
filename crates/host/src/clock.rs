//! The two clocks of a machine: one that only goes forward, and one that people read.

use std::ops::{Add, Sub};
use std::time::Duration;

/// A point on the machine's monotonic clock, in nanoseconds since the machine started. Comparable on one machine only.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Default)]
pub struct Moment(pub u64);

impl Moment {
    /// How long ago `earlier` was; zero if it lies ahead.
    pub fn since(self, earlier: Moment) -> Duration {
        Duration::from_nanos(self.0.saturating_sub(earlier.0))
    }
}

impl Add<Duration> for Moment {
    type Output = Moment;

    fn add(self, wait: Duration) -> Moment {
        Moment(self.0.saturating_add(u64::try_from(wait.as_nanos()).unwrap_or(u64::MAX)))
    }
}

impl Sub<Moment> for Moment {
    type Output = Duration;

    fn sub(self, earlier: Moment) -> Duration {
        self.since(earlier)
    }
}

impl Sub<Duration> for Moment {
    type Output = Moment;

    /// So much earlier, or the clock's beginning.
    fn sub(self, ago: Duration) -> Moment {
        Moment(self.0.saturating_sub(u64::try_from(ago.as_nanos()).unwrap_or(u64::MAX)))
    }
}

/// The time of day, in nanoseconds since 1970-01-01 UTC. It may jump either way: it goes into file attributes and
/// messages to people, never into a decision.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Default)]
pub struct WallTime(pub i64);
