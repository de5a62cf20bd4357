//! One machine's roles, put together: the daemon and the simulated world run this very code.
//!
//! | noun | it is |
//! |---|---|
//! | [`Roles`] | all roles of one life of a machine: started, watched, stopped |
//! | `lease` | this life's session, which all roles answer by |
//! | [`targets`] | the machine's targets at the start: which disks are there, whose they are, which lack something |
//! | `adding` | targets that are added while it runs, and empty disks that take the place of lost ones |
//! | [`joining`] | a machine's way into a cluster that is there |
//! | [`Above`] | what stands above the client, when all machines stop `together` |
//! | [`Inherited`] | what an earlier process of the machine left, when it was restarted with files open |
//! | [`rebuild`] | a machine's registry that is lost, made anew from what its targets hold |
//! | [`audit`] | what `check` and `repair` do, in the whole cluster |
//!
//! *Never*: files, sockets, settings, the real clock; what stands above a client.

mod adding;
pub mod audit;
pub mod joining;
mod lease;
pub mod rebuild;
mod roles;
mod succession;
pub mod targets;
mod together;

pub use roles::{Expulsion, Roles, RolesOptions};
pub use succession::{Inherited, NoWill, Parting, Raise};
pub use together::{Above, Stays};
