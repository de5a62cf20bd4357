//! `dazzle down`: unmount, store everything, stop.

use std::path::PathBuf;

use clap::Args;

use super::Outcome;
use crate::edge::control::Question;
use crate::edge::process::DirectoryLock;

/// Unmounts, stores everything that programs wrote, and stops the daemon of DIR.
#[derive(Debug, Args)]
pub(super) struct Down {
    /// The directory of the file system.
    dir: PathBuf,
    /// Even if programs use it: their calls fail from then on. What they wrote before is stored all the same.
    #[arg(long)]
    force: bool,
    /// Print JSON.
    #[arg(long)]
    json: bool,
}

impl Down {
    pub(super) fn run(self) -> Outcome {
        super::ask(&self.dir, &Question::Stop { force: self.force })?;
        // The daemon has answered; its lock goes when its process ends, a moment later.
        DirectoryLock::wait(&super::lock_path(&super::existing(&self.dir)?))?;
        if self.json {
            super::print_json(&serde_json::json!({"stopped": self.dir}));
        } else {
            say!("{} is stopped; everything is stored", self.dir.display());
        }
        Ok(())
    }
}
