//! All chance in a simulated world: one generator, so that a seed is a whole story.

use std::ops::Range;

/// A deterministic source of chance (SplitMix64: small, fast, and good enough to roll faults with).
#[derive(Clone, Debug)]
pub struct Dice(u64);

impl Dice {
    /// Dice that roll the same for the same seed, always.
    pub fn new(seed: u64) -> Self {
        // A first scramble keeps neighbouring seeds from telling neighbouring stories.
        Dice(scramble(seed ^ 0x6a09_e667_f3bc_c908))
    }

    /// Sixty-four random bits.
    pub fn roll(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        scramble(self.0)
    }

    /// A number in `0..end`, each equally likely.
    ///
    /// # Panics
    /// When `end` is zero.
    pub fn below(&mut self, end: u64) -> u64 {
        assert!(end > 0, "nothing lies below zero");
        // The high half of the product is below `end`; its bias is far under what a simulation could notice.
        ((u128::from(self.roll()) * u128::from(end)) >> 64) as u64
    }

    /// A number in `range`, each equally likely.
    pub fn within(&mut self, range: Range<u64>) -> u64 {
        range.start + self.below(range.end - range.start)
    }

    /// Either, equally likely.
    pub fn coin(&mut self) -> bool {
        self.roll() >> 63 == 1
    }

    /// True in `parts` of a million cases.
    pub fn chance(&mut self, parts: u32) -> bool {
        // No roll for what never happens: turning a fault off leaves the rest of the story as it was.
        parts > 0 && self.below(1_000_000) < u64::from(parts)
    }

    /// One of `things`, each equally likely; none if there are none.
    pub fn pick<'a, T>(&mut self, things: &'a [T]) -> Option<&'a T> {
        if things.is_empty() {
            return None;
        }
        things.get(self.below(things.len() as u64) as usize)
    }
}

/// Mixes 64 bits so that each bit of the outcome depends on each bit that went in.
pub(super) fn scramble(bits: u64) -> u64 {
    let bits = (bits ^ (bits >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    let bits = (bits ^ (bits >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    bits ^ (bits >> 31)
}
