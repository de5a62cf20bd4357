//! How long the kernel may use the names of directories that the client keeps while others use the slot, too: the longer,
//! the longer nobody has called them back. Decides, never awaits.
//!
//! At first they are not given at all: whoever changes the directory next waits for no kernel. Where very many are looked
//! up, they are given for a moment: they are over by themselves, and who gives them up only waits for that. Of names that
//! are given for long the kernel has to be told, and that is dear: the one thing that can be told without waiting for a
//! lookup under way makes *all* names of the mount too old, and the next call that passes a directory whose name is drops,
//! before it goes on, everything that the kernel has below it: on Linux 6.18 some 4 us for each inode, seconds where there
//! are a million. A directory in which another machine works is not to do that again and again to all others
//! (`docs/decisions/0036-names-earn-their-validity.md`).
//!
//! Invariant: how long the kernel may use names of a directory at most is known from before the answer leaves.

use std::collections::BTreeMap;
use std::sync::Mutex;
use std::time::Duration;

use host::Moment;
use protocol::id::InodeId;

use super::lock;
use super::translation::NAME_VALID;

/// For so long nobody must have called a directory back before its names are given for long, at least; and so many times as
/// long as it was quiet before it was called back the last time, but not longer than this.
const QUIET_MIN: Duration = Duration::from_secs(5);
const QUIET_TIMES: u32 = 2;
const QUIET_MAX: Duration = Duration::from_secs(300);

/// After so many looks they are given for a moment: for this part of the time that it was quiet, within these bounds. Whoever
/// calls the directory back waits as long, and programs that work in it look it up a few times a second.
const LOOKS_MIN: u32 = 32;
const BRIEFLY_SHARE: u32 = 4;
const BRIEFLY_MIN: Duration = Duration::from_millis(20);
const BRIEFLY_MAX: Duration = Duration::from_millis(250);

/// So many directories are known. Names of more are not given.
const DIRECTORIES_MAX: usize = 1 << 16;

/// What is known of directories.
#[derive(Default)]
pub(super) struct KeptNames(Mutex<State>);

#[derive(Default)]
struct State {
    directories: BTreeMap<InodeId, Directory>,
    /// Until then the kernel may use names that an earlier process gave it.
    inherited_until: Moment,
    /// How often the kernel was told to forget all names, and up to which time it has done so.
    epoch: Epoch,
    forgotten: Epoch,
}

/// Counts how often the kernel was told to forget all names.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct Epoch(u64);

/// When an answer leaves.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Leaving {
    /// At once: who gives up what is given for a moment takes it to have arrived when that is over.
    Now,
    /// Some time: it gets nothing for a moment.
    Later,
}

struct Directory {
    /// Since when its names are given; none since it was called back.
    since: Option<Moment>,
    /// How often names were looked up since then.
    looks: u32,
    /// How long it has to be quiet before they are given for long.
    quiet: Duration,
    /// How long the kernel may use what it was given, if nobody tells it anything; and when that was given at the latest.
    until: Moment,
    epoch: Epoch,
}

/// What has to be done before the kernel uses names of a directory no more.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Expiry {
    /// Nothing but to wait until then.
    At(Moment),
    /// The kernel has to be told to forget all names.
    ByEpoch,
}

impl KeptNames {
    /// How long the kernel may use names of a directory in an answer, if names there are kept. Whether they are is asked for
    /// here, so that whoever gives them up comes before the question or behind what is noted.
    pub(super) fn valid(
        &self,
        directory: InodeId,
        (now, leaving): (Moment, Leaving),
        is_kept: impl FnOnce() -> bool,
    ) -> Duration {
        let mut state = lock(&self.0);
        if !is_kept() || !state.makes_room(directory) {
            return Duration::ZERO;
        }
        let (epoch, forgotten) = (state.epoch, state.forgotten);
        let unknown = Directory { since: None, looks: 0, quiet: QUIET_MIN, until: Moment::default(), epoch };
        let known = state.directories.entry(directory).or_insert(unknown);
        let since = *known.since.get_or_insert(now);
        known.looks = known.looks.saturating_add(1);
        let valid = match known.looks {
            _ if now - since >= known.quiet => NAME_VALID,
            LOOKS_MIN.. if leaving == Leaving::Now => ((now - since) / BRIEFLY_SHARE).clamp(BRIEFLY_MIN, BRIEFLY_MAX),
            _ => return Duration::ZERO,
        };
        known.until = if known.epoch < forgotten { now + valid } else { known.until.max(now + valid) };
        known.epoch = epoch;
        valid
    }

    /// Names in these directories are given up; nothing is given any more. When, or how, the kernel uses them no more.
    pub(super) fn give_up(&self, directories: &[InodeId], now: Moment) -> Expiry {
        let mut state = lock(&self.0);
        let (mut until, forgotten) = (state.inherited_until, state.forgotten);
        for directory in directories {
            let Some(known) = state.directories.get_mut(directory) else { continue };
            if known.epoch >= forgotten {
                until = until.max(known.until);
            }
            if let Some(since) = known.since.take() {
                known.quiet = ((now - since) * QUIET_TIMES).clamp(QUIET_MIN, QUIET_MAX);
                known.looks = 0;
            }
        }
        if until > now + BRIEFLY_MAX { Expiry::ByEpoch } else { Expiry::At(until) }
    }

    /// The kernel is being told to forget all names: in the end, [`KeptNames::forgot`].
    pub(super) fn forgets(&self) -> Epoch {
        let mut state = lock(&self.0);
        state.epoch.0 += 1;
        state.epoch
    }

    /// It has forgotten whatever it was given before that.
    pub(super) fn forgot(&self, epoch: Epoch) {
        let mut state = lock(&self.0);
        state.forgotten = state.forgotten.max(epoch);
        state.inherited_until = Moment::default();
    }

    /// The kernel has names that another process gave it.
    pub(super) fn inherit(&self, now: Moment) {
        lock(&self.0).inherited_until = now + NAME_VALID;
    }
}

impl State {
    /// Whether there is room for a directory: those of which the kernel has nothing go.
    fn makes_room(&mut self, directory: InodeId) -> bool {
        if self.directories.len() >= DIRECTORIES_MAX && !self.directories.contains_key(&directory) {
            self.directories.retain(|_, known| known.since.is_some());
        }
        self.directories.len() < DIRECTORIES_MAX || self.directories.contains_key(&directory)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const DIRECTORY: InodeId = InodeId(7);

    fn at(seconds: f64) -> Moment {
        Moment::default() + Duration::from_secs_f64(seconds)
    }

    fn valid(names: &KeptNames, seconds: f64) -> Duration {
        names.valid(DIRECTORY, (at(seconds), Leaving::Now), || true)
    }

    #[test]
    fn names_are_given_where_many_are_looked_up_and_for_long_where_nobody_works_for_a_while() {
        let names = KeptNames::default();
        let given: Vec<Duration> = (0..LOOKS_MIN).map(|_| valid(&names, 10.0)).collect();
        assert_eq!(given.iter().filter(|valid| valid.is_zero()).count() as u32, LOOKS_MIN - 1);
        assert_eq!(given.last(), Some(&BRIEFLY_MIN));
        assert_eq!(valid(&names, 10.2), Duration::from_millis(50));
        assert_eq!(valid(&names, 14.9), BRIEFLY_MAX);
        assert_eq!(valid(&names, 15.0), NAME_VALID);
        assert_eq!(names.give_up(&[DIRECTORY], at(20.0)), Expiry::ByEpoch);
        // It was quiet for ten seconds: twenty, this time.
        assert_eq!(valid(&names, 80.0), Duration::ZERO);
        assert!((1..LOOKS_MIN).all(|_| valid(&names, 99.9) < NAME_VALID));
        assert_eq!(names.give_up(&[DIRECTORY], at(99.91)), Expiry::At(at(99.9) + BRIEFLY_MAX));
    }

    #[test]
    fn what_others_change_often_is_told_of_once() {
        let names = KeptNames::default();
        for round in 0..100 {
            let begun = f64::from(round) * 8.0;
            let given = (0..=70).map(|tenth| valid(&names, begun + f64::from(tenth) / 10.0)).max();
            let given_up = names.give_up(&[DIRECTORY], at(begun + 7.5));
            // The first time nobody can know.
            assert_eq!(given == Some(NAME_VALID), round == 0, "round {round}");
            assert_eq!(given_up == Expiry::ByEpoch, round == 0, "round {round}");
            names.forgot(names.forgets());
        }
    }

    #[test]
    fn what_leaves_later_is_given_nothing_for_a_moment() {
        let names = KeptNames::default();
        let later = |seconds| names.valid(DIRECTORY, (at(seconds), Leaving::Later), || true);
        assert!((0..2 * LOOKS_MIN).all(|_| later(1.0).is_zero()));
        assert_eq!(names.give_up(&[DIRECTORY], at(1.0)), Expiry::At(Moment::default()));
        assert_eq!((later(2.0), later(9.0)), (Duration::ZERO, NAME_VALID), "of this the kernel is told");
        assert_eq!(names.give_up(&[DIRECTORY], at(9.0)), Expiry::ByEpoch);
    }

    #[test]
    fn nothing_is_given_that_is_not_kept() {
        let names = KeptNames::default();
        assert_eq!(valid(&names, 1.0), Duration::ZERO);
        assert_eq!(names.valid(DIRECTORY, (at(9.0), Leaving::Now), || false), Duration::ZERO);
        assert_eq!(names.give_up(&[DIRECTORY], at(1.0)), Expiry::At(Moment::default()), "nothing to wait for");
    }

    #[test]
    fn who_serves_on_does_not_know_what_the_kernel_has() {
        let names = KeptNames::default();
        names.inherit(at(1.0));
        assert_eq!(names.give_up(&[DIRECTORY], at(60.0)), Expiry::ByEpoch);
        assert_eq!(names.give_up(&[DIRECTORY], at(61.0)), Expiry::At(at(61.0)));
        names.forgot(names.forgets());
        assert_eq!(names.give_up(&[DIRECTORY], at(1.0)), Expiry::At(Moment::default()));
    }

    #[test]
    fn only_what_was_given_before_the_kernel_was_told_is_forgotten() {
        let names = KeptNames::default();
        assert_eq!((valid(&names, 1.0), valid(&names, 6.0)), (Duration::ZERO, NAME_VALID));
        let told = names.forgets();
        assert_eq!(names.give_up(&[DIRECTORY], at(6.1)), Expiry::ByEpoch, "it may not have done so yet");
        let given = (0..LOOKS_MIN).map(|_| valid(&names, 6.2)).max();
        names.forgot(told);
        assert_eq!(given, Some(BRIEFLY_MIN));
        assert_eq!(names.give_up(&[DIRECTORY], at(6.3)), Expiry::ByEpoch, "it was given something meanwhile");
        names.forgot(names.forgets());
        assert_eq!(names.give_up(&[DIRECTORY], at(6.4)), Expiry::At(Moment::default()));
    }

    #[test]
    fn more_directories_than_fit_get_no_names() {
        let names = KeptNames::default();
        let all: Vec<InodeId> = (100..).map(InodeId).take(DIRECTORIES_MAX).collect();
        let valid = |it, seconds| names.valid(it, (at(seconds), Leaving::Now), || true);
        let given = |seconds| all.iter().filter(|&&it| valid(it, seconds) == NAME_VALID).count();
        assert_eq!((given(1.0), given(6.0)), (0, DIRECTORIES_MAX));
        assert_eq!((valid(DIRECTORY, 6.0), valid(DIRECTORY, 12.0)), (Duration::ZERO, Duration::ZERO));
        names.give_up(&all[..1], at(12.0));
        assert_eq!((valid(DIRECTORY, 12.0), valid(DIRECTORY, 17.0)), (Duration::ZERO, NAME_VALID));
    }
}
