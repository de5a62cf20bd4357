//! What holds on all machines of a cluster alike, however each is set up for itself: the registry keeps it, so that whichever
//! machine works for all goes by it, from the moment that it is changed. What is not set, each machine's own file says.

use std::time::Duration;

use serde::{Deserialize, Serialize};

/// The least that is read in a second to bring redundancy back, in bytes: with less it would never be.
pub const REBUILD_MIN: u64 = 1 << 20;
/// Thirty days.
pub const REBUILD_MINUTES_MAX: u32 = 43_200;
/// Ten years.
pub const SCRUB_DAYS_MAX: u32 = 3650;

/// What is set for all.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Settings {
    /// So many bytes a second each machine reads to bring lost redundancy back.
    pub rebuild: Option<u64>,
    /// A target that is away for so many minutes counts as lost, and what lay on it is made again on others.
    pub rebuild_minutes: Option<u32>,
    /// In so many days everything stored is read once, and repaired where bits have rotted; 0: never.
    pub scrub_days: Option<u32>,
}

/// A change of one of them. Nothing: each machine's own file says it again.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Setting {
    /// So many bytes a second each machine reads to bring lost redundancy back.
    Rebuild(Option<u64>),
    /// After so many minutes nobody waits for a target any more.
    RebuildMinutes(Option<u32>),
    /// In so many days everything is read once.
    ScrubDays(Option<u32>),
}

/// Why settings make no sense.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum SettingsError {
    /// It would never end.
    #[error("rebuild = {0} is less than 1 MiB, at which redundancy would hardly ever come back")]
    Rebuild(u64),
    /// Whoever waits for so long has lost something else by then.
    #[error("rebuild_minutes = {0} is more than {REBUILD_MINUTES_MAX}, which is thirty days")]
    RebuildMinutes(u32),
    /// What rots would not be found in the life of a disk.
    #[error("scrub_days = {0} is more than {SCRUB_DAYS_MAX}; 0 turns it off")]
    ScrubDays(u32),
}

impl Settings {
    /// The same with one change.
    pub fn with(self, change: Setting) -> Settings {
        match change {
            Setting::Rebuild(rebuild) => Settings { rebuild, ..self },
            Setting::RebuildMinutes(rebuild_minutes) => Settings { rebuild_minutes, ..self },
            Setting::ScrubDays(scrub_days) => Settings { scrub_days, ..self },
        }
    }

    /// Whether each is within its bounds.
    pub fn verify(&self) -> Result<(), SettingsError> {
        if let Some(rebuild) = self.rebuild.filter(|rebuild| *rebuild < REBUILD_MIN) {
            return Err(SettingsError::Rebuild(rebuild));
        }
        if let Some(minutes) = self.rebuild_minutes.filter(|minutes| *minutes > REBUILD_MINUTES_MAX) {
            return Err(SettingsError::RebuildMinutes(minutes));
        }
        match self.scrub_days.filter(|days| *days > SCRUB_DAYS_MAX) {
            Some(days) => Err(SettingsError::ScrubDays(days)),
            None => Ok(()),
        }
    }

    /// How many bytes of stripes each machine reads in a second to make something whole, where its own file says `own`.
    pub fn rebuild_or(&self, own: u64) -> u64 {
        self.rebuild.unwrap_or(own)
    }

    /// How long a target may be away before nobody waits for it any more.
    pub fn patience_or(&self, own: Duration) -> Duration {
        self.rebuild_minutes.map_or(own, |minutes| Duration::from_secs(u64::from(minutes) * 60))
    }

    /// How long a pass over everything stored takes; zero: there is none.
    pub fn scrub_pass_or(&self, own: Duration) -> Duration {
        self.scrub_days.map_or(own, |days| Duration::from_secs(u64::from(days) * 24 * 3600))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_set_counts_and_what_is_not_each_machine_says_itself() {
        let (own, hour) = (Settings::default(), Duration::from_secs(3600));
        assert_eq!((own.rebuild_or(7), own.patience_or(hour), own.scrub_pass_or(hour)), (7, hour, hour));
        let changes = [
            Setting::Rebuild(Some(9)),
            Setting::RebuildMinutes(Some(120)),
            Setting::ScrubDays(Some(0)),
            Setting::Rebuild(None),
        ];
        let set = changes[..3].iter().fold(own, |settings, &change| settings.with(change));
        assert_eq!((set.rebuild_or(7), set.patience_or(hour), set.scrub_pass_or(hour)), (9, 2 * hour, Duration::ZERO));
        assert_eq!(set.with(changes[3]), Settings { rebuild: None, ..set });
    }

    #[test]
    fn what_makes_no_sense_is_refused() {
        let one = |change| Settings::default().with(change).verify();
        assert_eq!(one(Setting::Rebuild(Some(REBUILD_MIN - 1))), Err(SettingsError::Rebuild(REBUILD_MIN - 1)));
        assert_eq!(one(Setting::RebuildMinutes(Some(43_201))), Err(SettingsError::RebuildMinutes(43_201)));
        assert_eq!(one(Setting::ScrubDays(Some(3651))), Err(SettingsError::ScrubDays(3651)));
        for least in
            [Setting::Rebuild(Some(REBUILD_MIN)), Setting::RebuildMinutes(Some(0)), Setting::ScrubDays(Some(0))]
        {
            assert_eq!(one(least), Ok(()));
        }
    }
}
