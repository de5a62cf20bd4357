//! A machine dies, and moments later the one whose turn it is to seal what the first left open. The danger: each of the others waits
//! for one that is dead, and nobody answers for the slots of the first until all have waited as long as they ever do.
//!
//! The parts of the daemon run on each machine of a simulated cluster. `DAZZLE_SEED` replays a world.

use std::time::Duration;

use host::sim::{self, Stop};
use testbed::Machines;

use crate::files::Files;

const MACHINES: [u32; 6] = [1; 6];
/// Longer than anything here takes.
const PATIENCE: Duration = Duration::from_secs(24 * 3600);
/// An heir is given ten seconds after each step, and makes three or four before it finds that it cannot go on.
const SEALED_MAX: Duration = Duration::from_secs(60);
/// From when it is known who died: to seal, to read, and to answer, over links that nothing else uses.
const ANSWER_MAX: Duration = Duration::from_secs(3);

#[test]
fn slots_are_answered_for_soon_after_an_heir_died_too() {
    for second in 1..MACHINES.len() {
        sim::explore(0..3, async |world, _| {
            let mut dice = world.dice();
            let machines = Machines::with_parity(&world, &MACHINES, PATIENCE, 2).await;
            let mut all = vec![machines.start(0).await];
            for machine in 1..MACHINES.len() {
                all.push(machines.join(machine).await);
            }
            let mut files = Files::default();
            files.write(&machines.client(0, &all[0]).await, &mut dice, 6).await;
            machines.until_safe(&all[0]).await;
            machines.crash(second, Stop::Kill);
            machines.die(0, Stop::Kill);
            // The others begin, and wait for the heirs.
            world.sleep(Duration::from_millis(dice.within(1..1000))).await;
            machines.die(second, Stop::Kill);
            let known = world.now();
            let third = if second == 1 { 2 } else { 1 };
            files.verify(&world, &machines.client(third, &all[third]).await).await;
            let took = world.now().since(known);
            assert!(took < ANSWER_MAX, "machine {second} died after machine 0: {took:?}");
        });
    }
}

/// An heir lives, and too few targets answer it. The danger: it claims the log again and again, in vain, each time voids what
/// others do, and nobody ever seals the log.
#[test]
fn an_heir_that_reaches_too_few_targets_keeps_nobody_from_sealing() {
    for heir in 1..5 {
        sim::explore(0..3, async |world, _| {
            let mut dice = world.dice();
            let machines = Machines::with_parity(&world, &MACHINES[..5], PATIENCE, 1).await;
            let mut all = vec![machines.start(0).await];
            for machine in 1..5 {
                all.push(machines.join(machine).await);
            }
            let mut files = Files::default();
            files.write(&machines.client(0, &all[0]).await, &mut dice, 6).await;
            machines.until_safe(&all[0]).await;
            // Stripes are 4+1: without machine 0 each of the others is needed.
            let other = if heir == 4 { 1 } else { heir + 1 };
            world.cut(all[heir].cluster.host().node(), all[other].cluster.host().node());
            machines.die(0, Stop::Kill);
            let died = world.now();
            while machines.maps().dead_logs().next().is_some() {
                world.sleep(Duration::from_millis(100)).await;
                let left = || machines.maps().dead_logs().collect::<Vec<_>>();
                assert!(world.now().since(died) < SEALED_MAX, "nobody seals {:?}", left());
            }
        });
    }
}
