//! Calls between simulated nodes: every call ends, in its answer or in `Unreachable`, and a dead node's tasks do
//! nothing any more, or the simulation would forgive what a real cluster does not.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use host::sim::{self, LAG_MAX, NetworkOptions, Stop, Verdict, Way, World};
use host::{Address, BoxFuture, Envelope, Handler, Host, NodeId, Port, Unreachable};

const PORT: Port = Port(7);
const SERVER: NodeId = NodeId(2);
const TO: Address = Address { node: SERVER, port: PORT };

/// Answers with the number of calls so far, after a while.
struct Counter {
    host: Host,
    calls: Arc<AtomicU64>,
    wait: Duration,
}

impl Handler for Counter {
    fn handle(&self, _from: NodeId, _request: Envelope) -> BoxFuture<'static, Envelope> {
        let (host, calls, wait) = (self.host.clone(), self.calls.clone(), self.wait);
        Box::pin(async move {
            host.sleep(wait).await;
            Envelope::new(calls.fetch_add(1, Ordering::Relaxed) + 1)
        })
    }
}

fn serve(host: &Host, wait: Duration) -> Arc<AtomicU64> {
    let calls = Arc::new(AtomicU64::new(0));
    host.listen(PORT, Arc::new(Counter { host: host.clone(), calls: calls.clone(), wait }));
    calls
}

fn server(world: &World, wait: Duration) -> Arc<AtomicU64> {
    serve(&world.add_node(SERVER), wait)
}

async fn call(host: &Host) -> Result<u64, Unreachable> {
    host.call::<&str, u64>(TO, "count").await
}

#[test]
fn a_call_is_answered_from_near_and_far() {
    sim::explore(0..20, async |world, host| {
        let calls = server(&world, Duration::ZERO);
        assert_eq!(call(&host).await, Ok(1));
        assert_eq!(call(&world.host(SERVER)).await, Ok(2), "a node may call itself");
        assert_eq!(calls.load(Ordering::Relaxed), 2);
        assert_eq!((world.calls_to(PORT), world.network_counters().answers), (1, 1));
    });
}

#[test]
fn a_slow_handler_is_waited_for() {
    sim::run(1, async |world, host| {
        server(&world, Duration::from_secs(3600));
        assert_eq!(call(&host).await, Ok(1));
    });
}

#[test]
fn who_does_not_listen_or_does_not_exist_is_unreachable() {
    sim::run(1, async |world, host| {
        assert_eq!(call(&host).await, Err(Unreachable(TO)));
        let server = world.add_node(SERVER);
        assert_eq!(call(&host).await, Err(Unreachable(TO)));
        assert_eq!(call(&server).await, Err(Unreachable(TO)));
    });
}

#[test]
fn a_crash_fails_the_calls_to_the_node_and_ends_its_work() {
    for stop in [Stop::Kill, Stop::PowerLoss] {
        sim::explore(0..50, async |world, host| {
            let calls = server(&world, Duration::from_secs(10));
            let caller = host.clone();
            let calling = world.spawn(&host, async move { call(&caller).await });
            world.sleep(Duration::from_secs(5)).await;
            let at_crash = world.now();
            world.crash(SERVER, stop);
            assert_eq!(calling.await.unwrap(), Err(Unreachable(TO)));
            let noticed = world.now() - at_crash;
            assert_eq!(noticed >= NetworkOptions::default().timeout, stop == Stop::PowerLoss);
            assert_eq!(call(&host).await, Err(Unreachable(TO)));
            world.sleep(Duration::from_secs(10)).await;
            assert_eq!(calls.load(Ordering::Relaxed), 0, "the dead do nothing");
            serve(&world.restart(SERVER), Duration::ZERO);
            assert_eq!(call(&host).await, Ok(1));
        });
    }
}

#[test]
fn a_callers_crash_does_not_take_its_call_back() {
    sim::explore(0..50, async |world, host| {
        let calls = server(&world, Duration::ZERO);
        let caller = host.clone();
        let calling = world.spawn(&host, async move { call(&caller).await });
        while world.network_counters().calls == 0 {
            world.sleep(Duration::from_nanos(100)).await;
        }
        world.crash(host.node(), Stop::Kill);
        assert!(calling.await.is_err());
        world.sleep(Duration::from_secs(1)).await;
        assert_eq!(calls.load(Ordering::Relaxed), 1);
    });
}

#[test]
fn a_handle_of_a_past_life_does_nothing() {
    sim::run(1, async |world, host| {
        let calls = server(&world, Duration::ZERO);
        world.crash(host.node(), Stop::Kill);
        world.restart(host.node());
        host.spawn(async { panic!("the dead start nothing") });
        assert_eq!(call(&host).await, Err(Unreachable(TO)));
        assert_eq!(calls.load(Ordering::Relaxed), 0);
    });
}

#[test]
fn a_cut_link_fails_calls_and_a_healed_one_carries_them() {
    sim::explore(0..50, async |world, host| {
        let calls = server(&world, Duration::ZERO);
        world.cut_one_way(SERVER, host.node());
        assert_eq!(call(&host).await, Err(Unreachable(TO)));
        assert_eq!(calls.load(Ordering::Relaxed), 1, "the request arrived; its answer did not");
        world.heal_all();
        assert_eq!(call(&host).await, Ok(2));
        world.isolate(SERVER);
        assert_eq!(call(&host).await, Err(Unreachable(TO)));
        assert_eq!(calls.load(Ordering::Relaxed), 2);
        world.heal(host.node(), SERVER);
        assert_eq!(call(&host).await, Ok(3));
    });
}

#[test]
fn a_cut_that_lasts_fails_calls_under_way_and_a_short_one_does_not() {
    for (seconds, answered) in [(2.0, false), (0.1, true)] {
        sim::explore(0..20, async |world, host| {
            server(&world, Duration::from_secs(10));
            let caller = host.clone();
            let calling = world.spawn(&host, async move { call(&caller).await });
            world.sleep(Duration::from_secs(5)).await;
            world.cut(host.node(), SERVER);
            world.sleep(Duration::from_secs_f64(seconds)).await;
            world.heal_all();
            assert_eq!(calling.await.unwrap().is_ok(), answered);
        });
    }
}

#[test]
fn a_frozen_node_does_nothing_until_it_is_resumed() {
    sim::explore(0..20, async |world, host| {
        let calls = server(&world, Duration::ZERO);
        world.pause(SERVER);
        assert_eq!(call(&host).await, Err(Unreachable(TO)));
        assert_eq!(calls.load(Ordering::Relaxed), 0);
        world.resume(SERVER);
        world.sleep(Duration::from_secs(1)).await;
        assert_eq!(calls.load(Ordering::Relaxed), 1, "the request had arrived, and is served late");
        assert_eq!(call(&host).await, Ok(2));
    });
}

#[test]
fn lost_messages_fail_some_calls_and_some_of_those_took_effect() {
    let mut unanswered_effects = 0;
    for seed in 0..20 {
        unanswered_effects += sim::run(seed, async |world, host| {
            world.set_network(NetworkOptions { loss_ppm: 200_000, ..NetworkOptions::default() });
            let calls = server(&world, Duration::ZERO);
            let mut answered = 0;
            for _ in 0..50 {
                answered += u64::from(call(&host).await.is_ok());
            }
            assert!(answered > 10 && answered < 50);
            calls.load(Ordering::Relaxed) - answered
        });
    }
    assert!(unanswered_effects > 0);
}

#[test]
fn a_judge_loses_or_delays_what_the_test_names() {
    sim::run(1, async |world, host| {
        let calls = server(&world, Duration::ZERO);
        world.judge_messages(|passing| match (passing.way, passing.message.peek().downcast_ref::<u64>()) {
            (Way::Answer, Some(1)) => Verdict::Lose,
            (Way::Answer, Some(2)) => Verdict::Delay(Duration::from_secs(60)),
            _ => Verdict::Pass,
        });
        assert_eq!(call(&host).await, Err(Unreachable(TO)));
        assert_eq!(calls.load(Ordering::Relaxed), 1);
        let before = world.now();
        assert_eq!(call(&host).await, Ok(2));
        assert!(world.now() - before > Duration::from_secs(60));
        world.dismiss_judge();
        assert_eq!(call(&host).await, Ok(3));
    });
}

/// From now on the requests of this file can be doubled.
fn copy_all(world: &World) {
    world.copy_requests(|passing| passing.message.copied::<&str>());
}

#[test]
fn a_doubled_request_is_handled_twice_and_answered_once() {
    let mut overtaken = 0;
    for seed in 0..50 {
        overtaken += sim::run(seed, async |world, host| {
            let calls = server(&world, Duration::ZERO);
            copy_all(&world);
            world.set_network(NetworkOptions { doubled_ppm: 1_000_000, ..NetworkOptions::default() });
            let answer = call(&host).await.expect("nothing is lost");
            world.sleep(2 * LAG_MAX).await;
            assert_eq!(calls.load(Ordering::Relaxed), 2);
            let counters = world.network_counters();
            assert_eq!((counters.calls, counters.answers, counters.doubled), (1, 1, 1));
            world.set_network(NetworkOptions::default());
            assert_eq!(call(&host).await, Ok(3));
            assert_eq!(call(&world.host(SERVER)).await, Ok(4));
            answer - 1
        });
    }
    assert!(overtaken > 0 && overtaken < 50, "{overtaken} of 50 were behind their copies");
}

#[test]
fn a_copy_comes_long_after_its_call_where_a_test_wants_it() {
    sim::run(1, async |world, host| {
        let calls = server(&world, Duration::ZERO);
        copy_all(&world);
        world.judge_messages(|passing| match passing.way {
            Way::Request => Verdict::Double(Duration::from_secs(60)),
            Way::Answer => Verdict::Pass,
        });
        assert_eq!(call(&host).await, Ok(1));
        world.dismiss_judge();
        world.sleep(Duration::from_secs(59)).await;
        assert_eq!(call(&host).await, Ok(2));
        world.sleep(Duration::from_secs(2)).await;
        assert_eq!(calls.load(Ordering::Relaxed), 3);
    });
}

#[test]
fn only_what_can_be_copied_is_doubled() {
    sim::run(1, async |world, host| {
        let calls = server(&world, Duration::ZERO);
        world.copy_requests(|passing| passing.message.copied::<u64>());
        world.set_network(NetworkOptions { doubled_ppm: 1_000_000, ..NetworkOptions::default() });
        assert_eq!(call(&host).await, Ok(1));
        world.sleep(2 * LAG_MAX).await;
        assert_eq!(calls.load(Ordering::Relaxed), 1);
    });
}

#[test]
fn a_copy_meets_cuts_losses_and_the_ends_of_lives() {
    let after = |harm: fn(&World, &Host)| {
        sim::run(1, async |world, host| {
            let calls = server(&world, Duration::ZERO);
            copy_all(&world);
            world.judge_messages(|passing| match passing.way {
                Way::Request => Verdict::Double(Duration::from_secs(2)),
                Way::Answer => Verdict::Pass,
            });
            assert_eq!(call(&host).await, Ok(1));
            harm(&world, &host);
            world.sleep(Duration::from_secs(5)).await;
            calls.load(Ordering::Relaxed)
        })
    };
    assert_eq!(after(|_, _| ()), 2);
    assert_eq!(after(|world, host| world.cut_one_way(host.node(), SERVER)), 1);
    assert_eq!(after(|world, host| world.cut_one_way(SERVER, host.node())), 2, "nobody waits for its answer");
    assert_eq!(after(|world, _| world.crash(SERVER, Stop::Kill)), 1);
    assert_eq!(after(|world, host| world.crash(host.node(), Stop::Kill)), 2, "what the dead have sent arrives");
    let again = |world: &World, host: &Host| {
        world.crash(host.node(), Stop::Kill);
        world.restart(host.node());
    };
    assert_eq!(after(again), 1, "the next life has spoken");
    sim::run(1, async |world, host| {
        server(&world, Duration::ZERO);
        copy_all(&world);
        world.judge_messages(|_| Verdict::Double(Duration::from_secs(2)));
        world.set_network(NetworkOptions { loss_ppm: 1_000_000, ..NetworkOptions::default() });
        assert!(call(&host).await.is_err());
        world.sleep(Duration::from_secs(5)).await;
        assert_eq!(world.network_counters().doubled, 0);
    });
}

#[test]
fn a_copy_for_a_frozen_node_waits_and_one_for_a_new_life_is_gone() {
    sim::run(1, async |world, host| {
        let calls = server(&world, Duration::ZERO);
        copy_all(&world);
        world.judge_messages(|_| Verdict::Double(Duration::from_secs(2)));
        world.cut_one_way(SERVER, host.node());
        assert!(call(&host).await.is_err());
        world.pause(SERVER);
        world.sleep(Duration::from_secs(3)).await;
        assert_eq!(calls.load(Ordering::Relaxed), 1);
        world.resume(SERVER);
        world.sleep(Duration::from_secs(1)).await;
        assert_eq!(calls.load(Ordering::Relaxed), 2);
        world.dismiss_judge();
        world.heal_all();
        world.judge_messages(|_| Verdict::Double(Duration::from_secs(2)));
        assert_eq!(call(&host).await, Ok(3));
        world.crash(SERVER, Stop::Kill);
        let calls = serve(&world.restart(SERVER), Duration::ZERO);
        world.sleep(Duration::from_secs(5)).await;
        assert_eq!(calls.load(Ordering::Relaxed), 0);
    });
}

#[test]
fn where_nothing_is_doubled_a_world_is_the_same_whether_it_could_be() {
    let told = |copies: bool| {
        sim::run(3, async |world, host| {
            world.set_network(NetworkOptions { loss_ppm: 100_000, ..NetworkOptions::default() });
            server(&world, Duration::ZERO);
            if copies {
                copy_all(&world);
            }
            for _ in 0..50 {
                let _ = call(&host).await;
            }
            world.trace_hash()
        })
    };
    assert_eq!(told(false), told(true));
}

#[test]
fn clocks_of_nodes_differ_and_drift() {
    sim::run(1, async |world, host| {
        let other = world.add_node(SERVER);
        assert_ne!(host.now(), other.now());
        world.drift_clock(SERVER, 100_000);
        let (before, other_before) = (host.now(), other.now());
        host.sleep(Duration::from_secs(100)).await;
        let (passed, other_passed) = (host.now() - before, other.now() - other_before);
        assert_eq!(passed.as_secs(), 100);
        assert_eq!(other_passed.as_secs(), 110);
        let wall = other.wall();
        world.shift_wall(SERVER, -3_600_000_000_000);
        assert!(other.wall() < wall);
        world.crash(SERVER, Stop::PowerLoss);
        assert!(world.restart(SERVER).now() < other_before, "a machine's clock starts with the machine");
    });
}
