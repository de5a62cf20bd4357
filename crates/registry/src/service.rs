//! The registry on one node: it answers from its replica of the maps, and carries changes and renewals to the leader.

use std::collections::BTreeSet;
use std::pin::pin;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use futures_util::future::{Either, join_all, select};
use host::{Address, BoxFuture, Disk, Envelope, Handler, Host, Moment, NodeId, Port};
use openraft::async_runtime::WatchReceiver;
use openraft::errors::{ClientWriteError, RaftError};
use openraft::{Config, ReadPolicy, ServerState, SnapshotPolicy};
use protocol::id::{MapEpoch, TargetId};
use protocol::maps::{Maps, Reign};
use protocol::registry::{
    CONSENSUS_PORT, ConsensusMessage, REGISTRY_PORT, RegistryAnswer, RegistryError, RegistryReply, RegistryRequest,
    WATCH,
};

use crate::awaited::Awaited;
use crate::consensus::{Agreed, Command, Raft, Snapshot};
use crate::leases::{Holder, Leases};
use crate::machine::{Machine, Published};
use crate::network::{Message, Network, Noted, Ruled, Said, Talk, ask};
use crate::rounds::Rounds;
use crate::runtime::{inside, within};
use crate::store::{Kept, Lack, LogStore, Opened, Store, first};
use crate::{ReplicaError, Standing, counting, leader, nodes, promotion, reign};

/// How long a change may look for a leader that carries it out: longer than the worst election.
const PATIENCE: Duration = Duration::from_secs(10);
/// How long one attempt may take: then perhaps somebody else leads.
const ATTEMPT: Duration = Duration::from_secs(3);
const RETRY: Duration = Duration::from_millis(50);
/// How often is looked which machines a change waits for, where nothing is heard of them.
const HELD_LOOK: Duration = Duration::from_secs(1);
/// How long a machine may take to say that it stores nothing: it need not look anything up.
const AIL_PATIENCE: Duration = Duration::from_secs(1);
/// How often is looked whether the library may tick.
const TICK_LOOK: Duration = Duration::from_secs(1);
/// How long the only voter may take to carry out what is in its log.
const START_PATIENCE: Duration = Duration::from_secs(60);

/// The registry of one storing node.
pub struct Registry {
    pub(crate) host: Host,
    pub(crate) raft: Raft,
    pub(crate) published: Arc<Published>,
    /// Of the term that this node leads, if it does.
    leases: Mutex<Option<(u64, Leases)>>,
    awaited: Mutex<Awaited>,
    rounds: Rounds,
    ruled: Arc<Ruled>,
    noted: Arc<Noted>,
    outdated: Vec<TargetId>,
    damaged: Vec<TargetId>,
    pub(crate) store: Arc<Store>,
}

/// Why a registry did not start.
#[derive(Debug, thiserror::Error)]
pub enum RegistryStart {
    /// No copy on any target.
    #[error(
        "no target holds a registry: this is no Dazzle file system, or its targets are gone. If targets of it are there, \
         `dazzle registry rebuild DIR --plan` says what can be made of what they hold"
    )]
    Nothing,
    /// The node joined a cluster and stopped before it got the maps.
    #[error(
        "this machine has joined a cluster and has not got its maps yet: start it with `dazzle up` while the others run"
    )]
    Empty,
    /// The node has its maps: it starts, and does not join.
    #[error("this node has joined its cluster already")]
    Begun,
    /// What verifies does not make sense together.
    #[error(
        "the registry on these targets contradicts itself: a voter wrote what it never should. `dazzle registry rebuild DIR \
         --plan` says what can be made of what is left"
    )]
    Contradiction,
    /// Not enough copies to be sure that the newest is among them.
    #[error(
        "only {found} of {total} targets hold a readable registry, and {needed} are needed to be sure that the newest \
         maps are among them; bring the missing targets back. If they are gone for good, or the registry on them is damaged, \
         `dazzle registry rebuild DIR --plan` says what can be made of what is left"
    )]
    TooFew {
        /// Copies that were read.
        found: usize,
        /// Targets there should be.
        total: usize,
        /// Copies needed.
        needed: usize,
    },
    /// What lies there is not ours to change.
    #[error(transparent)]
    Foreign(ReplicaError),
    /// The maps could not be stored.
    #[error("the registry could not be written: {0}")]
    Unwritten(String),
    /// The copies that are here do not count any more, or not by themselves.
    #[error("the copies of the registry that are here do not suffice, and nothing was changed: {0}")]
    Uncounted(String),
    /// Copies are missing, and the others must agree that it goes on without.
    #[error(
        "the registry could not be written: {few}. The machine goes on with those that are left once the others have agreed to \
         that, and too few of them answer ({why}): start them first"
    )]
    Alone {
        /// What is missing.
        few: String,
        /// Who does not answer.
        why: String,
    },
    /// Another machine goes on without the registry of which this is a part.
    #[error("the registry of this machine ended: {} was promoted without it", .founder)]
    Over {
        /// The reign that counts.
        reign: Reign,
        /// Who told.
        node: u32,
        /// What people call its founder.
        founder: String,
        /// Whether this machine has answered nothing that the founder does not know: then it may follow.
        may_follow: bool,
    },
    /// The only voter could not carry out what is in its log.
    #[error("the registry did not begin: {0}")]
    Stuck(String),
}

impl Registry {
    /// Makes the registry of a new cluster on its first node's targets. That node alone votes.
    pub fn create(maps: Maps, disks: Vec<(TargetId, Disk)>) -> BoxFuture<'static, Result<(), RegistryStart>> {
        Box::pin(Registry::found(maps, disks))
    }

    async fn found(maps: Maps, disks: Vec<(TargetId, Disk)>) -> Result<(), RegistryStart> {
        assert_eq!(maps.verify(), Ok(()), "nothing is stored that a start would refuse");
        let voter = maps.storing().next().ok_or(RegistryStart::Nothing)?;
        let parity = maps.parity;
        let agreed = Arc::new(Agreed { maps: Arc::new(maps), answered: Default::default() });
        let created = Store::create(first(parity, Some((voter, agreed))), &disks).await;
        created.map(drop).map_err(|error| RegistryStart::Unwritten(error.to_string()))
    }

    /// Reads what the targets of this node hold, and answers on the registry's ports. Where this node alone votes, all that
    /// was ever acknowledged is in the maps when this returns; else they may be older, and become newer.
    pub fn start(
        host: &Host,
        disks: Vec<(TargetId, Disk)>,
    ) -> BoxFuture<'static, Result<Arc<Registry>, RegistryStart>> {
        // Boxed, as the other ways in are: else the whole library is compiled anew in every program that begins a registry.
        Box::pin(Registry::resume(host.clone(), disks))
    }

    async fn resume(host: Host, disks: Vec<(TargetId, Disk)>) -> Result<Arc<Registry>, RegistryStart> {
        expect_reign(&host, &Standing::read(&disks).await?).await?;
        let opened = within(&host, Store::open(&disks)).await?;
        let snapshot = opened.store.kept().snapshot.clone();
        let maps = snapshot.map(|(_, agreed)| agreed.maps.clone()).ok_or(RegistryStart::Empty)?;
        Registry::launch(&host, opened, maps).await
    }

    /// Starts on a node that joins, with empty targets: the leader fills its replica once the node has begun its session.
    /// Until then the registry shows `maps`, which another node gave.
    ///
    /// A node that began a session before has promised things: only where its targets still show that it had not got its maps
    /// then, it may join again. One that has lost them joins as a new node.
    pub fn join(
        host: &Host,
        maps: Arc<Maps>,
        disks: Vec<(TargetId, Disk)>,
    ) -> BoxFuture<'static, Result<Arc<Registry>, RegistryStart>> {
        Box::pin(Registry::enter(host.clone(), maps, disks))
    }

    async fn enter(host: Host, maps: Arc<Maps>, disks: Vec<(TargetId, Disk)>) -> Result<Arc<Registry>, RegistryStart> {
        let began = maps.nodes.get(&host.node().0).is_some_and(|node| node.session > 0);
        if began && Store::open(&disks).await?.store.kept().snapshot.is_some() {
            return Err(RegistryStart::Begun);
        }
        let created = within(&host, Store::create(first(maps.parity, None), &disks)).await;
        let store = created.map_err(|error| RegistryStart::Unwritten(error.to_string()))?;
        Registry::launch(&host, Opened::new(store), maps).await
    }

    /// Starts on a machine whose reign is over, with an empty replica that the cluster fills: `maps` are of the next reign,
    /// whose founder knew all that this machine ever answered.
    pub fn follow(
        host: &Host,
        maps: Arc<Maps>,
        disks: Vec<(TargetId, Disk)>,
    ) -> BoxFuture<'static, Result<Arc<Registry>, RegistryStart>> {
        Box::pin(Registry::submit(host.clone(), maps, disks))
    }

    async fn submit(host: Host, maps: Arc<Maps>, disks: Vec<(TargetId, Disk)>) -> Result<Arc<Registry>, RegistryStart> {
        let own = Standing::read(&disks).await?;
        if !own.may_follow(maps.reign) {
            return Err(over(&own, (maps.reign, maps.reign.node)));
        }
        let kept = Kept { copies: own.copies, ..first(maps.parity, None) };
        let created = within(&host, Store::create(kept, &disks)).await;
        let store = created.map_err(|error| RegistryStart::Unwritten(error.to_string()))?;
        Registry::launch(&host, Opened::new(store), maps).await
    }

    async fn launch(host: &Host, opened: Opened, maps: Arc<Maps>) -> Result<Arc<Registry>, RegistryStart> {
        let Opened { store, outdated, damaged } = opened;
        // The library's own account of the voters is empty until its first task has run.
        let is_alone = store.kept().voters() == [host.node().0].into();
        let published = Published::new(maps);
        let machine = Machine::new(store.clone(), published.clone());
        let config = Arc::new(config().validate().expect("the configuration is fixed, and right"));
        let (ruled, noted) = (Ruled::new(published.maps().reign), Noted::new(host));
        let network = Network { host: host.clone(), ruled: ruled.clone(), noted: noted.clone() };
        let starting = Raft::new(host.node().0, config, network, LogStore(store.clone()), machine);
        let raft = within(host, starting).await.map_err(|error| RegistryStart::Stuck(error.to_string()))?;
        let (host, leases, awaited, rounds) = (host.clone(), Mutex::default(), Mutex::default(), Rounds::default());
        let registry =
            Registry { host, raft, published, leases, awaited, rounds, ruled, noted, outdated, damaged, store };
        let registry = Arc::new(registry);
        let host = &registry.host;
        host.listen(Port(REGISTRY_PORT), Arc::new(Service(registry.clone())));
        host.listen(Port(CONSENSUS_PORT), Arc::new(Consensus(registry.clone())));
        host.spawn(leader::lead(registry.clone()));
        host.spawn(keep_ticking(registry.clone()));
        host.spawn(counting::look_after(registry.clone()));
        if is_alone {
            registry.begin_alone().await?;
        }
        Ok(registry)
    }

    /// Nobody else is to be asked: what is in the log counts as soon as this node leads.
    async fn begin_alone(&self) -> Result<(), RegistryStart> {
        let end = self.host.now() + START_PATIENCE;
        within(&self.host, self.raft.trigger().elect(false))
            .await
            .map_err(|error| RegistryStart::Stuck(error.to_string()))?;
        loop {
            match self.confirm().await {
                Ok(()) => return Ok(()),
                Err(why) if self.host.now() >= end || self.has_failed() => return Err(RegistryStart::Stuck(why)),
                Err(_) => self.host.sleep(Duration::from_millis(5)).await,
            }
        }
    }

    /// Keeps a copy on one more target of this node from now on, or on the disk that takes the place of a target's.
    pub async fn adopt(&self, target: TargetId, disk: &Disk) -> Result<(), String> {
        within(&self.host, self.store.adopt(target, disk)).await.map_err(|error| error.to_string())
    }

    /// Keeps no copy on targets that were taken out of the cluster.
    pub(crate) async fn leave_removed(&self, maps: &Maps) {
        let copies = self.store.kept().copies.clone();
        // Maps that are behind may not know a target yet.
        let removed = |target: &TargetId| *target < maps.next_target && !maps.present().any(|(id, _)| id == *target);
        let removed: BTreeSet<TargetId> = copies.into_iter().filter(removed).collect();
        if !removed.is_empty() {
            // What could not be stored is stored with whatever is to be kept next.
            drop(within(&self.host, self.store.leave(&removed)).await);
        }
    }

    /// The maps as this node has them.
    pub fn maps(&self) -> Arc<Maps> {
        self.published.maps()
    }

    /// The maps, once this node has newer ones than those of `epoch`.
    pub async fn newer(&self, epoch: MapEpoch) -> Arc<Maps> {
        self.published.newer(epoch).await
    }

    /// Targets that missed changes before this start, whatever state the maps call them: they were away, or stand in for
    /// others.
    pub fn outdated(&self) -> Vec<TargetId> {
        self.outdated.clone()
    }

    /// Targets whose copies of the registry this start found damaged, and wrote anew where their disks took it.
    pub fn damaged(&self) -> Vec<TargetId> {
        self.damaged.clone()
    }

    /// The node that leads, as far as this one knows.
    pub fn leader(&self) -> Option<u32> {
        self.metrics(|metrics| metrics.current_leader)
    }

    /// All nodes that the consensus counts with, those that only learn too, as far as this one knows.
    pub fn members(&self) -> Vec<u32> {
        self.metrics(|metrics| metrics.membership_config.nodes().map(|(node, _)| *node).collect())
    }

    /// The nodes that vote, as far as this one knows.
    pub fn voters(&self) -> Vec<u32> {
        self.metrics(|metrics| metrics.membership_config.voter_ids().collect())
    }

    /// What this node's replica knows; nothing until a node that joins has got its maps.
    pub fn standing(&self) -> Option<Standing> {
        self.store.kept().standing()
    }

    /// Carries out one request: here, or where the leader is.
    pub async fn answer(&self, request: RegistryRequest) -> RegistryAnswer {
        if let Some(reign) = self.ruled.over() {
            return Err(ended(&request, reign));
        }
        if let Some(why) = self.ails() {
            return Err(RegistryError::Elsewhere(why));
        }
        match request {
            RegistryRequest::Maps => Ok(RegistryReply::Maps(self.maps())),
            RegistryRequest::Newest { epoch } => self.carry(Talk::Newest(epoch)).await,
            RegistryRequest::Watch { epoch } => {
                match select(pin!(self.newer(epoch)), pin!(self.host.sleep(WATCH))).await {
                    Either::Left((maps, _)) => Ok(RegistryReply::Maps(maps)),
                    Either::Right(_) => Ok(RegistryReply::Maps(self.maps())),
                }
            }
            RegistryRequest::Renew { node, session, pause } => self.carry(Talk::Renew(node, session, pause)).await,
            RegistryRequest::Expire { .. } => {
                Err(RegistryError::Unknown("node but its leader that expires others".into()))
            }
            RegistryRequest::Balance => Err(RegistryError::Unknown("node but its leader that shares slots out".into())),
            request => {
                let command = Command { id: self.host.random(), request, term: None };
                self.carry(Talk::Change(command)).await
            }
        }
    }

    /// Brings `talk` to the leader, whoever that is by then. What is proposed twice counts once.
    async fn carry(&self, talk: Talk) -> RegistryAnswer {
        let end = self.host.now() + PATIENCE;
        let is_question = matches!(talk, Talk::Newest(_));
        let mut why = "no node leads".to_owned();
        loop {
            let leader = self.leader();
            let said = match leader {
                Some(node) if node == self.host.node().0 => Ok(self.hear(&talk).await),
                Some(node) => self.ask(node, &talk).await,
                None => Ok(Said::Follows(None)),
            };
            match said {
                Ok(Said::Answer(answer)) => {
                    // What was agreed on is true here too, though this node's replica may hear of it later.
                    if let Some(maps) = answer.as_ref().ok().and_then(RegistryReply::maps) {
                        self.published.publish(maps);
                    }
                    return answer;
                }
                Ok(Said::Failed(reason)) | Err(reason) => why = reason,
                Ok(_) => {}
            }
            if self.host.now() + RETRY >= end || self.has_failed() || self.ruled.over().is_some() {
                let doubt = if is_question { "" } else { ". Whether the change took effect is unknown" };
                let why = format!(
                    "too few of the machines that vote answer ({why}). Start the others: more than half of those that \
                     vote must run{doubt}"
                );
                return Err(RegistryError::Unavailable(why));
            }
            self.host.sleep(RETRY).await;
        }
    }

    async fn ask(&self, node: u32, talk: &Talk) -> Result<Said, String> {
        let said = ask(&self.host, node, self.ruled.reign, talk).await;
        if let Ok(Said::Outdated(reign)) = said {
            self.ruled.hear(reign);
        }
        said
    }

    /// What the leader does with what is brought to it.
    async fn hear(&self, talk: &Talk) -> Said {
        match talk {
            Talk::Change(command) if reign::is_weighty(&command.request) => {
                self.propose_and_hold(command.clone()).await
            }
            Talk::Change(command) => self.propose(command.clone()).await,
            Talk::Renew(node, session, pause) => self.renew((*node, *session), *pause).await,
            Talk::Newest(epoch) => self.tell_newest(*epoch).await,
            _ => Said::Failed("only changes, renewals and questions are brought to a leader".into()),
        }
    }

    /// Proposes a change, if this node leads.
    pub(crate) async fn propose(&self, command: Command) -> Said {
        self.in_an_attempt(async { self.write(command).await.map_or_else(|said| said, |(_, answer)| answer) }).await
    }

    /// The same, answered once as many machines have it as `reign`, rule 4, asks for.
    async fn propose_and_hold(&self, command: Command) -> Said {
        let held = async {
            match self.write(command).await {
                Ok((index, answer)) => {
                    self.held(index).await;
                    answer
                }
                Err(said) => said,
            }
        };
        self.in_an_attempt(held).await
    }

    async fn in_an_attempt(&self, said: impl Future<Output = Said>) -> Said {
        match select(pin!(said), pin!(self.host.sleep(ATTEMPT))).await {
            Either::Left((said, _)) => said,
            Either::Right(_) => Said::Failed("too few machines answer".into()),
        }
    }

    /// Has it agreed on; the entry's index with the answer.
    async fn write(&self, command: Command) -> Result<(u64, Said), Said> {
        match within(&self.host, self.raft.client_write(command)).await {
            Ok(response) => {
                let answer = Said::Answer(response.data.and_then(|outcome| outcome.with(self.maps())));
                Ok((response.log_id.index, answer))
            }
            Err(RaftError::APIError(ClientWriteError::ForwardToLeader(to))) => Err(Said::Follows(to.leader_id)),
            Err(error) => Err(Said::Failed(error.to_string())),
        }
    }

    /// Returns when as many machines have the entry as the class asks for, or live.
    async fn held(&self, index: u64) {
        let own = self.host.node().0;
        let mut metrics = inside(&self.host, || self.raft.metrics());
        loop {
            let maps = self.maps();
            let lacking: Vec<(Holder, Option<u64>)> = {
                let now = metrics.borrow_and_update();
                let matched = |node: u32| now.replication.as_ref()?.get(&node).copied().flatten().map(|id| id.index);
                let has = |node: u32| matched(node).is_some_and(|matched| matched >= index);
                let awaited = reign::awaited(&maps, own, has).into_iter();
                awaited.map(|node| ((node, maps.nodes[&node].session), matched(node))).collect()
            };
            if lacking.is_empty() {
                return;
            }
            let overdue = self.overdue(&lacking);
            join_all(overdue.into_iter().map(|holder| self.give_up_if_it_ails(holder))).await;
            let (changed, newer) = (pin!(metrics.changed()), pin!(self.newer(maps.epoch)));
            let news = select(changed, newer);
            if let Either::Left((Either::Left((Err(_), _)), _)) = select(news, pin!(self.host.sleep(HELD_LOOK))).await {
                // The library has ended.
                return std::future::pending().await;
            }
        }
    }

    /// Those of the machines that a change waits for that are overdue.
    fn overdue(&self, lacking: &[(Holder, Option<u64>)]) -> Vec<Holder> {
        let (now, mut awaited) = (self.host.now(), self.awaited.lock().unwrap_or_else(PoisonError::into_inner));
        let overdue = lacking.iter().filter(|(holder, index)| awaited.is_overdue(*holder, *index, now));
        overdue.map(|(holder, _)| *holder).collect()
    }

    /// Grants a machine no lease any more whose replica stores nothing, as it says itself; see `awaited`, rule 2.
    async fn give_up_if_it_ails(&self, holder: Holder) {
        let to = Address { node: NodeId(holder.0), port: Port(REGISTRY_PORT) };
        let asked = pin!(self.host.call::<RegistryRequest, RegistryAnswer>(to, RegistryRequest::Maps));
        let ails = match select(asked, pin!(self.host.sleep(AIL_PATIENCE))).await {
            Either::Left((answer, _)) => matches!(answer, Ok(Err(RegistryError::Elsewhere(_)))),
            Either::Right(_) => false,
        };
        if let Some(term) = self.leading().filter(|_| ails) {
            self.leases_of(term, |leases| leases.doom(holder));
        }
    }

    /// Renews a lease, if this node leads; see `leases`, rules 2 and 3.
    async fn renew(&self, holder: Holder, pause: Duration) -> Said {
        self.note();
        let Some(term) = self.leading() else { return Said::Follows(self.leader()) };
        let over = || Said::Answer(Err(RegistryError::Over(holder.0, holder.1)));
        match self.leases_of(term, |leases| leases.renewed(holder, pause, self.host.now())) {
            None => return Said::Follows(None),
            Some(false) => return over(),
            Some(true) => {}
        }
        if let Err(why) = self.confirm().await {
            return Said::Failed(why);
        }
        // What was confirmed may be a later term, which knows nothing of this renewal.
        match self.leases_of(term, |leases| leases.may_grant(holder)).filter(|_| self.leading() == Some(term)) {
            None => return Said::Follows(None),
            Some(false) => return over(),
            Some(true) => {}
        }
        let maps = self.maps();
        let current = nodes::current(&maps, holder.0, holder.1);
        Said::Answer(current.map(|()| RegistryReply::Lease(maps.epoch)))
    }

    /// The maps, if they are newer than those of `epoch`, and if this node leads, and surely still did when it was asked.
    async fn tell_newest(&self, epoch: MapEpoch) -> Said {
        if self.leading().is_none() {
            return Said::Follows(self.leader());
        }
        if let Err(why) = self.confirm().await {
            return Said::Failed(why);
        }
        let maps = self.maps();
        Said::Answer(Ok(if maps.epoch > epoch { RegistryReply::Maps(maps) } else { RegistryReply::Newest(maps.epoch) }))
    }

    /// That this node leads, confirmed by a quorum later than this was called; the maps then hold all that was acknowledged
    /// before.
    pub(crate) async fn confirm(&self) -> Result<(), String> {
        let round = async || {
            let asking = pin!(within(&self.host, self.raft.ensure_linearizable(ReadPolicy::ReadIndex)));
            match select(asking, pin!(self.host.sleep(ATTEMPT))).await {
                Either::Left((confirmed, _)) => confirmed.map(drop).map_err(|error| error.to_string()),
                Either::Right(_) => Err("too few voters answer".to_owned()),
            }
        };
        self.rounds.join(round).await
    }

    /// Something arrived by which a lease may come to be granted.
    fn note(&self) {
        self.noted.witness().note(self.host.now());
    }

    /// The term that this node leads.
    pub(crate) fn leading(&self) -> Option<u64> {
        let term = self.metrics(|metrics| (metrics.state == ServerState::Leader).then_some(metrics.current_term));
        term.filter(|_| self.ruled.over().is_none())
    }

    /// When a quorum confirmed last that this node leads, if one ever did. Who votes alone is a quorum.
    pub(crate) fn confirmed(&self) -> Option<Moment> {
        match self.is_alone() {
            true => Some(self.host.now()),
            false => self.metrics(|metrics| metrics.last_quorum_acked.map(|acked| acked.0)),
        }
    }

    /// Whether this node alone votes.
    pub(crate) fn is_alone(&self) -> bool {
        self.metrics(|metrics| metrics.membership_config.voter_ids().eq([self.host.node().0]))
    }

    /// Why this replica is behind the others, and stays so for now: then they are asked.
    pub fn ails(&self) -> Option<String> {
        if self.has_failed() {
            return Some(format!("node {} could not store what was agreed on", self.host.node().0));
        }
        let node = self.host.node().0;
        self.store.lacks().map(|lack| match lack {
            Lack::Room => format!("the disks of node {node} are full; make room on them"),
            Lack::Answers => format!("disks of node {node} have not answered for a while; it waits for them"),
            Lack::Copies => {
                format!("disks of node {node} have failed; it waits for the others' consent to go on without")
            }
        })
    }

    /// Whether the library has given up: its disks have.
    fn has_failed(&self) -> bool {
        self.metrics(|metrics| metrics.running_state.is_err())
    }

    pub(crate) fn metrics<T>(&self, read: impl FnOnce(&openraft::RaftMetrics<crate::consensus::Words>) -> T) -> T {
        inside(&self.host, || read(&self.raft.metrics().borrow_watched()))
    }

    fn leases(&self) -> MutexGuard<'_, Option<(u64, Leases)>> {
        self.leases.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn leases_of<T>(&self, term: u64, look: impl FnOnce(&mut Leases) -> T) -> Option<T> {
        self.leases().as_mut().filter(|(of, _)| *of == term).map(|(_, leases)| look(leases))
    }

    /// Forgets the leases of other terms than that which this node leads, and looks at those of that one.
    pub(crate) fn look_at_leases<T>(
        &self,
        term: Option<u64>,
        look: impl FnOnce(&mut Leases, Moment) -> T,
    ) -> Option<T> {
        let mut leases = self.leases();
        let now = self.host.now();
        let Some(term) = term else {
            *leases = None;
            return None;
        };
        if leases.as_ref().is_none_or(|(of, _)| *of != term) {
            // A node that votes alone asked nobody.
            let begun = self.noted.witness().last(term).unwrap_or(now);
            *leases = Some((term, Leases::new(begun)));
        }
        leases.as_mut().map(|(_, leases)| look(leases, now))
    }
}

/// How the library behaves. Heartbeats cost little and tell of a dead leader within a second; elections are spread over so
/// long that two seldom meet.
fn config() -> Config {
    Config {
        cluster_name: "dazzle".into(),
        heartbeat_interval: 100,
        election_timeout_min: 300,
        election_timeout_max: 600,
        install_snapshot_timeout: 20_000,
        // Each entry is a change of the maps: a start carries so many out again, and reads and writes the maps once more.
        snapshot_policy: SnapshotPolicy::LogsSinceLast(128),
        max_in_snapshot_log_to_keep: 64,
        replication_lag_threshold: 256,
        purge_batch_size: 32,
        api_channel_size: Some(256),
        // What the library is told while its store does not answer: that takes some fifty ticks a second.
        notification_channel_size: Some(8192),
        state_machine_channel_size: Some(256),
        enable_pre_vote: Some(true),
        // Whoever led before it stopped is elected again: only then is known what it had promised.
        enable_leader_restore: Some(false),
        backoff: "50ms 100ms 200ms ...1s".into(),
        ..Config::default()
    }
}

/// The library tells itself what it has stored, through the queue that its clock ticks into, and waits while that is full: for
/// ever, if ticks filled it while the store waited for disks. So there are none then; nothing can be done at them anyway.
async fn keep_ticking(registry: Arc<Registry>) {
    loop {
        registry.raft.runtime_config().tick(registry.store.lacks().is_none());
        registry.host.sleep(TICK_LOOK).await;
    }
}

/// Answers everybody.
struct Service(Arc<Registry>);

impl Handler for Service {
    fn handle(&self, _from: NodeId, request: Envelope) -> BoxFuture<'static, Envelope> {
        let registry = self.0.clone();
        Box::pin(async move {
            let answer = match request.open::<RegistryRequest>() {
                Ok(request) => registry.answer(request).await,
                Err(_) => Err(RegistryError::Unknown("request".into())),
            };
            Envelope::new::<RegistryAnswer>(answer)
        })
    }
}

/// Answers other registries.
struct Consensus(Arc<Registry>);

impl Handler for Consensus {
    fn handle(&self, _from: NodeId, request: Envelope) -> BoxFuture<'static, Envelope> {
        let registry = self.0.clone();
        Box::pin(async move {
            let said = match request.open::<ConsensusMessage>() {
                Ok(message) => match postcard::from_bytes::<Message<Talk>>(&message.0) {
                    Ok(message) => registry.talk_of(message).await,
                    Err(_) => Said::Failed("that is rubbish".into()),
                },
                Err(_) => Said::Failed("that is no message of a registry".into()),
            };
            let bytes = postcard::to_stdvec(&said).expect("an answer has no part that cannot be encoded");
            Envelope::new(ConsensusMessage(bytes.into()))
        })
    }
}

/// Refuses to begin where another machine is of a newer reign.
async fn expect_reign(host: &Host, own: &Standing) -> Result<(), RegistryStart> {
    let answers = promotion::ask_others(host, own).await;
    let newest = answers.into_iter().filter_map(|answer| Some((answer.age?.reign, answer.node))).max();
    match newest.filter(|(reign, _)| *reign > own.maps().reign) {
        Some(newer) => Err(over(own, newer)),
        None => Ok(()),
    }
}

/// The reign of which `own` tells is over, as another machine says.
fn over(own: &Standing, (reign, node): (Reign, u32)) -> RegistryStart {
    let founder = promotion::called(own.maps(), &[reign.node].into());
    RegistryStart::Over { reign, node, founder, may_follow: own.may_follow(reign) }
}

/// What is answered when another reign counts: the life of whoever renews a lease here is over.
fn ended(request: &RegistryRequest, reign: Reign) -> RegistryError {
    match request {
        RegistryRequest::Renew { node, session, .. } => RegistryError::Over(*node, *session),
        _ => RegistryError::Unavailable(format!(
            "node {} was promoted without this machine, which begins anew",
            reign.node
        )),
    }
}

impl Registry {
    /// Only registries of one reign agree with each other.
    async fn talk_of(&self, message: Message<Talk>) -> Said {
        self.ruled.hear(message.reign);
        match (self.ruled.over(), message.talk) {
            (Some(_), _) => Said::Failed("another machine was promoted without this one, which begins anew".into()),
            (None, _) if message.reign < self.ruled.reign => Said::Outdated(self.ruled.reign),
            (None, Talk::Stand) => Said::Stands(self.standing().map(|standing| standing.age())),
            (None, talk) => self.talk(talk).await,
        }
    }

    async fn talk(&self, talk: Talk) -> Said {
        let failed = |why: String| Said::Failed(why);
        match talk {
            Talk::Append(request) => {
                self.note();
                let done = within(&self.host, self.raft.append_entries(request)).await;
                done.map_or_else(|error| failed(error.to_string()), Said::Append)
            }
            Talk::Vote(request) => {
                let done = within(&self.host, self.raft.vote(request)).await;
                let vote = |response| Said::Vote(response, self.noted.witness().ago(self.host.now()));
                done.map_or_else(|error| failed(error.to_string()), vote)
            }
            Talk::PreVote(request) => {
                let done = within(&self.host, self.raft.pre_vote(request)).await;
                done.map_or_else(|error| failed(error.to_string()), Said::WouldVote)
            }
            Talk::Snapshot(_, _, agreed) if agreed.maps.verify().is_err() => failed("those maps make no sense".into()),
            Talk::Snapshot(vote, meta, snapshot) => {
                self.note();
                let installing = self.raft.install_full_snapshot(vote, Snapshot { meta, snapshot });
                let done = within(&self.host, installing).await;
                done.map_or_else(|error| failed(error.to_string()), Said::Snapshot)
            }
            Talk::Transfer(request) => {
                let done = within(&self.host, self.raft.handle_transfer_leader(request)).await;
                done.map_or_else(|error| failed(error.to_string()), Said::Transfer)
            }
            talk @ (Talk::Change(_) | Talk::Renew(..) | Talk::Stand | Talk::Newest(_)) => self.hear(&talk).await,
        }
    }
}
