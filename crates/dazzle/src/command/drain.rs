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
    /// Move all that lies there to the others, while it is in use, and wait for that. Interrupting ends the waiting
    /// alone. A target whose disk is lost is drained, too, before it is removed: what it had is made again.
    Drain {
        #[command(flatten)]
        at: At,
        /// Change nothing; print what would move, how long that takes, and what may be lost then.
        #[arg(long)]
        plan: bool,
        /// Even if less may be lost then, or there seems to be no room.
        #[arg(long)]
        force: bool,
        /// Return as soon as it has begun; `dazzle status` says what is left.
        #[arg(long)]
        no_wait: bool,
    },
    /// End a drain: it stays, and takes new stripes again.
    Keep {
        #[command(flatten)]
        at: At,
    },
    /// Take it away for good, and never give its number again. `target remove` takes a target that is drained, also one
    /// whose disk is lost; `node remove` a machine that is stopped, or lost: what it still had is made again on the
    /// others first, and the command waits for that.
    Remove {
        #[command(flatten)]
        at: At,
        /// Change nothing; print what would be made again or moved, how long that takes, what is lost, and what may be lost
        /// then. It says so where it would be refused.
        #[arg(long)]
        plan: bool,
        /// Even if too few machines answer to tell whether anything lies there that nobody else has: that is lost. A
        /// machine that is gone, and a target that has failed, also if too little is left of something to make it again: the
        /// command waits until nothing has moved for a minute. A machine also if less may be lost then, or there seems to
        /// be no room.
        #[arg(long)]
        force: bool,
    },
}

/// What is meant.
#[derive(Debug, Args)]
pub(super) struct At {
    /// The directory of the file system, on any machine of the cluster.
    dir: PathBuf,
    /// Its name, as `dazzle status` shows it, or its number (of a target: `dazzle status --json`).
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
            expect_allowed(&answer)
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
        Act::Remove { at, force, plan } => {
            let answer = super::ask(&at.dir, &Question::Remove { whom: whom(at.which), force, plan })?;
            tell(at.json, &answer, |answer| match plan {
                true => print_removal(answer),
                false => say!("{} is removed", name(answer)),
            });
            expect_allowed(&answer)
        }
    }
}

pub(super) fn tell(json: bool, answer: &Value, print: impl FnOnce(&Value)) {
    if json { print_json(answer) } else { print(answer) }
}

pub(super) fn name(answer: &Value) -> &str {
    answer["name"].as_str().unwrap_or("?")
}

/// A plan of what would be refused ends as the command itself would.
pub(super) fn expect_allowed(plan: &Value) -> Outcome {
    match plan["refused"].as_str() {
        Some(why) => Err(Failure::from(format!("it would be refused: {why}"))),
        None => Ok(()),
    }
}

fn print_plan(answer: &Value) {
    say!("{}: {} lie there", name(answer), size(answer, "bytes_there"));
    say!("to move    {} at most, of {} stripes that lie over it", size(answer, "bytes_to_move"), answer["stripes"]);
    if answer["bytes_to_make"].as_u64().is_some_and(|bytes| bytes > 0) {
        say!("to make    {} again on others, which take its place", size(answer, "bytes_to_make"));
    }
    say!("time       {}", time(answer));
    print_effect(answer);
}

fn print_removal(answer: &Value) {
    match answer["stripes"].as_u64() {
        Some(0) | None => {
            say!("{}: nothing lies there", name(answer));
            say!("to move    nothing");
            say!("time       some seconds");
        }
        Some(stripes) => {
            say!("{}: of {stripes} stripes a part, {}, was to lie there", name(answer), size(answer, "bytes_there"));
            say!("to make    {} again on others, which take its place", size(answer, "bytes_to_make"));
            say!("to move    {} at most, laid anew where nobody can take its place", size(answer, "bytes_to_move"));
            say!("time       {}", time(answer));
        }
    }
    match (answer["bytes_lost"].as_u64(), answer["groups_unknown"].as_u64()) {
        (Some(0) | None, Some(0) | None) => say!("lost       nothing"),
        (Some(0) | None, Some(groups)) => say!(
            "lost       what lay on machines that are missing alone, over {groups} stripe group(s): nobody can tell how much"
        ),
        (Some(lost), _) => say!(
            "lost       {}, of which too little is left, unless other machines come back that are missing: so long it waits",
            Size(lost)
        ),
    }
    print_effect(answer);
}

fn print_effect(answer: &Value) {
    say!("room       for {} without it", size(answer, "room"));
    print_safety(answer, "without it");
    if let Some(votes) = answer["votes_then"].as_u64() {
        say!("votes then: {votes} machine(s); calls go on while {} of them run", votes / 2 + 1);
    }
}

fn size(answer: &Value, field: &str) -> Size {
    Size(answer[field].as_u64().unwrap_or(0))
}

/// How long a plan's bytes take, with what that rests on.
pub(super) fn time(plan: &Value) -> String {
    let (seconds, needed) = (&plan["seconds"], size(plan, "link_bytes_per_second"));
    match (plan["bound"].as_str(), plan["link_measured"].as_u64()) {
        (Some("links"), Some(link)) => format!(
            "about {seconds} s, as links bound it: this machine's carried {} a second just now, and the others' are taken to \
             be as fast. `rebuild` (`dazzle settings`) would have it done in {} s",
            Size(link),
            plan["seconds_by_rebuild"]
        ),
        (Some("unknown"), _) => format!(
            "{seconds} s at least, as `rebuild` (`dazzle settings`) bounds it; longer, where links do not carry \
             {needed} a second in each direction: how fast they are could not be measured",
        ),
        (_, Some(link)) if needed.0 > 0 => format!(
            "about {seconds} s, as `rebuild` (`dazzle settings`) bounds it: it asks {needed} a second of links, in \
             each direction, and this machine's carried {} just now",
            Size(link)
        ),
        _ => {
            format!("{seconds} s at least, as `rebuild` (`dazzle settings`) bounds it; longer, where disks are slower")
        }
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
