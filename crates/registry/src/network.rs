//! How the registries of different nodes talk: the library's own messages, and changes and renewals on their way to the
//! leader. All are answered on one port, encoded, and given up after a while.

use std::pin::pin;
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};
use std::time::Duration;

use futures_util::future::{Either, select};
use host::{Address, Host, NodeId, Port};
use openraft::errors::{RPCError, ReplicationClosed, StreamingError, Unreachable};
use openraft::network::{RPCOption, RaftNetworkFactory, RaftNetworkV2};
use openraft::raft::{
    AppendEntriesRequest, AppendEntriesResponse, SnapshotResponse, TransferLeaderRequest, TransferLeaderResponse,
    VoteRequest, VoteResponse,
};
use openraft::{EmptyNode, OptionalSend};
use protocol::id::MapEpoch;
use protocol::maps::Reign;
use protocol::registry::{CONSENSUS_PORT, ConsensusMessage, RegistryAnswer};
use serde::{Deserialize, Serialize};

use crate::consensus::{Agreed, Command, Meta, Snapshot, Vote, Words};
use crate::standing::Age;
use crate::witness::Witness;

/// How long a message may take: a busy disk's sync, with room.
const PATIENCE: Duration = Duration::from_secs(2);
/// How long a snapshot may take: the largest maps over a slow link.
const SNAPSHOT_PATIENCE: Duration = Duration::from_secs(20);

/// What one registry asks another, and of which reign it is.
#[derive(Serialize, Deserialize)]
pub(crate) struct Message<T> {
    pub reign: Reign,
    pub talk: T,
}

/// What one registry asks another.
#[derive(Serialize, Deserialize)]
pub(crate) enum Talk {
    Append(AppendEntriesRequest<Words>),
    Vote(VoteRequest<Words>),
    PreVote(VoteRequest<Words>),
    Snapshot(Vote, Meta, Arc<Agreed>),
    Transfer(TransferLeaderRequest<Words>),
    /// A change, for the leader.
    Change(Command),
    /// A renewal of a node's session, for the leader.
    Renew(u32, u64, Duration),
    /// How it stands: whoever begins, or wants to found the next reign, asks so.
    Stand,
    /// For newer maps than those of this epoch, if there are any; asked of the leader.
    Newest(MapEpoch),
}

/// What it answers.
#[derive(Serialize, Deserialize)]
pub(crate) enum Said {
    Append(AppendEntriesResponse<Words>),
    /// And how long ago it noted last, see `witness`.
    Vote(VoteResponse<Words>, Duration),
    WouldVote(VoteResponse<Words>),
    Snapshot(SnapshotResponse<Words>),
    Transfer(TransferLeaderResponse<Words>),
    Answer(RegistryAnswer),
    /// It does not lead, and did nothing. Perhaps this one leads.
    Follows(Option<u32>),
    /// How new its replica is, if it has one.
    Stands(Option<Age>),
    /// It is of this newer reign, and did nothing.
    Outdated(Reign),
    /// It cannot, for this reason.
    Failed(String),
}

/// The reign of a registry, and the first newer one that it heard of.
pub(crate) struct Ruled {
    pub reign: Reign,
    newer: OnceLock<Reign>,
}

impl Ruled {
    pub fn new(reign: Reign) -> Arc<Ruled> {
        Arc::new(Ruled { reign, newer: OnceLock::new() })
    }

    /// Another registry is of this reign.
    pub fn hear(&self, reign: Reign) {
        if reign > self.reign {
            // One is enough to end for.
            let _ = self.newer.set(reign);
        }
    }

    /// The newer reign: this registry's is over.
    pub fn over(&self) -> Option<Reign> {
        self.newer.get().copied()
    }
}

/// What this node notes and is told, shared by those who hear and those who ask.
pub(crate) struct Noted(Mutex<Witness>);

impl Noted {
    pub fn new(host: &Host) -> Arc<Noted> {
        Arc::new(Noted(Mutex::new(Witness::new(host.now()))))
    }

    pub fn witness(&self) -> MutexGuard<'_, Witness> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Asks `node`, as one of `reign`; in words why not.
pub(crate) async fn ask(host: &Host, node: u32, reign: Reign, talk: &Talk) -> Result<Said, String> {
    let patience = if matches!(talk, Talk::Snapshot(..)) { SNAPSHOT_PATIENCE } else { PATIENCE };
    let to = Address { node: NodeId(node), port: Port(CONSENSUS_PORT) };
    let message =
        ConsensusMessage(postcard::to_stdvec(&Message { reign, talk }).map_err(|error| error.to_string())?.into());
    let call = pin!(host.call::<ConsensusMessage, ConsensusMessage>(to, message));
    match select(call, pin!(host.sleep(patience))).await {
        Either::Left((Ok(answer), _)) => match postcard::from_bytes(&answer.0) {
            Ok(Said::Failed(why)) => Err(format!("node {node}: {why}")),
            Ok(said) => Ok(said),
            Err(_) => Err(format!("node {node} answered rubbish")),
        },
        Either::Left((Err(unreachable), _)) => Err(unreachable.to_string()),
        Either::Right(_) => Err(format!("node {node} did not answer for {} s", patience.as_secs())),
    }
}

/// Makes ways to other nodes.
#[derive(Clone)]
pub(crate) struct Network {
    pub host: Host,
    pub ruled: Arc<Ruled>,
    pub noted: Arc<Noted>,
}

impl RaftNetworkFactory<Words> for Network {
    type Network = Peer;

    async fn new_client(&mut self, target: u32, _node: &EmptyNode) -> Peer {
        Peer { host: self.host.clone(), ruled: self.ruled.clone(), noted: self.noted.clone(), node: target }
    }
}

/// The way to one node.
pub(crate) struct Peer {
    host: Host,
    ruled: Arc<Ruled>,
    noted: Arc<Noted>,
    node: u32,
}

impl Peer {
    async fn ask(&self, talk: Talk) -> Result<Said, RPCError<Words>> {
        let said = ask(&self.host, self.node, self.ruled.reign, &talk).await;
        if let Ok(Said::Outdated(reign)) = said {
            self.ruled.hear(reign);
        }
        said.map_err(|why| RPCError::Unreachable(Unreachable::from_string(why)))
    }

    fn nonsense<T>(&self) -> Result<T, RPCError<Words>> {
        let why = format!("node {} answered something else than it was asked", self.node);
        Err(RPCError::Unreachable(Unreachable::from_string(why)))
    }
}

impl RaftNetworkV2<Words> for Peer {
    type SnapshotData = Arc<Agreed>;

    async fn append_entries(
        &mut self,
        request: AppendEntriesRequest<Words>,
        _option: RPCOption,
    ) -> Result<AppendEntriesResponse<Words>, RPCError<Words>> {
        match self.ask(Talk::Append(request)).await? {
            Said::Append(response) => Ok(response),
            _ => self.nonsense(),
        }
    }

    async fn vote(
        &mut self,
        request: VoteRequest<Words>,
        _option: RPCOption,
    ) -> Result<VoteResponse<Words>, RPCError<Words>> {
        let term = request.vote.leader_id.term;
        // Whoever asks others has voted for itself.
        self.noted.witness().stand(term);
        match self.ask(Talk::Vote(request)).await? {
            Said::Vote(response, ago) => {
                // Before the library counts the vote. A vote that is refused may count for nothing: it only waits longer.
                self.noted.witness().hear(term, self.host.now() - ago);
                Ok(response)
            }
            _ => self.nonsense(),
        }
    }

    async fn pre_vote(
        &mut self,
        request: VoteRequest<Words>,
        _option: RPCOption,
    ) -> Result<VoteResponse<Words>, RPCError<Words>> {
        match self.ask(Talk::PreVote(request)).await? {
            Said::WouldVote(response) => Ok(response),
            _ => self.nonsense(),
        }
    }

    async fn full_snapshot(
        &mut self,
        vote: Vote,
        snapshot: Snapshot,
        cancel: impl Future<Output = ReplicationClosed> + OptionalSend + 'static,
        _option: RPCOption,
    ) -> Result<SnapshotResponse<Words>, StreamingError<Words>> {
        let sending = pin!(self.ask(Talk::Snapshot(vote, snapshot.meta, snapshot.snapshot)));
        match select(sending, pin!(cancel)).await {
            Either::Left((Ok(Said::Snapshot(response)), _)) => Ok(response),
            Either::Left((Ok(_), _)) => Ok(self.nonsense()?),
            Either::Left((Err(error), _)) => Err(error.into()),
            Either::Right((closed, _)) => Err(closed.into()),
        }
    }

    async fn transfer_leader(
        &mut self,
        request: TransferLeaderRequest<Words>,
        _option: RPCOption,
    ) -> Result<TransferLeaderResponse<Words>, RPCError<Words>> {
        match self.ask(Talk::Transfer(request)).await? {
            Said::Transfer(response) => Ok(response),
            _ => self.nonsense(),
        }
    }
}
