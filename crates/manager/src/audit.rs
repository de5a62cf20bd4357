//! Whether the records of all slots agree with each other: what `dazzle check` asks of a manager.
//!
//! Every record is shown once, in any order of slots; then [`Audit::finish`] compares what was counted with what the
//! records say (the invariants of `docs/format-slot.md`): names form a tree and lie where their directories say, links and
//! stored bytes are counted right, live counts are exact to the byte, references to shared virtual extents too, counters
//! match. Decides.

mod directories;

use std::collections::BTreeMap;

use directories::Directories;
use protocol::address::LogAddress;
use protocol::file::Kind;
use protocol::id::{InodeId, LogId, SlotId, StripeNumber};

use crate::directory::Part;
use crate::entry::Entry;
use crate::extent::{Backing, Shared, SharedId};
use crate::inode::{Body, Inode};
use crate::key::{self, Subject};
use crate::records::{Head, decode};

/// The most problems that are told: a damaged slot has as many as records.
const PROBLEMS_MAX: usize = 1000;

/// What an audit found.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct AuditReport {
    /// Inodes looked at.
    pub inodes: u64,
    /// Extents looked at.
    pub extents: u64,
    /// Records of operations over several managers' slots that are not over everywhere. What these are about to change may
    /// be told as a problem.
    pub intentions: u64,
    /// Live bytes of file data in each stripe.
    pub live: BTreeMap<(LogId, StripeNumber), u64>,
    /// What is wrong, in words.
    pub problems: Vec<String>,
}

/// What is known of one inode so far.
#[derive(Clone, Copy, Debug, Default)]
struct Seen {
    /// From its record.
    record: Option<SeenRecord>,
    /// Entries that name it.
    names: u32,
    /// A directory that names it.
    named_in: Option<InodeId>,
    /// Bytes of its extents.
    bytes: u64,
    /// Where its last extent ends.
    extents_end: u64,
    orphan: bool,
}

#[derive(Clone, Copy, Debug)]
struct SeenRecord {
    kind: Kind,
    links: u32,
    stored: u64,
    inline: u64,
    parent: Option<InodeId>,
}

/// What one slot says of itself, and what was counted of it.
#[derive(Clone, Debug, Default)]
struct SlotCounts {
    head: Option<Head>,
    inodes: u64,
    live_said: BTreeMap<(LogId, StripeNumber), u64>,
    live_found: BTreeMap<(LogId, StripeNumber), u64>,
}

/// An audit under way.
#[derive(Default)]
pub(crate) struct Audit {
    report: AuditReport,
    inodes: BTreeMap<InodeId, Seen>,
    directories: Directories,
    slots: BTreeMap<SlotId, SlotCounts>,
    shared: BTreeMap<(SlotId, SharedId), Shared>,
    references: BTreeMap<(SlotId, SharedId), u32>,
}

impl Audit {
    /// Takes one record into account.
    pub(crate) fn record(&mut self, slot: SlotId, key: &[u8], value: &[u8]) {
        let Some(subject) = key::subject(key) else {
            return self.problem(format!("slot {}: a record has an unknown key", slot.0));
        };
        if self.take(slot, &subject, value).is_none() {
            self.problem(format!("slot {}: the record of {subject:?} does not decode", slot.0));
        }
    }

    fn take(&mut self, slot: SlotId, subject: &Subject, value: &[u8]) -> Option<()> {
        match *subject {
            Subject::Head => self.slots.entry(slot).or_default().head = Some(decode(value).ok()?),
            Subject::Live(log, stripe) => {
                let said = decode(value).ok()?;
                self.slots.entry(slot).or_default().live_said.insert((log, stripe), said);
            }
            Subject::Shared(id) => {
                let shared: Shared = decode(value).ok()?;
                self.live(slot, shared.address);
                self.shared.insert((slot, id), shared);
            }
            Subject::Orphan(inode) => self.seen(inode).orphan = true,
            Subject::Inode(inode) => self.inode(slot, inode, &Inode::decode(value).ok()?),
            Subject::Entry(directory, cookie) => {
                let entry = Entry::decode(value).ok()?;
                self.directories.name(slot, (directory, cookie), &entry);
                self.entry(directory, entry);
            }
            Subject::Part(directory, last) => {
                self.directories.part(directory, Part { last, slot: decode(value).ok()? });
            }
            Subject::Holding(directory) => self.directories.holding(slot, directory, decode(value).ok()?),
            Subject::Extent(inode, end) => self.extent(slot, inode, end, decode(value).ok()?),
            Subject::Prepared(_) | Subject::Decided(_) => self.report.intentions += 1,
            Subject::Applied | Subject::Answered | Subject::Place | Subject::Renames | Subject::Xattr(_) => {}
        }
        Some(())
    }

    fn seen(&mut self, inode: InodeId) -> &mut Seen {
        self.inodes.entry(inode).or_default()
    }

    fn problem(&mut self, problem: String) {
        if self.report.problems.len() < PROBLEMS_MAX {
            self.report.problems.push(problem);
        }
    }

    fn live(&mut self, slot: SlotId, address: LogAddress) {
        let bytes = u64::from(address.length);
        *self.slots.entry(slot).or_default().live_found.entry((address.log, address.stripe)).or_default() += bytes;
        *self.report.live.entry((address.log, address.stripe)).or_default() += bytes;
    }

    fn inode(&mut self, slot: SlotId, inode: InodeId, record: &Inode) {
        self.slots.entry(slot).or_default().inodes += 1;
        self.report.inodes += 1;
        if inode.slot() != slot {
            self.problem(format!("inode {} lies in slot {}, which is not its own", inode.0, slot.0));
        }
        let (inline, parent) = match &record.body {
            Body::Inline(bytes) => (bytes.len() as u64, None),
            Body::Parent(parent) => (0, Some(*parent)),
            Body::Plain | Body::Target(_) => (0, None),
        };
        if record.is_directory() {
            self.directories.inode(inode, record);
        }
        let (kind, links, stored) = (record.kind, record.links, record.stored);
        self.seen(inode).record = Some(SeenRecord { kind, links, stored, inline, parent });
    }

    fn entry(&mut self, directory: InodeId, entry: Entry<'_>) {
        let named = self.seen(entry.inode);
        named.names += 1;
        named.named_in = Some(directory);
        // That there is a directory at all is compared in the end.
        self.seen(directory);
    }

    fn extent(&mut self, slot: SlotId, inode: InodeId, end: u64, backing: Backing) {
        self.report.extents += 1;
        let length = u64::from(backing.length());
        let seen = self.seen(inode);
        seen.bytes += length;
        // Extents of an inode come in the order of their ends.
        let overlaps = length == 0 || end < length || end - length < seen.extents_end;
        seen.extents_end = end;
        if overlaps {
            self.problem(format!("inode {}: the extent that ends at {end} overlaps the one before", inode.0));
        }
        match backing {
            Backing::Owned(address) => self.live(slot, address),
            Backing::Shared(part) => *self.references.entry((part.slot, part.id)).or_default() += 1,
        }
    }

    /// Compares everything that was seen.
    pub(crate) fn finish(mut self) -> AuditReport {
        for (inode, seen) in std::mem::take(&mut self.inodes) {
            self.compare_inode(inode, seen);
            self.inodes.insert(inode, seen);
        }
        self.compare_tree();
        for problem in std::mem::take(&mut self.directories).problems() {
            self.problem(problem);
        }
        for (slot, counts) in std::mem::take(&mut self.slots) {
            self.compare_slot(slot, &counts);
        }
        for (id, shared) in std::mem::take(&mut self.shared) {
            let found = self.references.remove(&id).unwrap_or(0);
            if found != shared.references {
                self.problem(format!(
                    "shared bytes {:?} of slot {} count {} references, {found} exist",
                    id.1, id.0.0, shared.references
                ));
            }
        }
        for (id, count) in std::mem::take(&mut self.references) {
            self.problem(format!(
                "{count} extents refer to shared bytes {:?} of slot {}, which are gone",
                id.1, id.0.0
            ));
        }
        self.report
    }

    fn compare_inode(&mut self, inode: InodeId, seen: Seen) {
        let Some(record) = seen.record else {
            let what =
                seen.named_in.map_or("has records".to_owned(), |directory| format!("is named in {}", directory.0));
            return self.problem(format!("inode {} {what} and does not exist", inode.0));
        };
        let root = inode == InodeId::ROOT;
        // A directory's links are compared with what its names come to.
        let names = match record.kind {
            Kind::Directory => u32::from(record.links > 0 && !root),
            _ => record.links,
        };
        if seen.names != names {
            self.problem(format!("inode {} counts {} links; it has {} names", inode.0, record.links, seen.names));
        }
        if (seen.names == 0) != seen.orphan && !root {
            self.problem(format!(
                "inode {} has {} names, and its being an orphan is {}",
                inode.0, seen.names, seen.orphan
            ));
        }
        if record.stored != seen.bytes + record.inline {
            self.problem(format!(
                "inode {} counts {} bytes stored; {} are in extents and {} in the inode",
                inode.0, record.stored, seen.bytes, record.inline
            ));
        }
        if record.kind == Kind::Directory && !root && seen.names == 1 && record.parent != seen.named_in {
            self.problem(format!("directory {} is named in another directory than its parent", inode.0));
        }
    }

    /// Every directory with a name leads up to the root.
    fn compare_tree(&mut self) {
        let mut reaches: BTreeMap<InodeId, bool> = BTreeMap::from([(InodeId::ROOT, true)]);
        let directories: Vec<InodeId> =
            self.inodes.iter().filter(|(_, seen)| seen.named_in.is_some()).map(|(&id, _)| id).collect();
        let mut lost = Vec::new();
        for start in directories {
            let mut path = Vec::new();
            let mut at = start;
            let outcome = loop {
                if let Some(&known) = reaches.get(&at) {
                    break known;
                }
                // Seen as unknown until the walk has ended: coming back to it is a cycle.
                reaches.insert(at, false);
                path.push(at);
                match self.inodes.get(&at).and_then(|seen| seen.named_in) {
                    Some(parent) => at = parent,
                    // An orphan that is held open may still be a directory's parent for a moment; nothing is in it.
                    None => break false,
                }
            };
            reaches.extend(path.into_iter().map(|inode| (inode, outcome)));
            if !outcome {
                lost.push(start);
            }
        }
        for inode in lost {
            self.problem(format!("inode {} has a name, and no path from the root leads to it", inode.0));
        }
    }

    fn compare_slot(&mut self, slot: SlotId, counts: &SlotCounts) {
        for (stripe, &found) in &counts.live_found {
            let said = counts.live_said.get(stripe).copied().unwrap_or(0);
            if said != found {
                self.problem(format!(
                    "slot {}: {said} bytes of stripe {} of log {} count as live, {found} are",
                    slot.0, stripe.1.0, stripe.0.0
                ));
            }
        }
        for (stripe, said) in counts.live_said.iter().filter(|(stripe, _)| !counts.live_found.contains_key(stripe)) {
            self.problem(format!(
                "slot {}: {said} bytes of stripe {} of log {} count as live, none is",
                slot.0, stripe.1.0, stripe.0.0
            ));
        }
        let live: u64 = counts.live_found.values().sum();
        let head = counts.head.unwrap_or(Head { sequence_next: 0, inodes: 0, bytes_live: 0 });
        if (head.inodes, head.bytes_live) != (counts.inodes, live) {
            self.problem(format!(
                "slot {} counts {} inodes and {} live bytes; it has {} and {live}",
                slot.0, head.inodes, head.bytes_live, counts.inodes
            ));
        }
    }
}
