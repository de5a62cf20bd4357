//! Removes a name that is no directory's. The inode goes with its last name, or when it is no longer held open.

use bytes::Bytes;
use protocol::file::Kind;
use protocol::id::InodeId;
use protocol::manager::{Answer, ManagerError};

use super::Done;
use super::free::drop_link;
use crate::transaction::{Stop, Transaction};

pub(super) fn run(tx: &mut Transaction<'_>, directory: InodeId, name: &Bytes) -> Result<Done, Stop> {
    tx.directory(directory)?;
    let found = tx.found(directory, name)?;
    if found.kind == Kind::Directory {
        return Err(ManagerError::IsDirectory.into());
    }
    tx.remove_name(directory, name, found)?;
    let links = drop_link(tx, found.inode)?;
    Ok(Answer::Removed(Some((found.inode, links))).into())
}
