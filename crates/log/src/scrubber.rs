//! Reads everything stored, again and again, and makes again what was damaged (DESIGN §4): bits rot where nobody looks, and
//! with m parity fragments damage must be found before the next m targets are lost.
//!
//! A pass takes as long as is set for all, or as its own options say, however much is stored, so that it costs the disks
//! little; it begins anywhere, so that what lies last has its turn on a node that is often started anew. This file awaits;
//! [`pause`] decides.

use std::pin::pin;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use event_listener::Event;
use futures_util::future::select;

use crate::stripes::StripeState;
use crate::{Cluster, Tour, stripes};

/// The least time between two stripes, however many there are: the disks belong to programs.
const PAUSE_MIN: Duration = Duration::from_millis(100);
/// How long it waits for something to be stored.
const PAUSE_EMPTY: Duration = Duration::from_secs(60);

/// How a scrubber works.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ScrubOptions {
    /// In this time everything is read once, unless another is set for all machines: longer, when that would be more than ten
    /// stripes a second. Zero: never.
    pub pass: Duration,
}

/// What a scrubber did since it was started.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ScrubStatus {
    /// Passes ended.
    pub passes: u64,
    /// Stripes looked at in this pass.
    pub stripes_done: u64,
    /// Stripes of this pass.
    pub stripes: u64,
    /// Fragments that were missing or damaged, and made again.
    pub fragments_mended: u64,
    /// Fragments of this pass and the last that cannot be made again: more is lost than parity makes up for.
    pub fragments_lost: u64,
}

/// Reads and repairs in the background.
pub struct Scrubber {
    cluster: Cluster,
    options: ScrubOptions,
    status: Mutex<ScrubStatus>,
    stopping: AtomicBool,
    wake: Event,
}

impl Scrubber {
    /// Begins to read.
    pub fn start(cluster: Cluster, options: ScrubOptions) -> Arc<Scrubber> {
        let scrubber = Arc::new(Scrubber {
            cluster: cluster.clone(),
            options,
            status: Mutex::default(),
            stopping: AtomicBool::new(false),
            wake: Event::new(),
        });
        cluster.host().spawn(run(scrubber.clone()));
        scrubber
    }

    /// What it did so far.
    pub fn status(&self) -> ScrubStatus {
        self.noted().clone()
    }

    /// Ends after the stripe that it is at.
    pub fn stop(&self) {
        self.stopping.store(true, Ordering::Release);
        self.wake.notify(usize::MAX);
    }

    /// One pass over what is stored now.
    async fn pass(&self) {
        let tour = Tour::begin(&self.cluster).await;
        let count = tour.ended();
        if count == 0 {
            return self.sleep(PAUSE_EMPTY).await;
        }
        let first = self.cluster.host().random() % count;
        let mut tour = tour.turned(&self.cluster, first).await;
        (self.noted().stripes, self.noted().stripes_done) = (count, 0);
        let mut lost = 0;
        while let Some(StripeState { log, number, length, .. }) = tour.next(&self.cluster).await {
            if !self.rest_before_one_of(count).await {
                return;
            }
            let found = stripes::repair(&self.cluster, log, number, length).await;
            let mut status = self.noted();
            status.stripes_done += 1;
            // The cleaner may have deleted it since it was listed, or too few targets answer: its turn comes again.
            if let Ok(repair) = found {
                status.fragments_mended += repair.mended as u64;
                lost += repair.beyond as u64;
            }
            status.fragments_lost = status.fragments_lost.max(lost);
        }
        let mut status = self.noted();
        status.passes += 1;
        status.fragments_lost = lost;
    }

    /// In what time everything is read once, as of now. Zero: never.
    fn pass_time(&self) -> Duration {
        self.cluster.maps().settings.scrub_pass_or(self.options.pass)
    }

    /// Waits for as long as the disks belong to programs before each of so many stripes. False: the pass has ended, for this
    /// stops, or nothing is to be read any more.
    async fn rest_before_one_of(&self, stripes: u64) -> bool {
        let begun = self.cluster.host().now();
        loop {
            let news = self.cluster.newer_maps();
            let pass = self.pass_time();
            let rest = pause(pass, stripes).saturating_sub(self.cluster.host().now().since(begun));
            if self.is_stopping() || pass.is_zero() {
                return false;
            }
            if rest.is_zero() {
                return true;
            }
            // It may be told to take another time.
            select(pin!(self.sleep(rest)), news).await;
        }
    }

    async fn sleep(&self, time: Duration) {
        let woken = self.wake.listen();
        if !self.is_stopping() {
            select(woken, pin!(self.cluster.host().sleep(time))).await;
        }
    }

    fn is_stopping(&self) -> bool {
        self.stopping.load(Ordering::Acquire)
    }

    fn noted(&self) -> MutexGuard<'_, ScrubStatus> {
        self.status.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// How often a node that does not scrub looks whether it shall.
const LOOK: Duration = Duration::from_secs(10);

async fn run(scrubber: Arc<Scrubber>) {
    while !scrubber.is_stopping() {
        if scrubber.cluster.leads() && !scrubber.pass_time().is_zero() {
            scrubber.pass().await;
        } else {
            scrubber.cluster.host().sleep(LOOK).await;
        }
    }
}

/// How long to wait before each of so many stripes, so that all take so long.
fn pause(pass: Duration, stripes: u64) -> Duration {
    let even = pass.as_nanos() / u128::from(stripes.max(1));
    Duration::from_nanos(u64::try_from(even).unwrap_or(u64::MAX)).max(PAUSE_MIN)
}

impl std::fmt::Debug for Scrubber {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Scrubber").field("status", &self.status()).finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_pass_takes_its_time_and_never_hurries() {
        let pass = Duration::from_secs(1000);
        assert_eq!(pause(pass, 1), pass);
        assert_eq!(pause(pass, 500), Duration::from_secs(2));
        assert_eq!(pause(pass, u64::MAX), PAUSE_MIN);
        assert_eq!(pause(Duration::MAX, 1), Duration::from_nanos(u64::MAX));
    }
}
