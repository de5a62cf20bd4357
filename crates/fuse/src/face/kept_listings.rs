//! Of which directories the kernel may keep a listing. Decides, never awaits.
//!
//! Linux keeps what a program lists, part for part, and takes it for whole when it is answered that nothing follows; from
//! then on it answers the next programs by itself (fs/fuse/readdir.c, `fuse_readdir_cached`). Who opens the directory has
//! it look first whether the directory's time of modification is another. Who holds it open and begins anew (`rewinddir`)
//! does not, and times can be set back. So a listing stays only where the kernel is told when it changes: where the names
//! were kept from its first part to its end. Else the kernel drops the parts that it has before it hears of the end; of
//! what it takes for whole and finds parts missing it asks anew.
//!
//! Invariant: of a directory of which the kernel may have a part that was told without keeping the names, or before they
//! were given up, no end is answered before its parts are dropped.

use std::collections::BTreeMap;
use std::sync::Mutex;

use host::Moment;
use protocol::id::{InodeId, SlotId};

use super::call_backs::ON_ITS_WAY_BACK;
use super::lock;

/// So many directories are known. Listings of more do not stay.
const DIRECTORIES_MAX: usize = 1 << 17;

/// The directories that were listed.
#[derive(Default)]
pub(super) struct KeptListings(Mutex<BTreeMap<InodeId, Parts>>);

/// What the kernel may have of a directory.
struct Parts {
    /// When the last one was told, and whether their end was since.
    told: Moment,
    ended: bool,
    /// Until when such may have been told that must not stay.
    old: Option<Moment>,
}

impl KeptListings {
    /// A part is about to be told. Whether the names are kept is asked for here, so that whoever gives them up comes before
    /// the question or behind what is noted.
    pub(super) fn part(&self, directory: InodeId, now: Moment, is_kept: impl FnOnce() -> bool) {
        let mut directories = lock(&self.0);
        if directories.len() >= DIRECTORIES_MAX && !directories.contains_key(&directory) {
            return;
        }
        let parts = directories.entry(directory).or_insert(Parts { told: now, ended: false, old: None });
        (parts.told, parts.ended) = (now, false);
        if !is_kept() {
            parts.old = Some(now);
        }
    }

    /// The end is about to be told; false if the parts have to be dropped first.
    pub(super) fn end(&self, directory: InodeId, now: Moment, is_kept: impl FnOnce() -> bool) -> bool {
        let mut directories = lock(&self.0);
        let Some(parts) = directories.get_mut(&directory) else { return false };
        parts.ended = true;
        let stays = is_kept() && parts.old.is_none();
        // What is still on its way is not dropped.
        parts.old = parts.old.filter(|old| now - *old < ON_ITS_WAY_BACK);
        stays
    }

    /// Nobody tells any more when a directory changes, and the parts are dropped that the kernel has by now; false if it
    /// has none, nor will.
    pub(super) fn give_up(&self, directory: InodeId, now: Moment) -> bool {
        let mut directories = lock(&self.0);
        let Some(parts) = directories.get_mut(&directory) else { return false };
        if parts.ended && now - parts.told >= ON_ITS_WAY_BACK {
            directories.remove(&directory);
        } else {
            parts.old = Some(now);
        }
        true
    }

    /// Those of a slot that were listed.
    pub(super) fn of_slot(&self, slot: SlotId) -> Vec<InodeId> {
        lock(&self.0).range(slot.inodes()).map(|(&directory, _)| directory).collect()
    }

    /// All that were listed.
    pub(super) fn all(&self) -> Vec<InodeId> {
        lock(&self.0).keys().copied().collect()
    }

    /// The kernel may have parts of these that another process told it.
    pub(super) fn inherit(&self, listed: impl Iterator<Item = InodeId>, now: Moment) {
        let parts = || Parts { told: now, ended: false, old: Some(now) };
        lock(&self.0).extend(listed.map(|directory| (directory, parts())));
    }

    /// The kernel has forgotten these.
    pub(super) fn forget(&self, inodes: &[InodeId]) {
        let mut directories = lock(&self.0);
        for inode in inodes {
            directories.remove(inode);
        }
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    const DIRECTORY: InodeId = InodeId(7);
    const OTHER: InodeId = InodeId(8);

    fn at(milliseconds: u64) -> Moment {
        Moment::default() + Duration::from_millis(milliseconds)
    }

    fn part(listings: &KeptListings, is_kept: bool, milliseconds: u64) {
        listings.part(DIRECTORY, at(milliseconds), || is_kept);
    }

    fn end(listings: &KeptListings, milliseconds: u64) -> bool {
        listings.end(DIRECTORY, at(milliseconds), || true)
    }

    #[test]
    fn a_listing_stays_whose_names_were_kept_all_the_while() {
        let listings = KeptListings::default();
        part(&listings, true, 0);
        part(&listings, true, 1);
        assert!(end(&listings, 2));
        part(&listings, true, 3);
        assert!(!listings.end(DIRECTORY, at(4), || false), "nobody would tell when it changes");
        assert!(!listings.end(OTHER, at(4), || true), "nobody knows what parts the kernel has");
    }

    #[test]
    fn no_part_stays_that_was_told_without_a_token_or_before_it_was_given_up() {
        let listings = KeptListings::default();
        part(&listings, false, 0);
        // Somebody else reads the rest, later.
        part(&listings, true, 500);
        assert!(!end(&listings, 501));
        part(&listings, true, 502);
        assert!(end(&listings, 503), "all that was old was dropped");
        part(&listings, true, 600);
        assert!(listings.give_up(DIRECTORY, at(601)));
        part(&listings, true, 602);
        assert!(!end(&listings, 603));
        assert!(!end(&listings, 702), "the first one may have come behind what was dropped");
        assert!(end(&listings, 703));
    }

    #[test]
    fn what_was_whole_and_is_given_up_is_forgotten() {
        let listings = KeptListings::default();
        part(&listings, true, 0);
        assert!(end(&listings, 1));
        assert!(listings.give_up(DIRECTORY, at(101)));
        assert!(!listings.give_up(DIRECTORY, at(101)));
        part(&listings, true, 102);
        assert!(end(&listings, 103));
        assert!(listings.give_up(DIRECTORY, at(104)));
        assert!(!end(&listings, 105), "a part may have come behind what was dropped");
    }

    #[test]
    fn who_serves_on_has_what_another_process_told_dropped_once() {
        let listings = KeptListings::default();
        listings.inherit([DIRECTORY].into_iter(), at(0));
        part(&listings, true, 500);
        assert!(!end(&listings, 501));
        part(&listings, true, 502);
        assert!(end(&listings, 503));
    }

    #[test]
    fn listings_of_more_directories_than_fit_do_not_stay() {
        let listings = KeptListings::default();
        (0..DIRECTORIES_MAX as u64).for_each(|number| listings.part(InodeId(100 + number), at(0), || true));
        part(&listings, true, 0);
        assert!(!end(&listings, 1));
        assert!(listings.end(InodeId(100), at(1), || true));
        listings.forget(&[InodeId(100)]);
        part(&listings, true, 2);
        assert!(end(&listings, 3));
    }
}
