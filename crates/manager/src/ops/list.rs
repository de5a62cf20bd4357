//! A page of a directory, in order of cookies, without `.` and `..`.

use bytes::Bytes;
use protocol::file::{Attributes, DirectoryEntry};
use protocol::id::InodeId;
use protocol::manager::Answer;

use super::Done;
use crate::entry::Entry;
use crate::key;
use crate::transaction::{Stop, Transaction};

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
    let mut list = Vec::with_capacity(limit.min(256));
    let mut range = key::entries_behind(directory, after);
    while let Some((at, value)) = tx.next(directory.slot(), &range)? {
        if list.len() == limit {
            return Ok(Answer::Listing(list, false).into());
        }
        let (cookie, entry) = (key::rest_number(at), Entry::decode(value)?);
        let attributes = if attributes { attributes_at_hand(tx, entry.inode)? } else { None };
        list.push(DirectoryEntry {
            cookie,
            name: Bytes::copy_from_slice(entry.name),
            inode: entry.inode,
            kind: entry.kind,
            attributes,
        });
        range.0 = key::entry(directory, cookie + 1);
    }
    Ok(Answer::Listing(list, true).into())
}

/// Attributes of what lives in a slot that is locked anyway.
fn attributes_at_hand(tx: &Transaction<'_>, inode: InodeId) -> Result<Option<Attributes>, Stop> {
    if !tx.holds(inode.slot()) {
        return Ok(None);
    }
    Ok(tx.inode_if_any(inode)?.map(|record| record.attributes(inode)))
}
