//! Renames, in all modes.
//!
//! 1. The same inode under both names: nothing happens (POSIX rename).
//! 2. A directory never comes to lie below itself: the way up from the new place is walked first, with every slot on
//!    it locked, so that no concurrent rename can close a circle. Where several managers have these slots, a count in the
//!    root's slot takes the place of the locks: every directory that comes to lie in another one changes it, so whoever
//!    walks up knows that nothing moved meanwhile, however much else becomes of the directories on the way.
//! 3. What the new name named is replaced at its place in the listing, if the kinds allow: a directory by a directory
//!    when it is empty, anything else by what is no directory.

use bytes::Bytes;
use protocol::file::{Caller, Kind, NewInode};
use protocol::id::InodeId;
use protocol::manager::{Answer, ManagerError, Rename, RenameMode};

use super::Done;
use super::create::fresh;
use super::free::drop_link;
use crate::directory::Found;
use crate::inode::{Body, Inode};
use crate::key;
use crate::records::{check_name, decode, encode};
use crate::transaction::{Stop, Transaction};

/// Directories on the way up to the root that a rename looks at. Deeper trees cannot be told from a circle.
const DEPTH_MAX: usize = 10_000;

pub(super) fn run(tx: &mut Transaction<'_>, rename: &Rename) -> Result<Done, Stop> {
    check_name(&rename.from_name)?;
    check_name(&rename.to_name)?;
    tx.directory(rename.from_directory)?;
    if tx.directory(rename.to_directory)?.links == 0 {
        return Err(ManagerError::NotFound.into());
    }
    let from = tx.found(rename.from_directory, &rename.from_name)?;
    let to = tx.find(rename.to_directory, &rename.to_name)?;
    match (rename.mode, to) {
        (RenameMode::Keep, Some(_)) => return Err(ManagerError::Exists.into()),
        (RenameMode::Exchange, None) => return Err(ManagerError::NotFound.into()),
        (_, Some(to)) if to.inode == from.inode => return Ok(renamed(&[], None)),
        _ => {}
    }
    check_circle(tx, from, rename.from_directory, rename.to_directory)?;
    match (rename.mode, to) {
        (RenameMode::Exchange, Some(to)) => exchange(tx, rename, from, to),
        (_, Some(to)) => replace(tx, rename, from, to),
        (_, None) => {
            tx.add_name(rename.to_directory, &rename.to_name, (from.inode, from.kind))?;
            leave(tx, rename, from)?;
            Ok(renamed(&[from.inode], None))
        }
    }
}

/// Both names stay and stand for each other's inode.
fn exchange(tx: &mut Transaction<'_>, rename: &Rename, from: Found, to: Found) -> Result<Done, Stop> {
    check_circle(tx, to, rename.to_directory, rename.from_directory)?;
    tx.replace_name(rename.to_directory, &rename.to_name, to, (from.inode, from.kind))?;
    tx.replace_name(rename.from_directory, &rename.from_name, from, (to.inode, to.kind))?;
    moved(tx, from.inode, rename.to_directory)?;
    moved(tx, to.inode, rename.from_directory)?;
    Ok(renamed(&[from.inode, to.inode], None))
}

/// The new name's inode loses that name.
fn replace(tx: &mut Transaction<'_>, rename: &Rename, from: Found, to: Found) -> Result<Done, Stop> {
    match (from.kind == Kind::Directory, to.kind == Kind::Directory) {
        (true, false) => return Err(ManagerError::NotDirectory.into()),
        (false, true) => return Err(ManagerError::IsDirectory.into()),
        (true, true) if !tx.is_empty_directory(to.inode)? => return Err(ManagerError::NotEmpty.into()),
        _ => {}
    }
    tx.replace_name(rename.to_directory, &rename.to_name, to, (from.inode, from.kind))?;
    leave(tx, rename, from)?;
    let links = drop_link(tx, to.inode)?;
    Ok(if links == 0 { renamed(&[from.inode], Some(to.inode)) } else { renamed(&[from.inode, to.inode], None) })
}

fn renamed(changed: &[InodeId], removed: Option<InodeId>) -> Done {
    Answer::Renamed { changed: changed.to_vec(), removed }.into()
}

/// The old name goes, or a whiteout takes its place.
fn leave(tx: &mut Transaction<'_>, rename: &Rename, from: Found) -> Result<(), Stop> {
    if rename.mode == RenameMode::Whiteout {
        let whiteout = make_whiteout(tx, rename.from_directory)?;
        tx.replace_name(rename.from_directory, &rename.from_name, from, (whiteout, Kind::CharacterDevice))?;
    } else {
        tx.remove_name(rename.from_directory, &rename.from_name, from)?;
    }
    moved(tx, from.inode, rename.to_directory)
}

/// An inode has another name now; a directory, perhaps another parent.
fn moved(tx: &mut Transaction<'_>, inode: InodeId, directory: InodeId) -> Result<(), Stop> {
    let mut record = tx.inode_to_change(inode)?;
    if let Body::Parent(parent) = &mut record.body {
        *parent = directory;
    }
    record.change(tx.now());
    tx.put_inode(inode, &record)
}

/// A character device 0:0, as overlay mounts mark what is deleted.
fn make_whiteout(tx: &mut Transaction<'_>, directory: InodeId) -> Result<InodeId, Stop> {
    let new = NewInode {
        kind: Kind::CharacterDevice,
        mode: 0,
        mask: 0,
        device: 0,
        target: Bytes::new(),
        caller: Caller::default(),
    };
    let parent = tx.directory(directory)?;
    let record = fresh((directory, &parent), &new, tx.now())?;
    let inode = tx.allocate(directory.slot())?;
    tx.put_inode(inode, &record)?;
    Ok(inode)
}

/// Refuses a directory that would come to lie at or below itself.
fn check_circle(tx: &mut Transaction<'_>, what: Found, from: InodeId, to: InodeId) -> Result<(), Stop> {
    if what.kind != Kind::Directory || from == to {
        return Ok(());
    }
    let root = InodeId::ROOT.slot();
    let renames: u64 = tx.value(root, &key::renames())?.map(decode).transpose()?.unwrap_or(0);
    tx.put(root, key::renames(), encode(&renames.wrapping_add(1)))?;
    let mut at = to;
    for _ in 0..DEPTH_MAX {
        if at == what.inode {
            return Err(ManagerError::Invalid("a directory cannot move below itself".into()).into());
        }
        let above = tx.glance(at.slot(), &key::inode(at))?.map(Inode::decode).transpose()?;
        match above.ok_or(ManagerError::Stale)?.body {
            Body::Parent(parent) if parent != at => at = parent,
            _ => return Ok(()),
        }
    }
    Err(ManagerError::Invalid("the directory lies too deep".into()).into())
}
