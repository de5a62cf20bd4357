//! Everything known about an inode, for `dazzle why`. The driver adds the locks, which it keeps.

use protocol::file::Content;
use protocol::id::InodeId;
use protocol::manager::{Answer, Why};

use super::Done;
use crate::inode::Body;
use crate::transaction::{Stop, Transaction};

pub(super) fn run(tx: &Transaction<'_>, inode: InodeId) -> Result<Done, Stop> {
    let record = tx.inode(inode)?;
    let extents = match tx.content(inode, &record, (0, u64::MAX))? {
        Content::Extents { list, .. } => list,
        Content::Inline(_) => Vec::new(),
    };
    let why = Why {
        attributes: tx.attributes(inode, &record)?,
        node: 0,
        inline: matches!(record.body, Body::Inline(_)),
        extents,
        open_nodes: tx.open_count(inode)? as u32,
        locks: 0,
        name_slots: tx.parts(inode)?.into_iter().map(|part| part.slot).collect(),
    };
    Ok(Answer::Why(Box::new(why)).into())
}
