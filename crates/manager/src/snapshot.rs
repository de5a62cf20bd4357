//! What a coordinator knows of slots, its own and others', for an operation over slots of several managers. It stands in
//! the place of locked slots: the operation reads it, and stops where it does not reach. Decides.
//!
//! Invariants
//! 1. Of every range in `known`, `records` has all records, as they were when the range was fetched.
//! 2. What an operation looks at is noted, and only that: whoever prepares a part compares no more.

use std::collections::{BTreeMap, BTreeSet};
use std::ops::Bound::{Excluded, Included, Unbounded};

use bytes::Bytes;
use protocol::id::{InodeId, LogId, SlotId};
use protocol::intention::{Consequence, Counts, Fetch, Fetched, Look, Part, Purpose};

use crate::intention::Seen;
use crate::key::{self, Key, KeyRange, Subject};
use crate::slot::KeyValue;
use crate::transaction::{Changes, Consequences, Effect, behind};

/// What an operation lacks.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Wish {
    /// The records of a range of keys, at least the first.
    Range(SlotId, KeyRange),
    /// Who holds an inode open.
    Holders(InodeId),
    /// One number more for a new inode.
    Number(SlotId),
}

impl Wish {
    fn slot(&self) -> SlotId {
        match self {
            Wish::Range(slot, _) | Wish::Number(slot) => *slot,
            Wish::Holders(inode) => inode.slot(),
        }
    }
}

/// What is known of all slots.
#[derive(Default)]
pub(crate) struct Snapshots {
    slots: BTreeMap<SlotId, Snapshot>,
}

/// What is known of one slot.
#[derive(Default)]
struct Snapshot {
    life: LogId,
    records: BTreeMap<Key, Vec<u8>>,
    /// Ranges that do not overlap: from, end.
    known: BTreeMap<Key, Key>,
    holders: BTreeMap<InodeId, Vec<u32>>,
    numbers: Vec<InodeId>,
}

impl Snapshots {
    /// Takes in what was fetched. False when the slot's manager has another life than before: nothing holds any more.
    pub(crate) fn take_in(&mut self, slot: SlotId, fetched: Fetched) -> bool {
        let fresh = !self.slots.contains_key(&slot);
        let snapshot = self.slots.entry(slot).or_default();
        if fresh {
            snapshot.life = fetched.life;
        }
        for piece in fetched.pieces.into_iter().filter(|piece| piece.from < piece.end) {
            let (from, end) = (piece.from.to_vec(), piece.end.to_vec());
            snapshot.forget(&from, &end);
            let within = |(key, _): &(Bytes, Bytes)| piece.from <= *key && *key < piece.end;
            let records = piece.records.into_iter().filter(within);
            snapshot.records.extend(records.map(|(key, value)| (key.to_vec(), value.to_vec())));
            snapshot.known.insert(from, end);
        }
        snapshot.holders.extend(fetched.holders);
        snapshot.numbers.extend(fetched.numbers.into_iter().filter(|number| number.slot() == slot));
        snapshot.life == fetched.life
    }

    /// Whether a wish is not fulfilled.
    pub(crate) fn lacks(&self, wish: &Wish) -> bool {
        match wish {
            Wish::Range(slot, (from, end)) => self.next(*slot, from, end).is_err(),
            Wish::Holders(inode) => self.holders(*inode).is_err(),
            Wish::Number(slot) => self.number(*slot, 0).is_err(),
        }
    }

    /// The value of a key.
    pub(crate) fn value(&self, slot: SlotId, key: &[u8]) -> Result<Option<&[u8]>, Wish> {
        let range = || (key.to_vec(), behind(key));
        let snapshot = self.slots.get(&slot).ok_or_else(|| Wish::Range(slot, range()))?;
        if snapshot.reach(key).is_none() {
            return Err(Wish::Range(slot, range()));
        }
        Ok(snapshot.records.get(key).map(Vec::as_slice))
    }

    /// The first record from `from` on, before `end`.
    pub(crate) fn next(&self, slot: SlotId, from: &[u8], end: &[u8]) -> Result<Option<KeyValue<'_>>, Wish> {
        if from >= end {
            return Ok(None);
        }
        let Some(snapshot) = self.slots.get(&slot) else { return Err(Wish::Range(slot, (from.into(), end.into()))) };
        let mut at = from;
        loop {
            let Some(reach) = snapshot.reach(at) else { return Err(Wish::Range(slot, (at.into(), end.into()))) };
            let stop = reach.min(end);
            let within = (Included(at), Excluded(stop));
            if let Some((key, value)) = snapshot.records.range::<[u8], _>(within).next() {
                return Ok(Some((key, value)));
            }
            if stop == end {
                return Ok(None);
            }
            at = reach;
        }
    }

    /// Which nodes hold an inode open.
    pub(crate) fn holders(&self, inode: InodeId) -> Result<&[u32], Wish> {
        let known = self.slots.get(&inode.slot()).and_then(|snapshot| snapshot.holders.get(&inode));
        known.map(Vec::as_slice).ok_or(Wish::Holders(inode))
    }

    /// A number for a new inode: the one behind so many that this operation has taken.
    pub(crate) fn number(&self, slot: SlotId, taken: usize) -> Result<InodeId, Wish> {
        self.slots.get(&slot).and_then(|it| it.numbers.get(taken)).copied().ok_or(Wish::Number(slot))
    }

    /// The parts of an operation: what it looked at and what it changes, slot by slot.
    pub(crate) fn parts(&self, looks: &Looks, done: &Consequences) -> Vec<Part> {
        let slots: BTreeSet<SlotId> = looks
            .slots()
            .chain(done.changes.iter().map(|(slot, _)| *slot))
            .chain(done.counts.iter().map(|(slot, _)| *slot))
            .chain(done.effects.iter().map(|effect| effect.slot()))
            .collect();
        slots.into_iter().map(|slot| self.part(slot, looks, done)).collect()
    }

    fn part(&self, slot: SlotId, looks: &Looks, done: &Consequences) -> Part {
        let snapshot = self.slots.get(&slot);
        let bytes = |run: &[u8]| Bytes::copy_from_slice(run);
        let look = |(from, end): (&Key, &Key)| {
            let mut seen = Seen::nothing();
            let within = (Included(from.as_slice()), Excluded(end.as_slice()));
            let records = snapshot.into_iter().flat_map(|it| it.records.range::<[u8], _>(within));
            records.for_each(|(key, value)| seen.record(key, value));
            Look { from: bytes(from), end: bytes(end), seen: seen.hash() }
        };
        let changes = done.changes.iter().find(|(of, _)| *of == slot).map(|(_, changes)| changes);
        let change = |(key, value): (&Key, &Option<Vec<u8>>)| (bytes(key), value.as_deref().map(bytes));
        let holders = looks.holders.iter().filter(|inode| inode.slot() == slot);
        let holders = holders.map(|&inode| (inode, self.holders(inode).unwrap_or_default().to_vec()));
        let counts = done.counts.iter().find(|(of, _)| *of == slot).map(|(_, counts)| counts.clone());
        let effects = done.effects.iter().filter(|effect| effect.slot() == slot);
        Part {
            slot,
            life: snapshot.map_or(LogId::NONE, |snapshot| snapshot.life),
            looks: looks.of(slot).map(look).collect(),
            holders: holders.collect(),
            changes: changes.map(Changes::iter).into_iter().flatten().map(change).collect(),
            counts: counts.unwrap_or_default(),
            effects: effects.map(|effect| effect.consequence()).collect(),
        }
    }
}

impl Snapshot {
    /// How far from `key` on everything is known.
    fn reach(&self, key: &[u8]) -> Option<&[u8]> {
        let (_, end) = self.known.range::<[u8], _>((Unbounded, Included(key))).next_back()?;
        (end.as_slice() > key).then_some(end.as_slice())
    }

    /// Forgets a range, which is known anew.
    fn forget(&mut self, from: &[u8], end: &[u8]) {
        let over = |(start, stop): (&Key, &Key)| (start.clone(), stop.clone());
        let before = self.known.range::<[u8], _>((Unbounded, Excluded(end))).rev();
        let overlapping: Vec<KeyRange> = before.take_while(|(_, stop)| stop.as_slice() > from).map(over).collect();
        for (start, stop) in overlapping {
            self.known.remove(&start);
            if start.as_slice() < from {
                self.known.insert(start, from.to_vec());
            }
            if stop.as_slice() > end {
                self.known.insert(end.to_vec(), stop);
            }
        }
        let within = (Included(from), Excluded(end));
        let old: Vec<Key> = self.records.range::<[u8], _>(within).map(|(key, _)| key.clone()).collect();
        old.iter().for_each(|key| drop(self.records.remove(key)));
    }
}

/// What an operation looked at.
#[derive(Clone, Debug, Default)]
pub(crate) struct Looks {
    /// By slot and where the range begins: its end.
    ranges: BTreeMap<(SlotId, Key), Key>,
    holders: BTreeSet<InodeId>,
}

impl Looks {
    /// It saw everything from `from` on, before `end`.
    pub(crate) fn range(&mut self, slot: SlotId, from: &[u8], end: &[u8]) {
        let at = (slot, from.to_vec());
        let before = self.ranges.range(..=&at).next_back();
        if before.is_some_and(|((of, _), known)| *of == slot && known.as_slice() >= end) {
            return;
        }
        let known = self.ranges.entry(at).or_default();
        if known.as_slice() < end {
            *known = end.to_vec();
        }
    }

    /// It saw who holds an inode open.
    pub(crate) fn holders(&mut self, inode: InodeId) {
        self.holders.insert(inode);
    }

    fn slots(&self) -> impl Iterator<Item = SlotId> {
        self.ranges.keys().map(|(slot, _)| *slot).chain(self.holders.iter().map(|inode| inode.slot()))
    }

    fn of(&self, slot: SlotId) -> impl Iterator<Item = (&Key, &Key)> {
        let range = self.ranges.range((slot, Key::new())..);
        range.take_while(move |((of, _), _)| *of == slot).map(|((_, from), end)| (from, end))
    }
}

/// What an operation adds to counts, as it goes.
pub(crate) fn count_live(counts: &mut Counts, place: (LogId, protocol::id::StripeNumber), bytes: i64) {
    match counts.live.iter_mut().find(|(log, stripe, _)| (*log, *stripe) == place) {
        Some((.., sum)) => *sum += bytes,
        None => counts.live.push((place.0, place.1, bytes)),
    }
}

/// The requests that fulfil wishes, a slot each, with what is likely to be wished for next.
pub(crate) fn requests(wishes: &[Wish], purpose: Purpose) -> Vec<Fetch> {
    let mut fetches: BTreeMap<SlotId, Fetch> = BTreeMap::new();
    let bytes = |(from, end): &KeyRange| (Bytes::copy_from_slice(from), Bytes::copy_from_slice(end));
    for wish in wishes {
        let slot = wish.slot();
        let fetch = fetches.entry(slot).or_insert_with(|| Fetch { slot, purpose, ..Fetch::default() });
        match wish {
            Wish::Range(_, range) => fetch.ranges.push(bytes(range)),
            Wish::Holders(inode) => fetch.holders.push(*inode),
            Wish::Number(_) => fetch.numbers += 1,
        }
    }
    for fetch in fetches.values_mut() {
        fetch.wanted = fetch.ranges.len() as u32;
        for wanted in 0..fetch.ranges.len() {
            expect(fetch, wanted);
        }
    }
    fetches.into_values().collect()
}

/// Adds what an operation that wants this range is likely to want next.
fn expect(fetch: &mut Fetch, wanted: usize) {
    let subject = key::subject(&fetch.ranges[wanted].0);
    let one = |key: Key| {
        let end = behind(&key);
        (Bytes::from(key), Bytes::from(end))
    };
    let run = |(from, end): KeyRange| (Bytes::from(from), Bytes::from(end));
    match subject {
        Some(Subject::Inode(inode)) => {
            let beside = [one(key::orphan(inode)), one(key::holding(inode)), run(key::xattrs(inode))];
            fetch.ranges.extend(beside);
            fetch.ranges.extend([run(key::extents_behind(inode, 0)), run(key::parts_from(inode, 0))]);
            fetch.holders.push(inode);
        }
        Some(Subject::Entry(directory, _)) => {
            fetch.ranges.extend([one(key::holding(directory)), one(key::inode(directory))]);
        }
        Some(Subject::Shared(id)) => fetch.ranges.push(run(key::shared_behind(id))),
        _ => {}
    }
}

impl Effect {
    /// The slot that it concerns: its manager sees to it.
    pub(crate) fn slot(self) -> SlotId {
        match self {
            Effect::Open(inode, _) | Effect::Close(inode, _) | Effect::Reap(inode) | Effect::Split(inode, _) => {
                inode.slot()
            }
        }
    }

    fn consequence(self) -> Consequence {
        match self {
            Effect::Open(inode, node) => Consequence::Open(inode, node),
            Effect::Close(inode, node) => Consequence::Close(inode, node),
            Effect::Reap(inode) => Consequence::Reap(inode),
            Effect::Split(directory, slot) => Consequence::Split(directory, slot),
        }
    }
}
