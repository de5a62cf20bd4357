//! The `dazzle` program: a file system without a server, and the commands to live with it. As a library, so that what
//! reads text from outside can be reached by tests and fuzzers.
//!
//! | place | it is |
//! |---|---|
//! | `command/` | what people type, one file a command |
//! | `node` | a running daemon; `targets`: its disks |
//! | `membership` | a machine's way into its cluster; `arrival`: what one that joins gives and costs |
//! | `promotion`, `rebuild` | a registry that goes on without its quorum, or without its copies |
//! | `lab` | what a laboratory is: a cluster on one machine |
//! | `oracle` | answers to what commands ask a running daemon; `starting`: one that starts; `audit`: to `check` and `repair` |
//! | `drain`, `plan` | emptying targets and machines and taking them away; what that would cost |
//! | `adding`, `supply` | targets that are added or replaced; what that would give and cost |
//! | [`config`] | the settings |
//! | `pace`, `probe` | how long it takes to move bytes; how fast a link is |
//! | `meter` | how fast bytes move |
//! | `succession`, `versions` | restarts that programs do not notice; which program can take the place of this one |
//! | `vouching` | the word to the guard of the mount that this daemon runs |
//! | `edge/` | the only code that touches sockets, disks, clocks and the operating system |
//!
//! *Never*: any policy of a file system; that is decided in the parts.

mod adding;
mod arrival;
mod audit;
mod command;
pub mod config;
mod create;
mod drain;
mod edge;
mod lab;
mod membership;
mod meter;
mod node;
mod oracle;
mod pace;
mod plan;
mod probe;
mod promotion;
mod rebuild;
mod redundancy;
mod settings;
mod starting;
mod succession;
mod supply;
mod targets;
mod versions;
mod vouching;

pub use command::{Arguments, run};
pub use edge::control::{Line, Question, Whom};
pub use edge::mount::Mounted;
pub use edge::{machine, network, ports, trust};
