//! Open files. Awaits.

use protocol::file::Attributes;
use protocol::id::InodeId;

use crate::ClientError;
use crate::client::Client;

impl Client {
    /// Opens a file that exists; counted, so that each call wants its [`Client::close`]. The manager hears of the first.
    pub async fn open(&self, inode: InodeId) -> Result<Attributes, ClientError> {
        let _ = inode;
        Err(ClientError::Unsupported)
    }

    /// Gives back one open. The manager hears of the last; what is unwritten is written in the background.
    pub async fn close(&self, inode: InodeId) {
        let _ = inode;
    }
}
