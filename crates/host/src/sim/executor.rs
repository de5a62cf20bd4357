//! Who runs next: one thread, every ready task equally likely, and the calendar when nobody is ready.
//!
//! Invariants:
//! 1. The state's lock is never held while a task is polled or dropped, or while a message is dropped: foreign code
//!    may call back into the world.
//! 2. A task runs only while its node's incarnation lives and is not paused.
//! 3. Every choice comes from the dice, so that equal seeds make equal traces.

use std::collections::BTreeMap;
use std::future::Future;
use std::pin::Pin;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::{Context, Poll, Wake, Waker};
use std::time::Duration;

use crate::{BoxFuture, Moment, NodeId};

use super::calendar::{Calendar, Event};
use super::dice::scramble;
use super::disk::DiskState;
use super::network::{self, Network};
use super::node::NodeState;
use super::{Dice, disk};

/// What one poll of a task costs. Not nothing, so that a task that spins on the clock sees it move.
const POLL_COST: Duration = Duration::from_nanos(100);

/// The task that runs the test itself: it belongs to no node.
pub(super) const DRIVER: u64 = 0;

/// The world behind all handles.
pub(super) struct Core {
    pub(super) seed: u64,
    state: Mutex<State>,
    ready: Arc<Ready>,
}

/// Everything that the world knows.
pub(super) struct State {
    pub(super) now: Moment,
    pub(super) dice: Dice,
    pub(super) calendar: Calendar,
    pub(super) nodes: BTreeMap<NodeId, NodeState>,
    pub(super) network: Network,
    pub(super) disks: Vec<DiskState>,
    tasks: BTreeMap<u64, Task>,
    tasks_started: u64,
    trace: u64,
    running: bool,
    ended: bool,
}

/// One life of a node, from start to crash.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Life {
    pub(super) node: NodeId,
    pub(super) incarnation: u64,
}

/// Something that runs on a node.
pub(super) struct Task {
    life: Life,
    /// Away while it is being polled.
    future: Option<BoxFuture<'static, ()>>,
    waker: Arc<TaskWaker>,
}

/// What one turn of the executor did.
pub(super) enum Turn {
    /// The driver is to be polled.
    Driver,
    /// A task ran or an event happened.
    Progress,
    /// Nothing can happen before the horizon.
    Idle,
}

#[derive(Default)]
struct Ready(Mutex<Vec<u64>>);

/// Wakes a task by its number: a waker may outlive its task, its node and its world.
struct TaskWaker {
    task: u64,
    ready: Arc<Ready>,
    queued: AtomicBool,
}

impl Core {
    pub(super) fn new(seed: u64) -> Arc<Core> {
        let state = State {
            now: Moment(0),
            dice: Dice::new(seed),
            calendar: Calendar::default(),
            nodes: BTreeMap::new(),
            network: Network::default(),
            disks: Vec::new(),
            tasks: BTreeMap::new(),
            tasks_started: DRIVER,
            trace: scramble(seed),
            running: false,
            ended: false,
        };
        Arc::new(Core { seed, state: Mutex::new(state), ready: Arc::default() })
    }

    pub(super) fn lock(&self) -> MutexGuard<'_, State> {
        // A panicking test still drops its tasks: poison must not turn one panic into two.
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Starts a task of `life`; a life that is over runs nothing.
    pub(super) fn spawn(&self, life: Life, future: BoxFuture<'static, ()>) {
        let mut state = self.lock();
        if !state.lives(life) {
            drop(state);
            drop(future);
            return;
        }
        state.tasks_started += 1;
        let task = state.tasks_started;
        let waker = Arc::new(TaskWaker::new(task, self.ready.clone()));
        state.tasks.insert(task, Task { life, future: Some(future), waker: waker.clone() });
        drop(state);
        waker.wake();
    }

    /// A new driver, which is ready at once.
    pub(super) fn driver(&self) -> Driver {
        let task_waker = Arc::new(TaskWaker::new(DRIVER, self.ready.clone()));
        task_waker.wake_by_ref();
        Driver { waker: Waker::from(task_waker.clone()), task_waker }
    }

    /// Marks the world as running until the guard falls.
    ///
    /// # Panics
    /// When it runs already: the world cannot be run from within itself.
    pub(super) fn run(self: &Arc<Self>) -> Running {
        let mut state = self.lock();
        assert!(!state.running, "the world was run from within itself: a task or the driver must await instead");
        state.running = true;
        drop(state);
        Running(self.clone())
    }

    /// Does one thing: an event that is due, else a ready task, else the next event up to `horizon`.
    pub(super) fn turn(self: &Arc<Self>, horizon: Moment) -> Turn {
        let mut state = self.lock();
        if state.calendar.next_moment().is_none_or(|moment| moment > state.now) {
            while let Some(task) = self.ready.draw(&mut state.dice) {
                let Some(life) = state.tasks.get(&task).map(|task| task.life) else {
                    if task == DRIVER {
                        state.mark(DRIVER);
                        state.now = state.now + POLL_COST;
                        return Turn::Driver;
                    }
                    continue;
                };
                if state.nodes.get_mut(&life.node).is_some_and(|node| node.park(task)) {
                    continue;
                }
                self.poll(state, task);
                return Turn::Progress;
            }
            if state.calendar.next_moment().is_none_or(|moment| moment > horizon) {
                return Turn::Idle;
            }
        }
        let Some(((moment, number), event)) = state.calendar.take_next() else { return Turn::Idle };
        state.now = state.now.max(moment);
        state.mark(!number);
        drop(state);
        self.happen(event);
        Turn::Progress
    }

    fn poll(&self, mut state: MutexGuard<'_, State>, number: u64) {
        state.mark(number);
        state.now = state.now + POLL_COST;
        let Some(task) = state.tasks.get_mut(&number) else { return };
        let (life, waker) = (task.life, task.waker.clone());
        let Some(mut future) = task.future.take() else { return };
        drop(state);
        // Cleared before the poll: a wake during the poll must queue the task again.
        waker.queued.store(false, Ordering::Release);
        let waker = Waker::from(waker);
        let poll = future.as_mut().poll(&mut Context::from_waker(&waker));
        let mut state = self.lock();
        // The task may have crashed its own node, which forgot it: then it is dropped here.
        let gone = if poll.is_pending() && state.lives(life) {
            let task = state.tasks.get_mut(&number).expect("a living node keeps its tasks");
            task.future = Some(future);
            None
        } else {
            let task = state.tasks.remove(&number);
            Some((future, task))
        };
        drop(state);
        drop(gone);
    }

    /// Takes all tasks of a life that is over, for the caller to drop outside the lock.
    pub(super) fn tasks_of(state: &mut State, life: Life) -> Vec<Task> {
        state.tasks.extract_if(.., |_, task| task.life == life).map(|(_, task)| task).collect()
    }

    /// Queues tasks that were parked.
    pub(super) fn unpark(&self, tasks: Vec<u64>) {
        lock_list(&self.ready.0).extend(tasks);
    }

    /// Drops all that runs or is planned; nothing starts any more.
    pub(super) fn end(&self) {
        let mut state = self.lock();
        state.ended = true;
        let tasks = std::mem::take(&mut state.tasks);
        let handlers: Vec<_> = state.nodes.values_mut().map(|node| std::mem::take(&mut node.handlers)).collect();
        let judges = (state.network.judge.take(), state.network.copier.take());
        let left = (state.calendar.take_all(), state.network.take_calls(), disk::take_operations(&mut state.disks));
        drop(state);
        drop((tasks, handlers, left, judges));
    }

    fn happen(self: &Arc<Self>, event: Event) {
        match event {
            Event::Wake(waker) => waker.wake(),
            Event::Disk { disk, operation } => disk::finish(self, disk, operation),
            Event::Request { call } => network::arrive(self, call),
            Event::Double { double } => network::double(self, double),
            Event::Answer { call, answer } => network::answered(self, call, answer),
            Event::GiveUp { call } => network::give_up(self, call),
            Event::Check { call } => network::check(self, call),
        }
    }
}

impl State {
    /// Whether `life` goes on.
    pub(super) fn lives(&self, life: Life) -> bool {
        let node = self.nodes.get(&life.node);
        !self.ended && node.is_some_and(|node| node.runs() && node.incarnation == life.incarnation)
    }

    /// The present life of a node that runs.
    pub(super) fn life(&self, node: NodeId) -> Option<Life> {
        let state = self.nodes.get(&node).filter(|state| state.runs())?;
        Some(Life { node, incarnation: state.incarnation })
    }

    /// The fingerprint of every choice so far.
    pub(super) fn trace(&self) -> u64 {
        self.trace
    }

    /// How many tasks each node has.
    pub(super) fn task_counts(&self) -> BTreeMap<NodeId, usize> {
        let mut counts = BTreeMap::new();
        for task in self.tasks.values() {
            *counts.entry(task.life.node).or_insert(0) += 1;
        }
        counts
    }

    fn mark(&mut self, what: u64) {
        self.trace = scramble(self.trace ^ what.rotate_left(32) ^ self.now.0);
    }
}

/// Says that the world runs, until it is dropped.
pub(super) struct Running(Arc<Core>);

impl Drop for Running {
    fn drop(&mut self) {
        self.0.lock().running = false;
        if std::thread::panicking() {
            let state = self.0.lock();
            eprintln!(
                "the simulated world of seed {} stopped at {:?} of its time",
                self.0.seed,
                state.now.since(Moment(0))
            );
        }
    }
}

/// The driver's place among the ready.
pub(super) struct Driver {
    task_waker: Arc<TaskWaker>,
    waker: Waker,
}

impl Driver {
    pub(super) fn poll<F: Future>(&self, future: Pin<&mut F>) -> Poll<F::Output> {
        self.task_waker.queued.store(false, Ordering::Release);
        future.poll(&mut Context::from_waker(&self.waker))
    }
}

impl TaskWaker {
    fn new(task: u64, ready: Arc<Ready>) -> Self {
        TaskWaker { task, ready, queued: AtomicBool::new(false) }
    }
}

impl Wake for TaskWaker {
    fn wake(self: Arc<Self>) {
        self.wake_by_ref();
    }

    fn wake_by_ref(self: &Arc<Self>) {
        if !self.queued.swap(true, Ordering::AcqRel) {
            lock_list(&self.ready.0).push(self.task);
        }
    }
}

impl Ready {
    /// Takes one of the ready tasks, each equally likely.
    fn draw(&self, dice: &mut Dice) -> Option<u64> {
        let mut tasks = lock_list(&self.0);
        match tasks.len() {
            0 => None,
            1 => tasks.pop(),
            count => Some(tasks.swap_remove(dice.below(count as u64) as usize)),
        }
    }
}

fn lock_list(tasks: &Mutex<Vec<u64>>) -> MutexGuard<'_, Vec<u64>> {
    tasks.lock().unwrap_or_else(PoisonError::into_inner)
}
