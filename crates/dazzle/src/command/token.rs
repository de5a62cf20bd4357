//! `dazzle token`: what lets other machines in.

use std::path::PathBuf;

use clap::{Args, Subcommand};
use serde_json::{Value, json};

use super::{Failure, Outcome, print_json};
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
        /// How many machines are to join: one token is printed for each, on a line of its own.
        #[arg(long, value_name = "N", default_value_t = 1, value_parser = clap::value_parser!(u16).range(1..=1000))]
        count: u16,
        /// Print JSON.
        #[arg(long)]
        json: bool,
    },
}

impl TokenCommand {
    pub(super) fn run(self) -> Outcome {
        let Act::Create { dir, count, json } = self.act;
        let ask = |_| Ok(super::ask(&dir, &Question::Token)?["token"].clone());
        let tokens = (0..count).map(ask).collect::<Result<Vec<Value>, Failure>>()?;
        if json {
            print_json(&json!({ "token": tokens[0], "tokens": tokens }));
        } else {
            tokens.iter().for_each(|token| say!("{}", token.as_str().unwrap_or_default()));
        }
        Ok(())
    }
}
