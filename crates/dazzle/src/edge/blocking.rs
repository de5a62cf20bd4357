//! Which threads serve a mount, and which of them may wait for a disk: some, while enough others remain (DESIGN §13: no hung
//! mount). What waits on other threads is the matter of `waiters`.

use std::cell::Cell;
use std::sync::{Condvar, Mutex, MutexGuard, PoisonError};

use host::DiskError;
use rustix::io::Errno;

/// Serving threads that read requests at once. The kernel wakes sleeping readers in turn, so a second one would be woken
/// for what the first, still looking, takes; the others stand by for those that wait for a disk.
const READERS: usize = 1;

/// How many serving threads there are, and how many of them may read now.
static SERVING: Mutex<Serving> = Mutex::new(Serving { threads: 0, waiting: 0, permits: READERS });
static PERMIT_FREE: Condvar = Condvar::new();

struct Serving {
    threads: usize,
    /// Waiting for a disk.
    waiting: usize,
    permits: usize,
}

/// What the current thread is to the mount.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Role {
    /// No serving thread.
    None,
    /// A serving thread that may read.
    Reader,
    /// A serving thread that gave its permit away.
    StandBy,
}

thread_local! {
    static ROLE: Cell<Role> = const { Cell::new(Role::None) };
}

/// Declares the current thread one of the serving threads.
pub fn serve_here() {
    ROLE.set(Role::StandBy);
    lock(&SERVING).threads += 1;
}

/// Whether this serving thread may read its next request.
pub fn is_reader() -> bool {
    ROLE.get() == Role::Reader
}

/// Returns when this serving thread may read its next request.
pub fn await_turn() {
    if ROLE.get() == Role::Reader {
        return;
    }
    let mut serving = lock(&SERVING);
    while serving.permits == 0 {
        serving = PERMIT_FREE.wait(serving).unwrap_or_else(PoisonError::into_inner);
    }
    serving.permits -= 1;
    ROLE.set(Role::Reader);
}

/// The current thread serves no more: whoever stands by takes its place.
pub fn retire() {
    let mut serving = lock(&SERVING);
    serving.threads -= 1;
    serving.permits += usize::from(ROLE.replace(Role::None) == Role::Reader);
    drop(serving);
    PERMIT_FREE.notify_all();
}

fn lock(serving: &Mutex<Serving>) -> MutexGuard<'_, Serving> {
    serving.lock().unwrap_or_else(PoisonError::into_inner)
}

/// What an error number of a disk means.
pub fn disk_error(what: &str, error: Errno) -> DiskError {
    match error {
        Errno::NOSPC | Errno::DQUOT => DiskError::Full,
        Errno::ROFS => DiskError::ReadOnly,
        other => DiskError::Failed(format!("{what}: {other}")),
    }
}

/// A serving thread's leave to wait for a disk: another reads in its place.
pub(super) struct Patience;

impl Patience {
    pub(super) fn take() -> Option<Patience> {
        if ROLE.get() == Role::None {
            return None;
        }
        let mut serving = lock(&SERVING);
        if serving.waiting + READERS >= serving.threads {
            return None;
        }
        serving.waiting += 1;
        if ROLE.replace(Role::StandBy) == Role::Reader {
            serving.permits += 1;
            drop(serving);
            PERMIT_FREE.notify_one();
        }
        Some(Patience)
    }
}

impl Drop for Patience {
    fn drop(&mut self) {
        lock(&SERVING).waiting -= 1;
    }
}
