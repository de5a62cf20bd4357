//! What this client holds, as it tells a manager that takes slots over (`docs/tokens.md`). At once: nothing here awaits.

use protocol::id::{InodeId, SLOT_COUNT, SlotId};
use protocol::token::Claims;

use crate::client::{Inner, lock};

/// Tokens, open files and locks that one answer tells of: some three megabytes.
const ITEMS_MAX: usize = 50_000;

impl Inner {
    /// What is held of these slots, of inodes from there on; or the first part of it. What managers answer from now on to
    /// questions from before is not taken: it is not told here.
    pub(crate) fn claim(&self, slots: &[SlotId], from: InodeId) -> Claims {
        let mut claims = Claims::default();
        for &slot in slots.iter().filter(|slot| slot.0 < SLOT_COUNT && **slot >= from.slot()) {
            self.claim_slot(slot, from, &mut claims);
            cut(&mut claims, ITEMS_MAX);
            if claims.rest.is_some() {
                break;
            }
        }
        claims
    }

    /// All that is held of a slot.
    pub(crate) fn claim_all(&self, slot: SlotId) -> Claims {
        let mut claims = Claims::default();
        self.claim_slot(slot, InodeId::new(slot, 0), &mut claims);
        claims
    }

    fn claim_slot(&self, slot: SlotId, from: InodeId, claims: &mut Claims) {
        let turn = self.tokens.next_turn();
        // Nothing is noted as granted while these are locked.
        let files = lock(&self.files);
        let mut held = self.tokens.slot(slot);
        claims.slots.extend(held.is_whole().then_some(slot));
        claims.tokens.extend(held.claim(turn).into_iter().filter(|token| token.inode >= from));
        let files = files.range(slot.inodes()).filter(|(inode, _)| **inode >= from);
        claims.opens.extend(files.filter(|(_, file)| lock(&file.state).is_open()).map(|(inode, _)| *inode));
        claims.locks.extend(lock(&self.locks).of_slot(slot).filter(|(inode, _)| *inode >= from));
    }
}

/// Leaves out what is more than so much, of the last inodes; of one inode all is told, or nothing.
fn cut(claims: &mut Claims, items_max: usize) {
    let Claims { tokens, opens, locks, rest, .. } = claims;
    if tokens.len() + opens.len() + locks.len() <= items_max {
        return;
    }
    let locked = locks.iter().map(|(inode, _)| *inode);
    let mut inodes: Vec<InodeId> =
        tokens.iter().map(|token| token.inode).chain(opens.iter().copied()).chain(locked).collect();
    inodes.sort_unstable();
    let end = inodes[items_max].max(InodeId(inodes[0].0 + 1));
    tokens.retain(|token| token.inode < end);
    opens.retain(|inode| *inode < end);
    locks.retain(|(inode, _)| *inode < end);
    *rest = Some(end);
}

#[cfg(test)]
mod tests {
    use protocol::file::{Lock, LockFamily, LockOwner};
    use protocol::token::{Token, TokenMode, TokenVersion};

    use super::*;

    fn claims(inodes: std::ops::Range<u64>, locks: u64) -> Claims {
        let owner = LockOwner { node: 1, owner: 2 };
        let lock = |start| Lock {
            family: LockFamily::Posix,
            owner,
            pid: 3,
            exclusive: true,
            start: 2 * start,
            last: 2 * start,
        };
        let (mode, version) = (TokenMode::Write, TokenVersion(u64::MAX));
        Claims {
            tokens: inodes.clone().map(|inode| Token { inode: InodeId(inode), mode, version }).collect(),
            opens: inodes.clone().map(InodeId).collect(),
            locks: inodes.flat_map(|inode| (0..locks).map(move |start| (InodeId(inode), lock(start)))).collect(),
            ..Claims::default()
        }
    }

    #[test]
    fn everything_is_told_in_parts_of_whole_inodes() {
        for (inodes, locks, items_max) in [(10, 2, 7), (10, 2, 8), (10, 0, 1), (3, 50, 20), (10, 2, 40)] {
            let all = claims(0..inodes, locks);
            let (mut told, mut from) = (Claims::default(), 0);
            loop {
                let mut part = claims(from..inodes, locks);
                cut(&mut part, items_max);
                told.tokens.extend(part.tokens);
                told.opens.extend(part.opens);
                told.locks.extend(part.locks);
                match part.rest {
                    Some(rest) => assert!(std::mem::replace(&mut from, rest.0) < rest.0),
                    None => break,
                }
            }
            assert_eq!(told, all);
        }
    }

    #[test]
    fn one_answer_fits_into_a_message() {
        let inode = InodeId(u64::MAX);
        let owner = LockOwner { node: u32::MAX, owner: u64::MAX };
        let (start, last) = (u64::MAX, u64::MAX);
        let lock = Lock { family: LockFamily::Posix, owner, pid: u32::MAX, exclusive: true, start, last };
        let longest = Claims { locks: vec![(inode, lock); ITEMS_MAX], ..Claims::default() };
        let bytes = postcard::to_stdvec(&longest).expect("memory is the only thing that can lack");
        assert!(bytes.len() < 4 << 20, "{} bytes", bytes.len());
    }
}
