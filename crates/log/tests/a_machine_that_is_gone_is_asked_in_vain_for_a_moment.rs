//! Who takes over from a dead machine asks its targets several times, one thing after the other. The dangers: each call waits for
//! as long as the network does, and all programs with it; or a machine that is gone for the registry alone, and slow at its
//! disk, counts as silent.

use std::time::Duration;

use host::sim::{self, NetworkOptions, Stop, Verdict, Way, World};
use host::{Host, NodeId};
use log::Cluster;
use protocol::id::{LogId, StripeNumber, TargetId};
use protocol::registry::RegistryRequest;
use protocol::storage::{StorageError, StorageReply, StorageRequest, ToTarget};

use crate::support::Fakes;

/// So long a target is waited for whose machine is dead, as everybody knows.
const VAIN_MAX: Duration = Duration::from_millis(400);
/// Longer than that, and than a sign of life may take.
const SLOW: Duration = Duration::from_millis(700);

const TARGET: TargetId = TargetId(1);

/// A cluster whose second machine's session is over, and how another one sees it.
async fn without_a_session(world: &World, host: &Host) -> (Fakes, Cluster, NodeId) {
    let fakes = Fakes::new(world, 3, 1, 16 << 10);
    let node = Fakes::node(1);
    fakes.change(RegistryRequest::Expire { node: node.0, session: 1 });
    let cluster = fakes.cluster(host).await;
    (fakes, cluster, node)
}

fn tail() -> StorageRequest {
    StorageRequest::Tail { log: LogId(1), from: StripeNumber(0) }
}

#[test]
fn a_dead_machine_is_not_waited_for() {
    sim::explore(0..20, async |world, host| {
        let (fakes, cluster, node) = without_a_session(&world, &host).await;
        fakes.crash(1, Stop::PowerLoss, &mut world.dice());
        assert!(NetworkOptions::default().timeout > VAIN_MAX, "the network does not tell that soon");
        for request in [StorageRequest::Stat, tail()] {
            let begun = host.now();
            let answer = cluster.ask(TARGET, request).await;
            assert!(matches!(answer, Err(StorageError::Silent(_))), "{node:?} is dead: {answer:?}");
            assert!(host.now() - begun < VAIN_MAX, "it is waited for {:?}", host.now() - begun);
        }
    });
}

#[test]
fn a_machine_that_lives_without_a_session_has_its_time() {
    sim::explore(0..20, async |world, host| {
        let (_fakes, cluster, node) = without_a_session(&world, &host).await;
        world.judge_messages(move |passing| {
            let asked = passing.message.peek().downcast_ref::<ToTarget>();
            let is_slow = asked.is_some_and(|asked| matches!(asked.request, StorageRequest::Tail { .. }));
            match passing.called.node == node && passing.way == Way::Request && is_slow {
                true => Verdict::Delay(SLOW),
                false => Verdict::Pass,
            }
        });
        let begun = host.now();
        let answer = cluster.ask(TARGET, tail()).await;
        assert!(matches!(answer, Ok(StorageReply::Fragments(_))), "it answers, late: {answer:?}");
        assert!(host.now() - begun >= SLOW, "it answers after {:?}", host.now() - begun);
    });
}
