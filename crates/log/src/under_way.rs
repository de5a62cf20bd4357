//! What a reader has asked targets for and waits for: where that is much, the target or its link is slow or busy. Decides,
//! never awaits.

use std::collections::BTreeMap;
use std::sync::{Mutex, MutexGuard, PoisonError};

use protocol::id::TargetId;

/// How many bytes are under way from each target.
#[derive(Debug, Default)]
pub(crate) struct UnderWay(Mutex<BTreeMap<TargetId, u64>>);

/// A question under way. Dropping it says that it was answered, or that nobody waits any more.
#[derive(Debug)]
pub(crate) struct Asked<'a> {
    all: &'a UnderWay,
    target: TargetId,
    length: u32,
}

impl UnderWay {
    /// Takes in that `target` is asked for `length` bytes.
    pub(crate) fn begin(&self, target: TargetId, length: u32) -> Asked<'_> {
        *self.lock().entry(target).or_default() += u64::from(length);
        Asked { all: self, target, length }
    }

    /// The bytes under way just now, from each target from which there are some.
    pub(crate) fn now(&self) -> BTreeMap<TargetId, u64> {
        self.lock().clone()
    }

    fn lock(&self) -> MutexGuard<'_, BTreeMap<TargetId, u64>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Drop for Asked<'_> {
    fn drop(&mut self) {
        let mut all = self.all.lock();
        let bytes = all.get_mut(&self.target).expect("a target that was asked is there");
        *bytes -= u64::from(self.length);
        if *bytes == 0 {
            all.remove(&self.target);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_was_answered_is_under_way_no_more() {
        let under_way = UnderWay::default();
        let [one, other] = [1, 2].map(TargetId);
        let first = under_way.begin(one, 10);
        let second = under_way.begin(one, 5);
        let third = under_way.begin(other, 7);
        assert_eq!(under_way.now(), [(one, 15), (other, 7)].into());
        drop((first, third));
        assert_eq!(under_way.now(), [(one, 5)].into());
        drop(second);
        assert!(under_way.now().is_empty());
    }
}
