//! So many calls wait for file locks and no more; whoever holds the lock can always give it up, and no user keeps others from
//! waiting.
//!
//! Danger: a wait is a call to a manager that nobody answers until others give up what they hold. What is under way to
//! another node is bounded; were that bound full of waits, what would end them waited behind them. And what one user may fill
//! alone is nobody else's.

use std::pin::pin;
use std::time::Duration;

use bytes::Bytes;
use client::{Client, ClientError};
use futures_util::future::{Either, join_all, select};
use futures_util::poll;
use host::Host;
use host::sim::{self, DiskOptions, World};
use protocol::file::{Lock, LockFamily};
use protocol::id::InodeId;

use crate::support::{Site, plain_file};

/// So many calls of one user wait, where no others do.
const WAITS_MAX: u64 = 4096;
const USER: u32 = 1000;

fn flock(client: &Client, owner: u64) -> Lock {
    let owner = client.lock_owner(owner);
    Lock { family: LockFamily::Flock, owner, pid: 1, exclusive: true, start: 0, last: u64::MAX }
}

async fn wait_in_crowds(world: World, host: Host) {
    let site = Site::start(&world, &host, DiskOptions::default()).await;
    let client = site.client().await;
    let file = client.create_open(InodeId::ROOT, Bytes::from("file"), plain_file()).await.expect("it is new").inode;
    client.lock(file, flock(&client, 0)).await.expect("nobody holds it");

    let wait = |owner| {
        let client = client.clone();
        world.spawn(&host, async move {
            let lock = flock(&client, owner);
            client.lock_waiting(USER, file, lock).await?;
            client.unlock(file, lock).await
        })
    };
    let mut waits: Vec<_> = (1..WAITS_MAX).map(wait).collect();
    let mut given_up = Box::pin(client.lock_waiting(USER, file, flock(&client, WAITS_MAX + 1)));
    assert!(poll!(&mut given_up).is_pending());
    host.sleep(Duration::from_secs(1)).await;
    let one_more = async |user| {
        let patience = host.sleep(Duration::from_secs(1));
        match select(pin!(client.lock_waiting(user, file, flock(&client, WAITS_MAX))), pin!(patience)).await {
            Either::Left((outcome, _)) => Some(outcome),
            Either::Right(_) => None,
        }
    };
    assert_eq!(one_more(USER).await, Some(Err(ClientError::NoLocks)), "as many wait as may");
    assert_eq!(one_more(USER + 1).await, None, "others may wait, too");

    drop(given_up);
    host.sleep(Duration::from_secs(1)).await;
    waits.push(wait(WAITS_MAX));
    client.unlock(file, flock(&client, 0)).await.expect("what others wait for is given up");
    for outcome in join_all(waits).await {
        assert_eq!(outcome, Ok(Ok(())), "each has its turn");
    }
}

#[test]
fn so_many_calls_wait_for_locks_and_the_holder_can_give_them_up() {
    sim::explore(0..1, wait_in_crowds);
}
