//! One simulated machine with its disks, and the daemon's parts on it, started in the daemon's own order.

use std::sync::Arc;

use cleaner::Cleaner;
use client::{Client, ClientOptions};
use host::sim::{DiskOptions, SimDisk, Stop, World};
use host::{Disk, Host, NodeId};
use log::{Cluster, LogReader};
use manager::{Manager, ManagerOptions};
use protocol::id::TargetId;
use protocol::maps::{TargetEntry, TargetState};
use protocol::registry::RegistryRequest;
use registry::{Registry, change};
use storage::{Storage, TargetOptions};

/// A simulated machine.
pub struct Site {
    world: World,
    node: NodeId,
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
    /// Makes a file system of `targets` targets that survives the loss of `parity` of them.
    pub async fn create(world: &World, host: &Host, targets: u32, parity: u8, options: DiskOptions) -> Site {
        let disks: Vec<_> =
            (0..targets).map(|n| world.add_disk(host.node(), &format!("target-{n}"), options)).collect();
        let site = Site { world: world.clone(), node: host.node(), disks };
        let cluster = 0xda22_1e00;
        let mut entries = Vec::new();
        for (target, disk) in site.plugged() {
            storage::format(&disk, cluster, target, TargetOptions::default()).await.expect("an empty disk becomes a target");
            let entry = TargetEntry { node: host.node().0, name: format!("target-{}", target.0), state: TargetState::Whole };
            entries.push((target, entry));
        }
        let maps = change::new_cluster(cluster, entries, host.node().0, parity);
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

    /// Starts the parts, as the daemon does. They die with the node.
    pub async fn start(&self) -> Parts {
        let host = self.world.host(self.node);
        let (disks, starting) = (self.plugged(), host.clone());
        let started = self.world.spawn(&host, async move { start(starting, disks).await });
        started.await.expect("nobody stops the node while it starts").expect("the parts start")
    }

    /// Stops the node hard and starts it again, with new parts.
    pub async fn crash(&self, stop: Stop) -> Parts {
        self.world.crash(self.node, stop);
        self.world.restart(self.node);
        self.start().await
    }
}

async fn start(host: Host, disks: Vec<(TargetId, Disk)>) -> Result<Parts, String> {
    let node = host.node();
    let registry = Registry::start(&host, disks.clone()).await.map_err(|error| error.to_string())?;
    let (storage, _lost) = 
        Storage::start(host.clone(), registry.maps().cluster, disks, TargetOptions::default()).await;
    let cluster = Cluster::connect(host, node).await.map_err(|error| error.to_string())?;
    let serving: Vec<_> = storage.targets().into_iter().map(|target| target.id()).collect();
    for (target, entry) in &cluster.maps().targets {
        if !serving.contains(target) && entry.state != TargetState::Failed {
            let failed = RegistryRequest::SetTarget(*target, TargetState::Failed);
            cluster.registry(failed).await.map_err(|error| error.to_string())?;
        }
    }
    let reader = LogReader::new(cluster.clone());
    let options = ManagerOptions { memory_bytes: 16 << 20, ..Default::default() };
    let manager =
        Manager::start(cluster.clone(), reader.clone(), options).await.map_err(|error| error.to_string())?;
    let options = ClientOptions { cache_bytes: 4 << 20, dirty_bytes: 4 << 20, ..ClientOptions::default() };
    let client = Client::start(cluster.clone(), reader.clone(), options).await.map_err(|error| error.to_string())?;
    let cleaner = Cleaner::start(cluster.clone(), reader.clone(), Default::default()).await;
    Ok(Parts { cluster, reader, client, manager, cleaner })
}
