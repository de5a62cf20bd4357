//! The real machine behind a `host::Host`: tokio's timers and tasks, the kernel's clocks and dice, and calls: to parts of
//! this node straight to their handlers, to other nodes over the network.

use std::sync::{Arc, OnceLock};
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use host::{Address, BoxFuture, Envelope, Handler, Host, Link, Machine, Moment, NodeId, Port, Unreachable, WallTime};
use protocol::maps::Maps;
use tokio::runtime::Handle;
use tracing::debug;

use super::network::{Network, NetworkError, NetworkOptions, PeerStatus};
use super::ports::Ports;

/// One running daemon's machine.
pub struct RealMachine {
    node: NodeId,
    started: Instant,
    runtime: Handle,
    ports: Arc<Ports>,
    network: OnceLock<Network>,
}

impl RealMachine {
    /// The machine of `node`, whose tasks run on `runtime`, alone for now.
    pub fn new(node: NodeId, runtime: Handle) -> Arc<RealMachine> {
        let (started, ports, network) = (Instant::now(), Arc::default(), OnceLock::new());
        Arc::new(RealMachine { node, started, runtime, ports, network })
    }

    /// A handle before the machine of `node`, which stays alone.
    pub fn host(node: NodeId, runtime: Handle) -> Host {
        Host::new(RealMachine::new(node, runtime))
    }

    /// Connects the machine with other nodes, once.
    ///
    /// # Panics
    /// When the identity is another node's, or the machine was connected before.
    pub async fn connect(&self, options: NetworkOptions) -> Result<(), NetworkError> {
        assert_eq!(options.identity.name().node, self.node, "a machine connects as itself");
        let network = Network::start(options, self.ports.clone(), self.runtime.clone()).await?;
        assert!(self.network.set(network).is_ok(), "a machine is connected once");
        Ok(())
    }

    /// Where the machine listens for other nodes, if it is connected.
    pub fn address(&self) -> Option<std::net::SocketAddr> {
        self.network.get().map(Network::address)
    }

    /// Another node is at `address`: host and port.
    pub fn know(&self, node: NodeId, address: String) {
        if let Some(network) = self.network.get().filter(|_| node != self.node) {
            network.know(node, address);
        }
    }

    /// Who is a node of the cluster, by these maps.
    pub fn know_members(&self, maps: &Maps) {
        if let Some(network) = self.network.get() {
            network.know_members(maps);
        }
    }

    /// Connects with another node, or tells why that cannot be. A machine that is alone is connected with everybody there is.
    pub async fn reach(&self, node: NodeId) -> Result<(), NetworkError> {
        match self.network.get() {
            Some(network) => network.reach(node).await,
            None => Ok(()),
        }
    }

    /// How the other nodes are.
    pub fn peers(&self) -> Vec<PeerStatus> {
        self.network.get().map(Network::peers).unwrap_or_default()
    }

    fn call_away(&self, to: Address, request: Envelope) -> BoxFuture<'static, Result<Envelope, Unreachable>> {
        let Some(network) = self.network.get() else { return Box::pin(async move { Err(Unreachable(to)) }) };
        let answer = network.call(to, request);
        Box::pin(async move {
            answer.await.map_err(|error| {
                debug!(node = to.node.0, port = to.port.0, %error, "a call has no answer");
                Unreachable(to)
            })
        })
    }
}

impl Machine for RealMachine {
    fn node(&self) -> NodeId {
        self.node
    }

    fn now(&self) -> Moment {
        Moment(u64::try_from(self.started.elapsed().as_nanos()).unwrap_or(u64::MAX))
    }

    fn wall(&self) -> WallTime {
        let now = SystemTime::now();
        WallTime(match now.duration_since(UNIX_EPOCH) {
            Ok(since) => i64::try_from(since.as_nanos()).unwrap_or(i64::MAX),
            Err(before) => i64::try_from(before.duration().as_nanos()).map_or(i64::MIN, |nanoseconds| -nanoseconds),
        })
    }

    fn random(&self) -> u64 {
        getrandom::u64().expect("the kernel gives random numbers once it has started")
    }

    fn sleep_until(&self, moment: Moment) -> BoxFuture<'static, ()> {
        let at = self.started + Duration::from_nanos(moment.0);
        // The timer belongs to a runtime; the caller's thread may be none of its workers.
        let _entered = self.runtime.enter();
        Box::pin(tokio::time::sleep_until(at.into()))
    }

    fn spawn(&self, task: BoxFuture<'static, ()>) {
        self.runtime.spawn(task);
    }

    fn call(&self, to: Address, request: Envelope) -> BoxFuture<'static, Result<Envelope, Unreachable>> {
        if to.node != self.node {
            return self.call_away(to, request);
        }
        match self.ports.handler(to.port) {
            Some(handler) => {
                let answer = handler.handle(self.node, request);
                Box::pin(async move { Ok(answer.await) })
            }
            None => Box::pin(async move { Err(Unreachable(to)) }),
        }
    }

    fn listen(&self, port: Port, handler: Arc<dyn Handler>) {
        self.ports.register(port, handler);
    }

    fn link(&self, node: NodeId) -> Link {
        self.network.get().map_or(Link::Unknown, |network| network.link(node))
    }
}
