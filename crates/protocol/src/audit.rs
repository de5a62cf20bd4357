//! Audits: whether the records of all slots of all managers agree with each other, as of one moment
//! (`docs/decisions/0019-a-check-sees-one-moment.md`). Whoever runs one asks every manager, and joins what they tell.

use serde::{Deserialize, Serialize};

use crate::id::{InodeId, LogId, SlotId, StripeNumber};
use crate::maps::ManagerMapSum;

/// Names an audit, for ever.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub struct AuditId {
    /// Who runs it.
    pub node: u32,
    /// Which of its audits: a random number.
    pub number: u64,
}

/// What an audit asks of a manager. Where a manager map is named, a manager that knows another one refuses.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum AuditRequest {
    /// Begin nothing that changes several managers' slots, until `GoOn` or for a short while. Answers `Held`: whether all
    /// that was begun is over.
    Hold(ManagerMapSum),
    /// Keep all records as they are now. Answers `Held`: whether that is so, and nothing over several managers is under way.
    Keep(ManagerMapSum),
    /// Answers `Held`: whether nothing was begun since `Hold`, until now.
    GoOn(ManagerMapSum),
    /// This page of what is to be told of the kept records; the pages come in order, the last one may be asked for again.
    /// Answers `Facts`.
    Tell(u64),
    /// What the kept records say of these inodes, though nothing be odd about them. Answers `Facts`, all at once.
    Describe(Vec<InodeId>),
    /// Nothing needs to be kept any more.
    Forget,
}

/// What a slot's records say that cannot be judged by them alone, or is wrong in itself.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Fact {
    /// Something is wrong, in words.
    Problem(String),
    /// So many inodes and extents were looked at.
    Looked {
        /// Inodes.
        inodes: u64,
        /// Extents.
        extents: u64,
    },
    /// So many bytes of file data live in a stripe.
    Live(LogId, StripeNumber, u64),
    /// An inode. Those whose names are as many as they should be in their own slot are left out, but for directories.
    Inode(InodeFact),
    /// Names of an inode that has no record in this slot.
    Named {
        /// The inode.
        inode: InodeId,
        /// How many names; none when the slot has other records of it.
        names: u32,
        /// A directory that has one.
        directory: Option<InodeId>,
    },
    /// Names up to this cookie, and behind the part before, belong in that slot.
    Part {
        /// The directory.
        directory: InodeId,
        /// The last cookie.
        last: u64,
        /// The slot.
        slot: SlotId,
    },
    /// What a slot has of a directory that is split, or whose inode lies elsewhere.
    Names {
        /// The directory.
        directory: InodeId,
        /// The slot.
        slot: SlotId,
        /// The first and the last cookie, if there are names.
        cookies: Option<(u64, u64)>,
        /// Whether the slot counts them for the directory.
        is_counted: bool,
    },
    /// Shared bytes count so many references.
    Shared(SharedName, u32),
    /// So many extents refer to shared bytes.
    Refers(SharedName, u32),
}

/// What an inode's slot says of it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct InodeFact {
    /// Which.
    pub inode: InodeId,
    /// Whether it is a directory.
    pub is_directory: bool,
    /// The links that its record counts.
    pub links: u32,
    /// A directory's parent.
    pub parent: Option<InodeId>,
    /// How many names it has in its own slot.
    pub names: u32,
    /// A directory of one of these.
    pub named_in: Option<InodeId>,
    /// Whether it counts as having no name.
    pub is_orphan: bool,
    /// Whether there are names in it, in its own slot.
    pub is_filled: bool,
}

/// Names bytes that several extents share: the slot that keeps them, and where they were when they came to be shared.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub struct SharedName {
    /// The slot.
    pub slot: SlotId,
    /// The log.
    pub log: LogId,
    /// The stripe.
    pub stripe: StripeNumber,
    /// The offset there.
    pub offset: u32,
}
