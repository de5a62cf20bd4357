//! `dazzle node`, and what `dazzle target` has in common with it: taking storage away on purpose, while it is in use.

use std::path::PathBuf;

use clap::{Args, Subcommand};
use serde_json::Value;

use super::{Failure, Outcome, print_json};
use crate::config::Size;
use crate::edge::control::{Question, Whom};

/// Empties machines with all their targets, so that they can be taken away while everything goes on.
#[derive(Debug, Args)]
pub(super) struct NodeCommand {
    #[command(subcommand)]
    act: Act,
}

#[derive(Debug, Subcommand)]
pub(super) enum Act {
    /// Move all that lies there to the others, while it is in use, and wait for that. Interrupting ends the waiting alone.
    Drain {
        #[command(flatten)]
        at: At,
        /// Change nothing; print what would move, how long that takes, and what may be lost then.
        #[arg(long)]
        plan: bool,
        /// Even if less may be lost then, or there seems to be no room.
        #[arg(long)]
        force: bool,
        /// Do not wait.
        #[arg(long)]
        no_wait: bool,
    },
    /// End a drain: it stays, and takes new stripes again.
    Keep {
        #[command(flatten)]
        at: At,
    },
    /// Take it away for good: a target that is drained, or a machine that is stopped, or lost. What a lost machine had is
    /// made again on the others first. Its number is never given again.
    Remove {
        #[command(flatten)]
        at: At,
        /// Even if too few machines answer to tell whether anything lies there that nobody else has: that is lost.
        #[arg(long)]
        force: bool,
    },
}

/// What is meant.
#[derive(Debug, Args)]
pub(super) struct At {
    /// The directory of the file system, on any machine of the cluster.
    dir: PathBuf,
    /// Its number or name, as `dazzle status` shows them.
    #[arg(value_name = "WHICH")]
    which: String,
    /// Print JSON.
    #[arg(long)]
    json: bool,
}

impl NodeCommand {
    pub(super) fn run(self) -> Outcome {
        run(self.act, Whom::Node)
    }
}

pub(super) fn run(act: Act, whom: fn(String) -> Whom) -> Outcome {
    match act {
        Act::Drain { at, plan: true, .. } => {
            let answer = super::ask(&at.dir, &Question::DrainPlan { whom: whom(at.which) })?;
            tell(at.json, &answer, print_plan);
            match answer["refused"].as_str() {
                Some(why) => Err(Failure::from(format!("it would be refused: {why}"))),
                None => Ok(()),
            }
        }
        Act::Drain { at, force, no_wait, .. } => {
            let question = Question::Drain { whom: whom(at.which), force, wait: !no_wait };
            let answer = super::ask(&at.dir, &question)?;
            tell(at.json, &answer, |answer| match answer["drained"] == true {
                true => say!("{}: nothing lies there any more; it can be removed", name(answer)),
                false => say!("{} is being drained; `dazzle status` says what is left", name(answer)),
            });
            Ok(())
        }
        Act::Keep { at } => {
            let answer = super::ask(&at.dir, &Question::Keep { whom: whom(at.which) })?;
            tell(at.json, &answer, |answer| say!("{} stays", name(answer)));
            Ok(())
        }
        Act::Remove { at, force } => {
            let answer = super::ask(&at.dir, &Question::Remove { whom: whom(at.which), force })?;
            tell(at.json, &answer, |answer| say!("{} is removed", name(answer)));
            Ok(())
        }
    }
}

pub(super) fn tell(json: bool, answer: &Value, print: impl FnOnce(&Value)) {
    if json { print_json(answer) } else { print(answer) }
}

pub(super) fn name(answer: &Value) -> &str {
    answer["name"].as_str().unwrap_or("?")
}

fn print_plan(answer: &Value) {
    let size = |field: &str| Size(answer[field].as_u64().unwrap_or(0)).to_string();
    say!("{}: {} lie there", name(answer), size("bytes_there"));
    say!("to move    {} at most, of {} stripes that lie over it", size("bytes_to_move"), answer["stripes"]);
    say!("time       {} s at least, as `rebuild` in dazzle.toml bounds it", answer["seconds"]);
    if answer["link_bytes_per_second"].as_u64().is_some_and(|link| link > 0) {
        say!(
            "links      carry up to {} a second in each direction then; longer, where they cannot",
            size("link_bytes_per_second")
        );
    }
    say!("room       for {} without it", size("room"));
    print_safety(answer, "without it");
    if let Some(votes) = answer["votes_then"].as_u64() {
        say!("votes then: {votes} machine(s); calls go on while {} of them run", votes / 2 + 1);
    }
}

/// What may be lost now, and `then`.
pub(super) fn print_safety(answer: &Value, then: &str) {
    for (word, when) in [("now", "now"), ("then", then)] {
        let safety = &answer[word];
        if safety.is_object() {
            say!("redundancy {when}: {} machine(s), {} target(s) may be lost", safety["machines"], safety["targets"]);
        }
    }
}
