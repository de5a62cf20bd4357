//! The real machine behind a `host::Host`: tokio's timers and tasks, the kernel's clocks and dice, and calls to parts
//! of this node straight to their handlers.

use std::collections::BTreeMap;
use std::sync::{Arc, RwLock};
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use host::{Address, BoxFuture, Envelope, Handler, Host, Machine, Moment, NodeId, Port, Unreachable, WallTime};
use tokio::runtime::Handle;

/// One running daemon's machine.
pub struct RealMachine {
    node: NodeId,
    started: Instant,
    runtime: Handle,
    ports: RwLock<BTreeMap<Port, Arc<dyn Handler>>>,
}

impl RealMachine {
    /// The machine of `node`, whose tasks run on `runtime`.
    pub fn host(node: NodeId, runtime: Handle) -> Host {
        Host::new(Arc::new(RealMachine { node, started: Instant::now(), runtime, ports: RwLock::default() }))
    }
}

impl Machine for RealMachine {
    fn node(&self) -> NodeId {
        self.node
    }

    fn now(&self) -> Moment {
        Moment(u64::try_from(self.started.elapsed().as_nanos()).unwrap_or(u64::MAX))
    }

    fn wall(&self) -> WallTime {
        let now = SystemTime::now();
        WallTime(match now.duration_since(UNIX_EPOCH) {
            Ok(since) => i64::try_from(since.as_nanos()).unwrap_or(i64::MAX),
            Err(before) => i64::try_from(before.duration().as_nanos()).map_or(i64::MIN, |nanoseconds| -nanoseconds),
        })
    }

    fn random(&self) -> u64 {
        getrandom::u64().expect("the kernel gives random numbers once it has started")
    }

    fn sleep_until(&self, moment: Moment) -> BoxFuture<'static, ()> {
        let at = self.started + Duration::from_nanos(moment.0);
        // The timer belongs to a runtime; the caller's thread may be none of its workers.
        let _entered = self.runtime.enter();
        Box::pin(tokio::time::sleep_until(at.into()))
    }

    fn spawn(&self, task: BoxFuture<'static, ()>) {
        self.runtime.spawn(task);
    }

    fn call(&self, to: Address, request: Envelope) -> BoxFuture<'static, Result<Envelope, Unreachable>> {
        if to.node != self.node {
            return Box::pin(async move { Err(Unreachable(to)) });
        }
        let handler = self.ports.read().expect("no panic while ports are held").get(&to.port).cloned();
        match handler {
            Some(handler) => {
                let answer = handler.handle(self.node, request);
                Box::pin(async move { Ok(answer.await) })
            }
            None => Box::pin(async move { Err(Unreachable(to)) }),
        }
    }

    fn listen(&self, port: Port, handler: Arc<dyn Handler>) {
        let before = self.ports.write().expect("no panic while ports are held").insert(port, handler);
        assert!(before.is_none(), "port {} was registered before", port.0);
    }
}
