//! A slot: sorted records in pages, of which some are in memory (DESIGN §5, slot state).
//!
//! Invariants
//! 1. Frames are keyed by the lowest key that may be in them; the first frame's is empty. Together they cover all keys.
//! 2. A frame that is not resident is stored, and what is stored is its content, but for the changes that wait for it.
//! 3. A frame that is dirty is resident.
//! 4. Changes wait only at frames that are not resident, all of them from a journal that was rolled; no new ones begin to
//!    wait once the slot is used.
//! 5. `resident` is the sum of the memory of all resident pages.

use std::cell::Cell;
use std::collections::{BTreeMap, BTreeSet};
use std::ops::Bound::{Excluded, Included, Unbounded};
use std::sync::Arc;

use protocol::address::LogAddress;
use protocol::id::{LogId, SlotId, StripeNumber};

use crate::key::Key;
use crate::page::{PAGE_SIZE, Page};
use crate::telling::KeptPage;
use crate::transaction::Changes;

/// A page with fewer bytes than this joins a neighbour.
const TINY_SIZE: usize = PAGE_SIZE / 8;
/// Neighbours do not join into more bytes than this, so that they are not split at once.
const JOINED_SIZE_MAX: usize = PAGE_SIZE / 2;

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

/// One page's place in a slot.
struct Frame {
    page: Option<Arc<Page>>,
    stored: Option<LogAddress>,
    /// What a journal changed in the content that is stored.
    waiting: Changes,
    dirty: bool,
    /// The slot's change that came last here, so that an image knows whether it is still the newest.
    version: u64,
    /// Used since the evictor's hand came by. A cell, because looking is use.
    used: Cell<bool>,
}

impl Frame {
    fn fresh(page: Page) -> Frame {
        Frame { page: Some(Arc::new(page)), dirty: true, used: Cell::new(true), ..Frame::cold(None) }
    }

    fn cold(stored: Option<LogAddress>) -> Frame {
        Frame { page: None, stored, waiting: Changes::new(), dirty: false, version: 0, used: Cell::new(false) }
    }
}

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
    frames: BTreeMap<Key, Frame>,
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
        let first = Frame { dirty: false, ..Frame::fresh(Page::default()) };
        Slot::new(id, BTreeMap::from([(Key::new(), first)]))
    }

    /// A slot as an image's index describes it, nothing resident.
    pub(crate) fn from_index(id: SlotId, index: impl IntoIterator<Item = (Key, LogAddress)>) -> Slot {
        let frames: BTreeMap<_, _> =
            index.into_iter().map(|(low, address)| (low, Frame::cold(Some(address)))).collect();
        let mut slot = Slot::new(id, frames);
        if !slot.frames.contains_key(&[][..]) {
            slot.frames.insert(Key::new(), Frame { dirty: false, ..Frame::fresh(Page::default()) });
        }
        slot
    }

    fn new(id: SlotId, frames: BTreeMap<Key, Frame>) -> Slot {
        Slot {
            id,
            frames,
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

    /// Counts all changes since the slot was taken over.
    pub(crate) fn changes(&self) -> u64 {
        self.changes
    }

    /// Whether it has no record and no page.
    pub(crate) fn is_empty(&self) -> bool {
        self.frames.len() == 1
            && self.frames.values().all(|frame| frame.page.as_ref().is_some_and(|page| page.count() == 0))
    }

    /// The value of `key`.
    pub(crate) fn value(&self, key: &[u8]) -> Result<Option<&[u8]>, PageId> {
        let (low, frame) = self.frame(key);
        Ok(self.page(low, frame)?.value(key))
    }

    /// The first record from `from` on, before `end`.
    pub(crate) fn next(&self, from: &[u8], end: &[u8]) -> Result<Option<KeyValue<'_>>, PageId> {
        #[cfg(test)]
        self.looks.set(self.looks.get() + 1);
        if from >= end {
            return Ok(None);
        }
        let (low, frame) = self.frame(from);
        let page = self.page(low, frame)?;
        let index = page.find(from).unwrap_or_else(|index| index);
        if let Some(record) = page.record(index) {
            return Ok((record.0 < end).then_some(record));
        }
        for (low, frame) in self.frames.range::<[u8], _>((Excluded(low.as_slice()), Excluded(end))) {
            if let Some(record) = self.page(low, frame)?.record(0) {
                return Ok((record.0 < end).then_some(record));
            }
        }
        Ok(None)
    }

    /// The records from `from` on, before `end`, one after the other. Ends with `Err` at a page that is not in memory.
    pub(crate) fn range<'a>(
        &'a self,
        from: &'a [u8],
        end: &'a [u8],
    ) -> impl Iterator<Item = Result<KeyValue<'a>, PageId>> {
        let (first, _) = self.frame(from);
        let within = || self.frames.range::<[u8], _>((Included(first.as_slice()), Excluded(end)));
        let mut frames = (from < end).then(within).into_iter().flatten();
        let (mut page, mut index): (Option<&Page>, usize) = (None, 0);
        std::iter::from_fn(move || {
            loop {
                if let Some(record) = page.and_then(|page| page.record(index)) {
                    index += 1;
                    return (record.0 < end).then_some(Ok(record));
                }
                let (low, frame) = frames.next()?;
                match self.page(low, frame) {
                    Ok(next) => (page, index) = (Some(next), next.find(from).unwrap_or_else(|index| index)),
                    Err(missing) => return Some(Err(missing)),
                }
            }
        })
    }

    /// Whether the page of `key` is in memory, so that [`Slot::apply`] can change it.
    pub(crate) fn ready(&self, key: &[u8]) -> Result<(), PageId> {
        let (low, frame) = self.frame(key);
        self.page(low, frame).map(|_| ())
    }

    /// Puts a record, or removes it.
    ///
    /// # Panics
    /// When its page is not in memory: the operation did not make [`Slot::ready`] of it.
    pub(crate) fn apply(&mut self, key: &[u8], value: Option<&[u8]>) {
        let (low, frame) =
            self.frames.range_mut::<[u8], _>((Unbounded, Included(key))).next_back().expect("frames cover");
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
            let low = low.clone();
            self.split(&low, key);
        } else if value.is_none() && size < TINY_SIZE {
            let low = low.clone();
            self.join(&low);
        }
    }

    /// Puts a record, or removes it, as a journal says: at once where the page is in memory, and else when it comes. So a slot
    /// is taken over without reading its pages.
    pub(crate) fn roll(&mut self, key: &[u8], value: Option<&[u8]>) {
        let (_, frame) =
            self.frames.range_mut::<[u8], _>((Unbounded, Included(key))).next_back().expect("frames cover");
        if frame.page.is_some() {
            return self.apply(key, value);
        }
        frame.waiting.insert(key.to_vec(), value.map(<[u8]>::to_vec));
        self.changes += 1;
    }

    /// A page for which changes wait: load it.
    pub(crate) fn wanted(&self) -> Option<PageId> {
        let (low, frame) = self.frames.iter().find(|(_, frame)| !frame.waiting.is_empty())?;
        self.page(low, frame).err()
    }

    /// Puts the content of a cold page in place, with the changes that waited for it. Content that came too late is dropped.
    pub(crate) fn fill(&mut self, id: &PageId, page: Page) {
        let Some(frame) = self.frames.get_mut(&id.low) else { return };
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
        for frame in self.frames.values_mut().filter(|frame| !frame.dirty && frame.stored.is_some()) {
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
        let copy = |(low, frame): (&Key, &Frame)| PageCopy {
            low: low.clone(),
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
        self.frames.values().map(keep).collect()
    }

    /// Makes the next image store anew what lies in these stripes.
    pub(crate) fn renew(&mut self, stripes: &BTreeSet<(LogId, StripeNumber)>) -> Result<(), PageId> {
        // Its index is written anew with any change.
        self.changes += 1;
        for (low, frame) in &mut self.frames {
            let Some(address) = frame.stored.filter(|at| !frame.dirty && stripes.contains(&(at.log, at.stripe))) else {
                continue;
            };
            if frame.page.is_none() {
                return Err(PageId { slot: self.id, low: low.clone(), address });
            }
            frame.dirty = true;
            frame.version = self.changes;
            self.dirty += 1;
        }
        Ok(())
    }

    /// The content of the page `low` as of `version` is stored at `address`.
    pub(crate) fn stored(&mut self, low: &[u8], version: u64, address: LogAddress) {
        if let Some(frame) = self.frames.get_mut(low)
            && frame.dirty
            && frame.version == version
        {
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

    fn frame(&self, key: &[u8]) -> (&Key, &Frame) {
        self.frames
            .range::<[u8], _>((Unbounded, Included(key)))
            .next_back()
            .expect("the first frame covers the lowest key")
    }

    fn page<'a>(&self, low: &Key, frame: &'a Frame) -> Result<&'a Page, PageId> {
        frame.used.set(true);
        frame.page.as_deref().ok_or_else(|| PageId {
            slot: self.id,
            low: low.clone(),
            address: frame.stored.expect("what is not resident is stored"),
        })
    }

    /// Splits the page `low`, into which `key` just came. Keys that come in ascending order leave full pages behind.
    fn split(&mut self, low: &[u8], key: &[u8]) {
        let frame = self.frames.get_mut(low).expect("the caller found it");
        let page = Arc::make_mut(frame.page.as_mut().expect("the caller changed it"));
        let memory = page.memory();
        let last = page.count() - 1;
        let at = if page.find(key) == Ok(last) { last } else { page.count() / 2 };
        let upper = page.split_off(at);
        self.resident = self.resident + page.memory() + upper.memory() - memory;
        let upper_low = upper.record(0).expect("the upper half is not empty").0.to_vec();
        self.frames.insert(upper_low, Frame { version: self.changes, ..Frame::fresh(upper) });
        self.dirty += 1;
    }

    /// Joins the tiny page `low` with the one behind it, if that is in memory; an empty page just goes.
    fn join(&mut self, low: &[u8]) {
        let size = |frame: &Frame| frame.page.as_ref().map(|page| (page.size(), page.count()));
        let (tiny, count) = size(&self.frames[low]).expect("the caller changed it");
        if count == 0 && !low.is_empty() {
            let frame = self.frames.remove(low).expect("found above");
            self.resident -= frame.page.map_or(0, |page| page.memory());
            self.dirty -= 1;
            return;
        }
        let next = self.frames.range::<[u8], _>((Excluded(low), Unbounded)).next();
        let Some((next_low, Some((next_size, _)))) = next.map(|(low, frame)| (low.clone(), size(frame))) else {
            return;
        };
        if tiny + next_size > JOINED_SIZE_MAX {
            return;
        }
        let next = self.frames.remove(&next_low).expect("found above");
        let next_page = next.page.expect("its size was known");
        let frame = self.frames.get_mut(low).expect("found above");
        let page = Arc::make_mut(frame.page.as_mut().expect("its size was known"));
        let memory = page.memory() + next_page.memory();
        page.append(&next_page);
        frame.version = self.changes;
        self.resident = self.resident + page.memory() - memory;
        self.dirty -= usize::from(next.dirty);
    }
}
