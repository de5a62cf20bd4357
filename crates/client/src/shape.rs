//! Operations on the shape of files: truncate, allocate, punch, seek, copy. Awaits.

use std::ops::Range;

use protocol::file::FILE_SIZE_MAX;
use protocol::id::InodeId;
use protocol::manager::{CloneRange, ManagerError, ManagerRequest};
use protocol::token::TokenMode;

use crate::ClientError;
use crate::client::{Client, Inner, lock};
use crate::file::File;
use crate::opens::OpenFile;
use crate::whole::whole;
use crate::writes::WriteAt;

const BLOCK: u64 = 4096;
/// Fewer bytes are copied faster than shared: sharing waits until managers know everything about both files.
const CLONE_MIN: u64 = 64 << 10;
/// So many bytes are copied by one call; the caller asks again for the rest.
const COPY_MAX: u64 = 16 << 20;
/// How often two tokens are tried for together.
const PIN_TRIES: u32 = 20;
/// So many bytes are copied at once.
const COPY_STEP: u64 = 1 << 20;

/// What `fallocate` does with a range. Collapsing and inserting are not done: `EOPNOTSUPP`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum AllocateMode {
    /// Room for it; the file grows to hold it.
    Grow,
    /// Room for it; the size stays.
    KeepSize,
    /// Becomes a hole; the size stays.
    Punch,
    /// Reads as zeros; the file grows to hold it.
    Zero,
    /// Reads as zeros; the size stays.
    ZeroKeepSize,
}

/// A `fallocate`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Allocate {
    /// What to do.
    pub mode: AllocateMode,
    /// From here.
    pub offset: u64,
    /// So many bytes.
    pub length: u64,
}

/// What `lseek` looks for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SeekKind {
    /// `SEEK_DATA`.
    Data,
    /// `SEEK_HOLE`; every file ends in one.
    Hole,
}

impl Client {
    /// `fallocate`.
    pub async fn allocate(&self, inode: InodeId, allocate: Allocate) -> Result<(), ClientError> {
        let inner = self.0.clone();
        whole(&self.0.host, async move { inner.allocate(inode, allocate).await }).await
    }

    /// The next data or hole at or behind `offset`; [`ClientError::NothingThere`] at or behind the end.
    pub async fn seek(&self, inode: InodeId, offset: u64, kind: SeekKind) -> Result<u64, ClientError> {
        let (file, _pin) = self.0.known(inode, TokenMode::Read).await?;
        loop {
            let found = lock(&file.state).known().seek(offset, kind);
            match found {
                Ok(place) => {
                    self.0.confirm().await?;
                    return place.ok_or(ClientError::NothingThere);
                }
                Err(missing) => self.0.learn_map(&file, missing).await?,
            }
        }
    }

    /// `copy_file_range`: tells how many bytes were copied, fewer at the end of the source or when they are many. No data
    /// moves where whole blocks are asked for.
    pub async fn copy_range(&self, mut range: CloneRange) -> Result<u64, ClientError> {
        let size = {
            let (source, _pin) = self.0.known(range.source, TokenMode::Read).await?;
            lock(&source.state).known().size()
        };
        range.length = range.length.min(size.saturating_sub(range.source_offset));
        if range.length == 0 {
            return Ok(0);
        }
        let apart = range.source_offset.abs_diff(range.target_offset);
        if range.source == range.target && apart < range.length {
            return Err(ClientError::Invalid);
        }
        if is_whole_blocks(&range, size) {
            let inner = self.0.clone();
            let cloned = whole(&self.0.host, async move { inner.clone_pinned(range).await }).await;
            match cloned {
                Err(ClientError::Manager(ManagerError::Unsupported | ManagerError::Invalid(_))) => {}
                Ok(()) => return Ok(range.length),
                Err(error) => return Err(error),
            }
        }
        self.copy_bytes(range).await
    }

    async fn copy_bytes(&self, range: CloneRange) -> Result<u64, ClientError> {
        let length = range.length.min(COPY_MAX);
        let mut copied = 0;
        while copied < length {
            let step = (length - copied).min(COPY_STEP) as u32;
            let pieces = self.read(range.source, range.source_offset + copied, step).await?;
            if pieces.is_empty() {
                break;
            }
            for piece in pieces {
                let count = piece.len() as u64;
                match self.write(range.target, WriteAt::Offset(range.target_offset + copied), piece).await {
                    Ok(_) => copied += count,
                    Err(_) if copied > 0 => return Ok(copied),
                    Err(error) => return Err(error),
                }
            }
        }
        Ok(copied)
    }
}

/// Whether a manager can share the bytes: sharing parts of blocks would cost more than copying them.
fn is_whole_blocks(range: &CloneRange, size: u64) -> bool {
    let ends_at_block = range.length.is_multiple_of(BLOCK) || range.source_offset + range.length == size;
    range.length >= CLONE_MIN
        && range.source_offset.is_multiple_of(BLOCK)
        && range.target_offset.is_multiple_of(BLOCK)
        && ends_at_block
}

impl Inner {
    async fn allocate(&self, inode: InodeId, allocate: Allocate) -> Result<(), ClientError> {
        let Allocate { mode, offset, length } = allocate;
        let end = offset.checked_add(length).filter(|&end| end <= FILE_SIZE_MAX).ok_or(ClientError::FileTooLarge)?;
        if length == 0 {
            return Err(ClientError::Invalid);
        }
        let (file, _pin) = self.known(inode, TokenMode::Write).await?;
        if matches!(mode, AllocateMode::Grow | AllocateMode::KeepSize) {
            self.fits(length).await?;
        } else {
            self.punch(&file, offset..end).await?;
        }
        if matches!(mode, AllocateMode::Grow | AllocateMode::Zero) {
            let _shape = file.shape.write().await;
            self.grow(&file, end).await?;
        }
        Ok(())
    }

    /// A log gives no room to bytes that do not exist, so room cannot be set aside: this says whether there is any.
    async fn fits(&self, bytes: u64) -> Result<(), ClientError> {
        if self.budget.fits(bytes) || self.await_room(bytes).await { Ok(()) } else { Err(ClientError::NoRoom) }
    }

    /// The caller holds the shape.
    async fn grow(&self, file: &OpenFile, size: u64) -> Result<(), ClientError> {
        let inode = file.inode;
        self.change(inode, &[inode], ManagerRequest::Grow { inode, size }).await?;
        lock(&file.state).known().grown_to(size);
        Ok(())
    }

    async fn punch(&self, file: &OpenFile, range: Range<u64>) -> Result<(), ClientError> {
        let _shape = file.shape.write().await;
        self.applied(file.recorded()).await?;
        self.settle(file);
        // Dirty bytes of the range are dropped, and with the last ones the only claim to the size would go.
        let (size, is_settled) = {
            let mut state = lock(&file.state);
            (state.known().size(), state.known().is_settled())
        };
        if !is_settled {
            self.grow(file, size).await?;
        }
        let (inode, offset, length) = (file.inode, range.start, range.end - range.start);
        self.change(inode, &[inode], ManagerRequest::Punch { inode, offset, length }).await?;
        self.reshaped(file, |known| known.punched(range));
        Ok(())
    }

    /// As [`Inner::clone_range`], under the tokens of both files. No call waits for one while it has the other: when the two
    /// cannot be had together for long, the bytes are copied by hand.
    async fn clone_pinned(&self, range: CloneRange) -> Result<(), ClientError> {
        for _ in 0..PIN_TRIES {
            let (source, pin) = self.known(range.source, TokenMode::Read).await?;
            if range.source == range.target {
                drop(pin);
                let (file, _pin) = self.known(range.target, TokenMode::Write).await?;
                return self.clone_range(&file, &file, range).await;
            }
            drop(pin);
            let (target, _pin) = self.known(range.target, TokenMode::Write).await?;
            let source_pin = self.try_pin(range.source);
            if source_pin.is_some() && lock(&source.state).file.is_some() {
                return self.clone_range(&source, &target, range).await;
            }
        }
        Err(ManagerError::Unsupported.into())
    }

    /// Lets a manager share bytes of one file with another, once it knows everything about both.
    async fn clone_range(&self, source: &OpenFile, target: &OpenFile, range: CloneRange) -> Result<(), ClientError> {
        for file in [source, target] {
            self.write_out(file).await?;
        }
        // In one order for all, so that two copies never wait for each other.
        let (first, second) = if source.inode <= target.inode { (source, target) } else { (target, source) };
        let _first = first.shape.write().await;
        let _second = if first.inode == second.inode { None } else { Some(second.shape.write().await) };
        for file in [source, target] {
            // Written again meanwhile: those bytes come after the copy, or are copied by hand.
            if !lock(&file.state).known().is_recorded() {
                return Err(ManagerError::Unsupported.into());
            }
            self.applied(file.recorded()).await?;
            self.settle(file);
        }
        let request = ManagerRequest::CloneRange(range);
        self.change(range.target, &[range.target, range.source], request).await?;
        let end = range.target_offset + range.length;
        self.reshaped(target, |known| known.replaced(range.target_offset..end));
        Ok(())
    }

    /// Does to a file what a manager did, and gives back what is no longer dirty.
    fn reshaped(&self, file: &OpenFile, change: impl FnOnce(&mut File)) {
        let mut state = lock(&file.state);
        let known = state.known();
        let before = known.weight();
        change(known);
        self.budget.change(before, known.weight());
    }
}
