//! Simulated machines that keep a registry together, with their sessions.

pub mod history;

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::Duration;

use host::sim::{DiskOptions, SimDisk, World};
use host::{Disk, Host, NodeId};
use protocol::id::TargetId;
use protocol::maps::{TargetEntry, Writer};
use protocol::registry::{RegistryReply, RegistryRequest};
use registry::evidence::Evidence;
use registry::promotion::{self, PromotionError};
use registry::rebuilding::{Founder, Ruins};
use registry::{Life, Registry, RegistryStart, Salvage, Session, Standing, change};

/// A cluster and its machines, dead or alive. Clones are the same.
#[derive(Clone)]
pub struct Cluster {
    world: World,
    members: Arc<Mutex<BTreeMap<u32, Member>>>,
    openings: Arc<AtomicU64>,
}

/// A machine.
struct Member {
    disks: Vec<(TargetId, SimDisk)>,
    /// Of its present life.
    registry: Option<Arc<Registry>>,
    session: Option<Session>,
}

/// Waits for what is to come.
///
/// # Panics
/// When it does not come within half a minute.
pub async fn until(world: &World, what: &str, is_so: impl Fn() -> bool) {
    for _ in 0..300 {
        if is_so() {
            return;
        }
        world.sleep(Duration::from_millis(100)).await;
    }
    panic!("after 30 s: not {what}");
}

impl Cluster {
    /// One node with so many targets, and so many that may be lost.
    pub async fn create(world: &World, host: &Host, targets: u32, parity: u8) -> Cluster {
        let node = host.node();
        let name = |n: u32| format!("{}-{n}", node.0);
        let disk = |n| (TargetId(n), world.add_disk(node, &name(n), DiskOptions::default()));
        let disks: Vec<_> = (0..targets).map(disk).collect();
        let entry = |n: u32| TargetEntry::new(node.0, name(n));
        let maps = change::new_cluster(7, (0..targets).map(|n| (TargetId(n), entry(n))).collect(), node.0, parity);
        Registry::create(maps, plugged(&disks)).await.expect("empty disks take a registry");
        let member = Member { disks, registry: None, session: None };
        let members = Arc::new(Mutex::new([(node.0, member)].into()));
        Cluster { world: world.clone(), members, openings: Arc::default() }
    }

    fn members(&self) -> MutexGuard<'_, BTreeMap<u32, Member>> {
        self.members.lock().unwrap()
    }

    /// All machines, dead or alive.
    pub fn nodes(&self) -> Vec<u32> {
        self.members().keys().copied().collect()
    }

    /// The registry of a node in its present life, if it has started.
    pub fn started(&self, node: u32) -> Option<Arc<Registry>> {
        self.members()[&node].registry.clone()
    }

    /// The registry of a node in its present life.
    pub fn registry(&self, node: u32) -> Arc<Registry> {
        self.started(node).expect("it has started")
    }

    /// The session of a node in its present life, if it has begun one.
    pub fn session(&self, node: u32) -> Option<Session> {
        self.members()[&node].session.clone()
    }

    /// What a node asks to write a log: in the session that it has begun, or the newest that any registry knows of.
    pub fn open(&self, node: u32) -> RegistryRequest {
        let registries: Vec<_> = self.members().values().filter_map(|member| member.registry.clone()).collect();
        let known = registries.iter().filter_map(|registry| Some(registry.maps().nodes.get(&node)?.session)).max();
        let session = self.session(node).map(|session| session.number()).or(known).unwrap_or_default();
        let opening = self.openings.fetch_add(1, Ordering::Relaxed);
        RegistryRequest::OpenLog { node, session, writer: Writer::Client, opening }
    }

    /// The disks of a node, to do harm to.
    pub fn disks(&self, node: u32) -> Vec<SimDisk> {
        self.members()[&node].disks.iter().map(|(_, disk)| disk.clone()).collect()
    }

    /// Forgets the parts of a life that is over.
    pub fn forget(&self, node: u32) {
        let mut members = self.members();
        let member = members.get_mut(&node).unwrap();
        let ghosts = (member.registry.take(), member.session.take());
        drop(members);
        drop(ghosts);
    }

    /// Founds the next reign on a node whose daemon was stopped, if that may be, and starts it.
    pub async fn promote(&self, node: u32, off: &[u32]) -> Result<Arc<Registry>, PromotionError> {
        let host = self.world.host(NodeId(node));
        let (disks, off, asking) = (plugged(&self.members()[&node].disks), off.iter().copied().collect(), host.clone());
        let promoted = self.world.spawn(&host, async move {
            let standing = Standing::read(&disks).await.expect("there is a replica");
            let answers = promotion::ask_others(&asking, &standing).await;
            promotion::judge((node, &standing), &off, &answers)?;
            promotion::promote(node, &disks).await.expect("the disks take it");
            Ok(())
        });
        promoted.await.expect("nobody stops it meanwhile")?;
        Ok(self.start(node).await)
    }

    /// Rebuilds the registry of a node whose daemon does not run, from what is left of its copies, and starts it.
    pub async fn rebuild(&self, node: u32, off: &[u32]) -> Result<Arc<Registry>, PromotionError> {
        let host = self.world.host(NodeId(node));
        let (disks, off) = (plugged(&self.members()[&node].disks), off.iter().copied().collect());
        let rebuilt = self.world.spawn(&host, async move {
            let salvage = Salvage::read(&disks).await.expect("nothing there is of another version");
            assert!(!salvage.suffices(), "a start would do");
            let known = salvage.standing().expect("a copy is left").maps().clone();
            let founder = Founder {
                node,
                name: String::new(),
                address: String::new(),
                cluster: known.cluster,
                class: known.class(),
                targets: disks.iter().map(|(id, _)| (*id, id.0.to_string())).collect(),
                present: disks.iter().map(|(id, _)| *id).collect(),
                outdated: Default::default(),
                peers: Default::default(),
            };
            let evidence = Evidence::default();
            let ruins = Ruins { founder: &founder, known: Some((&known, salvage.is_whole())), evidence: &evidence };
            let outline = ruins.outline().expect("nothing lies there");
            let maps = Arc::new(ruins.conclude(outline, &BTreeMap::new()).expect("the copy lacks nothing"));
            promotion::judge_rebuilt((node, &maps), &off, &Default::default())?;
            salvage.found(node, (*maps).clone()).await.expect("the disks take it");
            Ok(())
        });
        rebuilt.await.expect("nobody stops it meanwhile")?;
        Ok(self.start(node).await)
    }

    /// Starts a node again whose reign is over, as one that follows `other`.
    pub async fn follow(&self, node: u32, other: u32) -> Result<(), RegistryStart> {
        let (host, maps) = (self.world.host(NodeId(node)), self.registry(other).maps());
        let (cluster, disks, following) = (self.clone(), plugged(&self.members()[&node].disks), host.clone());
        let followed = self.world.spawn(&host, async move {
            let registry = Registry::follow(&following, maps, disks).await?;
            cluster.members().get_mut(&node).unwrap().registry = Some(registry);
            cluster.begin(following, vec![NodeId(node)]).await;
            Ok(())
        });
        followed.await.expect("nobody stops it while it starts")
    }

    /// What a node does when it starts: its registry, and then its session, however long that takes.
    pub async fn run(self, host: Host) -> Result<(), RegistryStart> {
        let node = host.node().0;
        let disks = plugged(&self.members()[&node].disks);
        let registry = Registry::start(&host, disks).await?;
        self.members().get_mut(&node).unwrap().registry = Some(registry);
        self.begin(host, vec![NodeId(node)]).await;
        Ok(())
    }

    /// Starts the registry of a node that runs, and begins its session.
    pub async fn start(&self, node: u32) -> Arc<Registry> {
        let host = self.world.host(NodeId(node));
        let started = self.world.spawn(&host, self.clone().run(host.clone()));
        started.await.expect("nobody stops it while it starts").expect("it starts");
        self.registry(node)
    }

    async fn begin(&self, host: Host, ask: Vec<NodeId>) {
        let node = host.node().0;
        loop {
            let (ask, life) = (ask.clone(), Life { node, after: 0, address: String::new(), keeps: None });
            if let Ok(session) = Session::begin(&host, move || ask.clone(), life).await {
                self.members().get_mut(&node).unwrap().session = Some(session);
                return;
            }
            host.sleep(Duration::from_millis(100)).await;
        }
    }

    /// A new machine with so many targets joins.
    pub async fn join(&self, targets: u32) -> u32 {
        let first = self.registry(1);
        let add = RegistryRequest::AddNode { name: String::new(), address: String::new(), stores: true, attempt: None };
        let Ok(RegistryReply::Node(node, _)) = first.answer(add).await else { panic!("it is added") };
        let names: Vec<_> = (0..targets).map(|n| format!("{node}-{n}")).collect();
        let add = RegistryRequest::AddTargets { node, names: names.clone() };
        let Ok(RegistryReply::Targets(id, maps)) = first.answer(add).await else { panic!("they are added") };
        let host = self.world.add_node(NodeId(node));
        let disk = |name: &String| self.world.add_disk(NodeId(node), name, DiskOptions::default());
        let disks: Vec<_> = (id.0..).map(TargetId).zip(names.iter().map(disk)).collect();
        let (cluster, joining, on) = (self.clone(), host.clone(), plugged(&disks));
        self.members().insert(node, Member { disks, registry: None, session: None });
        let joined = self.world.spawn(&host, async move {
            let registry = Registry::join(&joining, maps, on).await.expect("empty disks take a replica");
            cluster.members().get_mut(&node).unwrap().registry = Some(registry);
            cluster.begin(joining, vec![NodeId(1)]).await;
        });
        joined.await.expect("nobody stops it while it joins");
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
