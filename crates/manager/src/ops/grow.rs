//! Grows a file's size to at least a number of bytes. What comes new is a hole.

use protocol::file::FILE_SIZE_MAX;
use protocol::id::InodeId;
use protocol::manager::{Answer, ManagerError};

use super::Done;
use crate::transaction::{Stop, Transaction};

pub(super) fn run(tx: &mut Transaction<'_>, inode: InodeId, size: u64) -> Result<Done, Stop> {
    let mut record = tx.file(inode)?;
    if size > FILE_SIZE_MAX {
        return Err(ManagerError::FileTooLarge.into());
    }
    if size > record.size {
        record.size = size;
        record.touch(tx.now());
        tx.put_inode(inode, &record)?;
    }
    Ok(Answer::Attributes(record.attributes(inode)).into())
}
