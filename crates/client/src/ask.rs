//! Calls to managers: finding them, trying again, and remembering how far their journals are. Awaits.

use std::time::Duration;

use host::{Address, NodeId, Port};
use protocol::id::{InodeId, SLOT_COUNT};
use protocol::manager::{MANAGER_PORT, ManagerAnswer, ManagerError, ManagerReply, ManagerRequest};
use protocol::once::{CallId, Once, OnceName, needs_once};
use protocol::token::Grant;

use tracing::{debug, warn};

use crate::ClientError;
use crate::client::{Inner, lock};
use crate::journals::OwedFlush;
use crate::numbers::CallNumber;
use crate::opens::State;

/// Between two attempts, so that a manager that restarts is not flooded.
pub(crate) const PAUSE: Duration = Duration::from_millis(100);
/// After so long without a manager a call fails: no program hangs for ever (DESIGN §13, promise 3).
pub(crate) const PATIENCE: Duration = Duration::from_secs(30);

/// How long a message may be on its way: who stood still for longer lost its lease, and carries nothing out.
const LATE: Duration = Duration::from_secs(5);

impl Inner {
    /// Asks the manager of `inode` for a change of all of `changed`, whose next fsync then covers it.
    pub(crate) async fn change(
        &self,
        inode: InodeId,
        changed: &[InodeId],
        request: ManagerRequest,
    ) -> Result<ManagerReply, ClientError> {
        self.tell_files(changed, State::begin_change);
        let reply = self.ask(inode, request).await;
        self.tell_files(changed, State::end_change);
        let reply = reply?;
        let mut journals = lock(&self.journals);
        for &inode in changed {
            journals.note(inode, &reply);
        }
        Ok(reply)
    }

    /// Notes that `reply` was about `inode` too, which was not known when it was asked for.
    pub(crate) fn note(&self, inode: InodeId, reply: &ManagerReply) {
        self.tell_files(&[inode], State::changed);
        lock(&self.journals).note(inode, reply);
    }

    /// Does this to those of which something is known, or asked.
    pub(crate) fn tell_files(&self, inodes: &[InodeId], tell: fn(&mut State)) {
        inodes.iter().filter_map(|&inode| self.find(inode)).for_each(|file| tell(&mut lock(&file.state)));
    }

    /// Which node manages `inode`, as far as this node knows.
    pub(crate) fn manager_of(&self, inode: InodeId) -> NodeId {
        NodeId(self.cluster.maps().slot(inode.slot().0).node)
    }

    /// Asks the manager of `inode`, wherever it moves and as long as that takes.
    pub(crate) async fn ask(&self, inode: InodeId, request: ManagerRequest) -> Result<ManagerReply, ClientError> {
        let mut deadline = self.host.now() + PATIENCE;
        let (mut number, mut problem, mut is_unsure) = (None, String::new(), false);
        loop {
            let (manager, asked) = (self.manager_of(inode), self.host.now());
            let is_own = manager == self.host.node();
            if number.is_none() && needs_once(&request) && !is_own {
                number = Some(self.numbers.take());
            }
            // What may yet be on its way when the call fails must come to nothing.
            let patience = (deadline - LATE).since(asked);
            let sent = match &number {
                Some(_) if patience.is_zero() => {
                    self.host.sleep_until(deadline).await;
                    return Err(ClientError::Unreachable(problem));
                }
                Some(number) => ManagerRequest::Once(Once::new(self.once(inode, number), patience, &request)),
                None => request.clone(),
            };
            problem = match self.ask_node(manager, sent).await {
                Ok(Ok(reply)) => return Ok(reply),
                // Refused before anything was done: always safe to ask again.
                Ok(Err(ManagerError::NotMine)) => "the slot is between two managers".to_owned(),
                Ok(Err(error @ ManagerError::Held)) => error.to_string(),
                Ok(Err(error)) => {
                    debug!(manager = manager.0, ?request, %error, "a manager refused");
                    // Whoever heard it first may still be at it.
                    let may_pass = matches!(error, ManagerError::Failed(_) | ManagerError::NoRoom);
                    if is_unsure && may_pass && !self.is_stopped() {
                        self.host.sleep_until(deadline).await;
                    }
                    return Err(error.into());
                }
                // Whether it took effect is unknown: only what may happen twice, or happens once, is asked again. A manager in
                // this process answers whatever it hears: it is not there yet.
                Err(unreachable) if is_own || number.is_some() || is_repeatable(&request) => {
                    is_unsure |= number.is_some();
                    unreachable.to_string()
                }
                Err(unreachable) => {
                    warn!(manager = manager.0, ?request, %unreachable, "a call failed");
                    return Err(ClientError::Unreachable(unreachable.to_string()));
                }
            };
            // While others held the lock that is waited for, there was a manager.
            if let ManagerRequest::Lock { wait: true, .. } = request {
                deadline = deadline + (self.host.now() - asked);
            }
            if self.host.now() >= deadline || self.is_stopped() {
                return Err(ClientError::Unreachable(problem));
            }
            // A registry that does not answer is met again in the next round.
            let _ = self.cluster.refresh().await;
            if self.manager_of(inode) == manager {
                self.host.sleep(PAUSE).await;
            }
        }
    }

    fn once(&self, inode: InodeId, number: &CallNumber<'_>) -> OnceName {
        let call = CallId { client: self.log.log(), number: number.get() };
        OnceName { call, below: self.numbers.below(), slot: inode.slot() }
    }

    /// Waits until a journal is `disk` as far as it is owed. Where its manager has died, that is when it is sealed; what is not
    /// in it then is noted.
    pub(crate) async fn flush_at(&self, owed: OwedFlush) -> Result<(), ClientError> {
        let deadline = self.host.now() + PATIENCE;
        loop {
            let problem = match self.ask_node(owed.manager, ManagerRequest::Flush(owed.journal, owed.through)).await {
                Ok(Ok(_)) => return Ok(()),
                Ok(Err(ManagerError::NotMine)) => format!("log {} has another manager", owed.journal.0),
                Ok(Err(error)) => return Err(error.into()),
                Err(unreachable) => unreachable.to_string(),
            };
            if let Ok(maps) = self.cluster.knowing(owed.journal).await
                && maps.is_over(owed.journal)
            {
                lock(&self.journals).forget(owed.journal, maps.sealed_length(owed.journal));
                return Ok(());
            }
            if self.host.now() >= deadline || self.is_stopped() {
                return Err(ClientError::Unreachable(problem));
            }
            self.host.sleep(PAUSE).await;
        }
    }

    /// Asks the manager on one node, once.
    pub(crate) async fn ask_node(
        &self,
        manager: NodeId,
        request: ManagerRequest,
    ) -> Result<ManagerAnswer, host::Unreachable> {
        if !lock(&self.greeted).contains(&manager)
            && let Err(error) = self.greet(manager).await?
        {
            return Ok(Err(error));
        }
        let turn = self.tokens.turn();
        let answer = self.call_manager(manager, request).await?;
        if let Ok(reply) = &answer {
            lock(&self.journals).learn(manager, reply);
            if let Some(Grant::Slot(slot)) = reply.granted.filter(|grant| is_possible(*grant)) {
                self.tokens.slot(slot).take_whole(turn);
            }
        }
        Ok(answer)
    }

    async fn call_manager(&self, manager: NodeId, request: ManagerRequest) -> Result<ManagerAnswer, host::Unreachable> {
        let to = Address { node: manager, port: Port(MANAGER_PORT) };
        self.host.call::<ManagerRequest, ManagerAnswer>(to, request).await
    }

    /// Says which log this client writes, before anything else: what its node did in an earlier life is at its end.
    async fn greet(&self, manager: NodeId) -> Result<Result<(), ManagerError>, host::Unreachable> {
        let _one = self.greeting.lock().await;
        if !lock(&self.greeted).contains(&manager) {
            if let Err(error) = self.call_manager(manager, ManagerRequest::Greet(self.log.log())).await? {
                return Ok(Err(error));
            }
            lock(&self.greeted).insert(manager);
        }
        Ok(Ok(()))
    }
}

/// Whether what a peer grants exists.
fn is_possible(grant: Grant) -> bool {
    matches!(grant, Grant::Slot(slot) if slot.0 < SLOT_COUNT)
}

/// Whether asking twice is the same as asking once.
fn is_repeatable(request: &ManagerRequest) -> bool {
    use ManagerRequest::{
        Attributes, CancelLock, Census, Close, Content, Deltas, Flush, List, ListXattrs, Live, Lock, Look, Lookup,
        Open, Parent, Pieces, ReadLink, TestLock, Unlock, UnlockAll, Why, Xattr,
    };
    matches!(
        request,
        Attributes(_)
            | CancelLock { .. }
            | Census
            | Close(_)
            | Content { .. }
            | Deltas(_)
            | Flush(..)
            | List { .. }
            | ListXattrs(_)
            | Live(..)
            | Lock { .. }
            | Look { .. }
            | Lookup { .. }
            | Open { .. }
            | Parent(_)
            | Pieces { .. }
            | ReadLink(_)
            | TestLock { .. }
            | Unlock { .. }
            | UnlockAll { .. }
            | Why(_)
            | Xattr { .. }
    )
}
