//! What the kernel can ask for: one variant for each opcode of protocol 7.45.
//!
//! Flags that say whether a field counts are gone by the time an `Operation` exists: such a field is an `Option`.
//! Names, targets and payloads are slices of the request's buffer, so nothing was copied; a caller that keeps a name
//! for longer than the call copies it, lest a few bytes hold a buffer of a megabyte.

use bytes::Bytes;

/// The kernel's name for an inode (`nodeid`), chosen by us in the reply to LOOKUP. Not a node of the cluster.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct NodeId(pub u64);

impl NodeId {
    /// The root of the mount; the kernel knows it without a LOOKUP.
    pub const ROOT: NodeId = NodeId(1);
}

/// An open file or directory (`fh`), chosen by us in the reply to OPEN.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Handle(pub u64);

/// Who holds a lock: the kernel's scrambled address of the owner, the same for every descriptor that shares the lock.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct LockOwner(pub u64);

/// Names one request until it is answered. The bit that marks a request as sent again is part of the name.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Unique(pub u64);

/// A time as the kernel means it; seconds before 1970 are negative.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub struct Time {
    /// Whole seconds since 1970.
    pub seconds: i64,
    /// The rest, below a thousand million.
    pub nanoseconds: u32,
}

/// The value SETATTR gives to a time.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SetTime {
    /// The moment of the change, by the file system's clock.
    Now,
    /// This time.
    To(Time),
}

/// What SETATTR changes; `None` leaves as it is.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct SetAttributes {
    /// The open file through which it is done (ftruncate, fchmod).
    pub handle: Option<Handle>,
    /// The lock owner behind a truncation.
    pub lock_owner: Option<LockOwner>,
    /// New permission bits; the type bits are as they were.
    pub mode: Option<u32>,
    /// New owner.
    pub uid: Option<u32>,
    /// New group.
    pub gid: Option<u32>,
    /// New length in bytes.
    pub size: Option<u64>,
    /// New time of last access.
    pub accessed: Option<SetTime>,
    /// New time of last modification.
    pub modified: Option<SetTime>,
    /// New time of last change; sent only under the write-back cache, which Dazzle leaves off.
    pub changed: Option<Time>,
    /// Drop set-user-id, and set-group-id on a file its group may execute: the caller lacks CAP_FSETID.
    pub kill_suidgid: bool,
}

/// A byte range lock as GETLK and SETLK carry it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Lock {
    /// First byte.
    pub start: u64,
    /// Last byte, inclusive; `i64::MAX` reaches to the end of the file.
    pub end: u64,
    /// Shared, exclusive, or none.
    pub kind: LockKind,
    /// Thread group of the holder.
    pub pid: u32,
}

/// What a lock does, or that it goes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LockKind {
    /// Shared (F_RDLCK).
    Read,
    /// Exclusive (F_WRLCK).
    Write,
    /// No lock (F_UNLCK): the request releases, or the reply to GETLK finds nothing in the way.
    Unlock,
}

/// The two families of locks, which do not see each other.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LockFamily {
    /// fcntl(2): byte ranges, owned by a process.
    Posix,
    /// flock(2): whole files, owned by an open file.
    Flock,
}

/// The arguments of GETLK, SETLK and SETLKW.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LockRequest {
    /// The open file.
    pub handle: Handle,
    /// Who asks.
    pub owner: LockOwner,
    /// What is asked.
    pub lock: Lock,
    /// By fcntl or by flock.
    pub family: LockFamily,
}

/// How many lookups of an inode the kernel gives back.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Forget {
    /// The inode.
    pub node: NodeId,
    /// Taken off the number of replies that named it.
    pub lookups: u64,
}

/// How the reply to COPY_FILE_RANGE says what was copied.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum CopyReply {
    /// In 32 bits: the reply of WRITE, so at most 4 GiB − 1 at once.
    Narrow,
    /// In 64 bits (COPY_FILE_RANGE_64, since 7.45).
    Wide,
}

/// The arguments of COPY_FILE_RANGE; the request's own node is the source.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CopyFileRange {
    /// Open file to read.
    pub source: Handle,
    /// Where to start reading.
    pub source_offset: u64,
    /// Inode to write.
    pub target_node: NodeId,
    /// Open file to write.
    pub target: Handle,
    /// Where to start writing.
    pub target_offset: u64,
    /// Bytes to copy.
    pub length: u64,
    /// Flags of copy_file_range(2); none exist yet.
    pub flags: u64,
    /// Which reply the kernel expects.
    pub reply: CopyReply,
}

/// The arguments of WRITE.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Write {
    /// The open file; with `from_page_cache` only one that could have written it.
    pub handle: Handle,
    /// Where.
    pub offset: u64,
    /// What: a slice of the request's buffer, owned.
    pub data: Bytes,
    /// Whose locks count.
    pub lock_owner: Option<LockOwner>,
    /// Flags of open(2) as they are now (O_APPEND, O_SYNC, O_DIRECT).
    pub open_flags: u32,
    /// Dirty pages of a shared mapping rather than a write(2): uid, gid and pid of the request mean nothing.
    pub from_page_cache: bool,
    /// Drop set-user-id and set-group-id: the caller lacks CAP_FSETID.
    pub kill_suidgid: bool,
}

/// The arguments of READ, READDIR and READDIRPLUS.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Read {
    /// The open file or directory.
    pub handle: Handle,
    /// Byte offset; in a directory the cookie of the entry before, or 0.
    pub offset: u64,
    /// Bytes wanted at most: the reply must not be longer.
    pub size: u32,
    /// Whose locks count.
    pub lock_owner: Option<LockOwner>,
    /// Flags of open(2) as they are now (O_DIRECT).
    pub open_flags: u32,
}

/// The arguments of RELEASE and RELEASEDIR.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Release {
    /// The handle that dies.
    pub handle: Handle,
    /// Flags of open(2).
    pub open_flags: u32,
    /// A FLUSH is asked for as well.
    pub flush: bool,
    /// The owner's flock goes with the handle.
    pub unlock_flock: Option<LockOwner>,
}

/// The arguments of CREATE and TMPFILE.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Create {
    /// The name; meaningless for TMPFILE, where the kernel sends "/".
    pub name: Bytes,
    /// Flags of open(2).
    pub open_flags: u32,
    /// Type and permission bits, not yet masked.
    pub mode: u32,
    /// The caller's umask; a default ACL of the directory replaces it.
    pub umask: u32,
}

/// The arguments of IOCTL.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Ioctl {
    /// The open file.
    pub handle: Handle,
    /// Compatibility bits (`FUSE_IOCTL_*`).
    pub flags: u32,
    /// The command; its bits tell size and direction.
    pub command: u32,
    /// The argument as passed: an address in the caller.
    pub argument: u64,
    /// What the argument points to, as far as the command reads it.
    pub data: Bytes,
    /// How much the reply may carry.
    pub output_size: u32,
}

/// One request's meaning. `reply.rs` has the answer that each expects; `Operation::is_answered` names those without.
#[derive(Clone, Debug, PartialEq, Eq)]
#[expect(missing_docs, reason = "a variant's fields are the arguments of its system call, under the same names")]
pub enum Operation {
    /// The first message: what the kernel offers. Answered by `negotiate`.
    Init(crate::negotiate::Offer),
    /// The last message; only block-device mounts send it, so its absence means nothing.
    Destroy,
    /// Finds a name. "." and ".." come too (EXPORT_SUPPORT), for inodes the kernel may have forgotten.
    Lookup { name: Bytes },
    /// Gives lookups back. Never answered.
    Forget { lookups: u64 },
    /// The same for many inodes. Never answered.
    BatchForget { forgets: Vec<Forget> },
    /// stat.
    Getattr { handle: Option<Handle> },
    /// chmod, chown, truncate, utimes, any of them at once.
    Setattr(SetAttributes),
    /// stat with the time of birth; the kernel falls back to GETATTR after ENOSYS.
    Statx { handle: Option<Handle>, flags: u32, mask: u32 },
    /// Where a symbolic link points.
    Readlink,
    /// Makes a symbolic link.
    Symlink { name: Bytes, target: Bytes },
    /// Makes a file, pipe, socket or device; `device` in the kernel's 32-bit encoding.
    Mknod { name: Bytes, mode: u32, device: u32, umask: u32 },
    /// Makes a directory.
    Mkdir { name: Bytes, mode: u32, umask: u32 },
    /// Removes a name of something that is no directory.
    Unlink { name: Bytes },
    /// Removes an empty directory.
    Rmdir { name: Bytes },
    /// RENAME and RENAME2; `flags` of renameat2(2).
    Rename { name: Bytes, new_parent: NodeId, new_name: Bytes, flags: u32 },
    /// Gives `source` another name in the request's node.
    Link { source: NodeId, name: Bytes },
    /// Opens a file. O_TRUNC is a SETATTR that follows, O_CREAT is CREATE.
    Open { open_flags: u32 },
    /// Creates and opens.
    Create(Create),
    /// Creates a file without a name and opens it (O_TMPFILE).
    Tmpfile(Create),
    /// Reads.
    Read(Read),
    /// Writes.
    Write(Write),
    /// Space and inodes, total and free.
    Statfs,
    /// The last descriptor of an open file is gone.
    Release(Release),
    /// One descriptor is closed: the moment for close(2) to report an error, and for POSIX locks to go.
    Flush { handle: Handle, lock_owner: LockOwner },
    /// fsync, or fdatasync.
    Fsync { handle: Handle, data_only: bool },
    /// syncfs. Linux 6.18 sends it on virtiofs and block-device mounts only.
    Syncfs,
    /// Sets an extended attribute; `flags` XATTR_CREATE, XATTR_REPLACE; `kill_sgid` when an ACL change drops the bit.
    Setxattr { name: Bytes, value: Bytes, flags: u32, kill_sgid: bool },
    /// Reads an extended attribute; `size` 0 asks for its length only.
    Getxattr { name: Bytes, size: u32 },
    /// Lists extended attributes; `size` 0 asks for the list's length only.
    Listxattr { size: u32 },
    /// Removes an extended attribute.
    Removexattr { name: Bytes },
    /// Opens a directory.
    Opendir { open_flags: u32 },
    /// Lists names.
    Readdir(Read),
    /// Lists names with attributes; each entry with a node counts as a lookup.
    Readdirplus(Read),
    /// The last descriptor of an open directory is gone.
    Releasedir(Release),
    /// fsync of a directory.
    Fsyncdir { handle: Handle, data_only: bool },
    /// Which lock, if any, would be in the way.
    Getlk(LockRequest),
    /// Takes or releases a lock, or fails with EAGAIN.
    Setlk(LockRequest),
    /// Takes a lock, waiting; INTERRUPT may end the wait.
    Setlkw(LockRequest),
    /// access(2); not sent under `default_permissions`.
    Access { mask: u32 },
    /// The caller of `target` got a signal: answer that with EINTR, if it can be stopped.
    Interrupt { target: Unique },
    /// Where a block lies on a block device.
    Bmap { block: u64, block_size: u32 },
    /// ioctl.
    Ioctl(Ioctl),
    /// poll; with `schedule_notify` a POLL notification is owed for `kernel_handle`.
    Poll { handle: Handle, kernel_handle: u64, events: u32, schedule_notify: bool },
    /// The pages that a RETRIEVE notification asked for. Never answered.
    NotifyReply { offset: u64, data: Bytes },
    /// fallocate(2), holes and all, by `mode`.
    Fallocate { handle: Handle, offset: u64, length: u64, mode: u32 },
    /// SEEK_DATA and SEEK_HOLE; the other kinds stay in the kernel.
    Lseek { handle: Handle, offset: u64, whence: u32 },
    /// copy_file_range(2), also in its 64-bit form.
    CopyFileRange(CopyFileRange),
    /// SETUPMAPPING and REMOVEMAPPING belong to DAX, which is never agreed on: answer ENOSYS.
    Mapping,
    /// Newer than this crate: answer ENOSYS, after which the kernel does without.
    Unknown { opcode: u32 },
}

impl Operation {
    /// Whether the kernel waits for a reply. A reply nobody waits for fails with ENOENT and does no harm; a missing one
    /// leaves a process hanging.
    pub fn is_answered(&self) -> bool {
        use Operation::{BatchForget, Forget, Interrupt, NotifyReply};
        !matches!(self, Forget { .. } | BatchForget { .. } | Interrupt { .. } | NotifyReply { .. })
    }
}
