//! What was agreed on reaches a machine's replica of the maps late, for as long as nothing gets through from who leads, or its
//! disk has just had no room. The danger: bytes lie in a run of their log which a reader does not know of yet, and as they are
//! nowhere that it knows, they pass for deleted.

use std::time::Duration;

use bytes::Bytes;
use client::{ClientError, WriteAt};
use host::sim::{self, Stop, Verdict, World};
use host::{Host, Port};
use protocol::registry::CONSENSUS_PORT;

use crate::rack::{Rack, Shape};

const LEADER: usize = 0;
const WRITER: usize = 1;
const READER: usize = 2;
/// Longer than everything takes, and shorter than a call has patience with who is late.
const READ_MAX: Duration = Duration::from_secs(15);
const CONTENT_BEFORE: &[u8] = &[6; 600_000];
const CONTENT: &[u8] = &[7; 600_000];

/// Of three machines and those behind them, these die.
async fn tell_a_story(world: World, host: Host, dead: &[usize]) {
    let shape = Shape::new(vec![1; 3 + dead.len()], 1, Duration::from_secs(600));
    let rack = Rack::create(&world, &host, shape).await;
    let registry = rack.roles(READER).expect("it runs").registry.clone().expect("it stores");
    assert_eq!(registry.leader(), Some(rack.node(LEADER).0), "who created the cluster leads");
    let inode = rack.stored_file(WRITER, Bytes::from_static(CONTENT_BEFORE)).await;
    let reader = rack.node(READER);
    world.judge_messages(move |passing| {
        let is_news = passing.called.node == reader && passing.called.port == Port(CONSENSUS_PORT);
        if is_news { Verdict::Lose } else { Verdict::Pass }
    });
    let before = registry.maps().epoch;
    dead.iter().for_each(|&machine| rack.crash(machine, Stop::Kill));
    let client = rack.roles(WRITER).expect("it runs").client.clone();
    let writing = world.spawn(&world.host(rack.node(WRITER)), async move {
        // Some of the first bytes got to where the log lay when its writer did not know yet that a machine had died.
        for content in [CONTENT_BEFORE, CONTENT] {
            client.write(inode, WriteAt::Offset(0), Bytes::from_static(content)).await?;
            client.fsync(inode, false).await?;
        }
        Ok::<(), ClientError>(())
    });
    writing.await.expect("nobody else dies").expect("three are enough");
    assert_eq!(registry.maps().epoch, before, "seed {}: the reader is not behind", world.seed());
    let client = rack.roles(READER).expect("it runs").client.clone();
    let began = world.now();
    let reading = world.spawn(&world.host(reader), async move { client.read(inode, 0, CONTENT.len() as u32).await });
    let read = reading.await.expect("nobody dies").expect("all the bytes are there");
    assert!(read.concat() == CONTENT, "seed {}: other bytes", world.seed());
    let took = world.now().since(began);
    assert!(took < READ_MAX, "seed {}: it took {took:?}", world.seed());
}

#[test]
fn what_lies_in_a_run_that_is_news_to_a_reader_is_not_deleted() {
    sim::explore(0..20, |world, host| tell_a_story(world, host, &[3]));
}

/// By the maps of before, targets are late that are dead.
#[test]
fn what_lies_in_a_run_that_is_news_to_a_reader_is_not_late() {
    sim::explore(0..20, |world, host| tell_a_story(world, host, &[3, 4]));
}
