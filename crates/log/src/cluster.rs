//! The registry's maps, cached, and the way to the targets. This file awaits; it decides nothing.

use std::future::pending;
use std::pin::pin;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, OnceLock, PoisonError};
use std::time::Duration;

use event_listener::{Event, EventListener};
use futures_util::future::{Either, select};
use host::{Address, BoxFuture, Envelope, Host, NodeId, Port};
use protocol::id::{LogId, MapEpoch, TargetId};
use protocol::maps::{Maps, NodeEntry, NodeState};
use protocol::registry::{REGISTRY_PORT, RegistryAnswer, RegistryError, RegistryReply, RegistryRequest};
use protocol::storage::{
    STORAGE_PORT, StorageAnswer, StorageError, StorageReply, StorageRequest, StoredFragment, ToTarget,
};

use crate::LogError;
use crate::seal::Turns;

/// How long an append or a sync may take before its target counts as failed: a busy disk's worst.
pub(crate) const WRITE_PATIENCE: Duration = Duration::from_secs(20);
/// How long anything else may take.
const READ_PATIENCE: Duration = Duration::from_secs(5);
/// How long a target of a machine that is gone may take to show that it is there all the same.
const SIGN_PATIENCE: Duration = Duration::from_millis(300);
/// How long a registry may take: longer than it looks for a leader itself.
const REGISTRY_PATIENCE: Duration = Duration::from_secs(12);
/// How long the newest maps are waited for, and how long of one registry: longer than most elections take. Another one may
/// have a leader.
pub(crate) const NEWEST_PATIENCE: Duration = Duration::from_secs(8);
const NEWEST_PATIENCE_EACH: Duration = Duration::from_secs(4);
/// How long they are asked for again by who cannot begin without.
const BEGIN_PATIENCE: Duration = Duration::from_secs(30);
const BEGIN_PAUSE: Duration = Duration::from_millis(100);
/// How often what people decide is asked for while others decide something first.
const DECIDE_TRIES: usize = 5;
/// How long nobody is asked for newer maps after nobody could tell.
const FOLLOW_PAUSE: Duration = Duration::from_secs(1);

/// A node's view of its cluster. Clones share the cached maps.
#[derive(Clone)]
pub struct Cluster {
    host: Host,
    /// The nodes whose registries were known at first; and which of those that may be asked answered last.
    registries: Arc<[NodeId]>,
    answering: Arc<AtomicUsize>,
    /// Which of the others was asked last, in case that none of these can answer.
    elsewhere: Arc<AtomicUsize>,
    maps: Arc<Mutex<Arc<Maps>>>,
    /// Newer maps were learnt.
    learnt: Arc<Event>,
    lease: Arc<OnceLock<Box<dyn Lease>>>,
    /// The logs that this node is sealing.
    sealing: Arc<Turns>,
    /// Whether what is asked of targets is not to wait behind what others here ask of them.
    is_urgent: bool,
}

/// The lease of this node, as it knows it itself (DESIGN §6, the one lease).
pub trait Lease: Send + Sync {
    /// For how long it holds yet unless it is given up: until then nobody else can be given what is ours.
    fn left(&self) -> Duration;
    /// Whether it will never hold again. Until then nobody else has been given anything.
    fn is_over(&self) -> bool;
    /// Returns when it does not hold.
    fn lapse(&self) -> BoxFuture<'static, ()>;
    /// Returns when it holds, or is over.
    fn outcome(&self) -> BoxFuture<'static, ()>;
}

impl Cluster {
    /// Fetches the maps for the first time, from the registry of one node.
    pub async fn connect(host: Host, registry_node: NodeId) -> Result<Cluster, LogError> {
        Cluster::connect_any(host, &[registry_node]).await
    }

    /// Fetches the maps for the first time. Whichever of these nodes' registries answers is asked until it does not.
    pub async fn connect_any(host: Host, registries: &[NodeId]) -> Result<Cluster, LogError> {
        let answering = AtomicUsize::new(0);
        match in_turn(&host, registries, &answering, RegistryRequest::Maps).await {
            Ok(RegistryReply::Maps(maps)) => {
                let (registries, maps) = (registries.into(), Arc::new(Mutex::new(maps)));
                let (elsewhere, learnt, lease, sealing) = Default::default();
                let answering = Arc::new(answering);
                let is_urgent = false;
                Ok(Cluster { host, registries, answering, elsewhere, maps, learnt, lease, sealing, is_urgent })
            }
            Ok(_) => Err(LogError::Unavailable("the registry did not answer with its maps".into())),
            Err(error) => Err(LogError::Unavailable(error.to_string())),
        }
    }

    /// Asks for newer maps for as long as anybody has this cluster: how a node without a replica learns of changes.
    pub fn follow(&self) {
        let (maps, registries) = (Arc::downgrade(&self.maps), self.registries.clone());
        let (host, answering, lease) = (self.host.clone(), self.answering.clone(), self.lease.clone());
        let (elsewhere, learnt, sealing) = (self.elsewhere.clone(), self.learnt.clone(), self.sealing.clone());
        self.host.spawn(async move {
            while let Some(maps) = maps.upgrade() {
                let known = Cluster {
                    host: host.clone(),
                    registries: registries.clone(),
                    answering: answering.clone(),
                    elsewhere: elsewhere.clone(),
                    maps,
                    learnt: learnt.clone(),
                    lease: lease.clone(),
                    sealing: sealing.clone(),
                    is_urgent: false,
                };
                let epoch = known.maps().epoch;
                if known.registry(RegistryRequest::Watch { epoch }).await.is_err() {
                    drop(known);
                    host.sleep(FOLLOW_PAUSE).await;
                }
            }
        });
    }

    /// The same, for what many wait for: what is asked of targets by it, and their answers, go over links that are full as if
    /// nobody else here asked anything.
    pub fn urgently(&self) -> Cluster {
        Cluster { is_urgent: true, ..self.clone() }
    }

    /// From now on this node answers for what it was given only while `lease` says that its lease holds.
    pub fn lease_by(&self, lease: Box<dyn Lease>) {
        // A node has one session in its life.
        let _ = self.lease.set(lease);
    }

    /// Whether nobody can have been given what is ours: the lease holds, or there is nobody else.
    pub fn is_trusted(&self) -> bool {
        self.is_trusted_for(Duration::ZERO)
    }

    /// Whether nobody can be given what is ours before so long from now, unless it is given up.
    pub fn is_trusted_for(&self, longer: Duration) -> bool {
        self.trusted_for() > longer
    }

    /// For how long yet nobody can be given what is ours, unless it is given up; for ever where there is nobody else.
    pub fn trusted_for(&self) -> Duration {
        match self.lease.get() {
            Some(lease) if self.maps().nodes.len() > 1 => lease.left(),
            _ => Duration::MAX,
        }
    }

    /// Returns when others may soon be given what is ours.
    pub async fn distrust(&self) {
        loop {
            let newer = self.newer_maps();
            if !self.is_trusted() {
                return;
            }
            match self.lease.get() {
                Some(lease) if self.maps().nodes.len() > 1 => lease.lapse().await,
                // Alone: others join with newer maps.
                _ => newer.await,
            }
        }
    }

    /// Returns when it is known whether they were. False: what was ours others have, or will be given.
    pub async fn is_trusted_again(&self) -> bool {
        loop {
            match self.lease.get() {
                _ if self.is_trusted() => return true,
                Some(lease) if lease.is_over() => return false,
                Some(lease) => lease.outcome().await,
                None => return true,
            }
        }
    }

    /// Whether the work that one node does for all is this one's: the first living one's that stores.
    pub fn leads(&self) -> bool {
        let maps = self.maps();
        maps.storing().next().is_none_or(|first| first == self.host.node().0)
    }

    /// The machine.
    pub fn host(&self) -> &Host {
        &self.host
    }

    /// The maps as this node knows them.
    pub fn maps(&self) -> Arc<Maps> {
        self.maps.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// The maps as this node knows them whenever that is asked: none when nobody has this cluster any more.
    pub fn known(&self) -> impl Fn() -> Option<Arc<Maps>> + Send + Sync + use<> {
        let maps = Arc::downgrade(&self.maps);
        move || Some(maps.upgrade()?.lock().unwrap_or_else(PoisonError::into_inner).clone())
    }

    /// Fetches the maps again, as the replica that is asked has them. It may be behind, for as long as nothing reaches it.
    pub async fn refresh(&self) -> Result<Arc<Maps>, RegistryError> {
        self.registry(RegistryRequest::Maps).await?;
        Ok(self.maps())
    }

    /// Fetches maps in which nothing lacks that anybody was told before. The registry's leader asks a quorum for them: this is
    /// for who would conclude from what he does not find (`docs/decisions/0042`).
    pub async fn newest(&self) -> Result<Arc<Maps>, RegistryError> {
        self.newest_within(NEWEST_PATIENCE).await
    }

    /// The same, asked for again for half a minute: machines that are started together have no leader yet.
    pub async fn newest_to_begin(&self) -> Result<Arc<Maps>, RegistryError> {
        let end = self.host.now() + BEGIN_PATIENCE;
        loop {
            match self.newest().await {
                Err(_) if self.host.now() < end => self.host.sleep(BEGIN_PAUSE).await,
                asked => return asked,
            }
        }
    }

    pub(crate) async fn newest_within(&self, patience: Duration) -> Result<Arc<Maps>, RegistryError> {
        let asking = pin!(self.registry(RegistryRequest::Newest { epoch: self.maps().epoch }));
        match select(asking, pin!(self.host.sleep(patience))).await {
            Either::Left((answer, _)) => answer.map(|_| self.maps()),
            Either::Right(_) => Err(RegistryError::Unavailable("too few of the machines that vote answer".into())),
        }
    }

    /// Maps that tell of a log of which somebody told: what these do not show of it, or of older ones, is no more.
    pub async fn knowing(&self, log: LogId) -> Result<Arc<Maps>, RegistryError> {
        let maps = self.refresh().await?;
        if log < maps.next_log { Ok(maps) } else { self.newest().await }
    }

    /// Asks the registry; the maps in its answer become this node's.
    pub async fn registry(&self, request: RegistryRequest) -> RegistryAnswer {
        let answer = match in_turn(&self.host, &self.asked(), &self.answering, request.clone()).await {
            Err(RegistryError::Elsewhere(why)) => self.registry_elsewhere(request, why).await,
            answer => answer,
        };
        if let Some(maps) = answer.as_ref().ok().and_then(RegistryReply::maps) {
            self.learn(maps);
        }
        answer
    }

    /// Whose registries are asked: the own replica, where there is one; else those that were known at first, and all that
    /// store now, for the former may be gone for good.
    fn asked(&self) -> Vec<NodeId> {
        let mut asked = self.registries.to_vec();
        if !asked.contains(&self.host.node()) {
            asked.extend(self.maps().storing().map(NodeId).filter(|node| !self.registries.contains(node)));
        }
        asked
    }

    /// Asks the replicas of others: those that are known here do not answer.
    async fn registry_elsewhere(&self, request: RegistryRequest, why: String) -> RegistryAnswer {
        let maps = self.maps();
        let others: Vec<NodeId> = maps.storing().map(NodeId).filter(|node| !self.registries.contains(node)).collect();
        if others.is_empty() {
            return Err(RegistryError::Unavailable(why));
        }
        match in_turn(&self.host, &others, &self.elsewhere, request).await {
            Err(RegistryError::Elsewhere(why)) => Err(RegistryError::Unavailable(why)),
            answer => answer,
        }
    }

    /// Asks for what people decide. It must not undo what others decide later, when a copy of it comes late: it says by which
    /// maps, and is asked for again where somebody else was first, or who was asked did not know what was decided before.
    pub async fn decide(&self, request: impl Fn(MapEpoch) -> RegistryRequest) -> RegistryAnswer {
        let mut answer = self.registry(request(self.refresh().await?.epoch)).await;
        for _ in 1..DECIDE_TRIES {
            if !matches!(answer, Err(RegistryError::Lost)) {
                break;
            }
            answer = self.registry(request(self.newest().await?.epoch)).await;
        }
        answer
    }

    /// Takes maps that came with a message, unless they are older than those known.
    pub fn learn(&self, maps: &Arc<Maps>) {
        let mut known = self.maps.lock().unwrap_or_else(PoisonError::into_inner);
        if maps.epoch > known.epoch {
            *known = maps.clone();
            drop(known);
            self.wake_followers();
        }
    }

    /// Wakes when newer maps are learnt than those known now.
    pub fn newer_maps(&self) -> EventListener {
        self.learnt.listen()
    }

    /// Lets those who wait for newer maps look whether they have anything left to do.
    pub(crate) fn wake_followers(&self) {
        self.learnt.notify(usize::MAX);
    }

    /// The logs that this node is sealing.
    pub(crate) fn sealing(&self) -> &Turns {
        &self.sealing
    }

    /// Asks a target, wherever it lives. One that does not answer in time is a failed target: nobody waits for a hung
    /// disk (DESIGN §13, promise 3), nor for a machine that is known to be dead. An answer at the first poll costs no timer.
    pub async fn ask(&self, target: TargetId, request: StorageRequest) -> StorageAnswer {
        let Some(node) = self.node_of(target) else { return Err(StorageError::NoTarget(target)) };
        let is_write = matches!(request, StorageRequest::Append(_) | StorageRequest::Replace(_) | StorageRequest::Sync);
        let patience = if is_write { WRITE_PATIENCE } else { READ_PATIENCE };
        let asking = self.ask_for(node, target, request, patience);
        if is_write || !self.is_gone(node) {
            return asking.await;
        }
        match select(pin!(asking), pin!(self.gives_no_sign(node, target))).await {
            Either::Left((answer, _)) => answer,
            Either::Right(_) => Err(StorageError::Silent("its machine is gone, and gives no sign".into())),
        }
    }

    async fn ask_for(
        &self,
        node: NodeId,
        target: TargetId,
        request: StorageRequest,
        patience: Duration,
    ) -> StorageAnswer {
        let to = Address { node, port: Port(STORAGE_PORT) };
        let asked = Envelope::new(ToTarget { target, request });
        let asked = if self.is_urgent { asked.urgent() } else { asked };
        let call = pin!(self.host.send::<StorageAnswer>(to, asked));
        match select(call, pin!(self.host.sleep(patience))).await {
            Either::Left((Ok(answer), _)) => believed(answer),
            Either::Left((Err(unreachable), _)) => Err(StorageError::Silent(unreachable.to_string())),
            Either::Right(_) => Err(StorageError::Silent(format!("no answer for {} s", patience.as_secs()))),
        }
    }

    /// Returns when a target has not said for a short time how full it is, which it says at once; never, if it
    /// has. A machine that is gone is dead most often: whoever takes over from it asks its targets several times.
    async fn gives_no_sign(&self, node: NodeId, target: TargetId) {
        let to = Address { node, port: Port(STORAGE_PORT) };
        let asked = Envelope::new(ToTarget { target, request: StorageRequest::Stat }).urgent();
        let call = pin!(self.host.send::<StorageAnswer>(to, asked));
        if let Either::Left((Ok(_), _)) = select(call, pin!(self.host.sleep(SIGN_PATIENCE))).await {
            pending::<()>().await;
        }
    }

    /// Whether the session of another node is over, as far as is known.
    fn is_gone(&self, node: NodeId) -> bool {
        let known = self.maps.lock().unwrap_or_else(PoisonError::into_inner);
        let is_over = |entry: &NodeEntry| entry.session > 0 && entry.state == NodeState::Gone;
        node != self.host.node() && known.nodes.get(&node.0).is_some_and(is_over)
    }

    /// Whether a target is this machine's.
    pub(crate) fn is_here(&self, target: TargetId) -> bool {
        self.node_of(target) == Some(self.host.node())
    }

    fn node_of(&self, target: TargetId) -> Option<NodeId> {
        let known = self.maps.lock().unwrap_or_else(PoisonError::into_inner);
        known.targets.get(&target).map(|entry| NodeId(entry.node))
    }
}

/// Asks one registry after the other, beginning with the one that answered last, until one can tell. A change that would
/// harm if it took effect twice is asked for once: whoever cannot answer may have carried it out.
async fn in_turn(
    host: &Host,
    registries: &[NodeId],
    answering: &AtomicUsize,
    request: RegistryRequest,
) -> RegistryAnswer {
    let first = answering.load(Ordering::Relaxed);
    let mut error = RegistryError::Unavailable("there is no registry to ask".into());
    let is_newest = matches!(request, RegistryRequest::Newest { .. });
    let patience = if is_newest { NEWEST_PATIENCE_EACH } else { REGISTRY_PATIENCE };
    for at in (first..first + registries.len()).map(|at| at % registries.len()) {
        let to = Address { node: registries[at], port: Port(REGISTRY_PORT) };
        if is_newest {
            // Who does not wait for the answer asks another one the next time.
            answering.store((at + 1) % registries.len(), Ordering::Relaxed);
        }
        let call = pin!(host.call::<RegistryRequest, RegistryAnswer>(to, request.clone()));
        error = match select(call, pin!(host.sleep(patience))).await {
            Either::Left((Ok(Err(error @ (RegistryError::Unavailable(_) | RegistryError::Elsewhere(_)))), _)) => error,
            Either::Left((Ok(answer), _)) => {
                answering.store(at, Ordering::Relaxed);
                return answer;
            }
            Either::Left((Err(unreachable), _)) => RegistryError::Unavailable(unreachable.to_string()),
            Either::Right(_) => RegistryError::Unavailable(format!("node {} does not answer", to.node.0)),
        };
        answering.store((at + 1) % registries.len(), Ordering::Relaxed);
        // Who says that another may be asked has done nothing.
        if !is_repeatable(&request) && !matches!(error, RegistryError::Elsewhere(_)) {
            break;
        }
    }
    Err(error)
}

/// Whether it harms nobody that a request takes effect twice.
fn is_repeatable(request: &RegistryRequest) -> bool {
    !matches!(
        request,
        RegistryRequest::AddRun { .. }
            | RegistryRequest::FinishRuns { .. }
            | RegistryRequest::Claim { .. }
            | RegistryRequest::SetSlots { .. }
            | RegistryRequest::AddNode { .. }
            | RegistryRequest::AddTargets { .. }
    )
}

/// What a target tells of fragments is looked at here, once: everybody behind counts with it. One that tells of a fragment
/// that cannot be has failed.
fn believed(answer: StorageAnswer) -> StorageAnswer {
    let Ok(StorageReply::Fragments(fragments)) = &answer else { return answer };
    match fragments.iter().find_map(StoredFragment::contradiction) {
        Some(why) => Err(StorageError::Failed(format!("it tells of a fragment that cannot be: {why}"))),
        None => answer,
    }
}

impl std::fmt::Debug for Cluster {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Cluster of {:?}", self.host)
    }
}
