//! The client: what its parts share, and its beginning and end. Awaits.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use event_listener::Event;
use host::{Host, NodeId};
use log::{Cluster, LogReader, LogWriter, WriterOptions};
use protocol::id::InodeId;
use protocol::maps::Writer;
use protocol::storage::Room;

use crate::ClientError;
use crate::cache::Cache;
use crate::forgotten::Forgotten;
use crate::held_locks::OwnLocks;
use crate::heritage::Heritage;
use crate::journals::Journals;
use crate::lock_waits::LockWaits;
use crate::numbers::CallNumbers;
use crate::opens::OpenFile;
use crate::outbox::Outbox;
use crate::pins::Tokens;
use crate::space::Budget;

/// How much memory the client may take.
#[derive(Clone, Copy, Debug)]
pub struct ClientOptions {
    /// Bytes read ahead and not yet asked for, or read and likely to be asked for again. The kernel's page cache lies
    /// above, so a little is enough.
    pub cache_bytes: usize,
    /// Written bytes that are in no log yet. Writers wait when there are more.
    pub dirty_bytes: usize,
    /// Directories whose names are kept above, about; beyond that all are given up, and granted anew as they are used.
    pub names_max: usize,
    /// How long a file that others may use, too, is known after its last use.
    pub kept: Duration,
    /// How the client's log is written.
    pub log: WriterOptions,
}

impl Default for ClientOptions {
    fn default() -> Self {
        ClientOptions {
            cache_bytes: 64 << 20,
            dirty_bytes: 64 << 20,
            names_max: 50_000,
            kept: Duration::from_secs(30),
            log: WriterOptions::default(),
        }
    }
}

/// Files as programs see them. Clones share everything. Every method may be dropped while it waits: what it changes is
/// then done whole or not at all.
#[derive(Clone)]
pub struct Client(pub(crate) Arc<Inner>);

pub(crate) struct Inner {
    pub(crate) host: Host,
    pub(crate) cluster: Cluster,
    pub(crate) reader: LogReader,
    pub(crate) log: LogWriter,
    /// Files that are open, or have something that a manager does not know yet.
    pub(crate) files: Mutex<BTreeMap<InodeId, Arc<OpenFile>>>,
    pub(crate) journals: Mutex<Journals>,
    pub(crate) numbers: CallNumbers,
    pub(crate) cache: Cache,
    pub(crate) tokens: Tokens,
    pub(crate) forgotten: Forgotten,
    /// Taken after a slot's tokens, never before.
    pub(crate) locks: Mutex<OwnLocks>,
    /// An owner has given locks up.
    pub(crate) locks_moved: Event,
    /// The calls that wait for locks.
    pub(crate) lock_waits: Mutex<LockWaits>,
    /// The managers that know which log this client writes.
    pub(crate) greeted: Mutex<BTreeSet<NodeId>>,
    pub(crate) greeting: async_lock::Mutex<()>,
    /// Taken before a file's state, never after.
    pub(crate) outbox: Mutex<Outbox>,
    /// Deltas were acknowledged, or a commit for them failed.
    pub(crate) outbox_moved: Event,
    /// There is something to send, or it became urgent.
    pub(crate) outbox_filled: Event,
    pub(crate) budget: Budget,
    /// Held while a manager is answered.
    pub(crate) answering: Arc<async_lock::RwLock<()>>,
    /// How long files are known after their last use.
    pub(crate) kept: Duration,
    tickets: AtomicU64,
    stopped: AtomicBool,
}

/// What a client holds in memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub struct ClientMemory {
    /// Bytes read, or read ahead.
    pub bytes_cached: u64,
    /// Bytes written that are in no log yet, and what keeps them.
    pub bytes_dirty: u64,
    /// Inodes that are known: open, looked up, or not yet stored.
    pub inodes: u64,
}

impl Client {
    /// Opens a log of the client's own and begins to serve.
    pub async fn start(cluster: Cluster, reader: LogReader, options: ClientOptions) -> Result<Client, ClientError> {
        let log = LogWriter::open(cluster.clone(), Writer::Client, Room::Data, options.log).await?;
        Ok(Client::begin(cluster, (reader, log), options, None).await)
    }

    /// Goes on with what an earlier process of this node left.
    pub async fn resume(
        cluster: Cluster,
        reader: LogReader,
        options: ClientOptions,
        heritage: Heritage,
    ) -> Result<Client, ClientError> {
        let log = LogWriter::resume(cluster.clone(), heritage.rest, options.log).await?;
        Ok(Client::begin(cluster, (reader, log), options, Some(heritage)).await)
    }

    async fn begin(
        cluster: Cluster,
        (reader, log): (LogReader, LogWriter),
        options: ClientOptions,
        heritage: Option<Heritage>,
    ) -> Client {
        reader.attach(&log);
        let tickets = heritage.as_ref().map_or(1, |heritage| heritage.next_ticket);
        let inner = Arc::new(Inner {
            host: cluster.host().clone(),
            cluster,
            reader,
            log,
            files: Mutex::default(),
            journals: Mutex::default(),
            numbers: CallNumbers::default(),
            cache: Cache::new(options.cache_bytes),
            tokens: Tokens::new(options.names_max),
            forgotten: Forgotten::default(),
            locks: Mutex::default(),
            locks_moved: Event::new(),
            lock_waits: Mutex::default(),
            greeted: Mutex::default(),
            greeting: async_lock::Mutex::new(()),
            outbox: Mutex::default(),
            outbox_moved: Event::new(),
            outbox_filled: Event::new(),
            budget: Budget::new(options.dirty_bytes as u64),
            answering: Arc::default(),
            kept: options.kept,
            tickets: AtomicU64::new(tickets),
            stopped: AtomicBool::new(false),
        });
        if let Some(heritage) = heritage {
            inner.inherit(heritage);
        }
        inner.refresh_space().await;
        inner.clone().begin_background();
        Client(inner)
    }

    /// Writes everything out, waits until managers have it, and closes the log. Calls after that fail.
    pub async fn stop(&self) -> Result<(), ClientError> {
        self.settle().await?;
        self.0.end();
        self.0.log.close().await?;
        Ok(())
    }

    /// Returns when bytes were lost that were in no log on disk, so that it can store nothing more: it is to begin anew.
    pub async fn lost(&self) {
        self.0.log.lost().await;
    }

    /// How many pieces of files were read around targets that are away ([`LogReader::detours_taken`]).
    pub fn detours_taken(&self) -> u64 {
        self.0.reader.detours_taken()
    }

    /// What it holds in memory now.
    pub fn memory(&self) -> ClientMemory {
        let (cached, dirty) = (self.0.cache.bytes() as u64, self.0.budget.dirty());
        ClientMemory { bytes_cached: cached, bytes_dirty: dirty, inodes: lock(&self.0.files).len() as u64 }
    }
}

impl Inner {
    /// A number that names one waiting call.
    pub(crate) fn ticket(&self) -> u64 {
        // Managers keep tickets of all nodes of an inode together.
        (u64::from(self.host.node().0) << 40) | self.tickets.fetch_add(1, Ordering::Relaxed)
    }

    /// The number of the next ticket.
    pub(crate) fn next_ticket(&self) -> u64 {
        self.tickets.load(Ordering::Relaxed)
    }

    /// Calls fail from now on, and what goes on beside them ends.
    pub(crate) fn end(&self) {
        self.stopped.store(true, Ordering::Release);
        self.outbox_filled.notify(usize::MAX);
        self.budget.wake();
        self.tokens.moved.notify(usize::MAX);
        self.forgotten.wake();
    }

    pub(crate) fn is_stopped(&self) -> bool {
        self.stopped.load(Ordering::Acquire)
    }
}

impl fmt::Debug for Client {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Client of {:?}", self.0.host)
    }
}

/// Locks a short critical section. Poison only says that another thread panicked, and its panic is report enough.
pub(crate) fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
