//! File locks, with those who wait for them. A waiter is a future; what frees its lock completes it. A call that is asked again
//! while it waits is one call.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard};

use async_lock::OnceCell;
use protocol::file::{Lock, LockOwner};
use protocol::id::{InodeId, SlotId};
use protocol::manager::{Answer, ManagerAnswer, ManagerError, ManagerRequest};

use crate::locks::{Locks, Taken, Ticket};
use crate::manager::Manager;

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

/// A call that waits. Gives the lock or the waiting up when it is dropped.
struct Waiting<'a> {
    locks: &'a FileLocks,
    inode: InodeId,
    lock: Lock,
    ticket: Ticket,
    outcome: Outcome,
    done: bool,
}

impl Waiting<'_> {
    async fn end(mut self) -> Result<(), ManagerError> {
        let outcome = self.outcome.wait().await.clone();
        self.done = true;
        outcome
    }
}

impl Drop for Waiting<'_> {
    fn drop(&mut self) {
        if self.done {
            return;
        }
        let mut state = self.locks.lock();
        state.end(self.ticket, Err(ManagerError::Interrupted));
        if !state.locks.cancel(self.inode, self.ticket) {
            let granted = state.locks.unlock(self.inode, &self.lock);
            state.grant(granted);
        }
    }
}

impl Manager {
    /// Answers what a node asks about locks.
    pub(crate) async fn answer_lock(&self, node: u32, request: ManagerRequest) -> ManagerAnswer {
        let locks = &self.locks;
        let answer = match request {
            ManagerRequest::Lock { inode, lock, wait, ticket } => {
                let ticket = wait.then_some((node, ticket));
                if let Some(waiting) = self.if_heard(inode, || locks.take(inode, lock, ticket))?? {
                    waiting.end().await?;
                }
                Answer::Done
            }
            ManagerRequest::CancelLock { inode, ticket } => {
                self.if_heard(inode, || locks.cancel(inode, (node, ticket)))?;
                Answer::Done
            }
            ManagerRequest::Unlock { inode, lock } => {
                self.if_heard(inode, || locks.unlock(inode, &lock))?;
                Answer::Done
            }
            ManagerRequest::UnlockAll { inode: Some(inode), owner } => {
                self.if_heard(inode, || locks.unlock_all(Some(inode), owner))?;
                Answer::Done
            }
            ManagerRequest::UnlockAll { inode: None, owner } => {
                locks.unlock_all(None, owner);
                Answer::Done
            }
            ManagerRequest::TestLock { inode, lock } => {
                Answer::Conflict(self.if_heard(inode, || locks.test(inode, &lock))?)
            }
            _ => return Err(ManagerError::Unsupported),
        };
        Ok(self.reply(answer))
    }

    /// Works on the locks of a slot that is here, and of which all clients have said what they hold.
    fn if_heard<T>(&self, inode: InodeId, work: impl FnOnce() -> T) -> Result<T, ManagerError> {
        // Under the slot's lock, so that it neither goes nor comes meanwhile.
        let done = self.table.with(inode.slot(), |state| (!state.tokens.is_unheard()).then(work));
        done.flatten().ok_or(ManagerError::NotMine)
    }
}

impl FileLocks {
    /// Takes a lock; with a ticket, waits for it.
    fn take(&self, inode: InodeId, lock: Lock, ticket: Option<Ticket>) -> Result<Option<Waiting<'_>>, ManagerError> {
        if !is_possible(&lock) {
            return Err(ManagerError::Invalid("the range ends before it begins".into()));
        }
        let wait = |ticket, outcome| Some(Waiting { locks: self, inode, lock, ticket, outcome, done: false });
        let mut state = self.lock();
        if let Some(ticket) = ticket
            && let Some(outcome) = state.waiting.get(&ticket)
        {
            return Ok(wait(ticket, outcome.clone()));
        }
        match (state.locks.lock(inode, lock, ticket), ticket) {
            (Taken::Conflict, _) => Err(ManagerError::Locked),
            (Taken::Deadlock, _) => Err(ManagerError::Deadlock),
            (Taken::Waits(granted), Some(ticket)) => {
                let outcome = Outcome::default();
                state.waiting.insert(ticket, outcome.clone());
                state.grant(granted);
                Ok(wait(ticket, outcome))
            }
            (Taken::Held(granted) | Taken::Waits(granted), _) => {
                state.grant(granted);
                Ok(None)
            }
        }
    }

    /// Ends a waiting call, if it still waits.
    fn cancel(&self, inode: InodeId, ticket: Ticket) {
        let mut state = self.lock();
        if state.locks.cancel(inode, ticket) {
            state.end(ticket, Err(ManagerError::Interrupted));
        }
    }

    /// Gives up what the owner holds of the family within the range.
    fn unlock(&self, inode: InodeId, lock: &Lock) {
        let mut state = self.lock();
        let granted = state.locks.unlock(inode, lock);
        state.grant(granted);
    }

    /// Gives up all locks of an owner, on one inode or on all.
    fn unlock_all(&self, inode: Option<InodeId>, owner: LockOwner) {
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

    /// These slots are another manager's: whoever waits asks that one.
    pub(crate) fn give_up(&self, slots: &[SlotId]) {
        let mut state = self.lock();
        let waited = state.locks.give_up(slots);
        waited.into_iter().for_each(|ticket| state.end(ticket, Err(ManagerError::NotMine)));
    }

    /// What a node said to hold of slots that arrived is void: it says it anew.
    pub(crate) fn disclaim(&self, slots: &[SlotId], node: u32) {
        self.lock().locks.disclaim(slots, node);
    }

    /// What a node says to hold of a slot that arrived.
    pub(crate) fn claim(&self, node: u32, inode: InodeId, lock: Lock) {
        if lock.owner.node == node && is_possible(&lock) {
            self.lock().locks.claim(inode, lock);
        }
    }

    /// A held lock that stands in the way.
    fn test(&self, inode: InodeId, lock: &Lock) -> Option<Lock> {
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

fn is_possible(lock: &Lock) -> bool {
    lock.start <= lock.last
}
