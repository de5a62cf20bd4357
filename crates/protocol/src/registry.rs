//! Messages to the registry.

use std::sync::Arc;

use serde::{Deserialize, Serialize};

use crate::address::Position;
use crate::id::{FenceEpoch, GroupId, LogId, StripeNumber, TargetId};
use crate::maps::{GroupEntry, Maps, SlotLog, TargetState, Writer};

/// What the registry is asked. Every change is durable before the answer.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub enum RegistryRequest {
    /// All maps.
    Maps,
    /// A new log, written over the current groups.
    OpenLog {
        /// The writer's node.
        node: u32,
        /// The writer's role.
        writer: Writer,
    },
    /// Adds a run to a log's layout: its writer's while it is open, its claimant's while it is being sealed. The registry
    /// gives it the next number.
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
    /// Forgets sealed logs of which nothing lives.
    ForgetLogs(Vec<LogId>),
    /// For slots `first..=last`: the node that manages them and the logs to roll.
    SetSlots {
        /// First slot.
        first: u16,
        /// Last slot, inclusive.
        last: u16,
        /// The manager's node.
        node: u32,
        /// The logs.
        logs: Vec<SlotLog>,
        /// The epoch of the maps that the asker saw.
        epoch: u64,
    },
    /// Whether a target serves.
    SetTarget(TargetId, TargetState),
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
    /// Too few targets live to keep the registry safe.
    #[error("too few targets answer to change the registry: {0}")]
    Unavailable(String),
}

/// The registry's answer.
pub type RegistryAnswer = Result<RegistryReply, RegistryError>;
/// The port of the registry.
pub const REGISTRY_PORT: u16 = 2;
