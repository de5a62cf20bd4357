//! What one, three and five nodes agree on, without faults but the simplest: how a cluster grows, that it goes on when a
//! node dies, and that a start finds what was acknowledged.

mod cluster;

use std::time::Duration;

use cluster::Cluster;
use host::NodeId;
use host::sim::{self, Stop};
use protocol::maps::{NodeState, Writer};
use protocol::registry::{RegistryReply, RegistryRequest};

fn open(node: u32) -> RegistryRequest {
    RegistryRequest::OpenLog { node, writer: Writer::Client }
}

#[test]
fn one_node_starts_at_once_and_keeps_what_it_acknowledged() {
    sim::explore(0..10, async |world, host| {
        let cluster = Cluster::create(&world, &host, 3, 1).await;
        let registry = cluster.start(1).await;
        for log in 1..=300 {
            match registry.answer(open(1)).await {
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
fn three_nodes_grow_from_one_and_outlive_any_of_them() {
    sim::explore(0..10, async |world, host| {
        let cluster = Cluster::create(&world, &host, 2, 1).await;
        let first = cluster.start(1).await;
        for _ in 0..2 {
            cluster.join(2).await;
        }
        let voters = cluster.await_voters(1, 3).await;
        assert_eq!(voters, [1, 2, 3]);
        first.answer(open(1)).await.expect("three nodes agree");
        let leader = first.leader().expect("somebody leads");
        world.crash(NodeId(leader), Stop::PowerLoss);
        let died = world.now();
        let living = if leader == 1 { 2 } else { 1 };
        cluster.registry(living).answer(open(living)).await.expect("two of three agree");
        assert!(world.now().since(died) < Duration::from_secs(5), "{:?}", world.now().since(died));
        assert_eq!(cluster.registry(living).maps().next_log.0, 3);
        world.sleep(Duration::from_secs(8)).await;
        let maps = cluster.registry(living).maps();
        assert_eq!(maps.nodes[&leader].state, NodeState::Gone, "its lease ran out");
        assert!((0..4096).all(|slot| maps.slot(slot).node != leader));
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
        cluster.start(2).await.answer(open(2)).await.expect("it is back");
    });
}
