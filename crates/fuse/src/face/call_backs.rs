//! What the kernel is told to forget when the client gives tokens up (DESIGN §6; `docs/tokens.md`).

use std::collections::BTreeMap;
use std::pin::pin;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use client::Above;
use futures_util::future::{join, join_all, select};
use host::{BoxFuture, Moment};
use protocol::id::{InodeId, SlotId};

use super::{Shared, lock};
use crate::notify::{Notification, Pages};
use crate::operation::NodeId;

/// The way to the kernel for what it did not ask for.
pub trait Notifier: Send + Sync {
    /// Tells the kernel, in order, on a thread that serves no call; done when it has carried all out, or cannot.
    fn tell(&self, notifications: Vec<Notification>) -> BoxFuture<'static, ()>;
}

/// How long a WRITE may have been on its way from the kernel's pages to here.
const ON_ITS_WAY_MAX: Duration = Duration::from_secs(10);
/// How long an answer waits for pages to be dropped. What takes longer is a page that waits for that very answer.
const DROP_WAIT: Duration = Duration::from_millis(2);
/// So many files are remembered before those of long ago go.
const FILES_MAX: usize = 1 << 14;

/// The kernel of one mount, as the client sees it.
pub(super) struct Kernel(pub(super) Arc<Shared>);

impl Above for Kernel {
    fn forget_file(&self, inode: InodeId) -> BoxFuture<'static, ()> {
        self.0.forgotten.note(inode, self.0.host.now());
        self.0.tell(vec![forget(inode, Pages::From(0))])
    }

    fn forget_names(&self, slot: SlotId, files: Vec<InodeId>) -> BoxFuture<'static, ()> {
        // A name looked up anew brings its attributes; what is in use without a name is a directory, or an open file.
        let directories = self.0.told.of_slot(slot);
        let attributes = directories.into_iter().chain(files).map(|inode| forget(inode, Pages::None));
        self.0.tell([Notification::IncrementEpoch].into_iter().chain(attributes).collect())
    }

    fn forget_all(&self, files: Vec<InodeId>) -> BoxFuture<'static, ()> {
        let attributes = self.0.told.all().into_iter().map(|inode| forget(inode, Pages::None));
        let names = self.0.tell([Notification::IncrementEpoch].into_iter().chain(attributes).collect());
        // Each for itself: a page that is being read keeps waiting whoever drops the pages of its file, and nobody else.
        let pages: Vec<_> = files.into_iter().map(|file| self.forget_file(file)).collect();
        Box::pin(async move { drop(join(names, join_all(pages)).await) })
    }
}

impl Shared {
    fn tell(&self, notifications: Vec<Notification>) -> BoxFuture<'static, ()> {
        self.notifier.get().expect("only a mounted face has a kernel to tell").tell(notifications)
    }

    /// Drops pages in which the kernel may have something else than what a WRITE left in the file; before its answer, so
    /// that nobody reads them behind it.
    ///
    /// The kernel puts the bytes into its pages first and unlocks these before it sends the WRITE. If it is told to forget the
    /// file meanwhile, a READ may fill the pages with what was there before, and nobody would correct that. And where others
    /// append, too, it takes the end of the file to be where it is no longer.
    pub(super) async fn drop_mistaken_pages(&self, inode: InodeId, (assumed, size): (u64, u32), offset: u64) {
        let now = self.host.now();
        if assumed == offset && !self.forgotten.is_recent(inode, now) {
            return;
        }
        let (offset, end) = (assumed.min(offset), assumed.max(offset).saturating_add(u64::from(size)));
        if self.notifier.get().is_none() || end == offset {
            return;
        }
        let dropped = self.tell(vec![forget(inode, Pages::Range { offset, length: end - offset })]);
        select(dropped, pin!(self.host.sleep(DROP_WAIT))).await;
    }
}

/// Files that the kernel was told to forget of late.
#[derive(Default)]
pub(super) struct Forgotten(Mutex<BTreeMap<InodeId, Moment>>);

impl Forgotten {
    fn note(&self, inode: InodeId, now: Moment) {
        let mut files = lock(&self.0);
        files.insert(inode, now);
        if files.len() > FILES_MAX {
            files.retain(|_, at| now - *at < ON_ITS_WAY_MAX);
        }
    }

    fn is_recent(&self, inode: InodeId, now: Moment) -> bool {
        let mut files = lock(&self.0);
        let Some(&at) = files.get(&inode) else { return false };
        let is_recent = now - at < ON_ITS_WAY_MAX;
        if !is_recent {
            files.remove(&inode);
        }
        is_recent
    }
}

fn forget(inode: InodeId, pages: Pages) -> Notification {
    Notification::InvalidateInode { node: NodeId(inode.0), pages }
}
