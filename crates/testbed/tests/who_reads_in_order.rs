//! Whoever reads a file in order asks its targets in that order. While a machine is away it asks for one parity in the place of
//! what lies there, and while none is reads the parities that lie on its own machine. The dangers: other bytes; loads that wait
//! for each other; bytes that were read already are fetched again for each lost piece; and what is wanted last comes first.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use host::Host;
use host::sim::{self, Stop, Verdict, Way, World};
use protocol::fragment::Part;
use protocol::id::{InodeId, LogId, StripeNumber, TargetId};
use protocol::storage::{StorageRequest, ToTarget};

use crate::rack::{Rack, Shape};

const WRITER: usize = 0;
const READER: usize = 2;
const AWAY: usize = 4;
/// Several stripes of four fragments of 256 KiB, begun and ended in the middle of one.
const SIZE: u32 = 11_000_000;
/// Of ten full stripes eight have data on each machine, and the first is read before anyone knows that more is wanted.
const AWAY_MIN: u64 = 7;
/// Of ten full stripes two have their parity on the reader's machine; one may be among the first.
const HERE_MIN: u64 = 1;
/// Of ten full stripes each other machine has data of eight, of which two are gone around, or a few more.
const STRIPES_MIN: u64 = 4;
/// One machine answers so slowly.
const SLOW: Duration = Duration::from_secs(1);
/// Of ten full stripes it has data of eight. It is asked for a fragment of the first one, and ahead for four; and when these have
/// come for that of the one whose parity, on the reader's machine, goes to another fragment.
const SLOW_MAX: u64 = 6;
/// What a program reads at once that wants all of the file soon.
const LONG_STEP: u32 = 1 << 20;
/// What a program reads at once.
const STEP: u32 = 128 << 10;

fn content() -> Vec<u8> {
    (0..SIZE).map(|at| (at ^ (at >> 8) ^ (at >> 16)) as u8).collect()
}

/// Reads all of the file, as a program does; how many pieces were gone around.
async fn read_in_order(world: &World, rack: &Rack, inode: InodeId, step: u32) -> u64 {
    let (client, reader) = (rack.roles(READER).expect("it runs").client.clone(), world.host(rack.node(READER)));
    let reading = client.clone();
    let read = world.spawn(&reader, async move {
        let mut bytes = Vec::new();
        while (bytes.len() as u32) < SIZE {
            let read = reading.read(inode, bytes.len() as u64, step).await.expect("one machine may be away");
            read.iter().for_each(|piece| bytes.extend_from_slice(piece));
        }
        bytes
    });
    assert!(read.await.expect("nobody dies") == content(), "seed {}: other bytes", world.seed());
    client.detours_taken()
}

fn shape() -> Shape {
    // All that is ahead has room.
    Shape { cache: 64 << 20, ..Shape::new(vec![1; 5], 1, Duration::from_secs(600)) }
}

async fn one_is_away(world: World, host: Host) {
    let rack = Rack::create(&world, &host, shape()).await;
    let inode = rack.stored_file(WRITER, content().into()).await;
    rack.crash(AWAY, Stop::Kill);
    while rack.roles(READER).expect("it runs").cluster.maps().serving().count() == 5 {
        world.sleep(Duration::from_millis(100)).await;
    }
    let taken = read_in_order(&world, &rack, inode, STEP).await;
    assert!(taken >= AWAY_MIN, "seed {}: {taken} pieces were gone around", world.seed());
}

async fn all_are_there(world: World, host: Host) {
    let rack = Rack::create(&world, &host, shape()).await;
    let inode = rack.stored_file(WRITER, content().into()).await;
    let taken = read_in_order(&world, &rack, inode, STEP).await;
    assert!(taken >= HERE_MIN, "seed {}: {taken} pieces were gone around", world.seed());
}

/// Where in the file's log a reader asked a target, and how often it did.
type Asked = BTreeMap<TargetId, ((LogId, StripeNumber, u8, u32), u64)>;

async fn targets_are_watched(world: World, host: Host) {
    let rack = Rack::create(&world, &host, shape()).await;
    let inode = rack.stored_file(WRITER, content().into()).await;
    let (reader, seed) = (rack.node(READER), world.seed());
    let asked: Arc<Mutex<Asked>> = Arc::default();
    let told = asked.clone();
    world.judge_messages(move |passing| {
        if passing.caller == reader
            && passing.way == Way::Request
            && let Some(ToTarget { target, request: StorageRequest::Read { id, offset, .. } }) =
                passing.message.peek().downcast_ref::<ToTarget>()
            && let Part::Data(index) = id.part
        {
            let at = (id.log, id.stripe, index, *offset);
            let mut told = told.lock().expect("no test panics here");
            let (last, count) = told.entry(*target).or_insert((at, 0));
            assert!(at >= *last, "seed {seed}: {target:?} is asked for {at:?} after {last:?}");
            (*last, *count) = (at, *count + 1);
        }
        Verdict::Pass
    });
    read_in_order(&world, &rack, inode, STEP).await;
    world.dismiss_judge();
    let asked = asked.lock().expect("no test panicked here");
    assert!(asked.len() == 4 && asked.values().all(|(_, count)| *count >= STRIPES_MIN), "seed {seed}: {asked:?}");
}

async fn one_is_slow(world: World, host: Host) {
    let rack = Rack::create(&world, &host, shape()).await;
    let inode = rack.stored_file(WRITER, content().into()).await;
    let (reader, slow) = (rack.node(READER), rack.node(AWAY));
    let asked: Arc<AtomicU64> = Arc::default();
    let told = asked.clone();
    world.judge_messages(move |passing| {
        if (passing.caller, passing.called.node) != (reader, slow) || passing.way != Way::Request {
            return Verdict::Pass;
        }
        match passing.message.peek().downcast_ref::<ToTarget>() {
            Some(ToTarget { request: StorageRequest::Read { .. }, .. }) => {
                told.fetch_add(1, Ordering::Relaxed);
                Verdict::Delay(SLOW)
            }
            _ => Verdict::Pass,
        }
    });
    let began = world.now();
    read_in_order(&world, &rack, inode, LONG_STEP).await;
    let (took, asked) = (world.now() - began, asked.load(Ordering::Relaxed));
    assert!(
        (1..=SLOW_MAX).contains(&asked) && took < SLOW * 5 / 2,
        "seed {}: asked {asked} times, {took:?}",
        world.seed()
    );
}

#[test]
fn a_machine_that_is_slow_is_asked_for_little() {
    sim::explore(0..20, one_is_slow);
}

#[test]
fn each_target_is_asked_in_the_order_of_the_file() {
    sim::explore(0..20, targets_are_watched);
}

#[test]
fn what_lies_on_a_machine_that_is_away_costs_a_parity() {
    sim::explore(0..20, one_is_away);
}

#[test]
fn a_parity_on_the_readers_machine_is_read_first() {
    sim::explore(0..20, all_are_there);
}
