//! Between the kernel's words and the protocol's: kinds and modes, times, flags. Decides, never awaits.

use std::time::Duration;

use client::AllocateMode;
use protocol::file::{self, Kind};
use protocol::manager::{RenameMode, XattrMode};
use protocol::token::TokenMode;

use crate::Errno;
use crate::attributes::{Attributes, Device};
use crate::operation::{SetTime, Time};

/// How long the kernel may use a name, or the absence of one, without asking.
///
/// This is for directories in slots that the client holds whole: every change of a name there passes this kernel, which
/// brings its own caches along, so names could be valid for ever. They are not, so that whatever this overlooks heals by
/// itself; a lookup a minute costs nothing. Where others use the slot, names earn it (`kept_names`; DESIGN §6).
pub(crate) const NAME_VALID: Duration = Duration::from_secs(60);

/// How long the kernel may use attributes without asking. The same reasons hold, since the kernel itself drops what its
/// own calls change: size, blocks and times after a write, access times after a read, everything of a directory whose
/// names change, the change time after a removal or a rename.
const ATTRIBUTES_VALID: Duration = Duration::from_secs(60);

/// How long a kernel may use names and attributes that cannot be told to forget names (before Linux 6.16). Whoever gives a slot
/// up waits as long. The lease of the machine holds for all that time.
pub(crate) const SHORTLY_VALID: Duration = Duration::from_millis(500);

/// What programs should read and write at once, in bytes. Buffered writers (stdio) take it as the size of their buffer,
/// and every write costs a round trip to the daemon.
const BLOCK_SIZE: u32 = 64 << 10;

/// The unit of `st_blocks`, in bytes.
const STAT_BLOCK: u64 = 512;

const TYPE_MASK: u32 = 0o170_000;
const PERMISSION_MASK: u32 = 0o7777;
const SET_UID: u16 = 0o4000;
const SET_GID: u16 = 0o2000;
const GROUP_EXECUTES: u16 = 0o0010;

const NANOSECONDS: i64 = 1_000_000_000;

// Flags of open(2), in the generic encoding but for the one that ARM moved.
const ACCESS_MODE: u32 = 0o3;
const WRITE_ONLY: u32 = 0o1;
const APPEND: u32 = 0o2000;
const DATA_SYNC: u32 = 0o10_000;
const DIRECT: u32 = if cfg!(target_arch = "aarch64") { 0o200_000 } else { 0o40_000 };
const NO_ACCESS_TIME: u32 = 0o1_000_000;

/// Flags that a file is opened with.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct OpenFlags(pub(crate) u32);

impl OpenFlags {
    /// Opened for reading alone.
    pub(crate) fn only_reads(self) -> bool {
        self.0 & ACCESS_MODE == 0
    }

    /// What is likely to be done first.
    pub(crate) fn first_use(self) -> TokenMode {
        if self.0 & ACCESS_MODE == WRITE_ONLY { TokenMode::Write } else { TokenMode::Read }
    }

    /// Reads leave the access time alone.
    pub(crate) fn keeps_access_time(self) -> bool {
        self.0 & NO_ACCESS_TIME != 0
    }

    /// Each write goes behind the last byte. A large O_DIRECT write arrives as several requests side by side, of which
    /// only the kernel knows the order; it holds the inode's lock and knows the size while it sends them.
    pub(crate) fn appends(self) -> bool {
        self.0 & APPEND != 0 && self.0 & DIRECT == 0
    }

    /// Goes past the kernel's pages.
    pub(crate) fn is_direct(self) -> bool {
        self.0 & DIRECT != 0
    }

    /// What is written must be durable before the write returns: O_DSYNC, which is part of O_SYNC.
    pub(crate) fn syncs(self) -> bool {
        self.0 & DATA_SYNC != 0
    }
}

/// The type bits of a kind.
pub(crate) fn type_bits(kind: Kind) -> u32 {
    match kind {
        Kind::Pipe => 0o010_000,
        Kind::CharacterDevice => 0o020_000,
        Kind::Directory => 0o040_000,
        Kind::BlockDevice => 0o060_000,
        Kind::File => 0o100_000,
        Kind::Symlink => 0o120_000,
        Kind::Socket => 0o140_000,
    }
}

/// What `mknod` makes for a mode; no type at all means a file.
pub(crate) fn made_kind(mode: u32) -> Result<Kind, Errno> {
    match mode & TYPE_MASK {
        0 | 0o100_000 => Ok(Kind::File),
        0o010_000 => Ok(Kind::Pipe),
        0o020_000 => Ok(Kind::CharacterDevice),
        0o060_000 => Ok(Kind::BlockDevice),
        0o140_000 => Ok(Kind::Socket),
        _ => Err(Errno::EINVAL),
    }
}

/// The twelve bits of a mode that `chmod` sets.
pub(crate) fn permissions(mode: u32) -> u16 {
    (mode & PERMISSION_MASK) as u16
}

/// Attributes as the kernel wants them.
pub(crate) fn attributes(from: &file::Attributes) -> Attributes {
    Attributes {
        inode: from.inode.0,
        size: from.size,
        blocks: from.stored.div_ceil(STAT_BLOCK),
        accessed: time(from.accessed),
        modified: time(from.modified),
        changed: time(from.changed),
        mode: type_bits(from.kind) | u32::from(from.mode),
        links: from.links,
        uid: from.uid,
        gid: from.gid,
        // The protocol carries device numbers in the kernel's own encoding.
        device: Device::decode(from.device),
        block_size: BLOCK_SIZE,
    }
}

/// Whether running the file, or writing to it, has to do with its set-id bits. Set-group-id without the right to execute
/// is no such bit (it once meant mandatory locks).
pub(crate) fn has_set_id(from: &file::Attributes) -> bool {
    let by_group = from.mode & SET_GID != 0 && from.mode & GROUP_EXECUTES != 0;
    from.kind == Kind::File && (from.mode & SET_UID != 0 || by_group)
}

/// How long attributes are valid. A write by a plain user takes set-id bits away without the kernel's noticing, and it
/// must never run such a file by a mode from before: those it asks for each time.
pub(crate) fn attributes_valid(from: &file::Attributes) -> Duration {
    if has_set_id(from) { Duration::ZERO } else { ATTRIBUTES_VALID }
}

/// A time for the kernel.
pub(crate) fn time(from: file::Time) -> Time {
    Time { seconds: from.0.div_euclid(NANOSECONDS), nanoseconds: from.0.rem_euclid(NANOSECONDS) as u32 }
}

/// A time from the kernel; what lies before 1677 or after 2262 becomes the first or last moment that can be kept.
pub(crate) fn time_kept(from: Time) -> file::Time {
    let wide = i128::from(from.seconds) * i128::from(NANOSECONDS) + i128::from(from.nanoseconds);
    file::Time(wide.clamp(i64::MIN.into(), i64::MAX.into()) as i64)
}

/// The time that SETATTR means.
pub(crate) fn time_meant(from: SetTime, now: file::Time) -> file::Time {
    match from {
        SetTime::Now => now,
        SetTime::To(time) => time_kept(time),
    }
}

/// Flags of renameat2(2). No replacing and a whiteout together is not done.
pub(crate) fn rename_mode(flags: u32) -> Result<RenameMode, Errno> {
    match flags {
        0 => Ok(RenameMode::Replace),
        1 => Ok(RenameMode::Keep),
        2 => Ok(RenameMode::Exchange),
        4 => Ok(RenameMode::Whiteout),
        _ => Err(Errno::EINVAL),
    }
}

/// Flags of setxattr(2).
pub(crate) fn xattr_mode(flags: u32) -> Result<XattrMode, Errno> {
    match flags {
        0 => Ok(XattrMode::Either),
        1 => Ok(XattrMode::Create),
        2 => Ok(XattrMode::Replace),
        _ => Err(Errno::EINVAL),
    }
}

/// The mode of fallocate(2): keep the size is 1, punch a hole 2, write zeros 16.
pub(crate) fn allocate_mode(mode: u32) -> Result<AllocateMode, Errno> {
    match mode {
        0 => Ok(AllocateMode::Grow),
        1 => Ok(AllocateMode::KeepSize),
        3 => Ok(AllocateMode::Punch),
        16 => Ok(AllocateMode::Zero),
        17 => Ok(AllocateMode::ZeroKeepSize),
        _ => Err(Errno::EOPNOTSUPP),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::face::tests;

    fn file(mode: u16) -> file::Attributes {
        file::Attributes { mode, accessed: file::Time(-1), modified: file::Time(1_500_000_000), ..tests::file() }
    }

    #[test]
    fn attributes_read_as_stat_shows_them() {
        let shown = attributes(&file(0o4755));
        assert_eq!((shown.mode, shown.blocks, shown.inode), (0o104_755, 1, 7));
        assert_eq!(shown.accessed, Time { seconds: -1, nanoseconds: 999_999_999 });
        assert_eq!(shown.modified, Time { seconds: 1, nanoseconds: 500_000_000 });
        let device =
            file::Attributes { kind: Kind::BlockDevice, device: Device { major: 8, minor: 300 }.encode(), ..file(0) };
        assert_eq!(attributes(&device).device, Device { major: 8, minor: 300 });
    }

    #[test]
    fn times_survive_the_way_there_and_back() {
        for kept in [i64::MIN, -1, 0, 1, 1_767_225_600_123_456_789, i64::MAX] {
            assert_eq!(time_kept(time(file::Time(kept))), file::Time(kept), "{kept}");
        }
        assert_eq!(time_kept(Time { seconds: i64::MAX, nanoseconds: 5 }), file::Time(i64::MAX));
        assert_eq!(time_meant(SetTime::Now, file::Time(9)), file::Time(9));
    }

    #[test]
    fn each_kind_has_the_type_it_is_made_with() {
        for kind in [Kind::File, Kind::Pipe, Kind::Socket, Kind::CharacterDevice, Kind::BlockDevice] {
            assert_eq!(made_kind(type_bits(kind) | 0o644), Ok(kind));
        }
        assert_eq!(made_kind(0o644), Ok(Kind::File));
        assert_eq!(made_kind(type_bits(Kind::Directory)), Err(Errno::EINVAL));
        assert_eq!(permissions(0o107_777), 0o7777);
    }

    #[test]
    fn the_kernel_asks_again_about_files_with_set_id_bits() {
        assert_eq!(attributes_valid(&file(0o755)), ATTRIBUTES_VALID);
        for mode in [0o4755, 0o2755, 0o4644] {
            assert_eq!(attributes_valid(&file(mode)), Duration::ZERO, "{mode:o}");
        }
        assert!(!has_set_id(&file(0o2744)), "no set-group-id for a group that may not execute");
        assert!(!has_set_id(&file::Attributes { kind: Kind::Directory, ..file(0o2755) }));
    }

    #[test]
    fn flags_nobody_knows_are_refused() {
        assert_eq!(rename_mode(1), Ok(RenameMode::Keep));
        assert_eq!(rename_mode(3), Err(Errno::EINVAL));
        assert_eq!(rename_mode(5), Err(Errno::EINVAL));
        assert_eq!(xattr_mode(3), Err(Errno::EINVAL));
        assert_eq!(allocate_mode(3), Ok(AllocateMode::Punch));
        for collapse_insert_unshare in [8, 0x20, 0x40, 2] {
            assert_eq!(allocate_mode(collapse_insert_unshare), Err(Errno::EOPNOTSUPP));
        }
    }

    #[test]
    fn open_flags_read_as_linux_means_them() {
        assert!(OpenFlags(0).only_reads() && !OpenFlags(0o1).only_reads() && !OpenFlags(0o2).only_reads());
        assert!(OpenFlags(0o4_010_001).syncs() && OpenFlags(0o10_001).syncs() && !OpenFlags(0o4_000_001).syncs());
        assert!(OpenFlags(0o2001).appends() && !OpenFlags(0o2001 | DIRECT).appends());
        assert!(OpenFlags(0o1_000_000).keeps_access_time());
    }
}
