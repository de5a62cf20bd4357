//! Extended attributes. The two that hold ACLs also speak of the mode.

use bytes::Bytes;
use protocol::file::{Kind, NAME_MAX, XATTR_SIZE_MAX};
use protocol::id::InodeId;
use protocol::manager::{Answer, ManagerError, XattrMode};

use super::Done;
use crate::acl::{ACCESS, Acl, DEFAULT};
use crate::inode::Inode;
use crate::key;
use crate::transaction::{Stop, Transaction, behind};

/// Bytes that the names of one inode's attributes may take together: what `listxattr` can return.
const NAMES_SIZE_MAX: usize = 65_536;
const SET_GID: u16 = 0o2000;

/// An attribute to set.
pub(super) struct Set<'a> {
    pub(super) name: &'a Bytes,
    pub(super) value: &'a Bytes,
    pub(super) mode: XattrMode,
    pub(super) clear_set_gid: bool,
}

pub(super) fn run(tx: &Transaction<'_>, inode: InodeId, name: &Bytes) -> Result<Done, Stop> {
    check_name(name)?;
    tx.inode(inode)?;
    match tx.value(inode.slot(), &key::xattr(inode, name))? {
        Some(value) => Ok(Answer::Bytes(Bytes::copy_from_slice(value)).into()),
        None => Err(ManagerError::NoAttribute.into()),
    }
}

pub(super) fn set(tx: &mut Transaction<'_>, inode: InodeId, set: &Set<'_>) -> Result<Done, Stop> {
    check_name(set.name)?;
    if set.value.len() > XATTR_SIZE_MAX {
        return Err(ManagerError::TooLarge.into());
    }
    let mut record = tx.inode_to_change(inode)?;
    let key = key::xattr(inode, set.name);
    let exists = tx.value(inode.slot(), &key)?.is_some();
    match (set.mode, exists) {
        (XattrMode::Create, true) => return Err(ManagerError::Exists.into()),
        (XattrMode::Replace, false) => return Err(ManagerError::NoAttribute.into()),
        _ => {}
    }
    if !exists && names_size(tx, inode)? + set.name.len() + 1 > NAMES_SIZE_MAX {
        return Err(ManagerError::NoRoom.into());
    }
    if acl_says_all(set, &mut record)? {
        // The mode says it all now.
        tx.remove(inode.slot(), key)?;
    } else {
        tx.put(inode.slot(), key, set.value.to_vec())?;
    }
    record.change(tx.now());
    tx.put_inode(inode, &record)?;
    Ok(Answer::Attributes(tx.attributes(inode, &record)?).into())
}

pub(super) fn list(tx: &Transaction<'_>, inode: InodeId) -> Result<Done, Stop> {
    tx.inode(inode)?;
    Ok(Answer::Names(names(tx, inode)?).into())
}

pub(super) fn remove(tx: &mut Transaction<'_>, inode: InodeId, name: &Bytes) -> Result<Done, Stop> {
    check_name(name)?;
    let mut record = tx.inode_to_change(inode)?;
    let key = key::xattr(inode, name);
    if tx.value(inode.slot(), &key)?.is_none() {
        return Err(ManagerError::NoAttribute.into());
    }
    tx.remove(inode.slot(), key)?;
    record.change(tx.now());
    tx.put_inode(inode, &record)?;
    Ok(Answer::Attributes(tx.attributes(inode, &record)?).into())
}

/// For an ACL: checks it and brings the mode along. True when nothing is left for the attribute to say.
fn acl_says_all(set: &Set<'_>, record: &mut Inode) -> Result<bool, ManagerError> {
    if set.name != ACCESS && set.name != DEFAULT {
        return Ok(false);
    }
    if record.kind == Kind::Symlink {
        return Err(ManagerError::Unsupported);
    }
    let acl = Acl::decode(set.value).ok_or_else(|| ManagerError::Invalid("no access control list".into()))?;
    if set.name == DEFAULT {
        return if record.is_directory() { Ok(false) } else { Err(ManagerError::NotPermitted) };
    }
    record.mode = (record.mode & !0o777) | acl.mode();
    if set.clear_set_gid {
        record.mode &= !SET_GID;
    }
    Ok(acl.is_mode())
}

fn check_name(name: &[u8]) -> Result<(), ManagerError> {
    if name.len() > NAME_MAX {
        return Err(ManagerError::NameTooLong);
    }
    let prefixes: [&[u8]; 3] = [b"user.", b"trusted.", b"security."];
    let known = prefixes.iter().any(|prefix| name.starts_with(prefix) && name.len() > prefix.len());
    if known || name == ACCESS || name == DEFAULT { Ok(()) } else { Err(ManagerError::Unsupported) }
}

fn names_size(tx: &Transaction<'_>, inode: InodeId) -> Result<usize, Stop> {
    Ok(names(tx, inode)?.iter().map(|name| name.len() + 1).sum())
}

fn names(tx: &Transaction<'_>, inode: InodeId) -> Result<Vec<Bytes>, Stop> {
    let (mut from, end) = key::xattrs(inode);
    let mut names = Vec::new();
    while let Some((at, _)) = tx.next(inode.slot(), &(from, end.clone()))? {
        names.push(Bytes::copy_from_slice(key::xattr_name(at)));
        from = behind(at);
    }
    Ok(names)
}
