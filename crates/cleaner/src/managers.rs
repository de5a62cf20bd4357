//! What a cleaner asks of managers. This file awaits; it decides nothing.
//!
//! All that is learned here is *disk*: an answer rests on a journal position, and counts only once the journal is durable
//! up to there. A zero that a crash could take back would be the end of live bytes (DESIGN §3, order across logs).

use std::collections::{BTreeMap, BTreeSet};

use futures_util::future::join_all;
use host::{Address, NodeId, Port};
use log::Cluster;
use protocol::address::{LogAddress, Position};
use protocol::id::{InodeId, LogId};
use protocol::manager::{Answer, MANAGER_PORT, ManagerAnswer, ManagerError, ManagerReply, ManagerRequest, Moved};
use protocol::maps::View;

use crate::policy::Stripe;

/// Somebody who must be heard was not: nothing may be concluded.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("the manager on node {node} gave no usable answer: {reason}")]
pub struct Unheard {
    /// The manager's node.
    pub node: u32,
    /// What went wrong.
    pub reason: String,
}

/// How many stripes, or moves, one message names.
const LIST_MAX: usize = 1024;
/// How often a question follows a slot that moved from manager to manager.
const TRIES: usize = 3;

/// All managers of the cluster.
#[derive(Clone, Debug)]
pub struct Managers {
    cluster: Cluster,
}

impl Managers {
    /// The managers that the maps name.
    pub fn new(cluster: Cluster) -> Managers {
        Managers { cluster }
    }

    /// Bytes of file data that live, over all slots.
    pub async fn bytes_live(&self) -> Result<u64, Unheard> {
        let mut sum = 0;
        for (node, answer) in self.ask_all(|_| ManagerRequest::Census).await? {
            let Answer::Census(_, bytes) = answer else { return Err(unexpected(node, &answer)) };
            sum += bytes;
        }
        Ok(sum)
    }

    /// Live bytes of each stripe, over all slots.
    pub async fn live(&self, stripes: &[Stripe]) -> Result<Vec<u64>, Unheard> {
        let mut sums = Vec::with_capacity(stripes.len());
        for some in stripes.chunks(LIST_MAX) {
            let mut sum = vec![0u64; some.len()];
            for (node, answer) in self.ask_all(|view| ManagerRequest::Live(view, some.to_vec())).await? {
                match answer {
                    Answer::Live(list) if list.len() == some.len() => {
                        sum.iter_mut().zip(list).for_each(|(sum, more)| *sum = sum.saturating_add(more));
                    }
                    other => return Err(unexpected(node, &other)),
                }
            }
            sums.extend(sum);
        }
        Ok(sums)
    }

    /// Those of `stripes`, all of manager logs, that no manager needs.
    pub async fn dead(&self, stripes: &[Stripe]) -> Result<Vec<Stripe>, Unheard> {
        let mut dead = Vec::new();
        for some in stripes.chunks(LIST_MAX) {
            let mut agreed: BTreeSet<Stripe> = some.iter().copied().collect();
            for (node, answer) in self.ask_all(|view| ManagerRequest::DeadStripes(view, some.to_vec())).await? {
                let Answer::Stripes(list) = answer else { return Err(unexpected(node, &answer)) };
                let list: BTreeSet<Stripe> = list.into_iter().collect();
                agreed.retain(|stripe| list.contains(stripe));
            }
            dead.extend(agreed);
        }
        Ok(dead)
    }

    /// What lives of the data record of `inode` from `file_offset`, whose body is at `address`.
    pub async fn pieces(&self, inode: InodeId, file_offset: u64, address: LogAddress) -> Result<Vec<Moved>, Unheard> {
        let node = self.manager_of(inode);
        let request = ManagerRequest::Pieces { inode, file_offset, address };
        match self.ask_slot(inode, request).await? {
            Answer::Pieces(pieces) => Ok(pieces),
            other => Err(unexpected(node, &other)),
        }
    }

    /// Tells the managers where bytes are now. They keep what has changed meanwhile as it is; to say it twice is
    /// harmless. Returns when what they made of it is `disk`.
    pub async fn moved(&self, list: &[Moved]) -> Result<(), Unheard> {
        let mut left = list.to_vec();
        for tries_left in (0..TRIES).rev() {
            let mut by_node: BTreeMap<NodeId, Vec<Moved>> = BTreeMap::new();
            for moved in left.drain(..) {
                by_node.entry(self.manager_of(moved.inode)).or_default().push(moved);
            }
            for (node, list) in by_node {
                for some in list.chunks(LIST_MAX) {
                    let answer = self.ask(node, ManagerRequest::Move(some.to_vec())).await;
                    match answer {
                        // The slots of some moved on: they are asked wherever these are now.
                        Err(Failure::Refused(ManagerError::NotMine)) if tries_left > 0 => left.extend(some),
                        answer => drop(heard(node, answer)?),
                    }
                }
            }
            if left.is_empty() {
                return Ok(());
            }
            let _ = self.cluster.refresh().await;
        }
        unreachable!("the last try leaves nothing")
    }

    /// Asks every manager, and trusts the answers only if no slot moved from one to another meanwhile: it could have
    /// been asked of neither.
    async fn ask_all(&self, request: impl Fn(View) -> ManagerRequest) -> Result<Vec<(NodeId, Answer)>, Unheard> {
        let mut before = self.cluster.maps();
        for _ in 0..TRIES {
            let nodes: BTreeSet<NodeId> = before.slots.values().map(|slot| NodeId(slot.node)).collect();
            let view = before.view();
            let answers = join_all(nodes.iter().map(|&node| self.ask(node, request(view)))).await;
            let after = self.cluster.refresh().await;
            let after = after.map_err(|error| Unheard { node: 0, reason: error.to_string() })?;
            if after.slots == before.slots {
                return nodes.into_iter().zip(answers).map(|(node, answer)| Ok((node, heard(node, answer)?))).collect();
            }
            before = after;
        }
        Err(Unheard { node: 0, reason: "slots moved from manager to manager all the while".into() })
    }

    /// Asks the manager of `inode`, wherever it moved.
    async fn ask_slot(&self, inode: InodeId, request: ManagerRequest) -> Result<Answer, Unheard> {
        let mut node = self.manager_of(inode);
        for _ in 1..TRIES {
            let answer = self.ask(node, request.clone()).await;
            if !matches!(answer, Err(Failure::Refused(ManagerError::NotMine))) {
                return heard(node, answer);
            }
            // The next answer tells whether the maps have moved on; an older view asks the same node in vain.
            let _ = self.cluster.refresh().await;
            node = self.manager_of(inode);
        }
        heard(node, self.ask(node, request).await)
    }

    async fn ask(&self, node: NodeId, request: ManagerRequest) -> Result<Answer, Failure> {
        let reply = self.call(node, request).await?;
        if reply.journal > reply.journal_disk {
            self.flush(node, (reply.log, reply.journal)).await?;
        }
        Ok(reply.answer)
    }

    async fn flush(&self, node: NodeId, (journal, through): (LogId, Position)) -> Result<(), Failure> {
        self.call(node, ManagerRequest::Flush(journal, through)).await.map(|_| ())
    }

    async fn call(&self, node: NodeId, request: ManagerRequest) -> Result<ManagerReply, Failure> {
        let to = Address { node, port: Port(MANAGER_PORT) };
        match self.cluster.host().call::<ManagerRequest, ManagerAnswer>(to, request).await {
            Ok(Ok(reply)) => Ok(reply),
            Ok(Err(error)) => Err(Failure::Refused(error)),
            Err(unreachable) => Err(Failure::Silent(unreachable.to_string())),
        }
    }

    fn manager_of(&self, inode: InodeId) -> NodeId {
        NodeId(self.cluster.maps().slot(inode.slot().0).node)
    }
}

enum Failure {
    Refused(ManagerError),
    Silent(String),
}

fn heard(node: NodeId, answer: Result<Answer, Failure>) -> Result<Answer, Unheard> {
    answer.map_err(|failure| {
        let reason = match failure {
            Failure::Refused(error) => error.to_string(),
            Failure::Silent(reason) => reason,
        };
        Unheard { node: node.0, reason }
    })
}

fn unexpected(node: NodeId, _answer: &Answer) -> Unheard {
    Unheard { node: node.0, reason: "it answered another question".into() }
}
