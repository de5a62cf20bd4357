//! One machine's roles, put together: storage, registry, manager, client, cleaner and the mount, in the order in which
//! each can lean on the one before (DESIGN §9), and stopped in the reverse order.

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use cleaner::{Cleaner, CleanerOptions};
use client::{Client, ClientError, ClientOptions, NothingAbove};
use host::{BoxFuture, Host, NodeId};
use log::{Cluster, Lease, LogReader, RebuildOptions, Rebuilder, ScrubOptions, Scrubber};
use manager::{Manager, ManagerOptions};
use protocol::id::TargetId;
use protocol::maps::TargetState;
use protocol::registry::RegistryError;
use registry::Session;
use storage::{Storage, TargetOptions};
use tokio::runtime::Handle;
use tokio::sync::{Notify, OnceCell};
use tracing::{error, info, warn};

use crate::command::control_path;
use crate::config::Config;
use crate::edge::fuse_device::Mount;
use crate::edge::machine::RealMachine;
use crate::edge::mount::Users;
use crate::edge::{control, process};
use crate::membership::{self, Gate};
use crate::meter::{Meter, Traffic};
use crate::oracle::NodeOracle;
use crate::targets::{Absent, absent_targets, mark, open_disks, own_disks, replace_blank, settle_targets};

/// The number of the node that makes a file system.
pub(crate) const NODE: NodeId = NodeId(1);

/// How often targets are looked at whether they have failed.
const WATCH_INTERVAL: Duration = Duration::from_secs(1);
/// How long a part that stops is waited for once this machine's lease has run out: the others are gone, or going.
const STOP_PATIENCE: Duration = Duration::from_secs(3);

/// A running node.
pub(crate) struct Node {
    parts: Arc<Parts>,
    mount: Option<Arc<Mount>>,
    stop: Arc<Notify>,
}

/// How a node's life ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Ending {
    /// As it was asked to.
    Stopped,
    /// Others have what it managed; it may begin another life.
    Expelled,
}

/// What commands ask about.
pub(crate) struct Parts {
    pub(crate) dir: PathBuf,
    pub(crate) config: Config,
    pub(crate) cluster: Cluster,
    /// This life of the node, and whether it ends it by itself.
    session: Session,
    leaving: AtomicBool,
    /// Where other machines can be let in.
    gate: Option<Arc<Gate>>,
    pub(crate) storage: Storage,
    pub(crate) manager: Arc<Manager>,
    pub(crate) client: Client,
    pub(crate) cleaner: Arc<Cleaner>,
    pub(crate) rebuilder: Arc<Rebuilder>,
    /// Unless the settings turn it off.
    pub(crate) scrubber: Option<Arc<Scrubber>>,
    /// Targets that do not serve since the start, and why.
    pub(crate) absent: Vec<Absent>,
    /// How fast targets read and write.
    pub(crate) meter: Meter,
    stopped: OnceCell<Result<(), String>>,
}

impl Node {
    /// Starts all roles of the file system in `dir`, and mounts it where its settings say.
    pub(crate) async fn start(dir: &Path, runtime: &Handle) -> Result<Node, String> {
        let mut config = Config::load(dir).map_err(|error| error.to_string())?;
        let (machine, gate) = membership::connect(dir, &config, runtime).await?;
        let host = Host::new(machine.clone());
        membership::settle_in((dir, &mut config), &host, runtime).await?;
        let parts = Arc::new(Parts::start(dir, config, (machine, gate), runtime).await?);
        let mount = match &parts.config.mount {
            Some(point) => Some(parts.mount(point, runtime)?),
            None => {
                parts.client.answer_managers(Arc::new(NothingAbove));
                None
            }
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
            _ => format!("\n{behind} target(s) missed writes; what they lack is being rebuilt"),
        };
        first + &absent.collect::<String>() + &advice
    }

    /// Runs until asked to stop, by command or signal or by unmounting, and stores everything; or until its lease is lost.
    pub(crate) async fn run(self) -> Ending {
        tokio::select! {
            // A command has stopped everything and has its answer.
            () = self.stop.notified() => return Ending::Stopped,
            () = process::stop_signal() => info!("asked to stop by a signal"),
            () = self.unmounted() => info!("unmounted by somebody else"),
            () = self.parts.expelled() => {
                error!("this machine did not renew its lease in time, and others have taken over what it managed: this daemon \
                        ends. What was fsynced is safe; programs that have files open here get errors for them");
                self.dismiss().await;
                return Ending::Expelled;
            }
        }
        if let Err(error) = self.parts.stop(self.mount.clone(), Users::Dismiss).await {
            error!(error, "stopping was not clean; the next start recovers from the logs");
        }
        Ending::Stopped
    }

    /// Unmounts with nothing stored, which cannot be any more.
    async fn dismiss(&self) {
        let Some(mount) = self.mount.clone() else { return };
        let unmounting = tokio::task::spawn_blocking(move || mount.unmount(Users::Dismiss));
        tokio::select! {
            unmounted = unmounting => if let Ok(Err(error)) = unmounted {
                warn!(%error, "the mount stays until this daemon has ended");
            },
            () = self.parts.cluster.host().sleep(WATCH_INTERVAL) => {}
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
    async fn start(
        dir: &Path,
        config: Config,
        (machine, gate): (Arc<RealMachine>, Option<Arc<Gate>>),
        runtime: &Handle,
    ) -> Result<Parts, String> {
        let host = Host::new(machine.clone());
        let (disks, mut lost) = own_disks(open_disks(dir, &config, runtime)).await?;
        let registry = membership::start_registry(&host, &config, disks.clone()).await?;
        membership::introduce(&machine, &registry, runtime);
        let cluster = Cluster::connect(host.clone(), host.node()).await.map_err(|error| error.to_string())?;
        let replaced = replace_blank(&cluster, &disks).await?;
        let (storage, unopened) = Storage::start(host, cluster.maps().cluster, disks, TargetOptions::default()).await;
        lost.extend(unopened.into_iter().map(|(target, error)| (target, error.to_string())));
        let session = begin(&cluster, &config).await?;
        cluster.follow();
        let absent = absent_targets(&cluster.maps(), lost);
        let serving: Vec<_> = storage.targets().into_iter().map(|target| target.id()).collect();
        settle_targets(&cluster, &serving, &registry.outdated()).await?;
        if !replaced.is_empty() {
            info!(?replaced, "empty targets take the place of lost ones");
        }
        if let Some(gate) = &gate {
            gate.open(cluster.clone());
        }
        let reader = LogReader::new(cluster.clone());
        let (memory_bytes, root_owner) = (config.metadata.0 as usize, process::user());
        let patience = Duration::from_secs(u64::from(config.rebuild_minutes) * 60);
        let manager_options = ManagerOptions { memory_bytes, root_owner, patience, ..Default::default() };
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
        let bytes_per_second = config.rebuild.0;
        let cleaner_options =
            CleanerOptions { bytes_per_second_exposed: bytes_per_second, patience, ..Default::default() };
        let cleaner = Cleaner::start(cluster.clone(), reader, cleaner_options).await;
        let rebuilder = Rebuilder::start(cluster.clone(), RebuildOptions { bytes_per_second, patience });
        let pass = Duration::from_secs(u64::from(config.scrub_days) * 24 * 3600);
        let scrubber = (!pass.is_zero()).then(|| Scrubber::start(cluster.clone(), ScrubOptions { pass }));
        let (dir, meter, stopped) = (dir.to_owned(), Meter::default(), OnceCell::new());
        Ok(Parts {
            dir,
            config,
            cluster,
            session,
            leaving: AtomicBool::new(false),
            gate,
            storage,
            manager,
            client,
            cleaner,
            rebuilder,
            scrubber,
            absent,
            meter,
            stopped,
        })
    }

    /// Waits for a part to stop, while there is a cluster: it may need machines that have stopped before. What it did not
    /// store then is in the logs.
    async fn in_time<T>(&self, stopping: impl Future<Output = T>) -> Option<T> {
        let alone = async {
            self.cluster.distrust().await;
            self.cluster.host().sleep(STOP_PATIENCE).await;
        };
        tokio::select! {
            stopped = stopping => Some(stopped),
            () = alone => {
                warn!("a part did not stop in time; the next start recovers from the logs");
                None
            }
        }
    }

    /// A token, by which another machine can join.
    pub(crate) fn invite(&self) -> Result<serde_json::Value, String> {
        let none = "machines are let in where the file system was made with --address, and nowhere else";
        let token = self.gate.as_ref().ok_or(none)?.issue()?;
        Ok(serde_json::json!({"token": token.to_string(), "expires": token.expires.to_string()}))
    }

    fn mount(&self, point: &Path, runtime: &Handle) -> Result<Arc<Mount>, String> {
        let face = Arc::new(fuse::Face::new(self.client.clone(), self.cluster.host().clone()));
        let mount = Mount::serve(point.to_owned(), &self.dir, face.clone(), runtime.clone());
        let mount = Arc::new(mount.map_err(|error| error.to_string())?);
        self.client.answer_managers(face.kernel(mount.clone()));
        Ok(mount)
    }

    /// Unmounts, then stores what the client and the manager hold in memory. Whoever asks meanwhile gets the same outcome.
    pub(crate) async fn stop(&self, mount: Option<Arc<Mount>>, users: Users) -> Result<(), String> {
        if let Some(mount) = mount.clone() {
            leave(mount, users).await?;
        }
        let stop_all = async {
            self.rebuilder.stop();
            if let Some(scrubber) = &self.scrubber {
                scrubber.stop();
            }
            if let Some(mount) = mount {
                self.in_time(mount.settle()).await;
            }
            self.in_time(self.cleaner.stop()).await;
            let lonely = || Err(ClientError::Unreachable("the other machines do not answer".into()));
            let flushed = self.in_time(self.client.stop()).await.unwrap_or_else(lonely);
            self.in_time(self.manager.stop()).await;
            // Its lease would run out by itself; so the others need not wait for that.
            self.leaving.store(true, Ordering::Release);
            if let Err(error) = self.session.clone().end().await {
                info!(%error, "the others were not told that this node has stopped");
            }
            flushed.map_err(|error| {
                format!("stopped, but not everything could be stored: {error}. What was fsynced is safe")
            })
        };
        self.stopped.get_or_init(|| stop_all).await.clone()
    }

    /// Returns when the registry has given to others what this node had.
    async fn expelled(&self) {
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

    /// Whether everything has ended.
    pub(crate) fn is_stopped(&self) -> bool {
        self.stopped.initialized()
    }
}

/// Begins this life of the node: from now on others count with it, and it answers as long as its lease holds.
async fn begin(cluster: &Cluster, config: &Config) -> Result<Session, String> {
    let host = cluster.host();
    let node = host.node();
    let maps = cluster.maps();
    let others = maps.nodes.iter().filter(|&(&other, entry)| other != node.0 && entry.stores);
    let ask = [node].into_iter().chain(others.map(|(&other, _)| NodeId(other))).collect();
    let address = config.cluster.as_ref().map_or_else(String::new, |own| own.address.clone());
    let session = Session::begin(host, ask, node.0, address).await.map_err(|error| match error {
        RegistryError::Removed(_) => "this machine was removed from the cluster with `dazzle node remove`. Nothing that lies \
                                      here is needed any more; to take part again, `dazzle join` with another, empty \
                                      directory"
            .to_owned(),
        error => format!(
            "the cluster did not take this node in: {error}. Start the other machines too; more than half of those that vote \
             must run"
        ),
    })?;
    cluster.refresh().await.map_err(|error| error.to_string())?;
    cluster.lease_by(Box::new(OwnLease(session.clone(), host.clone())));
    Ok(session)
}

/// The lease of this node's session.
struct OwnLease(Session, Host);

impl Lease for OwnLease {
    fn holds(&self) -> bool {
        self.0.holds(self.1.now())
    }

    fn is_over(&self) -> bool {
        self.0.is_over()
    }

    fn lapse(&self) -> BoxFuture<'static, ()> {
        let session = self.0.clone();
        Box::pin(async move { session.lost().await })
    }

    fn outcome(&self) -> BoxFuture<'static, ()> {
        let session = self.0.clone();
        Box::pin(async move { session.settled().await })
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

/// Notes how fast bytes move, and tells the registry when a target fails while it serves: new stripes are laid without
/// it, and `status` says so.
async fn watch(parts: Arc<Parts>) {
    let mut failed: BTreeSet<TargetId> = BTreeSet::new();
    loop {
        parts.cluster.host().sleep(WATCH_INTERVAL).await;
        let targets = parts.storage.targets();
        parts.meter.note(parts.cluster.host().now(), traffic(&targets));
        let maps = parts.cluster.maps();
        let counts = |target: TargetId| maps.present().any(|(id, _)| id == target) && !failed.contains(&target);
        let fresh: Vec<_> = targets.iter().filter(|target| counts(target.id())).collect();
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
