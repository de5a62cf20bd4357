//! Where calls that may block are made.
//!
//! Most reads and small writes end in the page cache, in a microsecond or two; handing them to another thread would
//! cost ten times as much. So they are tried in place, without waiting where the kernel allows it. What must wait goes to
//! a thread that may, and a serving thread itself may wait only while enough others remain (DESIGN §13: no hung mount).

use std::cell::Cell;
use std::sync::atomic::{AtomicUsize, Ordering};

use host::DiskError;
use rustix::io::Errno;
use tokio::runtime::Handle;

/// Up to this many bytes a write goes to the page cache in place.
pub const WRITE_INLINE_MAX: usize = 64 << 10;

/// How many serving threads may wait for a disk at once.
static PATIENCE_LEFT: AtomicUsize = AtomicUsize::new(0);

thread_local! {
    static IS_PATIENT: Cell<bool> = const { Cell::new(false) };
}

/// Declares the current thread a serving thread; all but two of `threads` may wait for disks at once.
pub fn serve_here(threads: usize) {
    IS_PATIENT.set(true);
    PATIENCE_LEFT.store(threads.saturating_sub(2), Ordering::Relaxed);
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

struct Patience;

impl Patience {
    fn take() -> Option<Patience> {
        if !IS_PATIENT.get() {
            return None;
        }
        PATIENCE_LEFT
            .fetch_update(Ordering::Acquire, Ordering::Relaxed, |left| left.checked_sub(1))
            .ok()
            .map(|_| Patience)
    }
}

impl Drop for Patience {
    fn drop(&mut self) {
        PATIENCE_LEFT.fetch_add(1, Ordering::Release);
    }
}
