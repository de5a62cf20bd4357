//! A lease is what lets a machine answer from its memory, and a lease rests on clocks: whoever gives it up counts by another one.
//! They may differ by as much as a lease allows for ([`DRIFT`]). The danger: a machine that is cut off goes on to answer
//! with what others have changed meanwhile.
//!
//! Within the bound nobody ever sees the past. Beyond it a program on the machine that is cut off does, for as long as its clock
//! is behind; that is all that breaks: what is stored stays right, and the machine sees it when it is back.

use std::cell::Cell;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use bytes::Bytes;
use client::{Client, WriteAt};
use host::sim::{self, Stop, World};
use host::{Host, Moment};
use protocol::file::{Caller, Kind, NewInode};
use protocol::id::InodeId;
use protocol::registry::{DRIFT, LEASE};

use crate::rack::{Rack, Shape};

const LEADER: usize = 0;
const WRITER: usize = 1;
const READER: usize = 2;
/// How much a lease allows for, in millionths.
const BOUND_PPM: i32 = (DRIFT.as_millis() * 1_000_000 / LEASE.as_millis()) as i32;
const OLD: &[u8] = b"old";
const NEW: &[u8] = b"new";
/// Between two reads.
const PAUSE: Duration = Duration::from_millis(5);

async fn write(client: &Client, inode: InodeId, content: &'static [u8]) {
    client.write(inode, WriteAt::Offset(0), Bytes::from_static(content)).await.expect("it can be written");
}

/// What was read, and when whoever read it began.
type Reads = Arc<Mutex<Vec<(Moment, Vec<u8>)>>>;

/// Reads all the time, for as long as its daemon lasts.
async fn keep_reading(world: World, host: Host, client: Client, inode: InodeId, reads: Reads) {
    client.open(inode).await.expect("it is there");
    loop {
        let began = world.now();
        if let Ok(read) = client.read(inode, 0, OLD.len() as u32).await {
            reads.lock().expect("nobody panics over reads").push((began, read.concat()));
        }
        host.sleep(PAUSE).await;
    }
}

/// One machine is cut off, and what it has read is written anew: how often it then reads what was there before, with
/// its clock so much behind the leader's.
async fn stale_reads(world: &World, host: &Host, behind_ppm: i32) -> usize {
    let shape = Shape::new(vec![1, 1, 1], 1, Duration::from_secs(600));
    let rack = Rack::create(world, host, shape).await;
    world.drift_clock(rack.node(LEADER), behind_ppm / 2);
    world.drift_clock(rack.node(READER), -behind_ppm / 2);
    let client = rack.roles(WRITER).expect("it runs").client.clone();
    let writing = client.clone();
    let written = world.spawn(&world.host(rack.node(WRITER)), async move {
        let caller = Caller { uid: 0, gid: 0 };
        let new = NewInode { kind: Kind::File, mode: 0o600, mask: 0, device: 0, target: Bytes::new(), caller };
        let inode = writing.create_open(InodeId::ROOT, Bytes::from("file"), new).await.expect("it can be made").inode;
        write(&writing, inode, OLD).await;
        inode
    });
    let inode = written.await.expect("nobody dies");
    let (reads, node) = (Reads::default(), rack.node(READER));
    let reader = rack.roles(READER).expect("it runs").client.clone();
    let host = world.host(node);
    drop(world.spawn(&host, keep_reading(world.clone(), host.clone(), reader, inode, reads.clone())));
    world.sleep(Duration::from_secs(1) + Duration::from_micros(world.dice().below(1_000_000))).await;
    assert!(!reads.lock().expect("nobody panics over reads").is_empty(), "seed {}: nothing is read", world.seed());

    world.isolate(node);
    let cut_off = world.now();
    let rewriting = client.clone();
    world
        .spawn(&world.host(rack.node(WRITER)), async move { write(&rewriting, inode, NEW).await })
        .await
        .expect("nobody dies");
    let rewritten = world.now();
    world.sleep(3 * LEASE).await;
    let reads = std::mem::take(&mut *reads.lock().expect("nobody panics over reads"));
    assert!(
        reads.iter().any(|(began, _)| *began > cut_off),
        "seed {}: its lease held when it was cut off",
        world.seed()
    );
    let stale = reads.iter().filter(|(began, read)| *began > rewritten && read == OLD).count();

    world.heal_all();
    world.drift_clock(node, 0);
    rack.crash(READER, Stop::Kill);
    rack.start(READER);
    rack.until_started(READER).await;
    let reader = rack.roles(READER).expect("it runs").client.clone();
    let looking = world.spawn(&world.host(node), async move { reader.read(inode, 0, OLD.len() as u32).await });
    let read = looking.await.expect("nobody dies").expect("it can be read").concat();
    assert_eq!(read, NEW, "seed {}: what is stored is not what was written", world.seed());
    stale
}

#[test]
fn within_what_a_lease_allows_for_nobody_sees_the_past() {
    sim::explore(0..20, async |world, host| {
        assert_eq!(stale_reads(&world, &host, BOUND_PPM - 1).await, 0, "seed {}: it saw the past", world.seed());
    });
}

#[test]
fn beyond_it_the_machine_that_is_cut_off_does() {
    let (worlds, seeing) = (20, Cell::new(0));
    sim::explore(0..worlds, async |world, host| {
        let stale = stale_reads(&world, &host, 40 * BOUND_PPM).await;
        seeing.set(seeing.get() + u64::from(stale > 0));
    });
    println!("in {} of {worlds} worlds the past was seen", seeing.get());
    assert_eq!(seeing.get(), worlds, "a clock so far behind breaks the promise");
}
