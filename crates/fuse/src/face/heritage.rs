//! What a face leaves to that of the next process on the same mount, which the kernel does not see change (DESIGN §13,
//! promise 3). Decides, never awaits.
//!
//! Inode numbers say all about inodes. What is left are the handles of open files, who may hold locks through them, and what
//! the kernel was told and must be told again when others change it.

use host::Moment;
use protocol::file::{Attributes, Kind};
use protocol::id::InodeId;
use serde::{Deserialize, Serialize};

use super::{Face, Shared};
use crate::operation::{Handle, LockOwner};

/// What is left. It outlives its process in bytes; nobody but a daemon of the same build reads them.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub struct FaceHeritage {
    next_handle: u64,
    /// Handles whose first read moves the access time.
    due: Vec<u64>,
    /// Who may hold locks of an inode, and through which handle.
    holders: Vec<(InodeId, u64, u64)>,
    /// Files that may have set-id bits; whether there are more than are known.
    set_ids: (Vec<InodeId>, bool),
    /// What the kernel was told of directories and special files.
    told: Vec<Attributes>,
    /// Files that it was told to forget just now.
    forgotten: Vec<InodeId>,
}

impl Face {
    /// No call waits for a lock here any more. Where the kernel can send requests again, those are not answered, and wait in
    /// the next process; else they are interrupted.
    pub fn leave_waits(&self, is_sent_again: bool) {
        self.0.waits.leave(is_sent_again);
    }

    /// How many requests are left to the next process.
    pub fn left(&self) -> usize {
        self.0.waits.left()
    }

    /// This face serves on.
    pub fn take_waits(&self) {
        self.0.waits.take();
    }

    /// What the next process has to know. No call is under way.
    pub fn bequeath(&self) -> FaceHeritage {
        let Shared { access_times, holders, set_ids, told, forgotten, host, .. } = &*self.0;
        FaceHeritage {
            next_handle: self.0.handle(false).0,
            due: access_times.due().into_iter().map(|handle| handle.0).collect(),
            holders: holders.all().map(|(inode, owner, handle)| (inode, owner.0, handle.0)).collect(),
            set_ids: set_ids.all(),
            told: told.lasting(),
            forgotten: forgotten.recent(host.now()),
        }
    }

    /// Takes over what an earlier process left. Nothing has been answered yet.
    pub fn inherit(&self, heritage: FaceHeritage) {
        let FaceHeritage { next_handle, due, holders, set_ids, told, forgotten } = heritage;
        let now: Moment = self.0.host.now();
        self.0.handles.store(next_handle, std::sync::atomic::Ordering::Relaxed);
        due.into_iter().for_each(|handle| self.0.access_times.opened(Handle(handle)));
        for (inode, owner, handle) in holders {
            self.0.holders.note(inode, LockOwner(owner), Handle(handle));
        }
        self.0.set_ids.inherit(set_ids);
        let directories = told.iter().filter(|attributes| attributes.kind == Kind::Directory);
        self.0.kept_listings.inherit(directories.map(|directory| directory.inode), now);
        told.iter().for_each(|attributes| drop(self.0.told.pass(attributes)));
        for inode in forgotten {
            self.0.forgotten.note(inode, now);
            self.0.under_way.inherit(inode, now);
        }
        self.0.kept_names.inherit(now);
    }
}
