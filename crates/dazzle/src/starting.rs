//! What commands are told while a daemon starts, or waits to take part in its cluster again: it has no roles yet that could
//! answer, but it has the directory, and can be told to end.

use std::path::Path;
use std::sync::{Arc, Mutex, PoisonError};

use host::BoxFuture;
use serde_json::{Value, json};

use crate::command::control_path;
use crate::edge::control::{self, Listening, Oracle, Progress, Question};

/// A daemon that is not there yet.
pub(crate) struct Starting {
    why: Mutex<String>,
}

impl Starting {
    /// Answers for the daemon of `dir` until what is returned is dropped.
    pub(crate) async fn listen(dir: &Path) -> std::io::Result<(Arc<Starting>, Listening)> {
        let log = dir.join("dazzle.log");
        let starting =
            Arc::new(Starting { why: Mutex::new(format!("it is starting, and {} tells of it", log.display())) });
        let listening = control::listen(&control_path(dir), starting.clone()).await?;
        Ok((starting, listening))
    }

    /// Why it does not take part.
    pub(crate) fn waits_for(&self, why: String) {
        *self.why.lock().unwrap_or_else(PoisonError::into_inner) = why;
    }
}

impl Oracle for Starting {
    fn answer(&self, question: Question, _: Progress) -> BoxFuture<'static, Result<Value, String>> {
        let answer = match question {
            Question::Stop { .. } => Ok(json!({"took_part": false})),
            _ => Err(format!(
                "the daemon does not take part yet: {}. What was fsynced is safe. It goes on trying; `dazzle down` ends it",
                self.why.lock().unwrap_or_else(PoisonError::into_inner)
            )),
        };
        Box::pin(async { answer })
    }

    fn answered(&self, question: &Question) {
        if matches!(question, Question::Stop { .. }) {
            // As if it had been killed: whatever it has begun, a start finds in any state.
            tracing::info!("asked to stop before it took part");
            std::process::exit(0);
        }
    }
}
