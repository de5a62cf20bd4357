//! Mounting and unmounting: by `mount(2)` as root, with `fusermount3` as anyone else.

use std::io;
use std::mem::MaybeUninit;
use std::os::fd::{AsRawFd, OwnedFd};
use std::os::unix::ffi::OsStringExt;
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use fuse::device::MountOptions;
use rustix::fs::{Mode, OFlags};
use rustix::io::Errno;
use rustix::mount::{MountFlags, UnmountFlags};
use rustix::net::{RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags};

/// Why a directory could not be mounted on.
#[derive(Debug, thiserror::Error)]
pub enum MountError {
    /// The kernel has no FUSE, or hides it.
    #[error(
        "/dev/fuse cannot be opened ({0}); load the module with `modprobe fuse`, or give this container the device"
    )]
    NoDevice(Errno),
    /// Nothing to mount on.
    #[error("{0} is not a directory that can be mounted on: {1}; create it, or name another with --mount")]
    NoPlace(PathBuf, io::Error),
    /// Something is mounted there.
    #[error("{0} is a mount point already; unmount it with `umount {0}`, or name another with --mount")]
    Busy(PathBuf),
    /// The kernel refused.
    #[error("mounting on {0} was refused: {1}")]
    Refused(PathBuf, String),
    /// Not root, and no helper.
    #[error("only root mounts without help, and fusermount3 did not run ({0}); install the package fuse3, or be root")]
    NoHelper(io::Error),
}

/// Mounts on `path`. The returned descriptor is the device; INIT waits in it.
///
/// `source` is the directory of the file system: what `df` shows, and how commands find the daemon of a path.
pub fn mount(path: &Path, source: &Path, options: MountOptions) -> Result<OwnedFd, MountError> {
    is_free(path)?;
    if rustix::process::geteuid().is_root() {
        mount_as_root(path, source, options)
    } else {
        mount_with_help(path, source, options)
    }
}

/// Whether `path` can be mounted on, before anything depends on it. A dead daemon's mount is cleared away.
pub fn prepare(path: &Path) -> Result<(), MountError> {
    // A mount whose daemon died cannot even be looked at.
    let _ = std::fs::create_dir_all(path);
    is_free(path)?;
    match rustix::fs::access("/dev/fuse", rustix::fs::Access::EXISTS) {
        Err(error) => Err(MountError::NoDevice(error)),
        Ok(()) if rustix::process::geteuid().is_root() => open_device().map(drop).map_err(MountError::NoDevice),
        Ok(()) => Ok(()),
    }
}

/// What becomes of programs that use a mount when it ends.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Users {
    /// They are left alone: a mount in use stays.
    Respect,
    /// Their calls fail from now on.
    Dismiss,
}

/// Unmounts `path`.
pub fn unmount(path: &Path, users: Users) -> Result<(), UnmountError> {
    let failed = |error: io::Error| UnmountError::Failed(path.to_owned(), error);
    if rustix::process::geteuid().is_root() {
        let flags = match users {
            Users::Respect => UnmountFlags::NOFOLLOW,
            Users::Dismiss => UnmountFlags::NOFOLLOW | UnmountFlags::DETACH | UnmountFlags::FORCE,
        };
        return match rustix::mount::unmount(path, flags) {
            Err(Errno::BUSY) => Err(UnmountError::InUse(path.to_owned())),
            done => done.map_err(|error| failed(error.into())),
        };
    }
    let flags: &[&str] = match users {
        Users::Respect => &["-u", "-q", "--"],
        Users::Dismiss => &["-u", "-z", "-q", "--"],
    };
    let status = Command::new("fusermount3").args(flags).arg(path).status().map_err(failed)?;
    match (status.success(), users) {
        (true, _) => Ok(()),
        // It does not tell why; but there is one usual reason.
        (false, Users::Respect) => Err(UnmountError::InUse(path.to_owned())),
        (false, Users::Dismiss) => Err(failed(io::Error::other(format!("fusermount3 -u ended with {status}")))),
    }
}

/// Whether programs have files open or their working directory on the mount at `path`. Who may not ask the kernel, because
/// they are not root, is told that they do.
pub fn is_used(path: &Path) -> bool {
    // The kernel is asked to mark the mount as one to take away when nobody comes by, which it does for one that nobody uses.
    // Whatever walks by removes the mark: before, of an earlier question, and after.
    let walk_by = || rustix::fs::open(path, OFlags::PATH | OFlags::CLOEXEC, Mode::empty()).is_ok();
    walk_by();
    let asked = rustix::mount::unmount(path, UnmountFlags::NOFOLLOW | UnmountFlags::EXPIRE);
    walk_by();
    asked != Err(Errno::AGAIN)
}

/// Why a directory is still mounted.
#[derive(Debug, thiserror::Error)]
pub enum UnmountError {
    /// Programs use it.
    #[error(
        "{0} is in use: a program has a file open or its working directory there (`fuser -vm {0}` names it); nothing \
         was stopped. End it and try again, or use `dazzle down --force`"
    )]
    InUse(PathBuf),
    /// The kernel refused.
    #[error("{0} cannot be unmounted: {1}")]
    Failed(PathBuf, io::Error),
}

/// A dead daemon leaves a mount that answers nothing but "not connected": that one is ours to clear away.
fn is_free(path: &Path) -> Result<(), MountError> {
    match std::fs::metadata(path) {
        Err(error) if error.raw_os_error() == Some(Errno::NOTCONN.raw_os_error()) => {
            unmount(path, Users::Dismiss).map_err(|error| MountError::Refused(path.to_owned(), error.to_string()))?;
        }
        Err(error) => return Err(MountError::NoPlace(path.to_owned(), error)),
        Ok(metadata) if !metadata.is_dir() => {
            return Err(MountError::NoPlace(path.to_owned(), io::Error::from(Errno::NOTDIR)));
        }
        Ok(_) => {}
    }
    if is_mount_point(path) { Err(MountError::Busy(path.to_owned())) } else { Ok(()) }
}

/// Lets the kernel read ahead so many KiB on the mount at `path`. It offers 128 at most when mounting; only this file
/// takes more, and only from root. Without it cold reads are a little slower, so a refusal is no error.
pub fn raise_read_ahead(path: &Path, kib: u32) {
    let mounts = mounts();
    let Some(mounted) = mounts.iter().rev().find(|mounted| mounted.point == path) else { return };
    let _ = std::fs::write(format!("/sys/class/bdi/{}/read_ahead_kb", mounted.device), kib.to_string());
}

/// The number of the device that is mounted on exactly `path`, as in `0:51`.
pub fn device(path: &Path) -> Option<String> {
    mounts().into_iter().rev().find(|mounted| mounted.point == path).map(|mounted| mounted.device)
}

/// The kernel's numbers of all mounts of the file system with this number, as a process sees them.
pub fn numbers(device: &str, process: i32) -> Vec<String> {
    let mounts = Mounted::table(&std::fs::read(format!("/proc/{process}/mountinfo")).unwrap_or_default());
    mounts.into_iter().filter(|mounted| mounted.device == device).map(|mounted| mounted.number).collect()
}

/// Whether something is mounted on exactly `path`.
pub fn is_mount_point(path: &Path) -> bool {
    path.canonicalize().is_ok_and(|path| mounts().iter().any(|mounted| mounted.point == path))
}

/// The directory of the Dazzle file system that `path` lies in, and the path within it.
pub fn owner(path: &Path) -> Option<(PathBuf, PathBuf)> {
    let mounts = mounts();
    // The innermost mount above the path decides, and among mounts on one place the last.
    let mounted = mounts.iter().rev().filter(|mounted| path.starts_with(&mounted.point));
    let mounted = mounted.max_by_key(|mounted| mounted.point.components().count())?;
    let inside = path.strip_prefix(&mounted.point).expect("the mount lies above the path").to_owned();
    (mounted.kind == "fuse.dazzle").then(|| (mounted.source.clone(), inside))
}

/// A line of the kernel's table of mounts.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Mounted {
    number: String,
    /// Major and minor number, as in `0:51`.
    device: String,
    point: PathBuf,
    kind: String,
    source: PathBuf,
}

impl Mounted {
    /// The lines of `/proc/self/mountinfo`, as far as they are such. Paths are any bytes, and somebody else's mount on one
    /// that is no text must not hide ours.
    pub fn table(bytes: &[u8]) -> Vec<Mounted> {
        let parse = |line: &[u8]| {
            let fields: Vec<&[u8]> = line.split(|&byte| byte == b' ').collect();
            // Six fields, then as many as there may be, then a dash.
            let dash = fields.iter().skip(6).position(|field| *field == b"-")? + 6;
            Some(Mounted {
                number: std::str::from_utf8(fields[0]).ok()?.to_owned(),
                device: std::str::from_utf8(fields[2]).ok()?.to_owned(),
                point: unescape(fields[4]),
                kind: std::str::from_utf8(fields.get(dash + 1)?).ok()?.to_owned(),
                source: unescape(fields.get(dash + 2)?),
            })
        };
        bytes.split(|&byte| byte == b'\n').filter_map(parse).collect()
    }
}

fn mounts() -> Vec<Mounted> {
    Mounted::table(&std::fs::read("/proc/self/mountinfo").unwrap_or_default())
}

/// The kernel writes spaces and the like as a backslash and three octal digits.
fn unescape(mut field: &[u8]) -> PathBuf {
    let mut whole = Vec::with_capacity(field.len());
    while let Some((&first, rest)) = field.split_first() {
        let digits =
            field.get(1..4).filter(|digits| first == b'\\' && digits.iter().all(|digit| (b'0'..=b'7').contains(digit)));
        let code = digits.map(|digits| digits.iter().fold(0, |code, digit| code * 8 + u32::from(digit - b'0')));
        match code.and_then(|code| u8::try_from(code).ok()) {
            Some(byte) => {
                whole.push(byte);
                field = &field[4..];
            }
            None => {
                whole.push(first);
                field = rest;
            }
        }
    }
    std::ffi::OsString::from_vec(whole).into()
}

fn mount_as_root(path: &Path, source: &Path, options: MountOptions) -> Result<OwnedFd, MountError> {
    let device = open_device().map_err(MountError::NoDevice)?;
    let data = std::ffi::CString::new(options.data(device.as_raw_fd())).expect("options have no zero byte");
    let flags = MountFlags::NOSUID | MountFlags::NODEV;
    // Root may run set-user-id programs and use devices from its own file system, as on any local disk.
    let flags = if options.uid == 0 { MountFlags::empty() } else { flags };
    rustix::mount::mount(source, path, "fuse.dazzle", flags | MountFlags::RELATIME, &*data)
        .map_err(|error| MountError::Refused(path.to_owned(), error.to_string()))?;
    Ok(device)
}

/// Opens the device.
pub fn open_device() -> Result<OwnedFd, Errno> {
    rustix::fs::open("/dev/fuse", OFlags::RDWR | OFlags::CLOEXEC, Mode::empty())
}

fn mount_with_help(path: &Path, source: &Path, options: MountOptions) -> Result<OwnedFd, MountError> {
    let (ours, theirs) = UnixStream::pair().map_err(MountError::NoHelper)?;
    rustix::io::fcntl_setfd(&theirs, rustix::io::FdFlags::empty())
        .map_err(|error| MountError::NoHelper(error.into()))?;
    let helper = Command::new("fusermount3")
        // The last fsname counts; a comma in it would end it.
        .args([
            "-o",
            &format!("{},fsname={}", options.fusermount(), source.to_string_lossy().replace(',', "\\,")),
            "--",
        ])
        .arg(path)
        .env("_FUSE_COMMFD", theirs.as_raw_fd().to_string())
        .stderr(Stdio::piped())
        .spawn()
        .map_err(MountError::NoHelper)?;
    drop(theirs);
    let device = receive_descriptor(&ours);
    let ended = helper.wait_with_output().map_err(MountError::NoHelper)?;
    match device {
        Some(device) if ended.status.success() => Ok(device),
        _ => Err(MountError::Refused(path.to_owned(), String::from_utf8_lossy(&ended.stderr).trim().to_owned())),
    }
}

fn receive_descriptor(socket: &UnixStream) -> Option<OwnedFd> {
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
    let mut ancillary = RecvAncillaryBuffer::new(&mut space);
    let mut byte = [0];
    let mut parts = [io::IoSliceMut::new(&mut byte)];
    rustix::net::recvmsg(socket, &mut parts, &mut ancillary, RecvFlags::CMSG_CLOEXEC).ok()?;
    ancillary.drain().find_map(|message| match message {
        RecvAncillaryMessage::ScmRights(mut descriptors) => descriptors.next(),
        _ => None,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_mount_on_a_path_that_is_no_text_hides_no_other() {
        let table = b"36 35 98:0 / /mnt/\xff\xfe rw,noatime master:1 - ext4 /dev/sda rw\n\
                      52 24 0:51 / /mnt/a\\040b\\777 rw shared:9 - fuse.dazzle /srv/d\\134x rw,user_id=0\n\
                      rubbish\n1 2 3 4 5 6 -\n";
        let table = Mounted::table(table);
        assert_eq!(table.len(), 2);
        let ours = &table[1];
        assert_eq!((&*ours.device, &*ours.kind), ("0:51", "fuse.dazzle"));
        assert_eq!((&*ours.point, &*ours.source), (Path::new("/mnt/a b\\777"), Path::new("/srv/d\\x")));
    }
}
