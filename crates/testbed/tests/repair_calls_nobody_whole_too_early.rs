//! `dazzle repair` makes again what targets lack, and calls whole who lacks nothing then. The danger: it does so by what it sees,
//! while another machine is away, and what that one alone has counts as deleted.

use std::time::Duration;

use bytes::Bytes;
use host::Host;
use host::sim::{self, Stop, World};
use protocol::id::TargetId;
use protocol::maps::TargetState;
use roles::audit;

use crate::rack::{Rack, Shape};

const REPAIRER: usize = 0;
const AWAY: usize = 1;
const BACK: usize = 2;
const CONTENT: &[u8] = &[7; 600_000];
/// Longer than it takes to know that a machine died, and to begin anew.
const SETTLED_MAX: Duration = Duration::from_secs(60);

fn state(rack: &Rack, machine: usize) -> TargetState {
    let maps = rack.roles(REPAIRER).expect("it runs").cluster.maps();
    maps.targets[&TargetId(machine as u32)].state
}

async fn until(world: &World, what: &str, is_so: impl Fn() -> bool) {
    let end = world.now() + SETTLED_MAX;
    while !is_so() {
        assert!(world.now() < end, "seed {}: {what} within {SETTLED_MAX:?}", world.seed());
        world.sleep(Duration::from_millis(100)).await;
    }
}

async fn tell_a_story(world: World, host: Host) {
    let shape = Shape::new(vec![1, 1, 1], 1, Duration::from_secs(600));
    let rack = Rack::create(&world, &host, shape).await;
    rack.stored_file(REPAIRER, Bytes::from_static(CONTENT)).await;
    // Nobody else makes anything whole: the others leave it to the first machine.
    rack.roles(REPAIRER).expect("it runs").rebuilder.stop();
    rack.crash(BACK, Stop::Kill);
    until(&world, "it is known that one died", || state(&rack, BACK) == TargetState::Failed).await;
    // Nobody may look for what is lacking before the other is gone.
    rack.crash(AWAY, Stop::Kill);
    rack.start(BACK);
    rack.until_started(BACK).await;
    until(&world, "it is known that the other died", || state(&rack, AWAY) == TargetState::Failed).await;
    assert_eq!(state(&rack, BACK), TargetState::Behind);
    repair(&world, &rack).await;
    assert_eq!(state(&rack, BACK), TargetState::Behind, "seed {}: who knows what the other has?", world.seed());
    rack.start(AWAY);
    rack.until_started(AWAY).await;
    until(&world, "it is known that the other is back", || state(&rack, AWAY) == TargetState::Behind).await;
    repair(&world, &rack).await;
    until(&world, "all are whole", || [AWAY, BACK].iter().all(|&it| state(&rack, it) == TargetState::Whole)).await;
}

async fn repair(world: &World, rack: &Rack) {
    let roles = rack.roles(REPAIRER).expect("it runs");
    let repairing = async move { audit::repair(&roles, &|_, _, _| ()).await };
    let repaired = world.spawn(&world.host(rack.node(REPAIRER)), repairing).await.expect("nobody dies");
    assert_eq!(repaired.expect("a quorum answers").failed, 0, "seed {}", world.seed());
}

#[test]
fn nobody_is_whole_while_another_is_away_that_may_have_more_and_all_are_when_it_is_back() {
    sim::explore(0..10, tell_a_story);
}
