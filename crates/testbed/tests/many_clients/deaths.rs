//! The danger: what a dead client held keeps the others waiting for ever; or it is taken to be void before what the client
//! fsynced is known, and they read, overwrite or cut short what was there before.

use std::time::Duration;

use bytes::Bytes;
use client::{Client, WriteAt};
use host::sim;
use protocol::file::{Lock, LockFamily, SetAttributes};
use protocol::id::InodeId;

use super::machines::Machines;
use super::plain;

const BYTES: u64 = 20_000;
/// How long others wait, from when the session of the dead one is over: for its log to be sealed and replayed.
const WAIT_MAX: Duration = Duration::from_secs(10);

async fn say(client: &Client, inode: InodeId, fill: u8) {
    let bytes = Bytes::from(vec![fill; BYTES as usize]);
    client.write(inode, WriteAt::Offset(0), bytes).await.expect("there is room");
}

/// Made, written, fsynced, and written again.
async fn leave(client: &Client, name: Bytes) -> InodeId {
    let inode = client.create_open(InodeId::ROOT, name, plain()).await.expect("the name is new").inode;
    say(client, inode, 1).await;
    client.fsync(inode, false).await.expect("it is stored");
    say(client, inode, 2).await;
    client.lock(inode, lock(client)).await.expect("nobody else has it");
    inode
}

async fn hear(client: &Client, inode: InodeId) -> Vec<u8> {
    client.read(inode, 0, 2 * BYTES as u32).await.expect("it can be read").concat()
}

fn lock(client: &Client) -> Lock {
    let owner = client.lock_owner(5);
    Lock { family: LockFamily::Flock, owner, pid: 1, exclusive: true, start: 0, last: u64::MAX }
}

/// What is left of a file may be what was fsynced, or what was written last.
async fn inherit(client: Client, deed: u64, name: Bytes) {
    let inode = client.lookup(InodeId::ROOT, name.clone()).await.expect("it was fsynced").inode;
    let is_left = |told: &[u8], length: u64| {
        let whole = told.iter().all(|byte| *byte == told[0]) && [1, 2].contains(&told[0]);
        assert!(whole && told.len() as u64 == length, "{} bytes, the first {}", told.len(), told[0]);
    };
    match deed {
        4 => client.lock_waiting(0, inode, lock(&client)).await.expect("the dead hold no locks"),
        0 => is_left(&hear(&client, inode).await, BYTES),
        1 => {
            say(&client, inode, 3).await;
            assert_eq!(hear(&client, inode).await, vec![3; BYTES as usize]);
        }
        2 => {
            let set = SetAttributes { size: Some(100), ..SetAttributes::default() };
            client.set_attributes(inode, set).await.expect("it is cut short");
            is_left(&hear(&client, inode).await, 100);
        }
        _ => {
            client.unlink(InodeId::ROOT, name.clone()).await.expect("it is removed");
            client.lookup(InodeId::ROOT, name).await.expect_err("it is gone");
        }
    }
}

#[test]
fn others_wait_for_what_a_dead_client_left_and_no_longer() {
    sim::explore(0..24, async |world, _| {
        let mut dice = world.dice();
        let mut machines = Machines::start(&world, 1 + dice.below(2) as usize, 3).await;
        let name = Bytes::from_static(b"testament");
        let (node, client) = machines.client(0);
        let (heir_node, heir) = machines.client(1);
        let shared = dice.coin();
        if shared {
            // The slot is shared by then; else the one that dies has it as a whole.
            let early = heir.clone();
            let looked = async move { drop(early.lookup(InodeId::ROOT, Bytes::from_static(b"nothing")).await) };
            world.spawn(&world.host(heir_node), looked).await.unwrap();
        }
        let leaving = name.clone();
        world.spawn(&world.host(node), async move { leave(&client, leaving).await }).await.unwrap();
        let inheriting = inherit(heir, dice.below(5), name);
        let mut inheriting = std::pin::pin!(world.spawn(&world.host(heir_node), inheriting));
        machines.die(node, &mut dice).await;
        let over = world.now();
        inheriting.as_mut().await.unwrap();
        assert!(world.now() - over < WAIT_MAX, "it took {:?} to go on", world.now() - over);
        // The others go on, and so does its next life.
        machines.come_back(node).await;
        let (node, client) = machines.client(0);
        world.spawn(&world.host(node), async move { leave(&client, Bytes::from_static(b"new")).await }).await.unwrap();
    });
}
