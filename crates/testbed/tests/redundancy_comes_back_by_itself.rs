//! Machines join, die and come back, and nobody gives a command. The danger: what was written when there was one machine
//! lies on that machine for ever; what a machine missed stays missing; and with the next loss it is gone, names included.
//!
//! The parts of the daemon run on each machine of a simulated cluster; one writes files. `DAZZLE_SEED` replays a world.

use std::collections::BTreeMap;
use std::time::Duration;

use bytes::Bytes;
use client::{Client, ClientError, WriteAt};
use host::sim::{self, Dice, Stop, World};
use protocol::file::{Caller, Kind, NewInode};
use protocol::id::InodeId;
use protocol::manager::{CloneRange, ManagerError};
use protocol::maps::TargetState;
use testbed::{Machine, Machines};

const MINUTE: Duration = Duration::from_secs(60);
/// Longer than anything here takes.
const PATIENCE: Duration = Duration::from_secs(24 * 3600);

/// What was fsynced.
#[derive(Default)]
struct Files(BTreeMap<String, Vec<u8>>);

impl Files {
    async fn write(&mut self, client: &Client, dice: &mut Dice, count: usize) {
        for _ in 0..count {
            let length = dice.within(1..600_000);
            let bytes: Vec<u8> = dice.roll().to_le_bytes().into_iter().cycle().take(length as usize).collect();
            let source = self.create(client, &bytes).await;
            client.write(source, WriteAt::Offset(0), bytes.clone().into()).await.expect("there is room");
            client.fsync(source, false).await.expect("enough targets live");
            if dice.below(3) == 0 {
                // Both share what was written.
                let target = self.create(client, &bytes).await;
                let range = CloneRange { source, source_offset: 0, target, target_offset: 0, length };
                assert_eq!(client.copy_range(range).await, Ok(length));
                client.fsync(target, false).await.expect("enough targets live");
                client.close(target).await;
            }
            client.close(source).await;
        }
    }

    async fn create(&mut self, client: &Client, bytes: &[u8]) -> InodeId {
        let name = format!("file-{}", self.0.len());
        let (target, caller) = (Bytes::new(), Caller::default());
        let new = NewInode { kind: Kind::File, mode: 0o644, mask: 0, device: 0, target, caller };
        let made = client.create_open(InodeId::ROOT, Bytes::from(name.clone()), new).await.expect("a new name");
        self.0.insert(name, bytes.to_vec());
        made.inode
    }

    async fn verify(&self, world: &World, client: &Client) {
        for (name, bytes) in &self.0 {
            let found = find(world, client, name).await;
            let read = client.read(found, 0, bytes.len() as u32 + 1).await;
            let read = read.unwrap_or_else(|error| panic!("{name}: {error}")).concat();
            assert!(read == *bytes, "{name}: the very bytes");
        }
    }
}

/// Slots of a machine that died are taken over within seconds.
async fn find(world: &World, client: &Client, name: &str) -> InodeId {
    let mut last = None;
    for _ in 0..120 {
        match client.lookup(InodeId::ROOT, Bytes::from(name.to_owned())).await {
            Ok(attributes) => return attributes.inode,
            Err(ClientError::Manager(ManagerError::NotFound)) => panic!("{name} is gone"),
            Err(error) => last = Some(error),
        }
        world.sleep(Duration::from_secs(1)).await;
    }
    panic!("{name}: {last:?}")
}

/// Waits until all that is stored is as safe as it can be.
async fn until_safe(world: &World, machines: &Machines, on: &Machine) {
    for _ in 0..60 {
        if machines.tally(on).await.bytes_exposed.is_empty() {
            return;
        }
        world.sleep(Duration::from_secs(5)).await;
    }
    panic!("{:?}, {:?}", machines.tally(on).await, on.cleaner.status());
}

async fn until_whole(world: &World, machines: &Machines, on: &Machine) {
    for _ in 0..60 {
        if machines.maps().targets.values().all(|target| target.state == TargetState::Whole) {
            return;
        }
        world.sleep(Duration::from_secs(5)).await;
    }
    panic!("{:?}, {:?}", machines.maps().targets, on.rebuilder.status());
}

#[test]
fn the_first_machine_may_be_lost_after_others_joined() {
    for counts in [&[3, 2, 1][..], &[5, 1], &[1, 1]] {
        sim::explore(0..3, async |world, _| {
            let mut dice = world.dice();
            let machines = Machines::create(&world, counts, PATIENCE).await;
            let first = machines.start(0).await;
            let client = machines.client(0, &first).await;
            let mut files = Files::default();
            files.write(&client, &mut dice, 12).await;
            let mut second = None;
            for machine in 1..counts.len() {
                second = Some(machines.join(machine).await).filter(|_| machine == 1).or(second);
            }
            files.write(&client, &mut dice, 6).await;
            until_safe(&world, &machines, &first).await;
            assert!(first.cleaner.status().bytes_copied > 0, "what was there before was laid anew");
            machines.die(0, Stop::PowerLoss);
            let second = second.expect("another machine joined");
            files.verify(&world, &machines.client(1, &second).await).await;
        });
    }
}

#[test]
fn what_is_just_as_safe_stays_where_it_is() {
    sim::run(5, async |world, _| {
        let mut dice = world.dice();
        let machines = Machines::create(&world, &[1, 1, 1, 1], PATIENCE).await;
        let first = machines.start(0).await;
        let _others = (machines.join(1).await, machines.join(2).await);
        let client = machines.client(0, &first).await;
        Files::default().write(&client, &mut dice, 8).await;
        until_safe(&world, &machines, &first).await;
        let copied = first.cleaner.status().bytes_copied;
        let _fourth = machines.join(3).await;
        world.sleep(5 * MINUTE).await;
        assert!(machines.tally(&first).await.bytes_exposed.is_empty());
        assert_eq!(first.cleaner.status().bytes_copied, copied, "nothing moves that need not");
    });
}

#[test]
fn a_machine_that_comes_back_is_made_whole() {
    sim::explore(0..3, async |world, _| {
        let mut dice = world.dice();
        let machines = Machines::create(&world, &[1, 1, 1], PATIENCE).await;
        let first = machines.start(0).await;
        let (second, _third) = (machines.join(1).await, machines.join(2).await);
        let client = machines.client(0, &first).await;
        let mut files = Files::default();
        files.write(&client, &mut dice, 8).await;
        machines.die(2, if dice.coin() { Stop::Kill } else { Stop::PowerLoss });
        files.write(&client, &mut dice, 8).await;
        let _again = machines.come_back(2).await;
        until_whole(&world, &machines, &first).await;
        until_safe(&world, &machines, &first).await;
        machines.die(0, Stop::PowerLoss);
        files.verify(&world, &machines.client(1, &second).await).await;
    });
}

#[test]
fn without_a_machine_that_stays_away_redundancy_comes_back_on_those_that_are_left() {
    sim::explore(0..3, async |world, _| {
        let mut dice = world.dice();
        let machines = Machines::create(&world, &[2, 2, 2], 2 * MINUTE).await;
        let first = machines.start(0).await;
        let (second, _third) = (machines.join(1).await, machines.join(2).await);
        let client = machines.client(0, &first).await;
        let mut files = Files::default();
        files.write(&client, &mut dice, 10).await;
        until_safe(&world, &machines, &first).await;
        let copied = first.cleaner.status().bytes_copied;
        machines.die(2, Stop::Kill);
        world.sleep(MINUTE).await;
        assert_eq!(first.cleaner.status().bytes_copied, copied, "a machine that reboots comes back");
        assert!(!machines.tally(&first).await.bytes_exposed.is_empty());
        world.sleep(MINUTE).await;
        until_safe(&world, &machines, &first).await;
        machines.die(0, Stop::PowerLoss);
        files.verify(&world, &machines.client(1, &second).await).await;
    });
}
