//! Whether a disk hangs, by how much it was asked and how much of that has ended. Decides; `watch` counts, and looks.
//!
//! 1. A disk hangs while something is under way and nothing of its kind has ended since that was seen at [`LOOKS_MAX`] looks
//!    before.
//! 2. Kinds are judged apart: a cache takes writes and gives bytes while the disk below it does nothing, so these are no
//!    evidence for syncs.
//! 3. Time is counted in looks and read from no clock: a process that stood still itself has not looked meanwhile, and what
//!    has ended by then is not held against its disks.
//! 4. It hangs no more as soon as anything of that kind ends.

use std::sync::atomic::{AtomicU64, Ordering::SeqCst};

/// So many looks behind the one that saw it first something is waited for.
pub(crate) const LOOKS_MAX: u32 = 15;

/// What disks are asked. What is written durably is a sync; a reservation or a discard is a write.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Kind {
    Read,
    Write,
    Sync,
}

/// What a disk was asked since it was opened, and what of that has ended, by kinds.
#[derive(Debug, Default)]
pub(crate) struct Counts([Count; 3]);

#[derive(Debug, Default)]
struct Count {
    begun: AtomicU64,
    ended: AtomicU64,
    /// One more than had ended when it was last found that nothing does. Zero: that was never found.
    hung: AtomicU64,
}

/// What was seen of each kind at the last look: how many had ended, and at how many looks in a row since. `None` when nothing
/// was under way.
#[derive(Debug, Default)]
pub(crate) struct Looks([Option<(u64, u32)>; 3]);

impl Counts {
    pub(crate) fn begin(&self, kind: Kind) {
        self.0[kind as usize].begun.fetch_add(1, SeqCst);
    }

    /// Also of what was cut short.
    pub(crate) fn end(&self, kind: Kind) {
        self.0[kind as usize].ended.fetch_add(1, SeqCst);
    }

    /// Whether anything is under way.
    pub(crate) fn is_busy(&self) -> bool {
        self.0.iter().any(|count| count.busy_since().is_some())
    }

    /// Whether the disk hangs.
    pub(crate) fn hangs(&self) -> bool {
        self.0.iter().any(|count| count.hung.load(SeqCst) == count.ended.load(SeqCst) + 1)
    }
}

impl Count {
    /// How many have ended, if others are under way.
    fn busy_since(&self) -> Option<u64> {
        // In this order: nothing ends before it begins.
        let ended = self.ended.load(SeqCst);
        (self.begun.load(SeqCst) > ended).then_some(ended)
    }
}

impl Looks {
    /// Looks once more. Whether the disk is found to hang, which it did not before.
    pub(crate) fn look(&mut self, counts: &Counts) -> bool {
        let mut found = false;
        for (seen, count) in self.0.iter_mut().zip(&counts.0) {
            *seen = count.busy_since().map(|ended| match *seen {
                Some((same, looks)) if same == ended => (ended, looks.saturating_add(1)),
                _ => (ended, 0),
            });
            if let Some((ended, LOOKS_MAX)) = *seen {
                count.hung.store(ended + 1, SeqCst);
                found = true;
            }
        }
        found
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// How many looks in a row do not find that it hangs, up to a hundred.
    fn patience(looks: &mut Looks, counts: &Counts, mut between: impl FnMut()) -> usize {
        (0..100).take_while(|_| !looks.look(counts)).inspect(|_| between()).count()
    }

    #[test]
    fn caches_are_no_evidence_for_syncs() {
        for hung in [Kind::Read, Kind::Write, Kind::Sync] {
            let (counts, mut looks) = (Counts::default(), Looks::default());
            assert_eq!(patience(&mut looks, &counts, || ()), 100, "nothing is under way");
            counts.begin(hung);
            let others = [Kind::Read, Kind::Write, Kind::Sync].into_iter().filter(|kind| *kind != hung);
            let others = || {
                others.clone().for_each(|kind| counts.begin(kind));
                others.clone().for_each(|kind| counts.end(kind));
            };
            assert_eq!(patience(&mut looks, &counts, others), LOOKS_MAX as usize, "{hung:?}");
            assert!(counts.hangs() && counts.is_busy());
            counts.end(hung);
            assert!(!counts.hangs() && !counts.is_busy(), "it has answered");
        }
    }

    #[test]
    fn a_disk_that_answers_anything_of_a_kind_does_not_hang() {
        let (counts, mut looks) = (Counts::default(), Looks::default());
        counts.begin(Kind::Sync);
        // Nothing begins anew: of two, one that was begun before the last ended is always under way.
        let slow = || {
            counts.begin(Kind::Sync);
            counts.end(Kind::Sync);
        };
        assert_eq!(patience(&mut looks, &counts, slow), 100);
        assert_eq!(patience(&mut looks, &counts, || ()), LOOKS_MAX as usize, "the last one does not end");
        counts.begin(Kind::Sync);
        counts.end(Kind::Sync);
        assert!(!counts.hangs(), "one of the two has ended");
        assert_eq!(patience(&mut looks, &counts, || ()), LOOKS_MAX as usize, "the other is waited for as long again");
    }

    #[test]
    fn what_begins_just_before_a_look_is_waited_for_as_long() {
        let (counts, mut looks) = (Counts::default(), Looks::default());
        for _ in 0..3 {
            counts.begin(Kind::Write);
            counts.end(Kind::Write);
            assert!(!looks.look(&counts));
        }
        counts.begin(Kind::Write);
        assert_eq!(patience(&mut looks, &counts, || ()), LOOKS_MAX as usize);
    }
}
