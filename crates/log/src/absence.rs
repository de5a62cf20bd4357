//! Whether a stripe is gone: deleted on purpose, as distinguished from lost. Decides, never awaits.
//!
//! 1. A stripe that was ended has at least m+1 fragments: data, and all parity. So m targets that tell nothing, or may
//!    have missed something, hide none. One that was found to be empty, or was taken away, counts as heard: it has nothing.
//! 2. Deleting is one message to each target, and a crash may come between them. Of what is needed no more than m
//!    fragments are ever lost; where more are missing on targets that never missed anything, the stripe was deleted, and
//!    the rest of it is only what the messages did not reach.
//! 3. That rest may rot like anything else. A fragment that is there and does not give its bytes is one of the m that
//!    may be lost, and so says nothing for the others. But where none is missing, none was deleted.

use std::collections::BTreeSet;

use protocol::fragment::{Geometry, Part};
use protocol::id::{RunNumber, StripeNumber, TargetId};
use protocol::maps::{GroupEntry, Maps};
use protocol::storage::StoredFragment;

/// What the targets of a group told of one stripe.
pub(crate) struct Told<'a> {
    pub(crate) maps: &'a Maps,
    pub(crate) group: &'a GroupEntry,
    pub(crate) held: &'a [(TargetId, StoredFragment)],
    /// Those that did not answer.
    pub(crate) silent: &'a BTreeSet<TargetId>,
    /// Fragments that are there and do not give the bytes that were asked for, though their targets answer.
    pub(crate) broken: &'a BTreeSet<(TargetId, Part)>,
}

impl Told<'_> {
    /// Whether the stripe is gone from the run that lies over the group. It has at least `length` data bytes.
    pub(crate) fn is_gone(&self, (number, run): (StripeNumber, RunNumber), length: u32) -> bool {
        let geometry = self.group.geometry;
        if of_run(self.held, (number, run)).next().is_none() {
            return !may_hide(self.maps, self.group, self.silent);
        }
        let lengths = lengths(self.held, (number, run), geometry, length);
        let data = (0..geometry.data).filter(|&index| lengths.get(usize::from(index)).is_some_and(|&some| some > 0));
        let (mut missing, mut broken) = (0, 0);
        for part in data.map(Part::Data).chain((0..geometry.parity).map(Part::Parity)) {
            let target = self.group.targets[geometry.member(number, part)];
            let there = of_run(self.held, (number, run)).map(|(at, found)| (*at, found.header.id.part));
            let there: Vec<_> = there.filter(|&(at, found)| at == target && stands_for(found, part)).collect();
            if there.is_empty() {
                missing += usize::from(is_witness(self.maps, self.group, self.silent, target));
            } else if there.iter().all(|one| self.broken.contains(one)) {
                broken += 1;
            }
        }
        missing > 0 && missing + broken > usize::from(geometry.parity)
    }
}

/// What of `held` is of one stripe in one run.
fn of_run(
    held: &[(TargetId, StoredFragment)],
    (number, run): (StripeNumber, RunNumber),
) -> impl Iterator<Item = &(TargetId, StoredFragment)> {
    held.iter().filter(move |(_, found)| (found.header.id.stripe, found.header.id.run) == (number, run))
}

/// How long the data fragments of a stripe are in a run, as parity says; where there is none, as `length` data bytes of
/// it ask.
pub(crate) fn lengths(
    held: &[(TargetId, StoredFragment)],
    place: (StripeNumber, RunNumber),
    geometry: Geometry,
    length: u32,
) -> Vec<u32> {
    match of_run(held, place).find(|(_, found)| found.header.ended()) {
        Some((_, found)) => found.header.data_lengths.clone(),
        None => geometry.data_lengths(length.min(geometry.stripe_size())),
    }
}

/// Whether a stripe may lie over `group` though no target of it shows anything of it.
pub(crate) fn may_hide(maps: &Maps, group: &GroupEntry, silent: &BTreeSet<TargetId>) -> bool {
    let unheard = group.targets.iter().filter(|&&target| !is_witness(maps, group, silent, target)).count();
    let is_silent = group.targets.iter().any(|target| silent.contains(target));
    is_silent && unheard > usize::from(group.geometry.parity)
}

/// Whether what a member does not show, it does not have though it should.
fn is_witness(maps: &Maps, group: &GroupEntry, silent: &BTreeSet<TargetId>, target: TargetId) -> bool {
    let Some(entry) = maps.targets.get(&target) else { return false };
    entry.has_nothing() || !silent.contains(&target) && maps.is_whole_in(group, target)
}

/// Before a stripe is ended, its parity targets hold copies.
fn stands_for(found: Part, part: Part) -> bool {
    match (found, part) {
        (Part::Copy { at, .. }, Part::Parity(wanted)) => at == wanted,
        _ => found == part,
    }
}

#[cfg(test)]
mod tests {
    use protocol::address::Position;
    use protocol::fragment::{FragmentHeader, FragmentId};
    use protocol::id::{GroupId, LogId};
    use protocol::maps::{TargetEntry, TargetState};

    use super::*;

    const NUMBER: StripeNumber = StripeNumber(0);
    const RUN: RunNumber = RunNumber(0);

    fn maps() -> (Maps, GroupEntry) {
        let geometry = Geometry { data: 3, parity: 1, fragment_size: 4096 };
        let group = GroupEntry::new((0..4).map(TargetId).collect(), geometry, true);
        let entry = || TargetEntry::new(1, String::new());
        let maps = Maps {
            targets: (0..4).map(|target| (TargetId(target), entry())).collect(),
            groups: [(GroupId(0), group.clone())].into(),
            ..Maps::empty(1, 1)
        };
        (maps, group)
    }

    fn fragment(part: Part) -> (TargetId, StoredFragment) {
        let (_, group) = maps();
        let data_lengths = if matches!(part, Part::Parity(_)) { vec![4096, 4096, 7] } else { vec![] };
        let header = FragmentHeader {
            id: FragmentId { log: LogId(1), stripe: NUMBER, run: RUN, part },
            group: GroupId(0),
            geometry: group.geometry,
            mark: Position::START,
            previous_end: 0,
            complete_below: NUMBER,
            data_lengths,
        };
        (group.targets[group.geometry.member(NUMBER, part)], StoredFragment { header, length: 7, generation: 0 })
    }

    fn is_gone(parts: &[Part], length: u32, silent: &[u32]) -> bool {
        is_gone_if_broken(parts, &[], length, silent)
    }

    fn is_gone_if_broken(parts: &[Part], broken: &[Part], length: u32, silent: &[u32]) -> bool {
        let (maps, group) = maps();
        let held: Vec<_> = parts.iter().copied().map(fragment).collect();
        let silent = silent.iter().copied().map(TargetId).collect();
        let broken = broken.iter().map(|&part| (fragment(part).0, part)).collect();
        let told = Told { maps: &maps, group: &group, held: &held, silent: &silent, broken: &broken };
        told.is_gone((NUMBER, RUN), length)
    }

    #[test]
    fn what_is_deleted_in_part_is_gone_and_what_is_lost_is_not() {
        let (one, two, parity) = (Part::Data(1), Part::Data(2), Part::Parity(0));
        let copy = Part::Copy { at: 0, of: 0 };
        assert!(is_gone(&[], 1, &[]) && is_gone(&[], 1, &[2]) && !is_gone(&[], 1, &[0, 2]));
        assert!(!is_gone(&[one, two, parity], 1, &[]), "one fragment was lost");
        assert!(is_gone(&[two, parity], 1, &[]) && !is_gone(&[two, parity], 1, &[0]));
        assert!(is_gone(&[one, two], 1, &[]), "neither the first nor the parity is there");
        assert!(!is_gone(&[copy], 1, &[]), "an open stripe has copies");
        assert!(is_gone(&[copy], 4097, &[]));
    }

    #[test]
    fn what_no_target_has_is_gone_though_all_missed_something() {
        let (mut maps, group) = maps();
        maps.targets.values_mut().for_each(|entry| entry.state = TargetState::Behind);
        let is_gone = |parts: &[Part], silent: &[u32]| {
            let held: Vec<_> = parts.iter().copied().map(fragment).collect();
            let (silent, broken) = (silent.iter().copied().map(TargetId).collect(), BTreeSet::new());
            let told = Told { maps: &maps, group: &group, held: &held, silent: &silent, broken: &broken };
            told.is_gone((NUMBER, RUN), 1)
        };
        assert!(is_gone(&[], &[]), "all say that they have nothing of it");
        assert!(!is_gone(&[], &[1]), "the one that is silent may have it");
        assert!(!is_gone(&[Part::Data(0)], &[]) && !is_gone(&[Part::Parity(0)], &[]), "the others may have missed it");
    }

    #[test]
    fn what_a_newcomer_does_not_show_was_not_deleted() {
        let (mut maps, mut group) = maps();
        maps.targets.insert(TargetId(9), TargetEntry::new(9, String::new()));
        // In the place of the first data fragment: the second one is missing, and was deleted, or both were lost.
        let first = group.geometry.member(NUMBER, Part::Data(0));
        group.targets[first] = TargetId(9);
        let held: Vec<_> = [Part::Data(2), Part::Parity(0)].map(fragment).into();
        let gone = |group: &GroupEntry| {
            let (silent, broken) = (BTreeSet::new(), BTreeSet::new());
            Told { maps: &maps, group, held: &held, silent: &silent, broken: &broken }.is_gone((NUMBER, RUN), 4097)
        };
        assert!(gone(&group), "two that should have it have not");
        group.newcomers.insert(TargetId(9));
        assert!(!gone(&group), "one was never given it");
    }

    #[test]
    fn a_target_that_was_taken_away_hides_nothing() {
        let (mut maps, group) = maps();
        let gone = [TargetId(0), TargetId(2)];
        let silent: BTreeSet<TargetId> = gone.into();
        assert!(may_hide(&maps, &group, &silent));
        for target in gone {
            maps.targets.get_mut(&target).expect("one of four").state = TargetState::Removed;
        }
        assert!(!may_hide(&maps, &group, &silent));
        for target in gone {
            let entry = maps.targets.get_mut(&target).expect("one of four");
            (entry.state, entry.empty) = (TargetState::Failed, true);
        }
        assert!(!may_hide(&maps, &group, &silent), "nor does one that was emptied before it was switched off");
    }

    #[test]
    fn what_rots_after_it_was_deleted_in_part_is_gone_too() {
        let (zero, one, two, parity) = (Part::Data(0), Part::Data(1), Part::Data(2), Part::Parity(0));
        let copy = Part::Copy { at: 0, of: 0 };
        assert!(!is_gone(&[zero], 1, &[]) && is_gone_if_broken(&[zero], &[zero], 1, &[]));
        assert!(is_gone_if_broken(&[one, two, parity], &[two], 1, &[]), "one is missing, one broken");
        assert!(!is_gone_if_broken(&[one, two, parity], &[two], 1, &[0]), "one is broken, one silent");
        assert!(!is_gone_if_broken(&[zero, one, two, parity], &[zero, one], 1, &[]), "nothing was deleted");
        assert!(!is_gone_if_broken(&[copy], &[], 1, &[]) && is_gone_if_broken(&[copy], &[copy], 1, &[]));
    }
}
