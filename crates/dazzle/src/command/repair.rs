//! `dazzle repair`: rebuild what is missing.

use std::path::PathBuf;

use clap::Args;

use super::{Failure, Outcome, print_json};
use crate::edge::control::Question;

/// Rebuilds from the other targets what a lost, emptied or damaged target held.
#[derive(Debug, Args)]
#[command(
    after_help = "It looks at everything that is stored, and waits until that is done. What is lacking is made again \
                  without it, too, but no faster than `rebuild` (`dazzle settings`) says. It ends with 3 when \
                  something could not be made again, and else with 0; it names the targets that are missing or behind \
                  still."
)]
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
            say!("{} stripes were looked at, {} repaired", answer["stripes"], answer["repaired"]);
            for name in answer["missing"].as_array().into_iter().flatten() {
                say!(
                    "{} is missing still; bring it back, or put an empty disk in its place with `dazzle target \
                     replace`",
                    name.as_str().unwrap_or("a target")
                );
            }
            for name in answer["behind"].as_array().into_iter().flatten() {
                say!(
                    "{} stays behind until all it should have is known to be there: until those that are missing are back or \
                     replaced, or have been away for so long that nobody waits for them any more",
                    name.as_str().unwrap_or("a target")
                );
            }
        }
        let lacking = answer["lacking"].as_array().map_or(&[][..], Vec::as_slice);
        if let (Some(0), Some(first)) = (answer["failed"].as_u64(), lacking.first()) {
            return Err(Failure::found(format!(
                "{} fragments could not be written again (the first: {first}); their targets are full or fail. What \
                 they held is readable from the others",
                lacking.len()
            )));
        }
        match answer["failed"].as_u64() {
            None | Some(0) => Ok(()),
            Some(count) => Err(Failure::found(format!(
                "{count} stripes lack more fragments than their parity can replace; bring their targets back"
            ))),
        }
    }
}
