//! What a simulated kernel remembers of names and attributes.
//!
//! As Linux does (fs/fuse/dir.c, fs/fuse/inode.c): a name is good as long as its answer allows, from when that came, and the epoch
//! is the one that there was when it was asked for. Attributes are good as long, and until they are to be forgotten; what was
//! asked for before that, and is answered behind it, is not kept.

use std::collections::BTreeMap;

use bytes::Bytes;
use host::Moment;
use protocol::id::InodeId;

/// The names and attributes that one mount has in memory.
#[derive(Default)]
pub struct Dentries {
    epoch: u64,
    /// Until when each is good, and its epoch; none: there is no such name.
    names: BTreeMap<(InodeId, Bytes), (Moment, u64, Option<InodeId>)>,
    /// Counts what is to be forgotten.
    moments: u64,
    forgotten: BTreeMap<InodeId, u64>,
    owners: BTreeMap<InodeId, (Moment, u32)>,
    listings: BTreeMap<InodeId, Listing>,
}

/// What is kept of a directory's listing, whoever reads it (fs/fuse/readdir.c).
#[derive(Default)]
struct Listing {
    names: Vec<(Bytes, InodeId)>,
    /// The cookie of the last name.
    last: u64,
    /// It was read to its end.
    is_whole: bool,
    /// Pages were dropped; or the directory was changed here. Either is found when it is read again from the beginning.
    has_gaps: bool,
    is_changed: bool,
}

/// When something was asked for.
#[derive(Clone, Copy)]
pub struct Asked {
    epoch: u64,
    moment: u64,
}

impl Dentries {
    /// Something is asked for now.
    pub fn ask(&self) -> Asked {
        Asked { epoch: self.epoch, moment: self.moments }
    }

    /// What a name is, if that is known.
    pub fn name(&self, directory: InodeId, name: &Bytes, now: Moment) -> Option<Option<InodeId>> {
        let (until, epoch, found) = self.names.get(&(directory, name.clone()))?;
        (now < *until && *epoch == self.epoch).then_some(*found)
    }

    /// A name may be kept until then.
    pub fn keep_name(&mut self, name: (InodeId, Bytes), found: Option<InodeId>, asked: Asked, until: Moment) {
        self.names.insert(name, (until, asked.epoch, found));
    }

    /// A name is another's, or nobody's.
    pub fn drop_name(&mut self, directory: InodeId, name: &Bytes) {
        self.names.remove(&(directory, name.clone()));
        self.listings.entry(directory).or_default().is_changed = true;
    }

    /// What a directory has, if that is known. Who has it open and begins anew does not ask whether it was changed.
    pub fn listing(&mut self, directory: InodeId) -> Option<Vec<(Bytes, InodeId)>> {
        let listing = self.listings.get(&directory).filter(|listing| listing.is_whole)?;
        if listing.has_gaps || listing.is_changed {
            self.listings.remove(&directory);
            return None;
        }
        Some(listing.names.clone())
    }

    /// A name was read behind the first of these cookies, and has the second: it is kept behind the one with the first.
    pub fn keep_listed(&mut self, directory: InodeId, (behind, cookie): (u64, u64), name: (Bytes, InodeId)) {
        let listing = self.listings.entry(directory).or_default();
        if !listing.is_whole && !listing.has_gaps && listing.last == behind {
            listing.names.push(name);
            listing.last = cookie;
        }
    }

    /// Behind this cookie there is nothing.
    pub fn keep_end(&mut self, directory: InodeId, behind: u64) {
        let listing = self.listings.entry(directory).or_default();
        listing.is_whole |= listing.last == behind;
    }

    /// Pages of a directory are to be dropped.
    pub fn drop_listing(&mut self, directory: InodeId) {
        if let Some(listing) = self.listings.get_mut(&directory) {
            listing.has_gaps |= listing.last > 0;
        }
    }

    /// Whose a directory is, if that is known.
    pub fn owner(&self, inode: InodeId, now: Moment) -> Option<u32> {
        self.owners.get(&inode).filter(|(until, _)| now < *until).map(|(_, owner)| *owner)
    }

    /// The owner may be kept until then.
    pub fn keep_owner(&mut self, inode: InodeId, owner: u32, asked: Asked, until: Moment) {
        if self.forgotten.get(&inode).is_none_or(|&moment| moment <= asked.moment) {
            self.owners.insert(inode, (until, owner));
        }
    }

    /// No name that is known is good any more.
    pub fn increment_epoch(&mut self) {
        self.epoch += 1;
    }

    /// Attributes are to be forgotten.
    pub fn forget(&mut self, inode: InodeId) {
        self.moments += 1;
        self.forgotten.insert(inode, self.moments);
        self.owners.remove(&inode);
    }
}
