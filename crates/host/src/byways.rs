//! Ways around a cut link. Once a node does not answer, calls to it go through a third node that reaches it, until it answers
//! straight again: a cut between two machines that both reach the others takes nothing from anybody.
//!
//! 1. A call leaves once, straight or around. What became of it its caller judges, who knows what may be asked twice.
//! 2. Who goes around asks for the way first, and is told what the clock of the called node showed then. The call is carried
//!    out within [`LATE_MAX`] from there, by that clock and in that life of the node, or never: the node between may stand
//!    still with it. So whoever is told that no answer came is told so when that time is over.
//! 3. A node says which life of it speaks before it says anything else to another, straight or around. A call that a life
//!    before sent around is not carried out behind the first word of the next.
//! 4. There is one node between. It passes on what a node asks for itself, and no other's; the called node takes its word for
//!    who that is.
//! 5. Only what has to do with the link is gone around: not that a node refuses, and not that it is slow ([`Link`]).
//! 6. A node that nobody reaches costs a caller [`ASK_MAX`] at most, and a round trip once the others know: then the call goes
//!    straight, and fails as it would.
//! 7. Who goes around looks beside its calls whether the node answers straight, one look at a time.

use std::collections::BTreeMap;
use std::pin::pin;
use std::sync::{Arc, Mutex, RwLock, Weak};
use std::time::Duration;

use futures_util::future::{Either, select, select_ok};

use crate::{Address, BoxFuture, Envelope, Handler, Host, Link, Machine, Moment, NodeId, Port, Unreachable, WallTime};

/// The port on which nodes ask each other for ways.
pub const BYWAY_PORT: u16 = 7;
/// How late a call that goes around may be carried out, from when the called node was seen.
pub const LATE_MAX: Duration = Duration::from_secs(2);
/// How long a node that is asked for a way looks for the called one.
pub const LOOK_MAX: Duration = Duration::from_millis(200);
/// How long who wants a way waits to be told of one.
pub const ASK_MAX: Duration = Duration::from_millis(400);
/// How long a way is used without asking again.
const WAY_MAX: Duration = Duration::from_millis(100);
/// From when on somebody who stops waiting for an answer has the node looked for: it may never be told that none comes.
const LEFT_MIN: Duration = Duration::from_millis(50);
/// How long a node that is looked for is waited for.
const AGAIN_MAX: Duration = Duration::from_secs(2);
/// How many nodes are asked for a way at once.
const ASKED_MAX: usize = 3;
/// A clock may be so much faster than another one: this part of what it shows.
const DRIFT_PART: u32 = 50;

/// What nodes ask each other on [`BYWAY_PORT`], and are answered with [`Told`].
#[derive(Debug)]
pub enum Ask {
    /// Are you there? A node, or one for it, says which life of it speaks.
    Here(Name),
    /// Do you reach that node for me?
    Reach(NodeId, Name),
    /// A call, for a node that the one that is asked reaches.
    Pass(Passed),
    /// The same, where it was to go.
    Take(Passed),
}

/// A life of a node's daemon.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Name {
    /// The node.
    pub node: NodeId,
    /// Drawn by lot when its daemon started.
    pub life: u64,
}

/// A call that goes around.
#[derive(Debug)]
pub struct Passed {
    /// Who calls.
    pub from: NodeId,
    /// Whom.
    pub to: Address,
    /// When the called node was seen.
    pub seen: Sight,
    /// What is asked.
    pub request: Envelope,
}

/// A node as it answered.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Sight {
    /// Which life of it.
    pub life: u64,
    /// What its monotonic clock showed.
    pub at: Moment,
}

/// What a node says to an [`Ask`].
#[derive(Debug)]
pub enum Told {
    /// The node that was asked for is there.
    Here(Sight),
    /// It is not, as far as is known here.
    Unreached,
    /// The answer of a part that listens on this port.
    Answer(Port, Envelope),
    /// The call was not carried out, and will not be.
    Refused,
    /// No answer came: whether the call took effect is unknown.
    Nothing,
}

/// A machine whose calls go around cut links.
struct Byways(Arc<Roads>);

/// Whoever answers for it. The machine holds its handlers, and must not hold itself by them.
struct Keeper(Weak<Roads>);

struct Roads {
    machine: Arc<dyn Machine>,
    life: u64,
    /// The machine holds them, and they hold this.
    parts: RwLock<BTreeMap<Port, Weak<dyn Handler>>>,
    /// How it stands with nodes that are called.
    others: Mutex<BTreeMap<NodeId, Standing>>,
    /// Which life of each node spoke here last.
    callers: Mutex<BTreeMap<NodeId, Caller>>,
}

#[derive(Clone, Copy, Debug, Default)]
struct Standing {
    /// It has heard which life this is.
    has_met: bool,
    is_silent: bool,
    is_looked_for: bool,
    way: Option<Way>,
}

/// How a node is reached.
#[derive(Clone, Copy, Debug)]
struct Way {
    by: NodeId,
    seen: Sight,
    /// When that was told, by the caller's clock.
    told: Moment,
}

#[derive(Clone, Copy, Debug)]
struct Caller {
    life: u64,
    /// Since when it is that one.
    since: Moment,
}

/// Who waits for an answer. Where that is given up before anything came, nobody is told whether the node is silent.
struct Waiting<'a> {
    roads: &'a Arc<Roads>,
    node: NodeId,
    since: Moment,
    is_over: bool,
}

impl Drop for Waiting<'_> {
    fn drop(&mut self) {
        if !self.is_over && self.roads.machine.now().since(self.since) >= LEFT_MIN {
            self.roads.look_again(self.node);
        }
    }
}

impl Host {
    /// The same node, with calls that go around cut links; and others' go around through it. Once for each life of a node,
    /// before anything listens.
    pub fn with_byways(self) -> Host {
        let machine = self.0;
        let (life, others, callers) = (machine.random(), Mutex::default(), Mutex::default());
        let roads = Arc::new(Roads { machine, life, parts: RwLock::default(), others, callers });
        roads.machine.listen(Port(BYWAY_PORT), Arc::new(Keeper(Arc::downgrade(&roads))));
        Host(Arc::new(Byways(roads)))
    }
}

impl Machine for Byways {
    fn node(&self) -> NodeId {
        self.0.machine.node()
    }

    fn now(&self) -> Moment {
        self.0.machine.now()
    }

    fn wall(&self) -> WallTime {
        self.0.machine.wall()
    }

    fn random(&self) -> u64 {
        self.0.machine.random()
    }

    fn sleep_until(&self, moment: Moment) -> BoxFuture<'static, ()> {
        self.0.machine.sleep_until(moment)
    }

    fn spawn(&self, task: BoxFuture<'static, ()>) {
        self.0.machine.spawn(task);
    }

    fn call(&self, to: Address, request: Envelope) -> BoxFuture<'static, Result<Envelope, Unreachable>> {
        if to.node == self.node() {
            return self.0.machine.call(to, request);
        }
        let roads = self.0.clone();
        Box::pin(async move { roads.call(to, request).await })
    }

    fn listen(&self, port: Port, handler: Arc<dyn Handler>) {
        self.0.parts.write().expect("nobody panics over parts").insert(port, Arc::downgrade(&handler));
        self.0.machine.listen(port, handler);
    }

    fn link(&self, node: NodeId) -> Link {
        self.0.machine.link(node)
    }
}

impl Handler for Keeper {
    fn handle(&self, from: NodeId, request: Envelope) -> BoxFuture<'static, Envelope> {
        let roads = self.0.upgrade();
        Box::pin(async move {
            let ask = request.open().expect("nodes ask each other for ways");
            Envelope::new(match roads {
                Some(roads) => roads.answer(from, ask).await,
                None => Told::Refused,
            })
        })
    }
}

impl Roads {
    fn name(&self) -> Name {
        Name { node: self.machine.node(), life: self.life }
    }

    /// Whether calls to a node are to go around.
    fn is_cut_off(&self, node: NodeId) -> bool {
        self.standing(node).is_silent && self.machine.link(node) == Link::Down
    }

    fn standing(&self, node: NodeId) -> Standing {
        self.others.lock().expect("nobody panics over others").get(&node).copied().unwrap_or_default()
    }

    fn change<T>(&self, node: NodeId, change: impl FnOnce(&mut Standing) -> T) -> T {
        change(self.others.lock().expect("nobody panics over others").entry(node).or_default())
    }

    /// A node was called straight.
    fn note(&self, node: NodeId, has_answered: bool) {
        let is_silent = !has_answered && self.machine.link(node) == Link::Down;
        if is_silent != self.standing(node).is_silent {
            self.change(node, |standing| standing.is_silent = is_silent);
        }
    }

    // ---- calling ----

    async fn call(self: &Arc<Self>, to: Address, request: Envelope) -> Result<Envelope, Unreachable> {
        let mut waiting = Waiting { roads: self, node: to.node, since: self.machine.now(), is_over: false };
        let Standing { has_met, is_silent, .. } = self.standing(to.node);
        let answer = match has_met && !is_silent {
            true => self.straight(to, request).await,
            false => self.by_any_way(to, request).await,
        };
        waiting.is_over = true;
        answer
    }

    async fn by_any_way(self: &Arc<Self>, to: Address, request: Envelope) -> Result<Envelope, Unreachable> {
        if !self.is_cut_off(to.node) {
            self.has_met(to.node).await;
        }
        match self.is_cut_off(to.node) {
            true => self.around(to, request).await,
            false => self.first(to, request).await,
        }
    }

    /// Straight, behind the word that is to come first.
    async fn first(&self, to: Address, request: Envelope) -> Result<Envelope, Unreachable> {
        match self.has_met(to.node).await {
            true => self.straight(to, request).await,
            false => Err(Unreachable(to)),
        }
    }

    async fn straight(&self, to: Address, request: Envelope) -> Result<Envelope, Unreachable> {
        let answer = self.machine.call(to, request).await;
        self.note(to.node, answer.is_ok());
        answer
    }

    async fn around(self: &Arc<Self>, to: Address, request: Envelope) -> Result<Envelope, Unreachable> {
        self.look_again(to.node);
        let Some(Way { by, seen, told }) = self.way_to(to.node).await else { return self.first(to, request).await };
        let passed = Passed { from: self.machine.node(), to, seen, request };
        match self.ask(by, Ask::Pass(passed)).await {
            Ok(Told::Answer(port, answer)) if port == to.port => return Ok(answer),
            Ok(Told::Refused) => self.leave(to.node, seen),
            // It may be on its way yet.
            _ => {
                self.leave(to.node, seen);
                self.machine.sleep_until(told + LATE_MAX + LATE_MAX / DRIFT_PART).await;
            }
        }
        Err(Unreachable(to))
    }

    /// The way on which a node was seen so is not used any more.
    fn leave(&self, node: NodeId, seen: Sight) {
        self.change(node, |standing| standing.way = standing.way.filter(|way| way.seen != seen));
    }

    /// A node that reaches `node`.
    async fn way_to(self: &Arc<Self>, node: NodeId) -> Option<Way> {
        let now = self.machine.now();
        if let Some(way) = self.standing(node).way.filter(|way| now.since(way.told) < WAY_MAX) {
            return Some(way);
        }
        let asked = self.some_that_answer(node).into_iter().map(|by| {
            Box::pin(async move {
                match self.ask_soon(by, Ask::Reach(node, self.name()), ASK_MAX).await {
                    Some(Told::Here(seen)) => Ok(Way { by, seen, told: self.machine.now() }),
                    _ => Err(()),
                }
            })
        });
        let asked: Vec<_> = asked.collect();
        if asked.is_empty() {
            return None;
        }
        let (way, _) = select_ok(asked).await.ok()?;
        self.change(node, |standing| standing.way = Some(way));
        Some(way)
    }

    /// Other nodes that answered when they were called last: the one that knew a way last, and then from a place by lot.
    fn some_that_answer(&self, node: NodeId) -> Vec<NodeId> {
        let others = self.others.lock().expect("nobody panics over others");
        let last = others.get(&node).and_then(|it| it.way).map(|way| way.by);
        let answer = others.iter().filter(|(other, it)| **other != node && it.has_met && !it.is_silent);
        let (mut some, rest): (Vec<NodeId>, Vec<NodeId>) =
            answer.map(|(other, _)| *other).partition(|other| Some(*other) == last);
        drop(others);
        let first = self.machine.random() as usize % rest.len().max(1);
        some.extend(rest.iter().cycle().skip(first).take(rest.len()));
        some.truncate(ASKED_MAX);
        some
    }

    /// Whether a node knows which life this is. It is told, if it was not.
    async fn has_met(&self, node: NodeId) -> bool {
        self.standing(node).has_met || self.meet(node).await
    }

    /// Says to a node which life this is, and whether it has heard that.
    async fn meet(&self, node: NodeId) -> bool {
        let is_here = matches!(self.ask(node, Ask::Here(self.name())).await, Ok(Told::Here(_)));
        if is_here {
            self.change(node, |standing| standing.has_met = true);
        }
        is_here
    }

    /// Looks beside the caller whether a node answers straight, unless somebody does.
    fn look_again(self: &Arc<Self>, node: NodeId) {
        let is_looked_for = self.change(node, |standing| std::mem::replace(&mut standing.is_looked_for, true));
        if !is_looked_for {
            let roads = self.clone();
            self.machine.spawn(Box::pin(async move {
                let late = roads.machine.sleep_until(roads.machine.now() + AGAIN_MAX);
                select(pin!(roads.meet(node)), late).await;
                roads.change(node, |standing| standing.is_looked_for = false);
            }));
        }
    }

    async fn ask(&self, node: NodeId, ask: Ask) -> Result<Told, Unreachable> {
        let to = Address { node, port: Port(BYWAY_PORT) };
        let is_urgent = matches!(&ask, Ask::Pass(passed) | Ask::Take(passed) if passed.request.is_urgent());
        let request = Envelope::new(ask);
        let answer = self.machine.call(to, if is_urgent { request.urgent() } else { request }).await;
        self.note(node, answer.is_ok());
        Ok(answer?.open().expect("who is asked for ways tells of them"))
    }

    /// The answer, if it comes within a time.
    async fn ask_soon(self: &Arc<Self>, node: NodeId, ask: Ask, time: Duration) -> Option<Told> {
        let late = self.machine.sleep_until(self.machine.now() + time);
        match select(pin!(self.ask(node, ask)), late).await {
            Either::Left((told, _)) => told.ok(),
            Either::Right(_) => {
                self.look_again(node);
                None
            }
        }
    }

    // ---- answering ----

    async fn answer(self: &Arc<Self>, from: NodeId, ask: Ask) -> Told {
        let own = self.machine.node();
        match ask {
            Ask::Here(name) => self.be_seen(name),
            Ask::Reach(node, name) if name.node == from => self.look_for(node, name).await,
            Ask::Reach(..) => Told::Unreached,
            Ask::Pass(passed) if passed.to.node != own && passed.from == from => self.pass_on(passed).await,
            Ask::Take(passed) if passed.to.node == own && ![own, from].contains(&passed.from) => {
                self.hand_over(passed).await
            }
            Ask::Pass(_) | Ask::Take(_) => Told::Refused,
        }
    }

    fn be_seen(&self, name: Name) -> Told {
        let mut callers = self.callers.lock().expect("nobody panics over callers");
        let now = self.machine.now();
        let caller = callers.entry(name.node).or_insert(Caller { life: name.life, since: now });
        if caller.life != name.life {
            *caller = Caller { life: name.life, since: now };
        }
        Told::Here(Sight { life: self.life, at: now })
    }

    /// Looks for a node in the name of another one.
    async fn look_for(self: &Arc<Self>, node: NodeId, name: Name) -> Told {
        if self.machine.link(node) == Link::Unknown {
            return Told::Unreached;
        }
        if self.is_cut_off(node) {
            self.look_again(node);
            return Told::Unreached;
        }
        match self.ask_soon(node, Ask::Here(name), LOOK_MAX).await {
            Some(Told::Here(seen)) => Told::Here(seen),
            _ => Told::Unreached,
        }
    }

    async fn pass_on(&self, passed: Passed) -> Told {
        let to = passed.to;
        if self.machine.link(to.node) == Link::Unknown {
            return Told::Refused;
        }
        match self.ask(to.node, Ask::Take(passed)).await {
            Ok(told @ Told::Answer(port, _)) if port == to.port => told,
            Ok(Told::Refused) => Told::Refused,
            _ => Told::Nothing,
        }
    }

    async fn hand_over(&self, passed: Passed) -> Told {
        let Passed { from, to, seen, request } = passed;
        let now = self.machine.now();
        let is_in_time = seen.life == self.life && seen.at <= now && now.since(seen.at) <= LATE_MAX;
        let caller = self.callers.lock().expect("nobody panics over callers").get(&from).copied();
        let is_present = caller.is_some_and(|caller| caller.since <= seen.at);
        let part = self.parts.read().expect("nobody panics over parts").get(&to.port).and_then(Weak::upgrade);
        match part.filter(|_| is_in_time && is_present) {
            Some(part) => Told::Answer(to.port, part.handle(from, request).await),
            None => Told::Refused,
        }
    }
}
