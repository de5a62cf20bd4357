//! A cluster in one process, from a seed: the daemon's parts in the simulated world, and checkers of what they promise.
//!
//! | noun | it is |
//! |---|---|
//! | [`Site`] | one simulated machine with its disks, and the parts that run on it |
//! | [`Machines`] | several of them, which join, die and come back |
//! | [`doubles`] | which requests arrive twice |
//! | [`Witness`] | a workload that remembers what it was promised, and says when a promise was broken |
//!
//! Real programs on real mounts are in `programs/`; the rules of the house in `tests/tidy.rs`.
//!
//! *Never*: the real clock and network.

pub mod doubles;
mod machines;
mod site;
mod witness;

pub use machines::{Machine, Machines};
pub use site::{Parts, Shape, Site, some_time};
pub use witness::{Counts, Witness};
