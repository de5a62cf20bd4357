//! Where all entries of a queue hold requests that wait, for locks of other programs or for a target that does not answer,
//! the kernel keeps what comes to itself; among that may be what they wait for. Then the queue gets more entries. What the
//! kernel keeps it gives out with the next answer in that queue and not before, so it is asked something.
//!
//! A crowd by itself is none of that: where answers are given, entries come free.

use std::path::{Path, PathBuf};
use std::sync::atomic::Ordering;
use std::sync::{Arc, mpsc};
use std::time::{Duration, Instant};

use tracing::warn;

use super::asking;
use super::queue::Shared;

/// How long nothing may be answered in a crowd.
const PATIENCE: Duration = Duration::from_millis(50);
/// How long an answer, or an entry, may take that was asked for; and how often it is looked.
const ASKED_MAX: Duration = Duration::from_millis(500);
const LOOK: Duration = Duration::from_millis(1);
/// How long what was fetched may take until it is seen to wait too.
const FETCHED: Duration = Duration::from_millis(5);
/// So often nothing more is found before it is believed.
const LOOKS: u32 = 3;

/// A thread that looks after the crowds of one mount; it ends with the last that could call it.
#[derive(Clone)]
pub(super) struct Watch(mpsc::Sender<Call>);

enum Call {
    /// All entries hold requests.
    Crowd(Arc<Shared>),
    /// Something may wait in the kernel.
    Fetch(Arc<Shared>),
}

impl Watch {
    pub(super) fn start(path: PathBuf) -> Watch {
        let (call, called) = mpsc::channel();
        let watch = move || {
            while let Ok(call) = called.recv() {
                match call {
                    Call::Crowd(queue) => {
                        queue.is_called.store(false, Ordering::Release);
                        if is_stuck(&queue) {
                            fetch(&queue, &path);
                        }
                    }
                    Call::Fetch(queue) => fetch(&queue, &path),
                }
            }
        };
        // Without it waiting calls may keep others waiting, and all else works.
        let started = std::thread::Builder::new().name("fuse-crowds".into()).spawn(watch);
        if let Err(error) = started {
            warn!(%error, "nobody looks after queues of requests that all wait");
        }
        Watch(call)
    }

    /// All entries of `queue` hold requests.
    pub(super) fn look_at(&self, queue: &Arc<Shared>) {
        if !queue.is_called.swap(true, Ordering::AcqRel) {
            // A queue whose watch could not be started is not looked after.
            let _ = self.0.send(Call::Crowd(queue.clone()));
        }
    }

    /// Something may wait in the kernel for an entry of `queue`.
    pub(super) fn fetch(&self, queue: &Arc<Shared>) {
        let _ = self.0.send(Call::Fetch(queue.clone()));
    }
}

/// Has the queue get more entries; false where it has all that it may have.
fn grow(queue: &Shared) -> bool {
    queue.is_to_grow.store(true, Ordering::Release);
    queue.bell.ring();
    comes_true(|| queue.given.load(Ordering::Acquire) > 0)
}

/// Fetches what waits in the kernel: each answer fetches what has waited longest, and that, once answered, the next. What asks
/// is not waited for: it may come behind others that take the last entries, and wait in the kernel, too.
fn fetch(queue: &Shared, path: &Path) {
    let mut quiet = 0;
    while quiet < LOOKS && !queue.leaving.load(Ordering::Acquire) {
        if is_stuck(queue) && !grow(queue) {
            return;
        }
        let (free, answered) = (queue.given.load(Ordering::Acquire), queue.answered.load(Ordering::Acquire));
        if let Err(error) = asking::start_apart(path, queue.number..=queue.number, 1) {
            warn!(%error, "what waits for others' calls cannot be fetched");
            return;
        }
        // On a processor that is not there nobody asks, and nothing waits.
        comes_true(|| queue.answered.load(Ordering::Acquire) > answered);
        std::thread::sleep(FETCHED);
        quiet = if queue.given.load(Ordering::Acquire) < free { 0 } else { quiet + 1 };
    }
}

fn comes_true(condition: impl Fn() -> bool) -> bool {
    let until = Instant::now() + ASKED_MAX;
    while !condition() {
        if Instant::now() >= until {
            return false;
        }
        std::thread::sleep(LOOK);
    }
    true
}

/// Whether all entries hold requests, and for a while none was answered.
fn is_stuck(queue: &Shared) -> bool {
    let answered = queue.answered.load(Ordering::Acquire);
    if queue.given.load(Ordering::Acquire) > 0 {
        return false;
    }
    std::thread::sleep(PATIENCE);
    queue.given.load(Ordering::Acquire) == 0 && queue.answered.load(Ordering::Acquire) == answered
}
