//! Files as managers and clients speak of them.

use bytes::Bytes;
use serde::{Deserialize, Serialize};

use crate::address::LogAddress;
use crate::id::InodeId;

/// The longest name, in bytes.
pub const NAME_MAX: usize = 255;
/// The longest symbolic link, in bytes.
pub const SYMLINK_MAX: usize = 4095;
/// The largest file, in bytes: 16 TiB.
pub const FILE_SIZE_MAX: u64 = 16 << 40;
/// The most names that a file may have.
pub const LINK_MAX: u32 = 65_000;
/// A file up to this size lives in its inode, in bytes.
pub const INLINE_MAX: usize = 512;
/// The largest value of an extended attribute, in bytes.
pub const XATTR_SIZE_MAX: usize = 65_536;

/// A time of day in nanoseconds since 1970 UTC, as file attributes carry it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Default, Serialize, Deserialize)]
pub struct Time(pub i64);

/// What an inode is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub enum Kind {
    /// A regular file.
    File,
    /// A directory.
    Directory,
    /// A symbolic link.
    Symlink,
    /// A named pipe.
    Pipe,
    /// A socket's name.
    Socket,
    /// A character device.
    CharacterDevice,
    /// A block device.
    BlockDevice,
}

/// Everything `stat` tells.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Attributes {
    /// Which inode.
    pub inode: InodeId,
    /// What it is.
    pub kind: Kind,
    /// Permission bits, set-id bits and the sticky bit: the low 12 bits of `st_mode`.
    pub mode: u16,
    /// How many names it has. A directory counts itself and its children's `..`.
    pub links: u32,
    /// The owner.
    pub uid: u32,
    /// The group.
    pub gid: u32,
    /// For devices: which.
    pub device: u32,
    /// Bytes, for a directory a number that grows with its entries.
    pub size: u64,
    /// Bytes of file data stored, holes excluded, redundancy excluded.
    pub stored: u64,
    /// Last read.
    pub accessed: Time,
    /// Last change of content.
    pub modified: Time,
    /// Last change of anything.
    pub changed: Time,
    /// Creation.
    pub created: Time,
    /// Counts up with every change that the manager makes.
    pub version: u64,
}

/// Which attributes to set, and to what.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default, Serialize, Deserialize)]
pub struct SetAttributes {
    /// New permission bits.
    pub mode: Option<u16>,
    /// New owner.
    pub uid: Option<u32>,
    /// New group.
    pub gid: Option<u32>,
    /// New size: truncates, or grows with a hole.
    pub size: Option<u64>,
    /// New access time.
    pub accessed: Option<Time>,
    /// New modification time.
    pub modified: Option<Time>,
    /// New change time; the manager's clock when absent.
    pub changed: Option<Time>,
    /// Clear set-user-id, and set-group-id where the group may execute, as a write or chown by a plain user does.
    pub clear_set_id: bool,
}

impl SetAttributes {
    /// That a file was read at a time. Nothing else of it changes, nor does its change time.
    pub fn read_at(accessed: Time, changed: Time) -> SetAttributes {
        SetAttributes { accessed: Some(accessed), changed: Some(changed), ..SetAttributes::default() }
    }

    /// When a file was read, if it is that alone. Who sets an access time on purpose names no change time.
    pub fn told_reading(&self) -> Option<Time> {
        let accessed = self.accessed?;
        (*self == SetAttributes::read_at(accessed, self.changed?)).then_some(accessed)
    }
}

/// On whose behalf something is made.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default, Serialize, Deserialize)]
pub struct Caller {
    /// The user.
    pub uid: u32,
    /// The effective group.
    pub gid: u32,
}

/// What to make of a new inode.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct NewInode {
    /// What it is.
    pub kind: Kind,
    /// Permission bits as asked, before the mask.
    pub mode: u16,
    /// The caller's umask; a default ACL of the directory takes its place.
    pub mask: u16,
    /// For devices: which.
    pub device: u32,
    /// For symbolic links: the target.
    pub target: Bytes,
    /// Whose.
    pub caller: Caller,
}

/// A piece of a file's map.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Extent {
    /// Where in the file its first byte belongs.
    pub offset: u64,
    /// Where it lives, and how many bytes. What no extent covers is a hole.
    pub address: LogAddress,
}

impl Extent {
    /// Just behind its last byte in the file.
    pub fn end(self) -> u64 {
        self.offset + u64::from(self.address.length)
    }
}

/// A file's content as its manager knows it, over a range.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Content {
    /// All of it, in the inode.
    Inline(Bytes),
    /// The extents that touch the asked range, in order. If `through` is short of the range's end, ask on from there.
    Extents {
        /// The extents.
        list: Vec<Extent>,
        /// The answer covers the file up to here.
        through: u64,
    },
}

/// A name in a directory.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct DirectoryEntry {
    /// Its place in the listing: pass it as `after` to go on behind it. Stable while the entry exists; never 0, 1, 2.
    pub cookie: u64,
    /// The name: bytes but `/` and NUL.
    pub name: Bytes,
    /// What it names.
    pub inode: InodeId,
    /// What kind of thing that is.
    pub kind: Kind,
    /// Its attributes, when they were asked for and are at hand.
    pub attributes: Option<Attributes>,
}

/// Who holds or asks for a lock.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct LockOwner {
    /// The node.
    pub node: u32,
    /// What the kernel of that node calls the owner.
    pub owner: u64,
}

/// Two families of locks that do not see each other, as on Linux.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub enum LockFamily {
    /// `flock`: whole file, by open file.
    Flock,
    /// `fcntl`: byte ranges, by process.
    Posix,
}

/// A lock, held or wanted.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Lock {
    /// Which family.
    pub family: LockFamily,
    /// Whose.
    pub owner: LockOwner,
    /// The process to name in `F_GETLK`.
    pub pid: u32,
    /// Exclusive (write) or shared (read).
    pub exclusive: bool,
    /// First byte.
    pub start: u64,
    /// Last byte, inclusive; `u64::MAX` for "to the end, wherever".
    pub last: u64,
}
