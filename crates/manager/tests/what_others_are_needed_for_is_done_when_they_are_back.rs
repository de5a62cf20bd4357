//! A file without a name whose bytes are counted by another manager is freed with that one's help. The danger: it is away just
//! then, nobody tries again, and the bytes stay for as long as the file's own manager lives.

use std::time::Duration;

use bytes::Bytes;
use host::sim::{self, World};
use host::{Address, Host, NodeId, Port};
use log::Cluster;
use protocol::address::{LogAddress, Position};
use protocol::delta::{Change, Delta};
use protocol::file::{Caller, Kind, NewInode, Time};
use protocol::id::{InodeId, LogId, StripeNumber};
use protocol::manager::{Answer, CloneRange, Deltas, MANAGER_PORT, ManagerAnswer, ManagerError, ManagerRequest};

use crate::several::{GROUND, Site};

/// More extents than are freed at once.
const EXTENTS: u64 = 3000;
/// For how long the other manager is away: longer than anybody has patience with it.
const AWAY: Duration = Duration::from_secs(40);
/// By when what waited for it is done.
const DONE: Duration = Duration::from_secs(120);

struct Client {
    host: Host,
    cluster: Cluster,
}

impl Client {
    async fn connect(host: Host) -> Client {
        let cluster = Cluster::connect(host.clone(), GROUND).await.expect("the registry never fails");
        Client { host, cluster }
    }

    fn manager(&self, inode: InodeId) -> NodeId {
        NodeId(self.cluster.maps().slot(inode.slot().0).node)
    }

    async fn ask(&self, inode: InodeId, request: ManagerRequest) -> Result<Answer, ManagerError> {
        let to = Address { node: self.manager(inode), port: Port(MANAGER_PORT) };
        let answer = self.host.call::<_, ManagerAnswer>(to, request).await.expect("the manager lives");
        answer.map(|reply| reply.answer)
    }

    async fn create(&self, directory: InodeId, name: &str, kind: Kind) -> InodeId {
        let (name, caller) = (Bytes::copy_from_slice(name.as_bytes()), Caller::default());
        let new = NewInode { kind, mode: 0o755, mask: 0, device: 0, target: Bytes::new(), caller };
        match self.ask(directory, ManagerRequest::Create { directory, name, new, open: false }).await {
            Ok(Answer::Entry(attributes, _)) => attributes.inode,
            other => panic!("made, not {other:?}"),
        }
    }

    /// A directory that another manager keeps than the root's.
    async fn directory_elsewhere(&self) -> Option<InodeId> {
        for number in 0..100 {
            let directory = self.create(InodeId::ROOT, &number.to_string(), Kind::Directory).await;
            if self.manager(directory) != self.manager(InodeId::ROOT) {
                return Some(directory);
            }
        }
        None
    }

    async fn write(&self, inode: InodeId) {
        let log = LogId(1_000_000);
        // None touches the one before, so each is an extent.
        let extent = |number: u64| {
            let (stripe, offset, length) = (StripeNumber(0), number as u32 * 5000, 1000);
            let address = LogAddress { log, stripe, offset, length };
            Delta { inode, change: Change::Extent { offset: number * 2000, address } }
        };
        let wrote = Change::Wrote { size: EXTENTS * 2000, time: Time(1) };
        let list = (0..EXTENTS).map(extent).chain([Delta { inode, change: wrote }]).collect();
        let position = Position::new(StripeNumber(0), u32::MAX);
        self.ask(inode, ManagerRequest::Deltas(Deltas { log, position, list })).await.expect("it is there");
    }

    /// A file that has lost its name, and bytes that the root's manager counts. Another one keeps it, and has not freed it yet.
    async fn remove_what_is_shared(&self) -> Option<InodeId> {
        let directory = self.directory_elsewhere().await?;
        let source = self.create(InodeId::ROOT, "source", Kind::File).await;
        self.write(source).await;
        let target = self.create(directory, "target", Kind::File).await;
        let clone = CloneRange { source, source_offset: 0, target, target_offset: 0, length: EXTENTS * 2000 };
        self.ask(target, ManagerRequest::CloneRange(clone)).await.expect("both are there");
        let unlink = ManagerRequest::Unlink { directory, name: Bytes::from_static(b"target") };
        self.ask(directory, unlink).await.expect("it is there");
        Some(target)
    }
}

async fn free_late(world: World, host: Host) -> bool {
    let mut site = Site::create(&world, &host, &mut world.dice()).await;
    site.start_managers().await;
    let asking = world.add_node(NodeId(101));
    let client = world.spawn(&asking.clone(), Client::connect(asking)).await.expect("nobody dies");
    let Some(target) = client.remove_what_is_shared().await else { return false };
    site.kill(client.manager(InodeId::ROOT));
    world.sleep(AWAY).await;
    let left = client.ask(target, ManagerRequest::Attributes(target)).await;
    assert!(left.is_ok(), "who counts its bytes is away: {left:?}");
    site.start_managers().await;
    world.sleep(DONE).await;
    let left = client.ask(target, ManagerRequest::Attributes(target)).await;
    assert_eq!(left.err(), Some(ManagerError::Stale), "seed {}: nobody needs it", world.seed());
    site.audit().await;
    true
}

#[test]
fn a_file_without_a_name_is_freed_when_the_manager_is_back_that_counts_its_bytes() {
    let staged = std::sync::atomic::AtomicU64::new(0);
    let worlds = sim::explore(0..8, async |world, host| {
        if free_late(world, host).await {
            staged.fetch_add(1, std::sync::atomic::Ordering::Relaxed);
        }
    });
    let staged = staged.into_inner();
    assert!(staged > worlds / 4, "only {staged} of {worlds} worlds have a directory elsewhere");
}
