//! A pure client asks whichever registry answers, and learns of changes without being told. The danger: one dead node that it
//! happens to ask first stops it, and a change that it asks for takes effect twice.

use std::time::Duration;

use host::NodeId;
use host::sim::{self, DiskOptions, Stop};
use log::Cluster;
use protocol::id::TargetId;
use protocol::maps::{TargetEntry, Writer};
use protocol::registry::{RegistryError, RegistryRequest};
use registry::{Registry, change};

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
