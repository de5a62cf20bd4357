//! Messages to a manager: the operations on names, attributes, block maps and locks.
//!
//! Every operation that changes something is answered when its journal record is as durable as the volume asks
//! (`replicated` by default), and tells its journal position, so that an fsync can wait until that is `disk`.

use bytes::Bytes;
use serde::{Deserialize, Serialize};

use crate::address::{LogAddress, Position};
use crate::audit::{AuditId, AuditRequest, Fact};
use crate::delta::Delta;
use crate::file::{Attributes, Content, DirectoryEntry, Kind, Lock, LockOwner, NewInode, SetAttributes};
use crate::id::{InodeId, LogId, SlotId, StripeNumber};
use crate::intention::{Admission, Fetch, Fetched, IntentionId, Outcome, Prepare, Settle};
use crate::maps::View;
use crate::once::Once;
use crate::token::{Grant, Token, TokenMode};

/// What a manager is asked.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub enum ManagerRequest {
    /// Finds a name.
    Lookup {
        /// In which directory.
        directory: InodeId,
        /// The name.
        name: Bytes,
    },
    /// `stat`.
    Attributes(InodeId),
    /// `chmod`, `chown`, `utimens`, `truncate`.
    SetAttributes(InodeId, SetAttributes),
    /// Makes a name for a new inode. Answers `Entry`.
    Create {
        /// In which directory.
        directory: InodeId,
        /// The name.
        name: Bytes,
        /// What to make.
        new: NewInode,
        /// Whether the caller holds it open from now on.
        open: bool,
    },
    /// A file without a name, held open. Answers `Entry`.
    CreateUnnamed {
        /// The directory whose slot it lives in.
        directory: InodeId,
        /// What to make.
        new: NewInode,
    },
    /// One more name.
    Link {
        /// For which inode.
        inode: InodeId,
        /// In which directory.
        directory: InodeId,
        /// The name.
        name: Bytes,
    },
    /// Removes a name that is no directory's. Answers `Removed`.
    Unlink {
        /// In which directory.
        directory: InodeId,
        /// The name.
        name: Bytes,
    },
    /// Removes an empty directory.
    RemoveDirectory {
        /// In which directory.
        directory: InodeId,
        /// The name.
        name: Bytes,
    },
    /// Renames. Answers `Renamed`.
    Rename(Rename),
    /// Where a symbolic link leads.
    ReadLink(InodeId),
    /// A page of a directory, without `.` and `..`.
    List {
        /// The directory.
        directory: InodeId,
        /// Continue behind this cookie; 0 begins.
        after: u64,
        /// At most so many entries.
        limit: u32,
        /// With attributes.
        attributes: bool,
    },
    /// The directory that holds this one.
    Parent(InodeId),
    /// The caller's node holds the inode open: it outlives its last name. Answered with `Entry`.
    Open {
        /// The inode.
        inode: InodeId,
        /// And leave to do this with it in memory, as behind `Token`, if that can be had.
        keep: Option<TokenMode>,
    },
    /// The caller's node no longer holds the inode open.
    Close(InodeId),
    /// Leave to keep a file in memory, or to change it there (DESIGN §6). Answered with `Entry` when nobody else holds what
    /// stands against it.
    Token {
        /// Which file.
        inode: InodeId,
        /// To do what.
        mode: TokenMode,
    },
    /// What a name in a directory is, or the directory itself; and leave to keep its names and attributes in memory, where
    /// nothing stands against that now (DESIGN §6). Answered as `Lookup` and `Attributes` are.
    Look {
        /// The directory.
        directory: InodeId,
        /// The name. None: the directory itself.
        name: Option<Bytes>,
    },
    /// The client has nothing of these in memory any more, and nobody asked it for them. What was granted since, and what is
    /// being called back, stays as it is. May be told again, and late.
    Forgotten(Vec<Token>),
    /// The first word of a client to a manager: it writes this log, and whatever its node held in an earlier life is void
    /// once the logs of that life are sealed and replayed.
    Greet(LogId),
    /// The map of a range of a file.
    Content {
        /// The file.
        inode: InodeId,
        /// From here.
        offset: u64,
        /// So many bytes.
        length: u64,
    },
    /// Deltas of one log, in log order. Answered when they are applied and that is `disk`.
    Deltas(Deltas),
    /// Frees a range of a file, which then reads as zeros. The size stays.
    Punch {
        /// The file.
        inode: InodeId,
        /// From here.
        offset: u64,
        /// So many bytes.
        length: u64,
    },
    /// Grows the size to at least this.
    Grow {
        /// The file.
        inode: InodeId,
        /// The size, in bytes.
        size: u64,
    },
    /// Shares bytes of one file with another: no data moves.
    CloneRange(CloneRange),
    /// Reads an extended attribute.
    Xattr {
        /// Of which inode.
        inode: InodeId,
        /// The name, with its namespace.
        name: Bytes,
    },
    /// Sets an extended attribute.
    SetXattr {
        /// Of which inode.
        inode: InodeId,
        /// The name, with its namespace.
        name: Bytes,
        /// The value.
        value: Bytes,
        /// Whether it must be new or exist.
        mode: XattrMode,
        /// For an access ACL set by one who is not of the file's group: clear set-group-id.
        clear_set_gid: bool,
    },
    /// The names of all extended attributes.
    ListXattrs(InodeId),
    /// Removes an extended attribute.
    RemoveXattr {
        /// Of which inode.
        inode: InodeId,
        /// The name, with its namespace.
        name: Bytes,
    },
    /// Takes a lock, at once or after waiting for others.
    Lock {
        /// On which inode.
        inode: InodeId,
        /// The lock.
        lock: Lock,
        /// Whether to wait.
        wait: bool,
        /// Names this call, so that it can be cancelled.
        ticket: u64,
    },
    /// Gives up waiting for a lock.
    CancelLock {
        /// On which inode.
        inode: InodeId,
        /// The waiting call.
        ticket: u64,
    },
    /// Gives up what the owner holds of the lock's family within its range.
    Unlock {
        /// On which inode.
        inode: InodeId,
        /// The range, family and owner.
        lock: Lock,
    },
    /// Which held lock stands against this one. Answers `Conflict`.
    TestLock {
        /// On which inode.
        inode: InodeId,
        /// The lock.
        lock: Lock,
    },
    /// Gives up all locks of an owner on an inode, or on all when the inode is absent.
    UnlockAll {
        /// On which inode.
        inode: Option<InodeId>,
        /// Whose.
        owner: LockOwner,
    },
    /// Waits until this journal, which must be the manager's own, is `disk` through this position.
    Flush(LogId, Position),
    /// Something that must take effect once, though it may be sent again.
    Once(Once),
    /// How many inodes, and how many bytes of file data live.
    Census,
    /// Everything known about an inode, for `dazzle why`.
    Why(InodeId),
    /// Live bytes of these stripes, over all slots of this manager, which refuses unless it knows the same manager map as
    /// the asker and all its slots are there: else somebody who should be asked is not. The cleaner deletes where all
    /// managers say zero and the journal position of that answer is `disk`; so of a sealed log that is not yet replayed for
    /// all its slots a manager says `u64::MAX`. It answers by maps that are no older than the asker's: else it could take
    /// such a log for one that its writer still has.
    Live(View, Vec<(LogId, StripeNumber)>),
    /// Which parts of a data record still live: for the cleaner. Answers `Pieces`.
    Pieces {
        /// The file that the record names.
        inode: InodeId,
        /// Where in the file its first byte belonged.
        file_offset: u64,
        /// Where the body lies.
        address: LogAddress,
    },
    /// Cleaner deltas: bytes that moved. Each takes effect only if the old address is still the one in use, and the log of
    /// the new one is open: what a sealed one holds and nobody names may be deleted. Refused unless all slots are this
    /// manager's.
    Move(Vec<Moved>),
    /// Which of these stripes, all of manager logs, hold nothing that this manager needs: no uncovered journal record, no
    /// page, index or table of a valid image. Stripes that are nothing to it are among them. Refused as `Live` is. Answers
    /// `Stripes`.
    DeadStripes(View, Vec<(LogId, StripeNumber)>),
    /// From a manager: records of a slot, for an operation that it coordinates. Answers `Fetched`.
    Fetch(Fetch),
    /// From a manager: call back what stands against an operation that it coordinates; all slots are of the asked manager.
    /// Answered when nothing does, for now.
    Admit(Admission),
    /// From a manager: what a file's attributes are by now, with what its writer has not stored, for an answer to a node.
    /// Answers `Attributes`.
    Freshen(u32, Attributes),
    /// From a manager: hold parts of an operation until its outcome, if what was read still is so. Answered when that is
    /// `disk`, where it is kept in the journal. Answers `Held`.
    Prepare(Prepare),
    /// From a manager: the outcome of an operation. Answered when it is `disk`; may be told again. Answers `Held`.
    Settle(Settle),
    /// From a manager: how did this intention end, which a slot of the asked manager coordinated? Answers `Ended`.
    Ended(IntentionId, SlotId),
    /// From a manager: for an audit of all slots that it runs.
    Audit(AuditId, AuditRequest),
}

/// A rename.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Rename {
    /// From which directory.
    pub from_directory: InodeId,
    /// Which name.
    pub from_name: Bytes,
    /// To which directory.
    pub to_directory: InodeId,
    /// Which name.
    pub to_name: Bytes,
    /// What to do with an existing name.
    pub mode: RenameMode,
}

/// What a rename does with what the new name named.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum RenameMode {
    /// It loses that name.
    Replace,
    /// Refuse.
    Keep,
    /// It gets the old name. Both must exist.
    Exchange,
    /// As `Replace`, and leave a character device 0:0 behind, as overlay mounts do.
    Whiteout,
}

/// Bytes of one file to appear in another.
#[derive(Clone, Copy, Debug, Serialize, Deserialize)]
pub struct CloneRange {
    /// The file that has them.
    pub source: InodeId,
    /// Where there.
    pub source_offset: u64,
    /// The file that gets them; may be the same.
    pub target: InodeId,
    /// Where there.
    pub target_offset: u64,
    /// How many bytes.
    pub length: u64,
}

/// Deltas of one log.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Deltas {
    /// The log that holds them.
    pub log: LogId,
    /// The position of the delta record: what *applied* becomes.
    pub position: Position,
    /// The deltas, all of slots of the asked manager.
    pub list: Vec<Delta>,
}

/// How an extended attribute is set.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum XattrMode {
    /// Whether it exists or not.
    Either,
    /// It must be new.
    Create,
    /// It must exist.
    Replace,
}

/// Bytes that a cleaner copied.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Moved {
    /// The file.
    pub inode: InodeId,
    /// Where in the file.
    pub file_offset: u64,
    /// Where the bytes were.
    pub old: LogAddress,
    /// Where they also are now.
    pub new: LogAddress,
}

/// A manager's answer.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct ManagerReply {
    /// The answer proper.
    pub answer: Answer,
    /// The manager's journal, another one in each of its lives.
    pub log: LogId,
    /// Where the operation's journal record ends, or the newest record that the answer rests on.
    pub journal: Position,
    /// Up to where the journal is `disk` by now.
    pub journal_disk: Position,
    /// What the client holds from now on, if anything.
    pub granted: Option<Grant>,
}

/// The answers proper.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub enum Answer {
    /// Done, nothing to tell.
    Done,
    /// Attributes, and the first extents of the file or its inline content, so that a small cold read costs no more
    /// round trip (DESIGN §5, small files).
    Entry(Attributes, Option<Content>),
    /// Attributes.
    Attributes(Attributes),
    /// A piece of a file's map.
    Content(Content),
    /// Bytes: a link's target, an attribute's value.
    Bytes(Bytes),
    /// Names of extended attributes.
    Names(Vec<Bytes>),
    /// Entries of a directory, and whether that was the last of them.
    Listing(Vec<DirectoryEntry>, bool),
    /// An inode.
    Inode(InodeId),
    /// What a name stood for, and how many names it has left.
    Removed(Option<(InodeId, u32)>),
    /// A lock that stands in the way.
    Conflict(Option<Lock>),
    /// Inodes, and live bytes of file data.
    Census(u64, u64),
    /// Live bytes, in the order asked.
    Live(Vec<u64>),
    /// Parts of an address that live, each with its place in a file.
    Pieces(Vec<Moved>),
    /// What `dazzle why` tells.
    Why(Box<Why>),
    /// Stripes, in the order asked.
    Stripes(Vec<(LogId, StripeNumber)>),
    /// Records of a slot.
    Fetched(Fetched),
    /// Whether all parts are held, or were until now; for an audit: whether everything is.
    Held(bool),
    /// What an audit is told, and whether that was the last of it.
    Facts(Vec<Fact>, bool),
    /// How an intention ended; nothing while its manager works on it.
    Ended(Option<Outcome>),
    /// What a rename did to inodes.
    Renamed {
        /// These have other names now than before: their next fsync covers that.
        changed: Vec<InodeId>,
        /// This one lost its last name.
        removed: Option<InodeId>,
    },
}

/// Everything a manager knows about an inode.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Why {
    /// Attributes.
    pub attributes: Attributes,
    /// The node that manages it.
    pub node: u32,
    /// Whether its content is in the inode.
    pub inline: bool,
    /// Its extents, up to a bound.
    pub extents: Vec<crate::file::Extent>,
    /// How many nodes hold it open.
    pub open_nodes: u32,
    /// How many locks are held.
    pub locks: u32,
    /// Of a directory that is split: the slots that its names lie in, in the order of the listing.
    pub name_slots: Vec<SlotId>,
}

/// Why a manager did not do as asked. Faces choose the errno.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error, Serialize, Deserialize)]
#[allow(missing_docs)]
pub enum ManagerError {
    #[error("no such name")]
    NotFound,
    #[error("the inode no longer exists")]
    Stale,
    #[error("the name exists")]
    Exists,
    #[error("not a directory")]
    NotDirectory,
    #[error("is a directory")]
    IsDirectory,
    #[error("the directory is not empty")]
    NotEmpty,
    #[error("not permitted")]
    NotPermitted,
    #[error("the name is too long")]
    NameTooLong,
    #[error("too many links")]
    TooManyLinks,
    #[error("the file would be too large")]
    FileTooLarge,
    #[error("invalid: {0}")]
    Invalid(String),
    #[error("no such attribute")]
    NoAttribute,
    #[error("the value is too large")]
    TooLarge,
    #[error("another lock stands in the way")]
    Locked,
    #[error("waiting would never end")]
    Deadlock,
    #[error("the call was interrupted")]
    Interrupted,
    #[error("no room is left")]
    NoRoom,
    #[error("this kind of inode cannot do that")]
    Unsupported,
    #[error("another node manages this: look at the maps again")]
    NotMine,
    #[error("a client holds this and has not given it up yet: ask again")]
    Held,
    #[error("the manager's log failed: {0}")]
    Failed(String),
}

/// A manager's whole answer.
pub type ManagerAnswer = Result<ManagerReply, ManagerError>;
/// The port of the manager part.
pub const MANAGER_PORT: u16 = 3;

/// What kinds have a byte content.
pub fn has_content(kind: Kind) -> bool {
    kind == Kind::File
}
