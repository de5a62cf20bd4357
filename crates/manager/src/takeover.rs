//! Taking over slots, at the start or while running (DESIGN §5): seal the logs that they are listed with, find their newest
//! images, roll the journals behind these, and append our own log to their list, all before the first answer. Pages are not
//! read for that: what a journal changed waits for its page until somebody needs it, or the next round of images does. This
//! file awaits.
//!
//! Invariants
//! 1. A slot is answered for only after the registry listed our log with it, for whoever takes over from us, and after the
//!    deltas of clients that died are in, and those that live have said what they hold.
//! 2. Our log is listed from where it ends at that moment. A checkpoint table whose journal begins there or later knew the
//!    slot; one from before did not, or knew it in an earlier time with us, and is no base for it. So no table is written while
//!    the map lists our log with slots that are not here: who has them now has to read what our log says of them. Where one was
//!    written nevertheless it is no base either: tables tell which slots their writer had.
//! 3. Slots come and go while no round of images is under way, so that (2) tells the two apart.
//! 4. While the manager map gives us slots that are not here yet, everything may live ([`Manager::is_settled`]): their images
//!    and counts keep bytes alive that nobody else speaks for.

use std::collections::{BTreeMap, BTreeSet};
use std::pin::pin;
use std::sync::atomic::Ordering;
use std::time::Duration;

use bytes::Bytes;
use futures_util::stream::{self, StreamExt};
use log::SealError;
use log::recovery::{self, Bodies, Scanned};
use log::{LogReader, ReadError};
use protocol::address::{LogAddress, Position};
use protocol::id::{LogId, MapEpoch, SLOT_COUNT, SlotId, StripeNumber};
use protocol::manager::ManagerRequest;
use protocol::maps::{Maps, SlotEntry, SlotLog};
use protocol::record::RecordKind;
use protocol::registry::{RegistryError, RegistryRequest};
use tracing::info;

use crate::image::{HandedSlot, Handover, Image, Mark, Table, TableEntry, decode, decode_index};
use crate::intention::Intentions;
use crate::journal;
use crate::key::{self, Key};
use crate::manager::Manager;
use crate::ops::{self, Operation};
use crate::runs::Run;
use crate::sealing::seal;
use crate::slot::Slot;
use crate::start::StartError;
use crate::state::SlotState;
use crate::tokens::SlotTokens;

/// How long nobody is asked to list our log after nobody answered.
const LIST_PAUSE: Duration = Duration::from_millis(50);

/// So many runs of a journal are read side by side, and indexes of slots: these are small, and one by one they would cost a
/// round trip each.
const RUNS_AT_ONCE: usize = 8;
const INDEXES_AT_ONCE: usize = 64;

/// What is read of a manager's log. Most of it are pages of images, of which an index tells the newest.
const NEEDED: Bodies = Bodies::Only(&[RecordKind::Journal, RecordKind::Mark]);

/// A run of slots of one node.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct SlotRange {
    pub(crate) first: u16,
    pub(crate) last: u16,
    pub(crate) base: Option<LogAddress>,
    pub(crate) logs: Vec<SlotLog>,
}

impl SlotRange {
    pub(crate) fn slots(&self) -> impl Iterator<Item = SlotId> + use<> {
        (self.first..=self.last).map(SlotId)
    }

    /// Whether the maps give all of it to a node, as it is.
    fn lies_in(&self, maps: &Maps, node: u32) -> bool {
        let holds = |range: SlotRange| {
            let around = range.first <= self.first && self.last <= range.last;
            around && (range.base, range.logs) == (self.base, self.logs.clone())
        };
        ranges(maps, node).into_iter().any(holds)
    }

    /// The runs within it of slots that are not among `mine`, which is sorted.
    fn without(&self, mine: &[SlotId]) -> Vec<SlotRange> {
        let mut runs: Vec<SlotRange> = Vec::new();
        let behind = mine.partition_point(|slot| slot.0 <= self.last);
        let mine = &mine[mine.partition_point(|slot| slot.0 < self.first)..behind];
        // As a rule all are there.
        if mine.len() == self.slots().count() {
            return runs;
        }
        for slot in self.slots().filter(|slot| mine.binary_search(slot).is_err()) {
            match runs.last_mut() {
                Some(run) if run.last + 1 == slot.0 => run.last = slot.0,
                _ => runs.push(SlotRange { first: slot.0, last: slot.0, ..self.clone() }),
            }
        }
        runs
    }
}

/// The runs of slots that the manager map gives to a node.
pub(crate) fn ranges(maps: &Maps, node: u32) -> Vec<SlotRange> {
    let firsts: Vec<u16> = maps.slots.keys().copied().collect();
    let lasts = firsts.iter().skip(1).map(|next| next - 1).chain([SLOT_COUNT - 1]);
    let mine = maps.slots.iter().zip(lasts).filter(|((_, entry), _)| entry.node == node);
    let range = |((&first, entry), last): ((&u16, &SlotEntry), u16)| SlotRange {
        first,
        last,
        base: entry.base,
        logs: entry.logs.clone(),
    };
    mine.map(range).collect()
}

/// All runs of slots: first, last, and the node.
pub(crate) fn runs(maps: &Maps) -> impl Iterator<Item = (u16, u16, u32)> {
    let lasts = maps.slots.keys().skip(1).map(|next| next - 1).chain([SLOT_COUNT - 1]);
    maps.slots.iter().zip(lasts).map(|((&first, entry), last)| (first, last, entry.node))
}

/// Slots as they come out of images and journals.
#[derive(Default)]
struct Recovered {
    slots: BTreeMap<SlotId, Slot>,
    images: BTreeMap<SlotId, Image>,
    /// Up to where the base log's journal is in each image.
    covered: BTreeMap<SlotId, Position>,
    intentions: BTreeMap<SlotId, Intentions>,
    /// What was handed over, and lies in none of the images.
    handed: Vec<LogAddress>,
    /// The sealed logs of clients of which all is here, as what the slots are taken from tells.
    replayed: BTreeSet<LogId>,
}

impl Manager {
    /// Gives up the slots that the manager map gives to others, and takes over those that it gives to us.
    pub(crate) async fn follow_map(&self) -> Result<(), StartError> {
        let (maps, begun) = (self.cluster.maps(), self.host().now());
        let node = self.host().node().0;
        let foreign = |slot: &SlotId| maps.slot(slot.0).node != node;
        let lost: Vec<SlotId> = self.table.mine().iter().copied().filter(foreign).collect();
        if !lost.is_empty() {
            let _one = self.imaging.lock().await;
            self.table.give_up(&lost);
            self.leave(&lost);
        }
        let mine = self.table.mine();
        let mut sources = Sources::new(&self.reader);
        for run in ranges(&maps, node).into_iter().flat_map(|range| range.without(&mine)) {
            self.take_over(run, &mut sources).await?;
        }
        if self.arriving.load(Ordering::Acquire) {
            let arrived = self.arrivals.lock().expect("nobody panics over arrivals").clone();
            loop {
                self.await_dead().await?;
                self.replay_sealed().await?;
                if self.hear_claims(&arrived).await? {
                    break;
                }
            }
            for &slot in &arrived {
                self.table.with(slot, |state| state.tokens.heard(!state.opens.is_empty()));
            }
            let milliseconds = self.host().now().since(begun).as_millis() as u64;
            info!(slots = arrived.len(), milliseconds, "slots are taken over");
            // Whoever made a file without a name meanwhile opens it now.
            let due = self.host().now() + self.options.orphan_grace;
            self.untidy.lock().expect("nobody panics over arrivals").push((due, arrived));
            self.arrivals.lock().expect("nobody panics over arrivals").clear();
            self.arriving.store(false, Ordering::Release);
        }
        Ok(())
    }

    /// Whether a request is about a slot that still lacks deltas of clients that died. Managers among themselves need not
    /// wait for that.
    pub(crate) fn is_arriving(&self, request: &ManagerRequest) -> bool {
        if !self.arriving.load(Ordering::Acquire) {
            return false;
        }
        let arrivals = self.arrivals.lock().expect("nobody panics over arrivals");
        ops::slots(&Operation::Asked(request.clone())).iter().any(|slot| arrivals.contains(slot))
    }

    /// Whether every slot that the manager map gives us is here.
    pub(crate) fn is_settled(&self, maps: &Maps) -> bool {
        let mine = self.table.mine();
        let all_here = ranges(maps, self.host().node().0).iter().all(|range| range.without(&mine).is_empty());
        all_here && !self.arriving.load(Ordering::Acquire)
    }

    /// Takes over a run of slots, unless the map changes first: then the next look at it decides again.
    async fn take_over(&self, run: SlotRange, sources: &mut Sources<'_>) -> Result<(), StartError> {
        let begun = self.host().now();
        let mut recovered = Recovered::default();
        let read = recovered.recover(sources, &run).await;
        if let Err(StartError::Seal { error: SealError::Unknown(_), .. }) = read
            && !run.lies_in(&self.cluster.maps(), self.host().node().0)
        {
            // Somebody else has it by now, or other logs are listed: the registry forgot the one that is needed no more.
            return Ok(());
        }
        read?;
        let _one = self.imaging.lock().await;
        let Some(epoch) = self.list_own_log(&run).await? else { return Ok(()) };
        let _still = self.replaying.lock().await;
        let mut intentions = recovered.intentions;
        let state = |(id, slot)| {
            let intentions = intentions.remove(&id).unwrap_or_default();
            SlotState { intentions, tokens: SlotTokens::unheard(epoch), ..SlotState::new(id, slot) }
        };
        let states = recovered.slots.into_iter().map(state).collect();
        let logs = run.logs.iter().map(|listed| listed.log).collect();
        {
            let mut images = self.images.lock().expect("nobody panics over images");
            images.adopt(logs, recovered.images);
            images.rest_on(&recovered.handed);
        }
        self.replayed.lock().expect("nobody panics over replays").arrived(&recovered.replayed);
        self.arrivals.lock().expect("nobody panics over arrivals").extend(run.slots());
        self.arriving.store(true, Ordering::Release);
        self.table.adopt(states);
        let milliseconds = self.host().now().since(begun).as_millis() as u64;
        info!(
            run.first,
            run.last,
            logs = run.logs.len(),
            milliseconds,
            "slots are read from their images and journals"
        );
        Ok(())
    }

    /// Forgets what goes with slots that have another manager now.
    pub(crate) fn leave(&self, slots: &[SlotId]) {
        self.images.lock().expect("nobody panics over images").give_up(slots);
        self.locks.give_up(slots);
        self.tokens_moved.notify();
    }

    /// Adds our log to the list of a run of slots; the epoch of maps by which they are ours. None when the registry says that
    /// something else changed first. An answer that is lost is not taken for a refusal: slots that are listed with our log
    /// are ours, and that log is not dead.
    async fn list_own_log(&self, run: &SlotRange) -> Result<Option<MapEpoch>, StartError> {
        let node = self.host().node().0;
        let own = SlotLog { log: self.writer.log(), from: self.writer.end() };
        let listed = SlotRange { logs: run.logs.iter().copied().chain([own]).collect(), ..run.clone() };
        let mut is_proposed = false;
        loop {
            let known = self.cluster.refresh().await;
            let maps = self.cluster.maps();
            if is_proposed && listed.lies_in(&maps, node) {
                return Ok(Some(maps.epoch));
            }
            if !run.lies_in(&maps, node) {
                return Ok(None);
            }
            if let Err(error) = known
                && (!is_proposed || self.stopping.load(Ordering::Relaxed))
            {
                self.unsure.fetch_or(is_proposed, Ordering::Relaxed);
                return Err(error.into());
            }
            let (first, last, base, epoch) = (run.first, run.last, run.base, maps.epoch.0);
            let request = RegistryRequest::SetSlots { first, last, node, base, logs: listed.logs.clone(), epoch };
            is_proposed = true;
            match self.cluster.registry(request).await {
                // Only what was true of these very maps is changed.
                Ok(_) => return Ok(Some(maps.epoch)),
                // Refused for newer maps, which may have to come yet.
                Err(RegistryError::Lost) => {
                    if self.cluster.refresh().await.is_ok_and(|known| known.epoch == maps.epoch) {
                        self.host().sleep(LIST_PAUSE).await;
                    }
                }
                Err(RegistryError::Unavailable(_)) => self.host().sleep(LIST_PAUSE).await,
                Err(error) => return Err(error.into()),
            }
        }
    }
}

impl Recovered {
    /// A run of slots from its images and journals.
    async fn recover(&mut self, sources: &mut Sources<'_>, run: &SlotRange) -> Result<(), StartError> {
        let reader = sources.reader;
        let mine = |slot: SlotId| (run.first..=run.last).contains(&slot.0);
        let mut roll: Vec<SlotLog> = run.logs.clone();
        let mut base = None;
        for (number, listed) in run.logs.iter().enumerate().rev() {
            let table = sources.table(listed.log, listed.from).await?;
            let Some(table) = table.filter(|table| table.is_base(listed.from, run.first, run.last)) else { continue };
            roll = run.logs[number..].to_vec();
            roll[0].from = table.journal_from;
            base = Some(listed.log);
            self.replayed.clone_from(&table.replayed);
            let entries: Vec<&TableEntry> = table.slots.iter().filter(|entry| mine(entry.slot)).collect();
            self.covered.extend(entries.iter().map(|entry| (entry.slot, entry.covered)));
            let images = entries.into_iter().map(|entry| (entry.slot, entry.index.clone())).collect();
            self.read_images(reader, images).await?;
            break;
        }
        if let (None, Some(table)) = (base, run.base) {
            self.take(reader, table, run).await?;
        }
        for slot in run.slots() {
            self.slots.entry(slot).or_insert_with(|| Slot::empty(slot));
        }
        for listed in roll {
            for (place, body) in sources.journal(listed.log, listed.from).await? {
                self.roll((Some(listed.log) == base).then_some(*place), body, &mine)?;
            }
        }
        Ok(())
    }

    /// The slots of a run as they were handed over.
    async fn take(&mut self, reader: &LogReader, table: LogAddress, run: &SlotRange) -> Result<(), StartError> {
        let handed: Handover = decode(&reader.read(table).await?)?;
        self.replayed = handed.replayed;
        self.handed.push(table);
        let ours = |handed: &HandedSlot| (run.first..=run.last).contains(&handed.slot.0);
        let slots: Vec<HandedSlot> = handed.slots.into_iter().filter(ours).collect();
        self.read_images(reader, slots.iter().map(|handed| (handed.slot, handed.index.clone())).collect()).await?;
        for HandedSlot { slot, intentions, .. } in slots {
            for record in &intentions {
                for change in journal::decode(&reader.read(*record).await?)? {
                    self.intentions.entry(slot).or_default().recover(change.key, change.value)?;
                }
            }
            self.handed.extend(intentions);
        }
        Ok(())
    }

    /// Slots as their images are: the indexes, not the pages.
    async fn read_images(
        &mut self,
        reader: &LogReader,
        images: Vec<(SlotId, Vec<LogAddress>)>,
    ) -> Result<(), StartError> {
        let reads = stream::iter(images).map(|(slot, index)| read_index(reader, slot, index));
        let mut reads = pin!(reads.buffered(INDEXES_AT_ONCE));
        while let Some(read) = reads.next().await {
            let (slot, index, pages) = read?;
            let stored = pages.iter().map(|(_, address)| *address).collect();
            self.slots.insert(slot, Slot::from_index(slot, pages));
            self.images.insert(slot, Image { changes: 0, index, pages: stored });
        }
        Ok(())
    }

    /// Applies a journal record to the slots whose images do not cover it. `place` is absent in logs behind the base.
    fn roll(
        &mut self,
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
            let slot = self.slots.get_mut(&change.slot).expect("every slot of the run is there");
            slot.roll(change.key, change.value);
            if key::is_of_intention(change.key) {
                self.intentions.entry(change.slot).or_default().recover(change.key, change.value)?;
            }
        }
        Ok(())
    }
}

/// The logs that slots are recovered from. Each is sealed, searched and read once, however many runs list it.
struct Sources<'a> {
    reader: &'a LogReader,
    known: BTreeMap<LogId, Source>,
}

/// A sealed log, as far as it has been read.
struct Source {
    /// Its newest mark, and where that is.
    mark: Option<(Position, Bytes)>,
    /// The checkpoint table that this names, once somebody needed it.
    table: Option<Table>,
    /// From where on its journal is here.
    from: Position,
    journal: Vec<(Position, Bytes)>,
    /// The stripes behind `from` that are gone.
    gone: Vec<StripeNumber>,
}

impl Source {
    /// The newest mark, if it was written from a position on.
    fn mark_since(&self, from: Position) -> Option<&Bytes> {
        self.mark.as_ref().filter(|(place, _)| *place >= from).map(|(_, mark)| mark)
    }

    /// Reads the journal from a position on up to what is here: where the table tells its runs, these, else all of the log.
    async fn read_before(&mut self, reader: &LogReader, log: LogId, from: Position) -> Result<(), StartError> {
        let (mut journal, until) = (Vec::new(), self.from);
        let mut keep = |scanned: Scanned| {
            if scanned.header.kind == RecordKind::Journal {
                journal.push((scanned.place, scanned.bytes));
            }
        };
        let told = self.table.as_ref().and_then(|table| Some((table.journal_from, table.runs.as_ref()?)));
        let (told_from, told_until) =
            told.map_or((until, until), |(from, runs)| (from.min(until), runs.until.min(until)));
        let mut gone = recovery::scan(reader, log, from..told_from, NEEDED, &mut keep).await?;
        let runs = told.map(|(_, runs)| runs.between(from.max(told_from), until)).unwrap_or_default();
        let mut reads = pin!(stream::iter(runs).map(|run| read_run(reader, log, run)).buffered(RUNS_AT_ONCE));
        while let Some(read) = reads.next().await {
            read?.into_iter().for_each(&mut keep);
        }
        gone.extend(recovery::scan(reader, log, from.max(told_until)..until, NEEDED, &mut keep).await?);
        journal.append(&mut self.journal);
        gone.append(&mut self.gone);
        (self.from, self.journal, self.gone) = (from, journal, gone);
        Ok(())
    }
}

/// The records of a run that a table tells of. It is there: what no image covers is never deleted.
async fn read_run(reader: &LogReader, log: LogId, run: Run) -> Result<Vec<Scanned>, StartError> {
    let whole = LogAddress { log, stripe: run.stripe, offset: run.start, length: run.end - run.start };
    recovery::scan_run(reader, whole, NEEDED).await.map_err(|error| match error {
        ReadError::Deleted(_) => StartError::Lost { log, stripe: run.stripe },
        error => error.into(),
    })
}

impl<'a> Sources<'a> {
    fn new(reader: &'a LogReader) -> Sources<'a> {
        Sources { reader, known: BTreeMap::new() }
    }

    /// The log with its newest mark. Fragments name only marks from before they were begun, so the log is searched for newer
    /// ones from there on, and what is met of its journal is kept.
    async fn get(&mut self, log: LogId) -> Result<&mut Source, StartError> {
        if !self.known.contains_key(&log) {
            let length = seal(self.reader.cluster(), log).await?;
            let named = recovery::newest_mark(self.reader.cluster(), log).await?;
            let (mut mark, mut journal) = (None, Vec::new());
            let mut keep = |scanned: Scanned| match scanned.header.kind {
                RecordKind::Mark => mark = Some((scanned.place, scanned.bytes)),
                RecordKind::Journal => journal.push((scanned.place, scanned.bytes)),
                _ => {}
            };
            let gone = recovery::scan(self.reader, log, named..length, NEEDED, &mut keep).await?;
            self.known.insert(log, Source { mark, table: None, from: named, journal, gone });
        }
        Ok(self.known.get_mut(&log).expect("it is known by now"))
    }

    /// The newest checkpoint table of a log, if it may be a base for slots that were listed with the log from a position on:
    /// one from before is none (2). When it was written its manager may have had other slots, and have given them up: then
    /// nobody needs it, and it may be gone.
    async fn table(&mut self, log: LogId, from: Position) -> Result<Option<&Table>, StartError> {
        let reader = self.reader;
        let source = self.get(log).await?;
        let Some(mark) = source.mark_since(from) else { return Ok(None) };
        if source.table.is_none() {
            source.table = Some(Table::decode(&reader.read(decode::<Mark>(mark)?.table).await?)?);
        }
        Ok(source.table.as_ref())
    }

    /// The records of the log's journal from a position on, each with its place.
    async fn journal(&mut self, log: LogId, from: Position) -> Result<&[(Position, Bytes)], StartError> {
        let reader = self.reader;
        let source = self.get(log).await?;
        if from < source.from {
            source.read_before(reader, log, from).await?;
        }
        // Of the first stripe what lies before the range may have been all.
        if let Some(&stripe) = source.gone.iter().find(|&&stripe| stripe > from.stripe) {
            return Err(StartError::Lost { log, stripe });
        }
        let first = source.journal.partition_point(|(place, _)| *place < from);
        Ok(&source.journal[first..])
    }
}

/// The pages of a slot's image, by its index, with both.
async fn read_index(
    reader: &LogReader,
    slot: SlotId,
    index: Vec<LogAddress>,
) -> Result<(SlotId, Vec<LogAddress>, Vec<(Key, LogAddress)>), StartError> {
    let mut pages = Vec::new();
    for part in &index {
        pages.extend(decode_index(&reader.read(*part).await?)?);
    }
    Ok((slot, index, pages))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_table_from_before_slots_were_listed_is_not_asked_for() {
        let at = |stripe, offset| Position { stripe: StripeNumber(stripe), offset };
        let mark = Some((at(1, 8), Bytes::from_static(b"mark")));
        let source = Source { mark, table: None, from: at(0, 0), journal: vec![], gone: vec![] };
        let asks_from = |from| source.mark_since(from).is_some();
        assert_eq!([at(0, 0), at(1, 8), at(1, 9), at(2, 0)].map(asks_from), [true, true, false, false]);
    }

    #[test]
    fn only_runs_that_are_not_here_are_taken_over() {
        let range = SlotRange { first: 3, last: 9, base: None, logs: Vec::new() };
        let runs = |mine: &[u16]| {
            let mine: Vec<SlotId> = mine.iter().copied().map(SlotId).collect();
            range.without(&mine).into_iter().map(|run| (run.first, run.last)).collect::<Vec<_>>()
        };
        assert_eq!(runs(&[]), [(3, 9)]);
        assert_eq!(runs(&[1, 5, 6, 12]), [(3, 4), (7, 9)]);
        assert_eq!(runs(&[3, 9]), [(4, 8)]);
        assert!(runs(&[3, 4, 5, 6, 7, 8, 9]).is_empty());
    }
}
