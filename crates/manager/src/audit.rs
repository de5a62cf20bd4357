//! Whether the records of all slots, of all managers, agree with each other: what `dazzle check` asks.
//!
//! Invariants
//! 1. What is compared was so in one moment (`docs/decisions/0019-a-check-sees-one-moment.md`).
//! 2. Every record is shown once, to the audit of its slot ([`slot`]), which settles what lies in that slot alone, and tells as
//!    facts what has, or may have, another half elsewhere. Here these are joined.
//! 3. One fault is told once, by the rule of `docs/format-slot.md` that it breaks first: names form a tree and lie where their
//!    directories say, links are counted right, references to shared virtual extents too.
//!
//! Decides.

mod parts;
mod slot;
mod tree;

use std::collections::BTreeMap;

use parts::Parts;
use protocol::audit::{Fact, InodeFact, SharedName};
use protocol::id::{InodeId, LogId, StripeNumber};
pub(crate) use slot::SlotAudit;

/// The most problems that are told: a damaged slot has as many as records.
const PROBLEMS_MAX: usize = 1000;

/// What an audit found.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct AuditReport {
    /// Inodes looked at.
    pub inodes: u64,
    /// Extents looked at.
    pub extents: u64,
    /// Live bytes of file data in each stripe.
    pub live: BTreeMap<(LogId, StripeNumber), u64>,
    /// What is wrong, in words.
    pub problems: Vec<String>,
}

/// What is known of one inode so far.
#[derive(Clone, Copy, Debug, Default)]
struct Known {
    /// What its own slot says.
    fact: Option<InodeFact>,
    /// Entries that name it.
    names: u32,
    /// A directory that names it.
    named_in: Option<InodeId>,
    /// Whether there are names in it.
    is_filled: bool,
}

/// An audit under way.
#[derive(Default)]
pub(crate) struct Audit {
    report: AuditReport,
    inodes: BTreeMap<InodeId, Known>,
    directories: BTreeMap<InodeId, Parts>,
    shared: BTreeMap<SharedName, u32>,
    references: BTreeMap<SharedName, u32>,
}

impl Audit {
    /// Takes in what a slot tells.
    pub(crate) fn hear(&mut self, fact: Fact) {
        match fact {
            Fact::Problem(problem) => self.problem(problem),
            Fact::Looked { inodes, extents } => {
                self.report.inodes += inodes;
                self.report.extents += extents;
            }
            Fact::Live(log, stripe, bytes) => *self.report.live.entry((log, stripe)).or_default() += bytes,
            Fact::Inode(fact) => {
                self.named(fact.inode, fact.names, fact.named_in);
                let known = self.inodes.entry(fact.inode).or_default();
                known.fact = Some(fact);
                known.is_filled |= fact.is_filled;
            }
            Fact::Named { inode, names, directory } => self.named(inode, names, directory),
            Fact::Part { directory, last, slot } => self.directories.entry(directory).or_default().part(last, slot),
            Fact::Names { directory, slot, cookies, is_counted } => {
                self.directories.entry(directory).or_default().names(slot, cookies, is_counted);
                self.inodes.entry(directory).or_default().is_filled |= cookies.is_some();
            }
            Fact::Shared(name, references) => drop(self.shared.insert(name, references)),
            Fact::Refers(name, count) => *self.references.entry(name).or_default() += count,
        }
    }

    /// Inodes that others speak of, and of which their own slots told nothing: either nothing is odd about them there, or they
    /// do not exist. As something is wrong with each, the first are enough.
    pub(crate) fn unknown(&self) -> Vec<InodeId> {
        let unknown = self.inodes.iter().filter(|(_, known)| known.fact.is_none());
        unknown.map(|(&inode, _)| inode).take(PROBLEMS_MAX).collect()
    }

    /// Compares everything that was told.
    pub(crate) fn finish(mut self) -> AuditReport {
        let inodes = std::mem::take(&mut self.inodes);
        inodes.iter().for_each(|(&inode, known)| self.compare_inode(inode, known));
        for problem in tree::circles(&inodes) {
            self.problem(problem);
        }
        for (directory, parts) in std::mem::take(&mut self.directories) {
            // That there is no inode was told already.
            if inodes.get(&directory).is_some_and(|known| known.fact.is_some()) {
                let problems = parts.problems(directory.slot());
                problems.into_iter().for_each(|problem| self.problem(format!("directory {}: {problem}", directory.0)));
            }
        }
        self.compare_shared();
        self.report
    }

    fn named(&mut self, inode: InodeId, names: u32, directory: Option<InodeId>) {
        let known = self.inodes.entry(inode).or_default();
        known.names += names;
        known.named_in = directory.or(known.named_in);
    }

    fn problem(&mut self, problem: String) {
        if self.report.problems.len() < PROBLEMS_MAX {
            self.report.problems.push(problem);
        }
    }

    fn compare_inode(&mut self, inode: InodeId, known: &Known) {
        let Some(fact) = known.fact else {
            let what =
                known.named_in.map_or("has records".to_owned(), |directory| format!("is named in {}", directory.0));
            return self.problem(format!("inode {} {what} and does not exist", inode.0));
        };
        let is_root = inode == InodeId::ROOT;
        // A directory's links are compared with what its names come to.
        let names = if fact.is_directory { u32::from(fact.links > 0 && !is_root) } else { fact.links };
        if known.names != names {
            self.problem(format!("inode {} counts {} links; it has {} names", inode.0, fact.links, known.names));
        } else if (known.names == 0) != fact.is_orphan && !is_root {
            self.problem(format!(
                "inode {} has {} names, and its being an orphan is {}",
                inode.0, known.names, fact.is_orphan
            ));
        } else if fact.is_directory && known.names == 1 && fact.parent != known.named_in {
            self.problem(format!("directory {} is named in another directory than its parent", inode.0));
        } else if fact.is_directory && known.names == 0 && known.is_filled && !is_root {
            self.problem(format!("directory {} has no name, and there are names in it", inode.0));
        }
    }

    fn compare_shared(&mut self) {
        for (name, said) in std::mem::take(&mut self.shared) {
            let found = self.references.remove(&name).unwrap_or(0);
            if found != said {
                let what = in_words(name);
                self.problem(format!("{what} count {said} references, {found} exist"));
            }
        }
        for (name, count) in std::mem::take(&mut self.references) {
            let what = in_words(name);
            self.problem(format!("{count} extents refer to {what}, which are gone"));
        }
    }
}

fn in_words(name: SharedName) -> String {
    let SharedName { slot, log, stripe, offset } = name;
    format!("shared bytes {offset} of stripe {} of log {} in slot {}", stripe.0, log.0, slot.0)
}

/// What all these records come to, in order of slots and keys.
#[cfg(test)]
pub(crate) fn of_records<'a>(records: impl Iterator<Item = (protocol::id::SlotId, &'a [u8], &'a [u8])>) -> AuditReport {
    let mut slots: BTreeMap<protocol::id::SlotId, SlotAudit> = BTreeMap::new();
    for (slot, key, value) in records {
        slots.entry(slot).or_insert_with(|| SlotAudit::new(slot)).record(key, value);
    }
    let mut audit = Audit::default();
    slots.into_values().flat_map(SlotAudit::finish).for_each(|fact| audit.hear(fact));
    audit.finish()
}
