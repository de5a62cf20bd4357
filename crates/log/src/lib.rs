//! Logs striped with parity over groups of targets: writing, reading, taking over from the dead, rebuilding
//! (DESIGN §3; Zebra 4.4, 4.6, 5.2).
//!
//! | noun | it is |
//! |---|---|
//! | [`Cluster`] | the registry's maps, cached, and the way to the targets |
//! | [`LogWriter`] | one open log: append in memory, commit to the targets |
//! | [`LogReader`] | bytes by log address, verified, decoded where a target fails |
//! | [`recovery`] | a crashed writer's log: sealing it, finding its newest mark, scanning its records |
//! | [`Scrubber`] | the background work that reads everything stored, again and again, and repairs it |
//! | [`Rebuilder`] | the background work that makes targets whole again that were away |
//! | [`stripes`] | stripes as things to list, verify, repair, delete |
//! | [`Walk`], [`Tour`] | all that is stored, stripe by stripe: quickly, and for who takes long over each |
//! | [`Absences`] | how long targets have been away |
//! | [`exposure`] | how much may be lost before something is |
//! | [`leaving`], [`removal`] | what lies on targets that are to go, and taking them away |
//! | [`replacing`] | who takes the place of targets that stay away |
//!
//! `docs/format-log.md` says how records, stripes and marks lie; `docs/decisions/0003-log-model.md` gives the rules
//! that writer, recoverer and reader keep, and numbers them.
//!
//! *Never*: what a record means; storage's and the registry's code; an inode, a slot, a token.

mod absence;
mod absences;
mod attempts;
mod buffer;
mod cluster;
mod decode;
mod detour;
mod due;
mod error;
pub mod exposure;
mod failures;
mod fetch;
mod following;
mod gather;
mod going_back;
mod image;
mod lay;
pub mod leaving;
mod listing;
mod reader;
mod rebuilder;
mod rebuilding;
pub mod recovery;
mod reform;
mod regroup;
mod relay;
pub mod removal;
pub mod replacing;
mod scan;
mod scrubber;
mod seal;
mod sender;
mod standstill;
mod state;
mod stripe;
pub mod stripes;
mod tour;
mod turns;
mod walk;
mod wholeness;
mod writer;

pub use absences::Absences;
pub use cluster::{Cluster, Lease};
pub use detour::{Detour, Ways};
pub use error::{LogError, ReadError, SealError};
pub use reader::{Damage, LogReader};
pub use rebuilder::{RebuildOptions, RebuildStatus, Rebuilder};
pub use scrubber::{ScrubOptions, ScrubStatus, Scrubber};
pub use tour::Tour;
pub use turns::Turn;
pub use walk::Walk;
pub use wholeness::{Called, Look};
pub use writer::{Appended, BodyPart, LogWriter, Record, Rest, WriterOptions, WriterStatus};
