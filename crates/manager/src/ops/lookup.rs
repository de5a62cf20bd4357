//! Finds a name. The answer carries attributes and the first extents, so that a small cold read costs no more.

use bytes::Bytes;
use protocol::file::Kind;
use protocol::id::InodeId;
use protocol::manager::{Answer, ManagerError};

use super::Done;
use crate::inode::Inode;
use crate::transaction::{Stop, Transaction};

pub(super) fn run(tx: &mut Transaction<'_>, directory: InodeId, name: &Bytes) -> Result<Done, Stop> {
    let Some(found) = tx.find(directory, name)? else {
        // Only now: what has a name is a directory, and its record lies in a page of its own.
        tx.directory(directory)?;
        return Err(ManagerError::NotFound.into());
    };
    let record = tx.inode(found.inode)?;
    entry(tx, found.inode, &record)
}

/// The answer that tells everything about an inode at once.
pub(super) fn entry(tx: &Transaction<'_>, inode: InodeId, record: &Inode) -> Result<Done, Stop> {
    let content = match record.kind {
        Kind::File => Some(tx.first_content(inode, record)?),
        _ => None,
    };
    Ok(Answer::Entry(tx.attributes(inode, record)?, content).into())
}
