//! How a thread that serves a queue is told, from elsewhere, that there is something to do: answers that can be gone on with,
//! and a change of what it is to do.

use std::cell::Cell;
use std::os::fd::OwnedFd;
use std::ptr;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::Wake;

use rustix::event::EventfdFlags;

thread_local! {
    /// The bell of the thread itself, which it need not be rung for.
    static OWN: Cell<*const Bell> = const { Cell::new(ptr::null()) };
}

/// The bell of one thread.
pub(super) struct Bell {
    /// Readable when it was rung.
    pub(super) event: OwnedFd,
    state: Mutex<State>,
}

#[derive(Default)]
struct State {
    /// Entries whose answers can be gone on with.
    woken: Vec<u32>,
    /// Whether it is rung already.
    is_rung: bool,
}

impl Bell {
    pub(super) fn new() -> rustix::io::Result<Bell> {
        let event = rustix::event::eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)?;
        Ok(Bell { event, state: Mutex::default() })
    }

    /// The current thread looks by itself before it sleeps.
    pub(super) fn is_own(self: &Arc<Self>) {
        OWN.set(Arc::as_ptr(self));
    }

    /// Wakes the thread.
    pub(super) fn ring(&self) {
        let mut state = self.state();
        self.ring_for(&mut state);
    }

    /// Entries to go on with, each but once.
    pub(super) fn woken(&self) -> Vec<u32> {
        let mut woken = std::mem::take(&mut self.state().woken);
        woken.sort_unstable();
        woken.dedup();
        woken
    }

    /// Whether there are any.
    pub(super) fn is_anyone_woken(&self) -> bool {
        !self.state().woken.is_empty()
    }

    /// Who was woken by it looks from now on.
    pub(super) fn fell_silent(&self) {
        let mut state = self.state();
        // It is empty where nobody rang.
        let _ = rustix::io::read(&self.event, &mut [0; 8]);
        state.is_rung = false;
    }

    fn ring_for(&self, state: &mut State) {
        if !state.is_rung {
            state.is_rung = true;
            // It is never so full that it would take no more.
            let _ = rustix::io::write(&self.event, &1u64.to_ne_bytes());
        }
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Wakes what goes on with the answer for one entry.
pub(super) struct EntryWaker {
    pub(super) bell: Arc<Bell>,
    pub(super) entry: u32,
}

impl Wake for EntryWaker {
    fn wake(self: Arc<Self>) {
        self.wake_by_ref();
    }

    fn wake_by_ref(self: &Arc<Self>) {
        let mut state = self.bell.state();
        state.woken.push(self.entry);
        if !ptr::eq(OWN.get(), Arc::as_ptr(&self.bell)) {
            self.bell.ring_for(&mut state);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn rings(bell: &Bell) -> bool {
        let mut ready = [rustix::event::PollFd::new(&bell.event, rustix::event::PollFlags::IN)];
        let at_once = rustix::event::Timespec { tv_sec: 0, tv_nsec: 0 };
        rustix::event::poll(&mut ready, Some(&at_once)).expect("it can be looked at") > 0
    }

    #[test]
    fn who_is_woken_from_elsewhere_is_rung_for_once_and_who_wakes_itself_is_not() {
        let bell = Arc::new(Bell::new().expect("the kernel has room"));
        let waker = |entry| Arc::new(EntryWaker { bell: bell.clone(), entry });
        bell.is_own();
        waker(3).wake();
        assert!(!rings(&bell));
        assert_eq!(bell.woken(), [3]);
        let elsewhere = [waker(2), waker(1), waker(2)];
        std::thread::spawn(move || elsewhere.into_iter().for_each(Wake::wake)).join().expect("it wakes");
        assert!(rings(&bell));
        assert_eq!(bell.woken(), [1, 2]);
        bell.fell_silent();
        assert!(!rings(&bell), "it was heard");
        bell.ring();
        assert!(rings(&bell));
    }
}
