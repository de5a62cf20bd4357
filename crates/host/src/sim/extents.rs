//! A set of bytes kept as disjoint ranges: which part of a byte space takes room.
//!
//! Invariants: ranges are not empty, do not overlap and do not touch; `bytes` is the sum of their lengths.

use std::collections::BTreeMap;
use std::ops::Range;

/// A set of byte offsets. Cheap when the set consists of few runs, however long.
#[derive(Clone, Debug, Default)]
pub(super) struct Extents {
    ends_by_start: BTreeMap<u64, u64>,
    bytes: u64,
}

impl Extents {
    /// How many bytes the set holds.
    pub(super) fn bytes(&self) -> u64 {
        self.bytes
    }

    /// How many bytes of `range` the set lacks.
    pub(super) fn missing(&self, range: Range<u64>) -> u64 {
        let held: u64 = self.overlapping(&range).map(|r| r.end.min(range.end) - r.start.max(range.start)).sum();
        (range.end - range.start) - held
    }

    /// Adds `range`.
    pub(super) fn insert(&mut self, range: Range<u64>) {
        if range.is_empty() {
            return;
        }
        // Widened by one on each side, so that ranges which only touch are merged too.
        let wide = range.start.saturating_sub(1)..range.end.saturating_add(1);
        let merged: Vec<Range<u64>> = self.overlapping(&wide).collect();
        let start = merged.first().map_or(range.start, |r| r.start.min(range.start));
        let end = merged.last().map_or(range.end, |r| r.end.max(range.end));
        for old in merged {
            self.take(&old);
        }
        self.put(start..end);
    }

    /// Takes `range` out.
    pub(super) fn remove(&mut self, range: Range<u64>) {
        let cut: Vec<Range<u64>> = self.overlapping(&range).collect();
        for old in cut {
            self.take(&old);
            self.put(old.start..range.start.max(old.start));
            self.put(range.end.min(old.end)..old.end);
        }
    }

    /// The ranges of the set that share bytes with `range`, in order.
    fn overlapping(&self, range: &Range<u64>) -> impl Iterator<Item = Range<u64>> {
        let (start, end) = (range.start, range.end);
        let first = self.ends_by_start.range(..=start).next_back().map_or(start, |(first, _)| *first);
        self.ends_by_start.range(first..end.max(first)).map(|(s, e)| *s..*e).filter(move |r| r.end > start)
    }

    fn put(&mut self, range: Range<u64>) {
        if !range.is_empty() {
            self.bytes += range.end - range.start;
            self.ends_by_start.insert(range.start, range.end);
        }
    }

    fn take(&mut self, range: &Range<u64>) {
        self.bytes -= range.end - range.start;
        self.ends_by_start.remove(&range.start);
    }
}

#[cfg(test)]
mod tests {
    use super::Extents;
    use crate::sim::Dice;

    #[test]
    fn extents_are_a_set() {
        let mut dice = Dice::new(1);
        let mut extents = Extents::default();
        let mut model = [false; 64];
        for _ in 0..2_000 {
            let start = dice.below(64);
            let end = dice.within(start..65);
            let range = start..end;
            let missing = model[start as usize..end as usize].iter().filter(|held| !**held).count() as u64;
            assert_eq!(extents.missing(range.clone()), missing);
            let insert = dice.coin();
            model[start as usize..end as usize].fill(insert);
            if insert {
                extents.insert(range)
            } else {
                extents.remove(range)
            }
            assert_eq!(extents.bytes(), model.iter().filter(|held| **held).count() as u64);
        }
    }
}
