//! Which targets failed since the log's present run was added, and what is known of each. Pure.
//!
//! One that is silent may have kept all that it took: links go, and come back. What it had not made durable is *in doubt*
//! until it answers again, or the registry gives it up. What is in doubt counts as stored for nothing; but where no more is
//! in doubt or lost than parity makes up for, nobody waits for it.

use std::collections::BTreeMap;

use protocol::id::TargetId;
use protocol::storage::{StorageAnswer, StorageError};

/// What is known of a target that failed; the worse the later.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Failure {
    /// It does not answer. It may have kept everything.
    Silent,
    /// It says so itself, or the registry gave it up: what it had not made durable is lost.
    Broken,
}

/// Of one open log.
#[derive(Debug, Default)]
pub(crate) struct Failures(BTreeMap<TargetId, Failure>);

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
        self.0.is_empty()
    }

    pub(crate) fn contains(&self, target: TargetId) -> bool {
        self.0.contains_key(&target)
    }

    pub(crate) fn is_broken(&self, target: TargetId) -> bool {
        self.0.get(&target) == Some(&Failure::Broken)
    }

    /// The silent ones.
    pub(crate) fn silent(&self) -> impl Iterator<Item = TargetId> {
        self.0.iter().filter(|(_, failure)| **failure == Failure::Silent).map(|(target, _)| *target)
    }

    /// A target failed. What is known of it gets no better.
    pub(crate) fn add(&mut self, target: TargetId, failure: Failure) {
        let known = self.0.entry(target).or_insert(failure);
        *known = failure.max(*known);
    }

    /// The log goes on in another run: whoever is in it may be sent to.
    pub(crate) fn clear(&mut self) {
        self.0.clear();
    }
}
