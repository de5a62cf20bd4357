//! Random operations on one target, which is killed or loses power at random moments, against a naive model.
//!
//! The danger: an answer given before what it promises is so; a length without its bytes; a stripe with neither parity
//! nor copies; cells given to another fragment while the old one may still be needed.

#[allow(dead_code, reason = "this test uses a part of the model")]
mod model;

use std::sync::Arc;
use std::time::Duration;

use host::sim::{self, DiskOptions, SimDisk, Stop, World};
use host::{Host, NodeId};
use model::{CLUSTER, ID, Model, OPTIONS, Shared, Worker, check};
use storage::Target;

async fn open(host: &Host, disk: &SimDisk) -> Arc<Target> {
    Target::open(host.clone(), disk.plug(), CLUSTER, ID, OPTIONS).await.expect("the target opens")
}

/// Lets workers loose on the target until the node stops.
async fn life(world: &World, host: &Host, disk: &SimDisk, model: &Shared, stop: Stop) {
    let target = open(host, disk).await;
    check(model, &target).await;
    let mut dice = world.dice();
    for log in 1..=3 {
        let worker = Worker::new(log, model.clone(), target.clone(), dice.roll());
        drop(world.spawn(host, worker.run()));
    }
    drop(target);
    world.sleep(Duration::from_micros(dice.below(40_000))).await;
    world.crash(NodeId(1), stop);
    model.lock().unwrap().crashed(stop);
}

#[test]
fn what_was_acknowledged_survives_kills_and_power_losses() {
    sim::explore(0..100, async |world, host| {
        let disk = world.add_disk(host.node(), "d", DiskOptions { capacity_bytes: 4 << 20, ..DiskOptions::default() });
        storage::format(&disk.plug(), CLUSTER, ID, OPTIONS).await.unwrap();
        let model = Model::shared();
        let mut dice = world.dice();
        let mut host = host;
        for _ in 0..6 {
            let stop = if dice.coin() { Stop::Kill } else { Stop::PowerLoss };
            life(&world, &host, &disk, &model, stop).await;
            host = world.restart(NodeId(1));
        }
        let target = open(&host, &disk).await;
        check(&model, &target).await;
        let (damages, _) = target.scrub(None, usize::MAX).await.unwrap();
        assert_eq!(damages, []);
    });
}
