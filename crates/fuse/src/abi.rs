//! The table: numbers and structures of the kernel's FUSE protocol 7.45 (Linux 6.18, `include/uapi/linux/fuse.h`).
//!
//! Only what Dazzle speaks or must recognise stands here. Names are the kernel's without the `FUSE_` prefix; the number
//! behind a structure's name is its size in the header, and `structures!` refuses to compile a list of fields that does
//! not add up to it.

use crate::layout::structures;

/// The protocol's major version; every Linux since 2.6.14 speaks it.
pub const VERSION_MAJOR: u32 = 7;
/// The newest minor version this crate knows.
pub const VERSION_MINOR: u32 = 45;

/// Opcodes of requests.
pub mod opcode {
    #![expect(missing_docs, reason = "the names are the documentation; operation.rs explains each")]
    pub const LOOKUP: u32 = 1;
    pub const FORGET: u32 = 2;
    pub const GETATTR: u32 = 3;
    pub const SETATTR: u32 = 4;
    pub const READLINK: u32 = 5;
    pub const SYMLINK: u32 = 6;
    pub const MKNOD: u32 = 8;
    pub const MKDIR: u32 = 9;
    pub const UNLINK: u32 = 10;
    pub const RMDIR: u32 = 11;
    pub const RENAME: u32 = 12;
    pub const LINK: u32 = 13;
    pub const OPEN: u32 = 14;
    pub const READ: u32 = 15;
    pub const WRITE: u32 = 16;
    pub const STATFS: u32 = 17;
    pub const RELEASE: u32 = 18;
    pub const FSYNC: u32 = 20;
    pub const SETXATTR: u32 = 21;
    pub const GETXATTR: u32 = 22;
    pub const LISTXATTR: u32 = 23;
    pub const REMOVEXATTR: u32 = 24;
    pub const FLUSH: u32 = 25;
    pub const INIT: u32 = 26;
    pub const OPENDIR: u32 = 27;
    pub const READDIR: u32 = 28;
    pub const RELEASEDIR: u32 = 29;
    pub const FSYNCDIR: u32 = 30;
    pub const GETLK: u32 = 31;
    pub const SETLK: u32 = 32;
    pub const SETLKW: u32 = 33;
    pub const ACCESS: u32 = 34;
    pub const CREATE: u32 = 35;
    pub const INTERRUPT: u32 = 36;
    pub const BMAP: u32 = 37;
    pub const DESTROY: u32 = 38;
    pub const IOCTL: u32 = 39;
    pub const POLL: u32 = 40;
    pub const NOTIFY_REPLY: u32 = 41;
    pub const BATCH_FORGET: u32 = 42;
    pub const FALLOCATE: u32 = 43;
    pub const READDIRPLUS: u32 = 44;
    pub const RENAME2: u32 = 45;
    pub const LSEEK: u32 = 46;
    pub const COPY_FILE_RANGE: u32 = 47;
    pub const SETUPMAPPING: u32 = 48;
    pub const REMOVEMAPPING: u32 = 49;
    pub const SYNCFS: u32 = 50;
    pub const TMPFILE: u32 = 51;
    pub const STATX: u32 = 52;
    pub const COPY_FILE_RANGE_64: u32 = 53;
}

/// Codes of notifications: they stand in the reply header's `error`, with `unique` zero.
pub(crate) mod notify_code {
    pub(crate) const POLL: i32 = 1;
    pub(crate) const INVAL_INODE: i32 = 2;
    pub(crate) const INVAL_ENTRY: i32 = 3;
    pub(crate) const STORE: i32 = 4;
    pub(crate) const RETRIEVE: i32 = 5;
    pub(crate) const DELETE: i32 = 6;
    pub(crate) const RESEND: i32 = 7;
    pub(crate) const INC_EPOCH: i32 = 8;
    pub(crate) const PRUNE: i32 = 9;
}

/// Flags of the INIT handshake; bits 32 to 63 travel in `flags2`. `negotiate.rs` says which Dazzle wants, and why.
pub mod init {
    #![expect(missing_docs, reason = "fuse.h explains each; negotiate.rs explains those that are used")]
    pub const ASYNC_READ: u64 = 1 << 0;
    pub const POSIX_LOCKS: u64 = 1 << 1;
    pub const FILE_OPS: u64 = 1 << 2;
    pub const ATOMIC_O_TRUNC: u64 = 1 << 3;
    pub const EXPORT_SUPPORT: u64 = 1 << 4;
    pub const BIG_WRITES: u64 = 1 << 5;
    pub const DONT_MASK: u64 = 1 << 6;
    pub const SPLICE_WRITE: u64 = 1 << 7;
    pub const SPLICE_MOVE: u64 = 1 << 8;
    pub const SPLICE_READ: u64 = 1 << 9;
    pub const FLOCK_LOCKS: u64 = 1 << 10;
    pub const HAS_IOCTL_DIR: u64 = 1 << 11;
    pub const AUTO_INVAL_DATA: u64 = 1 << 12;
    pub const DO_READDIRPLUS: u64 = 1 << 13;
    pub const READDIRPLUS_AUTO: u64 = 1 << 14;
    pub const ASYNC_DIO: u64 = 1 << 15;
    pub const WRITEBACK_CACHE: u64 = 1 << 16;
    pub const NO_OPEN_SUPPORT: u64 = 1 << 17;
    pub const PARALLEL_DIROPS: u64 = 1 << 18;
    pub const HANDLE_KILLPRIV: u64 = 1 << 19;
    pub const POSIX_ACL: u64 = 1 << 20;
    pub const ABORT_ERROR: u64 = 1 << 21;
    pub const MAX_PAGES: u64 = 1 << 22;
    pub const CACHE_SYMLINKS: u64 = 1 << 23;
    pub const NO_OPENDIR_SUPPORT: u64 = 1 << 24;
    pub const EXPLICIT_INVAL_DATA: u64 = 1 << 25;
    pub const MAP_ALIGNMENT: u64 = 1 << 26;
    pub const SUBMOUNTS: u64 = 1 << 27;
    pub const HANDLE_KILLPRIV_V2: u64 = 1 << 28;
    pub const SETXATTR_EXT: u64 = 1 << 29;
    pub const INIT_EXT: u64 = 1 << 30;
    pub const SECURITY_CTX: u64 = 1 << 32;
    pub const HAS_INODE_DAX: u64 = 1 << 33;
    pub const CREATE_SUPP_GROUP: u64 = 1 << 34;
    pub const HAS_EXPIRE_ONLY: u64 = 1 << 35;
    pub const DIRECT_IO_ALLOW_MMAP: u64 = 1 << 36;
    pub const PASSTHROUGH: u64 = 1 << 37;
    pub const NO_EXPORT_SUPPORT: u64 = 1 << 38;
    pub const HAS_RESEND: u64 = 1 << 39;
    pub const ALLOW_IDMAP: u64 = 1 << 40;
    pub const OVER_IO_URING: u64 = 1 << 41;
    pub const REQUEST_TIMEOUT: u64 = 1 << 42;
}

/// Flags of the reply to OPEN, OPENDIR, CREATE and TMPFILE.
pub mod fopen {
    /// Bypass the page cache for this open file.
    pub const DIRECT_IO: u32 = 1 << 0;
    /// Keep the cached pages; without it an open drops them.
    pub const KEEP_CACHE: u32 = 1 << 1;
    /// The file cannot seek.
    pub const NONSEEKABLE: u32 = 1 << 2;
    /// The kernel may cache this directory's listing.
    pub const CACHE_DIR: u32 = 1 << 3;
    /// The file has no position at all.
    pub const STREAM: u32 = 1 << 4;
    /// Send no FLUSH when a descriptor is closed.
    pub const NOFLUSH: u32 = 1 << 5;
    /// Direct writes to one inode may run side by side.
    pub const PARALLEL_DIRECT_WRITES: u32 = 1 << 6;
    /// Reads and writes go to the backing file named in the reply.
    pub const PASSTHROUGH: u32 = 1 << 7;
}

/// Bits of `SetattrIn::valid`.
pub(crate) mod fattr {
    pub(crate) const MODE: u32 = 1 << 0;
    pub(crate) const UID: u32 = 1 << 1;
    pub(crate) const GID: u32 = 1 << 2;
    pub(crate) const SIZE: u32 = 1 << 3;
    pub(crate) const ATIME: u32 = 1 << 4;
    pub(crate) const MTIME: u32 = 1 << 5;
    pub(crate) const FH: u32 = 1 << 6;
    pub(crate) const ATIME_NOW: u32 = 1 << 7;
    pub(crate) const MTIME_NOW: u32 = 1 << 8;
    pub(crate) const LOCKOWNER: u32 = 1 << 9;
    pub(crate) const CTIME: u32 = 1 << 10;
    pub(crate) const KILL_SUIDGID: u32 = 1 << 11;
}

pub(crate) const GETATTR_FH: u32 = 1 << 0;
pub(crate) const READ_LOCKOWNER: u32 = 1 << 1;
pub(crate) const WRITE_CACHE: u32 = 1 << 0;
pub(crate) const WRITE_LOCKOWNER: u32 = 1 << 1;
pub(crate) const WRITE_KILL_SUIDGID: u32 = 1 << 2;
pub(crate) const RELEASE_FLUSH: u32 = 1 << 0;
pub(crate) const RELEASE_FLOCK_UNLOCK: u32 = 1 << 1;
pub(crate) const FSYNC_FDATASYNC: u32 = 1 << 0;
pub(crate) const LK_FLOCK: u32 = 1 << 0;
pub(crate) const POLL_SCHEDULE_NOTIFY: u32 = 1 << 0;
pub(crate) const SETXATTR_ACL_KILL_SGID: u32 = 1 << 0;
pub(crate) const NOTIFY_EXPIRE_ONLY: u32 = 1 << 0;

/// Set in `unique` of a request that the kernel sends a second time (after a RESEND notification).
pub(crate) const UNIQUE_RESEND: u64 = 1 << 63;
/// Extension types up to this one mean a security context header, and count its contexts.
pub(crate) const EXT_SECURITY_CONTEXTS_MAX: u32 = 31;
/// Extension type of the supplementary groups.
pub(crate) const EXT_GROUPS: u32 = 32;

// The kinds of a `FileLock`: the generic F_RDLCK, F_WRLCK and F_UNLCK.
pub(crate) const LOCK_READ: u32 = 0;
pub(crate) const LOCK_WRITE: u32 = 1;
pub(crate) const LOCK_UNLOCK: u32 = 2;

/// `STATX_BASIC_STATS`.
pub(crate) const STATX_BASIC: u32 = 0x7ff;
/// `STATX_BTIME`.
pub(crate) const STATX_BTIME: u32 = 0x800;

structures! {
    InHeader (40) { len: u32, opcode: u32, unique: u64, nodeid: u64, uid: u32, gid: u32, pid: u32, total_extlen: u16,
        padding: u16 }
    OutHeader (16) { len: u32, error: i32, unique: u64 }

    Attr (88) { ino: u64, size: u64, blocks: u64, atime: u64, mtime: u64, ctime: u64, atimensec: u32, mtimensec: u32,
        ctimensec: u32, mode: u32, nlink: u32, uid: u32, gid: u32, rdev: u32, blksize: u32, flags: u32 }
    EntryOut (128) { nodeid: u64, generation: u64, entry_valid: u64, attr_valid: u64, entry_valid_nsec: u32,
        attr_valid_nsec: u32, attr: Attr }
    AttrOut (104) { attr_valid: u64, attr_valid_nsec: u32, dummy: u32, attr: Attr }
    Dirent (24) { ino: u64, off: u64, namelen: u32, kind: u32 }

    ForgetIn (8) { nlookup: u64 }
    ForgetOne (16) { nodeid: u64, nlookup: u64 }
    BatchForgetIn (8) { count: u32, dummy: u32 }
    GetattrIn (16) { getattr_flags: u32, dummy: u32, fh: u64 }
    SetattrIn (88) { valid: u32, padding: u32, fh: u64, size: u64, lock_owner: u64, atime: u64, mtime: u64, ctime: u64,
        atimensec: u32, mtimensec: u32, ctimensec: u32, mode: u32, unused4: u32, uid: u32, gid: u32, unused5: u32 }
    MknodIn (16) { mode: u32, rdev: u32, umask: u32, padding: u32 }
    MkdirIn (8) { mode: u32, umask: u32 }
    RenameIn (8) { newdir: u64 }
    Rename2In (16) { newdir: u64, flags: u32, padding: u32 }
    LinkIn (8) { oldnodeid: u64 }
    OpenIn (8) { flags: u32, open_flags: u32 }
    OpenOut (16) { fh: u64, open_flags: u32, backing_id: i32 }
    CreateIn (16) { flags: u32, mode: u32, umask: u32, open_flags: u32 }
    ReadIn (40) { fh: u64, offset: u64, size: u32, read_flags: u32, lock_owner: u64, flags: u32, padding: u32 }
    WriteIn (40) { fh: u64, offset: u64, size: u32, write_flags: u32, lock_owner: u64, flags: u32, padding: u32 }
    WriteOut (8) { size: u32, padding: u32 }
    StatfsOut (80) { blocks: u64, bfree: u64, bavail: u64, files: u64, ffree: u64, bsize: u32, namelen: u32,
        frsize: u32, padding: u32, spare: [u32; 6] }
    ReleaseIn (24) { fh: u64, flags: u32, release_flags: u32, lock_owner: u64 }
    FlushIn (24) { fh: u64, unused: u32, padding: u32, lock_owner: u64 }
    FsyncIn (16) { fh: u64, fsync_flags: u32, padding: u32 }
    SetxattrCompatIn (8) { size: u32, flags: u32 }
    SetxattrIn (16) { size: u32, flags: u32, setxattr_flags: u32, padding: u32 }
    GetxattrIn (8) { size: u32, padding: u32 }
    GetxattrOut (8) { size: u32, padding: u32 }
    FileLock (24) { start: u64, end: u64, kind: u32, pid: u32 }
    LkIn (48) { fh: u64, owner: u64, lk: FileLock, lk_flags: u32, padding: u32 }
    LkOut (24) { lk: FileLock }
    AccessIn (8) { mask: u32, padding: u32 }
    InitIn (16) { major: u32, minor: u32, max_readahead: u32, flags: u32 }
    /// What INIT carries behind `InitIn` since 7.36, when `INIT_EXT` is among its flags.
    InitExtIn (48) { flags2: u32, unused: [u32; 11] }
    InitOut (64) { major: u32, minor: u32, max_readahead: u32, flags: u32, max_background: u16,
        congestion_threshold: u16, max_write: u32, time_gran: u32, max_pages: u16, map_alignment: u16, flags2: u32,
        max_stack_depth: u32, request_timeout: u16, unused: [u16; 11] }
    InterruptIn (8) { unique: u64 }
    BmapIn (16) { block: u64, blocksize: u32, padding: u32 }
    BmapOut (8) { block: u64 }
    IoctlIn (32) { fh: u64, flags: u32, cmd: u32, arg: u64, in_size: u32, out_size: u32 }
    IoctlOut (16) { result: i32, flags: u32, in_iovs: u32, out_iovs: u32 }
    PollIn (24) { fh: u64, kh: u64, flags: u32, events: u32 }
    PollOut (8) { revents: u32, padding: u32 }
    FallocateIn (32) { fh: u64, offset: u64, length: u64, mode: u32, padding: u32 }
    LseekIn (24) { fh: u64, offset: u64, whence: u32, padding: u32 }
    LseekOut (8) { offset: u64 }
    CopyFileRangeIn (56) { fh_in: u64, off_in: u64, nodeid_out: u64, fh_out: u64, off_out: u64, len: u64, flags: u64 }
    CopyFileRangeOut (8) { bytes_copied: u64 }
    StatxIn (24) { getattr_flags: u32, reserved: u32, fh: u64, sx_flags: u32, sx_mask: u32 }
    SxTime (16) { tv_sec: i64, tv_nsec: u32, reserved: i32 }
    Statx (256) { mask: u32, blksize: u32, attributes: u64, nlink: u32, uid: u32, gid: u32, mode: u16, spare0: u16,
        ino: u64, size: u64, blocks: u64, attributes_mask: u64, atime: SxTime, btime: SxTime, ctime: SxTime,
        mtime: SxTime, rdev_major: u32, rdev_minor: u32, dev_major: u32, dev_minor: u32, spare2: [u64; 14] }
    StatxOut (288) { attr_valid: u64, attr_valid_nsec: u32, flags: u32, spare: [u64; 2], stat: Statx }

    NotifyPollOut (8) { kh: u64 }
    NotifyInvalInodeOut (24) { ino: u64, off: i64, len: i64 }
    NotifyInvalEntryOut (16) { parent: u64, namelen: u32, flags: u32 }
    NotifyDeleteOut (24) { parent: u64, child: u64, namelen: u32, padding: u32 }
    NotifyStoreOut (24) { nodeid: u64, offset: u64, size: u32, padding: u32 }
    NotifyRetrieveOut (32) { notify_unique: u64, nodeid: u64, offset: u64, size: u32, padding: u32 }
    NotifyRetrieveIn (40) { dummy1: u64, offset: u64, size: u32, dummy2: u32, dummy3: u64, dummy4: u64 }
    NotifyPruneOut (16) { count: u32, padding: u32, spare: u64 }

    /// Starts every extension; `kind` is a type, or the number of security contexts.
    ExtHeader (8) { size: u32, kind: u32 }
    SecurityContext (8) { size: u32, padding: u32 }
}
