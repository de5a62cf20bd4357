//! The simulated world: a cluster of machines on one thread, from a seed.
//!
//! Time is virtual and jumps when nobody can run; who runs next, how long messages and disks take, and which faults
//! strike is decided by dice. Equal seeds give equal stories, to the last bit, as long as the code that runs asks
//! nobody else for time, chance or order.
//!
//! The test itself is the *driver*: a future that belongs to no node, sees the [`World`], and does harm to it. What the
//! driver awaits itself no crash drops; what shall die with its node is started by [`World::spawn`]. Handles are of one
//! life of a node: after a restart, take the new [`Host`] and plug the disks in again.
//!
//! ```
//! use bytes::Bytes;
//! use host::sim::{self, DiskOptions, Stop};
//!
//! // Fifty worlds; DAZZLE_SEED=17 in the environment runs the seventeenth alone.
//! sim::explore(0..50, async |world, host| {
//!     let disk = world.add_disk(host.node(), "d0", DiskOptions::default());
//!     let file = disk.plug().open("log").unwrap();
//!     let acknowledged = world.spawn(&host, async move {
//!         file.write(0, vec![Bytes::from_static(b"promised")]).await.unwrap();
//!         file.sync().await.unwrap();
//!     });
//!     acknowledged.await.unwrap();
//!
//!     world.crash(host.node(), Stop::PowerLoss);
//!     let _host = world.restart(host.node());
//!     let file = disk.plug().open("log").unwrap();
//!     assert_eq!(file.read(0, 8).await.unwrap(), "promised");
//! });
//! ```
//!
//! | noun | it is |
//! |---|---|
//! | [`World`] | nodes, network, disks and time; it runs and harms them |
//! | [`SimDisk`] | a disk as the test sees it; it outlives nodes |
//! | [`Stop`] | how a node stops: killed, or without power |
//! | [`NetworkOptions`], [`DiskOptions`], [`DiskFaults`] | how things behave and misbehave |
//! | [`Passing`], [`Verdict`] | a message under way, and what a test makes of it |
//! | [`Dice`] | all chance |
//!
//! Inside: `executor` (who runs), `calendar` (time), `node` (clocks, the handle), `network`, `disk`, and `medium`
//! (what survives). The rules of faults stand on top of `network`, `disk` and `medium`.
//!
//! *Never*: the real clock; a thread; an unordered map.

use std::ops::Range;

use crate::{Host, NodeId};

mod calendar;
mod dice;
mod disk;
mod executor;
mod extents;
mod medium;
mod network;
mod node;
mod promise;
mod world;

pub use dice::Dice;
pub use disk::{DiskCounters, DiskFaults, DiskOptions, SimDisk};
pub use network::{LAG_MAX, NetworkCounters, NetworkOptions, Passing, Verdict, Way};
pub use node::Stop;
pub use world::{Crashed, World};

/// Runs `driver` in a new world with one node, number 1, and returns its outcome.
pub fn run<T>(seed: u64, driver: impl AsyncFnOnce(World, Host) -> T) -> T {
    let world = World::new(seed);
    let host = world.add_node(NodeId(1));
    let outcome = world.block_on(driver(world.clone(), host));
    // Tasks that hold the world would keep it, and themselves, for ever.
    world.end();
    outcome
}

/// So many seeds, or those that the environment asks for: `DAZZLE_SEEDS=2000` for the first so many,
/// `DAZZLE_SEEDS=2000..4000` to go on where an earlier run ended.
///
/// # Panics
/// When the environment asks for something else: fewer worlds than somebody believes were tried would be worse.
pub fn seeds(count: u64) -> Range<u64> {
    match std::env::var("DAZZLE_SEEDS") {
        Ok(text) => seeds_of(&text).unwrap_or_else(|| panic!("DAZZLE_SEEDS={text}: neither 2000 nor 2000..4000")),
        Err(_) => 0..count,
    }
}

fn seeds_of(text: &str) -> Option<Range<u64>> {
    let (first, end) = text.split_once("..").unwrap_or(("0", text));
    let seeds = first.parse().ok()?..end.parse().ok()?;
    (!seeds.is_empty()).then_some(seeds)
}

/// Runs `driver` in one world after the other, a world per seed; or in that of the seed that the environment names in
/// `DAZZLE_SEED` alone. A panic tells its seed. Returns how many worlds there were.
///
/// # Panics
/// When `DAZZLE_SEED` is no number.
pub fn explore(seeds: Range<u64>, driver: impl AsyncFn(World, Host)) -> u64 {
    let chosen = std::env::var("DAZZLE_SEED").ok();
    let chosen = chosen.map(|text| text.parse().unwrap_or_else(|_| panic!("DAZZLE_SEED={text}: no number")));
    let seeds = chosen.map_or(seeds, |seed: u64| seed..seed + 1);
    println!("worlds {seeds:?}");
    for seed in seeds.clone() {
        run(seed, &driver);
    }
    seeds.end - seeds.start
}

/// Runs `driver` twice from one seed, and checks that both told the same story: whatever asked the real clock, real
/// chance or an unordered map on the way shows here.
///
/// # Panics
/// When the stories differ.
pub fn replay(seed: u64, driver: impl AsyncFn(World, Host)) {
    let trace = || {
        run(seed, async |world: World, host| {
            driver(world.clone(), host).await;
            world.trace_hash()
        })
    };
    assert_eq!(trace(), trace(), "seed {seed} told two stories: something real has a hand in it");
}

#[cfg(test)]
mod tests {
    use super::seeds_of;

    #[test]
    fn seeds_are_a_count_or_a_range() {
        assert_eq!(seeds_of("2000"), Some(0..2000));
        assert_eq!(seeds_of("2000..4000"), Some(2000..4000));
        for nonsense in ["", "many", "0", "4000..2000", "2000..", "..2000", "2000..=4000", "-1"] {
            assert_eq!(seeds_of(nonsense), None, "{nonsense:?}");
        }
    }
}
