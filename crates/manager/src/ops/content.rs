//! The map of a range of a file, as much as one answer carries.

use protocol::id::InodeId;
use protocol::manager::Answer;

use super::Done;
use crate::transaction::{Stop, Transaction};

pub(super) fn run(tx: &Transaction<'_>, inode: InodeId, offset: u64, length: u64) -> Result<Done, Stop> {
    let record = tx.file(inode)?;
    let range = (offset, offset.saturating_add(length));
    Ok(Answer::Content(tx.content(inode, &record, range)?).into())
}
