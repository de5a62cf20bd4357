//! Random operations on one target, which is killed or loses power at random moments, against a naive model.
//!
//! The danger: an answer given before what it promises is so; a length without its bytes; a stripe with neither parity
//! nor copies; cells given to another fragment while the old one may still be needed.

use std::sync::Arc;
use std::time::Duration;

use host::sim::{self, DiskOptions, SimDisk, Stop, World};
use host::{Host, NodeId};
use storage::Target;

use crate::model::{CLUSTER, ID, Model, OPTIONS, Shared, Worker, check};

async fn open(host: &Host, disk: &SimDisk) -> Arc<Target> {
    Target::open(host.clone(), disk.plug(), CLUSTER, ID, OPTIONS).await.expect("the target opens")
}

/// Lets workers loose on the target until the node stops; some starts get no further than a part of themselves.
async fn life(world: &World, host: &Host, (disk, model): (&SimDisk, &Shared), stop: Stop, work: Work) {
    let mut dice = world.dice();
    if dice.chance(300_000) {
        let (host, disk) = (host.clone(), disk.clone());
        drop(world.spawn(&host.clone(), async move { drop(open(&host, &disk).await) }));
        world.sleep(Duration::from_micros(dice.below(6_000))).await;
    } else {
        let target = open(host, disk).await;
        check(model, &target).await;
        for log in 1..=3 {
            let worker = Worker::new(log, model.clone(), target.clone(), dice.roll());
            match work {
                Work::All => drop(world.spawn(host, worker.run())),
                Work::Small => drop(world.spawn(host, worker.run_small())),
            }
        }
        drop(target);
        world.sleep(Duration::from_micros(dice.below(40_000))).await;
    }
    world.crash(NodeId(1), stop);
    model.lock().unwrap().crashed(stop);
}

/// What the workers do.
#[derive(Clone, Copy)]
enum Work {
    All,
    Small,
}

/// Six lives of a target.
fn survive(work: Work) {
    sim::explore(sim::seeds(300), async |world, host| {
        let disk = world.add_disk(host.node(), "d", DiskOptions { capacity_bytes: 4 << 20, ..DiskOptions::default() });
        storage::format(&disk.plug(), CLUSTER, ID, OPTIONS).await.unwrap();
        let model = Model::shared();
        let mut dice = world.dice();
        let mut host = host;
        for _ in 0..6 {
            let stop = if dice.coin() { Stop::Kill } else { Stop::PowerLoss };
            life(&world, &host, (&disk, &model), stop, work).await;
            host = world.restart(NodeId(1));
        }
        let target = open(&host, &disk).await;
        check(&model, &target).await;
        let (damages, _) = target.scrub(None, usize::MAX).await.unwrap();
        assert_eq!(damages, []);
    });
}

#[test]
fn what_was_acknowledged_survives_kills_and_power_losses() {
    survive(Work::All);
}

/// These go through the intake, whose halves are turned many times.
#[test]
fn small_durable_appends_survive_kills_and_power_losses() {
    survive(Work::Small);
}
