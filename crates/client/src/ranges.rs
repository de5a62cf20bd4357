//! Byte ranges of a file with something in each: dirty bytes, maps, debts. Decides, never awaits.
//!
//! Invariants
//! 1. No two pieces overlap, and none is empty.
//! 2. `bytes` is the sum of the pieces' lengths.

use std::collections::BTreeMap;
use std::ops::Range;

/// What may lie in a range: a part of a range holds a part of it.
pub(crate) trait Part {
    /// What the `length` bytes hold that begin `skip` bytes into this.
    fn part(&self, skip: u64, length: u64) -> Self;
}

/// A map from ranges to what they hold.
#[derive(Clone, Debug)]
pub(crate) struct Ranges<V> {
    pieces: BTreeMap<u64, Piece<V>>,
    bytes: u64,
}

#[derive(Clone, Debug)]
struct Piece<V> {
    length: u64,
    value: V,
}

impl<V> Default for Ranges<V> {
    fn default() -> Self {
        Ranges { pieces: BTreeMap::new(), bytes: 0 }
    }
}

impl<V: Part> Ranges<V> {
    /// How many bytes are covered.
    pub(crate) fn bytes(&self) -> u64 {
        self.bytes
    }

    /// How many pieces cover them.
    pub(crate) fn count(&self) -> usize {
        self.pieces.len()
    }

    /// Whether nothing is covered.
    pub(crate) fn is_empty(&self) -> bool {
        self.pieces.is_empty()
    }

    /// From now on `range` holds `value`, whatever it held before.
    pub(crate) fn insert(&mut self, range: Range<u64>, value: V) {
        if range.is_empty() {
            return;
        }
        self.remove(range.clone());
        let length = range.end - range.start;
        self.bytes += length;
        self.pieces.insert(range.start, Piece { length, value });
    }

    /// From now on `range` holds nothing.
    pub(crate) fn remove(&mut self, range: Range<u64>) {
        if range.is_empty() {
            return;
        }
        self.cut(range.start);
        self.cut(range.end);
        while let Some((&start, _)) = self.pieces.range(range.clone()).next() {
            let piece = self.pieces.remove(&start).expect("it was just found");
            self.bytes -= piece.length;
        }
    }

    /// Gives up every piece that `keep` does not want.
    pub(crate) fn retain(&mut self, keep: impl Fn(&V) -> bool) {
        let bytes = &mut self.bytes;
        self.pieces.retain(|_, piece| {
            let kept = keep(&piece.value);
            *bytes -= if kept { 0 } else { piece.length };
            kept
        });
    }

    /// The pieces that touch `range`, cut to it, in order.
    pub(crate) fn over(&self, range: Range<u64>) -> impl Iterator<Item = (Range<u64>, V)> {
        self.whole(range.clone()).map(move |(piece, value)| {
            let cut = piece.start.max(range.start)..piece.end.min(range.end);
            let value = value.part(cut.start - piece.start, cut.end - cut.start);
            (cut, value)
        })
    }

    /// The pieces that touch `range`, uncut, in order.
    pub(crate) fn whole(&self, range: Range<u64>) -> impl Iterator<Item = (Range<u64>, &V)> {
        let before = self.pieces.range(..range.start).next_back();
        let before = before.filter(|(start, piece)| *start + piece.length > range.start && !range.is_empty());
        let within = if range.is_empty() { 0..0 } else { range };
        before
            .into_iter()
            .chain(self.pieces.range(within))
            .map(|(&start, piece)| (start..start + piece.length, &piece.value))
    }

    /// What of `range` holds nothing, in order.
    pub(crate) fn gaps(&self, range: Range<u64>) -> Vec<Range<u64>> {
        let mut gaps = Vec::new();
        let mut from = range.start;
        for (piece, _) in self.whole(range.clone()) {
            if piece.start > from {
                gaps.push(from..piece.start);
            }
            from = piece.end;
        }
        if from < range.end {
            gaps.push(from..range.end);
        }
        gaps
    }

    /// The piece that holds the byte at `offset` or ends just before it.
    pub(crate) fn touching(&mut self, offset: u64) -> Option<(Range<u64>, &mut V)> {
        let (&start, piece) = self.pieces.range_mut(..=offset).next_back()?;
        let range = start..start + piece.length;
        (range.end >= offset).then_some((range, &mut piece.value))
    }

    /// The piece that begins at `start` is now `length` bytes long: its value was changed in place. What lay in the way
    /// must have been removed.
    pub(crate) fn set_length(&mut self, start: u64, length: u64) {
        let piece = self.pieces.get_mut(&start).expect("the piece begins there");
        self.bytes = self.bytes - piece.length + length;
        piece.length = length;
    }

    /// The whole covered range around `offset`, which must be covered.
    pub(crate) fn run(&self, offset: u64) -> Range<u64> {
        let mut run = offset..offset;
        for (&start, piece) in self.pieces.range(..=offset).rev() {
            if start + piece.length < run.start {
                break;
            }
            run = start..run.end.max(start + piece.length);
        }
        for (&start, piece) in self.pieces.range(run.end..) {
            if start > run.end {
                break;
            }
            run.end = start + piece.length;
        }
        run
    }

    /// The first covered range at or behind `offset`.
    pub(crate) fn next_run(&self, offset: u64) -> Option<Range<u64>> {
        let (first, _) = self.whole(offset..u64::MAX).next()?;
        Some(self.run(first.start.max(offset)))
    }

    /// Makes `at` a border between pieces.
    fn cut(&mut self, at: u64) {
        let Some((&start, piece)) = self.pieces.range_mut(..at).next_back() else { return };
        let length = piece.length;
        if start + length <= at {
            return;
        }
        let behind = piece.value.part(at - start, start + length - at);
        piece.value = piece.value.part(0, at - start);
        piece.length = at - start;
        self.pieces.insert(at, Piece { length: start + length - at, value: behind });
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    /// Names where the byte came from: the part of a value knows how much was cut off before it.
    #[derive(Clone, Copy, Debug, PartialEq)]
    struct Mark {
        write: usize,
        skip: u64,
    }

    impl Part for Mark {
        fn part(&self, skip: u64, _length: u64) -> Self {
            Mark { skip: self.skip + skip, ..*self }
        }
    }

    proptest! {
        #[test]
        fn ranges_hold_what_an_array_holds(writes in prop::collection::vec((0_u64..64, 1_u64..20, any::<bool>()), 1..40)) {
            let mut ranges = Ranges::default();
            let mut model = [None; 96];
            for (write, (start, length, insert)) in writes.into_iter().enumerate() {
                if insert {
                    ranges.insert(start..start + length, Mark { write, skip: 0 });
                } else {
                    ranges.remove(start..start + length);
                }
                for at in start..start + length {
                    model[at as usize] = insert.then_some(Mark { write, skip: at - start });
                }
                let mut seen = [None; 96];
                for (range, mark) in ranges.over(7..90) {
                    for at in range.clone() {
                        seen[at as usize] = Some(mark.part(at - range.start, 1));
                    }
                }
                prop_assert_eq!(&seen[7..90], &model[7..90]);
                prop_assert_eq!(ranges.bytes(), model.iter().flatten().count() as u64);
                for gap in ranges.gaps(0..96) {
                    prop_assert!(model[gap.start as usize..gap.end as usize].iter().all(Option::is_none));
                    prop_assert!(!gap.is_empty());
                }
                let gaps: u64 = ranges.gaps(0..96).iter().map(|gap| gap.end - gap.start).sum();
                prop_assert_eq!(gaps + ranges.bytes(), 96);
                if let Some(run) = ranges.next_run(start) {
                    prop_assert!(model[run.start as usize..run.end as usize].iter().all(Option::is_some));
                    prop_assert!(run.start == 0 || model[run.start as usize - 1].is_none());
                    prop_assert!(model[run.end as usize].is_none());
                }
            }
        }
    }
}
