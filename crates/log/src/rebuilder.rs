//! Makes again what targets lack that were away or emptied, until they are whole, without being told (DESIGN §9), and finds out
//! which are empty that were to be. This file awaits; `rebuilding` and `leaving` decide.
//!
//! One node looks for all, and all that store do the work: it hands each of them one stripe after another, the most exposed
//! first, and of these one of its own. What lies on targets that stay away is made again on others, where there are any
//! (`replacing`); what cannot be is not rebuilt here: who writes logs lays it anew.

use std::collections::BTreeSet;
use std::pin::pin;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use event_listener::Event;
use futures_util::future::{Either, join_all, select};
use host::{Address, BoxFuture, Envelope, Handler, NodeId, Port};
use protocol::id::TargetId;
use protocol::maps::{Maps, TargetEntry, TargetState};
use protocol::rebuild::{REBUILD_PORT, Refill, Refilled};
use protocol::storage::StorageRequest;

use crate::leaving::draining;
use crate::rebuilding::Lacking;
use crate::replacing::{Astray, replaced, requests};
use crate::wholeness::Look;
use crate::{Absences, Cluster, stripes};

/// How often it is looked whether a target is behind.
const LOOK: Duration = Duration::from_secs(2);
/// So many stripes a machine makes whole at once, so that it reads some while it writes others.
const AT_ONCE: usize = 4;
/// How long a machine is waited for that makes a stripe whole.
const PATIENCE: Duration = Duration::from_secs(30);
/// So many fragments are deleted at once.
const DELETE_MAX: usize = 1024;
/// Looking whether something is empty takes at most one part in so many of the time.
const LOOK_SHARE: u32 = 20;
/// How long it rests when a pass made nothing better, and at least between two looks whether something is empty.
const REST: Duration = Duration::from_secs(30);

/// How a rebuilder works, where nothing else is set for all machines.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RebuildOptions {
    /// How many bytes of stripes each machine reads in a second.
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
    /// Members of groups that others took the place of.
    pub members_replaced: u64,
    /// Stripes that this machine mended, whoever looked for all.
    pub stripes_here: u64,
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
        cluster.host().listen(Port(REBUILD_PORT), Arc::new(Hand(rebuilder.clone())));
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

    /// Whether a target lacks something, in all its groups or in some, or is to take the place of another.
    fn is_due(&self, maps: &Maps, absences: &Absences) -> bool {
        let given_up = absences.given_up(self.cluster.host().now(), self.patience());
        let serves = |target| maps.targets.get(target).is_some_and(TargetEntry::serves);
        maps.targets.values().any(|entry| entry.state == TargetState::Behind)
            || maps.groups.values().flat_map(|group| &group.newcomers).any(serves)
            || !replaced(maps, &given_up).is_empty()
    }

    /// Rebuilds what is lacking now, and says which targets are whole. Returns whether anything became better.
    async fn pass(&self, absences: &Absences) -> bool {
        let Ok(maps) = self.cluster.refresh().await else { return false };
        let given_up = absences.given_up(self.cluster.host().now(), self.patience());
        let mut better = self.replace(&maps, &given_up).await;
        let (mut lacking, mut astray) = (Lacking::default(), Astray::default());
        let note = |maps: &Maps, state| {
            lacking.add(maps, &state);
            astray.add(maps, &state);
        };
        let Ok(look) = Look::take(&self.cluster, note).await else { return better };
        let called = look.call_whole(&self.cluster, &given_up).await;
        self.noted().targets_whole += called.targets;
        better |= called.is_any();
        self.tidy(astray).await;
        (self.noted().stripes, self.noted().stripes_done) = (lacking.len() as u64, 0);
        let left = Mutex::new(lacking);
        let next = |node: NodeId| left.lock().unwrap_or_else(PoisonError::into_inner).next_for(&look.maps, node.0);
        let hands = look.maps.storing().flat_map(|node| [NodeId(node); AT_ONCE]);
        let mended = join_all(hands.map(|node| self.keep_busy(node, next))).await;
        better | mended.contains(&true)
    }

    /// Finds out which targets are empty that were to be emptied. Who cannot be told of it looks again.
    async fn conclude_drains(&self) {
        if let Ok(look) = Look::take(&self.cluster, |_, _| ()).await {
            let _ = look.call_empty(&self.cluster).await;
        }
    }

    /// Gives the places of members that stay away to others. Returns whether any was given.
    async fn replace(&self, maps: &Maps, given_up: &BTreeSet<TargetId>) -> bool {
        let mut better = false;
        for request in requests(maps, given_up) {
            // Who was outrun, by a writer or a machine that went, asks again at the next pass.
            if self.cluster.registry(request).await.is_ok() {
                self.noted().members_replaced += 1;
                better = true;
            }
        }
        better
    }

    /// Deletes what former members have left of stripes that are whole without them.
    async fn tidy(&self, astray: Astray) {
        for (target, fragments) in astray.by_target {
            for some in fragments.chunks(DELETE_MAX) {
                // What is not deleted now takes room until the stripe is.
                let _ = self.cluster.ask(target, StorageRequest::Discard { fragments: some.to_vec() }).await;
            }
        }
    }

    /// Has a node make stripes whole until none is left, or it does not answer, and leaves its disks and its link to others for
    /// what the budget leaves of the time. Returns whether anything became better.
    async fn keep_busy(&self, node: NodeId, next: impl Fn(NodeId) -> Option<Refill>) -> bool {
        let mut better = false;
        while !self.is_stopping()
            && let Some(refill) = next(node)
        {
            let begun = self.cluster.host().now();
            // One that no longer answers has others do what is left, and the next pass what it was at.
            let Some(Refilled(mended)) = self.hand_out(node, refill).await else { break };
            {
                let mut status = self.noted();
                status.stripes_done += 1;
                status.fragments_mended += u64::from(mended);
            }
            better |= mended > 0;
            let rate = self.cluster.maps().settings.rebuild_or(self.options.bytes_per_second);
            let share = rate.max(1) as f64 / AT_ONCE as f64;
            let budget = Duration::from_secs_f64(f64::from(refill.length) / share);
            self.sleep(budget.saturating_sub(self.cluster.host().now().since(begun))).await;
        }
        better
    }

    async fn hand_out(&self, node: NodeId, refill: Refill) -> Option<Refilled> {
        let (host, to) = (self.cluster.host(), Address { node, port: Port(REBUILD_PORT) });
        let call = pin!(host.call::<Refill, Refilled>(to, refill));
        match select(call, pin!(host.sleep(PATIENCE))).await {
            Either::Left((answer, _)) => answer.ok(),
            Either::Right(_) => None,
        }
    }

    /// How long a target may be away before nobody waits for it any more.
    fn patience(&self) -> Duration {
        self.cluster.maps().settings.patience_or(self.options.patience)
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

/// Makes whole what whoever looks for all hands out.
struct Hand(Arc<Rebuilder>);

impl Handler for Hand {
    fn handle(&self, _from: NodeId, request: Envelope) -> BoxFuture<'static, Envelope> {
        let rebuilder = self.0.clone();
        Box::pin(async move {
            let Ok(Refill { log, stripe, length }) = request.open() else { return Envelope::new(Refilled(0)) };
            // The cleaner may have deleted it since it was listed, or too few targets answer: its turn comes again.
            let repair = stripes::refill(&rebuilder.cluster, log, stripe, length).await.unwrap_or_default();
            rebuilder.noted().stripes_here += u64::from(repair.mended > 0);
            Envelope::new(Refilled(repair.mended as u32))
        })
    }
}

async fn run(rebuilder: Arc<Rebuilder>) {
    let (mut absences, mut pause, mut rested) = (Absences::default(), LOOK, rebuilder.cluster.host().now());
    loop {
        // First of all: a node that has just started has better things to do.
        rebuilder.sleep(pause).await;
        if rebuilder.is_stopping() {
            return;
        }
        let maps = rebuilder.cluster.maps();
        let now = rebuilder.cluster.host().now();
        absences.observe(&maps, now);
        if now >= rested && rebuilder.cluster.leads() && draining(&maps).next().is_some() {
            rebuilder.conclude_drains().await;
            let ended = rebuilder.cluster.host().now();
            rested = ended + REST.max(ended.since(now) * LOOK_SHARE);
        }
        let is_due = rebuilder.cluster.leads() && rebuilder.is_due(&maps, &absences);
        let rests = is_due && !rebuilder.pass(&absences).await;
        pause = if rests { REST } else { LOOK };
    }
}

impl std::fmt::Debug for Rebuilder {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Rebuilder").field("status", &self.status()).finish_non_exhaustive()
    }
}
