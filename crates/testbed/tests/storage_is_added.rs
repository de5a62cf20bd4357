//! Targets are added and replaced while programs write, and the machine dies at any moment of it. The danger: a target passes
//! for whole that is not there, or lacks something; a number is given twice, or one is missed for ever; a start does not
//! come up.
//!
//! The daemon's roles run on each machine of a simulated cluster, with a registry of its own. `DAZZLE_SEED` replays a world.

use std::time::Duration;

use host::Host;
use host::sim::{self, Dice, SimDisk, Stop, World};
use protocol::id::TargetId;
use protocol::maps::TargetState;

use crate::files::Files;
use crate::rack::{Rack, Shape};

/// How soon everything is whole again.
const MENDED_MAX: Duration = Duration::from_secs(180);

async fn cluster(world: &World, host: &Host) -> Rack {
    let patience = Duration::from_secs(24 * 3600);
    Rack::create(world, host, Shape::new(vec![3, 3, 1], 1, patience)).await
}

async fn until(world: &World, rack: &Rack, is_so: impl Fn() -> bool) {
    let end = world.now() + MENDED_MAX;
    while !is_so() {
        let ended: Vec<_> = (0..rack.count()).filter_map(|index| rack.ended(index)).collect();
        let all: Vec<_> = (0..rack.count()).filter_map(|index| rack.roles(index)).collect();
        let known = all.iter().map(|roles| (roles.absent(), roles.cluster.maps().targets.clone()));
        assert!(world.now() < end, "seed {}: {ended:?}, {:#?}", world.seed(), known.collect::<Vec<_>>());
        // As a service manager does.
        (0..rack.count()).filter(|&index| rack.ended(index).is_some()).for_each(|index| rack.start(index));
        world.sleep(Duration::from_millis(200)).await;
    }
}

/// Has a disk taken in on a machine that dies meanwhile, or just after, and again until it is.
async fn take_in(
    world: &World,
    rack: &Rack,
    dice: &mut Dice,
    (index, disk): (usize, &SimDisk),
    former: Option<TargetId>,
) {
    let mut crashes = 2;
    loop {
        until(world, rack, || rack.roles(index).is_some()).await;
        if former.is_some() && rack.target_on(index, disk) == former {
            return;
        }
        if former.is_none() && rack.target_on(index, disk).is_some() {
            return;
        }
        let taking = rack.take_in(index, disk, former);
        if crashes == 0 {
            match taking.await.expect("nobody stops it any more") {
                Ok(_) => {}
                // A start took the empty disk in its old place.
                Err(why) if former.is_some() && why.contains("serves") => {}
                Err(why) => panic!("seed {}: {why}", world.seed()),
            }
            return;
        }
        crashes -= 1;
        let magnitude = dice.within(16..31);
        world.sleep(Duration::from_nanos(dice.below(1 << magnitude))).await;
        rack.crash(index, if dice.coin() { Stop::Kill } else { Stop::PowerLoss });
        rack.start(index);
    }
}

/// Everything is whole, no number was given in vain, and any machine may be lost.
async fn look(world: &World, rack: &Rack, dice: &mut Dice, files: &mut Files, targets: usize) {
    until(world, rack, || rack.is_whole()).await;
    let client = rack.roles(2).expect("all run").client.clone();
    files.write(&client, dice, 4).await;
    let maps = rack.roles(2).expect("all run").cluster.maps();
    assert_eq!(maps.targets.len(), targets, "{:?}", maps.targets);
    let current = maps.groups.values().filter(|group| group.current).flat_map(|group| &group.targets);
    let current: std::collections::BTreeSet<_> = current.collect();
    assert_eq!(current.len(), targets, "all are written to");
    rack.crash(0, Stop::PowerLoss);
    files.verify(world, &client).await;
    rack.start(0);
    until(world, rack, || rack.is_whole()).await;
    rack.crash(1, Stop::PowerLoss);
    files.verify(world, &client).await;
}

#[test]
fn a_target_is_added_though_its_machine_dies_meanwhile() {
    sim::explore(0..25, async |world, host| {
        let mut dice = world.dice();
        let rack = cluster(&world, &host).await;
        let mut files = Files::default();
        files.write(&rack.roles(2).expect("all run").client, &mut dice, 6).await;
        let index = dice.below(2) as usize;
        let disk = rack.spare_disk(index, "new");
        take_in(&world, &rack, &mut dice, (index, &disk), None).await;
        look(&world, &rack, &mut dice, &mut files, 8).await;
    });
}

#[test]
fn a_lost_disk_is_replaced_though_its_machine_dies_meanwhile() {
    sim::explore(0..25, async |world, host| {
        let mut dice = world.dice();
        let rack = cluster(&world, &host).await;
        let mut files = Files::default();
        files.write(&rack.roles(2).expect("all run").client, &mut dice, 6).await;
        let index = dice.below(2) as usize;
        let lost = rack.disks(index)[dice.below(3) as usize].clone();
        let target = rack.target_on(index, &lost).expect("it is one of its disks");
        let refused = rack.take_in(index, &rack.spare_disk(index, "early"), Some(target)).await;
        assert!(refused.expect("nobody dies").is_err_and(|why| why.contains("serves")), "it is not lost yet");
        // Its disk fails, or its files are deleted under the daemon.
        if dice.coin() {
            lost.fail();
        } else {
            lost.wipe();
        }
        let disk = rack.spare_disk(index, "new");
        take_in(&world, &rack, &mut dice, (index, &disk), Some(target)).await;
        look(&world, &rack, &mut dice, &mut files, 7).await;
    });
}

#[test]
fn two_targets_may_be_replaced_in_one_life() {
    sim::explore(0..3, async |world, host| {
        let mut dice = world.dice();
        let patience = Duration::from_secs(24 * 3600);
        let rack = Rack::create(&world, &host, Shape::new(vec![4], 1, patience)).await;
        let mut files = Files::default();
        let client = rack.roles(0).expect("it runs").client.clone();
        files.write(&client, &mut dice, 6).await;
        for name in ["one", "two", "three"] {
            let lost = rack.disks(0)[0].clone();
            let target = rack.target_on(0, &lost).expect("it is one of its disks");
            // Its disk fails, or its files are deleted under the daemon.
            if dice.coin() {
                lost.fail();
                until(&world, &rack, || failed(&rack, target)).await;
            } else {
                lost.wipe();
            }
            let disk = rack.spare_disk(0, name);
            rack.take_in(0, &disk, Some(target)).await.expect("nobody dies").expect("it does not serve");
            until(&world, &rack, || rack.is_whole()).await;
        }
        rack.crash(0, Stop::PowerLoss);
        rack.start(0);
        until(&world, &rack, || rack.is_whole()).await;
        files.verify(&world, &rack.roles(0).expect("it runs").client).await;
    });
}

fn failed(rack: &Rack, target: TargetId) -> bool {
    let maps = rack.roles(0).map(|roles| roles.cluster.maps());
    maps.is_some_and(|maps| maps.targets[&target].state == TargetState::Failed)
}
