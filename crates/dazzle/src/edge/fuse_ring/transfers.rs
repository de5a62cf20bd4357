//! Reads and durable writes of targets by the thread that serves a queue: the disk answers to the processor on which the
//! program waits, and no thread is woken in between. The thread never sleeps in one; it goes on with other requests.

use std::cell::RefCell;
use std::os::fd::{AsRawFd, BorrowedFd};
use std::pin::Pin;
use std::rc::Rc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::{Context, Poll, Waker};

use io_uring::squeue::{Entry, Entry128};
use io_uring::{opcode, types};
use rustix::io::Errno;

use super::super::buffers::IoBuffer;

thread_local! {
    static DESK: RefCell<Option<Rc<RefCell<Desk>>>> = const { RefCell::new(None) };
}

/// The transfers of one thread.
pub(super) struct Desk {
    /// To be submitted.
    asked: Vec<Entry128>,
    /// By number; those that are over leave a place.
    under_way: Vec<Option<Arc<Transferring>>>,
    /// How many, for others to see.
    count: Arc<AtomicU32>,
}

/// One read or write.
struct Transferring(Mutex<State>);

struct State {
    /// Given back with the outcome.
    buffer: Option<IoBuffer>,
    outcome: Option<Result<usize, Errno>>,
    waker: Option<Waker>,
    /// Keeps the file open.
    file: Option<Arc<dyn Send + Sync>>,
}

/// A transfer, as who asked for it waits for it. May be dropped: then nobody hears of its end.
pub(in crate::edge) struct Transfer(Arc<Transferring>);

/// Begins to read into `buffer`, behind its first `filled` bytes and up to `length`, from a place in a file, which `kept` keeps
/// open. Gives the buffer back where the current thread serves no queue.
pub(in crate::edge) fn read(
    mut buffer: IoBuffer,
    (filled, length): (usize, usize),
    (file, offset): (BorrowedFd<'_>, u64),
    kept: Arc<dyn Send + Sync>,
) -> Result<Transfer, IoBuffer> {
    let Some(desk) = DESK.with_borrow(Clone::clone) else { return Err(buffer) };
    let room = &mut buffer.bytes_mut()[filled..length];
    let command = opcode::Read::new(types::Fd(file.as_raw_fd()), room.as_mut_ptr(), bytes_of(room.len()));
    Ok(desk.borrow_mut().begin(command.offset(offset).build(), buffer, kept))
}

/// Begins to write the first `length` bytes of `buffer`, durably; else the same.
pub(in crate::edge) fn write_durably(
    mut buffer: IoBuffer,
    length: usize,
    (file, offset): (BorrowedFd<'_>, u64),
    kept: Arc<dyn Send + Sync>,
) -> Result<Transfer, IoBuffer> {
    let Some(desk) = DESK.with_borrow(Clone::clone) else { return Err(buffer) };
    let bytes = &buffer.bytes_mut()[..length];
    let command = opcode::Write::new(types::Fd(file.as_raw_fd()), bytes.as_ptr(), bytes_of(length));
    Ok(desk.borrow_mut().begin(command.offset(offset).rw_flags(libc::RWF_DSYNC).build(), buffer, kept))
}

fn bytes_of(length: usize) -> u32 {
    u32::try_from(length).expect("a transfer is of some megabytes at most")
}

impl Desk {
    /// The desk of the current thread, which serves a queue from now on.
    pub(super) fn open(count: Arc<AtomicU32>) -> Rc<RefCell<Desk>> {
        let desk = Rc::new(RefCell::new(Desk { asked: Vec::new(), under_way: Vec::new(), count }));
        DESK.set(Some(desk.clone()));
        desk
    }

    /// Has `command` submitted, which names memory of `buffer`.
    fn begin(&mut self, command: Entry, buffer: IoBuffer, kept: Arc<dyn Send + Sync>) -> Transfer {
        let number = self.under_way.iter().position(Option::is_none).unwrap_or(self.under_way.len());
        // The buffer's memory does not move with it.
        let state = State { buffer: Some(buffer), outcome: None, waker: None, file: Some(kept) };
        let transferring = Arc::new(Transferring(Mutex::new(state)));
        if number == self.under_way.len() {
            self.under_way.push(None);
        }
        self.count.fetch_add(1, Ordering::AcqRel);
        self.under_way[number] = Some(transferring.clone());
        self.asked.push(command.user_data(number as u64).into());
        Transfer(transferring)
    }

    /// What is to be submitted, each with the number of its transfer as its user data.
    pub(super) fn asked(&mut self) -> Vec<Entry128> {
        std::mem::take(&mut self.asked)
    }

    /// Whether the kernel still reads or writes.
    pub(super) fn is_busy(&self) -> bool {
        self.under_way.iter().any(Option::is_some)
    }

    /// The kernel has ended a transfer.
    pub(super) fn end(&mut self, number: usize, result: i32) {
        let transferring = self.under_way.get_mut(number).and_then(Option::take).expect("it is under way");
        self.count.fetch_sub(1, Ordering::AcqRel);
        let mut state = transferring.state();
        state.outcome = Some(usize::try_from(result).map_err(|_| Errno::from_raw_os_error(-result)));
        state.file = None;
        let waker = state.waker.take();
        drop(state);
        waker.into_iter().for_each(Waker::wake);
    }
}

impl Transferring {
    fn state(&self) -> MutexGuard<'_, State> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Future for Transfer {
    type Output = (IoBuffer, Result<usize, Errno>);

    fn poll(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Self::Output> {
        let mut state = self.0.state();
        match state.outcome.take() {
            Some(outcome) => Poll::Ready((state.buffer.take().expect("it is given back once"), outcome)),
            None => {
                state.waker = Some(context.waker().clone());
                Poll::Pending
            }
        }
    }
}
