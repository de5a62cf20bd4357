//! From the cache to the log and the managers. Awaits.

use protocol::id::InodeId;

use crate::ClientError;
use crate::client::Client;

impl Client {
    /// What `close(2)` waits for: reports, once, what went wrong in the background. Writes nothing.
    pub async fn flush(&self, inode: InodeId) -> Result<(), ClientError> {
        let _ = inode;
        Err(ClientError::Unsupported)
    }

    /// `fsync`, or `fdatasync` with `data_only`: returns when what was written survives a power loss of all machines.
    pub async fn fsync(&self, inode: InodeId, data_only: bool) -> Result<(), ClientError> {
        let _ = (inode, data_only);
        Err(ClientError::Unsupported)
    }

    /// `fsync` of a directory: its names survive a power loss of all machines.
    pub async fn fsync_directory(&self, directory: InodeId) -> Result<(), ClientError> {
        let _ = directory;
        Err(ClientError::Unsupported)
    }

    /// `sync`: everything that this client changed survives a power loss of all machines.
    pub async fn sync_all(&self) -> Result<(), ClientError> {
        Err(ClientError::Unsupported)
    }
}
