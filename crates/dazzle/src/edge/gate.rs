//! Where serving threads pass before they read a request, so that they can be held while another process takes their mount
//! over.
//!
//! A request counts from before it is read until it is answered: when none counts, the kernel waits for nobody here.

use std::os::fd::OwnedFd;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Condvar, Mutex, PoisonError};

use rustix::event::{EventfdFlags, PollFd, PollFlags};
use rustix::io::Errno;

/// The gate of one mount.
pub(super) struct Gate {
    held: AtomicBool,
    under_way: AtomicUsize,
    /// Readable while the gate is held: it wakes who sleeps at the device.
    bell: OwnedFd,
    opened: (Mutex<()>, Condvar),
}

/// A request that is read, or about to be.
pub(super) struct Passage(Arc<Gate>);

impl Gate {
    pub(super) fn new() -> Result<Gate, Errno> {
        let bell = rustix::event::eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)?;
        let (held, under_way) = (AtomicBool::new(false), AtomicUsize::new(0));
        Ok(Gate { held, under_way, bell, opened: (Mutex::new(()), Condvar::new()) })
    }

    /// Passes if the gate is open.
    pub(super) fn try_pass(self: &Arc<Self>) -> Option<Passage> {
        // Who holds the gate sees this passage, or the passage sees that it is held.
        self.under_way.fetch_add(1, Ordering::SeqCst);
        let passage = Passage(self.clone());
        (!self.held.load(Ordering::SeqCst)).then_some(passage)
    }

    /// Returns when the gate is open.
    pub(super) fn pass(self: &Arc<Self>) -> Passage {
        loop {
            if let Some(passage) = self.try_pass() {
                return passage;
            }
            let mut waiting = self.opened.0.lock().unwrap_or_else(PoisonError::into_inner);
            while self.held.load(Ordering::SeqCst) {
                waiting = self.opened.1.wait(waiting).unwrap_or_else(PoisonError::into_inner);
            }
        }
    }

    /// Sleeps until the device has a request, or the gate is held.
    pub(super) fn sleep(&self, device: &OwnedFd) -> Result<(), Errno> {
        let mut ready = [PollFd::new(device, PollFlags::IN), PollFd::new(&self.bell, PollFlags::IN)];
        rustix::event::poll(&mut ready, None).map(drop)
    }

    /// From now on nobody passes.
    pub(super) fn hold(&self) {
        self.held.store(true, Ordering::SeqCst);
        // It is never so full that it would take no more.
        let _ = rustix::io::write(&self.bell, &1u64.to_ne_bytes());
    }

    /// All pass again.
    pub(super) fn open(&self) {
        let _waiting = self.opened.0.lock().unwrap_or_else(PoisonError::into_inner);
        let _ = rustix::io::read(&self.bell, &mut [0; 8]);
        self.held.store(false, Ordering::SeqCst);
        self.opened.1.notify_all();
    }

    /// Whether nobody passes.
    pub(super) fn is_held(&self) -> bool {
        self.held.load(Ordering::SeqCst)
    }

    /// How many requests are not answered.
    pub(super) fn under_way(&self) -> usize {
        self.under_way.load(Ordering::SeqCst)
    }
}

impl Drop for Passage {
    fn drop(&mut self) {
        self.0.under_way.fetch_sub(1, Ordering::SeqCst);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn nobody_passes_a_held_gate_and_who_passed_before_is_seen() {
        let gate = Arc::new(Gate::new().expect("the kernel has room"));
        let before = gate.pass();
        gate.hold();
        assert_eq!(gate.under_way(), 1);
        let other = gate.clone();
        let waiting = std::thread::spawn(move || drop(other.pass()));
        // What sleeps at a device that says nothing is woken.
        let silent = rustix::event::eventfd(0, EventfdFlags::CLOEXEC).expect("the kernel has room");
        gate.sleep(&silent).expect("the bell rings");
        drop(before);
        while gate.under_way() > 0 {
            std::hint::spin_loop();
        }
        gate.open();
        waiting.join().expect("it passed");
        assert_eq!(gate.under_way(), 0);
    }
}
