//! What one, three and five nodes agree on, without faults but the simplest: how a cluster grows, that it goes on when a
//! node dies, and that a start finds what was acknowledged.

use std::time::Duration;

use host::sim::{self, DiskFaults, DiskOptions, Stop, World};
use host::{Disk, Host, NodeId};
use protocol::checksum::crc;
use protocol::id::TargetId;
use protocol::maps::{Drain, NodeState, TargetState};
use protocol::registry::{LEASE, RegistryError, RegistryReply, RegistryRequest};
use registry::leases::RETURN;
use registry::{Life, Registry, RegistryStart, Session};

use crate::cluster::{Cluster, until};

#[test]
fn one_node_starts_at_once_and_keeps_what_it_acknowledged() {
    sim::explore(0..10, async |world, host| {
        let cluster = Cluster::create(&world, &host, 3, 1).await;
        let registry = cluster.start(1).await;
        for log in 1..=300 {
            match registry.answer(cluster.open(1)).await {
                Ok(RegistryReply::Log(id, _, maps)) => assert_eq!((id.0, maps.next_log.0), (log, log + 1)),
                other => panic!("{other:?}"),
            }
        }
        world.crash(NodeId(1), Stop::PowerLoss);
        world.restart(NodeId(1));
        let before = world.now();
        let registry = cluster.start(1).await;
        assert!(world.now().since(before) < Duration::from_millis(300), "{:?}", world.now().since(before));
        assert_eq!(registry.maps().next_log.0, 301);
        assert_eq!(registry.outdated(), []);
    });
}

#[test]
fn the_only_voter_shows_all_that_it_acknowledged_as_soon_as_it_has_started() {
    sim::explore(0..10, async |world, host| {
        let cluster = Cluster::create(&world, &host, 2, 1).await;
        let mut registry = cluster.start(1).await;
        for log in 2..20 {
            registry.answer(cluster.open(1)).await.expect("it is alone");
            world.crash(NodeId(1), if log % 2 == 0 { Stop::Kill } else { Stop::PowerLoss });
            let host = world.restart(NodeId(1));
            let disks = (0..).map(TargetId).zip(cluster.disks(1).iter().map(|disk| disk.plug())).collect();
            registry = Registry::start(&host, disks).await.expect("it starts");
            assert_eq!(registry.maps().next_log.0, log);
        }
    });
}

#[test]
fn three_nodes_grow_from_one_and_outlive_any_of_them() {
    sim::explore(0..10, async |world, host| {
        let cluster = Cluster::create(&world, &host, 2, 1).await;
        let first = cluster.start(1).await;
        for _ in 0..2 {
            cluster.join(2).await;
        }
        let voters = cluster.await_voters(1, 3).await;
        assert_eq!(voters, [1, 2, 3]);
        first.answer(cluster.open(1)).await.expect("three nodes agree");
        let leader = first.leader().expect("somebody leads");
        world.crash(NodeId(leader), Stop::PowerLoss);
        let died = world.now();
        let living = if leader == 1 { 2 } else { 1 };
        cluster.registry(living).answer(cluster.open(living)).await.expect("two of three agree");
        assert!(world.now().since(died) < Duration::from_secs(5), "{:?}", world.now().since(died));
        assert_eq!(cluster.registry(living).maps().next_log.0, 3);
        let maps = || cluster.registry(living).maps();
        until(&world, "its lease ran out", || maps().nodes[&leader].state == NodeState::Gone).await;
        // Its last renewal was granted before it died, and those who elected the next leader know that.
        assert!(world.now().since(died) < LEASE + Duration::from_millis(300), "{:?}", world.now().since(died));
        let maps = maps();
        assert!((0..4096).all(|slot| maps.slot(slot).node != leader));
    });
}

/// Who votes changes in two steps, and the second one is the leader's to propose. Between them the vote of each of those of
/// before is needed yet.
#[test]
fn a_growth_of_the_voters_that_was_cut_in_half_is_finished() {
    sim::explore(sim::seeds(30), async |world, host| {
        let cluster = Cluster::create(&world, &host, 2, 1).await;
        cluster.start(1).await;
        for _ in 0..2 {
            cluster.join(2).await;
        }
        while cluster.registry(1).voters() == [1] {
            world.sleep(Duration::from_micros(50)).await;
        }
        world.sleep(Duration::from_micros(world.dice().below(2000))).await;
        world.crash(NodeId(1), if world.dice().coin() { Stop::Kill } else { Stop::PowerLoss });
        world.restart(NodeId(1));
        cluster.start(1).await;
        until(&world, "all vote", || cluster.registry(2).voters() == [1, 2, 3]).await;
        world.sleep(Duration::from_secs(2)).await;
        world.crash(NodeId(1), Stop::PowerLoss);
        let add =
            RegistryRequest::AddNode { name: String::new(), address: String::new(), stores: false, attempt: None };
        cluster.registry(2).answer(add).await.expect("two of three agree");
    });
}

#[test]
fn a_node_that_is_drained_gives_its_vote_and_its_slots_away_and_is_forgotten() {
    sim::explore(0..10, async |world, host| {
        let cluster = Cluster::create(&world, &host, 1, 1).await;
        cluster.start(1).await;
        for _ in 0..3 {
            cluster.join(1).await;
        }
        cluster.await_voters(1, 3).await;
        // Whichever it is: the one that leads, another voter, or one that learns.
        let leaver = 1 + world.dice().below(4) as u32;
        let staying: Vec<u32> = (1..=4).filter(|&node| node != leaver).collect();
        let on = cluster.registry(staying[0]);
        let targets =
            on.maps().present().filter(|(_, entry)| entry.node == leaver).map(|(id, _)| id).collect::<Vec<_>>();
        let drain = RegistryRequest::Drain(targets.clone(), Drain::Careful, on.maps().epoch);
        on.answer(drain).await.expect("three others are left");
        until(&world, "only others vote", || cluster.registry(staying[0]).voters() == staying).await;
        let maps = on.maps();
        let gives = |first: &u16| maps.slot(*first).node == leaver;
        assert!(maps.wishes.values().all(|wish| wish.to != leaver) && !maps.wishes.keys().any(|first| !gives(first)));
        let removal = RegistryRequest::RemoveNode(leaver);
        assert!(matches!(on.answer(removal.clone()).await, Err(RegistryError::InUse(_))), "it runs");
        world.crash(NodeId(leaver), Stop::PowerLoss);
        until(&world, "it is gone", || on.maps().nodes[&leaver].state == NodeState::Gone).await;
        assert!(matches!(on.answer(removal.clone()).await, Err(RegistryError::InUse(_))), "it has a target");
        // The slots that it managed may be shared out meanwhile.
        while let Err(error) = on.answer(RegistryRequest::RemoveTargets(targets.clone(), on.maps().epoch)).await {
            assert_eq!(error, RegistryError::Lost, "nothing was ever written to it");
            world.sleep(Duration::from_millis(100)).await;
        }
        on.answer(removal).await.expect("it has nothing any more");
        until(&world, "it is no member", || on.members() == staying).await;
        world.restart(NodeId(leaver));
        let host = world.host(NodeId(leaver));
        let ask: Vec<NodeId> = staying.iter().copied().map(NodeId).collect();
        let life = Life { node: leaver, after: 1, address: String::new(), keeps: None };
        let refused = Session::begin(&host, move || ask.clone(), life).await;
        assert_eq!(refused.err(), Some(RegistryError::Removed(leaver)));
        world.crash(NodeId(staying[1]), Stop::PowerLoss);
        on.answer(cluster.open(staying[0])).await.expect("two of three agree");
    });
}

#[test]
fn a_clean_stop_gives_the_lease_back_at_once() {
    sim::explore(0..5, async |world, host| {
        let cluster = Cluster::create(&world, &host, 2, 1).await;
        cluster.start(1).await;
        cluster.join(2).await;
        let session = cluster.session(2).expect("it has begun");
        assert!(session.holds(world.host(NodeId(2)).now()));
        session.clone().end().await.expect("the leader hears of it");
        assert!(!session.holds(world.host(NodeId(2)).now()) && session.is_over());
        assert_eq!(cluster.registry(1).maps().nodes[&2].state, NodeState::Gone);
    });
}

#[test]
fn a_leader_that_goes_away_is_not_missed() {
    sim::explore(0..10, async |world, host| {
        let cluster = Cluster::create(&world, &host, 2, 1).await;
        cluster.start(1).await;
        for _ in 0..2 {
            cluster.join(2).await;
        }
        cluster.await_voters(1, 3).await;
        let leader = cluster.registry(1).leader().expect("somebody leads");
        let registry = cluster.registry(leader);
        let before = world.now();
        registry.hand_over().await;
        let next = registry.leader().expect("another leads");
        assert_ne!(next, leader);
        registry.answer(cluster.open(leader)).await.expect("they agree");
        assert!(world.now().since(before) < Duration::from_millis(200), "{:?}", world.now().since(before));
        let holds = |node: &u32| cluster.session(*node).unwrap().holds(world.host(NodeId(*node)).now());
        assert!(cluster.nodes().iter().all(holds), "nobody's lease has anything to do with who leads");
    });
}

#[test]
fn a_frozen_node_knows_on_waking_that_its_lease_ran_out() {
    sim::explore(0..5, async |world, host| {
        let cluster = Cluster::create(&world, &host, 2, 1).await;
        cluster.start(1).await;
        cluster.join(2).await;
        cluster.join(2).await;
        cluster.await_voters(1, 3).await;
        let (session, frozen) = (cluster.session(3).expect("it has begun"), world.host(NodeId(3)));
        let lost = world.spawn(&frozen, {
            let session = session.clone();
            async move { session.lost().await }
        });
        world.pause(NodeId(3));
        world.sleep(LEASE).await;
        assert!(!session.holds(frozen.now()));
        world.sleep(Duration::from_secs(2)).await;
        assert_eq!(cluster.registry(1).maps().nodes[&3].state, NodeState::Gone);
        world.resume(NodeId(3));
        lost.await.expect("it was told");
        world.sleep(Duration::from_secs(3)).await;
        assert!(session.is_over(), "and nothing brings it back");
    });
}

/// Three nodes that vote.
async fn three(world: &World, host: &Host) -> Cluster {
    let cluster = Cluster::create(world, host, 2, 1).await;
    cluster.start(1).await;
    for _ in 0..2 {
        cluster.join(2).await;
    }
    cluster.await_voters(1, 3).await;
    cluster
}

/// All links are cut, or all machines stand still, for so long; then all is as before.
async fn interrupt(world: &World, cluster: &Cluster, length: Duration) {
    let nodes: Vec<NodeId> = cluster.nodes().into_iter().map(NodeId).collect();
    if world.dice().coin() {
        nodes.iter().for_each(|&node| world.pause(node));
        world.sleep(length).await;
        nodes.iter().for_each(|&node| world.resume(node));
    } else {
        nodes.iter().for_each(|&node| world.isolate(node));
        world.sleep(length).await;
        world.heal_all();
    }
}

/// Whoever leads after it heard nobody for longer than a lease; it could not. It must not end the sessions of all.
#[test]
fn an_interruption_of_everything_ends_no_session() {
    sim::explore(sim::seeds(40), async |world, host| {
        let cluster = three(&world, &host).await;
        let sessions: Vec<Session> = (1..=3).map(|node| cluster.session(node).expect("it has begun")).collect();
        for _ in 0..3 {
            let length = Duration::from_millis(500 + world.dice().below(12_000));
            interrupt(&world, &cluster, length).await;
            let healed = world.now();
            until(&world, "all leases hold again", || sessions.iter().all(|session| session.holds(world.now()))).await;
            assert!(world.now().since(healed) < Duration::from_secs(4), "{:?}", world.now().since(healed));
            world.sleep(RETURN).await;
            let over = sessions.iter().any(Session::is_over);
            assert!(!over, "seed {}: after {length:?} somebody was given up", world.seed());
            cluster.registry(2).answer(cluster.open(2)).await.expect("they agree");
        }
    });
}

/// A machine without a registry, which nobody calls: it connects again when it next renews, and finds that links are back
/// later than the voters do.
#[test]
fn who_connects_again_late_is_not_given_up() {
    sim::explore(sim::seeds(20), async |world, host| {
        let cluster = three(&world, &host).await;
        let add =
            RegistryRequest::AddNode { name: String::new(), address: String::new(), stores: false, attempt: None };
        let Ok(RegistryReply::Node(node, _)) = cluster.registry(1).answer(add).await else { panic!("it is added") };
        let client = world.add_node(NodeId(node));
        let life = Life { node, after: 0, address: String::new(), keeps: None };
        let ask = || (1..=3).map(NodeId).collect();
        let session = world.spawn(&client.clone(), async move { Session::begin(&client, ask, life).await });
        let session = session.await.expect("nobody stops it").expect("they let it begin");
        (1..=3).map(NodeId).chain([NodeId(node)]).for_each(|node| world.isolate(node));
        world.sleep(Duration::from_secs(10)).await;
        world.heal_all();
        world.isolate(NodeId(node));
        world.sleep(Duration::from_secs(2)).await;
        world.heal_all();
        world.sleep(2 * LEASE).await;
        assert!(session.holds(world.host(NodeId(node)).now()), "seed {}: it was given up", world.seed());
    });
}

#[test]
fn who_died_in_an_interruption_is_given_up_soon_after_it() {
    sim::explore(sim::seeds(20), async |world, host| {
        let cluster = three(&world, &host).await;
        let dead = 1 + world.dice().below(3) as u32;
        let living = 1 + dead % 3;
        (1..=3).for_each(|node| world.isolate(NodeId(node)));
        world.sleep(Duration::from_secs(world.dice().below(10))).await;
        world.crash(NodeId(dead), Stop::PowerLoss);
        world.sleep(Duration::from_secs(world.dice().below(10))).await;
        world.heal_all();
        let healed = world.now();
        let is_gone = || cluster.registry(living).maps().nodes[&dead].state == NodeState::Gone;
        until(&world, "it is given up", is_gone).await;
        assert!(world.now().since(healed) < RETURN + Duration::from_millis(1500), "{:?}", world.now().since(healed));
        world.sleep(LEASE).await;
        let lives = |node: &u32| *node == dead || !cluster.session(*node).expect("it has begun").is_over();
        assert!(cluster.nodes().iter().all(lives), "seed {}: only who died", world.seed());
    });
}

/// The only voter decides alone who lives: but not of a time in which it heard nothing because it stood still.
#[test]
fn the_only_voter_that_stood_still_gives_nobody_up_for_it() {
    sim::explore(sim::seeds(10), async |world, host| {
        let cluster = Cluster::create(&world, &host, 2, 1).await;
        cluster.start(1).await;
        cluster.join(2).await;
        let session = cluster.session(2).expect("it has begun");
        world.pause(NodeId(1));
        world.sleep(Duration::from_millis(1000 + world.dice().below(10_000))).await;
        world.resume(NodeId(1));
        world.sleep(2 * LEASE).await;
        assert!(session.holds(world.host(NodeId(2)).now()), "seed {}", world.seed());
        world.isolate(NodeId(2));
        let cut = world.now();
        until(&world, "it is given up", || cluster.registry(1).maps().nodes[&2].state == NodeState::Gone).await;
        assert!(world.now().since(cut) < LEASE + Duration::from_millis(200), "{:?}", world.now().since(cut));
    });
}

#[test]
fn a_node_goes_on_with_the_targets_that_are_left() {
    sim::explore(0..5, async |world, host| {
        let cluster = Cluster::create(&world, &host, 3, 1).await;
        let registry = cluster.start(1).await;
        cluster.disks(1)[0].fail();
        registry.answer(cluster.open(1)).await.expect("two of three copies are enough");
        cluster.disks(1)[1].fail();
        let refused = registry.answer(cluster.open(1));
        let mended = async {
            world.sleep(Duration::from_secs(1)).await;
            cluster.disks(1)[1].heal();
        };
        let (answer, ()) = futures_util::future::join(refused, mended).await;
        answer.expect("a disk that comes back soon is waited for");
        world.crash(NodeId(1), Stop::PowerLoss);
        world.restart(NodeId(1));
        let registry = cluster.start(1).await;
        assert_eq!(registry.maps().next_log.0, 3);
    });
}

/// Writes rubbish over a copy.
async fn damage(disk: &Disk) {
    for space in ["registry.0", "registry.1", "registry.log"] {
        let file = disk.open(space).unwrap();
        file.write(0, vec![vec![7; 4096].into()]).await.unwrap();
        file.sync().await.unwrap();
    }
}

/// Each of them bears as many losses as there are sound copies: one that a start could not read must become one again.
#[test]
fn a_damaged_copy_is_written_anew_by_the_start_that_finds_it() {
    sim::explore(sim::seeds(20), async |world, host| {
        let cluster = Cluster::create(&world, &host, 3, 1).await;
        let registry = cluster.start(1).await;
        for _ in 0..world.dice().below(300) {
            registry.answer(cluster.open(1)).await.expect("it is alone");
        }
        world.crash(NodeId(1), Stop::PowerLoss);
        world.restart(NodeId(1));
        let damaged = world.dice().below(3) as usize;
        damage(&cluster.disks(1)[damaged].plug()).await;
        let registry = cluster.start(1).await;
        assert_eq!(registry.damaged(), [TargetId(damaged as u32)]);
        cluster.disks(1)[(damaged + 1) % 3].fail();
        registry.answer(cluster.open(1)).await.expect("two copies are sound");
        cluster.disks(1)[(damaged + 1) % 3].heal();
        registry.answer(cluster.open(1)).await.expect("two copies are sound");
        let logs = registry.maps().logs.len();
        world.crash(NodeId(1), Stop::PowerLoss);
        world.restart(NodeId(1));
        let registry = cluster.start(1).await;
        assert_eq!((registry.maps().logs.len(), registry.damaged()), (logs, vec![]));
    });
}

#[test]
fn a_start_does_not_ask_for_targets_that_were_taken_away() {
    sim::explore(0..5, async |world, host| {
        let cluster = Cluster::create(&world, &host, 4, 1).await;
        let registry = cluster.start(1).await;
        let gone = vec![TargetId(2), TargetId(3)];
        let drain = RegistryRequest::Drain(gone.clone(), Drain::Careful, registry.maps().epoch);
        registry.answer(drain).await.expect("two are left");
        registry.answer(RegistryRequest::RemoveTargets(gone, registry.maps().epoch)).await.expect("nothing lies there");
        world.sleep(Duration::from_secs(1)).await;
        registry.answer(cluster.open(1)).await.expect("two copies are enough");
        world.crash(NodeId(1), Stop::PowerLoss);
        let plugged = |targets: [usize; 2]| -> Vec<_> {
            let disks = cluster.disks(1);
            targets.into_iter().map(|n| (TargetId(n as u32), disks[n].plug())).collect()
        };
        let host = world.restart(NodeId(1));
        let stale = Registry::start(&host, plugged([2, 3])).await;
        assert!(matches!(stale, Err(RegistryStart::TooFew { .. })), "{:?}", stale.err());
        let registry = Registry::start(&host, plugged([0, 1])).await.expect("all that count are there");
        assert_eq!(registry.maps().next_log.0, 2);
    });
}

/// A replica that waits for room is behind the others: it says so, rather than tell what was.
#[test]
fn a_node_whose_disks_are_full_waits_for_room_and_catches_up() {
    sim::explore(0..5, async |world, host| {
        let cluster = Cluster::create(&world, &host, 2, 1).await;
        cluster.start(1).await;
        for _ in 0..2 {
            cluster.join(2).await;
        }
        cluster.await_voters(1, 3).await;
        let full = 1 + world.dice().below(3) as u32;
        let other = 1 + full % 3;
        let room = |capacity_bytes| {
            let options = DiskOptions { capacity_bytes, ..DiskOptions::default() };
            cluster.disks(full).iter().for_each(|disk| disk.set_options(options));
        };
        room(0);
        // So many that they do not fit where others lay before.
        for _ in 0..400 {
            // Who leads may be the one that waits.
            world.sleep(Duration::from_millis(50)).await;
            drop(cluster.registry(other).answer(cluster.open(other)).await);
        }
        cluster.registry(other).answer(cluster.open(other)).await.expect("two of three agree");
        let told = cluster.registry(full).answer(RegistryRequest::Maps).await;
        assert!(matches!(told, Err(RegistryError::Elsewhere(_))), "seed {}: {told:?}", world.seed());
        assert!(cluster.registry(full).ails().is_some_and(|why| why.contains("full")));
        // So long that what the library tells itself meanwhile fills its queues, if it does.
        world.sleep(Duration::from_secs(600)).await;
        room(DiskOptions::default().capacity_bytes);
        let epoch = || cluster.registry(other).maps().epoch;
        until(&world, "it has caught up", || cluster.registry(full).maps().epoch == epoch()).await;
        cluster.registry(full).answer(cluster.open(full)).await.expect("it agrees again");
        assert_eq!(cluster.registry(full).ails(), None);
    });
}

const HUNG: DiskFaults = DiskFaults { reads: false, writes: false, syncs: false, read_only: false, hung: true };

#[test]
fn a_disk_that_hangs_stops_nobody_for_long_and_is_taken_back() {
    sim::explore(0..5, async |world, host| {
        let cluster = Cluster::create(&world, &host, 3, 1).await;
        let registry = cluster.start(1).await;
        for disk in [0, 2, 0] {
            cluster.disks(1)[disk].set_faults(HUNG);
            for limit in [1000, 200, 200] {
                let before = world.now();
                registry.answer(cluster.open(1)).await.expect("two of three copies are enough");
                let took = world.now().since(before);
                assert!(
                    took < Duration::from_millis(limit),
                    "{took:?}: it is waited for once, and not as long as a lease"
                );
            }
            cluster.disks(1)[disk].heal();
            world.sleep(Duration::from_secs(1)).await;
            registry.answer(cluster.open(1)).await.expect("all agree");
        }
        let logs = registry.maps().logs.len();
        world.crash(NodeId(1), Stop::PowerLoss);
        world.restart(NodeId(1));
        let registry = cluster.start(1).await;
        assert_eq!((registry.maps().logs.len(), registry.outdated()), (logs, vec![]), "no copy misses anything");
    });
}

/// Three nodes with so many copies each, all of which count, and one of the nodes.
async fn three_of_which_one(world: &World, host: &Host, copies: u32) -> (Cluster, u32) {
    let cluster = Cluster::create(world, host, copies, 1).await;
    cluster.start(1).await;
    for _ in 0..2 {
        cluster.join(copies).await;
    }
    cluster.await_voters(1, 3).await;
    let all_count = || (1..=3).all(|node| counted(&cluster, node).len() == copies as usize);
    until(world, "each has told of its copies", all_count).await;
    let node = 1 + world.dice().below(3) as u32;
    (cluster, node)
}

/// The targets whose copies of a node's replica count, as the other nodes know.
fn counted(cluster: &Cluster, node: u32) -> Vec<TargetId> {
    cluster.registry(1 + node % 3).maps().nodes[&node].copies.targets.iter().copied().collect()
}

/// The disks of a node with these numbers, and the targets that they are.
fn some_of(cluster: &Cluster, node: u32, numbers: &[usize]) -> Vec<(TargetId, Disk)> {
    let all: Vec<TargetId> = {
        let maps = cluster.registry(1 + node % 3).maps();
        maps.targets.iter().filter(|(_, entry)| entry.node == node).map(|(id, _)| *id).collect()
    };
    numbers.iter().map(|&number| (all[number], cluster.disks(node)[number].plug())).collect()
}

/// So that something is to be kept.
async fn go_on(world: &World, cluster: &Cluster, node: u32) {
    let other = 1 + node % 3;
    for _ in 0..20 {
        world.sleep(Duration::from_millis(500)).await;
        // Who leads may be the one that waits.
        drop(cluster.registry(other).answer(cluster.open(other)).await);
    }
    until(world, "it goes on", || cluster.registry(node).ails().is_none()).await;
    cluster.registry(node).answer(cluster.open(node)).await.expect("it agrees");
}

#[test]
fn a_node_goes_on_with_one_of_two_copies_and_never_with_the_lost_one_alone() {
    sim::explore(0..10, async |world, host| {
        let (cluster, node) = three_of_which_one(&world, &host, 2).await;
        let lost = world.dice().below(2) as usize;
        let left = some_of(&cluster, node, &[1 - lost])[0].0;
        match world.dice().below(2) {
            0 => cluster.disks(node)[lost].fail(),
            _ => cluster.disks(node)[lost].set_faults(HUNG),
        }
        go_on(&world, &cluster, node).await;
        assert_eq!(counted(&cluster, node), [left]);
        let stop = || {
            cluster.forget(node);
            world.crash(NodeId(node), Stop::PowerLoss);
            world.restart(NodeId(node))
        };
        let host = stop();
        cluster.disks(node)[lost].heal();
        let refused = Registry::start(&host, some_of(&cluster, node, &[lost])).await.err();
        assert!(matches!(refused, Some(RegistryStart::Uncounted(_))), "{refused:?}");
        let host = stop();
        let alone = Registry::start(&host, some_of(&cluster, node, &[1 - lost])).await.expect("what counts is there");
        until(&world, "it knows what was agreed on", || alone.maps().next_log.0 > 1).await;
        drop(alone);
        stop();
        cluster.start(node).await;
        until(&world, "both count again", || counted(&cluster, node).len() == 2).await;
        cluster.disks(node)[1 - lost].fail();
        go_on(&world, &cluster, node).await;
        assert_ne!(counted(&cluster, node), [left], "the other has all, too");
    });
}

#[test]
fn a_damaged_copy_is_none_that_a_start_with_a_lost_one_could_write() {
    sim::explore(0..10, async |world, host| {
        let (cluster, node) = three_of_which_one(&world, &host, 2).await;
        let lost = world.dice().below(2) as usize;
        cluster.disks(node)[lost].fail();
        go_on(&world, &cluster, node).await;
        cluster.forget(node);
        world.crash(NodeId(node), Stop::PowerLoss);
        let host = world.restart(NodeId(node));
        cluster.disks(node)[lost].heal();
        let both = some_of(&cluster, node, &[0, 1]);
        damage(&both[1 - lost].1).await;
        let refused = Registry::start(&host, both).await.err();
        assert!(matches!(refused, Some(RegistryStart::Uncounted(_))), "{refused:?}");
    });
}

#[test]
fn a_node_that_starts_without_one_of_two_copies_asks_the_others() {
    sim::explore(0..10, async |world, host| {
        let (cluster, node) = three_of_which_one(&world, &host, 2).await;
        cluster.forget(node);
        world.crash(NodeId(node), Stop::PowerLoss);
        let host = world.restart(NodeId(node));
        for other in (1..=3).filter(|other| *other != node) {
            world.cut(NodeId(node), NodeId(other));
        }
        let refused = Registry::start(&host, some_of(&cluster, node, &[0])).await.err();
        assert!(matches!(refused, Some(RegistryStart::Alone { .. })), "{refused:?}");
        (1..=3).filter(|other| *other != node).for_each(|other| world.heal(NodeId(node), NodeId(other)));
        let registry = Registry::start(&host, some_of(&cluster, node, &[0])).await.expect("they agree");
        assert_eq!(counted(&cluster, node), [some_of(&cluster, node, &[0])[0].0]);
        drop(registry);
    });
}

#[test]
fn a_node_with_three_copies_loses_one_after_the_other() {
    sim::explore(0..10, async |world, host| {
        let (cluster, node) = three_of_which_one(&world, &host, 3).await;
        let first = world.dice().below(3) as usize;
        let target = some_of(&cluster, node, &[first])[0].0;
        cluster.disks(node)[first].fail();
        let failed = RegistryRequest::SetTarget(target, TargetState::Failed);
        cluster.registry(node).answer(failed).await.expect("its node says so");
        until(&world, "it goes on without that", || counted(&cluster, node).len() == 2).await;
        go_on(&world, &cluster, node).await;
        cluster.disks(node)[(first + 1) % 3].fail();
        go_on(&world, &cluster, node).await;
        assert_eq!(counted(&cluster, node).len(), 1);
        cluster.disks(node)[first].heal();
        let whole = RegistryRequest::SetTarget(target, TargetState::Behind);
        cluster.registry(node).answer(whole).await.expect("its node says so");
        until(&world, "it is taken in again", || counted(&cluster, node).contains(&target)).await;
        go_on(&world, &cluster, node).await;
    });
}

#[test]
fn a_node_waits_for_disks_that_all_hang() {
    sim::explore(sim::seeds(10), async |world, host| {
        let cluster = Cluster::create(&world, &host, 3, 1).await;
        let (registry, mut dice) = (cluster.start(1).await, world.dice());
        for _ in 0..2 {
            let hung = 2 + dice.below(2) as usize;
            let disks = cluster.disks(1);
            disks[..hung].iter().for_each(|disk| disk.set_faults(HUNG));
            let asked = registry.answer(cluster.open(1)).await;
            assert!(matches!(asked, Err(RegistryError::Unavailable(_))), "{asked:?}");
            assert!(registry.ails().is_some_and(|why| why.contains("not answered")));
            // So long that what the library tells itself meanwhile fills its queues, if it does.
            world.sleep(Duration::from_secs(dice.below(600))).await;
            disks[..hung].iter().for_each(|disk| disk.heal());
            let agrees = || registry.ails().is_none();
            until(&world, "it goes on", agrees).await;
            registry.answer(cluster.open(1)).await.expect("it agrees again");
        }
    });
}

#[test]
fn a_node_goes_on_when_one_disk_has_room_again_though_another_hangs() {
    sim::explore(0..5, async |world, host| {
        let cluster = Cluster::create(&world, &host, 3, 1).await;
        let registry = cluster.start(1).await;
        let (hung, full) = (&cluster.disks(1)[0], &cluster.disks(1)[1]);
        hung.set_faults(HUNG);
        full.set_options(DiskOptions { capacity_bytes: 0, ..DiskOptions::default() });
        // What it has already is written over.
        while registry.answer(cluster.open(1)).await.is_ok() {}
        assert!(registry.ails().is_some());
        full.set_options(DiskOptions::default());
        until(&world, "it goes on", || registry.ails().is_none()).await;
        registry.answer(cluster.open(1)).await.expect("two of three copies are enough");
    });
}

#[test]
fn a_node_that_lost_its_replica_does_not_join_under_its_number() {
    sim::explore(0..3, async |world, host| {
        let cluster = Cluster::create(&world, &host, 2, 1).await;
        let first = cluster.start(1).await;
        cluster.join(2).await;
        world.sleep(Duration::from_secs(1)).await;
        world.crash(NodeId(2), Stop::PowerLoss);
        cluster.disks(2).iter().for_each(|disk| disk.wipe());
        let host = world.restart(NodeId(2));
        let disks = || cluster.disks(2).iter().map(|disk| (TargetId(2), disk.plug())).take(1).collect();
        let joined = Registry::join(&host, first.maps(), disks()).await;
        assert!(joined.is_err(), "the others count on what it had");
    });
}

#[test]
fn the_format_of_before_is_refused_by_its_name() {
    sim::explore(0..1, async |world, host| {
        let disk = world.add_disk(host.node(), "old", DiskOptions::default());
        let space = disk.plug().open("registry.0").unwrap();
        let mut old = b"DZREG\0\0\x01".to_vec();
        old.extend_from_slice(&[7; 12]);
        old.extend_from_slice(&crc(&old).to_le_bytes());
        old.extend_from_slice(b"the maps as they were");
        space.write(0, vec![old.into()]).await.unwrap();
        let started = Registry::start(&host, vec![(TargetId(0), disk.plug())]).await;
        let why = started.err().expect("it is not read").to_string();
        let known = format!("version {}", registry::FORMAT_VERSION);
        assert!(why.contains("version 1 ") && why.contains(&known), "{why}");
    });
}

#[test]
fn equal_seeds_tell_equal_stories() {
    sim::replay(5, async |world, host| {
        let cluster = Cluster::create(&world, &host, 2, 1).await;
        cluster.start(1).await;
        cluster.join(2).await;
        cluster.join(2).await;
        cluster.await_voters(1, 3).await;
        world.crash(NodeId(2), Stop::Kill);
        world.sleep(Duration::from_secs(6)).await;
        world.restart(NodeId(2));
        cluster.start(2).await.answer(cluster.open(2)).await.expect("it is back");
    });
}
