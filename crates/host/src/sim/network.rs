//! The simulated network: calls that take time, get lost, are cut off, and whose other end dies.
//!
//! The rules of its faults:
//! 1. A request arrives after a random latency, so that calls overtake each other. It arrives at most once.
//! 2. A request or an answer that is lost, or meets a cut link when it leaves or arrives, is gone. The caller gets
//!    `Unreachable` after the timeout. The handler of a request whose answer is lost has run, or will.
//! 3. A call to a node whose daemon does not run is refused after a latency; if the machine has no power, after the
//!    timeout. The same holds for calls that were being answered when the node stopped.
//! 4. A call that waits while its link is cut or its other end is paused fails when that lasts for the timeout. A slow
//!    handler alone fails no call.
//! 5. What a node sent before it died still arrives. A caller that stops waiting takes nothing back.
//!
//! Answers go only by rule 1 to 4: the network knows no handler's deadline. A message is never changed or doubled: the
//! real transport's checksums and sequence numbers see to that.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;

use crate::{Address, Envelope, Moment, NodeId, Port, Unreachable};

use super::calendar::Event;
use super::executor::{Core, Life, State};
use super::promise::{Awaited, Promise, promise};
use super::{Dice, Stop};

/// How the network behaves.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct NetworkOptions {
    /// The least time a message takes.
    pub latency_min: Duration,
    /// The most it takes, but for one in a hundred, which takes up to ten times as long.
    pub latency_max: Duration,
    /// How many messages of a million are lost.
    pub loss_ppm: u32,
    /// After which time a caller gives up a call of which nothing can come.
    pub timeout: Duration,
}

impl Default for NetworkOptions {
    fn default() -> Self {
        NetworkOptions {
            latency_min: Duration::from_micros(50),
            latency_max: Duration::from_micros(500),
            loss_ppm: 0,
            timeout: Duration::from_secs(1),
        }
    }
}

/// A message that is about to leave its node, as a [judge](super::World::judge_messages) sees it.
#[derive(Clone, Copy, Debug)]
pub struct Passing<'a> {
    /// Who made the call.
    pub caller: NodeId,
    /// Who was called.
    pub called: Address,
    /// Which way it goes.
    pub way: Way,
    /// What is said; [`Envelope::peek`] looks inside.
    pub message: &'a Envelope,
}

/// Which half of a call a message is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Way {
    /// From the caller to the called.
    Request,
    /// Back.
    Answer,
}

/// What becomes of a message.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Verdict {
    /// What the network's options and cuts make of it.
    Pass,
    /// It is lost.
    Lose,
    /// It takes so much longer than it would.
    Delay(Duration),
}

/// Decides about each message between nodes.
pub(super) type Judge = Arc<dyn Fn(Passing<'_>) -> Verdict + Send + Sync>;

/// What the network has carried since the world began. Calls within a node do not count.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct NetworkCounters {
    /// Calls made.
    pub calls: u64,
    /// Calls that got their answer.
    pub answers: u64,
    /// Calls whose caller got `Unreachable`.
    pub failures: u64,
}

/// Links, and calls under way.
#[derive(Default)]
pub(super) struct Network {
    pub(super) options: NetworkOptions,
    pub(super) counters: NetworkCounters,
    /// Which ways are cut, as (source, target).
    pub(super) cuts: BTreeSet<(NodeId, NodeId)>,
    pub(super) calls_by_port: BTreeMap<Port, u64>,
    pub(super) judge: Option<Judge>,
    calls: BTreeMap<u64, Call>,
}

/// A call whose caller does not know its end yet.
pub(super) struct Call {
    from: NodeId,
    to: Address,
    promise: Promise<Result<Envelope, Unreachable>>,
    /// Until it arrives.
    request: Option<Envelope>,
    /// The life that answers it, from when it arrived.
    answerer: Option<Life>,
}

impl Network {
    fn latency(&self, dice: &mut Dice) -> Duration {
        let (least, most) = (self.options.latency_min.as_nanos() as u64, self.options.latency_max.as_nanos() as u64);
        let latency = dice.within(least..most.max(least + 1));
        Duration::from_nanos(if dice.below(100) == 0 { latency * (1 + dice.below(10)) } else { latency })
    }

    /// All calls under way, for the caller to drop outside the lock.
    pub(super) fn take_calls(&mut self) -> Vec<Call> {
        std::mem::take(&mut self.calls).into_values().collect()
    }

    /// Who waits for whom.
    pub(super) fn waiting(&self) -> impl Iterator<Item = (NodeId, Address)> {
        self.calls.values().map(|call| (call.from, call.to))
    }
}

impl State {
    fn is_cut(&self, from: NodeId, to: NodeId) -> bool {
        self.network.cuts.contains(&(from, to))
    }

    /// Plans `event` for when a message that leaves now arrives.
    fn plan_after_latency(&mut self, event: Event, delay: Duration) {
        let at = self.now + self.network.latency(&mut self.dice) + delay;
        self.calendar.plan(at, event);
    }

    fn plan_after_timeout(&mut self, event: Event) {
        let at: Moment = self.now + self.network.options.timeout;
        self.calendar.plan(at, event);
    }

    /// Whether a message from `from` to `to` gets on its way.
    fn departs(&mut self, from: NodeId, to: NodeId) -> bool {
        let lost = self.dice.chance(self.network.options.loss_ppm);
        !lost && !self.is_cut(from, to)
    }

    /// Has the calls checked that `concerned` picks, once the timeout is over.
    pub(super) fn doubt_calls(&mut self, concerned: impl Fn(NodeId, NodeId) -> bool) {
        let calls: Vec<u64> = self
            .network
            .calls
            .iter()
            .filter(|(_, call)| concerned(call.from, call.to.node))
            .map(|(id, _)| *id)
            .collect();
        for call in calls {
            self.plan_after_timeout(Event::Check { call });
        }
    }

    /// Fails the calls that a stopped life was answering.
    pub(super) fn fail_calls_to(&mut self, life: Life, stop: Stop) {
        let calls: Vec<u64> =
            self.network.calls.iter().filter(|(_, call)| call.answerer == Some(life)).map(|(id, _)| *id).collect();
        for call in calls {
            self.refuse(call, stop);
        }
    }

    fn refuse(&mut self, call: u64, stop: Stop) {
        match stop {
            Stop::Kill => self.plan_after_latency(Event::GiveUp { call }, Duration::ZERO),
            Stop::PowerLoss => self.plan_after_timeout(Event::GiveUp { call }),
        }
    }
}

/// A request leaves.
pub(super) fn send(core: &Core, from: Life, to: Address, request: Envelope) -> Awaited<Result<Envelope, Unreachable>> {
    let verdict = core.judge(Passing { caller: from.node, called: to, way: Way::Request, message: &request });
    let (promise, awaited) = promise();
    let mut state = core.lock();
    let departs = state.lives(from) && state.departs(from.node, to.node);
    state.network.counters.calls += 1;
    *state.network.calls_by_port.entry(to.port).or_insert(0) += 1;
    let call = state.network.counters.calls;
    let under_way = Call { from: from.node, to, promise, request: Some(request), answerer: None };
    state.network.calls.insert(call, under_way);
    match verdict.delay().filter(|_| departs) {
        Some(delay) => state.plan_after_latency(Event::Request { call }, delay),
        None => state.plan_after_timeout(Event::GiveUp { call }),
    }
    awaited
}

/// A request arrives: its handler runs as a task of the node that was called.
pub(super) fn arrive(core: &Arc<Core>, id: u64) {
    let mut state = core.lock();
    let Some((from, to)) = state.network.calls.get(&id).map(|call| (call.from, call.to)) else { return };
    if state.is_cut(from, to.node) {
        return state.plan_after_timeout(Event::GiveUp { call: id });
    }
    let Some(node) = state.nodes.get(&to.node) else { return state.refuse(id, Stop::PowerLoss) };
    if let Some(stop) = node.stopped {
        return state.refuse(id, stop);
    }
    let (life, paused) = (Life { node: to.node, incarnation: node.incarnation }, node.paused);
    let Some(handler) = node.handlers.get(&to.port).cloned() else { return state.refuse(id, Stop::Kill) };
    let call = state.network.calls.get_mut(&id).expect("it was there above");
    call.answerer = Some(life);
    let request = call.request.take().expect("a request arrives once");
    if paused {
        state.plan_after_timeout(Event::Check { call: id });
    }
    drop(state);
    let answering = core.clone();
    core.spawn(
        life,
        Box::pin(async move {
            let answer = handler.handle(from, request).await;
            answering.answer(id, answer);
        }),
    );
}

impl Core {
    /// An answer leaves.
    fn answer(&self, call: u64, answer: Envelope) {
        let ends = self.lock().network.calls.get(&call).map(|call| (call.from, call.to));
        let Some((from, to)) = ends else { return };
        let verdict = self.judge(Passing { caller: from, called: to, way: Way::Answer, message: &answer });
        let mut state = self.lock();
        match verdict.delay().filter(|_| state.departs(to.node, from)) {
            Some(delay) => state.plan_after_latency(Event::Answer { call, answer }, delay),
            None => {
                state.plan_after_timeout(Event::GiveUp { call });
                drop(state);
                drop(answer);
            }
        }
    }

    /// Asks the test's judge, outside the lock: it may look at the world.
    fn judge(&self, passing: Passing<'_>) -> Verdict {
        let judge = self.lock().network.judge.clone();
        judge.map_or(Verdict::Pass, |judge| judge(passing))
    }
}

impl Verdict {
    /// What is added to the latency; none if it is lost.
    fn delay(self) -> Option<Duration> {
        match self {
            Verdict::Pass => Some(Duration::ZERO),
            Verdict::Lose => None,
            Verdict::Delay(delay) => Some(delay),
        }
    }
}

/// An answer arrives.
pub(super) fn answered(core: &Core, id: u64, answer: Envelope) {
    let mut state = core.lock();
    let Some((from, to)) = state.network.calls.get(&id).map(|call| (call.from, call.to)) else {
        drop(state);
        return drop(answer);
    };
    if state.is_cut(to.node, from) {
        state.plan_after_timeout(Event::GiveUp { call: id });
        drop(state);
        return drop(answer);
    }
    let call = state.network.calls.remove(&id).expect("it was there above");
    state.network.counters.answers += 1;
    drop(state);
    let unwanted = call.promise.keep(Ok(answer));
    drop(unwanted);
}

/// The caller learns that no answer will come.
pub(super) fn give_up(core: &Core, id: u64) {
    let mut state = core.lock();
    let Some(call) = state.network.calls.remove(&id) else { return };
    state.network.counters.failures += 1;
    drop(state);
    drop(call.request);
    let unwanted = call.promise.keep(Err(Unreachable(call.to)));
    drop(unwanted);
}

/// The timeout after a cut or a pause is over: does it last still?
pub(super) fn check(core: &Core, id: u64) {
    let state = core.lock();
    let Some((from, to)) = state.network.calls.get(&id).map(|call| (call.from, call.to.node)) else { return };
    let frozen = state.nodes.get(&to).is_some_and(|node| node.paused);
    let hopeless = frozen || state.is_cut(from, to) || state.is_cut(to, from);
    drop(state);
    if hopeless {
        give_up(core, id);
    }
}
