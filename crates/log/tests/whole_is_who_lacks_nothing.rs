//! What a whole target does not show counts as deleted. One that is called whole too early loses, by that, what only it has
//! still to be given.

use std::time::Duration;

use host::sim::{Verdict, run};
use log::{RebuildOptions, Rebuilder};
use protocol::id::TargetId;
use protocol::maps::TargetState;
use protocol::registry::RegistryRequest;
use protocol::storage::{StorageRequest, ToTarget};

use crate::support::{Fakes, a_sealed_log};

#[test]
fn nobody_is_whole_while_another_does_not_list_all_it_has() {
    run(14, async |world, host| {
        let (fakes, cluster, _) = a_sealed_log(&world, &host).await;
        let state = |fakes: &Fakes| fakes.maps.lock().unwrap().targets[&TargetId(0)].state;
        fakes.change(RegistryRequest::SetTarget(TargetId(0), TargetState::Failed));
        fakes.change(RegistryRequest::SetTarget(TargetId(0), TargetState::Behind));
        cluster.refresh().await.expect("the registry never fails");
        // It answers small questions.
        world.judge_messages(|passing| match passing.message.peek().downcast_ref::<ToTarget>() {
            Some(ToTarget { target: TargetId(1), request: StorageRequest::List { .. } }) => Verdict::Lose,
            _ => Verdict::Pass,
        });
        let rebuilder = Rebuilder::start(cluster.clone(), RebuildOptions::default());
        world.sleep(Duration::from_secs(300)).await;
        assert_eq!(state(&fakes), TargetState::Behind);
        world.dismiss_judge();
        world.sleep(Duration::from_secs(300)).await;
        assert_eq!(state(&fakes), TargetState::Whole, "all told, and it lacks nothing");
        rebuilder.stop();
    });
}
