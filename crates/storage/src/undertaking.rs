//! What a target has begun goes on to its end, whether or not anybody waits for it.
//!
//! Who asks gives up after a while (a call has a time limit, a caller may be gone), and drops what is half done. But a disk
//! that was asked to write writes all the same, later: until then the stripe must stay locked, the cells taken, and the target
//! counted as in use. And reads go on as well: only who waits for all that a disk was asked can tell that it answers nothing
//! (`watch`).

use std::pin::Pin;
use std::task::{Context, Poll};

use host::{BoxFuture, Host};

/// Work for whoever waits for it. Once it was begun, which is when it was first polled, it ends only with the node's life:
/// dropped, it goes on by itself.
pub(crate) struct Undertaking<T: Send + 'static> {
    host: Host,
    /// `None` when it is over.
    work: Option<BoxFuture<'static, T>>,
    is_begun: bool,
}

impl<T: Send + 'static> Undertaking<T> {
    /// Work that runs on `host` if nobody waits for it. It owns all that it needs.
    pub(crate) fn new(host: Host, work: impl Future<Output = T> + Send + 'static) -> Undertaking<T> {
        Undertaking { host, work: Some(Box::pin(work)), is_begun: false }
    }
}

impl<T: Send + 'static> Future for Undertaking<T> {
    type Output = T;

    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<T> {
        self.is_begun = true;
        // What panics is over: it is not put back.
        let mut work = self.work.take().expect("what is over is not polled again");
        let polled = work.as_mut().poll(context);
        if polled.is_pending() {
            self.work = Some(work);
        }
        polled
    }
}

impl<T: Send + 'static> Drop for Undertaking<T> {
    fn drop(&mut self) {
        // A life that is over runs nothing: there the work is dropped at once.
        if let Some(work) = self.work.take().filter(|_| self.is_begun) {
            self.host.spawn(async move { drop(work.await) });
        }
    }
}
