//! `chmod`, `chown`, `utimens` and `truncate`, together or alone; and when a file was read, which changes nothing else.
//!
//! A truncation frees extents in steps, from the new end on; the last step sets the size and everything else. One that
//! is interrupted has made a hole at the file's end, and its caller was not answered.

use bytes::Bytes;
use protocol::file::{FILE_SIZE_MAX, Kind, SetAttributes};
use protocol::id::InodeId;
use protocol::manager::{Answer, ManagerError};

use super::Done;
use crate::acl::{ACCESS, Acl};
use crate::inode::{Body, Inode};
use crate::key;
use crate::transaction::{Stop, Transaction};

/// Set-user-id.
const SET_UID: u16 = 0o4000;
/// Set-group-id.
const SET_GID: u16 = 0o2000;
const GROUP_EXECUTES: u16 = 0o0010;
/// The bits of a mode that can be set.
pub(super) const MODE_MASK: u16 = 0o7777;

pub(super) fn run(tx: &mut Transaction<'_>, inode: InodeId, set: &SetAttributes) -> Result<Done, Stop> {
    let mut record = tx.inode_to_change(inode)?;
    let now = tx.now();
    if let Some(accessed) = set.told_reading() {
        record.accessed = record.accessed.max(accessed);
        record.version += 1;
        tx.put_inode(inode, &record)?;
        return Ok(Answer::Attributes(tx.attributes(inode, &record)?).into());
    }
    if let Some(size) = set.size {
        if !truncate(tx, inode, &mut record, size)? {
            record.touch(now);
            tx.put_inode(inode, &record)?;
            return Ok(Done::Again);
        }
        record.modified = now;
    }
    if set.clear_set_id && record.kind != Kind::Directory {
        record.mode = without_set_id(record.mode);
    }
    if let Some(mode) = set.mode {
        record.mode = mode & MODE_MASK;
        set_acl_mode(tx, inode, record.mode)?;
    }
    record.uid = set.uid.unwrap_or(record.uid);
    record.gid = set.gid.unwrap_or(record.gid);
    record.accessed = set.accessed.unwrap_or(record.accessed);
    record.modified = set.modified.unwrap_or(record.modified);
    record.change(set.changed.unwrap_or(now));
    tx.put_inode(inode, &record)?;
    Ok(Answer::Attributes(tx.attributes(inode, &record)?).into())
}

/// Sets the size; false when more extents remain to be freed first.
fn truncate(tx: &mut Transaction<'_>, inode: InodeId, record: &mut Inode, size: u64) -> Result<bool, Stop> {
    match record.kind {
        Kind::File if size <= FILE_SIZE_MAX => {}
        Kind::File => return Err(ManagerError::FileTooLarge.into()),
        Kind::Directory => return Err(ManagerError::IsDirectory.into()),
        _ => return Err(ManagerError::Invalid("only files have a size to set".into()).into()),
    }
    if let Body::Inline(bytes) = &record.body {
        let length = bytes.len().min(usize::try_from(size).unwrap_or(usize::MAX));
        // A copy, lest the record keep the longer content alive.
        let bytes = Bytes::copy_from_slice(&bytes[..length]);
        record.stored = length as u64;
        record.body = if length == 0 { Body::Plain } else { Body::Inline(bytes) };
    } else if tx.carve(inode, record, size, u64::MAX)? < u64::MAX {
        return Ok(false);
    }
    record.size = size;
    Ok(true)
}

/// What a write by a plain user leaves of a mode.
pub(super) fn without_set_id(mode: u16) -> u16 {
    let group = if mode & GROUP_EXECUTES != 0 { SET_GID } else { 0 };
    mode & !(SET_UID | group)
}

fn set_acl_mode(tx: &mut Transaction<'_>, inode: InodeId, mode: u16) -> Result<(), Stop> {
    let key = key::xattr(inode, ACCESS);
    let Some(mut acl) = tx.value(inode.slot(), &key)?.and_then(Acl::decode) else { return Ok(()) };
    acl.set_mode(mode);
    tx.put(inode.slot(), key, acl.encode())
}
