//! Whether an open log stands still while somebody waits for it. Waiting has no limit of its own, as long as the log moves: one
//! that does not would keep every fsync of its machine and show nothing anywhere else.

use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Weak};
use std::time::Duration;

use protocol::address::Position;
use protocol::storage::Durability;
use tracing::warn;

use crate::sender::Shared;
use crate::state::State;

/// Longer than any call to a target or to the registry may take: one that is under way brings something, if only its failure.
const PAUSE: Duration = Duration::from_secs(30);

/// How many wait for a log.
#[derive(Debug, Default)]
pub(crate) struct Waiting(AtomicUsize);

/// Somebody who waits, until it is dropped.
pub(crate) struct Waits<'a>(&'a Waiting);

/// How far a log has come. While any send is answered, it differs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Reached {
    acknowledged: [Position; 2],
    runs_added: u64,
    stored: u64,
}

/// What was seen at the last look: how far the log was, if anybody waited, and whether its standing still was told.
#[derive(Debug, Default)]
struct Watch {
    seen: Option<Reached>,
    told: bool,
}

impl Waiting {
    pub(crate) fn begin(&self) -> Waits<'_> {
        self.0.fetch_add(1, Ordering::Relaxed);
        Waits(self)
    }
}

impl Drop for Waits<'_> {
    fn drop(&mut self) {
        self.0.0.fetch_sub(1, Ordering::Relaxed);
    }
}

impl Reached {
    fn of(state: &State) -> Reached {
        let lanes = state.stripes.iter().flat_map(|stripe| stripe.lay.lanes());
        Reached {
            acknowledged: [Durability::Replicated, Durability::Disk].map(|durability| state.acknowledged(durability)),
            runs_added: state.status.runs_added,
            stored: lanes.map(|lane| u64::from(lane.stored) + u64::from(lane.disk)).sum(),
        }
    }
}

impl Watch {
    /// Takes in how far the log is, where anybody waits. Whether it is to be told that it stands still: once, until it moves.
    fn look(&mut self, reached: Option<Reached>) -> bool {
        let stands = reached.is_some() && reached == self.seen;
        let news = stands && !self.told;
        (self.seen, self.told) = (reached, stands);
        news
    }
}

/// Looks again and again, for as long as anybody has the log.
pub(crate) async fn watch(handle: Weak<Shared>) {
    let mut watch = Watch::default();
    while let Some(host) = handle.upgrade().map(|shared| shared.cluster.host().clone()) {
        host.sleep(PAUSE).await;
        let Some(shared) = handle.upgrade() else { return };
        look(&shared, &mut watch);
    }
}

fn look(shared: &Arc<Shared>, watch: &mut Watch) {
    let somebody = shared.waiting.0.load(Ordering::Relaxed) > 0;
    let state = shared.lock();
    let waited_for = somebody && state.fault.is_none();
    if watch.look(waited_for.then(|| Reached::of(&state))) {
        let first = state.incomplete().next();
        warn!(
            log = shared.log.0,
            bytes = state.backlog(),
            acknowledged = ?state.acknowledged(Durability::Disk),
            end = ?state.end(),
            relaying = state.relaying,
            failed = ?state.failures,
            syncing = ?state.syncing,
            stripes = state.stripes.len(),
            first = ?first.map(|stripe| (stripe.number, stripe.length, stripe.ended)),
            lanes = ?first.map(|stripe| stripe.lay.lanes().collect::<Vec<_>>()),
            "this log has stood still for {} s, and fsyncs on this machine wait for it. What was acknowledged is safe. Where \
             `dazzle status` shows all targets serving, and a quorum, this is a defect of Dazzle: please report this line",
            PAUSE.as_secs(),
        );
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn it_is_told_once_that_a_log_stands_still_while_somebody_waits() {
        let reached = |stored| Some(Reached { acknowledged: [Position::START; 2], runs_added: 0, stored });
        let mut watch = Watch::default();
        let looks = [
            (reached(1), false, "seen for the first time"),
            (reached(2), false, "it moves"),
            (reached(2), true, "it stands"),
            (reached(2), false, "that was told"),
            (reached(3), false, "it moves again"),
            (None, false, "nobody waits"),
            (reached(3), false, "who waits has come since the last look"),
            (reached(3), true, "it stands again"),
        ];
        for (reached, told, why) in looks {
            assert_eq!(watch.look(reached), told, "{why}");
        }
    }
}
