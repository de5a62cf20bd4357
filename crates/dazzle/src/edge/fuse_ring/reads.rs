//! Reads of targets by the thread that serves a queue: the disk answers to the processor on which the program waits, and no
//! thread is woken in between. The thread never sleeps in a read; it goes on with other requests.

use std::cell::RefCell;
use std::os::fd::{AsRawFd, BorrowedFd};
use std::pin::Pin;
use std::rc::Rc;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::{Context, Poll, Waker};

use io_uring::squeue::Entry128;
use io_uring::{opcode, types};
use rustix::io::Errno;

use super::super::buffers::ReadBuffer;

thread_local! {
    static DESK: RefCell<Option<Rc<RefCell<Desk>>>> = const { RefCell::new(None) };
}

/// The reads of one thread.
#[derive(Default)]
pub(super) struct Desk {
    /// To be submitted.
    asked: Vec<Entry128>,
    /// By number; those that are over leave a place.
    under_way: Vec<Option<Arc<Reading>>>,
}

/// One read.
struct Reading(Mutex<State>);

struct State {
    /// Given back with the outcome.
    buffer: Option<ReadBuffer>,
    outcome: Option<Result<usize, Errno>>,
    waker: Option<Waker>,
    /// Keeps the file open that is read from.
    file: Option<Arc<dyn Send + Sync>>,
}

/// A read, as who asked for it waits for it. May be dropped: then nobody hears of its end.
pub(in crate::edge) struct Read(Arc<Reading>);

/// Begins to read into `buffer`, behind its first `filled` bytes and up to `length`, from a place in a file, which `kept` keeps
/// open. Gives the buffer back where the current thread serves no queue.
pub(in crate::edge) fn begin(
    buffer: ReadBuffer,
    (filled, length): (usize, usize),
    place: (BorrowedFd<'_>, u64),
    kept: Arc<dyn Send + Sync>,
) -> Result<Read, ReadBuffer> {
    let Some(desk) = DESK.with_borrow(Clone::clone) else { return Err(buffer) };
    Ok(desk.borrow_mut().begin(buffer, (filled, length), place, kept))
}

impl Desk {
    /// The desk of the current thread, which serves a queue from now on.
    pub(super) fn open() -> Rc<RefCell<Desk>> {
        let desk = Rc::<RefCell<Desk>>::default();
        DESK.set(Some(desk.clone()));
        desk
    }

    fn begin(
        &mut self,
        mut buffer: ReadBuffer,
        (filled, length): (usize, usize),
        (file, offset): (BorrowedFd<'_>, u64),
        kept: Arc<dyn Send + Sync>,
    ) -> Read {
        let room = &mut buffer.bytes_mut()[filled..length];
        let bytes = u32::try_from(room.len()).expect("a read is of some megabytes at most");
        let command = opcode::Read::new(types::Fd(file.as_raw_fd()), room.as_mut_ptr(), bytes).offset(offset).build();
        let number = self.under_way.iter().position(Option::is_none).unwrap_or(self.under_way.len());
        // The buffer's memory does not move with it.
        let state = State { buffer: Some(buffer), outcome: None, waker: None, file: Some(kept) };
        let reading = Arc::new(Reading(Mutex::new(state)));
        if number == self.under_way.len() {
            self.under_way.push(None);
        }
        self.under_way[number] = Some(reading.clone());
        self.asked.push(command.user_data(number as u64).into());
        Read(reading)
    }

    /// What is to be submitted, each with the number of its read as its user data.
    pub(super) fn asked(&mut self) -> Vec<Entry128> {
        std::mem::take(&mut self.asked)
    }

    /// Whether the kernel still reads.
    pub(super) fn is_reading(&self) -> bool {
        self.under_way.iter().any(Option::is_some)
    }

    /// The kernel has ended a read.
    pub(super) fn end(&mut self, number: usize, result: i32) {
        let reading = self.under_way.get_mut(number).and_then(Option::take).expect("it is under way");
        let mut state = reading.state();
        state.outcome = Some(usize::try_from(result).map_err(|_| Errno::from_raw_os_error(-result)));
        state.file = None;
        let waker = state.waker.take();
        drop(state);
        waker.into_iter().for_each(Waker::wake);
    }
}

impl Reading {
    fn state(&self) -> MutexGuard<'_, State> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Future for Read {
    type Output = (ReadBuffer, Result<usize, Errno>);

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
