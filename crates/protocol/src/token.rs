//! Tokens: what a manager promises a client about a slot or a file, and the messages by which it calls the promise back
//! (DESIGN §6). `docs/tokens.md` has the protocol.
//!
//! A client listens on [`CLIENT_PORT`]; only managers call it, and who checks everything. Everything here is about whole
//! files: ranges of bytes become a field of [`Token`] and of [`ClientRequest::GiveUp`] when conflicts split them.

use serde::{Deserialize, Serialize};

use crate::file::{Lock, Time};
use crate::id::{InodeId, LogId, MapEpoch, SlotId};

/// The port that clients answer on.
pub const CLIENT_PORT: u16 = 5;

/// What a token of an inode allows.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub enum TokenMode {
    /// To keep a directory's names, those that are not there included, and its attributes. Many may hold it; who changes
    /// any of that has it called back from all others first.
    Names,
    /// To keep content and attributes of a file in memory. Many may hold it; who changes any of that has it called back from
    /// all others first.
    Read,
    /// To change content, size and times in memory, too. Nobody else holds anything then.
    Write,
}

/// Names a grant: the same is never given twice for one slot, whoever manages it, and a later one is larger. Begins with the
/// epoch of maps by which its manager took the slot over.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Default, Serialize, Deserialize)]
pub struct TokenVersion(pub u64);

impl TokenVersion {
    /// Before all that a manager grants which takes a slot over by maps of this epoch, and behind all that was granted there
    /// earlier.
    pub fn behind(epoch: MapEpoch) -> TokenVersion {
        TokenVersion(epoch.0 << 32)
    }
}

/// A token of an inode.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct Token {
    /// Of which inode.
    pub inode: InodeId,
    /// What it allows.
    pub mode: TokenMode,
    /// Which grant.
    pub version: TokenVersion,
}

/// What a reply grants.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub enum Grant {
    /// The slot as a whole: nobody else uses it.
    Slot(SlotId),
    /// One inode.
    Inode(Token),
}

/// What a manager asks of a client.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub enum ClientRequest {
    /// Another client uses the slot from now on. Answers `Tokens`: of what it keeps in memory the client holds tokens of
    /// this version; all else of the slot it and its kernel have forgotten.
    GiveUpSlot {
        /// The slot.
        slot: SlotId,
        /// The log of the life that is meant: a later one holds nothing, and must not answer for it.
        life: LogId,
        /// The version of the tokens that remain.
        version: TokenVersion,
    },
    /// Store what was changed, tell it the manager, forget the content. Answers `Done` when that is so.
    GiveUp {
        /// Of which inode.
        inode: InodeId,
        /// The log of the life that is meant.
        life: LogId,
        /// The grant that is meant.
        version: TokenVersion,
        /// What remains allowed.
        keep: Option<TokenMode>,
    },
    /// Size and times of a file that the client may be changing. Nothing is stored, the token stays. Answers `Ahead`.
    Attributes {
        /// Of which inode.
        inode: InodeId,
        /// The log of the life that is meant.
        life: LogId,
    },
    /// From whoever checks everything: store what was changed until now, and tell managers. Answers `Done` when that is so.
    Settle,
    /// A new manager asks what the client holds in these slots. Answers `Claim`, at once.
    Claim {
        /// The slots, in ascending order.
        slots: Vec<SlotId>,
        /// Of which it has heard already what is held of inodes before this one.
        from: InodeId,
    },
}

/// What a client answers.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub enum ClientAnswer {
    /// It is done.
    Done,
    /// The tokens that remain.
    Tokens(Vec<Token>),
    /// What managers do not know yet of a file, if there is anything.
    Ahead(Option<Ahead>),
    /// What is held; and the log that this client writes: it need not greet.
    Claim(LogId, Claims),
    /// It cannot be done now: ask again.
    Failed(String),
}

/// What a client holds: all of it, or of inodes before `rest`.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Claims {
    /// Slots as a whole.
    pub slots: Vec<SlotId>,
    /// Inodes in other slots.
    pub tokens: Vec<Token>,
    /// Inodes that are open: they outlive their last names.
    pub opens: Vec<InodeId>,
    /// File locks of the programs above the client.
    pub locks: Vec<(InodeId, Lock)>,
    /// What is held from this inode on is told when it is asked for.
    pub rest: Option<InodeId>,
}

/// What a writer knows of a file and its manager does not yet.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Ahead {
    /// The size.
    pub size: u64,
    /// When it was written last.
    pub written: Option<Time>,
    /// Bytes that took the place of holes.
    pub grown: u64,
}
