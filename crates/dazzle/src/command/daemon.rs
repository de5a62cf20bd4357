//! `dazzle daemon`: the daemon itself.

use std::ffi::OsStr;
use std::path::{Path, PathBuf};

use clap::Args;

use super::{Failure, Outcome, lock_path};
use crate::edge::process::{self, DirectoryLock};
use crate::node;

/// Starts the daemon of `dir` in the background, and tells how that went.
pub(super) fn start(dir: &Path) -> Outcome {
    let messages = dir.join("dazzle.log");
    let line = process::start_daemon(&[OsStr::new("daemon"), dir.as_os_str()], &messages)
        .map_err(|error| format!("{error}; its messages are in {}", messages.display()))?;
    match line.strip_prefix("ready ") {
        Some(text) => {
            say!("{text}");
            Ok(())
        }
        None => Err(Failure::from(line)),
    }
}

/// Runs as the daemon.
#[derive(Debug, Args)]
pub(super) struct Daemon {
    /// The directory of the file system.
    dir: PathBuf,
    /// Keep the terminal.
    #[arg(long)]
    foreground: bool,
}

impl Daemon {
    /// The daemon of `dir`, which keeps the terminal.
    pub(super) fn foreground(dir: PathBuf) -> Daemon {
        Daemon { dir, foreground: true }
    }

    /// Runs until told to stop. What goes wrong before the start is done is told to whoever started it.
    pub(super) fn run(self) -> Outcome {
        process::write_messages();
        process::take_small_pages();
        let Some(_lock) = DirectoryLock::take(&lock_path(&self.dir))? else {
            return self.tell(Err(Failure::from(format!("another daemon runs for {}", self.dir.display()))));
        };
        let runtime = process::runtime()?;
        let node = match runtime.block_on(node::Node::start(&self.dir, runtime.handle())) {
            Ok(node) => node,
            Err(error) => return self.tell(Err(Failure::from(error))),
        };
        if self.foreground {
            say!("{}", node.greeting());
        } else {
            process::tell_starter(&format!("ready {}", node.greeting()));
        }
        runtime.block_on(node.run());
        // Tasks that still run have nothing left to say: everything is stored.
        runtime.shutdown_background();
        Ok(())
    }

    fn tell(&self, outcome: Outcome) -> Outcome {
        if let (Err(failure), false) = (&outcome, self.foreground) {
            process::tell_starter(&failure.message);
        }
        outcome
    }
}
