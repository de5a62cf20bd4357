//! What a manager keeps in groups that are to be laid anew, for they are less safe than the current ones or being emptied: a
//! round of images stores it anew (DESIGN §8: a manager alone moves what is its own; §9, lost redundancy). Decides, never
//! awaits.

use std::collections::BTreeSet;
use std::sync::Arc;

use log::exposure;
use protocol::id::{GroupId, LogId, StripeNumber};
use protocol::maps::Maps;
use protocol::storage::Durability;

use crate::manager::Manager;

/// The groups whose stripes are to be laid anew.
pub(crate) struct ExposedGroups {
    maps: Arc<Maps>,
    groups: BTreeSet<GroupId>,
}

impl ExposedGroups {
    /// Whether a stripe lies in one of them.
    pub(crate) fn holds(&self, log: LogId, stripe: StripeNumber) -> bool {
        let group = exposure::group_of(&self.maps, log, stripe);
        !self.groups.is_empty() && group.is_some_and(|group| self.groups.contains(&group))
    }

    /// Whether what is written to `log` now lies in one of them too: then storing anything anew helps nobody.
    fn takes(&self, log: LogId) -> bool {
        let run = self.maps.logs.get(&log).and_then(|entry| entry.layout.last());
        run.is_none_or(|run| run.groups.iter().any(|group| self.groups.contains(group)))
    }
}

impl Manager {
    /// The groups whose stripes are to be laid anew, now.
    pub(crate) fn exposed(&self) -> ExposedGroups {
        let (maps, now) = (self.cluster.maps(), self.host().now());
        let mut absences = self.absences.lock().expect("nobody panics over absences");
        absences.observe(&maps, now);
        let given_up = absences.given_up(now, maps.settings.patience_or(self.options.patience));
        let groups = exposure::to_lay_anew(&maps, &given_up).into_keys().collect();
        ExposedGroups { maps, groups }
    }

    /// Whether a round of images would make anything safer.
    pub(crate) fn is_exposed(&self) -> bool {
        let exposed = self.exposed();
        if exposed.groups.is_empty() || exposed.takes(self.writer.log()) {
            return false;
        }
        let mut images = self.images.lock().expect("nobody panics over images");
        images.reached(self.writer.reached(Durability::Disk));
        images.needs_any(self.writer.end().stripe, |log, stripe| exposed.holds(log, stripe))
    }
}
