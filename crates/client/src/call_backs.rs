//! What managers ask of this client (`docs/tokens.md`). Awaits. Runs on tasks that serve no call, so that a call may go on
//! which the kernel's invalidation waits for.

use std::pin::pin;
use std::sync::Arc;
use std::time::Duration;

use futures_util::future::select;
use host::{BoxFuture, Envelope, Handler, NodeId, Port};
use protocol::id::{InodeId, SLOT_COUNT, SlotId};
use protocol::manager::ManagerError;
use protocol::token::{Ahead, CLIENT_PORT, ClientAnswer, ClientRequest, TokenMode, TokenVersion};

use crate::ClientError;
use crate::client::{Client, Inner, lock};
use crate::file::File;
use crate::opens::OpenFile;
use crate::tokens::{Demand, Kept};

/// How long a call-back waits for the answer that grants what it calls back. It was sent before; or it is lost.
const GRANT_WAIT: Duration = Duration::from_millis(500);
/// What lies above the client and keeps copies of its own: a kernel.
pub trait Above: Send + Sync {
    /// Forgets a file's attributes and pages; changed pages are written first.
    fn forget_file(&self, inode: InodeId, calls: Calls) -> BoxFuture<'static, ()>;
    /// Forgets the names in directories, and their attributes.
    fn forget_directories(&self, directories: Vec<InodeId>) -> BoxFuture<'static, ()>;
    /// Forgets the names of all directories of the slot, and attributes: of those, and of `files`.
    fn forget_names(&self, slot: SlotId, files: Vec<InodeId>) -> BoxFuture<'static, ()>;
    /// Forgets all names and attributes, and what it has of the content of `files`: all that are in use.
    fn forget_all(&self, files: Vec<InodeId>) -> BoxFuture<'static, ()>;
}

/// What becomes of calls on a file while what lies above forgets it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Calls {
    /// The client takes them, and they may be waited for.
    GoOn,
    /// They wait themselves, and what only waits for one of them is as good as forgotten.
    Wait,
}

/// Above a client that is mounted nowhere.
pub struct NothingAbove;

impl Above for NothingAbove {
    fn forget_file(&self, _inode: InodeId, _calls: Calls) -> BoxFuture<'static, ()> {
        Box::pin(std::future::ready(()))
    }

    fn forget_directories(&self, _directories: Vec<InodeId>) -> BoxFuture<'static, ()> {
        Box::pin(std::future::ready(()))
    }

    fn forget_names(&self, _slot: SlotId, _files: Vec<InodeId>) -> BoxFuture<'static, ()> {
        Box::pin(std::future::ready(()))
    }

    fn forget_all(&self, _files: Vec<InodeId>) -> BoxFuture<'static, ()> {
        Box::pin(std::future::ready(()))
    }
}

impl Client {
    /// Answers managers from now on. `above` is told what to forget. Once in a node's life.
    pub fn answer_managers(&self, above: Arc<dyn Above>) {
        let (inner, told) = (self.0.clone(), above.clone());
        self.0.host.spawn(async move { inner.watch_lease(told).await });
        let (inner, told) = (self.0.clone(), above.clone());
        self.0.host.spawn(async move { inner.watch_names(told).await });
        self.0.host.listen(Port(CLIENT_PORT), Arc::new(Door { inner: self.0.clone(), above }));
    }

    /// Whether this client alone uses the slot of an inode, and the lease of its machine holds for so much longer: names in a
    /// directory, and attributes, change only through it until then, or until it gives the slot up.
    pub fn is_alone_for(&self, inode: InodeId, longer: Duration) -> bool {
        self.0.tokens.slot(inode.slot()).is_whole() && self.0.cluster.is_trusted_for(longer)
    }

    /// Whether nobody else changes a directory's names or attributes without what lies above being told to forget them. What
    /// was asked for before something was given up may be older ([`Client::given_up`]).
    pub fn keeps_names(&self, directory: InodeId) -> bool {
        self.0.tokens.slot(directory.slot()).keeps_names(directory) && self.0.cluster.is_trusted()
    }

    /// How long a file is, if that is known here.
    pub fn size_known(&self, inode: InodeId) -> Option<u64> {
        let file = self.0.find(inode)?;
        lock(&file.state).file.as_ref().map(File::size)
    }

    /// How much was given up so far.
    pub fn given_up(&self) -> u64 {
        self.0.tokens.lost()
    }
}

impl Client {
    /// Whether what the kernel kept of a file's pages is what the file has: nothing was given up since.
    pub fn keeps_pages(&self, inode: InodeId) -> bool {
        {
            let held = self.0.tokens.slot(inode.slot());
            if held.is_whole() && !held.was_shared() {
                return true;
            }
        }
        let pin = self.0.try_pin(inode);
        pin.is_some() && self.0.find(inode).is_some_and(|file| lock(&file.state).file.is_some())
    }
}

struct Door {
    inner: Arc<Inner>,
    above: Arc<dyn Above>,
}

impl Handler for Door {
    fn handle(&self, _from: NodeId, request: Envelope) -> BoxFuture<'static, Envelope> {
        let (inner, above) = (self.inner.clone(), self.above.clone());
        Box::pin(async move {
            let _answering = inner.answering.read().await;
            let answer = match request.open::<ClientRequest>() {
                Ok(request) => inner.answer(&*above, request).await,
                Err(_) => ClientAnswer::Failed("no request to a client".into()),
            };
            Envelope::new(answer)
        })
    }
}

impl Inner {
    async fn answer(self: &Arc<Self>, above: &dyn Above, request: ClientRequest) -> ClientAnswer {
        match request {
            ClientRequest::GiveUpSlot { life, .. }
            | ClientRequest::GiveUp { life, .. }
            | ClientRequest::Attributes { life, .. }
                if life != self.log.log() =>
            {
                // What that one held is in its log, and not here.
                ClientAnswer::Failed("another life is meant".into())
            }
            ClientRequest::GiveUpSlot { slot, .. } if slot.0 >= SLOT_COUNT => {
                ClientAnswer::Failed("no such slot".into())
            }
            ClientRequest::GiveUpSlot { slot, version, .. } => self.give_up_slot(above, slot, version).await,
            ClientRequest::GiveUp { inode, version, keep, .. } => match self.give_up(above, inode, version, keep).await
            {
                Ok(()) => ClientAnswer::Done,
                Err(error) => ClientAnswer::Failed(error.to_string()),
            },
            ClientRequest::Attributes { inode, .. } => ClientAnswer::Ahead(self.ahead(inode).await),
            ClientRequest::Claim { slots, from } => ClientAnswer::Claim(self.log.log(), self.claim(&slots, from)),
            ClientRequest::Settle => match Client(self.clone()).settle().await {
                Ok(()) => ClientAnswer::Done,
                Err(error) => ClientAnswer::Failed(error.to_string()),
            },
        }
    }

    /// The slot is no longer ours alone.
    async fn give_up_slot(&self, above: &dyn Above, slot: SlotId, version: TokenVersion) -> ClientAnswer {
        let tokens = {
            let turn = self.tokens.next_turn();
            let files = lock(&self.files);
            let mut held = self.tokens.slot(slot);
            let kept = files.range(slot.inodes()).filter_map(|(&inode, file)| Some((inode, mode_needed(file)?)));
            held.narrow(turn, version, kept)
        };
        self.tokens.lose();
        above.forget_names(slot, tokens.iter().map(|token| token.inode).collect()).await;
        ClientAnswer::Tokens(tokens)
    }

    /// Gives a token up, or all but `keep` of it.
    async fn give_up(
        &self,
        above: &dyn Above,
        inode: InodeId,
        version: TokenVersion,
        keep: Option<TokenMode>,
    ) -> Result<(), ClientError> {
        let until = self.host.now() + GRANT_WAIT;
        loop {
            let moved = self.tokens.moved.listen();
            let demand = self.tokens.slot(inode.slot()).demand(inode, version);
            match demand {
                Demand::Nothing => return Ok(()),
                Demand::GiveUp => break,
                Demand::Follow => moved.await,
                Demand::Wait if self.host.now() >= until => self.tokens.slot(inode.slot()).spoil(inode, version),
                Demand::Wait => drop(select(moved, pin!(self.host.sleep_until(until))).await),
            }
        }
        let mut called = Called { inner: self, inode, kept: Kept::All };
        let mode = self.tokens.slot(inode.slot()).mode(inode);
        if mode == Some(TokenMode::Names) {
            // From now on nothing goes up with a validity; what does without one is looked at anew each time.
            above.forget_directories(vec![inode]).await;
            self.tokens.lose();
            called.kept = Kept::Nothing;
            return Ok(());
        }
        self.forget_above(above, inode, keep).await;
        self.store(inode).await?;
        if keep.is_none() {
            // First: who has an answer from before, and then finds the file no more, asks again.
            self.tokens.lose();
            if let Some(file) = self.find(inode) {
                self.abandon(&file);
                lock(&file.state).file = None;
            }
        }
        called.kept = keep.map_or(Kept::Nothing, Kept::Part);
        Ok(())
    }

    /// Has the kernel forget a file, and lets no call work on it from then on.
    ///
    /// It forgets once while calls go on, which writes what was changed through mappings; and, for what is read meanwhile
    /// may stay behind, once more while they wait. Where the token is one to read, no call goes on that writes: such a one
    /// waits for another, which is granted behind this call-back.
    async fn forget_above(&self, above: &dyn Above, inode: InodeId, keep: Option<TokenMode>) {
        let mode = self.tokens.slot(inode.slot()).mode(inode);
        if mode == Some(TokenMode::Write) {
            above.forget_file(inode, Calls::GoOn).await;
        }
        self.shut(inode).await;
        // To who may go on reading, what was read is as good as ever.
        if keep.is_none() {
            above.forget_file(inode, Calls::Wait).await;
        }
    }

    /// Gives up the names of all directories whenever they are many: they take memory, here and at their managers, and nobody
    /// says when what lies above needs one no more.
    async fn watch_names(&self, above: Arc<dyn Above>) {
        loop {
            self.tokens.names_are_many().await;
            if self.is_stopped() {
                return;
            }
            let slots = (0..SLOT_COUNT).map(SlotId);
            let called: Vec<InodeId> = slots.flat_map(|slot| self.tokens.slot(slot).call_all_names()).collect();
            above.forget_directories(called.clone()).await;
            self.tokens.lose();
            self.forgotten.add(called.into_iter().filter_map(|inode| self.tokens.slot(inode.slot()).end_call(inode)));
            self.tokens.moved.notify(usize::MAX);
        }
    }

    /// From now on calls wait; those that work on the inode are waited for.
    async fn shut(&self, inode: InodeId) {
        self.tokens.slot(inode.slot()).close(inode);
        loop {
            let moved = self.tokens.moved.listen();
            if !self.tokens.slot(inode.slot()).is_pinned(inode) {
                return;
            }
            moved.await;
        }
    }

    /// Stores all of a file that nobody is working on, and waits until its manager knows it.
    async fn store(&self, inode: InodeId) -> Result<(), ClientError> {
        let Some(file) = self.find(inode) else { return Ok(()) };
        let is_known = || lock(&file.state).file.is_some();
        while is_known() {
            self.settle(&file);
            if lock(&file.state).file.as_ref().is_none_or(File::is_settled) {
                return Ok(());
            }
            match self.write_out(&file).await {
                // The inode is gone: nobody will read it.
                Err(ClientError::Manager(ManagerError::Stale | ManagerError::NotFound)) => return Ok(()),
                other => other?,
            }
            if lock(&file.state).is_abandoned() {
                return Ok(());
            }
            self.commit(file.recorded()).await?;
            self.applied(file.recorded()).await?;
        }
        Ok(())
    }

    /// What a manager does not know of a file yet. While that one changes its shape, its answer is waited for: what is known
    /// here is then from before.
    async fn ahead(&self, inode: InodeId) -> Option<Ahead> {
        let file = self.find(inode)?;
        let _shape = file.shape.read().await;
        self.settle(&file);
        lock(&file.state).file.as_ref()?.ahead()
    }
}

/// Which token a file needs whose slot is no longer held. Of one that an earlier process left open nothing may be known here,
/// and what lies above has it all the same.
fn mode_needed(file: &OpenFile) -> Option<TokenMode> {
    let state = lock(&file.state);
    match &state.file {
        Some(known) if !known.is_settled() => Some(TokenMode::Write),
        None if !state.is_open() => None,
        _ => Some(TokenMode::Read),
    }
}

/// A call-back being carried out.
struct Called<'a> {
    inner: &'a Inner,
    inode: InodeId,
    kept: Kept,
}

impl Drop for Called<'_> {
    fn drop(&mut self) {
        self.inner.tokens.slot(self.inode.slot()).reopen(self.inode, self.kept);
        self.inner.tokens.moved.notify(usize::MAX);
    }
}

#[cfg(test)]
mod tests {
    use crate::heritage::Open;
    use crate::opens::State;

    use super::*;

    #[test]
    fn what_an_earlier_process_left_open_keeps_a_token_when_its_slot_goes() {
        let file = OpenFile::new(InodeId(2), State::default());
        assert_eq!(mode_needed(&file), None, "nobody has it open, and nothing is known of it");
        lock(&file.state).inherit(Open { inode: file.inode, count: 1, unlinked: false, failed: None });
        assert_eq!(mode_needed(&file), Some(TokenMode::Read));
    }
}
