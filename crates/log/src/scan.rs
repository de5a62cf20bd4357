//! Visiting the records of a sealed log in order. This file awaits.

use std::collections::BTreeSet;
use std::ops::Range;
use std::pin::pin;

use bytes::Bytes;
use futures_util::future::join_all;
use futures_util::stream::{self, StreamExt};
use protocol::address::{LogAddress, Position};
use protocol::fragment::Part;
use protocol::id::{LogId, StripeNumber, TargetId};
use protocol::maps::{GroupEntry, LogState, Maps};
use protocol::record::{HEADER_SIZE, RecordError, RecordHeader, RecordKind};
use protocol::storage::StoredFragment;

use crate::absence::may_hide;
use crate::fetch;
use crate::recovery::{Bodies, Scanned};
use crate::{Cluster, LogReader, ReadError};

/// Bytes read at once where records lie next to each other, first and at most.
const WINDOW_FIRST: u32 = 32 << 10;
const WINDOW_MAX: u32 = 256 << 10;
/// Bytes read at once behind a body that was passed over: most likely of a header and of no more.
const WINDOW_BEHIND: u32 = 4 << 10;
/// So many stripes are read at once where bodies are passed over, so that a busy network's answers are waited for side by
/// side; and where they are not, and take memory.
const STRIPES_SKIMMED: usize = 8;
const STRIPES_READ: usize = 2;

/// Visits the records of `log` that begin in `range`, in order; returns the stripes of which too much is gone.
pub(crate) async fn scan(
    reader: &LogReader,
    log: LogId,
    range: Range<Position>,
    bodies: Bodies,
    visit: &mut (dyn FnMut(Scanned) + Send),
) -> Result<Vec<StripeNumber>, ReadError> {
    let mut gone = Vec::new();
    if range.is_empty() {
        return Ok(gone);
    }
    let at_once = if bodies == Bodies::All { STRIPES_READ } else { STRIPES_SKIMMED };
    let numbers = (range.start.stripe.0..=range.end.stripe.0).map(StripeNumber);
    let scans = stream::iter(numbers).map(|number| scan_stripe(reader, (log, number), &range, bodies));
    let mut scans = pin!(scans.buffered(at_once));
    while let Some((number, records, outcome)) = scans.next().await {
        records.into_iter().for_each(&mut *visit);
        match outcome {
            Ok(()) => {}
            // Also when its length is known: it may be, however little is left of it.
            Err(ReadError::Deleted(_)) => gone.push(number),
            Err(error) => return Err(error),
        }
    }
    Ok(gone)
}

/// The records of a run, which is read at once.
pub(crate) async fn scan_run(reader: &LogReader, run: LogAddress, bodies: Bodies) -> Result<Vec<Scanned>, ReadError> {
    let (log, number, window) = (run.log, run.stripe, Bytes::new());
    let Some(length) = run.offset.checked_add(run.length) else {
        return Err(ReadError::Unreadable { address: run, reason: "no stripe is that long".into() });
    };
    let mut stripe = StripeScan { reader, log, number, length, window, window_start: 0, next: run.length };
    let mut records = Vec::new();
    stripe.scan(run.offset, bodies, &mut records).await?;
    let end = records.last().map(|last: &Scanned| last.place.offset + last.header.size());
    if end != Some(length) {
        return Err(ReadError::Unreadable { address: run, reason: "no record ends where the run does".into() });
    }
    Ok(records)
}

/// The records of one stripe that begin in `range`, up to what cannot be read.
async fn scan_stripe(
    reader: &LogReader,
    (log, number): (LogId, StripeNumber),
    range: &Range<Position>,
    bodies: Bodies,
) -> (StripeNumber, Vec<Scanned>, Result<(), ReadError>) {
    let start = if number == range.start.stripe { range.start.offset } else { 0 };
    let end = if number == range.end.stripe { range.end.offset } else { u32::MAX };
    let mut records = Vec::new();
    let outcome = match stripe_length(reader.cluster(), log, number).await {
        Ok(Some(length)) => {
            let length = length.min(end);
            // All of it is asked for at once, so that its targets answer side by side, and a lost fragment is made of what
            // the others gave.
            let next = if bodies == Bodies::All { length } else { WINDOW_FIRST };
            let window = Bytes::new();
            let mut stripe = StripeScan { reader, log, number, length, window, window_start: 0, next };
            stripe.scan(start, bodies, &mut records).await
        }
        Ok(None) => Err(ReadError::Deleted(LogAddress { log, stripe: number, offset: start, length: 0 })),
        Err(error) => Err(error),
    };
    (number, records, outcome)
}

/// One stripe being scanned.
struct StripeScan<'a> {
    reader: &'a LogReader,
    log: LogId,
    number: StripeNumber,
    length: u32,
    window: Bytes,
    window_start: u32,
    /// How large the next window is to be.
    next: u32,
}

impl StripeScan<'_> {
    async fn scan(&mut self, start: u32, bodies: Bodies, records: &mut Vec<Scanned>) -> Result<(), ReadError> {
        let mut at = start;
        // Where to start, and how long the stripe is, may come from a header, and so be anything.
        while at.checked_add(HEADER_SIZE as u32).is_some_and(|end| end <= self.length) {
            let place = Position::new(self.number, at);
            let encoded = self.bytes(at, HEADER_SIZE as u32).await?;
            let header = match RecordHeader::decode(&encoded) {
                Ok(header) => header,
                Err(RecordError::End) => break,
                Err(error) => return Err(self.unreadable(place, &error)),
            };
            let body = header.body(self.log, place);
            if body.offset.checked_add(body.length).is_none_or(|end| end > self.length) {
                return Err(self.reaches_beyond(place, body).await);
            }
            let is_brought = bodies.brings(header.kind);
            let bytes = if is_brought { self.bytes(body.offset, body.length).await? } else { Bytes::new() };
            let summed = if header.kind == RecordKind::Data { &[] } else { &bytes[..] };
            if is_brought || header.kind == RecordKind::Data {
                header.verify(self.log, place, &encoded, summed).map_err(|error| self.unreadable(place, &error))?;
            }
            records.push(Scanned { header, place, body, bytes });
            at += header.size();
        }
        Ok(())
    }

    /// Bytes of the stripe, from the window or with a new one.
    async fn bytes(&mut self, offset: u32, length: u32) -> Result<Bytes, ReadError> {
        let window_end = self.window_start + self.window.len() as u32;
        if offset < self.window_start || offset + length > window_end {
            self.next = if offset > window_end { WINDOW_BEHIND } else { self.next };
            let size = length.max(self.next.min(self.length - offset));
            self.next = self.next.saturating_mul(2).min(WINDOW_MAX.max(self.next));
            let address = |length| LogAddress { log: self.log, stripe: self.number, offset, length };
            self.window = match self.reader.read(address(size)).await {
                // What is asked for may lie before what cannot be read.
                Err(_) if size > length.max(WINDOW_MAX) => {
                    self.next = WINDOW_FIRST;
                    self.reader.read(address(length)).await?
                }
                read => read?,
            };
            self.window_start = offset;
        }
        let skip = (offset - self.window_start) as usize;
        Ok(self.window.slice(skip..skip + length as usize))
    }

    /// Why a record reaches beyond the end of its stripe. Where data alone tells that end, it may be all that is left of a
    /// stripe that was deleted in part.
    async fn reaches_beyond(&self, place: Position, body: LogAddress) -> ReadError {
        match self.reader.read(body).await {
            Err(ReadError::Deleted(address)) => ReadError::Deleted(address),
            _ => self.unreadable(place, &RecordError::Short),
        }
    }

    fn unreadable(&self, place: Position, error: &RecordError) -> ReadError {
        let address = LogAddress { log: self.log, stripe: place.stripe, offset: place.offset, length: 0 };
        ReadError::Unreadable { address, reason: error.to_string() }
    }
}

/// The groups over which stripe `number` lies or may lie.
fn runs_of(maps: &Maps, log: LogId, number: StripeNumber) -> impl Iterator<Item = &GroupEntry> {
    let runs = maps.logs.get(&log).into_iter().flat_map(|entry| &entry.layout);
    runs.filter(move |run| run.covers(number)).filter_map(move |run| maps.groups.get(&run.group(number)))
}

/// The targets of all groups that hold or may hold stripe `number`.
fn targets_of(maps: &Maps, log: LogId, number: StripeNumber) -> BTreeSet<TargetId> {
    runs_of(maps, log, number).flat_map(|group| group.targets.iter().copied()).collect()
}

/// How many data bytes a stripe of a log has: `None` when so many answer that they have none of it that it was deleted.
/// A header of the next stripe knows it best, then the newest run's parity, then, where there is none, the data itself
/// and its copies.
pub(crate) async fn stripe_length(
    cluster: &Cluster,
    log: LogId,
    number: StripeNumber,
) -> Result<Option<u32>, ReadError> {
    let maps = cluster.maps();
    if let Some(LogState::Sealed(length)) = maps.logs.get(&log).map(|entry| entry.state)
        && length.stripe == number
    {
        return Ok(Some(length.offset));
    }
    let next = StripeNumber(number.0 + 1);
    let mut targets = targets_of(&maps, log, number);
    targets.extend(targets_of(&maps, log, next));
    let answers = join_all(targets.iter().map(|&target| fetch::held(cluster, target, log, (number, next)))).await;
    let silent: BTreeSet<TargetId> =
        targets.iter().zip(&answers).filter(|(_, answer)| answer.is_err()).map(|(&target, _)| target).collect();
    let held: Vec<StoredFragment> = answers.into_iter().flatten().flatten().collect();
    if let Some(length) = length_from(&held, number) {
        return Ok(Some(length));
    }
    let mut groups = runs_of(&maps, log, number);
    if groups.any(|group| may_hide(&maps, group, &silent)) {
        let address = LogAddress { log, stripe: number, offset: 0, length: 0 };
        return Err(ReadError::Unreadable { address, reason: "too few targets tell what they hold".into() });
    }
    Ok(None)
}

fn length_from(held: &[StoredFragment], number: StripeNumber) -> Option<u32> {
    let own = || held.iter().filter(|fragment| fragment.header.id.stripe == number);
    own().next()?;
    if let Some(next) = held.iter().find(|fragment| fragment.header.id.stripe.0 == number.0 + 1) {
        return Some(next.header.previous_end);
    }
    let parity = own().filter(|fragment| fragment.header.ended()).max_by_key(|fragment| fragment.header.id.run);
    if let Some(parity) = parity {
        return Some(parity.header.data_lengths.iter().fold(0, |sum, length| sum.saturating_add(*length)));
    }
    let end = |fragment: &StoredFragment| match fragment.header.id.part {
        // The data itself may be lost, where its copies are not.
        Part::Data(index) | Part::Copy { of: index, .. } => {
            u32::from(index).saturating_mul(fragment.header.geometry.fragment_size).saturating_add(fragment.length)
        }
        Part::Parity(_) => 0,
    };
    own().map(end).max()
}

/// The newest mark named in the headers of the newest stripes of a sealed log.
pub(crate) async fn newest_mark(cluster: &Cluster, log: LogId) -> Result<Position, ReadError> {
    let maps = cluster.maps();
    let sealed = maps.logs.get(&log).map(|entry| entry.state);
    let Some(LogState::Sealed(length)) = sealed else {
        let address = LogAddress { log, stripe: StripeNumber(0), offset: 0, length: 0 };
        return Err(ReadError::Unreadable { address, reason: "the log is not sealed".into() });
    };
    let mut back = 0;
    loop {
        let from = StripeNumber(length.stripe.0.saturating_sub(back));
        let mut targets = targets_of(&maps, log, length.stripe);
        targets.extend(targets_of(&maps, log, from));
        let answers = join_all(targets.iter().map(|&target| fetch::tail(cluster, target, log, from))).await;
        let fragments = answers.into_iter().flatten().flatten();
        // What was begun beyond the sealed length may name a mark that was cut off.
        let mark = fragments.map(|fragment| fragment.header.mark).filter(|&mark| mark < length).max();
        match mark {
            Some(mark) => return Ok(mark),
            None if from.0 == 0 => return Ok(Position::START),
            None => back = back * 2 + 1,
        }
    }
}
