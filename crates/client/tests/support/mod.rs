//! One simulated node with real targets, registry and log, and a manager that keeps files in memory: it can be slow, and
//! it can refuse.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use bytes::Bytes;
use client::{Client, ClientOptions};
use event_listener::Event;
use host::sim::{DiskOptions, World};
use host::{BoxFuture, Envelope, Handler, Host, NodeId, Port};
use log::{Cluster, LogReader};
use protocol::address::{LogAddress, Position};
use protocol::delta::{Change, Delta};
use protocol::file::{Attributes, Caller, Content, Extent, Kind, LockOwner, NewInode, Time};
use protocol::id::{InodeId, LogId, SlotId, StripeNumber, TargetId};
use protocol::manager::{Answer, MANAGER_PORT, ManagerAnswer, ManagerError, ManagerReply, ManagerRequest};
use protocol::maps::TargetEntry;
use protocol::token::Grant;
use registry::{Registry, change};
use storage::{Storage, TargetOptions};

/// The memory for dirty bytes of a client here.
pub const DIRTY_BYTES: usize = 2 << 20;

/// A node with everything that a client needs.
pub struct Site {
    pub cluster: Cluster,
    pub reader: LogReader,
    pub manager: Arc<FakeManager>,
}

impl Site {
    /// A file system of three targets, 2+1.
    pub async fn start(world: &World, host: &Host, disk: DiskOptions) -> Site {
        let disks: Vec<_> = (0..3).map(|n| world.add_disk(host.node(), &format!("target-{n}"), disk)).collect();
        let plugged: Vec<_> = (0..).map(TargetId).zip(disks.iter().map(|disk| disk.plug())).collect();
        let mut entries = Vec::new();
        for (target, disk) in &plugged {
            storage::format(disk, 1, *target, TargetOptions::default()).await.expect("an empty disk becomes a target");
            let entry = TargetEntry::new(host.node().0, format!("{}", target.0));
            entries.push((*target, entry));
        }
        let maps = change::new_cluster(1, entries, host.node().0, 1);
        Registry::create(maps, plugged.clone()).await.expect("an empty disk takes a registry");
        Registry::start(host, plugged.clone()).await.expect("the registry starts");
        let (_, lost) = Storage::start(host.clone(), 1, plugged, TargetOptions::default()).await;
        assert!(lost.is_empty());
        let manager = Arc::new(FakeManager { host: host.clone(), state: Mutex::default(), unlocked: Event::new() });
        host.listen(Port(MANAGER_PORT), Arc::new(Service(manager.clone())));
        let cluster = Cluster::connect(host.clone(), host.node()).await.expect("the registry answers");
        Site { reader: LogReader::new(cluster.clone()), cluster, manager }
    }

    /// A client with little memory, so that everything that can be full is.
    pub async fn client(&self) -> Client {
        let options = ClientOptions { cache_bytes: 1 << 20, dirty_bytes: DIRTY_BYTES, ..ClientOptions::default() };
        Client::start(self.cluster.clone(), self.reader.clone(), options).await.expect("the client starts")
    }
}

/// A plain file to be made.
pub fn plain_file() -> NewInode {
    let caller = Caller { uid: 1, gid: 1 };
    NewInode { kind: Kind::File, mode: 0o644, mask: 0o022, device: 0, target: Bytes::new(), caller }
}

/// A manager of files in memory.
pub struct FakeManager {
    host: Host,
    state: Mutex<State>,
    /// A lock was given up, or a wait for one.
    unlocked: Event,
}

#[derive(Default)]
struct State {
    files: BTreeMap<InodeId, Stored>,
    names: BTreeMap<Bytes, InodeId>,
    open: BTreeSet<InodeId>,
    /// Who holds the one lock that each file has, and the tickets of waits that were given up.
    locks: BTreeMap<InodeId, LockOwner>,
    cancelled: BTreeSet<u64>,
    journal: u32,
    disk: u32,
    flushes: u32,
    deltas: u32,
    applied: Position,
    waits: Duration,
    makes_wait: Duration,
}

struct Stored {
    attributes: Attributes,
    inline: Option<Bytes>,
    extents: BTreeMap<u64, LogAddress>,
}

impl FakeManager {
    /// From now on every answer takes so long.
    pub fn delay(&self, waits: Duration) {
        self.state.lock().unwrap().waits = waits;
    }

    /// From now on every answer that tells of a new file is so long on its way.
    pub fn delay_new_files(&self, waits: Duration) {
        self.state.lock().unwrap().makes_wait = waits;
    }

    /// Waits until nobody holds a lock of the file that is asked for.
    async fn wait_for_lock(&self, request: &ManagerRequest) {
        let ManagerRequest::Lock { inode, ticket, .. } = request else { return };
        loop {
            let unlocked = self.unlocked.listen();
            {
                let state = self.state.lock().unwrap();
                if state.cancelled.contains(ticket) || !state.locks.contains_key(inode) {
                    return;
                }
            }
            unlocked.await;
        }
    }

    /// How often its journal was flushed on request.
    pub fn flushes(&self) -> u32 {
        self.state.lock().unwrap().flushes
    }

    /// How many messages with deltas came.
    pub fn delta_messages(&self) -> u32 {
        self.state.lock().unwrap().deltas
    }

    /// What it knows of a file.
    pub fn attributes(&self, inode: InodeId) -> Option<Attributes> {
        self.state.lock().unwrap().files.get(&inode).map(|file| file.attributes)
    }
}

impl State {
    fn run(&mut self, request: ManagerRequest, now: Time) -> Result<Answer, ManagerError> {
        use ManagerRequest as R;
        match request {
            R::Lookup { name, .. } | R::Look { name: Some(name), .. } => {
                let inode = *self.names.get(&name).ok_or(ManagerError::NotFound)?;
                self.entry(inode)
            }
            R::Create { name, open, .. } => {
                if self.names.contains_key(&name) {
                    return Err(ManagerError::Exists);
                }
                let inode = InodeId(100 + self.files.len() as u64);
                self.names.insert(name, inode);
                self.files.insert(inode, Stored::new(inode, now));
                self.journal += 1;
                if open {
                    self.open.insert(inode);
                }
                self.entry(inode)
            }
            R::Unlink { name, .. } => {
                let inode = self.names.remove(&name).ok_or(ManagerError::NotFound)?;
                self.journal += 1;
                Ok(Answer::Removed(Some((inode, 0))))
            }
            R::Open { inode, .. } => {
                // What has lost its name while nobody had it open is gone.
                if !self.open.contains(&inode) && !self.names.values().any(|&named| named == inode) {
                    return Err(ManagerError::Stale);
                }
                self.open.insert(inode);
                self.entry(inode)
            }
            R::Close(inode) => {
                self.open.remove(&inode);
                Ok(Answer::Done)
            }
            R::Greet(_) => Ok(Answer::Done),
            R::Token { inode, .. } => self.entry(inode),
            R::Attributes(inode) => Ok(Answer::Attributes(self.file(inode)?.attributes)),
            R::SetAttributes(inode, set) => {
                self.journal += 1;
                let file = self.file(inode)?;
                if let Some(size) = set.size {
                    file.truncate(size);
                    file.attributes.modified = now;
                }
                file.attributes.modified = set.modified.unwrap_or(file.attributes.modified);
                Ok(Answer::Attributes(file.attributes))
            }
            R::Content { inode, offset, length } => Ok(Answer::Content(self.file(inode)?.content(offset, length))),
            R::Punch { inode, offset, length } => {
                self.journal += 1;
                self.file(inode)?.punch(offset, offset + length);
                Ok(Answer::Done)
            }
            R::Grow { inode, size } => {
                self.journal += 1;
                let file = self.file(inode)?;
                file.attributes.size = file.attributes.size.max(size);
                Ok(Answer::Done)
            }
            R::Deltas(deltas) => {
                self.deltas += 1;
                assert!(deltas.position > self.applied, "deltas come in log order");
                self.applied = deltas.position;
                deltas.list.iter().for_each(|delta| self.apply(delta));
                self.disk = self.journal;
                Ok(Answer::Done)
            }
            R::Flush(_, position) => {
                self.flushes += 1;
                assert!(position.offset <= self.journal);
                self.disk = self.journal;
                Ok(Answer::Done)
            }
            R::Lock { ticket, .. } if self.cancelled.contains(&ticket) => Err(ManagerError::Interrupted),
            R::Lock { inode, lock, .. } => {
                self.locks.insert(inode, lock.owner);
                Ok(Answer::Done)
            }
            R::CancelLock { ticket, .. } => {
                self.cancelled.insert(ticket);
                Ok(Answer::Done)
            }
            R::Unlock { inode, .. } => {
                self.locks.remove(&inode);
                Ok(Answer::Done)
            }
            R::Census => {
                let live = self.files.values().map(|file| file.attributes.size).sum();
                Ok(Answer::Census(self.files.len() as u64, live))
            }
            R::CloneRange(_) => Err(ManagerError::Unsupported),
            other => panic!("the fake manager does not know {other:?}"),
        }
    }

    fn file(&mut self, inode: InodeId) -> Result<&mut Stored, ManagerError> {
        self.files.get_mut(&inode).ok_or(ManagerError::Stale)
    }

    fn entry(&mut self, inode: InodeId) -> Result<Answer, ManagerError> {
        let file = self.file(inode)?;
        Ok(Answer::Entry(file.attributes, Some(file.content(0, u64::MAX))))
    }

    fn apply(&mut self, delta: &Delta) {
        let Some(file) = self.files.get_mut(&delta.inode) else { return };
        match &delta.change {
            Change::Extent { offset, address } => {
                file.inline = None;
                file.carve(*offset, offset + u64::from(address.length));
                file.extents.insert(*offset, *address);
            }
            Change::Inline { bytes } => {
                file.extents.clear();
                file.inline = Some(bytes.clone());
            }
            Change::Wrote { size, time } => {
                file.attributes.size = file.attributes.size.max(*size);
                file.attributes.modified = file.attributes.modified.max(*time);
            }
            Change::Read { .. } => {}
        }
    }
}

impl Stored {
    fn new(inode: InodeId, now: Time) -> Stored {
        let attributes = Attributes {
            inode,
            kind: Kind::File,
            mode: 0o644,
            links: 1,
            uid: 1,
            gid: 1,
            device: 0,
            size: 0,
            stored: 0,
            accessed: now,
            modified: now,
            changed: now,
            created: now,
            version: 0,
        };
        Stored { attributes, inline: None, extents: BTreeMap::new() }
    }

    fn carve(&mut self, from: u64, to: u64) {
        let end = |(&at, address): (&u64, &LogAddress)| at + u64::from(address.length);
        let touched: Vec<_> =
            self.extents.range(..to).filter(|extent| end(*extent) > from).map(|(&at, _)| at).collect();
        for at in touched {
            let address = self.extents.remove(&at).expect("it was found");
            let last = at + u64::from(address.length);
            if at < from {
                self.extents.insert(at, address.part(0, (from - at) as u32));
            }
            if last > to {
                self.extents.insert(to, address.part((to - at) as u32, (last - to) as u32));
            }
        }
    }

    fn truncate(&mut self, size: u64) {
        self.carve(size, u64::MAX);
        self.inline = self.inline.take().map(|bytes| bytes.slice(..bytes.len().min(size as usize)));
        self.attributes.size = size;
    }

    fn punch(&mut self, from: u64, to: u64) {
        self.carve(from, to);
        self.inline = self.inline.take().map(|bytes| {
            let mut bytes = bytes.to_vec();
            let length = bytes.len();
            bytes[length.min(from as usize)..length.min(to as usize)].fill(0);
            bytes.into()
        });
    }

    /// At most three extents an answer, so that files ask on.
    fn content(&self, offset: u64, length: u64) -> Content {
        if let Some(bytes) = &self.inline {
            return Content::Inline(bytes.clone());
        }
        let end = offset.saturating_add(length);
        let mut list = Vec::new();
        for (&at, &address) in &self.extents {
            let extent = Extent { offset: at, address };
            if extent.end() > offset && at < end {
                list.push(extent);
            }
            if list.len() == 3 {
                return Content::Extents { through: extent.end(), list };
            }
        }
        Content::Extents { list, through: end }
    }
}

struct Service(Arc<FakeManager>);

impl Handler for Service {
    fn handle(&self, _from: NodeId, request: Envelope) -> BoxFuture<'static, Envelope> {
        let manager = self.0.clone();
        Box::pin(async move {
            let request = request.open::<ManagerRequest>().expect("a request to a manager");
            manager.wait_for_lock(&request).await;
            // The next in turn takes what is given up; whose wait was given up is for each to see.
            let woken = match request {
                ManagerRequest::Unlock { .. } => 1,
                ManagerRequest::CancelLock { .. } => usize::MAX,
                _ => 0,
            };
            let is_make = matches!(request, ManagerRequest::Create { .. });
            let (waits, makes_wait) = {
                let state = manager.state.lock().unwrap();
                (state.waits, state.makes_wait * u32::from(is_make))
            };
            if !waits.is_zero() {
                manager.host.sleep(waits * (manager.host.random() % 100) as u32 / 100).await;
            }
            let now = Time(manager.host.wall().0);
            let at = |offset| Position::new(StripeNumber(0), offset);
            let (answer, journal, journal_disk) = {
                let mut state = manager.state.lock().unwrap();
                (state.run(request, now), at(state.journal), at(state.disk))
            };
            manager.unlocked.notify(woken);
            // What was decided may be long on its way.
            if !waits.is_zero() {
                manager.host.sleep(waits * (manager.host.random() % 100) as u32 / 100).await;
            }
            manager.host.sleep(makes_wait).await;
            // There is one client, and all files are in one slot.
            let (log, granted) = (LogId(u64::MAX), Some(Grant::Slot(SlotId(0))));
            let reply = |answer| ManagerReply { answer, log, journal, journal_disk, granted };
            let answer: ManagerAnswer = answer.map(reply);
            Envelope::new(answer)
        })
    }
}
