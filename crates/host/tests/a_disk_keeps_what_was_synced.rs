//! The disks' side of a world's contract (`host::disk`): what a sync made durable is never lost, what was not synced
//! may be, by sectors and in any order, and a part that trusts more than that must fail here.

use std::collections::BTreeSet;
use std::time::Duration;

use bytes::Bytes;
use host::sim::{self, DiskFaults, DiskOptions, SimDisk, Stop, World};
use host::{DiskError, File, Host, NodeId};

const SECTOR: usize = 512;

fn plug(world: &World, host: &Host) -> (SimDisk, File) {
    let disk = world.add_disk(host.node(), "d0", DiskOptions::default());
    let file = disk.plug().open("f").unwrap();
    (disk, file)
}

fn filled(byte: u8, length: usize) -> Vec<Bytes> {
    vec![Bytes::from(vec![byte; length])]
}

/// What `seeds` worlds show after `driver`, as a set: which outcomes are possible at all.
fn outcomes<T: Ord>(seeds: u64, driver: impl AsyncFn(World, Host) -> T) -> BTreeSet<T> {
    (0..seeds).map(|seed| sim::run(seed, &driver)).collect()
}

#[test]
fn a_synced_write_survives_and_an_unsynced_one_any_part() {
    let survivors = outcomes(300, async |world, host| {
        let (disk, file) = plug(&world, &host);
        file.write(0, filled(1, 4 * SECTOR)).await.unwrap();
        file.sync().await.unwrap();
        file.write(0, filled(2, 4 * SECTOR)).await.unwrap();
        assert_eq!(disk.peek("f", 0, 4 * SECTOR), vec![2; 4 * SECTOR], "reads see what is not synced");
        world.crash(host.node(), Stop::PowerLoss);
        let content = disk.peek("f", 0, 10 * SECTOR);
        assert_eq!(content.len(), 4 * SECTOR);
        let sectors: Vec<u8> = content.chunks(SECTOR).map(|sector| sector[0]).collect();
        assert!(content.chunks(SECTOR).all(|sector| sector.iter().all(|byte| *byte == sector[0])), "sectors are whole");
        sectors
    });
    assert_eq!(survivors.len(), 16, "every combination of old and new sectors must occur");
}

#[test]
fn unsynced_writes_survive_in_any_order() {
    let survivors = outcomes(200, async |world, host| {
        let (disk, file) = plug(&world, &host);
        file.write(0, filled(0, 8 * SECTOR)).await.unwrap();
        file.sync().await.unwrap();
        file.write(0, filled(1, SECTOR)).await.unwrap();
        file.write(4 * SECTOR as u64, filled(2, SECTOR)).await.unwrap();
        world.crash(host.node(), Stop::PowerLoss);
        (disk.peek("f", 0, 1)[0], disk.peek("f", 4 * SECTOR as u64, 1)[0])
    });
    assert_eq!(survivors, BTreeSet::from([(0, 0), (1, 0), (0, 2), (1, 2)]));
}

#[test]
fn what_is_written_durably_survives_by_itself() {
    let survivors = outcomes(200, async |world, host| {
        let (disk, file) = plug(&world, &host);
        file.write(0, filled(0, 8 * SECTOR)).await.unwrap();
        file.sync().await.unwrap();
        file.write(4 * SECTOR as u64, filled(1, SECTOR)).await.unwrap();
        file.write_durably(0, filled(2, 4 * SECTOR)).await.unwrap();
        world.crash(host.node(), Stop::PowerLoss);
        assert_eq!(disk.peek("f", 0, 4 * SECTOR), vec![2; 4 * SECTOR]);
        disk.peek("f", 4 * SECTOR as u64, 1)[0]
    });
    assert_eq!(survivors, BTreeSet::from([0, 1]), "nothing is said of others");
}

#[test]
fn a_durable_write_that_was_cut_short_is_torn_and_does_not_undo_a_later_one() {
    let counts = outcomes(200, async |world, host| {
        let (disk, file) = plug(&world, &host);
        file.write(0, filled(0, 4 * SECTOR)).await.unwrap();
        file.sync().await.unwrap();
        let writing = world.spawn(&host, async move { file.write_durably(0, filled(1, 4 * SECTOR)).await });
        world.sleep(Duration::from_micros(10)).await;
        world.crash(host.node(), Stop::Kill);
        assert!(writing.await.is_err());
        let landed = disk.peek("f", 0, 4 * SECTOR).chunks(SECTOR).filter(|sector| sector[0] == 1).count();
        world.restart(host.node());
        let file = disk.plug().open("f").unwrap();
        file.write_durably(SECTOR as u64, filled(2, 2 * SECTOR)).await.unwrap();
        world.crash(host.node(), Stop::PowerLoss);
        assert_eq!(disk.peek("f", SECTOR as u64, 2 * SECTOR), vec![2; 2 * SECTOR]);
        landed
    });
    assert!(counts.contains(&0) && counts.contains(&4) && counts.len() > 2, "{counts:?}");
}

#[test]
fn an_unsynced_size_may_be_taken_back() {
    let sizes = outcomes(100, async |world, host| {
        let (disk, file) = plug(&world, &host);
        file.write(0, filled(1, 100)).await.unwrap();
        file.sync().await.unwrap();
        file.write(100, filled(2, 100)).await.unwrap();
        world.crash(host.node(), Stop::PowerLoss);
        let size = disk.plug().open("f").unwrap().size().unwrap();
        assert_eq!(disk.peek("f", 0, 100), vec![1; 100]);
        size
    });
    assert_eq!(sizes, BTreeSet::from([100, 200]));
}

#[test]
fn a_killed_daemon_loses_nothing_that_finished() {
    sim::explore(0..100, async |world, host| {
        let (disk, file) = plug(&world, &host);
        file.write(7, filled(1, 5_000)).await.unwrap();
        world.crash(host.node(), Stop::Kill);
        assert_eq!(disk.peek("f", 7, 5_000), vec![1; 5_000]);
        let reopened = world.restart(host.node());
        reopened.sleep(Duration::from_secs(1)).await;
        assert_eq!(disk.peek("f", 7, 5_000), vec![1; 5_000]);
    });
}

#[test]
fn a_killed_daemons_write_in_flight_lands_in_any_part_and_not_later() {
    let counts = outcomes(100, async |world, host| {
        let (disk, file) = plug(&world, &host);
        disk.set_faults(DiskFaults { hung: true, ..DiskFaults::default() });
        let writing = world.spawn(&host, async move { file.write(0, filled(1, 4 * SECTOR)).await });
        world.sleep(Duration::from_secs(1)).await;
        world.crash(host.node(), Stop::Kill);
        assert!(writing.await.is_err());
        let at_crash = disk.peek("f", 0, 4 * SECTOR);
        disk.heal();
        world.sleep(Duration::from_secs(1)).await;
        assert_eq!(disk.peek("f", 0, 4 * SECTOR), at_crash, "what was cut short never lands later");
        at_crash.chunks(SECTOR).filter(|sector| sector[0] == 1).count()
    });
    assert!(counts.contains(&0) && counts.contains(&4) && counts.len() > 2);
}

#[test]
fn a_write_whose_caller_left_lands_all_the_same() {
    sim::explore(0..50, async |world, host| {
        let (disk, file) = plug(&world, &host);
        let mut write = Box::pin(file.write(0, filled(1, SECTOR)));
        let begun = std::future::poll_fn(|context| std::task::Poll::Ready(write.as_mut().poll(context))).await;
        assert!(begun.is_pending());
        drop(write);
        world.sleep(Duration::from_secs(1)).await;
        assert_eq!(disk.peek("f", 0, SECTOR), vec![1; SECTOR]);
    });
}

#[test]
fn after_a_failed_sync_no_later_sync_helps() {
    let survivors = outcomes(100, async |world, host| {
        let (disk, file) = plug(&world, &host);
        file.write(0, filled(1, SECTOR)).await.unwrap();
        file.sync().await.unwrap();
        file.write(0, filled(2, SECTOR)).await.unwrap();
        disk.set_faults(DiskFaults { syncs: true, ..DiskFaults::default() });
        assert!(matches!(file.sync().await, Err(DiskError::Failed(_))));
        disk.heal();
        file.write(2 * SECTOR as u64, filled(3, SECTOR)).await.unwrap();
        file.sync().await.unwrap();
        assert_eq!(disk.peek("f", 0, SECTOR), vec![2; SECTOR], "reads see it still");
        world.crash(host.node(), Stop::PowerLoss);
        assert_eq!(disk.peek("f", 2 * SECTOR as u64, SECTOR), vec![3; SECTOR], "the later sync covers the later write");
        disk.peek("f", 0, 1)[0]
    });
    assert_eq!(survivors, BTreeSet::from([1, 2]));
}

#[test]
fn a_sync_covers_no_write_that_finished_after_it_was_called() {
    let survivors = outcomes(200, async |world, host| {
        let options = DiskOptions { sync_latency: Duration::from_millis(50), ..DiskOptions::default() };
        let disk = world.add_disk(host.node(), "d0", options);
        let file = disk.plug().open("f").unwrap();
        file.write(0, filled(1, SECTOR)).await.unwrap();
        let syncing = file.clone();
        let synced = world.spawn(&host, async move { syncing.sync().await });
        world.sleep(Duration::from_micros(10)).await;
        file.write(0, filled(2, SECTOR)).await.unwrap();
        synced.await.unwrap().unwrap();
        world.crash(host.node(), Stop::PowerLoss);
        disk.peek("f", 0, 1)[0]
    });
    assert_eq!(survivors, BTreeSet::from([1, 2]), "never nothing: the first write was synced");
}

#[test]
fn a_full_disk_refuses_and_a_discard_makes_room() {
    sim::explore(0..20, async |world, host| {
        let options = DiskOptions { capacity_bytes: 64 << 10, ..DiskOptions::default() };
        let disk = world.add_disk(host.node(), "d0", options);
        let (plugged, file) = (disk.plug(), disk.plug().open("f").unwrap());
        file.reserve(0, 32 << 10).await.unwrap();
        assert_eq!(plugged.usage().unwrap().bytes_free, 32 << 10);
        assert_eq!(file.size().unwrap(), 0);
        file.write(0, filled(1, 32 << 10)).await.unwrap();
        assert_eq!(plugged.usage().unwrap().bytes_free, 32 << 10, "reserved room was used");
        assert_eq!(file.write(32 << 10, filled(2, 33 << 10)).await, Err(DiskError::Full));
        assert_eq!(file.read(0, 32 << 10).await.unwrap(), vec![1; 32 << 10], "outside its range nothing changed");
        file.discard(0, 64 << 10).await.unwrap();
        assert!(file.read(0, 32 << 10).await.unwrap().iter().all(|byte| *byte == 0));
        file.write(32 << 10, filled(2, 32 << 10)).await.unwrap();
    });
}

#[test]
fn a_failed_disk_fails_until_it_is_healed() {
    sim::run(1, async |world, host| {
        let (disk, file) = plug(&world, &host);
        file.write(0, filled(1, SECTOR)).await.unwrap();
        disk.fail();
        assert!(matches!(file.read(0, 1).await, Err(DiskError::Failed(_))));
        assert!(matches!(file.write(0, filled(2, 1)).await, Err(DiskError::Failed(_))));
        assert!(matches!(disk.plug().usage(), Err(DiskError::Failed(_))));
        assert!(disk.plug().open("f").is_err());
        disk.set_faults(DiskFaults { read_only: true, ..DiskFaults::default() });
        assert_eq!(file.write(0, filled(3, SECTOR)).await, Err(DiskError::ReadOnly));
        assert_ne!(file.read(0, 1).await.unwrap()[0], 3);
        disk.heal();
        file.write(0, filled(4, SECTOR)).await.unwrap();
        assert_eq!(file.read(0, SECTOR).await.unwrap(), vec![4; SECTOR]);
        disk.wipe();
        assert_eq!(file.size().unwrap(), 0);
    });
}

#[test]
fn a_flipped_bit_is_silent_and_stays() {
    sim::explore(0..20, async |world, host| {
        let (disk, file) = plug(&world, &host);
        file.write(0, filled(0, 10_000)).await.unwrap();
        file.sync().await.unwrap();
        disk.corrupt("f", 5_000);
        let (name, offset) = disk.corrupt_somewhere().unwrap();
        assert_eq!(name, "f");
        world.crash(host.node(), Stop::PowerLoss);
        let file = disk.plug().open("f").unwrap();
        let bits: u32 = file.read(0, 10_000).await.unwrap().iter().map(|byte| byte.count_ones()).sum();
        assert!(bits == 2 || offset == 5_000);
    });
}

#[test]
fn a_hung_disk_goes_on_when_healed_and_a_slow_one_takes_its_time() {
    sim::run(2, async |world, host| {
        let (disk, file) = plug(&world, &host);
        disk.set_faults(DiskFaults { hung: true, ..DiskFaults::default() });
        let writing = world.spawn(&host, async move { file.write(0, filled(1, SECTOR)).await });
        world.sleep(Duration::from_secs(10)).await;
        assert_eq!(disk.peek("f", 0, 1), "");
        disk.heal();
        writing.await.unwrap().unwrap();
        assert_eq!((disk.counters().writes, disk.counters().bytes_written), (1, SECTOR as u64));
        disk.slow(10_000);
        let before = world.now();
        disk.plug().open("f").unwrap().sync().await.unwrap();
        assert!(world.now() - before > Duration::from_secs(1));
    });
}

#[test]
fn racing_reads_see_any_sectors_of_a_write_but_a_finished_write_whole() {
    let seen = outcomes(300, async |world, host| {
        let options = DiskOptions { write_latency: Duration::from_micros(200), ..DiskOptions::default() };
        let file = world.add_disk(host.node(), "d0", options).plug().open("f").unwrap();
        let writer = file.clone();
        let writing = world.spawn(&host, async move { writer.write(0, filled(1, 4 * SECTOR)).await });
        let racing = file.read(0, 4 * SECTOR).await.unwrap();
        writing.await.unwrap().unwrap();
        assert_eq!(file.read(0, 4 * SECTOR).await.unwrap(), vec![1; 4 * SECTOR]);
        racing.chunks(SECTOR).filter(|sector| sector[0] == 1).count()
    });
    assert_eq!(seen, BTreeSet::from([0, 1, 2, 3, 4]));
}

#[test]
fn a_handle_of_a_past_life_writes_nothing() {
    sim::run(3, async |world, host| {
        let (disk, file) = plug(&world, &host);
        world.crash(host.node(), Stop::Kill);
        world.restart(host.node());
        assert!(matches!(file.write(0, filled(1, SECTOR)).await, Err(DiskError::Failed(_))));
        assert!(file.size().is_err());
        let file = disk.plug().open("f").unwrap();
        assert_eq!(file.size(), Ok(0));
    });
}

/// What one byte may be, by a model so naive that it can be believed.
#[derive(Clone)]
struct Byte {
    /// What a power loss may leave; the last is what reads see.
    states: Vec<u8>,
    /// A sync failed since it was last written: no sync decides any more.
    doubtful: bool,
}

impl Byte {
    fn write(&mut self, value: u8) {
        self.states.push(value);
        self.doubtful = false;
    }

    fn sync(&mut self) {
        if !self.doubtful {
            self.states.drain(..self.states.len() - 1);
        }
    }

    fn fail_sync(&mut self) {
        self.doubtful = self.states.len() > 1;
    }

    fn lose_power(&mut self, left: u8) {
        assert!(self.states.contains(&left), "{left} is there, which was not among {:?}", self.states);
        *self = Byte { states: vec![left], doubtful: false };
    }
}

/// Brings a stopped node back, and opens the file anew.
fn reopen(world: &World, disk: &SimDisk) -> File {
    world.restart(NodeId(1));
    disk.plug().open("f").unwrap()
}

#[test]
fn random_writes_syncs_and_stops_agree_with_a_model() {
    const SIZE: usize = 20 * SECTOR;
    sim::explore(0..200, async |world, host| {
        let (disk, mut file) = plug(&world, &host);
        let mut dice = world.dice();
        let mut model = vec![Byte { states: vec![0], doubtful: false }; SIZE];
        for round in 1..60u8 {
            let start = dice.below(SIZE as u64);
            let end = dice.within(start..SIZE as u64 + 1);
            let range = start as usize..end as usize;
            match dice.below(10) {
                0 => {
                    file.sync().await.unwrap();
                    model.iter_mut().for_each(Byte::sync);
                }
                1 => {
                    world.crash(NodeId(1), Stop::PowerLoss);
                    file = reopen(&world, &disk);
                    let content = disk.peek("f", 0, SIZE);
                    let left = (0..SIZE).map(|at| content.get(at).copied().unwrap_or(0));
                    model.iter_mut().zip(left).for_each(|(byte, left)| byte.lose_power(left));
                }
                2 => {
                    world.crash(NodeId(1), Stop::Kill);
                    file = reopen(&world, &disk);
                }
                3 => {
                    disk.set_faults(DiskFaults { syncs: true, ..DiskFaults::default() });
                    file.sync().await.unwrap_err();
                    disk.heal();
                    model.iter_mut().for_each(Byte::fail_sync);
                }
                4 => {
                    file.discard(start, end - start).await.unwrap();
                    let size = file.size().unwrap() as usize;
                    model[..size].iter_mut().take(range.end).skip(range.start).for_each(|byte| byte.write(0));
                }
                _ => {
                    file.write(start, filled(round, range.len())).await.unwrap();
                    model[range].iter_mut().for_each(|byte| byte.write(round));
                }
            }
            let content = disk.peek("f", 0, SIZE);
            for (at, byte) in model.iter().enumerate() {
                assert_eq!(content.get(at).copied().unwrap_or(0), *byte.states.last().unwrap());
            }
        }
    });
}
