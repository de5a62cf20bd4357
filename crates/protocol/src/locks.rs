//! The file locks that are held of one inode. Managers and clients keep them alike, so that a manager's successor hears from
//! clients what it had granted.
//!
//! Invariant: an owner's locks of one family do not overlap, and those of one kind do not adjoin.

use crate::file::{Lock, LockOwner};

/// Locks that are held.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct HeldLocks(Vec<Lock>);

impl HeldLocks {
    /// Puts a lock in place of what its owner held of the range. What it adjoins in kind becomes one with it.
    pub fn take(&mut self, mut lock: Lock) {
        self.release(&lock);
        self.0.retain(|held| {
            let same = same_owner(held, &lock) && held.exclusive == lock.exclusive;
            let adjoins = held.last.checked_add(1) == Some(lock.start) || lock.last.checked_add(1) == Some(held.start);
            if same && adjoins {
                lock.start = lock.start.min(held.start);
                lock.last = lock.last.max(held.last);
            }
            !(same && adjoins)
        });
        self.0.push(lock);
    }

    /// Cuts the range out of what its owner holds of the family.
    pub fn release(&mut self, range: &Lock) {
        let mut rests = Vec::new();
        self.0.retain(|held| {
            let cut = same_owner(held, range) && overlap(held, range);
            if cut && held.start < range.start {
                rests.push(Lock { last: range.start - 1, ..*held });
            }
            if cut && held.last > range.last {
                rests.push(Lock { start: range.last + 1, ..*held });
            }
            !cut
        });
        self.0.extend(rests);
    }

    /// Gives up what all owners hold of whom this is true.
    pub fn release_owners(&mut self, gone: impl Fn(LockOwner) -> bool) {
        self.0.retain(|held| !gone(held.owner));
    }

    /// Those that stand in the way of a lock.
    pub fn conflicts<'a>(&'a self, lock: &'a Lock) -> impl Iterator<Item = &'a Lock> {
        self.0.iter().filter(move |held| conflict(held, lock))
    }

    /// All of them.
    pub fn iter(&self) -> impl Iterator<Item = &Lock> {
        self.0.iter()
    }

    /// How many there are.
    pub fn count(&self) -> usize {
        self.0.len()
    }

    /// Whether there is none.
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }
}

fn same_owner(a: &Lock, b: &Lock) -> bool {
    a.family == b.family && a.owner == b.owner
}

fn overlap(a: &Lock, b: &Lock) -> bool {
    a.start <= b.last && b.start <= a.last
}

fn conflict(a: &Lock, b: &Lock) -> bool {
    a.family == b.family && a.owner != b.owner && overlap(a, b) && (a.exclusive || b.exclusive)
}
