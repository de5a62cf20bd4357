//! One machine's roles, put together: storage, registry, manager, client, cleaner and the mount, in the order in which
//! each can lean on the one before (DESIGN §9), and stopped in the reverse order.

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use cleaner::Cleaner;
use client::{Client, ClientOptions};
use host::{Disk, DiskError, Host, NodeId};
use log::{Cluster, LogReader, ScrubOptions, Scrubber};
use manager::{Manager, ManagerOptions};
use protocol::id::TargetId;
use protocol::maps::{Maps, TargetState};
use protocol::registry::RegistryRequest;
use registry::Registry;
use storage::{OpenError, Storage, TargetOptions};
use tokio::runtime::Handle;
use tokio::sync::{Notify, OnceCell};
use tracing::{error, info, warn};

use crate::command::control_path;
use crate::config::{Config, TargetConfig};
use crate::edge::directory::Room;
use crate::edge::fuse_device::Mount;
use crate::edge::machine::RealMachine;
use crate::edge::mount::Users;
use crate::edge::{control, process, storage_place};
use crate::meter::{Meter, Traffic};
use crate::oracle::NodeOracle;

/// The number of the one node, until more machines join.
pub(crate) const NODE: NodeId = NodeId(1);

/// How often targets are looked at whether they have failed.
const WATCH_INTERVAL: Duration = Duration::from_secs(1);

/// A running node.
pub(crate) struct Node {
    parts: Arc<Parts>,
    mount: Option<Arc<Mount>>,
    stop: Arc<Notify>,
}

/// What commands ask about.
pub(crate) struct Parts {
    pub(crate) dir: PathBuf,
    pub(crate) config: Config,
    pub(crate) cluster: Cluster,
    pub(crate) storage: Storage,
    pub(crate) manager: Arc<Manager>,
    pub(crate) client: Client,
    pub(crate) cleaner: Arc<Cleaner>,
    /// Unless the settings turn it off.
    pub(crate) scrubber: Option<Arc<Scrubber>>,
    /// Targets that do not serve since the start, and why.
    pub(crate) absent: Vec<Absent>,
    /// How fast targets read and write.
    pub(crate) meter: Meter,
    stopped: OnceCell<Result<(), String>>,
}

/// A target that does not serve, and why.
#[derive(Clone, Debug)]
pub(crate) struct Absent {
    pub(crate) target: TargetId,
    pub(crate) name: String,
    pub(crate) why: String,
}

impl Node {
    /// Starts all roles of the file system in `dir`, and mounts it where its settings say.
    pub(crate) async fn start(dir: &Path, runtime: &Handle) -> Result<Node, String> {
        let config = Config::load(dir).map_err(|error| error.to_string())?;
        let host = RealMachine::host(NODE, runtime.clone());
        let parts = Arc::new(Parts::start(dir, config, host, runtime).await?);
        let mount = match &parts.config.mount {
            Some(point) => Some(Arc::new(parts.mount(point, runtime)?)),
            None => None,
        };
        runtime.spawn(watch(parts.clone()));
        let stop = Arc::new(Notify::new());
        let oracle = Arc::new(NodeOracle { parts: parts.clone(), mount: mount.clone(), stop: stop.clone() });
        control::listen(&control_path(dir), oracle)
            .await
            .map_err(|error| format!("{} cannot be listened on: {error}", control_path(dir).display()))?;
        Ok(Node { parts, mount, stop })
    }

    /// What to tell whoever started it.
    pub(crate) fn greeting(&self) -> String {
        let dir = self.parts.dir.display();
        let first = match &self.parts.config.mount {
            Some(point) => format!("{dir} is mounted on {}", point.display()),
            None => format!("{dir} runs; it is mounted nowhere (give --mount)"),
        };
        let absent =
            self.parts.absent.iter().map(|absent| format!("\ngoes on without {}: {}", absent.name, absent.why));
        let behind =
            self.parts.cluster.maps().targets.values().filter(|entry| entry.state == TargetState::Behind).count();
        let advice = match behind {
            0 => String::new(),
            _ => format!("\n{behind} target(s) missed writes; `dazzle repair {dir}` rebuilds what they lack"),
        };
        first + &absent.collect::<String>() + &advice
    }

    /// Runs until asked to stop, by command or signal or by unmounting, and stores everything.
    pub(crate) async fn run(self) {
        tokio::select! {
            // A command has stopped everything and has its answer.
            () = self.stop.notified() => return,
            () = process::stop_signal() => info!("asked to stop by a signal"),
            () = self.unmounted() => info!("unmounted by somebody else"),
        }
        if let Err(error) = self.parts.stop(self.mount.clone(), Users::Dismiss).await {
            error!(error, "stopping was not clean; the next start recovers from the logs");
        }
    }

    /// Returns when somebody else has unmounted.
    async fn unmounted(&self) {
        if let Some(mount) = self.mount.clone() {
            let leaving = tokio::task::spawn_blocking(move || {
                mount.wait();
                mount.is_leaving()
            });
            if matches!(leaving.await, Ok(false)) {
                return;
            }
        }
        std::future::pending().await
    }
}

impl Parts {
    async fn start(dir: &Path, config: Config, host: Host, runtime: &Handle) -> Result<Parts, String> {
        let (disks, mut lost) = own_disks(open_disks(dir, &config, runtime)).await?;
        let registry = Registry::start(&host, disks.clone()).await.map_err(|error| error.to_string())?;
        let cluster = Cluster::connect(host.clone(), NODE).await.map_err(|error| error.to_string())?;
        let replaced = replace_blank(&cluster, &disks).await?;
        let (storage, unopened) = Storage::start(host, cluster.maps().cluster, disks, TargetOptions::default()).await;
        lost.extend(unopened.into_iter().map(|(target, error)| (target, error.to_string())));
        let absent = absent_targets(&cluster.maps(), lost);
        let serving: Vec<_> = storage.targets().into_iter().map(|target| target.id()).collect();
        settle_targets(&cluster, &serving, &registry.outdated()).await?;
        if !replaced.is_empty() {
            info!(?replaced, "empty targets take the place of lost ones");
        }
        let reader = LogReader::new(cluster.clone());
        let (memory_bytes, root_owner) = (config.metadata.0 as usize, process::user());
        let manager_options = ManagerOptions { memory_bytes, root_owner, ..Default::default() };
        let manager = Manager::start(cluster.clone(), reader.clone(), manager_options)
            .await
            .map_err(|error| error.to_string())?;
        let client_options = ClientOptions {
            cache_bytes: (config.cache.0 - config.dirty.0) as usize,
            dirty_bytes: config.dirty.0 as usize,
            ..ClientOptions::default()
        };
        let client =
            Client::start(cluster.clone(), reader.clone(), client_options).await.map_err(|error| error.to_string())?;
        let cleaner = Cleaner::start(cluster.clone(), reader, Default::default()).await;
        let pass = Duration::from_secs(u64::from(config.scrub_days) * 24 * 3600);
        let scrubber = (!pass.is_zero()).then(|| Scrubber::start(cluster.clone(), ScrubOptions { pass }));
        let (dir, meter, stopped) = (dir.to_owned(), Meter::default(), OnceCell::new());
        Ok(Parts { dir, config, cluster, storage, manager, client, cleaner, scrubber, absent, meter, stopped })
    }

    fn mount(&self, point: &Path, runtime: &Handle) -> Result<Mount, String> {
        let face = Arc::new(fuse::Face::new(self.client.clone(), self.cluster.host().clone()));
        Mount::serve(point.to_owned(), &self.dir, face, runtime.clone()).map_err(|error| error.to_string())
    }

    /// Unmounts, then stores what the client and the manager hold in memory. Whoever asks meanwhile gets the same outcome.
    pub(crate) async fn stop(&self, mount: Option<Arc<Mount>>, users: Users) -> Result<(), String> {
        if let Some(mount) = mount.clone() {
            leave(mount, users).await?;
        }
        let stop_all = async {
            if let Some(scrubber) = &self.scrubber {
                scrubber.stop();
            }
            if let Some(mount) = mount {
                mount.settle().await;
            }
            self.cleaner.stop().await;
            let flushed = self.client.stop().await;
            self.manager.stop().await;
            flushed.map_err(|error| {
                format!("stopped, but not everything could be stored: {error}. What was fsynced is safe")
            })
        };
        self.stopped.get_or_init(|| stop_all).await.clone()
    }

    /// Whether everything has ended.
    pub(crate) fn is_stopped(&self) -> bool {
        self.stopped.initialized()
    }
}

/// Unmounts, where nobody else has, and waits until the last call was answered.
async fn leave(mount: Arc<Mount>, users: Users) -> Result<(), String> {
    // Both wait for answers that tasks of this runtime may have to give.
    let left = tokio::task::spawn_blocking(move || {
        if !mount.has_ended() {
            mount.unmount(users).map_err(|error| error.to_string())?;
        }
        mount.wait();
        Ok(())
    });
    left.await.unwrap_or_else(|error| Err(format!("the thread that unmounts ended: {error}")))
}

/// Opens the disk of every target that is there; with each, its number.
pub(crate) fn open_disks(dir: &Path, config: &Config, runtime: &Handle) -> Vec<(TargetId, Result<Disk, DiskError>)> {
    let paths: Vec<PathBuf> = config.targets.iter().map(|target| dir.join(&target.path)).collect();
    let sharers = storage_place::sharers(&paths);
    let targets = paths.iter().zip(&config.targets).zip(sharers);
    let open = |((path, target), sharers): ((&PathBuf, &TargetConfig), u64)| {
        let room = Room { bytes_limit: target.limit.map_or(0, |limit| limit.0), sharers };
        storage_place::open_disk(path, room, runtime.clone())
    };
    (0u32..).map(TargetId).zip(targets.map(open)).collect()
}

type Disks = Vec<(TargetId, Disk)>;
type Lost = Vec<(TargetId, String)>;

/// The disks that hold this file system's targets, or nothing; and the others, which are left as they are. A disk may be
/// anything: a device whose name has changed, a target of another file system that was put in the wrong place.
async fn own_disks(opened: Vec<(TargetId, Result<Disk, DiskError>)>) -> Result<(Disks, Lost), String> {
    let (mut disks, mut lost) = (Vec::new(), Vec::new());
    for (target, opened) in opened {
        let owned = match opened {
            Ok(disk) => storage::owner(&disk).await.map(|owner| (disk, owner)),
            Err(error) => Err(OpenError::Disk(error)),
        };
        match owned {
            Ok((_, Some((_, found)))) if found != target => {
                lost.push((target, OpenError::OtherTarget { found }.to_string()))
            }
            Ok((disk, owner)) => disks.push((target, disk, owner.map(|(cluster, _)| cluster))),
            Err(error) => lost.push((target, error.to_string())),
        }
    }
    let Some(cluster) = most(disks.iter().filter_map(|(_, _, cluster)| *cluster))? else {
        let reasons: String = lost.iter().map(|(target, why)| format!("\ntarget {}: {why}", target.0)).collect();
        return Err(format!("no target of this file system is there{reasons}"));
    };
    let foreign = |found: Option<u128>| found.filter(|found| *found != cluster);
    for (target, _, owner) in &disks {
        lost.extend(foreign(*owner).map(|found| (*target, OpenError::OtherCluster { found }.to_string())));
    }
    let own = disks.into_iter().filter(|(_, _, owner)| foreign(*owner).is_none());
    Ok((own.map(|(target, disk, _)| (target, disk)).collect(), lost))
}

/// The cluster that most targets belong to.
fn most(clusters: impl Iterator<Item = u128>) -> Result<Option<u128>, String> {
    let mut counts: BTreeMap<u128, usize> = BTreeMap::new();
    clusters.for_each(|cluster| *counts.entry(cluster).or_default() += 1);
    let Some((&first, &count)) = counts.iter().max_by_key(|(_, count)| **count) else { return Ok(None) };
    if counts.iter().any(|(&cluster, &other)| cluster != first && other == count) {
        return Err(
            "as many targets belong to one file system as to another; take away those that do not belong here. \
                    Nothing was changed"
                .into(),
        );
    }
    Ok(Some(first))
}

/// Formats disks of known targets that hold nothing: each takes the place of one that was lost. It is behind before it
/// can be opened, so that a crash in between leaves no empty target that passes for whole.
async fn replace_blank(cluster: &Cluster, disks: &[(TargetId, Disk)]) -> Result<Vec<TargetId>, String> {
    let maps = cluster.maps();
    let mut replaced = Vec::new();
    for (target, disk) in disks {
        // A disk that cannot be read is no blank one; opening it says what is wrong.
        if maps.targets.contains_key(target) && storage::is_blank(disk).await.unwrap_or(false) {
            mark(cluster, *target, TargetState::Behind).await?;
            storage::format(disk, maps.cluster, *target, TargetOptions::default())
                .await
                .map_err(|error| format!("the empty target {} cannot be formatted: {error}", target.0))?;
            replaced.push(*target);
        }
    }
    Ok(replaced)
}

/// Tells the registry which targets serve. One that comes back, or whose copy of the registry shows that it missed
/// changes, stays behind until it was repaired (DESIGN §3, targets that come back).
async fn settle_targets(cluster: &Cluster, serving: &[TargetId], outdated: &[TargetId]) -> Result<(), String> {
    for (target, entry) in &cluster.maps().targets {
        let state = match (serving.contains(target), entry.state) {
            (false, _) => TargetState::Failed,
            (true, TargetState::Failed) => TargetState::Behind,
            (true, _) if outdated.contains(target) => TargetState::Behind,
            (true, state) => state,
        };
        if state != entry.state {
            warn!(target = target.0, ?state, "a target's state has changed");
            mark(cluster, *target, state).await?;
        }
    }
    Ok(())
}

/// Notes how fast bytes move, and tells the registry when a target fails while it serves: new stripes are laid without
/// it, and `status` says so.
async fn watch(parts: Arc<Parts>) {
    let mut failed: BTreeSet<TargetId> = BTreeSet::new();
    loop {
        parts.cluster.host().sleep(WATCH_INTERVAL).await;
        let targets = parts.storage.targets();
        parts.meter.note(parts.cluster.host().now(), traffic(&targets));
        let fresh: Vec<_> = targets.iter().filter(|target| !failed.contains(&target.id())).collect();
        for (target, why) in fresh.iter().filter_map(|target| Some((target.id(), target.failure()?))) {
            error!(target = target.0, why, "a target has failed; going on without it");
            match mark(&parts.cluster, target, TargetState::Failed).await {
                Ok(()) => drop(failed.insert(target)),
                Err(error) => warn!(error, "the registry does not know of it yet"),
            }
        }
    }
}

/// What all targets together have read and written.
fn traffic(targets: &[&Arc<storage::Target>]) -> Traffic {
    let counts = targets.iter().map(|target| target.traffic());
    counts.fold(Traffic::default(), |sum, (read, written)| Traffic {
        bytes_read: sum.bytes_read + read,
        bytes_written: sum.bytes_written + written,
    })
}

async fn mark(cluster: &Cluster, target: TargetId, state: TargetState) -> Result<(), String> {
    let marked = cluster.registry(RegistryRequest::SetTarget(target, state)).await;
    marked.map(drop).map_err(|error| format!("target {} could not be marked {state:?}: {error}", target.0))
}

/// Targets that do not serve, with their names and what to do about each.
fn absent_targets(maps: &Maps, lost: Lost) -> Vec<Absent> {
    let absent = |(target, why): (TargetId, String)| {
        let name = maps.targets.get(&target).map_or_else(|| format!("target {}", target.0), |entry| entry.name.clone());
        warn!(target = target.0, why, "a target does not serve; going on without it");
        Absent { target, name, why }
    };
    lost.into_iter().map(absent).collect()
}
