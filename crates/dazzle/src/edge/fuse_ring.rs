//! Requests over io_uring: for each processor a queue, and a thread that serves it and stays there. So a program's request is
//! answered where the program runs, and nobody is woken on another processor, which on many machines costs several times what
//! the answer does (`docs/decisions/0028-requests-over-io-uring.md`). What lies where is told in `fuse::ring`.
//!
//! | file | it has |
//! |---|---|
//! | `queue` | a queue and its thread |
//! | `memory` | `EntryMemory`: what requests come in |
//! | `bell` | how a thread is told that there is something to do |
//! | `reads` | reads of targets by these threads |
//! | `crowding` | more entries where all wait |
//! | `asking` | requests by another process, where queues are to have some |
//!
//! By the device come, beside all this, FORGET and INTERRUPT, and everything where the kernel has no rings.

pub(crate) mod asking;
mod bell;
mod crowding;
mod memory;
mod queue;
pub(super) mod transfers;

use std::collections::BTreeSet;
use std::io;
use std::os::fd::{OwnedFd, RawFd};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, mpsc};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use bell::Bell;
use crowding::Watch;
pub(super) use memory::{EntryMemory, Shape};
use queue::{ENTRIES_MAX, Queue, Shared};
use rustix::thread::CpuSet;
use tracing::{info, warn};

use super::fuse_device::Server;

/// The kernel's own word that FUSE may use rings, for all its mounts. Off by default.
const ALLOWED: &str = "/sys/module/fuse/parameters/enable_uring";
/// The processors that there may ever be: the kernel has a queue for each. And those that there are.
const POSSIBLE: &str = "/sys/devices/system/cpu/possible";
const ONLINE: &str = "/sys/devices/system/cpu/online";
/// How often it is looked whether all entries hold requests.
const LOOK_AT_QUEUES: Duration = Duration::from_millis(1);

/// The queues of one mount.
pub(super) struct Rings {
    memory: Arc<EntryMemory>,
    device: Arc<OwnedFd>,
    server: Arc<Server>,
    path: PathBuf,
    running: Mutex<Running>,
}

/// Its threads, while it serves.
#[derive(Default)]
struct Running {
    queues: Vec<Arc<Shared>>,
    threads: Vec<JoinHandle<()>>,
}

/// Memory for requests over io_uring, if these are to be had here; has the kernel allow them, if this process may. Asked before
/// the handshake: behind it the kernel waits for them.
pub(super) fn prepare(payload_bytes: u32) -> Option<EntryMemory> {
    let allowed = || std::fs::read_to_string(ALLOWED).is_ok_and(|word| word.trim() == "Y");
    // Older kernels have no such word.
    let is_allowed = allowed() || std::fs::write(ALLOWED, "Y").is_ok() && allowed();
    if !is_allowed {
        return None;
    }
    let memory = || {
        queue::new_ring()?;
        if !runs_everywhere() {
            return Err(io::Error::other("this process may not run on all processors that programs run on"));
        }
        let queues = processors().ok_or_else(|| io::Error::other(format!("{POSSIBLE} cannot be understood")))?;
        EntryMemory::new(Shape::new(queues, ENTRIES_MAX, payload_bytes))
    };
    memory().inspect_err(|error| info!(%error, "requests come by the FUSE device, for io_uring cannot be used")).ok()
}

impl Rings {
    /// Those of a mount, which `device` belongs to. They are not served yet.
    pub(super) fn new(memory: EntryMemory, device: Arc<OwnedFd>, server: Arc<Server>, path: &Path) -> Rings {
        let (memory, path) = (Arc::new(memory), path.to_owned());
        Rings { memory, device, server, path, running: Mutex::default() }
    }

    /// Starts the threads. Fails as a whole, and then the mount is of no use: the kernel waits for all queues.
    pub(super) fn serve(&self) -> io::Result<()> {
        let mut running = self.running();
        assert!(running.threads.is_empty(), "they are started once");
        let watch = Watch::start(self.path.clone());
        for number in 0..self.memory.shape().queues {
            let shared = Arc::new(Shared {
                number,
                bell: Arc::new(Bell::new()?),
                leaving: AtomicBool::new(false),
                is_to_grow: AtomicBool::new(false),
                given: AtomicU32::new(0),
                transfers: Arc::default(),
                answered: AtomicU64::new(0),
                watch: watch.clone(),
                is_called: AtomicBool::new(false),
            });
            // SAFETY: threads that served before have ended, and with them their parts.
            let memory = unsafe { self.memory.part(number) };
            let (device, server) = (self.device.clone(), self.server.clone());
            let queue = Queue { shared: shared.clone(), server, memory, device };
            running.threads.push(start(queue)?);
            running.queues.push(shared);
        }
        Ok(())
    }

    /// Fetches what came while no thread served: the kernel gives it out with the next answer.
    pub(super) fn fetch_waiting(&self) {
        let running = self.running();
        running.queues.iter().for_each(|queue| queue.watch.fetch(queue));
    }

    /// Looks again at what was left while the gate was held.
    pub(super) fn go_on(&self) {
        let running = self.running();
        running.queues.iter().for_each(|queue| queue.bell.ring());
    }

    /// Ends the threads, once the gate is held and nothing is under way that is not left. What they have not answered stays in
    /// the entries' memory, and what comes waits in the kernel. False if that cannot be by then, and all are as before.
    ///
    /// What the kernel is about to put into an entry when its thread ends would be lost (tried on Linux 6.18.44: the program
    /// gets ECANCELED). So no entry may be free: the mount is asked for something until all hold requests. The next process
    /// answers these too.
    pub(super) async fn leave(&self, until: Instant) -> bool {
        let queues = self.running().queues.clone();
        let online = online();
        let is_reached = |queue: &&Arc<Shared>| online.contains(&queue.number);
        let free =
            || queues.iter().filter(is_reached).map(|queue| queue.given.load(Ordering::Acquire)).max().unwrap_or(0);
        if free() > 0 {
            let (path, last) = (self.path.clone(), self.memory.shape().queues - 1);
            let (times, patience) = (free(), until.saturating_duration_since(Instant::now()));
            let asking = tokio::task::spawn_blocking(move || asking::start_apart(&path, 0..=last, times));
            match tokio::time::timeout(patience, asking).await {
                Ok(Ok(Ok(()))) => {}
                other => {
                    warn!(?other, "the mount could not be asked for anything");
                    return false;
                }
            }
        }
        // A read that nobody waits for any more may be under way.
        let are_busy = || queues.iter().any(|queue| queue.transfers.load(Ordering::Acquire) > 0);
        while free() > 0 || are_busy() {
            if Instant::now() >= until {
                return false;
            }
            tokio::time::sleep(LOOK_AT_QUEUES).await;
        }
        let running = std::mem::take(&mut *self.running());
        for queue in &running.queues {
            queue.leaving.store(true, Ordering::Release);
            queue.bell.ring();
        }
        join(running.threads);
        true
    }

    fn running(&self) -> MutexGuard<'_, Running> {
        self.running.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Whether threads serve.
    pub(super) fn are_served(&self) -> bool {
        !self.running().threads.is_empty()
    }

    /// Waits until the mount has ended.
    pub(super) fn wait(&self) {
        let threads = std::mem::take(&mut self.running().threads);
        join(threads);
    }

    /// What the next process needs to go on with them.
    pub(super) fn bequeath(&self) -> (Shape, RawFd) {
        (self.memory.shape(), self.memory.descriptor())
    }
}

/// Starts the thread of a queue; returns when the kernel has its entries.
fn start(queue: Queue) -> io::Result<JoinHandle<()>> {
    let (tell, begun) = mpsc::sync_channel(1);
    let thread = std::thread::Builder::new().name(format!("fuse-cpu-{}", queue.shared.number)).spawn(move || {
        match queue.begin() {
            Ok(run) => {
                // Who asks waits for this.
                let _ = tell.send(Ok(()));
                run();
            }
            Err(error) => drop(tell.send(Err(error))),
        }
    })?;
    begun.recv().unwrap_or_else(|_| Err(io::Error::other("its thread ended")))?;
    Ok(thread)
}

fn join(threads: Vec<JoinHandle<()>>) {
    for thread in threads {
        if thread.join().is_err() {
            warn!("a thread that served a queue panicked");
        }
    }
}

/// How many queues the kernel has, if it numbers its processors without a gap.
fn processors() -> Option<u16> {
    let possible = numbers(&std::fs::read_to_string(POSSIBLE).ok()?)?;
    let count = u16::try_from(possible.len()).ok()?;
    possible.into_iter().eq(0..count).then_some(count)
}

/// The processors that programs run on.
fn online() -> BTreeSet<u16> {
    let online = std::fs::read_to_string(ONLINE).ok();
    online.and_then(|list| numbers(&list)).unwrap_or_default()
}

/// Whether this process may run where programs do: else a queue could not be asked from its processor.
fn runs_everywhere() -> bool {
    let Ok(own) = rustix::thread::sched_getaffinity(None) else { return false };
    online().into_iter().map(usize::from).all(|number| number < CpuSet::MAX_CPU && own.is_set(number))
}

/// The numbers in a list of ranges, such as `0-3,8`.
fn numbers(list: &str) -> Option<BTreeSet<u16>> {
    let range = |range: &str| {
        let (first, last) = range.split_once('-').unwrap_or((range, range));
        Some(first.parse::<u16>().ok()?..=last.parse::<u16>().ok()?)
    };
    let ranges: Option<Vec<_>> = list.trim().split(',').map(range).collect();
    Some(ranges?.into_iter().flatten().collect())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lists_of_processors_read_as_the_kernel_writes_them() {
        let read = |list: &str| numbers(list).map(|numbers| numbers.into_iter().collect::<Vec<_>>());
        assert_eq!(read("0-1\n"), Some(vec![0, 1]));
        assert_eq!(read("0,2-4"), Some(vec![0, 2, 3, 4]));
        assert_eq!((read(""), read("0-x"), read("70000")), (None, None, None));
    }
}
