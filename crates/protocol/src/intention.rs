//! Operations over slots of several managers, as these speak of them (DESIGN §5, operations over several slots).
//!
//! The coordinator fetches what the operation reads, decides what it changes, has every slot's manager prepare its part,
//! journals the outcome, and tells it. Keys and values are those of `docs/format-slot.md`; only managers look inside.

use bytes::Bytes;
use serde::{Deserialize, Serialize};

use crate::id::{InodeId, LogId, MapEpoch, SlotId, StripeNumber};
use crate::token::TokenMode;

/// Names an operation over several slots, for ever: a manager's log, and a number that counts up in it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub struct IntentionId {
    /// The log of the manager that coordinates it.
    pub log: LogId,
    /// Which of its intentions.
    pub number: u64,
}

/// What a coordinator wants to know of a slot, as of one moment.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Fetch {
    /// The slot.
    pub slot: SlotId,
    /// Ranges of keys, from the first to before the second. The first are wanted; the rest may come as they are at hand.
    pub ranges: Vec<(Bytes, Bytes)>,
    /// How many of the ranges are wanted.
    pub wanted: u32,
    /// Whose holders are wanted.
    pub holders: Vec<InodeId>,
    /// How many inode numbers are wanted that nobody else gets.
    pub numbers: u32,
    /// For whom.
    pub purpose: Purpose,
}

/// For whom an operation over several slots is carried out.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub enum Purpose {
    /// For a node that asked. A manager that is starting refuses.
    #[default]
    Asked,
    /// For a manager that is starting, and that others which are starting may be waiting for.
    Starting,
}

/// Records of a slot.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Fetched {
    /// The log of the manager that tells: numbers and holders are worth nothing when it has another.
    pub life: LogId,
    /// The maps that it knows.
    pub epoch: MapEpoch,
    /// All records of these ranges of keys.
    pub pieces: Vec<Piece>,
    /// Which nodes hold an inode open.
    pub holders: Vec<(InodeId, Vec<u32>)>,
    /// Numbers for new inodes.
    pub numbers: Vec<InodeId>,
}

/// All records in a range of keys.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Piece {
    /// From here.
    pub from: Bytes,
    /// To before this.
    pub end: Bytes,
    /// In order.
    pub records: Vec<(Bytes, Bytes)>,
}

/// A range of keys that an operation looked at.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Look {
    /// From here.
    pub from: Bytes,
    /// To before this.
    pub end: Bytes,
    /// What was seen, as a hash of all keys and values.
    pub seen: u64,
}

/// What an operation read in one slot, and what it changes there.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Part {
    /// The slot.
    pub slot: SlotId,
    /// The log of the manager that it was fetched from.
    pub life: LogId,
    /// What was read.
    pub looks: Vec<Look>,
    /// Which nodes held an inode open, where that was looked at.
    pub holders: Vec<(InodeId, Vec<u32>)>,
    /// Records to put, and to remove.
    pub changes: Vec<(Bytes, Option<Bytes>)>,
    /// What to add to counts.
    pub counts: Counts,
    /// What else is to be done.
    pub effects: Vec<Consequence>,
}

impl Part {
    /// Whether it leaves the slot as it was.
    pub fn changes_nothing(&self) -> bool {
        self.changes.is_empty() && self.counts == Counts::default() && self.effects.is_empty()
    }
}

/// What an operation adds to a slot's counts.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Counts {
    /// To the number of inodes.
    pub inodes: i64,
    /// To the live bytes of stripes.
    pub live: Vec<(LogId, StripeNumber, i64)>,
}

/// What an operation leads to beside changed records.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Consequence {
    /// This node holds the inode open.
    Open(InodeId, u32),
    /// This node no longer does.
    Close(InodeId, u32),
    /// An orphan's records are to be freed.
    Reap(InodeId),
    /// What the directory has in the slot is to be split.
    Split(InodeId, SlotId),
}

/// How long a part stays prepared.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Keep {
    /// As long as the manager lives: nothing is changed, and whoever asked looks whether it is still held.
    Memory,
    /// Until the outcome is known, whoever restarts.
    Journal,
}

/// On whose behalf an operation over several slots is carried out, and what nobody else may hold of them then
/// (`docs/tokens.md`).
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Admission {
    /// The node whose client asked: what that holds itself does not stand against it.
    pub node: u32,
    /// What is needed, in order of slots. Nothing of what no client can notice.
    pub needs: Vec<Need>,
}

/// What an operation needs of one slot.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Need {
    /// The slot: nobody else may hold it as a whole.
    pub slot: SlotId,
    /// The files on whose content it works, and how.
    pub content: Vec<(InodeId, TokenMode)>,
}

/// Asks a manager to hold parts of an operation, all or none.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Prepare {
    /// Which operation.
    pub intention: IntentionId,
    /// The slot whose manager knows the outcome.
    pub coordinator: SlotId,
    /// How long they are held.
    pub keep: Keep,
    /// For whom.
    pub purpose: Purpose,
    /// What clients must not hold against it. Refused with `Held` while one does: no part is held while a client gives up.
    pub admission: Admission,
    /// The parts, all of slots of the asked manager, in order.
    pub parts: Vec<Part>,
}

/// How an intention ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Outcome {
    /// All its changes were made.
    Done,
    /// None.
    Undone,
}

/// Tells an outcome.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Settle {
    /// Of which operation.
    pub intention: IntentionId,
    /// To these slots, all of the asked manager.
    pub slots: Vec<SlotId>,
    /// How it ended.
    pub outcome: Outcome,
}
