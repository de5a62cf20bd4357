//! The writer's tasks: perform sends, wait for what others sent. `state` and `due` decide.
//!
//! A commit performs its sends in the caller's own task, so that on a healthy group it is one poll: two calls where
//! k+1 answer at once. Bulk sends run in tasks of their own, begun when a fragment is full.

use std::collections::BTreeSet;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use event_listener::Event;
use futures_util::future::join_all;
use protocol::address::Position;
use protocol::id::{FenceEpoch, LogId};
use protocol::maps::{LogEntry, LogState, Maps, Run, Writer};
use protocol::registry::{RegistryReply, RegistryRequest};
use protocol::storage::{Durability, Room, StorageError, StorageReply, StorageRequest};

use crate::cluster::WRITE_PATIENCE;
use crate::due::{SyncTicket, Ticket, Work};
use crate::failures::Failure;
use crate::lay::Group;
use crate::standstill::Waiting;
use crate::state::{Note, Opened, State, Synced};
use crate::writer::{Appended, Record, Rest, WriterOptions};
use crate::{Cluster, LogError, following, relay, standstill};

/// So many stripes may wait in a lull: the open one, and one on its way.
const LULL_STRIPES: usize = 2;

/// What all clones of a writer share.
pub(crate) struct Shared {
    pub(crate) log: LogId,
    pub(crate) cluster: Cluster,
    pub(crate) options: WriterOptions,
    state: Mutex<State>,
    /// Something was answered: look again.
    pub(crate) changed: Event,
    /// Who waits for that.
    pub(crate) waiting: Waiting,
}

/// The groups of a run as a writer uses them.
pub(crate) fn groups_of(maps: &Maps, run: &Run) -> Option<Vec<Group>> {
    let group = |&id| {
        let entry = maps.groups.get(&id)?;
        Some(Group { id, geometry: entry.geometry, targets: entry.targets.clone() })
    };
    run.groups.iter().map(group).collect()
}

/// What a log is opened as that the maps know.
fn opened(maps: &Maps, (log, epoch): (LogId, FenceEpoch), room: Room) -> Result<Opened, LogError> {
    let unavailable = |why: &str| LogError::Unavailable(why.into());
    let run = maps.logs.get(&log).and_then(|entry| entry.layout.last());
    let run = run.ok_or_else(|| unavailable("the registry knows no layout of the log"))?;
    let groups = groups_of(maps, run).ok_or_else(|| unavailable("a group of the log is unknown"))?;
    Ok(Opened { log, epoch, room, run: run.number, groups })
}

impl Shared {
    pub(crate) async fn open(
        cluster: Cluster,
        writer: Writer,
        room: Room,
        options: WriterOptions,
    ) -> Result<Arc<Shared>, LogError> {
        let node = cluster.host().node().0;
        let open = RegistryRequest::open_log(&cluster.maps(), node, writer, cluster.host().random());
        let answer = cluster.registry(open).await;
        let unavailable = |why: String| LogError::Unavailable(why);
        let (log, epoch, maps) = match answer {
            Ok(RegistryReply::Log(log, epoch, maps)) => (log, epoch, maps),
            Ok(_) => return Err(unavailable("the registry opened no log".into())),
            Err(error) => return Err(unavailable(error.to_string())),
        };
        let state = State::new(opened(&maps, (log, epoch), room)?, maps.parity);
        Shared::begin(cluster, state, options).await
    }

    /// Goes on with a log at rest.
    pub(crate) async fn resume(cluster: Cluster, rest: Rest, options: WriterOptions) -> Result<Arc<Shared>, LogError> {
        let refreshed = cluster.refresh().await;
        let maps = refreshed.map_err(|error| LogError::Unavailable(error.to_string()))?;
        let is_open = |entry: &&LogEntry| entry.state == LogState::Open(rest.epoch);
        let known = maps.logs.get(&rest.log).filter(is_open).ok_or(LogError::Fenced(rest.log))?;
        if known.layout.last().is_none_or(|newest| newest.number < rest.run) {
            return Err(LogError::Unavailable("the maps are older than the log's last stripes".into()));
        }
        // A run that its writer did not hear of has none of its stripes.
        let unfinished = known
            .layout
            .split_last()
            .filter(|(newest, older)| newest.number == rest.run && older.iter().any(|run| run.end.is_none()));
        let unfinished = unfinished.map(|(newest, _)| newest.from);
        let opened = opened(&maps, (rest.log, rest.epoch), rest.room)?;
        let state = State::resumed(opened, maps.parity, rest, unfinished);
        Shared::begin(cluster, state, options).await
    }

    async fn begin(cluster: Cluster, mut state: State, options: WriterOptions) -> Result<Arc<Shared>, LogError> {
        let log = state.opened.log;
        let targets: BTreeSet<_> = state.opened.groups.iter().flat_map(|group| group.targets.iter().copied()).collect();
        let stats = join_all(targets.iter().map(|&target| cluster.ask(target, StorageRequest::Stat))).await;
        for (&target, stat) in targets.iter().zip(stats) {
            match stat {
                Ok(StorageReply::Stat(stat)) => {
                    state.incarnations.insert(target, stat.incarnation);
                }
                other => state.target_failed(target, Failure::of(&other)),
            }
        }
        state.widen(options.record_size_min);
        let (state, changed, waiting) = (Mutex::new(state), Event::new(), Waiting::default());
        let shared = Arc::new(Shared { log, cluster, options, state, changed, waiting });
        following::widen(&shared).await?;
        shared.cluster.host().spawn(following::follow(Arc::downgrade(&shared)));
        shared.cluster.host().spawn(standstill::watch(Arc::downgrade(&shared)));
        Ok(shared)
    }

    pub(crate) fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(crate) fn append(&self, record: &Record<'_>) -> Result<(Appended, bool), LogError> {
        let mut state = self.lock();
        if state.full && state.backlog() > self.waiting_max(&state) {
            return Err(LogError::Full);
        }
        state.append(record)
    }

    fn waiting_max(&self, state: &State) -> usize {
        // Below some stripes the backlog could consist of an open one that nobody sends.
        let stripe = state.opened.groups[0].geometry.stripe_size() as usize;
        self.options.bytes_waiting_max.max(3 * stripe)
    }

    pub(crate) async fn room(this: &Arc<Shared>) -> Result<(), LogError> {
        Shared::until(this, |state| state.backlog() <= this.waiting_max(state)).await
    }

    pub(crate) async fn lull(this: &Arc<Shared>) -> Result<(), LogError> {
        Shared::until(this, |state| state.incomplete().count() <= LULL_STRIPES).await
    }

    /// Waits for targets until enough of what was appended has reached them.
    async fn until(this: &Arc<Shared>, is_enough: impl Fn(&State) -> bool) -> Result<(), LogError> {
        let _waits = this.waiting.begin();
        let mut since = None;
        loop {
            let listener = {
                let mut state = this.lock();
                if let Some(fault) = &state.fault {
                    return Err(fault.clone());
                }
                if is_enough(&state) {
                    return Ok(());
                }
                state.try_again(&mut since)?;
                this.changed.listen()
            };
            Shared::pump(this);
            listener.await;
        }
    }

    /// Waits for a hole in the log.
    pub(crate) async fn lost(this: &Arc<Shared>) {
        loop {
            let changed = this.changed.listen();
            if matches!(this.lock().fault, Some(LogError::Lost(_))) {
                return;
            }
            changed.await;
        }
    }

    pub(crate) async fn commit(this: &Arc<Shared>, through: Position, durability: Durability) -> Result<(), LogError> {
        let _waits = this.waiting.begin();
        let mut since = None;
        loop {
            let (works, listener) = {
                let mut state = this.lock();
                if state.acknowledged(durability) >= through {
                    return Ok(());
                }
                if let Some(fault) = &state.fault {
                    return Err(fault.clone());
                }
                assert!(through <= state.end(), "only what was appended can be committed");
                state.status.commits += u64::from(since.is_none());
                state.try_again(&mut since)?;
                let works = state.due_commit(through, durability);
                let listener = works.is_empty().then(|| this.changed.listen());
                (works, listener)
            };
            match listener {
                Some(listener) => {
                    Shared::pump(this);
                    listener.await;
                }
                None => {
                    perform_all(this, works).await;
                    Shared::pump(this);
                }
            }
        }
    }

    pub(crate) async fn close(this: &Arc<Shared>) -> Result<(), LogError> {
        loop {
            Shared::complete(this).await?;
            let mut state = this.lock();
            // What was appended meanwhile is closed in; what comes later is refused.
            if state.acknowledged(Durability::Disk) >= state.end() {
                state.fault.get_or_insert(LogError::Closed);
                return Ok(());
            }
        }
    }

    pub(crate) async fn rest(this: &Arc<Shared>) -> Result<Rest, LogError> {
        let _waits = this.waiting.begin();
        loop {
            Shared::complete(this).await?;
            // The run before may be at its end, and nothing else to come that says so.
            Shared::pump(this);
            let listener = {
                let mut state = this.lock();
                if let Some(rest) = state.rest() {
                    state.fault.get_or_insert(LogError::Closed);
                    return Ok(rest);
                }
                // Appended since: nobody else may send that.
                if state.incomplete().next().is_some() {
                    continue;
                }
                this.changed.listen()
            };
            listener.await;
        }
    }

    /// Ends the last stripe, and waits until all is complete and durable.
    async fn complete(this: &Arc<Shared>) -> Result<(), LogError> {
        let _waits = this.waiting.begin();
        this.lock().end_stripe();
        let end = this.lock().end();
        Shared::commit(this, end, Durability::Disk).await?;
        let mut since = None;
        loop {
            let listener = {
                let mut state = this.lock();
                if let Some(fault) = &state.fault {
                    return Err(fault.clone());
                }
                // Somebody may have appended meanwhile; an open stripe never gets complete.
                state.end_stripe();
                if state.incomplete().next().is_none() {
                    break;
                }
                state.try_again(&mut since)?;
                this.changed.listen()
            };
            Shared::pump(this);
            listener.await;
        }
        let end = this.lock().end();
        Shared::commit(this, end, Durability::Disk).await
    }

    /// Begins tasks for the bulk sends that are due, and for a new run if a target failed.
    pub(crate) fn pump(this: &Arc<Shared>) {
        let (works, relay_due, finish, note) = {
            let mut state = this.lock();
            let relay_due = state.relay_due() && !state.relaying && state.attempts.may_begin();
            if relay_due {
                state.relaying = true;
                state.attempts.begin();
            }
            (state.due_bulk(), relay_due, state.take_finish(), state.take_note())
        };
        let host = this.cluster.host();
        if let Some(note) = note {
            host.spawn(tell(this.clone(), note));
        }
        if relay_due {
            host.spawn(relay::relay(this.clone()));
        }
        if let Some(finish) = finish {
            host.spawn(relay::finish(this.clone(), finish));
            // Who waits until the log rests waits for this, too.
            this.changed.notify(usize::MAX);
        }
        for work in works {
            let shared = this.clone();
            host.spawn(async move {
                perform(&shared, work).await;
                Shared::pump(&shared);
            });
        }
    }
}

impl Drop for Shared {
    fn drop(&mut self) {
        self.cluster.wake_followers();
    }
}

/// Tells targets how far all is complete. Who does not hear it tells a recoverer less, which then reads more.
async fn tell(shared: Arc<Shared>, Note { epoch, below, targets }: Note) {
    let request = || StorageRequest::Complete { log: shared.log, epoch, below };
    join_all(targets.into_iter().map(|target| shared.cluster.ask(target, request()))).await;
}

/// Performs sends concurrently, in this task.
pub(crate) async fn perform_all(shared: &Arc<Shared>, mut works: Vec<Work>) {
    match works.len() {
        1 => perform(shared, works.remove(0)).await,
        _ => {
            join_all(works.into_iter().map(|work| perform(shared, work))).await;
        }
    }
}

/// It counts as under way until this is over, or dropped: also where nobody has polled it yet.
fn perform(shared: &Arc<Shared>, work: Work) -> impl Future<Output = ()> + Send {
    let pending = match &work {
        Work::Send(ticket, _) => Pending { shared, ticket: Some(*ticket), sync: None },
        Work::Sync(ticket) => Pending { shared, ticket: None, sync: Some(ticket.clone()) },
    };
    async move {
        let host = shared.cluster.host();
        let begun = host.now();
        match work {
            Work::Send(ticket, request) => {
                let answer = shared.cluster.ask(ticket.target, request).await;
                let is_late = answer.is_err() && host.now().since(begun) >= WRITE_PATIENCE;
                pending.done(|state| {
                    state.answered(&ticket, answer);
                    is_late.then(|| state.failures.was_late(ticket.target));
                });
            }
            Work::Sync(ticket) => {
                let outcome = sync(shared, &ticket).await;
                let is_late = host.now().since(begun) >= WRITE_PATIENCE;
                pending.done(|state| {
                    state.synced(&ticket, outcome);
                    is_late.then(|| state.failures.was_late(ticket.target));
                });
            }
        }
    }
}

/// Syncs a target. If it still has the incarnation that is known, it lost nothing before the sync.
async fn sync(shared: &Arc<Shared>, ticket: &SyncTicket) -> Synced {
    let known = shared.lock().incarnations.get(&ticket.target).copied();
    let now = match shared.cluster.ask(ticket.target, StorageRequest::Sync).await {
        Ok(StorageReply::Synced { incarnation }) => incarnation,
        other => return Synced::Failed(Failure::of(&other)),
    };
    if known.is_none_or(|known| known == now) {
        return Synced::Durable;
    }
    let (log, from) = {
        let state = shared.lock();
        (state.opened.log, state.complete_below())
    };
    match shared.cluster.ask(ticket.target, StorageRequest::Tail { log, from }).await {
        Ok(StorageReply::Fragments(kept)) => Synced::Restarted(now, kept),
        Ok(_) | Err(StorageError::Missing) => Synced::Restarted(now, Vec::new()),
        silent => Synced::Failed(Failure::of(&silent)),
    }
}

/// A send whose answer is awaited. Dropped before, because its commit was given up, it may be sent again.
struct Pending<'a> {
    shared: &'a Arc<Shared>,
    ticket: Option<Ticket>,
    sync: Option<SyncTicket>,
}

impl Pending<'_> {
    fn done(mut self, answer: impl FnOnce(&mut State)) {
        (self.ticket, self.sync) = (None, None);
        answer(&mut self.shared.lock());
        self.shared.changed.notify(usize::MAX);
    }
}

impl Drop for Pending<'_> {
    fn drop(&mut self) {
        if self.ticket.is_none() && self.sync.is_none() {
            return;
        }
        let mut state = self.shared.lock();
        if let Some(ticket) = &self.ticket {
            state.abandoned(ticket);
        }
        if let Some(sync) = &self.sync {
            state.syncing.retain(|&target| target != sync.target);
        }
        drop(state);
        self.shared.changed.notify(usize::MAX);
    }
}
