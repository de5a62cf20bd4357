//! Operations on names. Awaits.

use bytes::Bytes;
use client::ClientError;
use protocol::file::{Kind, NAME_MAX, NewInode};
use protocol::id::InodeId;
use protocol::manager::{ManagerError, Rename};

use super::kept_names::Leaving;
use super::translation::{made_kind, permissions, rename_mode};
use super::{Call, Outcome};
use crate::attributes::Entry;
use crate::operation::NodeId;
use crate::{Errno, reply};

impl Call {
    pub(super) async fn lookup(self, name: Bytes) -> Outcome {
        check_name(&name)?;
        let found = match &name[..] {
            // Of an inode that the kernel has forgotten, by a file handle (name_to_handle_at, NFS).
            b"." => self.client().attributes(self.inode).await,
            b".." => {
                let parent = self.client().parent(self.inode).await?;
                self.client().attributes(parent).await
            }
            _ => self.client().lookup(self.inode, name).await,
        };
        match found {
            Ok(attributes) => Ok(self.entry(attributes)),
            // An answer, not an error: the kernel keeps the absence too.
            Err(ClientError::Manager(ManagerError::NotFound)) => {
                Ok(reply::entry(self.unique, &Entry::absent(self.names_valid(Leaving::Now))))
            }
            Err(error) => Err(error.into()),
        }
    }

    pub(super) async fn mknod(self, name: Bytes, mode: u32, device: u32, umask: u32) -> Outcome {
        let new = NewInode { device, ..self.new_inode(made_kind(mode)?, mode, umask) };
        self.make(name, new).await
    }

    pub(super) async fn mkdir(self, name: Bytes, mode: u32, umask: u32) -> Outcome {
        let new = self.new_inode(Kind::Directory, mode, umask);
        self.make(name, new).await
    }

    pub(super) async fn symlink(self, name: Bytes, target: Bytes) -> Outcome {
        let new = NewInode { target, ..self.new_inode(Kind::Symlink, 0o777, 0) };
        self.make(name, new).await
    }

    async fn make(self, name: Bytes, new: NewInode) -> Outcome {
        check_name(&name)?;
        let attributes = self.client().create(self.inode, name, new).await?;
        Ok(self.entry(attributes))
    }

    /// What the caller makes. Which group it gets, and what a default ACL leaves of the mode, the manager knows.
    pub(super) fn new_inode(&self, kind: Kind, mode: u32, umask: u32) -> NewInode {
        let (mode, mask) = (permissions(mode), permissions(umask));
        NewInode { kind, mode, mask, device: 0, target: Bytes::new(), caller: self.caller }
    }

    pub(super) async fn readlink(self) -> Outcome {
        let target = self.client().read_link(self.inode).await?;
        Ok(reply::data(self.unique, vec![target]))
    }

    pub(super) async fn link(self, source: NodeId, name: Bytes) -> Outcome {
        check_name(&name)?;
        let attributes = self.client().link(InodeId(source.0), self.inode, name).await?;
        Ok(self.entry(attributes))
    }

    pub(super) async fn unlink(self, name: Bytes) -> Outcome {
        check_name(&name)?;
        self.client().unlink(self.inode, name).await?;
        Ok(self.done())
    }

    pub(super) async fn rmdir(self, name: Bytes) -> Outcome {
        check_name(&name)?;
        self.client().remove_directory(self.inode, name).await?;
        Ok(self.done())
    }

    pub(super) async fn rename(self, name: Bytes, to: (NodeId, Bytes), flags: u32) -> Outcome {
        let (to_directory, to_name) = (InodeId(to.0.0), to.1);
        check_name(&name)?;
        check_name(&to_name)?;
        let mode = rename_mode(flags)?;
        let rename = Rename { from_directory: self.inode, from_name: name, to_directory, to_name, mode };
        self.client().rename(rename).await?;
        Ok(self.done())
    }
}

/// The kernel lets longer names through than a file system may have; slashes and zero bytes it has taken out.
pub(super) fn check_name(name: &[u8]) -> Result<(), Errno> {
    if name.len() > NAME_MAX { Err(Errno::ENAMETOOLONG) } else { Ok(()) }
}
