//! The storage part of a node: its targets, and who answers for them.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use futures_util::future::join_all;
use host::{BoxFuture, Disk, Envelope, Handler, Host, NodeId, Port};
use protocol::id::TargetId;
use protocol::storage::{STORAGE_PORT, StorageAnswer, StorageError, ToTarget};

use crate::open::{OpenError, TargetOptions};
use crate::opening::Opening;
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

/// The targets of a node, looked through: none is answered for yet.
pub struct Openings {
    storage: Storage,
    targets: Vec<Opening>,
    unopened: Vec<Unopened>,
}

impl Openings {
    /// Those that could be looked through.
    pub fn targets(&self) -> &[Opening] {
        &self.targets
    }

    /// Has them serve, and answers for them on [`STORAGE_PORT`]. One that does not open is reported and missing; the others
    /// serve.
    pub async fn begin(self) -> (Storage, Vec<Unopened>) {
        let Openings { storage, targets, mut unopened } = self;
        let beginnings = targets.into_iter().map(|opening| async { (opening.id(), storage.begin(opening).await) });
        let begun = join_all(beginnings).await.into_iter();
        unopened.extend(begun.filter_map(|(id, begun)| Some((id, begun.err()?))));
        storage.host.listen(Port(STORAGE_PORT), Arc::new(storage.clone()));
        (storage, unopened)
    }
}

impl Storage {
    /// Opens the targets of a node and answers for them, both steps at once: for who needs not know which of them may have
    /// forgotten something.
    pub async fn start(
        host: Host,
        cluster: u128,
        disks: Vec<(TargetId, Disk)>,
        options: TargetOptions,
    ) -> (Storage, Vec<Unopened>) {
        Storage::look(host, cluster, disks, options).await.begin().await
    }

    /// Looks the targets of a node through.
    pub async fn look(host: Host, cluster: u128, disks: Vec<(TargetId, Disk)>, options: TargetOptions) -> Openings {
        let storage = Storage { host, cluster, options, targets: Arc::default() };
        let looks = disks.into_iter().map(|(id, disk)| {
            let storage = &storage;
            async move { (id, storage.look_at(id, disk).await) }
        });
        let (mut targets, mut unopened) = (Vec::new(), Vec::new());
        for (id, looked) in join_all(looks).await {
            match looked {
                Ok(opening) => targets.push(opening),
                Err(error) => unopened.push((id, error)),
            }
        }
        Openings { storage, targets, unopened }
    }

    /// Looks one more target through, which must not be open.
    pub async fn look_at(&self, id: TargetId, disk: Disk) -> Result<Opening, OpenError> {
        Opening::look(self.host.clone(), disk, self.cluster, id, self.options).await
    }

    /// Has a target serve that was looked through, and answers for it from now on.
    pub async fn begin(&self, opening: Opening) -> Result<(), OpenError> {
        let target = opening.begin().await?;
        let before = self.lock().insert(target.id(), target);
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
