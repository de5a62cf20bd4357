//! `dazzle guard`: beside a daemon that has mounted.

use std::path::PathBuf;

use clap::Args;

use super::Outcome;
use crate::edge::guard;

/// Waits for the end of a daemon, and ends what programs wait for on its mount.
#[derive(Debug, Args)]
pub(super) struct Guard {
    /// The daemon's process number.
    daemon: i32,
    /// Where it has mounted.
    point: PathBuf,
}

impl Guard {
    pub(super) fn run(self) -> Outcome {
        Ok(guard::run(self.daemon, &self.point)?)
    }
}
