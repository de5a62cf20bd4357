//! A simulated kernel above a client: the page cache of one mount, and its way to the face.
//!
//! As Linux does (fs/fuse/file.c, mm/truncate.c): a page that is being read is locked, and whoever wants it or has it dropped
//! waits. A write puts the bytes into a whole page at once and unlocks it, before the WRITE is even sent. Dropping goes from
//! page to page, in order; what is read behind it stays. Requests take a while from here to the face.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, OnceLock};
use std::time::Duration;

use async_lock::OnceCell;
use bytes::Bytes;
use client::{Above, Client};
use event_listener::Event;
use fuse::notify::{Notification, Pages};
use fuse::operation::{Handle, NodeId, Read, Unique, Write};
use fuse::{Extensions, Face, Notifier, Operation, Request};
use host::{BoxFuture, Host};
use protocol::id::InodeId;

/// Bytes of a page: a number, over and over.
pub const PAGE_BYTES: u64 = 4096;

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
    async fn drop_pages(&self, inode: InodeId, range: std::ops::Range<u64>) {
        let mut at = (inode, range.start);
        while let Some(name) = self.next(at).filter(|(_, page)| *page < range.end) {
            self.with(name, |pages| pages.remove(&name)).await;
            at = (inode, name.1 + 1);
        }
    }
}

/// A page that is being read; however that ends, it is unlocked.
struct Reading<'a> {
    cache: &'a Cache,
    name: PageName,
    value: Option<u64>,
}

impl Drop for Reading<'_> {
    fn drop(&mut self) {
        let mut pages = self.cache.pages.lock().unwrap();
        match self.value {
            Some(value) => drop(pages.insert(self.name, Some(value))),
            None => drop(pages.remove(&self.name)),
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
    /// One write at a time.
    writing: async_lock::Mutex<()>,
    under_way: Mutex<Option<u64>>,
}

impl Kernel {
    /// Mounts a client; what it has to tell the kernel goes to the second.
    pub fn mount(client: Client, host: Host) -> (Arc<Kernel>, Arc<dyn Above>) {
        let face = Face::new(client, host.clone());
        let (cache, writing) = (Cache::default(), async_lock::Mutex::new(()));
        let kernel = Arc::new(Kernel { host, cache, face: OnceLock::new(), writing, under_way: Mutex::default() });
        let above = face.kernel(Arc::new(Ear(kernel.clone())));
        assert!(kernel.face.set(face).is_ok(), "mounted once");
        (kernel, above)
    }

    async fn take_a_while(&self) {
        self.host.sleep(Duration::from_nanos(self.host.random() % 2_000_000)).await;
    }

    async fn ask(&self, inode: InodeId, operation: Operation) -> Result<Vec<Bytes>, Failed> {
        self.take_a_while().await;
        let extensions = Extensions::default();
        let (unique, node) = (Unique(self.host.random()), NodeId(inode.0));
        let request = Request { unique, node, uid: 0, gid: 0, pid: 1, operation, extensions };
        let face = self.face.get().expect("it is mounted");
        let frame = face.answer(request).await.expect("reads and writes are answered");
        let error = i32::from_le_bytes(frame.head()[4..8].try_into().unwrap());
        if error == 0 { Ok(frame.payload().to_vec()) } else { Err(Failed) }
    }

    /// What a program reads. Nothing where another program here is just writing it: that is in the pages before the face has
    /// heard of it, and no face can help that.
    pub async fn read(&self, inode: InodeId, page: u64) -> Result<Option<u64>, Failed> {
        let value = self.read_page(inode, page).await?;
        Ok(Some(value).filter(|value| *self.under_way.lock().unwrap() != Some(*value)))
    }

    async fn read_page(&self, inode: InodeId, page: u64) -> Result<u64, Failed> {
        let name = (inode, page);
        let is_there = |pages: &mut BTreeMap<PageName, Option<u64>>| match pages.get(&name) {
            Some(value) => *value,
            None => {
                pages.insert(name, None);
                None
            }
        };
        if let Some(value) = self.cache.with(name, is_there).await {
            return Ok(value);
        }
        let mut reading = Reading { cache: &self.cache, name, value: None };
        let (handle, offset, size) = (Handle(1), page * PAGE_BYTES, PAGE_BYTES as u32);
        let read = Read { handle, offset, size, lock_owner: None, open_flags: 0 };
        let bytes = self.ask(inode, Operation::Read(read)).await?.concat();
        assert_eq!(bytes.len() as u64, PAGE_BYTES, "no file is shorter than its pages");
        let mut words = bytes.chunks(8).map(|word| u64::from_le_bytes(word.try_into().unwrap()));
        let value = words.next().unwrap();
        assert!(words.all(|word| word == value), "a page is written at once");
        reading.value = Some(value);
        Ok(value)
    }

    /// What a program writes.
    pub async fn write(&self, inode: InodeId, page: u64, value: u64) -> Result<(), Failed> {
        let _one = self.writing.lock().await;
        let name = (inode, page);
        *self.under_way.lock().unwrap() = Some(value);
        self.cache.with(name, |pages| pages.insert(name, Some(value))).await;
        let data = Bytes::from(value.to_le_bytes().repeat(PAGE_BYTES as usize / 8));
        let write = Write {
            handle: Handle(1),
            offset: page * PAGE_BYTES,
            data,
            lock_owner: None,
            open_flags: 2,
            from_page_cache: false,
            kill_suidgid: false,
        };
        let written = self.ask(inode, Operation::Write(write)).await.map(drop);
        if written.is_err() {
            self.cache.with(name, |pages| pages.remove(&name)).await;
        }
        *self.under_way.lock().unwrap() = None;
        written
    }
}

/// Hears what the kernel is to forget.
struct Ear(Arc<Kernel>);

impl Notifier for Ear {
    fn tell(&self, notifications: Vec<Notification>) -> BoxFuture<'static, ()> {
        let (kernel, told) = (self.0.clone(), Arc::new(OnceCell::new()));
        let done = told.clone();
        // It is carried out whether or not anybody waits for that.
        self.0.host.spawn(async move {
            kernel.take_a_while().await;
            for notification in notifications {
                let Notification::InvalidateInode { node, pages } = notification else { continue };
                let range = match pages {
                    Pages::None => continue,
                    Pages::From(offset) => offset / PAGE_BYTES..u64::MAX,
                    Pages::Range { offset, length } => offset / PAGE_BYTES..(offset + length).div_ceil(PAGE_BYTES),
                };
                kernel.cache.drop_pages(InodeId(node.0), range).await;
            }
            let _ = told.set(()).await;
        });
        Box::pin(async move {
            done.wait().await;
        })
    }
}
