//! How long a fragment is after a crash: `docs/format.md`, *Start after a crash*.
//!
//! The slots are tried from the newest on. What is chosen is at least all that was acknowledged `disk`, and every block
//! of it that was not yet durable checks out. A newest slot that checks out is right, even if an older one says more: of what
//! somebody gave up a start before may have let go.

use protocol::checksum::{BLOCK_SIZE, crc};

use crate::head::{SLOT_COUNT, TailSlot, blocks_full};

/// What start-up makes of a fragment.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Verdict {
    /// How long the fragment is.
    pub(crate) length: u32,
    /// CRC of the partial last block; zero if there is none.
    pub(crate) partial: u32,
    /// The newest slot says just this, so nothing need be written.
    pub(crate) as_newest: bool,
    /// The slot that backs the verdict best.
    pub(crate) backed_by: Option<u8>,
    /// The length that was durable whatever the blocks say.
    pub(crate) floor: u32,
    /// The slots that check out, newest first.
    pub(crate) whole: Vec<(u8, TailSlot)>,
}

impl Verdict {
    /// The sequence of the newest slot that checks out.
    pub(crate) fn sequence(&self) -> u64 {
        self.whole.first().map_or(0, |(_, slot)| slot.sequence)
    }

    /// The place for a slot that says more, when bytes are written from `from` on: neither that of the slot that backs the
    /// verdict, nor that of the one which goes on to be true. A start that stops half-way leaves them to the next.
    pub(crate) fn spare(&self, from: u32) -> u8 {
        let stays = self.whole.iter().filter(|(_, slot)| slot.length <= from).max_by_key(|(_, slot)| slot.length);
        let kept = [self.backed_by, stays.map(|(index, _)| *index)];
        (0..SLOT_COUNT).find(|index| !kept.contains(&Some(*index))).expect("of three slots two are kept")
    }
}

/// Which bytes of a fragment must be read before its length can be told: from a block's start to a length.
pub(crate) fn to_verify(slots: &[(u8, TailSlot)]) -> Option<(u32, u32)> {
    let floor = slots.iter().map(|(_, slot)| slot.floor).max()?;
    let end = slots.iter().map(|(_, slot)| slot.length).max()?;
    Some((blocks_full(floor) as u32 * BLOCK_SIZE as u32, end))
}

/// Tells the length of a fragment from its slots, newest first, its table, and `bytes` from `start` on as
/// [`to_verify`] asked for. A length of zero: there is no fragment.
pub(crate) fn decide(slots: &[(u8, TailSlot)], table: &[u32], start: u32, bytes: &[u8]) -> Verdict {
    // What is durable is durable even if it has rotted since: damage is for the scrub, and cuts nothing.
    let floor = slots.iter().map(|(_, slot)| slot.floor).max().unwrap_or(0);
    let right_to = |slot: &TailSlot| right_up_to(slot, table, start, bytes);
    let mut best = Verdict { floor, ..Verdict::default() };
    for (rank, (index, slot)) in slots.iter().enumerate() {
        let right = right_to(slot);
        if right == slot.length || slot.length <= floor {
            best.whole.push((*index, *slot));
            if slot.length > best.length && !best.as_newest {
                let (length, partial) = (slot.length, slot.partial);
                best = Verdict { length, partial, as_newest: rank == 0, backed_by: Some(*index), ..best };
            }
        } else if right > best.length && !best.as_newest {
            best = Verdict { length: right, partial: 0, as_newest: false, ..best };
        }
    }
    best
}

/// The end of the blocks, counted from `start`, that are what `slot` and the table say. Cut at a block's start.
fn right_up_to(slot: &TailSlot, table: &[u32], start: u32, bytes: &[u8]) -> u32 {
    let first = blocks_full(start);
    let full = blocks_full(slot.length);
    for block in first..full {
        let at = (block - first) * BLOCK_SIZE;
        let right = bytes.get(at..at + BLOCK_SIZE).is_some_and(|data| table.get(block) == Some(&crc(data)));
        if !right {
            return (block * BLOCK_SIZE) as u32;
        }
    }
    let rest = slot.length as usize % BLOCK_SIZE;
    if rest == 0 || full < first {
        return slot.length;
    }
    let at = (full - first) * BLOCK_SIZE;
    let right = bytes.get(at..at + rest).is_some_and(|data| slot.partial == crc(data));
    if right { slot.length } else { (full * BLOCK_SIZE) as u32 }
}

#[cfg(test)]
mod tests {
    use protocol::checksum::block_checksums;

    use super::*;
    use crate::head::Generation;

    fn slot(sequence: u64, data: &[u8], floor: u32) -> TailSlot {
        let rest = data.len() % BLOCK_SIZE;
        let partial = if rest == 0 { 0 } else { crc(&data[data.len() - rest..]) };
        TailSlot { generation: Generation(1), sequence, length: data.len() as u32, partial, floor }
    }

    fn data() -> Vec<u8> {
        (0..3 * BLOCK_SIZE + 100).map(|index| (index * 7 / 3) as u8).collect()
    }

    #[test]
    fn the_newest_slot_that_checks_out_counts() {
        let data = data();
        let slots = [(2, slot(3, &data, 0)), (1, slot(2, &data[..5000], 0))];
        let verdict = decide(&slots, &block_checksums(&data), 0, &data);
        assert_eq!(verdict.length, data.len() as u32);
        assert!(verdict.as_newest);
        let slots = [(2, slot(3, &data[..5000], 0)), (1, slot(2, &data, 0))];
        let verdict = decide(&slots, &block_checksums(&data), 0, &data);
        assert_eq!((verdict.length, verdict.as_newest, verdict.whole.len()), (5000, true, 2), "more was given up");
    }

    #[test]
    fn a_lost_block_cuts_what_was_not_durable() {
        let data = data();
        let mut table = block_checksums(&data);
        table[1] = 0;
        // The newest is cut at block 1; the older one knows the prefix of block 1, which is more.
        let slots = [(2, slot(3, &data, 0)), (1, slot(2, &data[..5000], 0))];
        let verdict = decide(&slots, &table, 0, &data);
        assert_eq!((verdict.length, verdict.backed_by, verdict.as_newest), (5000, Some(1), false));
        let verdict = decide(&slots[..1], &table, 0, &data);
        assert_eq!((verdict.length, verdict.partial), (BLOCK_SIZE as u32, 0));
    }

    #[test]
    fn a_new_slot_spares_what_a_start_needs_until_it_is_durable() {
        let data = data();
        // What the newest adds was given up, and something else is to be written in its place.
        let slots = [(2, slot(3, &data, 0)), (0, slot(2, &data[..5000], 0)), (1, slot(1, &data[..300], 0))];
        let verdict = decide(&slots, &block_checksums(&data), 0, &data);
        assert_eq!((verdict.sequence(), verdict.spare(5000), verdict.spare(verdict.length)), (3, 1, 0));
        assert_eq!(verdict.spare(400), 0);
        let verdict = decide(&slots[1..], &block_checksums(&data), 0, &data[..5000]);
        assert_eq!((verdict.sequence(), verdict.backed_by, verdict.spare(5000)), (2, Some(0), 1));
    }

    #[test]
    fn rot_below_the_floor_cuts_nothing() {
        let mut data = data();
        let slots = [(0, slot(3, &data, 5000)), (1, slot(2, &data[..5000], 0))];
        let table = block_checksums(&data);
        data[BLOCK_SIZE + 3] ^= 1;
        let (start, end) = to_verify(&slots).unwrap();
        let verdict = decide(&slots, &table, start, &data[start as usize..end as usize]);
        assert_eq!((verdict.length, verdict.backed_by), (5000, Some(1)));
    }

    #[test]
    fn short_reads_and_absent_slots_are_no_fragment() {
        let data = data();
        assert_eq!(decide(&[], &[], 0, &[]).length, 0);
        assert_eq!(decide(&[(0, slot(1, &data, 0))], &[], 0, &[]).length, 0);
    }
}
