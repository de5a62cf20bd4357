//! Messages to the registry.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use serde::{Deserialize, Serialize};

use crate::address::{LogAddress, Position};
use crate::id::{FenceEpoch, GroupId, LogId, MapEpoch, StripeNumber, TargetId};
use crate::maps::{Drain, GroupEntry, Maps, SlotLog, StopPhase, TargetState, Writer};
use crate::settings::Setting;

/// By what a node may be added: it is good for one (`docs/format-network.md`, *Joining*).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Invitation {
    /// Tells it from all others.
    pub number: u64,
    /// The second since 1970 from which it is worth nothing.
    pub expires: u64,
}

/// An attempt of a machine to be added by an invitation.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Attempt {
    /// By this one.
    pub invitation: Invitation,
    /// Later attempts of the same machine have greater numbers: an earlier one that comes late changes nothing. Those of two
    /// machines differ.
    pub number: u64,
}

/// What the registry is asked. Every change is durable before the answer.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub enum RegistryRequest {
    /// All maps, as the replica that is asked has them.
    Maps,
    /// A new log, written over the current groups. Asked again, it is the same log.
    OpenLog {
        /// The writer's node.
        node: u32,
        /// The session of the node in which it is written: a request that comes when a later one has begun opens none.
        session: u64,
        /// The writer's role.
        writer: Writer,
        /// Tells it from all other logs of the session.
        opening: u64,
    },
    /// Adds a run to a log's layout: its writer's while it is open, its claimant's while it is being sealed. The registry
    /// gives it the next number, and says in which of its groups it begins.
    AddRun {
        /// The log.
        log: LogId,
        /// The version of the entry that the asker saw.
        version: u64,
        /// The asker's epoch.
        epoch: FenceEpoch,
        /// The first stripe.
        from: StripeNumber,
        /// The groups.
        groups: Vec<GroupId>,
    },
    /// Ends all runs but the last at `end`: everything from there on is complete in the last.
    FinishRuns {
        /// The log.
        log: LogId,
        /// The version of the entry that the asker saw.
        version: u64,
        /// The asker's epoch.
        epoch: FenceEpoch,
        /// One past their last stripe.
        end: StripeNumber,
    },
    /// Forms a group, or finds the current one with the same members and shape.
    FormGroup(GroupEntry),
    /// No new stripes on this group.
    RetireGroup(GroupId),
    /// Claims a log for sealing. The answer gives the fence epoch.
    Claim {
        /// The log.
        log: LogId,
        /// The version of the entry that the asker saw.
        version: u64,
    },
    /// Records the length of a log that the asker claimed with `epoch`, and ends all runs but the last at `tail`.
    Seal {
        /// The log.
        log: LogId,
        /// The asker's claim.
        epoch: FenceEpoch,
        /// The length.
        length: Position,
        /// The first stripe that the asker made redundant in the last run.
        tail: StripeNumber,
    },
    /// Forgets sealed logs of which no target has anything, as the asker found with the maps of this epoch.
    ForgetLogs(Vec<LogId>, MapEpoch),
    /// For slots `first..=last`: the node that manages them, and from what it takes them over.
    SetSlots {
        /// First slot.
        first: u16,
        /// Last slot, inclusive.
        last: u16,
        /// The manager's node.
        node: u32,
        /// The table with which they were handed over, if they were.
        base: Option<LogAddress>,
        /// The logs.
        logs: Vec<SlotLog>,
        /// The epoch of the maps that the asker saw.
        epoch: u64,
    },
    /// Plans anew which slots are to move from one living node to another. The registry's leader alone says so.
    Balance,
    /// Whether a target serves, or lacks something. That it is whole says [`RegistryRequest::TargetWhole`].
    SetTarget(TargetId, TargetState),
    /// Another target takes the place of a member that failed, in a group over which nothing is written any more.
    ReplaceMember {
        /// The group.
        group: GroupId,
        /// The member.
        old: TargetId,
        /// Who takes its place: no member yet, and none of the past.
        new: TargetId,
    },
    /// Who took another's place in a group lacks nothing of it any more, as the asker found with the maps of this epoch.
    MemberWhole(GroupId, TargetId, MapEpoch),
    /// A new node, which counts as gone until it begins a session. The answer gives its number. An invitation is good for one:
    /// whoever asks again by it has the same name, and has not begun. The same attempt, asked again, has the same answer.
    AddNode {
        /// What people call it.
        name: String,
        /// Where its daemon is called.
        address: String,
        /// Whether it has targets.
        stores: bool,
        /// What it was invited by.
        attempt: Option<Attempt>,
    },
    /// New, empty targets of a node, whole from the start. The answer gives the first one's number; the others follow. What the
    /// node has under such a name already is none of them: asked again, nothing changes.
    AddTargets {
        /// The node.
        node: u32,
        /// What people call them: their paths on that node.
        names: Vec<String>,
    },
    /// A new target of a node that lives, which is written to once it serves; the node stores from then on. The answer gives
    /// its number: asked again, the same one. Its name tells it from others of that node.
    AddTarget {
        /// The node.
        node: u32,
        /// Its session.
        session: u64,
        /// What people call it: its path on that node.
        name: String,
    },
    /// Another disk takes the place of a target's: what people call it from now on.
    RenameTarget(TargetId, String),
    /// Whether targets are to be emptied, or to stay after all. It is decided with the maps of this epoch: a request that comes
    /// late must not undo what was decided since.
    Drain(Vec<TargetId>, Drain, MapEpoch),
    /// Takes targets away on which nothing lies that anybody needs, as the asker found with the maps of this epoch.
    RemoveTargets(Vec<TargetId>, MapEpoch),
    /// What people call a node from now on.
    RenameNode(u32, String),
    /// Forgets a node without targets. If it lives still, its session is over.
    RemoveNode(u32),
    /// A new session of a node. The answer gives its number. Targets that missed writes are behind from now on.
    Begin {
        /// The node.
        node: u32,
        /// Its session before, as the asker knows: what was asked again and comes late must not end the session that it
        /// began.
        after: u64,
        /// Where its daemon is called.
        address: String,
        /// The log that its client goes on with, of the session before, which must not be over: a restart that programs do not
        /// notice.
        keeps: Option<LogId>,
    },
    /// Asks for the lease of a session for [`LEASE`] more.
    Renew {
        /// The node.
        node: u32,
        /// Its session.
        session: u64,
        /// For so much longer than the lease it is not given up, [`PAUSE_MAX`] at most: the node starts anew. It has no lease
        /// for that long.
        pause: Duration,
    },
    /// A clean stop: the lease is given back.
    End {
        /// The node.
        node: u32,
        /// Its session.
        session: u64,
    },
    /// All machines are to stop at once.
    StopAll {
        /// Even if programs use mounts.
        force: bool,
        /// The epoch of the maps with which it was decided: a request that comes late must not stop them once more.
        seen: MapEpoch,
    },
    /// A node has finished this phase of the stop of all.
    FinishPhase {
        /// The node.
        node: u32,
        /// Its session.
        session: u64,
        /// The phase.
        phase: StopPhase,
        /// The epoch in which that stop was asked for.
        asked: MapEpoch,
    },
    /// Programs use this node's mount, so that all stay.
    CallStopOff {
        /// The node.
        node: u32,
        /// Its session.
        session: u64,
        /// The epoch in which that stop was asked for.
        asked: MapEpoch,
    },
    /// The lease ran out. The registry's leader alone says so.
    Expire {
        /// The node.
        node: u32,
        /// Its session.
        session: u64,
    },
    /// The maps, as soon as they are newer than `epoch`, or after [`WATCH`] as they are.
    Watch {
        /// The epoch that the asker knows.
        epoch: MapEpoch,
    },
    /// All maps, with every change that was answered before this was asked, as a quorum confirms. Whoever has them is told so.
    Newest {
        /// The epoch that the asker knows.
        epoch: MapEpoch,
    },
    /// A target that was behind lacks nothing any more, as the asker found with the maps of this epoch.
    TargetWhole(TargetId, MapEpoch),
    /// On targets that are being emptied nothing lies any more, as the asker found with the maps of this epoch.
    TargetsEmpty(Vec<TargetId>, MapEpoch),
    /// How many bytes of fragments fit on targets in all. What differs little from what is known changes nothing.
    TargetSizes(Vec<(TargetId, u64)>),
    /// Change what holds on all machines: all of this, or nothing. It is decided with the maps of this epoch.
    Set(Vec<Setting>, MapEpoch),
    /// On which of its targets the copies are that count of a node's replica of the maps.
    SetCopies {
        /// The node.
        node: u32,
        /// It goes on without some of these, and needs consent: they must be what counts. None: it goes on with what counts
        /// for it already, and says so.
        from: Option<BTreeSet<TargetId>>,
        /// What counts from now on.
        to: BTreeSet<TargetId>,
        /// The epoch of the maps that the asker saw.
        seen: MapEpoch,
    },
    /// What lay on the disks of these targets is gone, as the asker found with the maps of this epoch, or people decided: an
    /// empty one takes the place of each, or nobody waits for it any more. So it does not tell where logs end that were
    /// written over it.
    DisksGone(Vec<TargetId>, MapEpoch),
}

impl RegistryRequest {
    /// That a node opens a log in its session that `maps` know. `opening` is drawn by lot.
    pub fn open_log(maps: &Maps, node: u32, writer: Writer, opening: u64) -> RegistryRequest {
        let session = maps.nodes.get(&node).map_or(0, |entry| entry.session);
        RegistryRequest::OpenLog { node, session, writer, opening }
    }
}

/// What the registry answers.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub enum RegistryReply {
    /// The maps after the request.
    Maps(Arc<Maps>),
    /// The log that was opened or claimed, the epoch to write it with, and the maps after that.
    Log(LogId, FenceEpoch, Arc<Maps>),
    /// The group that was formed or found, and the maps after that.
    Group(GroupId, Arc<Maps>),
    /// The new node, and the maps after that.
    Node(u32, Arc<Maps>),
    /// The first of the new targets, and the maps after that.
    Targets(TargetId, Arc<Maps>),
    /// The session that was begun, and the maps after that.
    Session(u64, Arc<Maps>),
    /// The lease holds for [`LEASE`] from when it was asked for; the epoch of the maps tells whether they are worth asking
    /// for.
    Lease(MapEpoch),
    /// There are no newer maps than those of this epoch.
    Newest(MapEpoch),
}

impl RegistryReply {
    /// The maps that came with it.
    pub fn maps(&self) -> Option<&Arc<Maps>> {
        match self {
            RegistryReply::Maps(maps)
            | RegistryReply::Log(_, _, maps)
            | RegistryReply::Group(_, maps)
            | RegistryReply::Node(_, maps)
            | RegistryReply::Targets(_, maps)
            | RegistryReply::Session(_, maps) => Some(maps),
            RegistryReply::Lease(_) | RegistryReply::Newest(_) => None,
        }
    }
}

/// Why the registry did not do as asked.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error, Serialize, Deserialize)]
pub enum RegistryError {
    /// Somebody else was first: look at the maps again.
    #[error("somebody else changed this first")]
    Lost,
    /// No such log, group or target.
    #[error("the registry knows no such {0}")]
    Unknown(String),
    /// The session that was named is over: its node has lost all that a lease gives, and begins a new one.
    #[error("session {1} of node {0} is over")]
    Over(u32, u64),
    /// The node has begun more sessions than the asker knew: this is the newest.
    #[error("session {1} of node {0} was begun meanwhile")]
    Begun(u32, u64),
    /// The node was taken out of the cluster.
    #[error("node {0} was removed from the cluster")]
    Removed(u32),
    /// Something is in use still that was to be taken away.
    #[error("{0}")]
    InUse(String),
    /// Another node was added by the invitation.
    #[error("the invitation was used before")]
    Used,
    /// Too few targets or nodes live to keep the registry safe. Whether the change took effect is unknown.
    #[error("the registry cannot do that now: {0}")]
    Unavailable(String),
    /// The replica of the node that was asked can neither tell nor change anything now, and has not: another one may.
    #[error("a replica of the registry waits: {0}")]
    Elsewhere(String),
    /// What was to be set makes no sense.
    #[error("{0}; nothing was changed")]
    Wrong(String),
}

/// The registry's answer.
pub type RegistryAnswer = Result<RegistryReply, RegistryError>;
/// The port of the registry.
pub const REGISTRY_PORT: u16 = 2;

/// The port where registries of different nodes agree among themselves.
pub const CONSENSUS_PORT: u16 = 4;

/// What registries say to each other, and answer: encoded, for nobody else understands it.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct ConsensusMessage(pub Bytes);

/// How long a lease holds. Long enough for a node to survive two lost renewals or an election, short enough that a slot is
/// taken over, and a program waits, for seconds only (DESIGN §6, §13).
pub const LEASE: Duration = Duration::from_secs(3);
/// How much longer than its lease a session is kept at most of a node that starts anew: programs wait for it as long.
pub const PAUSE_MAX: Duration = Duration::from_secs(20);
/// What a holder takes off its lease: two clocks that differ by a hundredth, ten times what a bad crystal does, still agree
/// on who holds what (`docs/decisions/0014-consensus.md`).
pub const DRIFT: Duration = Duration::from_millis(60);
/// How long a [`RegistryRequest::Watch`] waits for newer maps.
pub const WATCH: Duration = Duration::from_secs(3);
