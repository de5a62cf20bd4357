//! Work that goes on to its end though its caller went away: an interrupted system call drops its future, and an
//! operation half told to a manager would leave the caches wrong.

use std::future::Future;
use std::sync::{Arc, Mutex, PoisonError};
use std::task::Poll;

use event_listener::Event;
use host::Host;

/// Runs `work` in place; if it has to wait, it goes on beside the caller, who may be dropped at any time. What completes
/// at the first poll costs neither a task nor a wake-up.
pub(crate) async fn whole<T: Send + 'static>(host: &Host, work: impl Future<Output = T> + Send + 'static) -> T {
    let mut work = Box::pin(work);
    if let Poll::Ready(outcome) = futures_util::poll!(&mut work) {
        return outcome;
    }
    let promise = Arc::new(Promise { outcome: Mutex::new(None), kept: Event::new() });
    let ours = promise.clone();
    host.spawn(async move {
        let outcome = work.await;
        *ours.outcome.lock().unwrap_or_else(PoisonError::into_inner) = Some(outcome);
        ours.kept.notify(usize::MAX);
    });
    promise.wait().await
}

struct Promise<T> {
    outcome: Mutex<Option<T>>,
    kept: Event,
}

impl<T> Promise<T> {
    async fn wait(&self) -> T {
        loop {
            let kept = self.kept.listen();
            if let Some(outcome) = self.outcome.lock().unwrap_or_else(PoisonError::into_inner).take() {
                return outcome;
            }
            kept.await;
        }
    }
}
