//! Simulated machines of one cluster, each with all its roles as the daemon has them, and a registry that they keep themselves.

use std::collections::BTreeSet;
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::Duration;

use bytes::Bytes;
use cleaner::CleanerOptions;
use client::{Client, ClientOptions, Heritage, NothingAbove, WriteAt};
use futures_util::future::join_all;
use host::sim::{DiskOptions, SimDisk, Stop, World};
use host::{BoxFuture, Disk, Host, NodeId};
use log::{Cluster, RebuildOptions, ScrubOptions};
use manager::ManagerOptions;
use protocol::file::{Caller, Kind, NewInode};
use protocol::id::{InodeId, TargetId};
use protocol::maps::{TargetEntry, TargetState};
use protocol::registry::{RegistryReply, RegistryRequest};
use registry::{Registry, Standing, change, promotion};
use roles::targets::own_disks;
use roles::{Above, Expulsion, Inherited, Roles, RolesOptions, joining};
use storage::TargetOptions;

const CLUSTER: u128 = 0xda22_1e02;
pub const FRAGMENT: u32 = 256 << 10;
/// How long a service manager waits before it starts a daemon again that has ended.
const AGAIN: Duration = Duration::from_millis(500);

/// How soon all machines have stopped together.
const STOP_ALL_MAX: Duration = Duration::from_secs(30);

/// What a rack is built of.
#[derive(Clone, Debug)]
pub struct Shape {
    /// How many targets each machine has.
    pub targets: Vec<u32>,
    /// How many may be lost.
    pub parity: u8,
    /// How long a target may be away before nobody waits for it any more.
    pub patience: Duration,
    /// How many bytes each client keeps of what was read.
    pub cache: usize,
    /// Whether calls go around cut links.
    pub has_byways: bool,
}

impl Shape {
    /// One whose clients keep little, so that they read again and again.
    pub fn new(targets: Vec<u32>, parity: u8, patience: Duration) -> Shape {
        Shape { targets, parity, patience, cache: 1 << 20, has_byways: true }
    }
}

/// The machines. Clones are the same.
#[derive(Clone)]
pub struct Rack {
    world: World,
    shape: Arc<Shape>,
    machines: Arc<Mutex<Vec<Machine>>>,
}

/// One machine.
struct Machine {
    node: NodeId,
    disks: Vec<(TargetId, SimDisk)>,
    /// Counts the times that its daemon was started.
    life: u32,
    stage: Stage,
}

/// How far the present life of a daemon is.
#[derive(Clone)]
enum Stage {
    /// No daemon runs.
    Down,
    Starting,
    Runs(Arc<Roles>),
    /// It has ended by itself: its lease is over, or it found no cluster.
    Ended(String),
    /// The machine was taken away.
    Gone,
}

/// Which numbers a new machine's targets get.
pub type Numbering = BoxFuture<'static, Result<Result<Vec<TargetId>, String>, host::sim::Crashed>>;

/// How taking a disk in ended.
pub type Taking = std::pin::Pin<Box<dyn Future<Output = Result<Result<TargetId, String>, host::sim::Crashed>>>>;

/// A life of a machine's daemon: which machine, and the how manieth.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Life(pub NodeId, pub u32);

impl Life {
    /// A number that no other life has.
    pub fn number(self) -> u32 {
        self.0.0 * 10_000 + self.1
    }
}

impl Rack {
    /// A cluster of one machine that the others have joined.
    pub async fn create(world: &World, host: &Host, shape: Shape) -> Rack {
        let rack = Rack { world: world.clone(), shape: Arc::new(shape), machines: Arc::default() };
        let node = host.node();
        let disks = rack.new_disks(node, 0..rack.shape.targets[0]);
        let mut entries = Vec::new();
        for (target, disk) in &disks {
            storage::format(&disk.plug(), CLUSTER, *target, target_options()).await.expect("an empty disk");
            entries.push((*target, TargetEntry::new(node.0, disk.name())));
        }
        let mut maps = change::new_cluster(CLUSTER, entries, node.0, rack.shape.parity);
        maps.groups.values_mut().for_each(|group| group.geometry.fragment_size = FRAGMENT);
        maps.fragment_size = FRAGMENT;
        Registry::create(maps, plugged(&disks)).await.expect("empty disks take a registry");
        rack.lock().push(Machine { node, disks, life: 0, stage: Stage::Down });
        rack.start(0);
        rack.until_started(0).await;
        for index in 1..rack.shape.targets.len() {
            rack.join(index).await;
        }
        rack
    }

    fn new_disks(&self, node: NodeId, ids: std::ops::Range<u32>) -> Vec<(TargetId, SimDisk)> {
        let add = |id| self.world.add_disk(node, &format!("t{id}"), DiskOptions::default());
        ids.map(|id| (TargetId(id), add(id))).collect()
    }

    /// A new machine joins, as `dazzle join` does it.
    async fn join(&self, index: usize) {
        let first = self.roles(0).expect("the first machine runs");
        let add =
            RegistryRequest::AddNode { name: format!("m{index}"), address: String::new(), stores: true, attempt: None };
        let Ok(RegistryReply::Node(node, _)) = first.cluster.registry(add).await else { panic!("it is let in") };
        let host = self.world.add_node(NodeId(node));
        let count: u32 = self.shape.targets[..index].iter().sum();
        let disks = self.new_disks(host.node(), count..count + self.shape.targets[index]);
        let own: Vec<SimDisk> = disks.iter().map(|(_, disk)| disk.clone()).collect();
        let numbered = self.number(host.node(), &own).await.expect("nobody stops it");
        assert_eq!(numbered.expect("they are numbered"), disks.iter().map(|(id, _)| *id).collect::<Vec<_>>());
        self.add(host.node(), disks);
        self.until_started(index).await;
    }

    fn lock(&self) -> MutexGuard<'_, Vec<Machine>> {
        self.machines.lock().expect("nobody panics over machines")
    }

    /// How many machines there are, or were.
    pub fn count(&self) -> usize {
        self.lock().len()
    }

    /// How many targets may be lost.
    pub fn parity(&self) -> u8 {
        self.shape.parity
    }

    /// Those that were not taken away.
    pub fn present(&self) -> Vec<usize> {
        let machines = self.lock();
        let is_gone = |index: &usize| matches!(machines[*index].stage, Stage::Gone);
        (0..machines.len()).filter(|index| !is_gone(index)).collect()
    }

    /// The machines but one that there are or were: those of which it knows, and which it asks where the cluster is.
    fn others(&self, index: usize) -> Vec<NodeId> {
        self.lock().iter().enumerate().filter(|(at, _)| *at != index).map(|(_, machine)| machine.node).collect()
    }

    /// Has a new machine's targets numbered, and its disks formatted. Asked again it goes on with that.
    pub fn number(&self, node: NodeId, disks: &[SimDisk]) -> Numbering {
        let host = self.world.host(node);
        let names: Vec<String> = disks.iter().map(SimDisk::name).collect();
        let plugs: Vec<Disk> = disks.iter().map(SimDisk::plug).collect();
        let peers = self.others(self.count());
        Box::pin(self.world.spawn(&host.clone(), async move {
            let (maps, own) = joining::number_targets(&host, &peers, &names, &BTreeSet::new()).await?;
            for (target, disk) in own.iter().zip(plugs) {
                storage::format(&disk, maps.cluster, *target, target_options()).await.expect("an empty disk");
            }
            Ok(own)
        }))
    }

    /// A machine that has joined starts.
    pub fn add(&self, node: NodeId, disks: Vec<(TargetId, SimDisk)>) {
        let index = {
            let machines = &mut self.lock();
            machines.push(Machine { node, disks, life: 0, stage: Stage::Down });
            machines.len() - 1
        };
        self.start(index);
    }

    /// A machine that is down was taken away.
    pub fn forget(&self, index: usize) {
        assert!(self.is_down(index));
        self.lock()[index].stage = Stage::Gone;
    }

    /// A machine's node.
    pub fn node(&self, index: usize) -> NodeId {
        self.lock()[index].node
    }

    /// The present life of a machine.
    pub fn life(&self, index: usize) -> Life {
        let machine = &self.lock()[index];
        Life(machine.node, machine.life)
    }

    /// Its disks, to do harm to.
    pub fn disks(&self, index: usize) -> Vec<SimDisk> {
        self.lock()[index].disks.iter().map(|(_, disk)| disk.clone()).collect()
    }

    /// A disk that is in a machine, and that no settings name yet.
    pub fn spare_disk(&self, index: usize, name: &str) -> SimDisk {
        self.world.add_disk(self.node(index), name, DiskOptions::default())
    }

    /// The target whose disk the settings of a machine say this is.
    pub fn target_on(&self, index: usize, disk: &SimDisk) -> Option<TargetId> {
        let machine = &self.lock()[index];
        machine.disks.iter().find(|(_, known)| known.name() == disk.name()).map(|(target, _)| *target)
    }

    /// A new target on `disk`, or that disk in the place of `former`, as the daemon has it done. Ends with the machine.
    pub fn take_in(&self, index: usize, disk: &SimDisk, former: Option<TargetId>) -> Taking {
        let roles = self.roles(index).expect("its daemon runs");
        let (rack, taken, name, plug) = (self.clone(), disk.clone(), disk.name(), disk.plug());
        let place = former.and_then(|former| self.lock()[index].disks.iter().find(|(id, _)| *id == former).cloned());
        let place = place.map(|(_, disk)| disk.plug());
        let note = async move |target| {
            let settings = &mut rack.lock()[index].disks;
            settings.retain(|(known, _)| *known != target);
            settings.push((target, taken));
            Ok(())
        };
        Box::pin(self.world.spawn(&self.world.host(self.node(index)), async move {
            match former {
                None => roles.add_target(name, plug, note).await,
                Some(former) => roles.replace_target((former, name), place, plug, note).await.map(|()| former),
            }
        }))
    }

    /// The roles of a machine whose daemon has started.
    pub fn roles(&self, index: usize) -> Option<Arc<Roles>> {
        match &self.lock()[index].stage {
            Stage::Runs(roles) => Some(roles.clone()),
            _ => None,
        }
    }

    /// Writes a file through a machine, which is not to die meanwhile, and has it stored.
    pub async fn stored_file(&self, index: usize, content: Bytes) -> InodeId {
        let client = self.roles(index).expect("it runs").client.clone();
        let written = self.world.spawn(&self.world.host(self.node(index)), async move {
            let caller = Caller { uid: 0, gid: 0 };
            let new = NewInode { kind: Kind::File, mode: 0o600, mask: 0, device: 0, target: Bytes::new(), caller };
            let made = client.create_open(InodeId::ROOT, Bytes::from("file"), new).await.expect("it can be made");
            client.write(made.inode, WriteAt::Offset(0), content).await.expect("it can be written");
            client.fsync(made.inode, false).await.expect("it can be stored");
            made.inode
        });
        written.await.expect("it does not die")
    }

    /// Why a machine's daemon has ended by itself, if it has.
    pub fn ended(&self, index: usize) -> Option<String> {
        match &self.lock()[index].stage {
            Stage::Ended(why) => Some(why.clone()),
            _ => None,
        }
    }

    /// Whether a machine's daemon is not even starting.
    pub fn is_down(&self, index: usize) -> bool {
        matches!(self.lock()[index].stage, Stage::Down)
    }

    /// Whether all daemons run, and lack nothing.
    pub fn is_whole(&self) -> bool {
        let all: Option<Vec<_>> = self.present().into_iter().map(|index| self.roles(index)).collect();
        let whole = |roles: &Arc<Roles>| {
            let maps = roles.cluster.maps();
            maps.present().all(|(_, target)| target.state == TargetState::Whole)
                && maps.groups.values().all(|group| group.newcomers.is_empty())
        };
        all.is_some_and(|all| all.iter().all(whole))
    }

    /// In how many groups another target has taken the place of one that stayed away.
    pub fn members_replaced(&self) -> u64 {
        let roles = (0..self.count()).find_map(|index| self.roles(index));
        let maps = roles.map(|roles| roles.cluster.maps());
        maps.map_or(0, |maps| maps.groups.values().map(|group| group.former.len() as u64).sum())
    }

    /// Has another process go on in a daemon's place, with what that left. All of the old process is gone.
    pub fn follow(&self, index: usize, heritage: Heritage) {
        self.crash(index, Stop::Kill);
        self.start_with(index, Some(heritage), Vec::new());
    }

    /// Starts a machine's daemon.
    pub fn start(&self, index: usize) {
        self.start_with(index, None, Vec::new());
    }

    /// Starts a machine's daemon, which gives up what lay on these targets.
    pub fn start_without(&self, index: usize, given_up: Vec<String>) {
        self.start_with(index, None, given_up);
    }

    fn start_with(&self, index: usize, heritage: Option<Heritage>, given_up: Vec<String>) {
        let (node, life, disks) = {
            let machine = &mut self.lock()[index];
            machine.life += 1;
            machine.stage = Stage::Starting;
            (machine.node, machine.life, machine.disks.clone())
        };
        let bare = if self.world.runs(node) { self.world.host(node) } else { self.world.restart(node) };
        let host = if self.shape.has_byways { bare.with_byways() } else { bare };
        let (starting, rack, options) = (host.clone(), self.clone(), RolesOptions { given_up, ..self.options() });
        let peers = self.others(index);
        drop(self.world.spawn(&host, async move {
            let disks = disks.iter().map(|(target, disk)| (*target, Ok(disk.plug()))).collect();
            let stage = match begin(starting.clone(), peers, disks, options, heritage).await {
                Ok(roles) => {
                    let roles = Arc::new(roles);
                    rack.enter((index, life), Stage::Runs(roles.clone()));
                    Stage::Ended(match roles.expelled().await {
                        Expulsion::Lease => "its lease is over".into(),
                        Expulsion::Log => "its log lost bytes".into(),
                    })
                }
                Err(why) => {
                    starting.sleep(AGAIN).await;
                    Stage::Ended(why)
                }
            };
            rack.enter((index, life), stage);
        }));
    }

    /// Promotes a machine whose daemon is down, without another one, which is off.
    pub async fn promote(&self, index: usize, off: usize) {
        let (node, off) = (self.node(index), [self.node(off).0].into());
        let disks = plugged(&self.lock()[index].disks);
        let host = self.world.restart(node);
        let promoting = self.world.spawn(&host.clone(), async move {
            let standing = Standing::read(&disks).await.expect("it has a replica");
            let answers = promotion::ask_others(&host, &standing).await;
            promotion::judge((node.0, &standing), &off, &answers).expect("nobody answers");
            promotion::promote(node.0, &disks).await.expect("the disks are sound")
        });
        promoting.await.expect("nobody stops it");
    }

    fn enter(&self, (index, life): (usize, u32), stage: Stage) {
        let machine = &mut self.lock()[index];
        assert_eq!(machine.life, life, "what belongs to a life ends with it");
        let ghost = std::mem::replace(&mut machine.stage, stage);
        // It may call back.
        drop(ghost);
    }

    pub async fn until_started(&self, index: usize) {
        for _ in 0..600 {
            if self.roles(index).is_some() {
                return;
            }
            assert_eq!(self.ended(index), None, "nothing disturbs it");
            self.world.sleep(Duration::from_millis(100)).await;
        }
        panic!("machine {index} does not start");
    }

    /// Stops a machine's daemon, or the machine, hard.
    pub fn crash(&self, index: usize, stop: Stop) {
        self.world.crash(self.node(index), stop);
        let ghost = std::mem::replace(&mut self.lock()[index].stage, Stage::Down);
        drop(ghost);
    }

    /// Has all machines stop together, which all run, lose their power, and start again. Nothing is lost by that, fsynced or
    /// not.
    pub async fn stop_and_start(&self, asked: usize) {
        let (began, seed) = (self.world.now(), self.world.seed());
        let present = self.present();
        let all: Vec<_> = present.iter().map(|&index| self.roles(index).expect("all run")).collect();
        let roles = self.roles(asked).expect("all run");
        let asking = self.world.spawn(&self.world.host(self.node(asked)), async move { roles.stop_all(false).await });
        let asked = asking.await.expect("nobody dies");
        assert_eq!(asked, Ok(()), "seed {seed}: the registry can be asked");
        let stopping: Vec<_> = present
            .iter()
            .zip(all)
            .map(|(&index, roles)| {
                self.world.spawn(&self.world.host(self.node(index)), async move {
                    roles.all_are_to_stop().await;
                    roles.agree_to_stop(&Unused).await.expect("nobody uses anything");
                    roles.stop_with_all(&Unused).await.expect("all are there to store on");
                })
            })
            .collect();
        for stopped in join_all(stopping).await {
            stopped.expect("nobody dies");
        }
        let took = self.world.now().since(began);
        assert!(took < STOP_ALL_MAX, "seed {seed}: all machines took {took:?} to stop");
        present.iter().for_each(|&index| self.crash(index, Stop::PowerLoss));
        present.iter().for_each(|&index| self.start(index));
    }

    fn options(&self) -> RolesOptions {
        let patience = self.shape.patience;
        // In half of the worlds files are forgotten soon after they were used.
        let kept = if self.world.seed().is_multiple_of(2) { Duration::ZERO } else { ClientOptions::default().kept };
        RolesOptions {
            address: String::new(),
            target: target_options(),
            manager: ManagerOptions { memory_bytes: 16 << 20, patience, ..Default::default() },
            client: ClientOptions { cache_bytes: self.shape.cache, dirty_bytes: 1 << 20, kept, ..Default::default() },
            cleaner: CleanerOptions { patience, ..Default::default() },
            rebuild: RebuildOptions { patience, ..Default::default() },
            scrub: ScrubOptions { pass: Duration::from_secs(60) },
            ..Default::default()
        }
    }
}

/// Nothing stands above clients.
struct Unused;

impl Above for Unused {
    fn is_used(&self) -> BoxFuture<'static, bool> {
        Box::pin(std::future::ready(false))
    }

    fn take_away(&self) -> BoxFuture<'static, ()> {
        Box::pin(std::future::ready(()))
    }

    fn settle(&self) -> BoxFuture<'static, ()> {
        Box::pin(std::future::ready(()))
    }
}

fn target_options() -> TargetOptions {
    TargetOptions { cell_data: FRAGMENT, window_cells: 16, intake_size: 64 << 10, ..TargetOptions::default() }
}

fn plugged(disks: &[(TargetId, SimDisk)]) -> Vec<(TargetId, Disk)> {
    disks.iter().map(|(target, disk)| (*target, disk.plug())).collect()
}

/// What the daemon does when it starts, on these disks.
async fn begin(
    host: Host,
    peers: Vec<NodeId>,
    disks: Vec<(TargetId, Result<Disk, host::DiskError>)>,
    options: RolesOptions,
    heritage: Option<Heritage>,
) -> Result<Roles, String> {
    let is_anew = heritage.is_none();
    let above = |_: &Client| Ok(Arc::new(NothingAbove) as Arc<dyn client::Above>);
    let inherited = heritage.map(|heritage| Inherited { heritage, above: Box::new(above) });
    let (disks, lost) = own_disks(disks).await?;
    let registry = joining::start_registry(&host, &peers, disks.clone(), &|_| Ok(())).await?;
    let cluster = Cluster::connect(host.clone(), host.node()).await.map_err(|error| error.to_string())?;
    let roles = Roles::start(cluster, Some(registry), (disks, lost), options, inherited).await?;
    if is_anew {
        roles.client.answer_managers(Arc::new(NothingAbove));
    }
    Ok(roles)
}
