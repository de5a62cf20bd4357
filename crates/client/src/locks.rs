//! File locks: managers keep them, this file asks, waits and gives up waiting. What is held is known here too, for a manager
//! that takes the slot over (`held_locks` decides). Awaits.

use std::pin::pin;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard};

use async_lock::OnceCell;
use futures_util::future::{Either, select};
use protocol::file::{Lock, LockOwner};
use protocol::id::InodeId;
use protocol::manager::{Answer, ManagerError, ManagerRequest};

use crate::ClientError;
use crate::ask::PAUSE;
use crate::client::{Client, Inner};
use crate::held_locks::{Asked, Given, OwnLocks};
use crate::whole::whole;

impl Client {
    /// How the cluster calls what this node's kernel calls `owner`.
    pub fn lock_owner(&self, owner: u64) -> LockOwner {
        LockOwner { node: self.0.host.node().0, owner }
    }

    /// Takes a lock at once; [`protocol::manager::ManagerError::Locked`] if another stands in the way.
    pub async fn lock(&self, inode: InodeId, lock: Lock) -> Result<(), ClientError> {
        let inner = self.0.clone();
        whole(&self.0.host, async move { inner.take_lock(inode, lock, None).await }).await
    }

    /// Takes a lock for a user, waiting for others; [`ClientError::NoLocks`] if too many calls wait already, all in all or of
    /// that user. Dropping the future gives up waiting.
    pub async fn lock_waiting(&self, user: u32, inode: InodeId, lock: Lock) -> Result<(), ClientError> {
        let place = Place::take(&self.0, user).ok_or(ClientError::NoLocks)?;
        let (ticket, ended, given_up) = (self.0.ticket(), OnceCell::new(), false.into());
        let wait = Arc::new(Wait { inode, lock, ticket, ended, given_up, _place: place });
        let guard = Waiting { inner: self.0.clone(), wait: Some(wait.clone()) };
        let inner = self.0.clone();
        let outcome = whole(&self.0.host, async move {
            let outcome = inner.take_lock(inode, lock, Some(&wait)).await;
            // Nobody else sets it.
            let _ = wait.ended.try_set(outcome.is_ok());
            outcome
        })
        .await;
        guard.end();
        outcome
    }

    /// Gives up what the owner holds of the lock's family within its range.
    pub async fn unlock(&self, inode: InodeId, lock: Lock) -> Result<(), ClientError> {
        let inner = self.0.clone();
        let request = ManagerRequest::Unlock { inode, lock };
        whole(&self.0.host, async move { inner.give(inode, (lock.owner, Given::Range(lock)), request).await }).await
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
        whole(&self.0.host, async move { inner.give(inode, (owner, Given::All), request).await }).await
    }
}

/// A call that waits for a lock.
struct Wait {
    inode: InodeId,
    lock: Lock,
    ticket: u64,
    /// Set when it ends: whether the lock is, or may be, granted.
    ended: OnceCell<bool>,
    /// Nobody waits for the lock any more.
    given_up: AtomicBool,
    /// Held until the manager has answered.
    _place: Place,
}

/// That a user's call waits, until it is dropped.
struct Place {
    inner: Arc<Inner>,
    user: u32,
}

impl Place {
    fn take(inner: &Arc<Inner>, user: u32) -> Option<Place> {
        let may_wait = crate::client::lock(&inner.lock_waits).begin(user);
        may_wait.then(|| Place { inner: inner.clone(), user })
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        crate::client::lock(&self.inner.lock_waits).end(self.user);
    }
}

impl Wait {
    fn is_given_up(&self) -> bool {
        self.given_up.load(Ordering::SeqCst)
    }
}

impl Inner {
    /// Takes a lock, waiting for others if the call is to. Asked again until an answer says that it is held by now, and that
    /// whoever manages the inode by now knows it; or until nobody waits for it.
    async fn take_lock(&self, inode: InodeId, lock: Lock, wait: Option<&Wait>) -> Result<(), ClientError> {
        let ticket = wait.map_or(0, |wait| wait.ticket);
        let request = ManagerRequest::Lock { inode, lock, wait: wait.is_some(), ticket };
        let mut may_be_held = false;
        while let Some(asked) = self.begin_lock(inode, &lock, wait).await {
            let turn = self.tokens.turn();
            let outcome = self.ask(inode, request.clone()).await;
            let slot = self.tokens.slot(inode.slot());
            let granted = (outcome.is_ok() && slot.stands(turn)).then_some(lock);
            let is_held = table(&self.locks).end_ask(inode, lock.owner, asked, granted);
            if is_held || outcome.is_err() || wait.is_some_and(Wait::is_given_up) {
                return outcome.map(drop);
            }
            may_be_held = true;
        }
        may_be_held.then_some(()).ok_or(ManagerError::Interrupted.into())
    }

    /// Waits until the owner is not about to give up locks of the inode. None if nobody waits for the lock any more.
    async fn begin_lock(&self, inode: InodeId, lock: &Lock, wait: Option<&Wait>) -> Option<Asked> {
        loop {
            let moved = self.locks_moved.listen();
            if wait.is_some_and(Wait::is_given_up) {
                return None;
            }
            let begun = table(&self.locks).begin_ask(inode, lock, wait.is_some());
            match begun {
                Some(asked) => return Some(asked),
                None => moved.await,
            }
        }
    }

    async fn give(
        &self,
        inode: InodeId,
        (owner, what): (LockOwner, Given),
        request: ManagerRequest,
    ) -> Result<(), ClientError> {
        table(&self.locks).begin_give(inode, owner, &what);
        let outcome = self.ask(inode, request).await;
        table(&self.locks).end_give(inode, owner);
        self.locks_moved.notify(usize::MAX);
        outcome.map(drop)
    }

    /// Ends a call that nobody waits for. A lock that it was granted must not be held, for nobody knows of it. What the same
    /// owner held of the range before goes too: an interrupted call leaves that to chance anyway.
    async fn end_waiting(&self, wait: &Wait) {
        let (inode, lock, ticket) = (wait.inode, wait.lock, wait.ticket);
        let is_granted = loop {
            // A manager that is gone holds no waiting call; but the next one may be asked just now.
            let _ = self.ask(inode, ManagerRequest::CancelLock { inode, ticket }).await;
            match select(pin!(wait.ended.wait()), pin!(self.host.sleep(PAUSE))).await {
                Either::Left((is_granted, _)) => break *is_granted,
                Either::Right(_) => {}
            }
        };
        if is_granted {
            let _ = self.give(inode, (lock.owner, Given::Range(lock)), ManagerRequest::Unlock { inode, lock }).await;
        }
        table(&self.locks).end_give(inode, lock.owner);
        self.locks_moved.notify(usize::MAX);
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
        // First of all, so that an answer beside which locks are given up is not asked for again.
        wait.given_up.store(true, Ordering::SeqCst);
        // What the owner asks for from now on comes behind the end of this.
        table(&self.inner.locks).begin_give(wait.inode, wait.lock.owner, &Given::Unknown);
        self.inner.locks_moved.notify(usize::MAX);
        let inner = self.inner.clone();
        self.inner.host.spawn(async move { inner.end_waiting(&wait).await });
    }
}

fn table(locks: &Mutex<OwnLocks>) -> MutexGuard<'_, OwnLocks> {
    crate::client::lock(locks)
}
