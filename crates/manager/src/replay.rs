//! Deltas of clients that died: what their logs hold beyond *applied* (DESIGN §5, block maps and deltas).

use std::collections::BTreeSet;

use log::recovery::{self, DataBodies};
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

/// Which sealed logs this manager has all deltas of.
#[derive(Default)]
pub(crate) struct Replayed(BTreeSet<LogId>);

impl Replayed {
    /// Slots have arrived that have nothing of any.
    pub(crate) fn begin_again(&mut self) {
        self.0.clear();
    }

    /// Whether a log is sealed, and its deltas may not all be here.
    pub(crate) fn may_lack(&self, maps: &Maps, log: LogId) -> bool {
        let sealing = |entry: &protocol::maps::LogEntry| !matches!(entry.state, LogState::Open(_));
        maps.logs.get(&log).is_some_and(|entry| entry.writer == Writer::Client && sealing(entry))
            && !self.0.contains(&log)
    }
}

impl Manager {
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
        recovery::scan(&self.reader, log, from..length, DataBodies::Skip, &mut keep).await?;
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
