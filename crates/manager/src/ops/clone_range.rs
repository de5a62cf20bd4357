//! Shares bytes of one file with another (`FICLONERANGE`, `copy_file_range`): references, no data.
//!
//! Inline content has no address to refer to: it is copied where the target becomes the same small file, and refused
//! otherwise; the caller then copies bytes.

use protocol::file::FILE_SIZE_MAX;
use protocol::id::InodeId;
use protocol::manager::{Answer, CloneRange, ManagerError, ManagerRequest};

use super::{Done, Operation};
use crate::extent::Backing;
use crate::inode::{Body, Inode};
use crate::transaction::{Stop, Transaction};

/// Extents of the source that one step shares.
const STEP_MAX: usize = if cfg!(test) { 3 } else { 256 };

pub(super) fn run(tx: &mut Transaction<'_>, clone: &CloneRange) -> Result<Done, Stop> {
    let source = tx.file(clone.source)?;
    let target = tx.file(clone.target)?;
    let length = clone.length.min(source.size.saturating_sub(clone.source_offset));
    let clone = &CloneRange { length, ..*clone };
    check(clone)?;
    if length == 0 {
        return Ok(Answer::Attributes(target.attributes(clone.target)).into());
    }
    let covers = clone.target_offset == 0 && length >= target.size;
    if let Body::Inline(_) = &source.body {
        let whole = covers && clone.source_offset == 0 && length == source.size && clone.source != clone.target;
        return if whole { copy_inline(tx, clone, &source, target) } else { Err(ManagerError::Unsupported.into()) };
    }
    if matches!(target.body, Body::Inline(_)) && !covers {
        return Err(ManagerError::Unsupported.into());
    }
    share_step(tx, clone, target)
}

fn check(clone: &CloneRange) -> Result<(), ManagerError> {
    let (source_end, target_end) =
        (clone.source_offset.checked_add(clone.length), clone.target_offset.checked_add(clone.length));
    let (Some(source_end), Some(target_end)) = (source_end, target_end) else {
        return Err(ManagerError::FileTooLarge);
    };
    if target_end > FILE_SIZE_MAX {
        return Err(ManagerError::FileTooLarge);
    }
    let overlap = clone.source_offset < target_end && clone.target_offset < source_end;
    if clone.source == clone.target && overlap {
        return Err(ManagerError::Invalid("the ranges overlap".into()));
    }
    Ok(())
}

fn copy_inline(tx: &mut Transaction<'_>, clone: &CloneRange, source: &Inode, mut target: Inode) -> Result<Done, Stop> {
    let through = match target.body {
        Body::Inline(_) => u64::MAX,
        _ => tx.carve(clone.target, &mut target, 0, u64::MAX)?,
    };
    target.touch(tx.now());
    if through == u64::MAX {
        target.body = source.body.clone();
        target.stored = source.stored;
        target.size = source.size;
    }
    tx.put_inode(clone.target, &target)?;
    Ok(if through == u64::MAX { Answer::Attributes(target.attributes(clone.target)).into() } else { Done::Again })
}

/// Shares the first extents of the range, and goes on with the rest.
fn share_step(tx: &mut Transaction<'_>, clone: &CloneRange, mut target: Inode) -> Result<Done, Stop> {
    if matches!(target.body, Body::Inline(_)) {
        target.body = Body::Plain;
        target.stored = 0;
    }
    let step = step_length(tx, clone)?;
    let target_end = clone.target_offset + step;
    target.touch(tx.now());
    if tx.carve(clone.target, &mut target, clone.target_offset, target_end)? < target_end {
        tx.put_inode(clone.target, &target)?;
        return Ok(Done::Again);
    }
    let (mut at, end) = (clone.source_offset, clone.source_offset + step);
    while let Some(mapped) = tx.extent(clone.source, at, end)? {
        let reference = tx.share(clone.source, mapped)?;
        let (from, to) = (mapped.start.max(clone.source_offset), mapped.end.min(end));
        let part = Backing::Shared(reference).part((from - mapped.start) as u32, (to - from) as u32);
        tx.map(clone.target, &mut target, clone.target_offset + (from - clone.source_offset), part)?;
        at = mapped.end;
    }
    target.size = target.size.max(target_end);
    tx.put_inode(clone.target, &target)?;
    if step == clone.length {
        return Ok(Answer::Attributes(target.attributes(clone.target)).into());
    }
    let rest = CloneRange {
        source_offset: clone.source_offset + step,
        target_offset: clone.target_offset + step,
        length: clone.length - step,
        ..*clone
    };
    Ok(Done::Then(Operation::Asked(ManagerRequest::CloneRange(rest))))
}

/// How much of the range one step takes.
fn step_length(tx: &Transaction<'_>, clone: &CloneRange) -> Result<u64, Stop> {
    let (source, end): (InodeId, u64) = (clone.source, clone.source_offset + clone.length);
    let mut at = clone.source_offset;
    for _ in 0..STEP_MAX {
        match tx.extent(source, at, end)? {
            Some(mapped) => at = mapped.end.min(end),
            None => return Ok(clone.length),
        }
        if at == end {
            return Ok(clone.length);
        }
    }
    Ok(at - clone.source_offset)
}
