//! What the kernel is told to forget when the client gives tokens up (DESIGN §6; `docs/tokens.md`).

use std::collections::{BTreeMap, BTreeSet};
use std::ops::Range;
use std::pin::pin;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use client::{Above, Calls};
use futures_util::future::{join, join_all, select};
use host::{BoxFuture, Moment};
use protocol::id::{InodeId, SlotId};
use tracing::warn;

use super::ends::Due;
use super::kept_names::Expiry;
use super::translation::SHORTLY_VALID;
use super::under_way::Since;
use super::{Shared, lock};
use crate::notify::{Notification, Pages};
use crate::operation::NodeId;

/// The way to the kernel for what it did not ask for.
pub trait Notifier: Send + Sync {
    /// Tells the kernel, in order, on a thread that serves no call. It is carried out whether or not anybody waits for
    /// that.
    fn tell(&self, notifications: Vec<Notification>) -> BoxFuture<'static, Told>;
    /// Whether this kernel can be told to forget all names (`IncrementEpoch`, Linux 6.16).
    fn forgets_names(&self) -> bool;
}

/// How far the kernel is with what it was told.
pub enum Told {
    /// It has carried all out, or cannot.
    Done,
    /// It waits for a page that is locked, and has for a while; and what comes then. The same page may be told of again.
    Waits(BoxFuture<'static, Told>),
}

/// How long an answer may be on its way to the kernel, from where it is decided how long it is valid; and how long the
/// kernel may take to link the names of a listing that it has.
pub(super) const ON_ITS_WAY_BACK: Duration = Duration::from_millis(100);
/// How long a WRITE may have been on its way from the kernel's pages to here.
const ON_ITS_WAY_MAX: Duration = Duration::from_secs(10);
/// All bytes that a file may have.
const WHOLE_FILE: Range<u64> = 0..u64::MAX;
/// How long it may take until a request that locked a page comes here from the kernel, and how often that is waited for.
const COMING: Duration = Duration::from_millis(2);
const COMING_TRIES: u32 = 50;
/// So many files are remembered before those of long ago go.
const FILES_MAX: usize = 1 << 14;

/// The kernel of one mount, as the client sees it.
pub(super) struct Kernel(pub(super) Arc<Shared>);

impl Above for Kernel {
    fn forget_file(&self, inode: InodeId, calls: Calls) -> BoxFuture<'static, ()> {
        let shared = self.0.clone();
        shared.forgotten.note(inode, shared.host.now());
        match calls {
            Calls::GoOn => Box::pin(async move {
                shared.under_way.decided(inode).await;
                shared.tell(vec![forget(inode, Pages::From(0))]).await;
            }),
            Calls::Wait => Box::pin(async move { shared.forget_beside_calls(inode, WHOLE_FILE, Since::Found).await }),
        }
    }

    fn forget_directories(&self, directories: Vec<InodeId>) -> BoxFuture<'static, ()> {
        let shared = self.0.clone();
        let now = shared.host.now();
        let expiry = shared.kept_names.give_up(&directories, now);
        for &directory in &directories {
            shared.kept_listings.give_up(directory, now);
        }
        let whole = directories.into_iter().map(|directory| forget(directory, Pages::From(0))).collect();
        let Expiry::At(until) = expiry else { return shared.raise_epoch(whole) };
        let told = shared.tell(whole);
        Box::pin(async move {
            told.await;
            shared.host.sleep_until(until + ON_ITS_WAY_BACK).await;
        })
    }

    fn forget_names(&self, slot: SlotId, files: Vec<InodeId>) -> BoxFuture<'static, ()> {
        // A name looked up anew brings its attributes; what is in use without a name is a directory, or an open file.
        let shared = self.0.clone();
        let directories = shared.told.of_slot(slot).into_iter().chain(shared.kept_listings.of_slot(slot));
        let told = shared.clone().raise_epoch(shared.forget_listed(directories.chain(files)));
        Box::pin(async move {
            told.await;
            if !shared.forgets_names() {
                shared.host.sleep(SHORTLY_VALID + ON_ITS_WAY_BACK).await;
            }
        })
    }

    fn forget_all(&self, files: Vec<InodeId>) -> BoxFuture<'static, ()> {
        let directories = self.0.told.all().into_iter().chain(self.0.kept_listings.all());
        let names = self.0.clone().raise_epoch(self.0.forget_listed(directories));
        let (shared, now) = (self.0.clone(), self.0.host.now());
        files.iter().for_each(|&file| shared.forgotten.note(file, now));
        Box::pin(async move {
            let pages = files.into_iter().map(|file| shared.forget_beside_calls(file, WHOLE_FILE, Since::Sent));
            drop(join(names, join_all(pages)).await);
        })
    }
}

impl Shared {
    /// Whether the kernel can be told to forget names. Where there is none, nothing is remembered.
    pub(super) fn forgets_names(&self) -> bool {
        self.notifier.get().is_none_or(|notifier| notifier.forgets_names())
    }

    /// Answers that say where files end arrive before what would make the kernel take no notice of them (`ends`).
    fn notify(&self, notifications: Vec<Notification>) -> BoxFuture<'static, Told> {
        let files: Vec<InodeId> = notifications.iter().filter_map(named).collect();
        let (client, under_way, host) = (self.client.clone(), self.under_way.clone(), self.host.clone());
        let tell = move |&file: &InodeId| under_way.tell(file, client.size_known(file), host.now());
        files.iter().for_each(&tell);
        let notifier = self.notifier.get().expect("only a mounted face has a kernel to tell").clone();
        let (under_way, host) = (self.under_way.clone(), self.host.clone());
        let is_due = |&file: &InodeId| under_way.due(file, host.now()) != Due::Nothing;
        if !files.iter().any(is_due) {
            return notifier.tell(notifications);
        }
        Box::pin(async move {
            join_all(files.iter().map(|&file| under_way.end_arrives(file, &host))).await;
            // READs that came meanwhile are overtaken as well.
            files.iter().for_each(tell);
            notifier.tell(notifications).await
        })
    }

    /// Has the kernel forget inodes of which nobody here remembers any more that it was told of them; nobody waits for
    /// that.
    pub(super) fn forget_departing(&self, inodes: Vec<InodeId>) {
        if !inodes.is_empty() && self.notifier.get().is_some() {
            let told = self.notify(self.forget_listed(inodes.into_iter()));
            self.host.spawn(async move { drop(told.await) });
        }
    }

    /// What the kernel is told of inodes of which it will not be told again: their attributes go, and what it has of their
    /// listings. Other pages stay.
    fn forget_listed(&self, inodes: impl Iterator<Item = InodeId>) -> Vec<Notification> {
        let (now, inodes) = (self.host.now(), inodes.collect::<BTreeSet<_>>());
        let pages = |inode| if self.kept_listings.give_up(inode, now) { Pages::From(0) } else { Pages::None };
        inodes.into_iter().map(|inode| forget(inode, pages(inode))).collect()
    }

    /// Has the kernel drop what it has of a listing. No call that is under way has its pages locked.
    pub(super) async fn drop_listing(&self, directory: InodeId) {
        if self.notifier.get().is_some() {
            self.tell(vec![forget(directory, Pages::From(0))]).await;
        }
    }

    /// Tells the kernel, and waits until it has carried it out.
    fn tell(&self, notifications: Vec<Notification>) -> BoxFuture<'static, ()> {
        let mut told = self.notify(notifications);
        Box::pin(async move {
            while let Told::Waits(rest) = told.await {
                told = rest;
            }
        })
    }

    /// Has the kernel forget all names, and more; and once more when it has linked names of listings that were on their way
    /// to it. Of one directory's names alone nothing can be said that would not wait for the lookups under way in it.
    fn raise_epoch(self: Arc<Self>, more: Vec<Notification>) -> BoxFuture<'static, ()> {
        // In this order: whatever listing comes behind the last one counts as of this epoch.
        let (epoch, begun) = (self.kept_names.forgets(), self.host.now());
        let last = self.listings.so_far();
        let notifications: Vec<_> = [Notification::IncrementEpoch].into_iter().chain(more).collect();
        let told = self.tell(notifications.clone());
        Box::pin(async move {
            told.await;
            if self.names_linked(last).await > begun {
                self.tell(notifications).await;
            }
            self.kept_names.forgot(epoch);
        })
    }

    /// Waits until the kernel has linked the names of all listings up to this one; when it had.
    async fn names_linked(&self, last: u64) -> Moment {
        loop {
            let moved = self.listings.moved();
            if let Some(arrived) = self.listings.arrived(last) {
                let linked = arrived + ON_ITS_WAY_BACK;
                self.host.sleep_until(linked).await;
                return linked;
            }
            moved.await;
        }
    }

    /// Has the kernel drop these pages of a file but those that calls under way have locked. These calls wait: pages that
    /// they read are filled behind this, with what the file has by then; and a last page that a WRITE has locked is read
    /// anew.
    async fn forget_beside_calls(&self, inode: InodeId, bytes: Range<u64>, since: Since) {
        if since == Since::Found {
            self.under_way.decided(inode).await;
        }
        let mut left = vec![bytes.clone()];
        for attempt in 0..COMING_TRIES {
            let moved = self.under_way.moved();
            self.under_way.spoil(inode, &bytes, since);
            let beside = self.under_way.beside(inode, &left, attempt > 0, since);
            let doubtful = beside.doubtful.into_iter().map(|page| (page, true));
            let parts = doubtful.chain(beside.free.into_iter().map(|free| (free, false)));
            let parts = parts.map(async |(part, is_doubtful)| {
                let is_dropped = matches!(self.notify(vec![forget_bytes(inode, part.clone())]).await, Told::Done);
                let is_kept_waiting = is_doubtful && !self.under_way.is_answered(inode, &part, since);
                (!is_dropped && !is_kept_waiting).then_some(part)
            });
            left = join_all(parts).await.into_iter().flatten().collect();
            if left.is_empty() {
                return;
            }
            // What has a page locked there comes to be known in a moment, or has just been answered.
            select(moved, pin!(self.host.sleep(COMING))).await;
        }
        warn!(
            inode = inode.0,
            "the kernel does not drop the pages of a file; what it reads there may be old for a moment"
        );
    }

    /// Drops pages in which the kernel may have something else than what a WRITE left in the file; before its answer, so
    /// that nobody reads them behind it.
    ///
    /// The kernel puts the bytes into its pages first and unlocks these before it sends the WRITE. If it is told to forget
    /// the file meanwhile, a READ may fill the pages with what was there before, and nobody would correct that. And where
    /// others append, too, it takes the end of the file to be where it is no longer.
    pub(super) async fn drop_mistaken_pages(&self, inode: InodeId, (assumed, size): (u64, u32), offset: u64) {
        let now = self.host.now();
        if assumed == offset && !self.forgotten.is_recent(inode, now) {
            return;
        }
        let bytes = assumed.min(offset)..assumed.max(offset).saturating_add(u64::from(size));
        if self.notifier.get().is_none() || bytes.is_empty() {
            return;
        }
        self.forget_beside_calls(inode, bytes, Since::Found).await;
    }
}

/// Files that the kernel was told to forget of late.
#[derive(Default)]
pub(super) struct Forgotten(Mutex<BTreeMap<InodeId, Moment>>);

impl Forgotten {
    pub(super) fn note(&self, inode: InodeId, now: Moment) {
        let mut files = lock(&self.0);
        files.insert(inode, now);
        if files.len() > FILES_MAX {
            files.retain(|_, at| now - *at < ON_ITS_WAY_MAX);
        }
    }

    /// Those of late.
    pub(super) fn recent(&self, now: Moment) -> Vec<InodeId> {
        let files = lock(&self.0);
        files.iter().filter(|(_, at)| now - **at < ON_ITS_WAY_MAX).map(|(&inode, _)| inode).collect()
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

fn named(notification: &Notification) -> Option<InodeId> {
    match notification {
        Notification::InvalidateInode { node, .. } => Some(InodeId(node.0)),
        _ => None,
    }
}

fn forget_bytes(inode: InodeId, bytes: Range<u64>) -> Notification {
    let pages = match bytes.end {
        u64::MAX => Pages::From(bytes.start),
        end => Pages::Range { offset: bytes.start, length: end - bytes.start },
    };
    forget(inode, pages)
}

fn forget(inode: InodeId, pages: Pages) -> Notification {
    Notification::InvalidateInode { node: NodeId(inode.0), pages }
}
