//! What there is in the model: clients with one file in memory, the manager of its slot, and what is on its way between them.
//!
//! Clients and managers keep the product's own `SlotTokens`. Content is a number, larger with each write.

use client::tokens::{SlotTokens as Holding, Turn};
use manager::tokens::{CallBack, SlotTokens as Granting};
use protocol::id::{InodeId, MapEpoch, SlotId};
use protocol::token::{Grant, Token, TokenMode, TokenVersion};

pub(crate) const SLOT: SlotId = SlotId(3);

/// The one file.
pub(crate) fn file() -> InodeId {
    InodeId::new(SLOT, 1)
}

/// The node of a client.
pub(crate) fn node(client: usize) -> u32 {
    client as u32 + 1
}

/// The client on a node.
pub(crate) fn client(node: u32) -> usize {
    node as usize - 1
}

/// The file as a client has it in memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) struct Content {
    pub(crate) number: u8,
    pub(crate) place: Place,
}

/// Where else content is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) enum Place {
    /// Nowhere.
    Memory,
    /// In the client's log.
    Log,
    /// Managers know it.
    Manager,
}

/// A client. It may stand still for ever or for a while at any time: its steps are never forced.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(crate) struct Client {
    /// Which life of its node this is.
    pub(crate) life: u8,
    pub(crate) held: Holding,
    /// How many call-backs and claims came.
    pub(crate) turn: u64,
    pub(crate) content: Option<Content>,
    /// A call works, with the token pinned.
    pub(crate) works: Option<TokenMode>,
    /// What its log has and managers do not.
    pub(crate) logged: Option<u8>,
    /// How often it asked.
    pub(crate) asked: u8,
}

/// What a client asks for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub(crate) enum Wish {
    /// A token of the file.
    Token(TokenMode),
    /// That the file be made; perhaps it is granted beside.
    Make,
}

/// A client's question.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) struct Question {
    pub(crate) client: usize,
    pub(crate) life: u8,
    pub(crate) wish: Wish,
    /// When it was asked first, and when it was sent.
    pub(crate) asked: Turn,
    pub(crate) sent: Turn,
    /// The manager that is asked.
    pub(crate) epoch: u8,
    /// The client waits for the answer.
    pub(crate) is_awaited: bool,
    /// What was answered, and is on its way back.
    pub(crate) answer: Option<Option<Grant>>,
}

/// A manager's call-back.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(crate) struct Calling {
    pub(crate) begun: CallBack,
    /// The manager that calls.
    pub(crate) epoch: u8,
    /// The life that is meant.
    pub(crate) life: u8,
    /// The manager waits for the answer.
    pub(crate) is_awaited: bool,
    pub(crate) stage: Stage,
}

/// How far a call-back is.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(crate) enum Stage {
    /// On its way, or at the client, which has done nothing about it.
    Sent,
    /// The client has begun to give up.
    Called,
    /// Calls wait.
    Closed,
    /// On its way back; of a slot these remain.
    Answered(Vec<Token>),
}

/// What a manager that takes over knows of what a client holds.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(crate) enum Claim {
    Unasked,
    Told { life: u8, is_whole: bool, tokens: Vec<Token> },
    Heard,
}

/// The manager of the slot.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(crate) struct Manager {
    pub(crate) epoch: u8,
    pub(crate) granted: Granting,
    /// The life of each client that it knows; none is zero.
    pub(crate) lives: Vec<u8>,
    /// While it takes over.
    pub(crate) claims: Vec<Claim>,
}

/// The whole world.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(crate) struct State {
    pub(crate) clients: Vec<Client>,
    pub(crate) manager: Manager,
    pub(crate) questions: Vec<Question>,
    pub(crate) callings: Vec<Calling>,
    /// What clients forgot, on its way.
    pub(crate) forgotten: Vec<(usize, Token)>,
    /// What logs of dead clients have and managers do not.
    pub(crate) left: Vec<Option<u8>>,
    /// The file is made.
    pub(crate) is_made: bool,
    /// What the records of the slot say of its content, whoever manages it.
    pub(crate) stored: u8,
    /// What programs wrote last.
    pub(crate) written: u8,
    pub(crate) writes: u8,
    /// Answers that nobody waited for, questions asked twice.
    pub(crate) faults: u8,
    pub(crate) forgets: u8,
    /// History: a program read something else than what was written last.
    pub(crate) is_stale: bool,
    /// History: what the log of a dead client had was stored.
    pub(crate) replayed: Option<u8>,
}

impl State {
    /// Nobody holds anything; where `is_shared`, several used the slot before.
    pub(crate) fn new(clients: usize, is_shared: bool, is_made: bool) -> State {
        let mut granted = Granting::unheard(MapEpoch(1));
        granted.heard(false);
        if is_shared {
            let alone = granted.grant(SLOT, node(0), file(), TokenMode::Read);
            assert_eq!(alone, Ok(Grant::Slot(SLOT)), "the first gets all of it");
            let call = granted.admit(SLOT, node(1)).expect_err("another is the second");
            let begun = granted.begin(call, host::Moment(0)).expect("nobody calls yet");
            granted.given_up(begun, &[]);
        }
        State {
            clients: vec![Client::new(); clients],
            manager: Manager { epoch: 1, granted, lives: vec![1; clients], claims: vec![Claim::Heard; clients] },
            questions: Vec::new(),
            callings: Vec::new(),
            forgotten: Vec::new(),
            left: vec![None; clients],
            is_made,
            stored: 0,
            written: 0,
            writes: 0,
            faults: 0,
            forgets: 0,
            is_stale: false,
            replayed: None,
        }
    }

    /// What a client may do in memory, as it believes.
    pub(crate) fn believes(&self, client: usize) -> Option<TokenMode> {
        let held = &self.clients[client].held;
        if held.is_whole() { Some(TokenMode::Write) } else { held.mode(file()) }
    }

    /// The grant that a client believes to have of the file, in a slot that others use.
    pub(crate) fn token(&self, client: usize) -> Option<Token> {
        self.clients[client].held.clone().claim(Turn(0)).pop()
    }

    /// Brings what is on its way into one order, which means nothing.
    pub(crate) fn sort(&mut self) {
        self.questions.sort_by_key(|question| {
            let Question { client, life, epoch, is_awaited, asked, sent, wish, answer } = *question;
            let version = match answer {
                Some(Some(Grant::Inode(token))) => token.version,
                Some(Some(Grant::Slot(_))) => TokenVersion(1),
                Some(None) | None => TokenVersion(0),
            };
            (client, life, epoch, is_awaited, (asked, sent), wish, answer.is_some(), version)
        });
        self.callings.sort_by_key(|calling| {
            let Calling { begun, epoch, life, is_awaited, .. } = calling;
            (begun.call.holder, *life, *epoch, *is_awaited, begun.version, calling.rank())
        });
        self.forgotten.sort_by_key(|(client, token)| (*client, token.version));
    }
}

impl Calling {
    fn rank(&self) -> u8 {
        match self.stage {
            Stage::Sent => 0,
            Stage::Called => 1,
            Stage::Closed => 2,
            Stage::Answered(_) => 3,
        }
    }
}
