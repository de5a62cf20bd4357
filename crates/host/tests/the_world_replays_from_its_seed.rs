//! A seed that fails must fail again, alone and on another machine: else the simulation finds bugs that nobody can fix.

use std::collections::BTreeSet;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use bytes::Bytes;
use host::sim::{self, DiskOptions, NetworkOptions, Stop, World};
use host::{Address, BoxFuture, Envelope, Handler, Host, Moment, NodeId, Port};

const PORT: Port = Port(7);

/// Answers a number with its successor, after a while.
struct Successor(Host);

impl Handler for Successor {
    fn handle(&self, _from: NodeId, request: Envelope) -> BoxFuture<'static, Envelope> {
        let host = self.0.clone();
        Box::pin(async move {
            let number: u64 = request.open().expect("tests send numbers");
            host.sleep(Duration::from_nanos(host.random() % 1_000_000)).await;
            Envelope::new(number + 1)
        })
    }
}

fn start(host: &Host) {
    host.listen(PORT, Arc::new(Successor(host.clone())));
}

/// Three nodes that write, sync and call each other while nodes crash and links break; the story's fingerprint.
fn busy(seed: u64) -> (u64, u64) {
    let world = World::new(seed);
    world.set_network(NetworkOptions { loss_ppm: 20_000, ..NetworkOptions::default() });
    let answers = Arc::new(AtomicU64::new(0));
    for number in 1..=3 {
        let host = world.add_node(NodeId(number));
        start(&host);
        let disk = world.add_disk(host.node(), &format!("d{number}"), DiskOptions::default()).plug();
        for _ in 0..4 {
            host.spawn(work(host.clone(), disk.clone(), answers.clone()));
        }
    }
    world.block_on(async {
        world.sleep(Duration::from_millis(20)).await;
        world.cut(NodeId(1), NodeId(2));
        world.sleep(Duration::from_millis(20)).await;
        world.crash(NodeId(3), Stop::PowerLoss);
        world.sleep(Duration::from_millis(20)).await;
        world.heal_all();
        start(&world.restart(NodeId(3)));
        world.sleep(Duration::from_secs(3)).await;
    });
    (world.trace_hash(), answers.load(Ordering::Relaxed))
}

async fn work(host: Host, disk: host::Disk, answers: Arc<AtomicU64>) {
    let file = disk.open("work").unwrap();
    for _ in 0..50 {
        let offset = host.random() % 100_000;
        file.write(offset, vec![Bytes::from(vec![1; 1_000])]).await.unwrap();
        file.sync().await.unwrap();
        let to = Address { node: NodeId((host.random() % 3) as u32 + 1), port: PORT };
        if let Ok(answer) = host.call::<u64, u64>(to, offset).await {
            assert_eq!(answer, offset + 1);
            answers.fetch_add(1, Ordering::Relaxed);
        }
    }
}

#[test]
fn the_same_seed_tells_the_same_story() {
    for seed in 0..20 {
        let story = busy(seed);
        assert!(story.1 > 100, "the workload must be busy, or this test shows nothing");
        assert_eq!(story, busy(seed));
    }
}

#[test]
fn other_seeds_tell_other_stories() {
    let mut traces: Vec<u64> = (0..20).map(|seed| busy(seed).0).collect();
    traces.sort_unstable();
    traces.dedup();
    assert_eq!(traces.len(), 20);
}

#[test]
fn a_driver_replays_and_one_with_a_real_hand_in_it_is_caught() {
    let lately = AtomicU64::new(0);
    sim::replay(9, async |world, host| host.sleep(Duration::from_nanos(world.dice().below(1_000))).await);
    let caught = std::panic::catch_unwind(|| {
        sim::replay(9, async |_, host| host.sleep(Duration::from_secs(lately.fetch_add(1, Ordering::Relaxed))).await);
    });
    assert!(caught.is_err());
}

#[test]
fn ready_tasks_run_in_every_order() {
    let mut orders = BTreeSet::new();
    for seed in 0..200 {
        orders.insert(sim::run(seed, async |world, host| {
            let order = Arc::new(Mutex::new(Vec::new()));
            for number in 0..3 {
                let order = order.clone();
                host.spawn(async move { order.lock().unwrap().push(number) });
            }
            world.sleep(Duration::from_millis(1)).await;
            Arc::into_inner(order).unwrap().into_inner().unwrap()
        }));
    }
    assert_eq!(orders.len(), 6);
}

#[test]
fn timers_end_in_order_and_time_jumps() {
    sim::run(1, async |world, host| {
        let order = Arc::new(Mutex::new(Vec::new()));
        for hours in [5, 1, 3] {
            let (order, host) = (order.clone(), host.clone());
            host.clone().spawn(async move {
                let before = host.now();
                host.sleep(Duration::from_secs(hours * 3600)).await;
                let slept = host.now() - before;
                assert!(slept >= Duration::from_secs(hours * 3600), "a sleep ends no sooner than it should");
                assert!(slept < Duration::from_secs(hours * 3600 + 1));
                order.lock().unwrap().push(hours);
            });
        }
        world.sleep(Duration::from_secs(6 * 3600)).await;
        assert_eq!(*order.lock().unwrap(), [1, 3, 5]);
    });
}

#[test]
fn a_world_runs_without_a_driver_too() {
    let world = World::new(3);
    let host = world.add_node(NodeId(1));
    let ticks = Arc::new(AtomicU64::new(0));
    let (counted, sleeper) = (ticks.clone(), host.clone());
    host.spawn(async move {
        loop {
            sleeper.sleep(Duration::from_secs(1)).await;
            counted.fetch_add(1, Ordering::Relaxed);
        }
    });
    world.run_until(Moment(0) + Duration::from_millis(10_500));
    assert_eq!(ticks.load(Ordering::Relaxed), 10);
    world.run_while(Moment(u64::MAX), || ticks.load(Ordering::Relaxed) < 15);
    assert_eq!(ticks.load(Ordering::Relaxed), 15);
}

#[test]
#[should_panic(expected = "deadlock in the world of seed 4")]
fn a_deadlock_is_told() {
    sim::run(4, async |_, host| {
        host.spawn(std::future::pending());
        std::future::pending::<()>().await;
    });
}

#[test]
#[should_panic(expected = "waits for more than a day")]
fn a_driver_that_waits_among_heartbeats_is_told() {
    sim::run(5, async |_, host| {
        let sleeper = host.clone();
        host.spawn(async move {
            loop {
                sleeper.sleep(Duration::from_secs(60)).await;
            }
        });
        std::future::pending::<()>().await;
    });
}

#[test]
#[should_panic(expected = "from within itself")]
fn a_world_cannot_be_run_from_within() {
    sim::run(6, async |world, _| world.block_on(async {}));
}

/// Says that it was dropped.
struct Guard(Arc<AtomicBool>);

impl Drop for Guard {
    fn drop(&mut self) {
        self.0.store(true, Ordering::Relaxed);
    }
}

#[test]
fn tasks_that_hold_their_world_end_with_it() {
    let dropped = Arc::new(AtomicBool::new(false));
    let guard = Guard(dropped.clone());
    sim::run(7, async |world, host| {
        let (held, sleeper) = (world.clone(), host.clone());
        host.spawn(async move {
            let _guard = guard;
            sleeper.sleep(Duration::from_secs(1)).await;
            drop(held);
        });
        world.sleep(Duration::from_millis(1)).await;
    });
    assert!(dropped.load(Ordering::Relaxed));
}
