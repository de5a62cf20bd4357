//! `dazzle ask`: beside a daemon that has mounted.

use std::path::PathBuf;

use clap::Args;

use super::Outcome;
use crate::edge::fuse_ring::asking;

/// Asks a mount for something from some processors, so that its queues there have requests.
#[derive(Debug, Args)]
pub(super) struct Ask {
    /// Where it is.
    point: PathBuf,
    /// The first of the processors.
    first: u16,
    /// The last of them.
    last: u16,
    /// How many times at once, from each.
    times: u32,
    /// By another process that is no child of the one that starts this.
    #[arg(long)]
    apart: bool,
}

impl Ask {
    pub(super) fn run(self) -> Outcome {
        Ok(asking::run(&self.point, self.first..=self.last, self.times, self.apart)?)
    }
}
