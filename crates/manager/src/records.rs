//! Records as operations speak of them: inodes, names and counters on top of a transaction's keys and values.

use protocol::address::LogAddress;
use protocol::file::{Kind, LINK_MAX, NAME_MAX};
use protocol::id::{InodeId, LogId, SlotId, StripeNumber};
use protocol::manager::ManagerError;
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};

use crate::encoding::Damaged;
use crate::entry::{Entry, cookies};
use crate::inode::Inode;
use crate::key;
use crate::transaction::{Stop, Transaction};

/// The first sequence that a slot gives out; 1 is the root's.
const SEQUENCE_FIRST: u64 = 2;
/// What an entry adds to its directory's size beside the name's bytes.
const ENTRY_SIZE: u64 = 32;

/// A slot's counters.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Head {
    pub(crate) sequence_next: u64,
    pub(crate) inodes: u64,
    pub(crate) bytes_live: u64,
}

/// A name found in its directory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Found {
    pub(crate) cookie: u64,
    pub(crate) inode: InodeId,
    pub(crate) kind: Kind,
}

/// A value's bytes.
pub(crate) fn encode<T: Serialize>(value: &T) -> Vec<u8> {
    postcard::to_stdvec(value).expect("memory is the only thing that can lack")
}

/// A value from its bytes.
pub(crate) fn decode<T: DeserializeOwned>(bytes: &[u8]) -> Result<T, Damaged> {
    postcard::from_bytes(bytes).map_err(|_| Damaged("record"))
}

/// Whether a directory may hold the name.
pub(crate) fn check_name(name: &[u8]) -> Result<(), ManagerError> {
    if name.len() > NAME_MAX {
        return Err(ManagerError::NameTooLong);
    }
    let bad = name.is_empty() || name == b"." || name == b".." || name.iter().any(|&byte| byte == b'/' || byte == 0);
    if bad { Err(ManagerError::Invalid("no name of a file".into())) } else { Ok(()) }
}

impl Transaction<'_> {
    /// An inode that must exist.
    pub(crate) fn inode(&self, inode: InodeId) -> Result<Inode, Stop> {
        self.inode_if_any(inode)?.ok_or(Stop::Refused(ManagerError::Stale))
    }

    /// An inode, if it exists.
    pub(crate) fn inode_if_any(&self, inode: InodeId) -> Result<Option<Inode>, Stop> {
        let value = self.value(inode.slot(), &key::inode(inode))?;
        Ok(value.map(Inode::decode).transpose()?)
    }

    /// A directory that must exist.
    pub(crate) fn directory(&self, inode: InodeId) -> Result<Inode, Stop> {
        let record = self.inode(inode)?;
        if record.is_directory() { Ok(record) } else { Err(ManagerError::NotDirectory.into()) }
    }

    /// A regular file that must exist.
    pub(crate) fn file(&self, inode: InodeId) -> Result<Inode, Stop> {
        let record = self.inode(inode)?;
        match record.kind {
            Kind::File => Ok(record),
            Kind::Directory => Err(ManagerError::IsDirectory.into()),
            _ => Err(ManagerError::Invalid("not a regular file".into()).into()),
        }
    }

    /// Puts an inode's record.
    pub(crate) fn put_inode(&mut self, inode: InodeId, record: &Inode) -> Result<(), Stop> {
        self.put(inode.slot(), key::inode(inode), record.encode())
    }

    /// What a name stands for.
    pub(crate) fn find(&self, directory: InodeId, name: &[u8]) -> Result<Option<Found>, Stop> {
        let (first, last) = cookies(name);
        let end = key::entry(directory, last + 1);
        let mut from = key::entry(directory, first);
        while let Some((at, value)) = self.next(directory.slot(), &(from, end.clone()))? {
            let (cookie, entry) = (key::rest_number(at), Entry::decode(value)?);
            if entry.name == name {
                return Ok(Some(Found { cookie, inode: entry.inode, kind: entry.kind }));
            }
            from = key::entry(directory, cookie + 1);
        }
        Ok(None)
    }

    /// A name that must be there.
    pub(crate) fn found(&self, directory: InodeId, name: &[u8]) -> Result<Found, Stop> {
        self.find(directory, name)?.ok_or(Stop::Refused(ManagerError::NotFound))
    }

    /// Adds a name that is not there, at the first free cookie of its hash. The directory counts it.
    pub(crate) fn add_name(&mut self, directory: InodeId, name: &[u8], to: (InodeId, Kind)) -> Result<(), Stop> {
        let mut record = self.directory(directory)?;
        if record.links == 0 {
            return Err(ManagerError::NotFound.into());
        }
        let (mut cookie, last) = cookies(name);
        while self.value(directory.slot(), &key::entry(directory, cookie))?.is_some() {
            if cookie == last {
                return Err(ManagerError::NoRoom.into());
            }
            cookie += 1;
        }
        self.put_entry(directory, cookie, name, to)?;
        record.size += ENTRY_SIZE + name.len() as u64;
        if to.1 == Kind::Directory {
            record.links =
                record.links.checked_add(1).filter(|&links| links <= LINK_MAX).ok_or(ManagerError::TooManyLinks)?;
        }
        record.touch(self.now());
        self.put_inode(directory, &record)
    }

    /// Removes a name that is there.
    pub(crate) fn remove_name(&mut self, directory: InodeId, name: &[u8], found: Found) -> Result<(), Stop> {
        let mut record = self.directory(directory)?;
        self.remove(directory.slot(), key::entry(directory, found.cookie))?;
        record.size = record.size.saturating_sub(ENTRY_SIZE + name.len() as u64);
        if found.kind == Kind::Directory {
            record.links -= 1;
        }
        record.touch(self.now());
        self.put_inode(directory, &record)
    }

    /// Lets a name that is there stand for something else, at the same place of the listing.
    pub(crate) fn replace_name(
        &mut self,
        directory: InodeId,
        name: &[u8],
        found: Found,
        to: (InodeId, Kind),
    ) -> Result<(), Stop> {
        let mut record = self.directory(directory)?;
        self.put_entry(directory, found.cookie, name, to)?;
        record.links -= u32::from(found.kind == Kind::Directory);
        record.links += u32::from(to.1 == Kind::Directory);
        record.touch(self.now());
        self.put_inode(directory, &record)
    }

    /// Whether a directory has no names.
    pub(crate) fn is_empty_directory(&self, directory: InodeId) -> Result<bool, Stop> {
        Ok(self.next(directory.slot(), &key::entries_behind(directory, 0))?.is_none())
    }

    /// The next inode number of a slot, counted as taken.
    pub(crate) fn allocate(&mut self, slot: SlotId) -> Result<InodeId, Stop> {
        let mut head = self.head(slot)?;
        let inode = InodeId::new(slot, head.sequence_next);
        head.sequence_next += 1;
        head.inodes += 1;
        self.put_head(slot, head)?;
        Ok(inode)
    }

    /// A slot's counters.
    pub(crate) fn head(&self, slot: SlotId) -> Result<Head, Stop> {
        match self.value(slot, &key::head())? {
            Some(value) => Ok(decode(value)?),
            None => Ok(Head { sequence_next: SEQUENCE_FIRST, inodes: 0, bytes_live: 0 }),
        }
    }

    /// Sets a slot's counters.
    pub(crate) fn put_head(&mut self, slot: SlotId, head: Head) -> Result<(), Stop> {
        self.put(slot, key::head(), encode(&head))
    }

    /// Live bytes that a slot has in a stripe.
    pub(crate) fn live(&self, slot: SlotId, log: LogId, stripe: StripeNumber) -> Result<u64, Stop> {
        Ok(self.value(slot, &key::live(log, stripe))?.map(decode).transpose()?.unwrap_or(0))
    }

    /// The bytes at `address` came to live in `slot`.
    pub(crate) fn born(&mut self, slot: SlotId, address: LogAddress) -> Result<(), Stop> {
        let live = self.live(slot, address.log, address.stripe)? + u64::from(address.length);
        self.put(slot, key::live(address.log, address.stripe), encode(&live))?;
        let mut head = self.head(slot)?;
        head.bytes_live += u64::from(address.length);
        self.put_head(slot, head)
    }

    /// The bytes at `address`, which lived in `slot`, are dead.
    pub(crate) fn died(&mut self, slot: SlotId, address: LogAddress) -> Result<(), Stop> {
        let (key, length) = (key::live(address.log, address.stripe), u64::from(address.length));
        let live = self.live(slot, address.log, address.stripe)?;
        let left = live.checked_sub(length).ok_or(Damaged("live count: less than its extents"))?;
        if left == 0 {
            self.remove(slot, key)?;
        } else {
            self.put(slot, key, encode(&left))?;
        }
        let mut head = self.head(slot)?;
        head.bytes_live = head.bytes_live.checked_sub(length).ok_or(Damaged("live count of the slot"))?;
        self.put_head(slot, head)
    }

    fn put_entry(&mut self, directory: InodeId, cookie: u64, name: &[u8], to: (InodeId, Kind)) -> Result<(), Stop> {
        let entry = Entry { kind: to.1, inode: to.0, name };
        self.put(directory.slot(), key::entry(directory, cookie), entry.encode())
    }
}
