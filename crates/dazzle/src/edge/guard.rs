//! Ends the calls of programs on the mount of a daemon that was killed.
//!
//! Linux ends them when the last descriptor of the FUSE device is closed. A thread that tells the kernel to forget a file waits
//! in the kernel for pages that other calls have locked, and these for answers that a killed daemon does not give: the thread
//! never ends, the descriptor stays open, and programs, the lock of the directory and the next daemon wait for ever. So a
//! small process beside the daemon learns of its death and has the kernel break the connection, and drop the pages of what is
//! open there, which programs could read for ever.

use std::io;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::Duration;

use rustix::fs::{Advice, Mode, OFlags};
use rustix::mount::UnmountFlags;
use rustix::process::{Pid, PidfdFlags, PidfdGetfdFlags, Signal};
use tracing::warn;

use super::{mount, process};

/// How often, and how many times, a daemon is looked at that should be about to end; and then, if it has not.
const LOOK: Duration = Duration::from_millis(20);
const DYING_LOOKS: u32 = 500;
const LATER_LOOK: Duration = Duration::from_secs(1);

/// Starts the guard of this process's mount on `point`.
pub fn start(point: &Path) -> io::Result<()> {
    let mut command = Command::new(process::own_program()?);
    command.arg("guard").arg(std::process::id().to_string()).arg(point);
    command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null()).current_dir("/").process_group(0);
    // The kernel tells a child of the end of the thread that began it: this one ends with the process and not before.
    let begin = move || match command.spawn().and_then(|mut guard| guard.wait()) {
        Ok(status) => warn!(%status, "the guard of the mount ended; programs may hang there if this daemon is killed"),
        Err(error) => warn!(%error, "the mount has no guard; programs may hang there if this daemon is killed"),
    };
    std::thread::Builder::new().name("guard".into()).spawn(begin).map(drop)
}

/// Is the guard of what the daemon with this process number has mounted on `point`.
pub fn run(daemon: i32, point: &Path) -> io::Result<()> {
    let device = mount::device(point);
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    runtime.block_on(async {
        let asked_to_be_told = async {
            let _ = rustix::process::set_parent_process_death_signal(Some(Signal::TERM));
            // It may have died before that.
            if rustix::process::getppid() == Pid::from_raw(daemon) {
                std::future::pending::<()>().await;
            }
        };
        tokio::select! {
            biased;
            () = process::stop_signal() => {}
            () = asked_to_be_told => {}
        }
        let mut looks = 0;
        while is_alive(daemon) {
            looks += 1;
            if looks <= DYING_LOOKS {
                tokio::time::sleep(LOOK).await;
                continue;
            }
            // Only the thread that began this guard has ended: another program goes on as the same process.
            tokio::select! {
                () = process::stop_signal() => looks = 0,
                () = tokio::time::sleep(LATER_LOOK) => {}
            }
        }
    });
    // Another daemon may have mounted there since.
    if device.is_some() && mount::device(point) == device {
        let mounts = mount::numbers(point);
        break_connection(point);
        drop_pages(&mounts);
    }
    Ok(())
}

/// Whether a process has not ended; one of which threads are left is at its end.
fn is_alive(process: i32) -> bool {
    let stat = std::fs::read_to_string(format!("/proc/{process}/stat")).unwrap_or_default();
    let state = stat.rsplit_once(')').map(|(_, rest)| rest.trim_start().as_bytes().first().copied());
    !matches!(state, None | Some(None | Some(b'Z' | b'X')))
}

/// Drops the kernel's pages of what programs have open on these mounts: reads of them ask nobody, and others may change the
/// files as soon as the lease of this machine has run out. What is mapped stays.
fn drop_pages(mounts: &[String]) {
    let numbered = |path: &Path| {
        let entries = std::fs::read_dir(path).into_iter().flatten().flatten();
        let numbers = entries.filter_map(|entry| entry.file_name().to_str()?.parse::<i32>().ok());
        numbers.collect::<Vec<_>>()
    };
    for process in numbered(Path::new("/proc")) {
        let infos = PathBuf::from(format!("/proc/{process}/fdinfo"));
        let lies_there = |file: &i32| {
            let info = std::fs::read_to_string(infos.join(file.to_string())).unwrap_or_default();
            let mount = info.lines().find_map(|line| line.strip_prefix("mnt_id:")).map(str::trim);
            mount.is_some_and(|mount| mounts.iter().any(|known| known == mount))
        };
        let files: Vec<i32> = numbered(&infos).into_iter().filter(lies_there).collect();
        let Some(pid) = Pid::from_raw(process).filter(|_| !files.is_empty()) else { continue };
        let Ok(process) = rustix::process::pidfd_open(pid, PidfdFlags::empty()) else { continue };
        for file in files {
            // Opening it anew would ask the dead daemon; who has closed it meanwhile reads no more.
            if let Ok(file) = rustix::process::pidfd_getfd(&process, file, PidfdGetfdFlags::empty()) {
                let _ = rustix::fs::fadvise(&file, 0, None, Advice::DontNeed);
            }
        }
    }
}

/// From here on every call on the mount fails, as on one whose daemon has ended; it stays there.
fn break_connection(point: &Path) {
    // What is held open is not unmounted, whoever else uses it; nothing is asked of the file system for it.
    let _held = rustix::fs::open(point, OFlags::PATH | OFlags::CLOEXEC, Mode::empty());
    let _ = rustix::mount::unmount(point, UnmountFlags::FORCE | UnmountFlags::NOFOLLOW);
}
