//! The world as a test sees it: it adds nodes and disks, runs them, and does them harm.

use std::future::Future;
use std::pin::pin;
use std::sync::Arc;
use std::task::Poll;
use std::time::Duration;

use crate::{BoxFuture, Envelope, Host, Moment, NodeId, Port};

use super::Dice;
use super::calendar::Sleep;
use super::disk::{self, DiskOptions, SimDisk};
use super::executor::{Core, State, Turn};
use super::network::{NetworkCounters, NetworkOptions, Passing, Verdict};
use super::node::{self, NodeState, Stop};
use super::promise::{Awaited, promise};

/// How long the driver may wait, of the world's time, before the world is said to hang.
const PATIENCE: Duration = Duration::from_secs(24 * 3600);
/// How many things may happen in one run before the world is said to spin.
const TURNS_MAX: u64 = 100_000_000;

/// A simulated world. Clones are the same world; it ends, and drops all its tasks, with the last clone.
#[derive(Clone)]
pub struct World(Arc<Owner>);

struct Owner(Arc<Core>);

impl Drop for Owner {
    fn drop(&mut self) {
        self.0.end();
    }
}

/// A task of a node died with its node before it was done.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("the task died with its node")]
pub struct Crashed;

impl World {
    /// An empty world: its whole story follows from `seed` and from what the test does.
    pub fn new(seed: u64) -> World {
        World(Arc::new(Owner(Core::new(seed))))
    }

    /// The seed it was made from.
    pub fn seed(&self) -> u64 {
        self.core().seed
    }

    /// The world's own time, from zero. Nodes' clocks differ from it and from each other.
    pub fn now(&self) -> Moment {
        self.core().lock().now
    }

    /// Waits; for the driver, who has no host.
    pub async fn sleep(&self, wait: Duration) {
        let until = self.now() + wait;
        Sleep::new(self.core().clone(), until).await;
    }

    /// Dice for the test's own choices, which follow from the seed.
    pub fn dice(&self) -> Dice {
        Dice::new(self.core().lock().dice.roll())
    }

    /// A fingerprint of every choice made so far: equal stories have equal traces.
    pub fn trace_hash(&self) -> u64 {
        self.core().lock().trace()
    }

    /// Drops all tasks, handlers, calls and disk operations. Disks' contents can still be looked at.
    pub fn end(&self) {
        self.core().end();
    }

    fn core(&self) -> &Arc<Core> {
        &self.0.0
    }
}

/// Nodes.
impl World {
    /// Adds a node, which runs.
    ///
    /// # Panics
    /// When there is one of that number.
    pub fn add_node(&self, node: NodeId) -> Host {
        let mut state = self.core().lock();
        let State { nodes, dice, now, .. } = &mut *state;
        let before = nodes.insert(node, NodeState::new(*now, dice));
        assert!(before.is_none(), "there is a node {} already", node.0);
        drop(state);
        self.host(node)
    }

    /// The handle on `node` in its present life.
    ///
    /// # Panics
    /// When there is no such node, or it does not run.
    pub fn host(&self, node: NodeId) -> Host {
        let life = self.core().lock().life(node).unwrap_or_else(|| panic!("node {} does not run", node.0));
        node::host(self.core(), life)
    }

    /// Whether `node` runs, paused or not.
    pub fn runs(&self, node: NodeId) -> bool {
        self.core().lock().life(node).is_some()
    }

    /// Stops `node`: its tasks, handlers and timers are gone, its disks meet the stop, and those who call it get
    /// [`Unreachable`](crate::Unreachable). A node that does not run can still lose power.
    pub fn crash(&self, node: NodeId, stop: Stop) {
        let mut state = self.core().lock();
        let life = state.life(node);
        let Some(stopped) = state.nodes.get_mut(&node) else { panic!("there is no node {}", node.0) };
        if stop == Stop::PowerLoss || life.is_some() {
            stopped.stopped = Some(stop);
        }
        stopped.resume();
        let handlers = std::mem::take(&mut stopped.handlers);
        let operations = disk::stop(&mut state, node, stop);
        let tasks = life.map(|life| {
            state.fail_calls_to(life, stop);
            Core::tasks_of(&mut state, life)
        });
        drop(state);
        // Their drops may call back into the world.
        drop((tasks, handlers, operations));
    }

    /// Cuts the power of every node at one moment.
    pub fn crash_all(&self, stop: Stop) {
        let nodes: Vec<NodeId> = self.core().lock().nodes.keys().copied().collect();
        for node in nodes {
            self.crash(node, stop);
        }
    }

    /// Begins the next life of `node`: no tasks, no handlers, the same disks.
    ///
    /// # Panics
    /// When it runs.
    pub fn restart(&self, node: NodeId) -> Host {
        let mut state = self.core().lock();
        let State { nodes, now, .. } = &mut *state;
        let Some(stopped) = nodes.get_mut(&node) else { panic!("there is no node {}", node.0) };
        assert!(!stopped.runs(), "node {} runs already", node.0);
        stopped.restart(*now);
        drop(state);
        self.host(node)
    }

    /// Freezes `node`: no task of it runs until it is resumed; its disks and what it has sent go on.
    pub fn pause(&self, node: NodeId) {
        let mut state = self.core().lock();
        if let Some(frozen) = state.nodes.get_mut(&node).filter(|node| node.runs()) {
            frozen.paused = true;
            state.doubt_calls(|_, to| to == node);
        }
    }

    /// Lets a frozen node go on.
    pub fn resume(&self, node: NodeId) {
        let tasks = self.core().lock().nodes.get_mut(&node).map(NodeState::resume);
        self.core().unpark(tasks.unwrap_or_default());
    }

    /// Makes a node's monotonic clock fast or slow by so many parts of a million, from now on.
    pub fn drift_clock(&self, node: NodeId, rate_ppm: i32) {
        let mut state = self.core().lock();
        let State { nodes, now, .. } = &mut *state;
        nodes.get_mut(&node).expect("the node was added").drift(rate_ppm, *now);
    }

    /// Moves a node's wall clock, forward or back.
    pub fn shift_wall(&self, node: NodeId, nanoseconds: i64) {
        self.core().lock().nodes.get_mut(&node).expect("the node was added").shift_wall(nanoseconds);
    }
}

/// The network.
impl World {
    /// Changes how the network behaves, from the next message on.
    pub fn set_network(&self, options: NetworkOptions) {
        self.core().lock().network.options = options;
    }

    /// What it has carried so far.
    pub fn network_counters(&self) -> NetworkCounters {
        self.core().lock().network.counters
    }

    /// How many calls went to `port`s of other nodes so far.
    pub fn calls_to(&self, port: Port) -> u64 {
        self.core().lock().network.calls_by_port.get(&port).copied().unwrap_or(0)
    }

    /// From now on `judge` decides about each message between nodes, before options and cuts do: for a test that
    /// needs just this message lost, or that one late.
    pub fn judge_messages(&self, judge: impl Fn(Passing<'_>) -> Verdict + Send + Sync + 'static) {
        let before = self.core().lock().network.judge.replace(Arc::new(judge));
        drop(before);
    }

    /// No message is judged any more.
    pub fn dismiss_judge(&self) {
        let before = self.core().lock().network.judge.take();
        drop(before);
    }

    /// From now on requests may be doubled that `copier` copies: such as callers ask again when no answer came.
    pub fn copy_requests(&self, copier: impl Fn(Passing<'_>) -> Option<Envelope> + Send + Sync + 'static) {
        let before = self.core().lock().network.copier.replace(Arc::new(copier));
        drop(before);
    }

    /// Cuts the link between two nodes, both ways.
    pub fn cut(&self, one: NodeId, other: NodeId) {
        self.cut_one_way(one, other);
        self.cut_one_way(other, one);
    }

    /// Nothing that `source` sends reaches `target` any more.
    pub fn cut_one_way(&self, source: NodeId, target: NodeId) {
        let mut state = self.core().lock();
        if state.network.cuts.insert((source, target)) {
            state.doubt_calls(|from, to| (from, to) == (source, target) || (from, to) == (target, source));
        }
    }

    /// Cuts `node` off from all others.
    pub fn isolate(&self, node: NodeId) {
        let others: Vec<NodeId> = self.core().lock().nodes.keys().copied().filter(|other| *other != node).collect();
        for other in others {
            self.cut(node, other);
        }
    }

    /// Mends the link between two nodes, both ways.
    pub fn heal(&self, one: NodeId, other: NodeId) {
        let mut state = self.core().lock();
        state.network.cuts.remove(&(one, other));
        state.network.cuts.remove(&(other, one));
    }

    /// Mends all links.
    pub fn heal_all(&self) {
        self.core().lock().network.cuts.clear();
    }
}

/// Disks.
impl World {
    /// Plugs a new, empty disk into `node`. Names are unique in a world.
    pub fn add_disk(&self, node: NodeId, name: &str, options: DiskOptions) -> SimDisk {
        SimDisk::add(self.core(), node, name, options)
    }

    /// The disk of that name.
    ///
    /// # Panics
    /// When there is none.
    pub fn disk(&self, name: &str) -> SimDisk {
        SimDisk::find(self.core(), name)
    }
}

/// Running.
impl World {
    /// Runs the world until `driver` is done. The driver belongs to no node: crashes do not touch it, and it may
    /// borrow from the test.
    ///
    /// # Panics
    /// When nothing can happen any more and the driver still waits, or it waits for a day of the world's time.
    pub fn block_on<T>(&self, driver: impl Future<Output = T>) -> T {
        let core = self.core();
        let _running = core.run();
        let mut future = pin!(driver);
        let place = core.driver();
        let patience = self.now() + PATIENCE;
        for _ in 0..TURNS_MAX {
            match core.turn(patience) {
                Turn::Driver => {
                    if let Poll::Ready(value) = place.poll(future.as_mut()) {
                        return value;
                    }
                }
                Turn::Progress => {}
                Turn::Idle => panic!("{}", self.standstill()),
            }
        }
        panic!("the world spins: {TURNS_MAX} things happened and the driver still waits");
    }

    /// Runs the world until `moment` of its own time.
    pub fn run_until(&self, moment: Moment) {
        self.run_while(moment, || true);
        let mut state = self.core().lock();
        state.now = state.now.max(moment);
    }

    /// Runs the world while `condition` holds and there is something to do before `horizon`.
    pub fn run_while(&self, horizon: Moment, condition: impl Fn() -> bool) {
        let _running = self.core().run();
        for _ in 0..TURNS_MAX {
            if !condition() || self.now() > horizon || matches!(self.core().turn(horizon), Turn::Idle) {
                return;
            }
        }
        panic!("the world spins: {TURNS_MAX} things happened before the horizon");
    }

    /// Runs `task` on the node of `host`, beside the caller. What is returned brings its outcome, or says that the
    /// task died with its node; dropping it does not stop the task.
    pub fn spawn<T: Send + 'static>(
        &self,
        host: &Host,
        task: impl Future<Output = T> + Send + 'static,
    ) -> BoxFuture<'static, Result<T, Crashed>> {
        let (promise, outcome): (_, Awaited<T>) = promise();
        host.spawn(async move {
            let outcome = task.await;
            let unwanted = promise.keep(outcome);
            drop(unwanted);
        });
        Box::pin(async move { outcome.await.map_err(|_| Crashed) })
    }

    fn standstill(&self) -> String {
        let state = self.core().lock();
        let mut story = match state.calendar.next_moment() {
            None => format!("deadlock in the world of seed {}: the driver waits, and nothing can happen", self.seed()),
            Some(_) => format!("the driver in the world of seed {} waits for more than a day", self.seed()),
        };
        let tasks = state.task_counts();
        for (node, it) in &state.nodes {
            let life = if it.paused {
                "paused"
            } else if it.runs() {
                "runs"
            } else {
                "stopped"
            };
            story += &format!("; node {} {life}, {} tasks", node.0, tasks.get(node).unwrap_or(&0));
        }
        for (from, to) in state.network.waiting() {
            story += &format!("; node {} waits for an answer of node {} port {}", from.0, to.node.0, to.port.0);
        }
        story
    }
}
