//! `dazzle daemon`: the daemon itself.

use std::ffi::OsStr;
use std::os::fd::AsRawFd;
use std::path::{Path, PathBuf};
use std::time::Duration;

use clap::Args;

use tracing::error;

use super::{Failure, Outcome, control_path, lock_path};
use crate::config::Config;
use crate::edge::mount::{self, Users};
use crate::edge::process::{self, DirectoryLock};
use crate::node::{self, Ending, Origin};
use crate::starting::Starting;
use crate::succession::{Inheritance, Will};

/// What a daemon that runs tells its starter before anything else.
const READY: &str = "ready ";
/// Between two attempts to join the cluster again.
const AGAIN_PAUSE: Duration = Duration::from_secs(5);

/// Starts the daemon of `dir` in the background, which gives up the disks of some targets, and tells how that went.
pub(super) fn start(dir: &Path, give_up: &[String]) -> Outcome {
    let messages = dir.join("dazzle.log");
    let mut arguments = vec![OsStr::new("daemon"), dir.as_os_str()];
    arguments.extend(give_up.iter().flat_map(|target| [OsStr::new("--give-up"), OsStr::new(target)]));
    let started = process::start_daemon(&arguments, &messages, READY)
        .map_err(|error| format!("{error}; its messages are in {}", messages.display()))?;
    say!("{}", started?);
    Ok(())
}

/// Runs as the daemon.
#[derive(Debug, Args)]
pub(super) struct Daemon {
    /// The directory of the file system.
    dir: PathBuf,
    /// Keep the terminal.
    #[arg(long)]
    foreground: bool,
    /// Take the place of one whose lease was lost: wait for its end, and try until the cluster can be joined again.
    #[arg(long, conflicts_with = "foreground")]
    again: bool,
    /// Go on with what the process before left: numbers of descriptors, of what it wrote, its lock, and its mount.
    #[arg(long, num_args = 2.., value_names = ["WILL", "LOCK", "MOUNT"])]
    inherit: Option<Vec<i32>>,
    /// Targets whose disks are given up.
    #[arg(long, conflicts_with_all = ["again", "inherit"])]
    give_up: Vec<String>,
}

impl Daemon {
    /// The daemon of `dir`, which keeps the terminal.
    pub(super) fn foreground(dir: PathBuf, give_up: Vec<String>) -> Daemon {
        Daemon { dir, foreground: true, again: false, inherit: None, give_up }
    }

    /// Runs until told to stop. What goes wrong before the start is done is told to whoever started it.
    pub(super) fn run(self) -> Outcome {
        process::write_messages();
        process::take_small_pages();
        // Every connection and every target takes some, and people ask through one.
        process::raise_file_limit();
        if self.again {
            DirectoryLock::wait(&lock_path(&self.dir))?;
        }
        let (lock, inheritance) = match self.inherit.as_deref() {
            // First of all, so that what is not taken over is closed.
            Some(&[will, lock, ref mount @ ..]) => {
                (Some(DirectoryLock::inherit(lock)?), Some(Inheritance::take(will, mount)))
            }
            _ => (DirectoryLock::take(&lock_path(&self.dir))?, None),
        };
        let Some(lock) = lock else {
            return self.tell(Err(Failure::from(format!("another daemon runs for {}", self.dir.display()))));
        };
        let runtime = process::runtime()?;
        let (starting, listening) = match runtime.block_on(Starting::listen(&self.dir)) {
            Ok(listening) => listening,
            Err(error) => {
                let path = control_path(&self.dir);
                return self.tell(Err(Failure::from(format!("{} cannot be listened on: {error}", path.display()))));
            }
        };
        let anew = || Origin::Anew { given_up: self.give_up.clone() };
        let started = match inheritance.transpose() {
            Ok(inheritance) => {
                let origin = inheritance.map_or_else(anew, |inheritance| Origin::Heir(Box::new(inheritance)));
                runtime.block_on(node::Node::start(&self.dir, runtime.handle(), origin))
            }
            Err(error) => Err(error.to_string()),
        };
        let node = match started {
            Ok(node) => {
                drop(listening);
                node
            }
            Err(error) if self.inherit.is_some() => {
                error!(error, "the daemon cannot go on with what was open; it begins anew");
                self.abandon_mount();
                return self.begin_anew(&format!("the daemon cannot go on with what programs had open: {error}"));
            }
            Err(error) if self.again => {
                error!(error, "the cluster cannot be joined again; it is tried again in {} s", AGAIN_PAUSE.as_secs());
                starting.waits_for(error);
                runtime.block_on(process::pause(AGAIN_PAUSE));
                return self.succeed();
            }
            Err(error) => {
                // A disk that hangs keeps nobody waiting.
                runtime.shutdown_background();
                return self.tell(Err(Failure::from(error)));
            }
        };
        if self.foreground {
            say!("{}", node.greeting());
        } else {
            process::tell_starter(&format!("{READY}{}", node.greeting()));
        }
        match runtime.block_on(node.run()) {
            Ending::Stopped => {
                // Tasks that still run have nothing left to say: everything is stored.
                runtime.shutdown_background();
                Ok(())
            }
            Ending::Followed(will) => self.be_followed(&will, &lock),
            Ending::Expelled => self
                .begin_anew("this machine did not renew its lease in time, and others have taken over what it managed"),
        }
    }

    /// Has this program, as it is on disk by now, go on as this process. Returns only if it does not.
    fn be_followed(&self, will: &Will, lock: &DirectoryLock) -> Outcome {
        let place = will.write()?;
        let mut kept = vec![place.as_raw_fd(), lock.descriptor()];
        kept.extend_from_slice(will.mounted());
        let numbers: Vec<String> = kept.iter().map(ToString::to_string).collect();
        let mut arguments = vec![OsStr::new("daemon"), self.dir.as_os_str()];
        arguments.extend(self.foreground.then_some(OsStr::new("--foreground")));
        arguments.push(OsStr::new("--inherit"));
        arguments.extend(numbers.iter().map(OsStr::new));
        let error = process::become_successor(&arguments, &kept);
        Err(Failure::from(format!("no other program could take the place of this one: {error}")))
    }

    /// Takes away what the process before had mounted, and nobody serves now.
    fn abandon_mount(&self) {
        let Some(point) = Config::load(&self.dir).ok().and_then(|config| config.mount) else { return };
        if let Err(error) = mount::unmount(&point, Users::Dismiss) {
            error!(%error, "the mount that nobody serves stays");
        }
    }

    /// This daemon's life is over, for this reason. Another one begins: in the foreground that is left to who started this one.
    fn begin_anew(&self, why: &str) -> Outcome {
        if !self.foreground {
            return self.succeed();
        }
        Err(Failure::from(format!(
            "{why}. What was fsynced is safe; programs that had files open here got errors for them. Start it again; a service \
             manager does that with Restart=on-failure"
        )))
    }

    /// Starts another daemon in the place of this one, which ends: nothing of a life that is over goes into the next.
    fn succeed(&self) -> Outcome {
        let arguments = [OsStr::new("daemon"), self.dir.as_os_str(), OsStr::new("--again")];
        match process::start_successor(&arguments) {
            Ok(()) => std::process::exit(0),
            Err(error) => Err(Failure::from(format!(
                "no daemon could be started in the place of this one: {error}. What was fsynced is safe; start it with `dazzle \
                 up {}`",
                self.dir.display()
            ))),
        }
    }

    fn tell(&self, outcome: Outcome) -> Outcome {
        if let (Err(failure), false) = (&outcome, self.foreground) {
            process::tell_starter(&failure.message);
        }
        outcome
    }
}
