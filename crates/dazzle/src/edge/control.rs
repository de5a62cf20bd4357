//! The daemon's control socket: a line of JSON asks, lines of JSON answer, the last one says how it ended.

use std::io::{BufRead, BufReader, Write};
use std::os::unix::net::UnixStream as BlockingStream;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use host::BoxFuture;
use protocol::settings::Setting;
use serde::{Deserialize, Serialize};
use tokio::io::{AsyncBufReadExt, AsyncWriteExt};
use tokio::net::{UnixListener, UnixStream};
use tokio::sync::mpsc;
use tracing::warn;

use crate::config::Size;

/// How often a daemon that is coming is asked.
const LOOK: Duration = Duration::from_millis(20);

/// How long to wait when the kernel has nothing to accept with, such as file descriptors.
const RESPITE: Duration = Duration::from_millis(100);

/// What a daemon is asked.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case", tag = "ask")]
pub enum Question {
    /// How it is.
    Status,
    /// Everything about one path, given relative to the mount.
    Why {
        /// The path.
        path: String,
    },
    /// Check consistency.
    Check {
        /// Also read every byte of every fragment.
        thorough: bool,
    },
    /// Rebuild what is missing.
    Repair,
    /// Whether this machine may go on without its quorum; then, unless that is only planned, the daemon ends for it.
    Promote {
        /// The machines that are off.
        off: Vec<String>,
        /// Only say.
        plan: bool,
    },
    /// One more target for this machine.
    TargetAdd {
        /// Where: relative to the file system's directory, or absolute.
        path: PathBuf,
        /// The most that it may take of the file system it lies in.
        limit: Option<Size>,
        /// Change nothing; tell what it would give.
        plan: bool,
    },
    /// An empty disk in the place of a target that does not serve.
    TargetReplace {
        /// Which, by name or number.
        target: String,
        /// Where the disk is; where the target was, unless given.
        path: Option<PathBuf>,
        /// Even if there is something that the others cannot make again.
        force: bool,
        /// Change nothing; tell what would be made again.
        plan: bool,
    },
    /// What draining would cost and leave.
    DrainPlan {
        /// What is to be emptied.
        whom: Whom,
    },
    /// Empty something, so that it can be removed.
    Drain {
        /// What.
        whom: Whom,
        /// Even if that costs redundancy.
        force: bool,
        /// Answer only when nothing lies there any more.
        wait: bool,
    },
    /// What was to be emptied stays.
    Keep {
        /// What.
        whom: Whom,
    },
    /// Take away what is empty, or is gone.
    Remove {
        /// What.
        whom: Whom,
        /// Even if too few tell whether anything lies there.
        force: bool,
        /// Change nothing; tell what would be made again, moved and lost.
        #[serde(default)]
        plan: bool,
    },
    /// What holds on all machines and what on this one, after these changes.
    Settings {
        /// All of them are made, or none.
        changes: Vec<Setting>,
    },
    /// A token, by which another machine can join.
    Token,
    /// Stop, after storing everything.
    Stop {
        /// Even if programs have files open.
        #[serde(default)]
        force: bool,
    },
    /// Let another process go on in this one's place, with all that programs have open.
    Restart,
    /// Which life of the node this is.
    Life,
    /// Have all machines of the cluster stop, after storing everything.
    StopAll {
        /// Even if programs have files open anywhere.
        #[serde(default)]
        force: bool,
    },
}

/// A part of the cluster, as people call it: by its name or its number.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Whom {
    /// One target.
    Target(String),
    /// A node with all its targets.
    Node(String),
}

/// One line of an answer.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Line {
    /// Long work goes on: what, how far, of how much.
    Progress {
        /// What is being done.
        what: String,
        /// How far it is.
        done: u64,
        /// How far it goes.
        total: u64,
    },
    /// Done: the answer.
    Done(serde_json::Value),
    /// Not done: why.
    Failed(String),
}

/// Where an answer's progress goes.
pub type Progress = mpsc::UnboundedSender<Line>;

/// Who answers.
pub trait Oracle: Send + Sync + 'static {
    /// Answers one question.
    fn answer(&self, question: Question, progress: Progress) -> BoxFuture<'static, Result<serde_json::Value, String>>;
    /// The asker has the whole answer: what had to wait for that may begin.
    fn answered(&self, question: &Question);
}

/// Whoever answers on a socket, until it is dropped.
#[derive(Debug)]
pub struct Listening(tokio::task::JoinHandle<()>);

impl Drop for Listening {
    fn drop(&mut self) {
        self.0.abort();
    }
}

/// Answers on the socket at `path`, in the place of whoever did before.
pub async fn listen(path: &Path, oracle: std::sync::Arc<dyn Oracle>) -> std::io::Result<Listening> {
    let _ = std::fs::remove_file(path);
    let listener = UnixListener::bind(path)?;
    std::fs::set_permissions(path, std::os::unix::fs::PermissionsExt::from_mode(0o600))?;
    Ok(Listening(tokio::spawn(answer_all(listener, oracle))))
}

/// Where askers come from.
trait Entrance: Send {
    /// The next of them.
    fn next(&mut self) -> impl Future<Output = std::io::Result<UnixStream>> + Send;
}

impl Entrance for UnixListener {
    async fn next(&mut self) -> std::io::Result<UnixStream> {
        self.accept().await.map(|(stream, _)| stream)
    }
}

async fn answer_all(mut entrance: impl Entrance, oracle: std::sync::Arc<dyn Oracle>) {
    loop {
        let stream = match entrance.next().await {
            Ok(stream) => stream,
            Err(error) => {
                warn!(%error, "nobody can be answered now");
                tokio::time::sleep(RESPITE).await;
                continue;
            }
        };
        let oracle = oracle.clone();
        tokio::spawn(async move {
            // The asker may hang up at any time; nothing hangs on it.
            let (question, _) = converse(stream, oracle.clone()).await;
            question.iter().for_each(|question| oracle.answered(question));
        });
    }
}

async fn converse(stream: UnixStream, oracle: std::sync::Arc<dyn Oracle>) -> (Option<Question>, std::io::Result<()>) {
    let (read, mut write) = stream.into_split();
    let mut line = String::new();
    let read = tokio::io::AsyncReadExt::take(read, 64 << 10);
    if let Err(error) = tokio::io::BufReader::new(read).read_line(&mut line).await {
        return (None, Err(error));
    }
    let question = serde_json::from_str::<Question>(&line);
    let (progress, mut lines) = mpsc::unbounded_channel();
    match &question {
        Ok(question) => {
            let answer = oracle.answer(question.clone(), progress.clone());
            tokio::spawn(async move {
                let last = answer.await.map_or_else(Line::Failed, Line::Done);
                let _ = progress.send(last);
            });
        }
        Err(error) => {
            let _ = progress.send(Line::Failed(format!(
                "the daemon does not understand what it is asked ({error}): it is another version of Dazzle than this command. \
                 Nothing was changed; `dazzle restart` has it go on as the program on disk"
            )));
            drop(progress);
        }
    }
    let mut told = Ok(());
    while let Some(line) = lines.recv().await {
        let mut text = serde_json::to_string(&line).expect("a line has no unserializable part");
        text.push('\n');
        // Who hung up hears no more, but what was asked for is carried out to its end; whoever merely waits for others to
        // carry it out finds the line closed.
        told = write.write_all(text.as_bytes()).await;
        if told.is_err() {
            lines.close();
            break;
        }
        if !matches!(line, Line::Progress { .. }) {
            break;
        }
    }
    let ended = write.shutdown().await;
    (question.ok(), told.and(ended))
}

/// Asks the daemon at `path`, showing its progress as it comes.
pub fn ask(
    path: &Path,
    question: &Question,
    mut show: impl FnMut(&str, u64, u64),
) -> Result<serde_json::Value, String> {
    let lost = |error: std::io::Error| match error.kind() {
        std::io::ErrorKind::PermissionDenied => {
            format!(
                "the daemon on {} answers only root and the user that runs it: give this command as one of them",
                path.display()
            )
        }
        _ => format!("the daemon does not answer on {}: {error}", path.display()),
    };
    let mut stream = BlockingStream::connect(path).map_err(lost)?;
    let mut text = serde_json::to_string(question).expect("a question has no unserializable part");
    text.push('\n');
    stream.write_all(text.as_bytes()).map_err(lost)?;
    for line in BufReader::new(stream).lines() {
        let line = line.map_err(lost)?;
        match serde_json::from_str(&line) {
            Ok(Line::Progress { what, done, total }) => show(&what, done, total),
            Ok(Line::Done(value)) => return Ok(value),
            Ok(Line::Failed(reason)) => return Err(reason),
            Err(error) => {
                return Err(format!(
                    "the daemon's answer is not understood ({error}): it is another version of Dazzle than this command; \
                     `dazzle restart` has it go on as the program on disk"
                ));
            }
        }
    }
    Err("the daemon hung up before it had answered".into())
}

/// Asks whoever answers at `path` by and by, until the answer is accepted; with how long that took. None if it does not come
/// within `patience`, or once the daemon `has_ended`.
pub fn ask_until(
    path: &Path,
    question: &Question,
    patience: Duration,
    is_accepted: impl Fn(&serde_json::Value) -> bool,
    has_ended: impl Fn() -> bool,
) -> Option<(serde_json::Value, Duration)> {
    let begun = Instant::now();
    loop {
        // Looked at first: who ends after an answer has given it.
        let ended = has_ended() || begun.elapsed() >= patience;
        let answer = ask(path, question, |_, _, _| ()).ok().filter(&is_accepted);
        match answer {
            Some(answer) => return Some((answer, begun.elapsed())),
            None if ended => return None,
            None => std::thread::sleep(LOOK),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_answer_means_the_same_after_its_way() {
        let text = format!("{{\"done\":{}}}", "4".repeat(112));
        let once = serde_json::to_string(&serde_json::from_str::<Line>(&text).unwrap()).unwrap();
        let again: Line = serde_json::from_str(&once).unwrap();
        assert_eq!(serde_json::to_string(&again).unwrap(), once);
    }

    /// Waits for what others do, for as long as anybody wants to know.
    struct Waiter(tokio::sync::mpsc::Sender<()>);

    impl Oracle for Waiter {
        fn answer(&self, _: Question, progress: Progress) -> BoxFuture<'static, Result<serde_json::Value, String>> {
            let ended = self.0.clone();
            Box::pin(async move {
                let line = || Line::Progress { what: "waits".into(), done: 0, total: 1 };
                while progress.send(line()).is_ok() {
                    tokio::task::yield_now().await;
                }
                let _ = ended.send(()).await;
                Err("nobody waits".into())
            })
        }

        fn answered(&self, _: &Question) {}
    }

    #[tokio::test]
    async fn who_hangs_up_waits_no_longer() {
        let (ended, mut told) = mpsc::channel(1);
        let (mut asker, daemon) = UnixStream::pair().expect("two ends");
        asker.write_all(b"{\"ask\":\"repair\"}\n").await.expect("somebody listens");
        let conversation = tokio::spawn(converse(daemon, std::sync::Arc::new(Waiter(ended))));
        let mut first = [0; 1];
        tokio::io::AsyncReadExt::read_exact(&mut asker, &mut first).await.expect("it tells how far it is");
        drop(asker);
        told.recv().await.expect("it ends");
        assert!(conversation.await.expect("it does not panic").1.is_err());
    }

    /// Askers, and what the kernel says when it has no descriptor for one.
    struct Crowd(Vec<std::io::Result<UnixStream>>);

    impl Entrance for Crowd {
        async fn next(&mut self) -> std::io::Result<UnixStream> {
            match self.0.pop() {
                Some(next) => next,
                None => std::future::pending().await,
            }
        }
    }

    #[tokio::test]
    async fn who_cannot_be_let_in_keeps_nobody_out_who_comes_later() {
        let (mut asker, daemon) = UnixStream::pair().expect("two ends");
        let crowd = Crowd(vec![Ok(daemon), Err(rustix::io::Errno::MFILE.into())]);
        tokio::spawn(answer_all(crowd, std::sync::Arc::new(Waiter(mpsc::channel(1).0))));
        asker.write_all(b"{\"ask\":\"repair\"}\n").await.expect("somebody listens");
        let mut first = [0; 1];
        tokio::io::AsyncReadExt::read_exact(&mut asker, &mut first).await.expect("it is answered");
    }
}
