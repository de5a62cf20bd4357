//! A pure client asks whichever registry answers, and learns of changes without being told. The danger: one dead node that it
//! happens to ask first stops it, and a change that it asks for takes effect twice; or all that it knew at first are gone.

use std::time::Duration;

use host::sim::{self, DiskOptions, Stop, World};
use host::{Host, NodeId};
use log::Cluster;
use protocol::id::TargetId;
use protocol::maps::{Drain, NodeState, TargetEntry, Writer};
use protocol::registry::{RegistryError, RegistryReply, RegistryRequest};
use registry::{Life, Registry, Session, change, registries};

#[test]
fn another_registry_is_asked_and_changes_are_heard_of() {
    sim::explore(0..10, async |world, host| {
        let disk = world.add_disk(host.node(), "d", DiskOptions::default());
        let entry = TargetEntry::new(host.node().0, "d".into());
        let maps = change::new_cluster(7, vec![(TargetId(0), entry)], host.node().0, 1);
        Registry::create(maps, vec![(TargetId(0), disk.plug())]).await.expect("an empty disk takes a registry");
        let registry = Registry::start(&host, vec![(TargetId(0), disk.plug())]).await.expect("it starts");
        world.add_node(NodeId(2));
        world.crash(NodeId(2), Stop::PowerLoss);
        let client = world.add_node(NodeId(3));
        let registries = [NodeId(2), host.node()];
        let cluster = Cluster::connect_any(client, &registries).await.expect("one of two answers");
        cluster.follow();
        let open = RegistryRequest::open_log(&cluster.maps(), 1, Writer::Manager, 1);
        registry.answer(open).await.expect("a change");
        world.sleep(Duration::from_millis(50)).await;
        assert_eq!(cluster.maps().next_log.0, 2);

        let add =
            || RegistryRequest::AddNode { name: String::new(), address: String::new(), stores: false, attempt: None };
        world.crash(host.node(), Stop::Kill);
        let refused = cluster.registry(add()).await;
        assert!(matches!(refused, Err(RegistryError::Unavailable(_))), "{refused:?}");
        let host = world.restart(host.node());
        let registry = Registry::start(&host, vec![(TargetId(0), disk.plug())]).await.expect("it starts again");
        cluster.refresh().await.expect("it is found again");
        cluster.registry(add()).await.expect("one node");
        assert_eq!(registry.maps().nodes.len(), 2);
    });
}

/// A node that is added by the first one.
async fn added(world: &World, first: &Registry, stores: bool) -> Host {
    let add = RegistryRequest::AddNode { name: String::new(), address: String::new(), stores, attempt: None };
    let Ok(RegistryReply::Node(node, _)) = first.answer(add).await else { panic!("it is added") };
    world.add_node(NodeId(node))
}

/// Begins a session that asks whoever stores by what `cluster` knows.
async fn live(host: &Host, cluster: &Cluster, after: u64) -> Session {
    let (known, node) = (cluster.known(), host.node());
    let ask = move || known().map_or_else(Vec::new, |maps| registries(&maps, node));
    let life = Life { node: node.0, after, address: String::new(), keeps: None };
    Session::begin(host, ask, life).await.expect("the cluster takes it in")
}

#[test]
fn all_that_stored_at_the_beginning_may_be_replaced() {
    sim::explore(0..10, async |world, host| {
        let disks = [TargetId(0), TargetId(1)];
        let own = vec![(disks[0], world.add_disk(host.node(), "a", DiskOptions::default()).plug())];
        let entry = TargetEntry::new(host.node().0, "a".into());
        let maps = change::new_cluster(7, vec![(disks[0], entry)], host.node().0, 1);
        Registry::create(maps, own.clone()).await.expect("an empty disk takes a registry");
        let first = Registry::start(&host, own).await.expect("it starts");
        let at_first = Cluster::connect(host.clone(), host.node()).await.expect("it answers");
        let _first = live(&host, &at_first, 1).await;

        let client = added(&world, &first, false).await;
        let cluster = Cluster::connect(client.clone(), host.node()).await.expect("it answers");
        cluster.follow();
        let session = live(&client, &cluster, 0).await;

        let newcomer = added(&world, &first, true).await;
        let names = vec!["b".into()];
        first.answer(RegistryRequest::AddTargets { node: newcomer.node().0, names }).await.expect("it is new");
        let disk = world.add_disk(newcomer.node(), "b", DiskOptions::default()).plug();
        let second = Registry::join(&newcomer, first.maps(), vec![(disks[1], disk)]).await.expect("the disk is empty");
        let at_second = Cluster::connect(newcomer.clone(), host.node()).await.expect("it answers");
        let _second = live(&newcomer, &at_second, 0).await;
        let drain = RegistryRequest::Drain(vec![disks[0]], Drain::Careful, first.maps().epoch);
        first.answer(drain).await.expect("the other is left");
        while second.voters() != [newcomer.node().0] || second.leader() != Some(newcomer.node().0) {
            world.sleep(Duration::from_millis(100)).await;
        }
        world.crash(host.node(), Stop::PowerLoss);
        while second.maps().nodes[&host.node().0].state != NodeState::Gone {
            world.sleep(Duration::from_millis(100)).await;
        }
        second.answer(RegistryRequest::RemoveTargets(vec![disks[0]], second.maps().epoch)).await.expect("it is empty");
        second.answer(RegistryRequest::RemoveNode(host.node().0)).await.expect("it is gone");

        world.sleep(Duration::from_secs(30)).await;
        assert!(session.holds(client.now()), "seed {}", world.seed());
        let open = RegistryRequest::open_log(&second.maps(), newcomer.node().0, Writer::Manager, 1);
        second.answer(open).await.expect("a change");
        world.sleep(Duration::from_secs(1)).await;
        assert_eq!(cluster.maps().epoch, second.maps().epoch);
        cluster.newest().await.expect("it is found");
    });
}
