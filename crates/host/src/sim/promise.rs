//! One value, given once and awaited once: how the world answers what a task asked.

use std::future::Future;
use std::pin::Pin;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::{Context, Poll, Waker};

/// The giver's end. Dropped unfulfilled, it breaks the promise.
pub(super) struct Promise<T>(Arc<Mutex<State<T>>>);

/// The waiter's end: a future of the value.
pub(super) struct Awaited<T>(Arc<Mutex<State<T>>>);

/// The promise was dropped: whoever would have kept it died.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Broken;

enum State<T> {
    Waiting(Option<Waker>),
    Kept(T),
    Broken,
    /// The waiter has the value, or left.
    Closed,
}

/// Both ends of a new promise.
pub(super) fn promise<T>() -> (Promise<T>, Awaited<T>) {
    let state = Arc::new(Mutex::new(State::Waiting(None)));
    (Promise(state.clone()), Awaited(state))
}

impl<T> Promise<T> {
    /// Gives the value, and gives it back when nobody waits for it any more.
    pub(super) fn keep(self, value: T) -> Option<T> {
        let mut state = lock(&self.0);
        match std::mem::replace(&mut *state, State::Closed) {
            State::Waiting(waker) => {
                *state = State::Kept(value);
                drop(state);
                if let Some(waker) = waker {
                    waker.wake();
                }
                None
            }
            _ => Some(value),
        }
    }
}

impl<T> Drop for Promise<T> {
    fn drop(&mut self) {
        let mut state = lock(&self.0);
        if let State::Waiting(waker) = &mut *state {
            let waker = waker.take();
            *state = State::Broken;
            drop(state);
            if let Some(waker) = waker {
                waker.wake();
            }
        }
    }
}

impl<T> Future for Awaited<T> {
    type Output = Result<T, Broken>;

    fn poll(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Self::Output> {
        let mut state = lock(&self.0);
        match std::mem::replace(&mut *state, State::Closed) {
            State::Waiting(_) => {
                *state = State::Waiting(Some(context.waker().clone()));
                Poll::Pending
            }
            State::Kept(value) => Poll::Ready(Ok(value)),
            State::Broken => Poll::Ready(Err(Broken)),
            State::Closed => panic!("a promise was awaited again after it ended"),
        }
    }
}

impl<T> Drop for Awaited<T> {
    fn drop(&mut self) {
        // Moved out first: the value's own drop must not run under the lock.
        let left = std::mem::replace(&mut *lock(&self.0), State::Closed);
        drop(left);
    }
}

fn lock<T>(state: &Mutex<State<T>>) -> MutexGuard<'_, State<T>> {
    // A panicking test still drops its tasks: poison must not turn one panic into two.
    state.lock().unwrap_or_else(PoisonError::into_inner)
}
