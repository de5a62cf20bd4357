//! What the kernel was last told of directories and special files, and just now of others. Decides, never awaits.
//!
//! A file that loses its last name lives on while it is open. Directories, pipes, sockets and devices are opened in the
//! kernel alone, so their manager forgets them at once; but a process may stand in such a directory, or hold such a pipe,
//! and ask for its attributes (POSIX rmdir, unlink). They are what they were, with no name left. The kernel says when it
//! has forgotten an inode, which it does not while anyone uses it.
//!
//! Between a name and a `stat` of what it names, another file may take the name. The kernel then tries once more and gives
//! up: to the program a name seemed to lead nowhere that was there all along. So what files were a moment ago is known, too.

use std::collections::BTreeMap;
use std::sync::Mutex;

use protocol::file::{Attributes, Kind};
use protocol::id::{InodeId, SlotId};

use super::lock;

/// How many are remembered; beyond, the oldest are not.
const INODES_MAX: usize = 1 << 16;

/// How many places there are for files: more than are looked up while one `stat` is under way.
const FILES: usize = 1 << 10;

/// The last words.
#[derive(Debug)]
pub(crate) struct Told {
    /// Of directories and special files.
    lasting: Mutex<BTreeMap<InodeId, Attributes>>,
    /// Of files and symbolic links, each at the place that its number gives, until another comes there.
    passing: Mutex<Vec<Option<Attributes>>>,
}

impl Default for Told {
    fn default() -> Told {
        Told { lasting: Mutex::default(), passing: Mutex::new(vec![None; FILES]) }
    }
}

impl Told {
    /// Attributes are on their way to the kernel.
    pub(crate) fn pass(&self, attributes: &Attributes) {
        if matches!(attributes.kind, Kind::File | Kind::Symlink) {
            lock(&self.passing)[place(attributes.inode)] = Some(*attributes);
            return;
        }
        let mut told = lock(&self.lasting);
        told.insert(attributes.inode, *attributes);
        if told.len() > INODES_MAX {
            told.pop_first();
        }
    }

    /// Whether the kernel was told that it is a directory.
    pub(crate) fn is_directory(&self, inode: InodeId) -> bool {
        lock(&self.lasting).get(&inode).is_some_and(|attributes| attributes.kind == Kind::Directory)
    }

    /// What there is to say of an inode that its manager no longer knows.
    pub(crate) fn departed(&self, inode: InodeId) -> Option<Attributes> {
        let passing = || lock(&self.passing)[place(inode)].filter(|attributes| attributes.inode == inode);
        let last = lock(&self.lasting).get(&inode).copied().or_else(passing)?;
        Some(Attributes { links: 0, ..last })
    }

    /// The directories and special files of a slot that the kernel was told of.
    pub(crate) fn of_slot(&self, slot: SlotId) -> Vec<InodeId> {
        let told = lock(&self.lasting);
        let behind = told.range(InodeId::new(slot, 0)..).map(|(&inode, _)| inode);
        behind.take_while(|inode| inode.slot() == slot).collect()
    }

    /// All directories and special files that the kernel was told of.
    pub(crate) fn all(&self) -> Vec<InodeId> {
        lock(&self.lasting).keys().copied().collect()
    }

    /// What it was told of them.
    pub(crate) fn lasting(&self) -> Vec<Attributes> {
        lock(&self.lasting).values().copied().collect()
    }

    /// The kernel has forgotten the inodes. It may have asked for one again meanwhile, and have to ask once more.
    pub(crate) fn forget(&self, inodes: impl Iterator<Item = InodeId>) {
        let mut told = lock(&self.lasting);
        for inode in inodes {
            told.remove(&inode);
        }
    }
}

/// Where a file is remembered.
fn place(inode: InodeId) -> usize {
    (inode.0 % FILES as u64) as usize
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::face::tests::file;

    #[test]
    fn a_removed_directory_is_what_it_was_but_without_a_name() {
        let told = Told::default();
        let directory = Attributes { kind: Kind::Directory, mode: 0o711, ..file() };
        told.pass(&directory);
        assert_eq!(told.departed(directory.inode), Some(Attributes { links: 0, ..directory }));
        told.forget([directory.inode].into_iter());
        assert_eq!(told.departed(directory.inode), None);
    }

    #[test]
    fn a_file_is_remembered_until_another_takes_its_place() {
        let (told, first) = (Told::default(), file());
        told.pass(&first);
        assert_eq!(told.departed(first.inode), Some(Attributes { links: 0, ..first }));
        assert!(told.all().is_empty(), "it is no directory");
        told.pass(&Attributes { inode: InodeId(first.inode.0 + FILES as u64), ..first });
        assert_eq!(told.departed(first.inode), None);
    }

    #[test]
    fn no_more_are_remembered_than_fit() {
        let told = Told::default();
        for number in 1..=INODES_MAX as u64 + 10 {
            told.pass(&Attributes { inode: InodeId(number), kind: Kind::Pipe, ..file() });
        }
        assert_eq!(lock(&told.lasting).len(), INODES_MAX);
        assert_eq!(told.departed(InodeId(1)), None);
    }
}
