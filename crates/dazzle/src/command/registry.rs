//! `dazzle registry`: a registry that lost its quorum, or is damaged.

use std::path::{Path, PathBuf};
use std::time::Duration;

use clap::{Args, Subcommand};
use serde_json::Value;

use super::{Failure, Outcome, lock_path, print_json};
use crate::config::FILE_NAME;
use crate::edge::control::Question;
use crate::edge::process::{self, DirectoryLock};
use crate::{promotion, rebuild};

/// How often a directory is tried that is held, and how long after.
const LOCK_LOOKS: u32 = 20;
const LOCK_PAUSE: Duration = Duration::from_millis(50);

/// The registry, where the machines that vote on it are lost, or its copies.
#[derive(Debug, Args)]
pub(super) struct RegistryCommand {
    #[command(subcommand)]
    act: Act,
}

#[derive(Debug, Subcommand)]
enum Act {
    /// Go on with what this machine has, where half of the machines that vote, or more, are lost: it alone votes then.
    Promote(Promote),
    /// Make the registry of this machine anew, where its copies are damaged, missing or older than what its targets hold.
    Rebuild(Rebuild),
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

/// Makes a registry anew.
#[derive(Debug, Args)]
#[command(
    after_help = "The best copy that is left on any target of this machine, of whatever age, is completed from what all \
                        fragments say of themselves; without any copy they tell everything of a file system on one \
                        machine. No daemon may run for DIR. It is refused, and nothing is changed, where the copies \
                        are sound, where targets are missing without which something cannot be read, and where other \
                        machines store and the best copy lacks anything. What was there of the copies stays until the \
                        new one is stored; interrupted, it is done again.\n\nOther machines that store must be off: \
                        name them with --off, and make sure that they are. They come back as new, empty ones."
)]
struct Rebuild {
    /// The directory of the file system.
    dir: PathBuf,
    /// The name or number of a machine that is off. Repeat for more.
    #[arg(long, value_name = "NODE")]
    off: Vec<String>,
    /// Change nothing; print what is found, what is missing, and what may be lost.
    #[arg(long)]
    plan: bool,
    /// Print JSON.
    #[arg(long)]
    json: bool,
}

impl RegistryCommand {
    pub(super) fn run(self) -> Outcome {
        match self.act {
            Act::Promote(promote) => promote.run(),
            Act::Rebuild(rebuild) => rebuild.run(),
        }
    }
}

impl Rebuild {
    fn run(self) -> Outcome {
        let dir = super::existing(&self.dir)?;
        if !dir.join(FILE_NAME).exists() {
            return Err(Failure::from(format!("{} holds no Dazzle file system", dir.display())));
        }
        let runtime = process::runtime()?;
        let Some(_lock) = runtime.block_on(self.lock(&dir))? else {
            let dir = dir.display();
            return Err(Failure::from(format!(
                "a daemon runs for {dir}, with a registry that it could read: nothing is to be rebuilt, and nothing was \
                 changed. If it is to be looked at nevertheless, stop it first with `dazzle down {dir}`"
            )));
        };
        let rebuilt = runtime.block_on(rebuild::rebuild(&dir, &self.off, self.plan, runtime.handle()));
        // Nothing that still waits for others is needed.
        runtime.shutdown_background();
        self.tell(&rebuilt?);
        Ok(())
    }

    /// Holds the directory. A daemon that has just said why it does not start ends in a moment.
    async fn lock(&self, dir: &Path) -> std::io::Result<Option<DirectoryLock>> {
        for _ in 0..LOCK_LOOKS {
            let lock = DirectoryLock::take(&lock_path(dir))?;
            if lock.is_some() {
                return Ok(lock);
            }
            process::pause(LOCK_PAUSE).await;
        }
        Ok(None)
    }

    fn tell(&self, answer: &Value) {
        if self.json {
            return print_json(answer);
        }
        let each = |field: &str, tell: &dyn Fn(&Value) -> String| {
            let all: Vec<String> = answer[field].as_array().into_iter().flatten().map(tell).collect();
            if all.is_empty() { "none".to_owned() } else { all.join(", ") }
        };
        let word = |value: &Value| value.as_str().unwrap_or_default().to_owned();
        let with = |value: &Value, field: &str| format!("{}: {}", word(&value["target"]), word(&value[field]));
        say!("copies of the registry: {}", each("copies", &|copy| with(copy, "state")));
        say!("targets that are missing: {}", each("targets_missing", &|lost| with(lost, "why")));
        match (answer["has_copy"] == true, answer["lacks"].as_str()) {
            (false, _) => say!("no copy can be read: {} fragments tell everything", answer["fragments"]),
            (true, None) => say!("the best copy lacks nothing that the {} fragments tell of", answer["fragments"]),
            (true, Some(lack)) => {
                say!("the best copy lacks {lack}, among other things: {} fragments complete it", answer["fragments"]);
            }
        }
        say!(
            "logs: {}, of which no copy knows {}; the next start seals {}, and replays what is in them",
            answer["logs"],
            answer["logs_unknown"],
            answer["logs_unsealed"]
        );
        say!("targets that lack something, and are made whole then: {}", each("targets_behind", &word));
        self.tell_losses(answer);
    }

    /// What may be lost.
    fn tell_losses(&self, answer: &Value) {
        let off: Vec<&str> = answer["off"].as_array().into_iter().flatten().filter_map(Value::as_str).collect();
        if !off.is_empty() {
            let off = off.join(", ");
            say!("what {off} did without this machine is not there; {off} can come back only as new, empty machines");
        } else if answer["lacks"].is_null() {
            say!("nothing that was fsynced is lost");
        } else if answer["has_copy"] == true {
            say!(
                "nothing that was fsynced is lost; targets that were drained since the copy was written are so no more"
            );
        } else {
            say!(
                "nothing that was fsynced is lost; no target is drained any more, and machines that only mount join anew"
            );
        }
        match self.plan {
            true => say!("nothing was changed; without --plan the registry is rebuilt like that"),
            false => say!("the registry is rebuilt: start it with `dazzle up {}`", self.dir.display()),
        }
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
        let started = if runs { super::daemon::start(&dir, &[]) } else { Ok(()) };
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
