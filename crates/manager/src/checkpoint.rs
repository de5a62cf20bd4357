//! Rounds of images: write what changed, then a table that names it all, then a mark that names the table.
//!
//! A page is copied by reference under its slot's lock; an operation that changes it meanwhile copies it first. So no
//! operation waits for a round. Nothing of the round before is given up until the new mark is on disk.

use std::collections::BTreeMap;
use std::sync::atomic::Ordering;

use log::{BodyPart, LogError, Record};
use protocol::address::{LogAddress, Position};
use protocol::id::SlotId;
use protocol::manager::ManagerError;
use protocol::maps::{Maps, SlotLog};
use protocol::record::{Owner, RecordKind};
use protocol::registry::{RegistryError, RegistryRequest};
use protocol::storage::Durability;

use crate::image::{Image, Mark, Round, Table, TableEntry, encode, encode_index};
use crate::key::Key;
use crate::manager::{Manager, failed};
use crate::runs::JournalRuns;
use crate::slot::PageCopy;
use crate::slot_set::SlotSet;
use crate::start::StartError;
use crate::takeover::{SlotRange, ranges, runs};

/// Bytes that one round moves out of mostly dead stripes: some of what it writes anyway.
const RENEWED_BYTES_MAX: u64 = 8 << 20;
/// Bodies of at least this many bytes begin on a block.
const ALIGNED_SIZE_MIN: usize = 16 << 10;

/// A journal is covered already at this part of its bound, where that writes no more than so many times the journal: who takes
/// over reads less then. Where operations change pages all over, a round is as dear after few as after many.
const EARLY: u64 = 4;
const EARLY_COST: u64 = 2;

/// What a slot is when a round comes to it.
enum Found {
    /// Never had a record.
    Pristine,
    /// As in its last image.
    Unchanged,
    /// With changes: all its pages.
    Changed(u64, Vec<PageCopy>),
}

impl Manager {
    /// Writes an image of every slot that changed, a table and a mark; the journal before this call is then covered.
    pub async fn checkpoint(&self) -> Result<(), ManagerError> {
        let _one = self.imaging.lock().await;
        if self.unsure.load(Ordering::Relaxed) {
            return Err(ManagerError::Failed("whether slots were handed over is unknown".into()));
        }
        if self.others_need_our_log().await {
            return Err(ManagerError::Failed(
                "others are to read slots from this log that are not here any more".into(),
            ));
        }
        self.renew_sparse().await?;
        let journal_from = self.begin_runs();
        self.journal_bytes.store(0, Ordering::Relaxed);
        let replayed = self.replayed.lock().expect("nobody panics over replays").all_here(&self.cluster.maps());
        let mine = self.table.mine();
        let had = Some(SlotSet::of(&mine));
        let mut table = Table { journal_from, slots: Vec::new(), runs: None, replayed, had };
        let mut images = BTreeMap::new();
        for &slot in mine.iter() {
            self.bring_wanted(slot).await?;
            let (covered, found) = self.look(slot);
            let index = match found {
                Found::Pristine => continue,
                Found::Unchanged => self.image_index(slot),
                Found::Changed(changes, copies) => {
                    let image = self.image(slot, changes, copies).await?;
                    let index = image.index.clone();
                    images.insert(slot, image);
                    index
                }
            };
            table.slots.push(TableEntry { slot, covered, index });
        }
        self.renew_intentions()?;
        // A table on disk names only what is on disk.
        self.commit(self.writer.end(), Durability::Disk).await?;
        let address = self.put_table(&mut table).map_err(failed)?;
        self.commit(self.writer.end(), Durability::Disk).await?;
        let mark = encode(&Mark { table: address });
        let mark = self.writer.append(record(RecordKind::Mark, &[BodyPart::Copied(&mark)])).map_err(failed)?;
        self.commit(mark.end, Durability::Disk).await?;
        self.writer.set_mark(mark.place);
        let (open, round) = (self.writer.end().stripe, Round { journal_from, table: address, mark: mark.place });
        self.images.lock().expect("nobody panics over images").replace(images, &round, open);
        self.replayed.lock().expect("nobody panics over replays").told(table.replayed);
        Ok(())
    }

    /// Whether the manager map lists our log with slots that are not here: this machine was taken for dead, and whoever has
    /// them now begins with the newest table of our log. A table from now on would know nothing of them.
    async fn others_need_our_log(&self) -> bool {
        let mine = self.table.mine();
        let needed = |maps: &Maps| {
            let lists_us = |first: u16| maps.slots[&first].logs.iter().any(|listed| listed.log == self.writer.log());
            let is_away = |slot| mine.binary_search(&SlotId(slot)).is_err();
            runs(maps).any(|(first, last, _)| lists_us(first) && (first..=last).any(is_away))
        };
        // What was handed over just now may only seem to be listed.
        needed(&self.cluster.maps()) && self.cluster.refresh().await.map_or(true, |maps| needed(&maps))
    }

    /// Writes a round when the journal or the changed pages have grown past their bounds; not early while it would be
    /// `in_the_way`: slots that arrived just now have changes in no page yet, and a round of them only looks cheap.
    pub(crate) async fn checkpoint_if_due(&self, in_the_way: bool) -> Result<(), ManagerError> {
        let journal = self.journal_bytes.load(Ordering::Relaxed);
        let round_bytes = || if in_the_way { u64::MAX } else { self.round_bytes() };
        let is_due = is_due(journal, self.options.journal_bytes_max, round_bytes);
        // Eviction takes clean pages only: past the budget, the rest is dirty.
        if is_due || self.table.resident() > self.options.memory_bytes {
            self.checkpoint().await?;
        }
        Ok(())
    }

    /// About what a round would write now.
    fn round_bytes(&self) -> u64 {
        let bytes = |&slot: &SlotId| self.table.with(slot, |state| state.records.image_bytes()).unwrap_or(0);
        self.table.mine().iter().map(bytes).sum::<usize>() as u64
    }

    /// Covers a journal to which nothing is added any more, so that the stripes it lies in are given back. Only fragments
    /// tell where the mark is, so the log goes on by a stripe whose fragments do.
    pub(crate) async fn checkpoint_idle(&self) -> Result<(), ManagerError> {
        self.checkpoint().await?;
        self.writer.end_stripe();
        let end = self.append(&[])?;
        self.commit(end, Durability::Disk).await
    }

    /// Slots whose images a table of ours names need no earlier log: says so in the manager map.
    pub(crate) async fn shorten_lists(&self) -> Result<(), StartError> {
        let _one = self.imaging.lock().await;
        if !self.images.lock().expect("nobody panics over images").rolls_others() {
            return Ok(());
        }
        let node = self.host().node().0;
        let from = self.images.lock().expect("nobody panics over images").covered();
        loop {
            // Run by run, each by the very maps that its request names: what was ours a request ago may be another's.
            let maps = self.cluster.maps();
            let Some((first, last)) = self.covered_runs(&maps).first().copied() else { break };
            let (logs, epoch) = (vec![SlotLog { log: self.writer.log(), from }], maps.epoch.0);
            let request = RegistryRequest::SetSlots { first, last, node, base: None, logs, epoch };
            match self.cluster.registry(request).await {
                Ok(_) if self.cluster.maps().epoch > maps.epoch => {}
                // Something else changed meanwhile: the next round tries again.
                Ok(_) | Err(RegistryError::Lost) => {
                    self.cluster.refresh().await?;
                    return Ok(());
                }
                Err(error) => return Err(error.into()),
            }
        }
        let left = ranges(&self.cluster.maps(), node);
        let based = left.iter().any(|range| range.base.is_some());
        let listed = left.into_iter().flat_map(|range| range.logs);
        let others = listed.map(|listed| listed.log).filter(|&log| log != self.writer.log()).collect();
        self.images.lock().expect("nobody panics over images").roll_only(others, based);
        Ok(())
    }

    /// The runs of slots of which the newest table names images, and that are listed with more than that. Neighbours that
    /// are listed with that become one run with them.
    fn covered_runs(&self, maps: &Maps) -> Vec<(u16, u16)> {
        let images = self.images.lock().expect("nobody panics over images");
        let own = |range: &SlotRange| range.logs.iter().find(|listed| listed.log == self.writer.log()).copied();
        let covered = |range: &SlotRange| own(range).is_some_and(|own| images.covers(own.from));
        let mut runs: Vec<(u16, u16, bool)> = Vec::new();
        for range in ranges(maps, self.host().node().0).into_iter().filter(covered) {
            let more = range.logs.len() > 1 || range.base.is_some();
            match runs.last_mut() {
                Some(run) if run.1 + 1 == range.first => *run = (run.0, range.last, run.2 || more),
                _ => runs.push((range.first, range.last, more)),
            }
        }
        runs.into_iter().filter(|(_, _, more)| *more).map(|(first, last, _)| (first, last)).collect()
    }

    /// Appends again what intentions are not over, behind all that the images of this round cover: a start finds them in the
    /// journal, and reads no page for them.
    fn renew_intentions(&self) -> Result<(), ManagerError> {
        for &slot in self.table.mine().iter() {
            let state = self.table.lock(slot).expect("a slot of ours");
            let records = state.intentions.records();
            if !records.is_empty() {
                self.append(&[(slot, records)])?;
            }
        }
        Ok(())
    }

    /// Lets this round store anew what little still lives in mostly dead stripes, and what is less safe than it could be.
    async fn renew_sparse(&self) -> Result<(), ManagerError> {
        let exposed = self.exposed();
        let (sparse, slots) = {
            let images = self.images.lock().expect("nobody panics over images");
            let mut sparse = images.sparse(u64::from(self.writer.record_size_max()), RENEWED_BYTES_MAX);
            sparse.extend(images.lying(RENEWED_BYTES_MAX, |log, stripe| exposed.holds(log, stripe)));
            let slots: Vec<SlotId> =
                self.table.mine().iter().copied().filter(|&slot| images.lies_in(slot, &sparse)).collect();
            (sparse, slots)
        };
        for slot in slots {
            let mut tries = 0;
            while let Some(Err(page)) = self.table.with(slot, |state| state.records.renew(&sparse)) {
                tries += 1;
                self.load(&page, tries).await?;
            }
        }
        Ok(())
    }

    /// Loads the pages of a slot that changes of a journal wait for. Once they are here no more will wait.
    async fn bring_wanted(&self, slot: SlotId) -> Result<(), ManagerError> {
        let mut tries = 0;
        while let Some(Some(page)) = self.table.with(slot, |state| state.records.wanted()) {
            tries += 1;
            self.load(&page, tries).await?;
        }
        Ok(())
    }

    /// A slot as it is now, and how far into the journal that is.
    fn look(&self, slot: SlotId) -> (Position, Found) {
        let images = self.images.lock().expect("nobody panics over images");
        let image = images.image(slot);
        let state = self.table.lock(slot).expect("a slot of ours");
        // Under the slot's lock: whatever changed it lies before this, and has changed it.
        let covered = self.writer.end();
        let changes = state.records.changes();
        let found = match image {
            None if changes == 0 => Found::Pristine,
            Some(image) if image.changes == changes => Found::Unchanged,
            _ => Found::Changed(changes, state.records.copies()),
        };
        (covered, found)
    }

    fn image_index(&self, slot: SlotId) -> Vec<LogAddress> {
        let images = self.images.lock().expect("nobody panics over images");
        images.image(slot).map(|image| image.index.clone()).unwrap_or_default()
    }

    /// Writes images of these slots as far as they changed, for a table to come.
    pub(crate) async fn image_ahead(&self, slots: &[SlotId]) -> Result<(), ManagerError> {
        let mut images = BTreeMap::new();
        for &slot in slots {
            self.bring_wanted(slot).await?;
            if let (_, Found::Changed(changes, copies)) = self.look(slot) {
                images.insert(slot, self.image(slot, changes, copies).await?);
            }
        }
        self.commit(self.writer.end(), Durability::Disk).await?;
        self.images.lock().expect("nobody panics over images").supplement(images);
        Ok(())
    }

    async fn image(&self, slot: SlotId, changes: u64, copies: Vec<PageCopy>) -> Result<Image, ManagerError> {
        let stored = |low: &Key, version: u64, address: LogAddress| {
            self.table.with(slot, |state| state.records.stored(low, version, address));
        };
        self.write_image(changes, copies, stored).await
    }

    /// Writes the changed pages of a slot, of which `stored` hears, and its index.
    pub(crate) async fn write_image(
        &self,
        changes: u64,
        copies: Vec<PageCopy>,
        mut stored: impl FnMut(&Key, u64, LogAddress),
    ) -> Result<Image, ManagerError> {
        let mut pages: Vec<(Key, LogAddress)> = Vec::with_capacity(copies.len());
        for copy in copies {
            let address = match copy.changed {
                Some((page, version)) => {
                    let address = self.put(RecordKind::Page, &page.encode()).map_err(failed)?;
                    drop(page);
                    stored(&copy.low, version, address);
                    // Operations wait for their journal records, which come behind.
                    self.writer.lull().await.map_err(failed)?;
                    Some(address)
                }
                None => copy.stored,
            };
            pages.extend(address.map(|address| (copy.low, address)));
        }
        let mut index = Vec::new();
        for part in encode_index(&pages) {
            index.push(self.put(RecordKind::PageIndex, &part).map_err(failed)?);
        }
        Ok(Image { changes, index, pages: pages.into_iter().map(|(_, address)| address).collect() })
    }

    /// From where on runs of the journal are noted for the next table.
    fn begin_runs(&self) -> Position {
        let mut runs = self.journal_runs.lock().expect("nobody panics over runs");
        *runs = JournalRuns::default();
        self.writer.end()
    }

    /// Appends a table that tells where the journal lies before it.
    fn put_table(&self, table: &mut Table) -> Result<LogAddress, LogError> {
        let runs = self.journal_runs.lock().expect("nobody panics over runs");
        table.runs = runs.told(self.writer.end());
        self.put(RecordKind::Checkpoint, &table.encode())
    }

    pub(crate) fn put(&self, kind: RecordKind, body: &[u8]) -> Result<LogAddress, LogError> {
        Ok(self.writer.append(record(kind, &[BodyPart::Copied(body)]))?.body)
    }
}

/// Whether a round is due for so many bytes of journal. What it would write is asked for only where that matters.
fn is_due(journal: u64, journal_max: u64, round_bytes: impl FnOnce() -> u64) -> bool {
    journal > journal_max || (journal > journal_max / EARLY && round_bytes() <= EARLY_COST * journal)
}

fn record<'a>(kind: RecordKind, parts: &'a [BodyPart<'a>]) -> Record<'a> {
    let aligned = BodyPart::length(parts) >= ALIGNED_SIZE_MIN;
    Record { kind, owner: Owner::default(), parts, aligned }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_round_comes_early_where_it_is_cheap() {
        let due = |journal, round| is_due(journal, 400, || round);
        assert!(!due(100, 0), "however cheap");
        assert!(due(101, 202) && !due(101, 203));
        assert!(due(300, 600) && !due(400, 801));
        assert!(due(401, u64::MAX), "however dear");
    }
}
