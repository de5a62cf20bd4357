//! A target failed while writing: adding a run without it, from the lowest incomplete stripe (DESIGN §3). This file
//! awaits; `reform` chooses the groups, `state` lays the stripes anew.

use std::collections::BTreeSet;
use std::iter::once;
use std::pin::pin;
use std::sync::Arc;
use std::time::Duration;

use futures_util::future::{Either, join_all, select};
use protocol::id::{GroupId, RunNumber, StripeNumber, TargetId};
use protocol::maps::{GroupEntry, LogEntry, LogState, Maps, Run, TargetState};
use protocol::registry::{RegistryError, RegistryReply, RegistryRequest};
use protocol::storage::{StorageReply, StorageRequest};

use crate::LogError;
use crate::failures::Failure;
use crate::lay::Group;
use crate::reform::{Need, Reformed, reform};
use crate::sender::{Shared, groups_of, perform_all};
use crate::state::Finish;

/// How often a new run is tried before those who wait are told.
const ATTEMPTS: u32 = 6;
/// The pause before the second attempt; it doubles.
const PAUSE: Duration = Duration::from_millis(100);
/// The pause before it is tried again though nobody writes.
const STUCK_PAUSE: Duration = Duration::from_secs(1);
/// How often the registry is told that older runs have ended, with that pause between.
const FINISH_TRIES: u32 = 100;
/// How long one that may be back has to show it, before redundancy is given up: it says at once how full it is.
const SIGN_PATIENCE: Duration = Duration::from_millis(300);

/// Adds a run. The caller has set `relaying`.
pub(crate) async fn relay(shared: Arc<Shared>) {
    let mut outcome = Ok(());
    for attempt in 0..ATTEMPTS {
        if attempt > 0 {
            shared.cluster.host().sleep(PAUSE * 2u32.pow(attempt - 1)).await;
        }
        // One that fails again and again is not turned to in every attempt: each may cost a run.
        outcome = add_run(&shared, attempt + 1 == ATTEMPTS).await;
        if !matches!(outcome, Err(LogError::Unavailable(_))) {
            break;
        }
    }
    let is_stuck = matches!(outcome, Err(LogError::Unavailable(_)));
    {
        let mut state = shared.lock();
        state.end_relaying();
        match outcome {
            Ok(()) => {
                state.left = true;
                state.attempts.succeeded();
                // Older runs end when all that was begun before is complete; who writes little would be long about it.
                state.end_stripe();
            }
            Err(error @ LogError::Unavailable(_)) => state.attempts.was_vain(error),
            Err(error) => {
                state.fault.get_or_insert(error);
            }
        }
    }
    shared.changed.notify(usize::MAX);
    Shared::pump(&shared);
    if is_stuck {
        // Who waits is told first. Then it is tried again, though nobody writes.
        shared.cluster.host().sleep(STUCK_PAUSE).await;
    }
    shared.cluster.wake_followers();
}

/// Records that older runs end where the newest has everything. Not being told so harms nobody who reads or recovers: they
/// are only read in vain and fenced without need. But what they lie over cannot be taken away.
pub(crate) async fn finish(shared: Arc<Shared>, finish: Finish) {
    let (log, epoch) = {
        let state = shared.lock();
        (state.opened.log, state.opened.epoch)
    };
    for _ in 0..FINISH_TRIES {
        let Some(known) = shared.cluster.maps().logs.get(&log).cloned() else { return };
        // A newer run has its own end: with it, this one would cut off what lies in between.
        if known.layout.last().is_none_or(|last| last.number > finish.run) {
            return;
        }
        let request = RegistryRequest::FinishRuns { log, version: known.version, epoch, end: finish.end };
        match shared.cluster.registry(request).await {
            Err(RegistryError::Lost) => match entry(&shared).await {
                Ok(_) => {}
                Err(error @ LogError::Fenced(_)) => return fail(&shared, error),
                Err(_) => shared.cluster.host().sleep(PAUSE).await,
            },
            Err(RegistryError::Unavailable(_)) => shared.cluster.host().sleep(PAUSE).await,
            _ => return,
        }
    }
}

fn fail(shared: &Arc<Shared>, error: LogError) {
    if let LogError::Fenced(_) = error {
        shared.lock().fault.get_or_insert(error);
        shared.changed.notify(usize::MAX);
    }
}

/// The log's entry as it is now; somebody else's claim ends the writer (rule 15).
pub(crate) async fn entry(shared: &Arc<Shared>) -> Result<(Arc<Maps>, LogEntry), LogError> {
    let maps = shared.cluster.refresh().await.map_err(|error| LogError::Unavailable(error.to_string()))?;
    let (log, epoch) = {
        let state = shared.lock();
        (state.opened.log, state.opened.epoch)
    };
    match maps.logs.get(&log) {
        Some(entry) if entry.state == LogState::Open(epoch) => Ok((maps.clone(), entry.clone())),
        _ => Err(LogError::Fenced(log)),
    }
}

/// Goes on without those that failed. Where no other answers, `even_failed` ones will do that answer again: all may have been
/// away for a while.
async fn add_run(shared: &Arc<Shared>, even_failed: bool) -> Result<(), LogError> {
    let (maps, known) = prepare(shared).await?;
    let mut live = probe(shared, &maps).await;
    if live.is_empty() && even_failed {
        live = ask(shared, whole(&maps)).await;
    }
    let choice = Choice::new(shared, maps)?;
    let mut chosen = choice.among(&live);
    if chosen.as_ref().is_none_or(|chosen| chosen.is_poor(choice.need)) {
        live.extend(reached(shared, &choice.maps).await);
        chosen = choice.among(&live);
    }
    let few = || LogError::Unavailable(format!("only {} targets answer", live.len()));
    let chosen = chosen.ok_or_else(few)?;
    let parity = chosen.parity(choice.need);
    let groups = match chosen {
        Reformed::Known(groups) => groups,
        Reformed::New(group) => vec![form(shared, group).await?],
    };
    choice.stands(shared, parity).await?;
    let (run, groups) = append_run(shared, (known.version, choice.from), groups).await?;
    // Where it does not, the run stays unused: that harms nobody.
    choice.stands(shared, parity).await?;
    shared.lock().relay(run, groups);
    Ok(())
}

/// What the groups of a new run are chosen by.
struct Choice {
    maps: Arc<Maps>,
    need: Need,
    old: Vec<TargetId>,
    from: StripeNumber,
}

impl Choice {
    fn new(shared: &Arc<Shared>, maps: Arc<Maps>) -> Result<Choice, LogError> {
        let state = shared.lock();
        if let Some(fault) = &state.fault {
            return Err(fault.clone());
        }
        let parity = maps.parity;
        let group = &state.opened.groups[0];
        let need = Need {
            geometry: group.geometry,
            capacity: state.capacity_needed(),
            parity,
            parity_min: if shared.options.degrade_allowed { 0 } else { parity },
        };
        Ok(Choice { maps, need, old: group.targets.clone(), from: state.lowest_incomplete })
    }

    fn among(&self, live: &BTreeSet<TargetId>) -> Option<Reformed> {
        reform(&self.maps, live, &self.old, self.need)
    }

    /// Whether nothing more redundant than `parity` is there by now. Who was asked before may have been out of reach with
    /// everybody else, and the registry too: it carries out what it was asked for when links are back. Where the class's
    /// parity was chosen, nobody is asked.
    async fn stands(&self, shared: &Arc<Shared>, parity: u8) -> Result<(), LogError> {
        if parity >= self.need.parity {
            return Ok(());
        }
        let live = reached(shared, &self.maps).await;
        match self.among(&live) {
            Some(better) if better.parity(self.need) > parity => {
                Err(LogError::Unavailable("more targets answer than a moment ago".into()))
            }
            _ => Ok(()),
        }
    }
}

/// Adds the run to the layout that the caller saw as `version`, and lays the stripes `from` there anew in it.
pub(crate) async fn begin_run(
    shared: &Arc<Shared>,
    place: (u64, StripeNumber),
    groups: Vec<GroupId>,
) -> Result<(), LogError> {
    let (run, groups) = append_run(shared, place, groups).await?;
    shared.lock().relay(run, groups);
    Ok(())
}

/// Adds the run to the layout; its number, and its groups in their order.
async fn append_run(
    shared: &Arc<Shared>,
    (version, from): (u64, StripeNumber),
    groups: Vec<GroupId>,
) -> Result<(RunNumber, Vec<Group>), LogError> {
    let (log, epoch) = {
        let state = shared.lock();
        (state.opened.log, state.opened.epoch)
    };
    let request = RegistryRequest::AddRun { log, version, epoch, from, groups: groups.clone() };
    let maps = match shared.cluster.registry(request).await {
        Ok(RegistryReply::Maps(maps)) => maps,
        Ok(_) => return Err(LogError::Unavailable("the registry answered something else".into())),
        Err(RegistryError::Lost) => {
            entry(shared).await?;
            return Err(LogError::Unavailable("the layout changed meanwhile".into()));
        }
        Err(error) => return Err(LogError::Unavailable(error.to_string())),
    };
    // The registry says in which of the groups it begins.
    let set = |groups: &[GroupId]| groups.iter().copied().collect::<BTreeSet<_>>();
    let is_ours = |run: &&Run| run.from == from && set(&run.groups) == set(&groups);
    let run = maps.logs.get(&log).and_then(|entry| entry.layout.last()).filter(is_ours);
    let run = run.ok_or_else(|| LogError::Unavailable("the new run is not in the layout".into()))?;
    let groups = groups_of(&maps, run).ok_or_else(|| LogError::Unavailable("a new group is unknown".into()))?;
    Ok((run.number, groups))
}

/// Makes the stripes below a new run durable: a recoverer looks no further down than its beginning. While a run is being
/// added there are no more of them. The log's entry, then.
pub(crate) async fn prepare(shared: &Arc<Shared>) -> Result<(Arc<Maps>, LogEntry), LogError> {
    sync_complete(shared).await;
    let (maps, known) = entry(shared).await?;
    let mut state = shared.lock();
    let is_given_up = |target: &TargetId| maps.targets.get(target).is_none_or(|entry| !entry.serves());
    let given_up: Vec<_> = state.failures.doubtful().filter(is_given_up).collect();
    given_up.into_iter().for_each(|target| state.target_failed(target, Failure::Broken));
    if let Some(fault) = &state.fault {
        return Err(fault.clone());
    }
    if state.is_in_doubt() {
        let why = "too few targets answer that have what was written last and may not have it on disk yet";
        return Err(LogError::Unavailable(why.into()));
    }
    drop(state);
    Ok((maps, known))
}

async fn sync_complete(shared: &Arc<Shared>) {
    // Those that failed may answer again.
    let works = shared.lock().due_syncs_of_doubtful();
    perform_all(shared, works).await;
    loop {
        let (works, synced) = {
            let mut state = shared.lock();
            let works = state.due_syncs_of_complete();
            if works.is_empty() && !state.complete_wait_for_syncs() {
                return;
            }
            (works, shared.changed.listen())
        };
        match works.is_empty() {
            true => synced.await,
            false => perform_all(shared, works).await,
        }
    }
}

/// The targets that answer now and are not known to fail. What they say of their incarnation counts from here on.
pub(crate) async fn probe(shared: &Arc<Shared>, maps: &Maps) -> BTreeSet<TargetId> {
    let failed = |target: &TargetId| shared.lock().failures.contains(*target);
    ask(shared, whole(maps).filter(|target| !failed(target))).await
}

/// The targets that answer at once, those among them that failed because they could not be reached.
async fn reached(shared: &Arc<Shared>, maps: &Maps) -> BTreeSet<TargetId> {
    let may_be_tried = |target: &TargetId| shared.lock().failures.may_be_tried(*target);
    let asked = whole(maps).filter(may_be_tried).map(async |target| {
        let patience = pin!(shared.cluster.host().sleep(SIGN_PATIENCE));
        match select(pin!(ask(shared, once(target))), patience).await {
            Either::Left((live, _)) => live,
            Either::Right(_) => BTreeSet::new(),
        }
    });
    join_all(asked).await.into_iter().flatten().collect()
}

fn whole(maps: &Maps) -> impl Iterator<Item = TargetId> {
    maps.targets.iter().filter(|(_, entry)| entry.state == TargetState::Whole).map(|(&target, _)| target)
}

async fn ask(shared: &Arc<Shared>, targets: impl Iterator<Item = TargetId>) -> BTreeSet<TargetId> {
    let targets: Vec<_> = targets.collect();
    let stats = join_all(targets.iter().map(|&target| shared.cluster.ask(target, StorageRequest::Stat))).await;
    let mut state = shared.lock();
    let mut live = BTreeSet::new();
    for (target, stat) in targets.into_iter().zip(stats) {
        if let Ok(StorageReply::Stat(stat)) = stat {
            state.incarnations.entry(target).or_insert(stat.incarnation);
            live.insert(target);
        }
    }
    live
}

pub(crate) async fn form(shared: &Arc<Shared>, group: GroupEntry) -> Result<GroupId, LogError> {
    match shared.cluster.registry(RegistryRequest::FormGroup(group)).await {
        Ok(RegistryReply::Group(id, _)) => Ok(id),
        Ok(_) => Err(LogError::Unavailable("the registry formed no group".into())),
        Err(error) => Err(LogError::Unavailable(error.to_string())),
    }
}
