//! File locks: managers keep them, this file asks, waits and gives up waiting. Awaits.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use protocol::file::{Lock, LockOwner};
use protocol::id::InodeId;
use protocol::manager::{Answer, ManagerRequest};

use crate::ClientError;
use crate::client::{Client, Inner};
use crate::whole::whole;

impl Client {
    /// How the cluster calls what this node's kernel calls `owner`.
    pub fn lock_owner(&self, owner: u64) -> LockOwner {
        LockOwner { node: self.0.host.node().0, owner }
    }

    /// Takes a lock at once; [`protocol::manager::ManagerError::Locked`] if another stands in the way.
    pub async fn lock(&self, inode: InodeId, lock: Lock) -> Result<(), ClientError> {
        let inner = self.0.clone();
        let request = ManagerRequest::Lock { inode, lock, wait: false, ticket: 0 };
        whole(&self.0.host, async move { inner.ask(inode, request).await.map(drop) }).await
    }

    /// Takes a lock, waiting for others. Dropping the future gives up waiting.
    pub async fn lock_waiting(&self, inode: InodeId, lock: Lock) -> Result<(), ClientError> {
        let (granted, given_up) = (AtomicBool::new(false), AtomicBool::new(false));
        let wait = Arc::new(Wait { inode, lock, ticket: self.0.ticket(), granted, given_up });
        let guard = Waiting { inner: self.0.clone(), wait: Some(wait.clone()) };
        let inner = self.0.clone();
        let outcome = whole(&self.0.host, async move {
            let request = ManagerRequest::Lock { inode, lock, wait: true, ticket: wait.ticket };
            let outcome = inner.ask(inode, request).await;
            if outcome.is_ok() {
                wait.granted.store(true, Ordering::SeqCst);
                inner.give_back(&wait).await;
            }
            outcome
        })
        .await;
        guard.end();
        outcome.map(drop)
    }

    /// Gives up what the owner holds of the lock's family within its range.
    pub async fn unlock(&self, inode: InodeId, lock: Lock) -> Result<(), ClientError> {
        let inner = self.0.clone();
        whole(&self.0.host, async move { inner.ask(inode, ManagerRequest::Unlock { inode, lock }).await.map(drop) })
            .await
    }

    /// Which held lock stands against this one.
    pub async fn test_lock(&self, inode: InodeId, lock: Lock) -> Result<Option<Lock>, ClientError> {
        match self.0.ask(inode, ManagerRequest::TestLock { inode, lock }).await?.answer {
            Answer::Conflict(conflict) => Ok(conflict),
            _ => Err(ClientError::Foreign("test of a lock")),
        }
    }

    /// Gives up all locks of `owner` on `inode`, as closing does.
    pub async fn release_owner(&self, inode: InodeId, owner: LockOwner) -> Result<(), ClientError> {
        let inner = self.0.clone();
        let request = ManagerRequest::UnlockAll { inode: Some(inode), owner };
        whole(&self.0.host, async move { inner.ask(inode, request).await.map(drop) }).await
    }
}

/// What a waiting call and the one who may give it up tell each other. Each first says its own part, then looks at the
/// other's: at least one of them sees both.
struct Wait {
    inode: InodeId,
    lock: Lock,
    ticket: u64,
    granted: AtomicBool,
    given_up: AtomicBool,
}

impl Inner {
    /// A lock granted just when its caller went must not be held, for nobody knows of it. What the same owner held of
    /// the range before goes too: an interrupted call leaves that to chance anyway.
    async fn give_back(&self, wait: &Wait) {
        if wait.granted.load(Ordering::SeqCst) && wait.given_up.load(Ordering::SeqCst) {
            let request = ManagerRequest::Unlock { inode: wait.inode, lock: wait.lock };
            let _ = self.ask(wait.inode, request).await;
        }
    }
}

/// A call that waits for a lock; when dropped before its end, it tells the manager.
struct Waiting {
    inner: Arc<Inner>,
    wait: Option<Arc<Wait>>,
}

impl Waiting {
    fn end(mut self) {
        self.wait = None;
    }
}

impl Drop for Waiting {
    fn drop(&mut self) {
        let Some(wait) = self.wait.take() else { return };
        wait.given_up.store(true, Ordering::SeqCst);
        let inner = self.inner.clone();
        self.inner.host.spawn(async move {
            // A manager that is gone holds no waiting call.
            let cancel = ManagerRequest::CancelLock { inode: wait.inode, ticket: wait.ticket };
            let _ = inner.ask(wait.inode, cancel).await;
            inner.give_back(&wait).await;
        });
    }
}
