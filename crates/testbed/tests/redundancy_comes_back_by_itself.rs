//! Machines join, die and come back, and nobody gives a command. The danger: what was written when there was one machine
//! lies on that machine for ever; what a machine missed stays missing; and with the next loss it is gone, names included.
//!
//! The parts of the daemon run on each machine of a simulated cluster; one writes files. `DAZZLE_SEED` replays a world.

use std::time::Duration;

use host::sim::{self, Dice, Stop, World};
use log::stripes;
use protocol::maps::TargetState;
use protocol::registry::RegistryRequest;
use protocol::settings::Setting;
use testbed::{Machine, Machines};

use crate::files::Files;

const MINUTE: Duration = Duration::from_secs(60);
/// Longer than anything here takes.
const PATIENCE: Duration = Duration::from_secs(24 * 3600);

async fn until_whole(world: &World, machines: &Machines, on: &Machine) {
    for _ in 0..60 {
        if machines.maps().targets.values().all(|target| target.state == TargetState::Whole) {
            return;
        }
        world.sleep(Duration::from_secs(5)).await;
    }
    panic!("{:?}, {:?}", machines.maps().targets, on.rebuilder.status());
}

/// Bytes that cleaners copied.
fn copied(machines: &[&Machine]) -> u64 {
    machines.iter().map(|machine| machine.cleaner.status().bytes_copied).sum()
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
            let mut all = vec![first];
            for machine in 1..counts.len() {
                all.push(machines.join(machine).await);
            }
            files.write(&client, &mut dice, 6).await;
            machines.until_safe(&all[0]).await;
            assert!(copied(&all.iter().collect::<Vec<_>>()) > 0, "what was there before was laid anew");
            machines.die(0, Stop::PowerLoss);
            files.verify(&world, &machines.client(1, &all[1]).await).await;
        });
    }
}

#[test]
fn how_long_one_is_waited_for_and_how_fast_it_is_made_up_for_is_set_for_all() {
    sim::explore(0..3, async |world, _| {
        let mut dice = world.dice();
        // Each machine for itself would wait for a day.
        let machines = Machines::create(&world, &[1, 1, 1, 1], PATIENCE).await;
        let first = machines.start(0).await;
        let mut all = vec![first];
        for machine in 1..4 {
            all.push(machines.join(machine).await);
        }
        let mut files = Files::default();
        files.write(&machines.client(0, &all[0]).await, &mut dice, 12).await;
        machines.until_safe(&all[0]).await;
        machines.die(3, Stop::PowerLoss);
        world.sleep(10 * MINUTE).await;
        assert!(!machines.tally(&all[0]).await.bytes_exposed.is_empty(), "they wait");
        let soon = vec![Setting::RebuildMinutes(Some(1)), Setting::Rebuild(Some(512 << 20))];
        machines.ask(RegistryRequest::Set(soon, machines.maps().epoch)).expect("it makes sense");
        machines.until_safe(&all[0]).await;
        machines.die(0, Stop::PowerLoss);
        files.verify(&world, &machines.client(1, &all[1]).await).await;
    });
}

#[test]
fn what_is_just_as_safe_stays_where_it_is() {
    sim::run(5, async |world, _| {
        let mut dice = world.dice();
        let machines = Machines::create(&world, &[1, 1, 1, 1], PATIENCE).await;
        let first = machines.start(0).await;
        let (second, third) = (machines.join(1).await, machines.join(2).await);
        let client = machines.client(0, &first).await;
        Files::default().write(&client, &mut dice, 8).await;
        machines.until_safe(&first).await;
        let before = copied(&[&first, &second, &third]);
        let fourth = machines.join(3).await;
        world.sleep(5 * MINUTE).await;
        assert!(machines.tally(&first).await.bytes_exposed.is_empty());
        assert_eq!(copied(&[&first, &second, &third, &fourth]), before, "nothing moves that need not");
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
        machines.until_safe(&first).await;
        machines.die(0, Stop::PowerLoss);
        files.verify(&world, &machines.client(1, &second).await).await;
    });
}

#[test]
fn what_lay_on_disks_that_come_back_empty_is_made_again_by_all_machines() {
    sim::explore(0..3, async |world, _| {
        let mut dice = world.dice();
        let machines = Machines::create(&world, &[1, 1, 2], PATIENCE).await;
        let first = machines.start(0).await;
        let (second, _third) = (machines.join(1).await, machines.join(2).await);
        let client = machines.client(0, &first).await;
        let mut files = Files::default();
        files.write(&client, &mut dice, 30).await;
        machines.die(2, Stop::PowerLoss);
        machines.empty(2).await;
        let again = machines.come_back(2).await;
        until_whole(&world, &machines, &first).await;
        for machine in [&first, &second, &again] {
            assert!(machine.rebuilder.status().stripes_here > 0, "all take part: {:?}", first.rebuilder.status());
        }
        machines.until_safe(&first).await;
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
        files.write(&client, &mut dice, 30).await;
        machines.until_safe(&first).await;
        let before = copied(&[&first, &second]);
        machines.die(2, Stop::Kill);
        world.sleep(MINUTE).await;
        assert_eq!(copied(&[&first, &second]), before, "a machine that reboots comes back");
        assert!(!machines.tally(&first).await.bytes_exposed.is_empty());
        world.sleep(MINUTE).await;
        machines.until_safe(&first).await;
        let laid = [&first, &second].map(|machine| machine.cleaner.status().bytes_laid_anew);
        assert!(laid.iter().all(|&bytes| bytes > 0), "all take part: {laid:?}");
        machines.die(0, Stop::PowerLoss);
        files.verify(&world, &machines.client(1, &second).await).await;
    });
}

/// Six machines, of which one dies after files were written.
async fn with_one_lost(world: &World, dice: &mut Dice) -> (Machines, Vec<Machine>, Files) {
    let machines = Machines::create(world, &[1; 6], 2 * MINUTE).await;
    let mut all = vec![machines.start(0).await];
    for machine in 1..6 {
        all.push(machines.join(machine).await);
    }
    let client = machines.client(0, &all[0]).await;
    let mut files = Files::default();
    files.write(&client, dice, 30).await;
    machines.until_safe(&all[0]).await;
    machines.die(5, Stop::PowerLoss);
    drop(all.pop());
    // Logs that are still written go on elsewhere.
    files.write(&client, dice, 4).await;
    (machines, all, files)
}

/// The same, and it stays away for so long that others take its places.
async fn with_one_replaced(world: &World, dice: &mut Dice) -> (Machines, Vec<Machine>, Files) {
    let (machines, all, files) = with_one_lost(world, dice).await;
    let before = copied(&all.iter().collect::<Vec<_>>());
    world.sleep(2 * MINUTE).await;
    until_replaced(world, &machines, &all[0]).await;
    assert!(all[0].rebuilder.status().members_replaced > 0);
    assert_eq!(copied(&all.iter().collect::<Vec<_>>()), before, "nothing moves but what is made again");
    (machines, all, files)
}

/// Waits until nobody who serves lacks anything of a place that it took, and all is safe.
async fn until_replaced(world: &World, machines: &Machines, on: &Machine) {
    for _ in 0..60 {
        let maps = machines.maps();
        let is_replaced = maps.groups.values().any(|group| !group.former.is_empty());
        let mut newcomers = maps.groups.values().flat_map(|group| &group.newcomers);
        if is_replaced && !newcomers.any(|target| maps.targets[target].serves()) {
            machines.until_safe(on).await;
            return;
        }
        world.sleep(Duration::from_secs(5)).await;
    }
    panic!("{:?}, {:?}", machines.maps().groups, on.rebuilder.status());
}

#[test]
fn what_lay_on_a_machine_that_stays_away_is_made_again_on_others_in_its_place() {
    sim::explore(0..6, async |world, _| {
        let mut dice = world.dice();
        let (machines, all, files) = with_one_replaced(&world, &mut dice).await;
        let shared = all.iter().filter(|machine| machine.rebuilder.status().stripes_here > 0).count();
        assert!(shared > 1, "one alone did all");
        let second = dice.below(4) as usize;
        machines.die(second, Stop::PowerLoss);
        files.verify(&world, &machines.client(4, &all[4]).await).await;
    });
}

#[test]
fn who_comes_back_when_others_have_its_places_keeps_nothing_of_them() {
    sim::explore(0..6, async |world, _| {
        let mut dice = world.dice();
        let (machines, all, mut files) = with_one_replaced(&world, &mut dice).await;
        let again = machines.come_back(5).await;
        until_whole(&world, &machines, &all[0]).await;
        let maps = machines.maps();
        for mut state in stripes::list(&again.cluster, None).await {
            // What logs left when they followed the groups, just now, goes when somebody looks again.
            let layout = &maps.logs[&state.log].layout;
            state.astray.retain(|it| layout.iter().any(|run| run.number == it.id.run && run.covers(it.id.stripe)));
            assert_eq!((state.astray, state.missing), (vec![], vec![]), "{} of {}", state.number.0, state.log.0);
        }
        files.write(&machines.client(3, &all[3]).await, &mut dice, 6).await;
        machines.until_safe(&all[0]).await;
        machines.die(dice.below(4) as usize, Stop::PowerLoss);
        files.verify(&world, &machines.client(4, &all[4]).await).await;
    });
}

#[test]
fn who_took_a_place_and_dies_is_replaced_too() {
    sim::explore(0..6, async |world, _| {
        let mut dice = world.dice();
        let (machines, all, files) = with_one_replaced(&world, &mut dice).await;
        let again = machines.come_back(5).await;
        until_whole(&world, &machines, &all[0]).await;
        machines.die(dice.within(1..4) as usize, Stop::Kill);
        world.sleep(2 * MINUTE).await;
        until_replaced(&world, &machines, &all[0]).await;
        machines.die(0, Stop::PowerLoss);
        files.verify(&world, &machines.client(5, &again).await).await;
    });
}

#[test]
fn what_a_former_member_brings_back_is_used_where_it_is_all_there_is() {
    sim::explore(0..12, async |world, _| {
        let mut dice = world.dice();
        let (machines, all, files) = with_one_lost(&world, &mut dice).await;
        while machines.maps().groups.values().all(|group| group.newcomers.is_empty()) {
            world.sleep(Duration::from_millis(10)).await;
        }
        let second = dice.within(1..5) as usize;
        machines.die(second, Stop::PowerLoss);
        world.sleep(dice.within(1..4) as u32 * MINUTE).await;
        assert!(machines.tally(&all[0]).await.bytes_exposed.contains_key(&None), "too little is left");
        let returned = if dice.coin() { Some(machines.come_back(second).await) } else { None };
        let again = machines.come_back(5).await;
        world.sleep(2 * MINUTE).await;
        until_replaced(&world, &machines, &all[0]).await;
        files.verify(&world, &machines.client(5, &again).await).await;
        if let Some(returned) = returned {
            until_whole(&world, &machines, &all[0]).await;
            machines.until_safe(&all[0]).await;
            machines.die(0, Stop::PowerLoss);
            files.verify(&world, &machines.client(second, &returned).await).await;
        }
    });
}
