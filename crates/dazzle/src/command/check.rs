//! `dazzle check`: is everything consistent?

use std::path::PathBuf;

use clap::Args;

use super::{Failure, Outcome, print_json};
use crate::edge::control::Question;

/// Checks that names form a tree, that every extent is stored, that live counts are exact and parity is true.
#[derive(Debug, Args)]
#[command(
    after_help = "It runs while the file system is used. It ends with 0 when all is well and with 3 when something \
                        is wrong; `dazzle repair` mends what redundancy can mend."
)]
pub(super) struct Check {
    /// The directory of the file system.
    dir: PathBuf,
    /// Also read every byte of every fragment and verify its checksum and its parity.
    #[arg(long)]
    thorough: bool,
    /// Print JSON.
    #[arg(long)]
    json: bool,
}

impl Check {
    pub(super) fn run(self) -> Outcome {
        let answer = super::ask(&self.dir, &Question::Check { thorough: self.thorough })?;
        let problems = answer["problems"].as_array().cloned().unwrap_or_default();
        if self.json {
            print_json(&answer);
        } else {
            for problem in &problems {
                say!("{}", problem.as_str().unwrap_or("an unknown problem"));
            }
            say!(
                "checked {} inodes, {} extents, {} stripes: {}",
                answer["inodes"],
                answer["extents"],
                answer["stripes"],
                if problems.is_empty() { "all is well".to_owned() } else { format!("{} problems", problems.len()) }
            );
        }
        if problems.is_empty() { Ok(()) } else { Err(Failure::found(format!("{} problems found", problems.len()))) }
    }
}
