//! Who may hold locks, so that closing a file that nobody locked costs no call. Decides, never awaits.
//!
//! | locks of | go with | the kernel says so by |
//! |---|---|---|
//! | a process (`F_SETLK`) | its first close of the file | FLUSH, with the owner |
//! | an open file (`F_OFD_SETLK`) | its last descriptor | nothing: RELEASE names the handle alone |
//! | an open file (`flock`) | its last descriptor | RELEASE, with the owner |
//!
//! So an owner is noted together with the handle that it last locked through: what is still noted for a handle when that
//! is released belonged to the open file.

use std::collections::BTreeMap;
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, Ordering};

use protocol::id::InodeId;

use super::lock;
use crate::operation::{Handle, LockOwner};

/// The owners.
#[derive(Debug, Default)]
pub(crate) struct Holders {
    /// Spares most closers the lock: whether there was ever one.
    any: AtomicBool,
    owners: Mutex<BTreeMap<(InodeId, LockOwner), Handle>>,
}

impl Holders {
    /// The owner is about to ask for a lock, or was just granted one.
    pub(crate) fn note(&self, inode: InodeId, owner: LockOwner, handle: Handle) {
        lock(&self.owners).insert((inode, owner), handle);
        self.any.store(true, Ordering::Release);
    }

    /// All owners, and the handles that they last locked through.
    pub(crate) fn all(&self) -> impl Iterator<Item = (InodeId, LockOwner, Handle)> + use<> {
        let owners = lock(&self.owners).clone();
        owners.into_iter().map(|((inode, owner), handle)| (inode, owner, handle))
    }

    /// The owner closes the file; true if it may hold something there.
    pub(crate) fn flush(&self, inode: InodeId, owner: LockOwner) -> bool {
        self.any.load(Ordering::Acquire) && lock(&self.owners).remove(&(inode, owner)).is_some()
    }

    /// The open file is no more; the owners that may hold something through it.
    pub(crate) fn release(&self, inode: InodeId, handle: Handle) -> Vec<LockOwner> {
        if !self.any.load(Ordering::Acquire) {
            return Vec::new();
        }
        let mut owners = lock(&self.owners);
        let of_file = owners.range((inode, LockOwner(0))..=(inode, LockOwner(u64::MAX)));
        let gone: Vec<_> = of_file.filter(|&(_, &through)| through == handle).map(|(&key, _)| key).collect();
        for key in &gone {
            owners.remove(key);
        }
        gone.into_iter().map(|(_, owner)| owner).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const FILE: InodeId = InodeId(7);

    #[test]
    fn a_process_gives_up_its_locks_with_its_first_close() {
        let holders = Holders::default();
        assert!(!holders.flush(FILE, LockOwner(1)));
        holders.note(FILE, LockOwner(1), Handle(10));
        assert!(!holders.flush(FILE, LockOwner(2)), "another process holds nothing");
        assert!(!holders.flush(InodeId(8), LockOwner(1)), "nor does it hold anything of another file");
        assert!(holders.flush(FILE, LockOwner(1)));
        assert!(!holders.flush(FILE, LockOwner(1)));
        assert!(holders.release(FILE, Handle(10)).is_empty());
    }

    #[test]
    fn an_open_file_gives_up_its_locks_with_its_last_descriptor() {
        let holders = Holders::default();
        holders.note(FILE, LockOwner(u64::MAX), Handle(10));
        holders.note(FILE, LockOwner(0), Handle(11));
        holders.note(InodeId(8), LockOwner(5), Handle(10));
        assert_eq!(holders.release(FILE, Handle(10)), [LockOwner(u64::MAX)]);
        assert!(holders.release(FILE, Handle(10)).is_empty());
        assert_eq!(holders.release(FILE, Handle(11)), [LockOwner(0)]);
    }

    #[test]
    fn a_lock_taken_again_through_another_handle_outlives_the_first() {
        let holders = Holders::default();
        holders.note(FILE, LockOwner(1), Handle(10));
        holders.note(FILE, LockOwner(1), Handle(11));
        assert!(holders.release(FILE, Handle(10)).is_empty());
        assert!(holders.flush(FILE, LockOwner(1)));
    }
}
