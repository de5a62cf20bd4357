//! Writes the list: batches, windows, snapshots. `docs/format.md`, *The list*.
//!
//! A listing runs as a task of its own: what was composed must be told or restored, even if whoever asked is gone.

use std::sync::Arc;

use bytes::Bytes;
use host::DiskError;
use protocol::checksum::BLOCK_SIZE;
use protocol::storage::StorageError;

use crate::cells::CellRun;
use crate::compose::Composed;
use crate::list::{BatchHeader, Entry, Payloads, encode_batch};
use crate::replay::Place;
use crate::rounds::{Lead, Turn};
use crate::superblock::Superblock;
use crate::target::Target;

/// Fragments listed at a time while a snapshot is made: the catalog is locked no longer.
const SNAPSHOT_PAGE: usize = 512;

/// Room for coming batches is reserved in the list, so that deletions need none when the disk is full.
const LIST_RESERVE: u64 = 1 << 20;

/// Where the list stands.
#[derive(Debug)]
pub(crate) struct ListState {
    pub(crate) superblock: Superblock,
    pub(crate) place: Place,
    /// Where the reserved room ends.
    reserved_until: u64,
    /// Writes of the list that failed for lack of room.
    pub(crate) full_count: u64,
}

impl ListState {
    /// Nothing is known to be reserved.
    pub(crate) fn new(superblock: Superblock, place: Place) -> ListState {
        ListState { superblock, place, reserved_until: 0, full_count: 0 }
    }
}

impl Target {
    /// Waits until the change of this number is durable.
    pub(crate) async fn list_through(self: &Arc<Self>, need: u64) -> Result<(), StorageError> {
        let mut full_before = None;
        loop {
            self.check_failed()?;
            match self.listings.turn(need).await {
                Turn::Reached => return Ok(()),
                Turn::Lead(lead) => {
                    let full_count = self.list_state.lock().await.full_count;
                    if full_before.is_some_and(|before| before < full_count) {
                        return Err(StorageError::Full);
                    }
                    full_before = Some(full_count);
                    self.spawn_listing(lead, None);
                }
            }
        }
    }

    /// Makes more cells usable, at least one run of `run_min` if there is one.
    pub(crate) async fn widen(self: &Arc<Self>, run_min: u32) -> Result<(), StorageError> {
        // A number that is never reached: the turn comes when no listing runs.
        if let Turn::Lead(lead) = self.listings.turn(u64::MAX).await {
            self.check_failed()?;
            // Another may have done it while this one waited.
            if self.catalog().cells.window_offers(run_min) {
                return Ok(());
            }
            self.spawn_listing(lead, Some(run_min));
        }
        drop(self.listings.turn(u64::MAX).await);
        self.check_failed()
    }

    /// Makes more cells usable while there are still some, so that nobody waits.
    pub(crate) fn widen_soon(self: &Arc<Self>) {
        if let Some(lead) = self.listings.try_lead() {
            self.spawn_listing(lead, Some(1));
        }
    }

    fn spawn_listing(self: &Arc<Self>, lead: Lead, window: Option<u32>) {
        let target = self.clone();
        self.host.spawn(async move {
            if let Ok(covers) = target.tell(window).await {
                lead.finish(covers);
            }
        });
    }

    /// Tells the list what it does not know yet; with `window`, announces a window with a run of that many cells.
    /// Returns the number of the last change that is durable now.
    pub(crate) async fn tell(self: &Arc<Self>, window: Option<u32>) -> Result<u64, StorageError> {
        let mut state = self.list_state.lock().await;
        if let Some(run_min) = window {
            self.announce(run_min).await?;
        }
        let composed = self.catalog().compose(window.is_some(), self.sync_counts());
        let covers = composed.covers;
        let file = &self.lists[(state.superblock.list % 2) as usize];
        let (batches, place) = frame(&composed.payloads, &state);
        if let Err(error) = file.write(state.place.offset, batches).await {
            self.catalog().restore(composed);
            state.full_count += u64::from(error == DiskError::Full);
            return Err(self.disk_failed(error));
        }
        file.sync().await.map_err(|error| self.fail("a sync of the list", &error))?;
        state.place = place;
        state.superblock.list_synced = place.offset;
        let before = state.superblock.incarnation;
        state.superblock.incarnation = before.max(self.catalog().incarnation_reached());
        self.write_superblock(&mut state.superblock).await?;
        if state.superblock.incarnation > before {
            // Whatever is lost, the next start gives no generation that was given.
            self.superblocks.sync().await.map_err(|error| self.fail("a sync of the superblock", &error))?;
        }
        self.settle(composed).await?;
        if place.offset > 2 * place.snapshot_end + self.list_growth {
            match self.snapshot(&mut state).await {
                // Without room for a new list the old one goes on.
                Ok(_) | Err(StorageError::Full) => {}
                Err(error) => return Err(error),
            }
        }
        self.reserve_list(&mut state).await?;
        Ok(covers)
    }

    /// Reserves room for coming batches where less than half of it is left: behind what the list holds, so that one which has
    /// just taken another's place begins with all of it.
    async fn reserve_list(&self, state: &mut ListState) -> Result<(), StorageError> {
        let from = state.place.offset;
        if state.reserved_until >= from + LIST_RESERVE / 2 {
            return Ok(());
        }
        match self.lists[(state.superblock.list % 2) as usize].reserve(from, LIST_RESERVE).await {
            Ok(()) => state.reserved_until = from + LIST_RESERVE,
            // A full disk goes on with what there is: what frees room may find some.
            Err(DiskError::Full) => {}
            Err(error) => return Err(self.fail("a reservation", &error)),
        }
        Ok(())
    }

    /// Writes everything into the other list, and makes that one current.
    pub(crate) async fn snapshot(self: &Arc<Self>, state: &mut ListState) -> Result<u64, StorageError> {
        let mut superblock = state.superblock;
        superblock.list += 1;
        superblock.list_synced = 0;
        let place = Place { offset: 0, number: 0, chain: 0, snapshot_end: 0 };
        let mut next = ListState { full_count: state.full_count, ..ListState::new(superblock, place) };
        let file = &self.lists[(superblock.list % 2) as usize];
        let (mut after, mut payloads) = (None, Payloads::default());
        loop {
            let last = self.catalog().snapshot_page(after, SNAPSHOT_PAGE, &mut payloads);
            let Some(last) = last else { break };
            after = Some(last);
            if payloads.are_many() {
                self.write_part(&mut next, &payloads.take()).await?;
            }
        }
        self.catalog().snapshot_fences(&mut payloads);
        self.write_part(&mut next, &payloads.take()).await?;

        let composed = self.catalog().compose(true, self.sync_counts());
        let covers = composed.covers;
        let mut last = Payloads::from(&composed.payloads);
        last.push(&Entry::End);
        if let Err(error) = self.write_part(&mut next, &last.take()).await {
            self.catalog().restore(composed);
            return Err(error);
        }
        file.sync().await.map_err(|error| self.fail("a sync of the list", &error))?;
        next.place.snapshot_end = next.place.offset;
        next.superblock.list_synced = next.place.offset;
        self.write_superblock(&mut next.superblock).await?;
        self.superblocks.sync().await.map_err(|error| self.fail("a sync of the superblock", &error))?;
        let old = &self.lists[(state.superblock.list % 2) as usize];
        *state = next;
        let size = old.size().unwrap_or(0);
        // Only room is lost if this fails.
        let _ = old.discard(0, size).await;
        self.settle(composed).await?;
        Ok(covers)
    }

    async fn write_part(&self, state: &mut ListState, payloads: &[Vec<u8>]) -> Result<(), StorageError> {
        let (batches, place) = frame(payloads, state);
        let file = &self.lists[(state.superblock.list % 2) as usize];
        file.write(state.place.offset, batches).await.map_err(|error| self.disk_failed(error))?;
        state.place = place;
        Ok(())
    }

    /// Writes the superblock; it need not be durable unless the caller says so.
    pub(crate) async fn write_superblock(&self, superblock: &mut Superblock) -> Result<(), StorageError> {
        superblock.sequence += 1;
        let written = self.superblocks.write(superblock.place(), vec![superblock.encode()]).await;
        written.map_err(|error| self.fail("a write of the superblock", &error))
    }

    /// Chooses cells for the next window and reserves their room on the disk.
    async fn announce(self: &Arc<Self>, run_min: u32) -> Result<(), StorageError> {
        let syncs_needed = {
            let catalog = self.catalog();
            let scarce = !catalog.cells.free_offers(run_min) && !catalog.retired.is_empty();
            scarce.then(|| self.syncs.started() + 1)
        };
        if let Some(need) = syncs_needed {
            // What was replaced waits for its successor to be durable; now its room is needed.
            self.sync_through(need).await?;
        }
        let runs = self.catalog().cells.announce(self.window_cells, run_min);
        let mut lacking = false;
        for run in runs {
            let held = if lacking { 0 } else { self.reserve(run).await };
            lacking |= held < run.count;
            let rest = CellRun { first: run.first + held, count: run.count - held };
            self.catalog().cells.withdraw_run(rest);
        }
        Ok(())
    }

    /// Reserves room for as many cells of a run as the disk has; returns how many.
    async fn reserve(&self, run: CellRun) -> u32 {
        let mut count = run.count;
        while count > 0 {
            match self.data.reserve(self.place(run), u64::from(count) * self.cell_size()).await {
                Ok(()) => return count,
                Err(DiskError::Full) => count /= 2,
                Err(error) => {
                    self.fail("a reservation", &error);
                    return 0;
                }
            }
        }
        0
    }

    /// What was composed is durable: wipes the heads of what is gone, and only then frees the cells.
    async fn settle(&self, composed: Composed) -> Result<(), StorageError> {
        let gone = self.catalog().told(composed);
        for run in gone {
            match self.data.write(self.place(run), vec![Bytes::from_static(&[0; BLOCK_SIZE])]).await {
                // The list says it is gone; the wiped head matters only if the list is ever damaged.
                Ok(()) | Err(DiskError::Full) => self.catalog().cells_left(run),
                Err(error) => return Err(self.fail("a write", &error)),
            }
        }
        Ok(())
    }
}

/// Payloads as batches behind what the list holds, and where the list ends then.
fn frame(payloads: &[Vec<u8>], state: &ListState) -> (Vec<Bytes>, Place) {
    let mut place = state.place;
    let superblock = &state.superblock;
    let batches = payloads.iter().map(|payload| {
        let header = BatchHeader {
            list: superblock.list,
            number: place.number,
            incarnation: superblock.incarnation,
            synced: superblock.list_synced,
            chain: place.chain,
        };
        let (bytes, crc) = encode_batch(&header, payload);
        place = Place { offset: place.offset + bytes.len() as u64, number: place.number + 1, chain: crc, ..place };
        Bytes::from(bytes)
    });
    let batches = batches.collect();
    (batches, place)
}
