//! Writing into the cache. Awaits.

use bytes::Bytes;
use protocol::id::InodeId;

use crate::ClientError;
use crate::client::Client;

/// Where a write goes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum WriteAt {
    /// There.
    Offset(u64),
    /// Behind the last byte, wherever that is by then (`O_APPEND`).
    End,
}

impl Client {
    /// Writes all of `bytes`, which are kept by reference when they are many.
    pub async fn write(&self, inode: InodeId, at: WriteAt, bytes: Bytes) -> Result<(), ClientError> {
        let _ = (inode, at, bytes);
        Err(ClientError::Unsupported)
    }
}
