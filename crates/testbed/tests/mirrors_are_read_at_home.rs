//! Where a stripe has one data fragment its parity is a mirror of it. The danger, to speed: two machines have all bytes each, and
//! fetch half of them over the network.

use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use bytes::Bytes;
use host::sim::{self, Verdict, World};
use host::{Host, Port};
use protocol::storage::STORAGE_PORT;

use crate::rack::{Rack, Shape};

const WRITER: usize = 0;
const READER: usize = 1;
/// Several stripes, with data on either machine.
const CONTENT: &[u8] = &[7; 3_000_000];

async fn tell_a_story(world: World, host: Host) {
    let shape = Shape::new(vec![1, 1], 1, Duration::from_secs(600));
    let rack = Rack::create(&world, &host, shape).await;
    let inode = rack.stored_file(WRITER, Bytes::from_static(CONTENT)).await;
    let (client, reader) = (rack.roles(READER).expect("it runs").client.clone(), world.host(rack.node(READER)));
    let (asked, node) = (Arc::new(AtomicU32::new(0)), reader.node());
    let counted = asked.clone();
    world.judge_messages(move |passing| {
        let is_asked = passing.caller == node && passing.called.port == Port(STORAGE_PORT);
        counted.fetch_add(u32::from(is_asked), Ordering::Relaxed);
        Verdict::Pass
    });
    let read = world.spawn(&reader, async move { client.read(inode, 0, CONTENT.len() as u32).await });
    let read = read.await.expect("nobody dies").expect("all the bytes are here");
    assert!(read.concat() == CONTENT, "seed {}: other bytes", world.seed());
    assert_eq!(asked.load(Ordering::Relaxed), 0, "seed {}: another machine was asked", world.seed());
}

#[test]
fn who_has_a_mirror_of_a_stripe_asks_nobody_else_for_it() {
    sim::explore(0..20, tell_a_story);
}
