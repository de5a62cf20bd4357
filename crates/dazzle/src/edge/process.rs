//! Daemons as processes: starting one in the background, holding a directory against a second, signals.

use std::fs::{File, Permissions};
use std::io::{self, BufRead, BufReader, Read, Seek, Write};
use std::os::fd::{AsRawFd, BorrowedFd, FromRawFd, OwnedFd, RawFd};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::{OpenOptionsExt, PermissionsExt};
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::Duration;

use rustix::fs::FlockOperation;
use rustix::io::FdFlags;

/// Stands for a line break in the one line that a daemon tells its starter.
const LINE_BREAK: &str = "\u{2028}";

/// Whoever can open a lock can hold it.
const LOCK_MODE: u32 = 0o600;
/// Who looks whether a lock is taken holds it for a moment: it is tried as often, with such pauses.
const LOCK_LOOKS: u32 = 5;
const LOCK_PAUSE: Duration = Duration::from_millis(20);

/// Holds a directory: while it lives, no second daemon gets it.
pub struct DirectoryLock(#[allow(dead_code, reason = "dropping it lets the lock go")] File);

impl DirectoryLock {
    /// Takes the lock, or `None` when another daemon has it.
    pub fn take(path: &Path) -> io::Result<Option<DirectoryLock>> {
        let file = File::options().create(true).truncate(false).write(true).mode(LOCK_MODE).open(path)?;
        // Former versions made it readable for all.
        file.set_permissions(Permissions::from_mode(LOCK_MODE))?;
        for _ in 0..LOCK_LOOKS {
            match rustix::fs::flock(&file, FlockOperation::NonBlockingLockExclusive) {
                Ok(()) => {
                    file.set_len(0)?;
                    (&file).write_all(std::process::id().to_string().as_bytes())?;
                    return Ok(Some(DirectoryLock(file)));
                }
                Err(rustix::io::Errno::WOULDBLOCK) => std::thread::sleep(LOCK_PAUSE),
                Err(error) => return Err(error.into()),
            }
        }
        Ok(None)
    }

    /// Whether a daemon holds it now. Who may not look at it may not take it either, and is told so when the daemon is asked.
    pub fn is_taken(path: &Path) -> bool {
        match File::open(path) {
            Ok(file) => rustix::fs::flock(&file, FlockOperation::NonBlockingLockShared).is_err(),
            Err(error) => error.kind() == io::ErrorKind::PermissionDenied,
        }
    }
}

impl DirectoryLock {
    /// The descriptor that holds it, for the process after.
    pub fn descriptor(&self) -> RawFd {
        self.0.as_raw_fd()
    }

    /// The lock that the process before has left.
    pub fn inherit(descriptor: RawFd) -> io::Result<DirectoryLock> {
        Ok(DirectoryLock(inherited(descriptor)?.into()))
    }

    /// Returns when nobody holds it, and the process that held it has ended: then nothing of it is open any more.
    pub fn wait(path: &Path) -> io::Result<()> {
        let file = File::open(path)?;
        let holder = holder(&file)?;
        rustix::fs::flock(&file, FlockOperation::LockShared)?;
        ends(holder, 10).map(drop)
    }

    /// Whether the process that holds it ends within so many seconds.
    pub fn is_left_within(path: &Path, seconds: i64) -> io::Result<bool> {
        ends(holder(&File::open(path)?)?, seconds)
    }
}

/// The process that has noted its number in a lock, if it has not ended.
fn holder(file: &File) -> io::Result<Option<OwnedFd>> {
    let number = io::read_to_string(file)?.trim().parse().ok().and_then(rustix::process::Pid::from_raw);
    Ok(number.and_then(|pid| rustix::process::pidfd_open(pid, rustix::process::PidfdFlags::empty()).ok()))
}

/// Whether a process ends within so many seconds, or has ended.
fn ends(process: Option<OwnedFd>, seconds: i64) -> io::Result<bool> {
    let Some(process) = process else { return Ok(true) };
    let mut ended = [rustix::event::PollFd::new(&process, rustix::event::PollFlags::IN)];
    let patience = rustix::event::Timespec { tv_sec: seconds, tv_nsec: 0 };
    Ok(rustix::event::poll(&mut ended, Some(&patience))? > 0)
}

/// The user and the group that this process runs as.
pub fn user() -> (u32, u32) {
    (rustix::process::geteuid().as_raw(), rustix::process::getegid().as_raw())
}

/// What this machine is called.
pub fn host_name() -> String {
    let name = std::fs::read_to_string("/proc/sys/kernel/hostname").unwrap_or_default();
    if name.trim().is_empty() { "a machine without a name".to_owned() } else { name.trim().to_owned() }
}

/// Bytes of memory that this machine has; 0 where the kernel does not tell.
pub fn machine_memory() -> u64 {
    let told = std::fs::read_to_string("/proc/meminfo").unwrap_or_default();
    let total = told.lines().find_map(|line| line.strip_prefix("MemTotal:")?.trim().strip_suffix(" kB")?.parse().ok());
    total.map_or(0, |kib: u64| kib << 10)
}

/// Bytes of memory that this process has, as the kernel counts them; 0 where it does not tell.
pub fn memory_bytes() -> u64 {
    let pages = std::fs::read_to_string("/proc/self/statm").ok().and_then(|line| line.split(' ').nth(1)?.parse().ok());
    pages.map_or(0, |pages: u64| pages * rustix::param::page_size() as u64)
}

/// Threads that wait, at most: a few for each disk (`waiters`).
const WAITING_THREADS_MAX: usize = 512;
/// Threads that poll, at least: one may be held up by a disk.
const POLLING_THREADS_MIN: usize = 2;

/// The runtime that tasks and timers live on.
pub fn runtime() -> io::Result<tokio::runtime::Runtime> {
    let polling = std::thread::available_parallelism().map_or(1, usize::from);
    tokio::runtime::Builder::new_multi_thread()
        .enable_all()
        .thread_name("dazzle")
        .worker_threads(polling.max(POLLING_THREADS_MIN))
        .max_blocking_threads(WAITING_THREADS_MAX)
        .build()
}

/// As many files may be open as whoever started this process allows at most.
pub fn raise_file_limit() {
    use rustix::process::{Resource, getrlimit, setrlimit};
    let mut limit = getrlimit(Resource::Nofile);
    limit.current = limit.maximum;
    if let Err(error) = setrlimit(Resource::Nofile, limit) {
        tracing::warn!(%error, "the kernel allows no more open files");
    }
}

/// Memory comes in small pages from now on. Huge ones are faster to fill, but one that is used in part is there as a whole:
/// what was freed and given back would come again with its neighbours, and no setting bound what the process takes.
pub fn take_small_pages() {
    // SAFETY: the call takes plain numbers and changes nothing but how the kernel fills memory of this process.
    let refused = unsafe { libc::prctl(libc::PR_SET_THP_DISABLE, 1, 0, 0, 0) } != 0;
    if refused {
        tracing::warn!("the kernel goes on giving huge pages; the daemon may take more memory than its settings say");
    }
}

/// Sends the daemon's messages to standard error, as many as `DAZZLE_LOG` asks for ("info" unless set).
pub fn write_messages() {
    use tracing_subscriber::EnvFilter;
    let filter = EnvFilter::try_from_env("DAZZLE_LOG").unwrap_or_else(|_| EnvFilter::new("info,openraft=error"));
    // A second subscriber in one process would be a test's; it keeps its own.
    let _ = tracing_subscriber::fmt().with_env_filter(filter).with_writer(io::stderr).with_ansi(false).try_init();
}

/// Starts this program with `arguments` as a daemon of its own session, its messages going to `messages`, and waits for
/// its one line on standard output: what is behind `ready` there, or, once it has ended, why it does not run.
pub fn start_daemon(
    arguments: &[&std::ffi::OsStr],
    messages: &Path,
    ready: &str,
) -> io::Result<Result<String, String>> {
    let messages = File::options().create(true).append(true).open(messages)?;
    let mut child = Command::new(own_program()?)
        .args(arguments)
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .stderr(messages)
        .current_dir("/")
        .process_group(0)
        .spawn()?;
    let mut line = String::new();
    BufReader::new(child.stdout.take().expect("standard output is a pipe")).read_line(&mut line)?;
    if line.is_empty() {
        let status = child.wait()?;
        return Err(io::Error::other(format!("the daemon ended before it was ready: {status}")));
    }
    let line = line.trim_end().replace(LINE_BREAK, "\n");
    match line.strip_prefix(ready) {
        Some(greeting) => Ok(Ok(greeting.to_owned())),
        None => {
            // Whoever gives the next command finds the directory free.
            child.wait()?;
            Ok(Err(line))
        }
    }
}

/// Starts this program with `arguments` as a daemon whose messages go where this one's do, and which nobody waits for.
pub fn start_successor(arguments: &[&std::ffi::OsStr]) -> io::Result<()> {
    let mut command = Command::new(own_program()?);
    command.args(arguments).stdin(Stdio::null()).stdout(Stdio::null()).process_group(0).spawn().map(drop)
}

/// Puts this program, as it is on disk by now, in the place of this process: its number, its children and the descriptors in
/// `kept` stay, and the messages go where they went. Returns only if that cannot be.
pub fn become_successor(arguments: &[&std::ffi::OsStr], kept: &[RawFd]) -> io::Error {
    for &descriptor in kept {
        // SAFETY: the caller owns what it names; flags of a descriptor that is closed cannot be set, and are an error.
        let descriptor = unsafe { BorrowedFd::borrow_raw(descriptor) };
        if let Err(error) = rustix::io::fcntl_setfd(descriptor, FdFlags::empty()) {
            return error.into();
        }
    }
    match own_program() {
        Ok(program) => Command::new(program).args(arguments).exec(),
        Err(error) => error,
    }
}

/// A descriptor that the process before has left; no child gets it.
pub fn inherited(descriptor: RawFd) -> io::Result<OwnedFd> {
    // SAFETY: the process before named it as one that it left to this one, and it is named once. One that is closed is an error
    // in the next line, and no descriptor was opened since that could have its number.
    let descriptor = unsafe { OwnedFd::from_raw_fd(descriptor) };
    rustix::io::fcntl_setfd(&descriptor, FdFlags::CLOEXEC)?;
    Ok(descriptor)
}

/// A place in memory with these bytes, for the process after.
pub fn leave_bytes(bytes: &[u8]) -> io::Result<OwnedFd> {
    let memory = rustix::fs::memfd_create("dazzle", rustix::fs::MemfdFlags::CLOEXEC)?;
    let mut file = File::from(memory);
    file.write_all(bytes)?;
    file.rewind()?;
    Ok(file.into())
}

/// What the process before has left there.
pub fn inherited_bytes(descriptor: RawFd) -> io::Result<Vec<u8>> {
    let mut bytes = Vec::new();
    File::from(inherited(descriptor)?).read_to_end(&mut bytes)?;
    Ok(bytes)
}

/// What this program, as it is on disk by now, says when it is given `arguments`; an error if it does not run.
pub fn ask_own_program(arguments: &[&str]) -> io::Result<String> {
    let program = own_program()?;
    let asked = Command::new(&program).args(arguments).stdin(Stdio::null()).output();
    let why = match asked {
        Ok(output) if output.status.success() => return Ok(String::from_utf8_lossy(&output.stdout).into_owned()),
        Ok(output) => output.status.to_string(),
        Err(error) => error.to_string(),
    };
    Err(io::Error::other(format!("{} does not run: {why}", program.display())))
}

/// Where this program lies, or another version of it by now.
pub fn own_program() -> io::Result<PathBuf> {
    let link = std::env::current_exe()?;
    let name = link.as_os_str().as_bytes();
    // The kernel says so of a file that was replaced.
    let name = name.strip_suffix(b" (deleted)").unwrap_or(name);
    Ok(PathBuf::from(std::ffi::OsStr::from_bytes(name)))
}

/// Tells whoever started this daemon how the start went, and lets go of the terminal.
pub fn tell_starter(line: &str) {
    let mut out = io::stdout();
    // Whoever started us may have gone; the daemon goes on.
    let _ = writeln!(out, "{}", line.replace('\n', LINE_BREAK));
    let _ = out.flush();
    let _ = rustix::process::setsid();
    if let Ok(null) = File::options().write(true).open("/dev/null") {
        let _ = rustix::stdio::dup2_stdout(&null);
    }
}

/// Returns after a while, before a host could tell the time.
pub async fn pause(time: Duration) {
    tokio::time::sleep(time).await;
}

/// Returns when the daemon is asked to stop by SIGTERM or SIGINT.
pub async fn stop_signal() {
    use tokio::signal::unix::{SignalKind, signal};
    let (Ok(mut term), Ok(mut int)) = (signal(SignalKind::terminate()), signal(SignalKind::interrupt())) else {
        return std::future::pending().await;
    };
    tokio::select! {
        _ = term.recv() => {}
        _ = int.recv() => {}
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_lock_that_others_could_open_is_its_owners_alone_once_it_is_taken() {
        let path = std::env::temp_dir().join(format!("dazzle-lock-{}", std::process::id()));
        let mode = || std::fs::metadata(&path).expect("it is there").permissions().mode() & 0o777;
        drop(DirectoryLock::take(&path).expect("it is made").expect("nobody holds it"));
        assert_eq!(mode(), 0o600);
        std::fs::set_permissions(&path, std::fs::Permissions::from_mode(0o644)).expect("it is ours");
        let held = DirectoryLock::take(&path).expect("it is there").expect("nobody holds it");
        assert_eq!(mode(), 0o600);
        assert!(DirectoryLock::is_taken(&path) && DirectoryLock::take(&path).expect("it is there").is_none());
        drop(held);
        assert!(!DirectoryLock::is_taken(&path));
        std::fs::remove_file(&path).expect("it is ours");
        assert!(!DirectoryLock::is_taken(&path));
    }

    #[test]
    fn who_looks_whether_a_lock_is_taken_keeps_nobody_from_taking_it() {
        let path = std::env::temp_dir().join(format!("dazzle-looked-at-{}", std::process::id()));
        drop(DirectoryLock::take(&path).expect("it is made"));
        let looking = File::open(&path).expect("it is there");
        rustix::fs::flock(&looking, FlockOperation::NonBlockingLockShared).expect("nobody holds it");
        let (begun, told) = std::sync::mpsc::channel();
        let taking = std::thread::spawn({
            let path = path.clone();
            move || {
                begun.send(()).expect("somebody hears it");
                DirectoryLock::take(&path).expect("it is there").is_some()
            }
        });
        told.recv().expect("it begins");
        std::thread::sleep(Duration::from_millis(10));
        drop(looking);
        assert!(taking.join().expect("nobody panics"));
        std::fs::remove_file(&path).expect("it is ours");
    }

    #[test]
    fn as_many_files_may_be_open_as_the_limit_can_be_raised_to() {
        use rustix::process::{Resource, getrlimit};
        raise_file_limit();
        let limit = getrlimit(Resource::Nofile);
        assert_eq!(limit.current, limit.maximum);
    }
}
