//! Records as operations speak of them: inodes and counters on top of a transaction's keys and values.

use protocol::address::LogAddress;
use protocol::file::{Kind, NAME_MAX};
use protocol::id::{InodeId, LogId, SlotId, StripeNumber};
use protocol::manager::ManagerError;
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};

use crate::encoding::Damaged;
use crate::inode::Inode;
use crate::key;
use crate::transaction::{Stop, Transaction};

/// The first sequence that a slot gives out; 1 is the root's.
const SEQUENCE_FIRST: u64 = 2;

/// A slot's counters.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Head {
    pub(crate) sequence_next: u64,
    pub(crate) inodes: u64,
    pub(crate) bytes_live: u64,
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

    /// The next inode number of a slot, counted as taken.
    pub(crate) fn allocate(&mut self, slot: SlotId) -> Result<InodeId, Stop> {
        if let Some(number) = self.number(slot)? {
            return Ok(number);
        }
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

    /// The next inode number of a slot, which nobody else gets. It is not counted yet.
    pub(crate) fn reserve(&mut self, slot: SlotId) -> Result<InodeId, Stop> {
        let mut head = self.head(slot)?;
        let inode = InodeId::new(slot, head.sequence_next);
        head.sequence_next += 1;
        self.put_head(slot, head)?;
        Ok(inode)
    }

    /// One inode less in a slot.
    pub(crate) fn free_number(&mut self, slot: SlotId) -> Result<(), Stop> {
        if self.count_inodes(slot, -1) {
            return Ok(());
        }
        let mut head = self.head(slot)?;
        head.inodes = head.inodes.saturating_sub(1);
        self.put_head(slot, head)
    }

    /// Live bytes that a slot has in a stripe.
    pub(crate) fn live(&self, slot: SlotId, log: LogId, stripe: StripeNumber) -> Result<u64, Stop> {
        Ok(self.value(slot, &key::live(log, stripe))?.map(decode).transpose()?.unwrap_or(0))
    }

    /// The bytes at `address` came to live in `slot`.
    pub(crate) fn born(&mut self, slot: SlotId, address: LogAddress) -> Result<(), Stop> {
        if self.count_live(slot, (address.log, address.stripe), i64::from(address.length)) {
            return Ok(());
        }
        let live = self.live(slot, address.log, address.stripe)? + u64::from(address.length);
        self.put(slot, key::live(address.log, address.stripe), encode(&live))?;
        let mut head = self.head(slot)?;
        head.bytes_live += u64::from(address.length);
        self.put_head(slot, head)
    }

    /// The bytes at `address`, which lived in `slot`, are dead.
    pub(crate) fn died(&mut self, slot: SlotId, address: LogAddress) -> Result<(), Stop> {
        if self.count_live(slot, (address.log, address.stripe), -i64::from(address.length)) {
            return Ok(());
        }
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
}
