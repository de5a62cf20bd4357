//! Which stripes are worth cleaning, and when. Pure.
//!
//! The price of cleaning a stripe is to read and write what lives in it: u of its room. The gain is the rest, 1−u, for as
//! long as it stays free, which its age foretells: bytes that have lived long will live long. So stripes are cleaned in
//! the order of (1−u)·age/u (Rosenblum and Ousterhout, LFS 3.5; DESIGN §8). They divide by 1+u, because they read a whole
//! segment; we read a sparse stripe piecewise. When room is nearly gone only the next stripe counts, and the emptiest
//! comes first.
//!
//! Utilization is measured against the room that a stripe *occupies*: targets keep fragments in cells of full size, so
//! a stripe that was ended short is partly dead from its first day.

use std::cmp::Ordering;
use std::time::Duration;

use protocol::fragment::Geometry;
use protocol::id::{LogId, StripeNumber};

/// A stripe's name.
pub type Stripe = (LogId, StripeNumber);

/// A stripe that may be cleaned.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Candidate {
    /// Which.
    pub stripe: Stripe,
    /// Bytes in it that live.
    pub bytes_live: u64,
    /// The data bytes for which its deletion makes room.
    pub bytes_occupied: u64,
    /// How long ago its youngest bytes were written.
    pub age: Duration,
}

impl Candidate {
    /// u: the part of its room that lives.
    pub fn utilization(&self) -> f64 {
        if self.bytes_occupied == 0 {
            return 1.0;
        }
        (self.bytes_live as f64 / self.bytes_occupied as f64).min(1.0)
    }

    /// (1−u)·age/u. Seconds more than one, so that the newest are still told apart by u.
    fn profit(&self) -> f64 {
        let u = self.utilization().max(f64::EPSILON);
        (1.0 - u) * (1.0 + self.age.as_secs_f64()) / u
    }
}

/// In which order stripes are taken.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Order {
    /// Most profitable first.
    Profit,
    /// Least live bytes first: each batch frees the most room that it can.
    Emptiest,
    /// As they come, full ones too: where all are to go.
    All,
}

/// How full the fullest target is, in the part of its room that clients may take.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Space {
    /// The part of the targets' room that clients can still take, 0 to 1; the least over all targets.
    pub free: f64,
    /// Bytes stored on all targets together.
    pub bytes_used: u64,
    /// Bytes that fit on all targets together.
    pub bytes_total: u64,
    /// Bytes free on the fullest target, the reserve included.
    pub bytes_free_min: u64,
}

/// The water marks. All are parts of the targets' room, 0 to 1, and speak of what clients can still take.
///
/// They are low, for free room is dear: with s of the room neither alive nor free the average stripe is cleaned at 1−s,
/// and each byte written costs 1/s (LFS 3.4, figure 3).
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Waters {
    /// Below this it cleans.
    pub low: f64,
    /// Until this much is free.
    pub high: f64,
    /// Below this it takes the emptiest stripes, and makes no pauses.
    pub pressure: f64,
}

impl Default for Waters {
    fn default() -> Self {
        Waters { low: 0.05, high: 0.08, pressure: 0.02 }
    }
}

/// The last look, and what became known since.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub struct Looked {
    /// Bytes stored on all targets when it ended.
    pub bytes_used: u64,
    /// Bytes of file data that lived then.
    pub bytes_live: u64,
    /// The most that was seen alive since.
    pub bytes_live_max: u64,
    /// The data bytes of stripes that nobody could judge yet.
    pub bytes_busy: u64,
    /// How often it was asked since whether another is needed.
    pub ticks: u32,
}

impl Looked {
    /// Takes note of a moment at which another look was perhaps not needed.
    pub fn observe(&mut self, bytes_live: u64) {
        self.bytes_live_max = self.bytes_live_max.max(bytes_live);
        self.ticks += 1;
    }

    /// Whether so much was removed or overwritten since that `df` would tell an untruth: files' room is given back when
    /// their stripes are found dead. What died is known; what lived too shortly to be seen, and what lay where nobody
    /// could judge yet, is only suspected, and looked for less often.
    pub fn is_outdated(&self, bytes_used: u64, bytes_live: u64) -> bool {
        let died = self.bytes_live_max.max(self.bytes_live).saturating_sub(bytes_live);
        let explained = bytes_live.saturating_sub(self.bytes_live) * RAW_PER_LIVE;
        let unexplained = bytes_used.saturating_sub(self.bytes_used).saturating_sub(explained);
        let suspected = unexplained.max(self.bytes_busy);
        died >= DEAD_MAX || self.ticks >= TICKS_SHORT && suspected >= DEAD_MAX.max(bytes_used / SUSPECTED_PART)
    }

    /// Whether much could not be judged: a log tells soon which of its stripes are finished.
    fn is_in_part(&self) -> bool {
        self.bytes_busy > self.bytes_used / SUSPECTED_PART
    }
}

/// What there is to do.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Need {
    /// Nothing yet.
    Nothing,
    /// Look for dead stripes: enough was written since the last look.
    Look,
    /// Look, and clean.
    Clean,
}

/// Stripes that hold fewer than this part of dead room are not worth their copy.
pub const UTILIZATION_MAX: f64 = 0.95;
/// A look is due after this part of all room was written or freed,
const LOOK_AFTER: f64 = 1.0 / 64.0;
/// or after so many ticks, since deletions free nothing before a look finds them,
const TICKS: u32 = 60;
/// or so many where room is short,
const TICKS_SHORT: u32 = 5;
/// or as soon as so many bytes of file data have died.
const DEAD_MAX: u64 = 8 << 20;
/// What is suspected must be so large a part of all that is stored: a look costs as much as there is.
const SUSPECTED_PART: u64 = 64;
/// Bytes on targets that a byte of file data explains, with its parity and its share of short stripes.
const RAW_PER_LIVE: u64 = 2;

impl Waters {
    /// The marks where only `slack` of the room is not alive: most of that must stay in stripes that are cleaned later,
    /// or cleaning would copy nearly everything to win nearly nothing.
    pub fn within(&self, slack: f64) -> Waters {
        Waters {
            low: self.low.min(slack / 4.0),
            high: self.high.min(slack / 2.5),
            pressure: self.pressure.min(slack / 10.0),
        }
    }

    /// Whether there is too little free.
    pub fn is_short(&self, space: Space) -> bool {
        space.free < self.low
    }

    /// What `space` asks for after the `last` look; `None`: there was none.
    pub fn need(&self, space: Space, last: Option<Looked>) -> Need {
        let short = self.is_short(space);
        let Some(last) = last else { return if short { Need::Clean } else { Need::Look } };
        let change = space.bytes_used.abs_diff(last.bytes_used);
        if short {
            // Where nothing was written there is little that a look at everything did not find: deleted files at most.
            let due = change > 0 || last.is_in_part() || last.ticks >= TICKS_SHORT;
            return if due { Need::Clean } else { Need::Nothing };
        }
        let due = change as f64 >= space.bytes_total as f64 * LOOK_AFTER || last.ticks >= TICKS;
        if due { Need::Look } else { Need::Nothing }
    }

    /// The order in which to clean at such a fill.
    pub fn order(&self, space: Space) -> Order {
        if space.free < self.pressure { Order::Emptiest } else { Order::Profit }
    }
}

/// The data bytes for which the deletion of a stripe with `length` data bytes makes room.
pub fn bytes_occupied(geometry: Geometry, length: u32) -> u64 {
    let fragments = length.div_ceil(geometry.fragment_size.max(1)) + u32::from(geometry.parity);
    let raw = u64::from(fragments) * u64::from(geometry.fragment_size);
    raw * u64::from(geometry.data) / geometry.width().max(1) as u64
}

/// Puts the worthwhile candidates in the order in which they are to be cleaned.
pub fn rank(mut candidates: Vec<Candidate>, order: Order) -> Vec<Candidate> {
    let name = |a: &Candidate, b: &Candidate| a.stripe.cmp(&b.stripe);
    if order != Order::All {
        candidates.retain(|candidate| candidate.utilization() <= UTILIZATION_MAX);
    }
    match order {
        Order::Profit => candidates.sort_by(|a, b| descending(a.profit(), b.profit()).then(name(a, b))),
        Order::Emptiest => {
            candidates.sort_by(|a, b| descending(b.utilization(), a.utilization()).then(name(a, b)));
        }
        Order::All => {}
    }
    candidates
}

/// How many of the first `ranked` one batch takes: as many as have no more than `bytes` alive together, but one at
/// least.
pub fn batch(ranked: &[Candidate], bytes: u64) -> usize {
    let mut total = 0;
    let fits = ranked.iter().take_while(|candidate| {
        total += candidate.bytes_live;
        total <= bytes
    });
    fits.count().max(1).min(ranked.len())
}

fn descending(a: f64, b: f64) -> Ordering {
    b.total_cmp(&a)
}

#[cfg(test)]
mod tests {
    use super::*;

    const MIB: u64 = 1 << 20;

    fn candidate(number: u64, bytes_live: u64, age: u64) -> Candidate {
        let stripe = (LogId(1), StripeNumber(number));
        Candidate { stripe, bytes_live, bytes_occupied: 4 * MIB, age: Duration::from_secs(age) }
    }

    fn numbers(ranked: &[Candidate]) -> Vec<u64> {
        ranked.iter().map(|candidate| candidate.stripe.1.0).collect()
    }

    #[test]
    fn old_stripes_are_cleaned_while_fuller_than_young_ones() {
        let all = vec![candidate(1, MIB, 10), candidate(2, 3 * MIB, 1000), candidate(3, 4 * MIB, 9999)];
        assert_eq!(numbers(&rank(all.clone(), Order::Profit)), [2, 1]);
        assert_eq!(numbers(&rank(all.clone(), Order::Emptiest)), [1, 2]);
        assert_eq!(numbers(&rank(all, Order::All)), [1, 2, 3]);
    }

    #[test]
    fn a_batch_is_bounded_but_never_empty() {
        let ranked = [candidate(1, 3 * MIB, 0), candidate(2, MIB, 0), candidate(3, MIB, 0)];
        assert_eq!(batch(&ranked, 4 * MIB), 2);
        assert_eq!(batch(&ranked, 1), 1);
        assert_eq!(batch(&[], 1), 0);
    }

    #[test]
    fn a_short_stripe_occupies_whole_fragments() {
        let geometry = Geometry { data: 4, parity: 1, fragment_size: 1 << 20 };
        assert_eq!(bytes_occupied(geometry, 4 << 20), 4 * MIB);
        assert_eq!(bytes_occupied(geometry, 1), 2 * MIB * 4 / 5);
    }

    #[test]
    fn water_marks_sink_with_the_slack() {
        let waters = Waters::default();
        assert_eq!(waters.within(0.9), waters);
        let tight = waters.within(0.1);
        assert!(tight.high <= 0.04 && tight.low < tight.high && tight.pressure < tight.low);
    }

    #[test]
    fn what_died_is_looked_for_at_once_and_what_may_have_died_soon() {
        let looked = Looked { bytes_used: 100 * MIB, bytes_live: 80 * MIB, ..Looked::default() };
        assert!(!looked.is_outdated(100 * MIB, 80 * MIB));
        assert!(looked.is_outdated(100 * MIB, 70 * MIB));
        // A file that came and went.
        let mut seen = looked;
        seen.observe(120 * MIB);
        assert!(!seen.is_outdated(140 * MIB, 120 * MIB));
        assert!(seen.is_outdated(140 * MIB, 80 * MIB));
        // One that nobody saw alive.
        let later = Looked { ticks: TICKS_SHORT, ..looked };
        assert!(!looked.is_outdated(140 * MIB, 80 * MIB) && later.is_outdated(140 * MIB, 80 * MIB));
        assert!(!later.is_outdated(140 * MIB, 110 * MIB));
        // What could not be judged is judged again.
        assert!(Looked { bytes_busy: 20 * MIB, ..later }.is_outdated(100 * MIB, 80 * MIB));
        assert!(!Looked { bytes_busy: 20 * MIB, bytes_used: 100 << 30, ..later }.is_outdated(100 << 30, 80 * MIB));
    }

    #[test]
    fn water_marks_say_when() {
        let waters = Waters { low: 0.15, high: 0.22, pressure: 0.05 };
        let space = |free| Space { free, bytes_used: 500, bytes_total: 1000, bytes_free_min: 500 };
        let after = |bytes_used, ticks| Some(Looked { bytes_used, ticks, ..Looked::default() });
        assert_eq!(waters.need(space(0.5), None), Need::Look);
        assert_eq!(waters.need(space(0.5), after(495, 0)), Need::Nothing);
        assert_eq!(waters.need(space(0.5), after(500, TICKS)), Need::Look);
        assert_eq!(waters.need(space(0.5), after(400, 0)), Need::Look);
        assert_eq!(waters.need(space(0.1), after(500, 0)), Need::Nothing);
        assert_eq!(waters.need(space(0.1), after(500, TICKS_SHORT)), Need::Clean);
        assert_eq!(waters.need(space(0.1), after(499, 0)), Need::Clean);
        let in_part = after(500, 0).map(|last| Looked { bytes_busy: 100, ..last });
        assert_eq!(waters.need(space(0.1), in_part), Need::Clean);
        assert_eq!((waters.order(space(0.1)), waters.order(space(0.01))), (Order::Profit, Order::Emptiest));
    }
}
