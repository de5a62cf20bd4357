//! Everything that a manager holds of one slot: its records, who holds files of it open, what intentions lock there, and who
//! may keep what of it in memory.

use std::collections::BTreeSet;

use protocol::id::{InodeId, SlotId};

use crate::intention::Intentions;
use crate::slot::Slot;
use crate::tokens::SlotTokens;

/// A slot's records, open files, intentions and tokens.
pub(crate) struct SlotState {
    pub(crate) id: SlotId,
    pub(crate) records: Slot,
    pub(crate) opens: Opens,
    pub(crate) intentions: Intentions,
    pub(crate) tokens: SlotTokens,
    /// Tells this stay of the slot with its manager from earlier ones: what began in one must not end in another.
    pub(crate) stay: u64,
}

impl SlotState {
    /// With these records, and nothing open or under way.
    pub(crate) fn new(id: SlotId, records: Slot) -> SlotState {
        SlotState {
            id,
            records,
            opens: Opens::default(),
            intentions: Intentions::default(),
            tokens: SlotTokens::default(),
            stay: 0,
        }
    }

    /// Prepares it for another stay, here or elsewhere: who waits for something of this one looks again.
    pub(crate) fn end_stay(&mut self) {
        self.intentions.end_stay();
        self.tokens.end_stay();
    }
}

/// Which nodes hold which inodes open. Lost with the manager: clients tell again (DESIGN §5, taking over).
#[derive(Default)]
pub(crate) struct Opens(BTreeSet<(InodeId, u32)>);

impl Opens {
    /// `node` holds `inode` open.
    pub(crate) fn open(&mut self, inode: InodeId, node: u32) {
        self.0.insert((inode, node));
    }

    /// `node` no longer does.
    pub(crate) fn close(&mut self, inode: InodeId, node: u32) {
        self.0.remove(&(inode, node));
    }

    /// A life of `node` is over. Whether it held anything open.
    pub(crate) fn forget(&mut self, node: u32) -> bool {
        let before = self.0.len();
        self.0.retain(|&(_, holder)| holder != node);
        self.0.len() < before
    }

    /// Whether nobody holds anything open.
    pub(crate) fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// How many nodes hold `inode` open.
    pub(crate) fn count(&self, inode: InodeId) -> usize {
        self.0.range((inode, 0)..=(inode, u32::MAX)).count()
    }

    /// Which nodes hold `inode` open.
    pub(crate) fn holders(&self, inode: InodeId) -> Vec<u32> {
        self.0.range((inode, 0)..=(inode, u32::MAX)).map(|&(_, holder)| holder).collect()
    }

    /// Whether a node other than `node` holds `inode` open.
    pub(crate) fn held_by_other(&self, inode: InodeId, node: u32) -> bool {
        self.0.range((inode, 0)..=(inode, u32::MAX)).any(|&(_, holder)| holder != node)
    }
}
