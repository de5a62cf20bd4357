//! The kernel's tongue: FUSE protocol 7.45, from bytes to operations and from answers to bytes; and the face that
//! translates operations to calls of the client.
//!
//! | module | noun |
//! |---|---|
//! | `face` | `Face`: answers each request by calling the client |
//! | `abi` | the table: opcodes, flags, structures with their sizes asserted |
//! | `layout` | how a structure becomes bytes and back |
//! | `request` | `Request`, parsed from one read of the device; `Malformed` |
//! | `operation` | `Operation`: one variant for each thing the kernel can ask |
//! | `decode` | from opcode and arguments to `Operation` |
//! | `extension` | what follows the arguments: groups, security labels |
//! | `reply` | one function for each form of answer |
//! | `attributes` | what answers say of an inode: `Attributes`, `Entry`, `Opened`, `Space` |
//! | `directory` | `DirectoryBuffer`: a listing under construction |
//! | `notify` | `Notification`: what the daemon says unasked |
//! | `frame` | `Frame`: what one `writev` carries, head and payload |
//! | `negotiate` | the INIT handshake: `Offer`, `Wishes`, `Session` |
//! | `errno` | `Errno` |
//! | `device` | mounting, the loop, restarting: the rules for whoever holds `/dev/fuse` |
//! | `ring` | requests over io_uring: what lies where, and the rules |
//!
//! A request goes up: bytes → `Request::parse` → `Operation` → `Face::answer`. An answer comes down: `reply::…` → `Frame` →
//! `writev`.
//! Why this is our own and not a library: `docs/decisions/0002-own-fuse-wire.md`.
//!
//! # Never
//!
//! - No file, socket, thread, clock or `ioctl`: the device belongs to `dazzle/src/edge`.
//! - No `.await` outside `face`: everything else here is a function of its arguments.
//! - No panic on bytes from the device, and no allocation sized by an unchecked number in them.
//! - No copy of payload: a WRITE's data is a slice of its request, a READ's answer refers to what it was given. Names
//!   too are slices; who keeps one copies it.
//! - No word of tokens, slots or logs; no other face.

pub mod abi;
pub mod attributes;
mod decode;
pub mod device;
pub mod directory;
mod errno;
mod extension;
mod face;
pub mod frame;
mod layout;
pub mod negotiate;
pub mod notify;
pub mod operation;
pub mod reply;
pub mod request;
pub mod ring;

pub use errno::Errno;
pub use extension::{Extensions, SecurityLabel};
pub use face::{Face, FaceHeritage, Notifier, Told};
pub use frame::Frame;
pub use notify::Notification;
pub use operation::Operation;
pub use request::{Dialect, Malformed, Request};
