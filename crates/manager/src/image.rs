//! Images: where the pages of the slots are stored, and which stripes of manager logs are needed for that.
//!
//! A checkpoint table names the newest image of every slot that ever had a record; a mark names the newest table
//! (DESIGN §5, journal and images; Zebra 5.3). What an image does not cover, the journal does.

use std::collections::{BTreeMap, BTreeSet};

use bytes::Bytes;
use protocol::address::{LogAddress, Position};
use protocol::id::{LogId, SlotId, StripeNumber};
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};

use crate::encoding::{Damaged, VERSION};
use crate::key::Key;
use crate::runs::ToldRuns;
use crate::slot_set::SlotSet;

/// A stripe is worth emptying when less than one part in so many of it lives.
const SPARSE_PART: u64 = 4;
/// Bytes of an index part after which the next one begins.
const INDEX_PART_SIZE: usize = if cfg!(test) { 128 } else { 48 << 10 };

/// The newest images of a manager's slots.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Table {
    /// Every journal record before this place of the table's log is covered by the images.
    pub(crate) journal_from: Position,
    /// The slots that ever had a record.
    pub(crate) slots: Vec<TableEntry>,
    /// Where the journal from there on lies, if that is known. It stands behind the rest, where versions that do not know it
    /// do not look, and what follows stands behind it.
    #[serde(skip)]
    pub(crate) runs: Option<ToldRuns>,
    /// The sealed logs of clients of which the slots have all, whether they ever had a record or not.
    #[serde(skip)]
    pub(crate) replayed: BTreeSet<LogId>,
    /// The slots that the writer had, whether they ever had a record or not, if that is known.
    #[serde(skip)]
    pub(crate) had: Option<SlotSet>,
}

impl Table {
    /// Whether slots from one to another, with which its log is listed from a position on, begin with it: their writer had
    /// them, and had them when its journal began.
    pub(crate) fn is_base(&self, from: Position, first: u16, last: u16) -> bool {
        self.journal_from >= from && self.had.as_ref().is_none_or(|had| had.holds(first, last))
    }

    /// The body of its record.
    pub(crate) fn encode(&self) -> Vec<u8> {
        let untold = ToldRuns::default();
        let behind = (self.runs.as_ref().unwrap_or(&untold), &self.replayed);
        let body = postcard::to_extend(&behind, encode(self)).expect("memory is the only thing that can lack");
        let Some(had) = &self.had else { return body };
        postcard::to_extend(had, body).expect("memory is the only thing that can lack")
    }

    /// Reads the body of its record.
    pub(crate) fn decode(body: &[u8]) -> Result<Table, Damaged> {
        let Some((&VERSION, rest)) = body.split_first() else { return Err(Damaged("table")) };
        let (mut table, rest): (Table, _) = postcard::take_from_bytes(rest).map_err(|_| Damaged("table"))?;
        if rest.is_empty() {
            return Ok(table);
        }
        let (runs, rest): (ToldRuns, _) = postcard::take_from_bytes(rest).map_err(|_| Damaged("runs of a journal"))?;
        table.runs = Some(runs.checked()?).filter(|runs| *runs != ToldRuns::default());
        if rest.is_empty() {
            return Ok(table);
        }
        let (replayed, rest) = postcard::take_from_bytes(rest).map_err(|_| Damaged("replayed logs"))?;
        table.replayed = replayed;
        if !rest.is_empty() {
            let had: SlotSet = postcard::from_bytes(rest).map_err(|_| Damaged("set of slots"))?;
            table.had = Some(had.checked()?);
        }
        Ok(table)
    }
}

/// The newest image of one slot.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct TableEntry {
    pub(crate) slot: SlotId,
    /// The image holds what the journal records before this place of the table's log did.
    pub(crate) covered: Position,
    /// The parts of its index, in order.
    pub(crate) index: Vec<LogAddress>,
}

/// What a manager hands over to another: images of slots that lack nothing.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Handover {
    /// The sealed logs of clients of which the images have all.
    pub(crate) replayed: BTreeSet<LogId>,
    /// The slots that ever had a record.
    pub(crate) slots: Vec<HandedSlot>,
}

/// One slot of a [`Handover`].
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct HandedSlot {
    pub(crate) slot: SlotId,
    /// The parts of its index, in order.
    pub(crate) index: Vec<LogAddress>,
    /// Records of intentions that are not over, each as the body of a journal record.
    pub(crate) intentions: Vec<LogAddress>,
}

/// What a mark names.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Mark {
    pub(crate) table: LogAddress,
}

/// The body of a handover or mark record, of an index part, or of a table without runs.
pub(crate) fn encode<T: Serialize>(value: &T) -> Vec<u8> {
    postcard::to_extend(value, vec![VERSION]).expect("memory is the only thing that can lack")
}

/// Reads the body of a handover or mark record, or of an index part.
pub(crate) fn decode<T: DeserializeOwned>(body: &[u8]) -> Result<T, Damaged> {
    match body.split_first() {
        Some((&VERSION, rest)) => postcard::from_bytes(rest).map_err(|_| Damaged("table or mark")),
        _ => Err(Damaged("table or mark")),
    }
}

/// The bodies of a slot's index, in parts.
pub(crate) fn encode_index(pages: &[(Key, LogAddress)]) -> Vec<Vec<u8>> {
    let mut parts = Vec::new();
    let mut part: Vec<(Bytes, LogAddress)> = Vec::new();
    let mut size = 0;
    for (low, address) in pages {
        size += low.len() + size_of::<LogAddress>();
        part.push((Bytes::copy_from_slice(low), *address));
        if size >= INDEX_PART_SIZE {
            parts.push(encode(&part));
            part.clear();
            size = 0;
        }
    }
    if !part.is_empty() {
        parts.push(encode(&part));
    }
    parts
}

/// Reads one part of an index.
pub(crate) fn decode_index(body: &[u8]) -> Result<Vec<(Key, LogAddress)>, Damaged> {
    let part: Vec<(Bytes, LogAddress)> = decode(body)?;
    Ok(part.into_iter().map(|(low, address)| (low.to_vec(), address)).collect())
}

/// A slot's image as this manager knows it.
#[derive(Clone, Debug, Default)]
pub(crate) struct Image {
    /// The slot's count of changes when the image was taken.
    pub(crate) changes: u64,
    pub(crate) index: Vec<LogAddress>,
    pub(crate) pages: Vec<LogAddress>,
}

/// Which images hold, and so which stripes of manager logs are needed.
#[derive(Debug)]
pub(crate) struct Images {
    /// The log that this manager writes.
    log: LogId,
    /// Earlier logs of which journal records may still be needed.
    rolled: BTreeSet<LogId>,
    /// Whether slots are listed with a table that they were handed over with.
    based: bool,
    slots: BTreeMap<SlotId, Image>,
    /// What the newest durable table names, that table, and its mark.
    needed: BTreeSet<(LogId, StripeNumber)>,
    /// Where the part of our log begins that no image covers.
    journal_from: Position,
    /// Our marks, oldest first, each with the stripe that was open when fragments were told to name it. A start searches
    /// the log from the newest mark that fragments name; older ones than that are forgotten.
    marks: Vec<(Position, StripeNumber)>,
    /// Whether fragments name the oldest of these marks.
    named: bool,
}

/// A round of images that is durable.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Round {
    /// The journal before this is covered.
    pub(crate) journal_from: Position,
    /// Where the table lies.
    pub(crate) table: LogAddress,
    /// Where the mark begins.
    pub(crate) mark: Position,
}

impl Images {
    /// What the writer of `log` knows before it manages anything.
    pub(crate) fn new(log: LogId) -> Images {
        Images {
            log,
            rolled: BTreeSet::new(),
            based: false,
            slots: BTreeMap::new(),
            needed: BTreeSet::new(),
            journal_from: Position::START,
            marks: Vec::new(),
            named: false,
        }
    }

    /// Slots were taken over with these images in earlier logs, which stay needed until an own table names them.
    pub(crate) fn adopt(&mut self, rolled: Vec<LogId>, slots: BTreeMap<SlotId, Image>) {
        self.rolled.extend(rolled);
        self.slots.extend(slots);
        self.needed.extend(self.stripes());
    }

    /// Slots were handed over to us with what lies at these addresses, which stays needed until an own table is durable.
    pub(crate) fn rest_on(&mut self, handed: &[LogAddress]) {
        self.based |= !handed.is_empty();
        self.needed.extend(handed.iter().map(|address| (address.log, address.stripe)));
    }

    /// Newer images of some slots are durable; no table names them yet.
    pub(crate) fn supplement(&mut self, images: BTreeMap<SlotId, Image>) {
        self.slots.extend(images);
        self.needed.extend(self.stripes());
    }

    /// These slots are another manager's.
    pub(crate) fn give_up(&mut self, slots: &[SlotId]) {
        self.slots.retain(|slot, _| !slots.contains(slot));
    }

    /// The newest image of a slot.
    pub(crate) fn image(&self, slot: SlotId) -> Option<&Image> {
        self.slots.get(&slot)
    }

    /// Whether slots of ours are listed with more than our log.
    pub(crate) fn rolls_others(&self) -> bool {
        self.based || !self.rolled.is_empty()
    }

    /// A new table is durable, with these new images, and so is the mark that names it. Fragments begun behind `open`
    /// name the mark.
    pub(crate) fn replace(&mut self, images: BTreeMap<SlotId, Image>, round: &Round, open: StripeNumber) {
        self.slots.extend(images);
        self.needed = self.stripes();
        self.needed.insert((round.table.log, round.table.stripe));
        self.journal_from = round.journal_from;
        self.marks.push((round.mark, open));
    }

    /// Our log is on disk through `disk`.
    pub(crate) fn reached(&mut self, disk: Position) {
        if let Some(named) = self.marks.iter().rposition(|(_, open)| disk.stripe > *open) {
            self.marks.drain(..named);
            self.named = true;
        }
    }

    /// Whether the newest table names the images of slots that were taken over when our log ended at `from`.
    pub(crate) fn covers(&self, from: Position) -> bool {
        !self.marks.is_empty() && from <= self.journal_from
    }

    /// Besides ours, the slots' lists name these logs alone by now, and tables that slots were handed over with, or none.
    pub(crate) fn roll_only(&mut self, others: BTreeSet<LogId>, based: bool) {
        (self.rolled, self.based) = (others, based);
    }

    /// Up to where the newest table covers our journal.
    pub(crate) fn covered(&self) -> Position {
        self.journal_from
    }

    /// Whether this manager needs nothing of a stripe of a manager log.
    pub(crate) fn is_dead(&self, log: LogId, stripe: StripeNumber) -> bool {
        let journal = self.rolled.contains(&log) || (log == self.log && stripe >= self.read_from());
        !journal && !self.needed.contains(&(log, stripe))
    }

    /// From which stripe of our log on a start reads.
    fn read_from(&self) -> StripeNumber {
        // Until fragments name a mark, a start searches for it from the one before, or from the log's beginning.
        let searched = self.marks.first().filter(|_| self.named).map_or(Position::START, |(mark, _)| *mark);
        self.journal_from.min(searched).stripe
    }

    /// Whether anything is needed of the stripes that `lies` tells of. Our log has come to the stripe `open`.
    pub(crate) fn needs_any(&self, open: StripeNumber, lies: impl Fn(LogId, StripeNumber) -> bool) -> bool {
        let journal = (self.read_from().0..=open.0).any(|stripe| lies(self.log, StripeNumber(stripe)));
        journal || self.needed.iter().any(|&(log, stripe)| lies(log, stripe))
    }

    /// Those stripes of images that `lies` tells of, with so little in them together; one at least, if there is any.
    pub(crate) fn lying(
        &self,
        bytes_max: u64,
        lies: impl Fn(LogId, StripeNumber) -> bool,
    ) -> BTreeSet<(LogId, StripeNumber)> {
        let mut live: BTreeMap<(LogId, StripeNumber), u64> = BTreeMap::new();
        let addresses = self.slots.values().flat_map(|image| image.index.iter().chain(&image.pages));
        for address in addresses.filter(|address| lies(address.log, address.stripe)) {
            *live.entry((address.log, address.stripe)).or_default() += u64::from(address.length);
        }
        let mut sum = 0;
        let fits = live.into_iter().enumerate().take_while(|(index, (_, bytes))| {
            sum += bytes;
            sum <= bytes_max || *index == 0
        });
        fits.map(|(_, (stripe, _))| stripe).collect()
    }

    /// Stripes that only little of these images keeps alive, the least first, with `bytes_max` to copy in all: once that
    /// is stored anew, they can go (DESIGN §8: a manager alone moves what is its own).
    pub(crate) fn sparse(&self, stripe_size: u64, bytes_max: u64) -> BTreeSet<(LogId, StripeNumber)> {
        let mut live: BTreeMap<(LogId, StripeNumber), u64> = BTreeMap::new();
        for address in self.slots.values().flat_map(|image| image.index.iter().chain(&image.pages)) {
            *live.entry((address.log, address.stripe)).or_default() += u64::from(address.length);
        }
        let journal = |log, stripe| log == self.log && stripe >= self.journal_from.stripe;
        let mut sparse: Vec<_> = live.into_iter().filter(|((log, stripe), _)| !journal(*log, *stripe)).collect();
        sparse.retain(|(_, bytes)| *bytes < stripe_size / SPARSE_PART);
        sparse.sort_by_key(|(stripe, bytes)| (*bytes, *stripe));
        let mut left = bytes_max;
        let fits = |(_, bytes): &(_, u64)| {
            let fits = *bytes <= left;
            left = left.saturating_sub(*bytes);
            fits
        };
        sparse.into_iter().take_while(fits).map(|(stripe, _)| stripe).collect()
    }

    /// Whether something of a slot's image lies in one of these stripes.
    pub(crate) fn lies_in(&self, slot: SlotId, stripes: &BTreeSet<(LogId, StripeNumber)>) -> bool {
        let lies = |address: &LogAddress| stripes.contains(&(address.log, address.stripe));
        self.slots.get(&slot).is_some_and(|image| image.index.iter().chain(&image.pages).any(lies))
    }

    fn stripes(&self) -> BTreeSet<(LogId, StripeNumber)> {
        let addresses = self.slots.values().flat_map(|image| image.index.iter().chain(&image.pages));
        addresses.map(|address| (address.log, address.stripe)).collect()
    }
}

#[cfg(test)]
mod tests {
    use log::Appended;

    use super::*;
    use crate::runs::JournalRuns;

    fn address(log: u64, stripe: u64) -> LogAddress {
        LogAddress { log: LogId(log), stripe: StripeNumber(stripe), offset: 7, length: 100 }
    }

    #[test]
    fn an_index_comes_back_from_its_parts_and_rubbish_never_panics() {
        let pages: Vec<(Key, LogAddress)> = (0..40_u8).map(|low| (vec![low; 9], address(1, low.into()))).collect();
        let parts = encode_index(&pages);
        assert!(parts.len() > 3);
        let again: Vec<_> = parts.iter().flat_map(|part| decode_index(part).unwrap()).collect();
        assert_eq!(again, pages);
        let entry = TableEntry { slot: SlotId(3), covered: Position::START, index: vec![address(1, 2)] };
        let mut runs = JournalRuns::default();
        runs.note(&Appended { body: address(1, 2), place: address(1, 2).position(), end: address(1, 2).end() });
        let runs = runs.told(address(1, 3).position());
        let none = BTreeSet::new();
        let plain = Table { journal_from: Position::START, slots: vec![entry], runs: None, replayed: none, had: None };
        let had = Some(SlotSet::of(&[SlotId(3), SlotId(4)]));
        let table = Table { runs, replayed: [LogId(3), LogId(900)].into(), had, ..plain.clone() };
        let body = table.encode();
        assert_eq!(Table::decode(&body), Ok(table.clone()));
        assert_eq!(decode(&body), Ok(plain.clone()), "an earlier version reads the rest");
        assert_eq!(Table::decode(&encode(&table)), Ok(plain.clone()), "an earlier version tells neither");
        let runs_alone = postcard::to_extend(table.runs.as_ref().unwrap(), encode(&table)).unwrap();
        let told = Table { replayed: BTreeSet::new(), had: None, ..table.clone() };
        assert_eq!(Table::decode(&runs_alone), Ok(told), "an earlier version tells runs alone");
        let earlier = Table { had: None, ..table.clone() };
        assert_eq!(Table::decode(&earlier.encode()), Ok(earlier), "an earlier version does not tell what it had");
        let untold = Table { runs: None, ..table };
        assert_eq!(Table::decode(&untold.encode()), Ok(untold), "there were too many runs");
        for body in parts.iter().chain([&body]) {
            for at in 0..body.len() {
                let mut bad = body.clone();
                bad[at] = bad[at].wrapping_add(0x7b);
                let _ = decode_index(&bad);
                let _ = Table::decode(&bad);
                let _ = decode::<Mark>(&bad[..at]);
            }
        }
    }

    #[test]
    fn a_table_is_no_base_of_slots_that_its_writer_did_not_have() {
        let at = |offset| Position::new(StripeNumber(2), offset);
        let had = Some(SlotSet::of(&[SlotId(3), SlotId(4)]));
        let table =
            Table { journal_from: at(500), slots: Vec::new(), runs: None, replayed: BTreeSet::new(), had: had.clone() };
        assert!(table.is_base(at(500), 3, 4) && table.is_base(at(1), 4, 4));
        assert!(!table.is_base(at(501), 3, 4), "it had them later");
        assert!(!table.is_base(at(500), 4, 5) && !table.is_base(at(1), 7, 7), "it did not have them");
        let earlier = Table { had: None, ..table };
        assert!(earlier.is_base(at(500), 7, 7) && !earlier.is_base(at(501), 7, 7), "an earlier version does not tell");
    }

    #[test]
    fn a_table_names_only_slots_that_were_there_when_its_round_began() {
        let mut images = Images::new(LogId(2));
        let at = |offset| Position::new(StripeNumber(0), offset);
        assert!(!images.covers(Position::START), "there is no table yet");
        let round = Round { journal_from: at(500), table: address(2, 0), mark: at(700) };
        images.replace(BTreeMap::new(), &round, StripeNumber(0));
        assert!(images.covers(Position::START) && images.covers(at(500)) && !images.covers(at(501)));
    }

    #[test]
    fn a_stripe_is_dead_when_neither_journal_nor_image_needs_it() {
        let old = Image { changes: 0, index: vec![address(1, 5)], pages: vec![address(1, 2), address(0, 1)] };
        let mut images = Images::new(LogId(2));
        images.adopt(vec![LogId(1)], BTreeMap::from([(SlotId(0), old)]));
        assert!(
            !images.is_dead(LogId(0), StripeNumber(1)),
            "a page lies there, though that log's journal is done with"
        );
        assert!(!images.is_dead(LogId(1), StripeNumber(3)), "its journal is needed");
        let new = Image { changes: 1, index: vec![address(2, 5)], pages: vec![address(1, 2), address(2, 4)] };
        let from = Position::new(StripeNumber(4), 0);
        let round = Round { journal_from: from, table: address(2, 5), mark: Position::new(StripeNumber(5), 900) };
        images.replace(BTreeMap::from([(SlotId(0), new)]), &round, StripeNumber(5));
        images.roll_only(BTreeSet::new(), false);
        assert!(!images.is_dead(LogId(2), StripeNumber(3)), "the mark is searched for from the log's beginning");
        images.reached(Position::new(StripeNumber(6), 1));
        assert_eq!(images.sparse(1000, 100), [(LogId(1), StripeNumber(2))].into());
        assert!(images.sparse(1000, 99).is_empty() && images.sparse(400, 100).is_empty());
        let dead = |log, stripe| images.is_dead(LogId(log), StripeNumber(stripe));
        assert!(dead(1, 5) && dead(1, 3) && dead(2, 3) && dead(9, 9));
        assert!(!dead(1, 2) && !dead(2, 4) && !dead(2, 5) && !dead(2, 77));
        let lying = |bytes| images.lying(bytes, |log, _| log == LogId(2));
        assert_eq!((lying(100), lying(200).len()), ([(LogId(2), StripeNumber(4))].into(), 2));
        assert!(images.lying(999, |log, _| log == LogId(7)).is_empty());
        let needs = |log, stripe| images.needs_any(StripeNumber(6), |at, number| (at.0, number.0) == (log, stripe));
        assert!(needs(1, 2) && needs(2, 6) && !needs(2, 3) && !needs(2, 7) && !needs(1, 3));
    }
}
