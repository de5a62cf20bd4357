//! Which inodes nodes hold open: what is open outlives its last name.

use protocol::id::InodeId;
use protocol::manager::Answer;

use super::Done;
use super::free::reap_closed;
use super::lookup::entry;
use crate::transaction::{Effect, Stop, Transaction};

pub(super) fn run(tx: &mut Transaction<'_>, inode: InodeId) -> Result<Done, Stop> {
    let record = tx.inode(inode)?;
    tx.effect(Effect::Open(inode));
    entry(tx, inode, &record)
}

pub(super) fn close(tx: &mut Transaction<'_>, inode: InodeId) -> Result<Done, Stop> {
    reap_closed(tx, inode)?;
    tx.effect(Effect::Close(inode));
    Ok(Answer::Done.into())
}
