//! What a manager tells of the records that it keeps for an audit: page by page, as far as each is wanted.
//!
//! Invariants
//! 1. Every kept record is shown once, in the order of slots and keys, and every fact is told in one page.
//! 2. Nothing advances past what could not be read: the same page can be asked for again.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use log::{LogReader, ReadError};
use protocol::address::LogAddress;
use protocol::audit::Fact;
use protocol::id::{InodeId, SlotId};
use protocol::manager::ManagerError;

use crate::audit::SlotAudit;
use crate::page::Page;
use crate::transaction::Changes;

/// Facts in one page: so many that a call pays, so few that they fit into a message.
const FACTS_MAX: usize = if cfg!(test) { 8 } else { 16 << 10 };
/// Records looked at for one page: whoever asks learns that work goes on.
const RECORDS_MAX: usize = 200_000;

/// A page of a slot, as it was when it was kept.
pub(crate) enum KeptPage {
    /// Its content.
    Here(Arc<Page>),
    /// Where its content lies, and what was changed in it since.
    Stored(LogAddress, Changes),
}

/// Kept records, and how far they were told.
pub(crate) struct Telling {
    slots: Vec<(SlotId, Vec<KeptPage>)>,
    /// The slot and its page that come next.
    next: (usize, usize),
    slot: Option<SlotAudit>,
    /// Facts that are not told yet.
    facts: Vec<Fact>,
    /// Pages told so far; the last one may be told again.
    told: u64,
    last: (Vec<Fact>, bool),
}

impl Telling {
    /// Nothing of it is told yet.
    pub(crate) fn new(slots: Vec<(SlotId, Vec<KeptPage>)>) -> Telling {
        Telling { slots, next: (0, 0), slot: None, facts: Vec::new(), told: 0, last: (Vec::new(), false) }
    }

    /// A page of facts, and whether it is the last.
    pub(crate) async fn page(&mut self, reader: &LogReader, page: u64) -> Result<(Vec<Fact>, bool), ManagerError> {
        if page.checked_add(1) == Some(self.told) {
            return Ok(self.last.clone());
        }
        if page != self.told {
            return Err(ManagerError::Invalid("pages of an audit come in order".into()));
        }
        let mut records = 0;
        while records < RECORDS_MAX && self.facts.len() < FACTS_MAX && self.next.0 < self.slots.len() {
            records += self.step(reader).await?;
        }
        let facts = self.facts.drain(..self.facts.len().min(FACTS_MAX)).collect();
        let is_last = self.facts.is_empty() && self.next.0 == self.slots.len();
        self.told += 1;
        self.last = (facts, is_last);
        Ok(self.last.clone())
    }

    /// Shows the next page of records; how many those were.
    async fn step(&mut self, reader: &LogReader) -> Result<usize, ManagerError> {
        let (slot, pages) = &self.slots[self.next.0];
        let mut shown = 0;
        if let Some(page) = pages.get(self.next.1) {
            let page = content(reader, page).await?;
            let audit = self.slot.get_or_insert_with(|| SlotAudit::new(*slot));
            shown = show(&page, audit);
            self.next.1 += 1;
        }
        if self.next.1 >= pages.len() {
            self.next = (self.next.0 + 1, 0);
            self.facts.extend(self.slot.take().map(SlotAudit::finish).into_iter().flatten());
        }
        Ok(shown)
    }

    /// What the records say of these inodes.
    pub(crate) async fn describe(&self, reader: &LogReader, inodes: &[InodeId]) -> Result<Vec<Fact>, ManagerError> {
        let mut by_slot: BTreeMap<SlotId, BTreeSet<InodeId>> = BTreeMap::new();
        for &inode in inodes {
            by_slot.entry(inode.slot()).or_default().insert(inode);
        }
        let mut facts = Vec::new();
        for (slot, pages) in &self.slots {
            let Some(inodes) = by_slot.remove(slot) else { continue };
            let mut audit = SlotAudit::describing(*slot, inodes.clone());
            for page in pages {
                show(&*content(reader, page).await?, &mut audit);
            }
            let is_asked = |fact: &Fact| matches!(fact, Fact::Inode(told) if inodes.contains(&told.inode));
            facts.extend(audit.finish().into_iter().filter(is_asked));
        }
        Ok(facts)
    }
}

fn show(page: &Page, audit: &mut SlotAudit) -> usize {
    let records = (0..).map_while(|index| page.record(index));
    records.fold(0, |shown, (key, value)| {
        audit.record(key, value);
        shown + 1
    })
}

async fn content(reader: &LogReader, page: &KeptPage) -> Result<Arc<Page>, ManagerError> {
    let (address, changes) = match page {
        KeptPage::Here(page) => return Ok(page.clone()),
        KeptPage::Stored(address, changes) => (*address, changes),
    };
    match reader.read(address).await {
        Ok(body) => {
            let mut page = Page::decode(&body).map_err(|error| ManagerError::Failed(error.to_string()))?;
            changes.iter().for_each(|(key, value)| page.change(key, value.as_deref()));
            Ok(Arc::new(page))
        }
        // Kept pages are not deleted while they are kept, but for those of a slot that went to another manager.
        Err(ReadError::Deleted(_)) => Err(ManagerError::NotMine),
        Err(error) => Err(ManagerError::Failed(error.to_string())),
    }
}
