//! Empties dying stripes, so that they can be deleted (DESIGN §8; Zebra 3.4 and 5.5; LFS 3).
//!
//! | noun | it is |
//! |---|---|
//! | [`Cleaner`] | the background work of one node: looks, deletes, cleans |
//! | [`policy`] | which stripes are worth cleaning, and when: pure |
//! | `standing` | who may judge a stripe: pure |
//! | `ages` | how old the bytes of a stripe are: pure, soft |
//! | `exposed` | when to look for stripes that lack redundancy, and whose they are: pure |
//! | `pack` | which live pieces become one record: pure |
//! | `survey` | a look at all stripes |
//! | `copier` | carries live bytes into the cleaner's own log |
//! | `managers` | what it asks of managers |
//!
//! A stripe is deleted only when every manager says, durably, that nothing in it lives, and nobody can yet come and name
//! its bytes. Everything else here is about speed.
//!
//! *Never*: a client, a manager's inner state; what lies in a journal or an image, which their manager alone moves.

mod ages;
mod cleaner;
mod copier;
mod exposed;
mod managers;
mod pack;
pub mod policy;
mod standing;
mod survey;

pub use cleaner::{CleanError, Cleaner, CleanerOptions, CleanerStatus, Goal};
pub use exposed::helpers;
pub use managers::{Managers, Unheard};
