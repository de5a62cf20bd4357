//! One of the disks answers nothing any more, and later goes on as if nothing had been. The dangers: all that is asked of the
//! file system waits for it, again and again; what it still does late spoils what was laid elsewhere meanwhile; what it missed
//! stays missing; or somebody must be told to call it back.

use std::time::Duration;

use bytes::Bytes;
use client::{Client, WriteAt};
use futures_util::future::join;
use host::Host;
use host::sim::{self, DiskFaults, World};
use protocol::file::{Caller, Kind, NewInode};
use protocol::id::InodeId;
use protocol::maps::TargetState;
use protocol::registry::RegistryRequest;
use storage::HANG_PATIENCE;

use crate::rack::{Rack, Shape};

/// A disk that hangs is found within a second of its patience.
const FOUND_WITHIN: Duration = Duration::from_secs(1);
/// The registry's own patience with its copy on the disk. A log that goes on without the disk has to tell it.
const REGISTRY_PATIENCE: Duration = Duration::from_millis(500);
/// What else a log takes to go on, and the call behind it.
const RELAY_MAX: Duration = Duration::from_secs(2);
/// No call takes longer where a disk hangs.
const HANG_MAX: Duration =
    HANG_PATIENCE.saturating_add(FOUND_WITHIN).saturating_add(REGISTRY_PATIENCE).saturating_add(RELAY_MAX);
/// Nor one that is made when it has been found.
const FOUND_MAX: Duration = Duration::from_secs(2);
/// How soon the registry is told again that it does not answer.
const TOLD_AGAIN: Duration = Duration::from_secs(3);
/// How soon all is whole when it answers again: its targets are looked at within half a minute at most.
const WHOLE_MAX: Duration = Duration::from_secs(60);

fn new_inode() -> NewInode {
    let caller = Caller { uid: 0, gid: 0 };
    NewInode { kind: Kind::File, mode: 0o644, mask: 0, device: 0, target: Bytes::new(), caller }
}

fn content(round: usize) -> Bytes {
    Bytes::from(format!("round {round}, ").repeat(20_000))
}

/// How long the longest call of a round takes: a file is made, written and stored, and some that were made before are read.
async fn work(client: &Client, host: &Host, made: &mut Vec<InodeId>) -> Duration {
    let (round, mut longest, mut begun) = (made.len(), Duration::ZERO, host.now());
    let mut lap = || {
        longest = longest.max(host.now() - begun);
        begun = host.now();
        longest
    };
    let name = Bytes::from(format!("file-{round}"));
    let file = client.create(InodeId::ROOT, name, new_inode()).await.expect("the name is new").inode;
    made.push(file);
    lap();
    client.write(file, WriteAt::Offset(0), content(round)).await.expect("there is room");
    lap();
    client.fsync(file, false).await.expect("enough disks are left");
    lap();
    for earlier in [round / 3, round / 2, round] {
        let read = client.read(made[earlier], 0, 1 << 20).await.expect("enough disks are left").concat();
        assert!(read == content(earlier)[..], "file {earlier} in round {round}");
        lap();
    }
    lap()
}

/// The same again and again, for a time.
async fn keep_working((client, host): (&Client, &Host), made: &mut Vec<InodeId>, time: Duration) -> Duration {
    let (end, mut longest) = (host.now() + time, Duration::ZERO);
    while host.now() < end {
        longest = longest.max(work(client, host, made).await);
        host.sleep(Duration::from_millis(500)).await;
    }
    longest
}

async fn until_whole(world: &World, rack: &Rack) {
    let end = world.now() + WHOLE_MAX;
    while !rack.is_whole() {
        assert!(world.now() < end, "{:?}", rack.roles(0).expect("it runs").cluster.maps().targets);
        world.sleep(Duration::from_millis(500)).await;
    }
}

/// Any of the disks of these machines hangs, and any machine works.
async fn tell_a_story(world: World, rack: Rack, machines: std::ops::Range<u64>) {
    let mut dice = world.dice();
    let disks = rack.disks(dice.within(machines) as usize);
    let disk = dice.pick(&disks).expect("it has one").clone();
    let asked = dice.below(rack.count() as u64) as usize;
    let (roles, there) = (rack.roles(asked).expect("it runs"), world.host(rack.node(asked)));
    let whole = {
        let (world, rack) = (world.clone(), rack.clone());
        async move || until_whole(&world, &rack).await
    };
    let worked = world.spawn(&there.clone(), async move {
        let (client, mut made) = (roles.client.clone(), Vec::new());
        let at_work = (&client, &there);
        let usual = keep_working(at_work, &mut made, Duration::from_secs(10)).await;
        assert!(usual < FOUND_MAX, "{usual:?}");
        for _ in 0..2 {
            disk.set_faults(DiskFaults { hung: true, ..DiskFaults::default() });
            let longest = keep_working(at_work, &mut made, HANG_MAX).await;
            assert!(longest < HANG_MAX, "while it hangs a call takes {longest:?}");
            let longest = keep_working(at_work, &mut made, Duration::from_secs(60)).await;
            assert!(longest < FOUND_MAX, "when it has been found to hang a call takes {longest:?}");
            let failed =
                || roles.cluster.maps().targets.iter().find(|(_, it)| it.state == TargetState::Failed).map(|it| *it.0);
            let hangs = failed().expect("everybody is told, each time");
            let before = RegistryRequest::SetTarget(hangs, TargetState::Behind);
            roles.cluster.registry(before).await.expect("what was said before it hung may come late");
            there.sleep(TOLD_AGAIN).await;
            assert_eq!(failed(), Some(hangs), "it is said again");
            disk.heal();
            let longest = keep_working(at_work, &mut made, Duration::from_secs(10)).await;
            assert!(longest < FOUND_MAX, "when it answers again a call takes {longest:?}");
            whole().await;
        }
        for _ in 0..4 {
            match roles::audit::check(&roles, true, &|_, _, _| ()).await {
                Ok(checked) => return assert_eq!(checked.problems, Vec::<String>::new()),
                // Slots move.
                Err(_) => there.sleep(Duration::from_secs(5)).await,
            }
        }
        panic!("no check is possible");
    });
    worked.await.expect("nobody dies");
    for index in 0..rack.count() {
        assert_eq!(rack.ended(index), None, "its lease goes on");
    }
}

async fn create((world, host): (&World, &Host), targets: Vec<u32>) -> Rack {
    Rack::create(world, host, Shape::new(targets, 1, Duration::from_secs(600))).await
}

#[test]
fn a_machine_goes_on_without_a_disk_that_hangs_and_takes_it_back() {
    sim::explore(sim::seeds(6), async |world, host| {
        let rack = create((&world, &host), vec![5]).await;
        tell_a_story(world, rack, 0..1).await;
    });
}

#[test]
fn a_cluster_goes_on_without_a_disk_that_hangs_and_takes_it_back() {
    sim::explore(sim::seeds(6), async |world, host| {
        let rack = create((&world, &host), vec![3, 3, 3]).await;
        tell_a_story(world, rack, 0..3).await;
    });
}

#[test]
fn a_machine_all_of_whose_disks_hang_goes_on_when_they_answer_again() {
    sim::explore(sim::seeds(6), async |world, host| {
        let rack = create((&world, &host), vec![3]).await;
        let (roles, there, mut dice) = (rack.roles(0).expect("it runs"), world.host(rack.node(0)), world.dice());
        let (disks, after) = (rack.disks(0), Duration::from_secs(5 + dice.below(60)));
        let healing = {
            let (world, disks) = (world.clone(), disks.clone());
            async move {
                world.sleep(after).await;
                disks.iter().for_each(|disk| disk.heal());
            }
        };
        let worked = world.spawn(&there.clone(), async move {
            let (client, mut made) = (roles.client.clone(), Vec::new());
            keep_working((&client, &there), &mut made, Duration::from_secs(5)).await;
            let stored = made.clone();
            disks.iter().for_each(|disk| disk.set_faults(DiskFaults { hung: true, ..DiskFaults::default() }));
            // Whoever waited for longer than any call may was told so.
            let file = client.create(InodeId::ROOT, Bytes::from("meanwhile"), new_inode());
            let (_, created) = join(healing, file).await;
            if let Ok(created) = created {
                drop(client.fsync(created.inode, false).await);
            }
            there.sleep(WHOLE_MAX).await;
            let longest = keep_working((&client, &there), &mut made, Duration::from_secs(10)).await;
            assert!(longest < FOUND_MAX, "{longest:?} when all disks answer again");
            for (number, file) in stored.into_iter().enumerate() {
                assert!(client.read(file, 0, 1 << 20).await.expect("it was stored").concat() == content(number)[..]);
            }
            let checked = roles::audit::check(&roles, true, &|_, _, _| ()).await.expect("nobody else has slots");
            assert_eq!(checked.problems, Vec::<String>::new());
        });
        worked.await.expect("nobody dies");
        until_whole(&world, &rack).await;
    });
}
