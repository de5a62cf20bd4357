//! Makes inodes: with a name, or without and held open (`O_TMPFILE`).
//!
//! A file lives where its name does, a directory where the placement puts it. A set-group-id directory gives its
//! group on, and to directories the bit; a default ACL takes the place of the mask.

use bytes::Bytes;
use protocol::file::{Kind, NewInode, SYMLINK_MAX, Time};
use protocol::id::InodeId;
use protocol::manager::ManagerError;

use super::Done;
use super::lookup::entry;
use super::set_attributes::MODE_MASK;
use crate::acl::{ACCESS, Acl, DEFAULT};
use crate::inode::{Body, Inode};
use crate::key;
use crate::records::check_name;
use crate::transaction::{Effect, Stop, Transaction};

const SET_GID: u16 = 0o2000;

pub(super) fn named(
    tx: &mut Transaction<'_>,
    (directory, name): (InodeId, &Bytes),
    new: &NewInode,
    open: bool,
) -> Result<Done, Stop> {
    check_name(name)?;
    let parent = tx.directory(directory)?;
    if parent.links == 0 {
        return Err(ManagerError::NotFound.into());
    }
    if tx.find(directory, name)?.is_some() {
        return Err(ManagerError::Exists.into());
    }
    let slot = match new.kind {
        Kind::Directory => tx.placement().slot(directory, name, tx.node()),
        _ => tx.part_of_name(directory, name)?.slot,
    };
    let inode = tx.allocate(slot)?;
    let mut record = fresh((directory, &parent), new, tx.now())?;
    inherit(tx, (directory, &parent), (inode, &mut record), new)?;
    tx.put_inode(inode, &record)?;
    tx.add_name(directory, name, (inode, new.kind))?;
    if open {
        tx.effect(Effect::Open(inode, tx.node()));
    }
    entry(tx, inode, &record)
}

pub(super) fn unnamed(tx: &mut Transaction<'_>, directory: InodeId, new: &NewInode) -> Result<Done, Stop> {
    let parent = tx.directory(directory)?;
    if new.kind != Kind::File {
        return Err(ManagerError::Invalid("only a file can be without a name".into()).into());
    }
    let inode = tx.allocate(directory.slot())?;
    let mut record = fresh((directory, &parent), new, tx.now())?;
    inherit(tx, (directory, &parent), (inode, &mut record), new)?;
    record.links = 0;
    tx.put_inode(inode, &record)?;
    tx.put(inode.slot(), key::orphan(inode), Vec::new())?;
    tx.effect(Effect::Open(inode, tx.node()));
    entry(tx, inode, &record)
}

/// A new inode's record, before a default ACL has its say.
pub(super) fn fresh((directory, parent): (InodeId, &Inode), new: &NewInode, now: Time) -> Result<Inode, ManagerError> {
    let body = match new.kind {
        Kind::Directory => Body::Parent(directory),
        Kind::Symlink if new.target.is_empty() => return Err(ManagerError::NotFound),
        Kind::Symlink if new.target.len() > SYMLINK_MAX => return Err(ManagerError::NameTooLong),
        Kind::Symlink => Body::Target(Bytes::copy_from_slice(&new.target)),
        _ => Body::Plain,
    };
    let gives_group = parent.mode & SET_GID != 0;
    let mut mode = new.mode & MODE_MASK;
    if gives_group && new.kind == Kind::Directory {
        mode |= SET_GID;
    }
    Ok(Inode {
        kind: new.kind,
        mode: if new.kind == Kind::Symlink { 0o777 } else { mode },
        links: if new.kind == Kind::Directory { 2 } else { 1 },
        uid: new.caller.uid,
        gid: if gives_group { parent.gid } else { new.caller.gid },
        device: if matches!(new.kind, Kind::CharacterDevice | Kind::BlockDevice) { new.device } else { 0 },
        size: if new.kind == Kind::Symlink { new.target.len() as u64 } else { 0 },
        stored: 0,
        accessed: now,
        modified: now,
        changed: now,
        created: now,
        version: 1,
        body,
    })
}

/// Applies the directory's default ACL, or else the mask.
fn inherit(
    tx: &mut Transaction<'_>,
    (directory, _): (InodeId, &Inode),
    (inode, record): (InodeId, &mut Inode),
    new: &NewInode,
) -> Result<(), Stop> {
    if new.kind == Kind::Symlink {
        return Ok(());
    }
    let default = tx.value(directory.slot(), &key::xattr(directory, DEFAULT))?.and_then(Acl::decode);
    let Some(default) = default else {
        record.mode &= !(new.mask & 0o777);
        return Ok(());
    };
    let (access, mode) = default.inherit(record.mode);
    record.mode = mode;
    if !access.is_mode() {
        tx.put(inode.slot(), key::xattr(inode, ACCESS), access.encode())?;
    }
    if new.kind == Kind::Directory {
        tx.put(inode.slot(), key::xattr(inode, DEFAULT), default.encode())?;
    }
    Ok(())
}
