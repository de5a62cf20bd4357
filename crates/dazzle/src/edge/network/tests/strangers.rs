//! Who is not believed, and what both ends are told.

use host::NodeId;
use protocol::id::MapEpoch;
use protocol::maps::{Maps, NodeEntry};
use rustls::ClientConnection;
use rustls::pki_types::ServerName;
use tokio::io::{AsyncReadExt, AsyncWriteExt};

use super::{Ask, CLUSTER, Cluster, Node, Tell, now, pair};
use crate::edge::network::NetworkError;
use crate::edge::trust::{self, Authority, Date, Identity, NodeName, TrustError, Validity};

const YEAR: u64 = 365 * 86_400;

fn identity(cluster: &Cluster, node: u32, begins: u64, ends: u64) -> Identity {
    let validity = Validity { begins: Date(begins), ends: Date(ends) };
    Identity::create(&cluster.0, NodeId(node), validity).unwrap()
}

/// Why a call from the one to the other fails.
async fn distrust(one: &Node, other: &Node) -> TrustError {
    let node = NodeId(9);
    one.machine.know(node, other.address());
    assert!(one.ask(9, Ask::Who).await.is_err());
    match one.complaint(9) {
        NetworkError::Trust { why, .. } => why,
        error => panic!("{error}"),
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_node_of_another_cluster_is_told_apart_from_another_node_and_from_a_forgery() {
    let cluster = Cluster::new(CLUSTER);
    let one = cluster.node(1).await;
    let other = Cluster::new(CLUSTER + 1).node(9).await;
    assert_eq!(distrust(&one, &other).await, TrustError::WrongCluster { expected: CLUSTER, found: CLUSTER + 1 });
    let forged = Cluster::new(CLUSTER).node(9).await;
    assert_eq!(distrust(&one, &forged).await, TrustError::Foreign);
    let four = cluster.node(4).await;
    assert_eq!(distrust(&one, &four).await, TrustError::WrongNode { expected: NodeId(9), found: NodeId(4) });
    let nine = cluster.node(9).await;
    one.knows(&nine);
    assert_eq!(one.ask(9, Ask::Who).await, Ok(Tell::Node(1)));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_certificate_outside_of_its_time_says_which_clock_to_look_at() {
    let cluster = Cluster::new(CLUSTER);
    let (one, at) = (cluster.node(1).await, now().0);
    let old = Node::start(identity(&cluster, 9, at - 2 * YEAR, at - YEAR), None).await;
    let Expired { ended, now } = Expired::of(distrust(&one, &old).await);
    assert!(ended == Date(at - YEAR) && now >= Date(at));
    let early = Node::start(identity(&cluster, 9, at + YEAR, at + 2 * YEAR), None).await;
    let why = distrust(&one, &early).await;
    assert!(matches!(why, TrustError::NotYetValid { begins, .. } if begins == Date(at + YEAR)), "{why}");
    // The other way about the listener does not believe the caller, who is told.
    let nine = cluster.node(9).await;
    for (begins, ends) in [(at - 2 * YEAR, at - YEAR), (at + YEAR, at + 2 * YEAR)] {
        let unbelieved = Node::start(identity(&cluster, 8, begins, ends), None).await;
        let why = distrust(&unbelieved, &nine).await;
        assert!(matches!(why, TrustError::Refused(_)), "{why}");
    }
    let own = identity(&cluster, 9, at - 2 * YEAR, at - YEAR);
    assert!(matches!(own.check(Date(at)), Err(TrustError::Expired { .. })), "it is seen at home too");
    assert_eq!(own.check(Date(at - 3 * YEAR / 2)), Ok(()));
}

struct Expired {
    ended: Date,
    now: Date,
}

impl Expired {
    fn of(error: TrustError) -> Expired {
        match error {
            TrustError::Expired { ended, now } => Expired { ended, now },
            other => panic!("{other}"),
        }
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn without_a_certificate_of_the_cluster_nothing_can_be_said() {
    let (cluster, forger) = (Cluster::new(CLUSTER), Cluster::new(CLUSTER));
    let one = cluster.node(1).await;
    // By somebody who believes us, and whom we do not.
    let mut foreign = forger.identity(2).pems().map(str::to_owned);
    foreign[0] = cluster.0.pem().to_owned();
    let [authority, certificate, key] = foreign;
    let foreign = Node::start(Identity::from_pem(authority, certificate, key).unwrap(), None).await;
    foreign.knows(&one);
    assert!(foreign.ask(1, Ask::Who).await.is_err());
    assert!(matches!(foreign.complaint(1), NetworkError::Trust { why: TrustError::Refused(_), .. }));
    // Without TLS.
    let mut plain = tokio::net::TcpStream::connect(one.address()).await.unwrap();
    plain.write_all(b"GET / HTTP/1.1\r\n\r\n").await.unwrap();
    let mut answer = Vec::new();
    let _ = plain.read_to_end(&mut answer).await;
    assert!(answer.len() < 32, "an alert at most");
    assert_eq!(one.machine.peers().len(), 0);
}

/// Connections of those who say that they come to join, and then nothing.
async fn knock(address: &str, times: usize) -> Vec<tokio::net::TcpStream> {
    let anybody = ServerName::try_from("join.dazzle").unwrap();
    let mut connections = Vec::new();
    for _ in 0..times {
        let mut hello = Vec::new();
        let config = trust::joiner([0; 32]).unwrap().config().clone();
        ClientConnection::new(config, anybody.clone()).unwrap().write_tls(&mut hello).unwrap();
        let mut stream = tokio::net::TcpStream::connect(address).await.unwrap();
        stream.write_all(&hello).await.unwrap();
        connections.push(stream);
    }
    connections
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn who_says_that_they_come_to_join_keep_no_node_out() {
    crate::edge::process::raise_file_limit();
    let (one, two) = pair().await;
    let _strangers = knock(&two.address(), 300).await;
    let heard = async {
        while one.ask(2, Ask::Who).await != Ok(Tell::Node(1)) {
            tokio::time::sleep(std::time::Duration::from_millis(20)).await;
        }
    };
    let patience = super::super::JOIN_PATIENCE / 3;
    tokio::time::timeout(patience, heard).await.expect("there is a place for it as soon as they are heard");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn who_connects_and_says_nothing_keeps_no_node_out() {
    crate::edge::process::raise_file_limit();
    let (one, two) = pair().await;
    let mut strangers = Vec::new();
    for _ in 0..600 {
        strangers.push(tokio::net::TcpStream::connect(two.address()).await.unwrap());
    }
    assert_eq!(one.ask(2, Ask::Who).await, Ok(Tell::Node(1)), "there is a place for it at once");
    // The first ones had to go for others, and the last ones wait to be heard.
    let mut byte = [0];
    assert!(matches!(strangers[0].read(&mut byte).await, Ok(0) | Err(_)));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_node_that_was_removed_is_not_answered_any_more() {
    let (one, two) = pair().await;
    two.knows(&one);
    assert_eq!(two.ask(1, Ask::Who).await, Ok(Tell::Node(2)));
    let mut maps = Maps::empty(CLUSTER, 1);
    (maps.epoch, maps.next_node) = (MapEpoch(2), 3);
    maps.nodes.insert(1, NodeEntry::new("one", one.address(), true));
    one.machine.know_members(&maps);
    assert!(two.ask(1, Ask::Who).await.is_err(), "the connection is there, and its certificate is good");
    assert_eq!(one.ask(2, Ask::Who).await, Ok(Tell::Node(1)));
}

#[test]
fn what_is_stored_is_readable_by_its_owner_alone_and_read_back() {
    use std::os::unix::fs::PermissionsExt;
    let dir = std::env::temp_dir().join(format!("dazzle-trust-{}", std::process::id()));
    std::fs::create_dir_all(&dir).unwrap();
    let authority = Authority::create(CLUSTER, Validity::of_authority(now())).unwrap();
    let identity = Identity::create(&authority, NodeId(3), Validity::of_node(now())).unwrap();
    let allow = |name: &str, mode| {
        std::fs::set_permissions(dir.join("trust").join(name), std::fs::Permissions::from_mode(mode)).unwrap();
    };
    for _ in 0..2 {
        trust::store_authority(&dir, &authority).unwrap();
        trust::store(&dir, &identity).unwrap();
        allow("", 0o755);
    }
    trust::store(&dir, &identity).unwrap();
    let mode = |name: &str| std::fs::metadata(dir.join("trust").join(name)).unwrap().permissions().mode() & 0o777;
    assert_eq!(["ca.key", "node.key", "ca.pem", "node.pem"].map(mode), [0o600; 4]);
    assert_eq!(mode(""), 0o700);
    let (stored, kept) = (trust::load(&dir).unwrap(), trust::load_authority(&dir).unwrap());
    assert_eq!(stored.name(), NodeName { node: NodeId(3), cluster: CLUSTER });
    assert_eq!((kept.cluster(), kept.fingerprint()), (CLUSTER, stored.fingerprint()));
    let later = Identity::create(&kept, NodeId(4), Validity::of_node(now())).unwrap();
    assert_eq!(later.check(now()), Ok(()), "the CA signs after it was read back");
    for lax in [0o640, 0o604, 0o620] {
        allow("node.key", lax);
        allow("ca.key", lax);
        let why = trust::load(&dir).err().expect("others can use it").to_string();
        assert!(why.contains("chmod 600") && why.contains("trust/node.key"), "{why}");
        let why = trust::load_authority(&dir).err().expect("others can use it").to_string();
        assert!(why.contains("chmod 600") && why.contains("trust/ca.key"), "{why}");
    }
    for private in [0o600, 0o400] {
        allow("node.key", private);
        allow("ca.key", private);
        assert!(trust::load(&dir).is_ok() && trust::load_authority(&dir).is_ok());
    }
    std::fs::remove_file(dir.join("trust/node.key")).unwrap();
    assert!(matches!(trust::load(&dir), Err(TrustError::File { path, .. }) if path.ends_with("trust/node.key")));
    std::fs::write(dir.join("trust/node.key"), "nonsense").unwrap();
    allow("node.key", 0o600);
    assert!(matches!(trust::load(&dir), Err(TrustError::Unusable(_))));
    std::fs::remove_dir_all(&dir).unwrap();
}
