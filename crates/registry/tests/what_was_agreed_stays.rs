//! Nodes crash, lose power, freeze, are cut off, lose messages and hear some twice, again and again, while all of them ask
//! for changes. The danger: a change that was acknowledged and is gone, two winners of one compare-and-swap, maps that differ,
//! and a node that believes in its lease after the registry gave what it had to others.

use std::time::Duration;

use host::sim::{self, Dice, NetworkOptions, Stop, World};
use host::{Host, NodeId};
use protocol::id::LogId;
use protocol::maps::{Maps, NodeState};
use protocol::registry::{ConsensusMessage, DRIFT, LEASE, RegistryRequest};

use crate::cluster::Cluster;
use crate::cluster::history::{Asked, History};

/// How long faults are made, of the world's time.
const FAULTS: Duration = Duration::from_secs(30);
/// How fast or slow a clock may run, in millionths: two such differ by as much as a lease allows for.
const DRIFT_PPM: u64 = 10_000;

#[test]
fn three_nodes_keep_their_word() {
    assert!(DRIFT.as_micros() >= LEASE.as_micros() * 2 * u128::from(DRIFT_PPM) / 1_000_000);
    sim::explore(sim::seeds(30), async |world, host| hold(&world, &host, 3, 1).await);
}

#[test]
fn five_nodes_keep_their_word() {
    sim::explore(sim::seeds(20), async |world, host| hold(&world, &host, 5, 2).await);
}

async fn hold(world: &World, host: &Host, count: u32, parity: u8) {
    let cluster = Cluster::create(world, host, u32::from(parity) + 2, parity).await;
    cluster.start(1).await;
    for _ in 1..count {
        cluster.join(u32::from(parity) + 2).await;
    }
    cluster.await_voters(1, count as usize).await;
    let history = History::default();
    let mut dice = world.dice();
    // The library and those who bring changes to the leader say the same again.
    world.copy_requests(|passing| passing.message.copied::<ConsensusMessage>());
    world.set_network(often_doubled(world));
    for node in cluster.nodes() {
        world.drift_clock(NodeId(node), dice.below(2 * DRIFT_PPM) as i32 - DRIFT_PPM as i32);
        ask_from(world, &cluster, &history, node);
    }
    let end = world.now() + FAULTS;
    while world.now() < end {
        make_fault(world, &cluster, &history, &mut dice);
        let wait = world.now() + Duration::from_millis(dice.below(1500));
        while world.now() < wait {
            watch(world, &cluster, &history);
            world.sleep(Duration::from_millis(20)).await;
        }
    }
    let maps = settle(world, &cluster, &history).await;
    history.check(&maps);
    assert!(history.acknowledged() > 20, "only {} requests were answered", history.acknowledged());
}

/// In half of the worlds requests are doubled: a die of its own leaves the rest of a story as it was.
fn often_doubled(world: &World) -> NetworkOptions {
    let doubled_ppm = [0, 0, 5_000, 50_000][Dice::new(!world.seed()).below(4) as usize];
    NetworkOptions { doubled_ppm, ..NetworkOptions::default() }
}

/// A program on `node` that asks for changes as long as the node lives.
fn ask_from(world: &World, cluster: &Cluster, history: &History, node: u32) {
    let (host, outer) = (world.host(NodeId(node)), world.clone());
    let (cluster, history, mut dice) = (cluster.clone(), history.clone(), world.dice());
    drop(world.spawn(&host.clone(), async move {
        loop {
            host.sleep(Duration::from_millis(dice.below(600))).await;
            let Some(registry) = cluster.started(node) else { continue };
            let maps = registry.maps();
            let known: Vec<LogId> = maps.logs.keys().copied().take(3).collect();
            let asked = match dice.pick(&known) {
                Some(log) if dice.below(4) > 0 => Asked::Claim(*log, maps.logs[log].version),
                _ => Asked::Open,
            };
            let request = match asked {
                Asked::Open => cluster.open(node),
                Asked::Claim(log, version) => RegistryRequest::Claim { log, version },
            };
            let op = history.begin(asked, outer.now());
            let answer = registry.answer(request).await;
            history.end(op, answer, outer.now());
        }
    }));
}

/// Does one harm, or undoes one.
fn make_fault(world: &World, cluster: &Cluster, history: &History, dice: &mut Dice) {
    let nodes = cluster.nodes();
    let node = NodeId(*dice.pick(&nodes).unwrap());
    let other = NodeId(*dice.pick(&nodes).unwrap());
    match dice.below(12) {
        0..3 => {
            let stop = if dice.coin() { Stop::Kill } else { Stop::PowerLoss };
            world.crash(node, stop);
            cluster.forget(node.0);
        }
        3..6 => revive(world, cluster, history),
        6 if world.runs(node) => world.pause(node),
        7 => nodes.iter().filter(|node| world.runs(NodeId(**node))).for_each(|node| world.resume(NodeId(*node))),
        8 => world.isolate(node),
        9 if node != other => world.cut_one_way(node, other),
        10 => {
            world.heal_all();
            let loss_ppm = [0, 0, 10_000, 100_000][dice.below(4) as usize];
            world.set_network(NetworkOptions { loss_ppm, ..often_doubled(world) });
        }
        _ => world.heal_all(),
    }
}

/// Starts all nodes that do not run.
fn revive(world: &World, cluster: &Cluster, history: &History) {
    for node in cluster.nodes() {
        if !world.runs(NodeId(node)) {
            let host = world.restart(NodeId(node));
            let starting = cluster.clone().run(host.clone());
            drop(world.spawn(&host, async move { starting.await.expect("what it kept can be read") }));
            ask_from(world, cluster, history, node);
        }
    }
}

/// Nobody believes in a session that any node knows to be over, and equal epochs are equal maps.
fn watch(world: &World, cluster: &Cluster, history: &History) {
    let nodes = cluster.nodes();
    let seen: Vec<_> = nodes.iter().filter_map(|node| Some(cluster.started(*node)?.maps())).collect();
    seen.iter().for_each(|maps| history.saw(maps));
    let is_over = |maps: &Maps, node: u32, session: u64| {
        // Who starts again with maps of long ago may not know the node yet.
        maps.nodes.get(&node).is_some_and(|entry| {
            entry.session > session || (entry.session == session && entry.state == NodeState::Gone)
        })
    };
    for &node in &nodes {
        let Some(session) = cluster.session(node) else { continue };
        let holds = session.holds(world.host(NodeId(node)).now());
        let over = seen.iter().any(|maps| is_over(maps, node, session.number()));
        assert!(!(holds && over), "node {node} holds the lease of session {}, which is over", session.number());
    }
}

/// Everything is mended; then all agree, and soon.
async fn settle(world: &World, cluster: &Cluster, history: &History) -> Maps {
    world.heal_all();
    world.set_network(NetworkOptions::default());
    revive(world, cluster, history);
    cluster.nodes().iter().for_each(|node| world.resume(NodeId(*node)));
    world.sleep(Duration::from_secs(12)).await;
    let registry = cluster.registry(1);
    let op = history.begin(Asked::Open, world.now());
    let last = registry.answer(cluster.open(1)).await;
    history.end(op, last.clone(), world.now());
    let maps = last.expect("all live, so they agree").maps().expect("a change is answered with maps").clone();
    world.sleep(Duration::from_secs(1)).await;
    for node in cluster.nodes() {
        let registry = cluster.registry(node);
        assert!(registry.maps().epoch >= maps.epoch, "node {node} has not heard");
        history.saw(&registry.maps());
    }
    // Programs still ask: the newest maps that any node has hold all that was answered by now.
    let mut newest: Vec<_> = cluster.nodes().into_iter().map(|node| cluster.registry(node).maps()).collect();
    newest.sort_by_key(|maps| maps.epoch);
    (**newest.last().unwrap()).clone()
}
