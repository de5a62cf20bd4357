//! `stat` and `chmod`. Awaits.

use protocol::file::{Attributes, SetAttributes};
use protocol::id::InodeId;

use crate::ClientError;
use crate::client::Client;

impl Client {
    /// `stat`: what the manager knows, with this client's unwritten changes over it.
    pub async fn attributes(&self, inode: InodeId) -> Result<Attributes, ClientError> {
        let _ = inode;
        Err(ClientError::Unsupported)
    }

    /// `chmod`, `chown`, `utimens`, `truncate`, any of them at once. Answers what is then true.
    pub async fn set_attributes(&self, inode: InodeId, set: SetAttributes) -> Result<Attributes, ClientError> {
        let _ = (inode, set);
        Err(ClientError::Unsupported)
    }
}
