//! Operations over slots of several managers, on the side of those who have the slots: shows records, holds parts, learns
//! outcomes, and asks for those that nobody tells. This file awaits; it decides nothing.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::sync::atomic::Ordering;

use futures_util::future::join_all;
use host::NodeId;
use protocol::id::SlotId;
use protocol::intention::{Fetch, Fetched, IntentionId, Keep, Outcome, Prepare, Purpose, Settle};
use protocol::manager::{Answer, ManagerAnswer, ManagerError, ManagerRequest};
use protocol::storage::Durability;

use crate::calls::WAIT_MAX;
use crate::manager::Manager;
use crate::ops::{Done, Operation};
use crate::placement::OpenSlots;
use crate::state::SlotState;
use crate::takeover::runs;

/// Outcomes that are asked for and told at once.
const AT_ONCE: usize = 64;

/// Intentions that are not over in slots of ours.
#[derive(Default)]
struct Open {
    /// Parts held here, by intention: whose manager knows the outcome, and in which slots.
    held: BTreeMap<IntentionId, (SlotId, Vec<SlotId>)>,
    /// Intentions that took effect, and who may not know.
    decided: BTreeMap<IntentionId, (SlotId, Vec<SlotId>)>,
}

impl Manager {
    /// Answers another manager, or refuses while this one is starting.
    pub(crate) async fn answer_manager(&self, request: ManagerRequest) -> ManagerAnswer {
        let answer = match request {
            ManagerRequest::Fetch(fetch) => {
                self.check_ready(fetch.purpose)?;
                Answer::Fetched(self.fetch(fetch).await?)
            }
            ManagerRequest::Prepare(prepare) => {
                self.check_ready(prepare.purpose)?;
                Answer::Held(self.prepare(prepare).await?)
            }
            ManagerRequest::Admit(admission) => {
                self.check_ready(Purpose::Asked)?;
                self.make_way_here(&admission, self.host().now() + WAIT_MAX).await?;
                Answer::Done
            }
            ManagerRequest::Freshen(node, told) => {
                self.check_ready(Purpose::Asked)?;
                Answer::Attributes(self.freshen_for(node, told).await?)
            }
            ManagerRequest::Settle(settle) => Answer::Held(self.settle(settle).await?),
            ManagerRequest::Ended(intention, slot) => Answer::Ended(self.ended(intention, slot).await?),
            _ => return Err(ManagerError::Unsupported),
        };
        Ok(self.reply(answer))
    }

    /// Records of a slot of ours. Numbers that it gives need no journal record of their own on the disk: whoever uses one
    /// prepares a part here, behind it.
    pub(crate) async fn fetch(&self, fetch: Fetch) -> Result<Fetched, ManagerError> {
        let slot = fetch.slot;
        let operation = Operation::Asked(ManagerRequest::Fetch(fetch));
        let fetched = self.attempt(self.host().node().0, &operation).await?;
        self.await_safe(&[slot]).await?;
        match fetched {
            (Done::Answer(Answer::Fetched(fetched)), _) => {
                Ok(Fetched { life: self.writer.log(), epoch: self.cluster.maps().epoch, ..fetched })
            }
            (other, _) => unreachable!("records are fetched, not {other:?}"),
        }
    }

    async fn prepare(&self, prepare: Prepare) -> Result<bool, ManagerError> {
        if prepare.parts.iter().any(|part| part.life != self.writer.log()) {
            return Ok(false);
        }
        let keep = prepare.keep;
        let held = self.held(Operation::Asked(ManagerRequest::Prepare(prepare))).await?;
        if held && keep == Keep::Journal {
            // What was held already may yet be on its way to the disk.
            self.commit(self.writer.end(), Durability::Disk).await?;
        }
        Ok(held)
    }

    /// Takes in an outcome, durably. Returns whether the parts were held until now.
    pub(crate) async fn settle(&self, settle: Settle) -> Result<bool, ManagerError> {
        let held = self.held(Operation::Asked(ManagerRequest::Settle(settle))).await?;
        // An outcome that was there already may yet be on its way to the disk.
        self.commit(self.writer.end(), Durability::Disk).await?;
        Ok(held)
    }

    async fn held(&self, operation: Operation) -> Result<bool, ManagerError> {
        match self.perform(self.host().node().0, operation, Durability::Disk).await? {
            (Done::Answer(Answer::Held(held)), _) => Ok(held),
            (other, _) => unreachable!("parts are held or not, not {other:?}"),
        }
    }

    /// How an intention ended that a slot of ours coordinated. No record means undone, if nobody can be about to write it:
    /// not this manager, and no other that has the slot.
    async fn ended(&self, intention: IntentionId, slot: SlotId) -> Result<Option<Outcome>, ManagerError> {
        if !self.manages(slot) {
            return Err(ManagerError::NotMine);
        }
        if self.flights.contains(intention) {
            return Ok(None);
        }
        let done = self.table.with(slot, |state| state.intentions.decided().contains_key(&intention));
        if done.ok_or(ManagerError::NotMine)? {
            return Ok(Some(Outcome::Done));
        }
        if intention.log != self.writer.log() {
            let maps = self.cluster.newest().await.map_err(|error| ManagerError::Failed(error.to_string()))?;
            if maps.slot(slot.0).node != self.host().node().0 {
                return Err(ManagerError::NotMine);
            }
        }
        Ok(Some(Outcome::Undone))
    }

    /// Lets go of parts that were held in memory; whether all were held until now.
    pub(crate) async fn release_all(&self, intention: IntentionId, slots: Vec<SlotId>) -> bool {
        let maps = self.cluster.maps();
        let runs = slots.chunk_by(|a, b| maps.slot(a.0).node == maps.slot(b.0).node);
        let released = runs.map(|run| {
            let node = NodeId(maps.slot(run[0].0).node);
            let settle = Settle { intention, slots: run.to_vec(), outcome: Outcome::Undone };
            async move { self.call_manager(node, ManagerRequest::Settle(settle)).await }
        });
        join_all(released).await.into_iter().all(|answer| matches!(answer, Ok(Answer::Held(true))))
    }

    /// Tells and asks for outcomes until all know, and follows the manager map.
    pub(crate) async fn keep_settling(self: Arc<Self>) {
        let mut before: Option<BTreeSet<IntentionId>> = None;
        while !self.stopping.load(Ordering::Relaxed) {
            // Slots that come or go bring a placement that knows of no others.
            self.table.placement().learn(OpenSlots::new(runs(&self.cluster.maps())));
            self.moments.tidy(self.host().now());
            let open = self.open();
            let ids = open.held.keys().chain(open.decided.keys()).copied().collect();
            // What began of late ends by itself; at a start, nothing does.
            self.settle_old(open, before.as_ref()).await;
            before = Some(ids);
            self.host().sleep(self.options.flush_interval).await;
        }
    }

    async fn settle_old(self: &Arc<Self>, open: Open, before: Option<&BTreeSet<IntentionId>>) {
        let old = |id: &IntentionId| before.is_none_or(|before| before.contains(id));
        let decided: Vec<_> = open.decided.into_iter().filter(|(id, _)| old(id)).collect();
        if !decided.is_empty() && self.commit(self.writer.end(), Durability::Disk).await.is_ok() {
            for some in decided.chunks(AT_ONCE) {
                let told = some.iter().map(|(id, (coordinator, slots))| {
                    self.flights.end(*id);
                    self.clone().tell_done(*coordinator, *id, slots.clone())
                });
                join_all(told).await;
            }
        }
        let held: Vec<_> = open.held.into_iter().filter(|(id, _)| old(id)).collect();
        for some in held.chunks(AT_ONCE) {
            join_all(some.iter().map(|(id, (coordinator, slots))| self.ask_end(*id, *coordinator, slots))).await;
        }
    }

    /// Asks for an outcome that nobody told, and takes it in.
    async fn ask_end(&self, intention: IntentionId, coordinator: SlotId, slots: &[SlotId]) {
        let ended = if self.manages(coordinator) {
            self.ended(intention, coordinator).await
        } else {
            let node = NodeId(self.cluster.maps().slot(coordinator.0).node);
            match self.call_manager(node, ManagerRequest::Ended(intention, coordinator)).await {
                Ok(Answer::Ended(outcome)) => Ok(outcome),
                Ok(_) => Ok(None),
                Err(error) => Err(error),
            }
        };
        match ended {
            // What fails is asked for again.
            Ok(Some(outcome)) => drop(self.settle(Settle { intention, slots: slots.to_vec(), outcome }).await),
            Ok(None) => {}
            Err(_) => drop(self.cluster.refresh().await),
        }
    }

    fn open(&self) -> Open {
        let mut open = Open::default();
        self.table.each_unsettled(|SlotState { id: slot, intentions, .. }| {
            for (id, coordinator) in intentions.held_for(self.writer.log()) {
                open.held.entry(id).or_insert((coordinator, Vec::new())).1.push(*slot);
            }
            open.decided.extend(intentions.decided().iter().map(|(id, slots)| (*id, (*slot, slots.clone()))));
        });
        open
    }

    fn check_ready(&self, purpose: Purpose) -> Result<(), ManagerError> {
        if self.is_ready() || purpose == Purpose::Starting { Ok(()) } else { Err(ManagerError::NotMine) }
    }
}
