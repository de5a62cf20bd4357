//! `dazzle target`: storage is added, replaced and taken away while it is in use.

use std::path::{Path, PathBuf};

use clap::{Args, Subcommand};
use serde_json::Value;

use super::drain::{self, Act, name, tell};
use super::{Failure, Outcome};
use crate::config::Size;
use crate::edge::control::{Question, Whom};

/// Adds targets, puts empty disks in the place of lost ones, and empties targets, so that they can be taken away while
/// everything goes on.
#[derive(Debug, Args)]
pub(super) struct TargetCommand {
    #[command(subcommand)]
    act: TargetAct,
}

#[derive(Debug, Subcommand)]
enum TargetAct {
    /// Add a target to this machine, and wait until it takes new stripes. Interrupting ends the waiting alone.
    Add {
        /// The directory of the file system, on the machine that has the disk.
        dir: PathBuf,
        /// An empty directory with room for 64 MiB at least, or a block device or preallocated file of 512 MiB at
        /// least; a directory in DIR is made.
        path: PathBuf,
        /// The most that it may take of the file system it lies in, at least 64 MiB, for example "4 GiB".
        #[arg(long, value_name = "SIZE")]
        limit: Option<Size>,
        /// Change nothing; print for how much there is room then.
        #[arg(long)]
        plan: bool,
        /// Print JSON.
        #[arg(long)]
        json: bool,
    },
    /// Put an empty disk in the place of a target of this machine that does not serve, and wait until everything is there
    /// again. Interrupting ends the waiting alone.
    Replace {
        /// The directory of the file system, on the machine that has the disk.
        dir: PathBuf,
        /// Its name, as `dazzle status` shows it, or its number (`dazzle status --json`).
        target: String,
        /// An empty directory with room for 64 MiB at least, or a block device or preallocated file of 512 MiB at
        /// least; where the target was, unless given.
        path: Option<PathBuf>,
        /// Change nothing; print how much is made again, and how long that takes.
        #[arg(long)]
        plan: bool,
        /// Even if there is something that the others cannot make again: that is lost.
        #[arg(long)]
        force: bool,
        /// Print JSON.
        #[arg(long)]
        json: bool,
    },
    #[command(flatten)]
    Leave(Act),
}

impl TargetCommand {
    pub(super) fn run(self) -> Outcome {
        match self.act {
            TargetAct::Leave(act) => drain::run(act, Whom::Target),
            TargetAct::Add { dir, path, limit, plan, json } => {
                let answer = super::ask(&dir, &Question::TargetAdd { path: whole_path(&path)?, limit, plan })?;
                tell(json, &answer, |answer| match plan {
                    true => print_gain(answer),
                    false => say!("{} is target {} now, and takes new stripes", name(answer), answer["target"]),
                });
                Ok(())
            }
            TargetAct::Replace { dir, target, path, plan, force, json } => {
                let path = path.as_deref().map(whole_path).transpose()?;
                let answer = super::ask(&dir, &Question::TargetReplace { target, path, force, plan })?;
                tell(json, &answer, |answer| match plan {
                    true => print_refill(answer),
                    false => say!("{}: everything is there again", name(answer)),
                });
                drain::expect_allowed(&answer)
            }
        }
    }
}

/// The path from the root, without links but for the last name, which may be one that outlives the device's own.
fn whole_path(path: &Path) -> Result<PathBuf, Failure> {
    let path = std::path::absolute(path)?;
    if path.to_str().is_none() {
        let path = path.display();
        return Err(Failure::from(format!("{path} is not UTF-8, and settings are text; name another path")));
    }
    Ok(match (path.parent().map(Path::canonicalize), path.file_name()) {
        (Some(Ok(parent)), Some(name)) => parent.join(name),
        _ => path,
    })
}

fn print_gain(answer: &Value) {
    let size = |field: &str| Size(answer[field].as_u64().unwrap_or(0)).to_string();
    say!("{}: a new target", name(answer));
    say!("to move    nothing; it takes its share of what is written from then on");
    say!("time       some seconds");
    say!("room       for {} now, for {} with it", size("room_now"), size("room"));
    drain::print_safety(answer, "with it");
}

fn print_refill(answer: &Value) {
    let size = |field: &str| Size(answer[field].as_u64().unwrap_or(0)).to_string();
    say!("{}: an empty disk in its place", name(answer));
    say!("to make    {} again, of {} stripes that lie over it", size("bytes_to_make"), answer["stripes"]);
    say!("time       {}", drain::time(answer));
    match answer["bytes_lost"].as_u64() {
        Some(0) | None => say!("lost       nothing"),
        Some(lost) => say!("lost       {}, of which the others have too little now", Size(lost)),
    }
}
