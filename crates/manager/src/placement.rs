//! Where new directories go, and parts of large ones (DESIGN §5, placement).

use protocol::id::{InodeId, SlotId};

use crate::entry::cookies;

/// A node fills so many slots before it opens more, so that few journals and images are touched.
const OPEN_SLOTS_MAX: usize = 32;

/// The slots that take new directories, and those that take parts of large ones.
#[derive(Clone, Debug)]
pub(crate) struct Placement {
    all: Vec<SlotId>,
    open_count: usize,
    part_bytes_max: u64,
}

impl Placement {
    /// Over the slots that this node manages, in order. A directory is split when its names in one slot take more than so
    /// many bytes.
    pub(crate) fn new(all: Vec<SlotId>, part_bytes_max: u64) -> Placement {
        assert!(all.is_sorted());
        Placement { open_count: all.len().min(OPEN_SLOTS_MAX), all, part_bytes_max }
    }

    /// Whether this node manages the slot.
    pub(crate) fn manages(&self, slot: SlotId) -> bool {
        self.all.binary_search(&slot).is_ok()
    }

    /// Bytes that a directory's names in one slot may take before it is split.
    pub(crate) fn part_bytes_max(&self) -> u64 {
        self.part_bytes_max
    }

    /// The slot of a new directory: a hash of parent and name (Slice 3.2, name hashing), so that a repeated attempt
    /// of the same operation chooses the same.
    pub(crate) fn slot(&self, parent: InodeId, name: &[u8]) -> SlotId {
        self.all.get(pick(cookies(name).0 ^ parent.0, self.open_count)).copied().unwrap_or(parent.slot())
    }

    /// The slot of a new part of a directory, by where the part begins: one in which the directory has no names yet.
    pub(crate) fn part(&self, directory: InodeId, first: u64, used: &[SlotId]) -> Option<SlotId> {
        let (before, from) = self.all.split_at_checked(pick(directory.0 ^ first.rotate_left(32), self.all.len()))?;
        from.iter().chain(before).copied().find(|slot| !used.contains(slot))
    }
}

/// One of so many, by a hash of what tells apart.
fn pick(what: u64, count: usize) -> usize {
    let mixed = what.wrapping_mul(0x9e37_79b9_7f4a_7c15);
    ((u128::from(mixed) * count as u128) >> 64) as usize
}
