//! The lease of a client's machine, which the test gives and takes.

use std::pin::pin;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use event_listener::Event;
use futures_util::future::select;
use host::{BoxFuture, Host, Moment};
use log::Lease;

/// What is left at least of one that is renewed.
pub const LEFT_MIN: Duration = Duration::from_millis(600);

/// One life's lease; it holds until the test says otherwise.
#[derive(Clone)]
pub struct TestLease(Arc<Shared>);

struct Shared {
    host: Host,
    state: Mutex<State>,
    changed: Event,
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum State {
    Holds,
    Until(Moment),
    Over,
}

impl TestLease {
    pub fn new(host: Host) -> TestLease {
        TestLease(Arc::new(Shared { host, state: Mutex::new(State::Holds), changed: Event::new() }))
    }

    /// It is renewed no more, and holds for so long by the machine's own clock.
    pub fn run_out(&self, left: Duration) {
        assert!(left >= LEFT_MIN, "more was promised");
        self.set(State::Until(self.0.host.now() + left));
    }

    /// It holds again.
    pub fn renew(&self) {
        self.set(State::Holds);
    }

    /// The machine has heard that its session is over.
    pub fn end(&self) {
        self.set(State::Over);
    }

    fn set(&self, state: State) {
        *self.0.state.lock().unwrap() = state;
        self.0.changed.notify(usize::MAX);
    }

    fn state(&self) -> State {
        *self.0.state.lock().unwrap()
    }

    fn holds(&self) -> bool {
        !self.left().is_zero()
    }
}

impl Lease for TestLease {
    fn left(&self) -> Duration {
        match self.state() {
            State::Holds => LEFT_MIN + Duration::from_nanos(1),
            State::Until(end) => end - self.0.host.now(),
            State::Over => Duration::ZERO,
        }
    }

    fn is_over(&self) -> bool {
        self.state() == State::Over
    }

    fn lapse(&self) -> BoxFuture<'static, ()> {
        let lease = self.clone();
        Box::pin(async move {
            while lease.holds() {
                let changed = lease.0.changed.listen();
                match lease.state() {
                    State::Until(end) => drop(select(changed, pin!(lease.0.host.sleep_until(end))).await),
                    State::Holds | State::Over => changed.await,
                }
            }
        })
    }

    fn outcome(&self) -> BoxFuture<'static, ()> {
        let lease = self.clone();
        Box::pin(async move {
            loop {
                let changed = lease.0.changed.listen();
                if lease.holds() || lease.is_over() {
                    return;
                }
                changed.await;
            }
        })
    }
}
