//! A program makes a file, and another one on the same machine finds it by its name and writes to it before the first has its
//! answer: what both wrote is there.
//!
//! Danger: who makes a file knows without asking that it is empty. Who finds it asks what it is; the answer to that must not
//! take the place of what the maker wrote meanwhile, nor the maker's knowledge that of what the finder did.

use std::time::Duration;

use bytes::Bytes;
use client::{Client, WriteAt};
use host::Host;
use host::sim::{self, DiskOptions, World};
use protocol::id::InodeId;

use crate::support::{Site, plain_file};

const FILES: u32 = 40;
/// How long an answer may be on its way.
const LATE: Duration = Duration::from_secs(20);
/// Until everything is written out, and forgotten.
const LONG: Duration = Duration::from_secs(60);

fn name(number: u32) -> Bytes {
    Bytes::from(format!("new-{number}"))
}

async fn make(client: Client, number: u32) {
    let file = client.create_open(InodeId::ROOT, name(number), plain_file()).await.expect("the name is new").inode;
    client.write(file, WriteAt::Offset(0), Bytes::from_static(b"maker ")).await.expect("there is room");
    client.fsync(file, false).await.expect("there is room");
    client.close(file).await;
}

async fn find(client: Client, host: Host, number: u32) -> InodeId {
    let file = loop {
        match client.lookup(InodeId::ROOT, name(number)).await {
            Ok(found) => break found.inode,
            Err(_) => host.sleep(Duration::from_millis(10)).await,
        }
    };
    client.write(file, WriteAt::Offset(6), Bytes::from_static(b"finder")).await.expect("there is room");
    client.fsync(file, false).await.expect("there is room");
    file
}

async fn make_and_find(world: World, host: Host) {
    let site = Site::start(&world, &host, DiskOptions::default()).await;
    site.manager.delay(Duration::from_millis(500));
    let client = site.client().await;
    let makers: Vec<_> = (0..FILES).map(|number| world.spawn(&host, make(client.clone(), number))).collect();
    let finders: Vec<_> =
        (0..FILES).map(|number| world.spawn(&host, find(client.clone(), host.clone(), number))).collect();
    for maker in makers {
        maker.await.expect("nobody stops the node");
    }
    let mut files = Vec::new();
    for finder in finders {
        files.push(finder.await.expect("nobody stops the node"));
    }
    for wait in [Duration::ZERO, LONG] {
        host.sleep(wait).await;
        for &file in &files {
            let read = client.read(file, 0, 100).await.expect("it can be read").concat();
            assert_eq!(Bytes::from(read), "maker finder", "{file:?}, {wait:?} later");
        }
    }
    client.stop().await.expect("everything can be written");
}

/// The finder's file is stored, and forgotten, long before the maker hears of it.
async fn make_late(world: World, host: Host) {
    let site = Site::start(&world, &host, DiskOptions::default()).await;
    let client = site.client().await;
    // It holds the slot from here on.
    client.create_open(InodeId::ROOT, Bytes::from_static(b"first"), plain_file()).await.expect("the name is new");
    site.manager.delay_new_files(LATE);
    let making = world.spawn(&host, make(client.clone(), 0));
    let file = find(client.clone(), host.clone(), 0).await;
    making.await.expect("nobody stops the node");
    for wait in [Duration::ZERO, LONG] {
        host.sleep(wait).await;
        let read = client.read(file, 0, 100).await.expect("it can be read").concat();
        assert_eq!(Bytes::from(read), "maker finder", "{wait:?} later");
    }
    client.stop().await.expect("everything can be written");
}

#[test]
fn what_was_forgotten_before_its_maker_hears_of_it_is_not_taken_for_empty() {
    sim::explore(0..6, make_late);
}

#[test]
fn what_a_maker_and_a_finder_wrote_is_there() {
    sim::explore(0..6, make_and_find);
}
