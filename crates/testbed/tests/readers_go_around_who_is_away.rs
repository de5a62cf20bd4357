//! Whoever reads a file in order while a machine is away asks for one parity in the place of what lies there. The dangers: other
//! bytes; and bytes that were read already are fetched again for each lost piece.

#[path = "whole_cluster/rack.rs"]
#[allow(dead_code, reason = "only some of it is needed here")]
mod rack;

use std::time::Duration;

use host::Host;
use host::sim::{self, Stop, World};
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
    let inode = rack.stored_file(WRITER, content().into()).await;
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
