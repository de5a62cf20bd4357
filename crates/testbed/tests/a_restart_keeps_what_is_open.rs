//! A daemon is restarted while programs have files open. The danger: a file without a name is freed that somebody has open, or
//! never; a lock is given to somebody else, or to nobody ever again; others write what this machine still keeps in memory.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use bytes::Bytes;
use client::{Client, ClientError, Heritage, WriteAt};
use futures_util::future::ready;
use host::sim::{self, World};
use protocol::file::{Caller, Kind, Lock, LockFamily, NewInode};
use protocol::id::InodeId;
use protocol::manager::ManagerError;

use crate::rack::{Rack, Shape};

/// The machine that is restarted, and another.
const HERE: usize = 1;
const THERE: usize = 2;
/// Longer than anything is kept of a client that is gone.
const LONG: Duration = Duration::from_secs(8);

fn file() -> NewInode {
    let caller = Caller { uid: 0, gid: 0 };
    NewInode { kind: Kind::File, mode: 0o600, mask: 0, device: 0, target: Bytes::new(), caller }
}

fn exclusive(client: &Client, owner: u64) -> Lock {
    let owner = client.lock_owner(owner);
    Lock { family: LockFamily::Posix, owner, pid: 7, exclusive: true, start: 0, last: u64::MAX }
}

async fn read(client: &Client, inode: InodeId) -> Result<Vec<u8>, ClientError> {
    Ok(client.read(inode, 0, 100).await?.concat())
}

/// Runs something on a machine, with its client.
async fn on<T: Send + 'static, F>(world: &World, rack: &Rack, index: usize, work: impl FnOnce(Client) -> F) -> T
where
    F: Future<Output = T> + Send + 'static,
{
    let client = rack.roles(index).expect("it runs").client.clone();
    world.spawn(&world.host(rack.node(index)), work(client)).await.expect("nobody dies")
}

/// A program on another machine, which uses slots of all: none of its calls fails.
async fn work(client: Client, host: host::Host, ends: Arc<AtomicBool>) {
    for number in 0.. {
        if ends.load(Ordering::Relaxed) {
            return;
        }
        let name = Bytes::from(format!("work-{number}"));
        let inode = client.create_open(InodeId::ROOT, name.clone(), file()).await.expect("it can be made").inode;
        client.write(inode, WriteAt::Offset(0), Bytes::from("work")).await.expect("it can be written");
        client.fsync(inode, false).await.expect("it can be stored");
        assert_eq!(read(&client, inode).await.expect("it can be read"), b"work");
        client.unlink(InodeId::ROOT, name).await.expect("it can be removed");
        client.close(inode).await;
        host.sleep(Duration::from_millis(5)).await;
    }
}

async fn restart(world: &World, rack: &Rack, index: usize) {
    let roles = rack.roles(index).expect("it runs");
    let session = roles.session();
    let leaving = world.spawn(&world.host(rack.node(index)), async move {
        let parting = roles.part().await.expect("all is well");
        parting.last_will(ready(())).await.expect("all can be stored")
    });
    let heritage: Heritage = leaving.await.expect("nobody dies");
    rack.follow(index, heritage);
    rack.until_started(index).await;
    assert_eq!(rack.roles(index).expect("it runs").session(), session + 1, "seed {}", world.seed());
}

async fn tell_a_story(world: World, host: host::Host) {
    let shape = Shape::new(vec![1, 1, 1], 1, Duration::from_secs(600));
    let rack = Rack::create(&world, &host, shape).await;
    // Slots are handed over until all machines have as many.
    world.sleep(LONG).await;
    let (gone, kept, locked) = on(&world, &rack, HERE, async |client| {
        let make = async |directory, name: &'static str, bytes: &'static str| {
            let inode = client.create_open(directory, Bytes::from(name), file()).await.unwrap().inode;
            client.write(inode, WriteAt::Offset(0), Bytes::from(bytes)).await.unwrap();
            inode
        };
        let (gone, kept) =
            (make(InodeId::ROOT, "gone", "nobody can name this").await, make(InodeId::ROOT, "kept", "cached").await);
        client.open(gone).await.unwrap();
        client.unlink(InodeId::ROOT, Bytes::from("gone")).await.unwrap();
        // A directory lies where its maker manages, and its files there, too: in slots of the machine that is restarted.
        let mut locked = Vec::new();
        for name in ["a", "b", "c", "d", "e", "f", "g", "h"] {
            let new = NewInode { kind: Kind::Directory, ..file() };
            let directory = client.create(InodeId::ROOT, Bytes::from(name), new).await.unwrap().inode;
            let inode = make(directory, "locked", "locked").await;
            client.lock(inode, exclusive(&client, 5)).await.unwrap();
            locked.push(inode);
        }
        (gone, kept, locked)
    })
    .await;
    let maps = rack.roles(HERE).expect("it runs").cluster.maps();
    let own = locked.iter().filter(|inode| maps.slot(inode.slot().0).node == rack.node(HERE).0).count();
    assert!(own > 0, "seed {}: none of them would have to be claimed", world.seed());
    let is_held = |round: u32| {
        let locked = locked.clone();
        on(&world, &rack, THERE, async move |client| {
            for inode in locked {
                let asked = client.lock(inode, exclusive(&client, 9)).await;
                assert_eq!(asked, Err(ManagerError::Locked.into()), "round {round}: it is held");
            }
        })
    };
    let ends = Arc::new(AtomicBool::new(false));
    let (there, client) = (world.host(rack.node(THERE)), rack.roles(THERE).expect("it runs").client.clone());
    let working = world.spawn(&there.clone(), work(client, there, ends.clone()));
    for round in 0..2 {
        is_held(round).await;
        restart(&world, &rack, HERE).await;
        // Cached again, as much as it may be.
        on(&world, &rack, HERE, async move |client| assert_eq!(read(&client, kept).await.unwrap(), b"cached")).await;
        world.sleep(LONG).await;
    }
    ends.store(true, Ordering::Relaxed);
    working.await.expect("nobody dies");
    // What others write is seen, and what was written here.
    on(&world, &rack, THERE, async move |client| {
        assert_eq!(read(&client, kept).await.unwrap(), b"cached");
        client.write(kept, WriteAt::Offset(0), Bytes::from("change")).await.unwrap();
    })
    .await;
    is_held(2).await;
    let held = locked.clone();
    on(&world, &rack, HERE, async move |client| {
        assert_eq!(read(&client, kept).await.unwrap(), b"change");
        assert_eq!(read(&client, gone).await.unwrap(), b"nobody can name this");
        client.close(gone).await;
        assert_eq!(read(&client, gone).await.unwrap(), b"nobody can name this", "it was opened twice");
        client.close(gone).await;
        for inode in held {
            client.unlock(inode, exclusive(&client, 5)).await.unwrap();
        }
    })
    .await;
    world.sleep(LONG).await;
    on(&world, &rack, THERE, async move |client| {
        assert_eq!(read(&client, gone).await, Err(ManagerError::Stale.into()), "nobody has it open");
        for inode in locked {
            client.lock(inode, exclusive(&client, 9)).await.expect("it was given up");
        }
    })
    .await;
}

#[test]
fn files_stay_open_and_locks_held_and_others_see_what_they_should() {
    sim::explore(0..40, tell_a_story);
}
