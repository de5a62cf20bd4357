//! What replies say about an inode, and its translation to the kernel's structures.

use std::time::Duration;

use crate::abi;
use crate::operation::{Handle, NodeId, Time};

/// What stat(2) shows of an inode.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Attributes {
    /// The number programs see; `nodeid` may differ from it.
    pub inode: u64,
    /// Length in bytes.
    pub size: u64,
    /// Space in units of 512 bytes.
    pub blocks: u64,
    /// Last access.
    pub accessed: Time,
    /// Last change of the content. With automatic invalidation a new value drops the kernel's pages.
    pub modified: Time,
    /// Last change of anything.
    pub changed: Time,
    /// Type and permission bits. The type of a node never changes: once it does, calls on it fail with EIO.
    pub mode: u32,
    /// Names.
    pub links: u32,
    /// Owner.
    pub uid: u32,
    /// Group.
    pub gid: u32,
    /// Which device a device node stands for.
    pub device: Device,
    /// The size of request that st_blksize advises.
    pub block_size: u32,
}

/// A device number.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Device {
    /// The driver, 12 bits.
    pub major: u32,
    /// The unit, 20 bits.
    pub minor: u32,
}

impl Device {
    /// From the kernel's 32-bit encoding: minor bits 0 to 7, major, minor bits 8 to 19.
    pub fn decode(number: u32) -> Self {
        Self { major: (number >> 8) & 0xfff, minor: (number & 0xff) | ((number >> 12) & 0xfff00) }
    }

    /// To the kernel's 32-bit encoding.
    pub fn encode(self) -> u32 {
        (self.minor & 0xff) | ((self.major & 0xfff) << 8) | ((self.minor & 0xfff00) << 12)
    }
}

/// The reply to everything that finds or makes a name. Each one counts as a lookup of its node, until FORGET.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Entry {
    /// The inode; 0 says that the name does not exist, and how long that stays true.
    pub node: NodeId,
    /// Tells a node from an earlier one of the same id; a changed one makes the kernel drop the old inode.
    pub generation: u64,
    /// Its attributes.
    pub attributes: Attributes,
    /// How long the kernel may use the name without asking.
    pub name_valid: Duration,
    /// How long it may use the attributes.
    pub attributes_valid: Duration,
}

impl Entry {
    /// A name that does not exist, for `name_valid`.
    pub fn absent(name_valid: Duration) -> Self {
        Self { name_valid, ..Self::default() }
    }
}

/// The reply to OPEN, OPENDIR and the second half of CREATE.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Opened {
    /// Comes back with every operation on the open file.
    pub handle: Handle,
    /// Bits of `abi::fopen`.
    pub flags: u32,
    /// The backing file, with `abi::fopen::PASSTHROUGH`; else 0. One id per inode: several at once are refused (EIO).
    pub backing: i32,
}

/// What statfs(2) shows.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Space {
    /// Bytes in a block.
    pub block_size: u32,
    /// All blocks.
    pub blocks: u64,
    /// Free blocks.
    pub blocks_free: u64,
    /// Free blocks for those who are not root.
    pub blocks_available: u64,
    /// All inodes.
    pub inodes: u64,
    /// Free inodes.
    pub inodes_free: u64,
    /// Bytes in the longest name.
    pub name_bytes_max: u32,
}

impl From<&Attributes> for abi::Attr {
    fn from(from: &Attributes) -> Self {
        Self {
            ino: from.inode,
            size: from.size,
            blocks: from.blocks,
            atime: from.accessed.seconds.cast_unsigned(),
            mtime: from.modified.seconds.cast_unsigned(),
            ctime: from.changed.seconds.cast_unsigned(),
            atimensec: from.accessed.nanoseconds,
            mtimensec: from.modified.nanoseconds,
            ctimensec: from.changed.nanoseconds,
            mode: from.mode,
            nlink: from.links,
            uid: from.uid,
            gid: from.gid,
            rdev: from.device.encode(),
            blksize: from.block_size,
            flags: 0,
        }
    }
}

impl From<&Entry> for abi::EntryOut {
    fn from(from: &Entry) -> Self {
        Self {
            nodeid: from.node.0,
            generation: from.generation,
            entry_valid: from.name_valid.as_secs(),
            attr_valid: from.attributes_valid.as_secs(),
            entry_valid_nsec: from.name_valid.subsec_nanos(),
            attr_valid_nsec: from.attributes_valid.subsec_nanos(),
            attr: (&from.attributes).into(),
        }
    }
}

impl From<&Opened> for abi::OpenOut {
    fn from(from: &Opened) -> Self {
        Self { fh: from.handle.0, open_flags: from.flags, backing_id: from.backing }
    }
}

impl From<&Space> for abi::StatfsOut {
    fn from(from: &Space) -> Self {
        Self {
            blocks: from.blocks,
            bfree: from.blocks_free,
            bavail: from.blocks_available,
            files: from.inodes,
            ffree: from.inodes_free,
            bsize: from.block_size,
            namelen: from.name_bytes_max,
            frsize: from.block_size,
            ..Self::default()
        }
    }
}

impl From<Time> for abi::SxTime {
    fn from(from: Time) -> Self {
        Self { tv_sec: from.seconds, tv_nsec: from.nanoseconds, reserved: 0 }
    }
}

impl Attributes {
    /// In the form of statx(2), with the time of birth if it is known.
    pub(crate) fn to_statx(self, created: Option<Time>) -> abi::Statx {
        abi::Statx {
            mask: abi::STATX_BASIC | created.map_or(0, |_| abi::STATX_BTIME),
            blksize: self.block_size,
            nlink: self.links,
            uid: self.uid,
            gid: self.gid,
            // The kernel's field is 16 bits wide; type and permissions fill exactly those.
            mode: (self.mode & 0xffff) as u16,
            ino: self.inode,
            size: self.size,
            blocks: self.blocks,
            atime: self.accessed.into(),
            btime: created.unwrap_or_default().into(),
            ctime: self.changed.into(),
            mtime: self.modified.into(),
            rdev_major: self.device.major,
            rdev_minor: self.device.minor,
            ..abi::Statx::default()
        }
    }
}
