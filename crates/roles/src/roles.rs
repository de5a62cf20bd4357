//! One machine's roles, put together: storage, registry, manager, client and cleaner, in the order in which each can lean on
//! the one before (DESIGN §9), and stopped in the reverse order.
//!
//! Invariants
//! 1. Nothing here answers for the node before its session has begun, or after its lease ran out.
//! 2. What an earlier process held, this one holds from the moment on at which it answers managers, or not at all.
//! 3. A target serves before the registry says so; one that does not serve is said to have failed.
//! 4. One that may have forgotten something serves after the registry has noted that: see `storage::Opening`.

use std::collections::BTreeMap;
use std::pin::pin;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError, Weak};
use std::time::Duration;

use cleaner::{Cleaner, CleanerOptions};
use client::{Client, ClientError, ClientOptions};
use futures_util::future::{Either, select};
use host::Disk;
use log::{Cluster, LogReader, RebuildOptions, Rebuilder, ScrubOptions, Scrubber};
use manager::{Manager, ManagerOptions};
use protocol::id::TargetId;
use protocol::maps::TargetState;
use protocol::storage::StorageRequest;
use registry::{Registry, Session};
use storage::{Storage, Target, TargetOptions};
use tracing::{error, info, warn};

use crate::lease;
use crate::succession::Inherited;
use crate::targets::{
    Absent, Lost, absent_targets, give_up, give_up_forgotten, mark, replace_blank, settle_targets, tell_sizes,
    until_known,
};

/// How often targets are looked at whether they have failed, and the session whether it is over.
const WATCH_INTERVAL: Duration = Duration::from_secs(1);
/// How often it is looked whether they hold more or less than the registry knows.
const SIZES_INTERVAL: Duration = Duration::from_secs(30);
/// How long a part that stops is waited for once this machine's lease has run out: the others are gone, or going.
const STOP_PATIENCE: Duration = Duration::from_secs(3);
/// How long it is waited for in any case. Machines that stop at the same time may wait for each other: each is given slots of
/// those that have stopped, and manages none of them any more.
const STOP_MAX: Duration = Duration::from_secs(60);

/// How the roles are run.
#[derive(Default)]
pub struct RolesOptions {
    /// Where others call this machine.
    pub address: String,
    /// What people call targets whose disks they give up, whatever lay there alone.
    pub given_up: Vec<String>,
    /// How its targets are laid out.
    pub target: TargetOptions,
    /// How it manages.
    pub manager: ManagerOptions,
    /// How it serves files.
    pub client: ClientOptions,
    /// How it empties stripes.
    pub cleaner: CleanerOptions,
    /// How it makes targets whole.
    pub rebuild: RebuildOptions,
    /// How it reads what is stored again and again.
    pub scrub: ScrubOptions,
}

/// All roles of one life of a machine.
pub struct Roles {
    /// The maps and the way to the targets.
    pub cluster: Cluster,
    /// The registry's replica, on a machine that stores.
    pub registry: Option<Arc<Registry>>,
    /// This life of the node, and whether it ends it by itself.
    pub(crate) session: Session,
    leaving: AtomicBool,
    pub(crate) target_options: TargetOptions,
    /// Its targets.
    pub storage: Storage,
    /// Slots.
    pub manager: Arc<Manager>,
    /// Files.
    pub client: Client,
    /// What empties stripes.
    pub cleaner: Arc<Cleaner>,
    /// What makes targets whole.
    pub rebuilder: Arc<Rebuilder>,
    /// What reads everything again and again, unless that is turned off.
    pub scrubber: Arc<Scrubber>,
    /// Targets that do not serve since the start, and why.
    pub(crate) absent: Mutex<Vec<Absent>>,
}

/// Why a life ends that nobody asked to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Expulsion {
    /// Its lease ran out, and others have what it had.
    Lease,
    /// More targets than parity makes up for lost what they had not synced: a log of its own has a hole, and takes nothing
    /// more.
    Log,
}

impl Roles {
    /// Starts them on the disks of this machine that are there; `lost` are the others. The registry's replica runs already; a
    /// machine without disks has none. `cluster` does not follow the maps yet.
    pub async fn start(
        cluster: Cluster,
        registry: Option<Arc<Registry>>,
        (disks, mut lost): (Vec<(TargetId, Disk)>, Lost),
        options: RolesOptions,
        inherited: Option<Inherited>,
    ) -> Result<Roles, String> {
        let host = cluster.host().clone();
        until_known(&cluster, &disks).await;
        give_up(&cluster, &options.given_up).await?;
        let replaced = replace_blank(&cluster, &disks, options.target).await?;
        let openings = Storage::look(host, cluster.maps().cluster, disks, options.target).await;
        give_up_forgotten(&cluster, openings.targets()).await?;
        let (storage, unopened) = openings.begin().await;
        lost.extend(unopened.into_iter().map(|(target, error)| (target, error.to_string())));
        expect_known(&cluster, registry.as_deref(), &storage)?;
        let kept = inherited.as_ref().map(|inherited| inherited.heritage.log());
        let session = lease::begin(&cluster, options.address, kept).await?;
        cluster.follow();
        let absent = absent_targets(&cluster.maps(), lost);
        let serving: Vec<_> = storage.targets().into_iter().map(|target| target.id()).collect();
        let outdated = registry.as_ref().map(|registry| registry.outdated()).unwrap_or_default();
        let damaged = registry.as_ref().map(|registry| registry.damaged()).unwrap_or_default();
        if !damaged.is_empty() {
            warn!(?damaged, "the registry on these targets was damaged, and is written anew from the others");
        }
        settle_targets(&cluster, &serving, &outdated).await?;
        // Before anything is written by this life.
        if let Err(error) = tell_sizes(&cluster, &storage.targets()).await {
            warn!(error, "it is told later");
        }
        if !replaced.is_empty() {
            info!(?replaced, "empty targets take the place of lost ones");
        }
        let reader = LogReader::new(cluster.clone());
        // Before the manager, which asks it what it holds.
        let resumed = match inherited {
            Some(inherited) => Some(inherited.resume(&cluster, &reader, options.client).await?),
            None => None,
        };
        let managing = ManagerOptions { kept, ..options.manager };
        let manager =
            Manager::start(cluster.clone(), reader.clone(), managing).await.map_err(|error| error.to_string())?;
        let client = match resumed {
            Some(client) => client,
            None => Client::start(cluster.clone(), reader.clone(), options.client)
                .await
                .map_err(|error| error.to_string())?,
        };
        let cleaner = Cleaner::start(cluster.clone(), reader, options.cleaner).await;
        let rebuilder = Rebuilder::start(cluster.clone(), options.rebuild);
        let scrubber = Scrubber::start(cluster.clone(), options.scrub);
        cluster.host().spawn(watch(cluster.clone(), storage.clone(), session.number()));
        let leaving = AtomicBool::new(false);
        Ok(Roles {
            cluster,
            registry,
            session,
            leaving,
            target_options: options.target,
            storage,
            manager,
            client,
            cleaner,
            rebuilder,
            scrubber,
            absent: Mutex::new(absent),
        })
    }

    /// Targets that do not serve since the start, and why.
    pub fn absent(&self) -> Vec<Absent> {
        self.absent.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// Stores what the client and the manager hold in memory, and gives the lease back. What stands above the client has
    /// stopped asking; `settling` is what it still does.
    pub async fn stop(&self, settling: impl Future<Output = ()>) -> Result<(), ClientError> {
        let flushed = self.stop_client(settling).await;
        self.in_time(self.manager.stop()).await;
        self.leave();
        self.hand_over().await;
        // Its lease would run out by itself; so the others need not wait for that.
        if let Err(error) = self.session.clone().end().await {
            info!(%error, "the others were not told that this node has stopped");
        }
        flushed
    }

    /// Has another machine lead the registry, if this one does: it is about to go.
    pub(crate) async fn hand_over(&self) {
        if let Some(registry) = &self.registry {
            registry.hand_over().await;
        }
    }

    /// Stores what the client holds, and ends what works beside it.
    pub(crate) async fn stop_client(&self, settling: impl Future<Output = ()>) -> Result<(), ClientError> {
        self.rebuilder.stop();
        self.scrubber.stop();
        self.in_time(settling).await;
        self.in_time(self.cleaner.stop()).await;
        let lonely = || Err(ClientError::Unreachable("the other machines do not answer".into()));
        self.in_time(self.client.stop()).await.unwrap_or_else(lonely)
    }

    /// This life ends by itself from now on: the end of its lease is nobody's doing.
    pub(crate) fn leave(&self) {
        self.leaving.store(true, Ordering::Release);
    }

    /// The number of this life's session.
    pub fn session(&self) -> u64 {
        self.session.number()
    }

    /// Returns when this life must end, for whatever reason.
    pub async fn expelled(&self) -> Expulsion {
        let holes = async {
            let (client, manager) = (pin!(self.client.lost()), pin!(self.manager.lost()));
            select(client, manager).await;
        };
        match select(pin!(self.outlived()), pin!(holes)).await {
            Either::Left(_) => Expulsion::Lease,
            Either::Right(_) if self.leaving.load(Ordering::Acquire) => std::future::pending().await,
            Either::Right(_) => Expulsion::Log,
        }
    }

    /// Returns when the registry has given to others what this node had.
    async fn outlived(&self) {
        loop {
            self.session.lost().await;
            if self.leaving.load(Ordering::Acquire) {
                // It was given back.
                std::future::pending::<()>().await;
            }
            if self.session.is_over() {
                return;
            }
            self.cluster.host().sleep(WATCH_INTERVAL).await;
        }
    }

    /// Waits for a part to stop, while there is a cluster: it may need machines that have stopped before. What it did not
    /// store then is in the logs.
    pub(crate) async fn in_time<T>(&self, stopping: impl Future<Output = T>) -> Option<T> {
        let too_long = pin!(self.cluster.host().sleep(STOP_MAX));
        match select(pin!(self.in_company(stopping)), too_long).await {
            Either::Left((stopped, _)) => stopped,
            Either::Right(_) => {
                warn!("a part did not stop in {} s; the next start recovers from the logs", STOP_MAX.as_secs());
                None
            }
        }
    }

    /// Waits for something while this machine's lease holds, and a little longer.
    pub(crate) async fn in_company<T>(&self, awaited: impl Future<Output = T>) -> Option<T> {
        let alone = async {
            self.cluster.distrust().await;
            self.cluster.host().sleep(STOP_PATIENCE).await;
        };
        match select(pin!(awaited), pin!(alone)).await {
            Either::Left((outcome, _)) => Some(outcome),
            Either::Right(_) => {
                warn!("the other machines do not answer, or the registry has given this one up; not waiting for them");
                None
            }
        }
    }
}

/// Refuses to begin with a registry that is older than what its targets hold, as one that was put back from somewhere: it would
/// give numbers again that others have. Where others vote too, a replica may be behind, and learns what it lacks.
fn expect_known(cluster: &Cluster, registry: Option<&Registry>, storage: &Storage) -> Result<(), String> {
    if registry.is_none_or(|registry| registry.voters() != [cluster.host().node().0]) {
        return Ok(());
    }
    let next = cluster.maps().next_log;
    let newest = storage.targets().iter().filter_map(|target| target.fences().into_keys().next_back()).max();
    match newest.filter(|newest| *newest >= next) {
        None => Ok(()),
        Some(log) => Err(format!(
            "the registry on these targets is older than what they hold: it does not know log {}. What lies there was \
             left alone. Put back its newest copies, if there are any; else `dazzle registry rebuild DIR --plan` says \
             what can be made of what is there",
            log.0
        )),
    }
}

/// Tells the registry when a target fails while it serves: new stripes are laid without it, and `status` says so. And when
/// one serves that it takes for failed or new, in this life of the node, or one whose disk hung and answers again; and of what
/// fits on them now and then.
async fn watch(cluster: Cluster, storage: Storage, session: u64) {
    // A target that was replaced, or serves again, may fail again.
    let mut known: BTreeMap<TargetId, Weak<Target>> = BTreeMap::new();
    let mut sizes_due = cluster.host().now() + SIZES_INTERVAL;
    loop {
        cluster.host().sleep(WATCH_INTERVAL).await;
        let maps = cluster.maps();
        if registry::nodes::current(&maps, cluster.host().node().0, session).is_err() {
            continue;
        }
        if cluster.host().now() >= sizes_due {
            sizes_due = cluster.host().now() + SIZES_INTERVAL;
            if let Err(error) = tell_sizes(&cluster, &storage.targets()).await {
                warn!(error, "it is told later");
            }
        }
        for target in storage.targets() {
            let id = target.id();
            let Some((_, entry)) = maps.present().find(|(present, _)| *present == id) else { continue };
            let is_known = known.get(&id).is_some_and(|known| known.as_ptr() == Arc::as_ptr(&target));
            let marked = match target.failure() {
                Some(why) if !is_known => {
                    error!(target = id.0, why, "a target has failed; going on without it");
                    mark(&cluster, id, TargetState::Failed)
                        .await
                        .map(|()| drop(known.insert(id, Arc::downgrade(&target))))
                }
                // It was said that it serves before it failed, and came later.
                Some(_) if entry.serves() => mark(&cluster, id, TargetState::Failed).await,
                Some(_) => Ok(()),
                None => {
                    known.remove(&id);
                    if entry.serves() { Ok(()) } else { take_back(&cluster, &target).await }
                }
            };
            if let Err(error) = marked {
                warn!(error, "the registry does not know of it yet");
            }
        }
    }
}

/// A target serves again. What it was given before it failed may be in its machine's memory alone, and who wrote that has not
/// waited for it: it is made durable before anybody finds it there and counts on it.
async fn take_back(cluster: &Cluster, target: &Arc<Target>) -> Result<(), String> {
    let id = target.id();
    let synced = target.serve(StorageRequest::Sync).await;
    synced.map_err(|error| format!("target {} is not called back yet: {error}", id.0))?;
    mark(cluster, id, TargetState::Behind).await
}
