//! The error numbers a reply can carry: the generic Linux ones. Errno is chosen in the faces, nowhere else (STYLE).

/// A Linux error number, positive, below 512: the kernel refuses a reply with any other.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Errno(i32);

impl Errno {
    /// The error `number`, or `EIO` if the kernel would refuse that number.
    pub const fn new(number: i32) -> Self {
        if number > 0 && number < 512 { Self(number) } else { Self::EIO }
    }

    /// The positive number.
    pub const fn number(self) -> i32 {
        self.0
    }
}

macro_rules! errors {
    ($( $name:ident = $number:literal, $meaning:literal; )*) => {
        impl Errno {
            $( #[doc = $meaning] pub const $name: Errno = Errno($number); )*
        }
    };
}

errors! {
    EPERM = 1, "Operation not permitted, whoever asks.";
    ENOENT = 2, "No such name.";
    EINTR = 4, "A signal ended the wait.";
    EIO = 5, "The bytes cannot be had, or are lost.";
    ENXIO = 6, "Nothing there: SEEK_DATA behind the last data.";
    E2BIG = 7, "The value is longer than any may be.";
    EBADF = 9, "Not an open file.";
    EAGAIN = 11, "Not now: a lock is held.";
    ENOMEM = 12, "No memory.";
    EACCES = 13, "Permission denied.";
    EBUSY = 16, "In use: a mount point.";
    EEXIST = 17, "The name exists.";
    EXDEV = 18, "Across volumes.";
    ENODEV = 19, "No such device.";
    ENOTDIR = 20, "Not a directory.";
    EISDIR = 21, "A directory.";
    EINVAL = 22, "An argument makes no sense.";
    ENOTTY = 25, "No such ioctl.";
    EFBIG = 27, "Beyond the largest offset.";
    ENOSPC = 28, "No space.";
    ESPIPE = 29, "Cannot seek.";
    EROFS = 30, "Read-only.";
    EMLINK = 31, "Too many links.";
    ERANGE = 34, "The buffer is too small for the attribute.";
    EDEADLK = 35, "Waiting would be for ever.";
    ENAMETOOLONG = 36, "The name is too long.";
    ENOLCK = 37, "No locks to be had.";
    ENOSYS = 38, "Never implemented here: for most opcodes the kernel will not ask again.";
    ENOTEMPTY = 39, "The directory is not empty.";
    ELOOP = 40, "Too many symbolic links.";
    ENODATA = 61, "No such extended attribute.";
    EPROTO = 71, "The protocol is broken.";
    EOVERFLOW = 75, "Too large for the answer.";
    EOPNOTSUPP = 95, "Not supported for this file.";
    ENOTCONN = 107, "The daemon is gone, or has lost what it answered from.";
    ETIMEDOUT = 110, "No answer within the stated time.";
    ESTALE = 116, "The inode is gone.";
    EDQUOT = 122, "The quota is used up.";
}
