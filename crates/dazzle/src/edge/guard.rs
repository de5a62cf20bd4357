//! Ends the calls of programs on the mount of a daemon that was killed, and sees to it that nothing old is read there while it
//! stands still.
//!
//! Linux ends them when the last descriptor of the FUSE device is closed. A thread that tells the kernel to forget a file waits
//! in the kernel for pages that other calls have locked, and these for answers that a killed daemon does not give: the thread
//! never ends, the descriptor stays open, and programs, the lock of the directory and the next daemon wait for ever. So a
//! small process beside the daemon learns of its death and has the kernel break the connection, and drop the pages of what is
//! open there, which programs could read for ever.
//!
//! A daemon that hangs, or is stopped by a signal, does not see its lease run out. It gives the guard its word, ten times a
//! second, until when it does (`word`). From then on, until it gives it anew, the guard has the kernel forget what it could
//! answer programs with: they ask the daemon, and wait (`docs/decisions/0048`).

use std::io;
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::{Command, Stdio};
use std::sync::Arc;
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use rustix::fs::{Mode, OFlags};
use rustix::mount::UnmountFlags;
use rustix::process::{Pid, Signal};
use tracing::warn;

use super::forgetting::{self, Forgetting};
use super::word::Word;
use super::{mount, process};

/// How often, and how many times, a daemon is looked at that should be about to end; and then, if it has not.
const LOOK: Duration = Duration::from_millis(20);
const DYING_LOOKS: u32 = 500;
const LATER_LOOK: Duration = Duration::from_secs(1);
/// How often the word is looked at, at least: it may come to hold for less long.
const WORD_LOOK: Duration = Duration::from_millis(500);
/// How often pages are dropped that were found once: one that a program is just reading stays. And for how long that is done so
/// often; then it is only for what may have come since.
const DROP_AGAIN: Duration = Duration::from_millis(20);
const DROP_OFTEN: Duration = Duration::from_secs(1);
/// How often what is mapped is looked at meanwhile.
const PAGE_OUT_AGAIN: Duration = Duration::from_millis(100);

/// Starts the guard of this process's mount on `point`, which goes by `word`.
pub fn start(point: &Path, word: &Word) -> io::Result<()> {
    let mut command = Command::new(process::own_program()?);
    command.arg("guard").arg(std::process::id().to_string()).arg(point);
    command.stdin(word.share()?).stdout(Stdio::null()).stderr(Stdio::null()).current_dir("/").process_group(0);
    // The kernel tells a child of the end of the thread that began it: this one ends with the process and not before.
    let begin = move || match command.spawn().and_then(|mut guard| guard.wait()) {
        Ok(status) => warn!(%status, "the guard of the mount ended; programs may hang there if this daemon is killed"),
        Err(error) => warn!(%error, "the mount has no guard; programs may hang there if this daemon is killed"),
    };
    std::thread::Builder::new().name("guard".into()).spawn(begin).map(drop)
}

/// Is the guard of what the daemon with this process number has mounted on `point`; its word is the standard input.
pub fn run(daemon: i32, point: &Path) -> io::Result<()> {
    let Some(device) = mount::device(point) else { return Ok(()) };
    let word = Arc::new(Word::inherit(rustix::io::dup(rustix::stdio::stdin())?));
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    runtime.block_on(async {
        tokio::select! {
            biased;
            () = ends(daemon) => {}
            () = keep_to(&word, (daemon, point, &device)) => {}
        }
    });
    // Another daemon may have mounted there since.
    if mount::device(point).as_ref() == Some(&device) {
        break_connection(point);
        forget_for_ever(device);
    }
    Ok(())
}

/// Drops the pages of a mount that is broken off: none come any more. It takes more than once where a program is just reading
/// one, or has just been given a file by another; pages that several have mapped stay.
fn forget_for_ever(device: String) {
    let begun = Instant::now();
    let mut forgetting = Forgetting::new(device.clone());
    loop {
        forgetting.look_at_pages();
        let all_gone = forgetting.drop_pages();
        forgetting::page_out_mapped(&device);
        if all_gone || begun.elapsed() >= DROP_OFTEN {
            return;
        }
        std::thread::sleep(DROP_AGAIN);
    }
}

/// Returns when the daemon has ended.
async fn ends(daemon: i32) {
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
}

/// Has the kernel forget whenever the word has run out. On a thread that nobody waits for: it may wait for the daemon.
async fn keep_to(word: &Arc<Word>, (daemon, point, device): (i32, &Path, &str)) {
    loop {
        let left = word.left();
        if !left.is_zero() {
            tokio::time::sleep(left.min(WORD_LOOK)).await;
            continue;
        }
        let (until, point, device) = (word.clone(), point.to_owned(), device.to_owned());
        let forget = move || forget_until_given(&until, daemon, &point, device);
        // Where there is no room for a thread now there may be soon.
        let forgetting = std::thread::Builder::new().name("forget".into()).spawn(forget);
        while word.left().is_zero() && forgetting.as_ref().is_ok_and(|thread| !thread.is_finished()) {
            tokio::time::sleep(LOOK).await;
        }
        tokio::time::sleep(LOOK).await;
    }
}

/// Has the kernel forget what is there, and what comes, until the word is given again.
fn forget_until_given(word: &Word, daemon: i32, point: &Path, device: String) {
    let begun = Instant::now();
    let mut looked: Option<Instant> = None;
    let mut mapped: Option<(Instant, JoinHandle<()>)> = None;
    let mut forgetting = Forgetting::new(device.clone());
    while word.left().is_zero() {
        if looked.is_none_or(|at| at.elapsed() >= LATER_LOOK) {
            // Where this mount is gone the daemon may have another, which has its own guard.
            if mount::device(point).as_ref() != Some(&device) {
                std::thread::sleep(LATER_LOOK);
                return;
            }
            forgetting.look(daemon);
            looked = Some(Instant::now());
        }
        forgetting.drop_pages();
        // Beside it: whoever looks what a process has mapped may have to wait for it.
        if mapped.as_ref().is_none_or(|(at, thread)| thread.is_finished() && at.elapsed() >= PAGE_OUT_AGAIN) {
            let device = device.clone();
            let page_out = move || forgetting::page_out_mapped(&device);
            let thread = std::thread::Builder::new().name("page-out".into()).spawn(page_out);
            mapped = thread.ok().map(|thread| (Instant::now(), thread));
        }
        std::thread::sleep(if begun.elapsed() < DROP_OFTEN { DROP_AGAIN } else { LATER_LOOK });
    }
}

/// Whether a process has not ended; one of which threads are left is at its end.
fn is_alive(process: i32) -> bool {
    let stat = std::fs::read_to_string(format!("/proc/{process}/stat")).unwrap_or_default();
    let state = stat.rsplit_once(')').map(|(_, rest)| rest.trim_start().as_bytes().first().copied());
    !matches!(state, None | Some(None | Some(b'Z' | b'X')))
}

/// From here on every call on the mount fails, as on one whose daemon has ended; it stays there.
fn break_connection(point: &Path) {
    // What is held open is not unmounted, whoever else uses it; nothing is asked of the file system for it.
    let _held = rustix::fs::open(point, OFlags::PATH | OFlags::CLOEXEC, Mode::empty());
    let _ = rustix::mount::unmount(point, UnmountFlags::FORCE | UnmountFlags::NOFOLLOW);
}
