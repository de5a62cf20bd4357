//! What this client holds of one slot, what its calls need, and what a call-back demands (DESIGN §6; `docs/tokens.md`).
//! Decides, never awaits.
//!
//! A call *pins* the token that it works under. Pins are short: no call waits for a token while it has one pinned.
//!
//! Invariants
//! 1. A file's content and attributes are in memory (`File`) only while the slot is held whole or the inode by a token.
//! 2. A token goes only while its inode is closed and nobody has it pinned; nobody pins a closed inode.
//! 3. A grant that was asked for before a manager called the slot back, or asked for claims, is not taken: the answer to that
//!    did not tell of it.
//! 4. The kernel has names of a directory, and its attributes, with a validity only while the slot is held whole or the
//!    directory by a token for its names. What was asked for before that was called back it never gets with one.
//! 5. What is here is at most what the manager believes.

use std::collections::BTreeMap;

use protocol::id::InodeId;
use protocol::token::{Token, TokenMode, TokenVersion};

/// Counts the slots that managers called back from this client, or asked claims for: says which came first, a question or
/// that.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Default)]
pub struct Turn(pub u64);

/// What is held of one slot.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub struct SlotTokens {
    whole: bool,
    /// The newest call-back, or claim, of the slot.
    called: Turn,
    /// The newest grant of an inode that was called back, or forgotten. Up to it none is taken beside an answer that tells of
    /// a new file: that may have been on its way meanwhile.
    gone: TokenVersion,
    /// The newest inode of which nothing is in memory any more. Where the slot is whole, that leaves no other trace; and newer
    /// ones have higher numbers.
    forgotten: Option<InodeId>,
    /// Others used it beside this client once: the kernel may keep pages from before that nobody knows of.
    was_shared: bool,
    inodes: BTreeMap<InodeId, Held>,
}

#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
struct Held {
    token: Option<(TokenMode, TokenVersion)>,
    reading: u32,
    writing: u32,
    /// A call-back is being carried out; and it is behind the kernel's invalidations, so that calls wait.
    called: bool,
    closed: bool,
    /// A call is asking for a token; and grants up to this one come too late for it.
    asking: bool,
    spoiled: TokenVersion,
}

impl Held {
    fn pins(&self) -> u32 {
        self.reading + self.writing
    }

    fn keeps_names(&self) -> bool {
        self.token.is_some_and(|(mode, _)| mode == TokenMode::Names)
    }

    fn is_idle(&self) -> bool {
        self.token.is_none() && self.pins() == 0 && !self.called && !self.asking
    }
}

/// What a call that wants to work on an inode has to do.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Pinned {
    /// Work; then unpin.
    Yes,
    /// Wait until something moves, and look again.
    Wait,
    /// Ask the manager: nobody else here does. Then [`SlotTokens::end_ask`].
    Ask,
}

/// What a call-back of an inode demands.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Demand {
    /// Nothing: it is not held, or by a newer grant.
    Nothing,
    /// To wait: the grant that it calls back is on its way.
    Wait,
    /// To wait for another call-back of it.
    Follow,
    /// To store and forget; in the end, [`SlotTokens::reopen`].
    GiveUp,
}

impl SlotTokens {
    /// Whether the slot is held as a whole.
    pub fn is_whole(&self) -> bool {
        self.whole
    }

    /// Whether the kernel's pages of a closed file may be from a time when others wrote it.
    pub fn was_shared(&self) -> bool {
        self.was_shared
    }

    /// An earlier process held it whole, or it was given up once, or a token of an inode was held.
    pub fn inherit_whole(&mut self) {
        self.whole = true;
    }

    pub fn inherit_shared(&mut self) {
        self.was_shared = true;
    }

    pub fn inherit(&mut self, token: Token) {
        self.was_shared = true;
        self.inodes.entry(token.inode).or_default().token = Some((token.mode, token.version));
    }

    /// Whether what was granted to a question of that turn is known to whoever manages the slot: no call-back or claim came
    /// since, the answer to which did not tell of it.
    pub fn stands(&self, asked: Turn) -> bool {
        self.called <= asked
    }

    // ---- calls ----

    /// A call wants to work on an inode.
    pub fn pin(&mut self, inode: InodeId, mode: TokenMode) -> Pinned {
        let whole = self.whole;
        let held = self.inodes.entry(inode).or_default();
        let suffices = whole || held.token.is_some_and(|(token, _)| token >= mode);
        match (held.closed, suffices, held.asking) {
            (false, true, _) => {
                match mode {
                    TokenMode::Names | TokenMode::Read => held.reading += 1,
                    TokenMode::Write => held.writing += 1,
                }
                Pinned::Yes
            }
            (true, ..) | (_, _, true) => Pinned::Wait,
            (false, false, false) => {
                (held.asking, held.spoiled) = (true, TokenVersion::default());
                Pinned::Ask
            }
        }
    }

    /// Whether a call that looks into a directory should ask for its names beside: they are not held, and nobody else here
    /// asks. Then [`SlotTokens::end_ask`].
    pub fn wants_names(&mut self, directory: InodeId) -> bool {
        if self.whole {
            return false;
        }
        let held = self.inodes.entry(directory).or_default();
        if held.keeps_names() || held.asking || held.called {
            return false;
        }
        (held.asking, held.spoiled) = (true, TokenVersion::default());
        true
    }

    /// Whether a call that opens a file should ask for it beside, as [`SlotTokens::wants_names`] for names.
    pub fn wants_file(&mut self, inode: InodeId) -> bool {
        if self.whole {
            return false;
        }
        let held = self.inodes.entry(inode).or_default();
        if held.token.is_some() || held.asking || held.called {
            return false;
        }
        (held.asking, held.spoiled) = (true, TokenVersion::default());
        true
    }

    /// A file was made by a question of that turn, and perhaps granted beside; that is not taken if it may have been called
    /// back by now. Whether nobody else can have touched the file, nor another program here that found it, and of which nothing
    /// is known any more.
    pub fn take_made(&mut self, inode: InodeId, token: Option<Token>, asked: Turn) -> bool {
        if self.whole || !self.stands(asked) {
            return self.whole && self.stands(asked) && self.forgotten < Some(inode);
        }
        let Some(token) = token.filter(|token| token.version > self.gone) else { return false };
        let held = self.inodes.entry(token.inode).or_default();
        let is_free = held.token.is_none() && !held.asking && !held.called;
        if is_free {
            held.token = Some((token.mode, token.version));
            self.was_shared = true;
        }
        is_free
    }

    /// Whether the names of a directory, and its attributes, are changed by nobody else before this client is asked.
    pub fn keeps_names(&self, directory: InodeId) -> bool {
        self.whole || self.inodes.get(&directory).is_some_and(|held| held.keeps_names() && !held.called)
    }

    /// Begins to give up the names of all directories: those that no manager calls back just now. In the end,
    /// [`SlotTokens::end_call`].
    pub fn call_all_names(&mut self) -> Vec<InodeId> {
        let kept = self.inodes.iter_mut().filter(|(_, held)| held.keeps_names() && !held.called);
        let call = |(&inode, held): (&InodeId, &mut Held)| {
            held.called = true;
            inode
        };
        kept.map(call).collect()
    }

    /// Nothing of what was called without a manager's asking is in memory any more: as [`SlotTokens::forget`].
    pub fn end_call(&mut self, inode: InodeId) -> Option<Token> {
        let held = self.inodes.get_mut(&inode).expect("what is called back is known");
        held.called = false;
        self.forget(inode)
    }

    /// As [`SlotTokens::pin`] to read, but asks nobody: none if nothing is held.
    pub fn pin_held(&mut self, inode: InodeId) -> Option<Pinned> {
        let held = self.inodes.get(&inode);
        if !self.whole && held.is_none_or(|held| held.token.is_none()) {
            return None;
        }
        if held.is_some_and(|held| held.closed) {
            return Some(Pinned::Wait);
        }
        self.inodes.entry(inode).or_default().reading += 1;
        Some(Pinned::Yes)
    }

    /// The call has done its work. True if a call-back waits for that.
    pub fn unpin(&mut self, inode: InodeId, mode: TokenMode) -> bool {
        let held = self.inodes.get_mut(&inode).expect("what is pinned is known");
        match mode {
            TokenMode::Names | TokenMode::Read => held.reading -= 1,
            TokenMode::Write => held.writing -= 1,
        }
        let is_awaited = held.closed && held.pins() == 0;
        if held.is_idle() {
            self.inodes.remove(&inode);
        }
        is_awaited
    }

    /// The manager has answered a call that asked at `asked`, or not. Whether what it granted was taken.
    pub fn end_ask(&mut self, inode: InodeId, asked: Turn, granted: Option<Token>) -> bool {
        let is_valid = self.stands(asked);
        let Some(held) = self.inodes.get_mut(&inode) else { return false };
        held.asking = false;
        let is_in_time = |token: &Token| is_valid && token.version > held.spoiled;
        let taken = granted.filter(|token| token.inode == inode && is_in_time(token));
        if let Some(token) = taken {
            held.token = Some((token.mode, token.version));
            self.was_shared = true;
        }
        if held.is_idle() {
            self.inodes.remove(&inode);
        }
        taken.is_some()
    }

    /// A reply to what was asked at `asked` grants the slot.
    pub fn take_whole(&mut self, asked: Turn) {
        self.whole |= self.stands(asked);
    }

    // ---- call-backs ----

    /// Others use the slot from now on: of the files in `kept`, and of what is pinned, tokens remain.
    pub fn narrow(
        &mut self,
        turn: Turn,
        version: TokenVersion,
        kept: impl Iterator<Item = (InodeId, TokenMode)>,
    ) -> Vec<Token> {
        self.called = self.called.max(turn);
        self.was_shared = true;
        if std::mem::take(&mut self.whole) {
            for held in self.inodes.values_mut() {
                let mode = if held.writing > 0 { TokenMode::Write } else { TokenMode::Read };
                held.token = (held.pins() > 0).then_some((mode, version));
            }
            for (inode, mode) in kept {
                let held = self.inodes.entry(inode).or_default();
                let mode = held.token.map_or(mode, |(token, _)| token.max(mode));
                held.token = Some((mode, version));
            }
        }
        self.tokens()
    }

    /// What a new manager is told.
    pub fn claim(&mut self, turn: Turn) -> Vec<Token> {
        self.called = self.called.max(turn);
        if self.whole { Vec::new() } else { self.tokens() }
    }

    fn tokens(&self) -> Vec<Token> {
        let held = self.inodes.iter().filter_map(|(&inode, held)| Some((inode, held.token?)));
        held.map(|(inode, (mode, version))| Token { inode, mode, version }).collect()
    }

    /// What the call-back of a grant demands.
    pub fn demand(&mut self, inode: InodeId, version: TokenVersion) -> Demand {
        let whole = self.whole;
        self.gone = self.gone.max(version);
        let Some(held) = self.inodes.get_mut(&inode).filter(|_| !whole) else { return Demand::Nothing };
        match held.token {
            _ if held.called => return Demand::Follow,
            Some((_, own)) if own > version => return Demand::Nothing,
            Some((_, own)) if own == version => {}
            _ if held.asking && version > held.spoiled => return Demand::Wait,
            // A newer grant was lost on its way here; the older token stands against the call-back as well.
            Some(_) => {}
            None => return Demand::Nothing,
        }
        held.called = true;
        Demand::GiveUp
    }

    /// What the token of an inode allows.
    pub fn mode(&self, inode: InodeId) -> Option<TokenMode> {
        let (mode, _) = self.inodes.get(&inode)?.token?;
        Some(mode)
    }

    /// No answer to a call that asks came in time: that grant, and any before it, is given up already. A later one is not:
    /// what was given up may have been granted to an earlier question, whose answer was lost.
    pub fn spoil(&mut self, inode: InodeId, version: TokenVersion) {
        if let Some(held) = self.inodes.get_mut(&inode) {
            held.spoiled = held.spoiled.max(version);
        }
    }

    /// From now on calls wait.
    pub fn close(&mut self, inode: InodeId) {
        self.inodes.get_mut(&inode).expect("what is called back is known").closed = true;
    }

    /// Whether calls still work on a closed inode.
    pub fn is_pinned(&self, inode: InodeId) -> bool {
        self.inodes.get(&inode).is_some_and(|held| held.pins() > 0)
    }

    /// The call-back has done its work, or failed.
    pub fn reopen(&mut self, inode: InodeId, kept: Kept) {
        let held = self.inodes.get_mut(&inode).expect("what is called back is known");
        (held.called, held.closed) = (false, false);
        match kept {
            Kept::All => {}
            Kept::Part(mode) => held.token = held.token.map(|(token, version)| (token.min(mode), version)),
            Kept::Nothing => held.token = None,
        }
        if held.is_idle() {
            self.inodes.remove(&inode);
        }
    }

    /// Whether a call works on the inode or asks for it, or it is being called back: it is not to be forgotten now.
    pub fn is_busy(&self, inode: InodeId) -> bool {
        self.inodes.get(&inode).is_some_and(|held| held.pins() > 0 || held.called || held.asking)
    }

    /// Nothing of the inode is in memory any more: its token, if there is one, need not be kept, and its manager can be told.
    pub fn forget(&mut self, inode: InodeId) -> Option<Token> {
        self.forgotten = self.forgotten.max(Some(inode));
        let held = self.inodes.get_mut(&inode)?;
        let forgotten = held.token.take();
        if held.is_idle() {
            self.inodes.remove(&inode);
        }
        let (mode, version) = forgotten?;
        self.gone = self.gone.max(version);
        Some(Token { inode, mode, version })
    }
}

/// What a call-back leaves.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kept {
    /// Everything: it failed.
    All,
    /// At most this.
    Part(TokenMode),
    /// Nothing.
    Nothing,
}

#[cfg(test)]
mod tests {
    use super::*;

    const INODE: InodeId = InodeId(2);

    fn granted(version: u64) -> Option<Token> {
        Some(Token { inode: INODE, mode: TokenMode::Read, version: TokenVersion(version) })
    }

    /// A call asks, and the call-back of that version has waited for its answer in vain.
    fn asked_and_spoiled(version: u64) -> SlotTokens {
        let mut held = SlotTokens::default();
        assert_eq!(held.pin(INODE, TokenMode::Read), Pinned::Ask);
        assert_eq!(held.demand(INODE, TokenVersion(version)), Demand::Wait);
        held.spoil(INODE, TokenVersion(version));
        assert_eq!(held.demand(INODE, TokenVersion(version)), Demand::Nothing);
        held
    }

    #[test]
    fn what_was_given_up_before_its_answer_came_is_not_taken() {
        let mut held = asked_and_spoiled(7);
        held.end_ask(INODE, Turn(0), granted(7));
        assert_eq!(held.mode(INODE), None);
    }

    #[test]
    fn a_lost_answer_to_an_earlier_question_spoils_no_later_grant() {
        let mut held = asked_and_spoiled(7);
        assert_eq!(held.demand(INODE, TokenVersion(8)), Demand::Wait, "its answer may be on its way");
        held.end_ask(INODE, Turn(0), granted(8));
        assert_eq!(held.mode(INODE), Some(TokenMode::Read));
    }

    /// Another program of the maker has found the new file, and was granted it anew, before the answer to the maker comes.
    fn found_before_its_maker_heard() -> (SlotTokens, Token) {
        let made = Token { inode: INODE, mode: TokenMode::Write, version: TokenVersion(7) };
        let mut held = SlotTokens::default();
        assert_eq!(held.pin(INODE, TokenMode::Read), Pinned::Ask);
        assert!(held.end_ask(INODE, Turn(0), Some(Token { version: TokenVersion(8), ..made })));
        (held, made)
    }

    /// A slot is handed over where nobody claims anything of it, and then this client is alone in it: what the kernel has
    /// is from when others wrote there.
    #[test]
    fn who_held_single_inodes_knows_that_others_used_the_slot() {
        let (mut held, made) = found_before_its_maker_heard();
        assert!(held.forget(INODE).is_some());
        held.take_whole(Turn(0));
        assert!(held.is_whole() && held.was_shared());
        let mut held = SlotTokens::default();
        assert!(held.take_made(INODE, Some(made), Turn(0)) && held.was_shared());
        let mut held = SlotTokens::default();
        held.take_whole(Turn(0));
        assert!(!held.was_shared(), "it was alone from the first");
    }

    #[test]
    fn a_new_file_that_was_given_up_before_its_maker_hears_of_it_is_not_kept() {
        let (mut held, made) = found_before_its_maker_heard();
        assert_eq!(held.demand(INODE, TokenVersion(8)), Demand::GiveUp);
        held.reopen(INODE, Kept::Nothing);
        assert!(!held.take_made(INODE, Some(made), Turn(0)));
        assert_eq!(held.mode(INODE), None);
    }

    #[test]
    fn a_new_file_that_was_forgotten_before_its_maker_hears_of_it_is_not_kept() {
        let (mut held, made) = found_before_its_maker_heard();
        assert!(held.forget(INODE).is_some());
        assert!(!held.take_made(INODE, Some(made), Turn(0)));
        assert_eq!(held.mode(INODE), None);
    }

    #[test]
    fn a_new_file_of_a_whole_slot_that_was_forgotten_before_its_maker_hears_of_it_is_not_kept() {
        let (older, newer) = (InodeId(INODE.0 - 1), InodeId(INODE.0 + 1));
        let mut held = SlotTokens::default();
        held.take_whole(Turn(0));
        assert_eq!(held.forget(older), None);
        assert!(held.take_made(INODE, None, Turn(0)), "that was another one");
        assert_eq!(held.forget(INODE), None);
        assert!(!held.take_made(INODE, None, Turn(0)), "somebody may have written it");
        assert!(held.take_made(newer, None, Turn(0)), "that one cannot have been known");
    }

    #[test]
    fn a_new_file_that_is_called_back_before_its_maker_hears_of_it_is_not_kept() {
        let token = Token { inode: INODE, mode: TokenMode::Write, version: TokenVersion(7) };
        let mut held = SlotTokens::default();
        assert_eq!(held.demand(INODE, token.version), Demand::Nothing);
        assert!(!held.take_made(INODE, Some(token), Turn(0)));
        assert_eq!(held.mode(INODE), None);
        assert!(held.take_made(INODE, Some(Token { version: TokenVersion(8), ..token }), Turn(0)));
        assert_eq!(held.mode(INODE), Some(TokenMode::Write), "a later grant");
    }
}
