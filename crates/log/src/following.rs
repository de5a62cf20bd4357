//! An open log goes on in the groups that the registry forms, without a restart and without a wait: sends go on in the
//! present run until the new one is in the layout. This file awaits; `regroup` decides.

use std::pin::pin;
use std::sync::{Arc, Weak};
use std::time::Duration;

use futures_util::future::select;
use protocol::address::Position;
use protocol::id::{GroupId, RunNumber};
use protocol::maps::GroupEntry;
use protocol::storage::Durability;

use crate::LogError;
use crate::going_back::GoingBack;
use crate::reform::Need;
use crate::regroup::{current, is_elsewhere, known, regroup};
use crate::relay::{begin_run, form, prepare, probe};
use crate::sender::{Shared, perform_all};

/// The pause before what failed is tried again.
const PAUSE: Duration = Duration::from_secs(1);

/// Follows the maps for as long as anybody has the log, and goes back to groups that it left.
pub(crate) async fn follow(handle: Weak<Shared>) {
    let mut going_back = GoingBack::new();
    loop {
        let Some(shared) = handle.upgrade() else { return };
        let host = shared.cluster.host().clone();
        let newer = shared.cluster.newer_maps();
        if !look(&shared, &mut going_back) {
            return;
        }
        let outcome = go_on(&shared).await;
        drop(shared);
        match (outcome, going_back.pause(host.now())) {
            (Ok(()), None) => newer.await,
            (Ok(()), Some(pause)) => {
                select(newer, pin!(host.sleep(pause))).await;
            }
            // What ends the log is met by whoever writes next, and then here.
            (Err(_), _) => host.sleep(PAUSE).await,
        }
    }
}

/// Whether there is anything to follow for. What was decided about the current groups is forgotten if it is time to go back.
fn look(shared: &Arc<Shared>, going_back: &mut GoingBack) -> bool {
    let now = shared.cluster.host().now();
    let mut state = shared.lock();
    if std::mem::take(&mut state.left) {
        going_back.left(now);
    }
    if going_back.goes(now) {
        state.considered.clear();
    }
    state.fault.is_none()
}

/// Brings a log that was just opened into groups where its largest record fits.
pub(crate) async fn widen(shared: &Arc<Shared>) -> Result<(), LogError> {
    if shared.lock().fits() {
        return Ok(());
    }
    go_on(shared).await?;
    let unfit = || LogError::Unavailable("no current group can be given stripes of the size that is needed".into());
    if shared.lock().fits() { Ok(()) } else { Err(unfit()) }
}

/// Goes on in the current groups, if they are others. Whatever was there before is complete in them when this returns: a
/// log that nobody writes to is as redundant as one that is written.
async fn go_on(shared: &Arc<Shared>) -> Result<(), LogError> {
    if leaves(shared) {
        return Err(LogError::Unavailable("a run is being added".into()));
    }
    let Some((run, wanted)) = wanted(shared)? else { return Ok(()) };
    let maps = shared.cluster.maps();
    let considered = current(&maps);
    let live = probe(shared, &maps).await;
    let answers = |group: &GroupEntry| group.targets.iter().all(|target| live.contains(target));
    let (wanted, silent): (Vec<_>, Vec<_>) = wanted.into_iter().partition(answers);
    let is_of_use = {
        let state = shared.lock();
        is_elsewhere(&wanted, &state.opened.groups, state.capacity_needed())
    };
    if !is_of_use {
        return Err(LogError::Unavailable("not all targets of the current groups answer".into()));
    }
    let mut groups = Vec::new();
    for group in wanted {
        groups.push(match known(&maps, &group) {
            Some(id) => id,
            None => form(shared, group).await?,
        });
    }
    {
        let mut state = shared.lock();
        if let Some(fault) = &state.fault {
            return Err(fault.clone());
        }
        // The groups were chosen for the stripes of that run.
        if state.relaying || state.relay_due() || state.opened.run != run {
            return Err(LogError::Unavailable("a run is being added".into()));
        }
        state.relaying = true;
    }
    let outcome = add(shared, groups).await;
    let through = {
        let mut state = shared.lock();
        state.end_relaying();
        if outcome.is_ok() {
            state.considered = considered;
            state.left |= !silent.is_empty();
            state.end_stripe();
        }
        if let Err(error @ LogError::Fenced(_)) = &outcome {
            state.fault.get_or_insert(error.clone());
        }
        // What is appended from here on may lie in a stripe that nobody ends.
        state.end()
    };
    shared.changed.notify(usize::MAX);
    Shared::pump(shared);
    outcome?;
    complete(shared, through).await
}

/// Whether stripes are to be laid over other targets because one failed. Who writes sees to that; but nobody may.
fn leaves(shared: &Arc<Shared>) -> bool {
    {
        let mut state = shared.lock();
        if !state.relay_due() || state.relaying {
            return state.relaying;
        }
        state.attempts.ask();
    }
    Shared::pump(shared);
    true
}

/// The groups to go on in, and behind which run.
fn wanted(shared: &Arc<Shared>) -> Result<Option<(RunNumber, Vec<GroupEntry>)>, LogError> {
    let maps = shared.cluster.maps();
    let mut state = shared.lock();
    if let Some(fault) = &state.fault {
        return Err(fault.clone());
    }
    if current(&maps) == state.considered {
        return Ok(None);
    }
    let parity_min = if shared.options.degrade_allowed { 0 } else { maps.parity };
    let geometry = state.opened.groups[0].geometry;
    let need = Need { geometry, capacity: state.capacity_needed(), parity: maps.parity, parity_min };
    let wanted = regroup(&maps, &state.opened.groups, need);
    if wanted.is_none() {
        state.considered = current(&maps);
    }
    Ok(wanted.map(|groups| (state.opened.run, groups)))
}

async fn add(shared: &Arc<Shared>, groups: Vec<GroupId>) -> Result<(), LogError> {
    let (_, known) = prepare(shared).await?;
    let from = shared.lock().lowest_incomplete;
    begin_run(shared, (known.version, from), groups).await
}

/// Brings all through `through`, where a stripe has ended, to disk in the new run.
async fn complete(shared: &Arc<Shared>, through: Position) -> Result<(), LogError> {
    if through == Position::START {
        return Ok(());
    }
    let mut since = None;
    loop {
        let found = {
            let mut state = shared.lock();
            if let Some(fault) = &state.fault {
                return Err(fault.clone());
            }
            if state.is_laid(through.stripe) {
                return Ok(());
            }
            let answered = shared.changed.listen();
            state.try_again(&mut since).map(|()| (state.due_commit(through, Durability::Disk), answered))
        };
        match found {
            Ok((works, answered)) if works.is_empty() => {
                Shared::pump(shared);
                answered.await;
            }
            Ok((works, _)) => {
                perform_all(shared, works).await;
                Shared::pump(shared);
            }
            // There is no room, or too few targets answer: nobody waits for this.
            Err(_) => {
                since = None;
                shared.cluster.host().sleep(PAUSE).await;
            }
        }
    }
}
