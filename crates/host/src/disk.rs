//! A target's disk, as a part sees it: a few named byte spaces that can be read, written and synced.
//!
//! What a world promises, and nothing more:
//! 1. A read returns what the last finished write to each byte wrote, whether synced or not, until the machine stops.
//! 2. [`File::sync`] that returned `Ok` makes durable every write to that file which had finished when it was called.
//! 3. When the machine stops, an unsynced write may survive whole, in part (by sectors of 512 bytes), or not at all,
//!    in any order with other unsynced writes. When only the daemon stops, everything that finished survives.
//! 4. Bytes never written read as zero. Sizes are durable with the sync that covers the write that made them.
//! 5. After a failed sync nothing is known about the writes it covered.
//! 6. [`File::write_durably`] that returned `Ok` made durable what it wrote, and says nothing of other writes. It is for whole
//!    sectors of what was written and synced before, of which nobody writes any but durably meanwhile. One that failed, or
//!    was cut short, is as an unsynced write.

use std::fmt;
use std::sync::Arc;

use bytes::Bytes;

use crate::BoxFuture;
use crate::shadow::Shadow;

/// Why a disk did not do as asked.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum DiskError {
    /// The disk has no room for this write. Nothing was changed that was not in the written range.
    #[error("the disk is full")]
    Full,
    /// The disk is read-only. Nothing was changed.
    #[error("the disk is read-only")]
    ReadOnly,
    /// The disk is gone or answers with errors: the target has failed.
    #[error("the disk failed: {0}")]
    Failed(String),
}

/// What durable writes are aligned to, in bytes: what any disk writes whole or not at all.
pub const SECTOR: usize = 512;

/// The most bytes that are written durably at once.
pub const DURABLE_MAX: usize = 1 << 20;

/// How much a disk holds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct DiskUsage {
    /// Bytes that may be stored in all, by the disk's size or the limit set for the target.
    pub bytes_total: u64,
    /// Bytes that can still be written: what the underlying disk has free, which others may share.
    pub bytes_free: u64,
    /// Whether other targets count with a share of the same room.
    pub is_shared: bool,
}

/// What a world implements for one target.
pub trait StoredDisk: Send + Sync {
    /// Opens the byte space `name`, which is empty if it never was written. Names are short and fixed in code.
    fn open(&self, name: &'static str) -> Result<Arc<dyn StoredFile>, DiskError>;
    /// How full the disk is.
    fn usage(&self) -> Result<DiskUsage, DiskError>;
}

/// What a world implements for one byte space. Offsets and lengths are in bytes.
pub trait StoredFile: Send + Sync {
    /// Reads `length` bytes; short only at the end of the space.
    fn read(&self, offset: u64, length: usize) -> BoxFuture<'_, Result<Bytes, DiskError>>;
    /// Writes the parts one after the other from `offset`.
    fn write(&self, offset: u64, parts: Vec<Bytes>) -> BoxFuture<'_, Result<(), DiskError>>;
    /// Writes whole sectors anew, durably; [`DURABLE_MAX`] bytes at most.
    fn write_durably(&self, offset: u64, parts: Vec<Bytes>) -> BoxFuture<'_, Result<(), DiskError>> {
        Box::pin(async move {
            self.write(offset, parts).await?;
            self.sync().await
        })
    }
    /// Makes every finished write durable.
    fn sync(&self) -> BoxFuture<'_, Result<(), DiskError>>;
    /// Reserves room for a range, so that writes into it need no new allocation. Content stays as it is.
    fn reserve(&self, offset: u64, length: u64) -> BoxFuture<'_, Result<(), DiskError>>;
    /// Gives the room of a range back; it reads as zero from then on, or after a crash as before.
    fn discard(&self, offset: u64, length: u64) -> BoxFuture<'_, Result<(), DiskError>>;
    /// The end of the last written byte.
    fn size(&self) -> Result<u64, DiskError>;
}

/// One target's disk.
#[derive(Clone)]
pub struct Disk(Arc<dyn StoredDisk>);

impl Disk {
    /// A handle on what a world stores.
    pub fn new(stored: Arc<dyn StoredDisk>) -> Self {
        Disk(stored)
    }

    /// Opens the byte space `name`.
    pub fn open(&self, name: &'static str) -> Result<File, DiskError> {
        self.0.open(name).map(File)
    }

    /// How full the disk is.
    pub fn usage(&self) -> Result<DiskUsage, DiskError> {
        self.0.usage()
    }

    /// The same disk, to be looked at only: what is written to the shadow stays in memory.
    pub fn shadow(&self) -> Disk {
        Shadow::of(self.clone())
    }
}

impl fmt::Debug for Disk {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Disk")
    }
}

/// One byte space of a disk.
#[derive(Clone)]
pub struct File(Arc<dyn StoredFile>);

impl File {
    /// Reads `length` bytes at `offset`; short only at the end of the space.
    pub async fn read(&self, offset: u64, length: usize) -> Result<Bytes, DiskError> {
        let bytes = self.0.read(offset, length).await?;
        assert!(bytes.len() <= length, "a disk returned more than was asked");
        Ok(bytes)
    }

    /// Writes `parts` one after the other from `offset`.
    pub async fn write(&self, offset: u64, parts: Vec<Bytes>) -> Result<(), DiskError> {
        self.0.write(offset, parts).await
    }

    /// Writes whole sectors anew, durably: cheaper than a write and a sync, and for these alone (6 above).
    pub async fn write_durably(&self, offset: u64, parts: Vec<Bytes>) -> Result<(), DiskError> {
        let length: usize = parts.iter().map(Bytes::len).sum();
        assert!(
            offset.is_multiple_of(SECTOR as u64) && length.is_multiple_of(SECTOR),
            "whole sectors are written durably"
        );
        assert!(length <= DURABLE_MAX, "what is written durably is small");
        self.0.write_durably(offset, parts).await
    }

    /// Makes every finished write durable.
    pub async fn sync(&self) -> Result<(), DiskError> {
        self.0.sync().await
    }

    /// Reserves room for a range.
    pub async fn reserve(&self, offset: u64, length: u64) -> Result<(), DiskError> {
        self.0.reserve(offset, length).await
    }

    /// Gives the room of a range back.
    pub async fn discard(&self, offset: u64, length: u64) -> Result<(), DiskError> {
        self.0.discard(offset, length).await
    }

    /// The end of the last written byte.
    pub fn size(&self) -> Result<u64, DiskError> {
        self.0.size()
    }
}

impl fmt::Debug for File {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("File")
    }
}
