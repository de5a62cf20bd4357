//! The edge: sockets, disks, clocks, threads and the FUSE device. The only place that names the async runtime and the
//! operating system; everything behind it sees a `host::Host` and `host::Disk`s.
//!
//! *Never*: policy. What to store where, when to retry, what an error means for a file: none of it is decided here.
#![allow(clippy::disallowed_methods, clippy::disallowed_types)]

pub mod block_device;
pub mod blocking;
pub mod buffers;
pub mod control;
pub mod directory;
pub(crate) mod filling;
mod forgetting;
pub mod fuse_device;
pub(crate) mod fuse_ring;
pub mod gate;
pub mod guard;
pub mod machine;
mod mapped;
pub mod mount;
pub(crate) mod namespaces;
pub mod network;
mod open_file;
mod page_cache;
pub mod ports;
pub mod process;
pub mod storage_place;
mod telling;
pub mod trust;
pub mod waiters;
pub mod word;
