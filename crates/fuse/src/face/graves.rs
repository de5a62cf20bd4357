//! Directories that were removed while a process may stand in them. Decides, never awaits.
//!
//! A removed directory is gone from its manager at once, since a directory is not opened there; but `fstat` on a
//! descriptor of it, or `stat(".")`, must still answer (POSIX rmdir). The kernel forgets the inode when the last process
//! has left.

use std::collections::BTreeMap;
use std::sync::Mutex;

use protocol::file::{Attributes, Time};
use protocol::id::InodeId;

use super::lock;

/// How many are remembered. Nobody stands in most of them, and the kernel says so soon.
const GRAVES_MAX: usize = 4096;

/// What the dead last looked like.
#[derive(Debug, Default)]
pub(crate) struct Graves(Mutex<BTreeMap<InodeId, Attributes>>);

impl Graves {
    /// The directory was removed.
    pub(crate) fn bury(&self, attributes: Attributes, now: Time) {
        let mut graves = lock(&self.0);
        if graves.len() >= GRAVES_MAX {
            graves.pop_first();
        }
        graves.insert(attributes.inode, Attributes { links: 0, size: 0, stored: 0, changed: now, ..attributes });
    }

    /// What it looked like, if it is one of them.
    pub(crate) fn find(&self, inode: InodeId) -> Option<Attributes> {
        lock(&self.0).get(&inode).copied()
    }

    /// The kernel forgot the inode, as far as it asked for it so often.
    pub(crate) fn forget(&self, inode: InodeId) {
        let mut graves = lock(&self.0);
        if !graves.is_empty() {
            graves.remove(&inode);
        }
    }
}
