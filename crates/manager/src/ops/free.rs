//! The end of an inode: names lost, orphans kept while someone holds them open, records freed in steps.

use protocol::file::Kind;
use protocol::id::{InodeId, SlotId};
use protocol::manager::Answer;

use super::{Done, Told};
use crate::inode::{Body, Inode};
use crate::key;
use crate::map::STEP_EXTENTS_MAX;
use crate::transaction::{Effect, Stop, Transaction};

/// An inode lost a name; a directory, its only one. Returns how many are left.
pub(super) fn drop_link(tx: &mut Transaction<'_>, inode: InodeId) -> Result<u32, Stop> {
    let mut record = tx.inode(inode)?;
    record.links = if record.is_directory() { 0 } else { record.links.saturating_sub(1) };
    record.change(tx.now());
    if record.links > 0 {
        tx.put_inode(inode, &record)?;
        return Ok(record.links);
    }
    let open = tx.open_count(inode)? > 0;
    if open || !free(tx, inode, record.clone())? {
        tx.put(inode.slot(), key::orphan(inode), Vec::new())?;
        if open {
            tx.put_inode(inode, &record)?;
        } else {
            tx.effect(Effect::Reap(inode));
        }
    }
    Ok(0)
}

/// Frees an orphan that nobody but the asking node, which is about to close it, holds open.
pub(super) fn reap_closed(tx: &mut Transaction<'_>, inode: InodeId) -> Result<(), Stop> {
    let slot = inode.slot();
    if tx.value(slot, &key::orphan(inode))?.is_none() || tx.is_open_elsewhere(inode)? {
        return Ok(());
    }
    let record = tx.inode(inode)?;
    if !free(tx, inode, record)? {
        tx.effect(Effect::Reap(inode));
    }
    Ok(())
}

/// A step of freeing an orphan.
pub(super) fn reap(tx: &mut Transaction<'_>, inode: InodeId) -> Result<Done, Stop> {
    let slot = inode.slot();
    if tx.value(slot, &key::orphan(inode))?.is_none() || tx.open_count(inode)? > 0 {
        return Ok(Answer::Done.into());
    }
    let record = tx.inode(inode)?;
    Ok(if free(tx, inode, record)? { Answer::Done.into() } else { Done::Again })
}

/// All orphans of a slot.
pub(super) fn orphans(tx: &Transaction<'_>, slot: SlotId) -> Result<Done, Stop> {
    let (mut from, end) = key::orphans();
    let mut orphans = Vec::new();
    while let Some((at, _)) = tx.next(slot, &(from, end.clone()))? {
        orphans.push(key::orphan_inode(at));
        from = crate::transaction::behind(at);
    }
    Ok(Done::Told(Told::Orphans(orphans)))
}

/// Removes all records of an inode. False when more remain than one step takes; the inode then stays.
fn free(tx: &mut Transaction<'_>, inode: InodeId, mut record: Inode) -> Result<bool, Stop> {
    let slot = inode.slot();
    let mapped = record.kind == Kind::File && !matches!(record.body, Body::Inline(_));
    if mapped && tx.carve(inode, &mut record, 0, u64::MAX)? < u64::MAX {
        tx.put_inode(inode, &record)?;
        return Ok(false);
    }
    for _ in 0..STEP_EXTENTS_MAX {
        let Some(key) = tx.next(slot, &key::xattrs(inode))?.map(|(key, _)| key.to_vec()) else {
            if record.is_directory() {
                tx.remove_parts(inode)?;
            }
            return finish(tx, inode).map(|()| true);
        };
        tx.remove(slot, key)?;
    }
    tx.put_inode(inode, &record)?;
    Ok(false)
}

fn finish(tx: &mut Transaction<'_>, inode: InodeId) -> Result<(), Stop> {
    let slot = inode.slot();
    tx.remove(slot, key::inode(inode))?;
    if tx.value(slot, &key::orphan(inode))?.is_some() {
        tx.remove(slot, key::orphan(inode))?;
    }
    tx.free_number(slot)
}
