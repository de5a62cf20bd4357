//! Which files may have set-id bits: a write by a plain user takes those away. Decides, never awaits.
//!
//! The kernel says with every WRITE of a plain user that the bits must go, and asking a manager each time would double the
//! cost of writing. But whoever writes to a file has been told its attributes, so every such file has passed here.
//!
//! Invariant: a file with set-id bits that the kernel knows of is in the set, or `lost_count` is set.

use std::collections::BTreeSet;
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, Ordering};

use protocol::file::Attributes;
use protocol::id::InodeId;

use super::{lock, translation};

/// Beyond so many, all files count as such.
const FILES_MAX: usize = 1 << 16;

/// The set.
#[derive(Debug, Default)]
pub(crate) struct SetIds {
    /// Spares most writers the lock.
    any: AtomicBool,
    files: Mutex<Files>,
}

#[derive(Debug, Default)]
struct Files {
    known: BTreeSet<InodeId>,
    lost_count: bool,
}

impl SetIds {
    /// Attributes are on their way to the kernel.
    pub(crate) fn pass(&self, attributes: &Attributes) {
        if translation::has_set_id(attributes) {
            self.put(attributes.inode);
        }
    }

    /// The file may have such bits.
    pub(crate) fn put(&self, inode: InodeId) {
        let mut files = lock(&self.files);
        if files.known.len() < FILES_MAX {
            files.known.insert(inode);
        } else {
            files.lost_count = true;
        }
        self.any.store(true, Ordering::Release);
    }

    /// All that is known; and whether there are more.
    pub(crate) fn all(&self) -> (Vec<InodeId>, bool) {
        let files = lock(&self.files);
        (files.known.iter().copied().collect(), files.lost_count)
    }

    /// What another face knew.
    pub(crate) fn inherit(&self, (known, lost_count): (Vec<InodeId>, bool)) {
        known.into_iter().for_each(|inode| self.put(inode));
        if lost_count {
            lock(&self.files).lost_count = true;
            self.any.store(true, Ordering::Release);
        }
    }

    /// Whether the file may have such bits. If so it is the caller's now to take them away, and what the manager then
    /// answers must pass here again: a `chmod` that comes later puts the file back.
    pub(crate) fn take(&self, inode: InodeId) -> bool {
        if !self.any.load(Ordering::Acquire) {
            return false;
        }
        let mut files = lock(&self.files);
        files.known.remove(&inode) || files.lost_count
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::face::tests;

    fn file(number: u64, mode: u16) -> Attributes {
        Attributes { inode: InodeId(number), mode, ..tests::file() }
    }

    #[test]
    fn only_files_seen_with_set_id_bits_are_asked_about() {
        let files = SetIds::default();
        files.pass(&file(1, 0o755));
        assert!(!files.take(InodeId(1)));
        files.pass(&file(2, 0o4755));
        assert!(!files.take(InodeId(1)));
        assert!(files.take(InodeId(2)));
        assert!(!files.take(InodeId(2)), "it was taken away");
        files.pass(&file(2, 0o2755));
        assert!(files.take(InodeId(2)), "and given again");
    }

    #[test]
    fn beyond_the_bound_every_file_is_asked_about() {
        let files = SetIds::default();
        (0..=FILES_MAX as u64).for_each(|number| files.pass(&file(number, 0o4755)));
        assert!(files.take(InodeId(1 << 40)));
    }
}
