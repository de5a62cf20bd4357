//! The small store of the maps: targets, groups, logs with their layouts, slots with their managers (DESIGN §9).
//!
//! | noun | it is |
//! |---|---|
//! | [`Change`](change) | what one request makes of the maps: pure |
//! | [`nodes`] | what nodes that come and go make of the maps: pure |
//! | [`formation`] | which groups are laid over which targets: pure |
//! | [`slots`] | which node manages which slots: pure |
//! | [`Replica`](replica) | one durable copy of the maps, on one target |
//! | [`Registry`] | answers requests, keeps the replicas |
//!
//! A node that is alone keeps its replicas on its own targets: every change reaches at least m+1 of them before it is
//! answered, and a start reads all but m, so the newest acknowledged maps are always among what was read.
//!
//! *Never*: files, inodes, what a slot holds; fragments.

pub mod change;
mod channel;
mod consensus;
pub mod formation;
#[cfg(any(test, fuzzing))]
pub mod fuzzing;
mod leader;
pub mod leases;
mod machine;
mod network;
pub mod nodes;
mod record;
mod replica;
mod rounds;
mod runtime;
mod service;
mod session;
pub mod slots;
mod store;
pub mod voters;
mod watch;

pub use replica::{Replica, ReplicaError};
pub use service::{Registry, RegistryStart};
pub use session::Session;
