//! Calls that go around a link that is cut, over real sockets.

use std::time::{Duration, Instant};

use bytes::Bytes;

use super::faults::{Link, Proxy};
use super::{Ask, Cluster, Node, Tell};
use crate::edge::network::NetworkError;

/// By then whoever is silent is found dead.
const DEAD_MAX: Duration = Duration::from_secs(3);

/// Nodes 1, 2 and 3; between 1 and 2 there is a link that can be harmed.
async fn three() -> ([Node; 3], [Proxy; 2]) {
    let cluster = Cluster::new(super::CLUSTER);
    let nodes = [cluster.node(1).await, cluster.node(2).await, cluster.node(3).await];
    let [one, two, three] = &nodes;
    let proxies = [Proxy::before(one).await, Proxy::before(two).await];
    two.machine.know(one.host.node(), proxies[0].address.clone());
    one.machine.know(two.host.node(), proxies[1].address.clone());
    one.knows(three);
    three.knows(two);
    two.knows(three);
    for (from, to) in [(one, 2), (one, 3), (two, 3), (three, 2)] {
        assert_eq!(from.ask(to, Ask::Who).await, Ok(Tell::Node(from.host.node().0)));
    }
    (nodes, proxies)
}

async fn goes_around(harm: Link) {
    let ([one, two, _three], proxies) = three().await;
    for proxy in &proxies {
        proxy.link.send_replace(harm);
    }
    let begun = Instant::now();
    while one.ask(2, Ask::Who).await != Ok(Tell::Node(1)) {
        assert!(begun.elapsed() < DEAD_MAX, "nobody finds a way");
    }
    let large = vec![Bytes::from(vec![1; 1 << 20]), Bytes::from(vec![2; 100])];
    assert_eq!(one.ask(2, Ask::Echo(large.clone())).await, Ok(Tell::Parts(large)), "either way");
    while two.ask(1, Ask::Who).await != Ok(Tell::Node(2)) {
        assert!(begun.elapsed() < 2 * DEAD_MAX, "nobody finds a way back");
    }
    assert_eq!(one.ask(2, Ask::Panic).await.map_err(|_| ()), Err(()), "what fails, fails around too");
}

/// A copy of a machine's directory is refused where the machine is known, and must not come in by a node that does not know it.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn who_is_refused_finds_no_way_around() {
    let cluster = Cluster::new(super::CLUSTER);
    let [one, copy, two, three] =
        [cluster.node(1).await, cluster.node(1).await, cluster.node(2).await, cluster.node(3).await];
    one.knows(&two);
    copy.knows(&two);
    copy.knows(&three);
    three.knows(&two);
    for (from, to) in [(&one, 2), (&copy, 3), (&three, 2)] {
        assert_eq!(from.ask(to, Ask::Who).await, Ok(Tell::Node(from.host.node().0)));
    }
    for _ in 0..20 {
        assert!(copy.ask(2, Ask::Who).await.is_err());
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
    assert!(matches!(copy.complaint(2), NetworkError::Duplicate { .. }), "{:?}", copy.complaint(2));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn calls_go_around_a_link_that_is_silent() {
    goes_around(Link::Silent).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn calls_go_around_a_link_that_is_torn() {
    goes_around(Link::Torn).await;
}
