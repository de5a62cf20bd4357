//! `dazzle registry`: a registry that lost its quorum.

use std::path::{Path, PathBuf};

use clap::{Args, Subcommand};
use serde_json::Value;

use super::{Failure, Outcome, lock_path, print_json};
use crate::config::FILE_NAME;
use crate::edge::control::Question;
use crate::edge::process::{self, DirectoryLock};
use crate::promotion;

/// The registry, where the machines that vote on it are lost.
#[derive(Debug, Args)]
pub(super) struct RegistryCommand {
    #[command(subcommand)]
    act: Act,
}

#[derive(Debug, Subcommand)]
enum Act {
    /// Go on with what this machine has, where half of the machines that vote, or more, are lost: it alone votes then.
    Promote(Promote),
}

/// Goes on with what this machine has.
#[derive(Debug, Args)]
#[command(
    after_help = "All others that store must answer or be off: name those with --off, and make sure that they are. \
                        Two machines that go on without each other are two file systems, until they meet; then the one \
                        that was promoted stays. The daemon of DIR is started anew, if it runs: programs that have files \
                        open there get errors for them. What was fsynced while the machines ran together is there. What \
                        others did without this machine, while it was off or cut off, it does not have.\n\nA machine that \
                        was off comes back by itself when it is started, if nothing was done without the promoted one; \
                        else it is refused, and says what to do."
)]
struct Promote {
    /// The directory of the file system, on the machine that is to go on.
    dir: PathBuf,
    /// The name or number of a machine that is off. Repeat for more.
    #[arg(long, value_name = "NODE")]
    off: Vec<String>,
    /// Change nothing; print whether it may be, and what it costs.
    #[arg(long)]
    plan: bool,
    /// Print JSON.
    #[arg(long)]
    json: bool,
}

impl RegistryCommand {
    pub(super) fn run(self) -> Outcome {
        let Act::Promote(promote) = self.act;
        promote.run()
    }
}

impl Promote {
    fn run(self) -> Outcome {
        let dir = super::existing(&self.dir)?;
        if !dir.join(FILE_NAME).exists() {
            return Err(Failure::from(format!("{} holds no Dazzle file system", dir.display())));
        }
        let runs = DirectoryLock::is_taken(&lock_path(&dir));
        if runs {
            let question = Question::Promote { off: self.off.clone(), plan: self.plan };
            let answer = super::ask(&dir, &question)?;
            if self.plan {
                self.tell(&answer, true);
                return Ok(());
            }
            DirectoryLock::wait(&lock_path(&dir))?;
        }
        let promoted = self.promote(&dir);
        if let Ok(answer) = &promoted {
            self.tell(answer, runs);
        }
        // Whatever came of it, it runs again.
        let started = if runs { super::daemon::start(&dir) } else { Ok(()) };
        promoted.and(started)
    }

    fn promote(&self, dir: &Path) -> Result<Value, Failure> {
        let Some(_lock) = DirectoryLock::take(&lock_path(dir))? else {
            return Err(Failure::from("a daemon was started meanwhile: try again".to_owned()));
        };
        let runtime = process::runtime()?;
        let promoted = runtime.block_on(promotion::promote(dir, &self.off, self.plan, runtime.handle()));
        // Nothing that still waits for others is needed.
        runtime.shutdown_background();
        Ok(promoted?)
    }

    fn tell(&self, answer: &Value, runs: bool) {
        if self.json {
            return print_json(answer);
        }
        let list = |field: &str| {
            let names = answer[field].as_array().into_iter().flatten().filter_map(Value::as_str);
            names.collect::<Vec<_>>().join(", ")
        };
        let (name, would) = (answer["name"].as_str().unwrap_or("this machine"), self.plan);
        let goes_on = if would { "would go on, and alone vote" } else { "goes on, and alone votes" };
        say!("{name} {goes_on}, without {}", list("off"));
        say!("targets that are missed: {}", list("targets_missing"));
        if answer["more_than_parity"] == true {
            say!(
                "more machines are lost than the parity {} makes up for: the last changes, and bytes, may be lost; look with \
                 `dazzle check`",
                answer["parity"]
            );
        }
        say!("what was fsynced while {} ran together with it is there; what they did without it is not", list("off"));
        if !would && !runs {
            say!("start it with `dazzle up {}`", self.dir.display());
        }
    }
}
