//! `dazzle daemon`: the daemon itself.

use std::path::PathBuf;

use clap::Args;

use super::{Failure, Outcome, lock_path};
use crate::edge::process::{self, DirectoryLock};
use crate::node;

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
