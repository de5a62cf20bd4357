//! The maps of a cluster, agreed on by its voters: nodes, targets, groups, logs with their layouts, slots with their managers;
//! and the one lease of each node (DESIGN §9, §6).
//!
//! | noun | it is |
//! |---|---|
//! | [`Change`](change) | what one request makes of the maps: pure |
//! | [`nodes`] | what nodes that come and go make of the maps: pure |
//! | [`drain`] | what emptying targets and nodes makes of the maps, and when they may be taken away: pure |
//! | [`formation`] | which groups are laid over which targets: pure |
//! | [`slots`] | which node manages which slots: pure |
//! | [`reign`] | what becomes of the maps when a registry without quorum goes on with one machine's replica: pure |
//! | [`rebuilding`], [`evidence`] | what maps a machine begins with whose replica is lost, and what its fragments tell: pure |
//! | [`stop`] | how all machines stop at once, phase by phase: pure |
//! | [`leases`], [`voters`], [`balance`] | what the leader decides: whose lease ran out, who votes, when slots move: pure |
//! | [`witness`] | how late an earlier leader may have granted a lease: pure |
//! | `counting` | which copies of a node's replica count: what it may go on without |
//! | [`Registry`] | answers requests, on every storing node; its `leader` carries out what those above decide |
//! | [`Standing`] | what one replica knows, of voters too; [`promotion`] makes the next reign of it |
//! | [`Salvage`] | what can be had of copies that are damaged, missing or old |
//! | [`Session`] | a node's own side of its lease |
//! | [`Replica`] | one durable copy, on one target, of what a `store` keeps on several; `record` knows its bytes |
//!
//! The consensus library is spoken to in the words of `consensus`, runs on `runtime`, `channel` and `watch`, keeps what it
//! must in `store`, changes `machine`, and talks over `network`; nobody else names it.
//!
//! A change is answered once a quorum of voters has it, each on at least m+1 of its own targets; a start reads all but m, so
//! what was promised is always among what was read (`docs/decisions/0014-consensus.md`).
//!
//! *Never*: files, inodes, what a slot holds; fragments.

mod awaited;
pub mod balance;
pub mod change;
mod channel;
mod consensus;
mod copies;
mod counting;
pub mod drain;
pub mod evidence;
pub mod formation;
#[cfg(any(test, feature = "fuzzing"))]
pub mod fuzzing;
mod leader;
pub mod leases;
mod machine;
pub mod members;
mod network;
pub mod nodes;
pub mod promotion;
pub mod rebuilding;
mod record;
pub mod reign;
mod replica;
mod ring;
mod rounds;
mod runtime;
mod salvage;
mod service;
mod session;
pub mod slots;
mod standing;
pub mod stop;
mod store;
pub mod voters;
mod watch;
pub mod witness;

pub use record::VERSION as FORMAT_VERSION;
pub use replica::{Replica, ReplicaError};
pub use salvage::{Condition, Salvage};
pub use service::{Registry, RegistryStart};
pub use session::{Life, Session, registries};
pub use standing::Standing;
