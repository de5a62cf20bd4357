//! Who waits for one disk. One that hangs keeps those few, and nobody who has other things to do (DESIGN §13: no hung mount).
//!
//! 1. At most [`WAITERS_MAX`] threads of the runtime wait for one disk. What comes then waits for these, and holds no thread.
//! 2. A small write ends in the page cache, in a microsecond or two; handing it to another thread costs some 30 µs
//!    (`docs/decisions/0045-a-disk-that-hangs.md`). So the thread that polls makes it, in place. It may have to wait all the
//!    same: for a page or a journal that is being written, or where the file system is frozen; no call says that beforehand. So
//!    one thread at a time writes to a disk in place, and none while the disk is synced, or late with what is written past the
//!    page cache ([`LATE`]). What still waits then, and all that is polled together with it, waits for the disk:
//!    `docs/limits.md`.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use host::DiskError;
use tokio::runtime::Handle;
use tokio::sync::Semaphore;

use super::blocking::Patience;

/// How many threads of the runtime wait for one disk, at most: as many requests as keep it busy.
const WAITERS_MAX: usize = 16;
/// A disk is late when it has ended no durable write for so long, and one is under way.
const LATE: Duration = Duration::from_millis(5);
/// How often a thread looks whether another has written in place, which takes a few microseconds, before it does without.
const LOOKS: u32 = 1000;

/// Who waits for one disk.
#[derive(Clone)]
pub struct Waiters(Arc<Shared>);

struct Shared {
    runtime: Handle,
    places: Arc<Semaphore>,
    is_written_in_place: AtomicBool,
    /// How many syncs are under way.
    syncs: AtomicU32,
    durable_writes: Pulse,
}

/// Whether durable writes of a disk come to an end.
struct Pulse {
    since: Instant,
    under_way: AtomicU32,
    /// When the last one ended, or the first of those under way began: in microseconds.
    moved: AtomicU64,
}

/// Leave to write in place.
pub(super) struct InPlace<'a>(&'a AtomicBool);

/// A sync that is under way.
pub(super) struct Syncing<'a>(&'a AtomicU32);

/// A durable write that is.
pub(super) struct Writing<'a>(&'a Pulse);

impl Waiters {
    /// None yet.
    pub fn new(runtime: Handle) -> Waiters {
        let durable_writes = Pulse { since: Instant::now(), under_way: AtomicU32::new(0), moved: AtomicU64::new(0) };
        let (places, is_written_in_place) = (Arc::new(Semaphore::new(WAITERS_MAX)), AtomicBool::new(false));
        let syncs = AtomicU32::new(0);
        Waiters(Arc::new(Shared { runtime, places, is_written_in_place, syncs, durable_writes }))
    }

    /// Runs `work` here when this thread may wait, else on a thread that may.
    pub(super) async fn wait_for<T, F>(&self, work: F) -> Result<T, DiskError>
    where
        T: Send + 'static,
        F: FnOnce() -> Result<T, DiskError> + Send + 'static,
    {
        if let Some(_patience) = Patience::take() {
            return work();
        }
        self.run_apart(work).await
    }

    /// Runs `work` on a thread that may wait, always: for what takes long or should run beside others. Once begun it goes on to
    /// its end.
    pub(super) async fn run_apart<T, F>(&self, work: F) -> Result<T, DiskError>
    where
        T: Send + 'static,
        F: FnOnce() -> Result<T, DiskError> + Send + 'static,
    {
        let place = self.0.places.clone().acquire_owned().await.expect("it is never closed");
        let joined = self.0.runtime.spawn_blocking(move || {
            let _place = place;
            work()
        });
        joined
            .await
            .unwrap_or_else(|error| Err(DiskError::Failed(format!("the thread that waited for it ended: {error}"))))
    }

    /// Leave to write in place, if that may be.
    pub(super) fn may_write_in_place(&self) -> Option<InPlace<'_>> {
        let is_written = &self.0.is_written_in_place;
        for _ in 0..LOOKS {
            if self.0.syncs.load(Ordering::Acquire) > 0 || self.0.durable_writes.is_late() {
                return None;
            }
            if is_written.compare_exchange(false, true, Ordering::Acquire, Ordering::Relaxed).is_ok() {
                return Some(InPlace(is_written));
            }
            std::hint::spin_loop();
        }
        None
    }

    /// Begins a sync; it ends when this is dropped.
    pub(super) fn syncing(&self) -> Syncing<'_> {
        self.0.syncs.fetch_add(1, Ordering::AcqRel);
        Syncing(&self.0.syncs)
    }

    /// Begins a durable write; likewise.
    pub(super) fn writing_durably(&self) -> Writing<'_> {
        let pulse = &self.0.durable_writes;
        if pulse.under_way.fetch_add(1, Ordering::AcqRel) == 0 {
            pulse.move_on();
        }
        Writing(pulse)
    }
}

impl Pulse {
    fn is_late(&self) -> bool {
        if self.under_way.load(Ordering::Acquire) == 0 {
            return false;
        }
        let moved = Duration::from_micros(self.moved.load(Ordering::Acquire));
        self.since.elapsed().saturating_sub(moved) > LATE
    }

    fn move_on(&self) {
        self.moved.store(self.since.elapsed().as_micros() as u64, Ordering::Release);
    }
}

impl Drop for InPlace<'_> {
    fn drop(&mut self) {
        self.0.store(false, Ordering::Release);
    }
}

impl Drop for Syncing<'_> {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::AcqRel);
    }
}

impl Drop for Writing<'_> {
    fn drop(&mut self) {
        self.0.move_on();
        self.0.under_way.fetch_sub(1, Ordering::AcqRel);
    }
}

#[cfg(test)]
mod tests {
    use std::sync::mpsc;

    use super::*;

    fn runtime() -> tokio::runtime::Runtime {
        tokio::runtime::Builder::new_multi_thread().worker_threads(2).build().expect("there are threads")
    }

    #[test]
    fn a_disk_that_hangs_holds_so_many_threads_and_another_goes_on() {
        let runtime = runtime();
        let (hung, healthy) = (Waiters::new(runtime.handle().clone()), Waiters::new(runtime.handle().clone()));
        let (begun, begins) = mpsc::channel();
        let (go_on, goes_on) = mpsc::channel::<()>();
        let goes_on = Arc::new(std::sync::Mutex::new(goes_on));
        let waits: Vec<_> = (0..3 * WAITERS_MAX)
            .map(|number| {
                let (hung, begun, goes_on) = (hung.clone(), begun.clone(), goes_on.clone());
                let work = move || {
                    begun.send(number).expect("the test listens");
                    // Ends for all when the test drops its end.
                    let _ended = goes_on.lock().expect("nobody panics").recv();
                    Ok(())
                };
                runtime.spawn(async move { hung.run_apart(work).await })
            })
            .collect();
        for _ in 0..WAITERS_MAX {
            begins.recv().expect("as many as may begin");
        }
        assert_eq!(runtime.block_on(healthy.run_apart(|| Ok(7))), Ok(7));
        assert!(begins.try_recv().is_err(), "no more wait for one disk");
        drop(go_on);
        for wait in waits {
            assert_eq!(runtime.block_on(wait).expect("it ends"), Ok(()));
        }
    }

    #[test]
    fn one_thread_at_a_time_writes_in_place_and_none_while_the_disk_is_synced() {
        let runtime = runtime();
        let waiters = Waiters::new(runtime.handle().clone());
        let first = waiters.may_write_in_place().expect("nobody does");
        assert!(waiters.may_write_in_place().is_none(), "the first may be held up");
        drop(first);
        let sync = waiters.syncing();
        assert!(waiters.may_write_in_place().is_none(), "pages are being written");
        drop(sync);
        let durable = waiters.writing_durably();
        drop(waiters.may_write_in_place().expect("it takes a few microseconds"));
        drop(durable);
        assert!(waiters.may_write_in_place().is_some());
    }

    #[test]
    fn a_disk_is_late_when_it_ends_no_durable_write() {
        let long_ago = Instant::now() - Duration::from_secs(1);
        let pulse = Pulse { since: long_ago, under_way: AtomicU32::new(1), moved: AtomicU64::new(0) };
        assert!(pulse.is_late());
        pulse.move_on();
        assert!(!pulse.is_late(), "another one has just ended");
        pulse.moved.store(0, Ordering::Release);
        pulse.under_way.store(0, Ordering::Release);
        assert!(!pulse.is_late(), "nothing is asked of it");
    }
}
