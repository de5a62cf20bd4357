//! Has the kernel forget what it could answer programs with, for a daemon that cannot have it do so: it died, hangs, or was
//! stopped by a signal, and others may change the files as soon as the lease of this machine has run out.
//!
//! Nothing here waits for an answer of the daemon but the end of a copied descriptor, which the kernel tells it of; so copies
//! are kept until it answers again, or its mount is broken off. Pages that a call has locked are passed over: they are filled
//! when the call is answered.

use std::collections::{BTreeMap, BTreeSet};
use std::io::IoSlice;
use std::os::fd::{AsFd, OwnedFd};
use std::path::{Path, PathBuf};

use fuse::Notification;
use fuse::notify::Pages;
use fuse::operation::NodeId;
use rustix::fs::{Advice, AtFlags, CWD, StatxFlags};
use rustix::process::{Pid, PidfdFlags, PidfdGetfdFlags};

use super::mapped::Mapped;
use super::{mount, page_cache, process};

/// What programs have open on one mount, as far as it was looked at.
pub struct Forgetting {
    /// The number of the file system, as in `0:51`.
    device: String,
    /// A descriptor of each file, by its number.
    copies: BTreeMap<u64, OwnedFd>,
}

/// A descriptor of a program.
struct Open {
    process: i32,
    file: i32,
    inode: u64,
}

impl Forgetting {
    /// Of the file system with this number; nothing was looked at yet.
    pub fn new(device: String) -> Forgetting {
        // As many files as programs have open.
        process::raise_file_limit();
        Forgetting { device, copies: BTreeMap::new() }
    }

    /// Looks what is open there. All names are forgotten, by way of the daemon's own descriptors, and the attributes of what is
    /// in use without a name: of these files, and of working directories.
    pub fn look(&mut self, daemon: i32) {
        let open = self.open_files();
        let places = numbered(Path::new("/proc")).into_iter().filter_map(|process| self.working_directory(process));
        let inodes: BTreeSet<u64> = open.iter().map(|open| open.inode).chain(places).collect();
        let attributes = inodes.into_iter().map(NodeId);
        let attributes = attributes.map(|node| Notification::InvalidateInode { node, pages: Pages::None });
        let notifications: Vec<_> = [Notification::IncrementEpoch].into_iter().chain(attributes).collect();
        tell(daemon, &notifications);
        self.copy(open);
    }

    /// Looks what is open there, and no more.
    pub fn look_at_pages(&mut self) {
        let open = self.open_files();
        self.copy(open);
    }

    /// Drops the pages of what was found open, but those that are mapped or that a program is just reading. Whether the kernel
    /// has none of them any more.
    pub fn drop_pages(&self) -> bool {
        let drop_pages = |file: &OwnedFd| {
            let _ = rustix::fs::fadvise(file, 0, None, Advice::DontNeed);
            page_cache::has_nothing(file, 0, usize::MAX)
        };
        self.copies.values().map(drop_pages).fold(true, |all, gone| all & gone)
    }

    /// Opening a file anew would ask the daemon; who has closed it meanwhile reads no more, and may have something else open
    /// under that number.
    fn copy(&mut self, open: Vec<Open>) {
        for Open { process, file, inode } in open {
            if !self.copies.contains_key(&inode)
                && let Some(copy) = copy_of(process, file)
                && self.inode(&copy, "", AtFlags::EMPTY_PATH) == Some(inode)
            {
                self.copies.insert(inode, copy);
            }
        }
    }

    /// All that processes have open there, whatever mounts they see.
    fn open_files(&self) -> Vec<Open> {
        let mut open = Vec::new();
        // By what a process sees mounted; most see the same.
        let mut mounts = BTreeMap::<PathBuf, Vec<String>>::new();
        for process in numbered(Path::new("/proc")) {
            let Ok(namespace) = std::fs::read_link(format!("/proc/{process}/ns/mnt")) else { continue };
            let mounts = mounts.entry(namespace).or_insert_with(|| mount::numbers(&self.device, process));
            if mounts.is_empty() {
                continue;
            }
            let infos = PathBuf::from(format!("/proc/{process}/fdinfo"));
            for file in numbered(&infos) {
                let info = std::fs::read_to_string(infos.join(file.to_string())).unwrap_or_default();
                let field = |name: &str| info.lines().find_map(|line| line.strip_prefix(name)).map(str::trim);
                let lies_there = field("mnt_id:").is_some_and(|mount| mounts.iter().any(|known| known == mount));
                if let Some(inode) = field("ino:").and_then(|inode| inode.parse().ok()).filter(|_| lies_there) {
                    open.push(Open { process, file, inode });
                }
            }
        }
        open
    }

    /// Where a process is, if that is there.
    fn working_directory(&self, process: i32) -> Option<u64> {
        self.inode(CWD, &format!("/proc/{process}/cwd"), AtFlags::empty())
    }

    /// The number of a file, if it lies there. The kernel tells what it knows, and asks nobody.
    fn inode(&self, from: impl AsFd, path: &str, flags: AtFlags) -> Option<u64> {
        let place = rustix::fs::statx(from, path, flags | AtFlags::STATX_DONT_SYNC, StatxFlags::INO).ok()?;
        let lies_there = format!("{}:{}", place.stx_dev_major, place.stx_dev_minor) == self.device;
        lies_there.then_some(place.stx_ino)
    }
}

/// The entries of a directory that are numbers.
fn numbered(path: &Path) -> Vec<i32> {
    let entries = std::fs::read_dir(path).into_iter().flatten().flatten();
    entries.filter_map(|entry| entry.file_name().to_str()?.parse().ok()).collect()
}

/// Takes out of memory what programs have mapped of the file system with this number.
pub fn page_out_mapped(device: &str) {
    let Some(mapped) = Mapped::new(device) else { return };
    for process in numbered(Path::new("/proc")) {
        if let Some(descriptor) = descriptor_of(process) {
            mapped.page_out(process, &descriptor);
        }
    }
}

/// A descriptor of a process.
fn descriptor_of(process: i32) -> Option<OwnedFd> {
    rustix::process::pidfd_open(Pid::from_raw(process)?, PidfdFlags::empty()).ok()
}

/// A copy of a descriptor that another process has.
fn copy_of(process: i32, file: i32) -> Option<OwnedFd> {
    rustix::process::pidfd_getfd(descriptor_of(process)?, file, PidfdGetfdFlags::empty()).ok()
}

/// Tells the kernel of a daemon's mount. The device is held no longer than that takes: who holds it keeps the mount from
/// ending when the daemon dies. None of this waits for calls under way (`fuse::notify`).
fn tell(daemon: i32, notifications: &[Notification]) {
    let directory = PathBuf::from(format!("/proc/{daemon}/fd"));
    let is_device = |file: &i32| {
        let link = std::fs::read_link(directory.join(file.to_string()));
        link.is_ok_and(|link| link == Path::new("/dev/fuse"))
    };
    let Some(device) = numbered(&directory).into_iter().find(is_device).and_then(|file| copy_of(daemon, file)) else {
        return;
    };
    for notification in notifications {
        let frame = notification.encode();
        let slices: Vec<_> = frame.slices().map(IoSlice::new).collect();
        // A kernel that has none of these, or knows no such file, has nothing to forget by it.
        let _ = rustix::io::writev(&device, &slices);
    }
}
