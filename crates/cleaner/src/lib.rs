//! Empties dying stripes, so that they can be deleted (DESIGN §8; Zebra 3.4 and 5.5; LFS 3).
//!
//! *Never*: a client, a manager's inner state; what lies in a journal.

mod ages;
mod pack;
pub mod policy;
mod standing;
