//! Replies, one function for each form; `unique` is always the request's.
//!
//! | operation | reply |
//! |---|---|
//! | LOOKUP, SYMLINK, MKNOD, MKDIR, LINK | `entry` |
//! | CREATE, TMPFILE | `created` |
//! | GETATTR, SETATTR | `attributes` |
//! | STATX | `statx` |
//! | OPEN, OPENDIR | `opened` |
//! | READ, READLINK, GETXATTR and LISTXATTR with a size | `data` |
//! | READDIR, READDIRPLUS | `listing` |
//! | WRITE, COPY_FILE_RANGE | `written`; COPY_FILE_RANGE_64: `copied` |
//! | STATFS | `space` |
//! | GETXATTR and LISTXATTR of size 0 | `attribute_size` |
//! | GETLK | `lock` |
//! | LSEEK, BMAP, POLL, IOCTL | `offset`, `block`, `events`, `ioctl` |
//! | INIT | `negotiate::Session::reply` |
//! | everything else that is answered | `done` |
//! | anything | `error` |

use std::time::Duration;

use bytes::Bytes;

use crate::abi;
use crate::attributes::{Attributes, Entry, Opened, Space};
use crate::directory::DirectoryBuffer;
use crate::errno::Errno;
use crate::frame::Frame;
use crate::layout::Layout;
use crate::operation::{CopyReply, Lock, LockKind, Time, Unique};

/// It failed.
pub fn error(unique: Unique, errno: Errno) -> Frame {
    Frame::new(unique, -errno.number(), |_| {}, Vec::new())
}

/// It is done, and there is nothing to say.
pub fn done(unique: Unique) -> Frame {
    Frame::new(unique, 0, |_| {}, Vec::new())
}

/// A name was found or made, or is known to be absent (node 0; for LOOKUP only).
pub fn entry(unique: Unique, entry: &Entry) -> Frame {
    structure(unique, &abi::EntryOut::from(entry))
}

/// A file was made and opened.
pub fn created(unique: Unique, entry: &Entry, opened: &Opened) -> Frame {
    let body = |out: &mut Vec<u8>| {
        abi::EntryOut::from(entry).put(out);
        abi::OpenOut::from(opened).put(out);
    };
    Frame::new(unique, 0, body, Vec::new())
}

/// Attributes, and for how long the kernel may use them.
pub fn attributes(unique: Unique, attributes: &Attributes, valid: Duration) -> Frame {
    let (attr_valid, attr_valid_nsec) = (valid.as_secs(), valid.subsec_nanos());
    structure(unique, &abi::AttrOut { attr_valid, attr_valid_nsec, dummy: 0, attr: attributes.into() })
}

/// Attributes with the time of birth.
pub fn statx(unique: Unique, attributes: &Attributes, created: Option<Time>, valid: Duration) -> Frame {
    let (attr_valid, attr_valid_nsec) = (valid.as_secs(), valid.subsec_nanos());
    let stat = attributes.to_statx(created);
    structure(unique, &abi::StatxOut { attr_valid, attr_valid_nsec, flags: 0, spare: [0; 2], stat })
}

/// A file or directory is open.
pub fn opened(unique: Unique, opened: &Opened) -> Frame {
    structure(unique, &abi::OpenOut::from(opened))
}

/// Bytes, referred to and not copied. Never more than was asked for; fewer from READ mean the end of the file.
pub fn data(unique: Unique, pieces: Vec<Bytes>) -> Frame {
    Frame::new(unique, 0, |_| {}, pieces)
}

/// A piece of a directory.
pub fn listing(unique: Unique, entries: DirectoryBuffer) -> Frame {
    data(unique, vec![entries.into_bytes()])
}

/// How much was written, or copied by the old COPY_FILE_RANGE.
pub fn written(unique: Unique, size: u32) -> Frame {
    structure(unique, &abi::WriteOut { size, padding: 0 })
}

/// How much was copied, in the form the kernel waits for. The narrow form tells as much as it can, which makes the
/// caller ask again for the rest: never copy more than `u32::MAX` bytes for it.
pub fn copied(unique: Unique, bytes_copied: u64, form: CopyReply) -> Frame {
    match form {
        CopyReply::Narrow => written(unique, u32::try_from(bytes_copied).unwrap_or(u32::MAX)),
        CopyReply::Wide => structure(unique, &abi::CopyFileRangeOut { bytes_copied }),
    }
}

/// Space and inodes.
pub fn space(unique: Unique, space: &Space) -> Frame {
    structure(unique, &abi::StatfsOut::from(space))
}

/// How long an extended attribute, or the list of their names, is.
pub fn attribute_size(unique: Unique, size: u32) -> Frame {
    structure(unique, &abi::GetxattrOut { size, padding: 0 })
}

/// The lock in the way, or one of kind `Unlock`.
pub fn lock(unique: Unique, lock: &Lock) -> Frame {
    let kind = match lock.kind {
        LockKind::Read => abi::LOCK_READ,
        LockKind::Write => abi::LOCK_WRITE,
        LockKind::Unlock => abi::LOCK_UNLOCK,
    };
    structure(unique, &abi::LkOut { lk: abi::FileLock { start: lock.start, end: lock.end, kind, pid: lock.pid } })
}

/// Where data or a hole starts.
pub fn offset(unique: Unique, offset: u64) -> Frame {
    structure(unique, &abi::LseekOut { offset })
}

/// Where a block lies.
pub fn block(unique: Unique, block: u64) -> Frame {
    structure(unique, &abi::BmapOut { block })
}

/// What poll(2) would see now.
pub fn events(unique: Unique, revents: u32) -> Frame {
    structure(unique, &abi::PollOut { revents, padding: 0 })
}

/// What ioctl(2) returns, and what it leaves in the caller's memory.
pub fn ioctl(unique: Unique, result: i32, output: Bytes) -> Frame {
    let body = abi::IoctlOut { result, ..abi::IoctlOut::default() };
    Frame::new(unique, 0, |out| body.put(out), vec![output])
}

/// A reply that is one structure.
pub(crate) fn structure(unique: Unique, body: &impl Layout) -> Frame {
    Frame::new(unique, 0, |out| body.put(out), Vec::new())
}
