//! The simulated network: calls that take time, get lost, are cut off, and whose other end dies.
//!
//! The rules of its faults:
//! 1. A request arrives after a random latency, so that calls overtake each other. Its call brings it there at most once.
//! 2. A request or an answer that is lost, or meets a cut link when it leaves or arrives, is gone. The caller gets
//!    `Unreachable` after the timeout. The handler of a request whose answer is lost has run, or will.
//! 3. A call to a node whose daemon does not run is refused after a latency; if the machine has no power, after the
//!    timeout. The same holds for calls that were being answered when the node stopped.
//! 4. A call that waits while its link is cut or its other end is paused fails when that lasts for the timeout. A slow
//!    handler alone fails no call.
//! 5. What a node sent before it died still arrives. A caller that stops waiting takes nothing back.
//! 6. A request may be doubled, where the world can copy it ([`World::copy_requests`](super::World::copy_requests)). Its copy
//!    is handled by itself: before the request or behind it, one in four up to [`LAG_MAX`] behind. Its answer is for nobody.
//!    Cuts and losses meet each by itself. What comes of a copy in another life of either end than it was sent in, is gone.
//!
//! Answers go only by rule 1 to 4: the network knows no handler's deadline. A message is never changed: the real transport's
//! checksums see to that. Nor does that transport send a call twice, straight or around. A caller does, that was told that no
//! answer came; and what it called first may be under way yet, where its handler waits or the called machine stands still. So
//! what is handled twice is what callers ask again, and the call is the asking that is waited for: its answer is the one that
//! counts. A life of either end that is over has nothing under way: a new one says so before it asks anything.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;

use crate::{Address, Envelope, Moment, NodeId, Port, Unreachable};

use super::calendar::Event;
use super::executor::{Core, Life, State};
use super::promise::{Awaited, Promise, promise};
use super::{Dice, Stop};

/// How late a copy comes at most: a machine that stands still for longer has lost its lease, and carries nothing out.
pub const LAG_MAX: Duration = Duration::from_secs(5);

/// How the network behaves.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct NetworkOptions {
    /// The least time a message takes.
    pub latency_min: Duration,
    /// The most it takes, but for one in a hundred, which takes up to ten times as long.
    pub latency_max: Duration,
    /// How many messages of a million are lost.
    pub loss_ppm: u32,
    /// How many requests of a million are doubled, of those that can be copied.
    pub doubled_ppm: u32,
    /// After which time a caller gives up a call of which nothing can come.
    pub timeout: Duration,
}

impl Default for NetworkOptions {
    fn default() -> Self {
        NetworkOptions {
            latency_min: Duration::from_micros(50),
            latency_max: Duration::from_micros(500),
            loss_ppm: 0,
            doubled_ppm: 0,
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
    /// It passes, and a copy takes so much longer. Requests only, and such as can be copied.
    Double(Duration),
}

/// Decides about each message between nodes.
pub(super) type Judge = Arc<dyn Fn(Passing<'_>) -> Verdict + Send + Sync>;

/// Copies what may be doubled.
pub(super) type Copier = Arc<dyn Fn(Passing<'_>) -> Option<Envelope> + Send + Sync>;

/// What the network has carried since the world began. Calls within a node do not count.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct NetworkCounters {
    /// Calls made.
    pub calls: u64,
    /// Calls that got their answer.
    pub answers: u64,
    /// Calls whose caller got `Unreachable`.
    pub failures: u64,
    /// Copies of requests that were handled.
    pub doubled: u64,
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
    pub(super) copier: Option<Copier>,
    calls: BTreeMap<u64, Call>,
}

/// A copy of a request, under way.
pub(super) struct Double {
    from: Life,
    to: Life,
    port: Port,
    request: Envelope,
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

    /// A copy leaves; if it does not get on its way it is handed back, to be dropped outside the lock.
    fn send_double(&mut self, double: Double, lag: Duration) -> Option<Double> {
        let departs = self.lives(double.from) && self.departs(double.from.node, double.to.node);
        if !departs {
            return Some(double);
        }
        self.plan_after_latency(Event::Double { double }, lag);
        None
    }

    /// Whether a copy that arrives now finds the lives that it belongs to, and its way open.
    fn reaches(&self, double: &Double) -> bool {
        let is_followed =
            self.nodes.get(&double.from.node).is_none_or(|node| node.incarnation != double.from.incarnation);
        self.lives(double.to) && !is_followed && !self.is_cut(double.from.node, double.to.node)
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
    let passing = Passing { caller: from.node, called: to, way: Way::Request, message: &request };
    let verdict = core.judge(passing);
    let double = core.double(from, passing, verdict);
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
    let lost = double.and_then(|(double, lag)| state.send_double(double, lag));
    drop(state);
    drop(lost);
    awaited
}

/// A copy arrives, and is handled.
pub(super) fn double(core: &Core, double: Double) {
    let mut state = core.lock();
    let is_heard = state.reaches(&double);
    let handler = state.nodes.get(&double.to.node).and_then(|node| node.handlers.get(&double.port)).cloned();
    let Some(handler) = handler.filter(|_| is_heard) else {
        drop(state);
        return drop(double);
    };
    state.network.counters.doubled += 1;
    drop(state);
    let Double { from, to, request, .. } = double;
    core.spawn(to, Box::pin(async move { drop(handler.handle(from.node, request).await) }));
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

    /// The copy of a request, if it is doubled and can be, and how much longer it takes. The copier too is asked outside the
    /// lock.
    ///
    /// # Panics
    /// When the judge wants a copy of what cannot be copied.
    fn double(&self, from: Life, passing: Passing<'_>, verdict: Verdict) -> Option<(Double, Duration)> {
        let mut state = self.lock();
        let doubled_ppm = state.network.options.doubled_ppm;
        let lag = match verdict {
            Verdict::Double(lag) => lag,
            Verdict::Lose => return None,
            Verdict::Pass | Verdict::Delay(_) if !state.dice.chance(doubled_ppm) => return None,
            Verdict::Pass | Verdict::Delay(_) if state.dice.below(4) > 0 => Duration::ZERO,
            Verdict::Pass | Verdict::Delay(_) => Duration::from_nanos(state.dice.below(LAG_MAX.as_nanos() as u64)),
        };
        let (to, copier) = (state.life(passing.called.node), state.network.copier.clone());
        drop(state);
        let request = copier.and_then(|copier| copier(passing));
        let wanted = matches!(verdict, Verdict::Double(_));
        assert!(request.is_some() || !wanted, "what is to be doubled cannot be copied: {passing:?}");
        Some((Double { from, to: to?, port: passing.called.port, request: request? }, lag))
    }
}

impl Verdict {
    /// What is added to the latency; none if it is lost.
    fn delay(self) -> Option<Duration> {
        match self {
            Verdict::Pass | Verdict::Double(_) => Some(Duration::ZERO),
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
