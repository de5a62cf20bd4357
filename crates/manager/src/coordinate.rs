//! Operations over slots of several managers, on the side of the coordinator (DESIGN §5; Slice 3.3.2).
//!
//! 1. *Plan*: the operation runs over what was fetched, again and again until it lacks nothing.
//! 2. *Hold*: the parts are prepared in ascending order of slots; the own ones, in memory, take their place among them.
//! 3. *Decide*: one journal record, `disk` before anybody hears of it.
//! 4. *Tell*: in the background, until all know.
//!
//! What changes nothing and was seen in one moment needs the plan alone. Clients that hold tokens against the operation are
//! called back while nothing is held; whoever prepares or decides then looks again. This file awaits; it decides nothing.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use futures_util::future::join_all;
use host::{Address, Moment, NodeId, Port};
use protocol::address::Position;
use protocol::file::Time;
use protocol::id::SlotId;
use protocol::intention::{
    Admission, Fetch, Fetched, IntentionId, Keep, Need, Outcome, Part, Prepare, Purpose, Settle,
};
use protocol::manager::{Answer, MANAGER_PORT, ManagerAnswer, ManagerError, ManagerRequest};
use protocol::maps::Maps;
use protocol::storage::Durability;

use crate::attempt::Sketch;
use crate::flight::Flight;
use crate::late::Premise;
use crate::manager::Manager;
use crate::needs;
use crate::ops::{self, Decide, Done, Operation, Told};
use crate::placement::Placement;
use crate::snapshot::{self, Snapshots, Wish};
use crate::transaction::Context;

/// How long an operation is tried: then its call fails (DESIGN §13, promise 3).
const PATIENCE: Duration = Duration::from_secs(10);
/// Between two attempts at an operation that others came in between of: at first, and at most.
const PAUSE_MIN: Duration = Duration::from_micros(200);
const PAUSE_MAX: Duration = Duration::from_millis(50);
/// Rounds of fetching that one plan takes: more than a path has directories.
const ROUNDS_MAX: u32 = 20_000;

/// Why an attempt came to nothing.
enum Trouble {
    /// Something changed meanwhile: at once again.
    Changed,
    /// An audit looks at all slots: again when it has seen them.
    Audited,
    /// Clients hold what stands against it: again when they gave that up.
    Held(Admission),
    /// A manager is away, or a slot is between two managers: again with newer maps.
    Away(String),
    /// No.
    Refused(ManagerError),
}

/// Where a plan leads.
struct Plan {
    done: Result<Done, ManagerError>,
    parts: Vec<Part>,
    /// All that was seen held in one moment, if it still holds in the own slots.
    one_moment: bool,
    /// The slot that tells the outcome, and its stay here.
    coordinator: (SlotId, u64),
    /// The slots that were here when it began. One that went since fails what counts on it.
    mine: Arc<Placement>,
    /// What clients must not hold against it.
    admission: Admission,
    /// What the operation rests on.
    premise: Option<Premise>,
}

/// What was fetched, and in which order.
#[derive(Default)]
struct Gathered {
    snapshots: Snapshots,
    foreign: u32,
    own_after_foreign: bool,
}

impl Manager {
    /// Carries out an operation, or a step of it, over slots of several managers. What changed is `disk` then.
    pub(crate) async fn span(
        &self,
        node: u32,
        operation: &Operation,
    ) -> Result<(Done, Option<Position>), ManagerError> {
        let deadline = self.host().now() + PATIENCE;
        let mut pause = PAUSE_MIN;
        loop {
            let failed = |problem| ManagerError::Failed(format!("an operation over several managers: {problem}"));
            let trouble = match self.try_to_span(node, operation).await {
                Ok(done) => return Ok(done),
                Err(Trouble::Refused(error)) => return Err(error),
                Err(Trouble::Held(admission)) => {
                    // Nothing is held by now. Who does not give up, or cannot be asked, is met again in the next round.
                    self.make_way(&admission, deadline).await;
                    ManagerError::Held
                }
                Err(Trouble::Audited) => failed("an audit of all slots keeps it waiting".to_owned()),
                Err(Trouble::Changed) => failed("others change the same all the time".to_owned()),
                Err(Trouble::Away(problem)) => {
                    // A registry that does not answer is met again in the next round.
                    let _ = self.cluster.refresh().await;
                    failed(problem)
                }
            };
            if self.host().now() >= deadline {
                return Err(trouble);
            }
            let share = self.host().random() % 1024;
            self.host().sleep(pause * share as u32 / 1024).await;
            pause = (pause * 2).min(PAUSE_MAX);
        }
    }

    async fn try_to_span(&self, node: u32, operation: &Operation) -> Result<(Done, Option<Position>), Trouble> {
        let mine = self.table.placement();
        let not_mine = Trouble::Refused(ManagerError::NotMine);
        let Some(coordinator) = ops::coordinator(operation, |slot| mine.manages(slot)) else { return Err(not_mine) };
        let Some(stay) = self.table.with(coordinator, |state| state.stay) else { return Err(not_mine) };
        let context = Context { now: Time(self.host().wall().0), node };
        let plan = self.plan(operation, mine, (coordinator, stay), context).await?;
        let admission = plan.admission.clone();
        match self.carry_out(plan).await {
            Err(Trouble::Refused(ManagerError::Held)) => Err(Trouble::Held(admission)),
            outcome => outcome,
        }
    }

    async fn carry_out(&self, plan: Plan) -> Result<(Done, Option<Position>), Trouble> {
        let ((coordinator, stay), node) = (plan.coordinator, plan.admission.node);
        let mut flight = Flight::begin(self);
        // An open file is remembered where its inode lives: that alone needs nobody else.
        let mine = plan.mine.clone();
        let tells = |part: &Part| part.changes_nothing() || mine.manages(part.slot) && part.changes.is_empty();
        let keep = if plan.parts.iter().all(tells) { Keep::Memory } else { Keep::Journal };
        // Asked after the flight began: an audit that holds operations later waits for it.
        if keep == Keep::Journal && self.moments.is_held(self.host().now()) {
            return Err(Trouble::Audited);
        }
        if keep == Keep::Journal || !plan.one_moment {
            self.hold(&mut flight, keep, &plan).await?;
        }
        let (own, others): (Vec<Part>, Vec<Part>) = plan.parts.into_iter().partition(|part| mine.manages(part.slot));
        let others: Vec<SlotId> = match keep {
            Keep::Memory => Vec::new(),
            Keep::Journal => others.into_iter().map(|part| part.slot).collect(),
        };
        let (intention, admission, premise) = (flight.intention(), plan.admission, plan.premise);
        let decide = Decide { intention, coordinator, stay, parts: own, others: others.clone(), admission, premise };
        let (done, end) = self.attempt(node, &Operation::Decide(decide)).await.map_err(Trouble::Refused)?;
        if !matches!(done, Done::Told(Told::Decided(true))) {
            return Err(Trouble::Changed);
        }
        match keep {
            Keep::Memory => {
                if !self.release_all(flight.intention(), flight.take_others()).await {
                    return Err(Trouble::Changed);
                }
            }
            Keep::Journal => {
                flight.decided();
                self.commit(end.unwrap_or_else(|| self.writer.end()), Durability::Disk)
                    .await
                    .map_err(Trouble::Refused)?;
                flight.durable(coordinator, others);
            }
        }
        plan.done.map(|done| (done, end)).map_err(Trouble::Refused)
    }

    /// Runs the operation over what is fetched until it lacks nothing.
    async fn plan(
        &self,
        operation: &Operation,
        mine: Arc<Placement>,
        coordinator: (SlotId, u64),
        context: Context,
    ) -> Result<Plan, Trouble> {
        let mut gathered = Gathered::default();
        for _ in 0..ROUNDS_MAX {
            match self.table.sketch(operation, context, &gathered.snapshots) {
                Sketch::Whole(done, parts) => {
                    let one_moment = gathered.foreign <= 1 && !gathered.own_after_foreign;
                    let admission = needs::of_span(operation, &parts, context.node);
                    let premise = Premise::of(operation);
                    return Ok(Plan { done, parts, one_moment, coordinator, mine, admission, premise });
                }
                Sketch::Lacking(wishes) => self.gather(&mut gathered, &mine, &wishes).await?,
            }
        }
        Err(Trouble::Changed)
    }

    /// Fetches what is wished for: from the own slots first, so that what is there lies before the others' moment.
    async fn gather(&self, gathered: &mut Gathered, mine: &Placement, wishes: &[Wish]) -> Result<(), Trouble> {
        let requests = snapshot::requests(wishes, self.purpose());
        let (own, foreign): (Vec<Fetch>, Vec<Fetch>) = requests.into_iter().partition(|it| mine.manages(it.slot));
        gathered.own_after_foreign |= gathered.foreign > 0 && !own.is_empty();
        for fetch in own {
            let slot = fetch.slot;
            let fetched = self.fetch(fetch).await.map_err(Trouble::Refused)?;
            self.keep(gathered, slot, fetched)?;
        }
        gathered.foreign += foreign.len() as u32;
        let asked = join_all(foreign.into_iter().map(|fetch| async move {
            let slot = fetch.slot;
            (slot, self.ask_slot(slot, ManagerRequest::Fetch(fetch)).await)
        }));
        let mut epoch = self.cluster.maps().epoch;
        for (slot, answer) in asked.await {
            match answer? {
                Answer::Fetched(fetched) => {
                    epoch = epoch.max(fetched.epoch);
                    self.keep(gathered, slot, fetched)?;
                }
                other => return Err(Trouble::Away(format!("a manager answered with {other:?}"))),
            }
        }
        // What somebody else does not have any more it may have forgotten for what it alone knows of a log.
        let is_new = |maps: Result<Arc<Maps>, _>| maps.is_ok_and(|maps| maps.epoch >= epoch);
        let knows = self.cluster.maps().epoch >= epoch
            || is_new(self.cluster.refresh().await)
            || is_new(self.cluster.newest().await);
        if knows { Ok(()) } else { Err(Trouble::Away("others have newer maps".into())) }
    }

    fn keep(&self, gathered: &mut Gathered, slot: SlotId, fetched: Fetched) -> Result<(), Trouble> {
        if gathered.snapshots.take_in(slot, fetched) { Ok(()) } else { Err(Trouble::Changed) }
    }

    /// Has all parts held, in ascending order of slots; those of one manager that lie side by side at once.
    async fn hold(&self, flight: &mut Flight<'_>, keep: Keep, plan: &Plan) -> Result<(), Trouble> {
        let (parts, (coordinator, _)) = (&plan.parts, plan.coordinator);
        assert!(parts.is_sorted_by_key(|part| part.slot), "in ascending order none wait in a circle");
        let maps = self.cluster.maps();
        let owner = |part: &Part| if plan.mine.manages(part.slot) { None } else { Some(maps.slot(part.slot.0).node) };
        for run in parts.chunk_by(|a, b| owner(a) == owner(b)) {
            let (intention, purpose) = (flight.intention(), self.purpose());
            let prepare = |keep| {
                let (parts, mut admission) = (run.to_vec(), plan.admission.clone());
                admission.needs.retain(|need| parts.iter().any(|part| part.slot == need.slot));
                ManagerRequest::Prepare(Prepare { intention, coordinator, keep, purpose, admission, parts })
            };
            let slots = run.iter().map(|part| part.slot);
            let held = if owner(&run[0]).is_none() {
                flight.holds_own(slots);
                // What this manager forgets when it stops, it has not decided.
                let operation = Operation::Asked(prepare(Keep::Memory));
                self.attempt(self.host().node().0, &operation).await.map(|(done, _)| done).map_err(Trouble::Refused)?
            } else {
                flight.holds_others(slots);
                Done::Answer(self.ask_slot(run[0].slot, prepare(keep)).await?)
            };
            if !matches!(held, Done::Answer(Answer::Held(true))) {
                return Err(Trouble::Changed);
            }
        }
        Ok(())
    }

    /// Has clients give up what they hold against an operation, wherever that is, as far as they do in time.
    async fn make_way(&self, admission: &Admission, deadline: Moment) {
        let maps = self.cluster.maps();
        let owner = |need: &Need| maps.slot(need.slot.0).node;
        let made = admission.needs.chunk_by(|a, b| owner(a) == owner(b)).map(|needs| async move {
            let own = Admission { node: admission.node, needs: needs.to_vec() };
            if self.manages(needs[0].slot) {
                return self.make_way_here(&own, deadline).await.is_ok();
            }
            self.ask_slot(needs[0].slot, ManagerRequest::Admit(own)).await.is_ok()
        });
        if !join_all(made).await.into_iter().all(|is_made| is_made) {
            let _ = self.cluster.refresh().await;
        }
    }

    /// Asks the present manager of a slot that is not ours.
    async fn ask_slot(&self, slot: SlotId, request: ManagerRequest) -> Result<Answer, Trouble> {
        let node = NodeId(self.cluster.maps().slot(slot.0).node);
        match self.call_manager(node, request).await {
            Ok(answer) => Ok(answer),
            Err(ManagerError::NotMine) => Err(Trouble::Away(format!("slot {} is between two managers", slot.0))),
            Err(ManagerError::Failed(problem)) => Err(Trouble::Away(problem)),
            Err(error) => Err(Trouble::Refused(error)),
        }
    }

    /// Asks the manager of a node, which may be this one.
    pub(crate) async fn call_manager(&self, node: NodeId, request: ManagerRequest) -> Result<Answer, ManagerError> {
        if node == self.host().node() {
            // It no longer has the slot, and the maps do not know who has.
            return Err(ManagerError::NotMine);
        }
        let to = Address { node, port: Port(MANAGER_PORT) };
        match self.host().call::<ManagerRequest, ManagerAnswer>(to, request).await {
            Ok(answer) => Ok(answer?.answer),
            Err(unreachable) => Err(ManagerError::Failed(unreachable.to_string())),
        }
    }

    /// For whom operations are carried out now.
    fn purpose(&self) -> Purpose {
        if self.is_ready() { Purpose::Asked } else { Purpose::Starting }
    }

    /// Tells slots the outcome of an intention; whether all know it, durably.
    pub(crate) async fn tell(&self, intention: IntentionId, slots: &[SlotId], outcome: Outcome) -> bool {
        let maps = self.cluster.maps();
        let mut owners: BTreeMap<u32, Vec<SlotId>> = BTreeMap::new();
        for &slot in slots {
            owners.entry(maps.slot(slot.0).node).or_default().push(slot);
        }
        let told = owners.into_iter().map(|(node, slots)| async move {
            let settle = Settle { intention, slots, outcome };
            if node == self.host().node().0 {
                return self.settle(settle).await.is_ok();
            }
            self.call_manager(NodeId(node), ManagerRequest::Settle(settle)).await.is_ok()
        });
        join_all(told).await.into_iter().all(|knows| knows)
    }

    /// Tells an outcome that took effect, beside the caller.
    pub(crate) fn tell_done_later(&self, coordinator: SlotId, intention: IntentionId, slots: Vec<SlotId>) {
        if let Some(manager) = self.me().filter(|_| !slots.is_empty()) {
            self.host().spawn(async move { manager.tell_done(coordinator, intention, slots).await });
        }
    }

    /// Tells that nothing came of an intention, beside the caller.
    pub(crate) fn tell_undone_later(&self, intention: IntentionId, slots: Vec<SlotId>) {
        if let Some(manager) = self.me().filter(|_| !slots.is_empty()) {
            self.host().spawn(async move {
                let _ = manager.tell(intention, &slots, Outcome::Undone).await;
            });
        }
    }

    /// Tells an outcome that took effect, and forgets it when all know.
    pub(crate) async fn tell_done(self: Arc<Self>, coordinator: SlotId, intention: IntentionId, slots: Vec<SlotId>) {
        if self.tell(intention, &slots, Outcome::Done).await {
            let forget = Operation::ForgetIntention(coordinator, intention);
            // What fails is told again, which harms nobody.
            let _ = self.attempt(self.host().node().0, &forget).await;
        }
    }
}
