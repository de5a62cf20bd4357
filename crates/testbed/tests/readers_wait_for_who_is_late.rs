//! Where links are full, targets answer too late: more of them, for a moment, than redundancy makes up for. The danger: a
//! program gets an error for bytes that all are there.

use std::time::Duration;

use bytes::Bytes;
use host::sim::{self, Verdict, World};
use host::{Host, Port};
use protocol::storage::STORAGE_PORT;

use crate::rack::{Rack, Shape};

const WRITER: usize = 0;
const READER: usize = 2;
/// Longer than a target is waited for, again and again; shorter than calls have patience.
const LATE: Duration = Duration::from_secs(16);
const CONTENT: &[u8] = &[7; 600_000];

async fn tell_a_story(world: World, host: Host) {
    // Nor do others bring what a target does not tell.
    let shape = Shape { has_byways: false, ..Shape::new(vec![1, 1, 1], 1, Duration::from_secs(600)) };
    let rack = Rack::create(&world, &host, shape).await;
    let inode = rack.stored_file(WRITER, Bytes::from_static(CONTENT)).await;
    let (client, reader) = (rack.roles(READER).expect("it runs").client.clone(), world.host(rack.node(READER)));
    let node = reader.node();
    world.judge_messages(move |passing| {
        let is_late = passing.caller == node && passing.called.port == Port(STORAGE_PORT);
        if is_late { Verdict::Lose } else { Verdict::Pass }
    });
    let (in_time, clock) = (world.now() + LATE, world.clone());
    let reading = world.spawn(&reader, async move {
        let read = client.read(inode, 0, CONTENT.len() as u32).await;
        (read, clock.now())
    });
    world.sleep(LATE).await;
    world.dismiss_judge();
    let (read, ended) = reading.await.expect("nobody dies");
    assert!(ended >= in_time, "seed {}: nobody was late", world.seed());
    assert!(read.expect("all the bytes are there").concat() == CONTENT, "seed {}: other bytes", world.seed());
}

#[test]
fn what_more_targets_than_parity_makes_up_for_tell_late_is_read() {
    sim::explore(0..20, tell_a_story);
}
