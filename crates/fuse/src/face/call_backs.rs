//! What the kernel is told to forget when the client gives tokens up (DESIGN §6; `docs/tokens.md`).

use std::sync::Arc;

use client::Above;
use host::BoxFuture;
use protocol::id::{InodeId, SlotId};

use super::Shared;
use crate::notify::{Notification, Pages};
use crate::operation::NodeId;

/// The way to the kernel for what it did not ask for.
pub trait Notifier: Send + Sync {
    /// Tells the kernel, in order, on a thread that serves no call; done when it has carried all out, or cannot.
    fn tell(&self, notifications: Vec<Notification>) -> BoxFuture<'static, ()>;
}

/// The kernel of one mount, as the client sees it.
pub(super) struct Kernel {
    pub(super) shared: Arc<Shared>,
    pub(super) notifier: Arc<dyn Notifier>,
}

impl Above for Kernel {
    fn forget_file(&self, inode: InodeId) -> BoxFuture<'static, ()> {
        self.notifier.tell(vec![forget(inode, Pages::From(0))])
    }

    fn forget_names(&self, slot: SlotId, files: Vec<InodeId>) -> BoxFuture<'static, ()> {
        // A name looked up anew brings its attributes; what is in use without a name is a directory, or an open file.
        let directories = self.shared.told.of_slot(slot);
        let attributes = directories.into_iter().chain(files).map(|inode| forget(inode, Pages::None));
        self.notifier.tell([Notification::IncrementEpoch].into_iter().chain(attributes).collect())
    }
}

fn forget(inode: InodeId, pages: Pages) -> Notification {
    Notification::InvalidateInode { node: NodeId(inode.0), pages }
}
