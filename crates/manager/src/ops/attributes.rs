//! What an inode's record tells: `stat`, a symbolic link's target, a directory's parent.

use protocol::id::InodeId;
use protocol::manager::{Answer, ManagerError};

use super::Done;
use crate::inode::Body;
use crate::transaction::{Stop, Transaction};

pub(super) fn run(tx: &Transaction<'_>, inode: InodeId) -> Result<Done, Stop> {
    Ok(Answer::Attributes(tx.attributes(inode, &tx.inode(inode)?)?).into())
}

pub(super) fn read_link(tx: &Transaction<'_>, inode: InodeId) -> Result<Done, Stop> {
    match tx.inode(inode)?.body {
        Body::Target(target) => Ok(Answer::Bytes(target).into()),
        _ => Err(ManagerError::Invalid("not a symbolic link".into()).into()),
    }
}

pub(super) fn parent(tx: &Transaction<'_>, inode: InodeId) -> Result<Done, Stop> {
    match tx.directory(inode)?.body {
        Body::Parent(parent) => Ok(Answer::Inode(parent).into()),
        _ => Err(ManagerError::NotDirectory.into()),
    }
}
