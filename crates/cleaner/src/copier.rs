//! Carries live bytes into the cleaner's own log. This file awaits; `pack` decides what goes together.
//!
//! ```text
//! in a victim ──append──▶ appended ──commit, disk──▶ committed ──Move, disk──▶ told; the mark moves over it
//! ```
//!
//! Invariants
//! 1. A manager is told of bytes only when they are `disk`.
//! 2. The mark never passes bytes of which a manager may yet hear: not *told* means, to everybody, live.
//! 3. A manager that did not answer may have heard, or may hear late: it is told again until it answers, and the log
//!    stays unsealed until then.

use std::collections::BTreeMap;

use bytes::Bytes;
use futures_util::future::{join, join_all};
use log::recovery::{self, Bodies, Scanned};
use log::{BodyPart, Cluster, LogError, LogReader, LogWriter, ReadError, Record, WriterOptions};
use protocol::address::{LogAddress, Position};
use protocol::id::{InodeId, LogId};
use protocol::manager::Moved;
use protocol::maps::Writer;
use protocol::record::{HEADER_SIZE, Owner, RecordKind};
use protocol::storage::{Durability, Room};

use crate::CleanError;
use crate::ages::Ages;
use crate::managers::Managers;
use crate::pack::{length, pack, take_next};
use crate::policy::{Candidate, Stripe};

/// From this part alive a stripe is read whole; a sparser one piece by piece.
const READ_WHOLE: f64 = 0.3;
/// Records from this size on begin on a block, by which each loses half a block.
const ALIGNED_SIZE: u32 = 64 << 10;
/// How many questions about records are under way at once.
const QUESTIONS: usize = 32;

/// Copied bytes that may wait in memory for targets.
const WAITING_MAX: usize = 16 << 20;

/// So many stripes are read side by side: as much memory as they take, and as much again, for while they are written others
/// are read.
const STRIPES_AT_ONCE: usize = 4;

/// The cleaner's hands.
pub struct Copier {
    cluster: Cluster,
    gatherer: Gatherer,
    /// Opened when there is something to copy.
    writer: Option<LogWriter>,
    appended: Vec<Appended>,
    committed: Vec<Moved>,
    /// Everything before is told.
    mark: Position,
    /// A mark record that says so, and its end. Fragments name it once it is stored: with the next commit.
    marking: Option<(Position, Position)>,
}

struct Appended {
    moved: Moved,
    end: Position,
}

/// The one that reads.
#[derive(Clone)]
struct Gatherer {
    reader: LogReader,
    managers: Managers,
}

/// What is to be copied, and the bodies that a scan brought along.
#[derive(Default)]
struct Gathered {
    unreadable: Vec<Stripe>,
    pieces: Vec<Moved>,
    bodies: BTreeMap<(LogId, Position), Bytes>,
}

impl Copier {
    /// Copies nothing yet.
    pub fn new(cluster: Cluster, reader: LogReader, managers: Managers) -> Copier {
        let (appended, committed) = (Vec::new(), Vec::new());
        let gatherer = Gatherer { reader, managers };
        Copier { cluster, gatherer, writer: None, appended, committed, mark: Position::START, marking: None }
    }

    /// The log that is being written, and up to where managers know all of it.
    pub fn own(&self) -> Option<(LogId, Position)> {
        self.writer.as_ref().map(|writer| (writer.log(), self.mark))
    }

    /// Whether all managers have answered about all that was committed: then former logs may be sealed.
    pub fn is_settled(&self) -> bool {
        self.committed.is_empty()
    }

    /// How many data bytes a stripe of the cleaner's log takes.
    pub async fn stripe_bytes(&mut self) -> Result<u64, CleanError> {
        Ok(u64::from(self.open().await?.record_size_max()))
    }

    /// Appends what lives in `victims`, and returns how many bytes that were. Of victims that could not be read nothing
    /// is appended; they are put into `unreadable`.
    pub async fn copy(
        &mut self,
        victims: &[Candidate],
        ages: &mut Ages,
        unreadable: &mut Vec<Stripe>,
    ) -> Result<u64, CleanError> {
        let mut bytes = 0;
        let mut some = victims.chunks(STRIPES_AT_ONCE);
        let mut gathered = self.gatherer.gather(some.next().unwrap_or_default()).await?;
        loop {
            // The next ones are read while these are sent.
            let (next, gatherer) = (some.next(), self.gatherer.clone());
            let gather = async {
                match next {
                    Some(next) => gatherer.gather(next).await.map(Some),
                    None => Ok(None),
                }
            };
            let (written, found) = join(self.write(gathered, ages, unreadable), gather).await;
            bytes += written?;
            match found? {
                Some(next) => gathered = next,
                None => return Ok(bytes),
            }
        }
    }

    /// Appends what was gathered.
    async fn write(
        &mut self,
        mut gathered: Gathered,
        ages: &mut Ages,
        unreadable: &mut Vec<Stripe>,
    ) -> Result<u64, CleanError> {
        unreadable.append(&mut gathered.unreadable);
        let longest = gathered.pieces.iter().map(|piece| piece.old.length).max().unwrap_or(0);
        let writer = self.open_for(longest).await?;
        let (mut bytes, length_max) = (0, writer.record_size_max());
        let mut records = pack(std::mem::take(&mut gathered.pieces), length_max);
        while let Some(record) = take_next(&mut records, left(&writer)) {
            match self.gatherer.fetch(&record, &gathered).await {
                Ok(parts) => {
                    bytes += self.append(&writer, &record, &parts, ages)?;
                    writer.room().await.map_err(|error| self.failed(error))?;
                }
                // It may have died and been deleted meanwhile; if not, it is still where it was.
                Err(_) => unreadable.extend(record.iter().map(|piece| (piece.old.log, piece.old.stripe))),
            }
        }
        Ok(bytes)
    }

    fn append(
        &mut self,
        writer: &LogWriter,
        record: &[Moved],
        parts: &[Bytes],
        ages: &mut Ages,
    ) -> Result<u64, CleanError> {
        let first = record[0];
        let length = length(record);
        // They may be small pieces of a large read, which must not stay in memory for them.
        let parts: Vec<_> = parts.iter().map(|part| BodyPart::Copied(part)).collect();
        let owner = Owner::new(first.inode, first.file_offset);
        let body = Record { kind: RecordKind::Data, owner, parts: &parts, aligned: length >= ALIGNED_SIZE };
        let appended = writer.append(body).map_err(|error| self.failed(error))?;
        assert_eq!(appended.body.length, length, "a record holds the pieces that were read for it");
        let mut skip = 0;
        for piece in record {
            let new = appended.body.part(skip, piece.old.length);
            skip += piece.old.length;
            ages.inherit((piece.old.log, piece.old.stripe), (new.log, new.stripe));
            self.appended.push(Appended { moved: Moved { new, ..*piece }, end: appended.end });
        }
        Ok(u64::from(length))
    }

    /// Makes full stripes `disk` and tells the managers. The open stripe waits for more, so that stripes end full.
    pub async fn settle_full(&mut self) -> Result<(), CleanError> {
        let Some(writer) = &self.writer else { return self.tell().await };
        let open = writer.end().stripe;
        let full = self.appended.partition_point(|copy| copy.moved.new.stripe < open);
        self.commit(full).await?;
        self.tell().await
    }

    /// Makes all copies `disk`, tells the managers, and marks the log.
    pub async fn settle(&mut self) -> Result<(), CleanError> {
        self.commit(self.appended.len()).await?;
        self.tell().await?;
        let Some(writer) = &self.writer else { return Ok(()) };
        if self.mark < writer.end() {
            let mark = Record { kind: RecordKind::Mark, owner: Owner::default(), parts: &[], aligned: false };
            match writer.append(mark) {
                Ok(appended) => {
                    self.mark = appended.end;
                    self.marking = Some((appended.place, appended.end));
                }
                Err(error) => return Err(self.failed(error)),
            }
        }
        Ok(())
    }

    async fn commit(&mut self, count: usize) -> Result<(), CleanError> {
        let (Some(writer), Some(last)) = (&self.writer, self.appended[..count].last()) else { return Ok(()) };
        match writer.commit(last.end, Durability::Disk).await {
            Ok(()) => {}
            Err(error) => return Err(self.failed(error)),
        }
        if let Some((place, end)) = self.marking
            && end <= last.end
        {
            writer.set_mark(place);
            self.marking = None;
        }
        self.committed.extend(self.appended.drain(..count).map(|copy| copy.moved));
        Ok(())
    }

    async fn tell(&mut self) -> Result<(), CleanError> {
        self.gatherer.managers.moved(&self.committed).await?;
        self.committed.clear();
        Ok(())
    }

    /// Ends the log: what was appended and not committed was never anywhere else than in its old place.
    pub async fn close(&mut self) -> Result<(), CleanError> {
        self.settle().await?;
        let Some(writer) = self.writer.take() else { return Ok(()) };
        writer.close().await?;
        Ok(())
    }

    async fn open(&mut self) -> Result<LogWriter, CleanError> {
        self.open_for(0).await
    }

    /// A log that takes pieces of this length: what several files share moves only as a whole. Stripes may have been larger
    /// when it was written, so a log of larger ones takes the place of one that is too narrow.
    async fn open_for(&mut self, record_size_min: u32) -> Result<LogWriter, CleanError> {
        match &self.writer {
            Some(writer) if writer.record_size_max() >= record_size_min => return Ok(writer.clone()),
            Some(_) => self.close().await?,
            None => {}
        }
        let options = WriterOptions { bytes_waiting_max: WAITING_MAX, record_size_min, ..WriterOptions::default() };
        let writer = LogWriter::open(self.cluster.clone(), Writer::Cleaner, Room::Clean, options).await?;
        self.gatherer.reader.attach(&writer);
        (self.mark, self.marking) = (Position::START, None);
        self.writer = Some(writer.clone());
        Ok(writer)
    }

    /// After an error that ends a writer the next copy opens a new log. Copies that were not committed are forgotten.
    fn failed(&mut self, error: LogError) -> CleanError {
        if matches!(error, LogError::Fenced(_) | LogError::Lost(_) | LogError::Closed) {
            self.writer = None;
            self.appended.clear();
        }
        error.into()
    }
}

impl Gatherer {
    /// Reads victims and asks about them, side by side.
    async fn gather(&self, victims: &[Candidate]) -> Result<Gathered, CleanError> {
        let mut gathered = Gathered::default();
        let found = join_all(victims.iter().map(|victim| self.gather_one(victim))).await;
        for (victim, found) in victims.iter().zip(found) {
            match found? {
                Some(found) => gathered.add(found),
                None => gathered.unreadable.push(victim.stripe),
            }
        }
        Ok(gathered)
    }

    /// Reads a victim and asks about all its data records. Nothing, if it cannot be read.
    async fn gather_one(&self, victim: &Candidate) -> Result<Option<Gathered>, CleanError> {
        let (log, number) = victim.stripe;
        let range = Position::new(number, 0)..Position::new(number, u32::MAX);
        let bodies = if victim.utilization() < READ_WHOLE { Bodies::NotOfData } else { Bodies::All };
        let mut records: Vec<Scanned> = Vec::new();
        let mut visit = |record: Scanned| {
            if record.header.kind == RecordKind::Data {
                records.push(record);
            }
        };
        if recovery::scan(&self.reader, log, range, bodies, &mut visit).await.is_err() {
            return Ok(None);
        }
        let mut into = Gathered::default();
        for some in records.chunks(QUESTIONS) {
            let answers = join_all(some.iter().map(|record| {
                let owner = record.header.owner;
                self.managers.pieces(InodeId(owner.inode), owner.file_offset, record.body)
            }));
            for (record, pieces) in some.iter().zip(answers.await) {
                let pieces = pieces?;
                if !pieces.is_empty() && !record.bytes.is_empty() {
                    into.bodies.insert((log, record.body.position()), record.bytes.clone());
                }
                into.pieces.extend(pieces);
            }
        }
        Ok(Some(into))
    }

    /// The bytes of each piece of a record-to-be.
    async fn fetch(&self, record: &[Moved], gathered: &Gathered) -> Result<Vec<Bytes>, ReadError> {
        let parts = join_all(record.iter().map(|piece| async {
            match gathered.find(piece.old) {
                Some(bytes) => Ok(bytes),
                None => self.reader.read(piece.old).await,
            }
        }));
        parts.await.into_iter().collect()
    }
}

/// What the open stripe still takes.
fn left(writer: &LogWriter) -> u32 {
    (writer.record_size_max() + HEADER_SIZE as u32).saturating_sub(writer.end().offset)
}

impl Gathered {
    fn add(&mut self, other: Gathered) {
        self.unreadable.extend(other.unreadable);
        self.pieces.extend(other.pieces);
        self.bodies.extend(other.bodies);
    }

    /// The bytes at `address`, if they lie within a body that was read.
    fn find(&self, address: LogAddress) -> Option<Bytes> {
        let end = (address.log, address.position());
        let (&(log, start), body) = self.bodies.range(..=end).next_back()?;
        let skip = (address.offset as usize).checked_sub(start.offset as usize)?;
        let same = log == address.log && start.stripe == address.stripe;
        let range = skip..skip.checked_add(address.length as usize)?;
        (same && range.end <= body.len()).then(|| body.slice(range))
    }
}
