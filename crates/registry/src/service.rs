//! The registry at work: one change at a time, durable on enough targets before its answer leaves.

use std::sync::{Arc, Mutex};

use async_lock::Mutex as AsyncMutex;
use futures_util::future::join_all;
use host::{BoxFuture, Disk, Envelope, Handler, Host, NodeId, Port};
use protocol::id::TargetId;
use protocol::maps::Maps;
use protocol::registry::{REGISTRY_PORT, RegistryAnswer, RegistryError, RegistryRequest};

use crate::{Replica, ReplicaError, change};

/// The registry of a cluster whose only voter is this node.
pub struct Registry {
    maps: Mutex<Arc<Maps>>,
    /// Held through a whole change: changes are rare, and each builds on the one before.
    replicas: AsyncMutex<Vec<(TargetId, Replica)>>,
    /// Targets whose copy was older at the start than a crash makes it.
    outdated: Vec<TargetId>,
}

/// Why a registry did not start.
#[derive(Debug, thiserror::Error)]
pub enum RegistryStart {
    /// No copy on any target.
    #[error("no target holds a registry: this is no Dazzle file system, or its targets are gone")]
    Nothing,
    /// Not enough copies to be sure that the newest is among them.
    #[error(
        "only {found} of {total} targets hold a readable registry, and {needed} are needed to be sure that the newest \
         maps are among them; bring the missing targets back"
    )]
    TooFew {
        /// Copies that were read.
        found: usize,
        /// Targets there should be.
        total: usize,
        /// Copies needed.
        needed: usize,
    },
    /// The maps could not be stored.
    #[error("the registry could not be written: {0}")]
    Unwritten(RegistryError),
}

impl Registry {
    /// Makes the registry of a new cluster on its targets' disks.
    pub async fn create(maps: Maps, disks: Vec<(TargetId, Disk)>) -> Result<(), RegistryStart> {
        let (mut replicas, _) = open_all(disks).await;
        store_all(&mut replicas, &maps).await.map_err(RegistryStart::Unwritten)
    }

    /// Reads the newest maps from `disks`, brings all copies up to them, and answers on the registry's port.
    pub async fn start(host: &Host, disks: Vec<(TargetId, Disk)>) -> Result<Arc<Registry>, RegistryStart> {
        let (mut replicas, found) = open_all(disks).await;
        let copies = found.len();
        let epochs: Vec<_> = found.iter().map(|(target, maps)| (*target, maps.epoch)).collect();
        let maps = found.into_iter().map(|(_, maps)| maps).max_by_key(|maps| maps.epoch);
        let maps = maps.ok_or(RegistryStart::Nothing)?;
        // A crash leaves a copy one change behind the others; one that missed more was away while they changed.
        let missed_changes = epochs.into_iter().filter(|(_, epoch)| epoch.0 + 1 < maps.epoch.0);
        let outdated: Vec<_> = missed_changes.map(|(target, _)| target).collect();
        let total = maps.targets.len();
        let needed = total - usize::from(maps.parity).min(total - 1);
        if copies < needed {
            return Err(RegistryStart::TooFew { found: copies, total, needed });
        }
        store_all(&mut replicas, &maps).await.map_err(RegistryStart::Unwritten)?;
        let (maps, replicas) = (Mutex::new(Arc::new(maps)), AsyncMutex::new(replicas));
        let registry = Arc::new(Registry { maps, replicas, outdated });
        host.listen(Port(REGISTRY_PORT), Arc::new(Service(registry.clone())));
        Ok(registry)
    }

    /// The maps now.
    pub fn maps(&self) -> Arc<Maps> {
        self.maps.lock().expect("no panic while the maps are held").clone()
    }

    /// Targets that missed changes before this start, whatever state the maps call them: they were away, or stand in for
    /// others.
    pub fn outdated(&self) -> Vec<TargetId> {
        self.outdated.clone()
    }

    /// Carries out one request.
    pub async fn answer(&self, request: RegistryRequest) -> RegistryAnswer {
        let mut replicas = self.replicas.lock().await;
        let (next, reply) = change::apply(&self.maps(), request);
        let outcome = reply?;
        if let Some(next) = next {
            store_all(&mut replicas, &next).await?;
            *self.maps.lock().expect("no panic while the maps are held") = Arc::new(next);
        }
        outcome.with(self.maps())
    }
}

/// Opens the copies on `disks`, and reads the maps in those that hold any.
async fn open_all(disks: Vec<(TargetId, Disk)>) -> (Vec<(TargetId, Replica)>, Vec<(TargetId, Maps)>) {
    let opened = join_all(disks.iter().map(|(id, disk)| async move { (*id, Replica::open(disk).await) })).await;
    let mut replicas = Vec::new();
    let mut found = Vec::new();
    for (id, result) in opened {
        if let Ok((replica, maps)) = result {
            replicas.push((id, replica));
            found.extend(maps.map(|maps| (id, maps)));
        }
    }
    (replicas, found)
}

/// Stores on all copies that answer. Enough is m+1: then no m losses can take the newest maps away.
async fn store_all(replicas: &mut [(TargetId, Replica)], maps: &Maps) -> Result<(), RegistryError> {
    let results: Vec<Result<(), ReplicaError>> =
        join_all(replicas.iter_mut().map(|(_, replica)| replica.store(maps))).await;
    let stored = results.iter().filter(|result| result.is_ok()).count();
    let needed = (usize::from(maps.parity) + 1).min(maps.targets.len());
    if stored >= needed {
        return Ok(());
    }
    let reasons: Vec<_> = results.into_iter().filter_map(|result| result.err().map(|e| e.to_string())).collect();
    let reasons = if reasons.is_empty() { "targets are missing".to_owned() } else { reasons.join("; ") };
    Err(RegistryError::Unavailable(format!("{stored} of {needed} needed copies were stored: {reasons}")))
}

struct Service(Arc<Registry>);

impl Handler for Service {
    fn handle(&self, _from: NodeId, request: Envelope) -> BoxFuture<'static, Envelope> {
        let registry = self.0.clone();
        Box::pin(async move {
            let answer = match request.open::<RegistryRequest>() {
                Ok(request) => registry.answer(request).await,
                Err(_) => Err(RegistryError::Unknown("request".into())),
            };
            Envelope::new::<RegistryAnswer>(answer)
        })
    }
}
