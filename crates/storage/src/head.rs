//! The head of a fragment: what it is and how long it is. `docs/format.md`, *Cells and heads*.
//!
//! Invariants
//! 1. An identity is written once. Slots carry its generation, so that those of a cell's former life say nothing.
//! 2. Table entries are sealed with the generation, for the same reason.
//! 3. A slot stays true when its fragment grows: it covers its own prefix, and bytes below a length never change.

use bytes::Bytes;
use protocol::checksum::{BLOCK_SIZE, crc};
use protocol::fragment::{FRAGMENT_SIZE_MAX, FragmentHeader};
use protocol::id::FenceEpoch;

use crate::bytes_at::{put, u16_at, u32_at, u64_at};
use crate::superblock::SECTOR;

/// Identity and slots, then the table.
pub(crate) const HEAD_SIZE: usize = 2 * BLOCK_SIZE;
/// Where the table begins in the head.
pub(crate) const TABLE_OFFSET: usize = BLOCK_SIZE;
/// Slots in the ring: one stable, one that a running sync makes stable, one to write. See the format page.
pub(crate) const SLOT_COUNT: u8 = 3;
/// The longest encoded fragment header.
pub(crate) const HEADER_SIZE_MAX: usize = CRC_OFFSET - HEADER_OFFSET;

const MAGIC: [u8; 8] = *b"DzFrag\0\x01";
const HEADER_OFFSET: usize = 28;
const CRC_OFFSET: usize = SECTOR - 4;
const SLOT_CRC_OFFSET: usize = 28;

const _: () =
    assert!(FRAGMENT_SIZE_MAX as usize / BLOCK_SIZE * 4 == HEAD_SIZE - TABLE_OFFSET, "the table fills its page");

/// Which writing of a fragment into a cell: no two of a target are equal, and later ones are higher.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(crate) struct Generation(pub(crate) u64);

impl Generation {
    /// The first generation of an incarnation.
    pub(crate) fn first_of(incarnation: u64) -> Generation {
        Generation(incarnation << 32)
    }

    /// The incarnation whose it is: of a long life the later ones are those of incarnations to come.
    pub(crate) fn incarnation(self) -> u64 {
        self.0 >> 32
    }

    fn seal(self) -> u32 {
        crc(&self.0.to_le_bytes())
    }
}

/// Sector 0.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Identity {
    pub(crate) generation: Generation,
    /// CRC of cluster and target.
    pub(crate) owner: u32,
    /// The epoch of whoever wrote it.
    pub(crate) epoch: FenceEpoch,
    /// The fragment header, encoded.
    pub(crate) header: Box<[u8]>,
}

/// One tail slot.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct TailSlot {
    pub(crate) generation: Generation,
    pub(crate) sequence: u64,
    pub(crate) length: u32,
    /// CRC of the last block's prefix, zero if the last block is full.
    pub(crate) partial: u32,
    /// A length that was durable when this was written.
    pub(crate) floor: u32,
}

/// The bytes of a fragment header as they are stored; `None` if it is larger than any head can hold.
pub(crate) fn encode_header(header: &FragmentHeader) -> Option<Box<[u8]>> {
    let bytes = postcard::to_stdvec(header).ok()?;
    (bytes.len() <= HEADER_SIZE_MAX).then(|| bytes.into_boxed_slice())
}

/// The fragment header in `bytes`; `None` if they are none.
pub(crate) fn decode_header(bytes: &[u8]) -> Option<FragmentHeader> {
    postcard::from_bytes(bytes).ok()
}

impl Identity {
    /// What is read from sector 0 of a head; `None` if it is no identity of this owner.
    pub(crate) fn decode(head: &[u8], owner: u32) -> Option<Identity> {
        let sector = head.get(..SECTOR)?;
        if sector[..8] != MAGIC || u32_at(sector, CRC_OFFSET) != crc(&sector[..CRC_OFFSET]) {
            return None;
        }
        let length = usize::from(u16_at(sector, 24));
        if u32_at(sector, 16) != owner || length > HEADER_SIZE_MAX {
            return None;
        }
        Some(Identity {
            generation: Generation(u64_at(sector, 8)),
            owner,
            epoch: FenceEpoch(u32_at(sector, 20)),
            header: sector[HEADER_OFFSET..HEADER_OFFSET + length].into(),
        })
    }

    /// The sector that says so.
    pub(crate) fn encode(&self) -> Bytes {
        let mut sector = vec![0; SECTOR];
        self.encode_into(&mut sector);
        Bytes::from(sector)
    }

    fn encode_into(&self, sector: &mut [u8]) {
        put(sector, 0, &MAGIC);
        put(sector, 8, &self.generation.0.to_le_bytes());
        put(sector, 16, &self.owner.to_le_bytes());
        put(sector, 20, &self.epoch.0.to_le_bytes());
        put(sector, 24, &(self.header.len() as u16).to_le_bytes());
        put(sector, HEADER_OFFSET, &self.header);
        let sum = crc(&sector[..CRC_OFFSET]);
        put(sector, CRC_OFFSET, &sum.to_le_bytes());
    }
}

impl TailSlot {
    /// Where slot `index` lies in the head.
    pub(crate) fn place(index: u8) -> usize {
        assert!(index < SLOT_COUNT, "slot {index} does not exist");
        SECTOR * (1 + usize::from(index))
    }

    /// The bytes to write at its place.
    pub(crate) fn encode(&self) -> Bytes {
        let mut slot = vec![0; SLOT_CRC_OFFSET + 4];
        put(&mut slot, 0, &self.generation.0.to_le_bytes());
        put(&mut slot, 8, &self.sequence.to_le_bytes());
        put(&mut slot, 16, &self.length.to_le_bytes());
        put(&mut slot, 20, &self.partial.to_le_bytes());
        put(&mut slot, 24, &self.floor.to_le_bytes());
        let sum = crc(&slot[..SLOT_CRC_OFFSET]);
        put(&mut slot, SLOT_CRC_OFFSET, &sum.to_le_bytes());
        Bytes::from(slot)
    }

    fn decode(slot: &[u8]) -> Option<TailSlot> {
        let slot = slot.get(..SLOT_CRC_OFFSET + 4)?;
        if u32_at(slot, SLOT_CRC_OFFSET) != crc(&slot[..SLOT_CRC_OFFSET]) {
            return None;
        }
        let (length, floor) = (u32_at(slot, 16), u32_at(slot, 24));
        // A sequence that cannot be counted on from was never counted up to.
        let is_possible = length <= FRAGMENT_SIZE_MAX && floor <= length && u64_at(slot, 8) < u64::MAX / 2;
        is_possible.then(|| TailSlot {
            generation: Generation(u64_at(slot, 0)),
            sequence: u64_at(slot, 8),
            length,
            partial: u32_at(slot, 20),
            floor,
        })
    }
}

/// The slots of `generation` in a head, with their indexes, from the newest on.
pub(crate) fn slots_of(head: &[u8], generation: Generation) -> Vec<(u8, TailSlot)> {
    let mut slots: Vec<_> = (0..SLOT_COUNT)
        .filter_map(|index| Some((index, TailSlot::decode(head.get(TailSlot::place(index)..)?)?)))
        .filter(|(_, slot)| slot.generation == generation)
        .collect();
    slots.sort_by_key(|(_, slot)| std::cmp::Reverse(slot.sequence));
    slots
}

/// The head of a new fragment: identity, the first slot, and the table's beginning.
pub(crate) fn encode_new(identity: &Identity, slot: &TailSlot, table: &[u32]) -> Bytes {
    let mut head = vec![0; HEAD_SIZE];
    identity.encode_into(&mut head[..SECTOR]);
    put(&mut head, TailSlot::place(0), &slot.encode());
    put(&mut head, TABLE_OFFSET, &encode_table(table, identity.generation));
    Bytes::from(head)
}

/// Table entries as bytes, sealed with the generation: entries of a cell's former life, with the blocks of that life,
/// would otherwise pass for this fragment's when a power loss kept its slot and lost the rest.
pub(crate) fn encode_table(entries: &[u32], generation: Generation) -> Bytes {
    let seal = generation.seal();
    entries.iter().flat_map(|entry| (entry ^ seal).to_le_bytes()).collect()
}

/// Bytes as table entries.
pub(crate) fn decode_table(bytes: &[u8], generation: Generation) -> Vec<u32> {
    let seal = generation.seal();
    bytes.chunks_exact(4).map(|entry| u32_at(entry, 0) ^ seal).collect()
}

/// How many blocks `length` bytes fill wholly.
pub(crate) fn blocks_full(length: u32) -> usize {
    length as usize / BLOCK_SIZE
}

/// How many blocks `length` bytes touch.
pub(crate) fn blocks_touched(length: u32) -> usize {
    (length as usize).div_ceil(BLOCK_SIZE)
}
