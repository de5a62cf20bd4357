//! What whoever holds `/dev/fuse` must do. Nothing here opens, reads or writes: these are the numbers and the rules.
//!
//! # Mounting, as root
//!
//! 1. `open("/dev/fuse", O_RDWR | O_CLOEXEC)`.
//! 2. `mount("dazzle", path, "fuse.dazzle", MS_NOSUID | MS_NODEV, data)` with `MountOptions::data`. It returns at once;
//!    the kernel has queued INIT.
//! 3. Read one request; it is `Operation::Init`. `negotiate`, write the reply. On `Handshake::Again` write `again` and
//!    read the next; on `Refused` write `refused` and unmount.
//! 4. One more descriptor per serving thread: open the device again and `ioctl(new, IOC_CLONE, &original)`. **A reply
//!    goes to the descriptor its request was read from**, since each has its own list of unanswered requests; a
//!    notification goes to any. An INTERRUPT may be read from another descriptor than its target.
//! 5. For read-ahead of more than 128 KiB write `/sys/class/bdi/MAJOR:MINOR/read_ahead_kb` of the mount, after INIT.
//!
//! # Mounting, as anyone else
//!
//! `socketpair(AF_UNIX, SOCK_STREAM)`, then run `fusermount3 -o OPTIONS -- PATH` with one end inherited and its number
//! in the environment variable `_FUSE_COMMFD`. It mounts and sends the descriptor in one SCM_RIGHTS message with one
//! byte of data; then wait for it to exit, and go on at step 3. OPTIONS are `MountOptions::fusermount`; `allow_other`
//! needs `user_allow_other` in `/etc/fuse.conf`, and the caller must be able to open `/dev/fuse` itself. Unmount with
//! `fusermount3 -u -z -- PATH`.
//!
//! # The loop
//!
//! ```text
//! loop {
//!     let buffer = a page-aligned buffer of buffer_bytes(session.request_bytes_max);
//!     match read(descriptor, &mut buffer[READ_OFFSET..]) {
//!         n                        => serve(Bytes owning buffer[READ_OFFSET..READ_OFFSET + n]),
//!         EINTR | EAGAIN | ENOENT  => continue,        // a signal; nothing there; a request withdrawn while read
//!         ENODEV                   => return,          // unmounted, or aborted through fusectl
//!         EINVAL                   => the buffer is smaller than max_write + 80: our error
//!     }
//! }
//! serve(bytes): match Request::parse(bytes, session.dialect()) {
//!     Ok(request)    => hand it on; later writev(descriptor, frame.slices())
//!     Err(malformed) => count it; write malformed.reply(), if any
//! }
//! ```
//!
//! A WRITE's payload starts 80 bytes behind the request's first byte, so reading at `READ_OFFSET` puts it on a page
//! boundary: it can go to a disk with O_DIRECT as it is. A WRITE's buffer is given away with the request. Of other
//! requests copy the bytes (`keeps_buffer` is false) and read into the same buffer again: they are short, and a name
//! must not keep a megabyte alive.
//!
//! `writev` of a reply fails with ENOENT when the request is gone (interrupted, aborted): forget it. EINVAL: the frame
//! was wrong, our error; the kernel has failed the call with EIO, unless the length was wrong too, so write
//! `reply::error(unique, EIO)` in any case. ENODEV: unmounted.
//!
//! Notifications have their own thread: see `notify`. READ and WRITE must be answered even while a notification waits.
//!
//! # Restarting with files open
//!
//! The mount lives while one descriptor of it is open, so the old program leaves its descriptors open for the one that
//! takes its place in the process, and that starts at step 4, without INIT: it must be told the `Session`. Closing a
//! descriptor aborts what was read from it and not answered (ECONNABORTED in the program), so **every** clone is left,
//! not the original alone. The new daemon writes `Notification::Resend` first; what then comes again, from any
//! descriptor, has `Request::is_resent` and a new `unique`, and the old one is void.
//!
//! The rules about clones, resending and wrong frames were tried on Linux 6.18.44.

use crate::abi::{InHeader, WriteIn, opcode};
use crate::layout::Layout;

/// Bytes of a page, the alignment that O_DIRECT asks for at most.
const PAGE_BYTES: usize = 4096;

/// Where a WRITE's payload starts in its request.
pub const PAYLOAD_OFFSET: usize = InHeader::SIZE + WriteIn::SIZE;

/// Where in a page-aligned buffer to read a request, so that a WRITE's payload is aligned too.
pub const READ_OFFSET: usize = PAGE_BYTES - PAYLOAD_OFFSET;

/// `ioctl` that makes a freshly opened device another descriptor of a mount: `_IOR(229, 0, u32)`.
pub const IOC_CLONE: u64 = 0x8004_e500;

/// `ioctl` that registers a backing file for passthrough: `_IOW(229, 1, struct fuse_backing_map)`.
pub const IOC_BACKING_OPEN: u64 = 0x4010_e501;

/// `ioctl` that lets a backing file go: `_IOW(229, 2, u32)`.
pub const IOC_BACKING_CLOSE: u64 = 0x4004_e502;

/// Size of the buffer for one request, whole pages: room for the aligned payload, and behind it as much again as any
/// other request needs beyond `request_bytes_max` (names, extensions).
pub fn buffer_bytes(request_bytes_max: u32) -> usize {
    PAGE_BYTES + (request_bytes_max as usize).next_multiple_of(PAGE_BYTES) + PAGE_BYTES
}

/// Whether a request just read should keep its buffer (its payload is worth more than a copy) rather than be copied
/// out.
pub fn keeps_buffer(request: &[u8]) -> bool {
    let mut view = request;
    let is_write = InHeader::take(&mut view).is_some_and(|header| header.opcode == opcode::WRITE);
    is_write && request.len() > PAYLOAD_OFFSET + PAGE_BYTES
}

/// What mount(2) or fusermount3 must be told.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct MountOptions {
    /// Who mounts: other users are kept out unless `allow_other`.
    pub uid: u32,
    /// Their group.
    pub gid: u32,
    /// Let all users in. A shared file system wants it; the kernel then relies on `default_permissions`.
    pub allow_other: bool,
    /// Most bytes of a READ: `Wishes::request_bytes_max`.
    pub read_bytes_max: u32,
}

impl MountOptions {
    /// The `data` of mount(2), for an open device. The kernel checks modes and ACLs (`default_permissions`), because a
    /// request tells only one of the caller's groups; the manager checks again (DESIGN §12).
    pub fn data(&self, descriptor: i32) -> String {
        let (uid, gid) = (self.uid, self.gid);
        // The root is a directory: S_IFDIR, in octal.
        format!("fd={descriptor},rootmode=40000,user_id={uid},group_id={gid},{}", self.common())
    }

    /// The `-o` of fusermount3, which adds descriptor, mode and ids itself.
    pub fn fusermount(&self) -> String {
        format!("nosuid,nodev,fsname=dazzle,subtype=dazzle,{}", self.common())
    }

    fn common(&self) -> String {
        let allow_other = if self.allow_other { ",allow_other" } else { "" };
        format!("default_permissions,max_read={}{allow_other}", self.read_bytes_max)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_write_payload_read_at_the_offset_lies_on_a_page_boundary() {
        assert_eq!((PAYLOAD_OFFSET, READ_OFFSET), (80, 4016));
        assert_eq!((READ_OFFSET + PAYLOAD_OFFSET) % PAGE_BYTES, 0);
        let room = buffer_bytes(1 << 20) - READ_OFFSET;
        assert!(room >= PAYLOAD_OFFSET + (1 << 20) + PAGE_BYTES, "the kernel refuses to read into less than max_write");
        assert_eq!(buffer_bytes(1 << 20) % PAGE_BYTES, 0);
    }

    #[test]
    fn only_large_writes_keep_their_buffer() {
        let header = |opcode: u32, len: usize| {
            let mut bytes = vec![0; len];
            bytes[4..8].copy_from_slice(&opcode.to_ne_bytes());
            bytes
        };
        assert!(keeps_buffer(&header(opcode::WRITE, 1 << 16)));
        assert!(!keeps_buffer(&header(opcode::WRITE, 180)));
        assert!(!keeps_buffer(&header(opcode::SETXATTR, 1 << 16)));
        assert!(!keeps_buffer(&[]));
    }

    #[test]
    fn mount_options_read_as_the_kernel_parses_them() {
        let options = MountOptions { uid: 0, gid: 0, allow_other: true, read_bytes_max: 1 << 20 };
        assert_eq!(
            options.data(5),
            "fd=5,rootmode=40000,user_id=0,group_id=0,default_permissions,max_read=1048576,allow_other"
        );
        assert_eq!(
            MountOptions { allow_other: false, ..options }.fusermount(),
            "nosuid,nodev,fsname=dazzle,subtype=dazzle,default_permissions,max_read=1048576"
        );
    }
}
