//! Whether the other end of a connection lives: `docs/format-network.md`, *Time*. Pure.
//!
//! Life is told by bytes that come. Where something is waited for and nothing comes, a ping goes out ahead of everything;
//! what then stays silent is dead. While the ping itself waits for a frame to leave, life is told by that frame's leaving:
//! a slow link is no dead one, and a full buffer before a dead one does not fill for ever.
//!
//! Each connection has two: of the machine, which any byte on any connection with it shows to be alive, and which must
//! be known dead soon; and of the connection itself, which a full link may delay for long while the machine is well.
//!
//! ```text
//!   Listening ── silence ──> Pinging ── the ping has left ──> Asked ── silence ──> dead
//!       ^  <── a byte came ──┘    └── nothing leaves ──> dead       │
//!       └──────────────── a byte came ──────────────────────────────┘
//! ```

use std::time::Duration;

/// How long a machine's silence is borne, while something is waited for and after a ping.
pub const PATIENCE: Duration = Duration::from_millis(500);
/// How long it is borne when nothing is waited for, and a single connection's silence while something is.
pub const KEEP_ALIVE: Duration = Duration::from_secs(5);
/// How often somebody looks.
pub const BEAT: Duration = Duration::from_millis(100);
/// Of the time since the last look, so much counts: who did not come to look did not come to read, either.
const BEAT_COUNTED_MAX: Duration = Duration::from_millis(200);

/// What is seen of a connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Sight {
    /// The time, from any start.
    pub now: Duration,
    /// Bytes that came in all, of what is watched.
    pub received: u64,
    /// Bytes that left in all.
    pub sent: u64,
    /// Whether every ping that was put out has left.
    pub pings_left: bool,
    /// Whether calls are under way or bytes wait to be sent.
    pub waiting: bool,
}

/// What is to be done.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Beat {
    /// Nothing.
    Rest,
    /// Send a ping.
    Ping,
    /// Give up the connection.
    Dead,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum State {
    Listening,
    Pinging,
    Asked,
}

/// What is remembered from beat to beat.
#[derive(Debug)]
pub struct Pulse {
    patience: Duration,
    keep_alive: Duration,
    /// The last look, by the caller's clock and by ours, which counts looks that came late as if they had not.
    looked: Duration,
    now: Duration,
    state: State,
    /// The last sign of life, or of what is taken for one.
    since: Duration,
    /// When something began to be waited for, if it is.
    waiting_since: Option<Duration>,
    received: u64,
    sent: u64,
}

impl Pulse {
    /// Of the machine at the other end of a connection that has just been made.
    pub fn of_machine(now: Duration) -> Pulse {
        Pulse::new(now, PATIENCE, KEEP_ALIVE)
    }

    /// Of such a connection itself.
    pub fn of_connection(now: Duration) -> Pulse {
        Pulse::new(now, KEEP_ALIVE, 2 * KEEP_ALIVE)
    }

    fn new(looked: Duration, patience: Duration, keep_alive: Duration) -> Pulse {
        let (now, since) = (Duration::ZERO, Duration::ZERO);
        let state = State::Listening;
        Pulse { patience, keep_alive, looked, now, state, since, waiting_since: None, received: 0, sent: 0 }
    }

    /// Looks.
    pub fn beat(&mut self, sight: Sight) -> Beat {
        self.now += sight.now.saturating_sub(self.looked).min(BEAT_COUNTED_MAX);
        self.looked = sight.now;
        let now = self.now;
        let progress = sight.sent != self.sent;
        let life = sight.received != self.received;
        (self.sent, self.received) = (sight.sent, sight.received);
        self.waiting_since = if sight.waiting { self.waiting_since.or(Some(now)) } else { None };
        if life {
            (self.state, self.since) = (State::Listening, now);
        } else if self.state == State::Pinging && (progress || sight.pings_left) {
            self.since = now;
            if sight.pings_left {
                self.state = State::Asked;
            }
        }
        let silence = now.saturating_sub(self.since);
        match self.state {
            State::Listening => {
                let waited = self.waiting_since.is_some_and(|since| now.saturating_sub(since) >= self.patience);
                if silence >= self.keep_alive || (silence >= self.patience && waited) {
                    (self.state, self.since) = (State::Pinging, now);
                    return Beat::Ping;
                }
                Beat::Rest
            }
            State::Pinging | State::Asked if silence >= self.patience => Beat::Dead,
            State::Pinging | State::Asked => Beat::Rest,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A connection watched beat by beat.
    struct Watched {
        pulse: Pulse,
        sight: Sight,
    }

    impl Watched {
        fn new() -> Watched {
            let sight = Sight { now: Duration::ZERO, received: 0, sent: 0, pings_left: true, waiting: false };
            Watched { pulse: Pulse::of_machine(Duration::ZERO), sight }
        }

        /// Beats until something is to be done; `each` makes what happens in between.
        fn until(&mut self, limit: Duration, mut each: impl FnMut(&mut Sight)) -> Beat {
            let end = self.sight.now + limit;
            while self.sight.now < end {
                self.sight.now += BEAT;
                each(&mut self.sight);
                let beat = self.pulse.beat(self.sight);
                if beat != Beat::Rest {
                    return beat;
                }
            }
            Beat::Rest
        }
    }

    const LONG: Duration = Duration::from_secs(60);
    /// What the page promises.
    const BOUND: Duration = Duration::from_secs(2);

    #[test]
    fn a_silent_peer_with_calls_under_way_is_dead_within_the_bound() {
        let mut watched = Watched::new();
        assert_eq!(watched.until(LONG, |sight| sight.waiting = true), Beat::Ping);
        assert_eq!(watched.until(LONG, |_| {}), Beat::Dead);
        assert!(watched.sight.now <= BOUND, "{:?}", watched.sight.now);
    }

    #[test]
    fn a_peer_that_takes_no_bytes_is_dead_within_the_bound() {
        let mut watched = Watched::new();
        assert_eq!(watched.until(LONG, |sight| sight.waiting = true), Beat::Ping);
        watched.sight.pings_left = false;
        let mut beats = 0;
        // The frame before the ping leaves for a while, and then the ping, into a buffer that nobody empties.
        let outcome = watched.until(LONG, |sight| {
            beats += 1;
            sight.sent += u64::from(beats < 3);
            sight.pings_left = beats >= 6;
        });
        assert_eq!(outcome, Beat::Dead);
        assert!(watched.sight.now <= BOUND, "{:?}", watched.sight.now);
    }

    #[test]
    fn a_slow_handler_fails_no_call() {
        let mut watched = Watched::new();
        watched.sight.waiting = true;
        for _ in 0..100 {
            assert_eq!(watched.until(LONG, |_| {}), Beat::Ping);
            watched.sight.received += 32;
        }
    }

    #[test]
    fn a_slow_link_is_no_dead_one() {
        let mut watched = Watched::new();
        assert_eq!(watched.until(LONG, |sight| sight.waiting = true), Beat::Ping);
        watched.sight.pings_left = false;
        assert_eq!(watched.until(LONG, |sight| sight.sent += 1), Beat::Rest, "as long as it moves");
        let mut watched = Watched::new();
        watched.sight.waiting = true;
        assert_eq!(watched.until(LONG, |sight| sight.received += 1), Beat::Rest);
    }

    #[test]
    fn bytes_that_leave_after_the_ping_are_no_sign_of_life() {
        let mut watched = Watched::new();
        assert_eq!(watched.until(LONG, |sight| sight.waiting = true), Beat::Ping);
        assert_eq!(watched.until(LONG, |sight| sight.sent += 1), Beat::Dead);
        assert!(watched.sight.now <= BOUND);
    }

    #[test]
    fn a_call_after_long_rest_is_given_the_whole_patience() {
        let mut watched = Watched::new();
        assert_eq!(watched.until(Duration::from_secs(4), |_| {}), Beat::Rest);
        let began = watched.sight.now;
        assert_eq!(watched.until(LONG, |sight| sight.waiting = true), Beat::Ping);
        assert!(watched.sight.now - began >= PATIENCE);
    }

    #[test]
    fn an_idle_connection_is_asked_now_and_then() {
        let mut watched = Watched::new();
        assert_eq!(watched.until(LONG, |_| {}), Beat::Ping);
        assert_eq!(watched.sight.now, KEEP_ALIVE);
        assert_eq!(watched.until(LONG, |_| {}), Beat::Dead);
    }

    #[test]
    fn time_in_which_nobody_looked_is_not_held_against_the_peer() {
        let mut watched = Watched::new();
        watched.sight.waiting = true;
        // This process stood still; what came meanwhile lies unread.
        watched.sight.now += Duration::from_secs(10);
        assert_eq!(watched.pulse.beat(watched.sight), Beat::Rest);
        assert_eq!(watched.until(LONG, |_| {}), Beat::Ping);
        watched.sight.now += Duration::from_secs(10);
        assert_eq!(watched.pulse.beat(watched.sight), Beat::Rest);
        assert_eq!(watched.until(LONG, |_| {}), Beat::Dead);
    }

    #[test]
    fn a_connection_is_borne_with_for_longer_than_a_machine() {
        let mut watched = Watched::new();
        watched.pulse = Pulse::of_connection(Duration::ZERO);
        assert_eq!(watched.until(LONG, |sight| sight.waiting = true), Beat::Ping);
        assert!(watched.sight.now >= KEEP_ALIVE);
        assert_eq!(watched.until(LONG, |_| {}), Beat::Dead);
        assert!(watched.sight.now <= 3 * KEEP_ALIVE, "{:?}", watched.sight.now);
    }
}
