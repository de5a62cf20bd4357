//! What people type. Every command prints for people, or with `--json` for programs, and ends with 0 when done, 1 when it
//! could not be done, 2 when the words were wrong, 3 when something was found to be wrong (`check`).

/// Prints a line. Whoever reads no further, as `head` does, wants no more of it.
macro_rules! say {
    ($($words:tt)*) => {{
        use std::io::Write;
        let _ = writeln!(std::io::stdout(), $($words)*);
    }};
}

mod ask;
mod check;
mod daemon;
mod down;
mod drain;
mod guard;
mod join;
mod lab;
mod registry;
mod repair;
mod restart;
mod settings;
mod status;
mod target;
mod token;
mod up;
mod why;

use std::ffi::OsStr;
use std::fmt::Display;
use std::path::{Path, PathBuf};
use std::process::ExitCode;

use clap::{Parser, Subcommand};
use indicatif::{ProgressBar, ProgressStyle};

use crate::config::Config;
use crate::edge::control::{self, Question};
use crate::edge::storage_place;
use crate::versions::Versions;

/// A file system without a server: every write goes to a log, every log is striped with parity over several targets.
#[derive(Debug, Parser)]
#[command(name = "dazzle", version, about, max_term_width = 100, arg_required_else_help = true)]
#[command(after_help = "Begin with:    dazzle up /srv/dazzle --mount /mnt/dazzle --targets 5
End with:      dazzle down /srv/dazzle
With others:   dazzle up /srv/dazzle --address HOST:PORT, then `dazzle token create` and `dazzle join`")]
pub struct Arguments {
    /// What to do.
    #[command(subcommand)]
    command: Command,
}

#[derive(Debug, Subcommand)]
enum Command {
    /// Make a file system in a directory, or start the one that is there, and mount it.
    Up(up::Up),
    /// Make this machine part of another machine's file system, and mount it.
    Join(join::Join),
    /// Tokens, by which other machines join.
    Token(token::TokenCommand),
    /// Unmount, store everything, stop the daemon.
    Down(down::Down),
    /// Restart the daemon, as after an upgrade: the mount and open files stay.
    Restart(restart::Restart),
    /// Targets: add them, put empty disks in the place of lost ones, drain them, keep them after all, remove them.
    Target(target::TargetCommand),
    /// Machines: drain them, keep them after all, remove them.
    Node(drain::NodeCommand),
    /// What holds on all machines: how fast and how soon redundancy is brought back, how often all is read.
    Settings(settings::Settings),
    /// How it is: targets, slots, logs, memory, space, rates.
    Status(status::Status),
    /// Where a file's bytes are and why: inode, slot, extents, log addresses, targets.
    Why(why::Why),
    /// Whether everything is consistent: names a tree, extents stored, live counts exact, parity true.
    Check(check::Check),
    /// Rebuild what a lost or damaged target held, from the others.
    Repair(repair::Repair),
    /// The registry: promote this machine where those that vote are lost, rebuild the registry where its copies are lost.
    Registry(registry::RegistryCommand),
    /// Try a cluster on this machine: hosts as network namespaces, to start, kill, freeze, cut and slow.
    Lab(lab::LabCommand),
    /// Run as the daemon, in the foreground (what `up` starts).
    #[command(hide = true)]
    Daemon(daemon::Daemon),
    /// Run beside a daemon that has mounted (what that one starts).
    #[command(hide = true)]
    Guard(guard::Guard),
    /// Beside a daemon that has mounted: asks the mount for something.
    #[command(hide = true)]
    Ask(ask::Ask),
    /// The versions of what this program shares with others, in a line of JSON (what a daemon asks before a restart).
    #[command(hide = true)]
    Versions,
}

/// How a command ended, when it did not do what it was to do.
#[derive(Debug)]
pub(crate) struct Failure {
    message: String,
    code: u8,
}

impl Failure {
    /// Found to be wrong.
    fn found(message: impl Display) -> Failure {
        Failure { message: message.to_string(), code: 3 }
    }

    /// The same, with what is to be said besides.
    fn and(self, more: impl Display) -> Failure {
        Failure { message: format!("{}\n{more}", self.message), ..self }
    }
}

impl<E: Display> From<E> for Failure {
    fn from(error: E) -> Failure {
        Failure { message: error.to_string(), code: 1 }
    }
}

type Outcome = Result<(), Failure>;

/// Carries out a command.
pub fn run(arguments: Arguments) -> ExitCode {
    let outcome = match arguments.command {
        Command::Up(up) => up.run(),
        Command::Join(join) => join.run(),
        Command::Token(token) => token.run(),
        Command::Down(down) => down.run(),
        Command::Restart(restart) => restart.run(),
        Command::Target(target) => target.run(),
        Command::Node(node) => node.run(),
        Command::Settings(settings) => settings.run(),
        Command::Status(status) => status.run(),
        Command::Why(why) => why.run(),
        Command::Check(check) => check.run(),
        Command::Repair(repair) => repair.run(),
        Command::Registry(registry) => registry.run(),
        Command::Lab(lab) => lab.run(),
        Command::Daemon(daemon) => daemon.run(),
        Command::Guard(guard) => guard.run(),
        Command::Ask(ask) => ask.run(),
        Command::Versions => {
            say!("{}", Versions::own().to_line());
            Ok(())
        }
    };
    match outcome {
        Ok(()) => ExitCode::SUCCESS,
        Err(failure) => {
            eprintln!("dazzle: {}", failure.message);
            ExitCode::from(failure.code)
        }
    }
}

/// Where the daemon of the file system in `directory` listens.
pub(crate) fn control_path(directory: &Path) -> PathBuf {
    directory.join("control")
}

/// What holds the directory against a second daemon.
pub(crate) fn lock_path(directory: &Path) -> PathBuf {
    directory.join("lock")
}

/// The directory as an absolute path, which must exist.
fn existing(directory: &Path) -> Result<PathBuf, Failure> {
    directory.canonicalize().map_err(|error| Failure::from(format!("{}: {error}", directory.display())))
}

/// Refuses a directory in which something lies that is no part of the new file system that `config` describes.
fn expect_new(dir: &Path, config: &Config) -> Outcome {
    // What a former attempt or a disk's own file system may have left; anything else is somebody's.
    let own = ["lost+found", "dazzle.log", "lock", "trust"].map(OsStr::new);
    let inside = config.mount.as_deref().and_then(|mount| mount.strip_prefix(dir).ok()).map(Path::as_os_str);
    let targets = config.targets.iter().map(|target| target.path.as_os_str());
    let expected: Vec<&OsStr> = targets.chain(own).chain(inside).collect();
    match storage_place::unexpected(dir, &expected)? {
        Some(other) => Err(Failure::from(format!(
            "{} holds {} and no Dazzle file system; a new one needs a directory of its own",
            dir.display(),
            other.display()
        ))),
        None => Ok(()),
    }
}

/// Asks the daemon of `directory`, with a progress bar on a terminal when it takes long.
fn ask(directory: &Path, question: &Question) -> Result<serde_json::Value, Failure> {
    let directory = existing(directory)?;
    if !directory.join(crate::config::FILE_NAME).exists() {
        let directory = directory.display();
        return Err(Failure::from(format!(
            "{directory} holds no Dazzle file system; `dazzle up {directory}` makes one"
        )));
    }
    if !crate::edge::process::DirectoryLock::is_taken(&lock_path(&directory)) {
        let directory = directory.display();
        return Err(Failure::from(format!("no daemon runs for {directory}; start it with `dazzle up {directory}`")));
    }
    let bar = ProgressBar::hidden();
    let answer = control::ask(&control_path(&directory), question, |what, done, total| {
        if bar.is_hidden() {
            bar.set_draw_target(indicatif::ProgressDrawTarget::stderr());
            bar.set_style(
                ProgressStyle::with_template("{msg:32} {wide_bar} {pos}/{len} {eta}").expect("the template is right"),
            );
        }
        bar.set_length(total);
        bar.set_position(done);
        bar.set_message(what.to_owned());
    });
    bar.finish_and_clear();
    Ok(answer?)
}

/// Prints JSON for programs.
fn print_json(value: &serde_json::Value) {
    say!("{}", serde_json::to_string_pretty(value).expect("a value is always printable"));
}
