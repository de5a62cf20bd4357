//! A target in a directory: one file for each byte space.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use host::{Disk, DiskError, DiskUsage, StoredDisk, StoredFile};
use tokio::runtime::Handle;

use super::blocking::disk_error;
use super::open_file::OpenFile;
use super::waiters::Waiters;

/// A directory that holds a target.
pub struct Directory {
    path: PathBuf,
    room: Room,
    waiters: Waiters,
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
        Ok(Disk::new(Arc::new(Directory { path: path.to_owned(), room, waiters: Waiters::new(runtime) })))
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
        Ok(Arc::new(OpenFile::open(&path, 0, None, self.waiters.clone())?))
    }

    fn usage(&self) -> Result<DiskUsage, DiskError> {
        let stat = rustix::fs::statvfs(&self.path).map_err(|error| disk_error(&self.path.to_string_lossy(), error))?;
        let bytes_taken = self.bytes_taken();
        let beneath_free = stat.f_bavail * stat.f_frsize / self.room.sharers.max(1);
        let bytes_limit = if self.room.bytes_limit == 0 { u64::MAX } else { self.room.bytes_limit };
        let bytes_free = beneath_free.min(bytes_limit.saturating_sub(bytes_taken));
        let is_shared = self.room.sharers > 1;
        Ok(DiskUsage { bytes_total: bytes_taken + bytes_free, bytes_free, is_shared })
    }
}
