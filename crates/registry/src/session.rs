//! A node's own side of its lease: it begins a session, renews the lease in the background, and knows to the moment whether
//! it holds. On every node, with a replica or without one.

use std::pin::pin;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};
use std::time::Duration;

use event_listener::Event;
use futures_util::future::{Either, select};
use host::{Address, Host, Moment, NodeId, Port};
use protocol::id::LogId;
use protocol::maps::{Maps, NodeEntry, NodeState};
use protocol::registry::{
    DRIFT, LEASE, PAUSE_MAX, REGISTRY_PORT, RegistryAnswer, RegistryError, RegistryReply, RegistryRequest,
};

/// How often the lease is renewed: two renewals may be lost before it runs out. None waits for the one before: where links
/// are full, answers are late.
pub(crate) const RENEWAL: Duration = Duration::from_secs(1);
/// How often where the lease runs out before the next would be sent: links that are back are to be found soon.
const RENEWAL_URGENT: Duration = Duration::from_millis(200);
/// How long one node is waited for before the next is asked.
const PATIENCE: Duration = Duration::from_millis(1500);
/// How often the nodes are asked in turn until one lets a session begin.
const BEGIN_ROUNDS: u32 = 20;
const BEGIN_PAUSE: Duration = Duration::from_millis(250);

/// One session of this node. Clones are the same session, which goes on as long as there is one, or until it is over.
#[derive(Clone)]
pub struct Session(Arc<Shared>);

struct Shared {
    host: Host,
    node: u32,
    number: u64,
    ask: Registries,
    /// Which of them is asked first: who did not answer is not the next time.
    first: AtomicUsize,
    /// This process is about to end, and another goes on.
    paused: AtomicBool,
    lease: Mutex<Lease>,
    changed: Event,
}

/// The registries that may be asked by now, the nearest first.
type Registries = Box<dyn Fn() -> Vec<NodeId> + Send + Sync>;

/// What a new session begins with.
#[derive(Clone, Debug)]
pub struct Life {
    /// Whose.
    pub node: u32,
    /// The last session of the node that is known here.
    pub after: u64,
    /// Where its daemon is called.
    pub address: String,
    /// The log of that session's client that this one's goes on with.
    pub keeps: Option<LogId>,
}

/// What is known of the lease.
#[derive(Clone, Copy)]
struct Lease {
    /// It holds before this moment.
    until: Moment,
    /// The registry has ended the session: nothing brings it back.
    over: bool,
}

impl Session {
    /// Begins a session, and returns with its lease held. The registries on the nodes that `ask` tells, each time anew, are
    /// tried in turn: in a long life all of them may be replaced. One that was to go on with a log begins only if nobody took
    /// that for dead: else [`RegistryError::Over`].
    pub async fn begin(
        host: &Host,
        ask: impl Fn() -> Vec<NodeId> + Send + Sync + 'static,
        life: Life,
    ) -> Result<Session, RegistryError> {
        let Life { node, mut after, address, keeps } = life;
        let mut error = RegistryError::Unknown("registry to ask".into());
        for _ in 0..BEGIN_ROUNDS {
            let begin = || RegistryRequest::Begin { node, after, address: address.clone(), keeps };
            match in_turn(host, &ask(), begin).await {
                Ok(RegistryReply::Session(number, _)) => {
                    let lease = Mutex::new(Lease { until: Moment(0), over: false });
                    let (host, changed) = (host.clone(), Event::new());
                    let (ask, first): (Registries, _) = (Box::new(ask), AtomicUsize::new(0));
                    let paused = AtomicBool::new(false);
                    let shared = Shared { host, node, number, ask, first, paused, lease, changed };
                    let session = Session(Arc::new(shared));
                    renew(Arc::downgrade(&session.0), Duration::ZERO).await;
                    session.keep();
                    return Ok(session);
                }
                Ok(_) => error = RegistryError::Unknown("answer".into()),
                // By a request of which no answer came in time, or before the maps here were so new.
                Err(RegistryError::Begun(_, newest)) => {
                    (error, after) = (RegistryError::Begun(node, newest), newest);
                    continue;
                }
                Err(error @ (RegistryError::Unknown(_) | RegistryError::Removed(_) | RegistryError::Over(..))) => {
                    return Err(error);
                }
                Err(other) => error = other,
            }
            host.sleep(BEGIN_PAUSE).await;
        }
        Err(error)
    }

    /// The session's number.
    pub fn number(&self) -> u64 {
        self.0.number
    }

    /// Whether the lease holds at `now`, a moment of the host's clock: then, and only then, nobody else has what it gives.
    pub fn holds(&self, now: Moment) -> bool {
        let lease = self.0.lease();
        !lease.over && now < lease.until
    }

    /// Until when the lease holds, unless it is renewed.
    pub fn until(&self) -> Moment {
        self.0.lease().until
    }

    /// Whether the registry has ended the session. One whose lease merely ran out may hold again: nobody was given what it
    /// had.
    pub fn is_over(&self) -> bool {
        self.0.lease().over
    }

    /// Returns when the lease does not hold.
    pub async fn lost(&self) {
        loop {
            let listener = self.0.changed.listen();
            if !self.holds(self.0.host.now()) {
                return;
            }
            select(listener, pin!(self.0.host.sleep_until(self.until()))).await;
        }
    }

    /// Returns when the lease holds, or never will again.
    pub async fn settled(&self) {
        loop {
            let listener = self.0.changed.listen();
            if self.holds(self.0.host.now()) || self.is_over() {
                return;
            }
            listener.await;
        }
    }

    /// Gives the lease back, for a clean stop. From here on it does not hold.
    pub async fn end(self) -> Result<(), RegistryError> {
        self.0.finish();
        let Shared { node, number: session, .. } = *self.0;
        in_turn(&self.0.host, &(self.0.ask)(), || RegistryRequest::End { node, session }).await.map(drop)
    }

    /// The others are not to give this node up for a while: its next life goes on with what this one had. Renews no more, until
    /// [`Session::go_on`].
    pub async fn pause(&self) {
        self.0.paused.store(true, Ordering::Release);
        renew(Arc::downgrade(&self.0), PAUSE_MAX).await;
    }

    /// This life goes on after all.
    pub fn go_on(&self) {
        self.0.paused.store(false, Ordering::Release);
    }

    /// Renews for as long as somebody has the session.
    fn keep(&self) {
        let (weak, host) = (Arc::downgrade(&self.0), self.0.host.clone());
        host.clone().spawn(async move {
            let mut interval = RENEWAL;
            loop {
                host.sleep(interval).await;
                let lease = weak.upgrade().map(|shared| *shared.lease());
                let Some(Lease { until, over: false }) = lease else { return };
                interval = if until < host.now() + RENEWAL { RENEWAL_URGENT } else { RENEWAL };
                if weak.upgrade().is_some_and(|shared| !shared.paused.load(Ordering::Acquire)) {
                    host.spawn(renew(weak.clone(), Duration::ZERO));
                }
            }
        });
    }
}

/// Asks for the lease once. It counts from before it was asked for; an answer that comes when it would be over is not waited
/// for.
async fn renew(session: Weak<Shared>, pause: Duration) {
    let Some((host, ask, request)) = session.upgrade().map(|shared| shared.renewal(pause)) else { return };
    let sent = host.now();
    let asking = pin!(in_turn(&host, &ask, || request.clone()));
    let answer = match select(asking, pin!(host.sleep(LEASE))).await {
        Either::Left((answer, _)) => answer,
        Either::Right(_) => Err(RegistryError::Unavailable("no answer in time".into())),
    };
    let Some(shared) = session.upgrade() else { return };
    match answer {
        Ok(_) => shared.extend(sent + (LEASE - DRIFT)),
        Err(RegistryError::Over(..) | RegistryError::Removed(_)) => shared.finish(),
        // Perhaps the next one is heard.
        Err(_) => drop(shared.first.fetch_add(1, Ordering::Relaxed)),
    }
}

impl Shared {
    /// Whom to ask for the lease, in turn, and what.
    fn renewal(&self, pause: Duration) -> (Host, Vec<NodeId>, RegistryRequest) {
        let mut ask = (self.ask)();
        let first = self.first.load(Ordering::Relaxed) % ask.len().max(1);
        ask.rotate_left(first);
        (self.host.clone(), ask, RegistryRequest::Renew { node: self.node, session: self.number, pause })
    }

    fn lease(&self) -> MutexGuard<'_, Lease> {
        self.lease.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn extend(&self, until: Moment) {
        let mut lease = self.lease();
        lease.until = lease.until.max(until);
        drop(lease);
        self.changed.notify(usize::MAX);
    }

    fn finish(&self) {
        self.lease().over = true;
        self.changed.notify(usize::MAX);
    }
}

/// Whose registries to ask, by the maps: the own replica first, where there is one, and who lives before who does not.
pub fn registries(maps: &Maps, own: NodeId) -> Vec<NodeId> {
    let storing = maps.nodes.iter().filter(|(_, entry)| entry.stores);
    let rank = |(&node, entry): (&u32, &NodeEntry)| (node != own.0, entry.state != NodeState::Alive, node);
    let mut ranked: Vec<_> = storing.map(rank).collect();
    ranked.sort_unstable();
    ranked.into_iter().map(|(.., node)| NodeId(node)).collect()
}

/// Asks the registries of `nodes` one after the other, until one can answer.
async fn in_turn(host: &Host, nodes: &[NodeId], request: impl Fn() -> RegistryRequest) -> RegistryAnswer {
    let mut error = RegistryError::Unavailable("there is nobody to ask".into());
    for &node in nodes {
        let to = Address { node, port: Port(REGISTRY_PORT) };
        let call = pin!(host.call::<RegistryRequest, RegistryAnswer>(to, request()));
        match select(call, pin!(host.sleep(PATIENCE))).await {
            Either::Left((Ok(Err(RegistryError::Unavailable(why) | RegistryError::Elsewhere(why))), _)) => {
                error = RegistryError::Unavailable(why);
            }
            Either::Left((Ok(answer), _)) => return answer,
            Either::Left((Err(unreachable), _)) => error = RegistryError::Unavailable(unreachable.to_string()),
            Either::Right(_) => error = RegistryError::Unavailable(format!("node {} does not answer", node.0)),
        }
    }
    Err(error)
}
