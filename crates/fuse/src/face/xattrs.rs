//! Extended attributes. Awaits.
//!
//! Which user may touch which name is the kernel's to check. The manager keeps the two ACL attributes in step with the
//! mode.

use bytes::{BufMut, Bytes, BytesMut};
use client::ClientError;
use protocol::manager::ManagerError;

use super::translation::xattr_mode;
use super::{Call, Outcome};
use crate::{Errno, reply};

const ACL_PREFIX: &[u8] = b"system.posix_acl_";
const TRUSTED_PREFIX: &[u8] = b"trusted.";

impl Call {
    pub(super) async fn getxattr(self, name: Bytes, size: u32) -> Outcome {
        let value = self.client().xattr(self.inode, name).await?;
        self.sized(value, size)
    }

    pub(super) async fn setxattr(self, name: Bytes, value: Bytes, flags: u32, kill_sgid: bool) -> Outcome {
        let mode = xattr_mode(flags)?;
        self.client().set_xattr(self.inode, (name, value), mode, kill_sgid).await?;
        Ok(self.done())
    }

    pub(super) async fn listxattr(self, size: u32) -> Outcome {
        let names = self.client().list_xattrs(self.inode).await?;
        let list = joined(&names, self.caller.uid == 0);
        self.sized(list, size)
    }

    pub(super) async fn removexattr(self, name: Bytes) -> Outcome {
        let is_acl = name.starts_with(ACL_PREFIX);
        match self.client().remove_xattr(self.inode, name).await {
            // An ACL that says no more than the mode is not stored, so removing one never fails for want of it.
            Err(ClientError::Manager(ManagerError::NoAttribute)) if is_acl => Ok(self.done()),
            removed => Ok(removed.map(|()| self.done())?),
        }
    }

    /// The bytes, or for a size of 0 how many they are.
    fn sized(&self, value: Bytes, size: u32) -> Outcome {
        match size {
            0 => Ok(reply::attribute_size(self.unique, u32::try_from(value.len()).map_err(|_| Errno::E2BIG)?)),
            _ if value.len() > size as usize => Err(Errno::ERANGE),
            _ => Ok(reply::data(self.unique, vec![value])),
        }
    }
}

/// Names in the form of listxattr(2), each with a zero byte behind it. Only root hears of trusted ones.
fn joined(names: &[Bytes], is_root: bool) -> Bytes {
    let mut list = BytesMut::with_capacity(names.iter().map(|name| name.len() + 1).sum());
    for name in names.iter().filter(|name| is_root || !name.starts_with(TRUSTED_PREFIX)) {
        list.put_slice(name);
        list.put_u8(0);
    }
    list.freeze()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_listed_as_linux_lists_them() {
        let names = [Bytes::from_static(b"user.a"), Bytes::from_static(b"trusted.b"), Bytes::from_static(b"user.c")];
        assert_eq!(joined(&names, true), b"user.a\0trusted.b\0user.c\0"[..]);
        assert_eq!(joined(&names, false), b"user.a\0user.c\0"[..]);
        assert!(joined(&[], true).is_empty());
    }
}
