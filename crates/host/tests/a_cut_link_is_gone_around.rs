//! Calls that go through a third node where a link is cut. The dangers: a call takes effect twice, or long after its caller has
//! gone on without it; a node that is dead for all takes longer to be found so than without any ways around.

use std::pin::pin;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use futures_util::future::{Either, select};

use host::byways::{ASK_MAX, Ask, BYWAY_PORT, LATE_MAX, Name, Passed, Sight, Told};
use host::sim::{self, NetworkOptions, Stop, Verdict, Way, World};
use host::{Address, BoxFuture, Envelope, Handler, Host, Moment, NodeId, Port, Unreachable};

const PORT: Port = Port(3);
const OTHER_PORT: Port = Port(4);
const SERVER: NodeId = NodeId(2);
const BETWEEN: NodeId = NodeId(3);
/// One round trip or several, when nothing is wrong.
const SOON: Duration = Duration::from_millis(50);

/// What a server was asked: by whom, what, and when it was.
type Heard = Arc<Mutex<Vec<(NodeId, u64, Moment)>>>;

/// Says again what it is asked, and remembers it.
struct Echo(World, Heard);

impl Handler for Echo {
    fn handle(&self, from: NodeId, request: Envelope) -> BoxFuture<'static, Envelope> {
        let said: u64 = request.open().expect("it is asked numbers");
        self.1.lock().unwrap().push((from, said, self.0.now()));
        Box::pin(async move { Envelope::new(said) })
    }
}

fn serve(world: &World, host: &Host) -> Heard {
    let heard = Heard::default();
    host.listen(PORT, Arc::new(Echo(world.clone(), heard.clone())));
    heard
}

fn told(heard: &Heard) -> Vec<(NodeId, u64)> {
    heard.lock().unwrap().iter().map(|(from, said, _)| (*from, *said)).collect()
}

async fn say(host: &Host, node: NodeId, number: u64) -> Result<u64, Unreachable> {
    host.call(Address { node, port: PORT }, number).await
}

/// A caller, a server and a node between, which have spoken with each other, and what the server heard.
struct Three {
    world: World,
    caller: Host,
    /// Whose parts answer as long as they are there.
    _others: [Host; 2],
    heard: Heard,
}

impl Three {
    async fn meet(world: World, host: Host) -> Three {
        let caller = host.with_byways();
        let (server, between) = (world.add_node(SERVER).with_byways(), world.add_node(BETWEEN).with_byways());
        let heard = serve(&world, &server);
        serve(&world, &between);
        serve(&world, &caller);
        let all =
            [(&caller, SERVER), (&caller, BETWEEN), (&between, SERVER), (&server, BETWEEN), (&between, caller.node())];
        for (from, to) in all {
            assert_eq!(say(from, to, 0).await, Ok(0));
        }
        heard.lock().unwrap().clear();
        Three { world, caller, _others: [server, between], heard }
    }

    fn cut(&self) {
        self.world.cut(self.caller.node(), SERVER);
    }

    /// Cuts the link, and has the caller find out.
    async fn find_cut(&self) {
        self.cut();
        assert!(self.say(1).await.is_err());
    }

    /// What the node between passes on takes so much longer.
    fn hold_back(&self, late: Duration) {
        self.world.judge_messages(move |passing| match passing.message.peek().downcast_ref() {
            Some(Ask::Take(_)) if passing.caller == BETWEEN => Verdict::Delay(late),
            _ => Verdict::Pass,
        });
    }

    /// When the server was asked a number, if it was.
    fn when_heard(&self, asked: u64) -> Option<Moment> {
        let heard = self.heard.lock().unwrap();
        heard.iter().find(|(_, number, _)| *number == asked).map(|(_, _, at)| *at)
    }

    async fn say(&self, number: u64) -> Result<u64, Unreachable> {
        say(&self.caller, SERVER, number).await
    }
}

#[test]
fn a_call_goes_through_a_node_that_reaches_both() {
    sim::explore(0..50, async |world, host| {
        let three = Three::meet(world, host).await;
        match three.world.dice().below(3) {
            0 => three.cut(),
            1 => three.world.cut_one_way(three.caller.node(), SERVER),
            _ => three.world.cut_one_way(SERVER, three.caller.node()),
        }
        assert_eq!(three.say(1).await, Err(Unreachable(Address { node: SERVER, port: PORT })));
        let before = three.world.now();
        for number in 2..10 {
            assert_eq!(three.say(number).await, Ok(number));
        }
        assert!(three.world.now() - before < 8 * SOON, "nobody waits for the link that is cut");
        let mut heard = told(&three.heard);
        heard.retain(|(_, number)| *number > 1);
        assert_eq!(heard, (2..10).map(|number| (three.caller.node(), number)).collect::<Vec<_>>());
    });
}

#[test]
fn calls_go_straight_again_once_the_link_is_back() {
    sim::explore(0..20, async |world, host| {
        let three = Three::meet(world, host).await;
        three.find_cut().await;
        assert_eq!(three.say(2).await, Ok(2));
        three.world.heal_all();
        // The look that was under way fails yet, and the next one does not.
        for number in 3..5 {
            three.world.sleep(2 * NetworkOptions::default().timeout).await;
            assert_eq!(three.say(number).await, Ok(number));
        }
        three.world.sleep(SOON).await;
        let (asked, calls) = (three.world.calls_to(Port(BYWAY_PORT)), three.world.calls_to(PORT));
        assert_eq!(three.say(5).await, Ok(5));
        assert_eq!((three.world.calls_to(Port(BYWAY_PORT)), three.world.calls_to(PORT)), (asked, calls + 1));
    });
}

#[test]
fn a_node_that_nobody_reaches_is_found_so_as_soon_as_ever() {
    for stop in [Stop::Kill, Stop::PowerLoss] {
        sim::explore(0..20, async |world, host| {
            let three = Three::meet(world, host).await;
            three.world.crash(SERVER, stop);
            assert!(three.say(1).await.is_err());
            let before = three.world.now();
            assert!(three.say(2).await.is_err());
            let straight = if stop == Stop::Kill { SOON } else { NetworkOptions::default().timeout + SOON };
            assert!(three.world.now() - before < straight + ASK_MAX, "who is asked for a way looks for a while");
            let before = three.world.now();
            assert!(three.say(3).await.is_err());
            assert!(three.world.now() - before < straight, "and knows from then on");
            let server = three.world.restart(SERVER).with_byways();
            let heard = serve(&three.world, &server);
            three.world.sleep(2 * NetworkOptions::default().timeout).await;
            assert_eq!(three.say(4).await, Ok(4));
            assert_eq!(told(&heard), [(three.caller.node(), 4)]);
        });
    }
}

#[test]
fn a_node_between_that_stands_still_costs_no_more_than_its_share() {
    sim::explore(0..20, async |world, host| {
        let three = Three::meet(world, host).await;
        three.find_cut().await;
        three.world.pause(BETWEEN);
        let before = three.world.now();
        assert!(three.say(2).await.is_err());
        assert!(three.world.now() - before < ASK_MAX + NetworkOptions::default().timeout + SOON);
    });
}

#[test]
fn what_the_node_between_holds_back_is_not_carried_out_late() {
    let (mut done, mut refused) = (0, 0);
    for seed in 0..100 {
        sim::run(seed, async |world, host| {
            let three = Three::meet(world, host).await;
            three.find_cut().await;
            let late = Duration::from_nanos(three.world.dice().below(2 * LATE_MAX.as_nanos() as u64));
            three.hold_back(late);
            let before = three.world.now();
            let answer = three.say(2).await;
            three.world.sleep(3 * LATE_MAX).await;
            let heard = three.when_heard(2);
            assert_eq!(answer.is_ok(), heard.is_some(), "seed {seed}");
            match heard {
                Some(at) => assert!(at - before <= LATE_MAX + SOON),
                None => assert!(late + SOON > LATE_MAX),
            }
            (done, refused) = (done + u32::from(heard.is_some()), refused + u32::from(heard.is_none()));
        });
    }
    assert!(done > 20 && refused > 20, "{done} were in time, {refused} were not");
}

/// Whoever is told that a call has no answer does something else then, which the call must not undo.
#[test]
fn nothing_is_carried_out_that_has_failed() {
    let (mut failed, mut done) = (0, 0);
    for seed in 0..100 {
        sim::run(seed, async |world, host| {
            let three = Three::meet(world, host).await;
            three.find_cut().await;
            let (mut dice, most) = (three.world.dice(), 2 * LATE_MAX.as_nanos() as u64);
            // The node between stands still, so that it seems dead, and goes on.
            let caller = three.caller.clone();
            three.world.judge_messages(|passing| match passing.message.peek().downcast_ref() {
                Some(Ask::Pass(_)) if passing.called.node == BETWEEN => Verdict::Delay(Duration::from_millis(50)),
                _ => Verdict::Pass,
            });
            let saying = three.world.spawn(&three.caller, async move { say(&caller, SERVER, 2).await });
            three.world.sleep(Duration::from_millis(20)).await;
            three.world.pause(BETWEEN);
            three.world.sleep(Duration::from_nanos(dice.below(most))).await;
            three.world.resume(BETWEEN);
            let answer = saying.await.unwrap();
            let told = three.world.now();
            three.world.sleep(3 * LATE_MAX).await;
            let heard = three.when_heard(2);
            if let (Err(_), Some(at)) = (answer, heard) {
                assert!(at <= told, "seed {seed}: carried out after its caller was told");
            }
            (failed, done) = (failed + u32::from(answer.is_err()), done + u32::from(heard.is_some()));
        });
    }
    assert!(failed > 20 && done > 20, "{failed} failed, {done} were carried out");
}

#[test]
fn what_a_life_before_has_sent_is_not_carried_out() {
    sim::explore(0..20, async |world, host| {
        let three = Three::meet(world, host).await;
        three.find_cut().await;
        three.hold_back(Duration::from_millis(500));
        let (caller, node) = (three.caller.clone(), three.caller.node());
        drop(three.world.spawn(&three.caller, async move { say(&caller, SERVER, 2).await }));
        three.world.sleep(Duration::from_millis(200)).await;
        three.world.crash(node, Stop::Kill);
        let next = three.world.restart(node).with_byways();
        let is_healed = three.world.dice().coin();
        if is_healed {
            three.world.heal_all();
        } else {
            assert_eq!(say(&next, BETWEEN, 0).await, Ok(0));
        }
        let spoke = say(&next, SERVER, 3).await;
        three.world.sleep(LATE_MAX).await;
        let numbers: Vec<u64> = told(&three.heard).into_iter().map(|(_, number)| number).collect();
        let is_late = numbers.iter().position(|number| *number == 3) < numbers.iter().position(|number| *number == 2);
        assert!(spoke.is_err() || !is_late, "{numbers:?}");
        assert!(!is_healed || numbers == [3], "{numbers:?}");
    });
}

#[test]
fn who_never_waits_for_long_finds_the_way_too() {
    sim::explore(0..20, async |world, host| {
        let mut three = Three::meet(world, host).await;
        three.cut();
        if three.world.dice().coin() {
            // One that has never spoken with the server.
            three.world.crash(three.caller.node(), Stop::Kill);
            three.caller = three.world.restart(three.caller.node()).with_byways();
            assert_eq!(say(&three.caller, BETWEEN, 0).await, Ok(0));
        }
        let begun = three.world.now();
        loop {
            let late = three.caller.sleep(Duration::from_millis(100));
            match select(pin!(three.say(1)), pin!(late)).await {
                Either::Left((answer, _)) if answer.is_ok() => return,
                _ => assert!(three.world.now() - begun < 3 * NetworkOptions::default().timeout, "it is never learnt"),
            }
        }
    });
}

#[test]
fn what_was_meant_for_a_life_before_is_not_carried_out() {
    sim::explore(0..20, async |world, host| {
        let three = Three::meet(world, host).await;
        three.find_cut().await;
        three.hold_back(Duration::from_millis(500));
        let caller = three.caller.clone();
        let saying = three.world.spawn(&three.caller, async move { say(&caller, SERVER, 2).await });
        three.world.sleep(Duration::from_millis(200)).await;
        three.world.crash(SERVER, Stop::Kill);
        let heard = serve(&three.world, &three.world.restart(SERVER).with_byways());
        assert!(saying.await.unwrap().is_err());
        assert_eq!(told(&heard), []);
    });
}

#[test]
fn a_call_takes_effect_once_whatever_is_lost() {
    let mut answered = 0;
    for seed in 0..30 {
        sim::run(seed, async |world, host| {
            let three = Three::meet(world, host).await;
            three.world.set_network(NetworkOptions { loss_ppm: 100_000, ..NetworkOptions::default() });
            let mut dice = three.world.dice();
            for number in 1..100 {
                match dice.below(10) {
                    0 => three.cut(),
                    1 => three.world.heal_all(),
                    _ => {}
                }
                answered += u32::from(three.say(number).await == Ok(number));
            }
            let mut numbers: Vec<u64> = told(&three.heard).into_iter().map(|(_, number)| number).collect();
            numbers.sort_unstable();
            let all = numbers.len();
            numbers.dedup();
            assert_eq!(numbers.len(), all, "seed {seed}: something took effect twice");
        });
    }
    assert!(answered > 1000, "{answered} of 2970 calls were answered");
}

#[test]
fn a_part_that_does_not_listen_keeps_nobody_from_those_that_do() {
    sim::explore(0..20, async |world, host| {
        let three = Three::meet(world, host).await;
        let unheard = Address { node: SERVER, port: OTHER_PORT };
        for _ in 0..3 {
            assert!(three.caller.call::<u64, u64>(unheard, 1).await.is_err());
            assert_eq!(three.say(2).await, Ok(2));
        }
    });
}

#[test]
fn nobody_is_called_in_the_name_of_another() {
    sim::explore(0..20, async |world, host| {
        let three = Three::meet(world, host).await;
        three.find_cut().await;
        let name = three.caller.node();
        // Who asks a node to pass something on does so for itself: what comes from elsewhere is lost.
        three.world.add_node(NodeId(4));
        let stranger = three.world.host(NodeId(4));
        let between = Address { node: BETWEEN, port: Port(BYWAY_PORT) };
        let seen = match stranger.call(between, Ask::Reach(SERVER, Name { node: NodeId(4), life: 4 })).await {
            Ok(Told::Here(seen)) => seen,
            other => panic!("it is reached: {other:?}"),
        };
        let to = Address { node: SERVER, port: PORT };
        let passed = Passed { from: name, to, seen, request: Envelope::new(7_u64) };
        let answer: Told = stranger.call(between, Ask::Pass(passed)).await.unwrap();
        assert!(matches!(answer, Told::Refused));
        assert_eq!(told(&three.heard).iter().filter(|(_, number)| *number == 7).count(), 0);
    });
}

#[test]
fn a_sight_of_another_life_counts_for_nothing() {
    sim::run(1, async |world, host| {
        let three = Three::meet(world, host).await;
        let (name, between) = (Name { node: NodeId(4), life: 4 }, three.world.host(BETWEEN));
        let to = Address { node: SERVER, port: Port(BYWAY_PORT) };
        let Ok(Told::Here(seen)) = between.call(to, Ask::Here(name)).await else { panic!("it is there") };
        let other = Sight { life: seen.life + 1, ..seen };
        // Nor does a node pass its own calls on, or one of the called node.
        for (from, seen, is_heard) in
            [(name.node, seen, true), (name.node, other, false), (BETWEEN, seen, false), (SERVER, seen, false)]
        {
            let part = Address { node: SERVER, port: PORT };
            let passed = Passed { from, to: part, seen, request: Envelope::new(8_u64) };
            let answer: Told = between.call(to, Ask::Take(passed)).await.unwrap();
            assert_eq!(matches!(answer, Told::Answer(..)), is_heard, "{answer:?}");
        }
    });
}

#[test]
fn calls_and_answers_are_judged_as_they_pass_each_link() {
    sim::run(1, async |world, host| {
        let three = Three::meet(world, host).await;
        three.find_cut().await;
        let links = Arc::new(Mutex::new(Vec::new()));
        let noted = links.clone();
        three.world.judge_messages(move |passing| {
            if let (Way::Request, Some(Ask::Pass(_) | Ask::Take(_))) =
                (passing.way, passing.message.peek().downcast_ref())
            {
                noted.lock().unwrap().push((passing.caller, passing.called.node));
            }
            Verdict::Pass
        });
        assert_eq!(three.say(2).await, Ok(2));
        assert_eq!(*links.lock().unwrap(), [(three.caller.node(), BETWEEN), (BETWEEN, SERVER)]);
    });
}
