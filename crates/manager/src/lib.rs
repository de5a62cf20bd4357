//! The manager: names, attributes, block maps and locks of the slots that the manager map gives to a node (DESIGN §5).
//!
//! | noun | it is |
//! |---|---|
//! | [`page`], [`slot`], [`frames`] | sorted records in pages, of which some are in memory; [`marks`] shorten the search |
//! | [`key`], [`inode`], [`entry`], [`extent`] | the records (`docs/format-slot.md`) |
//! | [`transaction`] | what an operation sees and does; [`records`] and [`map`] speak of inodes, names and extents on top |
//! | [`ops`] | the operations, one file each |
//! | [`locks`], [`state`] | what lives only in memory: file locks, open files |
//! | [`tokens`], [`needs`] | who may keep what in memory, and which operations stand against that |
//! | [`placement`] | where new directories go |
//! | [`intention`], [`flight`] | operations over slots of several managers: what they lock, which are under way |
//! | [`snapshot`], [`sight`] | what was fetched for one, and how an operation sees that or locked slots |
//! | [`askings`] | calls that take effect once: which are carried out, which were refused |
//! | [`attempt`], [`journal`] | one attempt at an operation: lock, run, append, apply; and the record it appends |
//! | [`image`] | where images lie, and which stripes of manager logs they need |
//! | [`runs`] | where the journal lies between images |
//! | [`exposed`] | which of these the current groups would keep more safely |
//!
//! These decide. [`manager`] (answering), [`coordinate`] and [`participate`] (operations over several managers' slots),
//! [`locking`] (waiting for file locks), [`calls`] (to clients), [`checkpoint`] (rounds of images), [`takeover`] (of slots),
//! [`handover`] (to a manager that lives), [`start`] (and what goes on from then), [`replay`] (dead clients' deltas) and
//! [`testimony`] (what a log says of itself where there are no maps) await.
//!
//! *Never*: FUSE, NFS, client, storage; what a token-holding program looks like; a lock held while waiting.

mod acl;
mod askings;
mod attempt;
mod audit;
mod auditor;
mod calls;
mod checkpoint;
mod coordinate;
mod directory;
mod encoding;
mod entry;
mod exposed;
mod extent;
mod flight;
mod frames;
#[cfg(any(test, feature = "fuzzing"))]
pub mod fuzzing;
mod handover;
mod image;
mod inode;
mod inspect;
mod intention;
mod journal;
mod key;
mod late;
mod locking;
mod locks;
mod manager;
mod map;
mod marks;
mod moments;
mod needs;
mod newest;
mod ops;
mod page;
mod participate;
mod placement;
mod records;
mod replay;
mod runs;
mod sealing;
mod sight;
mod slot;
mod slot_set;
mod snapshot;
mod start;
mod state;
mod takeover;
mod telling;
pub mod testimony;
#[cfg(test)]
mod tests;
#[doc(hidden)]
pub mod tokens;
mod transaction;

pub use audit::AuditReport;
pub use manager::{Manager, ManagerOptions};
pub use start::StartError;
