//! Removes an empty directory.

use bytes::Bytes;
use protocol::file::Kind;
use protocol::id::InodeId;
use protocol::manager::{Answer, ManagerError};

use super::Done;
use super::free::drop_link;
use crate::transaction::{Stop, Transaction};

pub(super) fn run(tx: &mut Transaction<'_>, directory: InodeId, name: &Bytes) -> Result<Done, Stop> {
    tx.directory(directory)?;
    if name.as_ref() == b"." {
        return Err(ManagerError::Invalid("a directory cannot remove itself".into()).into());
    }
    if name.as_ref() == b".." {
        return Err(ManagerError::NotEmpty.into());
    }
    let found = tx.found(directory, name)?;
    if found.kind != Kind::Directory {
        return Err(ManagerError::NotDirectory.into());
    }
    if !tx.is_empty_directory(found.inode)? {
        return Err(ManagerError::NotEmpty.into());
    }
    tx.remove_name(directory, name, found)?;
    let links = drop_link(tx, found.inode)?;
    Ok(Answer::Removed(Some((found.inode, links))).into())
}
