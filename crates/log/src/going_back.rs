//! When a log goes back to the current groups that it left because a target failed. Pure.
//!
//! A machine that is back before its lease ends was never gone: the registry forms no groups anew, and a log that went on
//! without its targets would do so for ever, with less redundancy or without the other groups (DESIGN §3, a target fails
//! while writing). But a target that answers and takes nothing must not send the log back and forth, for every turn is a run
//! in its layout. So pauses double, until the log has stayed for as long as the longest.

use std::time::Duration;

use host::Moment;

/// The first pause: a daemon that was killed and started again is there by then.
const PAUSE_MIN: Duration = Duration::from_secs(2);
/// The longest. A target that takes nothing costs two runs in such a time.
const PAUSE_MAX: Duration = Duration::from_hours(1);

/// Of one open log.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct GoingBack {
    due: Option<Moment>,
    /// When it went back last.
    went: Option<Moment>,
    pause: Duration,
}

impl GoingBack {
    /// Of a log that never left.
    pub(crate) fn new() -> GoingBack {
        GoingBack { due: None, went: None, pause: PAUSE_MIN }
    }

    /// The log left current groups.
    pub(crate) fn left(&mut self, now: Moment) {
        if let Some(went) = self.went.take() {
            let is_steady = now.since(went) >= PAUSE_MAX;
            self.pause = if is_steady { PAUSE_MIN } else { (self.pause * 2).min(PAUSE_MAX) };
        }
        self.due = Some(now + self.pause);
    }

    /// Whether it goes back now; asked again it does not, until it has left again.
    pub(crate) fn goes(&mut self, now: Moment) -> bool {
        let goes = self.due.is_some_and(|due| due <= now);
        if goes {
            self.due = None;
            self.went = Some(now);
        }
        goes
    }

    /// How long it is until then, if it is away.
    pub(crate) fn pause(&self, now: Moment) -> Option<Duration> {
        self.due.map(|due| due.since(now))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Goes back as soon as it may, and stays for `stays`; the pauses before.
    fn pauses(stays: &[Duration]) -> Vec<Duration> {
        let (mut back, mut now) = (GoingBack::new(), Moment::default());
        let mut pauses = Vec::new();
        for &stay in stays {
            back.left(now);
            let pause = back.pause(now).expect("it is away");
            assert!(!back.goes(now));
            now = now + pause;
            assert!(back.goes(now) && !back.goes(now) && back.pause(now).is_none(), "once");
            pauses.push(pause);
            now = now + stay;
        }
        pauses
    }

    #[test]
    fn pauses_double_until_the_log_stays() {
        let short = pauses(&[Duration::ZERO; 14]);
        let seconds: Vec<u64> = short.iter().map(Duration::as_secs).collect();
        assert_eq!(seconds, [2, 4, 8, 16, 32, 64, 128, 256, 512, 1024, 2048, 3600, 3600, 3600]);
        let hour = Duration::from_hours(1);
        assert_eq!(pauses(&[Duration::ZERO, Duration::ZERO, hour, hour]), [2, 4, 8, 2].map(Duration::from_secs));
    }

    #[test]
    fn who_leaves_again_before_it_went_back_waits_anew_and_no_longer() {
        let (mut back, now) = (GoingBack::new(), Moment::default());
        back.left(now);
        back.left(now + Duration::from_secs(1));
        assert_eq!(back.pause(now), Some(Duration::from_secs(3)));
    }
}
