//! The power of all machines goes. One stays away, and in another a disk was exchanged for an empty one. The danger: the empty
//! disk is asked where logs end, and what was fsynced last, which lay there and on the machine that is away, is cut off.
//!
//! The parts of the daemon run on each machine of a simulated cluster. `DAZZLE_SEED` replays a world.

use std::cell::Cell;
use std::time::Duration;

use bytes::Bytes;
use host::sim::{Stop, World, explore};
use protocol::id::InodeId;

use crate::rack::{Rack, Shape};

const MACHINES: usize = 3;
/// Nobody is given up for being away.
const PATIENCE: Duration = Duration::from_secs(24 * 3600);
/// A start tries for half a minute to seal what was left open, one log after the other.
const LOOKS_MAX: u32 = 3000;
const LOOK: Duration = Duration::from_millis(100);
const CONTENT: &[u8] = b"it was fsynced";

/// What becomes of the machine that stays away.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Then {
    ComesBack,
    IsGivenUp,
}

#[test]
fn nothing_fsynced_is_cut_off_for_an_empty_disk() {
    let waited = Cell::new(0);
    for away in 0..MACHINES {
        for other in (0..MACHINES).filter(|other| *other != away) {
            for disk in 0..2 {
                explore(0..1, async |world, host| {
                    let rack = Rack::create(&world, &host, Shape::new(vec![2; MACHINES], 1, PATIENCE)).await;
                    let file = rack.stored_file(0, Bytes::from_static(CONTENT)).await;
                    let starts = lose_power(&world, &rack, away, (other, disk)).await;
                    waited.set(waited.get() + u32::from(!starts));
                    go_on(&world, &rack, (away, Then::ComesBack)).await;
                    for reader in 0..MACHINES {
                        assert_eq!(read(&world, &rack, reader, file).await, CONTENT, "machine {reader}");
                    }
                });
            }
        }
    }
    assert!(waited.get() > 0, "in some of the worlds those two alone know the end of a log");
}

#[test]
fn who_knew_alone_where_a_log_ends_may_be_given_up() {
    let waited = Cell::new(0);
    explore(0..4, async |world, host| {
        let rack = Rack::create(&world, &host, Shape::new(vec![2; MACHINES], 1, PATIENCE)).await;
        rack.stored_file(0, Bytes::from_static(CONTENT)).await;
        let disk = world.dice().below(2) as usize;
        let starts = lose_power(&world, &rack, 2, (1, disk)).await;
        waited.set(waited.get() + u32::from(!starts));
        go_on(&world, &rack, (2, Then::IsGivenUp)).await;
        rack.start(2);
        rack.until_started(2).await;
    });
    assert!(waited.get() > 0, "in some of the worlds those two alone know the end of a log");
}

/// Has all machines lose their power, and one of them a disk as well; and starts all but one that stays away. Whether they start.
async fn lose_power(world: &World, rack: &Rack, away: usize, (other, disk): (usize, usize)) -> bool {
    (0..MACHINES).for_each(|machine| rack.crash(machine, Stop::PowerLoss));
    rack.disks(other)[disk].wipe();
    let others = || (0..MACHINES).filter(|machine| *machine != away);
    others().for_each(|machine| rack.start(machine));
    for _ in 0..LOOKS_MAX {
        world.sleep(LOOK).await;
        if others().all(|machine| rack.roles(machine).is_some()) {
            return true;
        }
        let ended: Vec<String> = others().filter_map(|machine| rack.ended(machine)).collect();
        if ended.len() == MACHINES - 1 {
            assert!(ended.iter().all(|why| why.contains("awaited")), "{ended:?}");
            return false;
        }
    }
    panic!("they neither start nor say why not");
}

/// Starts what does not run, but for the machine that is given up.
async fn go_on(world: &World, rack: &Rack, (away, then): (usize, Then)) {
    let targets = [2 * away, 2 * away + 1].map(|target| target.to_string());
    for machine in (0..MACHINES).filter(|machine| *machine != away && rack.roles(*machine).is_none()) {
        rack.crash(machine, Stop::Kill);
        match then {
            Then::ComesBack => rack.start(machine),
            Then::IsGivenUp => rack.start_without(machine, targets.to_vec()),
        }
    }
    if then == Then::ComesBack {
        rack.start(away);
    }
    for machine in (0..MACHINES).filter(|machine| *machine != away || then == Then::ComesBack) {
        rack.until_started(machine).await;
    }
    world.sleep(LOOK).await;
}

/// What a machine reads of a file. Slots are taken over within seconds.
async fn read(world: &World, rack: &Rack, machine: usize, file: InodeId) -> Vec<u8> {
    let client = rack.roles(machine).expect("it runs").client.clone();
    for _ in 0..LOOKS_MAX {
        if let Ok(pieces) = client.read(file, 0, CONTENT.len() as u32 + 1).await {
            return pieces.concat();
        }
        world.sleep(LOOK).await;
    }
    panic!("machine {machine} cannot read the file");
}
