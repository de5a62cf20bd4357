//! How far managers' journals must be `disk` for an fsync (DESIGN §3, order across logs). Decides, never awaits.
//!
//! Invariants
//! 1. An inode has a note here only while its newest known record may not be `disk`.
//! 2. Notes rest on one incarnation of a manager: when its journal goes backwards, another log has begun, and what the
//!    old one held is as safe as a take-over makes it.

use std::collections::BTreeMap;

use host::NodeId;
use protocol::FastMap;
use protocol::address::Position;
use protocol::id::InodeId;
use protocol::manager::ManagerReply;

/// When so many inodes are noted, those that are `disk` by now are dropped; and again when twice as many as then remained
/// are, so that dropping costs each note little.
const NOTES_FEW: usize = 4096;

/// What replies told about journals.
#[derive(Debug, Default)]
pub(crate) struct Journals {
    managers: BTreeMap<NodeId, Manager>,
    notes: FastMap<InodeId, Note>,
    /// How many notes remained when they were looked through last.
    remained: usize,
}

#[derive(Clone, Copy, Debug, Default)]
struct Manager {
    newest: Position,
    disk: Position,
}

#[derive(Clone, Copy, Debug)]
struct Note {
    manager: NodeId,
    position: Position,
}

impl Journals {
    /// Takes in what a reply tells of its manager's journal.
    pub(crate) fn learn(&mut self, manager: NodeId, reply: &ManagerReply) {
        let known = self.managers.entry(manager).or_default();
        if reply.journal_disk < known.disk {
            *known = Manager::default();
            self.notes.retain(|_, note| note.manager != manager);
        }
        known.newest = known.newest.max(reply.journal);
        known.disk = known.disk.max(reply.journal_disk);
    }

    /// The operation that `reply` answers changed `inode`.
    pub(crate) fn note(&mut self, inode: InodeId, manager: NodeId, reply: &ManagerReply) {
        if reply.journal <= self.disk(manager) {
            return;
        }
        if self.notes.len() >= NOTES_FEW.max(2 * self.remained) {
            let managers = &self.managers;
            self.notes.retain(|_, note| managers.get(&note.manager).is_none_or(|known| note.position > known.disk));
            self.remained = self.notes.len();
        }
        let note = self.notes.entry(inode).or_insert(Note { manager, position: reply.journal });
        // An inode whose slot moved has its newest record in the new manager's journal.
        if note.manager != manager || note.position < reply.journal {
            *note = Note { manager, position: reply.journal };
        }
    }

    /// Which flush an fsync of `inode` has to wait for, if any.
    pub(crate) fn owed(&mut self, inode: InodeId) -> Option<(NodeId, Position)> {
        let note = *self.notes.get(&inode)?;
        if note.position <= self.disk(note.manager) {
            self.notes.remove(&inode);
            return None;
        }
        Some((note.manager, note.position))
    }

    /// All flushes that leave nothing behind.
    pub(crate) fn owed_all(&self) -> Vec<(NodeId, Position)> {
        let behind = self.managers.iter().filter(|(_, manager)| manager.newest > manager.disk);
        behind.map(|(&node, manager)| (node, manager.newest)).collect()
    }

    fn disk(&self, manager: NodeId) -> Position {
        self.managers.get(&manager).map_or(Position::START, |manager| manager.disk)
    }
}

#[cfg(test)]
mod tests {
    use protocol::id::StripeNumber;
    use protocol::manager::Answer;

    use super::*;

    fn reply(journal: u32, disk: u32) -> ManagerReply {
        let at = |offset| Position::new(StripeNumber(0), offset);
        ManagerReply { answer: Answer::Done, journal: at(journal), journal_disk: at(disk) }
    }

    #[test]
    fn an_fsync_waits_only_for_the_records_of_its_inode() {
        let (manager, inode, other) = (NodeId(1), InodeId(7), InodeId(8));
        let mut journals = Journals::default();
        journals.learn(manager, &reply(100, 0));
        journals.note(inode, manager, &reply(100, 0));
        assert_eq!(journals.owed(inode), Some((manager, reply(100, 0).journal)));
        assert_eq!(journals.owed(other), None);
        journals.learn(manager, &reply(200, 150));
        assert_eq!(journals.owed(inode), None);
        assert_eq!(journals.owed_all(), [(manager, reply(200, 0).journal)]);
    }

    #[test]
    fn a_manager_that_began_a_new_log_is_owed_nothing() {
        let (manager, inode) = (NodeId(1), InodeId(7));
        let mut journals = Journals::default();
        journals.learn(manager, &reply(1000, 500));
        journals.note(inode, manager, &reply(1000, 500));
        journals.learn(manager, &reply(10, 0));
        assert_eq!(journals.owed(inode), None);
    }
}
