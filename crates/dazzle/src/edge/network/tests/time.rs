//! What time does to connections, over pipes and in virtual time: no test here waits for a real clock.

use std::io;
use std::sync::atomic::AtomicU64;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use bytes::Bytes;
use host::{Envelope, NodeId, Port};
use tokio::io::{AsyncReadExt, AsyncWriteExt, DuplexStream};
use tokio::runtime::Handle;
use tokio::time::Instant;

use super::{Ask, PORT, Part, SPOKEN, Tell};
use crate::edge::network::connection::{CallError, Connection, Ended, Machine, Name, Office, Stream, Wire};
use crate::edge::network::frame::{HEADER_BYTES, Header, Kind};
use crate::edge::network::hello::Lane;
use crate::edge::network::wire::Encoded;
use crate::edge::network::{BULK_WINDOW_BYTES, IDLE_MAX};
use crate::edge::ports::Ports;

/// The bound that `docs/format-network.md` states for a machine.
const BOUND: Duration = Duration::from_secs(2);
/// The one for a single connection with a machine that lives.
const BOUND_OF_ONE: Duration = Duration::from_secs(12);

impl Stream for DuplexStream {
    fn wire(&self) -> io::Result<Option<Wire>> {
        Ok(None)
    }
}

/// A machine, and the connections with it.
#[derive(Default)]
struct Other {
    heard: AtomicU64,
    connections: Mutex<Vec<Arc<Connection>>>,
}

impl Machine for Other {
    fn heard(&self) -> &AtomicU64 {
        &self.heard
    }

    fn ping(&self) {
        self.connections.lock().unwrap().iter().for_each(|connection| connection.ping());
    }

    fn is_dead(&self) {
        self.connections.lock().unwrap().iter().for_each(|connection| connection.close(&Ended::Dead));
    }
}

fn connection(peer: u32, dialled: bool, lane: Lane, stream: DuplexStream) -> Arc<Connection> {
    connection_of(&Arc::default(), peer, dialled, lane, stream)
}

fn connection_of(other: &Arc<Other>, peer: u32, dialled: bool, lane: Lane, stream: DuplexStream) -> Arc<Connection> {
    let ports = Ports::default();
    ports.register(Port(PORT), Arc::new(Part));
    let office =
        Office { ports: Arc::new(ports), tongues: SPOKEN, runtime: Handle::current(), members: Default::default() };
    let connection = Connection::new(Name { peer: NodeId(peer), lane, session: 1, dialled }, Arc::new(office));
    other.connections.lock().unwrap().push(connection.clone());
    connection.run(stream, other.clone());
    connection
}

/// Both ends of a connection.
fn connected(lane: Lane) -> (Arc<Connection>, Arc<Connection>) {
    let (one, two) = tokio::io::duplex(64 << 10);
    (connection(2, true, lane, one), connection(1, false, lane, two))
}

fn encoded(ask: Ask) -> Encoded {
    SPOKEN[0].encode_request(&Envelope::new(ask)).unwrap()
}

async fn ask(connection: &Connection, ask: Ask) -> Result<Tell, CallError> {
    let frame = connection.call(encoded(ask)).await?;
    Ok(SPOKEN[0].decode_answer(frame).unwrap().open().unwrap())
}

#[tokio::test(start_paused = true)]
async fn a_slow_handler_fails_no_call() {
    let (one, two) = connected(Lane::Small);
    let asked = Instant::now();
    assert_eq!(ask(&one, Ask::Wait(3600)).await.unwrap(), Tell::Done);
    assert!(asked.elapsed() >= Duration::from_secs(3600));
    assert_eq!(ask(&two, Ask::Who).await.unwrap(), Tell::Node(2));
}

#[tokio::test(start_paused = true)]
async fn a_silent_peer_fails_every_call_within_the_bound() {
    let (stream, _silent) = tokio::io::duplex(64 << 10);
    let one = connection(2, true, Lane::Small, stream);
    let asked = Instant::now();
    let calls = (0..100).map(|_| ask(&one, Ask::Who));
    let outcomes = futures_util::future::join_all(calls).await;
    assert!(outcomes.iter().all(|outcome| matches!(outcome, Err(CallError::Lost))));
    assert!(asked.elapsed() <= BOUND, "{:?}", asked.elapsed());
    assert!(matches!(ask(&one, Ask::Who).await, Err(CallError::NotSent(_))), "it takes no more calls");
}

#[tokio::test(start_paused = true)]
async fn a_peer_that_stops_reading_takes_no_more_than_the_window_and_fails_within_the_bound() {
    let (stream, mut stuck) = tokio::io::duplex(64 << 10);
    let one = connection(2, true, Lane::Bulk, stream);
    let said = Bytes::from(vec![0; 1 << 20]);
    let asked = Instant::now();
    let calls = (0..100).map(|_| ask(&one, Ask::Echo(vec![said.clone()])));
    let mut calls = std::pin::pin!(futures_util::future::join_all(calls));
    // Every call has had its turn; those that found no room are waiting for it, and hold nothing of the connection.
    assert!(futures_util::poll!(calls.as_mut()).is_pending());
    let under_way = one.calls_under_way();
    assert!(under_way > 0 && under_way * (2 << 20) <= BULK_WINDOW_BYTES, "{under_way}");
    let outcomes = calls.await;
    assert!(outcomes.iter().all(Result::is_err));
    assert!(asked.elapsed() <= BOUND, "{:?}", asked.elapsed());
    let mut sent = Vec::new();
    stuck.read_to_end(&mut sent).await.unwrap();
    assert!(sent.len() <= 64 << 10, "it was given what fits the pipe: {}", sent.len());
}

#[tokio::test(start_paused = true)]
async fn a_peer_that_reads_no_answers_is_given_up_within_the_bound() {
    let (stream, mut asking) = tokio::io::duplex(64 << 10);
    let one = connection(2, false, Lane::Bulk, stream);
    let asked = Instant::now();
    for call in 0..8 {
        asking.write_all(&encoded(Ask::Much(1 << 20)).numbered(call).head).await.unwrap();
    }
    while one.is_open() {
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
    assert!(asked.elapsed() <= BOUND, "{:?}", asked.elapsed());
}

#[tokio::test(start_paused = true)]
async fn a_slow_link_fails_no_call() {
    let (stream, near) = tokio::io::duplex(4096);
    let (far, other) = tokio::io::duplex(4096);
    let (one, _two) = (connection(2, true, Lane::Bulk, stream), connection(1, false, Lane::Bulk, other));
    // A link of 100 kB a second each way.
    async fn carry(mut from: impl tokio::io::AsyncRead + Unpin, mut to: impl tokio::io::AsyncWrite + Unpin) {
        let mut bytes = [0; 1000];
        while let Ok(count @ 1..) = from.read(&mut bytes).await {
            tokio::time::sleep(Duration::from_millis(10)).await;
            to.write_all(&bytes[..count]).await.unwrap();
        }
    }
    let ((near_read, near_write), (far_read, far_write)) = (tokio::io::split(near), tokio::io::split(far));
    tokio::spawn(carry(near_read, far_write));
    tokio::spawn(carry(far_read, near_write));
    let (said, asked) = (Bytes::from(vec![5; 1 << 20]), Instant::now());
    assert_eq!(ask(&one, Ask::Echo(vec![said.clone()])).await.unwrap(), Tell::Parts(vec![said]));
    assert!(asked.elapsed() >= Duration::from_secs(20));
}

/// Two connections with one machine: what is said on the second is not heard as long as nobody reads `pipe`.
fn half_deaf() -> (Arc<Connection>, Arc<Connection>, DuplexStream) {
    let other = Arc::default();
    let ((one, two), (three, pipe)) = (tokio::io::duplex(64 << 10), tokio::io::duplex(64 << 10));
    let small = connection_of(&other, 2, true, Lane::Small, one);
    connection(1, false, Lane::Small, two);
    (small, connection_of(&other, 2, true, Lane::Bulk, three), pipe)
}

#[tokio::test(start_paused = true)]
async fn who_is_heard_on_one_connection_is_not_dead_however_late_another_is() {
    let (small, bulk, mut pipe) = half_deaf();
    let mut call = std::pin::pin!(ask(&bulk, Ask::Who));
    assert!(futures_util::poll!(call.as_mut()).is_pending());
    // Nobody uses the small one: it is asked all the same.
    tokio::time::sleep(2 * BOUND).await;
    assert!(small.is_open() && bulk.is_open());
    let answer = SPOKEN[0].encode_answer(&Envelope::new(Tell::Node(3))).unwrap().numbered(0);
    pipe.write_all(&answer.head).await.unwrap();
    assert_eq!(call.await.unwrap(), Tell::Node(3));
}

#[tokio::test(start_paused = true)]
async fn a_connection_through_which_nothing_passes_ends_alone() {
    let (small, bulk, _pipe) = half_deaf();
    let asked = Instant::now();
    assert!(matches!(ask(&bulk, Ask::Who).await, Err(CallError::Lost)));
    assert!(asked.elapsed() <= BOUND_OF_ONE, "{:?}", asked.elapsed());
    assert!(!bulk.is_open());
    assert_eq!(ask(&small, Ask::Who).await.unwrap(), Tell::Node(1));
}

#[tokio::test(start_paused = true)]
async fn a_machine_that_falls_silent_loses_all_connections_within_the_bound() {
    let other = Arc::default();
    let ((one, _deaf), (two, _mute)) = (tokio::io::duplex(64 << 10), tokio::io::duplex(64 << 10));
    let small = connection_of(&other, 2, true, Lane::Small, one);
    let bulk = connection_of(&other, 2, true, Lane::Bulk, two);
    let asked = Instant::now();
    assert!(ask(&small, Ask::Who).await.is_err());
    while bulk.is_open() {
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
    assert!(asked.elapsed() <= BOUND, "{:?}", asked.elapsed());
}

#[tokio::test(start_paused = true)]
async fn an_idle_connection_is_kept_alive_and_then_ended_by_who_dialled() {
    let (one, two) = connected(Lane::Small);
    assert_eq!(ask(&two, Ask::Who).await.unwrap(), Tell::Node(2));
    tokio::time::sleep(IDLE_MAX - Duration::from_secs(1)).await;
    assert!(one.is_open() && two.is_open());
    assert_eq!(ask(&two, Ask::Who).await.unwrap(), Tell::Node(2));
    tokio::time::sleep(IDLE_MAX - Duration::from_secs(1)).await;
    assert!(one.is_open() && two.is_open(), "it was used in between");
    tokio::time::sleep(Duration::from_secs(2)).await;
    assert!(!one.is_open() && !two.is_open());
}

#[tokio::test(start_paused = true)]
async fn a_bye_fails_no_call_that_is_under_way() {
    let (stream, mut peer) = tokio::io::duplex(64 << 10);
    let one = connection(2, false, Lane::Small, stream);
    let mut call = std::pin::pin!(ask(&one, Ask::Who));
    assert!(futures_util::poll!(call.as_mut()).is_pending());
    peer.write_all(&Header::bare(Kind::Bye, 0, 0).encode()).await.unwrap();
    tokio::time::sleep(Duration::from_millis(300)).await;
    assert!(!one.is_open(), "no new calls are made");
    let answer = SPOKEN[0].encode_answer(&Envelope::new(Tell::Node(3))).unwrap().numbered(0);
    peer.write_all(&answer.head).await.unwrap();
    assert_eq!(call.await.unwrap(), Tell::Node(3));
    let mut said = Vec::new();
    peer.read_to_end(&mut said).await.unwrap();
    assert!(said.len() >= HEADER_BYTES, "and then it ends by itself");
}
