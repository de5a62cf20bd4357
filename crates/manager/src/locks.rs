//! File locks: `flock` and `fcntl` ranges of all inodes of a manager. Only in memory.
//!
//! Invariants
//! 1. Two held locks of one inode and family conflict only if they are of one owner, and an owner's do not overlap.
//! 2. A waiter conflicts with a held lock of another owner: whatever frees locks grants at once what became free.
//! 3. No circle of `fcntl` owners waits for each other. (`flock` circles are the programs' own, as on Linux.)

use std::collections::{BTreeMap, BTreeSet};

use protocol::file::{Lock, LockFamily, LockOwner};
use protocol::id::InodeId;

/// Names a waiting call: the node, and the number the node gave it.
pub(crate) type Ticket = (u32, u64);

/// What came of asking for a lock.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Taken {
    /// It is held. Others may have been granted, since this replaced what the owner held before.
    Held(Vec<Ticket>),
    /// It waits. Others may have been granted: a waiting `flock` gives up what it would convert.
    Waits(Vec<Ticket>),
    /// Another stands in the way.
    Conflict,
    /// Waiting would never end.
    Deadlock,
}

/// Who waits for what.
#[derive(Clone, Copy, Debug)]
struct Waiter {
    ticket: Ticket,
    lock: Lock,
}

/// The locks of one inode.
#[derive(Default)]
struct InodeLocks {
    held: Vec<Lock>,
    waiting: Vec<Waiter>,
}

/// All locks of a manager.
#[derive(Default)]
pub(crate) struct Locks {
    inodes: BTreeMap<InodeId, InodeLocks>,
}

impl Locks {
    /// Takes a lock; waits under a ticket if there is one and others stand in the way.
    pub(crate) fn lock(&mut self, inode: InodeId, lock: Lock, ticket: Option<Ticket>) -> Taken {
        let locks = self.inodes.entry(inode).or_default();
        if !locks.has_conflict(&lock) {
            locks.take(lock);
            return Taken::Held(self.grant(inode));
        }
        let Some(ticket) = ticket else {
            self.forget_if_empty(inode);
            return Taken::Conflict;
        };
        if lock.family == LockFamily::Posix && self.would_deadlock(inode, &lock) {
            return Taken::Deadlock;
        }
        let locks = self.inodes.entry(inode).or_default();
        locks.waiting.push(Waiter { ticket, lock });
        if lock.family == LockFamily::Flock {
            locks.release(&lock);
        }
        Taken::Waits(self.grant(inode))
    }

    /// Gives up what the owner holds of the family within the range. Returns who got their locks by that.
    pub(crate) fn unlock(&mut self, inode: InodeId, lock: &Lock) -> Vec<Ticket> {
        if let Some(locks) = self.inodes.get_mut(&inode) {
            locks.release(lock);
        }
        self.grant(inode)
    }

    /// Gives up all that an owner holds on one inode, or on all.
    pub(crate) fn unlock_all(&mut self, inode: Option<InodeId>, owner: LockOwner) -> Vec<Ticket> {
        self.release_where(inode, |lock| lock.owner == owner)
    }

    /// Gives up all that owners on a node hold, or wait for. Also tells whose waiting is over without a lock.
    pub(crate) fn forget_node(&mut self, node: u32) -> (Vec<Ticket>, Vec<Ticket>) {
        let mut given_up = Vec::new();
        for locks in self.inodes.values_mut() {
            let gone = locks.waiting.extract_if(.., |waiter| waiter.lock.owner.node == node);
            given_up.extend(gone.map(|waiter| waiter.ticket));
        }
        (self.release_where(None, |lock| lock.owner.node == node), given_up)
    }

    /// Forgets all locks of some inodes. Returns who waited for one.
    pub(crate) fn leave(&mut self, goes: impl Fn(InodeId) -> bool) -> Vec<Ticket> {
        let gone = self.inodes.extract_if(.., |inode, _| goes(*inode));
        gone.flat_map(|(_, locks)| locks.waiting).map(|waiter| waiter.ticket).collect()
    }

    /// Gives up waiting. False when the ticket does not wait: never did, or holds its lock by now.
    pub(crate) fn cancel(&mut self, inode: InodeId, ticket: Ticket) -> bool {
        let Some(locks) = self.inodes.get_mut(&inode) else { return false };
        let count = locks.waiting.len();
        locks.waiting.retain(|waiter| waiter.ticket != ticket);
        let cancelled = locks.waiting.len() < count;
        self.forget_if_empty(inode);
        cancelled
    }

    /// The first held lock, by where it starts, that stands in the way of `lock`.
    pub(crate) fn test(&self, inode: InodeId, lock: &Lock) -> Option<Lock> {
        let held = self.inodes.get(&inode)?.held.iter();
        held.filter(|held| conflicts(held, lock)).min_by_key(|held| held.start).copied()
    }

    /// How many locks are held on an inode.
    pub(crate) fn count(&self, inode: InodeId) -> usize {
        self.inodes.get(&inode).map_or(0, |locks| locks.held.len())
    }

    fn release_where(&mut self, inode: Option<InodeId>, gone: impl Fn(&Lock) -> bool) -> Vec<Ticket> {
        let inodes: Vec<InodeId> = match inode {
            Some(inode) => vec![inode],
            None => self.inodes.keys().copied().collect(),
        };
        let mut granted = Vec::new();
        for inode in inodes {
            if let Some(locks) = self.inodes.get_mut(&inode) {
                locks.held.retain(|lock| !gone(lock));
            }
            granted.extend(self.grant(inode));
        }
        granted
    }

    /// Grants, first come first served, what no longer conflicts.
    fn grant(&mut self, inode: InodeId) -> Vec<Ticket> {
        let Some(locks) = self.inodes.get_mut(&inode) else { return Vec::new() };
        let mut granted = Vec::new();
        // A grant can free what its owner held before, and so another waiter: begin again after each.
        while let Some(index) = locks.waiting.iter().position(|waiter| !locks.has_conflict(&waiter.lock)) {
            let waiter = locks.waiting.remove(index);
            locks.take(waiter.lock);
            granted.push(waiter.ticket);
        }
        self.forget_if_empty(inode);
        granted
    }

    /// Whether an owner that `lock` would wait for waits, over others or at once, for `lock`'s owner.
    fn would_deadlock(&self, inode: InodeId, lock: &Lock) -> bool {
        let mut seen = BTreeSet::new();
        let mut ahead: Vec<LockOwner> = self.blockers(inode, lock).collect();
        while let Some(owner) = ahead.pop() {
            if owner == lock.owner {
                return true;
            }
            if !seen.insert(owner) {
                continue;
            }
            for (&other, locks) in &self.inodes {
                let waits = |waiter: &&Waiter| waiter.lock.owner == owner && waiter.lock.family == LockFamily::Posix;
                for waiter in locks.waiting.iter().filter(waits) {
                    ahead.extend(self.blockers(other, &waiter.lock));
                }
            }
        }
        false
    }

    fn blockers<'a>(&'a self, inode: InodeId, lock: &'a Lock) -> impl Iterator<Item = LockOwner> + 'a {
        let held = self.inodes.get(&inode).map(|locks| locks.held.as_slice()).unwrap_or_default();
        held.iter().filter(move |held| conflicts(held, lock)).map(|held| held.owner)
    }

    fn forget_if_empty(&mut self, inode: InodeId) {
        if self.inodes.get(&inode).is_some_and(|locks| locks.held.is_empty() && locks.waiting.is_empty()) {
            self.inodes.remove(&inode);
        }
    }
}

impl InodeLocks {
    fn has_conflict(&self, lock: &Lock) -> bool {
        self.held.iter().any(|held| conflicts(held, lock))
    }

    /// Puts a lock in place of what its owner held of the range. What it adjoins in kind becomes one with it.
    fn take(&mut self, mut lock: Lock) {
        self.release(&lock);
        self.held.retain(|held| {
            let same = same_owner(held, &lock) && held.exclusive == lock.exclusive;
            let adjoins = held.last.checked_add(1) == Some(lock.start) || lock.last.checked_add(1) == Some(held.start);
            if same && adjoins {
                lock.start = lock.start.min(held.start);
                lock.last = lock.last.max(held.last);
            }
            !(same && adjoins)
        });
        self.held.push(lock);
    }

    /// Cuts the range out of what its owner holds of the family.
    fn release(&mut self, range: &Lock) {
        let mut rests = Vec::new();
        self.held.retain(|held| {
            let cut = same_owner(held, range) && overlap(held, range);
            if cut && held.start < range.start {
                rests.push(Lock { last: range.start - 1, ..*held });
            }
            if cut && held.last > range.last {
                rests.push(Lock { start: range.last + 1, ..*held });
            }
            !cut
        });
        self.held.extend(rests);
    }
}

fn same_owner(a: &Lock, b: &Lock) -> bool {
    a.family == b.family && a.owner == b.owner
}

fn overlap(a: &Lock, b: &Lock) -> bool {
    a.start <= b.last && b.start <= a.last
}

fn conflicts(a: &Lock, b: &Lock) -> bool {
    a.family == b.family && a.owner != b.owner && overlap(a, b) && (a.exclusive || b.exclusive)
}

#[cfg(test)]
mod tests {
    use super::*;

    const FILE: InodeId = InodeId(10);
    const OTHER: InodeId = InodeId(11);

    fn lock(owner: u64, exclusive: bool, start: u64, last: u64) -> Lock {
        let owner = LockOwner { node: 1, owner };
        Lock { family: LockFamily::Posix, owner, pid: 7, exclusive, start, last }
    }

    #[test]
    fn ranges_split_join_and_are_granted_in_turn() {
        let mut locks = Locks::default();
        assert_eq!(locks.lock(FILE, lock(1, true, 0, 99), None), Taken::Held(vec![]));
        assert_eq!(locks.lock(FILE, lock(2, false, 50, 60), None), Taken::Conflict);
        assert_eq!(locks.lock(FILE, lock(2, false, 50, 60), Some((1, 5))), Taken::Waits(vec![]));
        assert_eq!(locks.unlock(FILE, &lock(1, true, 40, 49)), vec![]);
        assert_eq!(locks.unlock(FILE, &lock(1, true, 50, 70)), vec![(1, 5)]);
        assert_eq!(locks.test(FILE, &lock(3, true, 45, 55)), Some(lock(2, false, 50, 60)));
        assert_eq!(locks.count(FILE), 3);
        assert_eq!(locks.lock(FILE, lock(1, true, 40, 49), None), Taken::Held(vec![]));
        assert_eq!(locks.count(FILE), 3, "0..=49 is one lock again");
        (1..=2).for_each(|owner| drop(locks.unlock_all(None, LockOwner { node: 1, owner })));
        assert!(locks.inodes.is_empty());
    }

    #[test]
    fn of_several_locks_in_the_way_the_first_one_is_told() {
        let mut locks = Locks::default();
        locks.lock(FILE, lock(1, true, 10, 14), None);
        locks.lock(FILE, lock(1, false, 5, 9), None);
        assert_eq!(locks.test(FILE, &lock(2, true, 0, u64::MAX)), Some(lock(1, false, 5, 9)));
        // What is left of a lock that was cut has a place of its own.
        locks.unlock(FILE, &lock(1, true, 7, 11));
        locks.lock(FILE, lock(3, false, 2, 6), None);
        assert_eq!(locks.test(FILE, &lock(2, true, 3, u64::MAX)), Some(lock(3, false, 2, 6)));
        assert_eq!(locks.test(FILE, &lock(2, true, 7, u64::MAX)), Some(lock(1, true, 12, 14)));
    }

    #[test]
    fn a_circle_of_waiters_is_refused() {
        let mut locks = Locks::default();
        locks.lock(FILE, lock(1, true, 0, 9), None);
        locks.lock(OTHER, lock(2, true, 0, 9), None);
        assert_eq!(locks.lock(OTHER, lock(1, true, 0, 9), Some((1, 1))), Taken::Waits(vec![]));
        assert_eq!(locks.lock(FILE, lock(2, false, 3, 3), Some((1, 2))), Taken::Deadlock);
        assert!(locks.cancel(OTHER, (1, 1)));
        assert_eq!(locks.lock(FILE, lock(2, false, 3, 3), Some((1, 2))), Taken::Waits(vec![]));
    }

    #[test]
    fn a_waiting_flock_gives_up_what_it_converts() {
        let flock = |owner, exclusive| Lock { family: LockFamily::Flock, ..lock(owner, exclusive, 0, u64::MAX) };
        let mut locks = Locks::default();
        locks.lock(FILE, flock(1, false), None);
        locks.lock(FILE, flock(2, false), None);
        assert_eq!(locks.lock(FILE, flock(1, true), Some((1, 1))), Taken::Waits(vec![]));
        assert_eq!(locks.lock(FILE, flock(2, true), Some((1, 2))), Taken::Held(vec![]));
        assert_eq!(locks.unlock(FILE, &flock(2, true)), vec![(1, 1)]);
    }
}
