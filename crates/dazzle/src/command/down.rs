//! `dazzle down`: unmount, store everything, stop; one machine, or all.

use std::path::PathBuf;

use clap::Args;

use super::Outcome;
use crate::edge::control::Question;
use crate::edge::process::DirectoryLock;

/// Unmounts, stores everything that programs wrote, and stops the daemon of DIR, or of all machines.
#[derive(Debug, Args)]
#[command(
    after_help = "Everything that programs wrote is stored, fsynced or not. Before all machines are shut down give it \
                  once, with --all: they then need not make up for each other's absence one after the other."
)]
pub(super) struct Down {
    /// The directory of the file system.
    dir: PathBuf,
    /// Even if programs use it: their calls fail from then on. What they wrote before is stored all the same.
    #[arg(long)]
    force: bool,
    /// All machines of the cluster at once. Unless --force is given, none stops while programs use a mount anywhere.
    #[arg(long)]
    all: bool,
    /// Print JSON.
    #[arg(long)]
    json: bool,
}

impl Down {
    pub(super) fn run(self) -> Outcome {
        let Down { force, all, .. } = self;
        let question = if all { Question::StopAll { force } } else { Question::Stop { force } };
        let answer = super::ask(&self.dir, &question)?;
        // The daemon has answered; its lock goes when its process ends, a moment later.
        DirectoryLock::wait(&super::lock_path(&super::existing(&self.dir)?))?;
        if self.json {
            super::print_json(&serde_json::json!({"stopped": self.dir, "machines": answer["machines"]}));
        } else if all {
            say!("{} machines are stopped; everything that programs wrote here is stored", answer["machines"]);
        } else if answer["took_part"] == false {
            say!("{} is stopped; it had not begun to take part", self.dir.display());
        } else {
            say!("{} is stopped; everything is stored", self.dir.display());
        }
        Ok(())
    }
}
