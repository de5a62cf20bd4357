//! The tokens of one slot against clients that believe what they are told: random questions, answers that come late, call-backs
//! that fail, or end when their client is dead and its next life holds the same; clients that forget, which is heard late and
//! twice; managers that take over. Nobody ever believes to hold what stands against another's belief.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use host::sim::Dice;

use super::*;

const SLOT: SlotId = SlotId(3);
const START: Moment = Moment(0);

fn inode(number: u64) -> InodeId {
    InodeId::new(SLOT, number + 1)
}

fn directory(number: u64) -> InodeId {
    inode(number + 10)
}

/// What a client believes: that it holds the slot, and these inodes.
#[derive(Default)]
struct Believer {
    life: u32,
    whole: bool,
    inodes: BTreeMap<InodeId, Token>,
}

struct Play {
    tokens: SlotTokens,
    clients: BTreeMap<u32, Believer>,
    /// The map that gave the slot to its manager.
    epoch: u64,
    /// Call-backs under way, each with the life that is asked, and when its manager took over.
    calls: Vec<(CallBack, u32, u64)>,
    /// What clients told that they forgot.
    forgotten: Vec<(u32, Token)>,
    /// One of so many clients that could die does.
    health: u64,
    dice: Dice,
    now: Moment,
    grants: u64,
    /// How often attributes were changed.
    changes: u64,
    /// How often a token was forgotten that the manager knew of.
    drops: u64,
}

impl Play {
    fn new(seed: u64) -> Play {
        Play {
            tokens: SlotTokens::default(),
            clients: BTreeMap::new(),
            epoch: 0,
            calls: Vec::new(),
            forgotten: Vec::new(),
            health: 1 + seed % 8,
            dice: Dice::new(seed),
            now: START,
            grants: 0,
            changes: 0,
            drops: 0,
        }
    }

    fn step(&mut self) {
        let node = self.dice.below(4) as u32;
        let inode = inode(self.dice.below(3));
        self.now = self.now + Duration::from_millis(self.dice.below(200));
        match self.dice.below(18) {
            0..=5 => self.ask(node, inode),
            10 | 11 => self.look(node),
            12 | 13 => self.change(node),
            14 | 15 => self.forget(node),
            16 => self.hear(),
            17 if self.dice.below(8) == 0 => self.take_over(),
            6 | 7 => self.answer(),
            8 => {
                if self.dice.below(self.health) == 0 {
                    self.tokens.forget(node);
                    let client = self.clients.entry(node).or_default();
                    *client = Believer { life: client.life + 1, ..Believer::default() };
                }
            }
            _ => self.tokens.leave(node, inode),
        }
        self.check();
    }

    fn ask(&mut self, node: u32, inode: InodeId) {
        let mode = if self.dice.coin() { TokenMode::Read } else { TokenMode::Write };
        match self.tokens.grant(SLOT, node, inode, mode) {
            Ok(Grant::Slot(slot)) => {
                assert_eq!(slot, SLOT);
                self.clients.entry(node).or_default().whole = true;
                self.grants += 1;
            }
            Ok(Grant::Inode(token)) => {
                assert!(token.mode >= mode && token.inode == inode);
                // Sometimes the answer is lost.
                if self.dice.below(5) > 0 {
                    self.clients.entry(node).or_default().inodes.insert(inode, token);
                }
                self.grants += 1;
            }
            Err(Refusal::Wait) => {}
            Err(Refusal::Call(call)) => self.call_back(node, call),
        }
    }

    fn look(&mut self, node: u32) {
        let (asked, mode) = match self.dice.below(3) {
            0 => (inode(self.dice.below(3)), TokenMode::Read),
            1 => (inode(self.dice.below(3)), TokenMode::Write),
            _ => (directory(self.dice.below(2)), TokenMode::Names),
        };
        let Some(grant) = self.tokens.grant_beside(node, asked, mode, self.now) else { return };
        let token = grant.token;
        assert!(token.inode == asked && token.mode >= mode);
        self.grants += 1;
        match self.dice.below(5) {
            // There was no room in the answer, or it is lost.
            0 => self.tokens.ungrant(node, grant),
            1 => {}
            _ => drop(self.clients.entry(node).or_default().inodes.insert(token.inode, token)),
        }
    }

    /// A name is made in a directory, or a file gets another owner, if nobody else holds anything of it.
    fn change(&mut self, node: u32) {
        let changed = if self.dice.coin() { directory(self.dice.below(2)) } else { inode(self.dice.below(3)) };
        let admitted = self.tokens.admit(SLOT, node).and_then(|()| self.tokens.admit_change(SLOT, node, changed));
        match admitted {
            Ok(()) => {
                let mut others = self.clients.iter().filter(|(other, _)| **other != node);
                let keeps = |client: &Believer| client.whole || client.inodes.contains_key(&changed);
                assert!(others.all(|(_, client)| !keeps(client)), "{changed:?} changes, and somebody keeps it");
                self.changes += 1;
            }
            Err(call) => self.call_back(node, call),
        }
    }

    fn call_back(&mut self, node: u32, call: Call) {
        assert_ne!(call.holder, node);
        let life = self.clients.entry(call.holder).or_default().life;
        self.calls.extend(self.tokens.begin(call, self.now).map(|begun| (begun, life, self.epoch)));
    }

    fn forget(&mut self, node: u32) {
        let client = self.clients.entry(node).or_default();
        let inodes: Vec<InodeId> = client.inodes.keys().copied().collect();
        if let Some(forgotten) = self.dice.pick(&inodes).and_then(|inode| client.inodes.remove(inode)) {
            self.forgotten.push((node, forgotten));
        }
    }

    /// Something that was forgotten is told, perhaps not for the first time, and perhaps to another manager.
    fn hear(&mut self) {
        let Some(&(node, token)) = self.dice.pick(&self.forgotten) else { return };
        let before = self.tokens.held();
        self.tokens.forgotten(node, token);
        self.drops += before - self.tokens.held();
    }

    /// Another manager takes the slot over: it knows what clients tell it.
    fn take_over(&mut self) {
        self.epoch += 1;
        self.tokens = SlotTokens::unheard(MapEpoch(self.epoch));
        for (&node, client) in &self.clients {
            if client.whole {
                self.tokens.claim_slot(node);
            } else {
                client.inodes.values().for_each(|&token| self.tokens.claim(node, token));
            }
        }
        self.tokens.heard(false);
    }

    /// A call-back is answered, or comes to nothing.
    fn answer(&mut self) {
        if self.calls.is_empty() {
            return;
        }
        let at = self.dice.below(self.calls.len() as u64) as usize;
        let (begun @ CallBack { call, version }, life, epoch) = self.calls.swap_remove(at);
        let client = self.clients.entry(call.holder).or_default();
        let mut remaining = Vec::new();
        match call.what {
            // It may have answered before it died.
            _ if client.life != life => {}
            What::Slot => {
                if std::mem::take(&mut client.whole) {
                    let mode = if self.dice.coin() { TokenMode::Read } else { TokenMode::Write };
                    let kept = Token { inode: inode(self.dice.below(3)), mode, version };
                    client.inodes.insert(kept.inode, kept);
                }
                remaining.extend(client.inodes.values().copied());
            }
            What::Inode(token, None) => drop(client.inodes.remove(&token.inode)),
            What::Inode(token, Some(mode)) => {
                client.inodes.entry(token.inode).and_modify(|held| held.mode = held.mode.min(mode));
            }
        }
        if epoch != self.epoch {
            // Its manager is gone.
        } else if self.dice.below(6) == 0 {
            self.tokens.not_given_up(begun);
        } else {
            self.tokens.given_up(begun, &remaining);
        }
    }

    fn check(&self) {
        let whole: Vec<_> = self.clients.iter().filter(|(_, client)| client.whole).collect();
        assert!(whole.len() <= 1, "one client has the slot whole");
        let mut modes: BTreeMap<InodeId, Vec<TokenMode>> = BTreeMap::new();
        let mut users = BTreeSet::new();
        for (node, client) in &self.clients {
            for token in client.inodes.values() {
                modes.entry(token.inode).or_default().push(token.mode);
                users.insert(*node);
            }
        }
        assert!(whole.is_empty() || users.iter().all(|user| user == whole[0].0), "whole means alone");
        for (inode, modes) in modes {
            assert!(modes.len() == 1 || !modes.contains(&TokenMode::Write), "one writes {inode:?}, or many read");
        }
    }
}

#[test]
fn no_two_clients_believe_what_cannot_both_be() {
    let (mut grants, mut changes, mut drops) = (0, 0, 0);
    for seed in 0..1000 {
        let mut play = Play::new(seed);
        (0..400).for_each(|_| play.step());
        grants += play.grants;
        changes += play.changes;
        drops += play.drops;
    }
    println!("{grants} grants, {changes} changes, {drops} forgotten");
    assert!(grants > 4000 && changes > 4000 && drops > 1000, "{grants} {changes} {drops}");
}

#[test]
fn a_directory_that_was_called_back_rests() {
    let mut tokens = SlotTokens::default();
    let file = inode(0);
    assert_eq!(tokens.grant(SLOT, 1, file, TokenMode::Read), Ok(Grant::Slot(SLOT)));
    assert_eq!(tokens.grant_beside(1, directory(0), TokenMode::Names, START), None, "it has the slot");
    let Err(call) = tokens.admit(SLOT, 2) else { panic!("the slot is taken") };
    let begun = tokens.begin(call, START).expect("nobody calls yet");
    tokens.given_up(begun, &[]);
    assert!(tokens.grant_beside(1, directory(0), TokenMode::Names, START).is_some());
    assert!(tokens.grant_beside(2, directory(0), TokenMode::Names, START).is_some(), "many keep them");
    assert_eq!(tokens.admit_change(SLOT, 3, directory(1)), Ok(()), "another one");
    while let Err(call) = tokens.admit_change(SLOT, 2, directory(0)) {
        assert_eq!(call.holder, 1);
        let begun = tokens.begin(call, START).expect("nobody calls yet");
        assert_eq!(tokens.grant_beside(1, directory(0), TokenMode::Names, START), None, "it is called back");
        tokens.given_up(begun, &[]);
    }
    let mut now = START;
    for length in [1, 2, 4, 8, 16, 30, 30].map(|tenths| REST_MIN * tenths) {
        assert_eq!(
            tokens.grant_beside(1, directory(0), TokenMode::Names, now + length - REST_MIN / 2),
            None,
            "it rests"
        );
        now = now + length;
        assert!(tokens.grant_beside(1, directory(0), TokenMode::Names, now).is_some());
        let Err(call) = tokens.admit_change(SLOT, 2, directory(0)) else { panic!("it is kept") };
        let begun = tokens.begin(call, now).expect("nobody calls yet");
        tokens.given_up(begun, &[]);
    }
    assert!(tokens.grant_beside(1, directory(0), TokenMode::Names, now + 2 * REST_MAX).is_some());
    let Err(call) = tokens.admit_change(SLOT, 2, directory(0)) else { panic!("it is kept") };
    let begun = tokens.begin(call, now + 2 * REST_MAX).expect("nobody calls yet");
    tokens.given_up(begun, &[]);
    assert!(
        tokens.grant_beside(1, directory(0), TokenMode::Names, now + 2 * REST_MAX + REST_MIN).is_some(),
        "it was left alone for long"
    );
}

/// A client claims nothing of a file that others had called back and that its programs have open: whoever uses the slot
/// first must not take itself for alone, and what it wrote to a file that loses its name for nobody's.
#[test]
fn where_others_have_files_open_nobody_is_alone() {
    let mut tokens = SlotTokens::unheard(MapEpoch(2));
    tokens.heard(true);
    assert_eq!(tokens.admit(SLOT, 1), Ok(()));
    assert!(!tokens.is_whole_of(1));
    let mut tokens = SlotTokens::unheard(MapEpoch(2));
    tokens.claim_slot(2);
    tokens.heard(true);
    assert!(tokens.is_whole_of(2), "they may be its own");
}

#[test]
fn who_waits_longest_is_next() {
    let mut tokens = SlotTokens::default();
    let file = inode(0);
    assert_eq!(tokens.grant(SLOT, 1, file, TokenMode::Write), Ok(Grant::Slot(SLOT)));
    let Err(Refusal::Call(call)) = tokens.grant(SLOT, 2, file, TokenMode::Write) else { panic!("the slot is taken") };
    let begun = tokens.begin(call, START).expect("nobody calls yet");
    assert_eq!(tokens.begin(call, START), None, "once at a time");
    assert_eq!(tokens.grant(SLOT, 1, file, TokenMode::Write), Err(Refusal::Wait), "the answer comes first");
    tokens.given_up(begun, &[Token { inode: file, mode: TokenMode::Write, version: begun.version }]);
    let Err(Refusal::Call(call)) = tokens.grant(SLOT, 2, file, TokenMode::Read) else { panic!("it is written") };
    let begun = tokens.begin(call, START).expect("nobody calls yet");
    assert_eq!(tokens.grant(SLOT, 3, file, TokenMode::Read), Err(Refusal::Wait));
    tokens.given_up(begun, &[]);
    assert_eq!(tokens.grant(SLOT, 3, file, TokenMode::Read), Err(Refusal::Wait), "another asked before");
    assert!(tokens.grant(SLOT, 2, file, TokenMode::Read).is_ok());
    assert!(tokens.grant(SLOT, 3, file, TokenMode::Read).is_ok());
    assert_eq!(tokens.writer_besides(file, 2), None);
}
