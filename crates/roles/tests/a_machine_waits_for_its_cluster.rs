//! All machines of a site are switched on at once. The danger: one that has no replica asks before the others answer, and
//! does not start.

use std::time::Duration;

use host::NodeId;
use host::sim::{self, DiskOptions, Stop};
use protocol::id::TargetId;
use protocol::maps::TargetEntry;
use registry::{Registry, change};
use roles::joining;

/// How long the only machine that stores takes to answer.
const LATE: Duration = Duration::from_secs(20);
const IN_VAIN: Duration = Duration::from_secs(120);

#[test]
fn who_has_no_replica_waits_until_one_answers_but_not_for_ever() {
    sim::explore(0..20, async |world, host| {
        let disk = world.add_disk(host.node(), "d", DiskOptions::default());
        let entry = TargetEntry::new(host.node().0, "d".into());
        let maps = change::new_cluster(7, vec![(TargetId(0), entry)], host.node().0, 1);
        Registry::create(maps, vec![(TargetId(0), disk.plug())]).await.expect("an empty disk takes a registry");
        let client = world.add_node(NodeId(2));
        let storing = [host.node()];

        let asker = client.clone();
        let asking = world.spawn(&client, async move { joining::ask(&asker, &storing).await });
        world.sleep(LATE).await;
        let registry = Registry::start(&host, vec![(TargetId(0), disk.plug())]).await.expect("it starts");
        let cluster = asking.await.expect("nobody dies").expect("it was waited for");
        assert_eq!(cluster.maps(), registry.maps());

        world.crash(host.node(), Stop::Kill);
        let began = client.now();
        let Err(told) = joining::ask(&client, &storing).await else { panic!("nobody answers") };
        assert!(told.contains("can be asked"), "{told}");
        assert!(client.now().since(began) < IN_VAIN);
    });
}
