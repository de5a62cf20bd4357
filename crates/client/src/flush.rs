//! From the cache to the log and the managers: appending, recording, `fsync`. Awaits, but for the step that appends,
//! which never waits.

use std::sync::{Arc, MutexGuard};

use futures_util::future::{join, join_all};
use log::{BodyPart, LogError, LogWriter, Record};
use protocol::address::{LogAddress, Position};
use protocol::checksum::BLOCK_SIZE;
use protocol::delta::{Change, Delta};
use protocol::id::InodeId;
use protocol::manager::ManagerError;
use protocol::record::{HEADER_SIZE, Owner, RecordKind};
use protocol::storage::Durability;

use crate::ClientError;
use crate::client::{Client, Inner, lock};
use crate::file::{Appender, File};
use crate::opens::OpenFile;
use crate::outbox::{Batch, Outbox};

/// Bodies of so many bytes begin on a block.
const ALIGNED_MIN: usize = 16 << 10;
/// Less than this at the end of a stripe is left empty rather than filled with a short body.
const TAIL_MIN: u64 = 64 << 10;
/// About so many bytes of deltas go into one record.
const DELTAS_BYTES_MAX: usize = 128 << 10;

/// Of which files the bases were known.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Based {
    All,
    Some,
}

impl Client {
    /// What `close(2)` waits for: reports, once, what went wrong in the background. Writes nothing.
    pub async fn flush(&self, inode: InodeId) -> Result<(), ClientError> {
        let failed = self.0.find(inode).and_then(|file| lock(&file.state).failed.take());
        failed.map_or(Ok(()), Err)
    }

    /// `fsync`, or `fdatasync` with `data_only`: returns when what was written survives a power loss of all machines.
    pub async fn fsync(&self, inode: InodeId, data_only: bool) -> Result<(), ClientError> {
        // Data without its inode is nothing, and the journal is flushed only where the inode's newest record needs it.
        let _ = data_only;
        let Some(file) = self.0.find(inode) else { return self.0.flush_journal(inode).await };
        // What was given up is stored, and known to its manager, and that on disk.
        let pin = self.0.pin_held(inode).await;
        if pin.is_none() || lock(&file.state).file.is_none() {
            drop(pin);
            return self.0.flush_journal(inode).await;
        }
        self.0.write_out(&file).await?;
        let recorded = file.recorded();
        let (stored, journal) = join(self.0.commit(recorded), self.0.flush_journal(inode)).await;
        stored.and(journal)?;
        lock(&file.state).failed = None;
        Ok(())
    }

    /// `fsync` of a directory: its names survive a power loss of all machines.
    pub async fn fsync_directory(&self, directory: InodeId) -> Result<(), ClientError> {
        self.0.flush_journal(directory).await
    }

    /// `sync`: everything that this client changed survives a power loss of all machines.
    pub async fn sync_all(&self) -> Result<(), ClientError> {
        self.store_all().await?;
        Ok(lock(&self.0.journals).take_lost()?)
    }

    async fn store_all(&self) -> Result<(), ClientError> {
        let files: Vec<_> = lock(&self.0.files).values().cloned().collect();
        for file in &files {
            let pin = self.0.pin_held(file.inode).await;
            if pin.is_some() && lock(&file.state).file.is_some() {
                self.0.write_out(file).await.or_else(gone)?;
            }
        }
        let recorded = lock(&self.0.outbox).end();
        let owed = lock(&self.0.journals).owed_all();
        let journals = join_all(owed.into_iter().map(|owed| self.0.flush_at(owed)));
        let (stored, journals) = join(self.0.commit(recorded), journals).await;
        stored?;
        journals.into_iter().collect()
    }

    /// `sync`, and managers know of it all: what they say of any file is what a reader would see.
    pub async fn settle(&self) -> Result<(), ClientError> {
        self.store_all().await?;
        let recorded = lock(&self.0.outbox).end();
        self.0.applied(recorded).await
    }
}

impl Inner {
    /// Brings all of a file into the log, with its deltas. Does not wait until that is durable.
    pub(crate) async fn write_out(&self, file: &OpenFile) -> Result<(), ClientError> {
        let until = self.room_until();
        loop {
            match self.write_out_now(file).await {
                Err(ClientError::NoRoom) if self.room_comes(until).await => {}
                outcome => return outcome,
            }
        }
    }

    async fn write_out_now(&self, file: &OpenFile) -> Result<(), ClientError> {
        loop {
            if lock(&file.state).known().is_recorded() {
                return Ok(());
            }
            self.log.room().await?;
            self.base(file).await?;
            let _shape = file.shape.read().await;
            if self.append_and_record(&[file])? == Based::All {
                return Ok(());
            }
        }
    }

    /// Appends what is dirty in `files` and records their deltas: one step in memory. The caller holds their shapes, and
    /// knew their bases: one whose base a reader on another thread forgot since is left as it is.
    pub(crate) fn append_and_record(&self, files: &[&OpenFile]) -> Result<Based, LogError> {
        let mut based = Based::All;
        let mut batch = Recording { outbox: lock(&self.outbox), deltas: Vec::new(), from: None, files: Vec::new() };
        for &file in files {
            let mut state = lock(&file.state);
            if state.is_abandoned() {
                continue;
            }
            let known = state.known();
            if !known.is_based() {
                based = Based::Some;
                continue;
            }
            let before = known.weight();
            let appended = known.append_all(&mut self.appender(file.inode));
            self.budget.change(before, known.weight());
            if let Err(error) = appended {
                drop(state);
                self.record(&mut batch)?;
                return Err(error);
            }
            let from = known.record(file.inode, &mut batch.deltas);
            batch.from = batch.from.into_iter().chain(from).min();
            batch.files.push(file);
            drop(state);
            if batch.deltas.iter().map(size_about).sum::<usize>() >= DELTAS_BYTES_MAX {
                self.record(&mut batch)?;
            }
        }
        self.record(&mut batch)?;
        Ok(based)
    }

    /// Appends the gathered deltas. Deltas of one file may span records; they still come in order.
    fn record(&self, batch: &mut Recording<'_>) -> Result<(), LogError> {
        let deltas = std::mem::take(&mut batch.deltas);
        let from = batch.from.take();
        let mut outcome = Ok(None);
        let mut rest = &deltas[..];
        while !rest.is_empty() && outcome.is_ok() {
            let mut bytes = 0;
            let count = rest.iter().take_while(|delta| {
                bytes += size_about(delta);
                bytes <= 2 * DELTAS_BYTES_MAX
            });
            let (now, later) = rest.split_at(count.count().max(1));
            rest = later;
            outcome = self.append_deltas(now, from, &mut batch.outbox).map(Some);
        }
        let (end, outcome) = match outcome {
            Ok(end) => (end, Ok(())),
            Err(error) => (None, Err(error)),
        };
        for file in batch.files.drain(..) {
            lock(&file.state).known().recorded_at(end);
        }
        self.outbox_filled.notify(usize::MAX);
        outcome
    }

    pub(crate) fn append_deltas(
        &self,
        deltas: &[Delta],
        from: Option<Position>,
        outbox: &mut Outbox,
    ) -> Result<Position, LogError> {
        let body = postcard::to_allocvec(deltas).expect("deltas have no form that cannot be encoded");
        let parts = &[BodyPart::Copied(&body)];
        let record = Record { kind: RecordKind::Deltas, owner: Owner::default(), parts, aligned: false };
        let appended = self.log.append(record)?;
        self.budget.appended(body.len() as u64);
        let (position, end, from) = (appended.body.position(), appended.end, from.unwrap_or(appended.place));
        outbox.push(Batch { position, end, from, deltas: deltas.into() });
        Ok(appended.end)
    }

    /// Where data records of `inode` go.
    pub(crate) fn appender(&self, inode: InodeId) -> LogAppender<'_> {
        LogAppender { inner: self, log: &self.log, inode }
    }

    /// Waits until the log is `disk` through `position`.
    pub(crate) async fn commit(&self, position: Position) -> Result<(), ClientError> {
        self.settle_room();
        if self.log.reached(Durability::Disk) < position {
            let until = self.room_until();
            loop {
                match self.log.commit(position, Durability::Disk).await {
                    Err(LogError::Full) if self.room_comes(until).await => {}
                    outcome => break outcome?,
                }
            }
        }
        self.settle_room();
        Ok(())
    }

    /// What the log has on targets by now is no longer on its way there.
    pub(crate) fn settle_room(&self) {
        // In this order: what had been appended lies before where the log ends afterwards.
        let appended = self.budget.appended_so_far();
        self.budget.settle(appended, self.log.end(), self.log.reached(Durability::Disk));
    }

    /// Waits until managers have acknowledged all deltas in records that end at or before `position`.
    pub(crate) async fn applied(&self, position: Position) -> Result<(), ClientError> {
        loop {
            let moved = self.outbox_moved.listen();
            {
                let mut outbox = lock(&self.outbox);
                if outbox.acknowledged() >= position {
                    return Ok(());
                }
                if let Some(error) = outbox.failed() {
                    return Err(error);
                }
                outbox.want(position);
            }
            if self.is_stopped() {
                return Err(ClientError::Stopped);
            }
            self.outbox_filled.notify(usize::MAX);
            moved.await;
        }
    }

    /// Waits until all known records about `inode` in managers' journals are `disk`.
    async fn flush_journal(&self, inode: InodeId) -> Result<(), ClientError> {
        let owed = lock(&self.journals).owed(inode)?;
        let flushed = join_all(owed.into_iter().map(|owed| self.flush_at(owed))).await;
        flushed.into_iter().collect::<Result<(), ClientError>>()?;
        Ok(lock(&self.journals).owed(inode).map(drop)?)
    }

    /// A flush in the background failed: whoever works on these files is told, once. Their bytes stay.
    pub(crate) fn tell(&self, files: &[Arc<OpenFile>], error: &ClientError) {
        for file in files {
            lock(&file.state).failed = Some(error.clone());
        }
    }

    /// As [`Inner::tell`], for all files with records that are not `disk`.
    pub(crate) fn tell_uncommitted(&self, error: &ClientError) {
        let disk = self.log.reached(Durability::Disk);
        let files: Vec<_> = lock(&self.files).values().cloned().collect();
        for file in files {
            let mut state = lock(&file.state);
            if state.file.as_ref().is_some_and(|file: &File| file.recorded() > disk) {
                state.failed = Some(error.clone());
            }
        }
    }
}

/// A file that others removed keeps nobody from storing the rest: what was written there is dropped by then.
pub(crate) fn gone(error: ClientError) -> Result<(), ClientError> {
    match error {
        ClientError::Manager(ManagerError::Stale | ManagerError::NotFound) => Ok(()),
        error => Err(error),
    }
}

/// Deltas on their way into a record, with the files they came from.
struct Recording<'a> {
    outbox: MutexGuard<'a, Outbox>,
    deltas: Vec<Delta>,
    /// Where the oldest data record begins that they name.
    from: Option<Position>,
    files: Vec<&'a OpenFile>,
}

fn size_about(delta: &Delta) -> usize {
    match &delta.change {
        Change::Inline { bytes } => 32 + bytes.len(),
        _ => 48,
    }
}

/// The client's log, as data records of one file see it.
pub(crate) struct LogAppender<'a> {
    inner: &'a Inner,
    log: &'a LogWriter,
    inode: InodeId,
}

impl Appender for LogAppender<'_> {
    fn append(&mut self, offset: u64, parts: &[BodyPart<'_>]) -> Result<(LogAddress, Position), LogError> {
        let length = BodyPart::length(parts);
        let owner = Owner::new(self.inode, offset);
        let aligned = length >= ALIGNED_MIN;
        let appended = self.log.append(Record { kind: RecordKind::Data, owner, parts, aligned })?;
        self.inner.budget.appended(length as u64);
        Ok((appended.body, appended.place))
    }

    /// What still fits into the open stripe, lest the record end it and leave it half empty.
    fn length_max(&self) -> u64 {
        let whole = u64::from(self.log.record_size_max());
        let end = self.log.end();
        let maps = self.inner.cluster.maps();
        let run = maps.logs.get(&self.log.log()).and_then(|entry| entry.layout.last());
        let group = run.and_then(|run| maps.groups.get(&run.group(end.stripe)));
        let stripe = group.map_or(whole, |group| u64::from(group.geometry.stripe_size()));
        let begin = (u64::from(end.offset) + HEADER_SIZE as u64).next_multiple_of(BLOCK_SIZE as u64);
        let left = stripe.saturating_sub(begin);
        if left >= TAIL_MIN { left.min(whole) } else { whole }
    }
}
