//! The danger: slots move from a manager that died to those that live, and back when it returns, over and over; a slot comes
//! without a change that was acknowledged, with one from before it moved, or finds the stripes deleted that it lies in.
//!
//! Between two deaths the living share the slots out anew, and hand them over under load.
//!
//! Three nodes manage, a fourth stores and keeps the registry, a fifth asks. The test stands in for the registry's leader: it
//! says who died. Somebody deletes all the while what all managers call dead.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use bytes::Bytes;
use host::sim::{self, Dice, DiskOptions, NetworkOptions, Stop, World};
use host::{Address, BoxFuture, Disk, Envelope, Handler, Host, NodeId, Port};
use log::{Cluster, Lease, LogReader};
use manager::{Manager, ManagerOptions};
use protocol::file::{Caller, Kind, Lock, LockFamily, LockOwner, NewInode};
use protocol::id::{InodeId, LogId, SLOT_COUNT, StripeNumber, TargetId};
use protocol::manager::{Answer, MANAGER_PORT, ManagerAnswer, ManagerError, ManagerReply, ManagerRequest};
use protocol::maps::{Maps, TargetEntry, Writer};
use protocol::registry::{REGISTRY_PORT, RegistryAnswer, RegistryRequest};
use protocol::token::TokenMode;
use registry::change;
use storage::{Storage, TargetOptions};

const CLUSTER: u128 = 78;
const STORE: NodeId = NodeId(9);
const ASKER: NodeId = NodeId(8);
const MANAGERS: [NodeId; 3] = [NodeId(1), NodeId(10), NodeId(11)];
const DIRECTORIES: u64 = 24;

/// A registry that never fails: it applies requests to maps in memory.
struct Registry(Arc<Mutex<Arc<Maps>>>);

impl Handler for Registry {
    fn handle(&self, _: NodeId, request: Envelope) -> BoxFuture<'static, Envelope> {
        let maps = self.0.clone();
        Box::pin(async move {
            let mut maps = maps.lock().unwrap();
            let (next, reply) = change::apply(&maps, request.open().expect("a registry's request"));
            if let Some(next) = next {
                *maps = Arc::new(next);
            }
            Envelope::new::<RegistryAnswer>(reply.and_then(|outcome| outcome.with(maps.clone())))
        })
    }
}

/// Adds the node that stores and keeps the registry, and the one that asks, which is returned.
async fn prepare(world: &World) -> Host {
    let host = world.add_node(STORE);
    let disks: Vec<(TargetId, Disk)> =
        (0..3).map(|n| (TargetId(n), world.add_disk(STORE, &format!("t{n}"), DiskOptions::default()).plug())).collect();
    let mut entries = Vec::new();
    for (target, disk) in &disks {
        storage::format(disk, CLUSTER, *target, TargetOptions::default()).await.unwrap();
        let entry = TargetEntry::new(STORE.0, format!("t{}", target.0));
        entries.push((*target, entry));
    }
    let mut maps = change::new_cluster(CLUSTER, entries, MANAGERS[0].0, 1);
    // It has disks, and manages nothing.
    maps.nodes.get_mut(&STORE.0).unwrap().stores = false;
    assert_eq!(maps.verify(), Ok(()));
    let starting = host.clone();
    let started = world.spawn(&host, async move {
        starting.listen(Port(REGISTRY_PORT), Arc::new(Registry(Arc::new(Mutex::new(Arc::new(maps))))));
        let (_, lost) = Storage::start(starting, CLUSTER, disks, TargetOptions::default()).await;
        assert!(lost.is_empty());
    });
    started.await.unwrap();
    world.add_node(ASKER)
}

async fn start(world: &World, node: NodeId) -> Arc<Manager> {
    start_under(world, node, Arc::new(AtomicBool::new(true))).await
}

/// Starts a manager whose lease holds while this is true.
async fn start_under(world: &World, node: NodeId, lease: Arc<AtomicBool>) -> Arc<Manager> {
    let host = world.host(node);
    let starting = host.clone();
    let started = world.spawn(&host, async move {
        let cluster = Cluster::connect(starting.clone(), STORE).await.unwrap();
        cluster.lease_by(Box::new(Switch(lease)));
        let reader = LogReader::new(cluster.clone());
        let options = ManagerOptions {
            memory_bytes: 300 << 10,
            journal_bytes_max: 20 << 10,
            orphan_grace: Duration::from_millis(10),
            ..ManagerOptions::default()
        };
        let manager = Manager::start(cluster, reader, options).await.unwrap();
        starting.clone().spawn(go_on_auditing(starting, manager.clone()));
        manager
    });
    started.await.unwrap()
}

/// How often there was a moment for an audit.
static AUDITS: AtomicU64 = AtomicU64::new(0);

/// Slots that are between two managers, and stripes that are deleted, are no problem to an audit.
async fn go_on_auditing(host: Host, manager: Arc<Manager>) {
    loop {
        host.sleep(Duration::from_millis(host.random() % 2000)).await;
        if let Ok(report) = manager.audit().await {
            assert_eq!(report.problems, Vec::<String>::new());
            AUDITS.fetch_add(1, Ordering::Relaxed);
        }
    }
}

/// Says what becomes of a node, as the registry's leader would find, and deletes what is dead at once.
async fn tell(world: &World, asking: &Host, node: NodeId, fate: Fate) -> usize {
    let host = asking.clone();
    let told = world.spawn(asking, async move {
        let cluster = Cluster::connect(host, STORE).await.unwrap();
        let session = cluster.maps().nodes.get(&node.0).map_or(0, |entry| entry.session);
        let request = match fate {
            Fate::Joins => {
                RegistryRequest::AddNode { name: "m".into(), address: String::new(), stores: true, attempt: None }
            }
            Fate::Begins => {
                RegistryRequest::Begin { node: node.0, after: session, address: String::new(), keeps: None }
            }
            Fate::Dies => RegistryRequest::Expire { node: node.0, session },
            Fate::Shares => RegistryRequest::Balance,
        };
        cluster.registry(request).await.unwrap();
        delete_dead(&cluster).await
    });
    told.await.unwrap()
}

enum Fate {
    Joins,
    Begins,
    Dies,
    /// Not of one node: the living get equal shares.
    Shares,
}

/// Asks whoever manages the inode, until somebody does.
async fn ask(cluster: &Cluster, inode: InodeId, request: ManagerRequest) -> Result<ManagerReply, ManagerError> {
    for _ in 0..2000 {
        let node = NodeId(cluster.maps().slot(inode.slot().0).node);
        let to = Address { node, port: Port(MANAGER_PORT) };
        match cluster.host().call::<ManagerRequest, ManagerAnswer>(to, request.clone()).await {
            Ok(Err(ManagerError::NotMine)) => {}
            Ok(answer) => return answer,
            Err(unreachable) => panic!("only living nodes are asked: {unreachable}"),
        }
        cluster.host().sleep(Duration::from_millis(20)).await;
        cluster.refresh().await.unwrap();
    }
    panic!("nobody took slot {} over", inode.slot().0)
}

/// Deletes the stripes of manager logs that every manager calls dead, as a cleaner does.
async fn delete_dead(cluster: &Cluster) -> usize {
    let maps = cluster.refresh().await.unwrap();
    let stripes = log::stripes::list(cluster, None).await.into_iter().map(|stripe| (stripe.log, stripe.number));
    let of_managers = |(log, _): &(LogId, StripeNumber)| maps.logs[log].writer == Writer::Manager;
    let mut dead: Vec<_> = stripes.filter(of_managers).collect();
    let nodes: BTreeSet<u32> = maps.slots.values().map(|slot| slot.node).collect();
    for node in nodes {
        let to = Address { node: NodeId(node), port: Port(MANAGER_PORT) };
        let request = ManagerRequest::DeadStripes(maps.view(), dead.clone());
        let Ok(Ok(reply)) = cluster.host().call::<ManagerRequest, ManagerAnswer>(to, request).await else { return 0 };
        let Answer::Stripes(agreed) = reply.answer else { panic!("stripes") };
        dead.retain(|stripe| agreed.contains(stripe));
    }
    if cluster.refresh().await.unwrap().slots == maps.slots {
        log::stripes::delete(cluster, &dead).await;
        return dead.len();
    }
    0
}

type Names = BTreeMap<(InodeId, Vec<u8>), InodeId>;

fn new(kind: Kind) -> NewInode {
    NewInode { kind, mode: 0o755, mask: 0, device: 0, target: Bytes::new(), caller: Caller::default() }
}

async fn work(cluster: &Cluster, dice: &mut Dice, names: &mut Names, directories: &mut Vec<InodeId>) {
    let name = Bytes::from(format!("{}{}", "name-".repeat(dice.below(30) as usize), dice.below(40)));
    if (directories.len() as u64) < DIRECTORIES {
        let name = Bytes::from(format!("directory-{}", directories.len()));
        let create = ManagerRequest::Create {
            directory: InodeId::ROOT,
            name: name.clone(),
            new: new(Kind::Directory),
            open: false,
        };
        let inode = created(ask(cluster, InodeId::ROOT, create).await).unwrap();
        names.insert((InodeId::ROOT, name.to_vec()), inode);
        return directories.push(inode);
    }
    let directory = *dice.pick(&directories[1..]).unwrap();
    if dice.below(3) > 0 {
        let create = ManagerRequest::Create { directory, name: name.clone(), new: new(Kind::File), open: false };
        match created(ask(cluster, directory, create).await) {
            Ok(inode) => assert!(names.insert((directory, name.to_vec()), inode).is_none()),
            Err(error) => {
                assert_eq!(error, ManagerError::Exists);
                assert!(names.contains_key(&(directory, name.to_vec())));
            }
        }
    } else {
        match ask(cluster, directory, ManagerRequest::Unlink { directory, name: name.clone() }).await {
            Ok(_) => assert!(names.remove(&(directory, name.to_vec())).is_some()),
            Err(error) => {
                assert_eq!(error, ManagerError::NotFound);
                assert!(!names.contains_key(&(directory, name.to_vec())));
            }
        }
    }
}

fn created(answer: Result<ManagerReply, ManagerError>) -> Result<InodeId, ManagerError> {
    match answer?.answer {
        Answer::Entry(attributes, _) => Ok(attributes.inode),
        other => panic!("{other:?}"),
    }
}

async fn compare(cluster: &Cluster, names: &Names, directories: &[InodeId]) {
    let mut found = Names::new();
    for &directory in directories {
        let list = ManagerRequest::List { directory, after: 0, limit: 1000, attributes: true };
        let Answer::Listing(list, true) = ask(cluster, directory, list).await.unwrap().answer else {
            panic!("a whole list")
        };
        found.extend(list.into_iter().map(|entry| ((directory, entry.name.to_vec()), entry.inode)));
    }
    assert_eq!(found, *names);
}

#[test]
fn slots_move_with_all_that_was_acknowledged() {
    let deleted = std::cell::Cell::new(0);
    sim::explore(0..24, async |world, _| {
        let asking = prepare(&world).await;
        for node in MANAGERS {
            if node != MANAGERS[0] {
                world.add_node(node);
                tell(&world, &asking, node, Fate::Joins).await;
            }
            tell(&world, &asking, node, Fate::Begins).await;
            start(&world, node).await;
        }
        let mut dice = world.dice();
        let (mut names, mut directories) = (Names::new(), vec![InodeId::ROOT]);
        for _ in 0..10 {
            let given = (asking.clone(), names, directories, dice.below(u64::MAX));
            let asked = world.spawn(&asking, async move {
                let (host, mut names, mut directories, seed) = given;
                let mut dice = Dice::new(seed);
                let cluster = Cluster::connect(host, STORE).await.unwrap();
                let mut deleted = delete_dead(&cluster).await;
                compare(&cluster, &names, &directories).await;
                // Sometimes the next one dies before it has written an image of what it took over.
                let count_max = if dice.coin() { 20 } else { 500 };
                for _ in 0..dice.below(count_max) {
                    work(&cluster, &mut dice, &mut names, &mut directories).await;
                    if dice.below(15) == 0 {
                        deleted += delete_dead(&cluster).await;
                    }
                }
                let victim = NodeId(cluster.maps().slot(dice.below(4096) as u16).node);
                (names, directories, deleted, victim)
            });
            let (count, dead);
            (names, directories, count, dead) = asked.await.unwrap();
            deleted.set(deleted.get() + count);
            if dice.coin() {
                world.sleep(Duration::from_millis(dice.below(3000))).await;
            }
            let mut fallen = vec![dead];
            // Sometimes another one dies while it takes over, or soon after.
            fallen.extend(dice.coin().then(|| *dice.pick(&MANAGERS).unwrap()).filter(|&other| other != dead));
            for &node in &fallen {
                world.crash(node, Stop::Kill);
                deleted.set(deleted.get() + tell(&world, &asking, node, Fate::Dies).await);
                world.sleep(Duration::from_millis(dice.below(2000))).await;
            }
            for node in fallen {
                world.restart(node);
                tell(&world, &asking, node, Fate::Begins).await;
                start(&world, node).await;
            }
            if dice.coin() {
                deleted.set(deleted.get() + tell(&world, &asking, dead, Fate::Shares).await);
            }
        }
    });
    assert!(deleted.get() > 0, "somebody deletes what is dead");
    assert!(AUDITS.load(Ordering::Relaxed) > 24, "there are moments to look at all slots");
}

#[test]
fn the_living_share_slots_out_until_all_have_as_many() {
    sim::explore(0..6, async |world, _| {
        let asking = prepare(&world).await;
        for node in MANAGERS {
            if node != MANAGERS[0] {
                world.add_node(node);
                tell(&world, &asking, node, Fate::Joins).await;
            }
            tell(&world, &asking, node, Fate::Begins).await;
            start(&world, node).await;
        }
        let (host, seed) = (asking.clone(), world.dice().below(u64::MAX));
        let shared = world.spawn(&asking, async move {
            let mut dice = Dice::new(seed);
            let (mut names, mut directories) = (Names::new(), vec![InodeId::ROOT]);
            let cluster = Cluster::connect(host.clone(), STORE).await.unwrap();
            for _ in 0..200 {
                work(&cluster, &mut dice, &mut names, &mut directories).await;
            }
            cluster.registry(RegistryRequest::Balance).await.unwrap();
            let (mut longest, mut steps) = (Duration::ZERO, 0);
            while !cluster.refresh().await.unwrap().wishes.is_empty() {
                let began = host.now();
                work(&cluster, &mut dice, &mut names, &mut directories).await;
                longest = longest.max(host.now() - began);
                steps += 1;
                assert!(steps < 20_000, "the slots do not arrive");
            }
            println!("{steps} operations while slots moved, the longest took {longest:?}");
            assert!(longest < Duration::from_secs(1), "an operation stood still for {longest:?}");
            let shares = MANAGERS.map(|node| {
                let maps = cluster.maps();
                (0..SLOT_COUNT).filter(|slot| maps.slot(*slot).node == node.0).count()
            });
            assert_eq!(shares, [1366, 1365, 1365]);
            compare(&cluster, &names, &directories).await;
            // Rounds of images make what was handed over superfluous: long runs again, and each rolls one log.
            host.sleep(Duration::from_secs(5)).await;
            let maps = cluster.refresh().await.unwrap();
            assert_eq!(maps.slots.len(), 3, "{:?}", maps.slots);
            assert!(maps.slots.values().all(|entry| entry.base.is_none() && entry.logs.len() <= 1));
            compare(&cluster, &names, &directories).await;
        });
        shared.await.unwrap();
    });
}

/// What each slot's image holds is read at a take-over: on a slow network that must not take a round trip for each slot.
#[test]
fn images_are_read_side_by_side() {
    let (mut more, mut one_by_one) = (Duration::ZERO, Duration::ZERO);
    for seed in 1..13 {
        let (few, seldom) = sim::run(seed, async |world: World, _| take_over_slowly(&world, 1).await);
        let (many, often) = sim::run(seed, async |world: World, _| take_over_slowly(&world, 200).await);
        assert!(often > seldom + 20, "there are images to read");
        // Other waits differ as well, from world to world by more than a second, one way or the other.
        more += many.saturating_sub(few);
        one_by_one += 2 * ONE_WAY * (often - seldom) as u32;
    }
    println!("the images of many slots took {more:?} in all, and {one_by_one:?} would be one by one");
    assert!(more < one_by_one / 4, "images took {more:?}, and one by one {one_by_one:?}");
}

/// How long a message takes on the slow network.
const ONE_WAY: Duration = Duration::from_millis(100);

/// How long it takes another manager to answer for the slots of one that dies and had made so many directories; and in how many
/// slots these were.
async fn take_over_slowly(world: &World, count: u64) -> (Duration, usize) {
    let asking = prepare(world).await;
    let [dead, heir, _] = MANAGERS;
    tell(world, &asking, dead, Fate::Begins).await;
    start(world, dead).await;
    let host = asking.clone();
    let made = world.spawn(&asking, async move {
        let cluster = Cluster::connect(host, STORE).await.unwrap();
        let mut directories = Vec::new();
        for number in 0..count {
            let (directory, name) = (InodeId::ROOT, Bytes::from(format!("directory-{number}")));
            let create = ManagerRequest::Create { directory, name, new: new(Kind::Directory), open: false };
            directories.push(created(ask(&cluster, directory, create).await).unwrap());
        }
        // Images of all of them are made.
        cluster.host().sleep(Duration::from_secs(5)).await;
        directories
    });
    let directories = made.await.unwrap();
    world.add_node(heir);
    tell(world, &asking, heir, Fate::Joins).await;
    tell(world, &asking, heir, Fate::Begins).await;
    start(world, heir).await;

    world.set_network(NetworkOptions { latency_min: ONE_WAY, latency_max: ONE_WAY, ..NetworkOptions::default() });
    world.crash(dead, Stop::Kill);
    let began = world.now();
    tell(world, &asking, dead, Fate::Dies).await;
    let (host, directory) = (asking.clone(), directories[0]);
    let asked = world.spawn(&asking, async move {
        let cluster = Cluster::connect(host, STORE).await.unwrap();
        ask(&cluster, directory, ManagerRequest::Attributes(directory)).await.unwrap();
    });
    asked.await.unwrap();
    let slots: BTreeSet<_> = directories.iter().map(|directory| directory.slot()).collect();
    (world.now() - began, slots.len())
}

/// A lease that is given and taken.
struct Switch(Arc<AtomicBool>);

impl Lease for Switch {
    fn left(&self) -> Duration {
        if self.0.load(Ordering::SeqCst) { Duration::MAX } else { Duration::ZERO }
    }

    fn is_over(&self) -> bool {
        false
    }

    fn lapse(&self) -> BoxFuture<'static, ()> {
        Box::pin(std::future::pending())
    }

    fn outcome(&self) -> BoxFuture<'static, ()> {
        Box::pin(std::future::pending())
    }
}

/// A successor hears from clients what its predecessor granted; so nothing may be granted behind that.
#[test]
fn what_is_only_remembered_is_granted_under_a_lease() {
    sim::run(1, async |world: World, _| {
        let asking = prepare(&world).await;
        tell(&world, &asking, MANAGERS[0], Fate::Begins).await;
        let lease = Arc::new(AtomicBool::new(true));
        start_under(&world, MANAGERS[0], lease.clone()).await;
        let host = asking.clone();
        let asked = world.spawn(&asking, async move {
            let cluster = Cluster::connect(host, STORE).await.unwrap();
            let (directory, name) = (InodeId::ROOT, Bytes::from_static(b"file"));
            let create = ManagerRequest::Create { directory, name, new: new(Kind::File), open: false };
            let inode = created(ask(&cluster, directory, create).await).unwrap();
            let owner = LockOwner { node: ASKER.0, owner: 1 };
            let lock = Lock { family: LockFamily::Flock, owner, pid: 1, exclusive: true, start: 0, last: u64::MAX };
            let requests = [
                ManagerRequest::Lock { inode, lock, wait: false, ticket: 0 },
                ManagerRequest::Unlock { inode, lock },
                ManagerRequest::Token { inode, mode: TokenMode::Read },
                ManagerRequest::Open { inode, keep: None },
            ];
            let to = Address { node: MANAGERS[0], port: Port(MANAGER_PORT) };
            for holds in [false, true] {
                lease.store(holds, Ordering::SeqCst);
                for request in requests.clone() {
                    let answer = cluster.host().call::<_, ManagerAnswer>(to, request.clone()).await.unwrap();
                    assert_eq!(answer.err(), (!holds).then_some(ManagerError::NotMine), "{request:?}");
                }
            }
        });
        asked.await.unwrap();
    });
}

/// A machine that stood still, or was cut off, and was taken for dead, goes on for a while before its successor looks at its
/// log. A table in which it tells what is left to it would be the newest there, and without the slots that it lost.
#[test]
fn who_is_taken_for_dead_hides_nothing_from_its_successor() {
    sim::run(1, async |world: World, _| {
        let asking = prepare(&world).await;
        tell(&world, &asking, MANAGERS[0], Fate::Begins).await;
        let manager = start(&world, MANAGERS[0]).await;
        let (host, mut dice) = (asking.clone(), world.dice());
        let worked = world.spawn(&asking, async move {
            let (mut names, mut directories) = (Names::new(), vec![InodeId::ROOT]);
            let cluster = Cluster::connect(host, STORE).await.unwrap();
            for _ in 0..50 {
                work(&cluster, &mut dice, &mut names, &mut directories).await;
            }
            (cluster, names, directories)
        });
        let (cluster, names, directories) = worked.await.unwrap();

        world.add_node(MANAGERS[1]);
        tell(&world, &asking, MANAGERS[1], Fate::Joins).await;
        tell(&world, &asking, MANAGERS[1], Fate::Begins).await;
        tell(&world, &asking, MANAGERS[0], Fate::Dies).await;
        // It hears of it, and writes a round of images, as it also does when it stops.
        world.sleep(Duration::from_secs(10)).await;
        let written = world.spawn(&world.host(MANAGERS[0]), async move { manager.checkpoint().await });
        assert!(written.await.unwrap().is_err(), "its log is not its own any more");

        start(&world, MANAGERS[1]).await;
        world.spawn(&asking, async move { compare(&cluster, &names, &directories).await }).await.unwrap();
    });
}
