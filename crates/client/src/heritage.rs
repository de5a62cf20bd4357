//! What one process leaves to the next, which goes on as the same client: programs keep their files open, and their locks
//! (DESIGN §13, promise 3). Awaits.
//!
//! Invariants
//! 1. What the next process believes to hold is what this one held at its end: from when it is written down no manager is
//!    answered any more, so that nothing of it can be given up.
//! 2. All that was written is stored and known to managers by then: what a file is, the next process asks again.
//! 3. It is the same life to all others: the same log goes on, and numbers that name calls and tickets go on counting.

use std::sync::Arc;

use log::Rest;
use protocol::address::Position;
use protocol::file::Lock;
use protocol::id::{InodeId, LogId, SLOT_COUNT, SlotId};
use protocol::token::{Claims, Token, TokenMode};
use serde::{Deserialize, Serialize};

use crate::ClientError;
use crate::client::{Client, Inner, lock};

/// What is left. It outlives its process in bytes; nobody but a daemon of the same build reads them.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Heritage {
    pub(crate) rest: Rest,
    /// Through which record managers know all deltas.
    pub(crate) acknowledged: Position,
    pub(crate) next_number: u64,
    pub(crate) next_ticket: u64,
    pub(crate) opens: Vec<Open>,
    /// Slots held whole, tokens of inodes in others, and slots that were given up once.
    pub(crate) slots: Vec<SlotId>,
    pub(crate) tokens: Vec<Token>,
    pub(crate) shared: Vec<SlotId>,
    pub(crate) locks: Vec<(InodeId, Lock)>,
}

/// A file that programs have open.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) struct Open {
    pub(crate) inode: InodeId,
    pub(crate) count: u32,
    pub(crate) unlinked: bool,
    /// What went wrong in the background, in words, and nobody was told yet.
    pub(crate) failed: Option<String>,
}

impl Heritage {
    /// The log that goes on.
    pub fn log(&self) -> LogId {
        self.rest.log
    }
}

/// While it lives, no manager is answered. What one asks meanwhile it asks again.
pub struct Silence(#[allow(dead_code, reason = "dropping it ends the silence")] async_lock::RwLockWriteGuardArc<()>);

impl Client {
    /// Answers managers no more: returns when all that was asked before is answered.
    pub async fn fall_silent(&self) -> Silence {
        Silence(self.0.answering.write_arc().await)
    }

    /// Ends, and leaves everything to the next process. No call is under way any more. Where this fails before the log is at
    /// rest, the client goes on as if nothing had been.
    pub async fn bequeath(&self, _silence: &Silence) -> Result<Heritage, ClientError> {
        self.settle().await?;
        self.0.quiet_locks().await;
        self.0.end();
        let rest = self.0.log.rest().await?;
        Ok(self.0.heritage(rest))
    }
}

impl Inner {
    /// Waits until all that was begun about locks is answered: a wait that was broken off is ended at its manager.
    async fn quiet_locks(&self) {
        loop {
            let moved = self.locks_moved.listen();
            if lock(&self.locks).is_quiet() {
                return;
            }
            moved.await;
        }
    }

    fn heritage(&self, rest: Rest) -> Heritage {
        let (acknowledged, next_number, next_ticket) =
            (lock(&self.outbox).end(), self.numbers.next(), self.next_ticket());
        let mut heritage = Heritage {
            rest,
            acknowledged,
            next_number,
            next_ticket,
            opens: Vec::new(),
            slots: Vec::new(),
            tokens: Vec::new(),
            shared: Vec::new(),
            locks: Vec::new(),
        };
        for (&inode, file) in &*lock(&self.files) {
            let state = lock(&file.state);
            let failed = state.failed.as_ref().map(ToString::to_string);
            heritage.opens.extend(state.open(inode, failed));
        }
        for slot in (0..SLOT_COUNT).map(SlotId) {
            let Claims { slots, tokens, locks, .. } = self.claim_all(slot);
            heritage.shared.extend(self.tokens.slot(slot).was_shared().then_some(slot));
            heritage.slots.extend(slots);
            heritage.tokens.extend(tokens);
            heritage.locks.extend(locks);
        }
        heritage
    }

    /// Takes over what an earlier process left. Nothing has been asked yet.
    pub(crate) fn inherit(self: &Arc<Self>, heritage: Heritage) {
        let Heritage { acknowledged, next_number, opens, slots, tokens, shared, locks, .. } = heritage;
        lock(&self.outbox).acknowledge(acknowledged);
        self.numbers.go_on_from(next_number);
        for open in opens {
            lock(&self.entry(open.inode).state).inherit(open);
        }
        shared.into_iter().for_each(|slot| self.tokens.slot(slot).inherit_shared());
        slots.into_iter().for_each(|slot| self.tokens.slot(slot).inherit_whole());
        for token in tokens {
            self.tokens.slot(token.inode.slot()).inherit(token);
            if token.mode != TokenMode::Names {
                // So that it is forgotten some day.
                self.entry(token.inode);
            }
        }
        let mut own = lock(&self.locks);
        locks.into_iter().for_each(|(inode, lock)| own.inherit(inode, lock));
    }
}
