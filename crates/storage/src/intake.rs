//! The intake: entries of small durable appends, as bytes, and what they say of a fragment after a crash.
//! `docs/format.md`, *The intake*.

use bytes::Bytes;
use protocol::FastMap;
use protocol::checksum::{BLOCK_SIZE, crc, crc_parts};
use protocol::fragment::FRAGMENT_SIZE_MAX;
use protocol::storage::Append;

use crate::bytes_at::{put, u32_at, u64_at};
use crate::catalog::Extension;
use crate::head::{Generation, blocks_full, blocks_touched};
use crate::superblock::SECTOR;
use crate::tail::Verdict;

/// The largest intake: a start reads all of it.
pub(crate) const INTAKE_SIZE_MAX: u32 = 4 << 20;
/// The most bytes of an append that is taken in. Larger ones gain little: their bytes are most of what is written.
pub(crate) const TAKEN_SIZE_MAX: usize = 32 << 10;

const MAGIC: [u8; 8] = *b"DzTakeIn";
const CRC_OFFSET: usize = 8;
const HEADER_SIZE: usize = 48;
/// No slot's sequence gets so far, see there.
const SEQUENCE_END: u64 = u64::MAX / 2;

static ZEROS: [u8; SECTOR] = [0; SECTOR];

/// An append in the intake.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Entry {
    pub(crate) generation: Generation,
    /// Behind those of all slots that were written before.
    pub(crate) sequence: u64,
    /// How long the fragment was.
    pub(crate) offset: u32,
    /// Of every block that the bytes touch, from the block's start to the new length.
    pub(crate) checksums: Vec<u32>,
    pub(crate) parts: Vec<Bytes>,
}

/// How a fragment goes on behind what its slots say.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Regained {
    /// Where the bytes begin in the fragment; before it nothing changes.
    pub(crate) from: u32,
    pub(crate) bytes: Vec<u8>,
    /// The table entries from the block of `from` on.
    pub(crate) filled: Vec<u32>,
    pub(crate) length: u32,
    /// CRC of the partial last block, zero if there is none.
    pub(crate) partial: u32,
}

impl Entry {
    /// What an extension adds.
    pub(crate) fn of(append: &Append, extension: &Extension, sequence: u64, parts: Vec<Bytes>) -> Entry {
        let first = blocks_full(extension.from) - blocks_full(append.offset);
        let checksums = append.checksums[first..].to_vec();
        Entry { generation: extension.generation, sequence, offset: extension.from, checksums, parts }
    }

    /// The bytes to write at `place` of the intake.
    pub(crate) fn encode(self, owner: u32, place: u64) -> Vec<Bytes> {
        let length = self.length();
        let size = entry_size(self.offset, self.offset + length);
        let mut header = vec![0; HEADER_SIZE];
        put(&mut header, 0, &MAGIC);
        put(&mut header, 12, &owner.to_le_bytes());
        put(&mut header, 16, &place.to_le_bytes());
        put(&mut header, 24, &self.generation.0.to_le_bytes());
        put(&mut header, 32, &self.sequence.to_le_bytes());
        put(&mut header, 40, &self.offset.to_le_bytes());
        put(&mut header, 44, &length.to_le_bytes());
        self.checksums.iter().for_each(|checksum| header.extend_from_slice(&checksum.to_le_bytes()));
        let covered = std::iter::once(&header[CRC_OFFSET + 4..]).chain(self.parts.iter().map(|part| &part[..]));
        let sum = crc_parts(covered);
        put(&mut header, CRC_OFFSET, &sum.to_le_bytes());
        let padding = Bytes::from_static(&ZEROS[..size - header.len() - length as usize]);
        std::iter::once(Bytes::from(header)).chain(self.parts).chain([padding]).collect()
    }

    /// The entry at `place` of an intake, and its size.
    fn decode(intake: &Bytes, place: usize, owner: u32) -> Option<(Entry, usize)> {
        let header = intake.get(place..place + SECTOR)?;
        if header[..8] != MAGIC || u32_at(header, 12) != owner || u64_at(header, 16) != place as u64 {
            return None;
        }
        let (sequence, offset, length) = (u64_at(header, 32), u32_at(header, 40), u32_at(header, 44));
        let is_possible = (1..=TAKEN_SIZE_MAX as u32).contains(&length)
            && offset <= FRAGMENT_SIZE_MAX - length
            && sequence < SEQUENCE_END;
        if !is_possible {
            return None;
        }
        let end = offset + length;
        let checksums_size = 4 * checksums_count(offset, end);
        let covered = intake.get(place + CRC_OFFSET + 4..place + HEADER_SIZE + checksums_size + length as usize)?;
        if crc(covered) != u32_at(header, CRC_OFFSET) {
            return None;
        }
        let (checksums, bytes) = covered[HEADER_SIZE - CRC_OFFSET - 4..].split_at(checksums_size);
        let checksums = checksums.chunks_exact(4).map(|checksum| u32_at(checksum, 0)).collect();
        let parts = vec![intake.slice_ref(bytes)];
        let entry = Entry { generation: Generation(u64_at(header, 24)), sequence, offset, checksums, parts };
        Some((entry, entry_size(offset, end)))
    }

    fn length(&self) -> u32 {
        self.parts.iter().map(Bytes::len).sum::<usize>() as u32
    }

    fn end(&self) -> u32 {
        self.offset + self.length()
    }

    /// Whether the checksums are those of `begun`, the start of the first block, with the bytes behind it.
    fn continues(&self, begun: &[u8]) -> bool {
        let bytes = self.parts.concat();
        let (first, rest) = bytes.split_at(bytes.len().min(BLOCK_SIZE - begun.len()));
        let sums = std::iter::once(crc_parts([begun, first])).chain(rest.chunks(BLOCK_SIZE).map(crc));
        sums.eq(self.checksums.iter().copied())
    }
}

/// What an entry takes in the intake.
pub(crate) fn entry_size(offset: u32, end: u32) -> usize {
    (HEADER_SIZE + 4 * checksums_count(offset, end) + (end - offset) as usize).next_multiple_of(SECTOR)
}

fn checksums_count(offset: u32, end: u32) -> usize {
    blocks_touched(end) - blocks_full(offset)
}

/// The entries in an intake, for each fragment in order of sequence.
pub(crate) fn find_entries(intake: &Bytes, owner: u32) -> FastMap<Generation, Vec<Entry>> {
    let (mut found, mut place) = (FastMap::<Generation, Vec<Entry>>::default(), 0);
    while place < intake.len() {
        let step = match Entry::decode(intake, place, owner) {
            Some((entry, size)) => {
                found.entry(entry.generation).or_default().push(entry);
                size
            }
            // Torn, or never written: entries are written side by side, so others may stand behind it.
            None => SECTOR,
        };
        place += step;
    }
    found.values_mut().for_each(|entries| entries.sort_by_key(|entry| entry.sequence));
    found
}

/// Says how a fragment of at most `size` bytes goes on behind what `verdict` says, given its bytes from `start` on.
pub(crate) fn regain(entries: &[Entry], verdict: &Verdict, size: u32, start: u32, bytes: &[u8]) -> Option<Regained> {
    let mut tail = bytes.get(..verdict.length.checked_sub(start)? as usize)?.to_vec();
    let (mut from, mut partial) = (verdict.length, None);
    for entry in entries.iter().filter(|entry| entry.sequence > verdict.sequence() && entry.end() <= size) {
        let is_joined = entry.offset >= verdict.floor.max(start) && entry.offset <= start + tail.len() as u32;
        if !is_joined {
            continue;
        }
        let (block, at) = (blocks_full(entry.offset) * BLOCK_SIZE - start as usize, (entry.offset - start) as usize);
        if entry.continues(&tail[block..at]) {
            tail.truncate(at);
            entry.parts.iter().for_each(|part| tail.extend_from_slice(part));
            from = from.min(entry.offset);
            partial = entry.checksums.last().copied();
        }
    }
    let (partial, length) = (partial?, start + tail.len() as u32);
    let partial = if (length as usize).is_multiple_of(BLOCK_SIZE) { 0 } else { partial };
    let filled = tail[blocks_full(from) * BLOCK_SIZE - start as usize..].chunks_exact(BLOCK_SIZE).map(crc).collect();
    let bytes = tail.split_off((from - start) as usize);
    Some(Regained { from, bytes, filled, length, partial })
}

#[cfg(test)]
mod tests {
    use host::sim::Dice;
    use protocol::checksum::block_checksums;

    use super::*;
    use crate::head::TailSlot;

    const OWNER: u32 = 77;

    /// What an appender of history `number` wrote: histories differ in every byte.
    fn history(number: u8, length: usize) -> Vec<u8> {
        (0..length).map(|at| (at * 5 / 3) as u8 ^ number.wrapping_mul(37)).collect()
    }

    /// The entry that makes a fragment of these bytes `offset..` longer.
    fn entry(sequence: u64, bytes: &[u8], offset: usize) -> Entry {
        let block = offset / BLOCK_SIZE * BLOCK_SIZE;
        let cut = offset + (bytes.len() - offset) / 3;
        let parts = [&bytes[offset..cut], &bytes[cut..]].map(Bytes::copy_from_slice).to_vec();
        let checksums = block_checksums(&bytes[block..]);
        Entry { generation: Generation(5), sequence, offset: offset as u32, checksums, parts }
    }

    fn place_of(entries: &[Entry]) -> usize {
        entries.iter().map(|entry| entry_size(entry.offset, entry.end())).sum()
    }

    fn lay(entries: &[Entry]) -> Vec<u8> {
        let mut intake = Vec::new();
        for entry in entries {
            let place = intake.len() as u64;
            entry.clone().encode(OWNER, place).iter().for_each(|part| intake.extend_from_slice(part));
        }
        assert_eq!(intake.len(), place_of(entries));
        intake
    }

    fn found(intake: &[u8]) -> Vec<(u64, u32, Vec<u8>)> {
        let found = find_entries(&Bytes::copy_from_slice(intake), OWNER);
        let entries = found.into_values().flatten();
        entries.map(|entry| (entry.sequence, entry.offset, entry.parts.concat())).collect()
    }

    fn slot(sequence: u64, length: usize) -> (u8, TailSlot) {
        (0, TailSlot { generation: Generation(5), sequence, length: length as u32, partial: 0, floor: 0 })
    }

    #[test]
    fn what_is_torn_hides_nothing_else() {
        let bytes = history(0, 9_000);
        let entries = [entry(4, &bytes[..700], 100), entry(6, &bytes[..6_000], 700), entry(8, &bytes[..6_001], 6_000)];
        let intake = lay(&entries);
        let all: Vec<_> = entries.iter().map(|e| (e.sequence, e.offset, e.parts.concat())).collect();
        assert_eq!(found(&intake), all);
        for at in place_of(&entries[..1])..place_of(&entries[..2]) {
            let mut torn = intake.clone();
            torn[at] ^= 1;
            let padding = at >= place_of(&entries[..1]) + HEADER_SIZE + 8 + 5_300;
            assert_eq!(found(&torn), if padding { all.clone() } else { vec![all[0].clone(), all[2].clone()] });
        }
        assert_eq!(found(&intake[SECTOR..]), [], "an entry counts at its place alone");
        assert_eq!(find_entries(&Bytes::from(intake), OWNER + 1).len(), 0);
    }

    #[test]
    fn rubbish_is_no_entry() {
        let mut dice = Dice::new(5);
        let intake = lay(&[entry(4, &history(0, 700), 100)]);
        for _ in 0..20_000 {
            let mut bytes = intake.clone();
            for _ in 0..1 + dice.below(4) {
                let at = dice.below(60) as usize;
                bytes[at] = dice.below(256) as u8;
            }
            let sum = crc(&bytes[CRC_OFFSET + 4..HEADER_SIZE + 4 + 600]);
            if dice.coin() {
                put(&mut bytes, CRC_OFFSET, &sum.to_le_bytes());
            }
            for (sequence, offset, bytes) in found(&bytes[..dice.below(bytes.len() as u64 + 1) as usize]) {
                assert!(sequence < SEQUENCE_END && offset as usize + bytes.len() <= FRAGMENT_SIZE_MAX as usize);
            }
        }
    }

    #[test]
    fn a_fragment_goes_on_where_its_slots_end() {
        let bytes = history(0, 9_000);
        let entries = [entry(4, &bytes[..700], 100), entry(6, &bytes[..6_000], 700), entry(8, &bytes[..8_192], 6_000)];
        for (length, sequence, whole) in [(100, 3, 3), (700, 5, 2), (300, 3, 3), (6_000, 7, 1)] {
            let verdict = Verdict { length, whole: vec![slot(sequence, length as usize)], ..Verdict::default() };
            let regained = regain(&entries, &verdict, 1 << 20, 0, &bytes[..length as usize]).expect("they continue it");
            let from = entries[3 - whole].offset;
            assert_eq!((regained.from, regained.length, regained.partial), (from, 8_192, 0));
            assert_eq!(regained.bytes, bytes[from as usize..8_192]);
            assert_eq!(regained.filled, block_checksums(&bytes[..8_192])[from as usize / BLOCK_SIZE..]);
        }
        let newest = Verdict { length: 8_192, whole: vec![slot(9, 8_192)], ..Verdict::default() };
        assert_eq!(regain(&entries, &newest, 1 << 20, 0, &bytes), None);
        let short = Verdict { length: 50, whole: vec![slot(3, 50)], ..Verdict::default() };
        assert_eq!(regain(&entries, &short, 1 << 20, 0, &bytes), None, "there is a gap");
        let floored = Verdict { length: 100, floor: 101, ..short.clone() };
        assert_eq!(regain(&entries[..1], &floored, 1 << 20, 0, &bytes), None, "what is durable stays");
        let small = Verdict { length: 100, whole: vec![slot(3, 100)], ..Verdict::default() };
        assert_eq!(regain(&entries, &small, 700, 0, &bytes).map(|regained| regained.length), Some(700));
    }

    /// Some appends were given up when their entry, and perhaps their slot, was written; others came in their place.
    #[test]
    fn what_was_given_up_gives_way() {
        let mut dice = Dice::new(9);
        for _ in 0..3_000 {
            let mut accepted = history(0, 1 + dice.below(9_000) as usize);
            // What the slots say: that, or the first append, which was given up.
            let mut on_disk = (10, accepted.clone());
            let (count, mut entries) = (1 + dice.below(5), Vec::new());
            for number in 1..=count {
                let (sequence, offset) = (10 + 2 * number, accepted.len());
                let mut next = accepted.clone();
                next.extend_from_slice(&history(number as u8, offset + 1 + dice.below(5_000) as usize)[offset..]);
                entries.push(entry(sequence, &next, offset));
                if number == count || dice.chance(700_000) {
                    accepted = next;
                } else if number == 1 && dice.coin() {
                    on_disk = (sequence + 1, next);
                }
            }
            let (sequence, bytes) = on_disk;
            let length = bytes.len() as u32;
            let verdict = Verdict { length, whole: vec![slot(sequence, bytes.len())], ..Verdict::default() };
            let mut now = bytes.clone();
            if let Some(regained) = regain(&entries, &verdict, 1 << 20, 0, &bytes) {
                now.truncate(regained.from as usize);
                now.extend_from_slice(&regained.bytes);
                assert_eq!(now.len(), regained.length as usize);
            }
            assert!(now == accepted, "{} bytes, accepted {}", now.len(), accepted.len());
        }
    }
}
