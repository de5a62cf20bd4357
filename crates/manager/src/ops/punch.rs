//! Frees a range of a file, which then reads as zeros. The size stays. Frees in steps, front to back.

use bytes::Bytes;
use protocol::id::InodeId;
use protocol::manager::Answer;

use super::Done;
use crate::inode::Body;
use crate::transaction::{Stop, Transaction};

pub(super) fn run(tx: &mut Transaction<'_>, inode: InodeId, offset: u64, length: u64) -> Result<Done, Stop> {
    let mut record = tx.file(inode)?;
    let end = offset.saturating_add(length);
    let mut done = true;
    if let Body::Inline(bytes) = &record.body {
        let clamp = |place: u64| usize::try_from(place).unwrap_or(usize::MAX).min(bytes.len());
        let mut zeroed = bytes.to_vec();
        zeroed[clamp(offset)..clamp(end)].fill(0);
        record.body = Body::Inline(Bytes::from(zeroed));
    } else {
        done = tx.carve(inode, &mut record, offset, end)? == end;
    }
    record.touch(tx.now());
    tx.put_inode(inode, &record)?;
    Ok(if done { Answer::Attributes(record.attributes(inode)).into() } else { Done::Again })
}
