//! Where new directories go, and parts of large ones (DESIGN §5, placement).

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex};

use protocol::id::{InodeId, SlotId};

use crate::entry::cookies;

/// A node fills so many slots before it opens more, so that few journals and images are touched.
const OPEN_SLOTS_MAX: usize = 32;

/// The slots that take new directories, of all nodes that manage slots. Follows from the manager map.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct OpenSlots {
    nodes: BTreeMap<u32, Vec<SlotId>>,
    all: Vec<SlotId>,
}

impl OpenSlots {
    /// Of runs of slots, first and last, with the node that manages them.
    pub(crate) fn new(runs: impl Iterator<Item = (u16, u16, u32)>) -> OpenSlots {
        let mut nodes: BTreeMap<u32, Vec<SlotId>> = BTreeMap::new();
        for (first, last, node) in runs {
            let open = nodes.entry(node).or_default();
            let room = OPEN_SLOTS_MAX.saturating_sub(open.len());
            open.extend((first..=last).take(room).map(SlotId));
        }
        let all = nodes.values().flatten().copied().collect();
        OpenSlots { nodes, all }
    }

    /// The slots for the directories that a node makes: its own, so that who works in a directory is near (first writer,
    /// xFS 3.2.4); all when it has none (switching, Slice 3.2).
    fn of(&self, node: u32) -> &[SlotId] {
        self.nodes.get(&node).unwrap_or(&self.all)
    }
}

/// The slots that take new directories, and those that take parts of large ones.
#[derive(Debug)]
pub(crate) struct Placement {
    mine: Vec<SlotId>,
    part_bytes_max: u64,
    /// Behind a lock that only making directories takes.
    open: Mutex<Arc<OpenSlots>>,
}

impl Placement {
    /// Over the slots that this node manages, in order, as if there were no others. A directory is split when its names in
    /// one slot take more than so many bytes.
    pub(crate) fn new(mine: Vec<SlotId>, part_bytes_max: u64) -> Placement {
        assert!(mine.is_sorted());
        let open = OpenSlots::new(mine.iter().map(|slot| (slot.0, slot.0, 0)));
        Placement { mine, part_bytes_max, open: Mutex::new(Arc::new(open)) }
    }

    /// The manager map changed.
    pub(crate) fn learn(&self, open: OpenSlots) {
        *self.open.lock().expect("nobody panics over open slots") = Arc::new(open);
    }

    /// Whether this node manages the slot.
    pub(crate) fn manages(&self, slot: SlotId) -> bool {
        self.mine.binary_search(&slot).is_ok()
    }

    /// Bytes that a directory's names in one slot may take before it is split.
    pub(crate) fn part_bytes_max(&self) -> u64 {
        self.part_bytes_max
    }

    /// The slot of a directory that a node makes: a hash of parent and name (Slice 3.2, name hashing), so that a repeated
    /// attempt of the same operation chooses the same.
    pub(crate) fn slot(&self, parent: InodeId, name: &[u8], node: u32) -> SlotId {
        let open = self.open.lock().expect("nobody panics over open slots").clone();
        let slots = open.of(node);
        slots.get(pick(cookies(name).0 ^ parent.0, slots.len())).copied().unwrap_or(parent.slot())
    }

    /// The slot of a new part of a directory, by where the part begins: one of this manager's in which the directory has
    /// no names yet. A name in another manager's slot would cost every change an intention.
    pub(crate) fn part(&self, directory: InodeId, first: u64, used: &[SlotId]) -> Option<SlotId> {
        let (before, from) = self.mine.split_at_checked(pick(directory.0 ^ first.rotate_left(32), self.mine.len()))?;
        from.iter().chain(before).copied().find(|slot| !used.contains(slot))
    }
}

/// One of so many, by a hash of what tells apart.
fn pick(what: u64, count: usize) -> usize {
    let mixed = what.wrapping_mul(0x9e37_79b9_7f4a_7c15);
    ((u128::from(mixed) * count as u128) >> 64) as usize
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_directory_is_made_near_its_maker_or_anywhere() {
        let placement = Placement::new((0..2048).map(SlotId).collect(), 100);
        let before: Vec<SlotId> = (0..100_u64).map(|n| placement.slot(InodeId(n), b"name", 1)).collect();
        assert!(before.iter().all(|slot| slot.0 < 32), "without maps, with us");
        let runs = [(0, 2047, 1), (2048, 4095, 2)];
        placement.learn(OpenSlots::new(runs.into_iter()));
        for (n, before) in (0..100_u64).zip(before) {
            let at = |node| placement.slot(InodeId(n), b"name", node);
            assert_eq!(at(1), before);
            assert!((2048..2080).contains(&at(2).0));
            assert!(at(3).0 < 32 || (2048..2080).contains(&at(3).0));
        }
        let elsewhere = (0..100).filter(|n| placement.slot(InodeId(*n), b"name", 3).0 >= 2048).count();
        assert!((20..80).contains(&elsewhere));
    }
}
