//! One machine's roles, put together: storage, registry, manager, client, cleaner and the mount, in the order in which
//! each can lean on the one before (DESIGN §9), and stopped in the reverse order.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use cleaner::Cleaner;
use client::{Client, ClientOptions};
use host::{Disk, DiskError, Host, NodeId};
use log::{Cluster, LogReader};
use manager::{Manager, ManagerOptions};
use protocol::id::TargetId;
use protocol::maps::TargetState;
use protocol::registry::RegistryRequest;
use registry::Registry;
use storage::{Storage, TargetOptions};
use tokio::runtime::Handle;
use tokio::sync::Notify;
use tracing::{error, info, warn};

use crate::command::control_path;
use crate::config::{Config, TargetConfig};
use crate::edge::directory::Room;
use crate::edge::fuse_device::Mount;
use crate::edge::machine::RealMachine;
use crate::edge::{control, process, storage_place};
use crate::oracle::NodeOracle;

/// The number of the one node, until more machines join.
pub(crate) const NODE: NodeId = NodeId(1);

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
    pub(crate) reader: LogReader,
    pub(crate) storage: Storage,
    pub(crate) manager: Arc<Manager>,
    pub(crate) client: Client,
    pub(crate) cleaner: Arc<Cleaner>,
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
        match &self.parts.config.mount {
            Some(point) => format!("{dir} is mounted on {}", point.display()),
            None => format!("{dir} runs; it is mounted nowhere (give --mount)"),
        }
    }

    /// Runs until asked to stop, by command or signal or by unmounting, and stores everything.
    pub(crate) async fn run(self) {
        let unmounted = async {
            match self.mount.clone() {
                Some(mount) => {
                    // The thread that waits for the mount to end may wait for ever.
                    let _ = tokio::task::spawn_blocking(move || mount.wait()).await;
                }
                None => std::future::pending().await,
            }
        };
        tokio::select! {
            () = self.stop.notified() => return,
            () = process::stop_signal() => info!("asked to stop by a signal"),
            () = unmounted => info!("unmounted"),
        }
        if let Err(error) = self.parts.stop(self.mount.as_deref()).await {
            error!(error, "stopping was not clean; the next start recovers from the logs");
        }
    }
}

impl Parts {
    async fn start(dir: &Path, config: Config, host: Host, runtime: &Handle) -> Result<Parts, String> {
        let mut disks = Vec::with_capacity(config.targets.len());
        for (target, opened) in open_disks(dir, &config, runtime) {
            match opened {
                Ok(disk) => disks.push((target, disk)),
                Err(error) => warn!(target = target.0, %error, "a target is not there; going on without it"),
            }
        }
        let registry = Registry::start(&host, disks.clone()).await.map_err(|error| error.to_string())?;
        let (storage, lost) =
            Storage::start(host.clone(), registry.maps().cluster, disks, TargetOptions::default()).await;
        let cluster = Cluster::connect(host, NODE).await.map_err(|error| error.to_string())?;
        for (target, error) in &lost {
            warn!(target = target.0, %error, "a target does not open; going on without it");
        }
        let serving: Vec<_> = storage.targets().into_iter().map(|target| target.id()).collect();
        settle_targets(&cluster, &serving).await?;
        let reader = LogReader::new(cluster.clone());
        let manager_options = ManagerOptions { memory_bytes: config.metadata.0 as usize, ..Default::default() };
        let manager = Manager::start(cluster.clone(), reader.clone(), manager_options)
            .await
            .map_err(|error| error.to_string())?;
        let client_options = ClientOptions {
            cache_bytes: config.cache.0 as usize,
            dirty_bytes: config.dirty.0 as usize,
            ..ClientOptions::default()
        };
        let client =
            Client::start(cluster.clone(), reader.clone(), client_options).await.map_err(|error| error.to_string())?;
        let cleaner = Cleaner::start(cluster.clone(), reader.clone(), Default::default()).await;
        Ok(Parts { dir: dir.to_owned(), config, cluster, reader, storage, manager, client, cleaner })
    }

    fn mount(&self, point: &Path, runtime: &Handle) -> Result<Mount, String> {
        let face = Arc::new(fuse::Face::new(self.client.clone(), self.cluster.host().clone()));
        Mount::serve(point.to_owned(), &self.dir, face, runtime.clone()).map_err(|error| error.to_string())
    }

    /// Unmounts, then stores what the client and the manager hold in memory.
    pub(crate) async fn stop(&self, mount: Option<&Mount>) -> Result<(), String> {
        if let Some(mount) = mount {
            mount.unmount();
        }
        self.cleaner.stop().await;
        let flushed = self.client.stop().await.map_err(|error| format!("not everything could be stored: {error}"));
        self.manager.stop().await;
        flushed
    }
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

/// Tells the registry which targets serve. One that comes back stays behind until it was repaired (DESIGN §3, targets that
/// come back).
async fn settle_targets(cluster: &Cluster, serving: &[TargetId]) -> Result<(), String> {
    let maps = cluster.maps();
    for (target, entry) in &maps.targets {
        let state = match (serving.contains(target), entry.state) {
            (false, _) => TargetState::Failed,
            (true, TargetState::Failed) => TargetState::Behind,
            (true, state) => state,
        };
        if state != entry.state {
            warn!(target = target.0, ?state, "a target's state has changed");
            cluster
                .registry(RegistryRequest::SetTarget(*target, state))
                .await
                .map_err(|error| format!("target {} could not be marked {state:?}: {error}", target.0))?;
        }
    }
    Ok(())
}
