//! What the machine gives to the parts that run on it.
//!
//! A part reaches the world only through a [`Host`]: it sends messages, opens disks, sleeps, spawns tasks, reads
//! clocks and rolls dice through this one cloneable handle. Two worlds stand behind it: the real one in
//! `dazzle/src/edge`, and the simulated one in [`sim`], where a whole cluster runs from a seed on one thread.
//!
//! | noun | it is |
//! |---|---|
//! | [`Host`] | the handle |
//! | [`Machine`] | what a world implements so that a handle can stand before it |
//! | [`Disk`], [`File`] | a target's storage, as named byte spaces |
//! | [`Envelope`], [`Address`] | a message without a meaning, and where it goes |
//! | [`byways`] | how calls go around a link that is cut |
//! | [`Moment`], [`WallTime`] | the two clocks |
//!
//! *Never*: what a file system is; the operating system; an async runtime; a type parameter that a part must carry.

pub mod byways;
mod clock;
mod disk;
mod machine;
mod message;
mod shadow;
pub mod sim;

pub use clock::{Moment, WallTime};
pub use disk::{DURABLE_MAX, Disk, DiskError, DiskUsage, File, SECTOR, StoredDisk, StoredFile};
pub use machine::{BoxFuture, Host, Link, Machine};
pub use message::{Address, Envelope, Handler, NodeId, Port, Unreachable};
