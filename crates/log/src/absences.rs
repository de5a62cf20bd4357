//! How long targets have been away. Pure, soft: whoever looks first begins to count.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use host::Moment;
use protocol::id::TargetId;
use protocol::maps::{Maps, TargetState};

/// The targets that failed, and since when that is known here.
#[derive(Clone, Debug, Default)]
pub struct Absences {
    since: BTreeMap<TargetId, Moment>,
    /// Those of them that are to go anyway: nobody waits for them (DESIGN §9: at once on remove).
    leaving: BTreeSet<TargetId>,
}

impl Absences {
    /// Takes note of which targets have failed now.
    pub fn observe(&mut self, maps: &Maps, now: Moment) {
        let failed = |target: &TargetId| maps.targets.get(target).is_some_and(|it| it.state == TargetState::Failed);
        self.since.retain(|target, _| failed(target));
        for &target in maps.targets.keys().filter(|target| failed(target)) {
            self.since.entry(target).or_insert(now);
        }
        let leaves = |target: &TargetId| maps.targets.get(target).is_some_and(|entry| entry.drains());
        self.leaving = self.since.keys().copied().filter(leaves).collect();
    }

    /// The targets that have been away for `patience`: nobody counts with them any more.
    pub fn given_up(&self, now: Moment, patience: Duration) -> BTreeSet<TargetId> {
        let long = self.since.iter().filter(|(_, since)| now.since(**since) >= patience);
        long.map(|(&target, _)| target).chain(self.leaving.iter().copied()).collect()
    }
}

#[cfg(test)]
mod tests {
    use protocol::maps::{Drain, TargetEntry};

    use super::*;

    #[test]
    fn whoever_is_to_go_anyway_is_not_waited_for() {
        let (patience, now) = (Duration::from_secs(600), Moment(0));
        let entry = |state| TargetEntry { state, ..TargetEntry::new(1, String::new()) };
        let failed = |drain| TargetEntry { drain, ..entry(TargetState::Failed) };
        let mut maps = Maps {
            fragment_size: 4096,
            targets: [(TargetId(0), failed(Drain::No)), (TargetId(1), failed(Drain::Careful))].into(),
            ..Maps::empty(1, 1)
        };
        maps.targets.insert(TargetId(2), TargetEntry { drain: Drain::Careful, ..entry(TargetState::Whole) });
        let mut absences = Absences::default();
        absences.observe(&maps, now);
        assert_eq!(absences.given_up(now, patience), [TargetId(1)].into());
        assert_eq!(absences.given_up(now + patience, patience), [TargetId(0), TargetId(1)].into());
    }
}
