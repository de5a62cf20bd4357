//! The names of things. Each is a newtype, so that a stripe number is never taken for an offset.

use std::ops::RangeInclusive;

use serde::{Deserialize, Serialize};

/// How many slots share the inode space (DESIGN §1).
pub const SLOT_COUNT: u16 = 4096;
const SLOT_BITS: u32 = 12;
const SEQUENCE_BITS: u32 = 64 - SLOT_BITS;

macro_rules! id {
    ($(#[$meta:meta])* $name:ident($inner:ty)) => {
        $(#[$meta])*
        #[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Default, Serialize, Deserialize)]
        pub struct $name(pub $inner);
    };
}

id!(
    /// One disk of a storage node; the unit that fails.
    TargetId(u32)
);
id!(
    /// The k+m targets over which a stripe is laid.
    GroupId(u32)
);
id!(
    /// The append-only sequence of records of one writer in one incarnation. Never reused.
    LogId(u64)
);
id!(
    /// A piece of a log, counted from zero.
    StripeNumber(u64)
);
id!(
    /// One run of a log's layout. Never used twice in its log.
    RunNumber(u32)
);
id!(
    /// Who may append to a log's fragments on a target: rises when a recoverer takes over (DESIGN §3, fencing).
    FenceEpoch(u32)
);
impl FenceEpoch {
    /// What a sealed log is repaired with: no writer and no recoverer gets that far, unless a registry was made anew from
    /// fragments that carry it, and had the log sealed once more.
    pub const SEALED: FenceEpoch = FenceEpoch(1 << 30);
}

id!(
    /// One of the 4096 shares of the inode space.
    SlotId(u16)
);
id!(
    /// The registry's maps as of one change.
    MapEpoch(u64)
);

/// A file, directory or other node of the name space. The upper 12 bits name its slot.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct InodeId(pub u64);

impl SlotId {
    /// The inodes that this slot keeps, were there as many as possible.
    ///
    /// # Panics
    /// When the slot does not exist.
    pub fn inodes(self) -> RangeInclusive<InodeId> {
        InodeId::new(self, 0)..=InodeId::new(self, (1 << SEQUENCE_BITS) - 1)
    }
}

impl InodeId {
    /// The root directory of the first volume: slot 0, sequence 1.
    pub const ROOT: InodeId = InodeId(1);

    /// The inode `sequence` of `slot`.
    ///
    /// # Panics
    /// When the slot does not exist or the sequence has more than 52 bits.
    pub fn new(slot: SlotId, sequence: u64) -> Self {
        assert!(slot.0 < SLOT_COUNT, "slot {} does not exist", slot.0);
        assert!(sequence >> SEQUENCE_BITS == 0, "sequence {sequence} has more than {SEQUENCE_BITS} bits");
        InodeId((u64::from(slot.0) << SEQUENCE_BITS) | sequence)
    }

    /// The slot that keeps this inode.
    pub fn slot(self) -> SlotId {
        SlotId((self.0 >> SEQUENCE_BITS) as u16)
    }

    /// The inode's number within its slot.
    pub fn sequence(self) -> u64 {
        self.0 & ((1 << SEQUENCE_BITS) - 1)
    }
}

impl LogId {
    /// No log: what a field says that names none.
    pub const NONE: LogId = LogId(0);
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_inode_carries_its_slot() {
        let inode = InodeId::new(SlotId(4095), (1 << 52) - 1);
        assert_eq!((inode.slot(), inode.sequence()), (SlotId(4095), (1 << 52) - 1));
        assert_eq!((InodeId::ROOT.slot(), InodeId::ROOT.sequence()), (SlotId(0), 1));
    }
}
