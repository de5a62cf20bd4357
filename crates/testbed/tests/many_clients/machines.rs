//! A cluster of simulated machines: one stores and keeps the registry, some manage, the others run a client each.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use client::{Client, ClientOptions};
use host::sim::{Dice, DiskOptions, Stop, World};
use host::{BoxFuture, Disk, Envelope, Handler, Host, NodeId, Port};
use log::{Cluster, LogReader};
use manager::{Manager, ManagerOptions};
use protocol::id::TargetId;
use protocol::maps::{Maps, TargetEntry};
use protocol::registry::{DRIFT, REGISTRY_PORT, RegistryAnswer, RegistryRequest};
use registry::change;
use storage::{Storage, TargetOptions};

use super::kernel::Kernel;
use super::lease::{LEFT_MIN, TestLease};

const CLUSTER: u128 = 79;
const STORE: NodeId = NodeId(9);
/// The first is there from the beginning; the registry numbers the others, and then the clients.
pub const MANAGERS: [NodeId; 2] = [NodeId(1), NodeId(10)];
/// The node of the test itself, which stands in for the registry's leader.
const ASKER: NodeId = NodeId(8);

/// A registry that never fails: it applies requests to maps in memory.
struct Registry(Mutex<Arc<Maps>>);

impl Handler for Registry {
    fn handle(&self, _from: NodeId, request: Envelope) -> BoxFuture<'static, Envelope> {
        let mut maps = self.0.lock().expect("nobody panics over maps");
        let (next, reply) = change::apply(&maps, request.open().expect("a registry's request"));
        if let Some(next) = next {
            *maps = Arc::new(next);
        }
        let answer: RegistryAnswer = reply.and_then(|outcome| outcome.with(maps.clone()));
        Box::pin(std::future::ready(Envelope::new(answer)))
    }
}

/// The machines that run.
pub struct Machines {
    world: World,
    asking: Host,
    clients: BTreeMap<u32, (NodeId, Client)>,
    kernels: BTreeMap<u32, Arc<Kernel>>,
    leases: BTreeMap<NodeId, TestLease>,
}

impl Machines {
    /// Starts them all.
    pub async fn start(world: &World, managers: usize, clients: u32) -> Machines {
        let storing = world.add_node(STORE);
        store(world, &storing).await;
        let asking = world.add_node(ASKER);
        let mut machines = Machines {
            world: world.clone(),
            asking,
            clients: BTreeMap::new(),
            kernels: BTreeMap::new(),
            leases: BTreeMap::new(),
        };
        machines
            .tell(RegistryRequest::AddNode { name: "m".into(), address: String::new(), stores: true, attempt: None })
            .await;
        world.add_node(MANAGERS[1]);
        for &node in &MANAGERS[..managers] {
            machines.begin(node).await;
        }
        if managers > 1 {
            machines.share().await;
        }
        for &node in &MANAGERS[..managers] {
            machines.manage(node).await;
        }
        for number in 0..clients {
            let node = NodeId(MANAGERS[1].0 + 1 + number);
            world.add_node(node);
            let name = format!("c{number}");
            machines
                .tell(RegistryRequest::AddNode { name, address: String::new(), stores: false, attempt: None })
                .await;
            machines.begin(node).await;
            machines.serve(node).await;
        }
        machines
    }

    /// How many clients there are.
    pub fn clients(&self) -> u32 {
        self.clients.len() as u32
    }

    /// A client, and its machine.
    pub fn client(&self, number: u32) -> (NodeId, Client) {
        self.clients[&number].clone()
    }

    /// The kernel above a client.
    pub fn kernel(&self, number: u32) -> Arc<Kernel> {
        self.kernels[&number].clone()
    }

    /// A machine dies, and soon its session is found to be over.
    pub async fn die(&mut self, node: NodeId, dice: &mut Dice) {
        self.world.crash(node, if dice.coin() { Stop::Kill } else { Stop::PowerLoss });
        self.world.sleep(Duration::from_millis(dice.below(3000))).await;
        let session = self.session(node).await;
        self.tell(RegistryRequest::Expire { node: node.0, session }).await;
    }

    /// A client's machine is cut off or stands still, and cannot renew its lease. Later it goes on. True: its session is over
    /// by then, and a while later it hears of that.
    pub async fn part(&mut self, node: NodeId, stands_still: bool, dice: &mut Dice) -> bool {
        let (lease, left) = (self.leases[&node].clone(), LEFT_MIN + Duration::from_millis(dice.below(2400)));
        lease.run_out(left);
        if stands_still {
            self.world.pause(node);
        } else {
            self.world.isolate(node);
        }
        self.world.sleep(left + DRIFT).await;
        let is_over = dice.coin();
        if is_over {
            let session = self.session(node).await;
            self.tell(RegistryRequest::Expire { node: node.0, session }).await;
        }
        self.world.sleep(Duration::from_millis(dice.below(8000))).await;
        if stands_still {
            self.world.resume(node);
        } else {
            self.world.heal_all();
        }
        self.world.sleep(Duration::from_millis(dice.below(2000))).await;
        if is_over {
            lease.end()
        } else {
            lease.renew()
        }
        is_over
    }

    /// A machine whose session is over starts anew.
    pub async fn begin_again(&mut self, node: NodeId) {
        self.world.crash(node, Stop::Kill);
        self.come_back(node).await;
    }

    /// It comes back.
    pub async fn come_back(&mut self, node: NodeId) {
        self.world.restart(node);
        self.begin(node).await;
        if MANAGERS.contains(&node) {
            self.manage(node).await;
        } else {
            self.serve(node).await;
        }
    }

    /// The second manager gets half of the slots, before there is anything in them.
    async fn share(&self) {
        let epoch = self.ask(RegistryRequest::Maps).await.epoch.0;
        let (first, last, node, logs) = (2048, 4095, MANAGERS[1].0, Vec::new());
        self.tell(RegistryRequest::SetSlots { first, last, node, base: None, logs, epoch }).await;
    }

    async fn session(&self, node: NodeId) -> u64 {
        self.ask(RegistryRequest::Maps).await.nodes[&node.0].session
    }

    async fn begin(&self, node: NodeId) {
        let after = self.session(node).await;
        self.tell(RegistryRequest::Begin { node: node.0, after, address: String::new(), keeps: None }).await;
    }

    async fn tell(&self, request: RegistryRequest) {
        self.ask(request).await;
    }

    async fn ask(&self, request: RegistryRequest) -> Arc<Maps> {
        let host = self.asking.clone();
        let told = self.world.spawn(&self.asking, async move {
            let cluster = Cluster::connect(host, STORE).await.expect("the registry answers");
            // Somebody else may have changed the maps first: then this changes nothing, as the story has it.
            let _ = cluster.registry(request).await;
            cluster.refresh().await.expect("the registry answers")
        });
        told.await.expect("the asker lives")
    }

    /// In some worlds directories of a few names lie in several slots.
    pub fn directories_split(&self) -> bool {
        self.world.seed() % 5 < 2
    }

    async fn manage(&self, node: NodeId) {
        let (host, splits) = (self.world.host(node), self.directories_split());
        let starting = host.clone();
        let started = self.world.spawn(&host, async move {
            let cluster = Cluster::connect(starting, STORE).await.expect("the registry answers");
            let reader = LogReader::new(cluster.clone());
            let mut options =
                ManagerOptions { flush_interval: Duration::from_millis(200), ..ManagerOptions::default() };
            if splits {
                options.directory_part_bytes = 300;
            }
            drop(Manager::start(cluster, reader, options).await.expect("the manager starts"));
        });
        started.await.expect("nobody stops it while it starts");
    }

    async fn serve(&mut self, node: NodeId) {
        let host = self.world.host(node);
        let starting = host.clone();
        let lease = TestLease::new(host.clone());
        let own = lease.clone();
        // In a third of the worlds kernels are old.
        let forgets_names = !self.world.seed().is_multiple_of(3);
        // In half of the worlds the names of so few directories are kept that all are given up time and again.
        let names_max = if self.world.seed().is_multiple_of(2) { 2 } else { 50_000 };
        // And in half of them files are forgotten soon after they were used.
        let kept = if self.world.seed() % 4 < 2 { Duration::ZERO } else { ClientOptions::default().kept };
        let started = self.world.spawn(&host, async move {
            let cluster = Cluster::connect(starting.clone(), STORE).await.expect("the registry answers");
            cluster.lease_by(Box::new(own));
            let reader = LogReader::new(cluster.clone());
            let sizes = ClientOptions { cache_bytes: 1 << 20, dirty_bytes: 1 << 20, ..Default::default() };
            let options = ClientOptions { names_max, kept, ..sizes };
            let client = Client::start(cluster, reader, options).await.expect("the client starts");
            let (kernel, above) = Kernel::mount(client.clone(), starting, forgets_names);
            client.answer_managers(above);
            (client, kernel)
        });
        let (client, kernel) = started.await.expect("nobody stops it while it starts");
        let number = node.0 - MANAGERS[1].0 - 1;
        self.clients.insert(number, (node, client));
        self.kernels.insert(number, kernel);
        self.leases.insert(node, lease);
    }
}

async fn store(world: &World, host: &Host) {
    let disks: Vec<(TargetId, Disk)> =
        (0..3).map(|n| (TargetId(n), world.add_disk(STORE, &format!("t{n}"), DiskOptions::default()).plug())).collect();
    let mut entries = Vec::new();
    for (target, disk) in &disks {
        storage::format(disk, CLUSTER, *target, TargetOptions::default()).await.expect("an empty disk");
        let entry = TargetEntry::new(STORE.0, format!("t{}", target.0));
        entries.push((*target, entry));
    }
    let mut maps = change::new_cluster(CLUSTER, entries, MANAGERS[0].0, 1);
    // It has disks, and manages nothing.
    maps.nodes.get_mut(&STORE.0).expect("it stores").stores = false;
    let registry = Arc::new(Registry(Mutex::new(Arc::new(maps))));
    let starting = host.clone();
    let started = world.spawn(host, async move {
        starting.listen(Port(REGISTRY_PORT), registry);
        let (_, lost) = Storage::start(starting, CLUSTER, disks, TargetOptions::default()).await;
        assert!(lost.is_empty());
    });
    started.await.expect("nobody stops it");
}
