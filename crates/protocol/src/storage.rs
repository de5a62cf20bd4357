//! Messages to the storage part of a node: one target, one operation, atomic and, when asked, durable (DESIGN §4).

use bytes::Bytes;
use serde::{Deserialize, Serialize};

use crate::fragment::{FragmentHeader, FragmentId};
use crate::id::{FenceEpoch, LogId, StripeNumber, TargetId};

/// How safe bytes must be before the answer (DESIGN §3, durability).
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub enum Durability {
    /// In the operating system's cache: survives the daemon, and any m machines.
    Replicated,
    /// On the disk, after a sync shared by all who wait: survives power loss of all.
    Disk,
}

/// Which part of a target's room an append may take. Later ones reach deeper into the reserve (DESIGN §4).
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub enum Room {
    /// File data of clients: first to be refused.
    Data,
    /// Journals and slot images: refused only when the target is nearly full.
    Journal,
    /// What frees room: cleaner copies, parity that ends a stripe, deletions. Takes all there is.
    Clean,
}

/// What a target is asked.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub enum StorageRequest {
    /// Adds bytes to the end of a data or copy fragment, which the first append creates.
    Append(Append),
    /// Stores a parity fragment whole; all copies of its stripe and run at the same parity vanish in the same step.
    /// Parity over parity, also other and shorter parity, is taken from every epoch that is not refused
    /// (`docs/decisions/0003-log-model.md`, rule 6).
    Replace(Append),
    /// Reads the blocks that cover a range.
    Read {
        /// The fragment.
        id: FragmentId,
        /// Bytes from its start.
        offset: u32,
        /// How many bytes.
        length: u32,
    },
    /// The headers and lengths of all fragments of one log from a stripe on, in order of id.
    Tail {
        /// The log.
        log: LogId,
        /// The first stripe of interest.
        from: StripeNumber,
    },
    /// A page of all fragments on the target, in order of id.
    List {
        /// Continue behind this one.
        after: Option<FragmentId>,
        /// At most so many.
        limit: u32,
    },
    /// Deletes all fragments of these stripes. Stripes without a fragment here are no error.
    Delete {
        /// The stripes.
        stripes: Vec<(LogId, StripeNumber)>,
    },
    /// Deletes these fragments, each only in the generation in which it was seen: what was written since stays.
    Discard {
        /// The fragments, and their generations.
        fragments: Vec<(FragmentId, u64)>,
    },
    /// From now on, durably, accepts appends and replaces to this log only from this epoch or a higher one. Answered by
    /// [`StorageReply::Fence`].
    Fence {
        /// The log.
        log: LogId,
        /// The epoch.
        epoch: FenceEpoch,
    },
    /// The log's writer says how far its stripes are complete, for whoever takes the log from it
    /// (`docs/decisions/0003-log-model.md`, rule 18). Remembered until the target is opened anew.
    Complete {
        /// The log.
        log: LogId,
        /// The writer's epoch.
        epoch: FenceEpoch,
        /// All stripes below this one are complete and durable, and this one is.
        below: StripeNumber,
    },
    /// Makes everything that was answered before durable.
    Sync,
    /// How full the target is.
    Stat,
}

/// A request with the target it is for.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct ToTarget {
    /// The target, which must be on the node that is asked.
    pub target: TargetId,
    /// What it is asked.
    pub request: StorageRequest,
}

/// Bytes for one fragment.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Append {
    /// Which fragment, and what it says of itself. Used when it is created; must agree with what is stored later.
    pub header: FragmentHeader,
    /// The appender's epoch: refused when the log is fenced with a higher one, and itself a fence, in the same step as the
    /// bytes, when it is higher than the log's (rule 5).
    pub fence: FenceEpoch,
    /// Where the bytes begin: exactly the stored length. An append at or before it whose overlap lies wholly within what
    /// is stored is a repetition: the overlap is skipped.
    pub offset: u32,
    /// The bytes, in parts.
    #[serde(with = "crate::payload::parts")]
    pub parts: Vec<Bytes>,
    /// The checksum of every block that the bytes touch, from the block's start to the new end (DESIGN §4): made by the
    /// writer, who has all bytes in memory, so that they guard the whole way.
    pub checksums: Vec<u32>,
    /// How safe before the answer.
    pub durability: Durability,
    /// Which room it may take.
    pub room: Room,
}

impl Append {
    /// How many bytes are to be added.
    pub fn length(&self) -> usize {
        self.parts.iter().map(Bytes::len).sum()
    }
}

/// What a target answers.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub enum StorageReply {
    /// The operation is done, as durable as asked. The length is that of the fragment it was about, else zero.
    Done {
        /// The fragment's length now, in bytes.
        length: u32,
    },
    /// All that was stored before the sync is on disk.
    Synced {
        /// As in [`TargetStat`]. One that is not known any more means that something was lost before the sync.
        incarnation: u64,
    },
    /// What was read: whole blocks, from the one that holds the first byte asked for. Shorter at the fragment's end.
    /// The reader verifies: storage sends what lies there.
    Blocks {
        /// Where the bytes begin in the fragment: a multiple of the block size.
        offset: u32,
        /// The bytes.
        #[serde(with = "crate::payload")]
        bytes: Bytes,
        /// A checksum a block.
        checksums: Vec<u32>,
    },
    /// Fragments.
    Fragments(Vec<StoredFragment>),
    /// How full.
    Stat(TargetStat),
    /// The fence stands.
    Fence {
        /// Below which stripe all are complete, as the log's writer said last; of others' logs, and after the target was
        /// opened anew, the first.
        complete_below: StripeNumber,
    },
}

/// One fragment as a target knows it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct StoredFragment {
    /// What it says of itself.
    pub header: FragmentHeader,
    /// How many bytes are stored.
    pub length: u32,
    /// Which of the fragments that ever were on the target it is: another one, under the same name, has another.
    pub generation: u64,
}

impl StoredFragment {
    /// Why no target can hold this, if none can.
    pub fn contradiction(&self) -> Option<&'static str> {
        if self.length == 0 || self.length > self.header.geometry.fragment_size {
            return Some("no fragment has such a length");
        }
        if self.header.complete_below > self.header.id.stripe {
            return Some("it calls itself complete before it was begun");
        }
        self.header.contradiction()
    }
}

/// How full a target is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default, Serialize, Deserialize)]
pub struct TargetStat {
    /// Bytes of fragments that fit in all.
    pub bytes_total: u64,
    /// Bytes of fragments that can still be begun by anyone, the reserve included.
    pub bytes_free: u64,
    /// The part of `bytes_free` that only journals and cleaners may take.
    pub bytes_reserved: u64,
    /// How many fragments are stored.
    pub fragments: u64,
    /// Counts up at every start of the target's daemon (DESIGN §3, targets that come back).
    pub incarnation: u64,
    /// Bytes read from the disk or its cache since that start.
    pub bytes_read: u64,
    /// Bytes written since that start, heads and checksums included.
    pub bytes_written: u64,
}

/// Why a target did not do as asked.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error, Serialize, Deserialize)]
pub enum StorageError {
    /// The node has no such target.
    #[error("this node has no target {}", .0.0)]
    NoTarget(TargetId),
    /// The log is fenced: another has taken over from the writer.
    #[error("the log is fenced with epoch {}: its writer was declared dead and must stop", .0.0)]
    Fenced(FenceEpoch),
    /// No such fragment.
    #[error("no such fragment on this target")]
    Missing,
    /// The append does not begin at the fragment's end.
    #[error("the fragment is {length} bytes long")]
    Gap {
        /// The stored length.
        length: u32,
    },
    /// The request contradicts what is stored or itself.
    #[error("refused: {0}")]
    Refused(String),
    /// No room of the asked kind is left.
    #[error("the target is full")]
    Full,
    /// The target has failed.
    #[error("the target failed: {0}")]
    Failed(String),
    /// It was not heard, or not in time; for who asked. It may be busy, away or gone.
    #[error("the target does not answer: {0}")]
    Silent(String),
}

/// A target's answer.
pub type StorageAnswer = Result<StorageReply, StorageError>;
/// The port of the storage part.
pub const STORAGE_PORT: u16 = 1;
