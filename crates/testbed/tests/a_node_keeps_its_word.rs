//! The danger: a crash at the wrong moment loses or mixes what fsync acknowledged.
//!
//! The whole daemon runs in the simulated world; it is killed, or its machine loses power with torn, lost and reordered
//! writes, at a random moment of a random workload, several times over. `DAZZLE_SEEDS` sets how many worlds, `DAZZLE_SEED`
//! replays one.

use std::time::Duration;

use host::sim::{self, DiskOptions, Stop, World};
use host::Host;
use testbed::{Site, Witness};

const LIVES: u64 = 3;

fn seeds(default: u64) -> u64 {
    std::env::var("DAZZLE_SEEDS").ok().and_then(|text| text.parse().ok()).unwrap_or(default)
}

async fn lives(world: World, host: Host, targets: u32, parity: u8, stop: Stop) {
    let mut dice = world.dice();
    let site = Site::create(&world, &host, targets, parity, DiskOptions::default()).await;
    let mut parts = site.start().await;
    let mut witness = Witness::new();
    for _ in 0..LIVES {
        let working = witness_works(&world, &mut witness, &parts, dice.below(120));
        working.await;
        parts = site.crash(stop).await;
        witness.testify(&parts.client, stop).await;
    }
}

/// Works until done, then lets background work run a little, so that crashes meet it too.
async fn witness_works(world: &World, witness: &mut Witness, parts: &testbed::Parts, count: u64) {
    let mut dice = world.dice();
    witness.work(&parts.client, &mut dice, count).await.expect("a healthy node does what it is asked");
    world.sleep(Duration::from_micros(dice.below(50_000))).await;
}

#[test]
fn a_killed_daemon_loses_nothing_that_was_answered() {
    let count = seeds(100);
    sim::explore(0..count, async |world, host| lives(world, host, 5, 1, Stop::Kill).await);
    println!("{count} seeds: every promise kept");
}

#[test]
fn a_power_loss_loses_nothing_that_was_fsynced() {
    let count = seeds(250);
    sim::explore(0..count, async |world, host| lives(world, host, 5, 1, Stop::PowerLoss).await);
    println!("{count} seeds: every promise kept");
}

#[test]
fn one_target_or_two_parities_are_no_exception() {
    let count = seeds(75);
    sim::explore(0..count, async |world, host| lives(world, host, 1, 0, Stop::PowerLoss).await);
    sim::explore(0..count, async |world, host| lives(world, host, 6, 2, Stop::PowerLoss).await);
    println!("{} seeds: every promise kept", 2 * count);
}
