//! The `dazzle` program; `lib.rs` is the map of it.

use std::process::ExitCode;

use clap::Parser;

#[global_allocator]
static ALLOCATOR: mimalloc::MiMalloc = mimalloc::MiMalloc;

fn main() -> ExitCode {
    dazzle::run(dazzle::Arguments::parse())
}
