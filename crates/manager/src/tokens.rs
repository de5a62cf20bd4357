//! Who may keep what of a slot in memory (DESIGN §6; xFS 3.2; AFS's call-backs). `docs/tokens.md` has the protocol. Decides,
//! never awaits; lives under the slot's lock.
//!
//! ```text
//!            first use                     use by another
//!    Free ───────────────> Whole(client) ─────────────────> called back ───────> Shared: tokens of inodes
//!                                                                                read (many) │ write (one)
//! ```
//!
//! Invariants
//! 1. What a client believes to hold, it holds here: a grant is noted before it is told, and taken back after the client said
//!    so, or was found dead with everything in its logs replayed. The other way round nothing is promised.
//! 2. Of an inode there is one holder that writes, or any number that read.
//! 3. While something is called back from a client, nothing is granted to it that the call-back is about: what it asks for
//!    behind its answer, it gets behind its answer.
//! 4. Of a directory any number keep the names, and nobody changes these while another one does. Nobody changes attributes, of
//!    a directory or a file, while another one holds anything of it.
//! 5. Who had to wait for an inode is served in the order of asking: a newcomer takes nothing that somebody waits for.

use std::collections::{BTreeMap, VecDeque};
use std::time::Duration;

use host::Moment;
use protocol::id::{InodeId, MapEpoch, SlotId};
use protocol::token::{Grant, Token, TokenMode, TokenVersion};

/// More clients than this wait for one inode only by asking again.
const WAITING_MAX: usize = 1000;
/// So long after a directory was called back nobody is granted it, at first, and twice as long each time that it is called
/// back soon again: where some machines change what others look at, few changes wait for a call-back.
const REST_MIN: Duration = Duration::from_millis(100);
const REST_MAX: Duration = Duration::from_secs(3);
/// So many directories are remembered to rest before it is looked which of them do no more.
const RESTING_MAX: usize = 1000;

/// The tokens of one slot.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub struct SlotTokens {
    sharing: Sharing,
    newest: u64,
    /// Directories that were called back.
    resting: BTreeMap<InodeId, Rest>,
    /// The slot has arrived, and clients have not all said what they hold of it.
    unheard: bool,
}

#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
enum Sharing {
    /// Nobody holds anything.
    #[default]
    Free,
    /// One client alone uses the slot.
    Whole { holder: u32, called: Option<TokenVersion> },
    /// Several do.
    Shared(BTreeMap<InodeId, Holders>),
}

/// Who holds an inode, and who waits for it.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
struct Holders {
    held: BTreeMap<u32, Held>,
    waiting: VecDeque<u32>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
struct Held {
    mode: TokenMode,
    version: TokenVersion,
    called: bool,
}

/// A directory that was called back, and is not granted for a while.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
struct Rest {
    until: Moment,
    length: Duration,
}

/// What must be called back, and from whom, before something else can be.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Call {
    pub slot: SlotId,
    pub holder: u32,
    pub what: What,
}

/// What is called back.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum What {
    /// The slot as a whole.
    Slot,
    /// One token, but for this.
    Inode(Token, Option<TokenMode>),
}

/// A call-back under way. Its end is heard only as long as that stands which it began with: the client may be dead since then,
/// and its next life, or itself behind another call-back, may have been granted the same again.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct CallBack {
    pub call: Call,
    /// What is called back, as the client is asked for it.
    pub version: TokenVersion,
}

/// A grant that stands beside an answer, and waited for nobody.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct GrantBeside {
    /// What is granted.
    pub token: Token,
    /// Whether nothing of it was granted to that client before, for all that is known here.
    is_first: bool,
}

/// Why something is not granted, or not done.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Refusal {
    /// This must be called back first.
    Call(Call),
    /// Somebody else is being waited for, or waits already.
    Wait,
}

impl Holders {
    /// Somebody whose token stands against `node` having `mode`, and what of it may remain.
    fn conflict(&self, inode: InodeId, node: u32, mode: TokenMode) -> Option<(u32, Token, Option<TokenMode>)> {
        let keep = (mode == TokenMode::Read).then_some(TokenMode::Read);
        let stands = |held: &Held| mode == TokenMode::Write || held.mode == TokenMode::Write;
        let (&holder, held) = self.held.iter().find(|&(&holder, held)| holder != node && stands(held))?;
        Some((holder, Token { inode, mode: held.mode, version: held.version }, keep))
    }

    fn is_idle(&self) -> bool {
        self.held.is_empty() && self.waiting.is_empty()
    }
}

impl SlotTokens {
    /// Of a slot that arrives by maps of that epoch: until all clients have said what they hold, nothing is done that one
    /// could notice.
    pub fn unheard(epoch: MapEpoch) -> SlotTokens {
        let newest = TokenVersion::behind(epoch).0;
        SlotTokens { unheard: true, newest, ..SlotTokens::default() }
    }

    /// All have said it; and whether some have files of the slot open, which they may hold nothing else of: then nobody is
    /// alone in it.
    pub fn heard(&mut self, are_open: bool) {
        self.unheard = false;
        if are_open && matches!(self.sharing, Sharing::Free) {
            self.sharing = Sharing::Shared(BTreeMap::new());
        }
    }

    /// Whether some may not have said it.
    pub fn is_unheard(&self) -> bool {
        self.unheard
    }

    /// Whether `node` may use names of the slot `id`. The first one gets the slot as a whole.
    pub fn admit(&mut self, id: SlotId, node: u32) -> Result<(), Call> {
        match &self.sharing {
            Sharing::Whole { holder, .. } if *holder == node => Ok(()),
            Sharing::Whole { holder, .. } => Err(Call { slot: id, holder: *holder, what: What::Slot }),
            Sharing::Shared(_) => Ok(()),
            Sharing::Free => {
                self.sharing = Sharing::Whole { holder: node, called: None };
                Ok(())
            }
        }
    }

    /// Whether `node` may look at what a manager knows of a file, where the holder of the slot may know better; or do
    /// something here by another manager. Grants nothing.
    pub fn admit_look(&self, id: SlotId, node: u32) -> Result<(), Call> {
        match &self.sharing {
            Sharing::Whole { holder, .. } if *holder != node => {
                Err(Call { slot: id, holder: *holder, what: What::Slot })
            }
            _ => Ok(()),
        }
    }

    /// Whether an operation of `node` on the content of an inode may be carried out, which holds no longer than that.
    pub fn admit_content(&self, id: SlotId, node: u32, inode: InodeId, mode: TokenMode) -> Result<(), Call> {
        let Sharing::Shared(inodes) = &self.sharing else { return Ok(()) };
        match inodes.get(&inode).and_then(|holders| holders.conflict(inode, node, mode)) {
            Some((holder, token, keep)) => Err(Call { slot: id, holder, what: What::Inode(token, keep) }),
            None => Ok(()),
        }
    }

    /// Grants `node` an inode, or the slot where it is alone.
    pub fn grant(&mut self, id: SlotId, node: u32, inode: InodeId, mode: TokenMode) -> Result<Grant, Refusal> {
        self.admit(id, node).map_err(Refusal::Call)?;
        let inodes = match &mut self.sharing {
            // It asks behind its answer to the call-back, or beside it: either way the answer comes first.
            Sharing::Whole { called: Some(_), .. } => return Err(Refusal::Wait),
            Sharing::Whole { .. } | Sharing::Free => return Ok(Grant::Slot(id)),
            Sharing::Shared(inodes) => inodes,
        };
        let holders = inodes.entry(inode).or_default();
        let own = holders.held.get(&node).copied();
        if own.is_some_and(|held| held.called) {
            return Err(Refusal::Wait);
        }
        let conflict = holders.conflict(inode, node, mode);
        let is_turn = holders.waiting.front().is_none_or(|&first| first == node);
        if conflict.is_some() || !is_turn {
            if !holders.waiting.contains(&node) && holders.waiting.len() < WAITING_MAX {
                holders.waiting.push_back(node);
            }
            return Err(match conflict {
                Some((holder, token, keep)) if is_turn => {
                    Refusal::Call(Call { slot: id, holder, what: What::Inode(token, keep) })
                }
                _ => Refusal::Wait,
            });
        }
        holders.waiting.retain(|&waiting| waiting != node);
        self.newest += 1;
        let mode = own.map_or(mode, |held| held.mode.max(mode));
        let version = TokenVersion(self.newest);
        holders.held.insert(node, Held { mode, version, called: false });
        Ok(Grant::Inode(Token { inode, mode, version }))
    }

    /// Grants `node` a file, or the names of a directory, in a slot that several use, if nothing stands against it at once.
    pub fn grant_beside(&mut self, node: u32, inode: InodeId, mode: TokenMode, now: Moment) -> Option<GrantBeside> {
        let rests = self.resting.get(&inode).is_some_and(|rest| now < rest.until);
        let Sharing::Shared(inodes) = &mut self.sharing else { return None };
        if rests || self.unheard {
            return None;
        }
        let holders = inodes.entry(inode).or_default();
        let own = holders.held.get(&node).copied();
        let is_awaited = mode != TokenMode::Names && !holders.waiting.is_empty();
        if is_awaited || own.is_some_and(|held| held.called) || holders.conflict(inode, node, mode).is_some() {
            return None;
        }
        self.newest += 1;
        let (mode, version) = (own.map_or(mode, |held| held.mode.max(mode)), TokenVersion(self.newest));
        holders.held.insert(node, Held { mode, version, called: false });
        Some(GrantBeside { token: Token { inode, mode, version }, is_first: own.is_none() })
    }

    /// Takes back a grant that nobody was told of. Where the client may believe in an earlier one, that stands.
    pub fn ungrant(&mut self, node: u32, GrantBeside { token, is_first }: GrantBeside) {
        let Sharing::Shared(inodes) = &mut self.sharing else { return };
        if !is_first {
            return;
        }
        let Some(holders) = inodes.get_mut(&token.inode) else { return };
        if holders.held.get(&node).is_some_and(|held| held.version == token.version) {
            holders.held.remove(&node);
        }
        if holders.is_idle() {
            inodes.remove(&token.inode);
        }
    }

    /// Whether `node` may change the attributes of an inode, or the names in a directory: whoever holds anything of it keeps
    /// those.
    pub fn admit_change(&self, id: SlotId, node: u32, inode: InodeId) -> Result<(), Call> {
        let Sharing::Shared(inodes) = &self.sharing else { return Ok(()) };
        let Some(holders) = inodes.get(&inode) else { return Ok(()) };
        match holders.held.iter().find(|&(&holder, _)| holder != node) {
            Some((&holder, held)) => {
                let token = Token { inode, mode: held.mode, version: held.version };
                Err(Call { slot: id, holder, what: What::Inode(token, None) })
            }
            None => Ok(()),
        }
    }

    /// `node` no longer waits for the inode.
    pub fn leave(&mut self, node: u32, inode: InodeId) {
        let Sharing::Shared(inodes) = &mut self.sharing else { return };
        let Some(holders) = inodes.get_mut(&inode) else { return };
        holders.waiting.retain(|&waiting| waiting != node);
        if holders.is_idle() {
            inodes.remove(&inode);
        }
    }

    /// Whether `node` holds the slot as a whole, and nobody is taking it back.
    pub fn is_whole_of(&self, node: u32) -> bool {
        matches!(self.sharing, Sharing::Whole { holder, called: None } if holder == node)
    }

    /// Who but `node` may be changing the inode in memory.
    pub fn writer_besides(&self, inode: InodeId, node: u32) -> Option<u32> {
        match &self.sharing {
            Sharing::Free => None,
            Sharing::Whole { holder, .. } => Some(*holder).filter(|&holder| holder != node),
            Sharing::Shared(inodes) => {
                let writes = |(&holder, held): (&u32, &Held)| held.mode == TokenMode::Write && holder != node;
                inodes
                    .get(&inode)?
                    .held
                    .iter()
                    .find(|&(holder, held)| writes((holder, held)))
                    .map(|(&holder, _)| holder)
            }
        }
    }

    // ---- call-backs ----

    /// Begins a call-back. None if it is under way, or no longer called for.
    pub fn begin(&mut self, call: Call, now: Moment) -> Option<CallBack> {
        if let What::Inode(Token { inode, mode: TokenMode::Names, .. }, _) = call.what {
            self.rest(inode, now);
        }
        let version = match (&mut self.sharing, call.what) {
            (Sharing::Whole { holder, called }, What::Slot) if *holder == call.holder && called.is_none() => {
                self.newest += 1;
                *called = Some(TokenVersion(self.newest));
                *called
            }
            (Sharing::Shared(inodes), What::Inode(token, _)) => {
                let held = inodes.get_mut(&token.inode)?.held.get_mut(&call.holder)?;
                let begins = held.version == token.version && !held.called;
                held.called |= begins;
                begins.then_some(held.version)
            }
            _ => None,
        };
        version.map(|version| CallBack { call, version })
    }

    fn rest(&mut self, directory: InodeId, now: Moment) {
        if self.resting.len() >= RESTING_MAX {
            self.resting.retain(|_, rest| now < rest.until + rest.length);
        }
        let before = self.resting.get(&directory).filter(|rest| now < rest.until + rest.length);
        // Several holders are called back one after the other.
        let length = match before {
            Some(rest) if now < rest.until => rest.length,
            Some(rest) => (rest.length * 2).min(REST_MAX),
            None => REST_MIN,
        };
        self.resting.insert(directory, Rest { until: now + length, length });
    }

    /// The call-back has had its answer: of the slot these tokens remain; of an inode what was to.
    pub fn given_up(&mut self, CallBack { call, version }: CallBack, remaining: &[Token]) {
        match (&mut self.sharing, call.what) {
            (Sharing::Whole { holder, called }, What::Slot) if (*holder, *called) == (call.holder, Some(version)) => {
                let mut inodes = BTreeMap::<InodeId, Holders>::new();
                for token in remaining {
                    let held = Held { mode: token.mode, version: token.version, called: false };
                    inodes.entry(token.inode).or_default().held.insert(call.holder, held);
                    self.newest = self.newest.max(token.version.0);
                }
                self.sharing = Sharing::Shared(inodes);
            }
            (Sharing::Shared(inodes), What::Inode(token, keep)) => {
                let Some(holders) = inodes.get_mut(&token.inode) else { return };
                let held = holders.held.get_mut(&call.holder).filter(|held| held.version == version);
                match (held, keep) {
                    (Some(held), Some(mode)) => *held = Held { mode, called: false, ..*held },
                    (Some(_), None) => drop(holders.held.remove(&call.holder)),
                    (None, _) => {}
                }
                if holders.is_idle() {
                    inodes.remove(&token.inode);
                }
            }
            _ => {}
        }
    }

    /// The call-back came to nothing: everything is as before.
    pub fn not_given_up(&mut self, CallBack { call, version }: CallBack) {
        match (&mut self.sharing, call.what) {
            (Sharing::Whole { holder, called }, What::Slot) if (*holder, *called) == (call.holder, Some(version)) => {
                *called = None;
            }
            (Sharing::Shared(inodes), What::Inode(token, _)) => {
                let held = inodes.get_mut(&token.inode).and_then(|it| it.held.get_mut(&call.holder));
                if let Some(held) = held.filter(|held| held.version == version) {
                    held.called = false;
                }
            }
            _ => {}
        }
    }

    /// The client has nothing of this any more. It may have asked anew since, and been granted more; and what is being called
    /// back ends with the answer to that.
    pub fn forgotten(&mut self, node: u32, token: Token) {
        let Sharing::Shared(inodes) = &mut self.sharing else { return };
        let Some(holders) = inodes.get_mut(&token.inode) else { return };
        if holders.held.get(&node).is_some_and(|held| held.version == token.version && !held.called) {
            holders.held.remove(&node);
        }
        if holders.is_idle() {
            inodes.remove(&token.inode);
        }
    }

    /// How many tokens of inodes are held.
    pub fn held(&self) -> u64 {
        match &self.sharing {
            Sharing::Shared(inodes) => inodes.values().map(|holders| holders.held.len() as u64).sum(),
            Sharing::Free | Sharing::Whole { .. } => 0,
        }
    }

    /// The slot goes: what comes of call-backs under way is not heard here any more.
    pub fn end_stay(&mut self) {
        match &mut self.sharing {
            Sharing::Whole { called, .. } => *called = None,
            Sharing::Shared(inodes) => {
                let held = inodes.values_mut().flat_map(|holders| holders.held.values_mut());
                held.for_each(|held| held.called = false);
            }
            Sharing::Free => {}
        }
    }

    // ---- lives and deaths ----

    /// An earlier life of `node` is over, and everything that it did is known.
    pub fn forget(&mut self, node: u32) {
        match &mut self.sharing {
            Sharing::Whole { holder, .. } if *holder == node => self.sharing = Sharing::Free,
            Sharing::Shared(inodes) => {
                for holders in inodes.values_mut() {
                    holders.held.remove(&node);
                }
                inodes.retain(|_, holders| !holders.is_idle());
            }
            Sharing::Whole { .. } | Sharing::Free => {}
        }
    }

    /// A client says that it held the whole slot under an earlier manager.
    pub fn claim_slot(&mut self, node: u32) {
        if matches!(self.sharing, Sharing::Free) {
            self.sharing = Sharing::Whole { holder: node, called: None };
        }
    }

    /// A client says that it held a token under an earlier manager.
    pub fn claim(&mut self, node: u32, token: Token) {
        if matches!(self.sharing, Sharing::Free) {
            self.sharing = Sharing::Shared(BTreeMap::new());
        }
        // Under one manager the slot was whole or shared, so no honest client claims a part of what another has whole.
        let Sharing::Shared(inodes) = &mut self.sharing else { return };
        self.newest = self.newest.max(token.version.0);
        let held = Held { mode: token.mode, version: token.version, called: false };
        inodes.entry(token.inode).or_default().held.insert(node, held);
    }
}

#[cfg(test)]
mod tests;
