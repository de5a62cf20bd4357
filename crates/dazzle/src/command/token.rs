//! `dazzle token`: what lets other machines in.

use std::path::PathBuf;

use clap::{Args, Subcommand};

use super::{Outcome, print_json};
use crate::edge::control::Question;

/// Tokens, by which other machines join.
#[derive(Debug, Args)]
pub(super) struct TokenCommand {
    #[command(subcommand)]
    act: Act,
}

#[derive(Debug, Subcommand)]
enum Act {
    /// Print a token. Whoever has it can join one machine within a day, by the address of any machine that stores.
    Create {
        /// The directory of the file system, on a machine that stores.
        dir: PathBuf,
        /// Print JSON.
        #[arg(long)]
        json: bool,
    },
}

impl TokenCommand {
    pub(super) fn run(self) -> Outcome {
        let Act::Create { dir, json } = self.act;
        let answer = super::ask(&dir, &Question::Token)?;
        if json {
            print_json(&answer);
        } else {
            say!("{}", answer["token"].as_str().unwrap_or_default());
        }
        Ok(())
    }
}
