//! Machines that come with a token.

use std::collections::BTreeSet;
use std::sync::{Arc, Mutex};

use host::{BoxFuture, NodeId};
use protocol::registry::Invitation;
use rustls::pki_types::ServerName;
use tokio::io::{AsyncReadExt, AsyncWriteExt};

use super::{Ask, CLUSTER, Cluster, Node, Tell, now};
use crate::edge::network::dialling;
use crate::edge::network::frame::{Header, Kind};
use crate::edge::network::{
    Admission, Admitted, AuthorityKey, CLOCKS_APART_MAX, JOIN_VERSION, JoinError, JoinRefusal, JoinRequest,
    NetworkError, Newcomer, PlanRequest, Planned, join, plan,
};
use crate::edge::trust::{Authority, Date, Purpose, Token, TokenError, TrustError, Validity, joiner};

/// A registry of one node: gives numbers from 2 on.
struct Porter {
    authority: Authority,
    used: Mutex<BTreeSet<u64>>,
    nodes: Mutex<Vec<(u32, String)>>,
}

impl Porter {
    fn issue(&self, number: u64, expires: Date) -> Token {
        self.authority.invite(Invitation { number, expires: expires.0 })
    }

    fn check(&self, request: &JoinRequest) -> Result<(), TokenError> {
        self.authority.expect_invited(request.invitation, &request.proof, now())?;
        if self.used.lock().unwrap().contains(&request.invitation.number) { Err(TokenError::Used) } else { Ok(()) }
    }
}

struct Entrance(Arc<Porter>);

impl Admission for Entrance {
    fn admit(&self, request: JoinRequest) -> BoxFuture<'static, Result<Admitted, JoinRefusal>> {
        let porter = self.0.clone();
        Box::pin(async move {
            porter.check(&request).map_err(JoinRefusal::Token)?;
            porter.used.lock().unwrap().insert(request.invitation.number);
            let nodes = &mut *porter.nodes.lock().unwrap();
            let (node, peers) = (nodes.len() as u32 + 1, nodes.clone());
            let validity = Validity::of_node(now());
            let signed = porter.authority.sign(&request.request, NodeId(node), validity);
            let certificate = signed.map_err(|error| JoinRefusal::Other(error.to_string()))?;
            nodes.push((node, request.address));
            let authority = porter.authority.pem().to_owned();
            let authority_key = request.stores.then(|| AuthorityKey(porter.authority.key_pem()));
            Ok(Admitted { node, cluster: CLUSTER, certificate, authority, authority_key, class: 1.into(), peers })
        })
    }

    fn plan(&self, request: PlanRequest) -> BoxFuture<'static, Result<Planned, JoinRefusal>> {
        let porter = self.0.clone();
        Box::pin(async move {
            porter.check(&request.join).map_err(JoinRefusal::Token)?;
            Ok(Planned(format!("{} would come with {:?}", request.join.name, request.bytes_free)))
        })
    }
}

/// A node that lets machines in.
async fn open_node() -> (Node, Arc<Porter>) {
    let cluster = Cluster::new(CLUSTER);
    let identity = cluster.identity(1);
    let porter = Arc::new(Porter { authority: cluster.0, used: Mutex::default(), nodes: Mutex::default() });
    let node = Node::start(identity, Some(Arc::new(Entrance(porter.clone())))).await;
    porter.nodes.lock().unwrap().push((1, node.address()));
    (node, porter)
}

fn tomorrow() -> Date {
    Date(now().0 + 86_400)
}

async fn try_join(node: &Node, token: &Token) -> Result<super::super::Joined, JoinError> {
    try_join_as(node, token, true).await
}

async fn try_join_as(node: &Node, token: &Token, stores: bool) -> Result<super::super::Joined, JoinError> {
    let newcomer = Newcomer { name: "rack-1".into(), address: "127.0.0.1:1".into(), stores };
    join(&node.address(), token, newcomer, now()).await
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_machine_with_a_token_becomes_a_node() {
    let (one, porter) = open_node().await;
    let line = porter.issue(1, tomorrow()).to_string();
    let joined = try_join(&one, &line.parse().unwrap()).await.unwrap();
    assert_eq!(joined.peers, [(NodeId(1), one.address())]);
    let two = Node::start(joined.identity, None).await;
    assert_eq!(two.host.node(), NodeId(2));
    joined.peers.into_iter().for_each(|(node, address)| two.machine.know(node, address));
    assert_eq!(two.ask(1, Ask::Who).await, Ok(Tell::Node(2)));
    assert_eq!(one.ask(2, Ask::Who).await, Ok(Tell::Node(1)));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn who_asks_what_it_would_be_like_is_told_and_comes_by_the_same_token_later() {
    let (one, porter) = open_node().await;
    let token = porter.issue(1, tomorrow());
    let ask = async |token: &Token, bytes_free| {
        let newcomer = Newcomer { name: "rack-1".into(), address: "127.0.0.1:1".into(), stores: true };
        plan(&one.address(), token, (newcomer, bytes_free), now()).await
    };
    for _ in 0..2 {
        assert_eq!(ask(&token, vec![7, 8]).await, Ok(Planned("rack-1 would come with [7, 8]".into())));
    }
    assert_eq!(porter.nodes.lock().unwrap().len(), 1, "nobody was let in");
    assert!(try_join(&one, &token).await.is_ok());
    assert_eq!(ask(&token, vec![]).await, Err(JoinError::Refused(JoinRefusal::Token(TokenError::Used))));
    // Who only mounts says so.
    let client = try_join_as(&one, &porter.issue(2, tomorrow()), false).await.unwrap();
    let client = Node::start(client.identity, None).await;
    let newcomer = Newcomer { name: "rack-3".into(), address: "127.0.0.1:3".into(), stores: true };
    let there = plan(&client.address(), &porter.issue(3, tomorrow()), (newcomer, vec![]), now()).await;
    assert_eq!(there, Err(JoinError::Refused(JoinRefusal::NotHere)));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn who_stores_can_let_others_in_and_who_only_mounts_cannot() {
    let (one, porter) = open_node().await;
    let client = try_join_as(&one, &porter.issue(1, tomorrow()), false).await.unwrap();
    assert!(client.authority.is_none());
    let second = try_join(&one, &porter.issue(2, tomorrow())).await.unwrap();
    let authority = second.authority.expect("it stores");
    assert_eq!(authority.fingerprint(), porter.authority.fingerprint());
    // It lets a third one in, whom the first takes for one of its own.
    let nodes = Mutex::new(vec![(1, one.address()), (2, "127.0.0.1:1".into())]);
    let porter = Arc::new(Porter { authority, used: Mutex::default(), nodes });
    let two = Node::start(second.identity, Some(Arc::new(Entrance(porter.clone())))).await;
    let third = try_join(&two, &porter.issue(3, tomorrow())).await.unwrap();
    let third = Node::start(third.identity, None).await;
    third.knows(&one);
    assert_eq!(third.ask(1, Ask::Who).await, Ok(Tell::Node(3)));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_token_that_is_not_good_is_told_why() {
    let (one, porter) = open_node().await;
    let good = porter.issue(1, tomorrow());
    let why = async |token: &Token| try_join(&one, token).await.err().unwrap();
    let wrong = Token { proof: [9; 16], ..good };
    assert_eq!(why(&wrong).await, JoinError::Refused(JoinRefusal::Token(TokenError::Wrong)));
    // The clock of who lets it in decides.
    let late = porter.issue(2, Date(now().0 - 1));
    assert!(matches!(why(&late).await, JoinError::Refused(JoinRefusal::Token(TokenError::Expired(_)))));
    let forged = Token { invitation: Invitation { expires: tomorrow().0, ..late.invitation }, ..late };
    assert_eq!(why(&forged).await, JoinError::Refused(JoinRefusal::Token(TokenError::Wrong)));
    assert!(try_join(&one, &good).await.is_ok());
    assert_eq!(why(&good).await, JoinError::Refused(JoinRefusal::Token(TokenError::Used)));
    let elsewhere = Token { fingerprint: [7; 32], ..good };
    let error = why(&elsewhere).await;
    assert!(
        matches!(&error, JoinError::Network(NetworkError::Trust { why: TrustError::WrongAuthority, .. })),
        "{error}"
    );
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_node_without_the_authority_says_so() {
    let cluster = Cluster::new(CLUSTER);
    let two = cluster.node(2).await;
    let token = cluster.0.invite(Invitation { number: 1, expires: tomorrow().0 });
    assert_eq!(try_join(&two, &token).await.err(), Some(JoinError::Refused(JoinRefusal::NotHere)));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn many_machines_join_as_fast_as_they_come() {
    let (one, porter) = open_node().await;
    for number in 1..=40 {
        assert!(try_join(&one, &porter.issue(number, tomorrow())).await.is_ok(), "machine {number}");
    }
    let tokens: Vec<Token> = (41..=56).map(|number| porter.issue(number, tomorrow())).collect();
    let joined = futures_util::future::join_all(tokens.iter().map(|token| try_join(&one, token))).await;
    assert!(joined.iter().all(Result::is_ok), "all at once: {:?}", joined.into_iter().find_map(Result::err));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn who_guesses_keeps_nobody_out_and_who_comes_with_a_used_token_is_soon_not_looked_at() {
    let (one, porter) = open_node().await;
    let good = porter.issue(1, tomorrow());
    let wrong = Token { proof: [9; 16], ..good };
    for _ in 0..12 {
        let refused = try_join(&one, &wrong).await.err();
        assert_eq!(refused, Some(JoinError::Refused(JoinRefusal::Token(TokenError::Wrong))));
        let nameless = Newcomer { name: String::new(), address: "127.0.0.1:1".into(), stores: true };
        let refused = join(&one.address(), &wrong, nameless, now()).await.err();
        assert!(matches!(refused, Some(JoinError::Refused(JoinRefusal::Nonsense(_)))), "{refused:?}");
    }
    assert!(try_join(&one, &good).await.is_ok());
    let mut refused = Vec::new();
    for _ in 0..11 {
        refused.push(try_join(&one, &good).await.err().unwrap());
    }
    assert_eq!(refused.pop(), Some(JoinError::Refused(JoinRefusal::Busy)));
    assert!(refused.iter().all(|why| *why == JoinError::Refused(JoinRefusal::Token(TokenError::Used))));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn who_says_nothing_keeps_those_that_join_waiting_for_seconds_at_most() {
    let (one, porter) = open_node().await;
    let connector = joiner(porter.authority.fingerprint()).unwrap();
    let mut silent = Vec::new();
    for _ in 0..8 {
        let stream = dialling::connect(&one.address()).await.unwrap();
        let anybody = ServerName::try_from("join.dazzle").unwrap();
        let (address, connector) = (one.address(), connector.clone());
        silent.push(tokio::spawn(async move { dialling::encrypt(&address, stream, &connector, anybody).await }));
    }
    tokio::task::yield_now().await;
    let begun = std::time::Instant::now();
    assert!(try_join(&one, &porter.issue(1, tomorrow())).await.is_ok());
    assert!(begun.elapsed() < std::time::Duration::from_secs(8), "{:?}", begun.elapsed());
    for stream in silent {
        let mut stream = stream.await.unwrap().unwrap();
        assert_eq!(stream.read(&mut [0; 1]).await.unwrap_or(0), 0, "it is closed");
    }
    assert!(begun.elapsed() < std::time::Duration::from_secs(8), "{:?}", begun.elapsed());
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn nothing_but_joining_can_be_said_without_a_certificate() {
    let (one, porter) = open_node().await;
    let connector = joiner(porter.authority.fingerprint()).unwrap();
    let version = JOIN_VERSION.to_le_bytes();
    let huge = [&u32::MAX.to_le_bytes()[..], &version].concat();
    let foreign = [&1u32.to_le_bytes()[..], &[99, 0, 0]].concat();
    let garbled = [&1u32.to_le_bytes()[..], &version, &[0]].concat();
    let request = Header::bare(Kind::Request { room: 0 }, super::PORT, 0).encode().to_vec();
    let version = |theirs| JoinRefusal::Version { theirs, ours: JOIN_VERSION };
    let refusals = [JoinRefusal::Garbled, version(99), JoinRefusal::Garbled, version(0)];
    for (bytes, refusal) in [huge, foreign, garbled, request].into_iter().zip(refusals) {
        let stream = dialling::connect(&one.address()).await.unwrap();
        let anybody = ServerName::try_from("join.dazzle").unwrap();
        let mut stream = dialling::encrypt(&one.address(), stream, &connector, anybody).await.unwrap();
        stream.write_all(&bytes).await.unwrap();
        stream.flush().await.unwrap();
        let mut head = [0; 6];
        stream.read_exact(&mut head).await.unwrap();
        let mut answer = vec![0; head[0].into()];
        stream.read_exact(&mut answer).await.unwrap();
        assert_eq!(postcard::from_bytes::<Result<Admitted, JoinRefusal>>(&answer), Ok(Err(refusal)));
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_machine_whose_clock_is_far_off_is_told_both_times_and_keeps_its_token() {
    let (one, porter) = open_node().await;
    let token = porter.issue(1, tomorrow());
    let by_clock = async |clock: Date| {
        let newcomer = Newcomer { name: "rack-1".into(), address: "127.0.0.1:1".into(), stores: true };
        join(&one.address(), &token, newcomer, clock).await
    };
    let apart = CLOCKS_APART_MAX.as_secs() + 60;
    for clock in [Date(now().0 - apart), Date(now().0 + apart), Date(0), Date(u64::MAX)] {
        let refused = by_clock(clock).await.err().unwrap();
        let JoinError::Refused(JoinRefusal::Clock { theirs, ours }) = refused else { panic!("{refused}") };
        assert!(theirs == clock.0 && now().0 - ours < 60);
    }
    assert_eq!(porter.nodes.lock().unwrap().len(), 1, "nobody was entered");
    assert!(by_clock(Date(now().0 - apart / 2)).await.is_ok(), "a little off is no harm");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_cluster_of_another_version_is_told_apart_by_who_joins() {
    let (cluster, listener) = (Cluster::new(CLUSTER), tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap());
    let (address, fingerprint) = (listener.local_addr().unwrap().to_string(), cluster.0.fingerprint());
    let acceptor = tokio_rustls::TlsAcceptor::from(cluster.identity(1).server(Purpose::Join));
    tokio::spawn(async move {
        for version in [JOIN_VERSION - 1, JOIN_VERSION + 1] {
            let mut stream = acceptor.accept(listener.accept().await.unwrap().0).await.unwrap();
            // A body that only this version understands.
            stream.write_all(&[&3u32.to_le_bytes()[..], &version.to_le_bytes(), b"???"].concat()).await.unwrap();
            stream.flush().await.unwrap();
            let _ = stream.read_to_end(&mut Vec::new()).await;
        }
    });
    let invitation = Invitation { number: 1, expires: tomorrow().0 };
    let token = Token { fingerprint, invitation, proof: [1; 16] };
    for (theirs, older) in [(JOIN_VERSION - 1, "upgrade the Dazzle there"), (JOIN_VERSION + 1, "upgrade this one")] {
        let newcomer = Newcomer { name: "rack-1".into(), address: "127.0.0.1:1".into(), stores: true };
        let why = join(&address, &token, newcomer, now()).await.err().unwrap();
        assert_eq!(why, JoinError::Refused(JoinRefusal::Version { theirs, ours: JOIN_VERSION }));
        assert!(why.to_string().ends_with(older), "{why}");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn who_gives_no_name_or_no_address_that_can_be_is_refused_and_keeps_its_token() {
    let (one, porter) = open_node().await;
    let token = porter.issue(1, tomorrow());
    for (name, address) in
        [("", "127.0.0.1:1"), ("rack\n1", "127.0.0.1:1"), ("rack-1", ""), ("rack-1", &"x".repeat(300))]
    {
        let newcomer = Newcomer { name: name.into(), address: address.into(), stores: true };
        let refused = join(&one.address(), &token, newcomer, now()).await.err().unwrap();
        assert!(matches!(refused, JoinError::Refused(JoinRefusal::Nonsense(_))), "{refused}");
    }
    assert!(try_join(&one, &token).await.is_ok());
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn who_cannot_be_reached_is_given_up_in_time_and_in_words() {
    let (_, porter) = open_node().await;
    let token = porter.issue(1, tomorrow());
    let why = async |address: &str| {
        let newcomer = Newcomer { name: "rack-1".into(), address: "127.0.0.1:1".into(), stores: true };
        match join(address, &token, newcomer, now()).await.err().unwrap() {
            JoinError::Network(why) => why,
            other => panic!("{other}"),
        }
    };
    assert!(matches!(why("nowhere.invalid:1").await, NetworkError::Unresolved { .. }));
    let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap().to_string();
    tokio::spawn(async move {
        let _silent = listener.accept().await.unwrap();
        drop(listener.accept().await.unwrap());
        let (mut web, _) = listener.accept().await.unwrap();
        web.write_all(b"HTTP/1.1 400 Bad Request\r\n\r\n").await.unwrap();
        std::future::pending::<()>().await
    });
    let begun = std::time::Instant::now();
    assert!(matches!(why(&address).await, NetworkError::Silent { .. }));
    assert!(begun.elapsed() < std::time::Duration::from_secs(6), "{:?}", begun.elapsed());
    assert!(matches!(why(&address).await, NetworkError::HungUp { .. }));
    let web = why(&address).await;
    assert!(matches!(web, NetworkError::Trust { why: TrustError::NotDazzle(_), .. }), "{web}");
}
