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

/// So many are remembered. Beyond, so many go at once: those that the kernel was told of the longest time ago.
const INODES_MAX: usize = 1 << 16;
const GO_AT_ONCE: usize = 1 << 10;

/// How many places there are for files: more than are looked up while one `stat` is under way.
const FILES: usize = 1 << 10;

/// The last words.
#[derive(Debug)]
pub(crate) struct Told {
    /// Of directories and special files.
    lasting: Mutex<Lasting>,
    /// Of files and symbolic links, each at the place that its number gives, until another comes there.
    passing: Mutex<Vec<Option<Attributes>>>,
}

#[derive(Debug, Default)]
struct Lasting {
    /// With the number under which each stands in `by_age`.
    known: BTreeMap<InodeId, (Attributes, u64)>,
    /// In the order in which the kernel was last told of them. The root is not among them: every path begins with it.
    by_age: BTreeMap<u64, InodeId>,
    passed: u64,
}

impl Lasting {
    fn put(&mut self, attributes: Attributes) {
        let inode = attributes.inode;
        self.remove(inode);
        self.passed += 1;
        self.known.insert(inode, (attributes, self.passed));
        if inode != InodeId::ROOT {
            self.by_age.insert(self.passed, inode);
        }
    }

    fn remove(&mut self, inode: InodeId) {
        if let Some((_, passed)) = self.known.remove(&inode) {
            self.by_age.remove(&passed);
        }
    }

    /// Those that are too many.
    fn take_oldest(&mut self) -> Vec<InodeId> {
        if self.known.len() <= INODES_MAX {
            return Vec::new();
        }
        let oldest: Vec<InodeId> = self.by_age.values().take(GO_AT_ONCE).copied().collect();
        oldest.iter().for_each(|&inode| self.remove(inode));
        oldest
    }
}

impl Default for Told {
    fn default() -> Told {
        Told { lasting: Mutex::default(), passing: Mutex::new(vec![None; FILES]) }
    }
}

impl Told {
    /// Attributes are on their way to the kernel. It has to forget those that are returned: nobody remembers any more that it
    /// was told of them.
    pub(crate) fn pass(&self, attributes: &Attributes) -> Vec<InodeId> {
        if matches!(attributes.kind, Kind::File | Kind::Symlink) {
            lock(&self.passing)[place(attributes.inode)] = Some(*attributes);
            return Vec::new();
        }
        let mut told = lock(&self.lasting);
        told.put(*attributes);
        told.take_oldest()
    }

    /// Whether the kernel was told that it is a directory.
    pub(crate) fn is_directory(&self, inode: InodeId) -> bool {
        lock(&self.lasting).known.get(&inode).is_some_and(|(attributes, _)| attributes.kind == Kind::Directory)
    }

    /// What there is to say of an inode that its manager no longer knows.
    pub(crate) fn departed(&self, inode: InodeId) -> Option<Attributes> {
        let passing = || lock(&self.passing)[place(inode)].filter(|attributes| attributes.inode == inode);
        let lasting = lock(&self.lasting).known.get(&inode).map(|(attributes, _)| *attributes);
        let last = lasting.or_else(passing)?;
        Some(Attributes { links: 0, ..last })
    }

    /// The directories and special files of a slot that the kernel was told of.
    pub(crate) fn of_slot(&self, slot: SlotId) -> Vec<InodeId> {
        let told = lock(&self.lasting);
        let behind = told.known.range(InodeId::new(slot, 0)..).map(|(&inode, _)| inode);
        behind.take_while(|inode| inode.slot() == slot).collect()
    }

    /// All directories and special files that the kernel was told of.
    pub(crate) fn all(&self) -> Vec<InodeId> {
        lock(&self.lasting).known.keys().copied().collect()
    }

    /// What it was told of them, in the order in which it was last told.
    pub(crate) fn lasting(&self) -> Vec<Attributes> {
        let mut told: Vec<(Attributes, u64)> = lock(&self.lasting).known.values().copied().collect();
        told.sort_by_key(|&(_, passed)| passed);
        told.into_iter().map(|(attributes, _)| attributes).collect()
    }

    /// The kernel has forgotten the inodes. It may have asked for one again meanwhile, and have to ask once more.
    pub(crate) fn forget(&self, inodes: &[InodeId]) {
        let mut told = lock(&self.lasting);
        for &inode in inodes {
            told.remove(inode);
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
        told.forget(&[directory.inode]);
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
    fn of_too_many_the_kernel_forgets_those_it_was_told_of_long_ago_and_never_the_root() {
        let told = Told::default();
        let pass = |inode| told.pass(&Attributes { inode, kind: Kind::Directory, ..file() });
        let inode = |number| InodeId::new(SlotId(2), number);
        pass(InodeId::ROOT);
        // Of the first it is told once more, later.
        let first: Vec<_> = (1..INODES_MAX as u64).chain([1]).flat_map(|number| pass(inode(number))).collect();
        assert_eq!(first, []);
        // In a slot with a lower number.
        let last = InodeId::new(SlotId(1), 5);
        let forgotten = pass(last);
        assert_eq!(forgotten, (0..GO_AT_ONCE as u64).map(|nth| inode(nth + 2)).collect::<Vec<_>>());
        assert_eq!(told.all().len() + forgotten.len(), INODES_MAX + 1);
        assert_eq!((told.of_slot(SlotId(0)), told.of_slot(SlotId(1))), (vec![InodeId::ROOT], vec![last]));
        assert_eq!((told.is_directory(inode(1)), told.departed(inode(2))), (true, None));
    }
}
