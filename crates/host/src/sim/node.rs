//! One simulated machine: its life, its clocks, its handlers, and the handle that parts get.

use std::collections::BTreeMap;
use std::sync::Arc;

use crate::{Address, BoxFuture, Envelope, Handler, Host, Machine, Moment, NodeId, Port, Unreachable, WallTime};

use super::calendar::{Sleep, Yield};
use super::executor::{Core, Life};
use super::{Dice, network};

/// The wall clock of a world at its beginning: 2026-01-01.
const WALL_START: i64 = 1_767_225_600_000_000_000;
/// Wall clocks of different nodes differ by up to this, either way, in nanoseconds.
const WALL_SKEW_MAX: u64 = 2_000_000_000;
/// Machines have been up for at most this long when a world begins, in nanoseconds.
const UPTIME_MAX: u64 = 1_000_000_000_000;

/// How a node stops.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Stop {
    /// The daemon is killed. Its machine lives on: every finished write is kept, synced or not, of writes in flight
    /// any part; callers learn soon that nobody listens.
    Kill,
    /// The machine loses power: of unsynced writes any part survives; callers learn only by a timeout.
    PowerLoss,
}

/// What the world knows of one node.
pub(super) struct NodeState {
    pub(super) incarnation: u64,
    pub(super) stopped: Option<Stop>,
    pub(super) paused: bool,
    pub(super) handlers: BTreeMap<Port, Arc<dyn Handler>>,
    parked: Vec<u64>,
    clock: Clock,
    wall_offset: i64,
}

/// A node's monotonic clock against the world's time. No two nodes' clocks show the same, as on real machines.
#[derive(Clone, Copy)]
struct Clock {
    local_base: u64,
    world_base: Moment,
    rate_ppm: i32,
}

impl NodeState {
    pub(super) fn new(now: Moment, dice: &mut Dice) -> Self {
        NodeState {
            incarnation: 1,
            stopped: None,
            paused: false,
            handlers: BTreeMap::new(),
            parked: Vec::new(),
            clock: Clock { local_base: dice.below(UPTIME_MAX), world_base: now, rate_ppm: 0 },
            wall_offset: WALL_START + dice.below(2 * WALL_SKEW_MAX) as i64 - WALL_SKEW_MAX as i64,
        }
    }

    pub(super) fn runs(&self) -> bool {
        self.stopped.is_none()
    }

    /// Keeps a ready task of a paused node until the node resumes; false when the node is not paused.
    pub(super) fn park(&mut self, task: u64) -> bool {
        if self.paused {
            self.parked.push(task);
        }
        self.paused
    }

    /// Ends the pause; returns the tasks that became ready meanwhile.
    pub(super) fn resume(&mut self) -> Vec<u64> {
        self.paused = false;
        std::mem::take(&mut self.parked)
    }

    /// Begins the next life.
    pub(super) fn restart(&mut self, now: Moment) {
        if self.stopped.take() == Some(Stop::PowerLoss) {
            // The machine's clock counts from its own start.
            self.clock = Clock { local_base: 0, world_base: now, ..self.clock };
        }
        self.incarnation += 1;
    }

    /// Makes the clock run fast or slow from now on.
    pub(super) fn drift(&mut self, rate_ppm: i32, now: Moment) {
        self.clock = Clock { local_base: self.clock.local(now).0, world_base: now, rate_ppm };
    }

    /// Moves the wall clock.
    pub(super) fn shift_wall(&mut self, nanoseconds: i64) {
        self.wall_offset = self.wall_offset.saturating_add(nanoseconds);
    }
}

impl Clock {
    fn local(&self, world: Moment) -> Moment {
        let passed = u128::from(world.0 - self.world_base.0) * self.parts() / 1_000_000;
        Moment(self.local_base + passed as u64)
    }

    /// The first moment of the world at which the clock shows `local` or more.
    fn world(&self, local: Moment) -> Moment {
        let wait = u128::from(local.0.saturating_sub(self.local_base));
        let passed = (wait * 1_000_000).div_ceil(self.parts());
        Moment(self.world_base.0.saturating_add(u64::try_from(passed).unwrap_or(u64::MAX)))
    }

    fn parts(&self) -> u128 {
        (1_000_000 + i64::from(self.rate_ppm)).max(1) as u128
    }
}

/// What stands behind a [`Host`] in a simulated world.
struct SimMachine {
    core: Arc<Core>,
    life: Life,
}

/// A handle on a node in its present life.
pub(super) fn host(core: &Arc<Core>, life: Life) -> Host {
    Host::new(Arc::new(SimMachine { core: core.clone(), life }))
}

impl Machine for SimMachine {
    fn node(&self) -> NodeId {
        self.life.node
    }

    fn now(&self) -> Moment {
        let state = self.core.lock();
        state.nodes[&self.life.node].clock.local(state.now)
    }

    fn wall(&self) -> WallTime {
        let state = self.core.lock();
        WallTime(state.nodes[&self.life.node].wall_offset.saturating_add_unsigned(state.now.0))
    }

    fn random(&self) -> u64 {
        self.core.lock().dice.roll()
    }

    fn sleep_until(&self, moment: Moment) -> BoxFuture<'static, ()> {
        let until = self.core.lock().nodes[&self.life.node].clock.world(moment);
        Box::pin(Sleep::new(self.core.clone(), until))
    }

    fn spawn(&self, task: BoxFuture<'static, ()>) {
        self.core.spawn(self.life, task);
    }

    fn call(&self, to: Address, request: Envelope) -> BoxFuture<'static, Result<Envelope, Unreachable>> {
        let (core, life) = (self.core.clone(), self.life);
        Box::pin(async move {
            if to.node != life.node {
                return network::send(&core, life, to, request).await.unwrap_or(Err(Unreachable(to)));
            }
            let handler = {
                let mut state = core.lock();
                let wait = state.dice.coin();
                let handler = state.lives(life).then(|| state.nodes[&life.node].handlers.get(&to.port).cloned());
                handler.flatten().map(|handler| (handler, wait))
            };
            let (handler, wait) = handler.ok_or(Unreachable(to))?;
            if wait {
                Yield::new().await;
            }
            Ok(handler.handle(life.node, request).await)
        })
    }

    fn listen(&self, port: Port, handler: Arc<dyn Handler>) {
        let mut state = self.core.lock();
        if !state.lives(self.life) {
            return;
        }
        let node = state.nodes.get_mut(&self.life.node).expect("a life has a node");
        let before = node.handlers.insert(port, handler);
        drop(state);
        assert!(before.is_none(), "port {} of node {} was registered twice", port.0, self.life.node.0);
    }
}
