//! Handing slots over to another manager while both live (`docs/decisions/0020-slots-are-handed-over.md`). This file awaits.
//!
//! ```text
//!   ours ──images written, while we answer──> ours ──taken out of the table──> nobody's
//!     ^                                                                          │ images, table: `disk`
//!     └───────── the maps say that something else changed first ────────────────┴──> the next one's, as the maps say
//! ```
//!
//! Invariants
//! 1. From when a slot is taken out of the table until the maps tell whose it is, nobody answers for it.
//! 2. The maps name the next manager only together with a table that is `disk` and lacks nothing of the slots: so the next one
//!    needs no journal of ours, and our log goes on.
//! 3. A proposal whose answer is lost may yet take effect for as long as the maps are at its epoch, and no longer.
//! 4. While slots are out of the table no round of images begins, no deltas of dead clients are replayed: neither could know
//!    of them when they come back.

use std::collections::BTreeMap;
use std::pin::pin;
use std::sync::atomic::Ordering;
use std::time::Duration;

use futures_util::future::{Either, select};
use host::NodeId;
use protocol::address::LogAddress;
use protocol::id::{LogId, MapEpoch, SlotId};
use protocol::manager::{Answer, ManagerError, ManagerRequest};
use protocol::maps::{Maps, SlotEntry};
use protocol::record::RecordKind;
use protocol::registry::{RegistryError, RegistryRequest};
use protocol::storage::Durability;

use crate::image::{HandedSlot, Handover, Image, encode};
use crate::journal;
use crate::manager::{Manager, failed};
use crate::state::SlotState;
use crate::transaction::Changes;

/// Slots that are handed over at once: as many as keep what they hold from being answered for about as long as an fsync takes
/// and the registry needs to agree twice.
const AT_ONCE: u16 = 256;
/// How long nobody may answer for slots before they are ours again, as long as nothing is proposed.
const FROZEN_MAX: Duration = Duration::from_secs(1);
/// How often the next one is asked whether it has what it was given before, and how long is waited in between.
const LOOKS: u32 = 40;
const LOOK: Duration = Duration::from_millis(25);
/// How long one answer to that may take.
const LOOK_MAX: Duration = Duration::from_secs(1);
/// Between two proposals to the registry.
const PAUSE: Duration = Duration::from_millis(10);

/// Slots on their way to another node.
struct Leaving {
    first: u16,
    last: u16,
    to: u32,
}

impl Leaving {
    /// The first slots of a node that are wished elsewhere, not more than are handed over at once.
    fn next(maps: &Maps, node: u32) -> Option<Leaving> {
        let (&first, wish) = maps.wishes.iter().find(|(_, wish)| wish.from == node)?;
        Some(Leaving { first, last: wish.last.min(first.saturating_add(AT_ONCE - 1)), to: wish.to })
    }

    fn slots(&self) -> Vec<SlotId> {
        (self.first..=self.last).map(SlotId).collect()
    }

    /// Whether all of them are a node's, as they were when it took them over: no other had them since, for then its log would
    /// not be listed with them.
    fn are_still_of(&self, maps: &Maps, node: u32, log: LogId) -> bool {
        let is_still = |entry: &SlotEntry| entry.node == node && entry.logs.iter().any(|listed| listed.log == log);
        self.slots().iter().all(|slot| is_still(maps.slot(slot.0)))
    }
}

/// Whose the slots are, after the maps were asked.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Whose {
    Ours,
    Others,
    /// Nobody can tell, and this manager stops.
    Unknown,
}

impl Manager {
    /// Hands over what is wished elsewhere, as far as whoever is to have it is ready.
    pub(crate) async fn hand_over(&self) {
        while let Some(leaving) = Leaving::next(&self.cluster.maps(), self.host().node().0) {
            let may_go = !self.arriving.load(Ordering::Acquire) && !self.stopping.load(Ordering::Relaxed);
            // What fails is tried again: the wish stands.
            if !may_go || !self.is_awaited(&leaving).await || !matches!(self.hand(&leaving).await, Ok(Whose::Others)) {
                return;
            }
        }
    }

    /// Whether slots are on their way here: a round of images would only be in their way.
    pub(crate) fn is_receiving(&self) -> bool {
        let node = self.host().node().0;
        self.cluster.maps().wishes.values().any(|wish| wish.to == node)
    }

    /// Whether the next manager lives, knows the maps that we know, and has all the slots that they give it.
    async fn is_awaited(&self, leaving: &Leaving) -> bool {
        for _ in 0..LOOKS {
            let question = ManagerRequest::DeadStripes(self.cluster.maps().view(), Vec::new());
            let asked = pin!(self.call_manager(NodeId(leaving.to), question));
            match select(asked, pin!(self.host().sleep(LOOK_MAX))).await {
                Either::Left((Ok(Answer::Stripes(_)), _)) => return true,
                Either::Left((Err(ManagerError::NotMine), _)) => self.host().sleep(LOOK).await,
                _ => return false,
            }
        }
        false
    }

    async fn hand(&self, leaving: &Leaving) -> Result<Whose, ManagerError> {
        let slots = leaving.slots();
        let _one = self.imaging.lock().await;
        if !slots.iter().all(|&slot| self.manages(slot)) {
            return Ok(Whose::Ours);
        }
        self.image_ahead(&slots).await?;
        let _still = self.replaying.lock().await;
        let mut states = self.table.give_up(&slots);
        self.tokens_moved.notify();
        let written = self.write_handover_soon(&mut states).await;
        let whose = match &written {
            Ok(table) => self.propose(leaving, *table).await,
            Err(_) => Whose::Ours,
        };
        match whose {
            Whose::Ours => self.table.adopt(states),
            Whose::Others => self.leave(&slots),
            Whose::Unknown => self.unsure.store(true, Ordering::Relaxed),
        }
        written.map(|_| whose)
    }

    async fn write_handover_soon(&self, states: &mut [SlotState]) -> Result<LogAddress, ManagerError> {
        let writing = pin!(self.write_handover(states));
        match select(writing, pin!(self.host().sleep(FROZEN_MAX))).await {
            Either::Left((written, _)) => written,
            Either::Right(_) => Err(ManagerError::Failed("the images of slots take too long".into())),
        }
    }

    /// Writes what the next manager needs, durably.
    async fn write_handover(&self, states: &mut [SlotState]) -> Result<LogAddress, ManagerError> {
        let replayed = self.replayed.lock().expect("nobody panics over replays").all_here(&self.cluster.maps());
        let mut handover = Handover { replayed, slots: Vec::new() };
        let mut images = BTreeMap::new();
        for state in states {
            let known = self.images.lock().expect("nobody panics over images").image(state.id).cloned();
            let changes = state.records.changes();
            let image = match known {
                None if changes == 0 => continue,
                Some(image) if image.changes == changes => image,
                _ => self.image_of(state).await?,
            };
            let intentions = self.put_intentions(state.id, state.intentions.records())?;
            handover.slots.push(HandedSlot { slot: state.id, index: image.index.clone(), intentions });
            images.insert(state.id, image);
        }
        let table = self.put(RecordKind::Handover, &encode(&handover)).map_err(failed)?;
        // Also what was acknowledged before it was `disk` is in the images, and so `disk` by this.
        self.commit(self.writer.end(), Durability::Disk).await?;
        self.images.lock().expect("nobody panics over images").supplement(images);
        Ok(table)
    }

    async fn image_of(&self, state: &mut SlotState) -> Result<Image, ManagerError> {
        let (changes, copies) = (state.records.changes(), state.records.copies());
        let records = &mut state.records;
        self.write_image(changes, copies, |low, version, address| records.stored(low, version, address)).await
    }

    fn put_intentions(&self, slot: SlotId, records: Changes) -> Result<Vec<LogAddress>, ManagerError> {
        let bodies = records.into_iter().map(|(key, value)| journal::encode(&[(slot, [(key, value)].into())]));
        bodies.map(|body| self.put(RecordKind::Handover, &body).map_err(failed)).collect()
    }

    /// Has the maps name the next manager. Comes back when they tell whose the slots are. Others may have had them meanwhile,
    /// though they are ours again: then they are not as they were left, and are taken over anew.
    async fn propose(&self, leaving: &Leaving, table: LogAddress) -> Whose {
        let (own, log) = (self.host().node().0, self.writer.log());
        let mut proposed_at = MapEpoch(0);
        loop {
            let asked = self.cluster.refresh().await;
            let maps = self.cluster.maps();
            if !leaving.are_still_of(&maps, own, log) {
                return Whose::Others;
            }
            let is_over = maps.epoch > proposed_at;
            if is_over && !maps.storing().any(|node| node == leaving.to) {
                return Whose::Ours;
            }
            if asked.is_err() && self.stopping.load(Ordering::Relaxed) {
                return if is_over { Whose::Ours } else { Whose::Unknown };
            }
            let (first, last, node, epoch) = (leaving.first, leaving.last, leaving.to, maps.epoch);
            let (base, logs) = (Some(table), Vec::new());
            let request = RegistryRequest::SetSlots { first, last, node, base, logs, epoch: epoch.0 };
            proposed_at = epoch;
            match self.cluster.registry(request).await {
                Ok(_) => return Whose::Others,
                Err(RegistryError::Lost | RegistryError::Unavailable(_) | RegistryError::Elsewhere(_)) => {
                    self.host().sleep(PAUSE).await;
                }
                // The registry knows why this cannot be; nothing has changed by it.
                Err(
                    RegistryError::Unknown(_)
                    | RegistryError::Over(..)
                    | RegistryError::Begun(..)
                    | RegistryError::Removed(_)
                    | RegistryError::InUse(_)
                    | RegistryError::Used
                    | RegistryError::Wrong(_),
                ) => return Whose::Ours,
            }
        }
    }
}
