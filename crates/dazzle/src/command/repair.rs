//! `dazzle repair`: rebuild what is missing.

use std::path::PathBuf;

use clap::Args;

use super::{Failure, Outcome, print_json};
use crate::edge::control::Question;

/// Rebuilds from the other targets what a lost, emptied or damaged target held.
#[derive(Debug, Args)]
pub(super) struct Repair {
    /// The directory of the file system.
    dir: PathBuf,
    /// Print JSON.
    #[arg(long)]
    json: bool,
}

impl Repair {
    pub(super) fn run(self) -> Outcome {
        let answer = super::ask(&self.dir, &Question::Repair)?;
        if self.json {
            print_json(&answer);
        } else {
            println!("{} stripes were looked at, {} repaired", answer["stripes"], answer["repaired"]);
        }
        match answer["failed"].as_u64() {
            None | Some(0) => Ok(()),
            Some(count) => Err(Failure::found(format!(
                "{count} stripes lack more fragments than their parity can replace; bring their targets back"
            ))),
        }
    }
}
