//! The power of all machines goes. One stays away, and in another a disk was exchanged for an empty one. The danger: the empty
//! disk is asked where logs end, and what was fsynced last, which lay there and on the machine that is away, is cut off.
//!
//! The parts of the daemon run on each machine of a simulated cluster. `DAZZLE_SEED` replays a world.

use std::cell::Cell;
use std::time::Duration;

use bytes::Bytes;
use host::sim::{SimDisk, Stop, World, explore};
use protocol::id::InodeId;

use crate::rack::{FRAGMENT, Rack, Shape};

const MACHINES: usize = 3;
/// Nobody is given up for being away.
const PATIENCE: Duration = Duration::from_secs(24 * 3600);
/// A start tries for half a minute to seal what was left open, one log after the other.
const LOOKS_MAX: u32 = 3000;
const LOOK: Duration = Duration::from_millis(100);
/// What a cell takes on a disk: a head and a fragment.
const CELL: usize = (8 << 10) + FRAGMENT as usize;
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
                    all_read(&world, &rack, file).await;
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

/// A start that cannot tell the others of it, as they are not there yet, leaves it to the next one.
#[test]
fn nothing_fsynced_is_cut_off_for_a_head_that_was_not_told_of_at_first() {
    let waited = Cell::new(0);
    for away in 0..MACHINES {
        for other in (0..MACHINES).filter(|other| *other != away) {
            explore(0..2, async |world, host| {
                let rack = Rack::create(&world, &host, Shape::new(vec![2; MACHINES], 1, PATIENCE)).await;
                let file = rack.stored_file(0, Bytes::from_static(CONTENT)).await;
                (0..MACHINES).for_each(|machine| rack.crash(machine, Stop::PowerLoss));
                rack.disks(other).iter().for_each(lose_newest_head);
                start_alone(&world, &rack, other).await;
                let starts = start_but(&world, &rack, away).await;
                waited.set(waited.get() + u32::from(!starts));
                go_on(&world, &rack, (away, Then::ComesBack)).await;
                all_read(&world, &rack, file).await;
            });
        }
    }
    assert!(waited.get() > 0, "in some of the worlds those two alone know the end of a log");
}

/// A target's own disk that is taken in again may not give all that it held of the logs of a machine that has just died.
#[test]
fn a_disk_that_is_back_and_lacks_something_is_told_of() {
    let told = Cell::new(0);
    for disk in 0..2 {
        explore(0..2, async |world, host| {
            let rack = Rack::create(&world, &host, Shape::new(vec![2; MACHINES], 1, PATIENCE)).await;
            rack.stored_file(2, Bytes::from_static(CONTENT)).await;
            rack.crash(2, Stop::PowerLoss);
            let (roles, disk) = (rack.roles(1).expect("it runs"), rack.disks(1)[disk].clone());
            let target = rack.target_on(1, &disk).expect("it is one of its disks");
            lose_newest_head(&disk);
            let (taking, disk) = (roles.clone(), (disk.name(), disk.plug()));
            let taken = world.spawn(&world.host(rack.node(1)), async move {
                taking.replace_target((target, disk.0), None, disk.1, async |_| Ok(())).await
            });
            taken.await.expect("nobody stops it").expect("nothing lies where its disk was");
            let maps = roles.cluster.maps();
            let runs = maps.logs.values().flat_map(|log| &log.layout);
            told.set(told.get() + runs.filter(|run| run.gone.contains(&target)).count());
        });
    }
    assert!(told.get() > 0, "in some of the worlds the log was written over it");
}

async fn all_read(world: &World, rack: &Rack, file: InodeId) {
    for reader in 0..MACHINES {
        assert_eq!(read(world, rack, reader, file).await, CONTENT, "machine {reader}");
    }
}

/// Has all machines lose their power, and one of them a disk as well; and starts all but one that stays away. Whether they start.
async fn lose_power(world: &World, rack: &Rack, away: usize, (other, disk): (usize, usize)) -> bool {
    (0..MACHINES).for_each(|machine| rack.crash(machine, Stop::PowerLoss));
    rack.disks(other)[disk].wipe();
    start_but(world, rack, away).await
}

/// The head of what was begun last on a disk cannot be read, if anything was.
fn lose_newest_head(disk: &SimDisk) {
    let size = disk.plug().open("data").expect("it is there").size().expect("it answers");
    let generation = |place: u64| {
        let head = disk.peek("data", place, 16);
        (head[..8] == *b"DzFrag\0\x01").then(|| u64::from_le_bytes(head[8..16].try_into().expect("eight bytes")))
    };
    let heads = (0..size).step_by(CELL).filter_map(|place| Some((generation(place)?, place)));
    if let Some((_, newest)) = heads.max() {
        disk.fail_reads("data", newest..newest + 512);
    }
}

/// Starts a machine while no other one is there: it says why it does not start.
async fn start_alone(world: &World, rack: &Rack, machine: usize) {
    rack.start(machine);
    for _ in 0..LOOKS_MAX {
        world.sleep(LOOK).await;
        if let Some(why) = rack.ended(machine) {
            assert!(why.contains("was not told whose disks are gone"), "{why}");
            rack.crash(machine, Stop::Kill);
            return;
        }
    }
    panic!("it does not say why it does not start");
}

/// Starts all machines but one that stays away. Whether they start.
async fn start_but(world: &World, rack: &Rack, away: usize) -> bool {
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
