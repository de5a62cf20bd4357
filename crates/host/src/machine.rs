//! The handle that every part carries, and the trait that a world implements behind it.

use std::any::Any;
use std::fmt;
use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;
use std::time::Duration;

use crate::{Address, Envelope, Handler, Moment, NodeId, Port, Unreachable, WallTime};

/// A future behind a pointer, so that a handle needs no type parameter.
pub type BoxFuture<'a, T> = Pin<Box<dyn Future<Output = T> + Send + 'a>>;

/// What a world gives one node.
pub trait Machine: Send + Sync {
    /// The node this machine runs.
    fn node(&self) -> NodeId;
    /// The monotonic clock.
    fn now(&self) -> Moment;
    /// The clock that people read.
    fn wall(&self) -> WallTime;
    /// Sixty-four random bits; in a simulated world they follow from the seed.
    fn random(&self) -> u64;
    /// Completes at `moment` or soon after.
    fn sleep_until(&self, moment: Moment) -> BoxFuture<'static, ()>;
    /// Runs a task beside the caller, to its end or the machine's.
    fn spawn(&self, task: BoxFuture<'static, ()>);
    /// Delivers a request and brings the answer. A part of the same machine answers whatever it hears, so that no answer
    /// of one says that the request was not heard.
    fn call(&self, to: Address, request: Envelope) -> BoxFuture<'static, Result<Envelope, Unreachable>>;
    /// Registers who answers calls to `port` of this node. A port is registered once.
    fn listen(&self, port: Port, handler: Arc<dyn Handler>);
    /// How the link to a node is, where calls to it fail. A world that knows nothing of links says that it is down.
    fn link(&self, _node: NodeId) -> Link {
        Link::Down
    }
}

/// How the link to another node is, as far as a machine knows.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Link {
    /// Nobody has said where the node is.
    Unknown,
    /// It carries calls, small ones at least: one that fails does so for another reason.
    Up,
    /// It carries none.
    Down,
    /// The node refuses this one, or is refused: they are not to speak.
    Refused,
}

/// A part's way to its machine: cheap to clone, free of type parameters, the same before every world.
#[derive(Clone)]
pub struct Host(pub(crate) Arc<dyn Machine>);

impl Host {
    /// A handle before `machine`.
    pub fn new(machine: Arc<dyn Machine>) -> Self {
        Host(machine)
    }

    /// The node this handle belongs to.
    pub fn node(&self) -> NodeId {
        self.0.node()
    }

    /// The monotonic clock.
    pub fn now(&self) -> Moment {
        self.0.now()
    }

    /// The clock that people read.
    pub fn wall(&self) -> WallTime {
        self.0.wall()
    }

    /// Sixty-four random bits.
    pub fn random(&self) -> u64 {
        self.0.random()
    }

    /// Waits for `wait`.
    pub async fn sleep(&self, wait: Duration) {
        self.0.sleep_until(self.now() + wait).await;
    }

    /// Waits until `moment`.
    pub async fn sleep_until(&self, moment: Moment) {
        self.0.sleep_until(moment).await;
    }

    /// Runs `task` beside the caller.
    pub fn spawn(&self, task: impl Future<Output = ()> + Send + 'static) {
        self.0.spawn(Box::pin(task));
    }

    /// Sends `request` and waits for the answer, which must be of the type that the part at `to` gives.
    ///
    /// # Panics
    /// When the part answers with another type: two parts of one binary disagree about `protocol`.
    pub async fn call<Q, A>(&self, to: Address, request: Q) -> Result<A, Unreachable>
    where
        Q: Any + Send,
        A: Any + Send,
    {
        self.send(to, Envelope::new(request)).await
    }

    /// The same for an envelope.
    pub async fn send<A: Any + Send>(&self, to: Address, request: Envelope) -> Result<A, Unreachable> {
        let answer = self.0.call(to, request).await?;
        Ok(answer.open().unwrap_or_else(|_| panic!("port {} answered with a foreign type", to.port.0)))
    }

    /// Registers who answers calls to `port` of this node.
    pub fn listen(&self, port: Port, handler: Arc<dyn Handler>) {
        self.0.listen(port, handler);
    }
}

impl fmt::Debug for Host {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Host of node {}", self.node().0)
    }
}
