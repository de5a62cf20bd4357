//! One simulated machine with its disks, and the daemon's parts on it, started in the daemon's own order.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::Duration;

use cleaner::Cleaner;
use client::{Client, ClientOptions};
use host::sim::{Dice, DiskOptions, SimDisk, Stop, World};
use host::{Disk, Host, NodeId};
use log::{Cluster, LogReader, ScrubOptions, Scrubber, stripes};
use manager::{Manager, ManagerOptions};
use protocol::id::TargetId;
use protocol::maps::{TargetEntry, TargetState};
use protocol::registry::RegistryRequest;
use registry::rebuilding::Founder;
use registry::{Registry, change};
use roles::rebuild::{Findings, NotRebuilt, Rebuild};
use storage::{Storage, TargetOptions};

const CLUSTER: u128 = 0xda22_1e00;
/// What a cell of a small stripe takes on a disk, with its head.
const CELL_BYTES: u64 = (64 << 10) + 8192 + 512;
/// What registry and lists take on a disk.
const LISTS_BYTES: u64 = 1 << 20;
/// What the intake takes: little, so that its halves are turned.
const INTAKE_BYTES: u32 = 64 << 10;

/// What a site is built of.
#[derive(Clone, Copy, Debug)]
pub struct Shape {
    targets: u32,
    parity: u8,
    fragment_size: u32,
    window_cells: u32,
    reserve_permille: u32,
    disk: DiskOptions,
}

impl Shape {
    /// So many targets, of which so many may be lost.
    pub fn new(targets: u32, parity: u8) -> Shape {
        let (fragment_size, window_cells, disk) = (1 << 20, 128, DiskOptions::default());
        Shape { targets, parity, fragment_size, window_cells, reserve_permille: 20, disk }
    }

    /// With stripes so small that a short life fills many of them.
    pub fn with_small_stripes(self) -> Shape {
        // A page of a slot must fit a stripe.
        let fragment_size = if self.targets == 1 { 256 << 10 } else { 64 << 10 };
        Shape { fragment_size, window_cells: 16, reserve_permille: 60, ..self }
    }

    /// With small stripes, and disks that hold so many fragments each.
    pub fn with_small_disks(self, fragments: u64) -> Shape {
        let small = self.with_small_stripes();
        let cell = u64::from(small.fragment_size >> 16) * CELL_BYTES;
        let disk =
            DiskOptions { capacity_bytes: LISTS_BYTES + u64::from(INTAKE_BYTES) + fragments * cell, ..small.disk };
        Shape { disk, ..small }
    }

    /// How its disks are built.
    pub fn disk(&self) -> DiskOptions {
        self.disk
    }

    fn target_options(&self) -> TargetOptions {
        TargetOptions {
            cell_data: self.fragment_size,
            window_cells: self.window_cells,
            journal_permille: self.reserve_permille,
            clean_permille: self.reserve_permille,
            intake_size: INTAKE_BYTES,
            ..TargetOptions::default()
        }
    }
}

/// A simulated machine.
pub struct Site {
    world: World,
    node: NodeId,
    shape: Shape,
    disks: Vec<SimDisk>,
}

/// The parts of one life of the machine's daemon. After a crash they are ghosts: start new ones.
pub struct Parts {
    /// The maps and the way to the targets.
    pub cluster: Cluster,
    /// Bytes by address.
    pub reader: LogReader,
    /// Files.
    pub client: Client,
    /// Slots.
    pub manager: Arc<Manager>,
    /// What empties stripes.
    pub cleaner: Arc<Cleaner>,
}

impl Site {
    /// Makes an empty file system.
    pub async fn create(world: &World, host: &Host, shape: Shape) -> Site {
        let add = |n| world.add_disk(host.node(), &format!("target-{n}"), shape.disk);
        let disks: Vec<_> = (0..shape.targets).map(add).collect();
        let site = Site { world: world.clone(), node: host.node(), shape, disks };
        let mut entries = Vec::new();
        for (target, disk) in site.plugged() {
            storage::format(&disk, CLUSTER, target, shape.target_options())
                .await
                .expect("an empty disk becomes a target");
            let entry = TargetEntry::new(host.node().0, format!("target-{}", target.0));
            entries.push((target, entry));
        }
        let mut maps = change::new_cluster(CLUSTER, entries, host.node().0, shape.parity);
        maps.groups.values_mut().for_each(|group| group.geometry.fragment_size = shape.fragment_size);
        maps.fragment_size = shape.fragment_size;
        Registry::create(maps, site.plugged()).await.expect("an empty disk takes a registry");
        site
    }

    fn plugged(&self) -> Vec<(TargetId, Disk)> {
        (0..).map(TargetId).zip(self.disks.iter().map(SimDisk::plug)).collect()
    }

    /// The disks, to do harm to.
    pub fn disks(&self) -> &[SimDisk] {
        &self.disks
    }

    /// Makes the registry anew from what is left on the disks, with no daemon running; what was found. Sometimes the machine is
    /// stopped on the way, and it is done again.
    ///
    /// # Panics
    /// When it is refused.
    pub async fn rebuild(&self, stop: Stop, dice: &mut Dice) -> Findings {
        loop {
            let rebuilding = self.begin_rebuild(true);
            if dice.below(3) == 0 {
                drop(rebuilding);
                self.world.sleep(some_time(dice)).await;
                self.reboot(stop);
                continue;
            }
            let rebuilt = rebuilding.await.expect("nobody stops the node meanwhile");
            self.reboot(Stop::Kill);
            match rebuilt {
                Ok(findings) => return findings,
                // It was done before the machine stopped.
                Err(NotRebuilt::Sound) => return Findings::default(),
                Err(error) => panic!("it cannot be rebuilt: {error}"),
            }
        }
    }

    /// What would be found.
    pub async fn plan_rebuild(&self) -> Result<Findings, NotRebuilt> {
        let planned = self.begin_rebuild(false).await.expect("nobody stops the node meanwhile");
        self.reboot(Stop::Kill);
        planned
    }

    fn begin_rebuild(
        &self,
        founds: bool,
    ) -> impl Future<Output = Result<Result<Findings, NotRebuilt>, host::sim::Crashed>> + use<> {
        let host = self.world.host(self.node);
        let (disks, options, parity) = (self.plugged(), self.shape.target_options(), self.shape.parity);
        let looking = host.clone();
        self.world.spawn(&host, async move { rebuild(looking, (disks, options), parity, founds).await })
    }

    /// Stops the node hard, and starts it again without its daemon.
    pub fn reboot(&self, stop: Stop) {
        self.world.crash(self.node, stop);
        self.world.restart(self.node);
    }

    /// Starts the parts, as the daemon does. They die with the node.
    pub async fn start(&self) -> Parts {
        self.begin().await.expect("nobody stops the node while it starts").expect("the parts start")
    }

    fn begin(&self) -> impl Future<Output = Result<Result<Parts, String>, host::sim::Crashed>> + use<> {
        let host = self.world.host(self.node);
        let (disks, options, starting) = (self.plugged(), self.shape.target_options(), host.clone());
        self.world.spawn(&host, async move { start(starting, disks, options).await })
    }

    /// Stops the node hard and starts it again, with new parts. Sometimes it is stopped again while it starts.
    pub async fn crash(&self, stop: Stop, dice: &mut Dice) -> Parts {
        self.reboot(stop);
        while dice.below(3) == 0 {
            drop(self.begin());
            self.world.sleep(some_time(dice)).await;
            self.reboot(stop);
        }
        self.start().await
    }
}

/// A time of any order of magnitude, up to a quarter of a second.
pub fn some_time(dice: &mut Dice) -> Duration {
    let magnitude = dice.within(10..28);
    Duration::from_nanos(dice.below(1 << magnitude))
}

async fn rebuild(
    host: Host,
    (disks, options): (Vec<(TargetId, Disk)>, TargetOptions),
    parity: u8,
    founds: bool,
) -> Result<Findings, NotRebuilt> {
    let founder = Founder {
        node: host.node().0,
        name: String::new(),
        address: String::new(),
        cluster: CLUSTER,
        class: parity.into(),
        targets: disks.iter().map(|(target, _)| (*target, format!("target-{}", target.0))).collect(),
        present: BTreeSet::new(),
        outdated: BTreeSet::new(),
        peers: BTreeSet::new(),
    };
    let rebuild = Rebuild::look(&host, founder, (disks, Vec::new()), options).await?;
    let findings = rebuild.findings.clone();
    if founds {
        rebuild.found().await?;
    }
    Ok(findings)
}

async fn start(host: Host, disks: Vec<(TargetId, Disk)>, options: TargetOptions) -> Result<Parts, String> {
    let node = host.node();
    let registry = Registry::start(&host, disks.clone()).await.map_err(|error| error.to_string())?;
    let (storage, _lost) = Storage::start(host.clone(), registry.maps().cluster, disks, options).await;
    let cluster = Cluster::connect(host, node).await.map_err(|error| error.to_string())?;
    let serving: Vec<_> = storage.targets().into_iter().map(|target| target.id()).collect();
    settle_targets(&cluster, &serving).await?;
    let reader = LogReader::new(cluster.clone());
    let options = ManagerOptions { memory_bytes: 16 << 20, directory_part_bytes: 300, ..Default::default() };
    let manager = Manager::start(cluster.clone(), reader.clone(), options).await.map_err(|error| error.to_string())?;
    let options = ClientOptions { cache_bytes: 4 << 20, dirty_bytes: 4 << 20, ..ClientOptions::default() };
    let client = Client::start(cluster.clone(), reader.clone(), options).await.map_err(|error| error.to_string())?;
    let cleaner = Cleaner::start(cluster.clone(), reader.clone(), Default::default()).await;
    // It goes on as long as the node lives.
    Scrubber::start(cluster.clone(), ScrubOptions { pass: Duration::from_secs(5) });
    Ok(Parts { cluster, reader, client, manager, cleaner })
}

/// Tells the registry which targets serve. One that comes back stays behind.
async fn settle_targets(cluster: &Cluster, serving: &[TargetId]) -> Result<(), String> {
    for (&target, entry) in &cluster.maps().targets {
        let state = match (serving.contains(&target), entry.state) {
            (false, _) => TargetState::Failed,
            (true, TargetState::Failed) => TargetState::Behind,
            (true, state) => state,
        };
        if state != entry.state {
            let set = RegistryRequest::SetTarget(target, state);
            cluster.registry(set).await.map_err(|error| error.to_string())?;
        }
    }
    Ok(())
}

impl Parts {
    /// Looks whether all records of the slots agree, and whether every stripe exists that they say bytes live in.
    ///
    /// # Panics
    /// When not.
    pub async fn audit(&self) {
        let report = self.manager.audit().await.expect("nothing changes while the audit reads");
        assert!(report.problems.is_empty(), "the audit found {:#?}", report.problems);
        let states = stripes::list(&self.cluster, None).await;
        let stored: BTreeSet<_> =
            states.iter().filter(|state| !state.cut_off).map(|state| (state.log, state.number)).collect();
        for (stripe, bytes) in report.live.iter().filter(|(_, bytes)| **bytes > 0) {
            assert!(stored.contains(stripe), "{bytes} bytes live in {stripe:?}, which does not exist");
        }
    }
}
