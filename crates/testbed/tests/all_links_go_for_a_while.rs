//! A switch goes off for some seconds while all machines write. Nobody dies. The danger: a machine whose targets are all silent
//! takes what it sent for lost, and ends: its programs lose what they have open, and what they have not stored.

use std::time::Duration;

use bytes::Bytes;
use client::{Client, WriteAt};
use host::Host;
use host::sim;
use protocol::file::{Caller, Kind, NewInode};
use protocol::id::InodeId;

use crate::rack::{Rack, Shape};

const MACHINES: usize = 3;
const PIECE: usize = 128 << 10;
/// So many pieces are written over again and again.
const PIECES: u64 = 64;

async fn make(client: &Client, index: usize) -> InodeId {
    let caller = Caller { uid: 0, gid: 0 };
    let inode = NewInode { kind: Kind::File, mode: 0o644, mask: 0, device: 0, target: Bytes::new(), caller };
    let name = Bytes::from(format!("file-{index}"));
    client.create(InodeId::ROOT, name, inode).await.expect("the name is new").inode
}

/// Writes until it is stopped; while links are cut calls wait, or fail.
async fn stream(host: Host, client: Client, file: InodeId) {
    for piece in 0.. {
        let bytes = Bytes::from(vec![piece as u8; PIECE]);
        let _ = client.write(file, WriteAt::Offset(piece % PIECES * PIECE as u64), bytes).await;
        host.sleep(Duration::from_millis(4)).await;
    }
}

#[test]
fn an_interruption_of_everything_ends_nobody_who_writes() {
    sim::explore(sim::seeds(6), async |world, host| {
        let rack = Rack::create(&world, &host, Shape::new(vec![1; MACHINES], 1, Duration::from_secs(600))).await;
        let mut files = Vec::new();
        for index in 0..MACHINES {
            let (client, there) = (rack.roles(index).expect("it runs").client.clone(), world.host(rack.node(index)));
            let making = client.clone();
            let made = world.spawn(&there, async move { make(&making, index).await });
            files.push(made.await.expect("nothing disturbs it"));
            there.clone().spawn(stream(there, client, files[index]));
        }
        for _ in 0..2 {
            world.sleep(Duration::from_millis(500 + world.dice().below(1000))).await;
            (0..MACHINES).for_each(|index| world.isolate(rack.node(index)));
            world.sleep(Duration::from_millis(1000 + world.dice().below(8000))).await;
            world.heal_all();
            world.sleep(Duration::from_secs(8)).await;
            for index in 0..MACHINES {
                assert_eq!(rack.ended(index), None, "seed {}: machine {index}", world.seed());
            }
        }
        for (index, file) in files.into_iter().enumerate() {
            let (client, there) = (rack.roles(index).expect("it runs").client.clone(), world.host(rack.node(index)));
            let stored = world.spawn(&there, async move { client.fsync(file, false).await });
            assert_eq!(stored.await.expect("it runs"), Ok(()), "seed {}: machine {index}", world.seed());
        }
    });
}
