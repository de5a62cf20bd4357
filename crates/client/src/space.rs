//! How many bytes still fit. Decides, never awaits.

use crate::ClientError;
use crate::client::Client;

/// `statfs`, in bytes after redundancy: what can really be written.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub struct Statfs {
    /// Bytes of file data that fit in all.
    pub bytes_total: u64,
    /// Bytes that are free, those only cleaners and journals may take included.
    pub bytes_free: u64,
    /// Bytes that programs can still write.
    pub bytes_available: u64,
    /// Inodes that exist or could.
    pub inodes_total: u64,
    /// Inodes that could be made.
    pub inodes_free: u64,
}

impl Client {
    /// `statfs`.
    pub async fn statfs(&self) -> Result<Statfs, ClientError> {
        Err(ClientError::Unsupported)
    }
}
