//! For the cleaner: which parts of a data record live, and, when it copied them, the compare-and-swap of their addresses
//! (DESIGN §8). What was overwritten meanwhile is left as it is: the write wins.
//!
//! A data record's bytes live in extents of the file that it names, at the place that it names, or in shared virtual
//! extents of that file's slot: owned extents never change their file or their place in it.

use protocol::address::LogAddress;
use protocol::id::InodeId;
use protocol::manager::{Answer, Moved};

use super::Done;
use crate::extent::{Backing, SharedId, is_possible};
use crate::key;
use crate::records::{decode, encode};
use crate::transaction::{Stop, Transaction, behind};

pub(super) fn pieces(
    tx: &Transaction<'_>,
    inode: InodeId,
    file_offset: u64,
    address: LogAddress,
) -> Result<Done, Stop> {
    let mut pieces = Vec::new();
    let (mut at, end) = (file_offset, file_offset.saturating_add(u64::from(address.length)));
    while let Some(mapped) = tx.extent(inode, at, end)? {
        at = mapped.end;
        if let Backing::Owned(live) = mapped.backing
            && within(address, live)
            && mapped.start == file_offset + u64::from(live.offset - address.offset)
        {
            pieces.push(Moved { inode, file_offset: mapped.start, old: live, new: live });
        }
    }
    let (mut from, last) = key::shared_places(address);
    while let Some((place, id)) = tx.next(inode.slot(), &(from, last.clone()))? {
        from = behind(place);
        let live = tx.shared(inode.slot(), decode::<SharedId>(id)?)?.address;
        if within(address, live)
            && let Some(file_offset) = file_offset.checked_add(u64::from(live.offset - address.offset))
        {
            pieces.push(Moved { inode, file_offset, old: live, new: live });
        }
    }
    Ok(Answer::Pieces(pieces).into())
}

pub(super) fn run(tx: &mut Transaction<'_>, moves: &[Moved]) -> Result<Done, Stop> {
    let makes_sense = |moved: &&Moved| {
        let Moved { old, new, .. } = **moved;
        old.length == new.length && old.length > 0 && is_possible(old) && is_possible(new)
    };
    for moved in moves.iter().filter(makes_sense) {
        move_owned(tx, moved)?;
        move_shared(tx, moved)?;
    }
    Ok(Answer::Done.into())
}

/// Moves what the file's extents still have of the old address, whole extents or parts: a stripe may be smaller than the
/// extent that is to be moved there.
fn move_owned(tx: &mut Transaction<'_>, moved: &Moved) -> Result<(), Stop> {
    let slot = moved.inode.slot();
    let (mut at, end) = (moved.file_offset, moved.file_offset.saturating_add(u64::from(moved.old.length)));
    while let Some(mapped) = tx.extent(moved.inode, at, end)? {
        at = mapped.end;
        let Backing::Owned(live) = mapped.backing else { continue };
        let Some((from, to)) = overlap(moved.old, live) else { continue };
        let (left, skip, length) = (from - live.offset, from - moved.old.offset, to - from);
        let start = mapped.start + u64::from(left);
        if start != moved.file_offset + u64::from(skip) {
            continue;
        }
        if left > 0 {
            tx.put(slot, key::extent(moved.inode, start), encode(&mapped.backing.part(0, left)))?;
        }
        let right = live.length - left - length;
        if right > 0 {
            tx.put(slot, key::extent(moved.inode, mapped.end), encode(&mapped.backing.part(left + length, right)))?;
        }
        let new = moved.new.part(skip, length);
        tx.put(slot, key::extent(moved.inode, start + u64::from(length)), encode(&Backing::Owned(new)))?;
        tx.died(slot, live.part(left, length))?;
        tx.born(slot, new)?;
    }
    Ok(())
}

/// Moves the shared virtual extent that lies exactly at the old address.
fn move_shared(tx: &mut Transaction<'_>, moved: &Moved) -> Result<(), Stop> {
    let slot = moved.inode.slot();
    let Some(id) = tx.value(slot, &key::shared_place(moved.old))?.map(decode::<SharedId>).transpose()? else {
        return Ok(());
    };
    let mut shared = tx.shared(slot, id)?;
    if shared.address != moved.old {
        return Ok(());
    }
    shared.address = moved.new;
    tx.put(slot, key::shared(id), encode(&shared))?;
    tx.remove(slot, key::shared_place(moved.old))?;
    tx.put(slot, key::shared_place(moved.new), encode(&id))?;
    tx.died(slot, moved.old)?;
    tx.born(slot, moved.new)
}

/// Whether `part` lies within `whole`.
fn within(whole: LogAddress, part: LogAddress) -> bool {
    let end = |address: LogAddress| u64::from(address.offset) + u64::from(address.length);
    (whole.log, whole.stripe) == (part.log, part.stripe) && whole.offset <= part.offset && end(part) <= end(whole)
}

/// The offsets between which two addresses name the same bytes.
fn overlap(one: LogAddress, other: LogAddress) -> Option<(u32, u32)> {
    let from = one.offset.max(other.offset);
    let to = one.offset.saturating_add(one.length).min(other.offset.saturating_add(other.length));
    ((one.log, one.stripe) == (other.log, other.stripe) && from < to).then_some((from, to))
}
