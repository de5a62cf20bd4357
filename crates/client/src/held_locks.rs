//! The file locks that the programs above this client hold, for managers that take slots over (`docs/tokens.md`). Decides,
//! never awaits.
//!
//! Invariants
//! 1. What is here, the manager of the inode has: a lock is noted behind the answer that grants it, and dropped before it is
//!    given up. What is not here, no program relies on.
//! 2. A lock is noted only if its owner began to give up nothing of the inode since it was asked for, and was not doing so
//!    then: else nobody here knows which of the two the manager did first. It is asked for again.

use std::collections::BTreeMap;

use protocol::file::{Lock, LockFamily, LockOwner};
use protocol::id::{InodeId, SlotId};
use protocol::locks::HeldLocks;

/// All of them.
#[derive(Debug, Default)]
pub(crate) struct OwnLocks(BTreeMap<(InodeId, LockOwner), Owned>);

/// What an owner holds of an inode.
#[derive(Debug, Default)]
struct Owned {
    held: HeldLocks,
    /// Calls under way that ask for a lock; and that give locks up.
    asking: u32,
    giving: u32,
    /// How often locks were given up while this is remembered.
    given: u64,
}

/// A lock that is being asked for: how often its owner had given up locks before.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Asked(u64);

/// What is given up.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Given {
    /// A range.
    Range(Lock),
    /// All that the owner holds of the inode.
    All,
    /// It turns out later: a call that waits for a lock is broken off.
    Unknown,
}

impl OwnLocks {
    /// A lock is about to be asked for; none while its owner gives up others of the inode. In the end, [`OwnLocks::end_ask`].
    pub(crate) fn begin_ask(&mut self, inode: InodeId, lock: &Lock, waits: bool) -> Option<Asked> {
        let owned = self.0.entry((inode, lock.owner)).or_default();
        if owned.giving > 0 {
            return None;
        }
        owned.asking += 1;
        // As the manager does: a waiting `flock` gives up what it would convert.
        if waits && lock.family == LockFamily::Flock {
            owned.held.release(lock);
        }
        Some(Asked(owned.given))
    }

    /// The question had an answer, and this was granted. Whether it is held; else it must be asked for again.
    pub(crate) fn end_ask(&mut self, inode: InodeId, owner: LockOwner, asked: Asked, granted: Option<Lock>) -> bool {
        let owned = self.0.get_mut(&(inode, owner)).expect("what is asked for is known");
        owned.asking -= 1;
        let granted = granted.filter(|_| owned.given == asked.0);
        if let Some(lock) = granted {
            owned.held.take(lock);
        }
        self.forget_if_idle(inode, owner);
        granted.is_some()
    }

    /// An owner begins to give something up. In the end, [`OwnLocks::end_give`].
    pub(crate) fn begin_give(&mut self, inode: InodeId, owner: LockOwner, what: &Given) {
        let owned = self.0.entry((inode, owner)).or_default();
        owned.giving += 1;
        owned.given += 1;
        match what {
            Given::Range(range) => owned.held.release(range),
            Given::All => owned.held = HeldLocks::default(),
            Given::Unknown => {}
        }
    }

    /// The manager knows it, or never will.
    pub(crate) fn end_give(&mut self, inode: InodeId, owner: LockOwner) {
        let owned = self.0.get_mut(&(inode, owner)).expect("what is given up is known");
        owned.giving -= 1;
        self.forget_if_idle(inode, owner);
    }

    /// Whether nothing is asked for nor given up.
    pub(crate) fn is_quiet(&self) -> bool {
        self.0.values().all(|owned| owned.asking == 0 && owned.giving == 0)
    }

    /// An earlier process held this.
    pub(crate) fn inherit(&mut self, inode: InodeId, lock: Lock) {
        self.0.entry((inode, lock.owner)).or_default().held.take(lock);
    }

    /// Everything that is held in a slot, in order of inodes.
    pub(crate) fn of_slot(&self, slot: SlotId) -> impl Iterator<Item = (InodeId, Lock)> {
        let least = LockOwner { node: 0, owner: 0 };
        let from = self.0.range((InodeId::new(slot, 0), least)..);
        let of_slot = from.take_while(move |((inode, _), _)| inode.slot() == slot);
        of_slot.flat_map(|((inode, _), owned)| owned.held.iter().map(|lock| (*inode, *lock)))
    }

    fn forget_if_idle(&mut self, inode: InodeId, owner: LockOwner) {
        let is_idle = |owned: &Owned| owned.held.is_empty() && owned.asking == 0 && owned.giving == 0;
        if self.0.get(&(inode, owner)).is_some_and(is_idle) {
            self.0.remove(&(inode, owner));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const FILE: InodeId = InodeId(10);
    const OWNER: LockOwner = LockOwner { node: 1, owner: 5 };

    fn lock(exclusive: bool, start: u64, last: u64) -> Lock {
        Lock { family: LockFamily::Posix, owner: OWNER, pid: 7, exclusive, start, last }
    }

    fn held(locks: &OwnLocks) -> Vec<(u64, u64)> {
        locks.of_slot(FILE.slot()).map(|(_, lock)| (lock.start, lock.last)).collect()
    }

    fn take(locks: &mut OwnLocks, lock: Lock) {
        let asked = locks.begin_ask(FILE, &lock, false).expect("nothing is given up");
        assert!(locks.end_ask(FILE, OWNER, asked, Some(lock)));
    }

    #[test]
    fn ranges_are_held_from_the_answer_until_they_are_given_up() {
        let mut locks = OwnLocks::default();
        let asked = locks.begin_ask(FILE, &lock(true, 0, 99), false).expect("nothing is given up");
        assert_eq!(held(&locks), []);
        assert!(locks.end_ask(FILE, OWNER, asked, Some(lock(true, 0, 99))));
        locks.begin_give(FILE, OWNER, &Given::Range(lock(false, 40, 59)));
        assert_eq!(held(&locks), [(0, 39), (60, 99)], "before the manager knows");
        locks.end_give(FILE, OWNER);
        let asked = locks.begin_ask(FILE, &lock(true, 0, 9), false).expect("nothing is given up");
        assert!(!locks.end_ask(FILE, OWNER, asked, None), "refused");
        assert_eq!(held(&locks), [(0, 39), (60, 99)]);
        locks.begin_give(FILE, OWNER, &Given::All);
        locks.end_give(FILE, OWNER);
        assert!(locks.0.is_empty());
    }

    #[test]
    fn a_grant_beside_which_something_was_given_up_is_not_taken() {
        let mut locks = OwnLocks::default();
        let asked = locks.begin_ask(FILE, &lock(true, 0, 9), false).expect("nothing is given up");
        locks.begin_give(FILE, OWNER, &Given::Range(lock(true, 0, 9)));
        assert_eq!(locks.begin_ask(FILE, &lock(true, 0, 9), false), None, "that comes first");
        locks.end_give(FILE, OWNER);
        assert!(!locks.end_ask(FILE, OWNER, asked, Some(lock(true, 0, 9))));
        take(&mut locks, lock(true, 0, 9));
    }

    #[test]
    fn a_waiting_flock_holds_nothing_that_it_converts() {
        let flock = |exclusive| Lock { family: LockFamily::Flock, ..lock(exclusive, 0, u64::MAX) };
        let mut locks = OwnLocks::default();
        take(&mut locks, flock(false));
        let asked = locks.begin_ask(FILE, &flock(true), false).expect("nothing is given up");
        assert_eq!(held(&locks), [(0, u64::MAX)], "it does not wait");
        locks.end_ask(FILE, OWNER, asked, None);
        locks.begin_ask(FILE, &flock(true), true).expect("nothing is given up");
        assert_eq!(held(&locks), []);
    }
}
