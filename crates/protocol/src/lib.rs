//! What is agreed between the parts: ids, log addresses, the shapes of records and fragments, messages, checksums and
//! the erasure code. `docs/format.md` gives the bytes.
//!
//! | noun | it is |
//! |---|---|
//! | [`id`] | the names of nodes, targets, groups, logs, slots, inodes |
//! | [`address`] | positions in a log and the addresses of bytes in it |
//! | [`record`] | what is appended to a log: header, kinds, framing |
//! | [`fragment`] | the part of a stripe on one target: identity, geometry, header |
//! | [`delta`] | which bytes of which file now live where |
//! | [`maps`] | what the registry keeps: targets, groups, logs with their layouts, slots with their managers |
//! | [`storage`], [`registry`], [`manager`], [`rebuild`] | the messages to each of these parts |
//! | [`payload`] | long byte strings of messages, which travel beside the encoding |
//! | [`intention`] | operations over slots of several managers |
//! | [`audit`] | whether the records of all slots agree with each other |
//! | [`once`] | requests that take effect once, however often they are sent |
//! | [`locks`] | the file locks that are held of an inode, as managers and clients keep them |
//! | [`token`] | what managers promise clients, and how they call it back |
//! | [`file`] | files as managers and clients speak of them: attributes, kinds, extents |
//! | [`checksum`], [`erasure`] | CRC-32C of blocks and records; parity and reconstruction |
//!
//! *Never*: async, sockets, files, clocks; any part's inner state; a format without a version.

pub mod address;
pub mod audit;
pub mod checksum;
pub mod delta;
pub mod erasure;
pub mod file;
pub mod fragment;
pub mod id;
pub mod intention;
pub mod locks;
pub mod manager;
pub mod maps;
pub mod once;
pub mod payload;
pub mod rebuild;
pub mod record;
pub mod registry;
pub mod settings;
pub mod storage;
pub mod token;

mod table;

pub use table::{FastMap, FastSet};
