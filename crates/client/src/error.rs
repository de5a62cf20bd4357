//! What can go wrong, by what the caller must do about it. The faces choose the errno.

use log::{LogError, ReadError};
use protocol::manager::ManagerError;

use crate::journals::Lost;

/// Why the client did not do as asked.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ClientError {
    /// The manager refused: the operation makes no sense on the name space as it is.
    #[error(transparent)]
    Manager(#[from] ManagerError),
    /// No room for the bytes (`ENOSPC`). Nothing that was accepted before is lost.
    #[error("no room is left for file data")]
    NoRoom,
    /// The file would be too large (`EFBIG`).
    #[error("the file would be too large")]
    FileTooLarge,
    /// There is neither data nor a hole behind the offset (`ENXIO`).
    #[error("nothing lies behind this offset")]
    NothingThere,
    /// Not done for this kind of inode, or not at all (`EOPNOTSUPP`).
    #[error("not supported")]
    Unsupported,
    /// The arguments contradict each other (`EINVAL`).
    #[error("invalid argument")]
    Invalid,
    /// So many calls wait for locks already that another one may not (`ENOLCK`).
    #[error("too many calls wait for locks")]
    NoLocks,
    /// The client's own log cannot be written (`EIO`).
    #[error("the client's log failed: {0}")]
    Log(LogError),
    /// Bytes cannot be read: too few targets hold them (`EIO`).
    #[error(transparent)]
    Read(#[from] ReadError),
    /// No manager answered for so long that the call was given up (`EIO`). Whether it took effect is unknown.
    #[error("no manager answers: {0}")]
    Unreachable(String),
    /// A part answered with something that is no answer to the question (`EIO`).
    #[error("the answer does not belong to the question: {0}")]
    Foreign(&'static str),
    /// Names or attributes that were changed here, and not fsynced, are lost: more machines lost what they had in memory than
    /// redundancy makes up for (`EIO`).
    #[error("what was changed here and not yet fsynced is lost: too many machines lost their power at once")]
    Lost,
    /// The lease of this machine is lost, and with it what was written here and not fsynced (`ENOTCONN`).
    #[error("this machine was cut off for so long that others took over; what it had fsynced is safe")]
    Expelled,
    /// The client was stopped (`EIO`).
    #[error("the client was stopped")]
    Stopped,
}

impl From<Lost> for ClientError {
    fn from(_: Lost) -> Self {
        ClientError::Lost
    }
}

impl From<LogError> for ClientError {
    fn from(error: LogError) -> Self {
        match error {
            LogError::Full => ClientError::NoRoom,
            error => ClientError::Log(error),
        }
    }
}
