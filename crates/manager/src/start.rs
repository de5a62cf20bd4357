//! Taking over slots (DESIGN §5): seal their logs, find their images, roll the journal behind these, open a log of our
//! own, replay the logs of clients that died, free orphans, and only then answer.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use bytes::Bytes;
use host::Port;
use log::recovery::{self, DataBodies, Scanned};
use log::{Cluster, LogError, LogReader, LogWriter, ReadError, SealError, WriterOptions};
use protocol::address::{LogAddress, Position};
use protocol::id::{InodeId, LogId, SlotId, StripeNumber};
use protocol::manager::{MANAGER_PORT, ManagerError};
use protocol::maps::{Maps, Writer};
use protocol::record::RecordKind;
use protocol::registry::{RegistryError, RegistryRequest};
use protocol::storage::{Durability, Room};

use crate::attempt::SlotTable;
use crate::encoding::Damaged;
use crate::image::{Image, Images, Mark, Table, decode, decode_index};
use crate::journal;
use crate::key::Key;
use crate::manager::{Door, Manager, ManagerOptions, Taken};
use crate::ops::{Done, Operation, Told};
use crate::page::Page;
use crate::slot::Slot;
use crate::state::SlotState;

/// How often sealing is tried while targets or another recoverer stand in the way.
const SEAL_TRIES: u32 = 60;
const SEAL_PAUSE: Duration = Duration::from_millis(500);
/// A journal that did not grow for so many looks is idle, and worth covering from so many bytes on.
const IDLE_LOOKS: u32 = 10;
const IDLE_BYTES_MIN: u64 = 1 << 20;
/// Journal and pages that may wait in memory for targets.
const WAITING_MAX: usize = 16 << 20;

/// Why a manager did not start.
#[derive(Debug, thiserror::Error)]
pub enum StartError {
    /// An earlier log could not be sealed.
    #[error("log {} cannot be sealed: {error}", .log.0)]
    Seal {
        /// The log.
        log: LogId,
        /// Why.
        error: SealError,
    },
    /// The own log could not be opened or written.
    #[error("the manager's log: {0}")]
    Log(#[from] LogError),
    /// An earlier log could not be read.
    #[error("an earlier log: {0}")]
    Read(#[from] ReadError),
    /// What no image covers is never deleted; but the targets say that they have none of it.
    #[error(
        "stripe {} of log {}, a journal that is still needed, is on too few targets: more of them lost it than \
         redundancy covers. Put back what was taken away and start again; nothing that is there was given up", .stripe.0, .log.0
    )]
    Lost {
        /// The journal.
        log: LogId,
        /// What is gone of it.
        stripe: StripeNumber,
    },
    /// What an earlier log holds is not what a manager wrote.
    #[error("damaged: {0}")]
    Damaged(String),
    /// The registry refused.
    #[error("the registry: {0}")]
    Registry(#[from] RegistryError),
    /// An operation of the start itself failed.
    #[error("the first operations: {0}")]
    Operation(#[from] ManagerError),
}

impl From<Damaged> for StartError {
    fn from(damaged: Damaged) -> StartError {
        StartError::Damaged(damaged.to_string())
    }
}

/// A run of slots of one node.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct SlotRange {
    pub(crate) first: u16,
    pub(crate) last: u16,
    pub(crate) logs: Vec<LogId>,
}

/// The runs of slots that the manager map gives to a node.
pub(crate) fn ranges(maps: &Maps, node: u32) -> Vec<SlotRange> {
    let firsts: Vec<u16> = maps.slots.keys().copied().collect();
    let lasts = firsts.iter().skip(1).map(|next| next - 1).chain([protocol::id::SLOT_COUNT - 1]);
    let mine = maps.slots.iter().zip(lasts).filter(|((_, entry), _)| entry.node == node);
    mine.map(|((&first, entry), last)| SlotRange { first, last, logs: entry.logs.clone() }).collect()
}

/// Slots as they come out of images and journals.
#[derive(Default)]
struct Recovered {
    slots: BTreeMap<SlotId, Slot>,
    images: BTreeMap<SlotId, Image>,
    /// Up to where the base log's journal is in each image.
    covered: BTreeMap<SlotId, Position>,
}

impl Manager {
    /// Takes over the slots that the manager map gives to this node, and answers on the manager's port from then on.
    pub async fn start(
        cluster: Cluster,
        reader: LogReader,
        options: ManagerOptions,
    ) -> Result<Arc<Manager>, StartError> {
        let node = cluster.host().node().0;
        seal_own(&cluster, node).await?;
        let mut recovered = Recovered::default();
        let mut rolled = BTreeSet::new();
        for range in ranges(&cluster.maps(), node) {
            recovered.take_over(&cluster, &reader, &range).await?;
            rolled.extend(range.logs);
        }
        let waiting = WriterOptions { bytes_waiting_max: WAITING_MAX, ..WriterOptions::default() };
        let writer = LogWriter::open(cluster.clone(), Writer::Manager, Room::Journal, waiting).await?;
        reader.attach(&writer);
        append_log(&cluster, node, writer.log()).await?;
        let images = Images::new(writer.log(), rolled.into_iter().collect(), recovered.images);
        let states = recovered.slots.into_iter().map(|(id, slot)| SlotState::new(id, slot)).collect();
        let table = SlotTable::new(states, options.directory_part_bytes);
        let manager = Arc::new(Manager::new(Taken { cluster, reader, writer, options, table, images }));
        manager.begin().await?;
        Ok(manager)
    }

    /// Stores everything and ends the log. The parts that ask must be gone by then.
    pub async fn stop(&self) {
        self.stopping.store(true, Ordering::Relaxed);
        // What fails here is recovered from the journal at the next start.
        let _ = self.checkpoint().await;
        let _ = self.shorten_lists().await;
        let _ = self.writer.close().await;
    }

    async fn begin(self: &Arc<Self>) -> Result<(), StartError> {
        let node = self.host().node().0;
        if self.table.lock(InodeId::ROOT.slot()).is_some() {
            let (uid, gid) = self.options.root_owner;
            self.perform(node, Operation::MakeRoot { uid, gid }, Durability::Disk).await?;
        }
        self.replay_sealed().await?;
        self.host().listen(Port(MANAGER_PORT), Arc::new(Door(self.clone())));
        let flushing = self.clone();
        self.host().spawn(async move { flushing.keep_flushing().await });
        let imaging = self.clone();
        self.host().spawn(async move { imaging.keep_imaging().await });
        Ok(())
    }

    /// Brings the journal to disk at least every so often, and does what was left for later.
    async fn keep_flushing(self: Arc<Self>) {
        while !self.stopping.load(Ordering::Relaxed) {
            self.host().sleep(self.options.flush_interval).await;
            let end = self.writer.end();
            if self.writer.reached(Durability::Disk) < end {
                // A failure shows at the next operation; this loop tries again.
                let _ = self.commit(end, Durability::Disk).await;
            }
            let later = std::mem::take(&mut *self.later.lock().expect("nobody panics over what is to be done"));
            self.do_later(later).await;
        }
    }

    /// Keeps journal and dirty pages within bounds.
    async fn keep_imaging(self: Arc<Self>) {
        let mut first = self.images.lock().expect("nobody panics over images").rolls_others();
        let mut quiet = Quiet::default();
        self.host().sleep(self.options.orphan_grace).await;
        self.free_orphans().await;
        self.forget_applied().await;
        while !self.stopping.load(Ordering::Relaxed) {
            // The first round makes the earlier logs superfluous.
            let journal = self.journal_bytes.load(Ordering::Relaxed);
            let done = match (first, quiet.is_idle(journal)) {
                (true, _) => self.checkpoint().await,
                (false, true) => self.checkpoint_idle().await,
                (false, false) => self.checkpoint_if_due().await,
            };
            if done.is_ok() {
                first = false;
                let _ = self.shorten_lists().await;
            }
            let _ = self.replay_sealed().await;
            self.host().sleep(self.options.flush_interval).await;
        }
    }

    /// Finds inodes without a name that nobody holds open any more.
    async fn free_orphans(&self) {
        let node = self.host().node().0;
        for &slot in self.table.mine() {
            let told = self.perform(node, Operation::Orphans(slot), Durability::Replicated).await;
            if let Ok((Done::Told(Told::Orphans(orphans)), _)) = told {
                self.do_later(orphans.into_iter().map(Operation::Reap).collect()).await;
            }
        }
    }

    /// Drops what is known of the deltas of logs that the registry forgot.
    async fn forget_applied(&self) {
        let maps = self.cluster.maps();
        let known: BTreeSet<LogId> = maps.logs.keys().copied().collect();
        for &slot in self.table.mine() {
            let operation = Operation::Forget(slot, maps.next_log, known.clone());
            // What fails is tried at the next start.
            let _ = self.perform(self.host().node().0, operation, Durability::Replicated).await;
        }
    }

    async fn do_later(&self, operations: Vec<Operation>) {
        for operation in operations {
            // What fails stays an orphan, to be found at the next start, or a large directory, until it grows.
            let _ = self.perform(self.host().node().0, operation, Durability::Replicated).await;
        }
    }
}

/// Whether anything is added to the journal.
#[derive(Default)]
struct Quiet {
    bytes: u64,
    looks: u32,
}

impl Quiet {
    /// Looks again; true when so many bytes were added before, and none of late, that covering them is worth a round.
    fn is_idle(&mut self, bytes: u64) -> bool {
        self.looks = if bytes == self.bytes { self.looks + 1 } else { 0 };
        self.bytes = bytes;
        self.looks == IDLE_LOOKS && bytes >= IDLE_BYTES_MIN
    }
}

/// Seals what this node's earlier life wrote: whoever wrote there is dead, since we live.
async fn seal_own(cluster: &Cluster, node: u32) -> Result<(), StartError> {
    let maps = cluster.refresh().await?;
    let listed: BTreeSet<LogId> = ranges(&maps, node).into_iter().flat_map(|range| range.logs).collect();
    for (&log, entry) in &maps.logs {
        if entry.node == node || listed.contains(&log) {
            seal(cluster, log).await?;
        }
    }
    cluster.refresh().await?;
    Ok(())
}

async fn seal(cluster: &Cluster, log: LogId) -> Result<Position, StartError> {
    let mut tries = 0;
    loop {
        match recovery::seal(cluster, log).await {
            Ok(length) => return Ok(length),
            Err(SealError::Lost | SealError::Unavailable(_)) if tries < SEAL_TRIES => {
                tries += 1;
                cluster.host().sleep(SEAL_PAUSE).await;
            }
            Err(error) => return Err(StartError::Seal { log, error }),
        }
    }
}

/// Adds our log to the lists of our slots: whoever takes over from us rolls it.
async fn append_log(cluster: &Cluster, node: u32, log: LogId) -> Result<(), StartError> {
    loop {
        let maps = cluster.refresh().await?;
        let Some(range) = ranges(&maps, node).into_iter().find(|range| !range.logs.contains(&log)) else {
            return Ok(());
        };
        let logs = range.logs.into_iter().chain([log]).collect();
        let epoch = maps.epoch.0;
        let request = RegistryRequest::SetSlots { first: range.first, last: range.last, node, logs, epoch };
        match cluster.registry(request).await {
            Ok(_) | Err(RegistryError::Lost) => {}
            Err(error) => return Err(error.into()),
        }
    }
}

impl Recovered {
    /// A range of slots from its images and journals.
    async fn take_over(&mut self, cluster: &Cluster, reader: &LogReader, range: &SlotRange) -> Result<(), StartError> {
        let mine = |slot: SlotId| (range.first..=range.last).contains(&slot.0);
        let mut from = BTreeMap::new();
        for (number, &log) in range.logs.iter().enumerate().rev() {
            if let Some(table) = newest_table(cluster, reader, log).await? {
                from = range.logs[number..].iter().map(|&log| (log, Position::START)).collect();
                from.insert(log, table.journal_from);
                for entry in table.slots.into_iter().filter(|entry| mine(entry.slot)) {
                    let pages = read_index(reader, &entry.index).await?;
                    let stored = pages.iter().map(|(_, address)| *address).collect();
                    self.slots.insert(entry.slot, Slot::from_index(entry.slot, pages));
                    self.covered.insert(entry.slot, entry.covered);
                    self.images.insert(entry.slot, Image { changes: 0, index: entry.index, pages: stored });
                }
                break;
            }
            from.insert(log, Position::START);
        }
        for slot in (range.first..=range.last).map(SlotId) {
            self.slots.entry(slot).or_insert_with(|| Slot::empty(slot));
        }
        let base = range.logs.iter().find(|log| from.contains_key(log)).copied();
        for &log in range.logs.iter().filter(|log| from.contains_key(log)) {
            let length = seal(cluster, log).await?;
            let records = journal_records(reader, log, from[&log]..length).await?;
            for (place, body) in records {
                self.roll(reader, (Some(log) == base).then_some(place), &body, &mine).await?;
            }
        }
        Ok(())
    }

    /// Applies a journal record to the slots whose images do not cover it. `place` is absent in logs behind the base.
    async fn roll(
        &mut self,
        reader: &LogReader,
        place: Option<Position>,
        body: &Bytes,
        mine: &impl Fn(SlotId) -> bool,
    ) -> Result<(), StartError> {
        for change in journal::decode(body)? {
            let covered = self.covered.get(&change.slot).copied();
            let is_covered = place.is_some_and(|place| covered.is_some_and(|covered| place < covered));
            if !mine(change.slot) || is_covered {
                continue;
            }
            let slot = self.slots.get_mut(&change.slot).expect("every slot of the range is there");
            while let Err(page) = slot.ready(change.key) {
                let content = Page::decode(&reader.read(page.address).await?)?;
                slot.fill(&page, content);
            }
            slot.apply(change.key, change.value);
        }
        Ok(())
    }
}

/// The newest checkpoint table that a log's marks name. Fragments name only marks from before they were begun, so the
/// log is searched for newer ones from there on.
async fn newest_table(cluster: &Cluster, reader: &LogReader, log: LogId) -> Result<Option<Table>, StartError> {
    let length = seal(cluster, log).await?;
    let named = recovery::newest_mark(cluster, log).await?;
    let mut newest = None;
    let mut keep = |scanned: Scanned| {
        if scanned.header.kind == RecordKind::Mark {
            newest = Some(scanned.bytes);
        }
    };
    recovery::scan(reader, log, named..length, DataBodies::Skip, &mut keep).await?;
    let Some(mark) = newest else { return Ok(None) };
    let mark: Mark = decode(&mark)?;
    Ok(Some(decode(&reader.read(mark.table).await?)?))
}

async fn read_index(reader: &LogReader, parts: &[LogAddress]) -> Result<Vec<(Key, LogAddress)>, StartError> {
    let mut pages = Vec::new();
    for part in parts {
        pages.extend(decode_index(&reader.read(*part).await?)?);
    }
    Ok(pages)
}

async fn journal_records(
    reader: &LogReader,
    log: LogId,
    range: std::ops::Range<Position>,
) -> Result<Vec<(Position, Bytes)>, StartError> {
    let mut records = Vec::new();
    let mut keep = |scanned: Scanned| {
        if scanned.header.kind == RecordKind::Journal {
            records.push((scanned.place, scanned.bytes));
        }
    };
    let from = range.start.stripe;
    let gone = recovery::scan(reader, log, range, DataBodies::Skip, &mut keep).await?;
    // Of the first stripe what lies before the range may have been all.
    match gone.into_iter().find(|&stripe| stripe > from) {
        Some(stripe) => Err(StartError::Lost { log, stripe }),
        None => Ok(records),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_journal_is_idle_once_each_time_it_comes_to_rest() {
        let mut quiet = Quiet::default();
        let mut idle = |bytes: u64, looks: u32| (0..looks).filter(|_| quiet.is_idle(bytes)).count();
        assert_eq!(idle(0, 50), 0, "nothing was added");
        assert_eq!(idle(IDLE_BYTES_MIN - 1, 50), 0, "not worth a round");
        assert_eq!((1..50).map(|more| idle(IDLE_BYTES_MIN + more, 1)).sum::<usize>(), 0, "it grows");
        assert_eq!(idle(9 * IDLE_BYTES_MIN, IDLE_LOOKS), 0, "it grew of late");
        assert_eq!(idle(9 * IDLE_BYTES_MIN, 50), 1);
        assert_eq!(idle(10 * IDLE_BYTES_MIN, 50), 1);
    }
}
