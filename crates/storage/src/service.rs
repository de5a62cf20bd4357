//! The storage part of a node: its targets, and who answers for them.

use std::sync::Arc;

use futures_util::future::join_all;
use host::{BoxFuture, Disk, Envelope, Handler, Host, NodeId, Port};
use protocol::id::TargetId;
use protocol::storage::{STORAGE_PORT, StorageAnswer, StorageError, ToTarget};

use crate::open::{OpenError, TargetOptions};
use crate::target::{Target, Targets};

/// The storage part of a node.
#[derive(Clone)]
pub struct Storage {
    targets: Arc<Targets>,
}

/// A target that could not be opened, and why.
pub type Unopened = (TargetId, OpenError);

impl Storage {
    /// Opens the targets of a node and answers for them on [`STORAGE_PORT`]. One that does not open is reported and
    /// missing; the others serve.
    pub async fn start(
        host: Host,
        cluster: u128,
        disks: Vec<(TargetId, Disk)>,
        options: TargetOptions,
    ) -> (Storage, Vec<Unopened>) {
        let openings = disks.into_iter().map(|(id, disk)| {
            let host = host.clone();
            async move { (id, Target::open(host, disk, cluster, id, options).await) }
        });
        let (mut targets, mut unopened) = (Targets::default(), Vec::new());
        for (id, opened) in join_all(openings).await {
            match opened {
                Ok(target) => drop(targets.insert(id, target)),
                Err(error) => unopened.push((id, error)),
            }
        }
        let storage = Storage { targets: Arc::new(targets) };
        host.listen(Port(STORAGE_PORT), Arc::new(storage.clone()));
        (storage, unopened)
    }

    /// One target of this node.
    pub fn target(&self, id: TargetId) -> Option<&Arc<Target>> {
        self.targets.get(&id)
    }

    /// The targets of this node, in order of id.
    pub fn targets(&self) -> Vec<&Arc<Target>> {
        let mut targets: Vec<_> = self.targets.values().collect();
        targets.sort_by_key(|target| target.id());
        targets
    }
}

impl Handler for Storage {
    fn handle(&self, _from: NodeId, request: Envelope) -> BoxFuture<'static, Envelope> {
        let asked = request.open::<ToTarget>().map(|asked| (self.targets.get(&asked.target).cloned(), asked));
        Box::pin(async move {
            let answer: StorageAnswer = match asked {
                Ok((Some(target), asked)) => target.serve(asked.request).await,
                Ok((None, asked)) => Err(StorageError::NoTarget(asked.target)),
                Err(_) => Err(StorageError::Refused("this is no request to a target".into())),
            };
            Envelope::new(answer)
        })
    }
}

impl std::fmt::Debug for Storage {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Storage of {} targets", self.targets.len())
    }
}
