//! A target on a block device or a preallocated file: byte spaces at fixed places, the data behind them all.

use std::ffi::OsStr;
use std::os::fd::OwnedFd;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use host::{Disk, DiskError, DiskUsage, StoredDisk, StoredFile};
use rustix::fs::{Mode, OFlags, SeekFrom};
use tokio::runtime::Handle;

use super::blocking::disk_error;
use super::open_file::OpenFile;
use super::waiters::Waiters;

const MIB: u64 = 1 << 20;
/// What is kept free before the first space: boot sectors and partition tables of others stay readable.
const BASE: u64 = MIB;
/// The fixed spaces in order, with their sizes; `data` takes what is left. Lists grow with the device: see `list_bytes`.
const SPACES: [(&str, u64); 5] = [
    ("target", MIB),
    ("registry.0", 64 * MIB),
    ("registry.1", 64 * MIB),
    ("registry.log", 64 * MIB),
    ("intake", 4 * MIB),
];

/// The spaces behind them, which grow with the device.
const LISTS: [&str; 2] = ["list.0", "list.1"];
const DATA: &str = "data";

/// Whether targets have a space of that name: a directory's are files that are called so.
pub(super) fn is_space(name: &OsStr) -> bool {
    let fixed = SPACES.iter().map(|(space, _)| *space);
    fixed.chain(LISTS).chain([DATA]).any(|space| name == space)
}

/// A block device that holds a target.
pub struct BlockDevice {
    path: PathBuf,
    bytes: u64,
    waiters: Waiters,
}

impl BlockDevice {
    /// The disk on the block device or plain file at `path`.
    pub fn disk(path: &Path, runtime: Handle) -> Result<Disk, DiskError> {
        let name = path.display().to_string();
        let file = rustix::fs::open(path, OFlags::RDWR | OFlags::CLOEXEC, Mode::empty())
            .map_err(|error| disk_error(&name, error))?;
        let bytes = rustix::fs::seek(&file, SeekFrom::End(0)).map_err(|error| disk_error(&name, error))?;
        if bytes < 512 * MIB {
            return Err(DiskError::Failed(format!("{name} has {} MiB; a target needs at least 512", bytes / MIB)));
        }
        refuse_foreign(&file, &name)?;
        Ok(Disk::new(Arc::new(BlockDevice { path: path.to_owned(), bytes, waiters: Waiters::new(runtime) })))
    }

    /// Room for one list: 64 bytes for each of two entries a MiB, twice over for compaction.
    fn list_bytes(&self) -> u64 {
        (self.bytes / 4096).next_multiple_of(MIB)
    }

    fn place(&self, name: &str) -> Option<(u64, u64)> {
        let mut at = BASE;
        let lists = LISTS.map(|list| (list, self.list_bytes()));
        for (space, bytes) in SPACES.into_iter().chain(lists) {
            if space == name {
                return Some((at, bytes));
            }
            at += bytes;
        }
        (name == DATA).then(|| (at, self.bytes - at))
    }
}

/// A device without a target on it must be blank where file systems, volumes and partition tables have their marks: all
/// of them in the first mebibyte.
fn refuse_foreign(file: &OwnedFd, name: &str) -> Result<(), DiskError> {
    let mut start = vec![0; BASE as usize + 4096];
    let count = rustix::io::pread(file, &mut start, 0).map_err(|error| disk_error(name, error))?;
    let (before, superblock) = start[..count].split_at(count.min(BASE as usize));
    if superblock.iter().all(|&byte| byte == 0) && before.iter().any(|&byte| byte != 0) {
        return Err(DiskError::Failed(format!(
            "{name} holds something that is not Dazzle's, and was left as it is; if it is not needed, wipe it with \
             `wipefs -a {name}` and `dd if=/dev/zero of={name} bs=1M count=1 conv=notrunc`"
        )));
    }
    Ok(())
}

impl StoredDisk for BlockDevice {
    fn open(&self, name: &'static str) -> Result<Arc<dyn StoredFile>, DiskError> {
        let (base, bytes) = self
            .place(name)
            .ok_or_else(|| DiskError::Failed(format!("{}: a device has no space {name}", self.path.display())))?;
        Ok(Arc::new(OpenFile::open(&self.path, base, Some(bytes), self.waiters.clone())?))
    }

    fn usage(&self) -> Result<DiskUsage, DiskError> {
        let (_, bytes) = self.place(DATA).expect("data always has a place");
        Ok(DiskUsage { bytes_total: bytes, bytes_free: bytes, is_shared: false })
    }
}
