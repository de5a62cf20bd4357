//! Machines and targets are emptied and taken away while programs write, and while others die. The danger: something lay
//! on what was taken away and nowhere else; or it never becomes empty; or more is moved than must be.
//!
//! The parts of the daemon run on each machine of a simulated cluster; one writes files. `DAZZLE_SEED` replays a world.

use std::collections::BTreeSet;
use std::time::Duration;

use host::sim::{self, Stop, World};
use log::leaving::Left;
use log::removal::{self, RemovalError, Silence};
use protocol::id::TargetId;
use protocol::maps::{Drain, TargetState};
use protocol::registry::{RegistryError, RegistryRequest};
use testbed::{Machine, Machines};

use crate::files::Files;

/// Longer than anything here takes: nothing is laid anew because a machine is away for long.
const PATIENCE: Duration = Duration::from_secs(24 * 3600);

/// The targets of a machine that were not taken away.
fn targets_of(machines: &Machines, machine: usize) -> BTreeSet<TargetId> {
    let maps = machines.maps();
    maps.present().filter(|(_, entry)| entry.node == machine as u32 + 1).map(|(id, _)| id).collect()
}

fn drain(machines: &Machines, targets: &BTreeSet<TargetId>) {
    let targets = targets.iter().copied().collect();
    let seen = machines.maps().epoch;
    machines.ask(RegistryRequest::Drain(targets, Drain::Careful, seen)).expect("others are left");
    // As the registry's leader does when nodes have stopped coming and going.
    machines.ask(RegistryRequest::Balance).expect("it can always be planned");
}

async fn left(on: &Machine, targets: &BTreeSet<TargetId>) -> Left {
    removal::left(&on.cluster, targets).await.expect("the registry never fails").0
}

/// Waits until the targets are empty, and takes them away.
async fn take_away(world: &World, machines: &Machines, on: &Machine, targets: &BTreeSet<TargetId>) {
    let mut last = None;
    for _ in 0..120 {
        match removal::remove(&on.cluster, targets, Silence::Refused).await {
            Ok(()) => {
                let there = |target: &TargetId| machines.maps().present().any(|(id, _)| id == *target);
                assert!(!targets.iter().any(there));
                return;
            }
            Err(error) => last = Some(error),
        }
        world.sleep(Duration::from_secs(5)).await;
    }
    panic!("{last:?}, {:?}, {:?}", on.cleaner.status(), machines.maps());
}

#[test]
fn a_machine_that_was_drained_is_not_missed() {
    for counts in [&[1, 1, 1, 1][..], &[2, 1, 2], &[2, 2]] {
        sim::explore(0..3, async |world, _| {
            let mut dice = world.dice();
            let machines = Machines::create(&world, counts, PATIENCE).await;
            let first = machines.start(0).await;
            let mut others = Vec::new();
            for machine in 1..counts.len() {
                others.push(machines.join(machine).await);
            }
            let leaver = counts.len() - 1;
            let (client, there) =
                (machines.client(0, &first).await, machines.client(leaver, &others[leaver - 1]).await);
            let mut files = Files::default();
            files.write(&client, &mut dice, 10).await;
            files.write(&there, &mut dice, 4).await;
            let leaving = targets_of(&machines, leaver);
            if counts.len() == 2 {
                // One machine cannot be lost any more, which is what was asked for; its disks are domains then.
                let targets = leaving.iter().copied().collect();
                let seen = machines.maps().epoch;
                machines.ask(RegistryRequest::Drain(targets, Drain::Forced, seen)).expect("others are left");
            }
            drain_unless_forced(&machines, &leaving);
            files.write(&client, &mut dice, 6).await;
            files.write(&there, &mut dice, 2).await;
            take_away(&world, &machines, &first, &leaving).await;
            assert!(
                machines.maps().slots.values().all(|slot| slot.node != leaver as u32 + 1),
                "its slots were handed over"
            );
            files.verify(&world, &there).await;
            machines.die(leaver, Stop::PowerLoss);
            machines.ask(RegistryRequest::RemoveNode(leaver as u32 + 1)).expect("it has nothing any more");
            files.verify(&world, &client).await;
            if counts.len() > 2 {
                machines.die(0, Stop::PowerLoss);
                files.verify(&world, &machines.client(1, &others[0]).await).await;
            }
            let again =
                RegistryRequest::Begin { node: leaver as u32 + 1, after: 1, address: String::new(), keeps: None };
            assert_eq!(machines.ask(again).err(), Some(RegistryError::Removed(leaver as u32 + 1)));
        });
    }
}

/// The first groups lie over the first machine alone: once it is off, none of their members tells that nothing is there.
#[test]
fn a_machine_is_emptied_switched_off_and_then_taken_away() {
    for told in [true, false] {
        sim::explore(0..3, async |world, _| {
            let mut dice = world.dice();
            let machines = Machines::create(&world, &[3, 1, 1, 1], PATIENCE).await;
            let first = machines.start(0).await;
            let client = machines.client(0, &first).await;
            let mut files = Files::default();
            files.write(&client, &mut dice, 8).await;
            let mut others = Vec::new();
            for machine in 1..4 {
                others.push(machines.join(machine).await);
            }
            let there = machines.client(1, &others[0]).await;
            files.write(&there, &mut dice, 4).await;
            let leaving = targets_of(&machines, 0);
            drain(&machines, &leaving);
            wait_until_empty(&world, &machines, &others[0], &leaving, told).await;
            drop(client);
            machines.die(0, Stop::PowerLoss);
            take_away(&world, &machines, &others[0], &leaving).await;
            machines.ask(RegistryRequest::RemoveNode(1)).expect("it has nothing any more");
            files.verify(&world, &there).await;
        });
    }
}

/// Until the registry knows that nothing lies there: because a command tells it, or because a machine looks by itself.
async fn wait_until_empty(world: &World, machines: &Machines, on: &Machine, targets: &BTreeSet<TargetId>, told: bool) {
    for _ in 0..120 {
        if told {
            let _ = removal::conclude(&on.cluster, targets).await;
        }
        let maps = machines.maps();
        let manages = maps.slots.values().any(|slot| slot.node == 1);
        if !manages && targets.iter().all(|target| maps.targets[target].empty) {
            return;
        }
        world.sleep(Duration::from_secs(5)).await;
    }
    panic!("{:?}", machines.maps());
}

fn drain_unless_forced(machines: &Machines, targets: &BTreeSet<TargetId>) {
    let maps = machines.maps();
    if targets.iter().any(|target| maps.targets[target].drain == Drain::No) {
        drain(machines, targets);
    } else {
        machines.ask(RegistryRequest::Balance).expect("it can always be planned");
    }
}

#[test]
fn no_more_moves_than_lies_over_what_is_to_go() {
    sim::explore(0..3, async |world, _| {
        let mut dice = world.dice();
        let machines = Machines::create(&world, &[1, 1, 1, 1, 1, 1, 1], PATIENCE).await;
        let first = machines.start(0).await;
        let mut others = Vec::new();
        for machine in 1..7 {
            others.push(machines.join(machine).await);
        }
        let client = machines.client(0, &first).await;
        let mut files = Files::default();
        files.write(&client, &mut dice, 40).await;
        world.sleep(Duration::from_secs(30)).await;
        let leaving = targets_of(&machines, 6);
        let copied = |others: &[Machine]| {
            let all = others.iter().chain([&first]);
            all.map(|machine| machine.cleaner.status().bytes_copied).sum::<u64>()
        };
        let (before, copied_before) = (left(&first, &leaving).await, copied(&others));
        drain(&machines, &leaving);
        take_away(&world, &machines, &first, &leaving).await;
        let moved = copied(&others) - copied_before;
        assert!(moved > 0 && moved * 10 <= before.bytes_data * 11, "{moved} bytes moved, and {before:?} lay there");
        files.verify(&world, &client).await;
    });
}

#[test]
fn while_one_is_drained_another_may_die() {
    sim::explore(0..3, async |world, _| {
        let mut dice = world.dice();
        let machines = Machines::create(&world, &[1, 1, 1, 1, 1], PATIENCE).await;
        let first = machines.start(0).await;
        let mut others = Vec::new();
        for machine in 1..5 {
            others.push(machines.join(machine).await);
        }
        let client = machines.client(0, &first).await;
        let mut files = Files::default();
        files.write(&client, &mut dice, 10).await;
        let leaving = targets_of(&machines, 4);
        drain(&machines, &leaving);
        files.write(&client, &mut dice, 4).await;
        world.sleep(Duration::from_millis(dice.within(0..3000))).await;
        // The one that is being drained, or another that comes back.
        let dead = if dice.coin() { 4 } else { 2 };
        machines.die(dead, if dice.coin() { Stop::Kill } else { Stop::PowerLoss });
        files.write(&client, &mut dice, 4).await;
        let _again = if dead == 2 { Some(machines.come_back(2).await) } else { None };
        take_away(&world, &machines, &first, &leaving).await;
        machines.die(0, Stop::PowerLoss);
        files.verify(&world, &machines.client(1, &others[0]).await).await;
    });
}

#[test]
fn a_dead_machine_is_replaced_by_an_empty_one() {
    sim::explore(0..3, async |world, _| {
        let mut dice = world.dice();
        let machines = Machines::create(&world, &[1, 1, 1, 1], PATIENCE).await;
        let first = machines.start(0).await;
        let (second, _third) = (machines.join(1).await, machines.join(2).await);
        let client = machines.client(0, &first).await;
        let mut files = Files::default();
        files.write(&client, &mut dice, 10).await;
        machines.die(2, Stop::PowerLoss);
        let leaving = targets_of(&machines, 2);
        let refused = removal::remove(&first.cluster, &leaving, Silence::Refused).await;
        assert!(matches!(refused, Err(RemovalError::Left(_))), "what it had is needed still: {refused:?}");
        // Nobody waits for `rebuild_minutes`.
        drain(&machines, &leaving);
        files.write(&client, &mut dice, 4).await;
        take_away(&world, &machines, &first, &leaving).await;
        machines.ask(RegistryRequest::RemoveNode(3)).expect("it has nothing any more");
        let _fourth = machines.join(3).await;
        files.write(&client, &mut dice, 4).await;
        let whole = |state: TargetState| matches!(state, TargetState::Whole | TargetState::Removed);
        assert!(machines.maps().targets.values().all(|target| whole(target.state)));
        machines.until_safe(&first).await;
        machines.die(0, Stop::PowerLoss);
        files.verify(&world, &machines.client(1, &second).await).await;
    });
}

/// Two of four machines are lost, which is more than may be: there are stripes of which too little is left. The danger: nobody
/// can ever take the dead away.
#[test]
fn what_is_lost_for_good_keeps_nobody_who_is_dead() {
    sim::explore(0..3, async |world, _| {
        let mut dice = world.dice();
        let machines = Machines::create(&world, &[1, 1, 1, 1], PATIENCE).await;
        let first = machines.start(0).await;
        let _others = (machines.join(1).await, machines.join(2).await, machines.join(3).await);
        let client = machines.client(0, &first).await;
        let mut files = Files::default();
        files.write(&client, &mut dice, 10).await;
        let leaving: BTreeSet<TargetId> = [2, 3].into_iter().flat_map(|dead| targets_of(&machines, dead)).collect();
        machines.die(2, Stop::PowerLoss);
        machines.die(3, Stop::PowerLoss);
        machines.ask(RegistryRequest::DisksGone(leaving.iter().copied().collect(), machines.maps().epoch)).unwrap();
        let forced = RegistryRequest::Drain(leaving.iter().copied().collect(), Drain::Forced, machines.maps().epoch);
        machines.ask(forced).expect("others are left");
        let mut last = None;
        for _ in 0..120 {
            last = Some(removal::remove(&first.cluster, &leaving, Silence::Accepted).await);
            if last == Some(Ok(())) {
                break;
            }
            world.sleep(Duration::from_secs(5)).await;
        }
        assert_eq!(last, Some(Ok(())), "{:?}", first.cleaner.status());
        assert!(left(&first, &leaving).await.stripes > 0, "of some stripes too little is left");
        files.write(&client, &mut dice, 2).await;
    });
}

/// One machine is lost and another away for a moment, while a third one is drained. The danger: what lies on the third one, and
/// can be read with it, passes for lost.
#[test]
fn what_still_serves_is_not_taken_away_by_force_while_it_is_needed() {
    sim::explore(0..3, async |world, _| {
        let mut dice = world.dice();
        let machines = Machines::create(&world, &[1, 1, 1, 1, 1], PATIENCE).await;
        let first = machines.start(0).await;
        let _others = (machines.join(1).await, machines.join(2).await, machines.join(3).await, machines.join(4).await);
        let client = machines.client(0, &first).await;
        let mut files = Files::default();
        files.write(&client, &mut dice, 10).await;
        let leaving = targets_of(&machines, 4);
        drain(&machines, &leaving);
        machines.die(2, Stop::PowerLoss);
        machines.die(3, Stop::Kill);
        for _ in 0..20 {
            let forced = removal::remove(&first.cluster, &leaving, Silence::Accepted).await;
            assert!(matches!(forced, Err(RemovalError::Left(_) | RemovalError::Registry(_))), "{forced:?}");
            world.sleep(Duration::from_secs(1)).await;
        }
        let _back = machines.come_back(3).await;
        files.verify(&world, &client).await;
    });
}

/// The end of an open log is judged by nobody but its writer.
#[test]
fn what_a_cleaner_wrote_last_does_not_stay_behind() {
    sim::explore(0..3, async |world, _| {
        let mut dice = world.dice();
        let machines = Machines::create(&world, &[1, 1, 1, 1, 1], PATIENCE).await;
        let first = machines.start(0).await;
        let _others = (machines.join(1).await, machines.join(2).await, machines.join(3).await, machines.join(4).await);
        let client = machines.client(0, &first).await;
        let mut files = Files::default();
        files.write(&client, &mut dice, 1).await;
        for machine in [4, 3] {
            // The second time all that there is lies in the cleaner's own log.
            let leaving = targets_of(&machines, machine);
            drain(&machines, &leaving);
            take_away(&world, &machines, &first, &leaving).await;
        }
        files.verify(&world, &client).await;
    });
}

#[test]
fn what_another_cleaned_while_the_first_was_away_does_not_stay_behind() {
    sim::explore(0..3, async |world, _| {
        let mut dice = world.dice();
        let machines = Machines::create(&world, &[1, 1, 1, 1], Duration::from_secs(20)).await;
        let first = machines.start(0).await;
        let (second, _others) = (machines.join(1).await, (machines.join(2).await, machines.join(3).await));
        let mut files = Files::default();
        files.write(&machines.client(0, &first).await, &mut dice, 10).await;
        machines.die(0, Stop::Kill);
        world.sleep(Duration::from_secs(30)).await;
        machines.until_safe(&second).await;
        assert!(second.cleaner.status().bytes_copied > 0, "it did what the first one does else");
        let first = machines.come_back(0).await;
        let leaving = targets_of(&machines, 3);
        drain(&machines, &leaving);
        take_away(&world, &machines, &first, &leaving).await;
        files.verify(&world, &machines.client(1, &second).await).await;
    });
}
