//! Several simulated machines that join one cluster, die and come back. The registry is one that never fails, on a node
//! of its own; who is dead is said by the test, which stands in for the registry's leader.

use std::sync::{Arc, Mutex};
use std::time::Duration;

use cleaner::{Cleaner, CleanerOptions};
use client::{Client, ClientOptions, NothingAbove};
use host::sim::{DiskOptions, SimDisk, Stop, World};
use host::{BoxFuture, Disk, Envelope, Handler, Host, NodeId, Port};
use log::exposure::{Sums, Tally};
use log::{Cluster, LogReader, RebuildOptions, Rebuilder, Walk};
use manager::{Manager, ManagerOptions};
use protocol::id::TargetId;
use protocol::maps::{Maps, NodeState, TargetEntry};
use protocol::registry::{REGISTRY_PORT, RegistryAnswer, RegistryRequest};
use registry::change;
use storage::{Storage, TargetOptions};

const CLUSTER: u128 = 0xda22_1e01;
const REGISTRY: NodeId = NodeId(99);
const FRAGMENT: u32 = 256 << 10;
/// What a disk holds beside fragments, and what a fragment takes beside its bytes.
const BESIDE_BYTES: u64 = 1 << 20;
const CELL_BESIDE_BYTES: u32 = 9 << 10;
/// How long a watcher of the maps waits at most.
const WATCH: Duration = Duration::from_millis(200);

type SharedMaps = Arc<Mutex<Arc<Maps>>>;

struct Registry(Host, SharedMaps);

impl Handler for Registry {
    fn handle(&self, _: NodeId, request: Envelope) -> BoxFuture<'static, Envelope> {
        let (host, maps) = (self.0.clone(), self.1.clone());
        Box::pin(async move {
            let request: RegistryRequest = request.open().expect("a registry's request");
            if matches!(request, RegistryRequest::Watch { epoch } if epoch >= lock(&maps).epoch) {
                host.sleep(WATCH).await;
            }
            Envelope::new::<RegistryAnswer>(apply(&maps, request))
        })
    }
}

fn lock(maps: &SharedMaps) -> std::sync::MutexGuard<'_, Arc<Maps>> {
    maps.lock().expect("nobody panics over the maps")
}

fn apply(maps: &SharedMaps, request: RegistryRequest) -> RegistryAnswer {
    let mut maps = lock(maps);
    let (next, reply) = change::apply(&maps, request);
    if let Some(next) = next {
        *maps = Arc::new(next);
    }
    reply.and_then(|outcome| outcome.with(maps.clone()))
}

/// Machines of one cluster; machine n is node n+1.
pub struct Machines {
    world: World,
    maps: SharedMaps,
    disks: Vec<Vec<(TargetId, SimDisk)>>,
    patience: Duration,
}

/// The parts that run on a machine. After a crash they are ghosts.
pub struct Machine {
    /// The maps and the way to the targets.
    pub cluster: Cluster,
    /// Bytes by address.
    pub reader: LogReader,
    /// Slots.
    pub manager: Arc<Manager>,
    /// What empties stripes.
    pub cleaner: Arc<Cleaner>,
    /// What makes targets whole.
    pub rebuilder: Arc<Rebuilder>,
}

impl Machines {
    /// Machines with so many disks each, of which the first is a cluster by itself. Targets that are away for `patience`
    /// are given up.
    pub async fn create(world: &World, counts: &[u32], patience: Duration) -> Machines {
        Machines::with_parity(world, counts, patience, 1).await
    }

    /// The same, where so many machines may be lost at once.
    pub async fn with_parity(world: &World, counts: &[u32], patience: Duration, parity: u8) -> Machines {
        let mut numbers = (0..).map(TargetId);
        let mut disks = Vec::new();
        for (node, &count) in (1..).map(NodeId).zip(counts) {
            if node != NodeId(1) {
                world.add_node(node);
            }
            let add = |id: TargetId| (id, world.add_disk(node, &format!("t{}", id.0), DiskOptions::default()));
            disks.push(numbers.by_ref().take(count as usize).map(add).collect::<Vec<_>>());
        }
        for (target, disk) in disks.iter().flatten() {
            storage::format(&disk.plug(), CLUSTER, *target, options()).await.expect("an empty disk becomes a target");
        }
        let entry = |id: TargetId| TargetEntry::new(1, format!("t{}", id.0));
        let first = disks[0].iter().map(|(id, _)| (*id, entry(*id))).collect();
        let mut maps = change::new_cluster(CLUSTER, first, 1, parity);
        maps.groups.values_mut().for_each(|group| group.geometry.fragment_size = FRAGMENT);
        maps.fragment_size = FRAGMENT;
        let maps: SharedMaps = Arc::new(Mutex::new(Arc::new(maps)));
        let host = world.add_node(REGISTRY);
        host.listen(Port(REGISTRY_PORT), Arc::new(Registry(host.clone(), maps.clone())));
        Machines { world: world.clone(), maps, disks, patience }
    }

    /// Leaves the disks room for so many fragments each.
    pub fn limit(&self, fragments: u64) {
        let capacity_bytes = BESIDE_BYTES + fragments * u64::from(FRAGMENT + CELL_BESIDE_BYTES);
        for (_, disk) in self.disks.iter().flatten() {
            disk.set_options(DiskOptions { capacity_bytes, ..DiskOptions::default() });
        }
    }

    /// The maps as the registry has them.
    pub fn maps(&self) -> Arc<Maps> {
        lock(&self.maps).clone()
    }

    fn change(&self, request: RegistryRequest) {
        self.ask(request).expect("the change is possible");
    }

    /// Asks the registry for a change.
    pub fn ask(&self, request: RegistryRequest) -> RegistryAnswer {
        apply(&self.maps, request)
    }

    /// Makes a machine known and starts it.
    pub async fn join(&self, machine: usize) -> Machine {
        let (node, names) = (machine as u32 + 1, self.disks[machine].iter().map(|(id, _)| format!("t{}", id.0)));
        self.change(RegistryRequest::AddNode {
            name: node.to_string(),
            address: String::new(),
            stores: true,
            attempt: None,
        });
        self.change(RegistryRequest::AddTargets { node, names: names.collect() });
        self.start(machine).await
    }

    /// Starts a machine's parts, as the daemon does.
    pub async fn start(&self, machine: usize) -> Machine {
        let node = NodeId(machine as u32 + 1);
        let host = self.world.host(node);
        let disks = self.disks[machine].iter().map(|(id, disk)| (*id, disk.plug())).collect();
        let (starting, patience, maps) = (host.clone(), self.patience, self.maps.clone());
        let after = self.maps().nodes[&node.0].session;
        let begin = RegistryRequest::Begin { node: node.0, after, address: String::new(), keeps: None };
        let started = self.world.spawn(&host, async move {
            start(starting, disks, patience, || apply(&maps, begin).map(drop).expect("it was made known")).await
        });
        started.await.expect("nobody stops it while it starts")
    }

    /// Empty disks take the place of those of a machine that is dead.
    pub async fn empty(&self, machine: usize) {
        for (target, disk) in &self.disks[machine] {
            disk.wipe();
            storage::format(&disk.plug(), CLUSTER, *target, options()).await.expect("an empty disk becomes a target");
        }
    }

    /// A machine dies, and nobody knows yet.
    pub fn crash(&self, machine: usize, stop: Stop) {
        self.world.crash(NodeId(machine as u32 + 1), stop);
    }

    /// A machine dies, unless it is dead already; the registry finds its lease run out.
    pub fn die(&self, machine: usize, stop: Stop) {
        let node = machine as u32 + 1;
        self.crash(machine, stop);
        let maps = self.maps();
        let entry = &maps.nodes[&node];
        if entry.state == NodeState::Alive {
            self.change(RegistryRequest::Expire { node, session: entry.session });
        }
    }

    /// A machine that died comes back.
    pub async fn come_back(&self, machine: usize) -> Machine {
        self.world.restart(NodeId(machine as u32 + 1));
        self.start(machine).await
    }

    /// A client on a machine.
    pub async fn client(&self, machine: usize, on: &Machine) -> Client {
        let host = self.world.host(NodeId(machine as u32 + 1));
        let (cluster, reader) = (on.cluster.clone(), on.reader.clone());
        let options = ClientOptions { cache_bytes: 4 << 20, dirty_bytes: 4 << 20, ..ClientOptions::default() };
        let started = self.world.spawn(&host, async move { Client::start(cluster, reader, options).await });
        let client = started.await.expect("nobody stops it while it starts").expect("a client starts");
        client.answer_managers(Arc::new(NothingAbove));
        client
    }

    /// How safe what is stored is.
    pub async fn tally(&self, on: &Machine) -> Tally {
        on.cluster.refresh().await.expect("the registry never fails");
        let (maps, mut sums) = (on.cluster.maps(), Sums::default());
        Walk::over_all(&on.cluster, &maps).to_end(|state| sums.add(&maps, &state)).await;
        Tally::of(&maps, sums)
    }

    /// Waits until all that is stored is as safe as it can be.
    ///
    /// # Panics
    /// When that takes five minutes.
    pub async fn until_safe(&self, on: &Machine) {
        for _ in 0..60 {
            if self.tally(on).await.bytes_exposed.is_empty() {
                return;
            }
            self.world.sleep(Duration::from_secs(5)).await;
        }
        panic!("{:?}, {:?}", self.tally(on).await, on.cleaner.status());
    }
}

fn options() -> TargetOptions {
    TargetOptions { cell_data: FRAGMENT, window_cells: 16, intake_size: 64 << 10, ..TargetOptions::default() }
}

async fn start(host: Host, disks: Vec<(TargetId, Disk)>, patience: Duration, begin: impl FnOnce()) -> Machine {
    let (_, lost) = Storage::start(host.clone(), CLUSTER, disks, options()).await;
    assert!(lost.is_empty(), "{lost:?}");
    begin();
    let cluster = Cluster::connect(host, REGISTRY).await.expect("the registry never fails");
    cluster.follow();
    let reader = LogReader::new(cluster.clone());
    let managing = ManagerOptions { memory_bytes: 16 << 20, patience, ..Default::default() };
    let manager = Manager::start(cluster.clone(), reader.clone(), managing).await.expect("enough targets live");
    let cleaning = CleanerOptions { patience, ..Default::default() };
    let cleaner = Cleaner::start(cluster.clone(), reader.clone(), cleaning).await;
    let rebuilder = Rebuilder::start(cluster.clone(), RebuildOptions { patience, ..Default::default() });
    Machine { cluster, reader, manager, cleaner, rebuilder }
}
