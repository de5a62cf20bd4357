//! A simulated kernel above a client: the caches of one mount, of pages and of names, and its way to the face.
//!
//! As Linux does (fs/fuse/file.c, mm/truncate.c): a page that is being read is locked, and whoever wants it or has it
//! dropped waits. A write puts the bytes into a whole page at once and unlocks it, before the WRITE is even sent; a page
//! that it does not have, and writes in part only, it keeps locked until the WRITE is answered. Dropping goes from page to
//! page, in order; what is read behind it stays. Requests take a while from here to the face, and so do answers and
//! notifications back; sometimes a long one, for the thread that does it is not always there at once.

use std::collections::BTreeMap;
use std::ops::Range;
use std::pin::pin;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, OnceLock, Weak};
use std::time::Duration;

use async_lock::OnceCell;
use bytes::Bytes;
use client::{Above, Client};
use event_listener::Event;
use fuse::notify::{Notification, Pages};
use fuse::operation::{
    Handle, Lock, LockFamily, LockKind, LockOwner, LockRequest, NodeId, Read, SetAttributes, Unique, Write,
};
use fuse::{Extensions, Face, Frame, Notifier, Operation, Request, Told};
use futures_util::future::{Either, select};
use host::{BoxFuture, Host};
use protocol::id::InodeId;

use super::dentries::Dentries;

/// Bytes of a page: a number, over and over.
pub const PAGE_BYTES: u64 = 4096;

/// How often, and by how much, anything comes late.
const LATE_ONE_IN: u64 = 8;
const LATE_MAX_NANOS: u64 = 50_000_000;
/// Pages of a file that is read and written.
pub const FILE_PAGES: u64 = 4;
/// How many pages a READ is for, at most.
const READ_PAGES_MAX: u64 = 3;
/// How often it is looked at whether it waits for a page.
const LOOK_AGAIN: Duration = Duration::from_millis(1);

/// Where in an answer stands what is looked at here: behind the header of 16 bytes, `fuse_entry_out` and `fuse_attr_out`.
const ENTRY_INODE: usize = 16;
const ENTRY_VALID: usize = 16 + 16;
const ENTRY_VALID_NANOS: usize = 16 + 32;
const ATTRIBUTES_VALID: usize = 16;
const ATTRIBUTES_VALID_NANOS: usize = 16 + 8;
const ATTRIBUTES_OWNER: usize = 16 + 16 + 68;

/// Where in an entry of a READDIRPLUS: `fuse_entry_out` of 128 bytes, then `fuse_dirent`, whose name is padded to eight
/// bytes.
const LISTED_VALID: usize = 16;
const LISTED_VALID_NANOS: usize = 32;
const LISTED_INODE: usize = 128;
const LISTED_COOKIE: usize = 128 + 8;
const LISTED_NAME_BYTES: usize = 128 + 16;
const LISTED_NAME: usize = 128 + 24;
/// How many bytes a program has room for: a few entries, or some more.
const LISTED_BYTES: Range<u64> = 360..1200;
/// How long a thread may take to link the names of an answer that it has.
const LINKING_MAX_NANOS: u64 = 90_000_000;

/// Eight bytes of an answer.
fn word(frame: &Frame, at: usize) -> u64 {
    u64::from_le_bytes(frame.head()[at..at + 8].try_into().unwrap())
}

/// Four bytes of it.
fn half(frame: &Frame, at: usize) -> u32 {
    u32::from_le_bytes(frame.head()[at..at + 4].try_into().unwrap())
}

/// How long it may be kept, from now on.
fn valid(frame: &Frame, seconds: usize, nanos: usize) -> Duration {
    Duration::new(word(frame, seconds), half(frame, nanos))
}

/// The face did not do it.
#[derive(Debug)]
pub struct Failed;

type PageName = (InodeId, u64);

/// The page cache of one mount.
#[derive(Default)]
struct Cache {
    /// None: locked.
    pages: Mutex<BTreeMap<PageName, Option<u64>>>,
    unlocked: Event,
}

impl Cache {
    /// Waits until a page is not locked; then does this, in the same moment.
    async fn with<T>(&self, name: PageName, work: impl FnOnce(&mut BTreeMap<PageName, Option<u64>>) -> T) -> T {
        loop {
            let unlocked = self.unlocked.listen();
            {
                let mut pages = self.pages.lock().unwrap();
                if pages.get(&name) != Some(&None) {
                    return work(&mut pages);
                }
            }
            unlocked.await;
        }
    }

    fn next(&self, from: PageName) -> Option<PageName> {
        let pages = self.pages.lock().unwrap();
        pages.range(from..).map(|(name, _)| *name).next().filter(|(inode, _)| *inode == from.0)
    }

    /// Drops the pages of a file from one to before another.
    async fn drop_pages(&self, inode: InodeId, range: std::ops::Range<u64>, telling: &Telling) {
        let mut at = (inode, range.start);
        while let Some(name) = self.next(at).filter(|(_, page)| *page < range.end) {
            telling.waits.store(true, Ordering::Relaxed);
            self.with(name, |pages| pages.remove(&name)).await;
            telling.waits.store(false, Ordering::Relaxed);
            at = (inode, name.1 + 1);
        }
    }
}

/// Pages that are locked, one behind the other; however that ends, they are unlocked.
struct Locked<'a> {
    cache: &'a Cache,
    first: PageName,
    count: u64,
    /// What is in them then. Nothing: they are dropped.
    values: Vec<u64>,
}

impl Drop for Locked<'_> {
    fn drop(&mut self) {
        let mut pages = self.cache.pages.lock().unwrap();
        for nth in 0..self.count {
            let name = (self.first.0, self.first.1 + nth);
            match self.values.get(nth as usize) {
                Some(value) => drop(pages.insert(name, Some(*value))),
                None => drop(pages.remove(&name)),
            }
        }
        drop(pages);
        self.cache.unlocked.notify(usize::MAX);
    }
}

/// One mount.
pub struct Kernel {
    host: Host,
    cache: Cache,
    face: OnceLock<Face>,
    dentries: Mutex<Dentries>,
    forgets_names: bool,
    /// One write at a time.
    writing: async_lock::Mutex<()>,
    under_way: Mutex<Range<u64>>,
}

impl Kernel {
    /// Mounts a client; what it has to tell the kernel goes to the second.
    /// Kernels before Linux 6.16 cannot be told to forget names.
    pub fn mount(client: Client, host: Host, forgets_names: bool) -> (Arc<Kernel>, Arc<dyn Above>) {
        let face = Face::new(client, host.clone());
        let (cache, writing) = (Cache::default(), async_lock::Mutex::new(()));
        let (face_place, dentries, under_way) = (OnceLock::new(), Mutex::default(), Mutex::default());
        let kernel = Arc::new(Kernel { host, cache, face: face_place, dentries, forgets_names, writing, under_way });
        let above = face.kernel(Arc::new(Ear(Arc::downgrade(&kernel), forgets_names)));
        assert!(kernel.face.set(face).is_ok(), "mounted once");
        (kernel, above)
    }

    /// Mostly a moment; at times a thread has to wait for its turn.
    async fn take_a_while(&self) {
        let nanos = if self.host.random().is_multiple_of(LATE_ONE_IN) { LATE_MAX_NANOS } else { 2_000_000 };
        self.host.sleep(Duration::from_nanos(self.host.random() % nanos)).await;
    }

    async fn ask(&self, inode: InodeId, operation: Operation) -> Result<Frame, Failed> {
        self.take_a_while().await;
        let extensions = Extensions::default();
        let (unique, node) = (Unique(self.host.random()), NodeId(inode.0));
        let request = Request { unique, node, uid: 0, gid: 0, pid: 1, operation, extensions };
        let face = self.face.get().expect("it is mounted");
        let frame = face.answer(request).await.expect("reads and writes are answered");
        self.take_a_while().await;
        let error = i32::from_le_bytes(frame.head()[4..8].try_into().unwrap());
        if error == 0 { Ok(frame) } else { Err(Failed) }
    }

    /// What a program finds under a name, and whether that was remembered.
    pub async fn lookup(&self, directory: InodeId, name: &Bytes) -> Result<(Option<InodeId>, bool), Failed> {
        let asked = {
            let dentries = self.dentries.lock().unwrap();
            if let Some(found) = dentries.name(directory, name, self.host.now()) {
                return Ok((found, true));
            }
            dentries.ask()
        };
        let frame = self.ask(directory, Operation::Lookup { name: name.clone() }).await?;
        let found = Some(InodeId(word(&frame, ENTRY_INODE))).filter(|inode| inode.0 != 0);
        let until = self.host.now() + valid(&frame, ENTRY_VALID, ENTRY_VALID_NANOS);
        self.dentries.lock().unwrap().keep_name((directory, name.clone()), found, asked, until);
        Ok((found, false))
    }

    /// What a program reads of a directory that it has open, from the beginning, and whether that was remembered. As Linux
    /// does (fs/fuse/readdir.c), names are linked behind their answer, in the epoch of then, a while after the kernel has
    /// it.
    pub async fn list(&self, directory: InodeId) -> Result<(Vec<(Bytes, InodeId)>, bool), Failed> {
        if let Some(kept) = self.dentries.lock().unwrap().listing(directory) {
            return Ok((kept, true));
        }
        let (mut listed, mut offset) = (Vec::new(), 0);
        loop {
            let size = LISTED_BYTES.start + self.host.random() % (LISTED_BYTES.end - LISTED_BYTES.start);
            let read = Read { handle: Handle(0), offset, size: size as u32, lock_owner: None, open_flags: 0 };
            let answer = self.ask(directory, Operation::Readdirplus(read)).await?.payload().concat();
            if answer.is_empty() {
                self.dentries.lock().unwrap().keep_end(directory, offset);
                return Ok((listed, false));
            }
            self.host.sleep(Duration::from_nanos(self.host.random() % LINKING_MAX_NANOS)).await;
            let mut at = answer.as_slice();
            while !at.is_empty() {
                let word = |from| u64::from_le_bytes(at[from..from + 8].try_into().unwrap());
                let half = |from| u32::from_le_bytes(at[from..from + 4].try_into().unwrap());
                let end = LISTED_NAME + half(LISTED_NAME_BYTES) as usize;
                let (name, inode) = (Bytes::copy_from_slice(&at[LISTED_NAME..end]), InodeId(word(LISTED_INODE)));
                let until = self.host.now() + Duration::new(word(LISTED_VALID), half(LISTED_VALID_NANOS));
                let mut dentries = self.dentries.lock().unwrap();
                let behind = std::mem::replace(&mut offset, word(LISTED_COOKIE));
                dentries.keep_listed(directory, (behind, offset), (name.clone(), inode));
                // Without attributes it is listed, and not linked.
                if word(0) != 0 {
                    let linked = dentries.ask();
                    dentries.keep_name((directory, name.clone()), Some(inode), linked, until);
                }
                listed.push((name, inode));
                at = &at[end.next_multiple_of(8)..];
            }
        }
    }

    /// Whose a directory is, and whether that was remembered.
    pub async fn owner(&self, directory: InodeId) -> Result<(u32, bool), Failed> {
        let asked = {
            let dentries = self.dentries.lock().unwrap();
            if let Some(owner) = dentries.owner(directory, self.host.now()) {
                return Ok((owner, true));
            }
            dentries.ask()
        };
        let frame = self.ask(directory, Operation::Getattr { handle: None }).await?;
        let owner = half(&frame, ATTRIBUTES_OWNER);
        let until = self.host.now() + valid(&frame, ATTRIBUTES_VALID, ATTRIBUTES_VALID_NANOS);
        self.dentries.lock().unwrap().keep_owner(directory, owner, asked, until);
        Ok((owner, false))
    }

    /// Renames, and forgets what it knew of both names.
    pub async fn rename(&self, from: (InodeId, &Bytes), to: (InodeId, &Bytes)) -> Result<(), Failed> {
        let (name, new_name) = (from.1.clone(), to.1.clone());
        let operation = Operation::Rename { name, new_parent: NodeId(to.0.0), new_name, flags: 0 };
        let done = self.ask(from.0, operation).await.map(drop);
        let mut dentries = self.dentries.lock().unwrap();
        dentries.drop_name(from.0, from.1);
        dentries.drop_name(to.0, to.1);
        done
    }

    /// Gives a directory to another owner; what it was told of it then it asks for again.
    pub async fn give(&self, directory: InodeId, owner: u32) -> Result<(), Failed> {
        let set = SetAttributes { uid: Some(owner), ..SetAttributes::default() };
        let done = self.ask(directory, Operation::Setattr(set)).await.map(drop);
        self.dentries.lock().unwrap().forget(directory);
        done
    }

    /// A process waits for a lock on a whole file (F_SETLKW), by this descriptor.
    pub async fn lock(&self, inode: InodeId, owner: LockOwner, handle: Handle) -> Result<(), Failed> {
        let lock = Lock { start: 0, end: i64::MAX as u64, kind: LockKind::Write, pid: 1 };
        let request = LockRequest { handle, owner, lock, family: LockFamily::Posix };
        self.ask(inode, Operation::Setlkw(request)).await.map(drop)
    }

    /// A process closes one of its descriptors of a file.
    pub async fn flush(&self, inode: InodeId, lock_owner: LockOwner, handle: Handle) -> Result<(), Failed> {
        self.ask(inode, Operation::Flush { handle, lock_owner }).await.map(drop)
    }

    /// What a program reads. Nothing where another program here is just writing it: that is in the pages before the face
    /// has heard of it, and no face can help that.
    pub async fn read(&self, inode: InodeId, page: u64) -> Result<Option<u64>, Failed> {
        let value = self.read_pages(inode, page).await?;
        Ok(Some(value).filter(|value| !self.under_way.lock().unwrap().contains(value)))
    }

    /// The value of a page; where it is not there, some behind it that are not there either are read, too.
    async fn read_pages(&self, inode: InodeId, page: u64) -> Result<u64, Failed> {
        let (first, most) = ((inode, page), 1 + self.host.random() % READ_PAGES_MAX);
        let lock = |pages: &mut BTreeMap<PageName, Option<u64>>| {
            if let Some(value) = pages.get(&first) {
                return Ok(value.expect("it is not locked"));
            }
            let is_free = |page: &u64| *page < FILE_PAGES && !pages.contains_key(&(inode, *page));
            let count = (page..page + most).take_while(is_free).count() as u64;
            pages.extend((page..page + count).map(|page| ((inode, page), None)));
            Err(count)
        };
        let count = match self.cache.with(first, lock).await {
            Ok(value) => return Ok(value),
            Err(count) => count,
        };
        let mut locked = Locked { cache: &self.cache, first, count, values: Vec::new() };
        let (handle, offset, size) = (Handle(1), page * PAGE_BYTES, (count * PAGE_BYTES) as u32);
        let read = Read { handle, offset, size, lock_owner: None, open_flags: 0 };
        let bytes = self.ask(inode, Operation::Read(read)).await?.payload().concat();
        assert_eq!(bytes.len() as u64, u64::from(size), "no file is shorter than its pages");
        for page in bytes.chunks(PAGE_BYTES as usize) {
            let mut words = page.chunks(8).map(|word| u64::from_le_bytes(word.try_into().unwrap()));
            let value = words.next().unwrap();
            assert!(words.all(|word| word == value), "a page is written at once");
            locked.values.push(value);
        }
        Ok(locked.values[0])
    }

    /// What a program writes, from a page on, another value in each; the last one perhaps as if it were part of a page. The
    /// WRITE has all of it nevertheless.
    pub async fn write(&self, inode: InodeId, page: u64, values: Range<u64>) -> Result<(), Failed> {
        let _one = self.writing.lock().await;
        let (count, is_part) = (values.end - values.start, self.host.random() & 1 == 0);
        *self.under_way.lock().unwrap() = values.clone();
        let mut locked = None;
        for (nth, value) in values.clone().enumerate() {
            let (name, is_last) = ((inode, page + nth as u64), nth as u64 + 1 == count);
            let put = |pages: &mut BTreeMap<PageName, Option<u64>>| {
                let stays_locked = is_last && is_part && !pages.contains_key(&name);
                pages.insert(name, Some(value).filter(|_| !stays_locked));
                stays_locked
            };
            if self.cache.with(name, put).await {
                locked = Some(Locked { cache: &self.cache, first: name, count: 1, values: Vec::new() });
            }
        }
        let data: Vec<u8> = values.flat_map(|value| value.to_le_bytes().repeat(PAGE_BYTES as usize / 8)).collect();
        let write = Write {
            handle: Handle(1),
            offset: page * PAGE_BYTES,
            data: Bytes::from(data),
            lock_owner: None,
            open_flags: 2,
            from_page_cache: false,
            kill_suidgid: false,
        };
        let written = self.ask(inode, Operation::Write(write)).await.map(drop);
        drop(locked);
        if written.is_err() {
            for page in page..page + count {
                self.cache.with((inode, page), |pages| pages.remove(&(inode, page))).await;
            }
        }
        *self.under_way.lock().unwrap() = 0..0;
        written
    }
}

/// Hears what the kernel is to forget.
struct Ear(Weak<Kernel>, bool);

impl Notifier for Ear {
    fn tell(&self, notifications: Vec<Notification>) -> BoxFuture<'static, Told> {
        let kernel = self.0.upgrade().expect("nobody tells a kernel that is no more");
        let (host, telling) = (kernel.host.clone(), Arc::new(Telling::default()));
        let own = telling.clone();
        // It is carried out whether or not anybody waits for that.
        host.spawn(async move {
            kernel.take_a_while().await;
            for notification in notifications {
                let (node, pages) = match notification {
                    Notification::InvalidateInode { node, pages } => (node, pages),
                    Notification::IncrementEpoch if kernel.forgets_names => {
                        kernel.dentries.lock().unwrap().increment_epoch();
                        continue;
                    }
                    _ => continue,
                };
                kernel.dentries.lock().unwrap().forget(InodeId(node.0));
                let range = match pages {
                    Pages::None => continue,
                    Pages::From(0) => {
                        kernel.dentries.lock().unwrap().drop_listing(InodeId(node.0));
                        0..u64::MAX
                    }
                    Pages::From(offset) => offset / PAGE_BYTES..u64::MAX,
                    Pages::Range { offset, length } => offset / PAGE_BYTES..(offset + length).div_ceil(PAGE_BYTES),
                };
                kernel.cache.drop_pages(InodeId(node.0), range, &own).await;
            }
            let _ = own.done.set(()).await;
        });
        progress(host, telling)
    }

    fn forgets_names(&self) -> bool {
        self.1
    }
}

/// How far the kernel is with what it was told.
#[derive(Default)]
struct Telling {
    done: OnceCell<()>,
    /// It waits for a locked page.
    waits: AtomicBool,
}

fn progress(host: Host, telling: Arc<Telling>) -> BoxFuture<'static, Told> {
    Box::pin(async move {
        let mut waited = false;
        loop {
            if let Either::Left(_) = select(pin!(telling.done.wait()), pin!(host.sleep(LOOK_AGAIN))).await {
                return Told::Done;
            }
            let waits = telling.waits.load(Ordering::Relaxed);
            if std::mem::replace(&mut waited, waits) && waits {
                return Told::Waits(progress(host.clone(), telling.clone()));
            }
        }
    })
}
