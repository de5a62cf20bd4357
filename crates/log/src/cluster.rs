//! The registry's maps, cached, and the way to the targets. This file awaits; it decides nothing.

use std::pin::pin;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use futures_util::future::{Either, select};
use host::{Address, Host, NodeId, Port};
use protocol::id::TargetId;
use protocol::maps::Maps;
use protocol::registry::{REGISTRY_PORT, RegistryAnswer, RegistryError, RegistryReply, RegistryRequest};
use protocol::storage::{
    STORAGE_PORT, StorageAnswer, StorageError, StorageReply, StorageRequest, StoredFragment, ToTarget,
};

use crate::LogError;

/// How long an append or a sync may take before its target counts as failed: a busy disk's worst.
const WRITE_PATIENCE: Duration = Duration::from_secs(20);
/// How long anything else may take.
const READ_PATIENCE: Duration = Duration::from_secs(5);

/// A node's view of its cluster. Clones share the cached maps.
#[derive(Clone)]
pub struct Cluster {
    host: Host,
    registry_node: NodeId,
    maps: Arc<Mutex<Arc<Maps>>>,
}

impl Cluster {
    /// Fetches the maps for the first time.
    pub async fn connect(host: Host, registry_node: NodeId) -> Result<Cluster, LogError> {
        let to = Address { node: registry_node, port: Port(REGISTRY_PORT) };
        let answer: RegistryAnswer =
            host.call(to, RegistryRequest::Maps).await.map_err(|error| LogError::Unavailable(error.to_string()))?;
        match answer {
            Ok(RegistryReply::Maps(maps)) => Ok(Cluster { host, registry_node, maps: Arc::new(Mutex::new(maps)) }),
            Ok(_) => Err(LogError::Unavailable("the registry did not answer with its maps".into())),
            Err(error) => Err(LogError::Unavailable(error.to_string())),
        }
    }

    /// The machine.
    pub fn host(&self) -> &Host {
        &self.host
    }

    /// The maps as this node knows them.
    pub fn maps(&self) -> Arc<Maps> {
        self.maps.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// Fetches the maps again.
    pub async fn refresh(&self) -> Result<Arc<Maps>, RegistryError> {
        self.registry(RegistryRequest::Maps).await?;
        Ok(self.maps())
    }

    /// Asks the registry; the maps in its answer become this node's.
    pub async fn registry(&self, request: RegistryRequest) -> RegistryAnswer {
        let to = Address { node: self.registry_node, port: Port(REGISTRY_PORT) };
        let answer: RegistryAnswer = match self.host.call(to, request).await {
            Ok(answer) => answer,
            Err(unreachable) => Err(RegistryError::Unavailable(unreachable.to_string())),
        };
        if let Some(maps) = answer.as_ref().ok().and_then(RegistryReply::maps) {
            self.learn(maps);
        }
        answer
    }

    /// Takes maps that came with a message, unless they are older than those known.
    pub fn learn(&self, maps: &Arc<Maps>) {
        let mut known = self.maps.lock().unwrap_or_else(PoisonError::into_inner);
        if maps.epoch > known.epoch {
            *known = maps.clone();
        }
    }

    /// Asks a target, wherever it lives. One that does not answer in time is a failed target: nobody waits for a hung
    /// disk (DESIGN §13, promise 3). An answer at the first poll costs no timer.
    pub async fn ask(&self, target: TargetId, request: StorageRequest) -> StorageAnswer {
        let Some(node) = self.node_of(target) else { return Err(StorageError::NoTarget(target)) };
        let to = Address { node, port: Port(STORAGE_PORT) };
        let patience = match request {
            StorageRequest::Append(_) | StorageRequest::Replace(_) | StorageRequest::Sync => WRITE_PATIENCE,
            _ => READ_PATIENCE,
        };
        let call = pin!(self.host.call::<ToTarget, StorageAnswer>(to, ToTarget { target, request }));
        match select(call, pin!(self.host.sleep(patience))).await {
            Either::Left((Ok(answer), _)) => believed(answer),
            Either::Left((Err(unreachable), _)) => Err(StorageError::Failed(unreachable.to_string())),
            Either::Right(_) => Err(StorageError::Failed(format!("no answer for {} s", patience.as_secs()))),
        }
    }

    fn node_of(&self, target: TargetId) -> Option<NodeId> {
        let known = self.maps.lock().unwrap_or_else(PoisonError::into_inner);
        known.targets.get(&target).map(|entry| NodeId(entry.node))
    }
}

/// What a target tells of fragments is looked at here, once: everybody behind counts with it. One that tells of a fragment
/// that cannot be has failed.
fn believed(answer: StorageAnswer) -> StorageAnswer {
    let Ok(StorageReply::Fragments(fragments)) = &answer else { return answer };
    match fragments.iter().find_map(StoredFragment::contradiction) {
        Some(why) => Err(StorageError::Failed(format!("it tells of a fragment that cannot be: {why}"))),
        None => answer,
    }
}

impl std::fmt::Debug for Cluster {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Cluster of {:?}", self.host)
    }
}
