//! An inode's record: attributes, and what is small enough to live with them.

use bytes::Bytes;
use protocol::file::{Attributes, Kind, Time};
use protocol::id::InodeId;
use serde::{Deserialize, Serialize};

use crate::encoding::Damaged;

/// What lives in the inode beside its attributes.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) enum Body {
    /// Nothing: content, if any, is in extents.
    Plain,
    /// A small file's content. Shorter than the size when the file ends in a hole.
    Inline(Bytes),
    /// A symbolic link's target.
    Target(Bytes),
    /// A directory's parent.
    Parent(InodeId),
}

/// An inode, with the fields of [`Attributes`] but its number, which is in the key.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Inode {
    pub(crate) kind: Kind,
    pub(crate) mode: u16,
    pub(crate) links: u32,
    pub(crate) uid: u32,
    pub(crate) gid: u32,
    pub(crate) device: u32,
    pub(crate) size: u64,
    pub(crate) stored: u64,
    pub(crate) accessed: Time,
    pub(crate) modified: Time,
    pub(crate) changed: Time,
    pub(crate) created: Time,
    pub(crate) version: u64,
    pub(crate) body: Body,
}

/// The record's bytes: times count from the creation, so that those of a file written once take a byte each.
#[derive(Serialize, Deserialize)]
struct Stored {
    kind: Kind,
    mode: u16,
    links: u32,
    uid: u32,
    gid: u32,
    device: u32,
    size: u64,
    stored: u64,
    created: i64,
    accessed: i64,
    modified: i64,
    changed: i64,
    version: u64,
    body: Body,
}

impl Inode {
    /// What `stat` tells of it.
    pub(crate) fn attributes(&self, inode: InodeId) -> Attributes {
        Attributes {
            inode,
            kind: self.kind,
            mode: self.mode,
            links: self.links,
            uid: self.uid,
            gid: self.gid,
            device: self.device,
            size: self.size,
            stored: self.stored,
            accessed: self.accessed,
            modified: self.modified,
            changed: self.changed,
            created: self.created,
            version: self.version,
        }
    }

    pub(crate) fn encode(&self) -> Vec<u8> {
        let since = |time: Time| time.0.wrapping_sub(self.created.0);
        let stored = Stored {
            kind: self.kind,
            mode: self.mode,
            links: self.links,
            uid: self.uid,
            gid: self.gid,
            device: self.device,
            size: self.size,
            stored: self.stored,
            created: self.created.0,
            accessed: since(self.accessed),
            modified: since(self.modified),
            changed: since(self.changed),
            version: self.version,
            body: self.body.clone(),
        };
        postcard::to_stdvec(&stored).expect("memory is the only thing that can lack")
    }

    pub(crate) fn decode(bytes: &[u8]) -> Result<Inode, Damaged> {
        let stored: Stored = postcard::from_bytes(bytes).map_err(|_| Damaged("inode record"))?;
        let at = |since: i64| Time(stored.created.wrapping_add(since));
        Ok(Inode {
            kind: stored.kind,
            mode: stored.mode,
            links: stored.links,
            uid: stored.uid,
            gid: stored.gid,
            device: stored.device,
            size: stored.size,
            stored: stored.stored,
            accessed: at(stored.accessed),
            modified: at(stored.modified),
            changed: at(stored.changed),
            created: Time(stored.created),
            version: stored.version,
            body: stored.body,
        })
    }

    /// A directory?
    pub(crate) fn is_directory(&self) -> bool {
        self.kind == Kind::Directory
    }

    /// Its content changed now.
    pub(crate) fn touch(&mut self, now: Time) {
        self.modified = now;
        self.change(now);
    }

    /// Something of it changed now, but not its content.
    pub(crate) fn change(&mut self, now: Time) {
        self.changed = now;
        self.version += 1;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_inode_comes_back_from_few_bytes() {
        let time = Time(1_767_225_600_000_000_000);
        let inode = Inode {
            kind: Kind::File,
            mode: 0o644,
            links: 1,
            uid: 1000,
            gid: 1000,
            device: 0,
            size: 17_000,
            stored: 17_000,
            accessed: time,
            modified: Time(time.0 + 5_000_000),
            changed: Time(time.0 + 5_000_000),
            created: time,
            version: 3,
            body: Body::Plain,
        };
        let bytes = inode.encode();
        assert!(bytes.len() < 50, "{} bytes", bytes.len());
        assert_eq!(Inode::decode(&bytes), Ok(inode));
        for at in 0..bytes.len() {
            let _ = Inode::decode(&bytes[..at]);
            let _ = Inode::decode(&bytes[at..]);
        }
    }
}
