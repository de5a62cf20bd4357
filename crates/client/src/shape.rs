//! Operations on the shape of files: truncate, allocate, punch, seek, copy. Awaits.

use protocol::id::InodeId;
use protocol::manager::CloneRange;

use crate::ClientError;
use crate::client::Client;

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
        let _ = (inode, allocate);
        Err(ClientError::Unsupported)
    }

    /// The next data or hole at or behind `offset`; [`ClientError::NothingThere`] at or behind the end.
    pub async fn seek(&self, inode: InodeId, offset: u64, kind: SeekKind) -> Result<u64, ClientError> {
        let _ = (inode, offset, kind);
        Err(ClientError::Unsupported)
    }

    /// `copy_file_range`: tells how many bytes were copied, fewer at the end of the source. No data moves where whole
    /// blocks are asked for.
    pub async fn copy_range(&self, range: CloneRange) -> Result<u64, ClientError> {
        let _ = range;
        Err(ClientError::Unsupported)
    }
}
