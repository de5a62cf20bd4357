//! What a machine that proves to be a node, but speaks as none, can do: have its own connection closed.

use host::NodeId;
use tokio::io::{AsyncReadExt, AsyncWriteExt};

use super::{Ask, CLUSTER, Cluster, Node, PORT, SPOKEN, Tell};
use crate::edge::network::dialling::{self, Dialled};
use crate::edge::network::frame::{HEADER_BYTES, Header, Kind, Refusal};
use crate::edge::network::hello::{Hello, HelloError, Lane, VERSIONS, Verdict};
use crate::edge::network::{NetworkError, SMALL_WINDOW_BYTES};
use crate::edge::trust::{Identity, NodeName};

/// A connection to `node` as `identity`, before any hello.
async fn proven(node: &Node, identity: &Identity) -> Dialled {
    let name = NodeName { node: node.host.node(), cluster: CLUSTER }.server_name();
    let stream = dialling::connect(&node.address()).await.unwrap();
    dialling::encrypt(&node.address(), stream, &identity.connector(), name).await.unwrap()
}

fn hello(session: u64) -> Hello {
    Hello { versions: VERSIONS, verdict: Verdict::Welcome, lane: Lane::Small, session }
}

/// The same, after the hellos.
async fn greeted(node: &Node, identity: &Identity) -> Dialled {
    let mut stream = proven(node, identity).await;
    let answer = dialling::greet(&node.address(), &mut stream, &hello(77)).await.unwrap();
    assert_eq!((answer.verdict, answer.lane), (Verdict::Welcome, Lane::Small));
    stream
}

/// Says `bytes`, and returns what comes back until the node closes.
async fn said(mut stream: Dialled, bytes: &[u8]) -> Vec<u8> {
    // The node may close before it has read everything.
    let _ = stream.write_all(bytes).await;
    let _ = stream.flush().await;
    let mut answer = Vec::new();
    let _ = stream.read_to_end(&mut answer).await;
    answer
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn rubbish_closes_the_connection_it_comes_on_and_no_other() {
    let cluster = Cluster::new(CLUSTER);
    let (one, two) = (cluster.node(1).await, cluster.node(2).await);
    two.knows(&one);
    assert_eq!(two.ask(1, Ask::Who).await, Ok(Tell::Node(2)));
    let request = Header { body_bytes: 1, ..Header::bare(Kind::Request { room: 0 }, PORT, 0) };
    let heavy = Header { kind: Kind::Request { room: SMALL_WINDOW_BYTES as u32 }, ..request };
    let framed = |header: Header, body: &[u8]| [&header.encode()[..], body].concat();
    let mut wait = SPOKEN[0].encode_request(&host::Envelope::new(Ask::Wait(3600))).unwrap().numbered(1).head;
    wait.extend(framed(heavy, &[0]));
    let uneven = Header { payload_count: 2, payload_bytes: 3, ..request };
    let (mut unknown, mut endless) = (request.encode(), request.encode());
    unknown[0] = 99;
    endless[19] = 0xff;
    let rubbish = [
        b"GET / HTTP/1.1\r\nHost: dazzle.example\r\n\r\n".to_vec(),
        vec![0; HEADER_BYTES],
        unknown.to_vec(),
        endless.to_vec(),
        framed(uneven, &[0, 1, 0, 0, 0, 1, 0, 0, 0]),
        framed(Header::bare(Kind::Answer, PORT, 0), &[]),
        framed(Header::bare(Kind::Refusal(Refusal::NoPort), PORT, 5), &[]),
        wait,
    ];
    let three = cluster.identity(3);
    for bytes in rubbish {
        let answer = said(greeted(&one, &three).await, &bytes).await;
        assert!(answer.len() <= HEADER_BYTES, "nothing but perhaps a ping came back");
    }
    assert_eq!(two.ask(1, Ask::Who).await, Ok(Tell::Node(2)));
    assert_eq!(two.connections(1), 1);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_request_that_makes_no_sense_is_refused_and_the_connection_stays() {
    let cluster = Cluster::new(CLUSTER);
    let one = cluster.node(1).await;
    let mut stream = greeted(&one, &cluster.identity(3)).await;
    let garbled = Header { body_bytes: 1, ..Header::bare(Kind::Request { room: 0 }, PORT, 4) };
    let astray = Header { port: 9999, call: 5, ..garbled };
    for (header, refusal) in [(garbled, Refusal::Garbled), (astray, Refusal::NoPort)] {
        stream.write_all(&[&header.encode()[..], &[200]].concat()).await.unwrap();
        stream.flush().await.unwrap();
        let answer = dialling::hear(&mut stream).await.unwrap();
        let expected = Header::bare(Kind::Refusal(refusal), header.port, header.call);
        assert_eq!(Header::decode(&answer), Ok(expected));
    }
    stream.write_all(&Header::bare(Kind::Ping, 0, 0).encode()).await.unwrap();
    stream.flush().await.unwrap();
    assert_eq!(Header::decode(&dialling::hear(&mut stream).await.unwrap()), Ok(Header::bare(Kind::Pong, 0, 0)));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_program_of_another_version_is_told_so() {
    let cluster = Cluster::new(CLUSTER);
    let (one, three) = (cluster.node(1).await, cluster.identity(3));
    let next = *VERSIONS.end() + 1;
    for versions in [next..=next + 2, 0..=0] {
        let mut stream = proven(&one, &three).await;
        let theirs = Hello { versions: versions.clone(), ..hello(1) };
        dialling::answer(&mut stream, &theirs).await.unwrap();
        let answer = dialling::hear(&mut stream).await.unwrap();
        // What the other program makes of it: as we would, if our versions were its own.
        let ours = *VERSIONS.end();
        let expected = match *versions.start() {
            newer if newer == next => HelloError::Older { theirs: ours, ours: newer },
            _ => HelloError::Newer { theirs: ours, ours: 0 },
        };
        assert_eq!(Hello::decode(&answer, versions), Err(expected));
    }
    let mut stream = proven(&one, &three).await;
    stream.write_all(b"something else, of the same size").await.unwrap();
    stream.flush().await.unwrap();
    assert!(dialling::hear(&mut stream).await.is_err(), "rubbish is not answered");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_second_machine_with_the_same_number_is_refused_while_the_first_answers() {
    let cluster = Cluster::new(CLUSTER);
    let one = cluster.node(1).await;
    let (first, copy) = (cluster.node(2).await, cluster.node(2).await);
    first.knows(&one);
    copy.knows(&one);
    assert_eq!(first.ask(1, Ask::Who).await, Ok(Tell::Node(2)));
    assert!(copy.ask(1, Ask::Who).await.is_err());
    assert_eq!(copy.complaint(1), NetworkError::Duplicate { node: NodeId(2) });
    assert_eq!(first.ask(1, Ask::Who).await, Ok(Tell::Node(2)));
    // And the copy is not called in the first's place.
    one.knows(&copy);
    assert!(one.ask(2, Ask::Much(1 << 20)).await.is_err());
    assert_eq!(one.complaint(2), NetworkError::Duplicate { node: NodeId(2) });
    let same = cluster.node(1).await;
    same.machine.know(NodeId(2), first.address());
    assert!(same.ask(2, Ask::Who).await.is_err(), "nor is a copy of the one that is called");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_new_life_of_a_node_is_welcome_when_the_old_one_is_silent() {
    let cluster = Cluster::new(CLUSTER);
    let one = cluster.node(1).await;
    // The old life said hello, and never answers a ping: a machine that lost its power.
    let _silent = greeted(&one, &cluster.identity(2)).await;
    let two = cluster.node(2).await;
    two.knows(&one);
    assert_eq!(two.ask(1, Ask::Who).await, Ok(Tell::Node(2)));
    assert_eq!(one.ask(2, Ask::Who).await, Ok(Tell::Node(1)));
}
