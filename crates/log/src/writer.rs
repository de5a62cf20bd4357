//! One open log, as its owner sees it. `state` decides, `sender` waits.

use std::sync::{Arc, Weak};

use bytes::Bytes;
use protocol::address::{LogAddress, Position};
use protocol::id::{FenceEpoch, LogId, RunNumber, StripeNumber};
use protocol::maps::Writer;
use protocol::record::{Owner, RecordKind};
use protocol::storage::{Durability, Room};
use serde::{Deserialize, Serialize};

use crate::sender::Shared;
use crate::{Cluster, LogError};

/// What to append.
#[derive(Clone, Copy, Debug)]
pub struct Record<'a> {
    /// What it is.
    pub kind: RecordKind,
    /// Whose bytes, for data; else the default.
    pub owner: Owner,
    /// The body, in parts.
    pub parts: &'a [BodyPart<'a>],
    /// Begin the body on a block, so that it is read, summed and moved in whole blocks. For bodies of 16 KiB and more.
    pub aligned: bool,
}

/// A part of a body on its way into the stripe.
#[derive(Clone, Debug)]
pub enum BodyPart<'a> {
    /// It is copied.
    Copied(&'a [u8]),
    /// If it is long it is kept as it is until the stripe is complete, with all the memory behind it: the log counts what it
    /// keeps by the length of the part, so that should be most of it.
    Kept(Bytes),
}

impl BodyPart<'_> {
    /// The bytes.
    pub fn bytes(&self) -> &[u8] {
        match self {
            BodyPart::Copied(bytes) => bytes,
            BodyPart::Kept(bytes) => bytes,
        }
    }

    /// How long `parts` are together.
    pub fn length(parts: &[BodyPart<'_>]) -> usize {
        parts.iter().map(|part| part.bytes().len()).sum()
    }
}

/// Where a record went.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Appended {
    /// The body.
    pub body: LogAddress,
    /// Where the record, header first, begins.
    pub place: Position,
    /// Just behind the record: what to commit through.
    pub end: Position,
}

/// How a log is written.
#[derive(Clone, Copy, Debug)]
pub struct WriterOptions {
    /// Appended bytes that may wait in memory before [`LogWriter::room`] makes writers wait.
    pub bytes_waiting_max: usize,
    /// The least that the largest record must be able to hold, whatever the stripes of the current groups are.
    pub record_size_min: u32,
    /// Whether to go on with less redundancy than the class asks when too few targets live.
    pub degrade_allowed: bool,
}

/// Stripes go on while one target takes its fragments later than others, by seconds where links are full. An `fsync` waits for
/// all that was appended before, though.
const WAITING_MAX: usize = 48 << 20;

impl Default for WriterOptions {
    fn default() -> Self {
        WriterOptions { bytes_waiting_max: WAITING_MAX, record_size_min: 0, degrade_allowed: true }
    }
}

/// What a writer did since it was opened.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub struct WriterStatus {
    /// Stripes ended and complete.
    pub stripes_complete: u64,
    /// Bytes of records, headers and padding included.
    pub bytes_appended: u64,
    /// Bytes sent as tail copies.
    pub bytes_copied: u64,
    /// Bytes sent as parity.
    pub bytes_parity: u64,
    /// Commits that had to send or wait.
    pub commits: u64,
    /// Runs added because a target failed or the registry formed other groups.
    pub runs_added: u64,
    /// Stripes laid anew in another group.
    pub stripes_relaid: u64,
    /// Targets that restarted while something on them was not yet durable.
    pub targets_restarted: u64,
    /// Fragments of complete stripes that were lost before they were durable.
    pub fragments_exposed: u64,
    /// How many parity fragments a stripe has now, and how many its class asks for.
    pub parity_now: u8,
    /// What the class asks for.
    pub parity_wanted: u8,
}

/// A log at rest: all of it is complete and durable, and its writer has ended. Another process of the same node goes on with
/// it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Rest {
    /// The log.
    pub log: LogId,
    pub(crate) epoch: FenceEpoch,
    /// The run that its last stripes lie in.
    pub(crate) run: RunNumber,
    pub(crate) room: Room,
    pub(crate) next: StripeNumber,
    /// Where the stripe before that ended.
    pub(crate) previous_end: u32,
    pub(crate) mark: Position,
    pub(crate) end: Position,
}

/// One open log. Clones share it.
#[derive(Clone)]
pub struct LogWriter {
    shared: Arc<Shared>,
}

impl LogWriter {
    /// Opens a new log over the current groups.
    pub async fn open(
        cluster: Cluster,
        writer: Writer,
        room: Room,
        options: WriterOptions,
    ) -> Result<LogWriter, LogError> {
        let shared = Shared::open(cluster, writer, room, options).await?;
        Ok(LogWriter { shared })
    }

    /// Goes on with a log at rest, which the registry gave to this node's present session.
    pub async fn resume(cluster: Cluster, rest: Rest, options: WriterOptions) -> Result<LogWriter, LogError> {
        let shared = Shared::resume(cluster, rest, options).await?;
        Ok(LogWriter { shared })
    }

    /// Ends the last stripe, waits until all of the log is complete and durable, and takes nothing more.
    pub async fn rest(&self) -> Result<Rest, LogError> {
        Shared::rest(&self.shared).await
    }

    /// The log.
    pub fn log(&self) -> LogId {
        self.shared.log
    }

    /// Puts a record into the open stripe in memory; never waits. Records never span stripes: one that does not fit
    /// ends the stripe.
    pub fn append(&self, record: Record<'_>) -> Result<Appended, LogError> {
        let (appended, filled) = self.shared.append(&record)?;
        if filled {
            Shared::pump(&self.shared);
        }
        Ok(appended)
    }

    /// The largest body.
    pub fn record_size_max(&self) -> u32 {
        self.shared.lock().record_size_max()
    }

    /// Returns when the backlog in memory is below its bound.
    pub async fn room(&self) -> Result<(), LogError> {
        Shared::room(&self.shared).await
    }

    /// Returns when nothing waits but the open stripe and one before it: for whoever appends much that nobody waits for, while
    /// others commit what they append behind it.
    pub async fn lull(&self) -> Result<(), LogError> {
        Shared::lull(&self.shared).await
    }

    /// Waits until everything through `through` is as durable as asked. Group commit: whoever comes first sends for all.
    pub async fn commit(&self, through: Position, durability: Durability) -> Result<(), LogError> {
        Shared::commit(&self.shared, through, durability).await
    }

    /// Returns when the log has a hole, so that nothing more is acknowledged: [`LogError::Lost`]. Whoever writes it begins
    /// anew.
    pub async fn lost(&self) {
        Shared::lost(&self.shared).await;
    }

    /// How far everything is as durable as asked.
    pub fn reached(&self, durability: Durability) -> Position {
        self.shared.lock().acknowledged(durability)
    }

    /// Just behind the last appended record.
    pub fn end(&self) -> Position {
        self.shared.lock().end()
    }

    /// The newest mark record, to be named in the headers of fragments begun from now on. Commit it first.
    pub fn set_mark(&self, mark: Position) {
        let mut state = self.shared.lock();
        state.mark = mark.max(state.mark);
    }

    /// Ends the open stripe: the next record begins another, whose fragments tell how far the log is.
    pub fn end_stripe(&self) {
        self.shared.lock().end_stripe();
        Shared::pump(&self.shared);
    }

    /// Ends the last stripe with parity and makes everything durable. Sealing is the recoverer's.
    pub async fn close(&self) -> Result<(), LogError> {
        Shared::close(&self.shared).await
    }

    /// What it did so far.
    pub fn status(&self) -> WriterStatus {
        self.shared.lock().status
    }

    /// The bytes at `address` of this log, if they are still in memory.
    pub(crate) fn peek(&self, address: LogAddress) -> Option<Bytes> {
        self.shared.lock().peek(address)
    }

    /// A handle that does not keep the writer alive.
    pub(crate) fn downgrade(&self) -> Weak<Shared> {
        Arc::downgrade(&self.shared)
    }

    /// The writer behind a handle, if it is still alive.
    pub(crate) fn upgrade(handle: &Weak<Shared>) -> Option<LogWriter> {
        handle.upgrade().map(|shared| LogWriter { shared })
    }
}

impl std::fmt::Debug for LogWriter {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "LogWriter of log {}", self.log().0)
    }
}
