//! Asking the mount for something, so that its queues have requests. Another process asks, and never the daemon: a call on the
//! mount is not ended by a signal once the daemon has heard of it, and a thread of the daemon that waits for the daemon
//! would keep it from ending, and from being followed by another.

use std::io;
use std::ops::RangeInclusive;
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::{Command, Stdio};

use rustix::fs::{AtFlags, CWD, StatxFlags};
use rustix::thread::CpuSet;

use super::super::process;

/// Starts a process that asks `point` from each of these processors, so many times at once. It ends when it has all answers,
/// and is no child of this one: nobody here waits for it.
pub(super) fn start_apart(point: &Path, processors: RangeInclusive<u16>, times: u32) -> io::Result<()> {
    let status = command(point, processors, times)?.arg("--apart").status()?;
    if status.success() {
        Ok(())
    } else {
        Err(io::Error::other(format!("who was to ask the mount ended with {status}")))
    }
}

fn command(point: &Path, processors: RangeInclusive<u16>, times: u32) -> io::Result<Command> {
    let mut command = Command::new(process::own_program()?);
    let numbers = [processors.start().to_string(), processors.end().to_string(), times.to_string()];
    command.arg("ask").arg(point).args(numbers).current_dir("/").process_group(0);
    command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null());
    Ok(command)
}

/// Is that process.
pub fn run(point: &Path, processors: RangeInclusive<u16>, times: u32, is_apart: bool) -> io::Result<()> {
    if is_apart {
        return command(point, processors, times)?.spawn().map(drop);
    }
    std::thread::scope(|scope| {
        let asking = processors.flat_map(|number| (0..times).map(move |_| number));
        let threads: Vec<_> = asking.map(|number| scope.spawn(move || ask(point, number))).collect();
        threads
            .into_iter()
            .try_for_each(|thread| thread.join().unwrap_or_else(|_| Err(io::Error::other("it panicked"))))
    })
}

/// Asks for what is always known, past what the kernel knows; not from a processor that is not there, where no program runs.
fn ask(point: &Path, number: u16) -> io::Result<()> {
    let mut own = CpuSet::new();
    own.set(usize::from(number));
    if rustix::thread::sched_setaffinity(None, &own).is_ok() {
        rustix::fs::statx(CWD, point, AtFlags::STATX_FORCE_SYNC, StatxFlags::MODE)?;
    }
    Ok(())
}
