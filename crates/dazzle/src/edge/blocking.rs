//! Where calls that may block are made.
//!
//! Most reads and small writes end in the page cache, in a microsecond or two; handing them to another thread would
//! cost ten times as much. So they are tried in place, without waiting where the kernel allows it. What must wait goes to
//! a thread that may, and a serving thread itself may wait only while enough others remain (DESIGN §13: no hung mount).

use std::cell::Cell;
use std::sync::{Condvar, Mutex, MutexGuard, PoisonError};

use host::DiskError;
use rustix::io::Errno;
use tokio::runtime::Handle;

/// Up to this many bytes a write goes to the page cache in place.
pub const WRITE_INLINE_MAX: usize = 64 << 10;

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

/// Runs `work` here when this thread may wait, else on a thread that may.
pub async fn wait_for<T, F>(runtime: &Handle, work: F) -> Result<T, DiskError>
where
    T: Send + 'static,
    F: FnOnce() -> Result<T, DiskError> + Send + 'static,
{
    if let Some(_patience) = Patience::take() {
        return work();
    }
    run_apart(runtime, work).await
}

/// Runs `work` on a thread that may wait, always: for what takes long or should run beside others.
pub async fn run_apart<T, F>(runtime: &Handle, work: F) -> Result<T, DiskError>
where
    T: Send + 'static,
    F: FnOnce() -> Result<T, DiskError> + Send + 'static,
{
    let joined = runtime.spawn_blocking(work).await;
    joined.unwrap_or_else(|error| Err(DiskError::Failed(format!("the thread that waited for it ended: {error}"))))
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
struct Patience;

impl Patience {
    fn take() -> Option<Patience> {
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
