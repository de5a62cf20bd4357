//! The cleaner at work: looks when it is time, deletes what is dead, cleans while room is short. This file awaits;
//! `policy` and `standing` decide.
//!
//! One cleaner a node. One of them, the leader, makes room for all; what lacks redundancy they all lay anew, each its share.
//! Two at the same stripe would copy it twice: compare-and-swap lets one win, and the other's copy is dead.
//!
//! A look, and a batch, in this order:
//! 1. Copies left over from before are settled.
//! 2. Stripes in which nothing lives are deleted.
//! 3. The most profitable stripes with as much alive as the bound of a batch are copied; full stripes of copies are
//!    settled; victims in which nothing lives any more are deleted at once, so that the next batch finds room. Cleaning
//!    thus needs room for one stripe, which the targets reserve for it (DESIGN §4).

use std::collections::{BTreeMap, BTreeSet};
use std::pin::pin;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use async_lock::Mutex as AsyncMutex;
use event_listener::Event;
use futures_util::future::select;
use host::Moment;
use log::{Absences, Cluster, LogError, LogReader, exposure, recovery, stripes};
use protocol::id::{GroupId, LogId, TargetId};
use protocol::maps::Maps;
use protocol::registry::RegistryRequest;

use crate::ages::Ages;
use crate::copier::Copier;
use crate::exposed::{Exposed, Share};
use crate::managers::{Managers, Unheard};
use crate::policy::{self, Candidate, Looked, Need, Order, Space, Stripe, Waters};
use crate::standing::{logs_to_forget, logs_to_seal};
use crate::survey::{Found, Survey, is_gone, space, survey};

/// How a cleaner works.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct CleanerOptions {
    /// How often it asks the targets how full they are.
    pub interval: Duration,
    /// When it cleans.
    pub waters: Waters,
    /// How much may live in the stripes that it cleans at once, while room is not nearly gone.
    pub batch_bytes: u64,
    /// How many bytes it copies in a second, while room is not nearly gone.
    pub bytes_per_second: u64,
    /// How many of them for redundancy alone.
    pub bytes_per_second_exposed: u64,
    /// How long a target may be away before what lay on it counts as lost.
    pub patience: Duration,
}

impl Default for CleanerOptions {
    fn default() -> Self {
        CleanerOptions {
            interval: Duration::from_secs(1),
            waters: Waters::default(),
            batch_bytes: 16 << 20,
            bytes_per_second: 200 << 20,
            bytes_per_second_exposed: 100 << 20,
            patience: Duration::from_secs(600),
        }
    }
}

/// What cleaning is to achieve.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Goal {
    /// As much room as the water marks say: what it does by itself.
    Marks,
    /// This part of the room that clients may take is free.
    Free(f64),
    /// No stripe is left whose cleaning would give room.
    Compact,
    /// No judged stripe lies over this target: before it is removed (DESIGN §8, cleaning with a goal). Stripes that open
    /// logs still write are their writers' to move.
    Empty(TargetId),
    /// No judged stripe lies in a group that is less safe than the current ones (DESIGN §9, lost redundancy).
    Safe,
}

/// What a cleaner did since it was started.
#[derive(Clone, Debug, PartialEq, Eq, Default)]
pub struct CleanerStatus {
    /// Looks at all stripes.
    pub looks: u64,
    /// Stripes deleted, cleaned ones included.
    pub stripes_deleted: u64,
    /// Stripes cleaned.
    pub stripes_cleaned: u64,
    /// Live bytes copied.
    pub bytes_copied: u64,
    /// Sealed logs of which nothing was left.
    pub logs_forgotten: u64,
    /// Data bytes that the last look found less safe than the current groups would keep them.
    pub bytes_exposed: u64,
    /// Live bytes copied because of that.
    pub bytes_laid_anew: u64,
    /// Why the last look ended early, if it did.
    pub trouble: Option<String>,
}

/// Why a cleaner could not go on. It tries again by itself.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum CleanError {
    /// A manager was not heard.
    #[error(transparent)]
    Unheard(#[from] Unheard),
    /// The cleaner's log could not be written.
    #[error(transparent)]
    Log(#[from] LogError),
    /// The registry did not answer.
    #[error("the registry did not answer: {0}")]
    Registry(String),
    /// No target answers.
    #[error("no target tells how full it is")]
    NoTarget,
    /// It was stopped.
    #[error("the cleaner was stopped")]
    Stopped,
}

/// How many batches follow one look before the next: what one look knew grows old.
const BATCHES_MAX: usize = 64;
/// No batch for redundancy is larger: so much more room is taken before any is given back.
const SAFE_BATCH_MAX: u64 = 64 << 20;
/// Stripes deleted with one message.
const DELETE_MAX: usize = 256;
/// Logs forgotten after one look.
const FORGET_MAX: usize = 64;
/// Between two batches others have their turn.
const PAUSE: Duration = Duration::from_millis(1);
/// Below room for so many of its own stripes on a target a batch is one stripe.
const STRIPES_SPARE: u64 = 8;

/// Empties dying stripes in the background.
pub struct Cleaner {
    cluster: Cluster,
    managers: Managers,
    options: CleanerOptions,
    work: AsyncMutex<Work>,
    status: Mutex<CleanerStatus>,
    stopping: AtomicBool,
    wake: Event,
}

/// What one look leaves for the next. All of it is soft but for the copies under way.
struct Work {
    copier: Copier,
    ages: Ages,
    /// Stripes that cleaning left alive, with how much: not touched again until that changes.
    stubborn: BTreeMap<Stripe, u64>,
    looked: Option<Looked>,
    /// The water marks, within the slack that the last look found.
    waters: Waters,
    absences: Absences,
    exposed: Exposed,
}

impl Cleaner {
    /// Begins to look after the cluster's stripes.
    pub async fn start(cluster: Cluster, reader: LogReader, options: CleanerOptions) -> Arc<Cleaner> {
        let managers = Managers::new(cluster.clone());
        let copier = Copier::new(cluster.clone(), reader, managers.clone());
        let work = Work {
            copier,
            ages: Ages::default(),
            stubborn: BTreeMap::new(),
            looked: None,
            waters: options.waters,
            absences: Absences::default(),
            exposed: Exposed::default(),
        };
        let cleaner = Arc::new(Cleaner {
            cluster: cluster.clone(),
            managers,
            options,
            work: AsyncMutex::new(work),
            status: Mutex::default(),
            stopping: AtomicBool::new(false),
            wake: Event::new(),
        });
        cluster.host().spawn(run(cleaner.clone()));
        cleaner
    }

    /// Looks and cleans at once, for `goal`, however much is free.
    pub async fn clean_now(&self, goal: Goal) -> Result<(), CleanError> {
        let mut work = self.work.lock().await;
        let outcome = self.look(&mut work, Some(goal), Share::ALL).await;
        self.note(&outcome);
        outcome
    }

    /// What it did so far.
    pub fn status(&self) -> CleanerStatus {
        self.noted().clone()
    }

    /// Ends its log and seals it. Copies that managers were not told of are dead; nothing is lost.
    pub async fn stop(&self) {
        self.stopping.store(true, Ordering::Release);
        self.wake.notify(usize::MAX);
        self.end_log(&mut *self.work.lock().await).await;
    }

    /// Ends its log and seals it: nobody judges the end of an open one. The next copy opens another.
    async fn end_log(&self, work: &mut Work) {
        let own = work.copier.own();
        let closed = work.copier.close().await;
        if let (Ok(()), Some((log, _))) = (closed, own) {
            // Whoever cleans next seals it if this fails.
            let _ = recovery::seal(&self.cluster, log).await;
        }
    }

    /// Leaves cleaning to another: what it wrote while it cleaned may be judged to the end.
    async fn rest(&self) {
        let mut work = self.work.lock().await;
        if work.copier.own().is_some() {
            self.end_log(&mut work).await;
        }
        self.seal_former(&work, &self.cluster.maps()).await;
    }

    /// As the leader: the others' share, too, where they do not see to it.
    async fn tick(&self) -> Result<(), CleanError> {
        let mut work = self.work.lock().await;
        let maps = self.cluster.maps();
        let space = self.space(&maps).await?;
        self.expose(&mut work, &maps);
        // Where room is nearly gone there is none to lay anything anew.
        if space.free >= work.waters.pressure && work.exposed.is_due() {
            let share = self.share(&maps).filter(|_| !work.exposed.is_stuck());
            return self.look(&mut work, Some(Goal::Safe), share.unwrap_or(Share::ALL)).await;
        }
        let mut need = work.waters.need(space, work.looked);
        if need == Need::Nothing
            && let Some(last) = &mut work.looked
        {
            let bytes_live = self.managers.bytes_live().await?;
            if last.is_outdated(space.bytes_used, bytes_live) {
                need = Need::Look;
            }
            last.observe(bytes_live);
        }
        match need {
            Need::Nothing => Ok(()),
            Need::Look => self.look(&mut work, None, Share::ALL).await,
            Need::Clean => self.look(&mut work, Some(Goal::Marks), Share::ALL).await,
        }
    }

    /// As one whom another leads: lays its share of what lacks redundancy anew.
    async fn help(&self) -> Result<(), CleanError> {
        let mut work = self.work.lock().await;
        let maps = self.cluster.maps();
        self.expose(&mut work, &maps);
        let Some(share) = self.share(&maps).filter(|_| work.exposed.is_any()) else {
            drop(work);
            self.rest().await;
            return Ok(());
        };
        if work.exposed.is_due() && self.space(&maps).await?.free >= work.waters.pressure {
            self.look(&mut work, Some(Goal::Safe), share).await?;
        }
        Ok(())
    }

    /// The stripes that are this machine's to lay anew.
    fn share(&self, maps: &Maps) -> Option<Share> {
        Share::of(maps, self.cluster.host().node().0)
    }

    async fn look(&self, work: &mut Work, goal: Option<Goal>, share: Share) -> Result<(), CleanError> {
        self.proceed()?;
        self.noted().looks += 1;
        let maps = self.cluster.refresh().await.map_err(|error| CleanError::Registry(error.to_string()))?;
        let settled = work.copier.settle().await;
        self.seal_former(work, &maps).await;
        let survey = survey(&self.cluster, &self.managers, &maps, work.copier.own()).await?;
        self.expose(work, &maps);
        let own = survey.alive.iter().filter(|found| share.takes(found.stripe) && work.exposed.has(found.group));
        let bytes_own: u64 = own.map(|found| found.bytes_live).sum();
        let bytes_exposed = match goal {
            Some(Goal::Safe) => work.exposed.looked(&survey.bytes_in, bytes_own),
            _ => work.exposed.seen(&survey.bytes_in),
        };
        self.noted().bytes_exposed = bytes_exposed;
        work.ages.observe(survey.stripes.clone(), self.cluster.host().now());
        work.stubborn.retain(|stripe, _| survey.stripes.binary_search(stripe).is_ok());
        if share == Share::ALL || self.cluster.leads() {
            self.delete(&survey.dead).await;
            self.forget(&maps, &survey).await;
        }
        // Only now: when there was no room to settle, what was deleted since may have made it.
        if settled.is_err() {
            work.copier.settle().await?;
        }
        let space = self.space(&maps).await?;
        let slack = space.free + survey.bytes_dead_about() / space.bytes_total.max(1) as f64;
        work.waters = self.options.waters.within(slack);
        // Whoever waits for room is not to wait for another look.
        let goal = goal.or_else(|| work.waters.is_short(space).then_some(Goal::Marks));
        if let Some(goal) = goal {
            let alive = survey.alive.into_iter().filter(|found| share.takes(found.stripe)).collect();
            self.clean(work, &maps, alive, goal).await?;
            if goal == Goal::Safe && bytes_own == 0 {
                // What it wrote itself may lack redundancy by now, and be another's share.
                self.end_log(work).await;
            }
        }
        let (bytes_used, bytes_live) = (self.space(&maps).await?.bytes_used, self.managers.bytes_live().await?);
        work.looked = Some(Looked { bytes_used, bytes_live, bytes_busy: survey.bytes_busy, ..Looked::default() });
        Ok(())
    }

    /// Which groups are less safe than the current ones, now.
    fn expose(&self, work: &mut Work, maps: &Maps) {
        let now = self.cluster.host().now();
        work.absences.observe(maps, now);
        let given_up = work.absences.given_up(now, maps.settings.patience_or(self.options.patience));
        work.exposed.observe(exposure::to_lay_anew(maps, &given_up));
    }

    async fn clean(&self, work: &mut Work, maps: &Maps, mut alive: Vec<Found>, goal: Goal) -> Result<(), CleanError> {
        let groups = match goal {
            Goal::Empty(target) => Some(groups_over(maps, target)),
            Goal::Safe => Some(work.exposed.groups()),
            Goal::Marks | Goal::Free(_) | Goal::Compact => None,
        };
        if goal == Goal::Safe {
            alive.sort_by_key(|found| (work.exposed.safety(found.group), found.stripe));
        }
        let mut left = self.candidates(work, alive, &groups);
        let mut emptied: Vec<Candidate> = Vec::new();
        for _ in 0..BATCHES_MAX {
            self.proceed()?;
            let space = self.space(maps).await?;
            let order = if matches!(goal, Goal::Empty(_) | Goal::Safe) { Order::All } else { work.waters.order(space) };
            left = policy::rank(left, order);
            if left.is_empty() || is_reached(goal, space, work.waters) {
                break;
            }
            let bytes = self.batch_bytes(work, space, goal).await?;
            let victims: Vec<Candidate> = left.drain(..policy::batch(&left, bytes)).collect();
            let begun = self.cluster.host().now();
            let copied = self.copy(work, &victims).await?;
            if goal == Goal::Safe {
                self.noted().bytes_laid_anew += copied;
            }
            emptied.extend(victims);
            emptied = self.delete_emptied(emptied).await?;
            self.pause((goal, order), begun, copied).await;
        }
        work.copier.settle().await?;
        let stubborn = self.delete_emptied(emptied).await?;
        work.stubborn.extend(stubborn.into_iter().map(|candidate| (candidate.stripe, candidate.bytes_live)));
        Ok(())
    }

    fn candidates(&self, work: &Work, alive: Vec<Found>, groups: &Option<BTreeSet<GroupId>>) -> Vec<Candidate> {
        let now = self.cluster.host().now();
        let wanted = alive.into_iter().filter(|found| {
            // Where all are to go, what was left once is tried again.
            let hopeless = groups.is_none() && work.stubborn.get(&found.stripe) == Some(&found.bytes_live);
            !hopeless && groups.as_ref().is_none_or(|groups| groups.contains(&found.group))
        });
        let candidate = |found: Found| Candidate {
            stripe: found.stripe,
            bytes_live: found.bytes_live,
            bytes_occupied: found.bytes_occupied,
            age: work.ages.age(found.stripe, now),
        };
        wanted.map(candidate).collect()
    }

    async fn copy(&self, work: &mut Work, victims: &[Candidate]) -> Result<u64, CleanError> {
        let mut unreadable = Vec::new();
        let copied = work.copier.copy(victims, &mut work.ages, &mut unreadable).await?;
        work.copier.settle_full().await?;
        let mut status = self.noted();
        status.bytes_copied += copied;
        status.stripes_cleaned += victims.len() as u64;
        Ok(copied)
    }

    /// Deletes those of `emptied` in which nothing lives any more, and returns the others with what lives in them.
    async fn delete_emptied(&self, emptied: Vec<Candidate>) -> Result<Vec<Candidate>, CleanError> {
        let stripes: Vec<Stripe> = emptied.iter().map(|candidate| candidate.stripe).collect();
        let bytes_live = self.managers.live(&stripes).await?;
        let now =
            emptied.into_iter().zip(bytes_live).map(|(candidate, bytes_live)| Candidate { bytes_live, ..candidate });
        let (alive, dead): (Vec<_>, Vec<_>) = now.partition(|candidate| candidate.bytes_live > 0);
        self.delete(&dead.iter().map(|candidate| candidate.stripe).collect::<Vec<_>>()).await;
        Ok(alive)
    }

    async fn delete(&self, dead: &[Stripe]) {
        for some in dead.chunks(DELETE_MAX) {
            stripes::delete(&self.cluster, some).await;
            self.noted().stripes_deleted += some.len() as u64;
        }
    }

    /// Seals what this node's cleaner wrote in a former life, or before it needed larger stripes, so that all may be judged.
    async fn seal_former(&self, work: &Work, maps: &Maps) {
        if !work.copier.is_settled() {
            return;
        }
        let own = work.copier.own().map(|(log, _)| log);
        for log in logs_to_seal(maps, self.cluster.host().node().0, own) {
            // One that cannot be sealed now is met again at the next look.
            let _ = recovery::seal(&self.cluster, log).await;
        }
    }

    async fn forget(&self, maps: &Maps, survey: &Survey) {
        let mut stored: Vec<LogId> = survey.stripes.iter().map(|(log, _)| *log).collect();
        stored.dedup();
        let mut gone = Vec::new();
        for log in logs_to_forget(maps, &stored).into_iter().take(FORGET_MAX) {
            if is_gone(&self.cluster, maps, log).await {
                gone.push(log);
            }
        }
        let count = gone.len() as u64;
        if count > 0 && self.cluster.registry(RegistryRequest::ForgetLogs(gone, maps.epoch)).await.is_ok() {
            self.noted().logs_forgotten += count;
        }
    }

    async fn space(&self, maps: &Maps) -> Result<Space, CleanError> {
        space(&self.cluster, maps).await.ok_or(CleanError::NoTarget)
    }

    /// For redundancy a batch is what a second may take, so that the end of one, for which all wait, comes rarely.
    async fn batch_bytes(&self, work: &mut Work, space: Space, goal: Goal) -> Result<u64, CleanError> {
        let stripe = work.copier.stripe_bytes().await?;
        let short = space.bytes_free_min < stripe * STRIPES_SPARE;
        let usual = match goal {
            Goal::Safe => self.rate(goal).min(SAFE_BATCH_MAX).max(self.options.batch_bytes),
            _ => self.options.batch_bytes,
        };
        Ok(if short { stripe } else { usual.max(stripe) })
    }

    /// Leaves the disks and the network to others for what the budget leaves of the time since the copying was `begun`; when
    /// room is nearly gone, programs wait for it anyway.
    async fn pause(&self, (goal, order): (Goal, Order), begun: Moment, copied: u64) {
        let budget = Duration::from_secs_f64(copied as f64 / self.rate(goal).max(1) as f64);
        let rest = budget.saturating_sub(self.cluster.host().now().since(begun));
        let wait = if order == Order::Emptiest { PAUSE } else { rest.max(PAUSE) };
        self.cluster.host().sleep(wait).await;
    }

    /// How many bytes it may copy in a second.
    fn rate(&self, goal: Goal) -> u64 {
        match goal {
            Goal::Safe => self.cluster.maps().settings.rebuild_or(self.options.bytes_per_second_exposed),
            _ => self.options.bytes_per_second,
        }
    }

    fn proceed(&self) -> Result<(), CleanError> {
        if self.stopping.load(Ordering::Acquire) { Err(CleanError::Stopped) } else { Ok(()) }
    }

    fn note(&self, outcome: &Result<(), CleanError>) {
        self.noted().trouble = outcome.as_ref().err().map(ToString::to_string);
    }

    fn noted(&self) -> MutexGuard<'_, CleanerStatus> {
        self.status.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

fn is_reached(goal: Goal, space: Space, waters: Waters) -> bool {
    match goal {
        Goal::Marks => space.free >= waters.high,
        Goal::Free(part) => space.free >= part,
        Goal::Compact | Goal::Empty(_) | Goal::Safe => false,
    }
}

/// The groups that lie over a target.
fn groups_over(maps: &Maps, target: TargetId) -> BTreeSet<GroupId> {
    let over = maps.groups.iter().filter(|(_, group)| group.targets.contains(&target));
    over.map(|(id, _)| *id).collect()
}

async fn run(cleaner: Arc<Cleaner>) {
    loop {
        let woken = cleaner.wake.listen();
        if cleaner.proceed().is_err() {
            return;
        }
        // One node makes room for all: two would copy the same bytes.
        let outcome = if cleaner.cluster.leads() { cleaner.tick().await } else { cleaner.help().await };
        cleaner.note(&outcome);
        let host = cleaner.cluster.host();
        select(woken, pin!(host.sleep(cleaner.options.interval))).await;
    }
}

impl std::fmt::Debug for Cleaner {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Cleaner").field("status", &self.status()).finish_non_exhaustive()
    }
}
