//! The INIT handshake: what the kernel offers, what Dazzle takes of it, and why.
//!
//! The kernel sends INIT first and nothing else until it is answered. A flag is in force if both sides named it.

use serde::{Deserialize, Serialize};

use crate::abi::{self, init};
use crate::errno::Errno;
use crate::frame::Frame;
use crate::operation::Unique;
use crate::reply;
use crate::request::Dialect;

/// Bytes of one page: the unit of `max_pages` on every machine with 4 KiB pages.
const PAGE_BYTES: u32 = 4096;
/// Most pages of one request without MAX_PAGES.
const PAGES_WITHOUT_MAX_PAGES: u32 = 32;
/// Oldest minor version spoken to: Linux 5.4. From here on all structures but SETXATTR's and INIT's have their length.
const MINOR_OLDEST: u32 = 31;

/// A set of INIT flags, bits of `abi::init`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct InitFlags(pub u64);

impl InitFlags {
    /// Whether all of `flags` are in the set.
    pub fn contains(self, flags: u64) -> bool {
        self.0 & flags == flags
    }
}

/// What the kernel says in INIT.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Offer {
    /// Major version.
    pub major: u32,
    /// Minor version.
    pub minor: u32,
    /// The read-ahead it would do: the mount's `read_ahead_kb`, 128 KiB unless someone raised it.
    pub read_ahead_bytes_max: u32,
    /// What it can do.
    pub flags: InitFlags,
}

/// What the daemon wants of a mount beyond the flags that always apply.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Wishes {
    /// Most bytes of one READ or WRITE. 1 MiB is what `fs.fuse.max_pages_limit` allows by default.
    pub request_bytes_max: u32,
    /// Most bytes of read-ahead. The kernel takes the smaller of this and its offer; for more, raise the mount's
    /// `read_ahead_kb` after the handshake.
    pub read_ahead_bytes_max: u32,
    /// Most background requests (read-ahead, asynchronous direct I/O) in flight at once.
    pub background_max: u16,
    /// Offer the io_uring transport; a kernel with `fuse.enable_uring` off does not take it.
    pub io_uring: bool,
    /// No other client changes files: the kernel keeps its pages until it is told otherwise, and those that its own calls
    /// change it drops by itself. Otherwise it drops the pages of a file whose size or modification time is not what it
    /// was, and it sees that after each of its own writes too, for it takes our times and not its own.
    pub alone: bool,
    /// Offer backing files for wholly cached files (DESIGN §7); needs CAP_SYS_ADMIN.
    pub passthrough: bool,
}

impl Default for Wishes {
    fn default() -> Self {
        Self {
            request_bytes_max: 1 << 20,
            read_ahead_bytes_max: 1 << 20,
            // 64 requests of 1 MiB cover 25 Gbit/s over 20 ms; the kernel's own default of 12 would not.
            background_max: 64,
            io_uring: false,
            alone: false,
            passthrough: false,
        }
    }
}

/// The flags that always apply, where offered.
///
/// Left out on purpose: WRITEBACK_CACHE (the kernel would hold dirty pages that no call-back reaches in time, DESIGN
/// §6); ASYNC_DIO (Linux drops no pages behind an asynchronous direct write: a page read meanwhile would stay as it
/// was before the write); ATOMIC_O_TRUNC (Linux asks whether the file is a running program only behind the OPEN that
/// has emptied it by then); NO_OPEN_SUPPORT (an open takes tokens); ABORT_ERROR (ENODEV says enough); SECURITY_CTX
/// (labels are plain extended attributes); SPLICE_* (others measured no gain); HAS_INODE_DAX and MAP_ALIGNMENT (no
/// shared memory); REQUEST_TIMEOUT (it aborts the whole mount: our own bounds are per call); ALLOW_IDMAP (the manager
/// checks ids and knows no mapping); HANDLE_KILLPRIV (its second version replaces it).
const WANTED: u64 = TRANSFER | SEMANTICS | CACHING;

/// How bytes and requests move.
const TRANSFER: u64 = init::ASYNC_READ // several READs of one file at once
    | init::BIG_WRITES // WRITEs of more than a page
    | init::MAX_PAGES // and of more than 32 pages
    | init::PARALLEL_DIROPS // lookups and listings of one directory side by side
    | init::INIT_EXT; // the flags above bit 31

/// What calls mean.
const SEMANTICS: u64 = init::EXPORT_SUPPORT // file handles survive that the kernel forgets the inode
    | init::POSIX_LOCKS // fcntl locks live with the manager,
    | init::FLOCK_LOCKS // and flock too (DESIGN §6)
    | init::POSIX_ACL // the kernel checks ACLs that we store; it implies default_permissions
    | init::DONT_MASK // a default ACL replaces the umask, so we apply either
    | init::HANDLE_KILLPRIV_V2 // we drop set-user-id on write; saves a GETXATTR before every write
    | init::SETXATTR_EXT // with it the ACL change that drops set-group-id says so
    | init::CREATE_SUPP_GROUP // the group that decides about set-group-id of new files
    | init::DIRECT_IO_ALLOW_MMAP; // shared mappings of files opened with DIRECT_IO

/// What the kernel keeps.
const CACHING: u64 = init::DO_READDIRPLUS // `ls -l` in one round trip,
    | init::READDIRPLUS_AUTO // where lookups follow the listing
    | init::CACHE_SYMLINKS // a link's target never changes
    | init::NO_OPENDIR_SUPPORT // an announcement: ENOSYS to OPENDIR ends OPENDIRs
    | init::HAS_EXPIRE_ONLY // announcements: what notifications it takes
    | init::HAS_RESEND;

/// How a handshake ends.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Handshake {
    /// Agreed: send `Session::reply`, then serve.
    Agreed(Session),
    /// The kernel's major version is newer: send `again`, and it will offer ours.
    Again,
    /// Too old: send `refused`, and unmount.
    Refused,
}

/// What was agreed on.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Session {
    /// The smaller of both minor versions.
    pub minor: u32,
    /// The flags in force, and the announcements.
    pub flags: InitFlags,
    /// Most bytes of a WRITE; the device's read buffer must have room for them (see `device`).
    pub request_bytes_max: u32,
    read_ahead_bytes_max: u32,
    background_max: u16,
}

/// Answers an offer.
pub fn negotiate(offer: &Offer, wishes: &Wishes) -> Handshake {
    if offer.major > abi::VERSION_MAJOR {
        return Handshake::Again;
    }
    if offer.major < abi::VERSION_MAJOR || offer.minor < MINOR_OLDEST {
        return Handshake::Refused;
    }
    let mut wanted = WANTED;
    // Changed size or mtime drops pages (DESIGN §6: after a frozen daemon), or nothing does but a notification.
    wanted |= if wishes.alone { init::EXPLICIT_INVAL_DATA } else { init::AUTO_INVAL_DATA };
    wanted |= if wishes.io_uring { init::OVER_IO_URING } else { 0 };
    wanted |= if wishes.passthrough { init::PASSTHROUGH } else { 0 };
    let flags = InitFlags(offer.flags.0 & wanted);
    let pages_max = if flags.contains(init::MAX_PAGES) { u32::from(u16::MAX) } else { PAGES_WITHOUT_MAX_PAGES };
    // Whole pages, at least one: the kernel rounds in its own way otherwise.
    let pages = (wishes.request_bytes_max / PAGE_BYTES).clamp(1, pages_max);
    Handshake::Agreed(Session {
        minor: offer.minor.min(abi::VERSION_MINOR),
        flags,
        request_bytes_max: pages * PAGE_BYTES,
        read_ahead_bytes_max: wishes.read_ahead_bytes_max,
        background_max: wishes.background_max.max(1),
    })
}

impl Session {
    /// The reply to INIT.
    pub fn reply(&self, unique: Unique) -> Frame {
        let [flags, flags2] = [self.flags.0 as u32, (self.flags.0 >> 32) as u32];
        let passthrough = self.flags.contains(init::PASSTHROUGH);
        let out = abi::InitOut {
            major: abi::VERSION_MAJOR,
            minor: self.minor,
            max_readahead: self.read_ahead_bytes_max,
            flags,
            max_background: self.background_max,
            // Above it the kernel calls the mount congested and holds back read-ahead: the customary three quarters.
            congestion_threshold: (self.background_max / 4 * 3).max(1),
            max_write: self.request_bytes_max,
            // Times are kept to the nanosecond.
            time_gran: 1,
            max_pages: (self.request_bytes_max / PAGE_BYTES) as u16,
            flags2,
            // A backing file may not lie on a stacked file system; 0 would turn passthrough off.
            max_stack_depth: u32::from(passthrough),
            ..abi::InitOut::default()
        };
        reply::structure(unique, &out)
    }

    /// How requests read from here on.
    pub fn dialect(&self) -> Dialect {
        Dialect { setxattr_extended: self.flags.contains(init::SETXATTR_EXT) }
    }

    /// Whether ExpireEntry works; else InvalidateEntry must do.
    pub fn can_expire(&self) -> bool {
        self.flags.contains(init::HAS_EXPIRE_ONLY)
    }

    /// Whether requests come over io_uring (see `ring`).
    pub fn has_rings(&self) -> bool {
        self.flags.contains(init::OVER_IO_URING)
    }

    /// Whether Resend works; else a restarted daemon cannot know what the old one left unanswered.
    pub fn can_resend(&self) -> bool {
        self.flags.contains(init::HAS_RESEND)
    }

    /// Whether IncrementEpoch works (7.44).
    pub fn can_increment_epoch(&self) -> bool {
        self.minor >= 44
    }

    /// Whether Prune works (7.45).
    pub fn can_prune(&self) -> bool {
        self.minor >= 45
    }

    /// Whether ENOSYS to OPENDIR makes the kernel open directories by itself.
    pub fn can_skip_opendir(&self) -> bool {
        self.flags.contains(init::NO_OPENDIR_SUPPORT)
    }
}

/// The reply that asks for an offer of our major version.
pub fn again(unique: Unique) -> Frame {
    let out = abi::InitOut { major: abi::VERSION_MAJOR, minor: abi::VERSION_MINOR, ..abi::InitOut::default() };
    reply::structure(unique, &out)
}

/// The reply that ends it.
pub fn refused(unique: Unique) -> Frame {
    reply::error(unique, Errno::EPROTO)
}
