//! What a target says of itself as a whole: `docs/format.md`, *Superblock*.
//!
//! Two copies, one sector each, written in turn, so that a torn write leaves the other. Magic, version and CRC keep
//! their places in all versions: a newer target is told from rubbish.

use bytes::Bytes;
use protocol::checksum::{BLOCK_SIZE, crc};
use protocol::fragment::FRAGMENT_SIZE_MAX;
use protocol::id::TargetId;

use crate::bytes_at::{put, u32_at, u64_at, u128_at};

/// What a disk writes whole or not at all, in bytes.
pub(crate) const SECTOR: usize = 512;
/// The bytes at the start of the space that both copies lie in.
pub(crate) const SUPERBLOCK_SPACE: usize = BLOCK_SIZE + SECTOR;
/// The version of the format that this program writes, and the only one that it reads: targets of version 1 had no intake,
/// and none was ever released.
pub const FORMAT_VERSION: u32 = 2;

/// No target is started so often, nor writes so many lists or so many times 2³² fragments; and an incarnation takes half of a
/// generation's bits.
const COUNTER_MAX: u64 = u32::MAX as u64 - 1;
/// Nor does a superblock get this far, though it is written whenever the list is: some hundred times a second where much is
/// deleted, for years.
const SEQUENCE_MAX: u64 = u64::MAX / 2;
const MAGIC: [u8; 8] = *b"DAZZLETG";
const CRC_OFFSET: usize = SECTOR - 4;

/// The superblock of a target.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Superblock {
    /// The cluster that the target belongs to.
    pub(crate) cluster: u128,
    /// Which target of it.
    pub(crate) target: TargetId,
    /// Data bytes of a cell.
    pub(crate) cell_data: u32,
    /// Rises with every write of a superblock.
    pub(crate) sequence: u64,
    /// Rises with every start.
    pub(crate) incarnation: u64,
    /// The number of the current list.
    pub(crate) list: u64,
    /// How many bytes of the current list are known to be durable; may lag.
    pub(crate) list_synced: u64,
}

/// Why no superblock could be read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Unreadable {
    /// There is nothing.
    Blank,
    /// There is something, and it is no superblock.
    Rubbish,
    /// A newer program wrote it.
    Newer(u32),
    /// An older program wrote it.
    Older(u32),
}

impl Superblock {
    /// The byte offset of the copy that is written for this sequence.
    pub(crate) fn place(&self) -> u64 {
        (self.sequence % 2) * BLOCK_SIZE as u64
    }

    /// The sector to write.
    pub(crate) fn encode(&self) -> Bytes {
        let mut sector = vec![0; SECTOR];
        put(&mut sector, 0, &MAGIC);
        put(&mut sector, 8, &FORMAT_VERSION.to_le_bytes());
        put(&mut sector, 12, &self.target.0.to_le_bytes());
        put(&mut sector, 16, &self.cluster.to_le_bytes());
        put(&mut sector, 32, &self.cell_data.to_le_bytes());
        put(&mut sector, 40, &self.sequence.to_le_bytes());
        put(&mut sector, 48, &self.incarnation.to_le_bytes());
        put(&mut sector, 56, &self.list.to_le_bytes());
        put(&mut sector, 64, &self.list_synced.to_le_bytes());
        let sum = crc(&sector[..CRC_OFFSET]);
        put(&mut sector, CRC_OFFSET, &sum.to_le_bytes());
        Bytes::from(sector)
    }

    /// The newer of the copies in the first [`SUPERBLOCK_SPACE`] bytes of the space.
    pub(crate) fn decode(space: &[u8]) -> Result<Superblock, Unreadable> {
        let copies = [0, BLOCK_SIZE].map(|start| decode_copy(space.get(start..).unwrap_or(&[])));
        match copies {
            [Ok(a), Ok(b)] => Ok(if a.sequence > b.sequence { a } else { b }),
            // A copy of a newer version is not covered up by an older one beside it.
            [Err(Unreadable::Newer(version)), _] | [_, Err(Unreadable::Newer(version))] => {
                Err(Unreadable::Newer(version))
            }
            [Ok(one), _] | [_, Ok(one)] => Ok(one),
            [Err(Unreadable::Older(version)), _] | [_, Err(Unreadable::Older(version))] => {
                Err(Unreadable::Older(version))
            }
            [Err(Unreadable::Blank), Err(Unreadable::Blank)] => Err(Unreadable::Blank),
            _ => Err(Unreadable::Rubbish),
        }
    }
}

fn decode_copy(bytes: &[u8]) -> Result<Superblock, Unreadable> {
    let sector = &bytes[..bytes.len().min(SECTOR)];
    if sector.iter().all(|byte| *byte == 0) {
        return Err(Unreadable::Blank);
    }
    if sector.len() < SECTOR || sector[..8] != MAGIC || u32_at(sector, CRC_OFFSET) != crc(&sector[..CRC_OFFSET]) {
        return Err(Unreadable::Rubbish);
    }
    let version = u32_at(sector, 8);
    if version > FORMAT_VERSION {
        return Err(Unreadable::Newer(version));
    }
    if (1..FORMAT_VERSION).contains(&version) {
        return Err(Unreadable::Older(version));
    }
    let cell_data = u32_at(sector, 32);
    let is_cell = (1..=FRAGMENT_SIZE_MAX).contains(&cell_data) && (cell_data as usize).is_multiple_of(BLOCK_SIZE);
    let counters = [u64_at(sector, 48), u64_at(sector, 56)];
    let are_possible = u64_at(sector, 40) <= SEQUENCE_MAX && counters.into_iter().all(|counter| counter <= COUNTER_MAX);
    if version == 0 || !is_cell || !are_possible {
        return Err(Unreadable::Rubbish);
    }
    Ok(Superblock {
        cluster: u128_at(sector, 16),
        target: TargetId(u32_at(sector, 12)),
        cell_data,
        sequence: u64_at(sector, 40),
        incarnation: u64_at(sector, 48),
        list: u64_at(sector, 56),
        list_synced: u64_at(sector, 64),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn sample(sequence: u64) -> Superblock {
        Superblock {
            cluster: 77 << 90,
            target: TargetId(5),
            cell_data: 1 << 20,
            sequence,
            incarnation: 3,
            list: 9,
            list_synced: 4096,
        }
    }

    fn space(copies: &[Superblock]) -> Vec<u8> {
        let mut space = vec![0; SUPERBLOCK_SPACE];
        for copy in copies {
            put(&mut space, copy.place() as usize, &copy.encode());
        }
        space
    }

    /// At a hundred lists a second that is a year and four months.
    #[test]
    fn a_superblock_that_was_written_four_thousand_million_times_is_read() {
        for sequence in [u64::from(u32::MAX) - 1, 1 << 32, 1 << 40] {
            let (mut space, superblock) = (vec![0; SUPERBLOCK_SPACE], sample(sequence));
            let place = superblock.place() as usize;
            space[place..place + SECTOR].copy_from_slice(&superblock.encode());
            assert_eq!(Superblock::decode(&space).map(|read| read.sequence), Ok(sequence));
        }
    }

    #[test]
    fn the_newer_copy_counts_and_a_torn_one_does_not() {
        assert_eq!(Superblock::decode(&[]), Err(Unreadable::Blank));
        assert_eq!(Superblock::decode(&space(&[sample(4)])), Ok(sample(4)));
        assert_eq!(Superblock::decode(&space(&[sample(4), sample(5)])), Ok(sample(5)));
        let mut torn = space(&[sample(4), sample(5)]);
        torn[BLOCK_SIZE + 60] ^= 1;
        assert_eq!(Superblock::decode(&torn), Ok(sample(4)));
        torn[3] ^= 1;
        assert_eq!(Superblock::decode(&torn), Err(Unreadable::Rubbish));
    }

    #[test]
    fn numbers_that_no_target_reaches_are_rubbish() {
        let good = sample(4);
        let bad = [
            Superblock { cell_data: u32::MAX - 4095, ..good },
            Superblock { sequence: u64::MAX - 1, ..good },
            Superblock { incarnation: 1 << 32, ..good },
            Superblock { list: u64::MAX, ..good },
        ];
        for superblock in bad {
            assert_eq!(Superblock::decode(&space(&[superblock])), Err(Unreadable::Rubbish), "{superblock:?}");
        }
    }

    #[test]
    fn other_versions_are_told_from_rubbish() {
        let of_version = |version: u32| {
            let mut copy = sample(4).encode().to_vec();
            put(&mut copy, 8, &version.to_le_bytes());
            let sum = crc(&copy[..CRC_OFFSET]);
            put(&mut copy, CRC_OFFSET, &sum.to_le_bytes());
            copy
        };
        let mut both = space(&[sample(5)]);
        put(&mut both, 0, &of_version(FORMAT_VERSION + 1));
        assert_eq!(Superblock::decode(&both), Err(Unreadable::Newer(FORMAT_VERSION + 1)));
        assert_eq!(Superblock::decode(&of_version(1)), Err(Unreadable::Older(1)));
        assert_eq!(Superblock::decode(&of_version(0)), Err(Unreadable::Rubbish));
    }
}
