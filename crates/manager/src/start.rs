//! The beginning of a manager's life, and what goes on from then: following the manager map, flushing, images, and what was
//! left for later. Awaits.

use std::collections::{BTreeMap, BTreeSet};
use std::pin::pin;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use futures_util::future::select;
use host::{Moment, Port};
use log::{Cluster, LogError, LogReader, LogWriter, ReadError, SealError, WriterOptions};
use protocol::id::{InodeId, LogId, SlotId, StripeNumber};
use protocol::manager::{MANAGER_PORT, ManagerError};
use protocol::maps::Writer;
use protocol::registry::RegistryError;
use protocol::storage::{Durability, Room};

use crate::encoding::Damaged;
use crate::manager::{Door, Manager, ManagerOptions};
use crate::ops::{Done, Operation, Told};
use crate::sealing::seal;

/// A journal that did not grow for so many looks is idle, and worth covering from so many bytes on.
const IDLE_LOOKS: u32 = 10;
const IDLE_BYTES_MIN: u64 = 1 << 20;
/// Between two rounds of images, however much there is to write: what changes at once is written once.
const ROUND_PAUSE: Duration = Duration::from_millis(100);
/// Until what could not be freed is tried again: whoever was needed for that is back, or others have what it had.
const PUT_OFF: Duration = Duration::from_secs(30);
/// Journal and pages that may wait in memory for targets.
const WAITING_MAX: usize = 16 << 20;

/// Why a manager did not start.
#[derive(Debug, thiserror::Error)]
pub enum StartError {
    /// An earlier log could not be sealed.
    #[error("log {} cannot be sealed: {error}", .log.0)]
    Seal {
        /// The log.
        log: LogId,
        /// Why.
        error: SealError,
    },
    /// The own log could not be opened or written.
    #[error("the manager's log: {0}")]
    Log(#[from] LogError),
    /// An earlier log could not be read.
    #[error("an earlier log: {0}")]
    Read(#[from] ReadError),
    /// What no image covers is never deleted; but the targets say that they have none of it.
    #[error(
        "stripe {} of log {}, a journal that is still needed, is on too few targets: more of them lost it than \
         redundancy covers. Put back what was taken away and start again; nothing that is there was given up", .stripe.0, .log.0
    )]
    Lost {
        /// The journal.
        log: LogId,
        /// What is gone of it.
        stripe: StripeNumber,
    },
    /// What an earlier log holds is not what a manager wrote.
    #[error("damaged: {0}")]
    Damaged(String),
    /// The registry refused.
    #[error("the registry: {0}")]
    Registry(#[from] RegistryError),
    /// An operation of the start itself failed.
    #[error("the first operations: {0}")]
    Operation(#[from] ManagerError),
}

impl From<Damaged> for StartError {
    fn from(damaged: Damaged) -> StartError {
        StartError::Damaged(damaged.to_string())
    }
}

impl Manager {
    /// Takes over the slots that the manager map gives to this node, and answers on the manager's port from then on.
    pub async fn start(
        cluster: Cluster,
        reader: LogReader,
        options: ManagerOptions,
    ) -> Result<Arc<Manager>, StartError> {
        // Whoever asks waits for what is read and written here, and it is little beside what files hold.
        let (cluster, reader) = (cluster.urgently(), reader.urgently());
        seal_own(&cluster, cluster.host().node().0, options.kept).await?;
        let waiting = WriterOptions { bytes_waiting_max: WAITING_MAX, ..WriterOptions::default() };
        let writer = LogWriter::open(cluster.clone(), Writer::Manager, Room::Journal, waiting).await?;
        reader.attach(&writer);
        let manager = Arc::new_cyclic(|me| Manager::new(cluster, reader, writer, options, me.clone()));
        // Outcomes are asked for and told from the first moment: what is replayed may wait for one, as others may for ours.
        manager.host().listen(Port(MANAGER_PORT), Arc::new(Door(manager.clone())));
        let settling = manager.clone();
        manager.host().spawn(async move { settling.keep_settling().await });
        let sealing = manager.clone();
        manager.host().spawn(async move { sealing.keep_sealing().await });
        manager.follow_map().await?;
        manager.begin().await?;
        Ok(manager)
    }

    /// Stores everything and ends the log. The parts that ask must be gone by then.
    pub async fn stop(&self) {
        self.stopping.store(true, Ordering::Relaxed);
        // What fails here is recovered from the journal at the next start.
        let _ = self.checkpoint().await;
        let _ = self.shorten_lists().await;
        let _ = self.writer.close().await;
    }

    async fn begin(self: &Arc<Self>) -> Result<(), StartError> {
        let node = self.host().node().0;
        if self.table.lock(InodeId::ROOT.slot()).is_some() {
            let (uid, gid) = self.options.root_owner;
            self.perform(node, Operation::MakeRoot { uid, gid }, Durability::Disk).await?;
        }
        self.ready.store(true, Ordering::Release);
        let flushing = self.clone();
        self.host().spawn(async move { flushing.keep_flushing().await });
        let tidying = self.clone();
        self.host().spawn(async move { tidying.keep_tidying().await });
        let imaging = self.clone();
        self.host().spawn(async move { imaging.keep_imaging().await });
        let following = self.clone();
        self.host().spawn(async move { following.keep_following().await });
        Ok(())
    }

    /// Brings the journal to disk at least every so often.
    async fn keep_flushing(self: Arc<Self>) {
        while !self.stopping.load(Ordering::Relaxed) {
            self.host().sleep(self.options.flush_interval).await;
            let end = self.writer.end();
            if self.writer.reached(Durability::Disk) < end {
                // A failure shows at the next operation; this loop tries again.
                let _ = self.commit(end, Durability::Disk).await;
            }
        }
    }

    /// Does what was left for later, and what arrived slots ask for. It may wait for other managers; nothing waits for it.
    async fn keep_tidying(self: Arc<Self>) {
        let mut put_off = PutOff::default();
        while !self.stopping.load(Ordering::Relaxed) {
            self.host().sleep(self.options.flush_interval).await;
            let later = std::mem::take(&mut *self.later.lock().expect("nobody panics over what is to be done"));
            self.do_later(later, &mut put_off).await;
            self.tidy_arrived(&mut put_off).await;
            let due = put_off.take_due(self.host().now());
            self.free_orphans(&due, &mut put_off).await;
        }
    }

    /// Keeps journal and dirty pages within bounds.
    async fn keep_imaging(self: Arc<Self>) {
        let mut quiet = Quiet::default();
        while !self.stopping.load(Ordering::Relaxed) {
            let crowded = self.crowded.listen();
            // A round after slots arrived makes their earlier logs superfluous, and one after a replay what was replayed.
            let journal = self.journal_bytes.load(Ordering::Relaxed);
            let rolls = self.images.lock().expect("nobody panics over images").rolls_others();
            let is_untold = self.replayed.lock().expect("nobody panics over replays").is_untold(&self.cluster.maps());
            let is_exposed = self.is_exposed();
            let is_in_the_way = self.is_receiving() || self.has_just_received();
            let done = match ((rolls || is_untold) && !is_in_the_way, quiet.is_idle(journal) || is_exposed) {
                (true, _) => self.checkpoint().await,
                (false, true) => self.checkpoint_idle().await,
                (false, false) => self.checkpoint_if_due(is_in_the_way).await,
            };
            if done.is_ok() {
                let _ = self.shorten_lists().await;
            }
            let _ = self.replay_sealed().await;
            self.host().sleep(ROUND_PAUSE).await;
            let rest = self.options.flush_interval.saturating_sub(ROUND_PAUSE);
            select(crowded, pin!(self.host().sleep(rest))).await;
        }
    }

    /// Whether slots arrived a moment ago: whoever waited for them has their pages loaded now, and a round of images, which
    /// loads more of them and writes them all, would take the links from that.
    fn has_just_received(&self) -> bool {
        let now = self.host().now();
        self.untidy.lock().expect("nobody panics over arrivals").iter().any(|(due, _)| *due > now)
    }

    /// Takes slots over, gives them up and hands them over as the maps say.
    async fn keep_following(self: Arc<Self>) {
        while !self.stopping.load(Ordering::Relaxed) {
            let newer = self.cluster.newer_maps();
            // What fails is tried again.
            if self.cluster.refresh().await.is_ok() {
                let _ = self.follow_map().await;
                self.forget_dead();
                self.hand_over().await;
            }
            select(pin!(newer), pin!(self.host().sleep(self.options.flush_interval))).await;
        }
    }

    /// Frees what slots brought along that nobody needs any more, once clients had the time to say what they hold open.
    async fn tidy_arrived(&self, put_off: &mut PutOff) {
        let due = {
            let mut untidy = self.untidy.lock().expect("nobody panics over arrivals");
            let now = self.host().now();
            let due = untidy.partition_point(|(due, _)| *due <= now);
            let later = untidy.split_off(due);
            std::mem::replace(&mut *untidy, later)
        };
        for (_, slots) in due {
            self.free_orphans(&slots, put_off).await;
            self.forget_applied(&slots).await;
        }
    }

    /// Finds inodes without a name that nobody holds open any more.
    async fn free_orphans(&self, slots: &[SlotId], put_off: &mut PutOff) {
        let node = self.host().node().0;
        for &slot in slots {
            match self.perform(node, Operation::Orphans(slot), Durability::Replicated).await {
                Ok((Done::Told(Told::Orphans(orphans)), _)) => {
                    for orphan in orphans.into_iter().take_while(|_| !self.has_just_arrived(slot)) {
                        self.do_later(vec![Operation::Reap(orphan)], put_off).await;
                    }
                }
                Ok(other) => unreachable!("orphans are told, and not {other:?}"),
                Err(_) => self.put_off(slot, put_off),
            }
        }
    }

    /// Whether a slot, perhaps one that was here before, arrived a moment ago: it is looked through once clients had the time
    /// to say what they hold open, and until then nothing there is an orphan for certain.
    fn has_just_arrived(&self, slot: SlotId) -> bool {
        // In this order: it waits among the untidy before it is no arrival any more.
        let arrives = self.arrivals.lock().expect("nobody panics over arrivals").contains(&slot);
        arrives || waits(&self.untidy.lock().expect("nobody panics over arrivals"), slot, self.host().now())
    }

    /// Drops what is known of the deltas of logs that the registry forgot.
    async fn forget_applied(&self, slots: &[SlotId]) {
        let maps = self.cluster.maps();
        let known: BTreeSet<LogId> = maps.logs.keys().copied().collect();
        for &slot in slots {
            let operation = Operation::Forget(slot, maps.next_log, known.clone());
            // What fails is tried at the next start.
            let _ = self.perform(self.host().node().0, operation, Durability::Replicated).await;
        }
    }

    async fn do_later(&self, operations: Vec<Operation>, put_off: &mut PutOff) {
        for operation in operations {
            let orphan = if let Operation::Reap(inode) = &operation { Some(inode.slot()) } else { None };
            let done = self.perform(self.host().node().0, operation, Durability::Replicated).await;
            // What fails stays an orphan, to be found again, or a large directory, until it grows.
            if let (Err(_), Some(slot)) = (done, orphan) {
                self.put_off(slot, put_off);
            }
        }
    }

    /// Orphans of a slot could not be freed: other managers may be needed for that, or targets. Whoever manages the slot by
    /// now finds them.
    fn put_off(&self, slot: SlotId, put_off: &mut PutOff) {
        if self.manages(slot) {
            put_off.note(slot, self.host().now());
        }
    }
}

/// Slots in which there are orphans that could not be freed, and when that is tried again.
#[derive(Default)]
struct PutOff(BTreeMap<SlotId, Moment>);

impl PutOff {
    fn note(&mut self, slot: SlotId, now: Moment) {
        self.0.insert(slot, now + PUT_OFF);
    }

    /// Those whose time has come.
    fn take_due(&mut self, now: Moment) -> Vec<SlotId> {
        let due: Vec<SlotId> = self.0.iter().filter(|(_, due)| **due <= now).map(|(&slot, _)| slot).collect();
        self.0.retain(|_, due| *due > now);
        due
    }
}

/// Whether the time of a slot lies ahead.
fn waits(untidy: &[(Moment, Vec<SlotId>)], slot: SlotId, now: Moment) -> bool {
    untidy.iter().any(|(due, slots)| *due > now && slots.contains(&slot))
}

/// Whether anything is added to the journal.
#[derive(Default)]
struct Quiet {
    bytes: u64,
    looks: u32,
}

impl Quiet {
    /// Looks again; true when so many bytes were added before, and none of late, that covering them is worth a round.
    fn is_idle(&mut self, bytes: u64) -> bool {
        self.looks = if bytes == self.bytes { self.looks + 1 } else { 0 };
        self.bytes = bytes;
        self.looks == IDLE_LOOKS && bytes >= IDLE_BYTES_MIN
    }
}

/// Seals what this node's earlier life wrote: whoever wrote there is dead, since we live. But for the log that its client
/// goes on with.
async fn seal_own(cluster: &Cluster, node: u32, kept: Option<LogId>) -> Result<(), StartError> {
    let maps = cluster.refresh().await?;
    for (&log, _) in maps.logs.iter().filter(|&(&log, entry)| entry.node == node && Some(log) != kept) {
        match seal(cluster, log).await {
            // Others have sealed it by now, and taken all that they needed.
            Err(StartError::Seal { error: SealError::Unknown(_), .. }) => {}
            sealed => drop(sealed?),
        }
    }
    cluster.refresh().await?;
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_could_not_be_freed_is_tried_again_once_and_later() {
        let (mut put_off, begun) = (PutOff::default(), Moment::default());
        put_off.note(SlotId(7), begun);
        put_off.note(SlotId(3), begun + PUT_OFF / 2);
        put_off.note(SlotId(7), begun + PUT_OFF / 4);
        let mut due = |share: u32| put_off.take_due(begun + PUT_OFF * share / 4);
        assert_eq!([4, 5, 5, 6, 60].map(|share| due(share).len()), [0, 1, 0, 1, 0]);
    }

    #[test]
    fn what_was_put_off_waits_for_the_clients_of_a_slot_that_left_and_came_back() {
        let (mut put_off, begun, slot) = (PutOff::default(), Moment::default(), SlotId(7));
        put_off.note(slot, begun);
        let arrived = begun + (PUT_OFF - Duration::from_secs(1));
        let due = arrived + Duration::from_secs(2);
        let untidy = [(begun, vec![slot]), (due, vec![SlotId(3), slot])];
        let mut frees = |now| put_off.take_due(now).into_iter().any(|slot| !waits(&untidy, slot, now));
        assert!(!frees(arrived) && !frees(begun + PUT_OFF) && !frees(due - Duration::from_millis(1)));
        assert!(!waits(&untidy, slot, due), "it is looked through as what arrived");
        assert!(!waits(&untidy, SlotId(4), arrived), "it has always been here");
    }

    #[test]
    fn a_journal_is_idle_once_each_time_it_comes_to_rest() {
        let mut quiet = Quiet::default();
        let mut idle = |bytes: u64, looks: u32| (0..looks).filter(|_| quiet.is_idle(bytes)).count();
        assert_eq!(idle(0, 50), 0, "nothing was added");
        assert_eq!(idle(IDLE_BYTES_MIN - 1, 50), 0, "not worth a round");
        assert_eq!((1..50).map(|more| idle(IDLE_BYTES_MIN + more, 1)).sum::<usize>(), 0, "it grows");
        assert_eq!(idle(9 * IDLE_BYTES_MIN, IDLE_LOOKS), 0, "it grew of late");
        assert_eq!(idle(9 * IDLE_BYTES_MIN, 50), 1);
        assert_eq!(idle(10 * IDLE_BYTES_MIN, 50), 1);
    }
}
