//! The reply to READDIR and READDIRPLUS: as many entries as fit the size the kernel asked for.
//!
//! Invariants:
//! 1. The buffer is never longer than that size, or the kernel refuses the reply.
//! 2. Entries are in the order pushed, without a gap: once one did not fit, none follows, however short.
//! 3. Each entry is padded to eight bytes, the last one too.

use bytes::Bytes;

use crate::abi::{Dirent, EntryOut};
use crate::attributes::Entry;
use crate::layout::Layout;

/// One name of a directory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct DirectoryEntry<'a> {
    /// The inode number programs see (d_ino).
    pub inode: u64,
    /// The cookie with which the kernel asks for what follows this entry; never 0.
    pub next: u64,
    /// The type bits of the inode's mode; 0 if unknown.
    pub mode: u32,
    /// The name: one component, neither empty nor with a slash, or the kernel answers EIO for the whole listing.
    pub name: &'a [u8],
}

/// A listing under construction.
#[derive(Clone, Debug)]
pub struct DirectoryBuffer {
    bytes: Vec<u8>,
    size_max: usize,
    full: bool,
}

impl DirectoryBuffer {
    /// Most bytes a listing may have, whatever the request says: what the kernel itself can ask for.
    const SIZE_MAX: u32 = 1 << 20;

    /// A listing of at most `size` bytes, the `size` of the request.
    pub fn new(size: u32) -> Self {
        let size_max = size.min(Self::SIZE_MAX) as usize;
        Self { bytes: Vec::with_capacity(size_max), size_max, full: false }
    }

    /// Appends an entry to the answer of READDIR. False if it does not fit: the listing is then complete.
    #[must_use = "an entry that did not fit must be listed next time"]
    pub fn push(&mut self, entry: &DirectoryEntry<'_>) -> bool {
        let fits = self.admits(entry.name, false);
        if fits {
            self.append(entry);
        }
        fits
    }

    /// Appends an entry to the answer of READDIRPLUS. What fits counts as a lookup of its node; an `Entry` with node 0
    /// gives the name alone, and must be used for "." and "..", of which the kernel counts no lookup.
    #[must_use = "an entry that did not fit must be listed next time, and is no lookup"]
    pub fn push_plus(&mut self, entry: &DirectoryEntry<'_>, inode: &Entry) -> bool {
        assert!(inode.node.0 == 0 || !matches!(entry.name, b"." | b".."), "a lookup that no FORGET would give back");
        let fits = self.admits(entry.name, true);
        if fits {
            EntryOut::from(inode).put(&mut self.bytes);
            self.append(entry);
        }
        fits
    }

    /// Whether an entry was refused.
    pub fn is_full(&self) -> bool {
        self.full
    }

    /// What an entry with this name takes in the answer of READDIR, or of READDIRPLUS.
    pub fn needed(name: &[u8], plus: bool) -> usize {
        let fixed_bytes = Dirent::SIZE + if plus { EntryOut::SIZE } else { 0 };
        (fixed_bytes + name.len()).next_multiple_of(8)
    }

    /// How many bytes are left.
    pub fn room(&self) -> usize {
        self.size_max - self.bytes.len()
    }

    /// The bytes of the reply; none at the end of the directory.
    pub fn into_bytes(self) -> Bytes {
        self.bytes.into()
    }

    fn admits(&mut self, name: &[u8], plus: bool) -> bool {
        assert!(!name.is_empty(), "a directory entry without a name");
        self.full |= self.room() < Self::needed(name, plus);
        !self.full
    }

    fn append(&mut self, entry: &DirectoryEntry<'_>) {
        let namelen = u32::try_from(entry.name.len()).expect("it fits a buffer of less than 4 GiB");
        let kind = (entry.mode >> 12) & 0xf;
        Dirent { ino: entry.inode, off: entry.next, namelen, kind }.put(&mut self.bytes);
        self.bytes.extend_from_slice(entry.name);
        self.bytes.resize(self.bytes.len().next_multiple_of(8), 0);
    }
}
