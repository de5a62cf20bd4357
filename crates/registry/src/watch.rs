//! A value that is watched: receivers see the newest, and wait for newer ones. For the consensus library; the usual one
//! wakes its receivers in an order that comes from real chance, and a seed would not replay.

use std::ops::Deref;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, PoisonError, RwLock, RwLockReadGuard};

use event_listener::Event;
use openraft::async_runtime::watch::{RecvError, SendError, Watch, WatchReceiver, WatchSender};

/// Channels with one watched value.
pub struct Watching;

struct Shared<T> {
    value: RwLock<T>,
    /// Rises with every change of the value, while it is locked.
    version: AtomicU64,
    senders: AtomicUsize,
    receivers: AtomicUsize,
    changed: Event,
}

/// An end that changes the value.
pub struct WatchedSender<T>(Arc<Shared<T>>);

/// An end that sees it.
pub struct WatchedReceiver<T> {
    shared: Arc<Shared<T>>,
    seen: u64,
}

/// A look at the value, which cannot change meanwhile.
pub struct Look<'a, T>(RwLockReadGuard<'a, T>);

impl Watch for Watching {
    type Sender<T: Send + Sync> = WatchedSender<T>;
    type Receiver<T: Send + Sync> = WatchedReceiver<T>;
    type Ref<'a, T: Send + 'a> = Look<'a, T>;

    fn channel<T: Send + Sync>(value: T) -> (WatchedSender<T>, WatchedReceiver<T>) {
        let shared = Arc::new(Shared {
            value: RwLock::new(value),
            version: AtomicU64::new(0),
            senders: AtomicUsize::new(1),
            receivers: AtomicUsize::new(1),
            changed: Event::new(),
        });
        (WatchedSender(shared.clone()), WatchedReceiver { shared, seen: 0 })
    }
}

impl<T> Shared<T> {
    fn look(&self) -> Look<'_, T> {
        Look(self.value.read().unwrap_or_else(PoisonError::into_inner))
    }

    fn version(&self) -> u64 {
        self.version.load(Ordering::Acquire)
    }

    fn modify(&self, modify: impl FnOnce(&mut T) -> bool) -> bool {
        let mut value = self.value.write().unwrap_or_else(PoisonError::into_inner);
        let modified = modify(&mut value);
        if modified {
            self.version.fetch_add(1, Ordering::Release);
        }
        drop(value);
        if modified {
            self.changed.notify(usize::MAX);
        }
        modified
    }
}

impl<T: Send + Sync> WatchSender<Watching, T> for WatchedSender<T> {
    fn send(&self, value: T) -> Result<(), SendError<T>> {
        if self.0.receivers.load(Ordering::Acquire) == 0 {
            return Err(SendError(value));
        }
        self.0.modify(|old| {
            *old = value;
            true
        });
        Ok(())
    }

    fn send_if_modified<F>(&self, modify: F) -> bool
    where
        F: FnOnce(&mut T) -> bool,
    {
        self.0.modify(modify)
    }

    fn borrow_watched(&self) -> Look<'_, T> {
        self.0.look()
    }

    fn subscribe(&self) -> WatchedReceiver<T> {
        self.0.receivers.fetch_add(1, Ordering::AcqRel);
        WatchedReceiver { shared: self.0.clone(), seen: self.0.version() }
    }
}

impl<T: Send + Sync> WatchReceiver<Watching, T> for WatchedReceiver<T> {
    async fn changed(&mut self) -> Result<(), RecvError> {
        loop {
            let listener = self.shared.changed.listen();
            // Before the version: the last one may send once more, and go.
            let is_over = self.shared.senders.load(Ordering::Acquire) == 0;
            let version = self.shared.version();
            if version != self.seen {
                self.seen = version;
                return Ok(());
            }
            if is_over {
                return Err(RecvError(()));
            }
            listener.await;
        }
    }

    fn borrow_watched(&self) -> Look<'_, T> {
        self.shared.look()
    }

    fn borrow_and_update(&mut self) -> Look<'_, T> {
        let look = self.shared.look();
        self.seen = self.shared.version();
        look
    }
}

impl<T> Clone for WatchedSender<T> {
    fn clone(&self) -> Self {
        self.0.senders.fetch_add(1, Ordering::AcqRel);
        WatchedSender(self.0.clone())
    }
}

impl<T> Drop for WatchedSender<T> {
    fn drop(&mut self) {
        if self.0.senders.fetch_sub(1, Ordering::AcqRel) == 1 {
            self.0.changed.notify(usize::MAX);
        }
    }
}

impl<T> Clone for WatchedReceiver<T> {
    fn clone(&self) -> Self {
        self.shared.receivers.fetch_add(1, Ordering::AcqRel);
        WatchedReceiver { shared: self.shared.clone(), seen: self.seen }
    }
}

impl<T> Drop for WatchedReceiver<T> {
    fn drop(&mut self) {
        self.shared.receivers.fetch_sub(1, Ordering::AcqRel);
    }
}

impl<T> Deref for Look<'_, T> {
    type Target = T;

    fn deref(&self) -> &T {
        &self.0
    }
}
