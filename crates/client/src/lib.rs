//! Files as programs see them: a write-back cache over the client's own log, and the way to the managers
//! (DESIGN §5 and §6; Zebra 3.3, 4.2; xFS 3.2).
//!
//! | noun | it is |
//! |---|---|
//! | [`Client`] | what a face calls: one method for each thing a program can ask |
//! | `file` | one file's dirty bytes, known map and size: decides, never awaits |
//! | `ranges` | byte ranges with something in each: the shape of dirty bytes and maps |
//! | `stream` | who reads in order, and how far to read ahead of them |
//! | `cache` | bytes read ahead, by log address, and loads under way |
//! | `outbox` | deltas that managers have not acknowledged |
//! | `numbers` | names of calls that must take effect once |
//! | `journals` | how far managers' journals must be flushed for an fsync |
//! | `tokens` | what managers promise about a slot: what may be kept in memory |
//! | `held_locks` | the file locks that programs hold, as managers know them |
//! | `claims` | what a new manager is told of all that is held |
//! | `space` | how many bytes still fit |
//!
//! The others await: `ask` (managers), `names`, `attributes`, `opens`, `reads`, `ahead`, `writes`, `flush` (log and
//! deltas), `shape` (allocate, punch, copy), `locks`, `statfs`, `background`, `pins` (working under tokens), `call_backs`
//! (giving them up), `heritage` (what the next process goes on with); `whole` carries work to its end.
//!
//! Two things make this simple. A log address means the same bytes for ever, so what was read by address is never
//! stale, and a plan to read taken under the file's lock is a snapshot. And appending is a step in memory: bytes are
//! either dirty here or named by an address, never between.
//!
//! *Never*: FUSE, NFS, an errno; the manager's and storage's code; a lock held over an await.

mod ahead;
mod ask;
mod attributes;
mod background;
mod cache;
mod call_backs;
mod claims;
mod client;
mod error;
mod file;
mod flush;
mod forgotten;
mod held_locks;
mod heritage;
mod journals;
mod lease;
mod lock_waits;
mod locks;
mod names;
mod numbers;
mod opens;
mod outbox;
mod pins;
mod ranges;
mod reads;
mod shape;
mod space;
mod statfs;
mod stream;
#[doc(hidden)]
pub mod tokens;
mod whole;
mod writes;

pub use call_backs::{Above, Calls, NothingAbove};
pub use client::{Client, ClientMemory, ClientOptions};
pub use error::ClientError;
pub use heritage::{Heritage, Silence};
pub use reads::Reading;
pub use shape::{Allocate, AllocateMode, SeekKind};
pub use space::{Statfs, usable};
pub use writes::WriteAt;
