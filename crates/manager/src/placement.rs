//! Where new directories go (DESIGN §5, placement).

use protocol::id::{InodeId, SlotId};

use crate::entry::cookies;

/// A node fills so many slots before it opens more, so that few journals and images are touched.
const OPEN_SLOTS_MAX: usize = 32;

/// The slots that take new directories.
#[derive(Clone, Debug)]
pub(crate) struct Placement {
    open: Vec<SlotId>,
}

impl Placement {
    /// Over some of the slots that this node manages, which must not be none.
    pub(crate) fn new(slots: impl IntoIterator<Item = SlotId>) -> Placement {
        Placement { open: slots.into_iter().take(OPEN_SLOTS_MAX).collect() }
    }

    /// The slot of a new directory: a hash of parent and name (Slice 3.2, name hashing), so that a repeated attempt
    /// of the same operation chooses the same.
    pub(crate) fn slot(&self, parent: InodeId, name: &[u8]) -> SlotId {
        let mixed = (cookies(name).0 ^ parent.0).wrapping_mul(0x9e37_79b9_7f4a_7c15);
        let index = (u128::from(mixed) * self.open.len() as u128) >> 64;
        self.open.get(index as usize).copied().unwrap_or(parent.slot())
    }
}
