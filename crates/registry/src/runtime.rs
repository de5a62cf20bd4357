//! What the consensus library asks of a runtime, answered by the host: tasks, time and chance. So it runs in a simulated
//! world as in the real one, and from equal seeds it tells equal stories.
//!
//! The library asks through functions without a receiver. Whoever polls its futures therefore names the host for as long as
//! the poll lasts ([`within`]), and tasks that it spawns hand the name on.

use std::cell::RefCell;
use std::convert::Infallible;
use std::future::Future;
use std::ops::{Add, AddAssign, Sub, SubAssign};
use std::pin::Pin;
use std::task::{Context, Poll};
use std::time::Duration;

use futures_channel::oneshot;
use host::{BoxFuture, Host, Moment};
use openraft::AsyncRuntime;
use openraft::async_runtime::{Instant, Oneshot, OneshotSender, mutex};

use crate::channel::Channel;
use crate::watch::Watching;

thread_local! {
    static HOST: RefCell<Option<Host>> = const { RefCell::new(None) };
}

/// The host that is named.
pub(crate) fn host() -> Host {
    HOST.with_borrow(|host| host.clone()).expect("the consensus library is polled within a host")
}

/// Names `host` to the library while `future` is polled.
pub(crate) fn within<F: Future>(host: &Host, future: F) -> Within<F> {
    Within { host: host.clone(), future: Box::pin(future) }
}

/// Names `host` to the library while `call` runs.
pub(crate) fn inside<T>(host: &Host, call: impl FnOnce() -> T) -> T {
    let _named = Named::new(host);
    call()
}

/// The outcome of `future`, unless it takes longer than `patience`. Where no host is named it takes what it takes.
pub(crate) async fn in_time<F: Future + Send>(patience: Duration, future: F) -> Option<F::Output> {
    if !is_within() {
        return Some(future.await);
    }
    HostRuntime::timeout(patience, future).await.ok()
}

/// Whether a host is named.
pub(crate) fn is_within() -> bool {
    HOST.with_borrow(Option::is_some)
}

/// A future with the host that it runs on.
pub(crate) struct Within<F> {
    host: Host,
    future: Pin<Box<F>>,
}

impl<F: Future> Future for Within<F> {
    type Output = F::Output;

    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<F::Output> {
        let _named = Named::new(&self.host);
        self.future.as_mut().poll(context)
    }
}

/// The name given until this is dropped; then the one before holds again, for one part may poll another.
struct Named(Option<Host>);

impl Named {
    fn new(host: &Host) -> Named {
        Named(HOST.replace(Some(host.clone())))
    }
}

impl Drop for Named {
    fn drop(&mut self) {
        HOST.set(self.0.take());
    }
}

/// The host as the library's runtime.
#[derive(Debug)]
pub struct HostRuntime;

impl AsyncRuntime for HostRuntime {
    type JoinError = Dropped;
    type JoinHandle<T: Send + 'static> = Outcome<T>;
    type Sleep = BoxFuture<'static, ()>;
    type Instant = HostInstant;
    type TimeoutError = Late;
    type Timeout<R, T: Future<Output = R> + Send> = Patience<T>;
    type ThreadLocalRng = HostDice;
    type Mpsc = Channel;
    type Watch = Watching;
    type Oneshot = Once;
    type Mutex<T: Send + 'static> = Lock<T>;

    fn spawn<T>(future: T) -> Outcome<T::Output>
    where
        T: Future + Send + 'static,
        T::Output: Send + 'static,
    {
        let (sender, outcome) = oneshot::channel();
        let host = host();
        host.spawn(within(&host, async move { drop(sender.send(future.await)) }));
        Outcome(outcome)
    }

    fn sleep(duration: Duration) -> Self::Sleep {
        Self::sleep_until(HostInstant::now() + duration)
    }

    fn sleep_until(deadline: HostInstant) -> Self::Sleep {
        let host = host();
        Box::pin(async move { host.sleep_until(deadline.0).await })
    }

    fn timeout<R, F: Future<Output = R> + Send>(duration: Duration, future: F) -> Patience<F> {
        Self::timeout_at(HostInstant::now() + duration, future)
    }

    fn timeout_at<R, F: Future<Output = R> + Send>(deadline: HostInstant, future: F) -> Patience<F> {
        Patience { future: Box::pin(future), end: Self::sleep_until(deadline) }
    }

    fn is_panic(_error: &Dropped) -> bool {
        // A task that panics takes its host with it.
        false
    }

    fn thread_rng() -> HostDice {
        HostDice(host())
    }

    fn new(_threads: usize) -> Self {
        HostRuntime
    }

    fn block_on<F, T>(&mut self, _future: F) -> T
    where
        F: Future<Output = T>,
    {
        unreachable!("the host's own runtime runs everything")
    }
}

/// The outcome of a task.
pub struct Outcome<T>(oneshot::Receiver<T>);

impl<T> Future for Outcome<T> {
    type Output = Result<T, Dropped>;

    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Self::Output> {
        Pin::new(&mut self.0).poll(context).map_err(|_| Dropped)
    }
}

/// A task ended without an outcome: its host did.
#[derive(Debug, thiserror::Error)]
#[error("the task was dropped")]
pub struct Dropped;

/// A future ran out of time.
#[derive(Debug, thiserror::Error)]
#[error("out of time")]
pub struct Late;

/// A future that is given up at a deadline.
pub struct Patience<F> {
    future: Pin<Box<F>>,
    end: BoxFuture<'static, ()>,
}

impl<F: Future> Future for Patience<F> {
    type Output = Result<F::Output, Late>;

    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Self::Output> {
        if let Poll::Ready(value) = self.future.as_mut().poll(context) {
            return Poll::Ready(Ok(value));
        }
        self.end.as_mut().poll(context).map(|()| Err(Late))
    }
}

/// A moment of the host's monotonic clock.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct HostInstant(pub(crate) Moment);

impl Instant for HostInstant {
    fn now() -> Self {
        HostInstant(host().now())
    }
}

impl Add<Duration> for HostInstant {
    type Output = Self;

    fn add(self, wait: Duration) -> Self {
        HostInstant(self.0 + wait)
    }
}

impl AddAssign<Duration> for HostInstant {
    fn add_assign(&mut self, wait: Duration) {
        *self = *self + wait;
    }
}

impl Sub<Duration> for HostInstant {
    type Output = Self;

    fn sub(self, span: Duration) -> Self {
        let span = u64::try_from(span.as_nanos()).unwrap_or(u64::MAX);
        HostInstant(Moment(self.0.0.saturating_sub(span)))
    }
}

impl SubAssign<Duration> for HostInstant {
    fn sub_assign(&mut self, span: Duration) {
        *self = *self - span;
    }
}

impl Sub for HostInstant {
    type Output = Duration;

    fn sub(self, earlier: Self) -> Duration {
        self.0 - earlier.0
    }
}

/// The host's dice.
pub struct HostDice(Host);

impl rand_core::TryRng for HostDice {
    type Error = Infallible;

    fn try_next_u32(&mut self) -> Result<u32, Infallible> {
        Ok((self.0.random() >> 32) as u32)
    }

    fn try_next_u64(&mut self) -> Result<u64, Infallible> {
        Ok(self.0.random())
    }

    fn try_fill_bytes(&mut self, bytes: &mut [u8]) -> Result<(), Infallible> {
        for chunk in bytes.chunks_mut(8) {
            chunk.copy_from_slice(&self.0.random().to_le_bytes()[..chunk.len()]);
        }
        Ok(())
    }
}

/// A channel for one value.
pub struct Once;

/// Its sending end.
pub struct OnceSender<T>(oneshot::Sender<T>);

impl Oneshot for Once {
    type Sender<T: Send> = OnceSender<T>;
    type Receiver<T: Send> = oneshot::Receiver<T>;
    type ReceiverError = oneshot::Canceled;

    fn channel<T: Send>() -> (OnceSender<T>, oneshot::Receiver<T>) {
        let (sender, receiver) = oneshot::channel();
        (OnceSender(sender), receiver)
    }
}

impl<T: Send> OneshotSender<T> for OnceSender<T> {
    fn send(self, value: T) -> Result<(), T> {
        self.0.send(value)
    }
}

/// A lock that tasks wait for.
pub struct Lock<T>(async_lock::Mutex<T>);

impl<T: Send + 'static> mutex::Mutex<T> for Lock<T> {
    type Guard<'a> = async_lock::MutexGuard<'a, T>;

    fn new(value: T) -> Self {
        Lock(async_lock::Mutex::new(value))
    }

    fn lock(&self) -> impl Future<Output = Self::Guard<'_>> + Send {
        self.0.lock()
    }
}
