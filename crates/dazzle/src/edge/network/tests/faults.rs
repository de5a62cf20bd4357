//! Calls, when the network or the other machine fails.

use std::sync::Arc;
use std::time::Instant;

use bytes::Bytes;
use futures_util::future::join_all;
use host::Host;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpSocket, TcpStream};
use tokio::sync::watch;

use super::{Ask, Cluster, Node, Tell, at, pair};
use crate::edge::network::NetworkError;
use crate::edge::network::dialling::{self, DIAL_PATIENCE, Dialled};
use crate::edge::network::hello::{Hello, Lane, VERSIONS, Verdict};
use crate::edge::trust::{Identity, NodeName};

/// Calls that the sender's kernel takes all, and the receiver's does not.
const CALLS: u8 = 40;
const CALL_BYTES: usize = 4000;

/// What stands between two nodes.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) enum Link {
    /// All passes.
    Up,
    /// Nothing passes any more, and nobody is told.
    Silent,
    /// All connections are torn.
    Torn,
}

/// A link to a node, which can be harmed.
pub(super) struct Proxy {
    pub(super) link: watch::Sender<Link>,
    pub(super) address: String,
}

impl Proxy {
    pub(super) async fn before(node: &Node) -> Proxy {
        let (link, state) = watch::channel(Link::Up);
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let (address, there) = (listener.local_addr().unwrap().to_string(), node.address());
        tokio::spawn(async move {
            while let Ok((near, _)) = listener.accept().await {
                let far = TcpStream::connect(&there).await.unwrap();
                tokio::spawn(forward(near, far, state.clone()));
            }
        });
        Proxy { link, address }
    }
}

async fn forward(mut near: TcpStream, mut far: TcpStream, mut link: watch::Receiver<Link>) {
    let (mut there, mut back) = (vec![0; 64 << 10], vec![0; 64 << 10]);
    loop {
        let state = *link.borrow_and_update();
        match state {
            Link::Torn => return,
            Link::Silent => {}
            Link::Up => {
                let moved = tokio::select! {
                    read = near.read(&mut there) => pass(&there, read, &mut far).await,
                    read = far.read(&mut back) => pass(&back, read, &mut near).await,
                    changed = link.changed() => changed.is_ok(),
                };
                if !moved {
                    return;
                }
                continue;
            }
        }
        if link.changed().await.is_err() {
            return;
        }
    }
}

async fn pass(bytes: &[u8], read: std::io::Result<usize>, to: &mut TcpStream) -> bool {
    match read {
        Ok(count @ 1..) => to.write_all(&bytes[..count]).await.is_ok(),
        _ => false,
    }
}

/// Node 1 asks node 2 a hundred things that are not answered soon, over a link that is harmed meanwhile.
async fn harmed(harm: Link) {
    let cluster = Cluster::new(super::CLUSTER);
    let (one, two) = (Arc::new(cluster.node(1).await), cluster.node(2).await);
    let proxy = Proxy::before(&two).await;
    one.machine.know(two.host.node(), proxy.address.clone());
    assert_eq!(one.ask(2, Ask::Who).await, Ok(Tell::Node(1)));
    let calls = (0..100).map(|_| {
        let one = one.clone();
        tokio::spawn(async move { one.ask(2, Ask::Wait(3600)).await })
    });
    let calls: Vec<_> = calls.collect();
    // A later call on the same connection is answered: the ones before have arrived.
    assert_eq!(one.ask(2, Ask::Who).await, Ok(Tell::Node(1)));
    proxy.link.send(harm).unwrap();
    for call in join_all(calls).await {
        assert!(call.unwrap().is_err());
    }
    assert_eq!(one.connections(2), 0);
    // When the link is healed the next dial succeeds, for nothing was remembered of the old connection.
    proxy.link.send(Link::Up).unwrap();
    assert_eq!(one.ask(2, Ask::Who).await, Ok(Tell::Node(1)));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_torn_connection_fails_all_its_calls() {
    harmed(Link::Torn).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_link_that_carries_nothing_fails_all_its_calls() {
    harmed(Link::Silent).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_machine_that_is_silent_on_one_connection_has_none_and_keeps_nobody_waiting() {
    let cluster = Cluster::new(super::CLUSTER);
    let (one, two) = (Arc::new(cluster.node(1).await), cluster.node(2).await);
    let proxy = Proxy::before(&two).await;
    one.machine.know(two.host.node(), proxy.address.clone());
    // A small lane and a bulk one; only the small one will be asked.
    one.ask(2, Ask::Much(1 << 20)).await.unwrap();
    one.ask(2, Ask::Who).await.unwrap();
    assert_eq!(one.connections(2), 2);
    proxy.link.send(Link::Silent).unwrap();
    assert!(one.ask(2, Ask::Who).await.is_err());
    while one.connections(2) > 0 {
        tokio::task::yield_now().await;
    }
    // The first who finds no connection dials, in vain; from then on it is known.
    assert!(one.ask(2, Ask::Who).await.is_err());
    let began = Instant::now();
    while began.elapsed() < 2 * DIAL_PATIENCE {
        let asked = Instant::now();
        assert!(one.ask(2, Ask::Who).await.is_err());
        assert!(asked.elapsed() < DIAL_PATIENCE / 2, "a call waited for what is known");
        tokio::task::yield_now().await;
    }
    proxy.link.send(Link::Up).unwrap();
    while one.ask(2, Ask::Who).await.is_err() {
        tokio::task::yield_now().await;
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_node_that_stops_fails_the_calls_to_it_and_is_found_again_when_it_calls() {
    let cluster = Cluster::new(super::CLUSTER);
    let (one, two) = (Arc::new(cluster.node(1).await), cluster.node(2).await);
    one.knows(&two);
    let asking = one.clone();
    let call = tokio::spawn(async move { asking.ask(2, Ask::Wait(3600)).await });
    assert_eq!(one.ask(2, Ask::Who).await, Ok(Tell::Node(1)));
    drop(two);
    assert!(call.await.unwrap().is_err());
    assert!(one.ask(2, Ask::Who).await.is_err());
    let two = cluster.node(2).await;
    two.knows(&one);
    assert_eq!(two.ask(1, Ask::Who).await, Ok(Tell::Node(2)), "a new life of the node is welcome");
    assert_eq!(one.ask(2, Ask::Who).await, Ok(Tell::Node(1)));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_machine_that_nobody_listens_on_is_told_from_a_name_that_nobody_knows() {
    let (one, _two) = pair().await;
    assert!(one.ask(3, Ask::Who).await.is_err(), "nobody said where");
    assert!(one.machine.peers().iter().all(|peer| peer.error.is_none()));
    let address = TcpListener::bind("127.0.0.1:0").await.unwrap().local_addr().unwrap().to_string();
    one.machine.know(host::NodeId(4), address.clone());
    assert!(one.ask(4, Ask::Who).await.is_err());
    assert_eq!(one.complaint(4), NetworkError::Refused { address });
    one.machine.know(host::NodeId(4), "no port is named".into());
    assert!(one.ask(4, Ask::Who).await.is_err());
    assert!(matches!(one.complaint(4), NetworkError::Unresolved { .. }), "{}", one.complaint(4));
}

/// A connection to `node` as `identity`, of which the kernel here takes a few kilobytes that nobody reads.
async fn narrow(node: &Node, identity: &Identity) -> Dialled {
    let (address, name) = (node.address(), NodeName { node: node.host.node(), cluster: super::CLUSTER });
    let socket = TcpSocket::new_v4().unwrap();
    socket.set_recv_buffer_size(4096).unwrap();
    let stream = socket.connect(address.parse().unwrap()).await.unwrap();
    let stream = dialling::prepare(stream).unwrap();
    let mut stream = dialling::encrypt(&address, stream, &identity.connector(), name.server_name()).await.unwrap();
    let hello = Hello { versions: VERSIONS, verdict: Verdict::Welcome, lane: Lane::Small, session: 77 };
    dialling::greet(&address, &mut stream, &hello).await.unwrap();
    stream
}

/// A machine reads nothing for a while, and then what is there: of calls whose callers were told that they failed, it gets what
/// its kernel had, and nothing of what the caller's had taken and not sent.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_failed_is_not_sent_when_the_machine_reads_again() {
    let cluster = Cluster::new(super::CLUSTER);
    let one = cluster.node(1).await;
    let stream = narrow(&one, &cluster.identity(2)).await;
    let failed = join_all(calls(&Host::new(one.machine.clone()))).await;
    assert!(failed.iter().all(Result::is_err), "nobody answers");
    expect_reset(stream).await;
}

/// The same where the machine dials again, and the caller takes the new connection for the old one.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_failed_as_another_connection_took_its_place_is_not_sent() {
    let cluster = Cluster::new(super::CLUSTER);
    let (one, two) = (cluster.node(1).await, cluster.identity(2));
    let mut stream = narrow(&one, &two).await;
    let straight = Host::new(one.machine.clone());
    let dial_again = async {
        stream.read_u8().await.expect("the calls are being sent");
        narrow(&one, &two).await
    };
    let (failed, _again) = tokio::join!(join_all(calls(&straight)), dial_again);
    assert!(failed.iter().all(Result::is_err), "nobody answers");
    expect_reset(stream).await;
}

/// Calls to node 2, straight: it would be asked first who it is.
fn calls(host: &Host) -> Vec<impl Future<Output = Result<Tell, host::Unreachable>>> {
    (0..CALLS).map(|call| host.call::<_, Tell>(at(2), Ask::Keep(vec![Bytes::from(vec![call; CALL_BYTES])]))).collect()
}

/// Reads what comes until the stream ends, with an error where the connection was reset.
async fn expect_reset(mut stream: Dialled) {
    let mut heard = Vec::new();
    let end = stream.read_to_end(&mut heard).await;
    assert!(heard.len() < usize::from(CALLS) * CALL_BYTES / 2, "{} bytes came, and then {end:?}", heard.len());
    assert!(!heard.windows(8).any(|bytes| bytes == [CALLS - 1; 8]), "of the last call something came");
}
