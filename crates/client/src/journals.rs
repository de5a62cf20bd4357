//! How far managers' journals must be `disk` for an fsync (DESIGN §3, order across logs). Decides, never awaits.
//!
//! Invariants
//! 1. An inode has notes here only while a known record of it may not be `disk`: one for each journal that has such.
//! 2. A journal belongs to one life of a manager. In whatever order replies come, what is known of it only grows; when its
//!    manager has died, sealing makes `disk` what is left of it, and it is forgotten. What it lacks then an fsync tells, once.

use std::collections::{BTreeMap, BTreeSet};

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
    /// Notes of inodes whose slot moved: what was told of their records in other journals.
    moved: BTreeMap<(InodeId, LogId), Position>,
    /// Inodes of which records were lost: an fsync of each is told so, and the next sync of all.
    lost: BTreeSet<InodeId>,
    is_any_lost: bool,
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

/// Records that replies told of are in no journal any more.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Lost;

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
            let Journals { known, notes, moved, .. } = self;
            let may_lack = |log: LogId, end: Position| known.get(&log).is_some_and(|journal| end > journal.disk);
            notes.retain(|_, note| may_lack(note.journal, note.end));
            moved.retain(|(_, log), end| may_lack(*log, *end));
            self.remained = self.notes.len();
        }
        let new = Note { journal: reply.log, end: reply.journal };
        let note = self.notes.entry(inode).or_insert(new);
        if note.journal == new.journal {
            note.end = note.end.max(new.end);
        } else {
            // Its slot moved. Which of the two replies was on its way for longer, nobody knows.
            let end = self.moved.entry((inode, new.journal)).or_default();
            *end = new.end.max(*end);
        }
    }

    /// Which flushes an fsync of `inode` has to wait for.
    pub(crate) fn owed(&mut self, inode: InodeId) -> Result<Vec<OwedFlush>, Lost> {
        if self.lost.remove(&inode) {
            return Err(Lost);
        }
        let moved = self.moved.range((inode, LogId(0))..=(inode, LogId(u64::MAX)));
        let noted = self.notes.get(&inode).map(|note| (note.journal, note.end));
        let noted: Vec<_> = noted.into_iter().chain(moved.map(|(&(_, log), &end)| (log, end))).collect();
        let mut owed = Vec::new();
        for (journal, through) in noted {
            match self.known.get(&journal).filter(|known| through > known.disk) {
                Some(&Journal { manager, .. }) => owed.push(OwedFlush { manager, journal, through }),
                None => self.settle(inode, journal),
            }
        }
        Ok(owed)
    }

    fn settle(&mut self, inode: InodeId, journal: LogId) {
        self.moved.remove(&(inode, journal));
        if self.notes.get(&inode).is_some_and(|note| note.journal == journal) {
            self.notes.remove(&inode);
        }
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

    /// A journal was sealed, and all of it is `disk` up to its length, if that is still known.
    pub(crate) fn forget(&mut self, journal: LogId, length: Option<Position>) {
        self.known.remove(&journal);
        // At the start of a stripe no record ends.
        let is_cut = |end: Position| end.offset > 0 && length.is_some_and(|length| end > length);
        let noted = self.notes.iter().map(|(&inode, note)| (inode, note.journal, note.end));
        let moved = self.moved.iter().map(|(&(inode, log), &end)| (inode, log, end));
        let cut = noted.chain(moved).filter(|&(_, log, end)| log == journal && is_cut(end));
        let cut: Vec<InodeId> = cut.map(|(inode, ..)| inode).collect();
        self.is_any_lost |= !cut.is_empty();
        self.lost.extend(cut);
        self.notes.retain(|_, note| note.journal != journal);
        self.moved.retain(|(_, log), _| *log != journal);
    }

    /// Whether anything was lost since the last sync of all.
    pub(crate) fn take_lost(&mut self) -> Result<(), Lost> {
        if std::mem::take(&mut self.is_any_lost) { Err(Lost) } else { Ok(()) }
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
        assert_eq!(journals.owed(inode), Ok(vec![flush(5, 100)]));
        assert_eq!(journals.owed(other), Ok(vec![]));
        journals.learn(MANAGER, &reply(5, 200, 150));
        assert_eq!(journals.owed(inode), Ok(vec![]));
        assert_eq!(journals.owed_all(), [flush(5, 200)]);
    }

    #[test]
    fn a_reply_that_was_overtaken_takes_nothing_back() {
        let inode = InodeId(7);
        let mut journals = Journals::default();
        journals.learn(MANAGER, &reply(5, 60, 50));
        tell(&mut journals, inode, &reply(5, 100, 50));
        journals.learn(MANAGER, &reply(5, 40, 10));
        assert_eq!(journals.owed(inode), Ok(vec![flush(5, 100)]));
    }

    #[test]
    fn the_journal_of_a_manager_that_begins_anew_is_another_one() {
        let inode = InodeId(7);
        let mut journals = Journals::default();
        tell(&mut journals, inode, &reply(5, 1000, 0));
        // It died before anything was `disk`, and its next life has got less far.
        journals.learn(MANAGER, &reply(6, 10, 0));
        assert_eq!(journals.owed(inode), Ok(vec![flush(5, 1000)]));
        assert_eq!(journals.owed_all(), [flush(5, 1000), flush(6, 10)]);
        journals.forget(LogId(5), Some(at(1000)));
        assert_eq!(journals.owed(inode), Ok(vec![]));
        assert_eq!(journals.owed_all(), [flush(6, 10)]);
    }

    #[test]
    fn a_late_reply_of_the_manager_before_does_not_hide_what_the_next_one_did() {
        let inode = InodeId(7);
        for order in [[5, 6], [6, 5]] {
            let mut journals = Journals::default();
            order.into_iter().for_each(|log| tell(&mut journals, inode, &reply(log, 10 * log as u32, 0)));
            let mut owed = journals.owed(inode).expect("nothing is lost");
            owed.sort_by_key(|owed| owed.journal);
            assert_eq!(owed, [flush(5, 50), flush(6, 60)]);
            journals.learn(MANAGER, &reply(6, 60, 60));
            assert_eq!(journals.owed(inode), Ok(vec![flush(5, 50)]));
            journals.learn(MANAGER, &reply(5, 50, 50));
            assert_eq!(journals.owed(inode), Ok(vec![]));
        }
    }

    #[test]
    fn what_a_sealed_journal_lacks_is_told_once() {
        let [kept, cut, other] = [7, 8, 9].map(InodeId);
        let mut journals = Journals::default();
        tell(&mut journals, kept, &reply(5, 100, 0));
        tell(&mut journals, cut, &reply(5, 101, 0));
        tell(&mut journals, other, &reply(6, 500, 0));
        journals.forget(LogId(5), Some(at(100)));
        assert_eq!(journals.owed(kept), Ok(vec![]));
        assert_eq!(journals.owed(cut), Err(Lost));
        assert_eq!(journals.owed(cut), Ok(vec![]));
        journals.forget(LogId(6), Some(at(499)));
        assert_eq!([journals.take_lost(), journals.take_lost()], [Err(Lost), Ok(())]);
        assert_eq!(journals.owed(other), Err(Lost));
        journals.forget(LogId(6), Some(at(499)));
        assert_eq!(journals.owed(other), Ok(vec![]));
    }
}
