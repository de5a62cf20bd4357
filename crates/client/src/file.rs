//! One file as this client knows it: dirty bytes, the known map, the size, and what managers do not know yet.
//! Decides, never awaits.
//!
//! ```text
//!   write ──> dirty ──append──> map, owed Unrecorded ──record──> owed Recorded ──acknowledged──> map
//!                              (bytes are in the log)      (deltas are in the log)     (the manager knows)
//! ```
//!
//! Invariants
//! 1. A byte is what `dirty` says; else what `map` says; else unknown. Both change in one step, so a plan to read is a
//!    snapshot, and stays right whatever happens later: log addresses mean the same bytes for ever.
//! 2. What is owed is in the map. Answers of managers fill gaps of the map only, so they never undo what is owed, and an
//!    answer asked for before the map was forgotten is not used (`epoch`).
//! 3. `Memory` in the map is the content of a small file that lives in its inode. Deltas that name extents cover all of
//!    it, so that no file is both. Hence nothing is appended before it is known whether the content is inline (`based`).
//! 4. Deltas of a file are recorded in the order in which they came true; a range overwritten before it was recorded is
//!    recorded once.

use std::ops::Range;

use bytes::{Bytes, BytesMut};
use host::Moment;
use log::{BodyPart, LogError};
use protocol::address::{LogAddress, Position};
use protocol::delta::{Change, Delta};
use protocol::file::{Attributes, Content, INLINE_MAX, Time};
use protocol::id::InodeId;
use protocol::token::Ahead;

use crate::ranges::{Part, Ranges};
use crate::shape::SeekKind;
use crate::space::Weight;
use crate::stream::Streams;

/// A write of so many bytes is kept by reference; smaller ones are gathered by copying.
const SHARE_MIN: usize = 64 << 10;
/// So many bytes are gathered in one buffer.
const GATHER_MAX: u64 = 256 << 10;
/// So many dirty bytes in a row are appended at once, so that parity and sending overlap with writing.
pub(crate) const RUN_MIN: u64 = 1 << 20;
/// The largest body of a data record.
const BODY_MAX: u64 = 1 << 20;
/// Less than this is not worth a record of its own while more is to come.
const REST_MIN: u64 = 256 << 10;
/// Records are cut where blocks of the file end.
const BLOCK: u64 = 4096;

/// About what a file takes of memory while bytes of it are dirty: itself and three trees of one node.
const FILE_MEMORY: u64 = 2 << 10;
/// About what each further piece of dirty bytes takes beside them.
const PIECE_MEMORY: u64 = 128;

/// Where data records go.
pub(crate) trait Appender {
    /// Appends the bytes that belong at `offset` of the file. Tells where they lie, and where their record begins.
    fn append(&mut self, offset: u64, parts: &[BodyPart<'_>]) -> Result<(LogAddress, Position), LogError>;
    /// How long the next body may be without leaving much of a stripe empty.
    fn length_max(&self) -> u64;
}

/// One file.
#[derive(Debug, Default)]
pub(crate) struct File {
    size: u64,
    /// When it was last written, while a manager may not know it.
    written: Option<Time>,
    dirty: Ranges<Dirty>,
    dirty_since: Option<Moment>,
    map: Ranges<Source>,
    owed: Ranges<Owed>,
    based: bool,
    epoch: u64,
    /// Just behind the newest record with deltas of this file.
    recorded: Position,
    /// Where the oldest data record begins whose deltas are in no record; and of those in the record being put together.
    unrecorded_from: Option<Position>,
    recording_from: Option<Position>,
    /// Bytes that took the place of holes since managers knew everything: what `stored` will grow by.
    grown: u64,
    /// Counts changes of the size and of attributes by this client.
    changes: u64,
    /// What a manager told when it knew everything, as long as that is so.
    told: Option<Attributes>,
    /// Nobody has given it capabilities: the kernel asks before it first writes to a file.
    pub(crate) is_incapable: bool,
    pub(crate) streams: Streams,
}

/// Written bytes that are in no log.
#[derive(Clone, Debug)]
enum Dirty {
    /// A large write, or what is left of it, and how long it was when it came: so much memory is behind it.
    Shared(Bytes, u32),
    /// Small writes, gathered.
    Gathered(BytesMut),
}

/// Where bytes are, when they are not dirty.
#[derive(Clone, Debug, PartialEq, Eq)]
enum Source {
    Hole,
    Stored(LogAddress),
    Memory(Bytes),
}

/// How far a manager's learning of a range has come.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Owed {
    /// In no delta record.
    Unrecorded,
    /// In a delta record that is being put together.
    Recording,
    /// In a delta record that ends here.
    Recorded(Position),
}

/// A piece of what a read returns.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Piece {
    Bytes(Bytes),
    Zeros(u64),
    Stored(LogAddress),
}

/// A range of the map that must be asked for first.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Missing(pub(crate) Range<u64>);

/// Says for which map a manager was asked.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Asked {
    epoch: u64,
    changes: u64,
}

impl File {
    /// A file that a manager just told about.
    pub(crate) fn known(attributes: &Attributes) -> File {
        File { size: attributes.size, ..File::default() }
    }

    /// A file that was just made, and is empty.
    pub(crate) fn new_empty() -> File {
        let mut file = File { based: true, ..File::default() };
        file.map.insert(0..u64::MAX, Source::Hole);
        file
    }

    /// Takes in what came with the attributes of a file of which nothing else is known.
    pub(crate) fn begin(&mut self, content: Option<Content>) {
        let Some(content) = content else { return };
        let through = match &content {
            Content::Inline(bytes) => bytes.len() as u64,
            Content::Extents { through, .. } => *through,
        };
        assert!(self.learn(self.ask(), 0..through, content), "nothing was forgotten meanwhile");
    }

    pub(crate) fn size(&self) -> u64 {
        self.size
    }

    /// Its attributes, if they are known.
    pub(crate) fn told(&self) -> Option<Attributes> {
        self.told
    }

    /// A manager told these, and nothing of that has changed here since it was asked.
    pub(crate) fn tell(&mut self, attributes: &Attributes) {
        self.told = Some(*attributes).filter(|_| self.is_settled());
    }

    /// This client changed something that managers tell of: what they told before is no longer so.
    pub(crate) fn changed(&mut self) {
        self.changes += 1;
        self.told = None;
    }

    pub(crate) fn dirty_bytes(&self) -> u64 {
        self.dirty.bytes()
    }

    /// What its dirty bytes take of memory.
    pub(crate) fn weight(&self) -> Weight {
        let more = self.dirty.count().saturating_sub(1) as u64;
        let beside = if self.dirty.is_empty() { 0 } else { FILE_MEMORY + more * PIECE_MEMORY };
        Weight { bytes: self.dirty.bytes(), beside }
    }

    pub(crate) fn dirty_since(&self) -> Option<Moment> {
        self.dirty_since
    }

    /// Just behind the newest record with deltas of this file.
    pub(crate) fn recorded(&self) -> Position {
        self.recorded
    }

    /// Whether everything is in the log and recorded there. What is just being recorded, by another thread, may yet come to
    /// nothing.
    pub(crate) fn is_recorded(&self) -> bool {
        let is_open = |owed: &Owed| matches!(owed, Owed::Unrecorded | Owed::Recording);
        self.dirty.is_empty() && !self.owed.whole(0..u64::MAX).any(|(_, owed)| is_open(owed))
    }

    /// Whether managers know everything.
    pub(crate) fn is_settled(&self) -> bool {
        self.dirty.is_empty() && self.owed.is_empty()
    }

    /// Whether records may be appended: see invariant 3.
    pub(crate) fn is_based(&self) -> bool {
        self.based
    }

    // ---- writing ----

    /// Takes in a write at `offset`.
    pub(crate) fn write(&mut self, offset: u64, bytes: Bytes, time: Time, now: Moment) {
        if bytes.is_empty() {
            return;
        }
        let range = offset..offset + bytes.len() as u64;
        self.size = self.size.max(range.end);
        self.changed();
        self.written = Some(time);
        self.dirty_since.get_or_insert(now);
        if bytes.len() >= SHARE_MIN {
            let came = bytes.len() as u32;
            self.dirty.insert(range, Dirty::Shared(bytes, came));
        } else if !self.gather(&range, &bytes) {
            // No larger than it must be: most files are written once, and many wait at a time.
            self.dirty.insert(range, Dirty::Gathered(BytesMut::from(&bytes[..])));
        }
    }

    /// Writes into the buffer that holds the place before, if there is one with room.
    fn gather(&mut self, range: &Range<u64>, bytes: &[u8]) -> bool {
        let end = match self.dirty.touching(range.start) {
            Some((held, Dirty::Gathered(_))) if range.end - held.start <= GATHER_MAX => held.end,
            _ => return false,
        };
        if range.end > end {
            self.dirty.remove(end..range.end);
        }
        let (held, value) = self.dirty.touching(range.start).expect("it was just there");
        let Dirty::Gathered(buffer) = value else { unreachable!("it was gathered") };
        let at = (range.start - held.start) as usize;
        let over = bytes.len().min(buffer.len() - at);
        buffer[at..at + over].copy_from_slice(&bytes[..over]);
        buffer.extend_from_slice(&bytes[over..]);
        let length = buffer.len() as u64;
        self.dirty.set_length(held.start, length);
        true
    }

    /// The dirty bytes in a row around `offset`, once they are worth appending at once.
    pub(crate) fn long_run(&self, offset: u64) -> Option<Range<u64>> {
        let (touched, _) = self.dirty.whole(offset..offset + 1).next()?;
        let run = self.dirty.run(touched.start);
        (run.end - run.start >= RUN_MIN).then_some(run)
    }

    // ---- appending ----

    /// Appends most of a long run; a small rest waits for more.
    pub(crate) fn append_run(&mut self, run: Range<u64>, log: &mut dyn Appender) -> Result<(), LogError> {
        assert!(self.based, "the base is known before anything is appended");
        self.outgrow(log)?;
        let mut from = run.start;
        while run.end - from >= REST_MIN {
            from = self.append_body(from..run.end, log)?;
        }
        self.tidy();
        Ok(())
    }

    /// Appends all dirty bytes. A file small enough goes into its inode instead, with its deltas.
    pub(crate) fn append_all(&mut self, log: &mut dyn Appender) -> Result<(), LogError> {
        assert!(self.based, "the base is known before anything is appended");
        if !self.dirty.is_empty()
            && let Some(content) = self.small_content()
        {
            let end = content.len() as u64;
            self.map.insert(0..end, Source::Memory(content));
            self.map.insert(end..u64::MAX, Source::Hole);
            self.owed = Ranges::default();
            self.owed.insert(0..end, Owed::Unrecorded);
            self.dirty = Ranges::default();
        } else if !self.dirty.is_empty() || self.size > INLINE_MAX as u64 {
            self.outgrow(log)?;
            let mut from = 0;
            while let Some(run) = self.dirty.next_run(from) {
                from = self.append_body(run, log)?;
            }
        }
        self.tidy();
        Ok(())
    }

    /// Appends one body from the start of `run`; tells where it ended.
    fn append_body(&mut self, run: Range<u64>, log: &mut dyn Appender) -> Result<u64, LogError> {
        let mut end = run.end.min(run.start + log.length_max().clamp(1, BODY_MAX));
        if end < run.end && end / BLOCK * BLOCK > run.start {
            end = end / BLOCK * BLOCK;
        }
        let range = run.start..end;
        let pieces: Vec<_> = self.dirty.whole(range.clone()).collect();
        let parts: Vec<_> = pieces
            .iter()
            .map(|(piece, dirty)| {
                let cut = piece.start.max(range.start)..piece.end.min(range.end);
                dirty.body_part((cut.start - piece.start) as usize..(cut.end - piece.start) as usize)
            })
            .collect();
        let appended = log.append(range.start, &parts)?;
        self.stored(range.clone(), appended);
        self.dirty.remove(range);
        Ok(end)
    }

    /// `range` now lies at `address`, in the record at `place`.
    fn stored(&mut self, range: Range<u64>, (address, place): (LogAddress, Position)) {
        assert_eq!(u64::from(address.length), range.end - range.start, "a body is as long as its parts");
        self.unrecorded_from.get_or_insert(place);
        self.grown += self.holes(range.clone());
        self.map.insert(range.clone(), Source::Stored(address));
        self.owed.insert(range, Owed::Unrecorded);
    }

    /// Appends what lives in the inode and is not overwritten anyway: the file is no longer small (invariant 3).
    fn outgrow(&mut self, log: &mut dyn Appender) -> Result<(), LogError> {
        let memory = |(range, source): (Range<u64>, Source)| match source {
            Source::Memory(bytes) => Some((range, bytes)),
            Source::Hole | Source::Stored(_) => None,
        };
        let inline: Vec<_> = self.map.over(0..INLINE_MAX as u64).filter_map(memory).collect();
        for (range, bytes) in inline {
            for gap in self.dirty.gaps(range.clone()) {
                let part = &bytes[(gap.start - range.start) as usize..(gap.end - range.start) as usize];
                let appended = log.append(gap.start, &[BodyPart::Copied(part)])?;
                self.stored(gap, appended);
            }
        }
        Ok(())
    }

    /// The whole content, if it is small and none of it has to be read.
    fn small_content(&self) -> Option<Bytes> {
        if self.size > INLINE_MAX as u64 {
            return None;
        }
        let mut content = BytesMut::zeroed(self.size as usize);
        for gap in self.dirty.gaps(0..self.size) {
            if !self.map.gaps(gap.clone()).is_empty() {
                return None;
            }
            for (range, source) in self.map.over(gap) {
                match source {
                    Source::Hole => {}
                    Source::Memory(bytes) => content[range.start as usize..range.end as usize].copy_from_slice(&bytes),
                    Source::Stored(_) => return None,
                }
            }
        }
        for (range, dirty) in self.dirty.over(0..self.size) {
            content[range.start as usize..range.end as usize].copy_from_slice(dirty.bytes());
        }
        Some(content.freeze())
    }

    fn holes(&self, range: Range<u64>) -> u64 {
        let holes = self.map.whole(range.clone()).filter(|(_, source)| **source == Source::Hole);
        holes.map(|(hole, _)| hole.end.min(range.end) - hole.start.max(range.start)).sum()
    }

    fn tidy(&mut self) {
        if self.dirty.is_empty() {
            self.dirty_since = None;
        }
    }

    // ---- recording ----

    /// Adds the deltas that no record has to `deltas`; tells where the oldest data record begins that they name.
    /// [`File::append_all`] must have succeeded just before.
    pub(crate) fn record(&mut self, inode: InodeId, deltas: &mut Vec<Delta>) -> Option<Position> {
        assert!(self.dirty.is_empty(), "deltas tell of all bytes, or the size would run ahead");
        let unrecorded: Vec<_> = self.owed.over(0..u64::MAX).filter(|(_, owed)| *owed == Owed::Unrecorded).collect();
        if unrecorded.is_empty() {
            return None;
        }
        let mut inline = false;
        for (range, _) in &unrecorded {
            for (part, source) in self.map.over(range.clone()) {
                match source {
                    Source::Stored(address) => {
                        deltas.push(Delta { inode, change: Change::Extent { offset: part.start, address } });
                    }
                    Source::Memory(_) => inline = true,
                    Source::Hole => unreachable!("a hole is the manager's doing, and owed to nobody"),
                }
            }
        }
        if inline {
            let bytes = self.small_content().expect("what lives in the inode is small and known");
            deltas.push(Delta { inode, change: Change::Inline { bytes } });
        }
        let time = self.written.unwrap_or(Time(i64::MIN));
        deltas.push(Delta { inode, change: Change::Wrote { size: self.size, time } });
        for (range, _) in unrecorded {
            self.owed.insert(range, Owed::Recording);
        }
        self.recording_from = self.unrecorded_from.take();
        self.recording_from
    }

    /// Where the oldest data record begins whose deltas are in no record: no mark may pass it (DESIGN §8).
    pub(crate) fn unrecorded_from(&mut self) -> Option<Position> {
        if self.is_recorded() {
            // Cut off, or punched out, before any manager heard of them.
            self.unrecorded_from = None;
        }
        // What is being recorded may yet come to nothing, and a mark is never taken back.
        self.recording_from.into_iter().chain(self.unrecorded_from).min()
    }

    /// The record with the deltas ends at `end`; or it could not be appended.
    pub(crate) fn recorded_at(&mut self, end: Option<Position>) {
        let recording: Vec<_> = self.owed.over(0..u64::MAX).filter(|(_, owed)| *owed == Owed::Recording).collect();
        for (range, _) in recording {
            self.owed.insert(range, end.map_or(Owed::Unrecorded, Owed::Recorded));
        }
        self.recorded = self.recorded.max(end.unwrap_or_default());
        let from = self.recording_from.take();
        if end.is_none() {
            // What was appended meanwhile came later.
            self.unrecorded_from = from.or(self.unrecorded_from);
        }
    }

    /// Managers have acknowledged all records that end at or before `acknowledged`.
    pub(crate) fn settle(&mut self, acknowledged: Position) {
        if self.owed.is_empty() || acknowledged == Position::START {
            return;
        }
        self.owed.retain(|owed| !matches!(owed, Owed::Recorded(end) if *end <= acknowledged));
        if self.owed.is_empty() {
            // An empty tree keeps its root.
            self.owed = Ranges::default();
            self.grown = 0;
            if self.dirty.is_empty() {
                self.written = None;
            }
        }
    }

    /// Forgets everything that is not written: nobody will ever read it.
    pub(crate) fn abandon(&mut self) {
        self.dirty = Ranges::default();
        self.owed = Ranges::default();
        self.changed();
        self.tidy();
    }

    // ---- the manager's view ----

    /// Remember this when asking a manager about the file.
    pub(crate) fn ask(&self) -> Asked {
        Asked { epoch: self.epoch, changes: self.changes }
    }

    /// Takes in a manager's answer about `range`. False when it came too late to mean anything: ask again.
    #[must_use]
    pub(crate) fn learn(&mut self, asked: Asked, range: Range<u64>, content: Content) -> bool {
        if asked.epoch != self.epoch {
            return false;
        }
        self.based = true;
        match content {
            Content::Inline(bytes) => {
                let end = bytes.len() as u64;
                self.fill(0..end, &Source::Memory(bytes));
                self.fill(end..u64::MAX, &Source::Hole);
            }
            Content::Extents { list, through } => {
                // An answer that covers nothing says that there is nothing.
                let end = if through <= range.start { range.end } else { through.min(range.end) };
                for extent in list {
                    let cut = extent.offset.max(range.start)..extent.end().min(end);
                    if !cut.is_empty() {
                        let skip = cut.start - extent.offset;
                        let part = Source::Stored(extent.address).part(skip, cut.end - cut.start);
                        self.fill(cut, &part);
                    }
                }
                self.fill(range.start..end, &Source::Hole);
            }
        }
        true
    }

    /// Puts parts of `source` into the gaps of the map (invariant 2).
    fn fill(&mut self, range: Range<u64>, source: &Source) {
        for gap in self.map.gaps(range.clone()) {
            let part = source.part(gap.start - range.start, gap.end - gap.start);
            self.map.insert(gap, part);
        }
    }

    /// Forgets what managers told: bytes may have moved. What they do not know yet stays.
    pub(crate) fn forget(&mut self) {
        let mut kept = Ranges::default();
        for (range, _) in self.owed.whole(0..u64::MAX) {
            for (part, source) in self.map.over(range) {
                kept.insert(part, source);
            }
        }
        self.map = kept;
        self.epoch += 1;
        self.based = false;
    }

    /// Puts what this client changed over what a manager told. Whether there is nothing such, nor was since it was asked.
    pub(crate) fn overlay(&mut self, attributes: &mut Attributes, asked: Option<Asked>) -> bool {
        if self.is_settled() {
            // Nothing was changed here since: another client may have.
            let is_new = asked.is_some_and(|asked| asked.changes == self.changes);
            if is_new {
                self.size = attributes.size;
            }
            return is_new;
        }
        attributes.size = attributes.size.max(self.size);
        let dirty = self.dirty.whole(0..u64::MAX).map(|(range, _)| self.holes(range)).sum::<u64>();
        attributes.stored += self.grown + dirty;
        if let Some(written) = self.written {
            attributes.modified = attributes.modified.max(written);
            attributes.changed = attributes.changed.max(written);
        }
        false
    }

    /// What a manager does not know yet, if there is anything.
    pub(crate) fn ahead(&self) -> Option<Ahead> {
        let dirty = self.dirty.whole(0..u64::MAX).map(|(range, _)| self.holes(range)).sum::<u64>();
        let ahead = Ahead { size: self.size, written: self.written, grown: self.grown + dirty };
        (!self.is_settled()).then_some(ahead)
    }

    /// A manager set the modification time: what was written before must not set it again.
    pub(crate) fn set_written(&mut self, time: Time) {
        self.written = self.written.map(|_| time);
        self.changed();
    }

    // ---- what managers did to the shape ----

    /// A manager truncated the file, or grew it with a hole.
    pub(crate) fn truncated(&mut self, size: u64) {
        let cut = size..u64::MAX;
        self.dirty.remove(cut.clone());
        self.owed.remove(cut.clone());
        self.map.insert(cut, Source::Hole);
        self.based |= size == 0;
        self.size = size;
        self.changed();
        self.epoch += 1;
        self.tidy();
    }

    /// A manager grew the file.
    pub(crate) fn grown_to(&mut self, size: u64) {
        self.size = self.size.max(size);
        self.changed();
    }

    /// A manager made `range` a hole, and has known the size since before: what is dropped here may be the last bytes.
    pub(crate) fn punched(&mut self, range: Range<u64>) {
        self.dirty.remove(range.clone());
        self.owed.remove(range.clone());
        self.map.insert(range, Source::Hole);
        self.changed();
        self.epoch += 1;
        self.tidy();
    }

    /// A manager gave `range` other bytes.
    pub(crate) fn replaced(&mut self, range: Range<u64>) {
        self.grown_to(range.end);
        self.dirty.remove(range.clone());
        self.owed.remove(range);
        self.tidy();
        self.forget();
    }

    // ---- reading ----

    /// What the bytes of `range` are, up to the end of the file.
    pub(crate) fn plan(&self, range: Range<u64>) -> Result<Vec<Piece>, Missing> {
        let range = range.start..range.end.min(self.size);
        let mut pieces = Vec::new();
        if range.is_empty() {
            return Ok(pieces);
        }
        let mut from = range.start;
        for (piece, dirty) in self.dirty.whole(range.clone()) {
            let cut = piece.start.max(range.start)..piece.end.min(range.end);
            self.plan_map(from..cut.start, &mut pieces)?;
            pieces.push(Piece::Bytes(dirty.shared(cut.start - piece.start, cut.end - cut.start)));
            from = cut.end;
        }
        self.plan_map(from..range.end, &mut pieces)?;
        Ok(pieces)
    }

    fn plan_map(&self, range: Range<u64>, pieces: &mut Vec<Piece>) -> Result<(), Missing> {
        let mut from = range.start;
        for (part, source) in self.map.over(range.clone()) {
            if part.start > from {
                return Err(Missing(from..part.start));
            }
            from = part.end;
            let piece = match source {
                Source::Hole => Piece::Zeros(part.end - part.start),
                Source::Stored(address) => Piece::Stored(address),
                Source::Memory(bytes) => Piece::Bytes(bytes),
            };
            match (pieces.last_mut(), &piece) {
                // Cut apart by what is owed, or by the manager: still one read.
                (Some(Piece::Stored(last)), Piece::Stored(next)) if last.joins(*next) => last.length += next.length,
                _ => pieces.push(piece),
            }
        }
        if from < range.end { Err(Missing(from..range.end)) } else { Ok(()) }
    }

    /// Where the next data or hole is; none behind the last data.
    pub(crate) fn seek(&self, offset: u64, kind: SeekKind) -> Result<Option<u64>, Missing> {
        let mut at = offset;
        while at < self.size {
            let (end, is_data) = self.nature(at)?;
            if is_data == (kind == SeekKind::Data) {
                return Ok(Some(at));
            }
            at = end;
        }
        Ok((kind == SeekKind::Hole && offset < self.size).then_some(self.size))
    }

    /// Up to where everything from `at` on is data, or a hole.
    fn nature(&self, at: u64) -> Result<(u64, bool), Missing> {
        if let Some((range, _)) = self.dirty.whole(at..at + 1).next() {
            return Ok((range.end, true));
        }
        let clean = self.dirty.whole(at..self.size).next().map_or(self.size, |(range, _)| range.start);
        match self.map.whole(at..at + 1).next() {
            Some((range, source)) => Ok((range.end.min(clean), *source != Source::Hole)),
            None => {
                let known = self.map.whole(at..clean).next().map_or(clean, |(range, _)| range.start);
                Err(Missing(at..known))
            }
        }
    }
}

impl Dirty {
    fn bytes(&self) -> &[u8] {
        match self {
            Dirty::Shared(bytes, _) => bytes,
            Dirty::Gathered(bytes) => bytes,
        }
    }

    /// What the log is given of it. A small rest of a large write must not keep all of that in memory.
    fn body_part(&self, range: Range<usize>) -> BodyPart<'_> {
        match self {
            Dirty::Shared(bytes, came) if range.len() >= *came as usize / 2 => BodyPart::Kept(bytes.slice(range)),
            dirty => BodyPart::Copied(&dirty.bytes()[range]),
        }
    }

    /// A copy for a reader: only gathered bytes, which may still change, are really copied.
    fn shared(&self, skip: u64, length: u64) -> Bytes {
        let range = skip as usize..(skip + length) as usize;
        match self {
            Dirty::Shared(bytes, _) => bytes.slice(range),
            Dirty::Gathered(bytes) => Bytes::copy_from_slice(&bytes[range]),
        }
    }
}

impl Part for Dirty {
    fn part(&self, skip: u64, length: u64) -> Self {
        match self {
            Dirty::Shared(bytes, came) => Dirty::Shared(bytes.slice(skip as usize..(skip + length) as usize), *came),
            Dirty::Gathered(bytes) => Dirty::Gathered(bytes[skip as usize..(skip + length) as usize].into()),
        }
    }
}

impl Part for Source {
    fn part(&self, skip: u64, length: u64) -> Self {
        match self {
            Source::Hole => Source::Hole,
            Source::Stored(address) => Source::Stored(address.part(skip as u32, length as u32)),
            Source::Memory(bytes) => Source::Memory(bytes.slice(skip as usize..(skip + length) as usize)),
        }
    }
}

impl Part for Owed {
    fn part(&self, _skip: u64, _length: u64) -> Self {
        *self
    }
}

#[cfg(test)]
mod model;
