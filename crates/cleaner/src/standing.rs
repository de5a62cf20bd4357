//! Who may judge a stripe: whether it belongs to its writer still, and who knows what lives in it. Pure.
//!
//! Invariants
//! 1. An open stripe, or one that its writer may yet lay anew, is nobody's but its writer's or recoverer's (DESIGN §3).
//! 2. Bytes behind the newest mark of an open log live: a delta that nobody applied yet may name them (DESIGN §8). A
//!    mark is set only where that is true of all *data* before it, wherever their deltas lie. How far the stripe goes in
//!    which the mark lies only the one behind it tells: what was listed before may have grown since.
//! 3. Of a sealed log all stripes may be judged: a manager that has not yet replayed it says that all of it lives.
//! 4. A stripe of an open log goes only when m+1 targets of one group hold later fragments, on their disks, that call it
//!    complete. A recoverer begins at the first stripe that it does not know complete, and takes a stripe that is nowhere for
//!    the log's end: with m targets of each group lost, which may be one machine's, and the power of all, it must still learn
//!    what we knew.

use std::collections::BTreeMap;

use protocol::address::Position;
use protocol::fragment::FragmentHeader;
use protocol::id::{GroupId, LogId, StripeNumber};
use protocol::maps::{LogState, Maps, Writer};

use crate::policy::Stripe;

/// How far an open log has come, as its fragments tell: mark and completeness are lower bounds.
#[derive(Clone, Debug, PartialEq, Eq, Default)]
pub struct Edge {
    /// The newest mark that a fragment names.
    pub mark: Position,
    /// All stripes below are complete, and the loss of no m targets can hide that.
    pub complete_below: StripeNumber,
    /// Where its newest stripes ended, as those behind them say.
    pub ends: BTreeMap<StripeNumber, u32>,
}

impl Edge {
    /// Whether all of a stripe lies before the mark.
    fn is_marked(&self, number: StripeNumber) -> bool {
        let ends_before = || self.ends.get(&number).is_some_and(|&end| Position::new(number, end) <= self.mark);
        number < self.mark.stripe || ends_before()
    }
}

/// The edge of a log from the headers of its newest fragments, target by target.
pub fn edge_of(tails: Vec<Vec<FragmentHeader>>) -> Edge {
    let mark = tails.iter().flatten().map(|header| header.mark).max().unwrap_or_default();
    let mut known: BTreeMap<(GroupId, u8), Vec<StripeNumber>> = BTreeMap::new();
    for tail in &tails {
        let mut newest: BTreeMap<_, StripeNumber> = BTreeMap::new();
        for header in tail {
            let below = newest.entry((header.group, header.geometry.parity)).or_default();
            *below = header.complete_below.max(*below);
        }
        newest.into_iter().for_each(|(group, below)| known.entry(group).or_default().push(below));
    }
    let by_all_but_m = known.into_iter().filter_map(|((_, parity), mut told)| {
        told.sort_unstable_by(|a, b| b.cmp(a));
        told.get(usize::from(parity)).copied()
    });
    let behind = tails
        .iter()
        .flatten()
        .filter_map(|header| Some((StripeNumber(header.id.stripe.0.checked_sub(1)?), header.previous_end)));
    Edge { mark, ends: behind.collect(), complete_below: by_all_but_m.max().unwrap_or_default() }
}

/// Who judges a stripe.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Standing {
    /// Nobody yet.
    Busy,
    /// It holds file data: what lives is the sum over all slots.
    Data,
    /// It holds journals and images: their manager knows.
    Manager,
    /// Its log was forgotten when nothing lived any more: what came to light again is dead.
    Forgotten,
}

/// The standing of a stripe. `maps` must be older than the listing that found it; `edge` is asked of open logs.
pub fn standing(maps: &Maps, (log, number): Stripe, edge: Option<&Edge>) -> Standing {
    let Some(entry) = maps.logs.get(&log) else {
        return if maps.is_forgotten(log) { Standing::Forgotten } else { Standing::Busy };
    };
    let judged = match entry.state {
        LogState::Sealed(_) => true,
        LogState::Sealing(_) => false,
        LogState::Open(_) => edge.is_some_and(|edge| {
            let marked = entry.writer == Writer::Manager || edge.is_marked(number);
            marked && number < edge.complete_below
        }),
    };
    match (judged, entry.writer) {
        (false, _) => Standing::Busy,
        (true, Writer::Manager) => Standing::Manager,
        (true, Writer::Client | Writer::Cleaner) => Standing::Data,
    }
}

/// Logs that a cleaner of `node` wrote in a former life: nobody writes them any more, and they hold no deltas to replay,
/// so that whoever comes first seals them.
pub fn logs_to_seal(maps: &Maps, node: u32, own: Option<LogId>) -> Vec<LogId> {
    let old = maps.logs.iter().filter(|(log, entry)| {
        let unsealed = !matches!(entry.state, LogState::Sealed(_));
        entry.writer == Writer::Cleaner && entry.node == node && unsealed && Some(**log) != own
    });
    old.map(|(log, _)| *log).collect()
}

/// Sealed logs that no slot is to be taken over from and that are not among `stored`, the logs that have stripes. Of logs
/// of which more targets are away, or behind, than parity makes up for, nobody can tell: what comes back of a log that was
/// forgotten is deleted.
pub fn logs_to_forget(maps: &Maps, stored: &[LogId]) -> Vec<LogId> {
    let hides = |group: &GroupId| {
        maps.groups.get(group).is_some_and(|group| {
            let tells = |target| maps.has_nothing(target) || maps.is_whole_in(group, target);
            let unsure = group.targets.iter().filter(|&&target| !tells(target)).count();
            unsure > usize::from(group.geometry.parity)
        })
    };
    let may_hide = |log: &LogId| maps.logs[log].layout.iter().flat_map(|run| &run.groups).any(hides);
    let needed = |log: &LogId| maps.slots.values().any(|slot| slot.needs(*log));
    let sealed = maps.logs.iter().filter(|(_, entry)| matches!(entry.state, LogState::Sealed(_)));
    sealed.map(|(log, _)| *log).filter(|log| !stored.contains(log) && !needed(log) && !may_hide(log)).collect()
}

#[cfg(test)]
mod tests {
    use protocol::fragment::{FragmentId, Geometry, Part};
    use protocol::id::{FenceEpoch, RunNumber, TargetId};
    use protocol::maps::{GroupEntry, LogEntry, Run, SlotEntry, SlotLog, TargetEntry, TargetState};

    use super::*;

    const LENGTH: u32 = 100;

    fn maps(logs: &[(u64, Writer, LogState)]) -> Maps {
        let entry = |&(log, writer, state): &(u64, Writer, LogState)| {
            (LogId(log), LogEntry::new((1, 0), writer, vec![], state))
        };
        Maps {
            logs: logs.iter().map(entry).collect(),
            slots: [(
                0,
                SlotEntry { node: 1, base: None, logs: vec![SlotLog { log: LogId(3), from: Position::START }] },
            )]
            .into(),
            next_log: LogId(10),
            ..Maps::empty(1, 1)
        }
    }

    /// Of a log whose stripe 4 ended after [`LENGTH`] bytes, if that is known.
    fn edge(mark: (u64, u32), complete_below: u64, knows_end: bool) -> Edge {
        let mark = Position::new(StripeNumber(mark.0), mark.1);
        let ends = knows_end.then_some((StripeNumber(4), LENGTH)).into_iter().collect();
        Edge { mark, complete_below: StripeNumber(complete_below), ends }
    }

    #[test]
    fn what_one_target_knows_may_be_lost_with_it() {
        let header_in = |group, complete_below| FragmentHeader {
            id: FragmentId { log: LogId(1), stripe: StripeNumber(9), run: RunNumber(0), part: Part::Data(0) },
            group: GroupId(group),
            geometry: Geometry { data: 2, parity: 1, fragment_size: 4096 },
            mark: Position::START,
            previous_end: 0,
            complete_below: StripeNumber(complete_below),
            data_lengths: vec![],
        };
        let header = |complete_below| header_in(0, complete_below);
        let edge = |tails: Vec<Vec<FragmentHeader>>| edge_of(tails).complete_below.0;
        assert_eq!(edge_of(vec![vec![header(8)]]).ends, [(StripeNumber(8), 0)].into());
        assert_eq!(edge(vec![vec![header(5), header(8)], vec![], vec![header(6)]]), 6);
        assert_eq!(edge(vec![vec![header(8)], vec![], vec![]]), 0);
        assert_eq!(edge(vec![]), 0);
        let of_one_machine = vec![vec![header_in(0, 8)], vec![header_in(1, 8)]];
        assert_eq!(edge(of_one_machine.clone()), 0, "one of each group");
        let others = vec![vec![header_in(0, 5)], vec![header_in(1, 6), header_in(0, 9)]];
        assert_eq!(edge([of_one_machine, others].concat()), 8);
    }

    #[test]
    fn an_open_log_is_judged_before_its_mark_and_behind_its_writer() {
        let open = LogState::Open(FenceEpoch(1));
        let maps = maps(&[(1, Writer::Client, open), (2, Writer::Manager, open)]);
        let of = |log, edge: Option<Edge>| standing(&maps, (LogId(log), StripeNumber(4)), edge.as_ref());
        let edge = |mark, below| Some(edge(mark, below, true));
        assert_eq!(of(1, edge((5, 0), 5)), Standing::Data);
        assert_eq!(of(1, edge((4, LENGTH), 5)), Standing::Data);
        assert_eq!(of(1, edge((4, LENGTH - 1), 5)), Standing::Busy);
        assert_eq!(of(1, edge((5, 0), 4)), Standing::Busy, "it may be laid anew");
        assert_eq!(of(1, None), Standing::Busy, "nobody told how far the log is");
        assert_eq!(of(2, edge((0, 0), 5)), Standing::Manager, "marks mean something else in a manager's log");
    }

    /// It was listed while it held 40 bytes and nothing was behind it. Then a burst filled and ended it, and the next one
    /// tells so, whose writer's mark is still where the log had rested.
    #[test]
    fn a_stripe_that_has_grown_since_it_was_listed_is_not_judged_by_the_mark_within_it() {
        let maps = maps(&[(1, Writer::Client, LogState::Open(FenceEpoch(1)))]);
        let of = |edge: Edge| standing(&maps, (LogId(1), StripeNumber(4)), Some(&edge));
        assert_eq!(of(edge((4, 40), 5, true)), Standing::Busy);
        assert_eq!(of(edge((4, 40), 5, false)), Standing::Busy, "nobody knows where it ended");
        assert_eq!(of(edge((5, 0), 5, false)), Standing::Data, "wherever that was");
    }

    #[test]
    fn a_sealed_log_is_judged_whole_and_one_under_claim_not_at_all() {
        let length = Position::new(StripeNumber(4), 7);
        let sealing = LogState::Sealing(FenceEpoch(2));
        let maps = maps(&[(1, Writer::Client, LogState::Sealed(length)), (2, Writer::Cleaner, sealing)]);
        let of = |log| standing(&maps, (LogId(log), StripeNumber(4)), Some(&edge((9, 0), 9, true)));
        assert_eq!(of(1), Standing::Data);
        assert_eq!(of(2), Standing::Busy);
        assert_eq!(of(5), Standing::Forgotten);
        assert_eq!(of(10), Standing::Busy, "it was opened after the maps were read");
    }

    #[test]
    fn only_dead_cleaners_logs_are_sealed_and_only_unneeded_ones_forgotten() {
        let sealed = LogState::Sealed(Position::START);
        let open = LogState::Open(FenceEpoch(1));
        let maps = maps(&[
            (1, Writer::Cleaner, open),
            (2, Writer::Cleaner, open),
            (3, Writer::Manager, sealed),
            (4, Writer::Client, sealed),
            (5, Writer::Client, sealed),
            (6, Writer::Client, open),
        ]);
        assert_eq!(logs_to_seal(&maps, 1, Some(LogId(2))), [LogId(1)]);
        assert_eq!(logs_to_seal(&maps, 2, None), []);
        assert_eq!(logs_to_forget(&maps, &[LogId(5)]), [LogId(4)]);
    }

    #[test]
    fn a_log_that_may_come_back_with_its_targets_is_not_forgotten() {
        let mut maps = maps(&[(1, Writer::Client, LogState::Sealed(Position::START))]);
        let geometry = Geometry { data: 1, parity: 1, fragment_size: 4096 };
        let targets = vec![TargetId(0), TargetId(1)];
        maps.groups.insert(GroupId(0), GroupEntry::new(targets, geometry, false));
        let run = Run::new(RunNumber(0), StripeNumber(0), vec![GroupId(0)]);
        maps.logs.get_mut(&LogId(1)).unwrap().layout.push(run);
        let mut forgotten = |states: [TargetState; 2]| {
            let entry = |state| TargetEntry { state, ..TargetEntry::new(1, String::new()) };
            maps.targets = (0..).map(TargetId).zip(states.map(entry)).collect();
            !logs_to_forget(&maps, &[]).is_empty()
        };
        assert!(forgotten([TargetState::Whole, TargetState::Whole]));
        assert!(forgotten([TargetState::Whole, TargetState::Failed]));
        assert!(forgotten([TargetState::Removed, TargetState::Failed]), "what was taken away had nothing");
        assert!(!forgotten([TargetState::Behind, TargetState::Failed]), "one was emptied, the other is just away");
    }
}
