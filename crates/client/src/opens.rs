//! Open files, and the table of all files that this client knows something about. Awaits.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};

use host::Moment;
use protocol::address::Position;
use protocol::file::{Attributes, Content};
use protocol::id::InodeId;
use protocol::manager::{Answer, ManagerReply, ManagerRequest, has_content};
use protocol::token::{Grant, TokenMode};

use crate::ClientError;
use crate::client::{Client, Inner, lock};
use crate::file::{Asked, File};
use crate::heritage::Open;
use crate::pins::Asking;
use crate::tokens::Turn;
use crate::whole::whole;

/// Files are looked at more often while more than these are known, and none is kept that nobody needs: some kilobytes each,
/// which no setting counts.
pub(crate) const KNOWN_MANY: usize = 8192;

/// A file that is open, or has something that a manager does not know yet.
pub(crate) struct OpenFile {
    pub(crate) inode: InodeId,
    /// Held while a manager changes the shape of the file; shared by those who write or append. Readers need it not.
    pub(crate) shape: async_lock::RwLock<()>,
    /// Held while the first open or the last close is told, so that a manager hears of them in order.
    pub(crate) opening: async_lock::Mutex<()>,
    pub(crate) state: Mutex<State>,
    /// Somebody has asked for it since it was looked whether it is in use.
    is_used: AtomicBool,
}

/// What is known of it.
#[derive(Default)]
pub(crate) struct State {
    /// None until a manager told about it.
    pub(crate) file: Option<File>,
    /// Changes of its attributes that were asked for: how many, and how many are under way.
    changes: u64,
    changing: u32,
    opens: u32,
    /// A manager is being asked to open it, and may have done so already.
    is_opening: bool,
    /// Its last name is gone: nobody else will open it.
    unlinked: bool,
    /// And nobody has it open, here or elsewhere: nobody can read it.
    abandoned: bool,
    /// What went wrong in the background and nobody was told yet.
    pub(crate) failed: Option<ClientError>,
    /// When it was last found to be in use.
    used: Moment,
}

impl State {
    /// The file, which a manager has told about.
    pub(crate) fn known(&mut self) -> &mut File {
        self.file.as_mut().expect("whoever works on a file has asked about it first")
    }

    /// A manager is asked to change its attributes.
    pub(crate) fn begin_change(&mut self) {
        self.changing += 1;
        self.set_anew();
    }

    /// It has answered, or not.
    pub(crate) fn end_change(&mut self) {
        // Nothing may have been known of the file when it began.
        self.changing = self.changing.saturating_sub(1);
        self.set_anew();
    }

    fn set_anew(&mut self) {
        self.changed();
        if let Some(file) = &mut self.file {
            file.is_incapable = false;
        }
    }

    /// Its attributes are no longer what managers told.
    pub(crate) fn changed(&mut self) {
        self.changes += 1;
        if let Some(file) = &mut self.file {
            file.changed();
        }
    }

    /// Remember this when asking a manager about it. None while its attributes change: then the answer says nothing.
    pub(crate) fn unchanging(&self) -> Option<u64> {
        (self.changing == 0).then_some(self.changes)
    }

    /// From now on this is known, as a manager told that was asked at `unchanging`.
    pub(crate) fn know(&mut self, attributes: &Attributes, content: Option<Content>, unchanging: Option<u64>) {
        let mut known = File::known(attributes);
        known.begin(content);
        if unchanging.is_some() && self.unchanging() == unchanging {
            known.tell(attributes);
        }
        self.file = Some(known);
    }

    /// Whether programs have it open.
    pub(crate) fn is_open(&self) -> bool {
        self.opens > 0
    }

    /// What the next process has to know of it; nothing if nobody has it open.
    pub(crate) fn open(&self, inode: InodeId, failed: Option<String>) -> Option<Open> {
        let State { opens: count, unlinked, .. } = *self;
        self.is_open().then_some(Open { inode, count, unlinked, failed })
    }

    /// An earlier process left it open.
    pub(crate) fn inherit(&mut self, open: Open) {
        (self.opens, self.unlinked) = (open.count, open.unlinked);
        self.failed = open.failed.map(ClientError::Unreachable);
    }

    /// Whether nobody will ever read what is written here.
    pub(crate) fn is_abandoned(&self) -> bool {
        self.abandoned
    }

    /// Whether it is without a name, and need not be written out early.
    pub(crate) fn is_temporary(&self) -> bool {
        self.unlinked
    }
}

impl OpenFile {
    pub(crate) fn new(inode: InodeId, state: State) -> OpenFile {
        let (shape, opening) = (async_lock::RwLock::new(()), async_lock::Mutex::new(()));
        OpenFile { inode, shape, opening, state: Mutex::new(state), is_used: AtomicBool::new(true) }
    }

    /// It, for somebody who uses it.
    fn noted(self: &Arc<Self>) -> Arc<OpenFile> {
        self.is_used.store(true, Ordering::Relaxed);
        self.clone()
    }

    /// Whether somebody has it open or works on it, or a manager does not know all of it. Notes when it was used.
    fn is_needed(self: &Arc<Self>, acknowledged: Position, now: Moment) -> bool {
        let mut state = lock(&self.state);
        if let Some(file) = &mut state.file {
            file.settle(acknowledged);
        }
        let is_settled = state.file.as_ref().is_none_or(File::is_settled);
        // Only the table holds it: whoever works on it holds it too.
        let is_needed = !is_settled || state.opens > 0 || Arc::strong_count(self) > 1;
        if self.is_used.swap(false, Ordering::Relaxed) || is_needed {
            state.used = now;
        }
        is_needed
    }

    /// Just behind the newest record with deltas of it.
    pub(crate) fn recorded(&self) -> Position {
        lock(&self.state).file.as_ref().map_or(Position::START, File::recorded)
    }
}

impl Client {
    /// Opens a file that exists, to read it; counted, so that each call wants its [`Client::close`]. The manager hears of the
    /// first.
    pub async fn open(&self, inode: InodeId) -> Result<Attributes, ClientError> {
        self.open_to(inode, TokenMode::Read).await
    }

    /// The same, to do this with it at once: a hint.
    pub async fn open_to(&self, inode: InodeId, mode: TokenMode) -> Result<Attributes, ClientError> {
        let inner = self.0.clone();
        whole(&self.0.host, async move { inner.open(inode, mode).await }).await
    }

    /// Gives back one open. The manager hears of the last; what is unwritten is written in the background.
    pub async fn close(&self, inode: InodeId) {
        let inner = self.0.clone();
        whole(&self.0.host, async move { inner.close(inode).await }).await;
    }
}

impl Inner {
    async fn open(&self, inode: InodeId, mode: TokenMode) -> Result<Attributes, ClientError> {
        let lost = self.tokens.lost();
        // Pinned before the lock: who opens a file that is known already has it the other way round.
        let held = self.pin_held(inode).await;
        let file = self.entry(inode);
        let opening = file.opening.lock().await;
        let is_open = {
            let mut state = lock(&file.state);
            let is_open = state.opens > 0;
            state.opens += u32::from(is_open);
            state.is_opening = !is_open;
            is_open
        };
        if is_open {
            drop((opening, held));
            return self.attributes(inode).await;
        }
        let shape = file.shape.read().await;
        let before = self.unchanged_since(&file);
        let unchanging = lock(&file.state).unchanging();
        let mut asking = if held.is_none() { self.tokens.ask_file(inode) } else { None };
        let told = self.open_counted(&file, asking.as_mut().map(|asking| (asking, mode))).await;
        let since = self.tokens.lost();
        let is_granted = asking.is_some_and(Asking::end);
        self.end_opening(&file);
        let (attributes, content) = told?;
        let after = self.unchanged_since(&file);
        // What was granted beside, and not given up since, is as good as what was held all along.
        // Pinned first: what is given up from then on leaves a token for it.
        let is_good = || is_granted && self.tokens.lost() == since || self.is_fresh(inode, lost);
        let held = held.or_else(|| self.try_pin(inode).filter(|_| is_good()));
        {
            // Of a file of which nothing is held nothing is kept; and what was told may be from before it was granted.
            let is_held = held.is_some();
            let mut state = lock(&file.state);
            if is_held && (state.file.is_none() || after.is_some() && before == after) {
                state.know(&attributes, content, unchanging);
                return Ok(attributes);
            }
        }
        // Whoever is known and pinned may wait for the lock; and what follows waits for pins.
        drop((shape, held, opening));
        self.completed(attributes, lost).await
    }

    /// Has its manager open a file, and counts that.
    async fn open_counted(
        &self,
        file: &OpenFile,
        mut asking: Option<(&mut Asking<'_>, TokenMode)>,
    ) -> Result<(Attributes, Option<Content>), ClientError> {
        loop {
            let asked = self.tokens.turn();
            let keeping = asking.as_mut().map(|(asking, mode)| (&mut **asking, *mode));
            let told = self.first_open(file.inode, keeping).await?;
            if self.count_open(file, asked) {
                return Ok(told);
            }
        }
    }

    /// What a file's manager said to an open is counted by now; if it was opened in vain, nobody may read it any more.
    fn end_opening(&self, file: &OpenFile) {
        let is_alone = self.tokens.slot(file.inode.slot()).is_whole();
        let mut state = lock(&file.state);
        state.is_opening = false;
        self.abandon_unused(&mut state, is_alone);
    }

    /// Counts one more open, which a manager answered to a question of that turn. Not if the slot may have another one by now,
    /// which was told before this: then it must be asked too.
    fn count_open(&self, file: &OpenFile, asked: Turn) -> bool {
        let slot = self.tokens.slot(file.inode.slot());
        let mut state = lock(&file.state);
        let stands = slot.stands(asked) || state.opens > 0;
        state.opens += u32::from(stands);
        stands
    }

    /// Whether this client alone uses the slot of an inode, and has given nothing up since `lost` was counted.
    fn is_fresh(&self, inode: InodeId, lost: u64) -> bool {
        self.tokens.slot(inode.slot()).is_whole() && self.tokens.lost() == lost
    }

    /// Names the state of a file about which managers know everything.
    fn unchanged_since(&self, file: &OpenFile) -> Option<Asked> {
        self.settle(file);
        let state = lock(&file.state);
        state.file.as_ref().filter(|known| known.is_settled()).map(File::ask)
    }

    async fn first_open(
        &self,
        inode: InodeId,
        asking: Option<(&mut Asking<'_>, TokenMode)>,
    ) -> Result<(Attributes, Option<Content>), ClientError> {
        let open = ManagerRequest::Open { inode, keep: asking.as_ref().map(|(_, mode)| *mode) };
        let ManagerReply { answer, granted, .. } = self.ask(inode, open).await?;
        if let Some((asking, _)) = asking {
            asking.take(granted);
        }
        let told = match answer {
            Answer::Entry(attributes, content) => Ok((attributes, content)),
            Answer::Attributes(attributes) => Ok((attributes, None)),
            _ => self.ask(inode, ManagerRequest::Attributes(inode)).await.and_then(crate::names::entry),
        };
        let problem = match told {
            Ok((attributes, content)) if has_content(attributes.kind) => return Ok((attributes, content)),
            Ok(_) => ClientError::Invalid,
            Err(error) => error,
        };
        let _ = self.ask(inode, ManagerRequest::Close(inode)).await;
        Err(problem)
    }

    /// A file that this client just made, and that the manager which it asked at that turn holds open for it.
    pub(crate) async fn opened_new(
        &self,
        attributes: Attributes,
        granted: Option<Grant>,
        mut asked: Turn,
    ) -> Result<(), ClientError> {
        let inode = attributes.inode;
        let granted = match granted {
            Some(Grant::Inode(token)) => Some(token).filter(|token| token.inode == inode),
            Some(Grant::Slot(_)) | None => None,
        };
        // Where others use the slot too, somebody may have found the new name by now.
        let pin = self.pin_made(inode, granted, asked);
        let file = self.entry(inode);
        while !self.count_open(&file, asked) {
            asked = self.tokens.turn();
            self.ask(inode, ManagerRequest::Open { inode, keep: None }).await?;
        }
        // What a call is being told of the file just now takes the place of what is here.
        let opening = file.opening.try_lock();
        let mut state = lock(&file.state);
        if pin.is_some() && opening.is_some() && state.file.is_none() {
            let mut made = File::new_empty();
            // A program that found it meanwhile may have given it some.
            made.is_incapable = state.changes == 0;
            state.file = Some(made);
        }
        // O_TMPFILE: without a name until it is linked.
        state.unlinked = attributes.links == 0;
        Ok(())
    }

    async fn close(&self, inode: InodeId) {
        let Some(file) = self.find(inode) else { return };
        let _opening = file.opening.lock().await;
        {
            let mut state = lock(&file.state);
            if state.opens != 1 {
                state.opens = state.opens.saturating_sub(1);
                return;
            }
            state.opens = 0;
            if let Some(known) = &mut state.file {
                self.end_streams(known);
            }
        }
        // A manager that cannot be reached forgets this node's opens with its lease.
        if self.ask(inode, ManagerRequest::Close(inode)).await.is_ok() {
            let is_alone = self.tokens.slot(inode.slot()).is_whole();
            self.abandon_unused(&mut lock(&file.state), is_alone);
        }
    }

    /// The last name of an inode is gone.
    pub(crate) fn unlinked(&self, inode: InodeId) {
        self.tell_files(&[inode], State::changed);
        let is_alone = self.tokens.slot(inode.slot()).is_whole();
        if let Some(file) = self.find(inode) {
            let mut state = lock(&file.state);
            state.unlinked = true;
            self.abandon_unused(&mut state, is_alone);
        }
    }

    /// An inode without a name has one again.
    pub(crate) fn linked(&self, inode: InodeId) {
        if let Some(file) = self.find(inode) {
            lock(&file.state).unlinked = false;
        }
    }

    /// Drops what is unwritten of a file without a name that no program here has open, as its manager knows by now. Where this
    /// client is not alone, another may have it open: it is then written out like any other.
    fn abandon_unused(&self, state: &mut State, is_alone: bool) {
        let is_unused = state.unlinked && state.opens == 0 && !state.is_opening;
        if is_unused && is_alone {
            state.abandoned = true;
            self.drop_unwritten(state);
        } else if is_unused {
            state.unlinked = false;
        }
    }

    fn drop_unwritten(&self, state: &mut State) {
        if let Some(file) = &mut state.file {
            let before = file.weight();
            file.abandon();
            self.budget.change(before, file.weight());
        }
    }

    /// The inode is gone: nobody will read what is unwritten.
    pub(crate) fn abandon(&self, file: &OpenFile) {
        self.drop_unwritten(&mut lock(&file.state));
    }

    /// The file, if this client knows something about it.
    pub(crate) fn find(&self, inode: InodeId) -> Option<Arc<OpenFile>> {
        lock(&self.files).get(&inode).map(OpenFile::noted)
    }

    pub(crate) fn entry(&self, inode: InodeId) -> Arc<OpenFile> {
        let mut files = lock(&self.files);
        files.entry(inode).or_insert_with(|| Arc::new(OpenFile::new(inode, State::default()))).noted()
    }

    /// Forgets files that nobody has open and about which managers know everything. Where others use the slot, too, those that
    /// were used lately are kept, if they are not too many: who opens them again then asks its manager less. Whoever asked a
    /// manager about one before that was so, and has the answer behind this, sees that files were given up, and asks again.
    pub(crate) fn sweep(&self) {
        let (acknowledged, now) = (lock(&self.outbox).acknowledged(), self.host.now());
        let mut files = lock(&self.files);
        let are_many = files.len() > KNOWN_MANY;
        let mut forgotten = Vec::new();
        files.retain(|&inode, file| {
            if file.is_needed(acknowledged, now) {
                return true;
            }
            let mut tokens = self.tokens.slot(inode.slot());
            let is_recent = tokens.mode(inode).is_some() && now.since(lock(&file.state).used) < self.kept;
            let is_kept = is_recent && !are_many || tokens.is_busy(inode);
            if !is_kept {
                self.tokens.lose();
                forgotten.extend(tokens.forget(inode));
            }
            is_kept
        });
        drop(files);
        self.forgotten.add(forgotten);
    }
}
