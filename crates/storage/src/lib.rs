//! The fragment store: what a node keeps on its disks (DESIGN §4).
//!
//! A *target* is one disk. It stores fragments in *cells*; a fragment's *head* says what it is and how long; the *list*
//! says the same of all of them together, so that start-up need not read every head. `docs/format.md` gives the bytes
//! and the reasons why a crash at any point loses nothing that was acknowledged.
//!
//! | noun | it is | decides | awaits |
//! |---|---|---|---|
//! | [`Storage`] | the targets of a node, behind `STORAGE_PORT` | | `service` |
//! | [`Opening`] | a target that was looked through, and does not serve yet | | `opening`, `open` |
//! | [`Target`] | one open target | | `target`, `lister`, `scrub` |
//! | catalog | what a target holds, and what may be done to it | `catalog`, `compose`, `request` | |
//! | cells | which are free, which may be used | `cells` | |
//! | head | identity, tail slots and table of a fragment; its length after a crash | `head`, `tail` | |
//! | list | batches of entries, and what they mean | `list`, `replay` | |
//! | intake | small durable appends that wait for a sync of the data | `intake`, `halves` | `taker` |
//! | superblock | what a target says of itself as a whole | `superblock` | |
//! | rounds | group commit | | `rounds` |
//! | around | reads that go on past what a disk does not give | | `around` |
//! | watch | whether its disk still answers | `hang` | `watch` |
//! | undertaking | work that goes on to its end, whoever waits for it | | `undertaking` |
//!
//! Ways in: [`format()`] makes a target, [`Storage::look`] and then [`Openings::begin`] serve those of a node,
//! [`Storage::look_at`] and then [`Storage::begin`] one more, [`Target::scrub`] looks for damage.
//!
//! *Never*: inodes, tokens, what parity means, other targets; a lock of more than one stripe held over I/O; an answer
//! before what it promises is so.

mod around;
mod bytes_at;
mod catalog;
mod cells;
mod compose;
#[cfg(any(test, feature = "fuzzing"))]
pub mod fuzzing;
mod halves;
mod hang;
mod head;
mod intake;
mod list;
mod lister;
mod open;
mod opening;
mod replay;
mod request;
mod rounds;
mod scrub;
mod service;
mod superblock;
mod tail;
mod taker;
mod target;
mod undertaking;
mod watch;

pub use open::{FormatError, OpenError, TargetOptions, format, is_blank, owner};
pub use opening::Opening;
pub use scrub::Damage;
pub use service::{Openings, Storage, Unopened};
pub use superblock::FORMAT_VERSION;
pub use target::Target;
pub use watch::HANG_PATIENCE;
