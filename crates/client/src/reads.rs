//! Reading. Awaits.

use bytes::Bytes;
use protocol::id::InodeId;

use crate::ClientError;
use crate::client::Client;

impl Client {
    /// The bytes from `offset`, in pieces, `length` in all or up to the end of the file.
    pub async fn read(&self, inode: InodeId, offset: u64, length: u32) -> Result<Vec<Bytes>, ClientError> {
        let _ = (inode, offset, length);
        Err(ClientError::Unsupported)
    }
}
