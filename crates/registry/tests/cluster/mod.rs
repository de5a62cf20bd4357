//! Simulated machines that keep a registry together.
#![allow(dead_code)]

use std::cell::RefCell;
use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use host::sim::{DiskOptions, SimDisk, World};
use host::{Disk, Host, NodeId};
use protocol::id::TargetId;
use protocol::maps::{TargetEntry, TargetState};
use protocol::registry::{RegistryReply, RegistryRequest};
use registry::{Registry, Session, change};

/// A cluster and its machines, dead or alive.
pub struct Cluster {
    world: World,
    disks: RefCell<BTreeMap<u32, Vec<(TargetId, SimDisk)>>>,
    registries: RefCell<BTreeMap<u32, Arc<Registry>>>,
    sessions: RefCell<BTreeMap<u32, Session>>,
}

impl Cluster {
    /// One node with so many targets.
    pub async fn create(world: &World, host: &Host, targets: u32) -> Cluster {
        let node = host.node();
        let name = |n: u32| format!("{}-{n}", node.0);
        let disks: Vec<_> =
            (0..targets).map(|n| (TargetId(n), world.add_disk(node, &name(n), DiskOptions::default()))).collect();
        let entry = |n: u32| TargetEntry { node: node.0, name: name(n), state: TargetState::Whole };
        let maps = change::new_cluster(7, (0..targets).map(|n| (TargetId(n), entry(n))).collect(), node.0, 1);
        Registry::create(maps, plugged(&disks)).await.expect("empty disks take a registry");
        Cluster {
            world: world.clone(),
            disks: RefCell::new([(node.0, disks)].into()),
            registries: RefCell::default(),
            sessions: RefCell::default(),
        }
    }

    /// The registry of a node in its present life.
    pub fn registry(&self, node: u32) -> Arc<Registry> {
        self.registries.borrow()[&node].clone()
    }

    /// The session of a node, as long as it is not lost.
    pub fn session(&self, node: u32) -> Session {
        self.sessions.borrow()[&node].clone()
    }

    pub fn nodes(&self) -> Vec<u32> {
        self.disks.borrow().keys().copied().collect()
    }

    /// A disk of a node, to do harm to.
    pub fn disks(&self, node: u32) -> Vec<SimDisk> {
        self.disks.borrow()[&node].iter().map(|(_, disk)| disk.clone()).collect()
    }

    /// Starts the registry of a node that runs, and begins its session.
    pub async fn start(&self, node: u32) -> Arc<Registry> {
        let host = self.world.host(NodeId(node));
        let disks = plugged(&self.disks.borrow()[&node]);
        let starting = host.clone();
        let started = self.world.spawn(&host, async move { Registry::start(&starting, disks).await });
        let registry = started.await.expect("nobody stops it while it starts").expect("it starts");
        self.registries.borrow_mut().insert(node, registry.clone());
        self.begin(&host, vec![NodeId(node)]).await;
        registry
    }

    async fn begin(&self, host: &Host, ask: Vec<NodeId>) {
        let node = host.node().0;
        let beginning = host.clone();
        let begun = self.world.spawn(host, async move { Session::begin(&beginning, ask, node, String::new()).await });
        let session = begun.await.expect("nobody stops it while it begins").expect("it begins");
        self.sessions.borrow_mut().insert(node, session);
    }

    /// A new machine with so many targets joins.
    pub async fn join(&self, targets: u32) -> u32 {
        let first = self.registry(1);
        let add = RegistryRequest::AddNode { name: String::new(), address: String::new(), stores: true };
        let Ok(RegistryReply::Node(node, _)) = first.answer(add).await else { panic!("it is added") };
        let names: Vec<_> = (0..targets).map(|n| format!("{node}-{n}")).collect();
        let add = RegistryRequest::AddTargets { node, names: names.clone() };
        let Ok(RegistryReply::Targets(id, maps)) = first.answer(add).await else { panic!("they are added") };
        let host = self.world.add_node(NodeId(node));
        let disk = |name: &String| self.world.add_disk(NodeId(node), name, DiskOptions::default());
        let disks: Vec<_> = (id.0..).map(TargetId).zip(names.iter().map(disk)).collect();
        let (joining, on) = (host.clone(), plugged(&disks));
        let joined = self.world.spawn(&host, async move { Registry::join(&joining, maps, on).await });
        let registry = joined.await.expect("nobody stops it while it joins").expect("it joins");
        self.disks.borrow_mut().insert(node, disks);
        self.registries.borrow_mut().insert(node, registry);
        self.begin(&host, vec![NodeId(1)]).await;
        node
    }

    /// Waits until so many vote, as `node` sees it.
    pub async fn await_voters(&self, node: u32, count: usize) -> Vec<u32> {
        for _ in 0..200 {
            let voters = self.registry(node).voters();
            if voters.len() == count {
                return voters;
            }
            self.world.sleep(Duration::from_millis(100)).await;
        }
        panic!("after 20 s {:?} vote", self.registry(node).voters());
    }
}

fn plugged(disks: &[(TargetId, SimDisk)]) -> Vec<(TargetId, Disk)> {
    disks.iter().map(|(target, disk)| (*target, disk.plug())).collect()
}
