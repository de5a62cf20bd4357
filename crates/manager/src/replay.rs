//! The logs of nodes that died: one of those that live seals them, and every manager replays what clients' logs hold beyond
//! *applied* (DESIGN §5, block maps and deltas).

use std::collections::BTreeSet;
use std::time::Duration;

use futures_util::future::join_all;
use log::recovery::{self, Bodies};
use protocol::address::Position;
use protocol::delta::Delta;
use protocol::id::LogId;
use protocol::manager::{Deltas, ManagerRequest};
use protocol::maps::{LogState, Maps, Writer};
use protocol::record::RecordKind;
use protocol::storage::Durability;

use crate::manager::Manager;
use crate::ops::Operation;
use crate::start::StartError;
use crate::takeover::{seal, seal_behind_other};

/// How long the others are given to seal what is theirs to seal, and how often that is looked at.
const PATIENCE: Duration = Duration::from_secs(10);
const LOOK: Duration = Duration::from_millis(50);

/// Who seals a dead log: one of the living, so that they do not take it from each other.
fn heir(maps: &Maps, log: LogId) -> Option<u32> {
    let living: Vec<u32> = maps.storing().collect();
    living.get((log.0 % living.len().max(1) as u64) as usize).copied()
}

/// Which sealed logs this manager has all deltas of.
#[derive(Default)]
pub(crate) struct Replayed(BTreeSet<LogId>);

impl Replayed {
    /// Slots have arrived that have nothing but of these.
    pub(crate) fn keep_only(&mut self, of_arrived: &BTreeSet<LogId>) {
        self.0.retain(|log| of_arrived.contains(log));
    }

    /// Those of these logs of which all slots here have all.
    pub(crate) fn among(&self, maps: &Maps) -> BTreeSet<LogId> {
        self.0.iter().copied().filter(|log| maps.logs.contains_key(log)).collect()
    }

    /// Whether a log is sealed, and its deltas may not all be here.
    pub(crate) fn may_lack(&self, maps: &Maps, log: LogId) -> bool {
        let sealing = |entry: &protocol::maps::LogEntry| !matches!(entry.state, LogState::Open(_));
        maps.logs.get(&log).is_some_and(|entry| entry.writer == Writer::Client && sealing(entry))
            && !self.0.contains(&log)
    }
}

impl Manager {
    /// Seals the logs of nodes that died which are ours to seal.
    pub(crate) async fn seal_dead(&self) -> Result<(), StartError> {
        let maps = self.cluster.maps();
        let node = self.host().node().0;
        let mine: Vec<LogId> = maps.dead_logs().filter(|&log| heir(&maps, log) == Some(node)).collect();
        // Side by side: what waits for one of them waits for all.
        let sealed = join_all(mine.into_iter().map(|log| seal(&self.cluster, log))).await;
        sealed.into_iter().try_for_each(|length| length.map(drop))
    }

    /// Waits until the logs of all dead clients are sealed; seals those itself that nobody does in time.
    pub(crate) async fn await_dead(&self) -> Result<(), StartError> {
        let patient_until = self.host().now() + PATIENCE;
        self.seal_dead().await?;
        loop {
            let maps = self.cluster.refresh().await?;
            let left = maps.dead_logs().filter(|log| maps.logs[log].writer == Writer::Client);
            let left: Vec<LogId> = left.collect();
            if left.is_empty() {
                return Ok(());
            }
            if self.host().now() >= patient_until {
                let sealed = join_all(left.into_iter().map(|log| seal_behind_other(&self.cluster, log))).await;
                sealed.into_iter().try_for_each(|length| length.map(drop))?;
            }
            self.host().sleep(LOOK).await;
        }
    }

    /// Whether a client has died whose deltas are not all here.
    pub(crate) fn is_owed_deltas(&self, maps: &Maps) -> bool {
        let replayed = self.replayed.lock().expect("nobody panics over replays");
        let is_dead = |log| maps.logs[&log].writer == Writer::Client;
        maps.dead_logs().any(is_dead) || maps.logs.keys().any(|&log| replayed.may_lack(maps, log))
    }

    /// Replays all sealed client logs that were not yet.
    pub(crate) async fn replay_sealed(&self) -> Result<(), StartError> {
        // Slots that arrive meanwhile would be missed.
        let _one = self.replaying.lock().await;
        let maps = self.cluster.maps();
        for (&log, entry) in &maps.logs {
            let LogState::Sealed(length) = entry.state else { continue };
            let lacks = self.replayed.lock().expect("nobody panics over replays").may_lack(&maps, log);
            if lacks {
                self.replay(log, length).await?;
                self.replayed.lock().expect("nobody panics over replays").0.insert(log);
            }
        }
        Ok(())
    }

    async fn replay(&self, log: LogId, length: Position) -> Result<(), StartError> {
        let from = recovery::newest_mark(&self.cluster, log).await?;
        let mut records = Vec::new();
        let mut keep = |scanned: recovery::Scanned| {
            if scanned.header.kind == RecordKind::Deltas {
                records.push((scanned.body.position(), scanned.bytes));
            }
        };
        recovery::scan(&self.reader, log, from..length, Bodies::NotOfData, &mut keep).await?;
        for (position, body) in records {
            let list: Vec<Delta> =
                postcard::from_bytes(&body).map_err(|_| StartError::Damaged("a record of deltas".into()))?;
            let list = list.into_iter().filter(|delta| self.table.lock(delta.inode.slot()).is_some()).collect();
            let operation = Operation::Asked(ManagerRequest::Deltas(Deltas { log, position, list }));
            self.perform(self.host().node().0, operation, Durability::Replicated).await?;
        }
        Ok(())
    }
}
