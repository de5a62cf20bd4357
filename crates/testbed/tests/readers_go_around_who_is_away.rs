//! Whoever reads a file in order while a machine is away asks for one parity in the place of what lies there. The dangers: other
//! bytes; and bytes that were read already are fetched again for each lost piece.

#[path = "whole_cluster/rack.rs"]
#[allow(dead_code, reason = "only some of it is needed here")]
mod rack;

use std::time::Duration;

use bytes::Bytes;
use client::WriteAt;
use host::Host;
use host::sim::{self, Stop, World};
use protocol::file::{Caller, Kind, NewInode};
use protocol::id::InodeId;
use rack::{Rack, Shape};

const WRITER: usize = 0;
const READER: usize = 2;
const AWAY: usize = 4;
/// Several stripes of four fragments of 256 KiB, begun and ended in the middle of one.
const SIZE: u32 = 5_500_000;
/// Of five full stripes four have data on each machine, and the first is read before anyone knows that more is wanted.
const DETOURS_MIN: u64 = 3;
/// What a program reads at once.
const STEP: u32 = 128 << 10;

fn content() -> Vec<u8> {
    (0..SIZE).map(|at| (at ^ (at >> 8) ^ (at >> 16)) as u8).collect()
}

async fn tell_a_story(world: World, host: Host) {
    let shape = Shape { targets: vec![1; 5], parity: 1, patience: Duration::from_secs(600) };
    let rack = Rack::create(&world, &host, shape).await;
    let client = rack.roles(WRITER).expect("it runs").client.clone();
    let written = world.spawn(&world.host(rack.node(WRITER)), async move {
        let caller = Caller { uid: 0, gid: 0 };
        let new = NewInode { kind: Kind::File, mode: 0o600, mask: 0, device: 0, target: Bytes::new(), caller };
        let inode = client.create_open(InodeId::ROOT, Bytes::from("file"), new).await.expect("it can be made").inode;
        client.write(inode, WriteAt::Offset(0), content().into()).await.expect("it can be written");
        client.fsync(inode, false).await.expect("it can be stored");
        inode
    });
    let inode = written.await.expect("nobody dies");
    rack.crash(AWAY, Stop::Kill);
    while rack.roles(READER).expect("it runs").cluster.maps().serving().count() == 5 {
        world.sleep(Duration::from_millis(100)).await;
    }
    let (client, reader) = (rack.roles(READER).expect("it runs").client.clone(), world.host(rack.node(READER)));
    let reading = client.clone();
    let read = world.spawn(&reader, async move {
        let mut bytes = Vec::new();
        while (bytes.len() as u32) < SIZE {
            let read = reading.read(inode, bytes.len() as u64, STEP).await.expect("one machine may be away");
            read.iter().for_each(|piece| bytes.extend_from_slice(piece));
        }
        bytes
    });
    assert!(read.await.expect("nobody dies") == content(), "seed {}: other bytes", world.seed());
    let taken = client.detours_taken();
    assert!(taken >= DETOURS_MIN, "seed {}: {taken} pieces were gone around", world.seed());
}

#[test]
fn what_lies_on_a_machine_that_is_away_costs_a_parity() {
    sim::explore(0..20, tell_a_story);
}
