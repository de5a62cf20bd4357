//! Where the journal lies between the images of a round. A manager that takes over reads the round's journal; without this it
//! would go through the images too, which are all that changed, to find a few records of journal between them.
//!
//! Invariants
//! 1. Every journal record appended since the round began lies in one of the runs.
//! 2. A run lies in one stripe, and begins and ends where records do. Runs are in order and do not touch.

use log::Appended;
use protocol::address::Position;
use protocol::id::StripeNumber;
use serde::{Deserialize, Serialize};

use crate::encoding::Damaged;

/// Neighbours with fewer bytes between them are one run: these bytes are read sooner than another run is asked for.
const GAP_MAX: u32 = 32 << 10;
/// More runs than this are not worth a table's room: then nothing is told of them.
const RUNS_MAX: usize = 4096;

/// Records that lie behind each other in one stripe, journal first and last.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Run {
    pub(crate) stripe: StripeNumber,
    pub(crate) start: u32,
    pub(crate) end: u32,
}

/// Where the journal lies from the beginning of a round on.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct JournalRuns {
    runs: Vec<Run>,
    /// There were too many.
    is_lost: bool,
}

impl JournalRuns {
    /// A record was appended.
    pub(crate) fn note(&mut self, appended: &Appended) {
        let (stripe, start, end) = (appended.place.stripe, appended.place.offset, appended.end.offset);
        assert_eq!(stripe, appended.end.stripe, "records never span stripes");
        let count = self.runs.len();
        match self.runs.last_mut() {
            Some(last) if last.stripe == stripe && start - last.end < GAP_MAX => last.end = end,
            _ if count == RUNS_MAX => self.is_lost = true,
            _ => self.runs.push(Run { stripe, start, end }),
        }
    }

    /// What a table that is appended at `until` tells of them.
    pub(crate) fn told(&self, until: Position) -> Option<ToldRuns> {
        (!self.is_lost).then(|| ToldRuns { until, runs: self.runs.clone() })
    }
}

/// What a table tells of the journal between the images that it names. The default tells nothing.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct ToldRuns {
    /// From where on nothing is told: journal may lie anywhere.
    pub(crate) until: Position,
    runs: Vec<Run>,
}

impl ToldRuns {
    /// Refuses what no manager told.
    pub(crate) fn checked(self) -> Result<ToldRuns, Damaged> {
        let is_run = |run: &Run| run.start < run.end && Position::new(run.stripe, run.end) <= self.until;
        let in_order = |pair: &[Run]| (pair[0].stripe, pair[0].end) < (pair[1].stripe, pair[1].start);
        let holds = self.runs.iter().all(is_run) && self.runs.windows(2).all(in_order);
        if holds { Ok(self) } else { Err(Damaged("runs of a journal")) }
    }

    /// The runs from one place to another, at both of which a record begins.
    pub(crate) fn between(&self, from: Position, until: Position) -> Vec<Run> {
        let clipped = |run: &Run| {
            let start = Position::new(run.stripe, run.start).max(from);
            let end = Position::new(run.stripe, run.end).min(until);
            (start < end).then_some(Run { stripe: run.stripe, start: start.offset, end: end.offset })
        };
        self.runs.iter().filter_map(clipped).collect()
    }
}

#[cfg(test)]
mod tests {
    use protocol::address::LogAddress;
    use protocol::id::LogId;

    use super::*;

    fn at(stripe: u64, offset: u32) -> Position {
        Position::new(StripeNumber(stripe), offset)
    }

    fn appended(stripe: u64, start: u32, end: u32) -> Appended {
        let body =
            LogAddress { log: LogId(1), stripe: StripeNumber(stripe), offset: start + 1, length: end - start - 1 };
        Appended { body, place: at(stripe, start), end: at(stripe, end) }
    }

    fn runs(told: &[Run]) -> Vec<(u64, u32, u32)> {
        told.iter().map(|run| (run.stripe.0, run.start, run.end)).collect()
    }

    #[test]
    fn neighbours_become_one_run() {
        let mut journal = JournalRuns::default();
        let far = 200 + GAP_MAX;
        for (stripe, start, end) in [(3, 50, 100), (3, 100, 150), (3, 199, 200), (3, far, far + 9), (4, 0, 7)] {
            journal.note(&appended(stripe, start, end));
        }
        let told = journal.told(at(4, 90)).unwrap().checked().unwrap();
        assert_eq!(runs(&told.between(at(0, 0), at(9, 0))), [(3, 50, 200), (3, far, far + 9), (4, 0, 7)]);
        assert_eq!(runs(&told.between(at(3, 100), at(4, 5))), [(3, 100, 200), (3, far, far + 9), (4, 0, 5)]);
        assert!(told.between(at(4, 7), at(4, 90)).is_empty());
    }

    #[test]
    fn of_too_many_runs_nothing_is_told() {
        let mut journal = JournalRuns::default();
        for stripe in 0..RUNS_MAX as u64 {
            journal.note(&appended(stripe, 5, 9));
        }
        assert!(journal.told(at(9999, 0)).is_some());
        journal.note(&appended(9000, 5, 9));
        assert_eq!(journal.told(at(9999, 0)), None);
    }

    #[test]
    fn what_no_manager_told_is_refused() {
        let told = |until, list: &[(u64, u32, u32)]| {
            let run = |&(stripe, start, end): &(u64, u32, u32)| Run { stripe: StripeNumber(stripe), start, end };
            ToldRuns { until, runs: list.iter().map(run).collect() }.checked().is_ok()
        };
        assert!(told(at(1, 9), &[(0, 1, 2), (0, 4, 5), (1, 0, 9)]));
        assert!(!told(at(1, 8), &[(0, 1, 2), (1, 0, 9)]), "behind the end");
        assert!(!told(at(1, 9), &[(0, 2, 2)]), "an empty one");
        assert!(!told(at(1, 9), &[(0, 1, 4), (0, 3, 5)]) && !told(at(1, 9), &[(1, 1, 2), (0, 3, 5)]));
    }
}
