//! The machines that vote are lost, and another one is promoted. The dangers: two that lead at once, which is the worst there
//! is; a change that was answered and is not there, which is a lost fsync; a number that was given twice.

use std::collections::BTreeSet;
use std::time::Duration;

use host::NodeId;
use host::sim::{self, DiskFaults, DiskOptions, Stop, World};
use protocol::id::LogId;
use protocol::maps::NodeState;
use protocol::registry::{LEASE, RegistryError, RegistryReply};
use registry::RegistryStart;
use registry::promotion::PromotionError;

use crate::cluster::{Cluster, until};

/// Opens a log where `node` is; its number.
async fn opened(cluster: &Cluster, node: u32) -> Option<LogId> {
    match cluster.started(node)?.answer(cluster.open(node)).await {
        Ok(RegistryReply::Log(log, ..)) => Some(log),
        _ => None,
    }
}

/// Two machines, of which the first votes.
async fn two(world: &World, host: &host::Host) -> Cluster {
    let cluster = Cluster::create(world, host, 2, 1).await;
    cluster.start(1).await;
    cluster.join(2).await;
    opened(&cluster, 2).await.expect("both live");
    assert_eq!(cluster.registry(2).voters(), [1]);
    cluster
}

/// Three machines, which all vote.
async fn three(world: &World, host: &host::Host) -> Cluster {
    let cluster = Cluster::create(world, host, 2, 1).await;
    cluster.start(1).await;
    for _ in 0..2 {
        cluster.join(2).await;
    }
    cluster.await_voters(1, 3).await;
    until(world, "all know who votes", || (2..=3).all(|node| cluster.registry(node).voters() == [1, 2, 3])).await;
    cluster
}

/// Stops a node hard and starts its machine again, without its daemon.
fn restart(world: &World, cluster: &Cluster, node: u32) {
    if world.runs(NodeId(node)) {
        world.crash(NodeId(node), Stop::PowerLoss);
    }
    cluster.forget(node);
    world.restart(NodeId(node));
}

/// Keeps opening logs on both until the first dies, at some time or other; those that were opened.
async fn open_until_death(world: &World, cluster: &Cluster) -> BTreeSet<LogId> {
    let logs = std::sync::Arc::new(std::sync::Mutex::new(BTreeSet::new()));
    for node in [1, 2] {
        let (cluster, logs, host) = (cluster.clone(), logs.clone(), world.host(NodeId(node)));
        let mut dice = world.dice();
        drop(world.spawn(&host.clone(), async move {
            loop {
                host.sleep(Duration::from_millis(dice.below(40))).await;
                let log = opened(&cluster, node).await;
                logs.lock().unwrap().extend(log);
            }
        }));
    }
    world.sleep(Duration::from_micros(world.dice().below(3_000_000))).await;
    world.crash(NodeId(1), if world.dice().coin() { Stop::Kill } else { Stop::PowerLoss });
    logs.lock().unwrap().clone()
}

#[test]
fn all_that_was_answered_is_there_where_the_learner_goes_on() {
    sim::explore(0..40, async |world, host| {
        let cluster = two(&world, &host).await;
        let before = open_until_death(&world, &cluster).await;
        restart(&world, &cluster, 2);
        let registry = cluster.promote(2, &[1]).await.expect("the other is off");
        let known: BTreeSet<LogId> = registry.maps().logs.keys().copied().collect();
        assert!(before.is_subset(&known), "lost: {:?}", before.difference(&known));
        let next = opened(&cluster, 2).await.expect("it leads alone");
        assert!(before.iter().all(|log| *log < next));
        assert_eq!(registry.maps().nodes[&1].state, NodeState::Gone);
        assert!((0..4096).all(|slot| registry.maps().slot(slot).node == 2));
        assert!(registry.maps().dead_logs().all(|log| log < next), "what sessions of before wrote is to be sealed");
    });
}

#[test]
fn the_old_voter_follows_by_itself_when_it_comes_back() {
    sim::explore(0..20, async |world, host| {
        let cluster = two(&world, &host).await;
        open_until_death(&world, &cluster).await;
        restart(&world, &cluster, 2);
        cluster.promote(2, &[1]).await.expect("the other is off");
        opened(&cluster, 2).await.expect("it leads alone");
        restart(&world, &cluster, 1);
        let refused = start(&world, &cluster, 1).await;
        assert!(matches!(refused, Err(RegistryStart::Over { node: 2, may_follow: true, .. })), "{refused:?}");
        cluster.follow(1, 2).await.expect("it answered nothing that the other does not know");
        let log = opened(&cluster, 1).await.expect("both agree");
        until(&world, "the first knows what the second does", || {
            cluster.registry(1).maps().logs.contains_key(&log) && cluster.registry(2).maps().logs.contains_key(&log)
        })
        .await;
        assert_eq!(cluster.registry(1).leader(), Some(2));
        assert_eq!((cluster.registry(1).voters(), cluster.registry(2).voters()), (vec![2], vec![2]));
        // And the other way about, with what is learnt by then.
        world.crash(NodeId(2), Stop::PowerLoss);
        restart(&world, &cluster, 1);
        let registry = cluster.promote(1, &[2]).await.expect("the other is off");
        assert!(registry.maps().logs.contains_key(&log));
    });
}

#[test]
fn one_copy_of_the_machine_that_is_left_is_enough() {
    sim::explore(0..20, async |world, host| {
        let cluster = two(&world, &host).await;
        let before = open_until_death(&world, &cluster).await;
        restart(&world, &cluster, 2);
        let disks = cluster.disks(2);
        let spared = world.dice().below(disks.len() as u64) as usize;
        for (_, disk) in disks.iter().enumerate().filter(|(index, _)| *index != spared) {
            let plugged = disk.plug();
            for space in ["registry.0", "registry.1", "registry.log"] {
                let (file, rubbish) = (plugged.open(space).unwrap(), vec![7; 4096]);
                file.write(0, vec![rubbish.into()]).await.unwrap();
                file.sync().await.unwrap();
            }
        }
        let refused = start(&world, &cluster, 2).await;
        assert!(matches!(refused, Err(RegistryStart::Alone { .. } | RegistryStart::TooFew { .. })), "{refused:?}");
        restart(&world, &cluster, 2);
        let unnamed = cluster.rebuild(2, &[]).await.err();
        assert!(matches!(unnamed, Some(PromotionError::Unnamed { .. })), "{unnamed:?}");
        let registry = cluster.rebuild(2, &[1]).await.expect("the other is off");
        let known: BTreeSet<LogId> = registry.maps().logs.keys().copied().collect();
        assert!(before.is_subset(&known), "lost: {:?}", before.difference(&known));
        let next = opened(&cluster, 2).await.expect("it leads alone");
        assert!(before.iter().all(|log| *log < next));
        // The other may have answered what was lost here: it does not follow by itself.
        restart(&world, &cluster, 1);
        let refused = start(&world, &cluster, 1).await;
        assert!(matches!(refused, Err(RegistryStart::Over { node: 2, may_follow: false, .. })), "{refused:?}");
    });
}

#[test]
fn two_that_lead_without_each_other_become_one_as_soon_as_they_meet() {
    sim::explore(0..20, async |world, host| {
        let cluster = two(&world, &host).await;
        // Whoever promotes says that the first is off, and it is not: it is cut off.
        world.cut(NodeId(1), NodeId(2));
        restart(&world, &cluster, 2);
        cluster.promote(2, &[1]).await.expect("nothing is heard of the first");
        let mut logs = [Vec::new(), Vec::new()];
        let end = world.now() + 4 * LEASE;
        while world.now() < end {
            for node in [1, 2] {
                logs[node as usize - 1].extend(opened(&cluster, node).await);
            }
            world.sleep(Duration::from_millis(100)).await;
        }
        assert!(!logs[0].is_empty(), "without the second, the first goes on when its lease has run out");
        assert!(logs[0].iter().all(|log| !logs[1].contains(log)), "no number is given twice");
        let (session, session_2) = (cluster.session(1).unwrap(), cluster.session(2).unwrap());
        world.heal(NodeId(1), NodeId(2));
        until(&world, "the first has ended", || session.is_over()).await;
        let refused = cluster.registry(1).answer(cluster.open(1)).await;
        assert!(matches!(refused, Err(RegistryError::Unavailable(_))), "{refused:?}");
        assert!(session_2.holds(world.host(NodeId(2)).now()));
        assert!(opened(&cluster, 2).await.is_some());
        // What it answered meanwhile nobody else has: it does not give that up by itself.
        restart(&world, &cluster, 1);
        let refused = start(&world, &cluster, 1).await;
        assert!(matches!(refused, Err(RegistryStart::Over { may_follow: false, .. })), "{refused:?}");
        let refused = cluster.follow(1, 2).await;
        assert!(matches!(refused, Err(RegistryStart::Over { may_follow: false, .. })), "{refused:?}");
    });
}

#[test]
fn nothing_is_answered_that_the_learner_lacks_until_its_lease_has_run_out() {
    sim::explore(0..10, async |world, host| {
        let cluster = two(&world, &host).await;
        world.cut(NodeId(1), NodeId(2));
        let cut = world.now();
        let asked = world.spawn(&host, {
            let cluster = cluster.clone();
            async move { opened(&cluster, 1).await }
        });
        asked.await.expect("it lives").expect("it goes on alone in the end");
        assert!(world.now().since(cut) + Duration::from_millis(1100) >= LEASE, "{:?}", world.now().since(cut));
        assert!(world.now().since(cut) < Duration::from_secs(5), "{:?}", world.now().since(cut));
        assert_eq!(cluster.registry(1).maps().nodes[&2].state, NodeState::Gone);
    });
}

/// A replica that can store nothing is one of those that a change waits for, while its machine lives.
#[test]
fn a_machine_whose_disks_fail_keeps_no_change_waiting_for_long() {
    sim::explore(sim::seeds(20), async |world, host| {
        let cluster = two(&world, &host).await;
        counts(&world, &cluster, 2, 2).await;
        let failed = 1 + world.dice().below(2) as usize;
        cluster.disks(2)[..failed].iter().for_each(|disk| disk.fail());
        let session = cluster.session(2).expect("it has begun");
        opened_within(&world, &cluster, 1, Duration::from_secs(if failed == 1 { 10 } else { 25 })).await;
        assert_eq!(session.is_over(), failed == 2, "who has a copy left goes on with it");
    });
}

#[test]
fn one_failed_disk_of_nine_keeps_no_change_waiting_for_long() {
    sim::explore(sim::seeds(10), async |world, host| {
        let cluster = Cluster::create(&world, &host, 3, 2).await;
        cluster.start(1).await;
        for _ in 0..2 {
            cluster.join(3).await;
        }
        cluster.await_voters(1, 3).await;
        for node in 1..=3 {
            counts(&world, &cluster, node, 3).await;
        }
        let node = 1 + world.dice().below(3) as u32;
        cluster.disks(node)[world.dice().below(3) as usize].fail();
        let session = cluster.session(node).expect("it has begun");
        opened_within(&world, &cluster, 1 + node % 3, Duration::from_secs(10)).await;
        assert!(!session.is_over());
    });
}

#[test]
fn who_is_slow_is_waited_for() {
    sim::explore(sim::seeds(5), async |world, host| {
        let cluster = two(&world, &host).await;
        counts(&world, &cluster, 2, 2).await;
        let session = cluster.session(2).expect("it has begun");
        // Until the others have agreed that it goes on without; then each write takes a second, and some ten.
        cluster.disks(2)[0].set_faults(DiskFaults { hung: true, ..DiskFaults::default() });
        opened_within(&world, &cluster, 1, Duration::from_secs(20)).await;
        let write_latency = Duration::from_secs(1);
        cluster.disks(2)[1].set_options(DiskOptions { write_latency, ..DiskOptions::default() });
        let end = world.now() + Duration::from_secs(120);
        while world.now() < end {
            opened(&cluster, 1).await;
        }
        assert!(!session.is_over());
    });
}

/// Keeps asking for a log where `node` is until it is opened.
async fn opened_within(world: &World, cluster: &Cluster, node: u32, limit: Duration) {
    let since = world.now();
    while opened(cluster, node).await.is_none() {
        assert!(world.now().since(since) < limit, "seed {}: not yet opened", world.seed());
    }
    assert!(world.now().since(since) < limit, "seed {}: {:?}", world.seed(), world.now().since(since));
}

/// Waits until the others know of so many copies of a node's replica.
async fn counts(world: &World, cluster: &Cluster, node: u32, copies: usize) {
    let other = cluster.registry(1);
    until(world, "its copies count", || other.maps().nodes[&node].copies.targets.len() == copies).await;
}

#[test]
fn one_of_three_goes_on_when_two_are_lost_and_the_newest_is_promoted() {
    sim::explore(0..10, async |world, host| {
        let cluster = Cluster::create(&world, &host, 2, 1).await;
        cluster.start(1).await;
        for _ in 0..3 {
            cluster.join(2).await;
        }
        cluster.await_voters(1, 3).await;
        until(&world, "the learner has learnt", || cluster.registry(4).voters() == [1, 2, 3]).await;
        let refused = try_promoting(&world, &cluster, 4, &[1, 2, 3]).await;
        assert!(matches!(refused, Err(PromotionError::Answers { .. })), "{refused:?}");
        cluster.start(4).await;
        // The last of those that vote hears nothing of some changes, which the others agree on.
        world.isolate(NodeId(3));
        let lost = opened(&cluster, 1).await.expect("two of three agree");
        until(&world, "the learner has it", || cluster.registry(4).maps().logs.contains_key(&lost)).await;
        world.crash(NodeId(1), Stop::PowerLoss);
        world.crash(NodeId(2), Stop::PowerLoss);
        world.heal_all();
        let refused = try_promoting(&world, &cluster, 3, &[1, 2]).await;
        assert!(matches!(refused, Err(PromotionError::Newer { node: 4, .. })), "{refused:?}");
        let refused = try_promoting(&world, &cluster, 4, &[1, 2, 3]).await;
        assert!(refused.is_ok(), "nobody answers: {refused:?}");
        let registry = cluster.registry(4);
        assert!(registry.maps().logs.contains_key(&lost));
        // All others follow or are refused, each by what it has answered; none leads.
        for node in [1, 2, 3] {
            restart(&world, &cluster, node);
            let refused = start(&world, &cluster, node).await;
            assert!(matches!(refused, Err(RegistryStart::Over { .. })), "{refused:?}");
        }
        assert_eq!(registry.leader(), Some(4));
    });
}

/// Of three machines two may answer what the third lacks, though it lives by their maps. Where both are lost, and that one
/// goes on, nobody has what they answered but they: they must not give it up by following as if it had never been.
#[test]
fn who_may_have_answered_what_the_founder_lacks_does_not_follow() {
    sim::explore(sim::seeds(20), async |world, host| {
        let cluster = three(&world, &host).await;
        world.isolate(NodeId(3));
        let lost = opened(&cluster, 1).await.expect("two of three agree");
        assert_eq!(cluster.registry(1).maps().nodes[&3].state, NodeState::Alive, "its lease has not run out");
        world.crash(NodeId(1), Stop::PowerLoss);
        world.crash(NodeId(2), Stop::PowerLoss);
        world.heal_all();
        try_promoting(&world, &cluster, 3, &[1, 2]).await.expect("the others are off");
        assert!(!cluster.registry(3).maps().logs.contains_key(&lost), "it never heard of it");
        for node in [1, 2] {
            restart(&world, &cluster, node);
            let refused = start(&world, &cluster, node).await;
            assert!(matches!(refused, Err(RegistryStart::Over { may_follow: false, .. })), "{refused:?}");
            let refused = cluster.follow(node, 3).await;
            assert!(matches!(refused, Err(RegistryStart::Over { may_follow: false, .. })), "{refused:?}");
        }
    });
}

#[test]
fn whoever_has_nothing_that_the_founder_lacks_follows() {
    sim::explore(sim::seeds(10), async |world, host| {
        let cluster = three(&world, &host).await;
        let log = opened(&cluster, 1).await.expect("all live");
        let founder = 1 + world.dice().below(3) as u32;
        until(&world, "it has heard of it", || cluster.registry(founder).maps().logs.contains_key(&log)).await;
        world.crash_all(Stop::PowerLoss);
        let others: Vec<u32> = (1..=3).filter(|&node| node != founder).collect();
        try_promoting(&world, &cluster, founder, &others).await.expect("the others are off");
        for &node in &others {
            restart(&world, &cluster, node);
            let refused = start(&world, &cluster, node).await;
            assert!(matches!(refused, Err(RegistryStart::Over { may_follow: true, .. })), "{refused:?}");
            cluster.follow(node, founder).await.expect("it answered nothing that the founder does not know");
        }
        assert!(cluster.registry(others[0]).maps().logs.contains_key(&log));
    });
}

#[test]
fn wrong_promotions_change_nothing() {
    sim::explore(0..5, async |world, host| {
        let cluster = two(&world, &host).await;
        let answers = try_promoting(&world, &cluster, 2, &[1]).await;
        assert!(matches!(answers, Err(PromotionError::Answers { node: 1, .. })), "{answers:?}");
        world.crash(NodeId(1), Stop::PowerLoss);
        let unnamed = try_promoting(&world, &cluster, 2, &[]).await;
        assert!(
            matches!(&unnamed, Err(PromotionError::Unnamed { unnamed, .. }) if *unnamed == [1].into()),
            "{unnamed:?}"
        );
        restart(&world, &cluster, 1);
        let alone = cluster.promote(1, &[]).await.err();
        assert_eq!(alone, Some(PromotionError::Alone));
        cluster.start(1).await;
        assert_eq!(cluster.registry(1).maps().reign.number, 0);
        cluster.start(2).await;
        opened(&cluster, 2).await.expect("they are as before");
    });
}

async fn try_promoting(world: &World, cluster: &Cluster, node: u32, off: &[u32]) -> Result<(), PromotionError> {
    restart(world, cluster, node);
    cluster.promote(node, off).await.map(drop)
}

async fn start(world: &World, cluster: &Cluster, node: u32) -> Result<(), RegistryStart> {
    let host = world.host(NodeId(node));
    world.spawn(&host, cluster.clone().run(host.clone())).await.expect("nobody stops it while it starts")
}
