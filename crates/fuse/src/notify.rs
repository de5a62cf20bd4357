//! Notifications: what the daemon tells the kernel unasked, above all what to forget (DESIGN §6: call-backs invalidate
//! the kernel's page and dentry caches, which are part of the client cache).
//!
//! A notification is written to the device like a reply, and the write returns when the kernel has carried it out. That
//! may take a lock which a process holds while it waits for our reply to another call. Measured on Linux 6.18.44, each
//! call held back while the notification was written:
//!
//! | notification | waits until these calls are answered |
//! |---|---|
//! | InvalidateEntry, ExpireEntry | LOOKUP, MKDIR, READDIR in the parent, *whatever their name* |
//! | Delete | the same, and WRITE, SETATTR, FSYNC on the child |
//! | InvalidateInode with pages, Store | READ (through the page cache) and WRITE on the inode |
//! | InvalidateInode without pages, IncrementEpoch, Prune | none of them |
//!
//! None waits for an OPEN. Other changes of names were not tried, but hold the same lock as MKDIR. So **no thread that
//! serves calls may write one**, nor a thread that holds what a call needs, and a call-back of a directory cannot be
//! finished before the lookups under way in it: where those wait for that call-back themselves, only IncrementEpoch, or
//! names given without validity in the first place, get out of the circle.
//!
//! | the write fails with | meaning |
//! |---|---|
//! | ENOENT | the kernel knows no such inode or name: as good as done |
//! | ENOTDIR, ENOTEMPTY, EBUSY (Delete) | the name stays, as a name in use may; it is revalidated |
//! | EINVAL | this kernel is too old for it: see `Session` for what may be sent |
//! | ENODEV | unmounted |

use bytes::Bytes;

use crate::abi::{self, notify_code};
use crate::frame::Frame;
use crate::layout::Layout;
use crate::operation::{NodeId, Unique};

/// A message to the kernel that answers none of its own.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Notification {
    /// Forget the attributes of an inode, and pages of it.
    InvalidateInode {
        /// Which.
        node: NodeId,
        /// Which of its pages.
        pages: Pages,
    },
    /// Forget a name; what is mounted below it is detached.
    InvalidateEntry {
        /// The directory.
        parent: NodeId,
        /// The name.
        name: Bytes,
    },
    /// Ask about a name before using it again, without unhashing it: what was opened or mounted there stays.
    ExpireEntry {
        /// The directory.
        parent: NodeId,
        /// The name.
        name: Bytes,
    },
    /// A name was removed on another machine: forget it if it still means `child`, and tell watchers (inotify).
    Delete {
        /// The directory.
        parent: NodeId,
        /// What the name meant.
        child: NodeId,
        /// The name.
        name: Bytes,
    },
    /// Put these bytes into the page cache. A page that was not there before is kept only if they fill it, or fill it
    /// up to the end of the file.
    Store {
        /// Into which file.
        node: NodeId,
        /// Where.
        offset: u64,
        /// The bytes.
        pieces: Vec<Bytes>,
    },
    /// Send what the page cache holds, as a NotifyReply named `unique`.
    Retrieve {
        /// The name of the answer, chosen by us.
        unique: Unique,
        /// Of which file.
        node: NodeId,
        /// From where.
        offset: u64,
        /// How much.
        size: u32,
    },
    /// Look at a polled file again.
    Poll {
        /// As given by the Poll operation.
        kernel_handle: u64,
    },
    /// Send every unanswered request again, marked as such: the first word of a restarted daemon.
    Resend,
    /// Ask about every name before using it again: for a lost lease, where naming each would take too long.
    IncrementEpoch,
    /// Drop these inodes if nothing uses them.
    Prune {
        /// Which.
        nodes: Vec<NodeId>,
    },
}

/// Which pages an invalidation drops.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Pages {
    /// None: attributes only.
    None,
    /// All from this offset on.
    From(u64),
    /// Those that hold these bytes.
    Range {
        /// First byte.
        offset: u64,
        /// How many, at least one: to the kernel none means all.
        length: u64,
    },
}

impl Pages {
    /// The kernel's `off` and `len`: a negative `off` is no page at all, a `len` of nought reaches to the end.
    fn encode(self) -> (i64, i64) {
        let signed = |value: u64| i64::try_from(value).unwrap_or(i64::MAX);
        match self {
            Pages::None => (-1, 0),
            Pages::From(offset) => (signed(offset), 0),
            Pages::Range { length: 0, .. } => (-1, 0),
            Pages::Range { offset, length } => (signed(offset), signed(length)),
        }
    }
}

impl Notification {
    /// The frame to write to the device.
    pub fn encode(&self) -> Frame {
        use notify_code as code;
        match self {
            Self::InvalidateInode { node, pages } => {
                let (off, len) = pages.encode();
                plain(code::INVAL_INODE, &abi::NotifyInvalInodeOut { ino: node.0, off, len })
            }
            Self::InvalidateEntry { parent, name } => entry(*parent, name, 0),
            Self::ExpireEntry { parent, name } => entry(*parent, name, abi::NOTIFY_EXPIRE_ONLY),
            Self::Delete { parent, child, name } => {
                let (parent, child, namelen) = (parent.0, child.0, length(name.len()));
                named(code::DELETE, &abi::NotifyDeleteOut { parent, child, namelen, padding: 0 }, name)
            }
            Self::Store { node, offset, pieces } => {
                let size = length(pieces.iter().map(Bytes::len).sum());
                let out = abi::NotifyStoreOut { nodeid: node.0, offset: *offset, size, padding: 0 };
                frame(code::STORE, |bytes| out.put(bytes), pieces.clone())
            }
            Self::Retrieve { unique, node, offset, size } => {
                let (notify_unique, nodeid) = (unique.0, node.0);
                let (offset, size) = (*offset, *size);
                plain(code::RETRIEVE, &abi::NotifyRetrieveOut { notify_unique, nodeid, offset, size, padding: 0 })
            }
            Self::Poll { kernel_handle } => plain(code::POLL, &abi::NotifyPollOut { kh: *kernel_handle }),
            Self::Resend => frame(code::RESEND, |_| {}, Vec::new()),
            Self::IncrementEpoch => frame(code::INC_EPOCH, |_| {}, Vec::new()),
            Self::Prune { nodes } => prune(nodes),
        }
    }
}

fn entry(parent: NodeId, name: &Bytes, flags: u32) -> Frame {
    let out = abi::NotifyInvalEntryOut { parent: parent.0, namelen: length(name.len()), flags };
    named(notify_code::INVAL_ENTRY, &out, name)
}

fn prune(nodes: &[NodeId]) -> Frame {
    // The count must fit the bytes exactly: Linux 6.18 trusts it.
    let out = abi::NotifyPruneOut { count: length(nodes.len()), padding: 0, spare: 0 };
    let body = |bytes: &mut Vec<u8>| {
        out.put(bytes);
        nodes.iter().for_each(|node| node.0.put(bytes));
    };
    frame(notify_code::PRUNE, body, Vec::new())
}

fn plain(code: i32, out: &impl Layout) -> Frame {
    frame(code, |bytes| out.put(bytes), Vec::new())
}

/// A structure and a name, whose NUL the structure's length does not count.
fn named(code: i32, out: &impl Layout, name: &Bytes) -> Frame {
    let body = |bytes: &mut Vec<u8>| {
        out.put(bytes);
        bytes.extend_from_slice(name);
        bytes.push(0);
    };
    frame(code, body, Vec::new())
}

fn frame(code: i32, body: impl FnOnce(&mut Vec<u8>), payload: Vec<Bytes>) -> Frame {
    // A notification is a reply to request 0, with its code in the place of the error.
    Frame::new(Unique(0), code, body, payload)
}

fn length(value: usize) -> u32 {
    u32::try_from(value).expect("names and stores are far below 4 GiB")
}
