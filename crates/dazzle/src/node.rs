//! A running daemon: its machine's roles, with the mount above them, the network around them, and answers for commands.

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::Duration;

use cleaner::CleanerOptions;
use client::{ClientError, ClientOptions, NothingAbove};
use host::{BoxFuture, Host, NodeId};
use log::{Cluster, RebuildOptions, ScrubOptions};
use manager::ManagerOptions;
use protocol::maps::{Maps, NodeState, TargetState};
use roles::targets::own_disks;
use roles::{Above, Expulsion, Inherited, NoWill, Roles, RolesOptions, Stays, joining};
use tokio::runtime::Handle;
use tokio::sync::{Mutex, Notify, OnceCell};
use tracing::{error, info, warn};

use crate::command::control_path;
use crate::config::Config;
use crate::edge::control::{self, Listening};
use crate::edge::fuse_device::Mount;
use crate::edge::machine::RealMachine;
use crate::edge::mount::Users;
use crate::edge::process;
use crate::edge::trust::Date;
use crate::membership::{self, Gate, Yard};
use crate::meter::{Meter, Traffic};
use crate::oracle::NodeOracle;
use crate::succession::{Inheritance, Will};
use crate::targets::open_disks;
use crate::vouching;

/// The number of the node that makes a file system.
pub(crate) const NODE: NodeId = NodeId(1);

/// How often it is noted how fast bytes move.
const METER_INTERVAL: Duration = Duration::from_secs(1);
/// How long a mount is waited for that is taken away.
const DISMISS_PATIENCE: Duration = Duration::from_secs(1);

/// A running node.
pub(crate) struct Node {
    parts: Arc<Parts>,
    mount: Option<Arc<Mount>>,
    stop: Arc<Notify>,
    /// Commands are answered as long as it lives.
    _listening: Listening,
}

/// What a daemon begins with.
pub(crate) enum Origin {
    /// With what is on its disks, but for what people call these targets: they give up what lay there.
    Anew {
        /// Their names or numbers.
        given_up: Vec<String>,
    },
    /// With what the process before left open.
    Heir(Box<Inheritance>),
}

/// How a node's life ended.
#[derive(Debug)]
pub(crate) enum Ending {
    /// As it was asked to.
    Stopped,
    /// Another process is to go on with this.
    Followed(Box<Will>),
    /// Others have what it managed; it may begin another life.
    Expelled,
}

/// What commands ask about.
pub(crate) struct Parts {
    pub(crate) dir: PathBuf,
    pub(crate) config: Config,
    pub(crate) roles: Roles,
    /// One target is added or replaced after the other.
    pub(crate) supplying: Mutex<()>,
    /// Where other machines can be let in.
    gate: Option<Arc<Gate>>,
    /// Whether it goes on with what another process left.
    pub(crate) inherited: bool,
    /// How fast targets read and write.
    pub(crate) meter: Meter,
    stopped: OnceCell<Result<(), String>>,
    /// How this life ends, if another process is to follow.
    ending: Mutex<Option<Ending>>,
    /// How many commands wait to be told that this machine, or all, have stopped.
    askers: AtomicUsize,
    /// It ends, stored or not, so that its machine is promoted: once that was decided, and then once that was answered.
    yields: AtomicBool,
    yielding: Notify,
}

impl Node {
    /// Starts all roles of the file system in `dir`, and mounts it where its settings say; or goes on with what the process
    /// before left, where it is mounted still.
    pub(crate) async fn start(dir: &Path, runtime: &Handle, origin: Origin) -> Result<Node, String> {
        let config = Config::load(dir).map_err(|error| error.to_string())?;
        let (machine, gate) = membership::connect(dir, &config, runtime).await?;
        let begun = Node::begin(dir, config, (machine.clone(), gate), runtime, origin).await;
        begun.map_err(|error| membership::explain(&machine, error))
    }

    async fn begin(
        dir: &Path,
        mut config: Config,
        (machine, gate): (Arc<RealMachine>, Option<Arc<Gate>>),
        runtime: &Handle,
        origin: Origin,
    ) -> Result<Node, String> {
        let host = Host::new(machine.clone()).with_byways();
        let (inherited, adopted, given_up) = match origin {
            Origin::Heir(inheritance) => {
                let (inherited, adopted) = inheritance.divide(host.clone(), runtime.clone());
                (Some(inherited), Some(adopted), Vec::new())
            }
            Origin::Anew { given_up } => (None, None, given_up),
        };
        membership::settle_in((dir, &mut config), &host, runtime).await?;
        let options = RolesOptions { given_up, ..options(&config) };
        let parts = Arc::new(Parts::start(dir, (config, options), (machine, host, gate), runtime, inherited).await?);
        let mount = match &parts.config.mount {
            _ if adopted.is_some() => adopted.and_then(|adopted| adopted.get().cloned()),
            Some(point) => Some(parts.mount(point, runtime)?),
            None => {
                parts.roles.client.answer_managers(Arc::new(NothingAbove));
                None
            }
        };
        runtime.spawn(measure(parts.clone()));
        if let Some(mount) = &mount {
            runtime.spawn(vouching::vouch(parts.clone(), mount.clone()));
        }
        let stop = Arc::new(Notify::new());
        let oracle = Arc::new(NodeOracle { parts: parts.clone(), mount: mount.clone(), stop: stop.clone() });
        let listening = control::listen(&control_path(dir), oracle)
            .await
            .map_err(|error| format!("{} cannot be listened on: {error}", control_path(dir).display()))?;
        Ok(Node { parts, mount, stop, _listening: listening })
    }

    /// What to tell whoever started it.
    pub(crate) fn greeting(&self) -> String {
        let dir = self.parts.dir.display();
        let first = match &self.parts.config.mount {
            Some(point) => format!("{dir} is mounted on {}", point.display()),
            None => format!("{dir} runs; it is mounted nowhere (give --mount)"),
        };
        let absent = self.parts.roles.absent().into_iter();
        let absent = absent.map(|absent| format!("\ngoes on without {}: {}", absent.name, absent.why));
        let behind =
            self.parts.roles.cluster.maps().targets.values().filter(|entry| entry.state == TargetState::Behind).count();
        let advice = match behind {
            0 => String::new(),
            _ => format!("\n{behind} target(s) missed writes; what they lack is being rebuilt"),
        };
        first + &absent.collect::<String>() + &advice
    }

    /// Runs until asked to stop, by command or signal or by unmounting or because all machines stop, and stores everything;
    /// or until its lease is lost.
    pub(crate) async fn run(self) -> Ending {
        tokio::select! {
            // A command has stopped everything and has its answer.
            () = self.stop.notified() => {
                let ending = self.parts.ending.lock().await.take().unwrap_or(Ending::Stopped);
                if matches!(ending, Ending::Expelled) {
                    self.dismiss().await;
                }
                return ending;
            }
            () = process::stop_signal() => info!("asked to stop by a signal"),
            () = self.unmounted() => info!("unmounted by somebody else"),
            () = self.parts.stopped_with_all(self.mount.clone()) => {
                while self.parts.askers.load(Ordering::Acquire) > 0 {
                    self.stop.notified().await;
                }
                return Ending::Stopped;
            }
            () = self.parts.yielding.notified() => {
                info!("this daemon ends, for its machine is to be promoted");
                self.dismiss().await;
                return Ending::Stopped;
            }
            expulsion = self.parts.roles.expelled() => {
                let why = match expulsion {
                    Expulsion::Lease => "did not renew its lease in time, and others have taken over what it managed",
                    Expulsion::Log => "lost what was not fsynced yet, with the power of too many targets",
                };
                error!("this machine {why}: this daemon ends. What was fsynced is safe; programs that have files open here \
                        get errors for them");
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
            () = self.parts.roles.cluster.host().sleep(DISMISS_PATIENCE) => {}
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
        (config, options): (Config, RolesOptions),
        (machine, host, gate): (Arc<RealMachine>, Host, Option<Arc<Gate>>),
        runtime: &Handle,
        inherited: Option<Inherited>,
    ) -> Result<Parts, String> {
        let peers = membership::peers(&config);
        let is_successor = inherited.is_some();
        let roles = if config.targets.is_empty() {
            membership::expect_welcome(&machine, &peers).await?;
            let cluster = joining::ask(&host, &peers).await?;
            membership::expect_alone(&machine, &cluster.maps(), host.node()).await?;
            membership::remember(dir, &config, &cluster.maps())?;
            membership::introduce(&machine, &cluster, runtime);
            membership::keep_remembering(dir, &cluster, runtime);
            Roles::start(cluster, None, Default::default(), options, inherited).await?
        } else {
            let opened = own_disks(open_disks(dir, &config, runtime)).await;
            let (disks, lost) = opened.map_err(|error| membership::advise(&config, host.node(), error))?;
            membership::introduce_known(&machine, &disks).await;
            let note = |maps: &Maps| membership::remember(dir, &config, maps);
            let registry = joining::start_registry(&host, &peers, disks.clone(), &note).await?;
            membership::expect_alone(&machine, &registry.maps(), host.node()).await?;
            membership::introduce_by_replica(&machine, &registry, runtime);
            let cluster = Cluster::connect(host.clone(), host.node()).await.map_err(|error| error.to_string())?;
            Roles::start(cluster, Some(registry), (disks, lost), options, inherited).await?
        };
        membership::announce_name(&roles.cluster, &config).await;
        if let Some(gate) = &gate {
            let (cluster, registry) = (roles.cluster.clone(), roles.registry.clone());
            gate.open(Yard { cluster, registry, budget: config.rebuild.0 });
        }
        Ok(Parts {
            dir: dir.to_owned(),
            config,
            roles,
            supplying: Mutex::new(()),
            gate,
            inherited: is_successor,
            meter: Meter::default(),
            stopped: OnceCell::new(),
            ending: Mutex::default(),
            yields: AtomicBool::new(false),
            yielding: Notify::new(),
            askers: AtomicUsize::new(0),
        })
    }

    /// A token, by which another machine can join.
    pub(crate) fn invite(&self) -> Result<serde_json::Value, String> {
        let none = "this machine lets no others in: it only mounts, or its file system is not open to others yet. Where it \
                    stores: `dazzle down DIR`, and then `dazzle up DIR --address HOST:PORT`";
        let token = self.gate.as_ref().ok_or(none)?.issue()?;
        Ok(serde_json::json!({"token": token.to_string(), "expires": Date(token.invitation.expires).to_string()}))
    }

    fn mount(&self, point: &Path, runtime: &Handle) -> Result<Arc<Mount>, String> {
        let face = Arc::new(fuse::Face::new(self.roles.client.clone(), self.roles.cluster.host().clone()));
        let mount = Mount::serve(point.to_owned(), &self.dir, face.clone(), runtime.clone(), self.config.io_uring);
        let mount = Arc::new(mount.map_err(|error| error.to_string())?);
        self.roles.client.answer_managers(face.kernel(mount.clone()));
        Ok(mount)
    }

    /// Unmounts, then stores what the client and the manager hold in memory. Whoever asks meanwhile gets the same outcome.
    pub(crate) async fn stop(&self, mount: Option<Arc<Mount>>, users: Users) -> Result<(), String> {
        if let Some(mount) = mount.clone() {
            leave(mount, users).await?;
        }
        let stop = async { self.roles.stop(MountAbove(mount).settle()).await.map_err(not_stored) };
        self.stopped.get_or_init(|| stop).await.clone()
    }

    /// A command that stops something waits for its answer, or has it.
    pub(crate) fn count_askers(&self, more: bool) {
        if more {
            self.askers.fetch_add(1, Ordering::AcqRel);
        } else {
            self.askers.fetch_sub(1, Ordering::AcqRel);
        }
    }

    /// Makes place for a command that promotes this machine, once it has its answer: all sessions end by that, and there is no
    /// quorum to store anything with.
    pub(crate) fn yield_place(&self) {
        self.yields.store(true, Ordering::Release);
    }

    /// That command has its answer.
    pub(crate) fn has_answered(&self) {
        if self.yields.load(Ordering::Acquire) {
            self.yielding.notify_one();
        }
    }

    /// Ends all roles, and leaves what is open to another process.
    pub(crate) async fn restart(&self, mount: Option<Arc<Mount>>) -> Result<serde_json::Value, String> {
        let bequeath = async {
            let ending = match self.bequeath(mount.as_ref()).await {
                Ok(will) => Ending::Followed(Box::new(will)),
                Err(NoWill::Ends(_)) => Ending::Expelled,
                Err(NoWill::GoesOn(why)) => return Err(why),
            };
            *self.ending.lock().await = Some(ending);
            Ok(Ok(()))
        };
        self.stopped.get_or_try_init(|| bequeath).await?.clone()?;
        Ok(serde_json::json!({"session": self.roles.session()}))
    }

    /// Has all machines stop; how many did.
    pub(crate) async fn stop_all(&self, mount: Option<Arc<Mount>>, force: bool) -> Result<serde_json::Value, String> {
        let stays = |why: String| format!("no machine stops: {why}");
        self.roles.stop_all(force).await.map_err(|error| stays(error.to_string()))?;
        let maps = self.roles.cluster.maps();
        self.roles.agreement().await.map_err(|why| stays(told(&maps, why)))?;
        let running = maps.nodes.values().filter(|node| node.state == NodeState::Alive).count();
        self.end_with_all(mount).await.map(|()| serde_json::json!({"machines": running}))
    }

    /// Returns when all machines were to stop, and this one has.
    async fn stopped_with_all(&self, mount: Option<Arc<Mount>>) {
        loop {
            self.roles.all_are_to_stop().await;
            match self.roles.agree_to_stop(&MountAbove(mount.clone())).await {
                Ok(()) => break,
                Err(why) => warn!("all machines were to stop, and do not: {}", told(&self.roles.cluster.maps(), why)),
            }
        }
        if let Err(error) = self.end_with_all(mount).await {
            error!(error, "stopping was not clean; the next start recovers from the logs");
        }
    }

    /// Stops together with all others, which have agreed to. Whoever asks meanwhile gets the same outcome.
    async fn end_with_all(&self, mount: Option<Arc<Mount>>) -> Result<(), String> {
        let stop = async { self.roles.stop_with_all(&MountAbove(mount)).await.map_err(not_stored) };
        self.stopped.get_or_init(|| stop).await.clone()
    }

    /// Whether everything has ended.
    pub(crate) fn is_stopped(&self) -> bool {
        self.stopped.initialized()
    }
}

/// How the settings want the roles to be run.
fn options(config: &Config) -> RolesOptions {
    let patience = Duration::from_secs(u64::from(config.rebuild_minutes) * 60);
    let pass = Duration::from_secs(u64::from(config.scrub_days) * 24 * 3600);
    let (memory_bytes, root_owner, bytes_per_second) = (config.metadata.0 as usize, process::user(), config.rebuild.0);
    RolesOptions {
        address: config.cluster.as_ref().map_or_else(String::new, |own| own.address.clone()),
        manager: ManagerOptions { memory_bytes, root_owner, patience, ..Default::default() },
        client: ClientOptions {
            cache_bytes: (config.cache.0 - config.dirty.0) as usize,
            dirty_bytes: config.dirty.0 as usize,
            ..Default::default()
        },
        cleaner: CleanerOptions { bytes_per_second_exposed: bytes_per_second, patience, ..Default::default() },
        rebuild: RebuildOptions { bytes_per_second, patience },
        scrub: ScrubOptions { pass },
        ..RolesOptions::default()
    }
}

fn not_stored(error: ClientError) -> String {
    format!("stopped, but not everything could be stored: {error}. What was fsynced is safe")
}

/// Why this machine stays, in words.
fn told(maps: &Maps, why: Stays) -> String {
    match why {
        Stays::UsedOn(node) => {
            let name = maps.nodes.get(&node).map_or("", |entry| entry.name.as_str());
            format!(
                "programs have files open or their working directory on the mount of node {node} {name} (`fuser -vm` there \
                 names them), or it is not root's and cannot tell. End them and try again, or use `dazzle down --all --force`"
            )
        }
        Stays::Alone => {
            "this machine does not hear what the others say to it. Look at `dazzle status`, and try again".into()
        }
    }
}

/// The mount above the client, if there is one.
struct MountAbove(Option<Arc<Mount>>);

impl Above for MountAbove {
    fn is_used(&self) -> BoxFuture<'static, bool> {
        let mount = self.0.clone();
        Box::pin(async move {
            let Some(mount) = mount else { return false };
            // It may wait for answers that tasks of this runtime have to give.
            tokio::task::spawn_blocking(move || mount.is_used()).await.unwrap_or(true)
        })
    }

    fn take_away(&self) -> BoxFuture<'static, ()> {
        let mount = self.0.clone();
        Box::pin(async move {
            if let Some(mount) = mount
                && let Err(error) = leave(mount, Users::Dismiss).await
            {
                warn!(error, "the mount stays until this daemon has ended");
            }
        })
    }

    fn settle(&self) -> BoxFuture<'static, ()> {
        let mount = self.0.clone();
        Box::pin(async move {
            if let Some(mount) = mount {
                mount.settle().await;
            }
        })
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

/// Notes how fast bytes move.
async fn measure(parts: Arc<Parts>) {
    loop {
        let host = parts.roles.cluster.host();
        host.sleep(METER_INTERVAL).await;
        parts.meter.note(host.now(), traffic(&parts.roles.storage.targets()));
    }
}

/// What all targets together have read and written.
fn traffic(targets: &[Arc<storage::Target>]) -> Traffic {
    let counts = targets.iter().map(|target| target.traffic());
    counts.fold(Traffic::default(), |sum, (read, written)| Traffic {
        bytes_read: sum.bytes_read + read,
        bytes_written: sum.bytes_written + written,
    })
}
