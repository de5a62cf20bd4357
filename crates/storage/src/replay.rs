//! What the list means: its batches, read in order, become what start-up knows.
//!
//! Invariants
//! 1. Only batches that follow one another without a gap, from number zero, are believed.
//! 2. Bytes behind the last of them are leftovers, unless something proves that they were durable: then the list is
//!    damaged, and only the fences of what else is right are kept, since fences only rise.

use std::collections::BTreeMap;

use protocol::FastMap;
use protocol::id::{FenceEpoch, LogId};

use crate::head::Generation;
use crate::list::{Batch, Entry, Found, Settled, WindowRun, entries, find_batch};
use crate::superblock::SECTOR;

/// What the list says of one cell.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Listed {
    pub(crate) generation: Generation,
    pub(crate) epoch: FenceEpoch,
    pub(crate) settled: Option<Settled>,
    /// The fragment header, encoded.
    pub(crate) header: Box<[u8]>,
}

/// Everything that the list says.
#[derive(Debug, Default)]
pub(crate) struct Replay {
    pub(crate) listed: FastMap<u32, Listed>,
    /// The highest generation that left a cell.
    pub(crate) gone: FastMap<u32, Generation>,
    pub(crate) fences: BTreeMap<LogId, FenceEpoch>,
    pub(crate) window: Vec<WindowRun>,
    ended: bool,
}

/// Where the next batch goes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Place {
    pub(crate) offset: u64,
    pub(crate) number: u64,
    pub(crate) chain: u32,
    /// The end of the snapshot.
    pub(crate) snapshot_end: u64,
}

/// Reads a list, piece by piece.
#[derive(Debug)]
pub(crate) struct ListReader {
    list: u64,
    replay: Replay,
    place: Place,
    /// Bytes not yet looked at.
    rest: Vec<u8>,
    broken: bool,
    damaged: bool,
}

impl ListReader {
    /// A reader of list number `list`.
    pub(crate) fn new(list: u64) -> ListReader {
        let place = Place { offset: 0, number: 0, chain: 0, snapshot_end: 0 };
        ListReader { list, replay: Replay::default(), place, rest: Vec::new(), broken: false, damaged: false }
    }

    /// Takes the next piece of the space.
    pub(crate) fn feed(&mut self, piece: &[u8]) {
        self.rest.extend_from_slice(piece);
        let rest = std::mem::take(&mut self.rest);
        let used = self.consume(&rest, false);
        self.rest = rest[used..].to_vec();
    }

    /// The space ends here; of the list, `synced` bytes are known to be durable. Without a place the list is damaged:
    /// then the fences are all there is to keep.
    pub(crate) fn finish(mut self, synced: u64) -> (Replay, Option<Place>) {
        let rest = std::mem::take(&mut self.rest);
        self.consume(&rest, true);
        self.damaged |= !self.replay.ended || self.place.offset < synced;
        let place = (!self.damaged).then_some(self.place);
        (self.replay, place)
    }

    /// Looks at as much of `bytes` as can be told apart; returns how much that was.
    fn consume(&mut self, bytes: &[u8], last: bool) -> usize {
        let mut used = 0;
        loop {
            let step = match find_batch(&bytes[used..]) {
                Found::Short if !last || bytes.len() - used < SECTOR => return used,
                Found::Batch(batch) if !self.broken && self.follows(&batch) => {
                    self.apply_batch(&batch);
                    batch.size
                }
                Found::Batch(batch) => {
                    self.broken = true;
                    self.salvage(&batch);
                    SECTOR
                }
                Found::Short | Found::Nothing => {
                    self.broken = true;
                    SECTOR
                }
            };
            let step = step.min(bytes.len() - used);
            used += step;
            if used == bytes.len() {
                return used;
            }
        }
    }

    fn follows(&self, batch: &Batch<'_>) -> bool {
        let header = &batch.header;
        header.list == self.list && header.number == self.place.number && header.chain == self.place.chain
    }

    fn apply_batch(&mut self, batch: &Batch<'_>) {
        let in_snapshot = !self.replay.ended;
        for entry in entries(batch.payload) {
            match entry {
                Ok(entry) => self.replay.apply(entry),
                // The CRC is right: whoever wrote this knew other entries.
                Err(_) => self.damaged = true,
            }
        }
        self.place.offset += batch.size as u64;
        self.place.number += 1;
        self.place.chain = batch.crc;
        if in_snapshot {
            self.place.snapshot_end = self.place.offset;
        }
    }

    /// Takes from a batch that does not follow what is true in any case.
    fn salvage(&mut self, batch: &Batch<'_>) {
        // Leftovers of before a crash were written when less than the break was durable.
        self.damaged |= batch.header.list == self.list && batch.header.synced > self.place.offset;
        for entry in entries(batch.payload).flatten() {
            if let Entry::Fence { .. } = entry {
                self.replay.apply(entry);
            }
        }
    }
}

impl Replay {
    fn apply(&mut self, entry: Entry<'_>) {
        match entry {
            Entry::Fragment { cell, generation, epoch, settled, header } => {
                let generation = Generation(generation);
                let newer = self.listed.get(&cell).is_some_and(|listed| listed.generation > generation);
                if !newer && self.gone.get(&cell).is_none_or(|gone| *gone < generation) {
                    self.listed.insert(cell, Listed { generation, epoch, settled, header: header.into() });
                }
            }
            Entry::Open { cell, generation } => {
                if let Some(listed) = self.listed.get_mut(&cell).filter(|listed| listed.generation.0 == generation) {
                    listed.settled = None;
                }
            }
            Entry::Gone { cell, generation } => {
                let generation = Generation(generation);
                if self.listed.get(&cell).is_some_and(|listed| listed.generation <= generation) {
                    self.listed.remove(&cell);
                }
                let gone = self.gone.entry(cell).or_insert(generation);
                *gone = generation.max(*gone);
            }
            Entry::Fence { log, epoch } => {
                let fence = self.fences.entry(log).or_insert(epoch);
                *fence = epoch.max(*fence);
            }
            Entry::Window(window) => self.window = window,
            Entry::End => self.ended = true,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::list::{BatchHeader, encode_batch};

    /// A list of batches with one entry each.
    fn list(entries: &[Entry<'_>], incarnation: u64) -> Vec<u8> {
        let (mut bytes, mut chain) = (Vec::new(), 0);
        for (number, entry) in entries.iter().enumerate() {
            let synced = bytes.len() as u64;
            let header = BatchHeader { list: 1, number: number as u64, incarnation, synced, chain };
            let (batch, crc) = encode_batch(&header, &postcard::to_stdvec(entry).unwrap());
            bytes.extend(batch);
            chain = crc;
        }
        bytes
    }

    fn fence(epoch: u32) -> Entry<'static> {
        Entry::Fence { log: LogId(1), epoch: FenceEpoch(epoch) }
    }

    fn read(bytes: &[u8], piece: usize, synced: u64) -> (Replay, Option<Place>) {
        let mut reader = ListReader::new(1);
        bytes.chunks(piece).for_each(|piece| reader.feed(piece));
        reader.finish(synced)
    }

    #[test]
    fn a_list_is_read_in_pieces_of_any_size() {
        let bytes = list(&[fence(1), Entry::End, fence(2), fence(3)], 1);
        for piece in [100, 512, 700, 10_000] {
            let (replay, place) = read(&bytes, piece, 2048);
            assert_eq!(replay.fences[&LogId(1)], FenceEpoch(3));
            let place = place.unwrap();
            assert_eq!((place.offset, place.number, place.snapshot_end), (2048, 4, 1024));
        }
    }

    #[test]
    fn a_torn_end_is_no_damage_but_a_hole_is() {
        let mut bytes = list(&[Entry::End, fence(2), fence(3), fence(4)], 1);
        let mut torn = bytes.clone();
        torn[3 * 512 + 50] ^= 1;
        let (replay, place) = read(&torn, 512, 1536);
        assert_eq!((place.map(|place| place.offset), replay.fences[&LogId(1)]), (Some(1536), FenceEpoch(3)));
        assert_eq!(read(&torn, 512, 2048).1, None, "the superblock knew better");
        bytes[512 + 50] ^= 1;
        let (replay, place) = read(&bytes, 512, 0);
        assert_eq!((place, replay.fences[&LogId(1)]), (None, FenceEpoch(4)));
    }

    #[test]
    fn leftovers_of_before_a_crash_do_not_fit() {
        let old = list(&[Entry::End, fence(7), fence(8)], 1);
        let mut bytes = list(&[Entry::End, fence(2)], 1);
        // The second batch was lost in a crash and another written in its place; the third is left over.
        bytes.extend_from_slice(&old[1024..]);
        bytes[1024 + 32..1024 + 40].copy_from_slice(&512u64.to_le_bytes());
        let (_, place) = read(&bytes, 512, 1024);
        assert_eq!(place.map(|place| place.offset), Some(1024));
    }

    #[test]
    fn entries_of_an_older_generation_change_nothing() {
        let fragment =
            |generation, header| Entry::Fragment { cell: 1, generation, epoch: FenceEpoch(0), settled: None, header };
        let mut replay = Replay::default();
        replay.apply(fragment(5, b"new"));
        replay.apply(fragment(4, b"old"));
        replay.apply(Entry::Gone { cell: 1, generation: 4 });
        assert_eq!(&*replay.listed[&1].header, b"new");
        replay.apply(Entry::Gone { cell: 1, generation: 5 });
        replay.apply(fragment(5, b"new"));
        assert!(replay.listed.is_empty());
    }
}
