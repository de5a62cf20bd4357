//! Makes the root directory of a new file system.

use protocol::file::Kind;
use protocol::id::InodeId;
use protocol::manager::Answer;

use super::Done;
use crate::inode::{Body, Inode};
use crate::transaction::{Stop, Transaction};

/// What a new root may be used for until someone says otherwise: by all for reading, by its owner for writing.
const ROOT_MODE: u16 = 0o755;

pub(super) fn run(tx: &mut Transaction<'_>, uid: u32, gid: u32) -> Result<Done, Stop> {
    if tx.inode_if_any(InodeId::ROOT)?.is_some() {
        return Ok(Answer::Done.into());
    }
    let now = tx.now();
    let record = Inode {
        kind: Kind::Directory,
        mode: ROOT_MODE,
        links: 2,
        uid,
        gid,
        device: 0,
        size: 0,
        stored: 0,
        accessed: now,
        modified: now,
        changed: now,
        created: now,
        version: 1,
        body: Body::Parent(InodeId::ROOT),
    };
    tx.put_inode(InodeId::ROOT, &record)?;
    let slot = InodeId::ROOT.slot();
    let mut head = tx.head(slot)?;
    head.inodes += 1;
    tx.put_head(slot, head)?;
    Ok(Answer::Done.into())
}
