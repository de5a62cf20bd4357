//! How far managers' journals must be `disk` for an fsync (DESIGN §3, order across logs). Decides, never awaits.
//!
//! Invariants
//! 1. An inode has a note here only while its newest known record may not be `disk`.
//! 2. A journal belongs to one life of a manager. In whatever order replies come, what is known of it only grows; when its
//!    manager has died, sealing makes it `disk`, and it is forgotten.

use std::collections::BTreeMap;

use host::NodeId;
use protocol::FastMap;
use protocol::address::Position;
use protocol::id::{InodeId, LogId};
use protocol::manager::ManagerReply;

/// When so many inodes are noted, those that are `disk` by now are dropped; and again when twice as many as then remained
/// are, so that dropping costs each note little.
const NOTES_FEW: usize = 4096;

/// What replies told about journals.
#[derive(Debug, Default)]
pub(crate) struct Journals {
    known: BTreeMap<LogId, Journal>,
    notes: FastMap<InodeId, Note>,
    /// How many notes remained when they were looked through last.
    remained: usize,
}

#[derive(Clone, Copy, Debug)]
struct Journal {
    manager: NodeId,
    newest: Position,
    disk: Position,
}

#[derive(Clone, Copy, Debug)]
struct Note {
    journal: LogId,
    end: Position,
}

/// A flush that has to be waited for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct OwedFlush {
    /// Who writes the journal.
    pub(crate) manager: NodeId,
    /// The journal.
    pub(crate) journal: LogId,
    /// So far.
    pub(crate) through: Position,
}

impl Journals {
    /// Takes in what a reply tells of its manager's journal.
    pub(crate) fn learn(&mut self, manager: NodeId, reply: &ManagerReply) {
        let new = Journal { manager, newest: reply.journal, disk: reply.journal_disk };
        let known = self.known.entry(reply.log).or_insert(new);
        known.newest = known.newest.max(reply.journal);
        known.disk = known.disk.max(reply.journal_disk);
    }

    /// The operation that `reply` answers changed `inode`.
    pub(crate) fn note(&mut self, inode: InodeId, reply: &ManagerReply) {
        if self.is_disk(reply.log, reply.journal) {
            return;
        }
        if self.notes.len() >= NOTES_FEW.max(2 * self.remained) {
            let Journals { known, notes, .. } = self;
            notes.retain(|_, note| known.get(&note.journal).is_some_and(|journal| note.end > journal.disk));
            self.remained = self.notes.len();
        }
        let new = Note { journal: reply.log, end: reply.journal };
        let note = self.notes.entry(inode).or_insert(new);
        // An inode whose slot moved has its newest record in the new manager's journal.
        if note.journal != new.journal || note.end < new.end {
            *note = new;
        }
    }

    /// Which flush an fsync of `inode` has to wait for, if any.
    pub(crate) fn owed(&mut self, inode: InodeId) -> Option<OwedFlush> {
        let Note { journal, end } = *self.notes.get(&inode)?;
        if self.is_disk(journal, end) {
            self.notes.remove(&inode);
            return None;
        }
        Some(OwedFlush { manager: self.known[&journal].manager, journal, through: end })
    }

    /// All flushes that leave nothing behind.
    pub(crate) fn owed_all(&self) -> Vec<OwedFlush> {
        let behind = self.known.iter().filter(|(_, journal)| journal.newest > journal.disk);
        let flush = |(&log, journal): (&LogId, &Journal)| OwedFlush {
            manager: journal.manager,
            journal: log,
            through: journal.newest,
        };
        behind.map(flush).collect()
    }

    /// A journal was sealed, and all of it is `disk`.
    pub(crate) fn forget(&mut self, journal: LogId) {
        self.known.remove(&journal);
    }

    /// Of a journal that is not known, or no longer, nothing is owed.
    fn is_disk(&self, journal: LogId, end: Position) -> bool {
        self.known.get(&journal).is_none_or(|known| end <= known.disk)
    }
}

#[cfg(test)]
mod tests {
    use protocol::id::StripeNumber;
    use protocol::manager::Answer;

    use super::*;

    fn at(offset: u32) -> Position {
        Position::new(StripeNumber(0), offset)
    }

    fn reply(log: u64, journal: u32, disk: u32) -> ManagerReply {
        ManagerReply {
            answer: Answer::Done,
            log: LogId(log),
            journal: at(journal),
            journal_disk: at(disk),
            granted: None,
        }
    }

    /// Learns of a reply and notes it for an inode.
    fn tell(journals: &mut Journals, inode: InodeId, reply: &ManagerReply) {
        journals.learn(MANAGER, reply);
        journals.note(inode, reply);
    }

    const MANAGER: NodeId = NodeId(1);

    fn flush(log: u64, through: u32) -> OwedFlush {
        OwedFlush { manager: MANAGER, journal: LogId(log), through: at(through) }
    }

    #[test]
    fn an_fsync_waits_only_for_the_records_of_its_inode() {
        let (inode, other) = (InodeId(7), InodeId(8));
        let mut journals = Journals::default();
        tell(&mut journals, inode, &reply(5, 100, 0));
        assert_eq!(journals.owed(inode), Some(flush(5, 100)));
        assert_eq!(journals.owed(other), None);
        journals.learn(MANAGER, &reply(5, 200, 150));
        assert_eq!(journals.owed(inode), None);
        assert_eq!(journals.owed_all(), [flush(5, 200)]);
    }

    #[test]
    fn a_reply_that_was_overtaken_takes_nothing_back() {
        let inode = InodeId(7);
        let mut journals = Journals::default();
        journals.learn(MANAGER, &reply(5, 60, 50));
        tell(&mut journals, inode, &reply(5, 100, 50));
        journals.learn(MANAGER, &reply(5, 40, 10));
        assert_eq!(journals.owed(inode), Some(flush(5, 100)));
    }

    #[test]
    fn the_journal_of_a_manager_that_begins_anew_is_another_one() {
        let inode = InodeId(7);
        let mut journals = Journals::default();
        tell(&mut journals, inode, &reply(5, 1000, 0));
        // It died before anything was `disk`, and its next life has got less far.
        journals.learn(MANAGER, &reply(6, 10, 0));
        assert_eq!(journals.owed(inode), Some(flush(5, 1000)));
        assert_eq!(journals.owed_all(), [flush(5, 1000), flush(6, 10)]);
        journals.forget(LogId(5));
        assert_eq!(journals.owed(inode), None);
        assert_eq!(journals.owed_all(), [flush(6, 10)]);
    }
}
