//! A page of a directory, in order of cookies, without `.` and `..`.

use bytes::Bytes;
use protocol::file::{Attributes, DirectoryEntry};
use protocol::id::InodeId;
use protocol::manager::Answer;

use super::Done;
use crate::entry::Entry;
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
    let (mut list, mut names) = (Vec::with_capacity(limit), Vec::with_capacity(limit * NAME_SIZE));
    let range = key::entries_behind(directory, after);
    let mut is_last = true;
    for record in tx.range(directory.slot(), &range)? {
        if list.len() == limit {
            is_last = false;
            break;
        }
        let (at, value) = record?;
        let entry = Entry::decode(value)?;
        let attributes = if attributes { attributes_at_hand(tx, entry.inode)? } else { None };
        names.extend_from_slice(entry.name);
        let (cookie, name) = (key::rest_number(at), Bytes::new());
        list.push((
            entry.name.len(),
            DirectoryEntry { cookie, name, inode: entry.inode, kind: entry.kind, attributes },
        ));
    }
    // All names share one piece of memory.
    let mut names = Bytes::from(names);
    let named = |(length, entry)| DirectoryEntry { name: names.split_to(length), ..entry };
    Ok(Answer::Listing(list.into_iter().map(named).collect(), is_last).into())
}

/// Attributes of what lives in a slot that is locked anyway.
fn attributes_at_hand(tx: &Transaction<'_>, inode: InodeId) -> Result<Option<Attributes>, Stop> {
    if !tx.holds(inode.slot()) {
        return Ok(None);
    }
    Ok(tx.inode_if_any(inode)?.map(|record| record.attributes(inode)))
}
