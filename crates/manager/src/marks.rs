//! Some of many sorted values, so that who looks for one reads few of the others: where nothing is in a processor's cache,
//! each that is read is waited for.

use std::ops::Range;

/// The first value of each of `N` equal shares.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Marks<T, const N: usize>([T; N]);

impl<T: Copy + Default, const N: usize> Default for Marks<T, N> {
    fn default() -> Self {
        Marks([T::default(); N])
    }
}

impl<T: Copy + Default, const N: usize> Marks<T, N> {
    /// Of so many values.
    pub(crate) fn of(count: usize, value: impl Fn(usize) -> T) -> Self {
        if count == 0 {
            return Marks::default();
        }
        Marks(std::array::from_fn(|mark| value(count * mark / N)))
    }

    /// Among which of so many values the first lies that is not below what is looked for; behind these, where all are.
    pub(crate) fn share(&self, count: usize, is_below: impl Fn(T) -> bool) -> Range<usize> {
        let share = self.0.partition_point(|&mark| is_below(mark));
        let from = share.checked_sub(1).map_or(0, |before| count * before / N);
        from..count * share / N
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_looked_for_is_in_the_share_or_behind_it() {
        for count in 0..40 {
            let values: Vec<usize> = (0..count).map(|at| at / 3 * 2).collect();
            let marks = Marks::<usize, 7>::of(count, |at| values[at]);
            for sought in 0..30 {
                let first = values.partition_point(|&value| value < sought);
                let share = marks.share(count, |value| value < sought);
                assert!(share.start <= first && first <= share.end, "{sought} of {values:?}: {share:?}");
                assert!(share.len() <= count.div_ceil(7), "{share:?} of {count}");
            }
        }
    }
}
