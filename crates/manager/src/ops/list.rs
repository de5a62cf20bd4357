//! A page of a directory, in order of cookies, without `.` and `..`.

use bytes::Bytes;
use protocol::file::DirectoryEntry;
use protocol::id::{InodeId, SlotId};
use protocol::manager::Answer;

use super::Done;
use crate::entry::{COOKIE_LAST, Entry};
use crate::key;
use crate::transaction::{Stop, Transaction};

/// Room for a name, to begin with.
const NAME_SIZE: usize = 24;
/// Entries that one answer carries.
const ENTRIES_MAX: u32 = 4096;

pub(super) fn run(
    tx: &Transaction<'_>,
    directory: InodeId,
    (after, limit): (u64, u32),
    attributes: bool,
) -> Result<Done, Stop> {
    tx.directory(directory)?;
    let limit = limit.clamp(1, ENTRIES_MAX) as usize;
    let mut page = Page::with_room(limit);
    let mut after = after;
    let is_last = loop {
        let part = tx.part(directory, after.saturating_add(1))?;
        let is_whole = page.take(tx, (part.slot, directory), after)?;
        // A part that is empty leads on to the next.
        if !is_whole || part.last >= COOKIE_LAST || !page.list.is_empty() {
            break is_whole && part.last >= COOKIE_LAST;
        }
        after = part.last;
    };
    // What lies with several managers is fetched: attributes would take as long again for each.
    if attributes && !tx.spans_managers() {
        page.add_attributes(tx)?;
    }
    Ok(Answer::Listing(page.finish(), is_last).into())
}

/// A page that is being filled.
struct Page {
    limit: usize,
    /// Entries, with the lengths of their names.
    list: Vec<(usize, DirectoryEntry)>,
    names: Vec<u8>,
}

impl Page {
    fn with_room(limit: usize) -> Page {
        Page { limit, list: Vec::with_capacity(limit), names: Vec::with_capacity(limit * NAME_SIZE) }
    }

    /// Takes the entries of one part behind a cookie, as far as there is room; whether that was all.
    fn take(&mut self, tx: &Transaction<'_>, (slot, directory): (SlotId, InodeId), after: u64) -> Result<bool, Stop> {
        for record in tx.range(slot, &key::entries_behind(directory, after))? {
            if self.list.len() == self.limit {
                return Ok(false);
            }
            let (at, value) = record?;
            let entry = Entry::decode(value)?;
            self.names.extend_from_slice(entry.name);
            let (cookie, name) = (key::rest_number(at), Bytes::new());
            let (inode, kind) = (entry.inode, entry.kind);
            self.list.push((entry.name.len(), DirectoryEntry { cookie, name, inode, kind, attributes: None }));
        }
        Ok(true)
    }

    /// Adds what is known here of the inodes: of those in other managers' slots, who asks finds out himself.
    fn add_attributes(&mut self, tx: &Transaction<'_>) -> Result<(), Stop> {
        let mut slots: Vec<SlotId> = self.list.iter().map(|(_, entry)| entry.inode.slot()).collect();
        slots.sort_unstable();
        slots.dedup();
        slots.retain(|&slot| tx.placement().manages(slot));
        tx.need(&slots, Vec::new)?;
        for (_, entry) in self.list.iter_mut().filter(|(_, entry)| tx.holds(entry.inode.slot())) {
            let record = tx.inode_if_any(entry.inode)?;
            entry.attributes = match record.map(|record| tx.attributes(entry.inode, &record)).transpose() {
                Err(Stop::Unlocked(slots)) if !slots.iter().all(|slot| tx.placement().manages(*slot)) => None,
                known => known?,
            };
        }
        Ok(())
    }

    /// All names share one piece of memory.
    fn finish(self) -> Vec<DirectoryEntry> {
        let mut names = Bytes::from(self.names);
        let named = |(length, entry)| DirectoryEntry { name: names.split_to(length), ..entry };
        self.list.into_iter().map(named).collect()
    }
}
