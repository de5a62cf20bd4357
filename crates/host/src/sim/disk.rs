//! Simulated disks: they outlive the nodes they are plugged into, and fail in every way their contract allows.
//!
//! The rules of their faults (what a stop does to unsynced bytes is told in `medium`):
//! 1. Every operation takes a random time, so that operations overtake each other. Once begun it goes on, whether or
//!    not its caller still waits: a write whose future was dropped lands later.
//! 2. A write lands when it finishes. A read that races with it sees any of its sectors; of a durable one, none.
//! 3. When the daemon is killed, of each write in flight any sectors land. When the machine loses power, unsynced
//!    writes then meet their fate too.
//! 4. A write that fails leaves any of its sectors behind; one refused by a read-only disk leaves nothing.
//! 5. After a failed sync nothing is known about the writes it covered, and no later sync brings them back.
//! 6. A sync makes durable what had landed when it was called, and by a coin what landed meanwhile.
//! 7. A bit that flips stays flipped, for reads and on the medium, and no one is told.
//! 8. A hung disk finishes nothing until it is healed or its node stops.
//! 9. What is written durably is so when it has landed. Cut short, it is as any other write; so is one that fails, and it fails
//!    where syncs do.
//! 10. A handle that was plugged in by one life of a node fails in the next: no ghost writes.

use std::collections::BTreeMap;
use std::ops::Range;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;

use crate::{BoxFuture, Disk, DiskError, DiskUsage, NodeId, StoredDisk, StoredFile};

use super::calendar::Event;
use super::executor::{Core, Life, State};
use super::extents::Extents;
use super::medium::{self, Medium, PAGE, SECTOR};
use super::promise::{Promise, promise};
use super::{Dice, Stop};

/// How a disk is built.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct DiskOptions {
    /// How much fits.
    pub capacity_bytes: u64,
    /// What a read takes, half more or less; one operation in a hundred takes up to ten times as long.
    pub read_latency: Duration,
    /// What a write takes.
    pub write_latency: Duration,
    /// What a sync takes.
    pub sync_latency: Duration,
    /// How many operations of a million fail.
    pub error_ppm: u32,
    /// How many reads of a million find a bit flipped.
    pub flip_ppm: u32,
}

impl Default for DiskOptions {
    fn default() -> Self {
        DiskOptions {
            capacity_bytes: 1 << 30,
            read_latency: Duration::from_micros(80),
            write_latency: Duration::from_micros(30),
            sync_latency: Duration::from_micros(500),
            error_ppm: 0,
            flip_ppm: 0,
        }
    }
}

/// What is wrong with a disk, until it is healed.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct DiskFaults {
    /// Reads fail, and the disk cannot be opened or asked for its usage.
    pub reads: bool,
    /// Writes, reservations and discards fail.
    pub writes: bool,
    /// Syncs fail.
    pub syncs: bool,
    /// Writes, reservations and discards are refused.
    pub read_only: bool,
    /// Nothing finishes.
    pub hung: bool,
}

/// What a disk was asked since the world began, whether or not it did it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct DiskCounters {
    /// Reads begun.
    pub reads: u64,
    /// Writes begun.
    pub writes: u64,
    /// Syncs begun.
    pub syncs: u64,
    /// Bytes given to readers.
    pub bytes_read: u64,
    /// Bytes of the writes begun.
    pub bytes_written: u64,
}

/// A simulated disk as the test sees it. [`SimDisk::plug`] gives what a part sees.
#[derive(Clone)]
pub struct SimDisk {
    core: Arc<Core>,
    index: usize,
}

/// What the world knows of one disk.
pub(super) struct DiskState {
    name: String,
    pub(super) node: NodeId,
    options: DiskOptions,
    faults: DiskFaults,
    slowness: u32,
    counters: DiskCounters,
    files: BTreeMap<&'static str, FileState>,
    operations: BTreeMap<u64, Operation>,
    operations_started: u64,
    stalled: Vec<u64>,
}

#[derive(Default)]
struct FileState {
    medium: Medium,
    /// What takes room: written or reserved, in whole pages.
    allocated: Extents,
    /// What cannot be read.
    unreadable: Vec<Range<u64>>,
}

/// Something that a disk has begun.
pub(super) struct Operation {
    file: &'static str,
    kind: Kind,
    promise: Promise<Outcome>,
}

enum Kind {
    Read {
        offset: u64,
        length: usize,
    },
    /// What has not landed yet, at its offsets.
    Write {
        pieces: Vec<(u64, Bytes)>,
        durably: bool,
    },
    Sync {
        covered: u64,
    },
    Reserve(Range<u64>),
    Discard(Range<u64>),
}

/// Bytes for a read; none for the rest.
type Outcome = Result<Bytes, DiskError>;

impl SimDisk {
    pub(super) fn add(core: &Arc<Core>, node: NodeId, name: &str, options: DiskOptions) -> SimDisk {
        let mut state = core.lock();
        assert!(state.disks.iter().all(|disk| disk.name != name), "there is a disk {name} already");
        state.disks.push(DiskState::new(name, node, options));
        SimDisk { core: core.clone(), index: state.disks.len() - 1 }
    }

    pub(super) fn find(core: &Arc<Core>, name: &str) -> SimDisk {
        let index = core.lock().disks.iter().position(|disk| disk.name == name);
        SimDisk { core: core.clone(), index: index.unwrap_or_else(|| panic!("there is no disk {name}")) }
    }

    /// The disk as a part on its node sees it, for the node's present life: plug it in again after a restart. Of a
    /// node that does not run, it is a handle for the test, which no stop ends.
    pub fn plug(&self) -> Disk {
        let state = self.core.lock();
        let life = state.life(state.disks[self.index].node);
        drop(state);
        Disk::new(Arc::new(Plugged { disk: self.clone(), life }))
    }

    /// The name it was given.
    pub fn name(&self) -> String {
        self.with(|disk, _| disk.name.clone())
    }

    /// What it has done so far.
    pub fn counters(&self) -> DiskCounters {
        self.with(|disk, _| disk.counters)
    }

    /// What is wrong with it now.
    pub fn faults(&self) -> DiskFaults {
        self.with(|disk, _| disk.faults)
    }

    /// Everything fails from now on: the target is dead, until it is healed.
    pub fn fail(&self) {
        self.set_faults(DiskFaults { reads: true, writes: true, syncs: true, ..DiskFaults::default() });
    }

    /// From now on just these things are wrong. What had been stuck goes on if it no longer is.
    pub fn set_faults(&self, faults: DiskFaults) {
        let mut state = self.core.lock();
        let (disk, now) = (self.index, state.now);
        state.disks[disk].faults = faults;
        if !faults.hung {
            for operation in std::mem::take(&mut state.disks[disk].stalled) {
                state.calendar.plan(now, Event::Disk { disk, operation });
            }
        }
    }

    /// Nothing is wrong any more. What was lost or flipped stays so.
    pub fn heal(&self) {
        self.set_faults(DiskFaults::default());
    }

    /// Everything takes `factor` times as long from now on; 1 is usual.
    pub fn slow(&self, factor: u32) {
        self.with(|disk, _| disk.slowness = factor.max(1));
    }

    /// Changes its build from now on: a larger or smaller disk, other error rates.
    pub fn set_options(&self, options: DiskOptions) {
        self.with(|disk, _| disk.options = options);
    }

    /// Flips one bit of the byte at `offset` of `file`, silently.
    pub fn corrupt(&self, file: &str, offset: u64) {
        self.with(|disk, dice| {
            let bit = dice.below(8) as u8;
            if let Some(file) = disk.files.get_mut(file) {
                file.medium.flip(offset, bit);
            }
        });
    }

    /// Reads of any of these bytes of `file` fail from now on.
    pub fn fail_reads(&self, file: &'static str, range: Range<u64>) {
        self.with(|disk, _| disk.files.entry(file).or_default().unreadable.push(range));
    }

    /// Flips one bit somewhere in what was written; tells where, or that nothing was written.
    pub fn corrupt_somewhere(&self) -> Option<(&'static str, u64)> {
        self.with(|disk, dice| {
            let names: Vec<&'static str> = disk.files.keys().copied().collect();
            let name = *dice.pick(&names)?;
            let file = disk.files.get_mut(name)?;
            let offset = file.medium.some_byte(dice)?;
            file.medium.flip(offset, dice.below(8) as u8);
            Some((name, offset))
        })
    }

    /// Empties it, as if a new disk had been put in its place. Writes in flight land on the new one.
    pub fn wipe(&self) {
        let files = self.with(|disk, _| std::mem::take(&mut disk.files));
        drop(files);
    }

    /// Moves it to another machine: from now on it stops with that one.
    pub fn attach(&self, node: NodeId) {
        self.with(|disk, _| disk.node = node);
    }

    /// Reads at once, without time, faults or counters: for a test that looks at what is there.
    pub fn peek(&self, file: &str, offset: u64, length: usize) -> Bytes {
        self.with(|disk, _| disk.files.get(file).map_or(Bytes::new(), |file| file.medium.read(offset, length)))
    }

    fn with<T>(&self, act: impl FnOnce(&mut DiskState, &mut Dice) -> T) -> T {
        let mut state = self.core.lock();
        let State { disks, dice, .. } = &mut *state;
        act(&mut disks[self.index], dice)
    }

    async fn operate(&self, life: Option<Life>, file: &'static str, mut kind: Kind) -> Outcome {
        let (promise, awaited) = promise();
        {
            let mut state = self.core.lock();
            if life.is_some_and(|life| !state.lives(life)) {
                return Err(stopped());
            }
            let State { disks, dice, calendar, now, .. } = &mut *state;
            let disk = &mut disks[self.index];
            let at = *now + disk.latency(&kind, dice);
            disk.operations_started += 1;
            let operation = disk.operations_started;
            disk.begin(file, &mut kind);
            disk.operations.insert(operation, Operation { file, kind, promise });
            calendar.plan(at, Event::Disk { disk: self.index, operation });
        }
        awaited.await.unwrap_or_else(|_| Err(stopped()))
    }
}

/// An operation is over: it takes effect, and its caller learns of it.
pub(super) fn finish(core: &Core, disk: usize, operation: u64) {
    let mut state = core.lock();
    let State { disks, dice, .. } = &mut *state;
    let disk = &mut disks[disk];
    if disk.faults.hung {
        return disk.stalled.push(operation);
    }
    let Some(Operation { file, kind, promise }) = disk.operations.remove(&operation) else { return };
    let outcome = disk.finish(file, kind, dice);
    drop(state);
    let unwanted = promise.keep(outcome);
    drop(unwanted);
}

/// The disks of `node` meet its stop. The operations cut short are for the caller to drop outside the lock.
pub(super) fn stop(state: &mut State, node: NodeId, stop: Stop) -> Vec<Operation> {
    let State { disks, dice, .. } = state;
    disks.iter_mut().filter(|disk| disk.node == node).flat_map(|disk| disk.stop(stop, dice)).collect()
}

/// All operations, for the caller to drop outside the lock.
pub(super) fn take_operations(disks: &mut [DiskState]) -> Vec<Operation> {
    disks.iter_mut().flat_map(|disk| std::mem::take(&mut disk.operations).into_values()).collect()
}

impl DiskState {
    fn new(name: &str, node: NodeId, options: DiskOptions) -> Self {
        DiskState {
            name: name.into(),
            node,
            options,
            faults: DiskFaults::default(),
            slowness: 1,
            counters: DiskCounters::default(),
            files: BTreeMap::new(),
            operations: BTreeMap::new(),
            operations_started: 0,
            stalled: Vec::new(),
        }
    }

    fn latency(&self, kind: &Kind, dice: &mut Dice) -> Duration {
        let (usual, bytes) = match kind {
            Kind::Read { length, .. } => (self.options.read_latency, *length as u64),
            Kind::Write { pieces, durably } => {
                let sync = if *durably { self.options.sync_latency } else { Duration::ZERO };
                (self.options.write_latency + sync, pieces.iter().map(|(_, bytes)| bytes.len() as u64).sum())
            }
            Kind::Sync { .. } => (self.options.sync_latency, 0),
            Kind::Reserve(_) | Kind::Discard(_) => (self.options.write_latency, 0),
        };
        let usual = usual.as_nanos() as u64;
        let mut latency = dice.within(usual / 2..usual * 3 / 2 + 1);
        if dice.below(100) == 0 {
            latency *= 1 + dice.below(10);
        }
        // A gigabyte per second, for what is large.
        Duration::from_nanos((latency + bytes) * u64::from(self.slowness))
    }

    /// Counts an operation, and notes what must be known of it when it is called.
    fn begin(&mut self, file: &'static str, kind: &mut Kind) {
        match kind {
            Kind::Read { .. } => self.counters.reads += 1,
            Kind::Write { pieces, .. } => {
                self.counters.writes += 1;
                self.counters.bytes_written += pieces.iter().map(|(_, bytes)| bytes.len() as u64).sum::<u64>();
            }
            Kind::Sync { covered } => {
                self.counters.syncs += 1;
                *covered = self.files.entry(file).or_default().medium.sequence();
            }
            Kind::Reserve(_) | Kind::Discard(_) => {}
        }
    }

    fn finish(&mut self, name: &'static str, kind: Kind, dice: &mut Dice) -> Outcome {
        let error = dice.chance(self.options.error_ppm);
        match kind {
            Kind::Read { offset, length } => {
                let range = offset..offset.saturating_add(length as u64);
                if error || self.faults.reads || self.is_unreadable(name, &range) {
                    return Err(broken("read"));
                }
                self.race(name, range, dice);
                let bytes = self.read(name, offset, length, dice);
                self.counters.bytes_read += bytes.len() as u64;
                Ok(bytes)
            }
            Kind::Sync { covered } => {
                let medium = &mut self.files.entry(name).or_default().medium;
                if error || self.faults.syncs {
                    medium.fail_sync(covered, dice);
                    return Err(broken("sync"));
                }
                medium.sync(if dice.coin() { medium.sequence() } else { covered });
                Ok(Bytes::new())
            }
            _ if self.faults.read_only => Err(DiskError::ReadOnly),
            Kind::Write { pieces, durably } => {
                if error || self.faults.writes || durably && self.faults.syncs {
                    self.land_some(name, pieces, dice);
                    return Err(broken("write"));
                }
                self.finish_write(name, (pieces, durably), dice)
            }
            Kind::Reserve(_) | Kind::Discard(_) if error || self.faults.writes => Err(broken("write")),
            Kind::Reserve(range) => {
                if self.allocate(name, range) {
                    Ok(Bytes::new())
                } else {
                    Err(DiskError::Full)
                }
            }
            Kind::Discard(range) => {
                let file = self.files.entry(name).or_default();
                let whole = range.start.next_multiple_of(PAGE)..range.end / PAGE * PAGE;
                if whole.start < whole.end {
                    file.allocated.remove(whole);
                }
                file.medium.zero(range);
                Ok(Bytes::new())
            }
        }
    }

    fn is_unreadable(&self, name: &str, range: &Range<u64>) -> bool {
        let meets = |bad: &Range<u64>| bad.start < range.end && range.start < bad.end;
        self.files.get(name).is_some_and(|file| file.unreadable.iter().any(meets))
    }

    fn finish_write(
        &mut self,
        name: &'static str,
        (pieces, durably): (Vec<(u64, Bytes)>, bool),
        dice: &mut Dice,
    ) -> Outcome {
        let lacking = pieces.iter().any(|(offset, bytes)| !self.allocate(name, *offset..offset + bytes.len() as u64));
        if lacking {
            self.land_some(name, pieces, dice);
            return Err(DiskError::Full);
        }
        let medium = &mut self.files.entry(name).or_default().medium;
        for (offset, bytes) in pieces {
            if durably {
                medium.write_durably(offset, bytes);
            } else {
                medium.write(offset, bytes);
            }
        }
        Ok(Bytes::new())
    }

    fn read(&mut self, name: &'static str, offset: u64, length: usize, dice: &mut Dice) -> Bytes {
        let flip = dice.chance(self.options.flip_ppm);
        let medium = &mut self.files.entry(name).or_default().medium;
        let end = offset.saturating_add(length as u64).min(medium.size());
        if flip && offset < end {
            medium.flip(dice.within(offset..end), dice.below(8) as u8);
        }
        medium.read(offset, length)
    }

    /// Lets writes in flight over `range`, but durable ones, land in part, by a coin each, so that a racing read may see it.
    fn race(&mut self, name: &'static str, range: Range<u64>, dice: &mut Dice) {
        let rivals: Vec<u64> = self
            .operations
            .iter()
            .filter(|(_, operation)| operation.file == name && operation.writes_into(&range))
            .map(|(number, _)| *number)
            .collect();
        if self.faults.writes || self.faults.read_only {
            return;
        }
        for number in rivals {
            if dice.coin() {
                continue;
            }
            let operation = self.operations.get_mut(&number).expect("it was there above");
            let Kind::Write { pieces, .. } = &mut operation.kind else { continue };
            let pieces = std::mem::take(pieces);
            let pieces = self.land_some(name, pieces, dice);
            let kind = Kind::Write { pieces, durably: false };
            self.operations.get_mut(&number).expect("it was there above").kind = kind;
        }
    }

    /// Lands any sectors of a write, as far as there is room; returns those that did not land.
    fn land_some(&mut self, name: &'static str, pieces: Vec<(u64, Bytes)>, dice: &mut Dice) -> Vec<(u64, Bytes)> {
        let sectors = split_into_sectors(pieces);
        let spared = medium::survivors(sectors.len() as u64, dice);
        let mut left = Vec::new();
        for ((offset, bytes), spared) in sectors.into_iter().zip(spared) {
            if spared && self.allocate(name, offset..offset + bytes.len() as u64) {
                self.files.entry(name).or_default().medium.write(offset, bytes);
            } else {
                left.push((offset, bytes));
            }
        }
        left
    }

    /// Takes room for `range`, or says that there is not enough.
    fn allocate(&mut self, name: &'static str, range: Range<u64>) -> bool {
        if range.is_empty() {
            return true;
        }
        let pages = range.start / PAGE * PAGE..range.end.next_multiple_of(PAGE);
        let free = self.bytes_free();
        let allocated = &mut self.files.entry(name).or_default().allocated;
        let enough = allocated.missing(pages.clone()) <= free;
        if enough {
            allocated.insert(pages);
        }
        enough
    }

    fn bytes_free(&self) -> u64 {
        let used: u64 = self.files.values().map(|file| file.allocated.bytes()).sum();
        self.options.capacity_bytes.saturating_sub(used)
    }

    fn stop(&mut self, stop: Stop, dice: &mut Dice) -> Vec<Operation> {
        self.stalled.clear();
        let mut operations: Vec<Operation> = std::mem::take(&mut self.operations).into_values().collect();
        for operation in &mut operations {
            match &mut operation.kind {
                Kind::Write { .. } if self.faults.writes || self.faults.read_only => {}
                Kind::Write { pieces, .. } => drop(self.land_some(operation.file, std::mem::take(pieces), dice)),
                Kind::Sync { covered } if dice.coin() && !self.faults.syncs => {
                    self.files.entry(operation.file).or_default().medium.sync(*covered);
                }
                _ => {}
            }
        }
        if stop == Stop::PowerLoss {
            for file in self.files.values_mut() {
                file.medium.lose_power(dice);
                // A discard may have been undone: what is there takes room again.
                for page in file.medium.pages() {
                    file.allocated.insert(page..page + PAGE);
                }
            }
        }
        operations
    }
}

impl Operation {
    fn writes_into(&self, range: &Range<u64>) -> bool {
        match &self.kind {
            Kind::Write { pieces, durably: false } => {
                pieces.iter().any(|(offset, bytes)| *offset < range.end && offset + bytes.len() as u64 > range.start)
            }
            _ => false,
        }
    }
}

fn stopped() -> DiskError {
    DiskError::Failed("the node that had plugged it in has stopped".into())
}

fn broken(what: &str) -> DiskError {
    DiskError::Failed(format!("simulated {what} error"))
}

/// Cuts pieces at sector boundaries.
fn split_into_sectors(pieces: Vec<(u64, Bytes)>) -> Vec<(u64, Bytes)> {
    let mut sectors = Vec::new();
    for (mut offset, mut bytes) in pieces {
        while !bytes.is_empty() {
            let length = (SECTOR - offset % SECTOR).min(bytes.len() as u64);
            sectors.push((offset, bytes.split_to(length as usize)));
            offset += length;
        }
    }
    sectors
}

/// A disk as one life of a node sees it.
struct Plugged {
    disk: SimDisk,
    life: Option<Life>,
}

impl Plugged {
    /// Whether it can be asked anything at all.
    fn check(&self) -> Result<(), DiskError> {
        let state = self.disk.core.lock();
        if self.life.is_some_and(|life| !state.lives(life)) {
            return Err(stopped());
        }
        if state.disks[self.disk.index].faults.reads { Err(broken("disk")) } else { Ok(()) }
    }
}

impl StoredDisk for Plugged {
    fn open(&self, name: &'static str) -> Result<Arc<dyn StoredFile>, DiskError> {
        self.check()?;
        self.disk.with(|disk, _| {
            disk.files.entry(name).or_default();
        });
        Ok(Arc::new(PluggedFile { disk: Plugged { disk: self.disk.clone(), life: self.life }, name }))
    }

    fn usage(&self) -> Result<DiskUsage, DiskError> {
        self.check()?;
        let (bytes_total, bytes_free) = self.disk.with(|disk, _| (disk.options.capacity_bytes, disk.bytes_free()));
        Ok(DiskUsage { bytes_total, bytes_free, is_shared: false })
    }
}

/// One byte space of a disk, as one life of a node sees it.
struct PluggedFile {
    disk: Plugged,
    name: &'static str,
}

impl PluggedFile {
    async fn operate(&self, kind: Kind) -> Outcome {
        self.disk.disk.operate(self.disk.life, self.name, kind).await
    }

    async fn write_parts(&self, offset: u64, parts: Vec<Bytes>, durably: bool) -> Result<(), DiskError> {
        let mut pieces = Vec::with_capacity(parts.len());
        let mut at = offset;
        for part in parts {
            let end = at + part.len() as u64;
            pieces.push((at, part));
            at = end;
        }
        self.operate(Kind::Write { pieces, durably }).await.map(drop)
    }
}

impl StoredFile for PluggedFile {
    fn read(&self, offset: u64, length: usize) -> BoxFuture<'_, Result<Bytes, DiskError>> {
        Box::pin(self.operate(Kind::Read { offset, length }))
    }

    fn write(&self, offset: u64, parts: Vec<Bytes>) -> BoxFuture<'_, Result<(), DiskError>> {
        Box::pin(self.write_parts(offset, parts, false))
    }

    fn write_durably(&self, offset: u64, parts: Vec<Bytes>) -> BoxFuture<'_, Result<(), DiskError>> {
        Box::pin(self.write_parts(offset, parts, true))
    }

    fn sync(&self) -> BoxFuture<'_, Result<(), DiskError>> {
        // What it covers is known when it begins.
        Box::pin(async move { self.operate(Kind::Sync { covered: 0 }).await.map(drop) })
    }

    fn reserve(&self, offset: u64, length: u64) -> BoxFuture<'_, Result<(), DiskError>> {
        let range = offset..offset.saturating_add(length);
        Box::pin(async move { self.operate(Kind::Reserve(range)).await.map(drop) })
    }

    fn discard(&self, offset: u64, length: u64) -> BoxFuture<'_, Result<(), DiskError>> {
        let range = offset..offset.saturating_add(length);
        Box::pin(async move { self.operate(Kind::Discard(range)).await.map(drop) })
    }

    fn size(&self) -> Result<u64, DiskError> {
        self.disk.check()?;
        let size = |disk: &mut DiskState| disk.files.get(self.name).map_or(0, |file| file.medium.size());
        Ok(self.disk.disk.with(|disk, _| size(disk)))
    }
}
