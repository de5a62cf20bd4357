//! One more name for an inode that is no directory; the first for one that was made without a name.

use bytes::Bytes;
use protocol::file::LINK_MAX;
use protocol::id::InodeId;
use protocol::manager::ManagerError;

use super::Done;
use super::lookup::entry;
use crate::key;
use crate::records::check_name;
use crate::transaction::{Stop, Transaction};

pub(super) fn run(tx: &mut Transaction<'_>, inode: InodeId, directory: InodeId, name: &Bytes) -> Result<Done, Stop> {
    check_name(name)?;
    tx.directory(directory)?;
    let mut record = tx.usable(inode)?;
    if record.is_directory() {
        return Err(ManagerError::NotPermitted.into());
    }
    if tx.find(directory, name)?.is_some() {
        return Err(ManagerError::Exists.into());
    }
    if record.links >= LINK_MAX {
        return Err(ManagerError::TooManyLinks.into());
    }
    if record.links == 0 {
        tx.remove(inode.slot(), key::orphan(inode))?;
    }
    record.links += 1;
    record.change(tx.now());
    tx.put_inode(inode, &record)?;
    tx.add_name(directory, name, (inode, record.kind))?;
    entry(tx, inode, &record)
}
