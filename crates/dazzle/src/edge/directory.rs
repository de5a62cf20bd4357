//! A target in a directory: one file for each byte space.

use std::io::{IoSlice, IoSliceMut};
use std::os::fd::OwnedFd;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use bytes::Bytes;
use host::{BoxFuture, Disk, DiskError, DiskUsage, StoredDisk, StoredFile};
use rustix::fs::{FallocateFlags, Mode, OFlags};
use rustix::io::{Errno, ReadWriteFlags};
use tokio::runtime::Handle;

use super::blocking::{self, WRITE_INLINE_MAX, disk_error};
use super::buffers::ReadBuffer;

/// A directory that holds a target.
pub struct Directory {
    path: PathBuf,
    room: Room,
    runtime: Handle,
}

/// How much of the file system beneath a target may take.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Room {
    /// At most so many bytes; 0 for all.
    pub bytes_limit: u64,
    /// How many targets lie in the same file system and share what it has free.
    pub sharers: u64,
}

impl Directory {
    /// The disk in the directory `path`, which must exist.
    pub fn disk(path: &Path, room: Room, runtime: Handle) -> Result<Disk, DiskError> {
        if !path.is_dir() {
            return Err(DiskError::Failed(format!("{} is not a directory", path.display())));
        }
        Ok(Disk::new(Arc::new(Directory { path: path.to_owned(), room, runtime })))
    }

    fn bytes_taken(&self) -> u64 {
        let Ok(entries) = std::fs::read_dir(&self.path) else { return 0 };
        let blocks = |entry: std::fs::DirEntry| {
            entry.metadata().map_or(0, |metadata| std::os::unix::fs::MetadataExt::blocks(&metadata))
        };
        entries.filter_map(Result::ok).map(blocks).sum::<u64>() * 512
    }
}

impl StoredDisk for Directory {
    fn open(&self, name: &'static str) -> Result<Arc<dyn StoredFile>, DiskError> {
        let path = self.path.join(name);
        Ok(Arc::new(OpenFile::open(&path, 0, None, self.runtime.clone())?))
    }

    fn usage(&self) -> Result<DiskUsage, DiskError> {
        let stat = rustix::fs::statvfs(&self.path).map_err(|error| disk_error(&self.path.to_string_lossy(), error))?;
        let bytes_taken = self.bytes_taken();
        let beneath_free = stat.f_bavail * stat.f_frsize / self.room.sharers.max(1);
        let bytes_limit = if self.room.bytes_limit == 0 { u64::MAX } else { self.room.bytes_limit };
        let bytes_free = beneath_free.min(bytes_limit.saturating_sub(bytes_taken));
        Ok(DiskUsage { bytes_total: bytes_taken + bytes_free, bytes_free })
    }
}

/// A range of an open file or device that is one byte space.
pub(super) struct OpenFile(Arc<Inner>);

struct Inner {
    file: OwnedFd,
    name: String,
    /// Where the space begins in the file.
    base: u64,
    /// Where it ends at the latest; `None` for a file that grows.
    bytes_max: Option<u64>,
    /// The end of the last written byte.
    size: AtomicU64,
    runtime: Handle,
}

impl OpenFile {
    pub(super) fn open(path: &Path, base: u64, bytes_max: Option<u64>, runtime: Handle) -> Result<Self, DiskError> {
        let name = path.display().to_string();
        let flags = if bytes_max.is_some() { OFlags::RDWR } else { OFlags::RDWR | OFlags::CREATE };
        let file = rustix::fs::open(path, flags | OFlags::CLOEXEC, Mode::RUSR | Mode::WUSR)
            .map_err(|error| disk_error(&name, error))?;
        let size = match bytes_max {
            Some(bytes) => bytes,
            None => rustix::fs::fstat(&file).map_err(|error| disk_error(&name, error))?.st_size as u64,
        };
        Ok(OpenFile(Arc::new(Inner { file, name, base, bytes_max, size: AtomicU64::new(size), runtime })))
    }
}

impl StoredFile for OpenFile {
    fn read(&self, offset: u64, length: usize) -> BoxFuture<'_, Result<Bytes, DiskError>> {
        Box::pin(async move {
            let length = self.0.within(offset, length);
            let mut buffer = ReadBuffer::new(length);
            let filled = self.0.read_cached(&mut buffer.bytes_mut()[..length], offset);
            if filled == length {
                return Ok(buffer.into_bytes(length));
            }
            let inner = self.0.clone();
            let rest = move || {
                let filled = inner.read_rest(&mut buffer.bytes_mut()[..length], offset, filled)?;
                Ok(buffer.into_bytes(filled))
            };
            blocking::wait_for(&self.0.runtime, rest).await
        })
    }

    fn write(&self, offset: u64, parts: Vec<Bytes>) -> BoxFuture<'_, Result<(), DiskError>> {
        Box::pin(async move {
            if parts.iter().map(Bytes::len).sum::<usize>() <= WRITE_INLINE_MAX {
                return self.0.write_all(offset, &parts);
            }
            let inner = self.0.clone();
            blocking::run_apart(&self.0.runtime, move || inner.write_all(offset, &parts)).await
        })
    }

    fn sync(&self) -> BoxFuture<'_, Result<(), DiskError>> {
        let inner = self.0.clone();
        Box::pin(async move {
            let runtime = inner.runtime.clone();
            let sync = move || rustix::fs::fdatasync(&inner.file).map_err(|error| inner.error(error));
            blocking::run_apart(&runtime, sync).await
        })
    }

    fn reserve(&self, offset: u64, length: u64) -> BoxFuture<'_, Result<(), DiskError>> {
        let inner = self.0.clone();
        Box::pin(async move {
            let runtime = inner.runtime.clone();
            blocking::run_apart(&runtime, move || inner.allocate(offset, length, FallocateFlags::KEEP_SIZE)).await
        })
    }

    fn discard(&self, offset: u64, length: u64) -> BoxFuture<'_, Result<(), DiskError>> {
        let inner = self.0.clone();
        let flags = FallocateFlags::PUNCH_HOLE | FallocateFlags::KEEP_SIZE;
        Box::pin(async move {
            let runtime = inner.runtime.clone();
            blocking::run_apart(&runtime, move || inner.allocate(offset, length, flags)).await
        })
    }

    fn size(&self) -> Result<u64, DiskError> {
        Ok(self.0.size.load(Ordering::Acquire))
    }
}

impl Inner {
    fn error(&self, error: Errno) -> DiskError {
        disk_error(&self.name, error)
    }

    /// How much of a read lies before the end.
    fn within(&self, offset: u64, length: usize) -> usize {
        let left = self.size.load(Ordering::Acquire).saturating_sub(offset);
        length.min(usize::try_from(left).unwrap_or(usize::MAX))
    }

    /// Reads what the page cache has, without waiting. Returns how much that was.
    fn read_cached(&self, buffer: &mut [u8], offset: u64) -> usize {
        let at = self.base + offset;
        // A refusal is no error: whoever may wait asks again.
        rustix::io::preadv2(&self.file, &mut [IoSliceMut::new(buffer)], at, ReadWriteFlags::NOWAIT).unwrap_or(0)
    }

    /// Reads what lies behind the first `filled` bytes. Returns how many there are then: fewer only at the end.
    fn read_rest(&self, buffer: &mut [u8], offset: u64, mut filled: usize) -> Result<usize, DiskError> {
        while filled < buffer.len() {
            match rustix::io::pread(&self.file, &mut buffer[filled..], self.base + offset + filled as u64) {
                Ok(0) => break,
                Ok(count) => filled += count,
                Err(Errno::INTR) => {}
                Err(error) => return Err(self.error(error)),
            }
        }
        Ok(filled)
    }

    fn write_all(&self, offset: u64, parts: &[Bytes]) -> Result<(), DiskError> {
        let length: usize = parts.iter().map(Bytes::len).sum();
        if self.bytes_max.is_some_and(|max| offset + length as u64 > max) {
            return Err(DiskError::Full);
        }
        let mut slices: Vec<_> = parts.iter().map(|part| IoSlice::new(part)).collect();
        let mut left = &mut slices[..];
        let mut at = self.base + offset;
        while !left.is_empty() {
            // The kernel takes at most 1,024 parts at once.
            let batch = left.len().min(1024);
            match rustix::io::pwritev(&self.file, &left[..batch], at) {
                Ok(count) => {
                    at += count as u64;
                    IoSlice::advance_slices(&mut left, count);
                }
                Err(Errno::INTR) => {}
                Err(error) => return Err(self.error(error)),
            }
        }
        self.size.fetch_max(offset + length as u64, Ordering::AcqRel);
        Ok(())
    }

    fn allocate(&self, offset: u64, length: u64, flags: FallocateFlags) -> Result<(), DiskError> {
        match rustix::fs::fallocate(&self.file, flags, self.base + offset, length) {
            // A device or a file system without the call simply keeps or takes the room later.
            Ok(()) | Err(Errno::OPNOTSUPP | Errno::NODEV) => Ok(()),
            Err(error) => Err(self.error(error)),
        }
    }
}
