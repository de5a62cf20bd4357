//! Group commit: whoever comes first works for all who wait (DESIGN §3, durability).
//!
//! Work happens in rounds, one at a time. A waiter names the number that must be reached, and either finds that it has
//! been, or waits for the round that runs, or leads the next one.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::SeqCst};

use event_listener::Event;

/// Counts rounds, and says whose turn it is.
#[derive(Debug)]
pub(crate) struct Rounds {
    started: AtomicU64,
    completed: AtomicU64,
    led: AtomicBool,
    changed: Event,
}

/// What a waiter gets.
#[derive(Debug)]
pub(crate) enum Turn {
    /// The number has been reached.
    Reached,
    /// The waiter leads: nobody else does until this is dropped.
    Lead(Lead),
}

/// The right to run a round.
#[derive(Debug)]
pub(crate) struct Lead(Arc<Rounds>);

impl Rounds {
    /// Rounds up to `first` are over.
    pub(crate) fn new(first: u64) -> Rounds {
        Rounds {
            started: AtomicU64::new(first),
            completed: AtomicU64::new(first),
            led: AtomicBool::new(false),
            changed: Event::new(),
        }
    }

    /// The number that the newest round will reach.
    pub(crate) fn started(&self) -> u64 {
        self.started.load(SeqCst)
    }

    /// The number that has been reached.
    pub(crate) fn completed(&self) -> u64 {
        self.completed.load(SeqCst)
    }

    /// Waits until `need` is reached or it is the caller's turn to lead.
    pub(crate) async fn turn(self: &Arc<Self>, need: u64) -> Turn {
        loop {
            if self.completed() >= need {
                return Turn::Reached;
            }
            if let Some(lead) = self.try_lead() {
                // It may have been reached between the two looks.
                return if self.completed() >= need { Turn::Reached } else { Turn::Lead(lead) };
            }
            let changed = self.changed.listen();
            if self.completed() < need && self.led.load(SeqCst) {
                changed.await;
            }
        }
    }

    /// The lead, if nobody has it.
    pub(crate) fn try_lead(self: &Arc<Self>) -> Option<Lead> {
        (!self.led.swap(true, SeqCst)).then(|| Lead(self.clone()))
    }
}

impl Lead {
    /// The round that begins now will reach `number`.
    pub(crate) fn begin(&self, number: u64) {
        self.0.started.fetch_max(number, SeqCst);
    }

    /// The round has reached `number`.
    pub(crate) fn finish(self, number: u64) {
        self.0.completed.fetch_max(number, SeqCst);
    }
}

impl Drop for Lead {
    /// Also when the round failed: then the next waiter leads.
    fn drop(&mut self) {
        self.0.led.store(false, SeqCst);
        self.0.changed.notify(usize::MAX);
    }
}
