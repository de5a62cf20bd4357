//! Listing directories. Awaits.
//!
//! A listing goes on behind a cookie and needs nothing else: no handle, no state. `.` and `..` have the cookies 1 and 2,
//! which no entry has.

use std::time::Duration;

use protocol::file::{self, Kind};
use protocol::id::InodeId;

use super::kept_names::Leaving;
use super::translation::type_bits;
use super::{Call, Outcome};
use crate::attributes::Entry;
use crate::directory::{DirectoryBuffer, DirectoryEntry};
use crate::operation::Read;
use crate::{Errno, reply};

/// What an entry with a name of 16 bytes takes in an answer, without attributes and with them. Managers are asked for
/// as many entries as would fit then: a guess, and none the worse for being wrong.
const ENTRY_SIZE: u32 = 40;
const ENTRY_PLUS_SIZE: u32 = 168;
/// Entries that one call of a manager brings.
const ENTRIES_MAX: u32 = 4096;

const DOT: u64 = 1;
const DOT_DOT: u64 = 2;

impl Call {
    pub(super) async fn readdir(self, read: Read) -> Outcome {
        self.list(read, false).await
    }

    pub(super) async fn readdirplus(self, read: Read) -> Outcome {
        self.list(read, true).await
    }

    async fn list(self, read: Read, plus: bool) -> Outcome {
        let mut listing = Listing { buffer: DirectoryBuffer::new(read.size), plus };
        let parent = match read.offset {
            // The root of the mount is its own parent here; the kernel crosses the mount by itself.
            0 | DOT => self.client().parent(self.inode).await.unwrap_or(self.inode),
            _ => self.inode,
        };
        if !listing.push_dots(read.offset, self.inode, parent) {
            return Ok(reply::listing(self.unique, listing.buffer));
        }
        let entries = self.entries(read, plus, listing.buffer.room()).await?;
        let (now, is_kept) = (self.shared.host.now(), || self.keeps_names());
        if entries.is_empty() && read.offset >= DOT_DOT {
            if !self.shared.kept_listings.end(self.inode, now, is_kept) {
                self.shared.drop_listing(self.inode).await;
            }
            return Ok(reply::listing(self.unique, listing.buffer));
        }
        self.shared.kept_listings.part(self.inode, now, is_kept);
        // All was found, and nothing is waited for any more: what is valid now is so for the first entries, too.
        let mut on_its_way = self.shared.listings.begin(&self.shared.host);
        let valid = if plus { self.names_valid(Leaving::Later) } else { Duration::ZERO };
        for entry in &entries {
            if !listing.push(entry, |about| self.named_for(about, valid)) {
                break;
            }
        }
        let frame = reply::listing(self.unique, listing.buffer);
        if valid.is_zero() {
            return Ok(frame);
        }
        on_its_way.gives_names();
        Ok(frame.guarded(on_its_way))
    }

    /// The entries behind an offset: all that there are, or more than there is room for.
    async fn entries(&self, read: Read, plus: bool, room: usize) -> Result<Vec<file::DirectoryEntry>, Errno> {
        let limit = (read.size / if plus { ENTRY_PLUS_SIZE } else { ENTRY_SIZE }).clamp(1, ENTRIES_MAX);
        // Entries have cookies above those of the dots, so "behind none" is behind the dots as well.
        let mut after = if read.offset <= DOT_DOT { 0 } else { read.offset };
        let (mut found, mut bytes) = (Vec::new(), 0);
        // Every turn but the last takes `limit` entries towards a full buffer.
        loop {
            let (entries, is_last) = self.client().list(self.inode, after, limit, plus).await?;
            let Some(last) = entries.last() else { return Ok(found) };
            after = last.cookie;
            bytes += entries.iter().map(|entry| DirectoryBuffer::needed(&entry.name, plus)).sum::<usize>();
            found.extend(entries);
            if is_last || bytes > room {
                return Ok(found);
            }
        }
    }

    pub(super) async fn fsyncdir(self) -> Outcome {
        self.client().fsync_directory(self.inode).await?;
        Ok(self.done())
    }
}

/// An answer under construction.
struct Listing {
    buffer: DirectoryBuffer,
    /// With attributes.
    plus: bool,
}

impl Listing {
    /// Those of the two first entries that lie behind `offset`. False when the buffer is full.
    fn push_dots(&mut self, offset: u64, inode: InodeId, parent: InodeId) -> bool {
        let dots: [(u64, InodeId, &[u8]); 2] = [(DOT, inode, b"."), (DOT_DOT, parent, b"..")];
        dots.into_iter().filter(|&(cookie, ..)| cookie > offset).all(|(cookie, inode, name)| {
            let dot = DirectoryEntry { inode: inode.0, next: cookie, mode: type_bits(Kind::Directory), name };
            // The kernel counts no lookup of these two: they come without attributes.
            self.put(&dot, &Entry::default())
        })
    }

    /// One entry. False when the buffer is full.
    fn push(&mut self, entry: &file::DirectoryEntry, present: impl FnOnce(file::Attributes) -> Entry) -> bool {
        let (inode, next, mode) = (entry.inode.0, entry.cookie, type_bits(entry.kind));
        let shown = DirectoryEntry { inode, next, mode, name: &entry.name };
        // A name without attributes at hand is listed without them, and looked up when somebody asks.
        let about = entry.attributes.filter(|_| self.plus).map(present).unwrap_or_default();
        self.put(&shown, &about)
    }

    fn put(&mut self, entry: &DirectoryEntry<'_>, about: &Entry) -> bool {
        if self.plus { self.buffer.push_plus(entry, about) } else { self.buffer.push(entry) }
    }
}

#[cfg(test)]
mod tests {
    use bytes::Bytes;

    use super::*;
    use crate::face::tests;
    use crate::operation::NodeId;

    fn entry(cookie: u64, name: &'static str) -> file::DirectoryEntry {
        let name = Bytes::from_static(name.as_bytes());
        file::DirectoryEntry { cookie, name, inode: InodeId(cookie + 100), kind: Kind::File, attributes: None }
    }

    fn word(bytes: &[u8], at: usize) -> u64 {
        u64::from_ne_bytes(bytes[at..at + 8].try_into().unwrap())
    }

    /// Inode number, cookie and name of each entry of a plain listing.
    fn read(bytes: &[u8]) -> Vec<(u64, u64, Vec<u8>)> {
        let mut entries = Vec::new();
        let mut at = 0;
        while at < bytes.len() {
            let length = (word(bytes, at + 16) & 0xffff_ffff) as usize;
            entries.push((word(bytes, at), word(bytes, at + 8), bytes[at + 24..at + 24 + length].to_vec()));
            at += (24 + length).next_multiple_of(8);
        }
        entries
    }

    fn plain(size: u32) -> Listing {
        Listing { buffer: DirectoryBuffer::new(size), plus: false }
    }

    #[test]
    fn a_listing_begins_with_the_dots_and_goes_on_behind_any_cookie() {
        for (offset, names) in [(0, &[".", "..", "a"][..]), (1, &["..", "a"]), (2, &["a"]), (77, &["a"])] {
            let mut listing = plain(4096);
            assert!(listing.push_dots(offset, InodeId(9), InodeId(8)));
            assert!(listing.push(&entry(1 << 40, "a"), |_| unreachable!("no attributes were asked for")));
            let listed = read(&listing.buffer.into_bytes());
            assert_eq!(
                listed.iter().map(|(.., name)| name.as_slice()).collect::<Vec<_>>(),
                names.iter().map(|name| name.as_bytes()).collect::<Vec<_>>()
            );
        }
        let mut listing = plain(4096);
        assert!(listing.push_dots(0, InodeId(9), InodeId(8)));
        assert_eq!(read(&listing.buffer.into_bytes()), [(9, 1, b".".to_vec()), (8, 2, b"..".to_vec())]);
    }

    #[test]
    fn a_listing_is_never_longer_than_was_asked_for() {
        for size in 0..200 {
            let mut listing = plain(size);
            let entries = [entry(3, "first"), entry(4, "a second with a longer name"), entry(5, "c")];
            let fit = listing.push_dots(0, InodeId(9), InodeId(8))
                && entries.iter().all(|entry| listing.push(entry, |_| Entry::default()));
            let bytes = listing.buffer.into_bytes();
            assert!(bytes.len() <= size as usize);
            assert_eq!(fit, read(&bytes).len() == 5, "{size}");
        }
    }

    #[test]
    fn attributes_at_hand_count_as_a_lookup_and_the_dots_do_not() {
        let mut listing = Listing { buffer: DirectoryBuffer::new(4096), plus: true };
        assert!(listing.push_dots(0, InodeId(9), InodeId(8)));
        let mut known = entry(3, "known");
        known.attributes = Some(file::Attributes { inode: known.inode, ..tests::file() });
        let present = |about: file::Attributes| Entry { node: NodeId(about.inode.0), ..Entry::default() };
        assert!(listing.push(&known, present) && listing.push(&entry(4, "unknown"), present));
        let bytes = listing.buffer.into_bytes();
        let nodes: Vec<u64> = (0..4).map(|number| word(&bytes, number * 160)).collect();
        assert_eq!(nodes, [0, 0, 103, 0]);
    }
}
