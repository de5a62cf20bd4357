//! A manager whose memory does not hold all its pages reads them from targets. The danger: where links are full these answer
//! too late, and calls fail for names and files that are all there.

use std::time::Duration;

use bytes::Bytes;
use futures_util::future::join_all;
use host::sim::{self, Verdict, World};
use host::{Address, Host, Moment, NodeId, Port};
use log::Cluster;
use protocol::file::{Caller, Kind, NewInode};
use protocol::id::InodeId;
use protocol::manager::{Answer, MANAGER_PORT, ManagerAnswer, ManagerRequest};
use protocol::storage::STORAGE_PORT;

use crate::several::{GROUND, Site};

/// More than a manager reads when it starts.
const DIRECTORIES: usize = 3000;
/// Longer than a target is waited for, again and again; shorter than calls have patience.
const LATE: Duration = Duration::from_secs(16);

async fn ask(host: &Host, cluster: &Cluster, inode: InodeId, request: ManagerRequest) -> ManagerAnswer {
    let node = NodeId(cluster.maps().slot(inode.slot().0).node);
    host.call(Address { node, port: Port(MANAGER_PORT) }, request).await.expect("the manager lives")
}

/// Directories, each in the one before.
async fn create(host: Host) -> Vec<InodeId> {
    let cluster = Cluster::connect(host.clone(), GROUND).await.expect("the registry never fails");
    let mut made = vec![InodeId::ROOT];
    while made.len() < DIRECTORIES {
        let (directory, caller) = (made[made.len() - 1], Caller::default());
        let new = NewInode { kind: Kind::Directory, mode: 0o755, mask: 0, device: 0, target: Bytes::new(), caller };
        let request = ManagerRequest::Create { directory, name: Bytes::from_static(b"next"), new, open: false };
        match ask(&host, &cluster, directory, request).await.expect("the name is new").answer {
            Answer::Entry(attributes, _) => made.push(attributes.inode),
            other => panic!("made, not {other:?}"),
        }
    }
    made
}

/// Says when it had the last answer.
async fn ask_for_all(world: World, host: Host, made: Vec<InodeId>) -> Moment {
    let cluster = Cluster::connect(host.clone(), GROUND).await.expect("the registry never fails");
    for answer in
        join_all(made.iter().map(|&inode| ask(&host, &cluster, inode, ManagerRequest::Attributes(inode)))).await
    {
        assert!(answer.is_ok(), "it is there, and not {answer:?}");
    }
    world.now()
}

#[test]
fn pages_that_more_targets_than_parity_makes_up_for_tell_late_are_waited_for() {
    sim::explore(0..4, async |world, host| {
        let mut site = Site::create(&world, &host, &mut world.dice()).await;
        site.start_managers().await;
        let asking = world.add_node(NodeId(101));
        let made = world.spawn(&asking.clone(), create(asking.clone())).await.expect("nobody dies");
        let managers: Vec<NodeId> = site.managers.keys().copied().collect();
        managers.into_iter().for_each(|node| site.kill(node));
        site.start_managers().await;
        world.judge_messages(
            |passing| {
                if passing.called.port == Port(STORAGE_PORT) { Verdict::Lose } else { Verdict::Pass }
            },
        );
        let in_time = world.now() + LATE;
        let asked = world.spawn(&asking.clone(), ask_for_all(world.clone(), asking.clone(), made));
        world.sleep(LATE).await;
        world.dismiss_judge();
        let ended = asked.await.expect("nobody dies");
        assert!(ended >= in_time, "seed {}: nobody was late", world.seed());
    });
}
