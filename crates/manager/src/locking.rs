//! File locks, with those who wait for them. A waiter is a future; what frees its lock completes it.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard};

use async_lock::OnceCell;
use protocol::file::{Lock, LockOwner};
use protocol::id::{InodeId, SlotId};
use protocol::manager::ManagerError;

use crate::locks::{Locks, Taken, Ticket};

/// How waiting ended.
type Outcome = Arc<OnceCell<Result<(), ManagerError>>>;

/// All file locks of a manager.
#[derive(Default)]
pub(crate) struct FileLocks {
    state: Mutex<State>,
}

#[derive(Default)]
struct State {
    locks: Locks,
    waiting: BTreeMap<Ticket, Outcome>,
}

impl State {
    fn grant(&mut self, tickets: Vec<Ticket>) {
        for ticket in tickets {
            self.end(ticket, Ok(()));
        }
    }

    fn end(&mut self, ticket: Ticket, outcome: Result<(), ManagerError>) {
        if let Some(waiter) = self.waiting.remove(&ticket) {
            // Nobody else sets it: whoever does takes the ticket out first.
            let _ = waiter.try_set(outcome);
        }
    }
}

/// Gives the lock or the waiting up when the waiting call is dropped.
struct Waiting<'a> {
    locks: &'a FileLocks,
    inode: InodeId,
    lock: Lock,
    ticket: Ticket,
    done: bool,
}

impl Drop for Waiting<'_> {
    fn drop(&mut self) {
        if self.done {
            return;
        }
        let mut state = self.locks.lock();
        state.waiting.remove(&self.ticket);
        if !state.locks.cancel(self.inode, self.ticket) {
            let granted = state.locks.unlock(self.inode, &self.lock);
            state.grant(granted);
        }
    }
}

impl FileLocks {
    /// Takes a lock; with a ticket, waits for it.
    pub(crate) async fn take(&self, inode: InodeId, lock: Lock, ticket: Option<Ticket>) -> Result<(), ManagerError> {
        if lock.start > lock.last {
            return Err(ManagerError::Invalid("the range ends before it begins".into()));
        }
        let (outcome, ticket) = {
            let mut state = self.lock();
            match (state.locks.lock(inode, lock, ticket), ticket) {
                (Taken::Conflict, _) => return Err(ManagerError::Locked),
                (Taken::Deadlock, _) => return Err(ManagerError::Deadlock),
                (Taken::Waits(granted), Some(ticket)) => {
                    let outcome = Outcome::default();
                    state.waiting.insert(ticket, outcome.clone());
                    state.grant(granted);
                    (outcome, ticket)
                }
                (Taken::Held(granted) | Taken::Waits(granted), _) => {
                    state.grant(granted);
                    return Ok(());
                }
            }
        };
        let mut waiting = Waiting { locks: self, inode, lock, ticket, done: false };
        let outcome = outcome.wait().await.clone();
        waiting.done = true;
        outcome
    }

    /// Ends a waiting call, if it still waits.
    pub(crate) fn cancel(&self, inode: InodeId, ticket: Ticket) {
        let mut state = self.lock();
        if state.locks.cancel(inode, ticket) {
            state.end(ticket, Err(ManagerError::Interrupted));
        }
    }

    /// Gives up what the owner holds of the family within the range.
    pub(crate) fn unlock(&self, inode: InodeId, lock: &Lock) {
        let mut state = self.lock();
        let granted = state.locks.unlock(inode, lock);
        state.grant(granted);
    }

    /// Gives up all locks of an owner, on one inode or on all.
    pub(crate) fn unlock_all(&self, inode: Option<InodeId>, owner: LockOwner) {
        let mut state = self.lock();
        let granted = state.locks.unlock_all(inode, owner);
        state.grant(granted);
    }

    /// A node's life is over: its locks are given up, and nobody waits for it any more.
    pub(crate) fn forget_node(&self, node: u32) {
        let mut state = self.lock();
        let (granted, given_up) = state.locks.forget_node(node);
        given_up.into_iter().for_each(|ticket| state.end(ticket, Err(ManagerError::Interrupted)));
        state.grant(granted);
    }

    /// Slots have another manager: their locks are there, and so are those asked who wait for one.
    pub(crate) fn leave(&self, slots: &[SlotId]) {
        let mut state = self.lock();
        let waited = state.locks.leave(|inode| slots.contains(&inode.slot()));
        waited.into_iter().for_each(|ticket| state.end(ticket, Err(ManagerError::NotMine)));
    }

    /// A held lock that stands in the way.
    pub(crate) fn test(&self, inode: InodeId, lock: &Lock) -> Option<Lock> {
        self.lock().locks.test(inode, lock)
    }

    /// How many locks are held on an inode.
    pub(crate) fn count(&self, inode: InodeId) -> u32 {
        self.lock().locks.count(inode) as u32
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().expect("nobody panics while locks are changed")
    }
}
