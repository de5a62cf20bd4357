//! Several managers that share the slots, on nodes of their own, and what can be done to them. Registry and targets lie on
//! one node, which lives on but for power losses.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use host::sim::{Dice, DiskOptions, SimDisk, Stop, Verdict, World};
use host::{BoxFuture, Disk, Envelope, Handler, Host, NodeId, Port};
use log::{Cluster, LogReader};
use manager::{Manager, ManagerOptions};
use protocol::id::{MapEpoch, SLOT_COUNT, SlotId, TargetId};
use protocol::manager::MANAGER_PORT;

use protocol::maps::{Maps, NodeEntry, SlotEntry, SlotWish, TargetEntry, TargetState};
use protocol::registry::{REGISTRY_PORT, RegistryAnswer, RegistryReply, RegistryRequest};
use registry::change;
use storage::{Storage, TargetOptions};

const CLUSTER: u128 = 78;
const TARGETS: u32 = 3;
/// The node with registry and targets.
pub const GROUND: NodeId = NodeId(1);
/// Runs of slots, dealt out to the managers.
const RUNS: u16 = 8;
pub const CLIENTS: u32 = 5;

pub type SharedMaps = Arc<Mutex<Option<Arc<Maps>>>>;

/// A registry that never fails: it applies requests to maps in memory.
struct Registry {
    maps: SharedMaps,
    /// What it tells instead of them, if anything: as a replica does that is behind.
    told: SharedMaps,
}

impl Handler for Registry {
    fn handle(&self, _: NodeId, request: Envelope) -> BoxFuture<'static, Envelope> {
        let (shared, told) = (self.maps.clone(), self.told.clone());
        Box::pin(async move {
            let mut shared = shared.lock().unwrap();
            let maps = shared.as_mut().expect("the site was created");
            let request = request.open().expect("a registry's request");
            if let (RegistryRequest::Maps, Some(told)) = (&request, told.lock().unwrap().clone()) {
                return Envelope::new::<RegistryAnswer>(Ok(RegistryReply::Maps(told)));
            }
            let (next, reply) = change::apply(maps, request);
            if let Some(next) = next {
                *maps = Arc::new(next);
            }
            Envelope::new::<RegistryAnswer>(reply.and_then(|outcome| outcome.with(maps.clone())))
        })
    }
}

/// Changes what the registry has agreed on, without asking it.
pub fn change_maps(shared: &SharedMaps, change: impl FnOnce(&mut Maps)) {
    let mut shared = shared.lock().unwrap();
    let mut maps = Maps::clone(shared.as_ref().unwrap());
    change(&mut maps);
    maps.epoch = MapEpoch(maps.epoch.0 + 1);
    assert_eq!(maps.verify(), Ok(()));
    *shared = Some(Arc::new(maps));
}

/// The nodes of one world.
pub struct Site {
    pub world: World,
    disks: Vec<SimDisk>,
    pub maps: SharedMaps,
    pub told: SharedMaps,
    pub managers: BTreeMap<NodeId, Option<Arc<Manager>>>,
    /// Every manager audits all slots all the time, and counts here how often there was a moment for it.
    pub audits: Option<Arc<AtomicU64>>,
}

impl Site {
    pub async fn create(world: &World, host: &Host, dice: &mut Dice) -> Site {
        assert_eq!(host.node(), GROUND);
        let disks: Vec<_> =
            (0..TARGETS).map(|n| world.add_disk(GROUND, &format!("t{n}"), DiskOptions::default())).collect();
        let managers: BTreeMap<NodeId, _> = (0..dice.within(2..5)).map(|n| (NodeId(2 + n as u32), None)).collect();
        managers.keys().for_each(|&node| drop(world.add_node(node)));
        let site =
            Site { world: world.clone(), disks, maps: Arc::default(), told: Arc::default(), managers, audits: None };
        let mut entries = Vec::new();
        for (target, disk) in site.plugged() {
            storage::format(&disk, CLUSTER, target, TargetOptions::default()).await.unwrap();
            let entry = TargetEntry::new(GROUND.0, format!("t{}", target.0));
            entries.push((target, entry));
        }
        let mut maps = change::new_cluster(CLUSTER, entries, GROUND.0, 1);
        for node in site.managers.keys() {
            maps.nodes.insert(node.0, NodeEntry::new(node.0.to_string(), "", true).begun());
        }
        maps.next_node = maps.nodes.keys().max().map_or(1, |last| last + 1);
        for run in 0..RUNS {
            maps.slots
                .insert(run * (SLOT_COUNT / RUNS), SlotEntry { node: site.deal(dice).0, base: None, logs: Vec::new() });
        }
        *site.maps.lock().unwrap() = Some(Arc::new(maps));
        site.start_ground().await;
        site
    }

    fn plugged(&self) -> Vec<(TargetId, Disk)> {
        (0..).map(TargetId).zip(self.disks.iter().map(SimDisk::plug)).collect()
    }

    pub fn deal(&self, dice: &mut Dice) -> NodeId {
        *self.managers.keys().nth(dice.below(self.managers.len() as u64) as usize).unwrap()
    }

    pub async fn start_ground(&self) {
        let (disks, host) = (self.plugged(), self.world.host(GROUND));
        let registry = Registry { maps: self.maps.clone(), told: self.told.clone() };
        let started = self.world.spawn(&host.clone(), async move {
            host.listen(Port(REGISTRY_PORT), Arc::new(registry));
            let (_, lost) = Storage::start(host, CLUSTER, disks, TargetOptions::default()).await;
            assert!(lost.is_empty());
        });
        started.await.unwrap();
    }

    /// Starts all managers that do not run, at once.
    pub async fn start_managers(&mut self) {
        let world = self.world.clone();
        let starting: Vec<_> =
            self.managers.iter().filter(|(_, manager)| manager.is_none()).map(|(&node, _)| node).collect();
        let started: Vec<_> = starting
            .into_iter()
            .map(|node| {
                let host = if world.runs(node) { world.host(node) } else { world.restart(node) };
                (node, world.spawn(&host.clone(), async move { start(host).await }))
            })
            .collect();
        for (node, manager) in started {
            let manager = manager.await.unwrap();
            if let Some(audits) = &self.audits {
                drop(world.spawn(&world.host(node), go_on_auditing(world.host(node), manager.clone(), audits.clone())));
            }
            self.managers.insert(node, Some(manager));
        }
    }

    /// The maps say that a target missed something.
    pub fn fall_behind(&self, target: TargetId) {
        change_maps(&self.maps, |maps| maps.targets.get_mut(&target).unwrap().state = TargetState::Behind);
    }

    /// A node that stores nothing is one of the cluster's.
    pub fn join(&self, node: NodeId) {
        let entry = NodeEntry::new(node.0.to_string(), "", false).begun();
        change_maps(&self.maps, |maps| drop(maps.nodes.insert(node.0, entry)));
    }

    pub fn kill(&mut self, node: NodeId) {
        self.managers.insert(node, None);
        self.world.crash(node, Stop::Kill);
    }

    /// Some run of slots shall be another manager's.
    pub fn wish(&self, dice: &mut Dice) {
        let maps = self.maps.lock().unwrap().clone().unwrap();
        let (first, count) = (dice.below(SLOT_COUNT.into()) as u16, dice.within(1..900) as u16);
        let from = maps.slot(first).node;
        let is_there = |slot: &u16| *slot < SLOT_COUNT && maps.slot(*slot).node == from;
        let last = (first..first.saturating_add(count)).take_while(is_there).last().unwrap();
        let to = self.deal(dice).0;
        if to != from {
            change_maps(&self.maps, |maps| maps.wishes = [(first, SlotWish { last, from, to })].into());
        }
    }

    /// No two managers answer for one slot, at any moment.
    pub fn assert_one_answers(&self) {
        let managers: Vec<&Arc<Manager>> = self.managers.values().flatten().collect();
        for slot in (0..SLOT_COUNT).map(SlotId) {
            let holders = managers.iter().filter(|manager| manager.holds(slot)).count();
            assert!(holders <= 1, "{holders} managers answer for slot {}", slot.0);
        }
    }

    /// Stops all managers, and gives their slots to others.
    pub async fn deal_anew(&mut self, dice: &mut Dice) {
        let nodes: Vec<NodeId> = self.managers.keys().copied().collect();
        nodes.into_iter().for_each(|node| self.kill(node));
        let host = self.world.host(GROUND);
        let runs: Vec<(u16, NodeId)> = (0..RUNS).map(|run| (run * (SLOT_COUNT / RUNS), self.deal(dice))).collect();
        let dealt = self.world.spawn(&host.clone(), async move {
            let cluster = Cluster::connect(host, GROUND).await.unwrap();
            for (first, node) in runs {
                let maps = cluster.refresh().await.unwrap();
                let (last, logs) = (first + SLOT_COUNT / RUNS - 1, maps.slot(first).logs.clone());
                let request =
                    RegistryRequest::SetSlots { first, last, node: node.0, base: None, logs, epoch: maps.epoch.0 };
                cluster.registry(request).await.unwrap();
            }
        });
        dealt.await.unwrap();
    }

    pub async fn audit(&self) {
        let managers: Vec<Arc<Manager>> = self.managers.values().flatten().cloned().collect();
        let report = managers[0].audit().await.unwrap();
        assert_eq!(report.problems, Vec::<String>::new());
    }
}

/// What does not add up while others work is a fault of the audit, or theirs.
async fn go_on_auditing(host: Host, manager: Arc<Manager>, audits: Arc<AtomicU64>) {
    loop {
        host.sleep(Duration::from_millis(host.random() % 1000)).await;
        if let Ok(report) = manager.audit().await {
            assert_eq!(report.problems, Vec::<String>::new());
            audits.fetch_add(1, Ordering::Relaxed);
        }
    }
}

async fn start(host: Host) -> Arc<Manager> {
    let cluster = Cluster::connect(host.clone(), GROUND).await.unwrap();
    let reader = LogReader::new(cluster.clone());
    let options = ManagerOptions {
        memory_bytes: 300 << 10,
        journal_bytes_max: 20 << 10,
        orphan_grace: Duration::from_millis(10),
        flush_interval: Duration::from_millis(if host.random().is_multiple_of(2) { 1000 } else { 20 }),
        directory_part_bytes: 100,
        ..ManagerOptions::default()
    };
    Manager::start(cluster, reader, options).await.unwrap()
}

fn lose_some_messages(world: &World, dice: &mut Dice) {
    let dice = Mutex::new(Dice::new(dice.below(u64::MAX)));
    world.judge_messages(move |passing| {
        let lost = passing.called.port == Port(MANAGER_PORT) && dice.lock().unwrap().below(25) == 0;
        if lost { Verdict::Lose } else { Verdict::Pass }
    });
}

/// Of what managers say to the registry too: whether slots were given away is then unknown for a while.
fn lose_some_answers(world: &World, dice: &mut Dice) {
    let dice = Mutex::new(Dice::new(dice.below(u64::MAX)));
    world.judge_messages(move |passing| {
        let often = if passing.called.port == Port(REGISTRY_PORT) { 4 } else { 40 };
        let by_manager = passing.called.port == Port(REGISTRY_PORT) && passing.caller < NodeId(100);
        let heard = by_manager || passing.called.port == Port(MANAGER_PORT);
        if heard && dice.lock().unwrap().below(often) == 0 { Verdict::Lose } else { Verdict::Pass }
    });
}

/// So late that others ask for outcomes meanwhile.
fn delay_some_messages(world: &World, dice: &mut Dice) {
    let dice = Mutex::new(Dice::new(dice.below(u64::MAX)));
    world.judge_messages(move |passing| {
        let mut dice = dice.lock().unwrap();
        let late = passing.called.port == Port(MANAGER_PORT) && dice.below(6) == 0;
        if late { Verdict::Delay(some_time(&mut dice, 10..23)) } else { Verdict::Pass }
    });
}

/// One evil at a time, for as long as clients work.
pub async fn harm(site: &mut Site, works: impl Fn() -> bool, dice: &mut Dice) {
    let world = site.world.clone();
    let evil = dice.below(10);
    if evil == 9 {
        lose_some_answers(&world, dice);
    }
    if evil == 5 || evil == 8 {
        delay_some_messages(&world, dice);
    }
    if evil == 1 || evil == 4 {
        lose_some_messages(&world, dice);
    }
    let mut dealt = 0;
    for _ in 0..2000 {
        if !works() {
            break;
        }
        world.sleep(some_time(dice, 8..20)).await;
        site.assert_one_answers();
        if evil >= 6 {
            site.wish(dice);
        }
        match evil {
            7 if dice.below(3) > 0 => {}
            2 | 4 | 7 => {
                let node = site.deal(dice);
                site.kill(node);
                world.sleep(Duration::from_millis(dice.below(20))).await;
                site.start_managers().await;
            }
            3 if dealt < 3 => {
                dealt += 1;
                site.deal_anew(dice).await;
                site.start_managers().await;
            }
            1 => {
                let (one, other) = (site.deal(dice), site.deal(dice));
                world.cut(one, other);
                world.sleep(Duration::from_millis(dice.below(500))).await;
                world.heal_all();
            }
            _ => world.sleep(Duration::from_millis(20)).await,
        }
    }
    world.dismiss_judge();
    world.heal_all();
}

/// A time of any order of magnitude: so many powers of two of microseconds at most.
pub fn some_time(dice: &mut Dice, magnitudes: std::ops::Range<u64>) -> Duration {
    let magnitude = dice.within(magnitudes);
    Duration::from_micros(dice.below(1 << magnitude))
}
