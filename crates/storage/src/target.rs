//! One target at work: every operation of the fragment store, as I/O around the catalog's decisions.
//!
//! Locks, in the order in which they are taken: one stripe's, then the lead of a round, then the catalog's or the intake's.
//! These two are never held while anything is awaited; a stripe's orders the operations on its fragments and no others. It is
//! held until the disk has done all that was asked of it for the stripe: what is begun goes on to its end (`undertaking`).

use std::collections::BTreeMap;
use std::pin::pin;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};

use bytes::Bytes;
use futures_util::future::{Either, join, select};
use host::{DiskError, DiskUsage, Host};
use protocol::FastMap;
use protocol::checksum::{BLOCK_SIZE, crc_parts};
use protocol::fragment::FragmentId;
use protocol::id::{FenceEpoch, LogId, StripeNumber, TargetId};
use protocol::storage::{Append, Durability, StorageAnswer, StorageError, StorageReply, StorageRequest, TargetStat};

use crate::catalog::{
    Admission, Begun, Catalog, Extension, OpenTail, Plan, ReadPlan, Stored, Syncs, WrittenSlot, other_parity,
    partial_of,
};
use crate::cells::CellRun;
use crate::head::{
    self, Generation, HEAD_SIZE, Identity, TABLE_OFFSET, TailSlot, blocks_full, decode_table, encode_table, slots_of,
};
use crate::lister::ListState;
use crate::request::{check_append, check_replace};
use crate::rounds::{Rounds, Turn};
use crate::taker::Intake;
use crate::undertaking::Undertaking;
use crate::watch::{HANGS, WatchedDisk, WatchedFile};

/// Stripes share so many locks: enough that two busy ones seldom meet.
const STRIPE_LOCKS: usize = 256;
/// How often a request tries for cells before it takes the target for full.
const WIDEN_TRIES: usize = 4;
/// How often a read begins again because the fragment was replaced under it.
const READ_TRIES: usize = 4;
/// The most fragments in an answer to a list.
const LIST_LIMIT: u32 = 4096;

/// One open target.
pub struct Target {
    pub(crate) host: Host,
    pub(crate) id: TargetId,
    pub(crate) disk: WatchedDisk,
    pub(crate) data: WatchedFile,
    pub(crate) superblocks: WatchedFile,
    pub(crate) lists: [WatchedFile; 2],
    /// Where small durable appends go first; `None` when the disk had no room for it.
    pub(crate) intake: Option<Intake>,
    pub(crate) owner: u32,
    pub(crate) cell_data: u32,
    pub(crate) plan: Plan,
    pub(crate) window_cells: u32,
    pub(crate) list_growth: u64,
    pub(crate) incarnation: u64,
    pub(crate) catalog: Mutex<Catalog>,
    /// Syncs of the data.
    pub(crate) syncs: Arc<Rounds>,
    /// Commits of the list; the numbers are those of the catalog's changes.
    pub(crate) listings: Arc<Rounds>,
    /// Belongs to whoever leads a listing.
    pub(crate) list_state: async_lock::Mutex<ListState>,
    pub(crate) failed: OnceLock<String>,
    pub(crate) stripes: Vec<async_lock::Mutex<()>>,
    /// What was read and written since the target was opened.
    pub(crate) bytes_read: AtomicU64,
    pub(crate) bytes_written: AtomicU64,
}

/// How long a fragment is now, and which sync makes that durable, unless it is.
pub(crate) type Accepted = (u32, Option<u64>);
/// The right to change the fragments of a stripe.
pub(crate) type StripeLock<'a> = async_lock::MutexGuard<'a, ()>;

impl Target {
    /// The fences that stand, by their logs.
    pub fn fences(&self) -> BTreeMap<LogId, FenceEpoch> {
        self.catalog().fences.clone()
    }

    /// Does what a request asks. Once begun it is done to its end, though whoever asked is gone, or was told that the disk
    /// hangs.
    pub async fn serve(self: &Arc<Self>, request: StorageRequest) -> StorageAnswer {
        self.check_serves()?;
        let target = self.clone();
        let work = Undertaking::new(self.host.clone(), async move { target.carry_out(request).await });
        match select(work, pin!(self.disk.hang())).await {
            Either::Left((answer, _)) => answer,
            Either::Right(((), _)) => Err(StorageError::Failed(HANGS.into())),
        }
    }

    async fn carry_out(self: &Arc<Self>, request: StorageRequest) -> StorageAnswer {
        match request {
            StorageRequest::Append(append) => self.append(append).await,
            StorageRequest::Replace(append) => self.replace(append).await,
            StorageRequest::Read { id, offset, length } => self.read(id, offset, length).await,
            StorageRequest::Tail { log, from } => Ok(StorageReply::Fragments(self.catalog().tail(log, from))),
            StorageRequest::List { after, limit } => {
                Ok(StorageReply::Fragments(self.catalog().page(after, limit.min(LIST_LIMIT) as usize)))
            }
            StorageRequest::Delete { stripes } => self.delete(&stripes).await,
            StorageRequest::Discard { fragments } => self.discard(&fragments).await,
            StorageRequest::Fence { log, epoch } => {
                let change = self.catalog().fence(log, epoch)?;
                self.list_through(change).await?;
                let complete_below = self.catalog().complete_below(log);
                Ok(StorageReply::Fence { complete_below })
            }
            StorageRequest::Complete { log, epoch, below } => {
                self.catalog().note_complete(log, epoch, below)?;
                Ok(StorageReply::Done { length: 0 })
            }
            StorageRequest::Sync => {
                self.sync_through(self.syncs.started() + 1).await?;
                Ok(StorageReply::Synced { incarnation: self.incarnation })
            }
            StorageRequest::Stat => self.stat(),
        }
    }

    /// The target's id.
    pub fn id(&self) -> TargetId {
        self.id
    }

    /// Whether the target serves nothing now, and why. It stays so until it is opened anew; where its disk hangs, until that
    /// answers again.
    pub fn failure(&self) -> Option<&str> {
        self.failed.get().map(String::as_str).or_else(|| self.disk.hangs().then_some(HANGS))
    }

    /// Bytes read from the disk, or its cache, and written since the target was opened.
    pub fn traffic(&self) -> (u64, u64) {
        (self.bytes_read.load(Ordering::Relaxed), self.bytes_written.load(Ordering::Relaxed))
    }

    async fn append(self: &Arc<Self>, append: Append) -> StorageAnswer {
        let header = check_append(&append)?;
        let stripe = self.lock_stripe(append.header.id).await;
        let (length, until_sync) = self.append_in_stripe(&append, header, stripe).await?;
        self.finish(length, until_sync, append.durability).await
    }

    async fn append_in_stripe(
        self: &Arc<Self>,
        append: &Append,
        header: Box<[u8]>,
        stripe: StripeLock<'_>,
    ) -> Result<Accepted, StorageError> {
        self.raise_fence(append).await?;
        loop {
            let admission = self.catalog().admit_append(append, self.sync_counts())?;
            match admission {
                Admission::Repeated { length, until_sync } => return Ok((length, until_sync)),
                Admission::Create => return self.create(append, header).await,
                Admission::Extend(extension) => return self.lengthen(append, extension, stripe).await,
                Admission::Thaw { run, generation } => self.thaw(append.header.id, run, generation).await?,
                Admission::AwaitListing(change) => self.list_through(change).await?,
                Admission::Compare { .. } => unreachable!("only a replace is compared"),
            }
        }
    }

    async fn replace(self: &Arc<Self>, append: Append) -> StorageAnswer {
        let header = check_replace(&append)?;
        let (length, until_sync) = {
            let _stripe = self.lock_stripe(append.header.id).await;
            self.raise_fence(&append).await?;
            let admission = self.catalog().admit_replace(&append)?;
            match admission {
                Admission::Compare { run, generation, partial, supersede } => {
                    let same = partial == partial_of(append.length() as u32, &append.checksums)
                        && self.read_table((run, generation), 0, blocks_full(append.length() as u32)).await?[..]
                            == append.checksums[..blocks_full(append.length() as u32)];
                    match (same, supersede) {
                        (true, _) => self.repeated(append.header.id, generation)?,
                        (false, true) => self.create(&append, header).await?,
                        (false, false) => return Err(other_parity()),
                    }
                }
                _ => self.create(&append, header).await?,
            }
        };
        self.finish(length, until_sync, append.durability).await
    }

    /// A fragment that is wholly there already.
    fn repeated(&self, id: FragmentId, generation: Generation) -> Result<Accepted, StorageError> {
        let syncs = self.sync_counts();
        let catalog = self.catalog();
        let stored = catalog.fragments.get(&id).filter(|stored| stored.generation == generation);
        stored.map(|stored| (stored.length, stored.until_sync(syncs))).ok_or(StorageError::Missing)
    }

    /// Writes a new fragment: head and bytes lie next to each other, so this is one write.
    async fn create(self: &Arc<Self>, append: &Append, header: Box<[u8]>) -> Result<Accepted, StorageError> {
        let (run, generation) = self.take_cells(append).await?;
        let length = append.length() as u32;
        let partial = partial_of(length, &append.checksums);
        let identity = Identity { generation, owner: self.owner, epoch: append.fence, header };
        let slot = TailSlot { generation, sequence: 1, length, partial, floor: 0 };
        let head = head::encode_new(&identity, &slot, &append.checksums[..blocks_full(length)]);
        let parts = std::iter::once(head).chain(append.parts.iter().cloned()).collect();
        if let Err(error) = self.write_data(self.place(run), parts).await {
            self.catalog().abandon(run);
            return Err(error);
        }
        let syncs = self.sync_counts();
        let complete = append.header.ended() || length == append.header.geometry.fragment_size;
        let tail = OpenTail { complete, ..OpenTail::created(length, syncs.started) };
        let (epoch, header) = (append.fence, identity.header);
        let stored = Stored { run, generation, epoch, length, partial, header, tail: Some(Box::new(tail)) };
        let created = self.catalog().created(append, stored, syncs);
        if created.is_err() {
            // Fenced meanwhile: the sender is told so, and the fragment shall not show up after a restart.
            self.write_data(self.place(run), vec![Bytes::from_static(&[0; BLOCK_SIZE])]).await?;
            self.catalog().abandon(run);
        }
        created.map(|until_sync| (length, Some(until_sync)))
    }

    /// Makes a fragment longer.
    pub(crate) async fn extend(&self, append: &Append, extension: &Extension) -> Result<Accepted, StorageError> {
        let slot = self.write_extension(append, extension).await?;
        self.extended(append, extension, slot)
    }

    /// Bytes, then table, then slot: see `docs/format.md`, *Appending*.
    pub(crate) async fn write_extension(
        &self,
        append: &Append,
        extension: &Extension,
    ) -> Result<WrittenSlot, StorageError> {
        let head = self.place(extension.run);
        let bytes = skip_parts(&append.parts, extension.skip as usize);
        self.write_data(head + HEAD_SIZE as u64 + u64::from(extension.from), bytes).await?;
        if !extension.filled.is_empty() {
            let place = head + (TABLE_OFFSET + 4 * extension.first_filled) as u64;
            self.write_data(place, vec![encode_table(&extension.filled, extension.generation)]).await?;
        }
        // Asked only now: a sync that began meanwhile may be making the newest slot stable, and the next one is due.
        let syncs = self.sync_counts();
        let (index, slot) = self.catalog().slot_for(append.header.id, extension, syncs).ok_or(StorageError::Missing)?;
        self.write_data(head + TailSlot::place(index) as u64, vec![slot.encode()]).await?;
        Ok(WrittenSlot { index, chosen_at: syncs.started, written_at: self.syncs.started() })
    }

    /// All that makes the fragment longer is written: from now on it is.
    pub(crate) fn extended(
        &self,
        append: &Append,
        extension: &Extension,
        slot: WrittenSlot,
    ) -> Result<Accepted, StorageError> {
        let until_sync = self.catalog().extended(append, extension, slot)?;
        Ok((extension.length, Some(until_sync)))
    }

    /// Opens a settled fragment; the list is told before anything is appended to it.
    async fn thaw(&self, id: FragmentId, run: CellRun, generation: Generation) -> Result<(), StorageError> {
        let head = self.read_data(self.place(run), TABLE_OFFSET).await?;
        let change = self.catalog().thaw(id, generation, &slots_of(&head, generation));
        change.map(drop).ok_or(StorageError::Missing)
    }

    async fn read(&self, id: FragmentId, offset: u32, length: u32) -> StorageAnswer {
        for _ in 0..READ_TRIES {
            let plan = self.catalog().plan_read(id, offset, length).ok_or(StorageError::Missing)?;
            let (bytes, checksums) = self.read_blocks(&plan).await?;
            // Its cells may have been given to another fragment meanwhile.
            if self.catalog().holds(id, plan.generation) {
                return Ok(StorageReply::Blocks { offset: plan.offset, bytes, checksums });
            }
        }
        Err(StorageError::Missing)
    }

    pub(crate) async fn read_blocks(&self, plan: &ReadPlan) -> Result<(Bytes, Vec<u32>), StorageError> {
        if plan.length == 0 {
            return Ok((Bytes::new(), Vec::new()));
        }
        let place = self.place(plan.run) + HEAD_SIZE as u64 + u64::from(plan.offset);
        let table = self.read_table((plan.run, plan.generation), blocks_full(plan.offset), plan.full);
        // Neither needs the other: a cold read waits for the disk once.
        let (table, bytes) = join(table, self.read_data(place, plan.length as usize)).await;
        let (mut checksums, bytes) = (table?, bytes?);
        checksums.extend(plan.partial);
        if bytes.len() < plan.length as usize {
            return Err(StorageError::Failed("the disk lost the end of its data".into()));
        }
        Ok((bytes, checksums))
    }

    async fn delete(self: &Arc<Self>, stripes: &[(LogId, StripeNumber)]) -> StorageAnswer {
        let mut last = None;
        for &(log, stripe) in stripes {
            let _stripe = self.lock_of(log, stripe).lock().await;
            last = self.catalog().delete(log, stripe).or(last);
        }
        if let Some(change) = last {
            self.list_through(change).await?;
        }
        Ok(StorageReply::Done { length: 0 })
    }

    async fn discard(self: &Arc<Self>, fragments: &[(FragmentId, u64)]) -> StorageAnswer {
        let mut last = None;
        for &(id, generation) in fragments {
            let _stripe = self.lock_stripe(id).await;
            last = self.catalog().discard(id, Generation(generation)).or(last);
        }
        if let Some(change) = last {
            self.list_through(change).await?;
        }
        Ok(StorageReply::Done { length: 0 })
    }

    fn stat(&self) -> StorageAnswer {
        let failed = |error: DiskError| StorageError::Failed(error.to_string());
        let usage = self.disk.usage().map_err(failed)?;
        let size = self.data.size().map_err(failed)?;
        self.grow(usage);
        let backed = self.backed(size, usage.bytes_free);
        let stat = self.catalog().stat(self.incarnation, backed);
        let (bytes_read, bytes_written) = self.traffic();
        Ok(StorageReply::Stat(TargetStat { bytes_read, bytes_written, ..stat }))
    }

    /// How many of the cells that hold nothing have room on the disk: others' files may have taken it.
    fn backed(&self, size: u64, bytes_free: u64) -> u32 {
        let cells = |bytes: u64| u32::try_from(bytes / self.cell_size()).unwrap_or(u32::MAX);
        let catalog = self.catalog();
        // Cells below the end of the data have their room already; the rest must come from what the disk has free.
        let below = catalog.cells.free_below(cells(size)) + catalog.cells_leaving + catalog.cells.in_window();
        below.saturating_add(cells(bytes_free))
    }

    /// The same, as far as it matters to who takes `count` cells: of a wide window some will be left.
    fn backed_for(&self, count: u32) -> u32 {
        if self.catalog().cells.in_window() >= count + self.window_cells / 2 {
            return u32::MAX;
        }
        // What the disk does not tell is no reason to refuse anything.
        match (self.data.size(), self.disk.usage()) {
            (Ok(size), Ok(usage)) => self.backed(size, usage.bytes_free),
            _ => u32::MAX,
        }
    }

    /// Takes into account how large the disk is; whether it has more room than it ever had. Where several targets share one,
    /// what one of them took more the others would still count with, and all of them run out of what they keep back.
    fn grow(&self, usage: DiskUsage) -> bool {
        if usage.is_shared {
            return false;
        }
        let total = self.plan.cells(usage.bytes_total);
        self.catalog().grow(total, self.plan.reserve(total))
    }

    /// Cells for a new fragment.
    async fn take_cells(self: &Arc<Self>, append: &Append) -> Result<(CellRun, Generation), StorageError> {
        let count = crate::catalog::cells_for(append.header.geometry.fragment_size, self.cell_data);
        for _ in 0..WIDEN_TRIES {
            let backed = self.backed_for(count);
            let (begun, low) = {
                let mut catalog = self.catalog();
                let begun = catalog.begin(append, backed, self.window_cells);
                (begun, catalog.cells.in_window() < self.window_cells / 2 && catalog.cells.can_widen())
            };
            match begun {
                Begun::Cells(run, generation) => {
                    if low {
                        self.widen_soon();
                    }
                    return Ok((run, generation));
                }
                // Others may have left room beneath since it was looked at.
                Begun::Full if self.disk.usage().is_ok_and(|usage| self.grow(usage)) => {}
                Begun::Full => return Err(StorageError::Full),
                Begun::Window => self.widen(count).await?,
            }
        }
        Err(StorageError::Full)
    }

    /// An append with a higher epoch than the log's fence raises it, durably, before its bytes are taken.
    async fn raise_fence(self: &Arc<Self>, append: &Append) -> Result<(), StorageError> {
        let change = self.catalog().fence_by(append)?;
        match change {
            Some(change) => self.list_through(change).await,
            None => Ok(()),
        }
    }

    /// Waits until what was accepted is as durable as asked.
    async fn finish(&self, length: u32, until_sync: Option<u64>, durability: Durability) -> StorageAnswer {
        if let (Some(until_sync), Durability::Disk) = (until_sync, durability) {
            self.sync_through(until_sync).await?;
        }
        Ok(StorageReply::Done { length })
    }

    /// Waits until sync number `need` of the data is over; whoever comes first syncs for all.
    pub(crate) async fn sync_through(&self, need: u64) -> Result<(), StorageError> {
        loop {
            self.check_failed()?;
            match self.syncs.turn(need).await {
                Turn::Reached => return Ok(()),
                Turn::Lead(lead) => {
                    self.check_failed()?;
                    let number = self.syncs.started() + 1;
                    lead.begin(number);
                    self.data.sync().await.map_err(|error| self.fail("a sync of the data", &error))?;
                    lead.finish(number);
                }
            }
        }
    }

    pub(crate) fn sync_counts(&self) -> Syncs {
        let (started, completed) = (self.syncs.started(), self.syncs.completed());
        Syncs { started, completed, listed: self.listings.completed() }
    }

    pub(crate) fn catalog(&self) -> MutexGuard<'_, Catalog> {
        // No panic is expected under this lock; if one comes, others are not to hang on it.
        self.catalog.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Where a run of cells begins in the data.
    pub(crate) fn place(&self, run: CellRun) -> u64 {
        u64::from(run.first) * self.cell_size()
    }

    pub(crate) fn cell_size(&self) -> u64 {
        HEAD_SIZE as u64 + u64::from(self.cell_data)
    }

    pub(crate) async fn write_data(&self, place: u64, parts: Vec<Bytes>) -> Result<(), StorageError> {
        let length: usize = parts.iter().map(Bytes::len).sum();
        self.bytes_written.fetch_add(length as u64, Ordering::Relaxed);
        self.data.write(place, parts).await.map_err(|error| self.disk_failed(error))
    }

    /// A failing read fails the request and not the target: the bytes can be had elsewhere.
    pub(crate) async fn read_data(&self, place: u64, length: usize) -> Result<Bytes, StorageError> {
        self.bytes_read.fetch_add(length as u64, Ordering::Relaxed);
        self.data.read(place, length).await.map_err(|error| StorageError::Failed(error.to_string()))
    }

    async fn read_table(
        &self,
        (run, generation): (CellRun, Generation),
        first: usize,
        count: usize,
    ) -> Result<Vec<u32>, StorageError> {
        if count == 0 {
            return Ok(Vec::new());
        }
        let place = self.place(run) + (TABLE_OFFSET + 4 * first) as u64;
        let table = decode_table(&self.read_data(place, 4 * count).await?, generation);
        if table.len() == count { Ok(table) } else { Err(StorageError::Failed("the disk lost a table".into())) }
    }

    /// What a failed write means.
    pub(crate) fn disk_failed(&self, error: DiskError) -> StorageError {
        match error {
            DiskError::Full => StorageError::Full,
            DiskError::ReadOnly | DiskError::Failed(_) => self.fail("a write", &error),
        }
    }

    /// From now on every request is answered so.
    pub(crate) fn fail(&self, what: &str, error: &DiskError) -> StorageError {
        let why = self.failed.get_or_init(|| format!("{what} failed: {error}"));
        StorageError::Failed(why.clone())
    }

    /// The same, because it is served no more.
    pub(crate) fn close(&self) {
        self.failed.get_or_init(|| "it is served no more".into());
    }

    /// Refuses what is asked of a target that serves nothing now.
    pub(crate) fn check_serves(&self) -> Result<(), StorageError> {
        self.failure().map_or(Ok(()), |why| Err(StorageError::Failed(why.into())))
    }

    /// Whether what was begun is worth going on with: where the disk merely hangs it is.
    pub(crate) fn check_failed(&self) -> Result<(), StorageError> {
        match self.failed.get() {
            Some(why) => Err(StorageError::Failed(why.clone())),
            None => Ok(()),
        }
    }

    async fn lock_stripe(&self, id: FragmentId) -> StripeLock<'_> {
        self.lock_of(id.log, id.stripe).lock().await
    }

    fn lock_of(&self, log: LogId, stripe: StripeNumber) -> &async_lock::Mutex<()> {
        let mixed = (log.0.wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 32).wrapping_add(stripe.0);
        &self.stripes[mixed as usize % STRIPE_LOCKS]
    }
}

impl std::fmt::Debug for Target {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Target {}", self.id.0)
    }
}

/// The locks of a target's stripes.
pub(crate) fn stripe_locks() -> Vec<async_lock::Mutex<()>> {
    (0..STRIPE_LOCKS).map(|_| async_lock::Mutex::new(())).collect()
}

/// Says whose cells these are: those of a disk's former life are not taken for its own.
pub(crate) fn owner_of(cluster: u128, target: TargetId) -> u32 {
    crc_parts([&cluster.to_le_bytes()[..], &target.0.to_le_bytes()])
}

/// Targets by id.
pub(crate) type Targets = FastMap<TargetId, Arc<Target>>;

/// `parts` without their first `skip` bytes.
pub(crate) fn skip_parts(parts: &[Bytes], mut skip: usize) -> Vec<Bytes> {
    let rest = |part: &Bytes| {
        let cut = skip.min(part.len());
        skip -= cut;
        (cut < part.len()).then(|| part.slice(cut..))
    };
    parts.iter().filter_map(rest).collect()
}
