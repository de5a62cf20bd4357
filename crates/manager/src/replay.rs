//! The logs of nodes that died: one of those that live seals them, and every manager replays what clients' logs hold beyond
//! *applied* (DESIGN §5, block maps and deltas).

use std::collections::BTreeSet;
use std::pin::pin;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use futures_util::future::{join_all, select};
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
use crate::sealing::{heir, seal, seal_behind_other};
use crate::start::StartError;

/// How long the others are given to seal what is theirs to seal, and how often that is looked at.
const PATIENCE: Duration = Duration::from_secs(10);
const LOOK: Duration = Duration::from_millis(50);

/// Of which sealed logs of clients all slots here have all deltas. Before any slot is here, of all.
#[derive(Default)]
pub(crate) struct Replayed {
    here: Option<BTreeSet<LogId>>,
    /// Those of them of which whoever takes the slots over is told so, by what it takes them from. Of the others it reads the
    /// deltas once more, so nothing of these logs may be deleted: what deleting leaves over for a while on targets that did
    /// not hear of it may look like a loss, which nobody reads past.
    told: Option<BTreeSet<LogId>>,
}

impl Replayed {
    /// Slots have arrived that were taken from what tells that they have all of these.
    pub(crate) fn arrived(&mut self, of_arrived: &BTreeSet<LogId>) {
        for logs in [&mut self.here, &mut self.told] {
            logs.get_or_insert_with(|| of_arrived.clone()).retain(|log| of_arrived.contains(log));
        }
    }

    /// All slots here have all of this log.
    fn add(&mut self, log: LogId) {
        self.here.iter_mut().for_each(|here| {
            here.insert(log);
        });
    }

    /// A table of all slots here is durable, and tells that they have all of these.
    pub(crate) fn told(&mut self, told: BTreeSet<LogId>) {
        self.told = self.here.is_some().then_some(told);
    }

    /// Those of these logs of which all slots here have all.
    pub(crate) fn all_here(&self, maps: &Maps) -> BTreeSet<LogId> {
        self.here.iter().flatten().copied().filter(|log| maps.logs.contains_key(log)).collect()
    }

    /// Whether a table would tell of more logs than what the slots are taken over from.
    pub(crate) fn is_untold(&self, maps: &Maps) -> bool {
        self.all_here(maps).iter().any(|&log| self.may_be_read(maps, log))
    }

    /// Whether a log is sealed, and its deltas may not all be here.
    fn may_lack(&self, maps: &Maps, log: LogId) -> bool {
        is_sealed_client(maps, log) && self.here.as_ref().is_some_and(|here| !here.contains(&log))
    }

    /// Whether a log is sealed, and its deltas are read by us or by whoever takes our slots over.
    pub(crate) fn may_be_read(&self, maps: &Maps, log: LogId) -> bool {
        is_sealed_client(maps, log) && self.told.as_ref().is_some_and(|told| !told.contains(&log))
    }
}

/// Whether nothing is added any more to a log that may hold deltas.
fn is_sealed_client(maps: &Maps, log: LogId) -> bool {
    let entry = maps.logs.get(&log);
    entry.is_some_and(|entry| entry.writer == Writer::Client && !matches!(entry.state, LogState::Open(_)))
}

impl Manager {
    /// Seals the logs of nodes that died, each as soon as it is ours to seal: it may have been another's, who has died too.
    /// Nothing waits here, and no log for another that takes long.
    pub(crate) async fn keep_sealing(self: Arc<Self>) {
        let node = self.host().node().0;
        while !self.stopping.load(Ordering::Relaxed) {
            let newer = self.cluster.newer_maps();
            let maps = self.cluster.refresh().await;
            for log in maps.iter().flat_map(|maps| maps.dead_logs().filter(|&log| heir(maps, log) == Some(node))) {
                if self.sealing.lock().expect("nobody panics over logs").insert(log) {
                    let sealing = self.clone();
                    self.host().spawn(async move {
                        // What fails is tried again.
                        let _ = seal(&sealing.cluster, log).await;
                        sealing.sealing.lock().expect("nobody panics over logs").remove(&log);
                    });
                }
            }
            select(pin!(newer), pin!(self.host().sleep(self.options.flush_interval))).await;
        }
    }

    /// Waits until the logs of all dead clients are sealed; seals those itself that nobody does in time.
    pub(crate) async fn await_dead(&self) -> Result<(), StartError> {
        let patient_until = self.host().now() + PATIENCE;
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
                self.replayed.lock().expect("nobody panics over replays").add(log);
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
