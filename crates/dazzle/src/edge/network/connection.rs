//! One connection between two nodes, over which both call each other.
//!
//! Invariants
//! 1. Calls under way, as their caller counts them, weigh at most the window. A call leaves the window when its answer or
//!    refusal has come, or the connection ends; not when its caller stops waiting.
//! 2. The called end counts a call no longer when it hands over the answer to be sent: always before the caller does.
//! 3. A request is answered or refused once, whatever its handler does.
//! 4. Nobody ever stops reading. So a ping is heard, whoever else is slow.
//! 5. When a connection ends, every call under way on it ends with it: nothing of one leaves this machine once its caller knows
//!    that it failed.

use std::io;
use std::os::fd::AsFd;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::Duration;

use host::{NodeId, Port};
use protocol::FastMap;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::runtime::Handle;
use tokio::sync::{Notify, OwnedSemaphorePermit, Semaphore, oneshot};
use tokio::time::{Instant, MissedTickBehavior};
use tracing::{debug, warn};

use crate::edge::ports::Ports;

use super::frame::{Frame, Kind, Outgoing, Refusal};
use super::hello::{Hello, Lane};
use super::inbound::{Inbound, ReceiveError};
use super::members::Members;
use super::outbound::Outbound;
use super::pulse::{BEAT, Beat, PATIENCE, Pulse, Sight};
use super::wire::{Encoded, Tongue, weight};

/// What calls under way on a small lane weigh at most, made by one end.
pub const SMALL_WINDOW_BYTES: usize = 4 << 20;
/// The same on a bulk lane.
pub const BULK_WINDOW_BYTES: usize = 16 << 20;
/// The same on an urgent lane.
pub const URGENT_WINDOW_BYTES: usize = 8 << 20;
/// After so long without a call who dialled says bye.
pub const IDLE_MAX: Duration = Duration::from_secs(60);

/// What both ends of all connections of a node need.
pub(super) struct Office {
    pub(super) ports: Arc<Ports>,
    pub(super) tongues: &'static [Tongue],
    pub(super) runtime: Handle,
    pub(super) members: Members,
}

impl Office {
    /// What is spoken on `port`.
    pub(super) fn tongue(&self, port: Port) -> Option<&'static Tongue> {
        self.tongues.iter().find(|tongue| tongue.port() == port)
    }
}

/// Which connection it is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Name {
    /// Who is at the other end, as its certificate proves.
    pub(super) peer: NodeId,
    /// What it carries.
    pub(super) lane: Lane,
    /// Which life of the other node.
    pub(super) session: u64,
    /// Whether we dialled it.
    pub(super) dialled: bool,
}

/// The machine at the other end, which may have other connections with us.
pub(super) trait Machine: Send + Sync {
    /// Counts up by the bytes that come from it, on whatever connection.
    fn heard(&self) -> &AtomicU64;
    /// Asks it whether it lives, on every connection: one may be full, and another not.
    fn ping(&self);
    /// It answers on none.
    fn is_dead(&self);
}

/// One connection.
pub(super) struct Connection {
    name: Name,
    office: Arc<Office>,
    /// What our calls under way weigh: the part of the window that is not in it is left.
    window: Arc<Semaphore>,
    window_bytes: usize,
    calls: Mutex<Calls>,
    /// What the other end's calls under way weigh.
    load: AtomicUsize,
    served: AtomicU64,
    outbound: Outbound,
    received: AtomicU64,
    closing: Notify,
    /// While it runs.
    wire: Mutex<Option<Wire>>,
}

/// What a connection runs over.
pub(super) trait Stream: AsyncRead + AsyncWrite + Send + Unpin + 'static {
    /// A hold on the socket below it, if there is one.
    fn wire(&self) -> io::Result<Option<Wire>>;
}

/// A hold on the socket below a stream, which TLS has.
pub(super) struct Wire(socket2::Socket);

impl Wire {
    pub(super) fn of(socket: &impl AsFd) -> io::Result<Wire> {
        socket2::SockRef::from(socket).try_clone().map(Wire)
    }

    /// What the kernel has not sent goes nowhere when the socket is closed: else it goes on sending it for minutes, and a link
    /// that is there again carries it.
    fn forget_unsent(&self) {
        if let Err(error) = self.0.set_linger(Some(Duration::ZERO)) {
            warn!(%error, "what was not sent on a connection that ended cannot be taken back");
        }
    }
}

/// Our calls under way.
#[derive(Default)]
struct Calls {
    phase: Phase,
    next: u64,
    waiting: FastMap<u64, Waiting>,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
enum Phase {
    #[default]
    Open,
    /// We said bye.
    Leaving,
    /// The other end said bye.
    Left,
    Closed,
}

struct Waiting {
    port: u16,
    answer: oneshot::Sender<Result<Frame, Refusal>>,
    _room: OwnedSemaphorePermit,
}

/// Why a call has no answer.
#[derive(Debug)]
pub(super) enum CallError {
    /// The connection takes no more calls: another may.
    NotSent(Box<Encoded>),
    /// The connection ended under it.
    Lost,
    /// The other end says why.
    Refused(Refusal),
}

/// Why a connection ends.
#[derive(Debug, thiserror::Error)]
pub(super) enum Ended {
    #[error("nothing was to be said any more")]
    Idle,
    #[error("it was closed from here")]
    Closed,
    #[error("another took its place")]
    Replaced,
    #[error("the other machine does not answer")]
    Dead,
    #[error("nothing passes through it, although the other machine lives")]
    Stuck,
    #[error("{0}")]
    Received(#[from] ReceiveError),
    #[error("nothing can be sent: {0}")]
    Broken(io::Error),
    #[error("the other end answered what was not asked")]
    Unasked,
    #[error("the other end sent more than the window")]
    Overrun,
    #[error("the other end's answer does not decode")]
    Garbled,
}

impl Connection {
    /// A connection that is not yet used: [`Connection::run`] does.
    pub(super) fn new(name: Name, office: Arc<Office>) -> Arc<Connection> {
        let window_bytes = match name.lane {
            Lane::Small => SMALL_WINDOW_BYTES,
            Lane::Bulk | Lane::Around => BULK_WINDOW_BYTES,
            Lane::Urgent => URGENT_WINDOW_BYTES,
        };
        Arc::new(Connection {
            name,
            office,
            window: Arc::new(Semaphore::new(window_bytes)),
            window_bytes,
            calls: Mutex::default(),
            load: AtomicUsize::new(0),
            served: AtomicU64::new(0),
            outbound: Outbound::default(),
            received: AtomicU64::new(0),
            closing: Notify::new(),
            wire: Mutex::default(),
        })
    }

    /// Carries calls over `stream` until either end closes.
    pub(super) fn run(self: &Arc<Self>, stream: impl Stream, machine: Arc<dyn Machine>) {
        let connection = self.clone();
        match stream.wire() {
            Ok(wire) => *self.wire() = wire,
            Err(error) => return self.close(&Ended::Broken(error)),
        }
        self.office.runtime.spawn(async move {
            let (read, write) = tokio::io::split(stream);
            let ended = tokio::select! {
                ended = connection.receive(read, machine.heard()) => ended,
                error = connection.outbound.send_all(write) => Ended::Broken(error),
                ended = connection.watch(&*machine) => ended,
                () = connection.closing.notified() => Ended::Closed,
            };
            // With this the stream is gone.
            connection.outbound.end();
            // Who hears that a call failed finds the machine dead, and not one of its connections.
            if matches!(ended, Ended::Dead) {
                machine.is_dead();
            }
            connection.close(&ended);
            // It may have been closed before it ran.
            drop(connection.wire().take());
        });
    }

    /// Says hello, ahead of all frames. Only before the connection is used.
    pub(super) fn say(&self, hello: &Hello) {
        self.outbound.push(Outgoing { head: hello.encode().to_vec(), payloads: Vec::new() });
        self.outbound.send();
    }

    /// Which connection this is.
    pub(super) fn name(&self) -> Name {
        self.name
    }

    /// Whether it takes calls.
    pub(super) fn is_open(&self) -> bool {
        self.calls.lock().expect("no panic while calls are held").phase == Phase::Open
    }

    /// How many calls of ours wait for their answers.
    pub(super) fn calls_under_way(&self) -> usize {
        self.calls.lock().expect("no panic while calls are held").waiting.len()
    }

    /// Makes a call and waits for its answer.
    pub(super) async fn call(&self, encoded: Encoded) -> Result<Frame, CallError> {
        let weight = encoded.weight().min(self.window_bytes) as u32;
        let Ok(room) = self.window.clone().acquire_many_owned(weight).await else {
            return Err(CallError::NotSent(Box::new(encoded)));
        };
        let (answer, answered) = oneshot::channel();
        self.begin(encoded, answer, room)?;
        match answered.await {
            Ok(Ok(frame)) => Ok(frame),
            Ok(Err(refusal)) => Err(CallError::Refused(refusal)),
            Err(_) => Err(CallError::Lost),
        }
    }

    /// Asks the other end whether it lives.
    pub(super) fn ping(&self) {
        self.outbound.ping();
    }

    /// Whether the other end still answers: asks it, and waits no longer than a dead one takes to be known as such.
    pub(super) async fn is_alive(&self) -> bool {
        let (before, asked) = (self.received.load(Ordering::Relaxed), Instant::now());
        self.ping();
        while self.is_open() && asked.elapsed() < 2 * PATIENCE {
            if self.received.load(Ordering::Relaxed) != before {
                return true;
            }
            tokio::time::sleep(BEAT / 10).await;
        }
        false
    }

    /// Ends the connection and all calls on it.
    pub(super) fn close(&self, why: &Ended) {
        let waiting = {
            let mut calls = self.calls.lock().expect("no panic while calls are held");
            if calls.phase == Phase::Closed {
                return;
            }
            calls.phase = Phase::Closed;
            std::mem::take(&mut calls.waiting)
        };
        // Their callers are told that they failed: nothing of them is to come later.
        if let Some(wire) = self.wire().take().filter(|_| !waiting.is_empty()) {
            wire.forget_unsent();
        }
        self.window.close();
        self.closing.notify_one();
        let (peer, lane, failed) = (self.name.peer.0, self.name.lane.number(), waiting.len());
        // A peer that stops says nothing more; only where it leaves a call behind is that worth a word.
        let usual = matches!(
            why,
            Ended::Idle
                | Ended::Closed
                | Ended::Replaced
                | Ended::Received(ReceiveError::Closed | ReceiveError::Broken(_))
        );
        match usual && failed == 0 {
            true => debug!(peer, lane, %why, "a connection ended"),
            false => warn!(peer, lane, failed, %why, "a connection ended"),
        }
    }

    fn wire(&self) -> MutexGuard<'_, Option<Wire>> {
        self.wire.lock().expect("no panic while a socket is held")
    }

    /// Enters a call that has room, and sends it.
    fn begin(
        &self,
        encoded: Encoded,
        answer: oneshot::Sender<Result<Frame, Refusal>>,
        room: OwnedSemaphorePermit,
    ) -> Result<(), CallError> {
        {
            let mut calls = self.calls.lock().expect("no panic while calls are held");
            if calls.phase != Phase::Open {
                return Err(CallError::NotSent(Box::new(encoded)));
            }
            let call = calls.next;
            calls.next += 1;
            calls.waiting.insert(call, Waiting { port: encoded.port(), answer, _room: room });
            // Under the lock: a bye that follows must not overtake it.
            self.outbound.push(encoded.numbered(call));
        }
        self.outbound.send();
        Ok(())
    }

    async fn receive(self: &Arc<Self>, read: impl AsyncRead + Unpin, heard: &AtomicU64) -> Ended {
        let mut inbound = Inbound::new(read, [&self.received, heard]);
        loop {
            let taken = match inbound.next().await {
                Ok(frame) => self.take(frame),
                Err(error) => Err(error.into()),
            };
            if let Err(ended) = taken {
                return ended;
            }
        }
    }

    fn take(self: &Arc<Self>, frame: Frame) -> Result<(), Ended> {
        match frame.header.kind {
            Kind::Request { .. } => self.serve(frame)?,
            Kind::Answer => self.answered(frame.header.port, frame.header.call, Ok(frame))?,
            Kind::Refusal(refusal) => self.answered(frame.header.port, frame.header.call, Err(refusal))?,
            Kind::Ping => self.outbound.pong(),
            Kind::Pong => {}
            Kind::Bye => {
                let mut calls = self.calls.lock().expect("no panic while calls are held");
                calls.phase = if calls.phase == Phase::Closed { Phase::Closed } else { Phase::Left };
            }
        }
        Ok(())
    }

    fn answered(&self, port: u16, call: u64, answer: Result<Frame, Refusal>) -> Result<(), Ended> {
        let waiting = self.calls.lock().expect("no panic while calls are held").waiting.remove(&call);
        match waiting {
            Some(waiting) if waiting.port == port => {
                // Who stopped waiting does not want it.
                let _ = waiting.answer.send(answer);
                Ok(())
            }
            _ => Err(Ended::Unasked),
        }
    }

    fn serve(self: &Arc<Self>, frame: Frame) -> Result<(), Ended> {
        let weight = weight(&frame.header).min(self.window_bytes);
        if self.load.fetch_add(weight, Ordering::Relaxed) + weight > self.window_bytes {
            return Err(Ended::Overrun);
        }
        self.served.fetch_add(1, Ordering::Relaxed);
        let (port, call) = (frame.header.port, frame.header.call);
        let debt = Debt { connection: self.clone(), port, call, weight, paid: false };
        self.office.runtime.spawn(debt.pay(frame));
        Ok(())
    }

    /// Looks after the other end, and after the connection's use.
    async fn watch(&self, machine: &dyn Machine) -> Ended {
        let started = Instant::now();
        let mut beats = tokio::time::interval(BEAT);
        beats.set_missed_tick_behavior(MissedTickBehavior::Delay);
        let mut life = Pulse::of_machine(Duration::ZERO);
        let mut flow = Pulse::of_connection(Duration::ZERO);
        let (mut used, mut used_at) = (0, Duration::ZERO);
        loop {
            beats.tick().await;
            let now = started.elapsed();
            match life.beat(self.sight(now, machine.heard())) {
                Beat::Rest => {}
                Beat::Ping => machine.ping(),
                Beat::Dead => return Ended::Dead,
            }
            match flow.beat(self.sight(now, &self.received)) {
                Beat::Rest => {}
                Beat::Ping => self.ping(),
                Beat::Dead => return Ended::Stuck,
            }
            let use_now = self.use_count();
            if use_now != used || self.is_used() {
                (used, used_at) = (use_now, now);
            }
            if self.may_end(now - used_at >= IDLE_MAX) {
                return Ended::Idle;
            }
        }
    }

    fn sight(&self, now: Duration, received: &AtomicU64) -> Sight {
        let (sending, pings_left) = self.outbound.waits();
        let calling = self.calls_under_way() > 0;
        let received = received.load(Ordering::Relaxed);
        Sight { now, received, sent: self.outbound.sent(), pings_left, waiting: calling || sending }
    }

    /// Counts up whenever the connection is of use.
    fn use_count(&self) -> u64 {
        let calls = self.calls.lock().expect("no panic while calls are held").next;
        calls + self.served.load(Ordering::Relaxed)
    }

    /// Whether calls are under way, ours or the other end's.
    fn is_used(&self) -> bool {
        self.calls_under_way() > 0 || self.load.load(Ordering::Relaxed) > 0
    }

    /// Says bye where it is time to; whether the connection may end, because the other end has said so.
    fn may_end(&self, idle: bool) -> bool {
        let mut calls = self.calls.lock().expect("no panic while calls are held");
        let unused = calls.waiting.is_empty() && self.load.load(Ordering::Relaxed) == 0;
        if idle && unused && self.name.dialled && calls.phase == Phase::Open {
            calls.phase = Phase::Leaving;
            self.outbound.push(Outgoing::bare(Kind::Bye, 0, 0));
            self.outbound.send();
        }
        unused && calls.phase == Phase::Left
    }
}

/// A request that must be answered.
struct Debt {
    connection: Arc<Connection>,
    port: u16,
    call: u64,
    weight: usize,
    paid: bool,
}

impl Debt {
    /// Answers it.
    async fn pay(mut self, request: Frame) {
        let answer = match self.answer(request).await {
            Ok(encoded) => encoded.numbered(self.call),
            Err(refusal) => Outgoing::bare(Kind::Refusal(refusal), self.port, self.call),
        };
        self.settle(answer);
    }

    async fn answer(&self, request: Frame) -> Result<Encoded, Refusal> {
        let (office, port, peer) = (&self.connection.office, Port(self.port), self.connection.name.peer);
        let (Some(tongue), Some(handler)) = (office.tongue(port), office.ports.handler(port)) else {
            return Err(Refusal::NoPort);
        };
        let Some(request) = tongue.decode_request(request) else {
            warn!(peer = peer.0, port = port.0, "a request does not decode; it was refused");
            return Err(Refusal::Garbled);
        };
        if !office.members.may_ask(peer, &request) {
            return Err(Refusal::NoPort);
        }
        let answer = handler.handle(peer, request).await;
        tongue.encode_answer(&answer).map_err(|error| {
            warn!(peer = peer.0, port = port.0, %error, "an answer is too large; the call was refused");
            Refusal::TooLarge
        })
    }

    fn settle(&mut self, answer: Outgoing) {
        self.paid = true;
        self.connection.load.fetch_sub(self.weight, Ordering::Relaxed);
        self.connection.outbound.answer(self.call, answer);
    }
}

impl Drop for Debt {
    /// The handler panicked, or its runtime is going down.
    fn drop(&mut self) {
        if !self.paid {
            self.settle(Outgoing::bare(Kind::Refusal(Refusal::Failed), self.port, self.call));
        }
    }
}
