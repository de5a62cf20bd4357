//! Numbers of calls that must take effect once (`protocol::once`). Decides, never awaits.
//!
//! Invariant: a number that was given up is below what later calls tell, and is never given again.

use std::collections::BTreeSet;
use std::sync::Mutex;

use crate::client::lock;

/// The numbers of the calls that are under way.
#[derive(Debug, Default)]
pub(crate) struct CallNumbers(Mutex<Numbers>);

#[derive(Debug, Default)]
struct Numbers {
    next: u64,
    open: BTreeSet<u64>,
}

/// The number of a call; given up when the call ends, however it does.
pub(crate) struct CallNumber<'a> {
    numbers: &'a CallNumbers,
    number: u64,
}

impl CallNumbers {
    /// A number for a new call.
    pub(crate) fn take(&self) -> CallNumber<'_> {
        let mut numbers = lock(&self.0);
        let number = numbers.next;
        numbers.next += 1;
        numbers.open.insert(number);
        CallNumber { numbers: self, number }
    }

    /// The number of the next call.
    pub(crate) fn next(&self) -> u64 {
        lock(&self.0).next
    }

    /// An earlier process gave all numbers before this one.
    pub(crate) fn go_on_from(&self, number: u64) {
        lock(&self.0).next = number;
    }

    /// The first number that may still be sent; all before it are given up.
    pub(crate) fn below(&self) -> u64 {
        let numbers = lock(&self.0);
        numbers.open.first().copied().unwrap_or(numbers.next)
    }
}

impl CallNumber<'_> {
    /// The number.
    pub(crate) fn get(&self) -> u64 {
        self.number
    }
}

impl Drop for CallNumber<'_> {
    fn drop(&mut self) {
        lock(&self.numbers.0).open.remove(&self.number);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_given_up_is_below_and_never_given_again() {
        let numbers = CallNumbers::default();
        let (first, second) = (numbers.take(), numbers.take());
        assert_eq!((first.get(), second.get(), numbers.below()), (0, 1, 0));
        drop(second);
        assert_eq!(numbers.below(), 0, "the first may still be sent");
        drop(first);
        assert_eq!(numbers.below(), 2);
        assert_eq!(numbers.take().get(), 2);
    }
}
