//! Whose turn it is to seal a log. A claim voids the one before, and all that was done under it: several that claim a log from
//! each other take far longer than one. Which log is safe with whom, [`recovery::seal`] sees to; here is only who waits for
//! whom. Awaits.

use std::pin::pin;
use std::time::Duration;

use futures_util::future::select;
use host::NodeId;
use log::recovery;
use log::{Cluster, SealError};
use protocol::address::Position;
use protocol::id::LogId;
use protocol::maps::{LogState, Maps};

use crate::start::StartError;

/// How often a log is claimed again that cannot be sealed, and after how long.
const SEAL_TRIES: u32 = 60;
const SEAL_PAUSE: Duration = Duration::from_millis(500);
/// How often is looked whether another recoverer has sealed a log, where no newer maps say so.
const SEAL_LOOK: Duration = Duration::from_millis(200);
/// How often the time is doubled that another recoverer is given: up to half a minute.
const SEAL_DOUBLINGS: u32 = 6;
/// How long the heir of a dead log is given for each step of sealing it: to read, and write again, stripes over full links.
const HEIR_PATIENCE: Duration = Duration::from_secs(10);

/// Who seals a dead log: one of the living, so that they do not take it from each other.
pub(crate) fn heir(maps: &Maps, log: LogId) -> Option<u32> {
    let living: Vec<u32> = maps.storing().collect();
    living.get((log.0 % living.len().max(1) as u64) as usize).copied()
}

/// Takes a log from its writer, dead or not, once whose it is to seal has had its time; tries again while targets or another
/// recoverer stand in the way.
pub(crate) async fn seal(cluster: &Cluster, log: LogId) -> Result<Position, StartError> {
    match sealed_meanwhile(cluster, log, pause_at_first).await {
        Some(length) => Ok(length),
        None => claim(cluster, log).await,
    }
}

/// Seals a log that another may be sealing: only when that one has had its time.
pub(crate) async fn seal_behind_other(cluster: &Cluster, log: LogId) -> Result<Position, StartError> {
    match sealed_meanwhile(cluster, log, pause_for_other).await {
        Some(length) => Ok(length),
        None => claim(cluster, log).await,
    }
}

async fn claim(cluster: &Cluster, log: LogId) -> Result<Position, StartError> {
    let mut tries = 0;
    loop {
        let error = match recovery::seal(cluster, log).await {
            Ok(length) => return Ok(length),
            Err(error @ SealError::Unknown(_)) => return Err(StartError::Seal { log, error }),
            Err(error) => error,
        };
        let is_lost = matches!(error, SealError::Lost);
        let pause: Pause = if is_lost { pause_for_other } else { |_, _, _| SEAL_PAUSE };
        loop {
            if tries == SEAL_TRIES {
                return Err(StartError::Seal { log, error });
            }
            tries += 1;
            if let Some(length) = sealed_meanwhile(cluster, log, pause).await {
                return Ok(length);
            }
            // Whoever reaches more targets than this node is not to be kept from it.
            if is_lost || recovery::can_be_sealed(cluster, log).await {
                break;
            }
        }
    }
}

/// How long a log is left to others, by the maps, for the recoverer on a node.
type Pause = fn(&Maps, LogId, NodeId) -> Duration;

/// For a log that another recoverer has taken from us. A claim voids the one before, and all that was done under it; so each
/// is given twice the time of the last, and in the end one has enough.
fn pause_for_other(maps: &Maps, log: LogId, _: NodeId) -> Duration {
    match maps.logs.get(&log).map(|entry| entry.state) {
        // One claim raises the epoch of an open log from 1 to 2.
        Some(LogState::Sealing(epoch)) => SEAL_PAUSE * (1 << epoch.0.saturating_sub(2).min(SEAL_DOUBLINGS)),
        _ => SEAL_PAUSE,
    }
}

/// Before it is claimed at all. What its writer left is the heir's to seal, who lives, as far as the cluster knows: where links
/// are full several that claim it from each other take far longer than one. Whoever has claimed it otherwise is perhaps dead.
fn pause_at_first(maps: &Maps, log: LogId, node: NodeId) -> Duration {
    let Some(entry) = maps.logs.get(&log) else { return Duration::ZERO };
    let is_ours = entry.node == node.0 || heir(maps, log).is_none_or(|heir| heir == node.0);
    match entry.state {
        _ if !is_ours && maps.dead_logs().any(|dead| dead == log) => HEIR_PATIENCE,
        LogState::Sealing(_) => SEAL_PAUSE,
        LogState::Open(_) | LogState::Sealed(_) => Duration::ZERO,
    }
}

/// Waits a while for another recoverer, anew after each of its steps; where the log ends when that one is done.
async fn sealed_meanwhile(cluster: &Cluster, log: LogId, pause: Pause) -> Option<Position> {
    let (mut seen, mut since) = (None, cluster.host().now());
    loop {
        let newer = cluster.newer_maps();
        let maps = cluster.refresh().await.ok()?;
        let entry = maps.logs.get(&log)?;
        if let LogState::Sealed(length) = entry.state {
            return Some(length);
        }
        let now = cluster.host().now();
        if seen.replace(entry.version) != Some(entry.version) {
            since = now;
        }
        // By these maps: who was to seal it may have died meanwhile.
        if now >= since + pause(&maps, log, cluster.host().node()) {
            return None;
        }
        select(newer, pin!(cluster.host().sleep(SEAL_LOOK))).await;
    }
}

#[cfg(test)]
mod tests {
    use protocol::id::FenceEpoch;
    use protocol::maps::{LogEntry, NodeEntry, NodeState, Writer};

    use super::*;

    const LOG: LogId = LogId(7);

    /// Four nodes of which the first wrote the log, and has died.
    fn maps(state: LogState) -> Maps {
        let node = |state| NodeEntry { state, ..NodeEntry::new("", "", true).begun() };
        let log = LogEntry::new((0, 1), Writer::Manager, Vec::new(), state);
        let living = (1..4).map(|number| (number, node(NodeState::Alive)));
        Maps {
            nodes: living.chain([(0, node(NodeState::Gone))]).collect(),
            logs: [(LOG, log)].into(),
            ..Maps::empty(1, 1)
        }
    }

    #[test]
    fn a_dead_log_is_left_to_its_heir_as_long_as_that_one_lives() {
        for state in [LogState::Open(FenceEpoch(1)), LogState::Sealing(FenceEpoch(2))] {
            let mut maps = maps(state);
            let heir_of = |maps: &Maps| NodeId(heir(maps, LOG).expect("somebody lives"));
            let first = heir_of(&maps);
            for node in (1..4).map(NodeId) {
                assert_eq!(pause_at_first(&maps, LOG, node) == HEIR_PATIENCE, node != first, "{node:?} {state:?}");
            }
            maps.nodes.get_mut(&first.0).unwrap().state = NodeState::Gone;
            let second = heir_of(&maps);
            assert!(second != first && pause_at_first(&maps, LOG, second) < HEIR_PATIENCE);
        }
    }

    #[test]
    fn who_wrote_a_log_leaves_it_to_nobody() {
        let mut maps = maps(LogState::Open(FenceEpoch(1)));
        let writer = maps.nodes.get_mut(&0).unwrap();
        (writer.session, writer.state) = (2, NodeState::Alive);
        assert_ne!(heir(&maps, LOG), Some(0));
        assert_eq!(pause_at_first(&maps, LOG, NodeId(0)), Duration::ZERO);
    }

    #[test]
    fn a_log_whose_writer_lives_has_no_heir_to_wait_for() {
        let mut maps = maps(LogState::Open(FenceEpoch(1)));
        maps.nodes.get_mut(&0).unwrap().state = NodeState::Alive;
        assert!((1..4).all(|node| pause_at_first(&maps, LOG, NodeId(node)).is_zero()));
    }

    #[test]
    fn each_claim_is_given_twice_the_time_of_the_one_before() {
        let pause = |epoch| pause_for_other(&maps(LogState::Sealing(FenceEpoch(epoch))), LOG, NodeId(1));
        assert_eq!([2, 3, 4].map(pause), [SEAL_PAUSE, 2 * SEAL_PAUSE, 4 * SEAL_PAUSE]);
        assert_eq!(pause(100), pause(2 + SEAL_DOUBLINGS));
    }
}
