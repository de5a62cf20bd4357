//! What a slot knows of operations over slots of several managers: which parts are prepared here, and so which records
//! are locked, and which intentions it decided (DESIGN §5, operations over several slots). Decides.
//!
//! Invariants
//! 1. What the journal is to keep is here exactly while its record, `PREPARED` or `DECIDED`, is in the slot.
//! 2. No two parts that are held change a key that the other changes or read.
//! 3. Whoever waits for a part waits for its cell, which is set when the part goes.

use std::collections::BTreeMap;
use std::sync::Arc;

use async_lock::OnceCell;
use protocol::id::{InodeId, LogId, SlotId};
use protocol::intention::{Consequence, IntentionId, Keep, Part};
use serde::{Deserialize, Serialize};

use crate::encoding::Damaged;
use crate::key::{self, KeyRange, Subject};
use crate::records::{decode, encode};
use crate::transaction::Changes;

/// Set when a part is no longer held.
pub(crate) type Over = Arc<OnceCell<()>>;

/// A `PREPARED` record.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Prepared {
    /// Whose manager knows the outcome.
    pub(crate) coordinator: SlotId,
    pub(crate) part: Part,
}

/// A part that is held.
#[derive(Clone, Debug)]
pub(crate) struct Held {
    pub(crate) prepared: Arc<Prepared>,
    pub(crate) keep: Keep,
    /// What was read, as ranges that do not touch, in order.
    read: Vec<KeyRange>,
    over: Over,
}

impl Held {
    /// Holds a part.
    pub(crate) fn new(prepared: Prepared, keep: Keep) -> Held {
        let mut looks: Vec<KeyRange> =
            prepared.part.looks.iter().map(|look| (look.from.to_vec(), look.end.to_vec())).collect();
        looks.sort_unstable();
        let mut read: Vec<KeyRange> = Vec::with_capacity(looks.len());
        for (from, end) in looks {
            match read.last_mut() {
                Some(last) if from <= last.1 => last.1 = end.max(std::mem::take(&mut last.1)),
                _ => read.push((from, end)),
            }
        }
        Held { prepared: Arc::new(prepared), keep, read, over: Over::default() }
    }

    /// What to wait for.
    pub(crate) fn over(&self) -> Over {
        self.over.clone()
    }

    /// The first key from `from` on, before `end`, that the part changes.
    fn changes_in(&self, from: &[u8], end: &[u8]) -> Option<&[u8]> {
        let changes = &self.prepared.part.changes;
        let first = changes.partition_point(|(key, _)| &key[..] < from);
        changes.get(first).map(|(key, _)| &key[..]).filter(|key| *key < end)
    }

    fn reads(&self, key: &[u8]) -> bool {
        let first = self.read.partition_point(|(_, end)| end.as_slice() <= key);
        self.read.get(first).is_some_and(|(from, _)| from.as_slice() <= key)
    }

    fn changes(&self, key: &[u8]) -> bool {
        self.prepared.part.changes.binary_search_by(|(changed, _)| changed[..].cmp(key)).is_ok()
    }
}

/// What an operation does to what a slot knows of intentions, together with its changes of records.
#[derive(Clone, Debug)]
pub(crate) enum Turn {
    /// A part is held.
    Hold(IntentionId, Held),
    /// It no longer is.
    Release(IntentionId),
    /// An intention took effect; these slots may not know.
    Decide(IntentionId, Vec<SlotId>),
    /// All know.
    Forget(IntentionId),
}

/// The intentions of one slot.
#[derive(Default)]
pub(crate) struct Intentions {
    held: BTreeMap<IntentionId, Held>,
    decided: BTreeMap<IntentionId, Vec<SlotId>>,
}

impl Intentions {
    /// Takes in a record of an image or a journal: what it is now, or that it went.
    pub(crate) fn recover(&mut self, key: &[u8], value: Option<&[u8]>) -> Result<(), Damaged> {
        match (key::subject(key), value) {
            (Some(Subject::Prepared(id)), Some(value)) => {
                self.held.insert(id, Held::new(decode(value)?, Keep::Journal));
            }
            (Some(Subject::Prepared(id)), None) => drop(self.held.remove(&id)),
            (Some(Subject::Decided(id)), Some(value)) => drop(self.decided.insert(id, decode(value)?)),
            (Some(Subject::Decided(id)), None) => drop(self.decided.remove(&id)),
            _ => {}
        }
        Ok(())
    }

    /// Does what an operation decided.
    pub(crate) fn turn(&mut self, turn: Turn) {
        match turn {
            Turn::Hold(id, held) => drop(self.held.insert(id, held)),
            Turn::Release(id) => {
                if let Some(held) = self.held.remove(&id) {
                    // Nobody else sets it: whoever does takes the part out first.
                    let _ = held.over.try_set(());
                }
            }
            Turn::Decide(id, slots) => drop(self.decided.insert(id, slots)),
            Turn::Forget(id) => drop(self.decided.remove(&id)),
        }
    }

    /// The slot goes: what was held in memory alone is no longer held, and whoever waits for any of it looks again.
    pub(crate) fn end_stay(&mut self) {
        for held in self.held.values_mut() {
            // Nobody else sets it: only a part that goes is over.
            let _ = std::mem::take(&mut held.over).try_set(());
        }
        self.held.retain(|_, held| held.keep == Keep::Journal);
    }

    /// Whether there are none.
    pub(crate) fn is_empty(&self) -> bool {
        self.held.is_empty() && self.decided.is_empty()
    }

    /// Whether nothing is locked.
    pub(crate) fn is_free(&self) -> bool {
        self.held.is_empty()
    }

    /// Whether nothing here waits for an outcome, and no outcome for being told, of what changes slots.
    pub(crate) fn are_over(&self) -> bool {
        self.decided.is_empty() && self.held.values().all(|held| held.keep != Keep::Journal)
    }

    /// A part that is held.
    pub(crate) fn held(&self, id: IntentionId) -> Option<&Held> {
        self.held.get(&id)
    }

    /// All parts whose outcome the manager that writes `log` has to be told, each with its coordinator's slot: all but those
    /// that it holds for itself.
    pub(crate) fn held_for(&self, log: LogId) -> impl Iterator<Item = (IntentionId, SlotId)> {
        let others = self.held.iter().filter(move |(id, held)| held.keep == Keep::Journal || id.log != log);
        others.map(|(id, held)| (*id, held.prepared.coordinator))
    }

    /// All intentions that some slots may not know the outcome of.
    pub(crate) fn decided(&self) -> &BTreeMap<IntentionId, Vec<SlotId>> {
        &self.decided
    }

    /// The first key from `from` on, before `end`, that an intention other than `own` is about to change.
    pub(crate) fn locked_in(&self, from: &[u8], end: &[u8], own: Option<IntentionId>) -> Option<(&[u8], IntentionId)> {
        let others = self.held.iter().filter(|(id, _)| Some(**id) != own);
        others.filter_map(|(id, held)| held.changes_in(from, end).map(|key| (key, *id))).min()
    }

    /// The intention, other than `own`, that does not let the key be changed.
    pub(crate) fn lock_on(&self, key: &[u8], own: Option<IntentionId>) -> Option<IntentionId> {
        let mut others = self.held.iter().filter(|(id, _)| Some(**id) != own);
        others.find(|(_, held)| held.changes(key) || held.reads(key)).map(|(id, _)| *id)
    }

    /// The records that say all this, for the journal.
    pub(crate) fn records(&self) -> Changes {
        let kept = self.held.iter().filter(|(_, held)| held.keep == Keep::Journal);
        let held = kept.map(|(id, held)| (key::prepared(*id), Some(encode(&*held.prepared))));
        let decided = self.decided.iter().map(|(id, slots)| (key::decided(*id), Some(encode(slots))));
        held.chain(decided).collect()
    }
}

/// A hash of records, of all that was seen in a range. Compared within one life of two managers, so no format.
#[derive(Clone, Copy)]
pub(crate) struct Seen(u64);

impl Seen {
    /// Of nothing.
    pub(crate) fn nothing() -> Seen {
        Seen(0xcbf2_9ce4_8422_2325)
    }

    /// One record more.
    pub(crate) fn record(&mut self, key: &[u8], value: &[u8]) {
        for run in [key, value] {
            (run.len() as u64).to_le_bytes().iter().chain(run).for_each(|byte| {
                self.0 = (self.0 ^ u64::from(*byte)).wrapping_mul(0x0100_0000_01b3);
            });
        }
    }

    /// The hash.
    pub(crate) fn hash(self) -> u64 {
        self.0
    }
}

/// Whether a part can be one: what a peer sends of other keys, or for other slots, is refused.
pub(crate) fn is_possible(part: &Part) -> bool {
    let known = |key: &[u8]| {
        key.len() <= usize::from(u16::MAX)
            && matches!(
                key::subject(key),
                Some(
                    Subject::Applied
                        | Subject::Shared(_)
                        | Subject::Place
                        | Subject::Orphan(_)
                        | Subject::Renames
                        | Subject::Calls(_)
                        | Subject::Inode(_)
                        | Subject::Entry(..)
                        | Subject::Extent(..)
                        | Subject::Xattr(_)
                        | Subject::Part(..)
                        | Subject::Holding(_)
                )
            )
    };
    let mine = |inode: InodeId| inode.slot() == part.slot;
    let concerns = |effect: &Consequence| match *effect {
        Consequence::Open(inode, _)
        | Consequence::Close(inode, _)
        | Consequence::Reap(inode)
        | Consequence::Split(inode, _) => mine(inode),
    };
    let ordered = part.changes.windows(2).all(|pair| pair[0].0 < pair[1].0);
    ordered
        && part.changes.iter().all(|(key, _)| known(key))
        && part.looks.iter().all(|look| look.from < look.end)
        && part.holders.iter().all(|(inode, _)| mine(*inode))
        && part.effects.iter().all(concerns)
}

#[cfg(test)]
mod tests {
    use bytes::Bytes;
    use protocol::intention::Look;

    use super::*;

    fn part(looks: &[(&[u8], &[u8])], changes: &[&[u8]]) -> Prepared {
        let bytes = Bytes::copy_from_slice;
        let looks = looks.iter().map(|(from, end)| Look { from: bytes(from), end: bytes(end), seen: 0 }).collect();
        let changes = changes.iter().map(|key| (bytes(key), None)).collect();
        Prepared { coordinator: SlotId(1), part: Part { looks, changes, ..Part::default() } }
    }

    #[test]
    fn what_is_read_may_be_read_and_what_changes_is_locked() {
        let (id, other) = (IntentionId { log: LogId(1), number: 1 }, IntentionId { log: LogId(1), number: 2 });
        let mut intentions = Intentions::default();
        assert!(intentions.is_free());
        let looks: [(&[u8], &[u8]); 3] = [(b"k", b"m"), (b"a", b"c"), (b"b", b"f")];
        intentions.turn(Turn::Hold(id, Held::new(part(&looks, &[b"d", b"x"]), Keep::Journal)));
        let lock = |key: &[u8], own| intentions.lock_on(key, own);
        for key in [b"a", b"b", b"e", b"d", b"k", b"l", b"x"] {
            assert_eq!(lock(key, None), Some(id), "{key:?}");
            assert_eq!(lock(key, Some(id)), None);
            assert_eq!(lock(key, Some(other)), Some(id));
        }
        for key in [b"A", b"f", b"m", b"y"] {
            assert_eq!(lock(key, None), None, "{key:?}");
        }
        assert_eq!(intentions.locked_in(b"a", b"d", None), None);
        assert_eq!(intentions.locked_in(b"a", b"z", None), Some((&b"d"[..], id)));
        assert_eq!(intentions.locked_in(b"e", b"z", None), Some((&b"x"[..], id)));
        let over = intentions.held(id).unwrap().over();
        intentions.turn(Turn::Release(id));
        assert!(intentions.is_free() && over.is_initialized());
    }

    #[test]
    fn what_the_journal_keeps_comes_back_from_its_records() {
        let id = IntentionId { log: LogId(3), number: 9 };
        let mut intentions = Intentions::default();
        let prepared = part(&[(b"a", b"b")], &[]);
        intentions.turn(Turn::Hold(id, Held::new(prepared.clone(), Keep::Journal)));
        let memory = IntentionId { number: 10, ..id };
        intentions.turn(Turn::Hold(memory, Held::new(prepared, Keep::Memory)));
        intentions.turn(Turn::Decide(id, vec![SlotId(4)]));
        let records = intentions.records();
        let mut again = Intentions::default();
        for (key, value) in &records {
            assert!(key::is_of_intention(key));
            again.recover(key, value.as_deref()).unwrap();
        }
        assert_eq!(again.records(), records);
        assert_eq!(again.held_for(LogId(3)).collect::<Vec<_>>(), [(id, SlotId(1))]);
        for key in records.keys() {
            again.recover(key, None).unwrap();
        }
        assert!(again.is_free() && again.decided().is_empty());
        for key in records.keys() {
            let _ = again.recover(key, Some(&[0xff; 3]));
        }
    }
}
