//! Makes again what targets lack that were away or emptied, until they are whole, without being told (DESIGN §9). This file
//! awaits; `rebuilding` decides.
//!
//! One node does it for all. What lies on targets that stay away is not rebuilt here: who writes logs lays it anew.

use std::collections::BTreeSet;
use std::pin::pin;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use event_listener::Event;
use futures_util::future::{join_all, select};
use protocol::id::TargetId;
use protocol::maps::{Maps, TargetState};
use protocol::registry::RegistryRequest;
use protocol::storage::StorageRequest;

use crate::rebuilding::{in_order, whole_again};
use crate::stripes::StripeState;
use crate::{Absences, Cluster, stripes};

/// How often it is looked whether a target is behind.
const LOOK: Duration = Duration::from_secs(2);
/// How long it rests when a pass made nothing better.
const REST: Duration = Duration::from_secs(30);

/// How a rebuilder works.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RebuildOptions {
    /// How many bytes of stripes it reads in a second.
    pub bytes_per_second: u64,
    /// How long a target may be away before nobody waits for it any more.
    pub patience: Duration,
}

impl Default for RebuildOptions {
    fn default() -> Self {
        RebuildOptions { bytes_per_second: 100 << 20, patience: Duration::from_secs(600) }
    }
}

/// What a rebuilder did since it was started.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct RebuildStatus {
    /// Stripes of this pass that lacked something.
    pub stripes: u64,
    /// Those that were looked at.
    pub stripes_done: u64,
    /// Fragments made again.
    pub fragments_mended: u64,
    /// Targets that are whole again.
    pub targets_whole: u64,
}

/// Rebuilds in the background.
pub struct Rebuilder {
    cluster: Cluster,
    options: RebuildOptions,
    status: Mutex<RebuildStatus>,
    stopping: AtomicBool,
    wake: Event,
}

impl Rebuilder {
    /// Begins to look for targets that are behind.
    pub fn start(cluster: Cluster, options: RebuildOptions) -> Arc<Rebuilder> {
        let rebuilder = Arc::new(Rebuilder {
            cluster: cluster.clone(),
            options,
            status: Mutex::default(),
            stopping: AtomicBool::new(false),
            wake: Event::new(),
        });
        cluster.host().spawn(run(rebuilder.clone()));
        rebuilder
    }

    /// What it did so far.
    pub fn status(&self) -> RebuildStatus {
        self.noted().clone()
    }

    /// Ends after the stripe that it is at.
    pub fn stop(&self) {
        self.stopping.store(true, Ordering::Release);
        self.wake.notify(usize::MAX);
    }

    /// Rebuilds what is lacking now, and says which targets are whole. Returns whether anything became better.
    async fn pass(&self, absences: &Absences) -> bool {
        let Ok(maps) = self.cluster.refresh().await else { return false };
        let silent = self.silent(&maps).await;
        let states = stripes::list(&self.cluster, None).await;
        let given_up = absences.given_up(self.cluster.host().now(), self.options.patience);
        let mut better = false;
        for target in whole_again(&maps, &states, &silent, &given_up) {
            let whole = RegistryRequest::SetTarget(target, TargetState::Whole);
            if self.cluster.registry(whole).await.is_ok() {
                self.noted().targets_whole += 1;
                better = true;
            }
        }
        let lacking = in_order(&maps, states);
        (self.noted().stripes, self.noted().stripes_done) = (lacking.len() as u64, 0);
        for state in lacking {
            if self.is_stopping() {
                return better;
            }
            better |= self.mend(&state).await;
        }
        better
    }

    /// Makes again what one stripe lacks, and leaves the disks to others for as long as the budget says.
    async fn mend(&self, state: &StripeState) -> bool {
        // The cleaner may have deleted it since it was listed, or too few targets answer: its turn comes again.
        let repair = stripes::repair(&self.cluster, state.log, state.number).await.unwrap_or_default();
        {
            let mut status = self.noted();
            status.stripes_done += 1;
            status.fragments_mended += repair.mended as u64;
        }
        let bytes = f64::from(state.length) / self.options.bytes_per_second.max(1) as f64;
        self.sleep(Duration::from_secs_f64(bytes)).await;
        repair.mended > 0
    }

    /// The targets that should answer and do not.
    async fn silent(&self, maps: &Maps) -> BTreeSet<TargetId> {
        let serving = maps.present().filter(|(_, entry)| entry.state != TargetState::Failed);
        let serving: Vec<TargetId> = serving.map(|(target, _)| target).collect();
        let answers = join_all(serving.iter().map(|&target| self.cluster.ask(target, StorageRequest::Stat))).await;
        serving.into_iter().zip(answers).filter(|(_, answer)| answer.is_err()).map(|(target, _)| target).collect()
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

    fn noted(&self) -> MutexGuard<'_, RebuildStatus> {
        self.status.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

async fn run(rebuilder: Arc<Rebuilder>) {
    let (mut absences, mut pause) = (Absences::default(), LOOK);
    loop {
        // First of all: a node that has just started has better things to do.
        rebuilder.sleep(pause).await;
        if rebuilder.is_stopping() {
            return;
        }
        let maps = rebuilder.cluster.maps();
        absences.observe(&maps, rebuilder.cluster.host().now());
        let is_behind = maps.targets.values().any(|entry| entry.state == TargetState::Behind);
        let rests = is_behind && rebuilder.cluster.leads() && !rebuilder.pass(&absences).await;
        pause = if rests { REST } else { LOOK };
    }
}

impl std::fmt::Debug for Rebuilder {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Rebuilder").field("status", &self.status()).finish_non_exhaustive()
    }
}
