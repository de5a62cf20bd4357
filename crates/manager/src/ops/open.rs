//! Which inodes nodes hold open: what is open outlives its last name.

use protocol::id::InodeId;
use protocol::manager::Answer;

use super::Done;
use super::free::reap_closed;
use super::lookup::entry;
use crate::transaction::{Effect, Stop, Transaction};

pub(super) fn run(tx: &mut Transaction<'_>, inode: InodeId) -> Result<Done, Stop> {
    let record = tx.usable(inode)?;
    tx.effect(Effect::Open(inode, tx.node()));
    entry(tx, inode, &record)
}

pub(super) fn close(tx: &mut Transaction<'_>, inode: InodeId) -> Result<Done, Stop> {
    // An intention may be about to say that the inode is open: whoever closes it comes after that.
    tx.stand_clear(inode)?;
    reap_closed(tx, inode)?;
    tx.effect(Effect::Close(inode, tx.node()));
    Ok(Answer::Done.into())
}
