//! One processor's queue of requests, and the thread that serves it.
//!
//! Invariants
//! 1. An entry is *given* to the kernel, or *taken*: it holds a request whose answer is being made, or *left*: it holds one
//!    that nobody has begun to answer. A head names a request exactly when its entry is taken or left.
//! 2. Only this thread submits, so the kernel completes commands on this processor. It ends with the mount, or when no entry is
//!    given: of one that is, the kernel would lose the request that it is about to put there.
//! 3. The thread sleeps in one place, `io_uring_enter`, and never for a disk: an answer that waits is gone on with when it is
//!    woken.
//! 4. No frame with a guard is dropped before the kernel has the answer.

use std::cell::RefCell;
use std::io;
use std::os::fd::{AsRawFd, OwnedFd};
use std::rc::Rc;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering};
use std::task::{Context, Poll, Waker};

use bytes::Bytes;
use fuse::Frame;
use fuse::ring::{self, HEAD_BYTES};
use host::BoxFuture;
use io_uring::squeue::Entry128;
use io_uring::{IoUring, cqueue, opcode, types};
use rustix::io::Errno;
use rustix::thread::CpuSet;
use tokio::runtime::Handle;
use tracing::{error, warn};

use super::super::buffers::{IoBuffer, POOLED_MIN};
use super::super::fuse_device::Server;
use super::super::gate::Passage;
use super::bell::{Bell, EntryWaker};
use super::crowding::Watch;
use super::memory::{QueueMemory, Ranges};
use super::transfers::Desk;

/// Submissions that the ring has room for; more are submitted before.
const SUBMISSIONS: u32 = 64;
/// Completions that it has room for: all of a queue's entries and of a thread's reads; more the kernel keeps by itself.
const COMPLETIONS: u32 = 512;

/// What a completion is of: the upper half of its user data; the lower is a number.
const ENTRY: u64 = 1 << 32;
const BELL: u64 = 2 << 32;
const KIND: u64 = !(u32::MAX as u64);

type Ring = IoUring<Entry128, cqueue::Entry>;

/// A processor's queue, to be served.
pub(super) struct Queue {
    pub(super) shared: Arc<Shared>,
    pub(super) server: Arc<Server>,
    pub(super) memory: QueueMemory,
    pub(super) device: Arc<OwnedFd>,
}

/// What others see of it.
pub(super) struct Shared {
    /// The processor.
    pub(super) number: u16,
    pub(super) bell: Arc<Bell>,
    /// It is to end, and leave what it has not begun to answer.
    pub(super) leaving: AtomicBool,
    /// How many entries the kernel has.
    pub(super) given: AtomicU32,
    /// How many reads and writes of targets the thread has under way.
    pub(super) transfers: Arc<AtomicU32>,
    /// How many requests were answered.
    pub(super) answered: AtomicU64,
    /// There are to be more entries.
    pub(super) is_to_grow: AtomicBool,
    /// Called when the kernel has none: requests may wait there then. And whether it was called, and has not looked yet.
    pub(super) watch: Watch,
    pub(super) is_called: AtomicBool,
}

/// Entries that a queue begins with, and how many it gets at most, where calls wait for other programs.
pub(super) const ENTRIES_FIRST: u32 = 8;
pub(super) const ENTRIES_MAX: u32 = 256;

struct Serving {
    queue: Queue,
    ring: Ring,
    desk: Rc<RefCell<Desk>>,
    entries: Vec<Entry>,
    /// To be submitted.
    asked: Vec<Entry128>,
    /// Frames with a guard, which the kernel has with the next submission.
    guarded: Vec<Frame>,
    bell_is_asked: bool,
    /// The mount is gone.
    ended: bool,
}

struct Entry {
    ranges: Box<Ranges>,
    state: State,
    waker: Waker,
}

enum State {
    Given,
    Left,
    Taken(BoxFuture<'static, Option<Frame>>, Passage),
    /// The kernel takes it no more.
    Ended,
}

impl Queue {
    /// Begins, on the thread that goes on with [`run`](Self::run).
    pub(super) fn begin(self) -> io::Result<impl FnOnce()> {
        let mut own = CpuSet::new();
        own.set(usize::from(self.shared.number));
        // Where this process may not choose, requests are answered from another processor.
        let _ = rustix::thread::sched_setaffinity(None, &own);
        let ring = new_ring()?;
        self.shared.bell.is_own();
        let mut serving = Serving {
            ring,
            desk: Desk::open(self.shared.transfers.clone()),
            entries: Vec::new(),
            asked: Vec::new(),
            guarded: Vec::new(),
            bell_is_asked: false,
            ended: false,
            queue: self,
        };
        serving.give_first();
        serving.submit()?;
        Ok(move || serving.run())
    }
}

/// A ring as queues need it: an error tells that this kernel, or its settings, have none.
pub(super) fn new_ring() -> io::Result<Ring> {
    let mut builder = Ring::builder();
    builder.setup_cqsize(COMPLETIONS).setup_single_issuer().setup_coop_taskrun();
    builder.build(SUBMISSIONS)
}

impl Serving {
    /// Gives the kernel its first entries, but for those that hold a request of the process before.
    fn give_first(&mut self) {
        for _ in 0..ENTRIES_FIRST {
            self.add_entry();
        }
        // Those that had been added before, and held a request when the process before ended.
        let last = (ENTRIES_FIRST..ENTRIES_MAX).rev().find(|&index| self.held(index) != 0).unwrap_or(0);
        while self.entries.len() as u32 <= last {
            self.add_entry();
        }
    }

    fn add_entry(&mut self) {
        let index = self.entries.len() as u32;
        let ranges = Box::new(self.queue.memory.ranges(index));
        let waker = Waker::from(Arc::new(EntryWaker { bell: self.queue.shared.bell.clone(), entry: index }));
        let is_left = self.held(index) != 0;
        self.entries.push(Entry { ranges, state: State::Left, waker });
        if !is_left {
            self.register(index);
        }
    }

    /// The request that an entry holds; 0 for none.
    fn held(&mut self, index: u32) -> u64 {
        // SAFETY: the entry was not given away yet.
        ring::commit(unsafe { self.queue.memory.entry(index) }.0)
    }

    fn register(&mut self, index: u32) {
        let queue = self.queue.shared.number;
        let command = self.command(ring::REGISTER, 0, (queue, &self.entries[index as usize].ranges));
        self.give(index, command);
    }

    fn give(&mut self, index: u32, command: Entry128) {
        self.asked.push(command.user_data(ENTRY | u64::from(index)));
        // Before it is not taken any more: whoever ends this looks at both.
        self.queue.shared.given.fetch_add(1, Ordering::AcqRel);
        self.entries[index as usize].state = State::Given;
    }

    fn command(&self, what: u32, commit: u64, (queue, ranges): (u16, &Ranges)) -> Entry128 {
        let device = types::Fd(self.queue.device.as_raw_fd());
        let command = opcode::UringCmd80::new(device, what).cmd(ring::command(commit, queue));
        let mut command = command.addr(Some(std::ptr::from_ref(ranges) as u64)).build();
        const LENGTH_AT: usize = 24;
        // SAFETY: a submission is 128 bytes of plain numbers, and the length, which the library leaves 0, is the u32 at 24.
        unsafe { std::ptr::from_mut(&mut command).cast::<u8>().add(LENGTH_AT).cast::<u32>().write_unaligned(2) };
        command
    }

    fn run(mut self) {
        let runtime = self.queue.server.runtime.clone();
        let _entered = runtime.enter();
        self.take_left();
        while !self.is_over() {
            let slept = self.submit_and_sleep();
            self.hear_completions();
            self.go_on_with_woken();
            if let Err(error) = slept {
                // Programs would wait for ever for what this queue does not answer; if the daemon ends, they get an error.
                error!(%error, "io_uring failed, by which programs ask; the daemon ends");
                std::process::abort();
            }
        }
        // The kernel gets what it has not, and guards are dropped.
        if let Err(error) = self.submit() {
            warn!(%error, "the last answers could not be given");
        }
        self.finish(&runtime);
    }

    /// Nothing is to be heard any more: the mount has ended, or another process goes on with what waits.
    fn is_over(&self) -> bool {
        (self.ended || self.is_leaving()) && !self.desk.borrow().is_busy()
    }

    fn is_leaving(&self) -> bool {
        self.queue.shared.leaving.load(Ordering::Acquire)
    }

    /// What is still under way when the mount has ended is brought to its end; what is left to another process is dropped.
    fn finish(&mut self, runtime: &Handle) {
        for entry in self.entries.drain(..).filter(|_| self.ended) {
            if let State::Taken(answer, passage) = entry.state {
                runtime.spawn(async move {
                    answer.await;
                    drop(passage);
                });
            }
        }
    }

    fn take_left(&mut self) {
        for index in 0..self.entries.len() as u32 {
            if matches!(self.entries[index as usize].state, State::Left) {
                self.take(index);
            }
        }
    }

    /// Hands everything to the kernel, and drops the guards of what it has then.
    fn submit(&mut self) -> io::Result<()> {
        self.push_all()?;
        passing(self.ring.submit())?;
        if self.asked.is_empty() && self.ring.submission().is_empty() {
            self.guarded.clear();
        }
        Ok(())
    }

    fn submit_and_sleep(&mut self) -> io::Result<()> {
        if !self.bell_is_asked {
            let event = types::Fd(self.queue.shared.bell.event.as_raw_fd());
            let heard = opcode::PollAdd::new(event, libc::POLLIN as u32).build();
            self.asked.push(heard.user_data(BELL).into());
            self.bell_is_asked = true;
        }
        if !self.guarded.is_empty() {
            self.submit()?;
        }
        self.push_all()?;
        // Guards that were dropped above may have woken one here, for which nobody rings.
        let completions = if self.queue.shared.bell.is_anyone_woken() { 0 } else { 1 };
        passing(self.ring.submit_and_wait(completions))
    }

    /// Fills the ring; what it has no room for, because the kernel takes nothing just now, goes with the next submission.
    fn push_all(&mut self) -> io::Result<()> {
        self.asked.append(&mut self.desk.borrow_mut().asked());
        let mut pushed = 0;
        while pushed < self.asked.len() {
            // SAFETY: the memory that a command names lives until it is completed: entries as long as the mount, that of a
            // transfer as long as the desk has it under way.
            if unsafe { self.ring.submission().push(&self.asked[pushed]) }.is_ok() {
                pushed += 1;
                continue;
            }
            passing(self.ring.submit())?;
            if self.ring.submission().is_full() {
                break;
            }
        }
        self.asked.drain(..pushed);
        Ok(())
    }

    fn hear_completions(&mut self) {
        loop {
            let Some(completion) = self.ring.completion().next() else { return };
            let number = completion.user_data() & !KIND;
            match completion.user_data() & KIND {
                ENTRY => self.hear_entry(number as u32, completion.result()),
                BELL => {
                    self.bell_is_asked = false;
                    self.queue.shared.bell.fell_silent();
                    self.look_around();
                }
                _ => self.desk.borrow_mut().end(number as usize, completion.result()),
            }
        }
    }

    fn hear_entry(&mut self, index: u32, result: i32) {
        self.queue.shared.given.fetch_sub(1, Ordering::AcqRel);
        match result {
            0 => {
                self.entries[index as usize].state = State::Left;
                self.take(index);
            }
            error => {
                self.entries[index as usize].state = State::Ended;
                let error = Errno::from_raw_os_error(-error);
                self.ended |= matches!(error, Errno::NOTCONN | Errno::CONNABORTED | Errno::NODEV);
                if !self.ended {
                    warn!(%error, "the kernel refused an answer, or an entry");
                }
                // It knows no such request any more; to what else is wrong with an entry another one comes to no better end.
                if error == Errno::NOENT {
                    self.replace(index);
                }
            }
        }
    }

    /// Memory that an entry lay in which the kernel does not take any more is given to it as another one.
    fn replace(&mut self, index: u32) {
        // SAFETY: the kernel does not have it.
        ring::forget(unsafe { self.queue.memory.entry(index) }.0);
        self.register(index);
    }

    /// Begins to answer what an entry holds, unless others are to.
    fn take(&mut self, index: u32) {
        if self.is_leaving() {
            return;
        }
        let Some(passage) = self.queue.server.gate.try_pass() else { return };
        // SAFETY: the kernel has given it back, with a request.
        let (head, room) = unsafe { self.queue.memory.entry(index) };
        let payload = copied(&room[..ring::payload_bytes(head).min(room.len())]);
        match ring::request(head, payload, self.queue.server.dialect) {
            Ok(request) => {
                let answer = self.queue.server.face.answer(request);
                self.entries[index as usize].state = State::Taken(answer, passage);
                self.go_on_with(index);
            }
            Err(malformed) => {
                warn!(?malformed, "the kernel sent a request that does not parse");
                let frame = malformed.reply().unwrap_or_else(|| nameless(head));
                self.answer(index, frame);
            }
        }
        if self.queue.shared.given.load(Ordering::Acquire) == 0 {
            self.queue.shared.watch.look_at(&self.queue.shared);
        }
    }

    /// Rung for by others than those who wake an answer, perhaps.
    fn look_around(&mut self) {
        if self.queue.shared.is_to_grow.swap(false, Ordering::AcqRel) {
            let count = self.entries.len() as u32;
            for _ in count..(count * 2).min(ENTRIES_MAX) {
                self.add_entry();
            }
        }
        self.take_left();
    }

    fn go_on_with_woken(&mut self) {
        loop {
            let woken = self.queue.shared.bell.woken();
            if woken.is_empty() {
                return;
            }
            woken.into_iter().for_each(|index| self.go_on_with(index));
        }
    }

    fn go_on_with(&mut self, index: u32) {
        let entry = &mut self.entries[index as usize];
        // Who is woken late may find another request there, and looks at that once too often.
        let State::Taken(answer, _) = &mut entry.state else { return };
        if let Poll::Ready(frame) = answer.as_mut().poll(&mut Context::from_waker(&entry.waker)) {
            // SAFETY: as in `take`: the request was not answered yet.
            let head = unsafe { self.queue.memory.entry(index) }.0;
            // The kernel expects an answer to all that comes this way.
            let frame = frame.unwrap_or_else(|| nameless(head));
            self.answer(index, frame);
        }
    }

    /// Answers what an entry holds, and gives the entry to the kernel.
    fn answer(&mut self, index: u32, frame: Frame) {
        let number = self.queue.shared.number;
        // SAFETY: as in `take`: this is the answer.
        let (head, room) = unsafe { self.queue.memory.entry(index) };
        let commit = ring::commit(head);
        ring::answer(&frame, head, room);
        ring::forget(head);
        let command = self.command(ring::COMMIT_AND_FETCH, commit, (number, &self.entries[index as usize].ranges));
        self.give(index, command);
        self.guarded.extend(Some(frame).filter(Frame::is_guarded));
        self.queue.shared.answered.fetch_add(1, Ordering::AcqRel);
    }
}

/// What passes by itself is no failure: a signal, or completions that are to be heard first.
fn passing(outcome: io::Result<usize>) -> io::Result<()> {
    match outcome {
        Err(error) if !matches!(error.raw_os_error(), Some(libc::EINTR | libc::EBUSY | libc::EAGAIN)) => Err(error),
        _ => Ok(()),
    }
}

/// The answer to what has none.
fn nameless(head: &[u8; HEAD_BYTES]) -> Frame {
    fuse::reply::error(fuse::operation::Unique(ring::commit(head)), fuse::Errno::EIO)
}

/// A payload that outlives its answer.
fn copied(payload: &[u8]) -> Bytes {
    if payload.len() < POOLED_MIN {
        return Bytes::copy_from_slice(payload);
    }
    let mut buffer = IoBuffer::new(payload.len());
    buffer.bytes_mut()[..payload.len()].copy_from_slice(payload);
    buffer.into_bytes(payload.len())
}
