//! What waits to be sent on one connection, and the sending. Pings go ahead, then what is light: questions with large
//! answers, and the answers to large requests. They would wait for seconds behind megabytes that go the same way, and
//! whoever waits for them has nothing under way meanwhile. They get half of what is written at once, so that nothing waits
//! for ever. Else all is sent in order, but heavy answers go in the order of their questions, whichever was found first:
//! a reader asks for what it needs next ahead of the rest, and where links are shared each fragment before it costs a while.
//!
//! Who has something light to send while nothing else is being sent does it itself: to wake the connection's task, on another
//! processor, takes longer than the sending. What the kernel does not take at once is left to that task.
//!
//! Nothing bounds the queue here: requests are bounded by our window, answers by the peer's (`docs/format-network.md`,
//! *Flow*), and of pings and pongs there are only flags.

use std::collections::{BTreeMap, VecDeque};
use std::future::poll_fn;
use std::io::{self, IoSlice};
use std::pin::Pin;
use std::sync::Mutex;
use std::sync::atomic::{AtomicU64, Ordering};
use std::task::{Context, Poll, Waker, ready};

use bytes::{Buf, Bytes};
use tokio::io::AsyncWrite;
use tokio::sync::Notify;

use super::frame::{Kind, Outgoing};

/// How much is gathered before it is written: enough to fill TLS records, little enough for a ping to come between.
const BATCH_BYTES: usize = 256 << 10;
/// Frames of so many bytes are light: a page of names is, for which a call waits, and small pieces of data are not.
const LIGHT_BYTES_MAX: usize = 24 << 10;
/// So many bytes of light frames go in a batch before the first heavy one that waits.
const LIGHT_SHARE: usize = BATCH_BYTES / 2;
/// How many pieces are given to one write.
const PIECES_MAX: usize = 64;

/// The frames that wait.
#[derive(Default)]
pub(super) struct Outbound {
    queue: Mutex<Queue>,
    filled: Notify,
    sent: AtomicU64,
    /// Taken before the queue, never after; and held for no longer than the kernel takes to copy.
    pen: Mutex<Pen>,
}

/// What writes, and what it has taken from the queue.
#[derive(Default)]
struct Pen {
    write: Option<Box<dyn AsyncWrite + Send + Unpin>>,
    pieces: VecDeque<Bytes>,
    /// What was written may wait in a buffer yet.
    unflushed: bool,
    broken: Option<io::Error>,
}

#[derive(Debug, Default)]
struct Queue {
    light: VecDeque<Outgoing>,
    /// In order; `None` is the place of a heavy answer, and belongs to the oldest question's that waits.
    heavy: VecDeque<Option<Outgoing>>,
    /// Heavy answers, by their calls' numbers. The other end chose these, and may have chosen one twice: so by our count, too.
    answers: BTreeMap<(u64, u64), Outgoing>,
    /// How many heavy answers there have been.
    answered: u64,
    ping: bool,
    pong: bool,
    /// Whether a batch is being written, and whether a ping is in it.
    writing: bool,
    writing_ping: bool,
}

impl Outbound {
    /// Queues a frame; [`Outbound::send`] sends it, in time.
    pub(super) fn push(&self, frame: Outgoing) {
        let mut queue = self.queue.lock().expect("no panic while frames are queued");
        match frame.is_light() {
            true => queue.light.push_back(frame),
            false => queue.heavy.push_back(Some(frame)),
        }
    }

    /// Sends what is queued: at once, if that is little and nothing is under way.
    pub(super) fn send(&self) {
        if !self.send_at_once() {
            self.filled.notify_one();
        }
    }

    /// Sends the answer to the other end's call of this number, in time.
    pub(super) fn answer(&self, call: u64, frame: Outgoing) {
        self.queue_answer(call, frame);
        self.send();
    }

    fn queue_answer(&self, call: u64, frame: Outgoing) {
        let mut queue = self.queue.lock().expect("no panic while frames are queued");
        match frame.is_light() {
            true => queue.light.push_back(frame),
            false => {
                queue.heavy.push_back(None);
                let place = (call, queue.answered);
                queue.answers.insert(place, frame);
                queue.answered += 1;
            }
        }
    }

    /// Sends a ping, ahead of everything.
    pub(super) fn ping(&self) {
        self.change(|queue| queue.ping = true);
    }

    /// Answers a ping, or several, ahead of everything.
    pub(super) fn pong(&self) {
        self.change(|queue| queue.pong = true);
    }

    /// Bytes sent in all.
    pub(super) fn sent(&self) -> u64 {
        self.sent.load(Ordering::Relaxed)
    }

    /// Whether anything waits or is being written, and whether all pings have left.
    pub(super) fn waits(&self) -> (bool, bool) {
        let queue = self.queue.lock().expect("no panic while frames are queued");
        let is_empty = queue.light.is_empty() && queue.heavy.is_empty();
        let idle = is_empty && !queue.writing && !queue.ping && !queue.pong;
        (!idle, !queue.ping && !queue.writing_ping)
    }

    /// Writes whatever is queued, for as long as the connection lasts.
    pub(super) async fn send_all(&self, write: impl AsyncWrite + Send + Unpin + 'static) -> io::Error {
        self.pen.lock().expect("no panic while frames are written").write = Some(Box::new(write));
        loop {
            if let Err(error) = poll_fn(|context| self.poll_send(context)).await {
                return error;
            }
            self.filled.notified().await;
        }
    }

    /// Nothing is sent any more.
    pub(super) fn end(&self) {
        *self.pen.lock().expect("no panic while frames are written") = Pen::default();
    }

    fn change(&self, change: impl FnOnce(&mut Queue)) {
        change(&mut self.queue.lock().expect("no panic while frames are queued"));
        self.filled.notify_one();
    }

    /// Sends all that is queued.
    fn poll_send(&self, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        let mut pen = self.pen.lock().expect("no panic while frames are written");
        loop {
            ready!(self.poll_write(&mut pen, context))?;
            if !self.take(&mut pen.pieces) {
                return Poll::Ready(Ok(()));
            }
        }
    }

    /// Sends what is queued, if all of it is light and it can be done at once. False: the task is to look after it.
    fn send_at_once(&self) -> bool {
        // Who has the pen may have looked already.
        let Ok(mut pen) = self.pen.try_lock() else { return false };
        let is_light = || self.queue.lock().expect("no panic while frames are queued").heavy.is_empty();
        if pen.write.is_none() || !pen.is_clear() || !is_light() {
            return false;
        }
        self.take(&mut pen.pieces);
        match self.poll_write(&mut pen, &mut Context::from_waker(Waker::noop())) {
            Poll::Ready(Ok(())) => true,
            Poll::Ready(Err(error)) => {
                pen.broken = Some(error);
                false
            }
            // The task asks once more, and is woken when there is room.
            Poll::Pending => false,
        }
    }

    fn take(&self, pieces: &mut VecDeque<Bytes>) -> bool {
        let mut queue = self.queue.lock().expect("no panic while frames are queued");
        let bare = |kind| Bytes::from(Outgoing::bare(kind, 0, 0).head);
        queue.writing_ping = std::mem::take(&mut queue.ping);
        if queue.writing_ping {
            pieces.push_back(bare(Kind::Ping));
        }
        if std::mem::take(&mut queue.pong) {
            pieces.push_back(bare(Kind::Pong));
        }
        let mut bytes = 0;
        while bytes < BATCH_BYTES
            && let Some(frame) = queue.pop(bytes < LIGHT_SHARE)
        {
            bytes += frame.bytes();
            pieces.push_back(Bytes::from(frame.head));
            pieces.extend(frame.payloads);
        }
        queue.writing = !pieces.is_empty();
        queue.writing
    }

    /// Writes all that the pen has.
    fn poll_write(&self, pen: &mut Pen, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        let Pen { write: Some(write), pieces, unflushed, broken } = pen else { return Poll::Ready(Ok(())) };
        if let Some(error) = broken.take() {
            return Poll::Ready(Err(error));
        }
        while !pieces.is_empty() {
            let mut slices = [IoSlice::new(&[]); PIECES_MAX];
            let count = pieces.len().min(PIECES_MAX);
            slices.iter_mut().zip(pieces.iter()).for_each(|(slice, piece)| *slice = IoSlice::new(piece));
            let written = ready!(Pin::new(&mut *write).poll_write_vectored(context, &slices[..count]))?;
            if written == 0 {
                return Poll::Ready(Err(io::ErrorKind::WriteZero.into()));
            }
            self.sent.fetch_add(written as u64, Ordering::Relaxed);
            advance(pieces, written);
            *unflushed = true;
        }
        if *unflushed {
            ready!(Pin::new(&mut *write).poll_flush(context))?;
            *unflushed = false;
            let mut queue = self.queue.lock().expect("no panic while frames are queued");
            (queue.writing, queue.writing_ping) = (false, false);
        }
        Poll::Ready(Ok(()))
    }
}

impl Pen {
    fn is_clear(&self) -> bool {
        self.pieces.is_empty() && !self.unflushed && self.broken.is_none()
    }
}

impl Queue {
    /// The next frame; a light one, if there is any, where they go first, and else the other way round.
    fn pop(&mut self, light_first: bool) -> Option<Outgoing> {
        match light_first {
            true => self.light.pop_front().or_else(|| self.pop_heavy()),
            false => self.pop_heavy().or_else(|| self.light.pop_front()),
        }
    }

    fn pop_heavy(&mut self) -> Option<Outgoing> {
        let next = self.heavy.pop_front()?;
        Some(next.unwrap_or_else(|| self.answers.pop_first().expect("each answer has a place, and each place one").1))
    }
}

impl Outgoing {
    fn is_light(&self) -> bool {
        self.bytes() <= LIGHT_BYTES_MAX
    }
}

/// Drops the first `count` bytes.
fn advance(pieces: &mut VecDeque<Bytes>, mut count: usize) {
    while let Some(first) = pieces.front_mut() {
        let taken = count.min(first.len());
        first.advance(taken);
        count -= taken;
        if !first.is_empty() {
            return;
        }
        pieces.pop_front();
    }
    assert_eq!(count, 0, "no more is written than there was");
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;
    use std::time::Duration;

    use tokio::io::AsyncReadExt;

    use super::*;

    fn frame(name: u8, size: usize) -> Outgoing {
        Outgoing { head: vec![name], payloads: vec![Bytes::from(vec![name; size])] }
    }

    /// The names of what is sent, in order: once for each frame.
    fn sent(frames: impl IntoIterator<Item = (u8, usize)>) -> Vec<u8> {
        let outbound = Outbound::default();
        frames.into_iter().for_each(|(name, size)| outbound.push(frame(name, size)));
        names(&outbound)
    }

    fn names(outbound: &Outbound) -> Vec<u8> {
        let (mut names, mut pieces) = (Vec::new(), VecDeque::new());
        while outbound.take(&mut pieces) {
            names.extend(pieces.drain(..).step_by(2).map(|piece| piece[0]));
        }
        names
    }

    #[test]
    fn what_is_light_does_not_wait_behind_what_is_heavy() {
        assert_eq!(sent([(1, BATCH_BYTES), (2, BATCH_BYTES), (3, 10), (4, 10)]), [3, 4, 1, 2]);
    }

    #[test]
    fn what_was_asked_for_first_is_answered_first() {
        let outbound = Outbound::default();
        for call in [7, 3, 2] {
            outbound.queue_answer(call, frame(call as u8, BATCH_BYTES));
        }
        outbound.push(frame(100, BATCH_BYTES));
        outbound.queue_answer(1, frame(1, BATCH_BYTES));
        outbound.queue_answer(9, frame(9, 10));
        assert_eq!(names(&outbound), [9, 1, 2, 3, 100, 7], "a request keeps its place among the answers");
    }

    #[test]
    fn a_number_that_the_other_end_gave_to_two_calls_is_answered_twice() {
        let outbound = Outbound::default();
        for name in [1, 2] {
            outbound.queue_answer(7, frame(name, BATCH_BYTES));
        }
        assert_eq!(names(&outbound), [1, 2]);
    }

    #[tokio::test(start_paused = true)]
    async fn what_the_other_end_does_not_take_at_once_is_left_to_the_task() {
        let (near, mut far) = tokio::io::duplex(16);
        let outbound = Arc::new(Outbound::default());
        let sending = outbound.clone();
        let task = tokio::spawn(async move { sending.send_all(near).await });
        while outbound.pen.lock().unwrap().write.is_none() {
            tokio::task::yield_now().await;
        }
        outbound.push(frame(1, 5));
        assert!(outbound.send_at_once(), "nobody else sends, and there is room");
        assert_eq!(outbound.waits(), (false, true));
        outbound.push(frame(2, 100));
        assert!(!outbound.send_at_once(), "there is room for ten bytes");
        outbound.push(frame(3, 100));
        outbound.send();
        let mut told = vec![0; 6 + 101 + 101];
        // Where nobody sends any more, time passes at once.
        tokio::time::timeout(Duration::from_secs(1), far.read_exact(&mut told)).await.expect("all is sent").unwrap();
        assert_eq!(told, [vec![1; 6], vec![2; 101], vec![3; 101]].concat());
        // Who has found the connection broken leaves that to the task, too.
        drop(far);
        outbound.push(frame(4, 5));
        outbound.send();
        assert_eq!(task.await.unwrap().kind(), io::ErrorKind::BrokenPipe);
    }

    #[test]
    fn what_is_heavy_is_sent_however_much_is_light() {
        let many = (0..1000).map(|_| (1, LIGHT_BYTES_MAX / 2));
        let names = sent(many.chain([(2, BATCH_BYTES), (3, BATCH_BYTES)]));
        let place = |wanted| names.iter().position(|name| *name == wanted).expect("it is sent");
        let share = LIGHT_SHARE.div_ceil(1 + LIGHT_BYTES_MAX / 2);
        assert_eq!((names.len(), place(2)), (1002, share));
        assert!(place(3) <= 2 * share + 1);
    }
}
