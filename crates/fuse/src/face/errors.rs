//! Which error number a program sees. Errno is chosen here and nowhere else (STYLE, errors).

use client::ClientError;
use protocol::manager::ManagerError;
use tracing::warn;

use crate::Errno;

impl From<ClientError> for Errno {
    fn from(error: ClientError) -> Self {
        match error {
            ClientError::Manager(error) => error.into(),
            ClientError::NoRoom => Errno::ENOSPC,
            ClientError::FileTooLarge => Errno::EFBIG,
            ClientError::NothingThere => Errno::ENXIO,
            ClientError::Unsupported => Errno::EOPNOTSUPP,
            ClientError::Invalid => Errno::EINVAL,
            ClientError::NoLocks => Errno::ENOLCK,
            // As on a mount whose daemon has ended, which this one is about to do.
            ClientError::Expelled => Errno::ENOTCONN,
            // Nothing that a program could do about it, and nothing that it should take for an answer. It has but a number: the
            // daemon's log says why.
            ClientError::Log(_)
            | ClientError::Read(_)
            | ClientError::Unreachable(_)
            | ClientError::Foreign(_)
            | ClientError::Lost
            | ClientError::Stopped => {
                warn!(%error, "a program was told EIO");
                Errno::EIO
            }
        }
    }
}

impl From<ManagerError> for Errno {
    fn from(error: ManagerError) -> Self {
        match error {
            ManagerError::NotFound => Errno::ENOENT,
            ManagerError::Stale => Errno::ESTALE,
            ManagerError::Exists => Errno::EEXIST,
            ManagerError::NotDirectory => Errno::ENOTDIR,
            ManagerError::IsDirectory => Errno::EISDIR,
            ManagerError::NotEmpty => Errno::ENOTEMPTY,
            ManagerError::NotPermitted => Errno::EPERM,
            ManagerError::NameTooLong => Errno::ENAMETOOLONG,
            ManagerError::TooManyLinks => Errno::EMLINK,
            ManagerError::FileTooLarge => Errno::EFBIG,
            ManagerError::Invalid(_) => Errno::EINVAL,
            ManagerError::NoAttribute => Errno::ENODATA,
            ManagerError::TooLarge => Errno::E2BIG,
            ManagerError::Locked => Errno::EAGAIN,
            ManagerError::Deadlock => Errno::EDEADLK,
            ManagerError::Interrupted => Errno::EINTR,
            ManagerError::NoRoom => Errno::ENOSPC,
            ManagerError::Unsupported => Errno::EOPNOTSUPP,
            // The client asks the next manager by itself; what comes through has found none in its patience.
            ManagerError::NotMine | ManagerError::Held | ManagerError::Failed(_) => Errno::EIO,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn programs_see_the_numbers_that_posix_names() {
        let table = [
            (ManagerError::NotFound, "ENOENT", 2),
            (ManagerError::Exists, "EEXIST", 17),
            (ManagerError::NotDirectory, "ENOTDIR", 20),
            (ManagerError::IsDirectory, "EISDIR", 21),
            (ManagerError::NotEmpty, "ENOTEMPTY", 39),
            (ManagerError::NotPermitted, "EPERM", 1),
            (ManagerError::NameTooLong, "ENAMETOOLONG", 36),
            (ManagerError::TooManyLinks, "EMLINK", 31),
            (ManagerError::NoAttribute, "ENODATA", 61),
            (ManagerError::TooLarge, "E2BIG", 7),
            (ManagerError::Locked, "EAGAIN", 11),
            (ManagerError::Deadlock, "EDEADLK", 35),
            (ManagerError::Stale, "ESTALE", 116),
            (ManagerError::NotMine, "EIO", 5),
        ];
        for (error, name, number) in table {
            assert_eq!(Errno::from(ClientError::Manager(error)).number(), number, "{name}");
        }
        assert_eq!(Errno::from(ClientError::NoRoom).number(), 28);
        assert_eq!(Errno::from(ClientError::NothingThere).number(), 6);
        assert_eq!(Errno::from(ClientError::Stopped).number(), 5);
    }
}
