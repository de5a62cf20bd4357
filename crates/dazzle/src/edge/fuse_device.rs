//! Serving a mount: threads that read requests from the device and poll their answers.
//!
//! A request's future is polled once on the thread that read it. Most are ready then, and the answer is written without
//! another thread having heard of it. What must wait goes to the runtime, so that twenty callers who wait for a lock
//! occupy no thread at all.

use std::io::IoSlice;
use std::os::fd::{AsRawFd, OwnedFd, RawFd};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError, Weak};
use std::task::{Context, Poll, Waker};
use std::time::{Duration, Instant};

use bytes::Bytes;
use fuse::device::{self, IOC_CLONE, MountOptions, READ_OFFSET};
use fuse::negotiate::{self, Handshake, Session, Wishes};
use fuse::operation::Operation;
use fuse::request::{Dialect, Request};
use fuse::{FaceHeritage, Frame, Notification, Told};
use host::BoxFuture;
use rustix::io::Errno;
use serde::{Deserialize, Serialize};
use tokio::runtime::Handle;
use tracing::{error, warn};

use super::blocking;
use super::buffers::{Buffer, BufferPool};
use super::fuse_ring::{self, EntryMemory, Rings, Shape, asking};
use super::gate::{Gate, Passage};
use super::guard;
use super::mount::{self, MountError, UnmountError, Users};
use super::telling;
use super::word::{Tick, Word};

/// Most requests end in memory on the thread that read them; the others are there for those that wait for a disk.
const SERVING_THREADS: usize = 8;

/// Several requests of a megabyte under way while a program reads in order.
const READ_AHEAD_KIB: u32 = 2048;

/// How many bytes of idle buffers for requests are kept: those of large writes go and come.
const REQUEST_IDLE_BYTES_MAX: usize = 8 << 20;

/// How often it is looked whether requests are answered while the mount changes hands.
const LOOK_AT_GATE: Duration = Duration::from_millis(1);

/// How long a thread looks at the device for the next request before it sleeps.
const LOOK_BEFORE_SLEEP: Duration = Duration::from_micros(20);

/// Who answers requests.
pub trait Face: Send + Sync + 'static {
    /// The answer, if the kernel expects one.
    fn answer(&self, request: Request) -> BoxFuture<'static, Option<Frame>>;

    /// Passes on what it alone knows; called when no request comes any more.
    fn settle(&self) -> BoxFuture<'static, ()>;

    /// Breaks off requests that wait for other programs: without an answer where the kernel sends them again.
    fn leave_waits(&self, is_sent_again: bool);

    /// How many requests were left without an answer.
    fn left(&self) -> usize;

    /// It answers all requests again.
    fn take_waits(&self);

    /// What the face of the next process has to know.
    fn bequeath(&self) -> FaceHeritage;
}

impl Face for fuse::Face {
    fn answer(&self, request: Request) -> BoxFuture<'static, Option<Frame>> {
        fuse::Face::answer(self, request)
    }

    fn settle(&self) -> BoxFuture<'static, ()> {
        fuse::Face::settle(self)
    }

    fn leave_waits(&self, is_sent_again: bool) {
        fuse::Face::leave_waits(self, is_sent_again);
    }

    fn left(&self) -> usize {
        fuse::Face::left(self)
    }

    fn take_waits(&self) {
        fuse::Face::take_waits(self);
    }

    fn bequeath(&self) -> FaceHeritage {
        fuse::Face::bequeath(self)
    }
}

/// A mount being served.
pub struct Mount {
    path: PathBuf,
    /// Held by the serving threads.
    device: Weak<OwnedFd>,
    runtime: Handle,
    face: Arc<dyn Face>,
    session: Session,
    gate: Arc<Gate>,
    /// Where requests come over io_uring.
    rings: Option<Rings>,
    threads: Mutex<Vec<std::thread::JoinHandle<()>>>,
    /// This daemon itself unmounts, or has.
    leaving: AtomicBool,
    ended: AtomicBool,
    /// Every descriptor of the device, for the next process.
    descriptors: Vec<RawFd>,
    /// What its guard goes by.
    word: Word,
}

/// A mount that another process of this daemon has left.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct LeftMount {
    path: PathBuf,
    /// Those of the device, behind them that of the memory for requests over io_uring, and last that of the guard's word.
    #[serde(skip)]
    descriptors: Vec<RawFd>,
    session: Session,
    rings: Option<Shape>,
}

/// The same, in the process that serves it on.
pub struct ClaimedMount {
    path: PathBuf,
    devices: Vec<OwnedFd>,
    session: Session,
    rings: Option<(Shape, OwnedFd)>,
    word: Word,
}

impl LeftMount {
    /// A call is aborted when the descriptor is closed that it was read from: all are kept.
    pub fn descriptors(&self) -> &[RawFd] {
        &self.descriptors
    }

    /// The same mount with its descriptors, in the process that has them now; nothing if there are too few.
    pub fn claim(self, mut devices: Vec<OwnedFd>) -> Option<ClaimedMount> {
        let word = Word::inherit(devices.pop()?);
        let rings = self.rings.and_then(|shape| Some((shape, devices.pop()?)));
        Some(ClaimedMount { path: self.path, devices, session: self.session, rings, word })
    }
}

impl Mount {
    /// Mounts on `path` and serves until [`Mount::unmount`] or until somebody else unmounts. By rings where the kernel has
    /// them, if that is wished for.
    pub fn serve(
        path: PathBuf,
        source: &Path,
        face: Arc<dyn Face>,
        runtime: Handle,
        by_rings: bool,
    ) -> Result<Mount, MountError> {
        // What others change the client has the kernel forget; on its own guesses the kernel would drop what is good.
        let wishes = Wishes { alone: true, ..Wishes::default() };
        let by_rings = by_rings && rustix::process::geteuid().is_root();
        let memory = by_rings.then(|| fuse_ring::prepare(wishes.request_bytes_max)).flatten();
        let wishes = Wishes { io_uring: memory.is_some(), ..wishes };
        let options = MountOptions {
            uid: rustix::process::getuid().as_raw(),
            gid: rustix::process::getgid().as_raw(),
            allow_other: rustix::process::getuid().is_root(),
            read_bytes_max: wishes.request_bytes_max,
        };
        let device = mount::mount(&path, source, options)?;
        let refused = |reason: String| MountError::Refused(path.clone(), reason);
        let session = shake_hands(&device, &wishes).map_err(refused)?;
        mount::raise_read_ahead(&path, READ_AHEAD_KIB);
        let word = Word::new().map_err(|error| refused(format!("no room for its guard's word: {error}")))?;
        if rustix::process::geteuid().is_root() {
            guard::start(&path, &word).map_err(|error| refused(format!("its guard cannot be started: {error}")))?;
        }
        // Whom only fusermount3 lets at the device shares one queue among all threads.
        let clones: Vec<_> = (1..SERVING_THREADS).map_while(|_| clone_device(&device).ok()).collect();
        let devices = [device].into_iter().chain(clones).collect();
        let memory = memory.filter(|_| session.has_rings());
        let mount = Mount::begin((path, word), (devices, session), memory, (face, runtime))?;
        mount.begin_rings()?;
        Ok(mount)
    }

    /// Serves a mount on, with what the process before has not answered.
    pub fn adopt(claimed: ClaimedMount, face: Arc<dyn Face>, runtime: Handle) -> Result<Mount, MountError> {
        // Before anything is read here: the kernel would send again what is being answered, too, and that would be done twice.
        let ClaimedMount { path, devices, session, rings, word } = claimed;
        if let Some(device) = devices.first().filter(|_| session.can_resend()) {
            reply(device, &Notification::Resend.encode());
        }
        let memory = rings.map(|(shape, memory)| EntryMemory::adopt(shape, memory)).transpose();
        let memory =
            memory.map_err(|error| MountError::Refused(path.clone(), format!("its requests are lost: {error}")))?;
        let mount = Mount::begin((path, word), (devices, session), memory, (face, runtime))?;
        mount.begin_rings()?;
        mount.rings.iter().for_each(Rings::fetch_waiting);
        Ok(mount)
    }

    fn begin(
        (path, word): (PathBuf, Word),
        (devices, session): (Vec<OwnedFd>, Session),
        memory: Option<EntryMemory>,
        (face, runtime): (Arc<dyn Face>, Handle),
    ) -> Result<Mount, MountError> {
        let refused = |reason: String| MountError::Refused(path.clone(), reason);
        let gate = Gate::new().map_err(|error| refused(format!("no room for its gate: {error}")))?;
        let gate = Arc::new(gate);
        let server = Arc::new(Server {
            face: face.clone(),
            gate: gate.clone(),
            runtime,
            dialect: session.dialect(),
            pool: Arc::new(BufferPool::new(device::buffer_bytes(session.request_bytes_max), REQUEST_IDLE_BYTES_MAX)),
        });
        let descriptors = devices.iter().map(AsRawFd::as_raw_fd).collect();
        let devices: Vec<Arc<OwnedFd>> = devices.into_iter().map(Arc::new).collect();
        let rings = memory.map(|memory| Rings::new(memory, devices[0].clone(), server.clone(), &path));
        let (served, later) = (Arc::downgrade(&devices[0]), server.runtime.clone());
        let mut running = Vec::with_capacity(SERVING_THREADS);
        for number in 0..SERVING_THREADS {
            let own = devices.get(number).unwrap_or(&devices[0]).clone();
            let server = server.clone();
            let thread = std::thread::Builder::new().name(format!("fuse-{number}")).spawn(move || server.run(&own));
            running.push(thread.map_err(|error| refused(format!("no thread could be started: {error}")))?);
        }
        let (leaving, ended) = (AtomicBool::new(false), AtomicBool::new(false));
        let threads = Mutex::new(running);
        Ok(Mount {
            path,
            device: served,
            runtime: later,
            face,
            session,
            gate,
            rings,
            threads,
            leaving,
            ended,
            descriptors,
            word,
        })
    }

    /// The kernel keeps all requests until its rings are served.
    fn begin_rings(&self) -> Result<(), MountError> {
        let Some(Err(error)) = self.rings.as_ref().map(Rings::serve) else { return Ok(()) };
        // Nobody has seen it yet, and nobody would be answered.
        let _ = self.unmount(Users::Dismiss);
        Err(MountError::Refused(self.path.clone(), format!("its requests cannot be served: {error}")))
    }

    /// Takes no more requests, so that another process can: returns when all that were taken are answered, but for those that
    /// wait for other programs and are sent again. False if they are not within `patience`; then, and if the other process does
    /// not come, [`Mount::go_on`].
    pub async fn hold(&self, patience: Duration) -> bool {
        self.gate.hold();
        self.face.leave_waits(self.session.can_resend());
        let until = Instant::now() + patience;
        while self.gate.under_way() > self.face.left() {
            if Instant::now() >= until {
                return false;
            }
            tokio::time::sleep(LOOK_AT_GATE).await;
        }
        match &self.rings {
            Some(rings) => rings.leave(until).await,
            None => true,
        }
    }

    /// Takes requests again.
    pub fn go_on(&self) {
        self.face.take_waits();
        self.gate.open();
        let Some(rings) = &self.rings else { return };
        if rings.are_served() {
            rings.go_on();
        } else if let Err(error) = rings.serve() {
            // Programs would wait for ever.
            error!(%error, "the mount's requests cannot be served any more; the daemon ends");
            std::process::abort();
        } else {
            rings.fetch_waiting();
        }
    }

    /// What the next process needs to serve it on.
    pub fn bequeath(&self) -> (LeftMount, FaceHeritage) {
        let Mount { path, session, .. } = self;
        let rings = self.rings.as_ref().map(Rings::bequeath);
        let descriptors = self.descriptors.iter().copied().chain(rings.map(|(_, memory)| memory));
        let descriptors = descriptors.chain([self.word.descriptor()]).collect();
        let left =
            LeftMount { path: path.clone(), descriptors, session: *session, rings: rings.map(|(shape, _)| shape) };
        (left, self.face.bequeath())
    }

    /// Gives the guard the word that until then, counted from a moment that has been, this daemon takes care of what the kernel
    /// has in memory.
    pub fn vouch(&self, from: Tick, time: Duration) {
        if let Err(error) = self.word.give(from, time) {
            warn!(%error, "the guard of the mount was not told that this daemon runs");
        }
    }

    /// Unmounts. A mount in use stays, unless its users are to be dismissed.
    pub fn unmount(&self, users: Users) -> Result<(), UnmountError> {
        self.leaving.store(true, Ordering::Release);
        let unmount = || mount::unmount(&self.path, users);
        let is_used = |outcome: &Result<(), UnmountError>| matches!(outcome, Err(UnmountError::InUse(_)));
        let unmounted = asking::again_while_asked(&self.path, unmount, is_used);
        self.leaving.store(unmounted.is_ok(), Ordering::Release);
        unmounted
    }

    /// Whether programs use it.
    pub fn is_used(&self) -> bool {
        !self.has_ended() && asking::again_while_asked(&self.path, || mount::is_used(&self.path), |is_used| *is_used)
    }

    /// Whether this daemon unmounts by itself.
    pub fn is_leaving(&self) -> bool {
        self.leaving.load(Ordering::Acquire)
    }

    /// Whether no thread serves any more.
    pub fn has_ended(&self) -> bool {
        self.ended.load(Ordering::Acquire)
    }

    /// Passes on what the face alone knows, once the mount has ended or is held.
    pub async fn settle(&self) {
        assert!(self.has_ended() || self.gate.is_held(), "requests may still come");
        self.face.settle().await;
    }

    /// Waits until the mount has ended, whoever ends it. All who wait return then.
    pub fn wait(&self) {
        let mut threads = self.threads.lock().unwrap_or_else(PoisonError::into_inner);
        for thread in threads.drain(..) {
            if thread.join().is_err() {
                warn!("a serving thread panicked");
            }
        }
        self.rings.iter().for_each(Rings::wait);
        self.ended.store(true, Ordering::Release);
    }
}

impl fuse::Notifier for Mount {
    /// The kernel may make the writer wait for calls that are being served: so it is none of the serving threads.
    fn tell(&self, notifications: Vec<Notification>) -> BoxFuture<'static, Told> {
        let device = self.device.clone();
        telling::tell(&self.runtime, move || {
            let Some(device) = device.upgrade() else { return };
            notifications.iter().for_each(|notification| reply(&device, &notification.encode()));
        })
    }

    fn forgets_names(&self) -> bool {
        self.session.can_increment_epoch()
    }
}

/// What all threads that serve a mount share.
pub(super) struct Server {
    pub(super) face: Arc<dyn Face>,
    pub(super) gate: Arc<Gate>,
    pub(super) runtime: Handle,
    pub(super) dialect: Dialect,
    pool: Arc<BufferPool>,
}

impl Server {
    fn run(&self, device: &Arc<OwnedFd>) {
        blocking::serve_here();
        let _entered = self.runtime.enter();
        let mut buffer = self.pool.take();
        // Without it every read sleeps at once: slower, and right.
        let _ = rustix::io::ioctl_fionbio(device, true);
        loop {
            let passage = self.gate.pass();
            // Who waited for a disk takes what came meanwhile, which wakes nobody, before it stands by.
            let at_once = if blocking::is_reader() { Err(Errno::AGAIN) } else { read_now(device, &mut buffer) };
            let next = match at_once {
                Err(Errno::AGAIN) => {
                    drop(passage);
                    blocking::await_turn();
                    self.next_request(device, &mut buffer)
                }
                other => other.map(|count| (passage, count)),
            };
            match next {
                Ok((passage, count)) => buffer = self.serve(device, buffer, count, passage),
                Err(Errno::INTR | Errno::AGAIN | Errno::NOENT) => {}
                // Unmounted, by us or by somebody else.
                Err(Errno::NODEV) => break,
                Err(error) => {
                    warn!(%error, "reading from the FUSE device failed; this thread stops serving");
                    break;
                }
            }
        }
        blocking::retire();
    }

    /// Reads a request. A program that has its answer often asks again at once, sooner than a sleeping thread could be woken,
    /// so the device is looked at for a moment before sleeping.
    fn next_request(&self, device: &OwnedFd, buffer: &mut Buffer) -> Result<(Passage, usize), Errno> {
        let mut begun = Instant::now();
        let mut passage = self.gate.pass();
        loop {
            match read_now(device, buffer) {
                Err(Errno::AGAIN) if begun.elapsed() < LOOK_BEFORE_SLEEP => std::hint::spin_loop(),
                Err(Errno::AGAIN) => {
                    drop(passage);
                    self.gate.sleep(device)?;
                    (begun, passage) = (Instant::now(), self.gate.pass());
                }
                other => return other.map(|count| (passage, count)),
            }
        }
    }

    /// Answers one request, and returns the buffer for the next: the same one, unless the request's payload fills it.
    fn serve(&self, device: &Arc<OwnedFd>, buffer: Buffer, count: usize, passage: Passage) -> Buffer {
        let read = READ_OFFSET..READ_OFFSET + count;
        // What is kept of a buffer keeps all of it, and a third more than it is counted as may be in memory.
        let (bytes, next) = if count >= self.pool.buffer_bytes / 4 * 3 {
            (Bytes::from_owner(buffer).slice(read), self.pool.take())
        } else {
            (Bytes::copy_from_slice(&buffer.bytes()[read]), buffer)
        };
        match Request::parse(bytes, self.dialect) {
            Ok(request) => self.answer(device, request, passage),
            Err(malformed) => {
                warn!(?malformed, "the kernel sent a request that does not parse");
                malformed.reply().into_iter().for_each(|frame| reply(device, &frame));
            }
        }
        next
    }

    fn answer(&self, device: &Arc<OwnedFd>, request: Request, passage: Passage) {
        let mut answer = self.face.answer(request);
        match answer.as_mut().poll(&mut Context::from_waker(Waker::noop())) {
            Poll::Ready(frame) => frame.into_iter().for_each(|frame| reply(device, &frame)),
            Poll::Pending => {
                let device = device.clone();
                self.runtime.spawn(async move {
                    if let Some(frame) = answer.await {
                        reply(&device, &frame);
                    }
                    drop(passage);
                });
            }
        }
    }
}

/// Reads a request that is there.
fn read_now(device: &OwnedFd, buffer: &mut Buffer) -> Result<usize, Errno> {
    rustix::io::read(device, &mut buffer.bytes_mut()[READ_OFFSET..])
}

/// Writes an answer. A request that was interrupted or whose mount is gone needs none.
fn reply(device: &OwnedFd, frame: &Frame) {
    match send(device, frame) {
        Ok(()) | Err(Errno::NOENT | Errno::NODEV) => {}
        Err(error) => warn!(%error, bytes = frame.size(), "the kernel refused an answer"),
    }
}

fn send(device: &OwnedFd, frame: &Frame) -> Result<(), Errno> {
    let slices: Vec<_> = frame.slices().map(IoSlice::new).collect();
    let written = rustix::io::writev(device, &slices)?;
    assert_eq!(written, frame.size(), "the device takes whole frames");
    Ok(())
}

fn shake_hands(device: &OwnedFd, wishes: &Wishes) -> Result<Session, String> {
    let mut buffer = vec![0; device::buffer_bytes(wishes.request_bytes_max)];
    loop {
        let count = match rustix::io::read(device, &mut buffer) {
            Ok(count) => count,
            Err(Errno::INTR | Errno::AGAIN) => continue,
            Err(error) => return Err(format!("the kernel sent no handshake: {error}")),
        };
        let request = Request::parse(Bytes::copy_from_slice(&buffer[..count]), Dialect::default())
            .map_err(|malformed| format!("the kernel's handshake does not parse: {malformed:?}"))?;
        let Operation::Init(offer) = request.operation else {
            return Err("the kernel began with something else than a handshake".into());
        };
        let send = |frame| send(device, &frame).map_err(|error| format!("the handshake was refused: {error}"));
        match negotiate::negotiate(&offer, wishes) {
            Handshake::Agreed(session) => {
                send(session.reply(request.unique))?;
                return Ok(session);
            }
            Handshake::Again => send(negotiate::again(request.unique))?,
            Handshake::Refused => {
                send(negotiate::refused(request.unique))?;
                return Err(format!("the kernel speaks FUSE {}.{}, which is too old", offer.major, offer.minor));
            }
        }
    }
}

/// One more descriptor of the same mount, with a queue of its own.
fn clone_device(device: &OwnedFd) -> Result<OwnedFd, Errno> {
    let clone = mount::open_device()?;
    let original = device.as_raw_fd() as u32;
    // SAFETY: the request number is FUSE_DEV_IOC_CLONE, which reads one u32 through the pointer and writes nothing.
    unsafe {
        let request = rustix::ioctl::Setter::<{ IOC_CLONE as rustix::ioctl::Opcode }, u32>::new(original);
        rustix::ioctl::ioctl(&clone, request)?;
    }
    Ok(clone)
}
