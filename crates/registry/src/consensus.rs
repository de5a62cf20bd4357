//! The words in which the consensus library is spoken to. Only these files speak to it: here the types; `runtime`, `channel`
//! and `watch` what it runs on; `store` and `machine` what it keeps; `network` how it talks; `voice` what we ask of it.

use std::collections::VecDeque;
use std::fmt;
use std::sync::Arc;

use openraft::alias::{EntryOf, LogIdOf, SnapshotMetaOf, SnapshotOf, StoredMembershipOf, VoteOf};
use protocol::maps::Maps;
use protocol::registry::RegistryRequest;
use serde::{Deserialize, Serialize};

use crate::change::Reply;
use crate::machine::Machine;
use crate::runtime::HostRuntime;

openraft::declare_raft_types!(
    /// Consensus on the maps.
    pub Words:
        D = Command,
        R = Reply,
        NodeId = u32,
        Node = openraft::EmptyNode,
        AsyncRuntime = HostRuntime,
);

pub(crate) type Raft = openraft::Raft<Words, Machine>;
pub(crate) type Entry = EntryOf<Words>;
pub(crate) type LogId = LogIdOf<Words>;
pub(crate) type Vote = VoteOf<Words>;
pub(crate) type Membership = StoredMembershipOf<Words>;
pub(crate) type Meta = SnapshotMetaOf<Words>;
pub(crate) type Snapshot = SnapshotOf<Words, Arc<Agreed>>;

/// A change that somebody proposes.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Command {
    /// Drawn at random by the asker, so that a command which is proposed again, because its answer was lost, counts once.
    pub id: u64,
    /// The change.
    pub request: RegistryRequest,
    /// The term for which alone it is meant: what a leader decides from what it knows as leader, no later one shall do.
    pub term: Option<u64>,
}

impl fmt::Display for Command {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{self:?}")
    }
}

/// What the nodes agree on, as of one entry.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Agreed {
    /// The maps.
    pub maps: Arc<Maps>,
    /// The newest commands and what was answered.
    pub answered: VecDeque<(u64, Reply)>,
}
