//! `dazzle restart`: a daemon's next process goes on in its place.

use std::path::PathBuf;
use std::time::Duration;

use clap::Args;
use serde_json::{Value, json};

use super::{Failure, Outcome, control_path, existing, lock_path, print_json};
use crate::edge::control::{self, Question};
use crate::edge::process::DirectoryLock;

/// How long a daemon may take to come back.
const PATIENCE: Duration = Duration::from_secs(60);

/// Restarts the daemon of DIR, as after an upgrade of the program or a change of dazzle.toml.
#[derive(Debug, Args)]
#[command(
    after_help = "The mount stays, and so do the files and locks that programs have: their calls wait for a moment. \
                  Machine after machine, a whole cluster is restarted this way. What dazzle.toml says is taken up, but \
                  for `mount` and `io_uring`; these, and `address`, need `dazzle down` and `dazzle up`.\n\nWhere \
                  something cannot be stored, or the program on disk cannot go on with what this one has, the daemon \
                  goes on as it is, and the command says why."
)]
pub(super) struct Restart {
    /// The directory of the file system.
    dir: PathBuf,
    /// Print JSON.
    #[arg(long)]
    json: bool,
}

impl Restart {
    pub(super) fn run(self) -> Outcome {
        let dir = existing(&self.dir)?;
        let before = super::ask(&dir, &Question::Restart)?;
        let comes_back = |life: &Value| life["session"] != before["session"];
        let has_ended = || !DirectoryLock::is_taken(&lock_path(&dir));
        let back = control::ask_until(&control_path(&dir), &Question::Life, PATIENCE, comes_back, has_ended);
        let Some((life, waited)) = back else {
            return Err(Failure::from(format!(
                "the daemon was restarted and has not come back; {} says why. What was fsynced is safe",
                dir.join("dazzle.log").display()
            )));
        };
        let kept = life["inherited"] == Value::Bool(true);
        let seconds = waited.as_secs_f64();
        match (self.json, kept) {
            (true, _) => print_json(&json!({"restarted": dir, "kept": kept, "seconds": seconds})),
            (false, true) => say!("{} was restarted; what programs have open is kept", dir.display()),
            (false, false) => say!(
                "{} was restarted, but what programs had open was lost: the daemon began anew ({} says why)",
                dir.display(),
                dir.join("dazzle.log").display()
            ),
        }
        Ok(())
    }
}
