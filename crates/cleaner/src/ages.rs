//! How old the bytes of a stripe are: what cost-benefit needs, and what no stripe says of itself.
//!
//! Soft: remembered from when a stripe was first seen. After a restart the order of names stands in for the order of
//! births; an error costs a little copying, never a byte.

use std::collections::BTreeMap;
use std::time::Duration;

use host::Moment;

use crate::policy::Stripe;

/// What stripes that were there before the cleaner are spread over, by their names.
const BEFORE: Duration = Duration::from_secs(3600);

/// When the youngest bytes of each stripe were written.
#[derive(Debug, Default)]
pub struct Ages {
    /// In nanoseconds of the machine's clock; what lay there before the machine started is negative.
    born: BTreeMap<Stripe, i128>,
    started: bool,
}

impl Ages {
    /// Takes note of the stripes that exist: new ones were born now, and those that are gone are forgotten.
    pub fn observe(&mut self, mut stripes: Vec<Stripe>, now: Moment) {
        stripes.sort_unstable();
        let before = if self.started { 0 } else { BEFORE.as_nanos() as i128 };
        let count = stripes.len().max(1) as i128;
        let last = std::mem::take(&mut self.born);
        self.born = (stripes.into_iter().enumerate())
            .map(|(rank, stripe)| {
                let new = i128::from(now.0) - before * (count - rank as i128) / count;
                (stripe, last.get(&stripe).copied().unwrap_or(new))
            })
            .collect();
        self.started = true;
    }

    /// How old a stripe's youngest bytes are.
    pub fn age(&self, stripe: Stripe, now: Moment) -> Duration {
        let born = self.born.get(&stripe).copied().unwrap_or(i128::from(now.0));
        Duration::from_nanos(u64::try_from(i128::from(now.0) - born).unwrap_or(0))
    }

    /// Bytes of `from` were copied to `to`: copying makes nothing younger (LFS 3.6), and the youngest bytes count.
    pub fn inherit(&mut self, from: Stripe, to: Stripe) {
        let Some(&born) = self.born.get(&from) else { return };
        let entry = self.born.entry(to).or_insert(born);
        *entry = born.max(*entry);
    }
}

#[cfg(test)]
mod tests {
    use protocol::id::{LogId, StripeNumber};

    use super::*;

    #[test]
    fn ages_are_kept_spread_and_inherited() {
        let stripe = |log, number| (LogId(log), StripeNumber(number));
        let at = |seconds: u64| Moment(seconds * 1_000_000_000);
        let mut ages = Ages::default();
        ages.observe(vec![stripe(2, 0), stripe(1, 7)], at(10));
        assert!(ages.age(stripe(1, 7), at(10)) > ages.age(stripe(2, 0), at(10)));
        ages.observe(vec![stripe(1, 7), stripe(2, 0), stripe(3, 0)], at(20));
        assert_eq!(ages.age(stripe(3, 0), at(25)), Duration::from_secs(5));
        ages.inherit(stripe(1, 7), stripe(4, 0));
        assert_eq!(ages.age(stripe(4, 0), at(25)), ages.age(stripe(1, 7), at(25)));
        ages.inherit(stripe(3, 0), stripe(4, 0));
        assert_eq!(ages.age(stripe(4, 0), at(25)), Duration::from_secs(5));
    }
}
