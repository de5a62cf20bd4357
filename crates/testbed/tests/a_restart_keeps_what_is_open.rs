//! A daemon is restarted while programs have files open. The danger: a file without a name is freed that somebody has open, or
//! never; a lock is given to somebody else, or to nobody ever again; others write what this machine still keeps in memory.

#[path = "whole_cluster/rack.rs"]
#[allow(dead_code, reason = "only some of it is needed here")]
mod rack;

use std::time::Duration;

use bytes::Bytes;
use client::{Client, ClientError, Heritage, WriteAt};
use futures_util::future::ready;
use host::sim::{self, World};
use protocol::file::{Caller, Kind, Lock, LockFamily, NewInode};
use protocol::id::InodeId;
use protocol::manager::ManagerError;
use rack::{Rack, Shape};

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
    let shape = Shape { targets: vec![1, 1, 1], parity: 1, patience: Duration::from_secs(600) };
    let rack = Rack::create(&world, &host, shape).await;
    // Slots are handed over until all machines have as many.
    world.sleep(LONG).await;
    let (gone, shared, kept) = on(&world, &rack, HERE, async |client| {
        let mut made = Vec::new();
        for name in ["gone", "shared", "kept"] {
            made.push(client.create_open(InodeId::ROOT, Bytes::from(name), file()).await.unwrap().inode);
        }
        client.open(made[0]).await.unwrap();
        for (inode, bytes) in made.iter().zip(["nobody can name this", "before", "cached"]) {
            client.write(*inode, WriteAt::Offset(0), Bytes::from(bytes)).await.unwrap();
        }
        client.unlink(InodeId::ROOT, Bytes::from("gone")).await.unwrap();
        client.lock(made[1], exclusive(&client, 5)).await.unwrap();
        (made[0], made[1], made[2])
    })
    .await;
    for round in 0..2 {
        let waits = on(&world, &rack, THERE, async move |client| {
            client.lock(shared, exclusive(&client, 9)).await
        });
        assert_eq!(waits.await, Err(ManagerError::Locked.into()), "round {round}: it is held");
        restart(&world, &rack, HERE).await;
        world.sleep(LONG).await;
    }
    // What others write is seen, and what was written here.
    on(&world, &rack, THERE, async move |client| {
        assert_eq!(read(&client, kept).await.unwrap(), b"cached");
        client.write(kept, WriteAt::Offset(0), Bytes::from("change")).await.unwrap();
        assert_eq!(client.lock(shared, exclusive(&client, 9)).await, Err(ManagerError::Locked.into()));
    })
    .await;
    on(&world, &rack, HERE, async move |client| {
        assert_eq!(read(&client, kept).await.unwrap(), b"change");
        assert_eq!(read(&client, gone).await.unwrap(), b"nobody can name this");
        client.close(gone).await;
        assert_eq!(read(&client, gone).await.unwrap(), b"nobody can name this", "it was opened twice");
        client.close(gone).await;
        client.unlock(shared, exclusive(&client, 5)).await.unwrap();
    })
    .await;
    world.sleep(LONG).await;
    on(&world, &rack, THERE, async move |client| {
        assert_eq!(read(&client, gone).await, Err(ManagerError::Stale.into()), "nobody has it open");
        client.lock(shared, exclusive(&client, 9)).await.expect("it was given up");
    })
    .await;
}

#[test]
fn files_stay_open_and_locks_held_and_others_see_what_they_should() {
    sim::explore(0..40, tell_a_story);
}
