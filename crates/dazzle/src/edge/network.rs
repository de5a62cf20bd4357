//! Calls between nodes: framed, multiplexed, both ways, over connections whose two ends have proven who they are.
//! `docs/format-network.md` gives the bytes and the limits.
//!
//! | noun | it is |
//! |---|---|
//! | [`Network`] | the handle: calls nodes, learns where they are, answers those who call |
//! | [`Tongue`] | which messages a port speaks, and how they become frames (`wire`) |
//! | `frame`, `hello` | the bytes; `pulse`, `backoff`: when a peer is dead, when to dial again. All pure |
//! | `passing` | messages of other ports within those that go around cut links |
//! | `connection` | calls under way, flow control, life; `inbound`, `outbound`: its two directions |
//! | `members` | who was removed from the cluster, and may ask nothing more |
//! | `peer` | the connections to one node; `dialling`, `listener`: how they are made; `guests`: who has proven nothing yet |
//! | [`join()`], [`Admission`] | how a machine gets its certificate |
//! | [`NetworkError`], [`JoinError`] | why not, and what to do |
//!
//! *Never*: what a message means; a retry of a call that may have taken effect.

mod backoff;
mod connection;
mod dialling;
mod error;
pub mod frame;
#[cfg(any(test, feature = "fuzzing"))]
pub mod fuzzing;
mod guests;
pub mod hello;
mod inbound;
mod join;
mod listener;
mod members;
mod outbound;
mod passing;
mod peer;
pub mod pulse;
#[cfg(test)]
mod tests;
mod wire;

use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use host::{Address, Envelope, Link, NodeId};
use protocol::maps::Maps;
use tokio::net::TcpListener;
use tokio::runtime::Handle;
use tokio::task::JoinHandle;

use super::ports::Ports;
use super::trust::Identity;

/// The newest version of what nodes say to each other that this program speaks.
pub const NETWORK_VERSION: u16 = *hello::VERSIONS.end();

pub use connection::{BULK_WINDOW_BYTES, IDLE_MAX, SMALL_WINDOW_BYTES};
pub use dialling::DIAL_PATIENCE;
pub use error::{JoinError, NetworkError};
pub use join::{
    Admission, Admitted, AuthorityKey, CLOCKS_APART_MAX, JOIN_PATIENCE, JOIN_VERSION, JoinRefusal, JoinRequest, Joined,
    Newcomer, PLAN_VERSION, PlanRequest, Planned, join, plan,
};
pub use listener::expect_free;
pub use peer::PeerStatus;
pub use wire::{EncodeError, Encoded, TONGUES, Tongue, weight};

use connection::Office;
use join::Door;
use members::Members;
use peer::Peer;

/// With what a network starts.
pub struct NetworkOptions {
    /// Who this node is.
    pub identity: Identity,
    /// Where it listens: host and port.
    pub listen: String,
    /// What its ports speak.
    pub tongues: &'static [Tongue],
    /// Who lets machines in, if this node can.
    pub admission: Option<Arc<dyn Admission>>,
    /// This life of the node: drawn by lot, never the same twice.
    pub session: u64,
}

/// The way to other nodes, and theirs to this one. It ends when it is dropped, and all calls with it.
pub struct Network {
    shared: Arc<Shared>,
    address: SocketAddr,
    accepting: JoinHandle<()>,
}

/// What every part of a network sees.
struct Shared {
    identity: Identity,
    session: u64,
    office: Arc<Office>,
    door: Door,
    started: Instant,
    /// Grows with the cluster's nodes only: callers are entered once they have proven to be one.
    peers: Mutex<BTreeMap<NodeId, Arc<Peer>>>,
}

impl Network {
    /// Listens, and answers calls for what `ports` hold, on `runtime`.
    pub async fn start(options: NetworkOptions, ports: Arc<Ports>, runtime: Handle) -> Result<Network, NetworkError> {
        let NetworkOptions { identity, listen, tongues, admission, session } = options;
        let deaf =
            |error: std::io::Error| NetworkError::NoListening { address: listen.clone(), why: error.to_string() };
        let listener = TcpListener::bind(&listen).await.map_err(deaf)?;
        let address = listener.local_addr().map_err(deaf)?;
        let shared = Arc::new(Shared {
            identity,
            session,
            office: Arc::new(Office { ports, tongues, runtime: runtime.clone(), members: Members::default() }),
            door: Door::new(admission),
            started: Instant::now(),
            peers: Mutex::default(),
        });
        let accepting = runtime.spawn(listener::accept_all(shared.clone(), listener));
        Ok(Network { shared, address, accepting })
    }

    /// Where it listens.
    pub fn address(&self) -> SocketAddr {
        self.address
    }

    /// `node` is at `address`: host and port.
    pub fn know(&self, node: NodeId, address: String) {
        self.shared.peer(node).know(address);
    }

    /// Who is a node of the cluster: by these maps, unless newer ones were shown.
    pub fn know_members(&self, maps: &Maps) {
        self.shared.office.members.know(maps);
    }

    /// How the other nodes are.
    pub fn peers(&self) -> Vec<PeerStatus> {
        let peers = self.shared.peers.lock().expect("no panic while peers are held");
        peers.values().map(|peer| peer.status()).collect()
    }

    /// How the link to another node is.
    pub fn link(&self, node: NodeId) -> Link {
        let peers = self.shared.peers.lock().expect("no panic while peers are held");
        peers.get(&node).map_or(Link::Unknown, |peer| peer.link())
    }

    /// Connects with another node, or tells why that cannot be.
    pub fn reach(&self, node: NodeId) -> impl Future<Output = Result<(), NetworkError>> + Send + 'static {
        let shared = self.shared.clone();
        async move { shared.peer(node).reached(&shared).await }
    }

    /// Calls another node, and waits for its answer.
    pub fn call(
        &self,
        to: Address,
        request: Envelope,
    ) -> impl Future<Output = Result<Envelope, NetworkError>> + Send + 'static {
        let shared = self.shared.clone();
        async move {
            let tongue =
                shared.office.tongue(to.port).unwrap_or_else(|| panic!("nothing is spoken on port {}", to.port.0));
            let encoded = tongue.encode_request(&request).map_err(NetworkError::TooLarge)?;
            drop(request);
            shared.peer(to.node).call(&shared, tongue, encoded).await
        }
    }
}

impl Drop for Network {
    fn drop(&mut self) {
        self.accepting.abort();
        let peers = std::mem::take(&mut *self.shared.peers.lock().expect("no panic while peers are held"));
        peers.values().for_each(|peer| peer.close(&connection::Ended::Closed));
    }
}

impl Shared {
    /// The node's peer, from now on.
    fn peer(&self, node: NodeId) -> Arc<Peer> {
        let mut peers = self.peers.lock().expect("no panic while peers are held");
        peers.entry(node).or_insert_with(|| Arc::new(Peer::new(node))).clone()
    }

    /// The time since the start.
    fn now(&self) -> Duration {
        self.started.elapsed()
    }
}
