//! Which targets failed since the log's present run was added, and what is known of each. Pure.
//!
//! 1. One that is silent may have kept all that it took: links go, and come back. What it had not made durable is *in doubt*
//!    until it answers again, or the registry gives it up. What is in doubt counts as stored for nothing; but where no more is
//!    in doubt or lost than parity makes up for, nobody waits for it.
//! 2. One that could not be reached and answers again may be written to again, before redundancy is given up. Where it then
//!    fails before it took anything, it is not turned to a second time: each may cost a run.

use std::collections::{BTreeMap, BTreeSet};

use protocol::id::TargetId;
use protocol::storage::{StorageAnswer, StorageError};

/// What is known of a target that failed; the worse the later.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Failure {
    /// It could not be reached. It may have kept everything.
    Silent,
    /// It took too long over a write, as a disk does that hangs: that it answers otherwise says little.
    Late,
    /// It says so itself, or the registry gave it up: what it had not made durable is lost.
    Broken,
}

/// Of one open log.
#[derive(Debug, Default)]
pub(crate) struct Failures {
    failed: BTreeMap<TargetId, Failure>,
    /// Those that failed, are written to again, and have taken nothing yet.
    tried: BTreeSet<TargetId>,
}

impl Failure {
    /// What an answer tells that is not the one which was hoped for.
    pub(crate) fn of(answer: &StorageAnswer) -> Failure {
        match answer {
            Err(StorageError::Silent(_)) => Failure::Silent,
            _ => Failure::Broken,
        }
    }
}

impl Failures {
    pub(crate) fn is_empty(&self) -> bool {
        self.failed.is_empty()
    }

    pub(crate) fn contains(&self, target: TargetId) -> bool {
        self.failed.contains_key(&target)
    }

    pub(crate) fn is_broken(&self, target: TargetId) -> bool {
        self.failed.get(&target) == Some(&Failure::Broken)
    }

    /// Whether a target that answers may be written to where redundancy asks for it.
    pub(crate) fn may_be_tried(&self, target: TargetId) -> bool {
        match self.failed.get(&target) {
            None => true,
            Some(failure) => *failure == Failure::Silent && !self.tried.contains(&target),
        }
    }

    /// Those that have told nothing of what they had not made durable.
    pub(crate) fn doubtful(&self) -> impl Iterator<Item = TargetId> {
        self.failed.iter().filter(|(_, failure)| **failure < Failure::Broken).map(|(target, _)| *target)
    }

    /// A target failed. What is known of it gets no better.
    pub(crate) fn add(&mut self, target: TargetId, failure: Failure) {
        let known = self.failed.entry(target).or_insert(failure);
        *known = failure.max(*known);
    }

    /// A target that failed did so after all the time that a write may take.
    pub(crate) fn was_late(&mut self, target: TargetId) {
        if self.contains(target) {
            self.add(target, Failure::Late);
        }
    }

    /// A target took what it was sent.
    pub(crate) fn took(&mut self, target: TargetId) {
        self.tried.remove(&target);
    }

    /// The log goes on in another run, over these.
    pub(crate) fn go_on(&mut self, targets: impl Iterator<Item = TargetId>) {
        let failed = std::mem::take(&mut self.failed);
        self.tried = targets.filter(|target| failed.contains_key(target)).collect();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const ONE: TargetId = TargetId(1);

    fn failed(failure: Failure) -> Failures {
        let mut failures = Failures::default();
        failures.add(ONE, failure);
        failures
    }

    #[test]
    fn what_is_known_of_a_target_gets_no_better() {
        let mut failures = failed(Failure::Broken);
        failures.add(ONE, Failure::Silent);
        assert!(failures.is_broken(ONE) && failures.doubtful().next().is_none());
        let mut failures = failed(Failure::Silent);
        assert!(failures.may_be_tried(ONE));
        failures.was_late(ONE);
        assert!(!failures.may_be_tried(ONE) && failures.doubtful().eq([ONE]));
        failures.was_late(TargetId(2));
        assert!(!failures.contains(TargetId(2)), "it did not fail");
    }

    #[test]
    fn who_takes_nothing_is_tried_once() {
        let mut failures = failed(Failure::Silent);
        failures.go_on([ONE].into_iter());
        assert!(failures.is_empty() && failures.may_be_tried(ONE));
        failures.add(ONE, Failure::Silent);
        assert!(!failures.may_be_tried(ONE));
        failures.go_on([ONE].into_iter());
        failures.took(ONE);
        failures.add(ONE, Failure::Silent);
        assert!(failures.may_be_tried(ONE));
    }
}
