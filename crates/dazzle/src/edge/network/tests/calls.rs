//! Calls, when nothing is wrong, or only the call is.

use std::pin::pin;
use std::sync::Arc;

use bytes::Bytes;
use futures_util::future::{Either, join_all, select};
use host::{Address, Envelope, NodeId, Port};

use super::{Ask, Cluster, DEAF_PORT, Node, Tell, at, pair};
use crate::edge::network::BULK_WINDOW_BYTES;

fn pattern(length: usize, seed: usize) -> Bytes {
    (0..length).map(|index| (index * 31 + index / 251 + seed) as u8).collect::<Vec<u8>>().into()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn nodes_call_each_other_both_ways_and_see_who_calls() {
    let (one, two) = pair().await;
    assert_eq!(one.ask(2, Ask::Who).await, Ok(Tell::Node(1)));
    // Two was never told where one is: it uses the connection that one made.
    assert_eq!(two.ask(1, Ask::Who).await, Ok(Tell::Node(2)));
    assert_eq!((one.connections(2), two.connections(1)), (1, 1));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn ten_thousand_calls_at_once_are_all_answered() {
    let (one, two) = pair().await;
    let there = (0..5000).map(|number: u32| {
        let one = &one;
        async move {
            let said = Bytes::from(number.to_le_bytes().to_vec());
            assert_eq!(one.ask(2, Ask::Echo(vec![said.clone()])).await, Ok(Tell::Parts(vec![said])));
        }
    });
    assert_eq!(one.ask(2, Ask::Who).await, Ok(Tell::Node(1)));
    let back = (0..5000).map(|_| async { assert_eq!(two.ask(1, Ask::Who).await, Ok(Tell::Node(2))) });
    tokio::join!(join_all(there), join_all(back));
    assert_eq!(one.connections(2), 1);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn payloads_arrive_unchanged_in_one_aligned_buffer() {
    let (one, _two) = pair().await;
    for length in [4096, 100_000, 1 << 20, 4 << 20] {
        let parts = vec![pattern(length, 1), pattern(4095, 2), pattern(length - 1, 3), Bytes::new()];
        let Ok(Tell::Parts(echoed)) = one.ask(2, Ask::Echo(parts.clone())).await else { panic!("it echoes") };
        assert!(echoed == parts, "{length}");
        let [first, third] = [echoed[0].as_ptr() as usize, echoed[2].as_ptr() as usize];
        if length > 4096 {
            assert_eq!(third, first + length, "both payloads lie in the buffer into which they were read");
            if length <= 512 << 10 {
                assert_eq!(first % 4096, 0, "it is page-aligned");
            }
        }
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn more_than_the_window_waits_and_is_answered() {
    let (one, two) = pair().await;
    two.knows(&one);
    let count = 3 * BULK_WINDOW_BYTES / (1 << 20);
    let said = pattern(1 << 20, 0);
    let echo = async |node: &Node, to| {
        let parts = vec![said.clone()];
        assert!(node.ask(to, Ask::Echo(parts)).await.is_ok_and(|told| told == Tell::Parts(vec![said.clone()])));
    };
    let both = (0..count).map(|_| async { tokio::join!(echo(&one, 2), echo(&two, 1)) });
    join_all(both).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn large_calls_do_not_share_a_connection_with_small_ones() {
    let (one, _two) = pair().await;
    one.ask(2, Ask::Who).await.unwrap();
    assert_eq!(one.connections(2), 1);
    one.ask(2, Ask::Much(1 << 20)).await.unwrap();
    assert_eq!(one.connections(2), 2, "a large answer is a large call");
    one.ask(2, Ask::Echo(vec![pattern(100_000, 0)])).await.unwrap();
    assert_eq!(one.connections(2), 2, "so is a large request");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn large_calls_of_each_end_have_a_connection_of_their_own() {
    let (one, two) = pair().await;
    two.knows(&one);
    one.ask(2, Ask::Much(1 << 20)).await.unwrap();
    assert_eq!((one.connections(2), two.connections(1)), (2, 2), "one is for what is small: they have met");
    two.ask(1, Ask::Much(1 << 20)).await.unwrap();
    assert_eq!((one.connections(2), two.connections(1)), (3, 3), "its question does not wait behind its own answers");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_is_urgent_does_not_wait_behind_large_calls() {
    let (one, _two) = pair().await;
    one.ask(2, Ask::Who).await.unwrap();
    // The connection for what is large is there: else the urgent call may be answered before it is.
    one.ask(2, Ask::Much(1 << 20)).await.unwrap();
    let kept = (0..2 * BULK_WINDOW_BYTES / (1 << 20)).map(|_| one.ask(2, Ask::Keep(vec![pattern(1 << 20, 0)])));
    let urgent = async {
        let asked = Envelope::new(Ask::Echo(vec![pattern(1 << 20, 1)])).urgent();
        one.host.send::<Tell>(at(2), asked).await
    };
    match select(join_all(kept), pin!(urgent)).await {
        Either::Left(_) => panic!("nobody answers these"),
        Either::Right((told, _)) => assert!(told == Ok(Tell::Parts(vec![pattern(1 << 20, 1)]))),
    }
    assert_eq!(one.connections(2), 3, "one for what is small, one for what is large, one for what is urgent");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn who_cannot_be_dialled_is_called_over_the_connection_it_made() {
    let (one, two) = pair().await;
    one.ask(2, Ask::Much(1 << 20)).await.unwrap();
    two.ask(1, Ask::Much(1 << 20)).await.unwrap();
    assert_eq!(two.connections(1), 2, "nobody told it where the other is");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_call_that_cannot_be_answered_fails_alone() {
    let (one, _two) = pair().await;
    let deaf = Address { node: NodeId(2), port: Port(DEAF_PORT) };
    assert!(one.host.call::<_, Tell>(deaf, Ask::Who).await.is_err(), "nobody listens there");
    assert!(one.ask(2, Ask::Panic).await.is_err(), "the handler failed");
    assert!(one.ask(2, Ask::Much(9 << 20)).await.is_err(), "the answer is too large");
    assert!(one.ask(2, Ask::Echo(vec![pattern(9 << 20, 0)])).await.is_err(), "the request is too large");
    assert_eq!(one.ask(2, Ask::Who).await, Ok(Tell::Node(1)));
    assert_eq!(one.connections(2), 2, "no connection was closed: one small, one bulk");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn who_stops_waiting_leaves_the_window_when_the_answer_comes() {
    let (one, _two) = pair().await;
    let one = Arc::new(one);
    for _ in 0..4 * (BULK_WINDOW_BYTES >> 20) {
        let asking = one.clone();
        let abandoned = tokio::spawn(async move { asking.ask(2, Ask::Much(1 << 20)).await });
        tokio::task::yield_now().await;
        abandoned.abort();
    }
    assert!(one.ask(2, Ask::Much(1 << 20)).await.is_ok());
}

#[tokio::test]
async fn a_part_of_the_same_node_gets_the_very_message() {
    let one = Cluster::new(super::CLUSTER).node(1).await;
    let said = pattern(1 << 20, 0);
    let Ok(Tell::Parts(heard)) = one.ask(1, Ask::Echo(vec![said.clone()])).await else { panic!("it echoes") };
    assert_eq!(heard[0].as_ptr(), said.as_ptr());
    assert!(one.machine.peers().is_empty());
}

#[tokio::test]
async fn a_machine_that_is_not_connected_reaches_nobody() {
    let host = crate::edge::machine::RealMachine::host(NodeId(1), tokio::runtime::Handle::current());
    assert!(host.call::<_, Tell>(at(2), Ask::Who).await.is_err());
}
