//! The manager at work: brings requests, slots, journal and pages together. This file awaits; it decides nothing.
//!
//! An operation whose pages are in memory and whose journal record is replicated at once is one straight call: lock the
//! slot, run, append, apply, unlock, commit.

use std::collections::{BTreeMap, BTreeSet};
use std::pin::pin;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, Weak};
use std::time::Duration;

use event_listener::Event;
use futures_util::future::{Either, select};
use host::{BoxFuture, Envelope, Handler, Host, Moment, NodeId};
use log::{Absences, BodyPart, Cluster, LogError, LogReader, LogWriter, ReadError, Record};
use protocol::address::Position;
use protocol::file::Time;
use protocol::id::{InodeId, LogId, MapEpoch, SlotId, StripeNumber};
use protocol::manager::{Answer, Deltas, ManagerAnswer, ManagerError, ManagerReply, ManagerRequest, has_content};
use protocol::maps::{ManagerMapSum, Maps};
use protocol::once::Once;
use protocol::record::{Owner, RecordKind};
use protocol::storage::Durability;
use protocol::token::Grant;

use crate::askings::{Askings, Begun};
use crate::attempt::{Attempt, SlotTable};
use crate::calls::{Moved, WAIT_MAX};
use crate::flight::Flights;
use crate::image::Images;
use crate::intention::Over;
use crate::journal;
use crate::late;
use crate::locking::FileLocks;
use crate::moments::Moments;
use crate::needs;
use crate::newest::Newest;
use crate::ops::{self, Call, Done, Operation};
use crate::page::Page;
use crate::replay::Replayed;
use crate::runs::JournalRuns;
use crate::slot::PageId;
use crate::takeover::{SlotRange, ranges};
use crate::transaction::{Changes, Context, Effect};

/// How often a commit is tried again while the targets are full or away, and how long after each time: a call then fails
/// after half a minute (DESIGN §13, promise 3).
const COMMIT_TRIES: u32 = 150;
const PAUSE: Duration = Duration::from_millis(200);
/// How often a page is looked for again when it moved while it was being read.
const LOAD_TRIES: u32 = 100;
/// How long a page is waited for that targets are late to tell (DESIGN §13, promise 3).
const LOAD_WAIT: Duration = Duration::from_secs(30);
/// How long an operation waits for intentions that stand in its way, in all: as long as these for their pages.
const HELD_WAIT: Duration = LOAD_WAIT;
/// Slots that one eviction looks at before the operation that needed room goes on.
const EVICT_SLOTS: usize = 64;

/// How a manager is run.
#[derive(Clone, Copy, Debug)]
pub struct ManagerOptions {
    /// Memory for pages, in bytes.
    pub memory_bytes: usize,
    /// Journal that no image covers, in bytes: bounds the time that a start takes.
    pub journal_bytes_max: u64,
    /// The journal is on disk after this time at the latest.
    pub flush_interval: Duration,
    /// How long after a start inodes without a name are kept for clients that still hold them open.
    pub orphan_grace: Duration,
    /// The user and the group to whom the root of a new file system belongs.
    pub root_owner: (u32, u32),
    /// Bytes that a directory's names in one slot may take, 32 and its length each, before half of them move to another.
    pub directory_part_bytes: u64,
    /// How long a target may be away before what lay on it counts as lost.
    pub patience: Duration,
    /// The log of the session before that this node's client goes on with: it is not at its end.
    pub kept: Option<LogId>,
}

impl Default for ManagerOptions {
    fn default() -> Self {
        ManagerOptions {
            memory_bytes: 256 << 20,
            journal_bytes_max: 32 << 20,
            flush_interval: Duration::from_secs(1),
            orphan_grace: Duration::from_secs(2),
            root_owner: (0, 0),
            directory_part_bytes: 4 << 20,
            patience: Duration::from_secs(600),
            kept: None,
        }
    }
}

/// The manager role of a node.
pub struct Manager {
    pub(crate) cluster: Cluster,
    pub(crate) reader: LogReader,
    pub(crate) writer: LogWriter,
    pub(crate) options: ManagerOptions,
    pub(crate) table: SlotTable,
    pub(crate) images: Mutex<Images>,
    pub(crate) replayed: Mutex<Replayed>,
    /// Eviction found no room: what is in memory is dirty, and only a round of images makes it clean.
    pub(crate) crowded: Event,
    /// One round of images at a time.
    pub(crate) imaging: async_lock::Mutex<()>,
    /// Which targets are away, and since when.
    pub(crate) absences: Mutex<Absences>,
    /// One replay at a time, and no slots arrive meanwhile.
    pub(crate) replaying: async_lock::Mutex<()>,
    /// Dead nodes' logs that are being sealed here.
    pub(crate) sealing: Mutex<BTreeSet<LogId>>,
    /// Orphans to go on freeing, large directories to split: work that nobody waits for.
    pub(crate) later: Mutex<Vec<Operation>>,
    /// Whether slots are here that are not answered for yet, and which.
    pub(crate) arriving: AtomicBool,
    pub(crate) arrivals: Mutex<Vec<SlotId>>,
    /// Slots that may have brought along what nobody needs, and when to look, in that order.
    pub(crate) untidy: Mutex<Vec<(Moment, Vec<SlotId>)>>,
    pub(crate) stopping: AtomicBool,
    /// Whether this manager stops without knowing whether slots are still its own.
    pub(crate) unsure: AtomicBool,
    /// Whether nothing of a start is left to do before somebody is answered.
    pub(crate) ready: AtomicBool,
    pub(crate) flights: Flights,
    /// Audits that look at the slots.
    pub(crate) moments: Moments,
    me: Weak<Manager>,
    pub(crate) journal_bytes: AtomicU64,
    /// Where the journal lies since the last round of images began.
    pub(crate) journal_runs: Mutex<JournalRuns>,
    newest: Newest,
    /// Something was given up, or somebody stopped waiting.
    pub(crate) tokens_moved: Moved,
    /// One greeting at a time; and which log each node's client writes, as it said.
    pub(crate) greeting: async_lock::Mutex<()>,
    pub(crate) lives: Mutex<BTreeMap<u32, LogId>>,
    pub(crate) locks: FileLocks,
    pub(crate) askings: Askings,
    evict_hand: AtomicUsize,
}

impl Manager {
    /// Returns when changes were lost that were in no log on disk, so that it can store nothing more: it is to begin anew.
    pub async fn lost(&self) {
        self.writer.lost().await;
    }

    /// One that manages nothing yet; `me` is itself.
    pub(crate) fn new(
        cluster: Cluster,
        reader: LogReader,
        writer: LogWriter,
        options: ManagerOptions,
        me: Weak<Manager>,
    ) -> Manager {
        Manager {
            table: SlotTable::new(Vec::new(), options.directory_part_bytes),
            images: Mutex::new(Images::new(writer.log())),
            cluster,
            reader,
            writer,
            options,
            replayed: Mutex::default(),
            crowded: Event::new(),
            imaging: async_lock::Mutex::new(()),
            absences: Mutex::default(),
            replaying: async_lock::Mutex::new(()),
            sealing: Mutex::default(),
            later: Mutex::default(),
            arriving: AtomicBool::new(false),
            arrivals: Mutex::default(),
            untidy: Mutex::default(),
            stopping: AtomicBool::new(false),
            unsure: AtomicBool::new(false),
            ready: AtomicBool::new(false),
            flights: Flights::default(),
            moments: Moments::default(),
            me,
            journal_bytes: AtomicU64::new(0),
            journal_runs: Mutex::default(),
            newest: Newest::default(),
            tokens_moved: Moved::default(),
            greeting: async_lock::Mutex::new(()),
            lives: Mutex::default(),
            locks: FileLocks::default(),
            askings: Askings::default(),
            evict_hand: AtomicUsize::new(0),
        }
    }

    /// The machine.
    pub(crate) fn host(&self) -> &Host {
        self.cluster.host()
    }

    /// Itself, for what goes on beside a call.
    pub(crate) fn me(&self) -> Option<Arc<Manager>> {
        self.me.upgrade()
    }

    /// Whether this manager has the slot.
    pub(crate) fn manages(&self, slot: SlotId) -> bool {
        self.table.placement().manages(slot)
    }

    /// Whether it answers everybody: before, only what others wait for who are starting too.
    pub(crate) fn is_ready(&self) -> bool {
        self.ready.load(Ordering::Acquire)
    }

    /// Bytes of memory that pages of names, inodes and maps take now.
    pub fn bytes_resident(&self) -> u64 {
        self.table.resident() as u64
    }

    /// Answers one request of a node.
    pub async fn answer(&self, node: u32, request: ManagerRequest) -> ManagerAnswer {
        if let ManagerRequest::Fetch(_)
        | ManagerRequest::Admit(_)
        | ManagerRequest::Freshen(..)
        | ManagerRequest::Prepare(_)
        | ManagerRequest::Settle(_)
        | ManagerRequest::Ended(..) = request
        {
            return self.answer_manager(request).await;
        }
        if !self.is_ready() || self.is_arriving(&request) {
            return Err(ManagerError::NotMine);
        }
        match request {
            ManagerRequest::Lock { .. }
            | ManagerRequest::CancelLock { .. }
            | ManagerRequest::Unlock { .. }
            | ManagerRequest::UnlockAll { .. }
            | ManagerRequest::TestLock { .. } => self.answer_lock(node, request).await,
            ManagerRequest::Flush(log, position) => {
                // Of an earlier life's journal others know: it is sealed, which makes it `disk`.
                if log != self.writer.log() {
                    return Err(ManagerError::NotMine);
                }
                if position > self.writer.end() {
                    return Err(ManagerError::Invalid("the journal does not reach that far".into()));
                }
                self.commit(position, Durability::Disk).await?;
                Ok(self.reply(Answer::Done))
            }
            ManagerRequest::Once(once) => self.answer_once(node, once).await,
            ManagerRequest::Census => self.census(node).await,
            ManagerRequest::Audit(id, request) => Ok(self.reply(self.answer_audit(id, request).await?)),
            ManagerRequest::Live(view, stripes) => {
                let maps = self.agree(view.managers, view.epoch).await?;
                self.live(node, &maps, stripes).await
            }
            ManagerRequest::DeadStripes(view, stripes) => {
                self.agree(view.managers, view.epoch).await?;
                Ok(self.reply(Answer::Stripes(self.dead_stripes(stripes))))
            }
            ManagerRequest::Token { inode, mode } => self.token(node, inode, mode).await,
            ManagerRequest::Look { directory, name } => self.look_and_keep(node, directory, name).await,
            ManagerRequest::Open { inode, keep: Some(mode) } => self.open_and_keep(node, inode, mode).await,
            ManagerRequest::Forgotten(tokens) => Ok(self.forgotten(node, &tokens)),
            ManagerRequest::Greet(log) => self.greet(node, log).await,
            ManagerRequest::Deltas(deltas) => self.deltas(node, deltas).await,
            ManagerRequest::Why(inode) => self.why(node, inode).await,
            ManagerRequest::Move(list) => {
                let list = late::not_void(&self.cluster, list).await?;
                self.ask(node, Operation::Asked(ManagerRequest::Move(list))).await
            }
            request => self.ask(node, Operation::Asked(request)).await,
        }
    }

    /// Answers what is to take effect once.
    async fn answer_once(&self, node: u32, once: Once) -> ManagerAnswer {
        let (name, now) = (once.name, self.host().now());
        let (until, deadline) = (now + once.patience(), now + WAIT_MAX);
        let request = once.request().ok_or(ManagerError::Unsupported)?;
        let asking = loop {
            if self.is_arriving(&request) {
                return Err(ManagerError::NotMine);
            }
            let stay = self.table.with(name.slot, |state| state.stay).ok_or(ManagerError::NotMine)?;
            match self.askings.begin(name, stay) {
                Begun::Now(asking) => break asking,
                Begun::Behind(_) if self.host().now() >= deadline => return Err(ManagerError::Held),
                Begun::Behind(ended) => drop(select(ended, pin!(self.host().sleep_until(deadline))).await),
                Begun::Refused(error) => return Err(error),
            }
        };
        let answer = self.ask(node, Operation::Once(Call { name, until }, request)).await;
        match &answer {
            // Asked again, it may come out otherwise; and of what failed the client knows that it may take effect yet.
            Ok(_)
            | Err(ManagerError::NotMine | ManagerError::Held | ManagerError::Failed(_) | ManagerError::NoRoom) => {}
            Err(error) => asking.refuse(error.clone()),
        }
        answer
    }

    /// Whoever deletes by what all managers say must have asked the right ones, and each must speak for all its slots.
    /// What they say rests on maps from `epoch` on.
    pub(crate) async fn agree(&self, map: ManagerMapSum, epoch: MapEpoch) -> Result<Arc<Maps>, ManagerError> {
        let mut maps = self.cluster.maps();
        if maps.manager_map_sum() != map || maps.epoch < epoch {
            maps = self.cluster.refresh().await.map_err(|error| ManagerError::Failed(error.to_string()))?;
        }
        let is_heard = maps.manager_map_sum() == map && maps.epoch >= epoch && self.is_settled(&maps);
        is_heard.then_some(maps).ok_or(ManagerError::NotMine)
    }

    /// Which of these stripes, all of manager logs, this manager does not need. An audit may need any.
    pub fn dead_stripes(&self, mut stripes: Vec<(LogId, StripeNumber)>) -> Vec<(LogId, StripeNumber)> {
        let mut images = self.images.lock().expect("nobody panics over images");
        images.reached(self.writer.reached(Durability::Disk));
        let is_audited = self.moments.keeps_any(self.host().now());
        stripes.retain(|&(log, stripe)| !is_audited && images.is_dead(log, stripe));
        stripes
    }

    /// Runs an operation to its end; its journal records are as durable as asked when this returns.
    pub(crate) async fn perform(
        &self,
        node: u32,
        mut operation: Operation,
        durability: Durability,
    ) -> Result<(Done, Option<Position>), ManagerError> {
        let mut end = None;
        loop {
            let done = match self.attempt(node, &operation).await? {
                (Done::Again, position) => {
                    end = position.or(end);
                    self.writer.room().await.map_err(failed)?;
                    continue;
                }
                (Done::Then(next), position) => {
                    end = position.or(end);
                    operation = next;
                    self.writer.room().await.map_err(failed)?;
                    continue;
                }
                (done, position) => {
                    end = position.or(end);
                    done
                }
            };
            if let Some(end) = end {
                self.commit(end, durability).await?;
            }
            return Ok((done, end));
        }
    }

    /// Runs an operation, or a step of it, loading the pages that it needs.
    pub(crate) async fn attempt(
        &self,
        node: u32,
        operation: &Operation,
    ) -> Result<(Done, Option<Position>), ManagerError> {
        let context = Context { now: Time(self.host().wall().0), node };
        let (mut tries, mut until, mut deadline) = (0, None, None);
        let mut slots = ops::slots(operation);
        loop {
            let append = |changes: &[(SlotId, Changes)]| {
                late::check(&self.cluster, operation)?;
                self.append(changes)
            };
            match self.table.attempt((operation, &mut slots), context, append) {
                Attempt::Refused(error) => {
                    self.await_seen(node, &slots).await?;
                    return Err(error);
                }
                Attempt::Load(page) => {
                    tries += 1;
                    self.load(&page, tries).await?;
                }
                Attempt::Spans => {
                    let spanned = Box::pin(self.span(node, operation)).await;
                    self.await_seen(node, &slots).await?;
                    return spanned;
                }
                Attempt::Held(over) => {
                    let until = *until.get_or_insert_with(|| self.host().now() + HELD_WAIT);
                    Box::pin(self.wait_for(over, until)).await?;
                }
                Attempt::Call(call) => {
                    let deadline = *deadline.get_or_insert_with(|| self.host().now() + WAIT_MAX);
                    Box::pin(self.call_back(call, deadline)).await?;
                }
                Attempt::Done(done, position, effects) => {
                    if !effects.is_empty() {
                        let later = effects.into_iter().filter_map(Effect::later);
                        self.later.lock().expect("nobody panics over what is to be done").extend(later);
                    }
                    if self.table.resident() > self.options.memory_bytes {
                        self.evict();
                    }
                    if self.table.resident() > self.options.memory_bytes.saturating_add(self.options.memory_bytes / 8) {
                        self.crowded.notify(1);
                    }
                    if position.is_none() {
                        self.await_seen(node, &slots).await?;
                    }
                    return Ok((done, position));
                }
            }
        }
    }

    /// What others are told of slots rests on journal records that are safe: a manager that dies takes all others with it. Who
    /// asks on the same machine dies with it, too, and need not wait.
    async fn await_seen(&self, node: u32, slots: &[SlotId]) -> Result<(), ManagerError> {
        if node == self.host().node().0 { Ok(()) } else { self.await_safe(slots).await }
    }

    /// Waits until all that slots have now survives this manager.
    pub(crate) async fn await_safe(&self, slots: &[SlotId]) -> Result<(), ManagerError> {
        let through = self.newest.of(slots);
        if self.writer.reached(Durability::Replicated) >= through {
            return Ok(());
        }
        self.commit(through, Durability::Replicated).await
    }

    /// Waits until an intention is over, or for so long.
    async fn wait_for(&self, over: Over, until: Moment) -> Result<(), ManagerError> {
        match select(pin!(over.wait()), pin!(self.host().sleep_until(until))).await {
            Either::Left(_) => Ok(()),
            Either::Right(_) => Err(ManagerError::Failed("an operation of several managers does not end".into())),
        }
    }

    /// Appends a journal record; called under the locks of its slots.
    pub(crate) fn append(&self, changes: &[(SlotId, Changes)]) -> Result<Position, ManagerError> {
        let body = journal::encode(changes);
        let parts = &[BodyPart::Copied(&body)];
        let record = Record { kind: RecordKind::Journal, owner: Owner::default(), parts, aligned: false };
        let appended = {
            // Held until it is noted: a table that is appended behind it tells of it.
            let mut runs = self.journal_runs.lock().expect("nobody panics over runs");
            let appended = self.writer.append(record).map_err(failed)?;
            runs.note(&appended);
            self.newest.note(changes.iter().map(|(slot, _)| *slot), appended.end);
            appended
        };
        self.journal_bytes.fetch_add(body.len() as u64, Ordering::Relaxed);
        Ok(appended.end)
    }

    /// Brings a page into memory. Whoever is late with it is waited for, as by a commit.
    pub(crate) async fn load(&self, id: &PageId, tries: u32) -> Result<(), ManagerError> {
        let deadline = self.host().now() + LOAD_WAIT;
        loop {
            match self.reader.read(id.address).await {
                Ok(body) => {
                    let page = Page::decode(&body).map_err(|error| ManagerError::Failed(error.to_string()))?;
                    self.table.fill(id, page);
                    return Ok(());
                }
                // It was stored anew elsewhere meanwhile: the next attempt finds it there.
                Err(ReadError::Deleted(_)) if tries < LOAD_TRIES => return Ok(()),
                Err(error)
                    if error.may_pass() && self.host().now() < deadline && !self.stopping.load(Ordering::Relaxed) =>
                {
                    self.host().sleep(PAUSE).await;
                }
                Err(error) => return Err(ManagerError::Failed(error.to_string())),
            }
        }
    }

    /// Drops clean pages that were not used of late, until there is room or enough slots were looked at.
    fn evict(&self) {
        let mine = self.table.mine();
        for _ in 0..EVICT_SLOTS.min(mine.len()) {
            if self.table.resident() <= self.options.memory_bytes {
                return;
            }
            let hand = self.evict_hand.fetch_add(1, Ordering::Relaxed) % mine.len();
            self.table.with(mine[hand], |state| state.records.evict());
        }
    }

    /// Waits until the journal is as durable as asked. While the targets are full or away, it is tried again.
    pub(crate) async fn commit(&self, through: Position, durability: Durability) -> Result<(), ManagerError> {
        let mut tries = 0;
        loop {
            match self.writer.commit(through, durability).await {
                Ok(()) => return Ok(()),
                Err(LogError::Full | LogError::Unavailable(_)) if tries < COMMIT_TRIES => {
                    tries += 1;
                    self.host().sleep(PAUSE).await;
                }
                Err(error) => return Err(failed(error)),
            }
        }
    }

    /// An answer that rests on the journal as it is now.
    pub(crate) fn reply(&self, answer: Answer) -> ManagerReply {
        self.reply_at(answer, self.writer.end())
    }

    pub(crate) fn reply_at(&self, answer: Answer, journal: Position) -> ManagerReply {
        let (log, journal_disk) = (self.writer.log(), self.writer.reached(Durability::Disk));
        ManagerReply { answer, log, journal, journal_disk, granted: None }
    }

    pub(crate) async fn ask(&self, node: u32, operation: Operation) -> ManagerAnswer {
        let slot = ops::slots(&operation).first().copied();
        let is_once = matches!(operation, Operation::Once(..));
        let makes_open = needs::makes_open(&operation);
        let (done, end) = self.perform(node, operation, Durability::Replicated).await?;
        let all = self.writer.end();
        if is_once && end.is_none() {
            // It took effect when it was asked before, whose answer may still wait for that to be safe.
            self.commit(all, Durability::Replicated).await?;
        }
        let Done::Answer(mut answer) = done else {
            unreachable!("an asked operation ends with an answer, not {done:?}")
        };
        let is_whole = slot.and_then(|slot| self.table.lock(slot)).is_some_and(|state| state.tokens.is_whole_of(node));
        if let Answer::Entry(told, _) | Answer::Attributes(told) = &mut answer
            && has_content(told.kind)
            && !(is_whole && slot == Some(told.inode.slot()))
        {
            match self.freshen_anywhere(node, *told).await {
                Ok(fresh) => *told = fresh,
                // What was done must not be done again for want of a file's size.
                Err(error) if end.is_none() => return Err(error),
                Err(_) => {}
            }
        }
        let granted = match &answer {
            _ if is_whole => slot.map(Grant::Slot),
            Answer::Entry(made, _) if makes_open => self.keep_made(node, made).await,
            _ => None,
        };
        Ok(ManagerReply { granted, ..self.reply_at(answer, end.unwrap_or(all)) })
    }

    /// Deltas are acknowledged when they are `disk`; no program waits for that (DESIGN §3, order across logs).
    async fn deltas(&self, node: u32, deltas: Deltas) -> ManagerAnswer {
        let operation = Operation::Asked(ManagerRequest::Deltas(deltas));
        let (_, end) = self.perform(node, operation, Durability::Replicated).await?;
        // Deltas that were there already may yet be on their way to the disk.
        let end = end.unwrap_or_else(|| self.writer.end());
        self.commit(end, Durability::Disk).await?;
        Ok(self.reply_at(Answer::Done, end))
    }

    async fn census(&self, node: u32) -> ManagerAnswer {
        let mut total = (0, 0);
        for slot in self.filled() {
            if let (Done::Answer(Answer::Census(inodes, bytes)), _) =
                self.perform(node, Operation::Census(slot), Durability::Replicated).await?
            {
                total = (total.0 + inodes, total.1 + bytes);
            }
        }
        Ok(self.reply(Answer::Census(total.0, total.1)))
    }

    /// Live bytes over all slots that these maps give us. Of a sealed log whose deltas are to be read once more, all lives.
    async fn live(&self, node: u32, maps: &Maps, stripes: Vec<(LogId, StripeNumber)>) -> ManagerAnswer {
        let mut sums: Vec<u64> = {
            let replayed = self.replayed.lock().expect("nobody panics over replays");
            stripes.iter().map(|(log, _)| if replayed.may_be_read(maps, *log) { u64::MAX } else { 0 }).collect()
        };
        for slot in ranges(maps, self.host().node().0).iter().flat_map(SlotRange::slots) {
            // One that is being handed over, by another thread, was here a moment ago, and nobody else speaks for it yet.
            if self.table.lock(slot).ok_or(ManagerError::NotMine)?.records.is_empty() {
                continue;
            }
            let operation = Operation::Live(slot, stripes.clone());
            if let (Done::Answer(Answer::Live(counts)), _) =
                self.perform(node, operation, Durability::Replicated).await?
            {
                sums.iter_mut().zip(counts).for_each(|(sum, count)| *sum = sum.saturating_add(count));
            }
        }
        Ok(self.reply(Answer::Live(sums)))
    }

    /// The slots that have records. Most never had one, and asking an operation for nothing takes as long as for something.
    fn filled(&self) -> Vec<SlotId> {
        let is_filled = |slot: &SlotId| self.table.lock(*slot).is_some_and(|state| !state.records.is_empty());
        self.table.mine().iter().copied().filter(is_filled).collect()
    }

    async fn why(&self, node: u32, inode: InodeId) -> ManagerAnswer {
        let mut reply = self.ask(node, Operation::Asked(ManagerRequest::Why(inode))).await?;
        if let Answer::Why(why) = &mut reply.answer {
            why.node = self.host().node().0;
            why.locks = self.locks.count(inode);
        }
        Ok(reply)
    }
}

/// What a log's error means to whoever asked.
pub(crate) fn failed(error: LogError) -> ManagerError {
    match error {
        LogError::Full => ManagerError::NoRoom,
        LogError::TooLarge { .. } => ManagerError::TooLarge,
        // This manager has stopped: whoever has the slots next is asked the same again.
        LogError::Closed => ManagerError::NotMine,
        other => ManagerError::Failed(other.to_string()),
    }
}

/// Whether a request changes nothing in a log: only what this manager has in memory, or not even that. Or that may be so, for
/// who is asked twice, or has nothing of it.
fn only_in_memory(request: &ManagerRequest) -> bool {
    use ManagerRequest as R;
    matches!(
        request,
        R::Admit(_)
            | R::Attributes(_)
            | R::Audit(..)
            | R::CancelLock { .. }
            | R::Census
            | R::Content { .. }
            | R::DeadStripes(..)
            | R::Ended(..)
            | R::Fetch(_)
            | R::Freshen(..)
            | R::List { .. }
            | R::ListXattrs(_)
            | R::Live(..)
            | R::Lock { .. }
            | R::Look { .. }
            | R::Lookup { .. }
            | R::Open { .. }
            | R::Parent(_)
            | R::Pieces { .. }
            | R::Prepare(_)
            | R::ReadLink(_)
            | R::Settle(_)
            | R::TestLock { .. }
            | R::Token { .. }
            | R::Unlock { .. }
            | R::UnlockAll { .. }
            | R::Why(_)
            | R::Xattr { .. }
    )
}

/// What the machine calls.
pub(crate) struct Door(pub(crate) Arc<Manager>);

impl Handler for Door {
    fn handle(&self, from: NodeId, request: Envelope) -> BoxFuture<'static, Envelope> {
        let manager = self.0.clone();
        Box::pin(async move {
            let answer: ManagerAnswer = match request.open::<ManagerRequest>() {
                Ok(request) => {
                    let in_memory = only_in_memory(&request);
                    let answer = manager.answer(from.0, request).await;
                    // Asked last: what was looked at, or granted, before the lease ran out may be another manager's by now.
                    // A change that reached its log is true whoever manages.
                    let stands = match &answer {
                        Ok(_) => !in_memory,
                        Err(error) => matches!(error, ManagerError::Failed(_) | ManagerError::NoRoom),
                    };
                    if stands || manager.cluster.is_trusted() { answer } else { Err(ManagerError::NotMine) }
                }
                Err(_) => Err(ManagerError::Invalid("no request to a manager".into())),
            };
            Envelope::new(answer)
        })
    }
}
