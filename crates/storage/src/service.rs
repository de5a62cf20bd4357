//! The storage part of a node: its targets, and who answers for them.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use futures_util::future::join_all;
use host::{BoxFuture, Disk, Envelope, Handler, Host, NodeId, Port};
use protocol::id::TargetId;
use protocol::storage::{STORAGE_PORT, StorageAnswer, StorageError, ToTarget};

use crate::open::{OpenError, TargetOptions};
use crate::target::{Target, Targets};

/// How long the last requests to a target that is closed may take: longer than any that its disk carries out.
const CLOSE_PATIENCE: Duration = Duration::from_secs(8);
const CLOSE_LOOK: Duration = Duration::from_millis(10);

/// The storage part of a node.
#[derive(Clone)]
pub struct Storage {
    host: Host,
    cluster: u128,
    options: TargetOptions,
    targets: Arc<Mutex<Targets>>,
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
        let storage = Storage { host: host.clone(), cluster, options, targets: Arc::default() };
        let openings = disks.into_iter().map(|(id, disk)| {
            let storage = &storage;
            async move { (id, storage.open(id, disk).await) }
        });
        let opened = join_all(openings).await.into_iter();
        let unopened = opened.filter_map(|(id, opened)| Some((id, opened.err()?))).collect();
        host.listen(Port(STORAGE_PORT), Arc::new(storage.clone()));
        (storage, unopened)
    }

    /// Opens one more target, which must not be open, and answers for it from now on.
    pub async fn open(&self, id: TargetId, disk: Disk) -> Result<(), OpenError> {
        let target = Target::open(self.host.clone(), disk, self.cluster, id, self.options).await?;
        let before = self.lock().insert(id, target);
        assert!(before.is_none(), "two that write to one target would ruin it");
        Ok(())
    }

    /// Answers for a target no more. When this returns its disk is left alone, unless it hangs: whatever was begun on it has
    /// the target until its end (`undertaking`).
    pub async fn close(&self, id: TargetId) {
        let Some(target) = self.lock().remove(&id) else { return };
        target.close();
        let end = self.host.now() + CLOSE_PATIENCE;
        while Arc::strong_count(&target) > 1 && self.host.now() < end {
            self.host.sleep(CLOSE_LOOK).await;
        }
    }

    /// One target of this node.
    pub fn target(&self, id: TargetId) -> Option<Arc<Target>> {
        self.lock().get(&id).cloned()
    }

    /// The targets of this node, in order of id.
    pub fn targets(&self) -> Vec<Arc<Target>> {
        let mut targets: Vec<_> = self.lock().values().cloned().collect();
        targets.sort_by_key(|target| target.id());
        targets
    }

    fn lock(&self) -> MutexGuard<'_, Targets> {
        self.targets.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Handler for Storage {
    fn handle(&self, _from: NodeId, request: Envelope) -> BoxFuture<'static, Envelope> {
        let asked = request.open::<ToTarget>().map(|asked| (self.target(asked.target), asked));
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
        write!(f, "Storage of {} targets", self.lock().len())
    }
}
