//! Tokens of all slots as calls use them: pinned while a call works, asked for when they are missing. Awaits; `tokens`
//! decides.
//!
//! Locks are taken in this order: the table of files, a slot's tokens, a file's state or the file locks.

use std::pin::pin;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard};

use event_listener::Event;
use futures_util::future::select;
use protocol::id::{InodeId, SLOT_COUNT, SlotId};
use protocol::manager::{ManagerError, ManagerRequest, has_content};
use protocol::token::{Grant, Token, TokenMode};

use crate::ClientError;
use crate::ask::{PATIENCE, PAUSE};
use crate::client::{Inner, lock};
use crate::opens::OpenFile;
use crate::tokens::{Pinned, SlotTokens, Turn};

/// The tokens of a client.
pub(crate) struct Tokens {
    slots: Vec<Mutex<SlotTokens>>,
    turns: AtomicU64,
    /// How many files were given up: what a manager told before may be from before.
    lost: AtomicU64,
    /// A pin, a question or a call-back ended that somebody waits for.
    pub(crate) moved: Event,
    /// Directories whose names were granted since all were given up; not those of an earlier process.
    names: AtomicUsize,
    names_max: usize,
    many: Event,
}

impl Tokens {
    pub(crate) fn new(names_max: usize) -> Tokens {
        let slots = (0..SLOT_COUNT).map(|_| Mutex::default()).collect();
        let (turns, lost, names) = (AtomicU64::new(0), AtomicU64::new(0), AtomicUsize::new(0));
        Tokens { slots, turns, lost, moved: Event::new(), names, names_max, many: Event::new() }
    }

    /// Waits until the names of more directories were granted than are kept, and counts anew.
    pub(crate) async fn names_are_many(&self) {
        loop {
            let many = self.many.listen();
            if self.names.load(Ordering::Acquire) > self.names_max {
                return self.names.store(0, Ordering::Release);
            }
            many.await;
        }
    }

    /// What is held of a slot.
    ///
    /// # Panics
    /// For no slot: whoever takes one from a peer looks first.
    pub(crate) fn slot(&self, slot: SlotId) -> MutexGuard<'_, SlotTokens> {
        lock(&self.slots[usize::from(slot.0)])
    }

    /// The newest turn: remembered before a question is sent.
    pub(crate) fn turn(&self) -> Turn {
        Turn(self.turns.load(Ordering::Acquire))
    }

    /// A call-back came.
    pub(crate) fn next_turn(&self) -> Turn {
        Turn(self.turns.fetch_add(1, Ordering::AcqRel) + 1)
    }

    /// A question about an inode of which the slot knows that it is asked.
    fn asking(&self, inode: InodeId) -> Asking<'_> {
        Asking { tokens: self, inode, turn: self.turn(), granted: None, is_over: false }
    }

    /// Begins to ask for the names of a directory, beside a look at it; unless that is needless.
    pub(crate) fn ask_names(&self, directory: InodeId) -> Option<Asking<'_>> {
        let wants = self.slot(directory.slot()).wants_names(directory);
        wants.then(|| self.asking(directory))
    }

    /// Begins to ask for a file, beside opening it; unless that is needless.
    pub(crate) fn ask_file(&self, inode: InodeId) -> Option<Asking<'_>> {
        let wants = self.slot(inode.slot()).wants_file(inode);
        wants.then(|| self.asking(inode))
    }

    /// How many files and directories were given up so far.
    pub(crate) fn lost(&self) -> u64 {
        self.lost.load(Ordering::Acquire)
    }

    /// One more was.
    pub(crate) fn lose(&self) {
        self.lost.fetch_add(1, Ordering::AcqRel);
    }
}

/// A token that a call works under.
pub(crate) struct Pin<'a> {
    tokens: &'a Tokens,
    inode: InodeId,
    mode: TokenMode,
}

impl Drop for Pin<'_> {
    fn drop(&mut self) {
        if self.tokens.slot(self.inode.slot()).unpin(self.inode, self.mode) {
            self.tokens.moved.notify(usize::MAX);
        }
    }
}

/// A question under way; dropped, it has had no answer.
pub(crate) struct Asking<'a> {
    tokens: &'a Tokens,
    inode: InodeId,
    turn: Turn,
    granted: Option<Token>,
    is_over: bool,
}

impl Asking<'_> {
    /// The answer grants this.
    pub(crate) fn take(&mut self, granted: Option<Grant>) {
        if let Some(Grant::Inode(token)) = granted {
            self.granted = Some(token);
        }
    }

    /// It is over. Whether what was granted is held from now on.
    pub(crate) fn end(mut self) -> bool {
        self.finish()
    }

    fn finish(&mut self) -> bool {
        if std::mem::replace(&mut self.is_over, true) {
            return false;
        }
        let taken = self.tokens.slot(self.inode.slot()).end_ask(self.inode, self.turn, self.granted);
        self.tokens.moved.notify(usize::MAX);
        if taken && self.granted.is_some_and(|token| token.mode == TokenMode::Names) {
            self.tokens.names.fetch_add(1, Ordering::AcqRel);
            self.tokens.many.notify(1);
        }
        taken
    }
}

impl Drop for Asking<'_> {
    fn drop(&mut self) {
        self.finish();
    }
}

impl Inner {
    /// Pins an inode, asking its manager for a token where none is held. The caller has pinned nothing else.
    pub(crate) async fn pin(&self, inode: InodeId, mode: TokenMode) -> Result<Pin<'_>, ClientError> {
        let deadline = self.host.now() + PATIENCE;
        loop {
            let moved = match self.try_to_pin(inode, mode) {
                (Pinned::Yes, _) => return Ok(Pin { tokens: &self.tokens, inode, mode }),
                (Pinned::Wait, moved) => moved,
                (Pinned::Ask, _) => {
                    self.ask_token(inode, mode, deadline).await?;
                    continue;
                }
            };
            if self.is_stopped() {
                return Err(ClientError::Stopped);
            }
            if self.host.now() >= deadline {
                return Err(ClientError::Unreachable("a token is on its way".into()));
            }
            let moved = moved.expect("who waits listens");
            select(moved, pin!(self.host.sleep_until(deadline))).await;
        }
    }

    fn try_to_pin(&self, inode: InodeId, mode: TokenMode) -> (Pinned, Option<event_listener::EventListener>) {
        let first = self.tokens.slot(inode.slot()).pin(inode, mode);
        if first != Pinned::Wait {
            return (first, None);
        }
        // Looked once more after beginning to listen: nothing was missed.
        let moved = self.tokens.moved.listen();
        (self.tokens.slot(inode.slot()).pin(inode, mode), Some(moved))
    }

    /// Asks once; what is granted is held when this returns. Errors that pass are waited out.
    async fn ask_token(&self, inode: InodeId, mode: TokenMode, deadline: host::Moment) -> Result<(), ClientError> {
        let mut asking = self.tokens.asking(inode);
        let manager = self.manager_of(inode);
        let problem = match self.ask_node(manager, ManagerRequest::Token { inode, mode }).await {
            Ok(Ok(reply)) => {
                asking.take(reply.granted);
                return Ok(());
            }
            Ok(Err(error @ (ManagerError::NotMine | ManagerError::Held))) => error.to_string(),
            // Only files have tokens.
            Ok(Err(ManagerError::Unsupported)) => return Err(ClientError::Invalid),
            Ok(Err(error)) => return Err(error.into()),
            Err(unreachable) => unreachable.to_string(),
        };
        drop(asking);
        if self.host.now() >= deadline || self.is_stopped() {
            return Err(ClientError::Unreachable(problem));
        }
        let _ = self.cluster.refresh().await;
        self.host.sleep(PAUSE).await;
        Ok(())
    }

    /// Pins an inode of which something is held, after waiting for a call-back under way.
    pub(crate) async fn pin_held(&self, inode: InodeId) -> Option<Pin<'_>> {
        loop {
            let moved = self.tokens.moved.listen();
            let pinned = self.tokens.slot(inode.slot()).pin_held(inode)?;
            match pinned {
                Pinned::Yes => return Some(Pin { tokens: &self.tokens, inode, mode: TokenMode::Read }),
                Pinned::Wait | Pinned::Ask => moved.await,
            }
        }
    }

    /// Pins an inode of which something is held, at once or not.
    pub(crate) fn try_pin(&self, inode: InodeId) -> Option<Pin<'_>> {
        let pinned = self.tokens.slot(inode.slot()).pin_held(inode)?;
        (pinned == Pinned::Yes).then(|| Pin { tokens: &self.tokens, inode, mode: TokenMode::Read })
    }

    /// A file that was made by a question of that turn, and perhaps granted beside: pinned, where nobody else can have
    /// touched it, nor a program here without leaving a trace.
    pub(crate) fn pin_made(&self, inode: InodeId, granted: Option<Token>, asked: Turn) -> Option<Pin<'_>> {
        let mut held = self.tokens.slot(inode.slot());
        let is_pinned = held.take_made(inode, granted, asked) && held.pin_held(inode) == Some(Pinned::Yes);
        is_pinned.then(|| Pin { tokens: &self.tokens, inode, mode: TokenMode::Read })
    }

    /// The file, pinned; its manager is asked about one that is not in memory.
    pub(crate) async fn known(&self, inode: InodeId, mode: TokenMode) -> Result<(Arc<OpenFile>, Pin<'_>), ClientError> {
        let pin = self.pin(inode, mode).await?;
        let file = self.entry(inode);
        if lock(&file.state).file.is_some() {
            return Ok((file, pin));
        }
        let opening = file.opening.lock().await;
        if lock(&file.state).file.is_none() {
            // What is asked while the shape changes may be told from before, and kept behind it.
            let _shape = file.shape.read().await;
            let unchanging = lock(&file.state).unchanging();
            let reply = self.ask(inode, ManagerRequest::Attributes(inode)).await?;
            let (attributes, content) = crate::names::entry(reply)?;
            if !has_content(attributes.kind) {
                return Err(ClientError::Invalid);
            }
            lock(&file.state).know(&attributes, content, unchanging);
        }
        drop(opening);
        Ok((file, pin))
    }
}
