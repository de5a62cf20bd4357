//! The records of one slot against each other: bytes stored and live counts to the byte, counters, extents that overlap,
//! directories' sizes. What may have another half elsewhere becomes a fact.

use std::collections::{BTreeMap, BTreeSet};

use protocol::address::LogAddress;
use protocol::audit::{Fact, InodeFact, SharedName};
use protocol::id::{InodeId, LogId, SlotId, StripeNumber};

use super::PROBLEMS_MAX;
use crate::directory::{Holding, Part, Tally};
use crate::entry::Entry;
use crate::extent::{Backing, Shared, SharedId};
use crate::inode::{Body, Inode};
use crate::key::{self, Subject};
use crate::records::{Head, decode};

type Stripes = BTreeMap<(LogId, StripeNumber), u64>;

/// The audit of one slot.
pub(crate) struct SlotAudit {
    slot: SlotId,
    /// Told even if nothing is odd about them.
    described: BTreeSet<InodeId>,
    head: Option<Head>,
    live_said: Stripes,
    live_found: Stripes,
    inodes: u64,
    extents: u64,
    seen: BTreeMap<InodeId, Seen>,
    directories: BTreeMap<InodeId, Directory>,
    references: BTreeMap<SharedName, u32>,
    facts: Vec<Fact>,
    problems: usize,
}

/// What the slot has of one inode.
#[derive(Clone, Copy, Debug, Default)]
struct Seen {
    record: Option<Record>,
    /// Entries that name it.
    names: u32,
    /// A directory that names it.
    named_in: Option<InodeId>,
    /// Bytes of its extents.
    bytes: u64,
    /// Where its last extent ends.
    extents_end: u64,
    is_orphan: bool,
}

#[derive(Clone, Copy, Debug)]
struct Record {
    is_directory: bool,
    links: u32,
    stored: u64,
    inline: u64,
    parent: Option<InodeId>,
}

/// What the slot has of one directory.
#[derive(Default)]
struct Directory {
    /// What its inode's record counts here.
    counted: Option<Tally>,
    parts: Vec<Part>,
    holding: Option<Holding>,
    names: Tally,
    /// The first and the last name.
    cookies: Option<(u64, u64)>,
}

impl SlotAudit {
    /// Of a slot.
    pub(crate) fn new(slot: SlotId) -> SlotAudit {
        SlotAudit::describing(slot, BTreeSet::new())
    }

    /// One that tells of these inodes, if they exist, though nothing be odd about them.
    pub(crate) fn describing(slot: SlotId, described: BTreeSet<InodeId>) -> SlotAudit {
        SlotAudit {
            slot,
            described,
            head: None,
            live_said: Stripes::new(),
            live_found: Stripes::new(),
            inodes: 0,
            extents: 0,
            seen: BTreeMap::new(),
            directories: BTreeMap::new(),
            references: BTreeMap::new(),
            facts: Vec::new(),
            problems: 0,
        }
    }

    /// Takes one record into account; they come in the order of their keys.
    pub(crate) fn record(&mut self, key: &[u8], value: &[u8]) {
        let Some(subject) = key::subject(key) else {
            return self.problem("a record has an unknown key".to_owned());
        };
        if self.take(&subject, value).is_none() {
            self.problem(format!("the record of {subject:?} does not decode"));
        }
    }

    /// Compares what was seen, and tells the rest.
    pub(crate) fn finish(mut self) -> Vec<Fact> {
        for (inode, seen) in std::mem::take(&mut self.seen) {
            self.compare_inode(inode, &seen);
        }
        for (id, directory) in std::mem::take(&mut self.directories) {
            self.compare_directory(id, directory);
        }
        self.compare_counts();
        self.facts.push(Fact::Looked { inodes: self.inodes, extents: self.extents });
        self.facts.extend(self.live_found.iter().map(|((log, stripe), bytes)| Fact::Live(*log, *stripe, *bytes)));
        self.facts.extend(self.references.iter().map(|(name, count)| Fact::Refers(*name, *count)));
        self.facts
    }

    fn take(&mut self, subject: &Subject, value: &[u8]) -> Option<()> {
        match *subject {
            Subject::Head => self.head = Some(decode(value).ok()?),
            Subject::Live(log, stripe) => drop(self.live_said.insert((log, stripe), decode(value).ok()?)),
            Subject::Shared(id) => {
                let shared: Shared = decode(value).ok()?;
                self.live(shared.address);
                self.facts.push(Fact::Shared(name(self.slot, id), shared.references));
            }
            Subject::Orphan(inode) => self.seen(inode).is_orphan = true,
            Subject::Inode(inode) => self.inode(inode, &Inode::decode(value).ok()?),
            Subject::Entry(directory, cookie) => self.entry(directory, cookie, &Entry::decode(value).ok()?),
            Subject::Part(directory, last) => {
                let part = Part { last, slot: decode(value).ok()? };
                self.directories.entry(directory).or_default().parts.push(part);
            }
            Subject::Holding(directory) => {
                self.directories.entry(directory).or_default().holding = Some(decode(value).ok()?);
            }
            Subject::Extent(inode, end) => self.extent(inode, end, decode(value).ok()?),
            // In the moment that is looked at, no operation over several managers is under way.
            Subject::Prepared(_) | Subject::Decided(_) => {}
            Subject::Applied | Subject::Calls(_) | Subject::Place | Subject::Renames | Subject::Xattr(_) => {}
        }
        Some(())
    }

    fn seen(&mut self, inode: InodeId) -> &mut Seen {
        self.seen.entry(inode).or_default()
    }

    fn problem(&mut self, problem: String) {
        self.tell(format!("slot {}: {problem}", self.slot.0));
    }

    fn tell(&mut self, problem: String) {
        if self.problems < PROBLEMS_MAX {
            self.problems += 1;
            self.facts.push(Fact::Problem(problem));
        }
    }

    fn live(&mut self, address: LogAddress) {
        *self.live_found.entry((address.log, address.stripe)).or_default() += u64::from(address.length);
    }

    fn inode(&mut self, inode: InodeId, record: &Inode) {
        self.inodes += 1;
        if inode.slot() != self.slot {
            self.problem(format!("inode {} lies here, which is not its own slot", inode.0));
        }
        let (inline, parent) = match &record.body {
            Body::Inline(bytes) => (bytes.len() as u64, None),
            Body::Parent(parent) => (0, Some(*parent)),
            Body::Plain | Body::Target(_) => (0, None),
        };
        let (is_directory, links, stored) = (record.is_directory(), record.links, record.stored);
        if is_directory {
            let counted = Tally { size: record.size, directories: links.saturating_sub(2) };
            self.directories.entry(inode).or_default().counted = Some(counted);
        }
        self.seen(inode).record = Some(Record { is_directory, links, stored, inline, parent });
    }

    fn entry(&mut self, directory: InodeId, cookie: u64, entry: &Entry<'_>) {
        let named = self.seen(entry.inode);
        named.names += 1;
        named.named_in = Some(directory);
        let of = self.directories.entry(directory).or_default();
        of.names.add(entry.name, entry.kind);
        let (first, _) = of.cookies.unwrap_or((cookie, cookie));
        of.cookies = Some((first, cookie));
    }

    fn extent(&mut self, inode: InodeId, end: u64, backing: Backing) {
        self.extents += 1;
        let length = u64::from(backing.length());
        let seen = self.seen(inode);
        seen.bytes += length;
        // Extents of an inode come in the order of their ends.
        let overlaps = length == 0 || end < length || end - length < seen.extents_end;
        seen.extents_end = end;
        if overlaps {
            self.tell(format!("inode {}: the extent that ends at {end} overlaps the one before", inode.0));
        }
        match backing {
            Backing::Owned(address) => self.live(address),
            Backing::Shared(part) => *self.references.entry(name(part.slot, part.id)).or_default() += 1,
        }
    }

    fn compare_inode(&mut self, inode: InodeId, seen: &Seen) {
        let Seen { names, named_in, is_orphan, .. } = *seen;
        let Some(record) = seen.record else {
            return self.facts.push(Fact::Named { inode, names, directory: named_in });
        };
        if record.stored != seen.bytes + record.inline {
            self.tell(format!(
                "inode {} counts {} bytes stored; {} are in extents and {} in the inode",
                inode.0, record.stored, seen.bytes, record.inline
            ));
        }
        let is_settled = !record.is_directory && names == record.links && is_orphan == (names == 0);
        if !is_settled || self.described.contains(&inode) {
            let Record { is_directory, links, parent, .. } = record;
            let is_filled = self.directories.get(&inode).is_some_and(|directory| directory.cookies.is_some());
            let fact = InodeFact { inode, is_directory, links, parent, names, named_in, is_orphan, is_filled };
            self.facts.push(Fact::Inode(fact));
        }
    }

    fn compare_directory(&mut self, id: InodeId, directory: Directory) {
        let is_home = id.slot() == self.slot;
        if let Some(counted) = directory.counted.filter(|counted| *counted != directory.names) {
            let found = directory.names;
            self.tell(format!("directory {}: its inode counts {counted:?} in its slot; there are {found:?}", id.0));
        }
        if let Some(holding) = &directory.holding {
            let said = Tally { size: holding.size, directories: holding.directories };
            if said != directory.names {
                let (slot, found) = (self.slot.0, directory.names);
                self.tell(format!("directory {}: {said:?} count in slot {slot}; there are {found:?}", id.0));
            }
        }
        if is_home && directory.counted.is_none() {
            // Records of a directory without an inode: somebody else may name it.
            self.facts.push(Fact::Named { inode: id, names: 0, directory: None });
        }
        let (slot, is_counted) = (self.slot, directory.holding.is_some());
        if !is_home || is_counted || !directory.parts.is_empty() {
            self.facts.push(Fact::Names { directory: id, slot, cookies: directory.cookies, is_counted });
        }
        let part = |part: Part| Fact::Part { directory: id, last: part.last, slot: part.slot };
        self.facts.extend(directory.parts.into_iter().map(part));
    }

    /// The slot's counters: live bytes by stripe against what lives, their sum and the inodes against the head.
    fn compare_counts(&mut self) {
        let (said, found) = (std::mem::take(&mut self.live_said), std::mem::take(&mut self.live_found));
        let stripes: BTreeSet<_> = said.keys().chain(found.keys()).copied().collect();
        for stripe in stripes {
            let of = |counts: &Stripes| counts.get(&stripe).copied().unwrap_or(0);
            if of(&said) != of(&found) {
                let (said, found) = (of(&said), of(&found));
                let (log, stripe) = (stripe.0.0, stripe.1.0);
                self.problem(format!("{said} bytes of stripe {stripe} of log {log} count as live, {found} are"));
            }
        }
        let head = self.head.unwrap_or(Head { sequence_next: 0, inodes: 0, bytes_live: 0 });
        let sum = said.values().fold(0, |sum: u64, bytes| sum.saturating_add(*bytes));
        if (head.inodes, head.bytes_live) != (self.inodes, sum) {
            self.problem(format!(
                "it counts {} inodes and {} live bytes; it has {}, and its stripes' counts come to {sum}",
                head.inodes, head.bytes_live, self.inodes
            ));
        }
        self.live_found = found;
    }
}

fn name(slot: SlotId, id: SharedId) -> SharedName {
    SharedName { slot, log: id.log, stripe: id.stripe, offset: id.offset }
}
