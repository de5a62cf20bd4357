//! Asking the mount for something, so that its queues have requests. Another process asks, and never the daemon: a call on the
//! mount is not ended by a signal once the daemon has heard of it, and a thread of the daemon that waits for the daemon
//! would keep it from ending, and from being followed by another.

use std::io;
use std::ops::RangeInclusive;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use rustix::fs::{AtFlags, CWD, StatxFlags};
use rustix::thread::CpuSet;

use super::super::process;

/// The first word to such a process.
const WORD: &str = "ask";
/// How long it is waited for, and how often it is looked.
const ASKED_MAX: Duration = Duration::from_secs(2);
const LOOK: Duration = Duration::from_millis(2);

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
    command.arg(WORD).arg(point).args(numbers).current_dir("/").process_group(0);
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

/// Does something again that finds `point` in use, while that may be because such a process asks it, which ends by itself.
pub(crate) fn again_while_asked<T>(point: &Path, work: impl Fn() -> T, finds_use: impl Fn(&T) -> bool) -> T {
    let until = Instant::now() + ASKED_MAX;
    loop {
        let is_asked = is_asked(point);
        let outcome = work();
        if !finds_use(&outcome) || !is_asked || Instant::now() >= until {
            return outcome;
        }
        std::thread::sleep(LOOK);
    }
}

/// Whether a process asks `point`, or is about to: for milliseconds before, it has been told to.
fn is_asked(point: &Path) -> bool {
    let Ok(processes) = std::fs::read_dir("/proc") else { return false };
    processes.flatten().any(|process| {
        let Ok(words) = std::fs::read(process.path().join("cmdline")) else { return false };
        let mut words = words.split(|&byte| byte == 0).skip(1);
        words.next() == Some(WORD.as_bytes()) && words.next() == Some(point.as_os_str().as_bytes())
    })
}

#[cfg(test)]
mod tests {
    use std::cell::Cell;

    use super::*;

    /// A shell whose words are those of such a process; it ends with what it waits for.
    #[test]
    fn whoever_asks_a_mount_does_not_keep_it_in_use() {
        let point = std::env::temp_dir().join(format!("dazzle-asked-{}", std::process::id()));
        std::fs::create_dir(&point).unwrap();
        std::fs::write(point.join(WORD), "read answer").unwrap();
        let mut shell = Command::new("sh");
        let mut asking = shell.arg(WORD).arg(&point).current_dir(&point).stdin(Stdio::piped()).spawn().unwrap();
        while !is_asked(&point) {
            std::thread::yield_now();
        }
        let (looks, asked) = (Cell::new(0), Cell::new(Some(&mut asking)));
        let look = || {
            looks.set(looks.get() + 1);
            if looks.get() == 3 {
                let asking = asked.take().unwrap();
                drop(asking.stdin.take());
                asking.wait().unwrap();
            }
        };
        again_while_asked(&point, look, |()| true);
        assert_eq!(looks.get(), 4, "three looks while it asks, and one that counts");
        again_while_asked(&point, || looks.set(0), |()| true);
        std::fs::remove_dir_all(&point).unwrap();
    }
}
