//! One other node: its address, its session, the connections to it.
//!
//! Invariants
//! 1. Open connections are all of one session.
//! 2. For each lane there is at most one that we dialled and one that the other did.
//! 3. A machine that is silent on all its connections has none: each would take as long to be found out. While it is heard on
//!    one, none of the others ends for it.
//! 4. Nobody waits to be told again what is known, that the machine is not reached; it is dialled again meanwhile.

use std::sync::atomic::AtomicU64;
use std::sync::{Arc, Mutex};

use host::{Envelope, Link, NodeId};
use tracing::{info, warn};

use crate::edge::trust::NodeName;

use super::Shared;
use super::backoff::Backoff;
use super::connection::{CallError, Connection, Ended, Machine, Name, Stream};
use super::dialling::{self, DIAL_PATIENCE};
use super::error::NetworkError;
use super::hello::{Hello, Lane, VERSIONS, Verdict};
use super::pulse::PATIENCE;
use super::wire::{Encoded, Tongue};

/// A call is given to so many connections, one after the other, as long as none has taken it.
const ATTEMPTS_MAX: usize = 3;

/// Another node.
pub(super) struct Peer {
    node: NodeId,
    state: Mutex<State>,
    /// Who dials a lane holds its lock; whoever else needs it waits for the outcome.
    dialling: [tokio::sync::Mutex<()>; Lane::ALL.len()],
    heard: AtomicU64,
}

#[derive(Default)]
struct State {
    address: Option<String>,
    connections: Vec<Arc<Connection>>,
    backoff: Backoff,
    error: Option<NetworkError>,
}

/// Whose connections are meant.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Dialler {
    We,
    Any,
}

/// How a peer is, for people.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PeerStatus {
    /// Which node.
    pub node: NodeId,
    /// Where it is said to be.
    pub address: Option<String>,
    /// How many connections are open.
    pub connections: usize,
    /// How many of our calls wait for answers.
    pub calls: usize,
    /// Why the last dial failed, if it did.
    pub error: Option<NetworkError>,
}

impl Peer {
    pub(super) fn new(node: NodeId) -> Peer {
        Peer { node, state: Mutex::default(), dialling: Default::default(), heard: AtomicU64::new(0) }
    }

    /// The node is at `address`.
    pub(super) fn know(&self, address: String) {
        let mut state = self.state();
        if state.address.as_ref() != Some(&address) {
            state.address = Some(address);
            state.backoff.clear();
            state.error = None;
        }
    }

    /// How it is.
    pub(super) fn status(&self) -> PeerStatus {
        let state = self.state();
        let connections = state.connections.iter().filter(|connection| connection.is_open()).count();
        let calls = state.connections.iter().map(|connection| connection.calls_under_way()).sum();
        PeerStatus { node: self.node, address: state.address.clone(), connections, calls, error: state.error.clone() }
    }

    /// How the link to it is.
    pub(super) fn link(&self) -> Link {
        let state = self.state();
        match &state.error {
            _ if state.connections.iter().any(|connection| connection.is_open()) => Link::Up,
            Some(NetworkError::Duplicate { .. } | NetworkError::Trust { .. } | NetworkError::Hello { .. }) => {
                Link::Refused
            }
            _ if state.address.is_none() => Link::Unknown,
            _ => Link::Down,
        }
    }

    /// Closes every connection.
    pub(super) fn close(&self, why: &Ended) {
        let connections = std::mem::take(&mut self.state().connections);
        connections.iter().for_each(|connection| connection.close(why));
    }

    /// Makes a call and waits for its answer.
    pub(super) async fn call(
        self: &Arc<Self>,
        shared: &Arc<Shared>,
        tongue: &Tongue,
        encoded: Encoded,
    ) -> Result<Envelope, NetworkError> {
        let (node, begun) = (self.node, shared.now());
        let lane = encoded.lane();
        let mut encoded = Box::new(encoded);
        for _ in 0..ATTEMPTS_MAX {
            let connection = match self.open(lane) {
                Some(connection) => connection,
                None => match self.dial_unless_vain(shared, lane).await {
                    Ok(connection) => connection,
                    // Who cannot be dialled may have dialled us.
                    Err(error) => self.open_by(lane, Dialler::Any).ok_or(error)?,
                },
            };
            match connection.call(*encoded).await {
                Ok(frame) => {
                    return tongue.decode_answer(frame).ok_or_else(|| {
                        connection.close(&Ended::Garbled);
                        NetworkError::Garbled(node)
                    });
                }
                // It may have waited for room on a connection that died. To dial as well would break the bound.
                Err(CallError::NotSent(back)) if shared.now() - begun < PATIENCE => encoded = back,
                Err(CallError::NotSent(_) | CallError::Lost) => return Err(NetworkError::Lost(node)),
                Err(CallError::Refused(why)) => return Err(NetworkError::NoAnswer { node, why }),
            }
        }
        Err(NetworkError::Lost(node))
    }

    /// Returns when there is a connection, or none can be.
    pub(super) async fn reached(self: &Arc<Self>, shared: &Arc<Shared>) -> Result<(), NetworkError> {
        self.dial(shared, Lane::Small).await.map(drop)
    }

    /// Whether a connection of `session` may be added: no other session's connections answer. Those that do not answer are
    /// closed.
    pub(super) async fn takes(&self, session: u64) -> bool {
        let others = |connection: &&Arc<Connection>| connection.is_open() && connection.name().session != session;
        let Some(other) = self.state().connections.iter().find(others).cloned() else { return true };
        if other.is_alive().await {
            return false;
        }
        let dead: Vec<_> = self.state().connections.iter().filter(others).cloned().collect();
        dead.iter().for_each(|connection| connection.close(&Ended::Dead));
        true
    }

    /// Adds a connection, in the place of one that it replaces, unless another session has been faster.
    pub(super) fn add(&self, connection: Arc<Connection>) -> bool {
        let name = connection.name();
        let mut replaced = None;
        {
            let mut state = self.state();
            state.connections.retain(|connection| connection.is_open());
            if state.connections.iter().any(|other| other.name().session != name.session) {
                return false;
            }
            let same = |other: &Arc<Connection>| (other.name().lane, other.name().dialled) == (name.lane, name.dialled);
            if let Some(index) = state.connections.iter().position(same) {
                replaced = Some(state.connections.swap_remove(index));
            }
            state.connections.push(connection);
            state.backoff.clear();
            state.error = None;
        }
        replaced.iter().for_each(|connection| connection.close(&Ended::Replaced));
        true
    }

    /// The connection for our calls of `lane`. Large ones have their own in each direction: a question would wait there
    /// behind our answers, megabytes that the kernel and TLS have taken already.
    fn open(&self, lane: Lane) -> Option<Arc<Connection>> {
        self.open_by(lane, if lane == Lane::Small { Dialler::Any } else { Dialler::We })
    }

    fn open_by(&self, lane: Lane, dialler: Dialler) -> Option<Arc<Connection>> {
        let fits = |name: Name| name.lane == lane && (name.dialled || dialler == Dialler::Any);
        self.state().connections.iter().find(|connection| fits(connection.name()) && connection.is_open()).cloned()
    }

    /// A connection of `lane`; at once none where the last dial failed, and another is made meanwhile.
    async fn dial_unless_vain(
        self: &Arc<Self>,
        shared: &Arc<Shared>,
        lane: Lane,
    ) -> Result<Arc<Connection>, NetworkError> {
        let (known, is_early) = {
            let state = self.state();
            (state.error.clone(), state.backoff.holds(shared.now()))
        };
        let Some(error) = known else { return self.dial(shared, lane).await };
        if !is_early && self.dialling[usize::from(lane.number())].try_lock().is_ok() {
            let (peer, shared) = (self.clone(), shared.clone());
            // The next call has its outcome.
            shared.office.runtime.clone().spawn(async move { drop(peer.dial(&shared, lane).await) });
        }
        Err(error)
    }

    /// A connection of `lane`, by whoever dials first.
    async fn dial(self: &Arc<Self>, shared: &Arc<Shared>, lane: Lane) -> Result<Arc<Connection>, NetworkError> {
        let _dialling = self.dialling[usize::from(lane.number())].lock().await;
        if let Some(connection) = self.open(lane) {
            return Ok(connection);
        }
        let address = {
            let state = self.state();
            match &state.error {
                Some(error) if state.backoff.holds(shared.now()) => return Err(error.clone()),
                _ => state.address.clone().ok_or(NetworkError::NoAddress(self.node))?,
            }
        };
        let dialled = tokio::time::timeout(DIAL_PATIENCE, self.reach(shared, &address, lane)).await;
        let dialled = dialled.unwrap_or(Err(NetworkError::TimedOut { address }));
        if let Err(error) = &dialled {
            let mut state = self.state();
            state.backoff.failed(shared.now());
            if state.error.as_ref() != Some(error) {
                warn!(node = self.node.0, %error, "a node is not reached");
            }
            state.error = Some(error.clone());
        }
        dialled
    }

    async fn reach(
        self: &Arc<Self>,
        shared: &Arc<Shared>,
        address: &str,
        lane: Lane,
    ) -> Result<Arc<Connection>, NetworkError> {
        let called = NodeName { node: self.node, cluster: shared.identity.name().cluster };
        let stream = dialling::connect(address).await?;
        let mut stream = dialling::encrypt(address, stream, &shared.identity.connector(), called.server_name()).await?;
        let hello = Hello { versions: VERSIONS, verdict: Verdict::Welcome, lane, session: shared.session };
        let answer = dialling::greet(address, &mut stream, &hello).await?;
        if answer.verdict == Verdict::Duplicate {
            return Err(NetworkError::Duplicate { node: shared.identity.name().node });
        }
        let name = Name { peer: self.node, lane, session: answer.session, dialled: true };
        let connection = Connection::new(name, shared.office.clone());
        if !self.takes(answer.session).await || !self.add(connection.clone()) {
            return Err(NetworkError::Duplicate { node: self.node });
        }
        info!(node = self.node.0, lane = lane.number(), address, "connected");
        self.run(&connection, stream);
        Ok(connection)
    }

    /// Has a connection that was added carry calls.
    pub(super) fn run(self: &Arc<Self>, connection: &Arc<Connection>, stream: impl Stream) {
        connection.run(stream, self.clone());
    }

    fn state(&self) -> std::sync::MutexGuard<'_, State> {
        self.state.lock().expect("no panic while a peer is held")
    }
}

impl Machine for Peer {
    fn heard(&self) -> &AtomicU64 {
        &self.heard
    }

    fn ping(&self) {
        let connections = self.state().connections.clone();
        connections.iter().for_each(|connection| connection.ping());
    }

    fn is_dead(&self) {
        self.close(&Ended::Dead);
    }
}
