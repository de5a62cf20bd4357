//! A slot: sorted records in pages, of which some are in memory (DESIGN §5, slot state).
//!
//! Invariants
//! 1. A frame's page holds the keys from the frame's lowest to before the next frame's.
//! 2. A frame that is not resident is stored, and what is stored is its content, but for the changes that wait for it.
//! 3. A frame that is dirty is resident.
//! 4. Changes wait only at frames that are not resident, all of them from a journal that was rolled; no new ones begin to
//!    wait once the slot is used.
//! 5. `resident` is the sum of the memory of all resident pages.

#[cfg(test)]
use std::cell::Cell;
use std::collections::BTreeSet;
use std::sync::Arc;

use protocol::address::LogAddress;
use protocol::id::{LogId, SlotId, StripeNumber};

use crate::frames::{Frame, Frames};
use crate::key::{self, Key};
use crate::page::{PAGE_SIZE, Page};
use crate::telling::KeptPage;

/// A page with fewer bytes than this joins a neighbour.
const TINY_SIZE: usize = PAGE_SIZE / 8;
/// Neighbours do not join into more bytes than this, so that they are not split at once.
const JOINED_SIZE_MAX: usize = PAGE_SIZE / 2;

/// About what an index says of a page: its lowest key, and where it lies.
const INDEX_ENTRY_SIZE: usize = 48;

/// A page that must be loaded before an operation can go on.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PageId {
    /// The slot.
    pub slot: SlotId,
    /// The lowest key that may be in the page.
    pub low: Vec<u8>,
    /// Where its content lies.
    pub address: LogAddress,
}

/// A record: its key and its value.
pub(crate) type KeyValue<'a> = (&'a [u8], &'a [u8]);

/// A page as an image found it.
pub(crate) struct PageCopy {
    pub(crate) low: Key,
    /// The content, when what is stored is not the newest.
    pub(crate) changed: Option<(Arc<Page>, u64)>,
    pub(crate) stored: Option<LogAddress>,
}

/// One of the 4096 shares of the inode space, in memory.
pub(crate) struct Slot {
    id: SlotId,
    frames: Frames,
    resident: usize,
    dirty: usize,
    /// Counts all changes.
    changes: u64,
    /// Counts searches for a next record, the dearest thing that an operation does here.
    #[cfg(test)]
    pub(crate) looks: Cell<usize>,
}

impl Slot {
    /// A slot without records.
    pub(crate) fn empty(id: SlotId) -> Slot {
        Slot::from_index(id, [])
    }

    /// A slot as an image's index describes it, nothing resident.
    pub(crate) fn from_index(id: SlotId, index: impl IntoIterator<Item = (Key, LogAddress)>) -> Slot {
        let cold = |(low, address)| Frame::cold(low, Some(address));
        Slot {
            id,
            frames: Frames::new(index.into_iter().map(cold).collect()),
            resident: 0,
            dirty: 0,
            changes: 0,
            #[cfg(test)]
            looks: Cell::new(0),
        }
    }

    /// Bytes of memory that its pages take.
    pub(crate) fn resident(&self) -> usize {
        self.resident
    }

    /// About what an image of it would write now: the changed pages, and an index of all.
    pub(crate) fn image_bytes(&self) -> usize {
        if self.dirty == 0 { 0 } else { self.dirty * PAGE_SIZE + self.frames.count() * INDEX_ENTRY_SIZE }
    }

    /// Counts all changes since the slot was taken over.
    pub(crate) fn changes(&self) -> u64 {
        self.changes
    }

    /// Whether it has no record and no page.
    pub(crate) fn is_empty(&self) -> bool {
        self.frames.count() == 1
            && self.frames.iter().all(|frame| frame.page.as_ref().is_some_and(|page| page.count() == 0))
    }

    /// The value of `key`.
    pub(crate) fn value(&self, key: &[u8]) -> Result<Option<&[u8]>, PageId> {
        Ok(self.page(self.frames.covering(key))?.value(key))
    }

    /// The first record from `from` on, before `end`.
    pub(crate) fn next(&self, from: &[u8], end: &[u8]) -> Result<Option<KeyValue<'_>>, PageId> {
        #[cfg(test)]
        self.looks.set(self.looks.get() + 1);
        if from >= end {
            return Ok(None);
        }
        let mut at = self.frames.covering(from);
        let page = self.page(at)?;
        let mut found = page.record(page.find(from).unwrap_or_else(|index| index));
        while found.is_none() {
            at += 1;
            if at == self.frames.count() || *self.frames[at].low >= *end {
                return Ok(None);
            }
            found = self.page(at)?.record(0);
        }
        Ok(found.filter(|(key, _)| *key < end))
    }

    /// The records from `from` on, before `end`, one after the other. Ends with `Err` at a page that is not in memory.
    pub(crate) fn range<'a>(
        &'a self,
        from: &'a [u8],
        end: &'a [u8],
    ) -> impl Iterator<Item = Result<KeyValue<'a>, PageId>> {
        let (mut at, count) = (self.frames.covering(from), self.frames.count());
        let (mut page, mut index): (Option<&Page>, usize) = (None, 0);
        std::iter::from_fn(move || {
            loop {
                if let Some(record) = page.and_then(|page| page.record(index)) {
                    index += 1;
                    return (record.0 < end).then_some(Ok(record));
                }
                if from >= end || at == count || *self.frames[at].low >= *end {
                    return None;
                }
                at += 1;
                match self.page(at - 1) {
                    Ok(next) => (page, index) = (Some(next), next.find(from).unwrap_or_else(|index| index)),
                    Err(missing) => return Some(Err(missing)),
                }
            }
        })
    }

    /// Whether the page of `key` is in memory, so that [`Slot::apply`] can change it.
    pub(crate) fn ready(&self, key: &[u8]) -> Result<(), PageId> {
        self.page(self.frames.covering(key)).map(drop)
    }

    /// Puts a record, or removes it.
    ///
    /// # Panics
    /// When its page is not in memory: the operation did not make [`Slot::ready`] of it.
    pub(crate) fn apply(&mut self, key: &[u8], value: Option<&[u8]>) {
        let at = self.frames.covering(key);
        let frame = &mut self.frames[at];
        let page = frame.page.as_mut().expect("changed pages are in memory");
        // Before it is copied: a copy takes no more than it must, the page that was counted may have.
        let memory = page.memory();
        let page = Arc::make_mut(page);
        page.change(key, value);
        self.resident = self.resident + page.memory() - memory;
        self.dirty += usize::from(!frame.dirty);
        self.changes += 1;
        frame.dirty = true;
        frame.version = self.changes;
        frame.used.set(true);
        let (size, count) = (page.size(), page.count());
        if size > PAGE_SIZE && count > 1 {
            self.split(at, key);
        } else if value.is_none() && size < TINY_SIZE {
            self.join(at);
        }
    }

    /// Puts a record, or removes it, as a journal says: at once where the page is in memory, and else when it comes. So a slot
    /// is taken over without reading its pages.
    pub(crate) fn roll(&mut self, key: &[u8], value: Option<&[u8]>) {
        let at = self.frames.covering(key);
        let frame = &mut self.frames[at];
        if frame.page.is_some() {
            return self.apply(key, value);
        }
        frame.waiting.insert(key.to_vec(), value.map(<[u8]>::to_vec));
        self.changes += 1;
    }

    /// A page for which changes wait: load it.
    pub(crate) fn wanted(&self) -> Option<PageId> {
        let at = self.frames.iter().position(|frame| !frame.waiting.is_empty())?;
        self.page(at).err()
    }

    /// Puts the content of a cold page in place, with the changes that waited for it. Content that came too late is dropped.
    pub(crate) fn fill(&mut self, id: &PageId, page: Page) {
        let Some(at) = self.frames.at(&id.low) else { return };
        let frame = &mut self.frames[at];
        if frame.page.is_some() || frame.stored != Some(id.address) {
            return;
        }
        self.resident += page.memory();
        frame.used.set(true);
        frame.page = Some(Arc::new(page));
        let waited = std::mem::take(&mut frame.waiting);
        let (put, removed): (Vec<_>, Vec<_>) = waited.into_iter().partition(|(_, value)| value.is_some());
        put.into_iter().for_each(|(key, value)| self.apply(&key, value.as_deref()));
        for (key, _) in removed {
            // A page that became empty is gone, and with it all that was to be removed.
            if self.ready(&key).is_ok() {
                self.apply(&key, None);
            }
        }
    }

    /// Drops clean pages that were not used since the last call; marks the others as not used. Returns the bytes freed.
    pub(crate) fn evict(&mut self) -> usize {
        let mut freed = 0;
        for frame in self.frames.iter_mut().filter(|frame| !frame.dirty && frame.stored.is_some()) {
            if !frame.used.replace(false)
                && let Some(page) = frame.page.take()
            {
                freed += page.memory();
            }
        }
        self.resident -= freed;
        freed
    }

    /// All pages as they are now. Contents are shared: later changes copy a page before they touch it.
    ///
    /// # Panics
    /// When changes wait for a page: what is stored of it lacks them. Load what [`Slot::wanted`] names first.
    pub(crate) fn copies(&self) -> Vec<PageCopy> {
        assert!(self.wanted().is_none(), "an image has all changes");
        let copy = |frame: &Frame| PageCopy {
            low: frame.low.clone(),
            changed: frame.page.clone().filter(|_| frame.dirty).map(|page| (page, frame.version)),
            stored: frame.stored,
        };
        self.frames.iter().map(copy).collect()
    }

    /// All pages as they are now, for an audit: contents are shared, as in [`Slot::copies`].
    pub(crate) fn kept(&self) -> Vec<KeptPage> {
        let keep = |frame: &Frame| match (&frame.page, frame.stored) {
            (Some(page), _) => KeptPage::Here(page.clone()),
            (None, stored) => KeptPage::Stored(stored.expect("what is not resident is stored"), frame.waiting.clone()),
        };
        self.frames.iter().map(keep).collect()
    }

    /// Makes the next image store anew what lies in these stripes.
    pub(crate) fn renew(&mut self, stripes: &BTreeSet<(LogId, StripeNumber)>) -> Result<(), PageId> {
        // Its index is written anew with any change.
        self.changes += 1;
        for frame in self.frames.iter_mut() {
            let Some(address) = frame.stored.filter(|at| !frame.dirty && stripes.contains(&(at.log, at.stripe))) else {
                continue;
            };
            if frame.page.is_none() {
                return Err(PageId { slot: self.id, low: frame.low.clone(), address });
            }
            frame.dirty = true;
            frame.version = self.changes;
            self.dirty += 1;
        }
        Ok(())
    }

    /// The content of the page `low` as of `version` is stored at `address`.
    pub(crate) fn stored(&mut self, low: &[u8], version: u64, address: LogAddress) {
        let Some(at) = self.frames.at(low) else { return };
        let frame = &mut self.frames[at];
        if frame.dirty && frame.version == version {
            frame.dirty = false;
            frame.stored = Some(address);
            self.dirty -= 1;
            // At rest a page takes what its records take; changes left up to half of it dead, and room for more.
            if let Some(page) = frame.page.as_mut().and_then(Arc::get_mut) {
                let memory = page.memory();
                page.pack();
                self.resident = self.resident + page.memory() - memory;
            }
        }
    }

    fn page(&self, at: usize) -> Result<&Page, PageId> {
        let frame = &self.frames[at];
        frame.used.set(true);
        frame.page.as_deref().ok_or_else(|| PageId {
            slot: self.id,
            low: frame.low.clone(),
            address: frame.stored.expect("what is not resident is stored"),
        })
    }

    /// Splits a page, into which `key` just came. Keys that come in ascending order leave full pages behind. What the slot
    /// keeps beside its inodes goes apart from them: keys that begin alike are found sooner.
    fn split(&mut self, at: usize, key: &[u8]) {
        let page = Arc::make_mut(self.frames[at].page.as_mut().expect("the caller changed it"));
        let memory = page.memory();
        let last = page.count() - 1;
        let beside = page.find(&key::first_of_inodes()).unwrap_or_else(|index| index);
        let middle = if page.find(key) == Ok(last) { last } else { page.count() / 2 };
        let upper = page.split_off(if (1..=last).contains(&beside) { beside } else { middle });
        self.resident = self.resident + page.memory() + upper.memory() - memory;
        let low = upper.record(0).expect("the upper part is not empty").0.to_vec();
        self.frames.insert(Frame { version: self.changes, ..Frame::fresh(low, upper) });
        self.dirty += 1;
    }

    /// Joins a tiny page with the one behind it, if that is in memory; an empty page just goes.
    fn join(&mut self, at: usize) {
        let size = |frame: &Frame| frame.page.as_ref().map(|page| (page.size(), page.count()));
        let (tiny, count) = size(&self.frames[at]).expect("the caller changed it");
        if count == 0 && at > 0 {
            let frame = self.frames.remove(at);
            self.resident -= frame.page.map_or(0, |page| page.memory());
            self.dirty -= 1;
            return;
        }
        let is_last = at + 1 == self.frames.count();
        let Some((next_size, _)) = (!is_last).then(|| size(&self.frames[at + 1])).flatten() else { return };
        if tiny + next_size > JOINED_SIZE_MAX {
            return;
        }
        let next = self.frames.remove(at + 1);
        let next_page = next.page.expect("its size was known");
        let frame = &mut self.frames[at];
        let page = Arc::make_mut(frame.page.as_mut().expect("its size was known"));
        let memory = page.memory() + next_page.memory();
        page.append(&next_page);
        frame.version = self.changes;
        self.resident = self.resident + page.memory() - memory;
        self.dirty -= usize::from(next.dirty);
    }
}
