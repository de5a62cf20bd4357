//! The `dazzle` program: a file system without a server, and the commands to live with it.
//!
//! | place | it is |
//! |---|---|
//! | `command/` | what people type, one file a command |
//! | `node` | the roles of one machine, put together |
//! | `oracle` | answers to what commands ask a running daemon; `audit` checks and repairs |
//! | `config` | the settings |
//! | `meter` | how fast bytes move |
//! | `edge/` | the only code that names the runtime and the operating system |
//!
//! *Never*: any policy of a file system; that is decided in the parts.

mod audit;
mod command;
mod config;
mod create;
mod edge;
mod meter;
mod node;
mod oracle;

use std::process::ExitCode;

use clap::Parser;

#[global_allocator]
static ALLOCATOR: mimalloc::MiMalloc = mimalloc::MiMalloc;

fn main() -> ExitCode {
    command::run(command::Arguments::parse())
}
