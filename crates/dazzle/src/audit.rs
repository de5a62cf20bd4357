//! `check` and `repair`: the manager's records against each other, the records against the stripes, the stripes against
//! their checksums and their parity.

use std::collections::BTreeMap;

use cleaner::Goal;
use log::stripes::{self, Problem, StripeState};
use log::{Damage, LogError, ReadError};
use protocol::id::TargetId;
use protocol::maps::{Maps, TargetState};
use protocol::registry::RegistryRequest;
use serde_json::{Value, json};

use crate::edge::control::{Line, Progress};
use crate::node::Parts;

/// Checks everything. With `thorough`, every byte of every fragment is read.
pub(crate) async fn check(parts: &Parts, thorough: bool, progress: &Progress) -> Result<Value, String> {
    parts.client.settle().await.map_err(|error| format!("what is in memory cannot be stored: {error}"))?;
    report(progress, "names and maps", 0, 1);
    let audit = parts.manager.audit().await.map_err(|error| format!("the slots cannot be read: {error}"))?;
    let mut problems = audit.problems;
    let states = stripes::list(&parts.cluster, None).await;
    let by_name: BTreeMap<_, _> = states.iter().map(|state| ((state.log, state.number), state)).collect();
    for ((log, stripe), bytes) in &audit.live {
        match by_name.get(&(*log, *stripe)) {
            Some(state) if u64::from(state.length) >= *bytes => {}
            Some(state) => problems.push(format!(
                "stripe {} of log {} has {} bytes, and {bytes} of it are in use",
                stripe.0, log.0, state.length
            )),
            None => problems.push(format!("stripe {} of log {} is in use, and no target has it", stripe.0, log.0)),
        }
    }
    let maps = parts.cluster.maps();
    problems.extend(maps.targets.values().filter_map(|entry| not_whole(&entry.name, entry.state)));
    for (index, state) in (1u64..).zip(&states) {
        // A stripe in which nothing lives waits for the cleaner; a target that was away may still have a part of one that
        // the others have deleted.
        let in_use = audit.live.contains_key(&(state.log, state.number));
        let missing = state.missing.iter().filter(|damage| in_use && is_whole(&maps, damage.target));
        problems.extend(missing.map(|damage| format!("{}; `dazzle repair` makes it again", in_words(damage))));
        if thorough && state.ended {
            verify(parts, state, &mut problems).await;
        }
        report(progress, "stripes", index, states.len() as u64);
    }
    Ok(json!({"inodes": audit.inodes, "extents": audit.extents, "stripes": states.len(), "problems": problems}))
}

async fn verify(parts: &Parts, state: &StripeState, problems: &mut Vec<String>) {
    let name = format!("stripe {} of log {}", state.number.0, state.log.0);
    match stripes::verify(&parts.cluster, state.log, state.number).await {
        Ok(found) => problems.extend(found.iter().filter_map(|problem| match problem {
            // Listed already.
            Problem::Missing(_) => None,
            Problem::Checksum(damage) => Some(format!("{name}: {:?} is damaged", damage.id.part)),
            Problem::Parity(damage) => Some(format!("{name}: {:?} is not the parity", damage.id.part)),
        })),
        // The cleaner may have deleted it since it was listed.
        Err(ReadError::Deleted(_)) => {}
        Err(error) => problems.push(format!("{name} cannot be verified: {error}")),
    }
}

/// Makes every missing or damaged fragment again; targets that then have all they should have are whole.
pub(crate) async fn repair(parts: &Parts, progress: &Progress) -> Result<Value, String> {
    report(progress, "deleted stripes", 0, 1);
    // What the others deleted while a target was away is deleted there too, before anything is rebuilt of it.
    parts.cleaner.clean_now(Goal::Marks).await.map_err(|error| format!("dead stripes cannot be deleted: {error}"))?;
    let states = stripes::list(&parts.cluster, None).await;
    let (mut repaired, mut failed) = (0u64, 0u64);
    for (index, state) in (1u64..).zip(&states) {
        if state.ended {
            match stripes::repair(&parts.cluster, state.log, state.number).await {
                Ok(repair) => repaired += u64::from(repair.mended > 0),
                Err(ReadError::Deleted(_)) => {}
                Err(_) => failed += 1,
            }
        }
        report(progress, "stripes", index, states.len() as u64);
    }
    let lacking = lacking(parts).await;
    if failed == 0 {
        whole_again(parts, &lacking).await.map_err(|error| error.to_string())?;
    }
    let maps = parts.cluster.maps();
    let names = |state| -> Vec<_> {
        maps.targets.values().filter(|entry| entry.state == state).map(|entry| entry.name.clone()).collect()
    };
    Ok(json!({
        "stripes": states.len(), "repaired": repaired, "failed": failed,
        "lacking": lacking.values().flatten().collect::<Vec<_>>(),
        "missing": names(TargetState::Failed), "behind": names(TargetState::Behind),
    }))
}

/// Which fragments each target lacks that serves, in words.
async fn lacking(parts: &Parts) -> BTreeMap<TargetId, Vec<String>> {
    let maps = parts.cluster.maps();
    let mut lacking: BTreeMap<TargetId, Vec<String>> = BTreeMap::new();
    for damage in stripes::list(&parts.cluster, None).await.iter().flat_map(|state| &state.missing) {
        if maps.targets.get(&damage.target).is_some_and(|entry| entry.state != TargetState::Failed) {
            lacking.entry(damage.target).or_default().push(in_words(damage));
        }
    }
    lacking
}

fn in_words(damage: &Damage) -> String {
    let id = damage.id;
    format!("stripe {} of log {} lacks {:?} on target {}", id.stripe.0, id.log.0, id.part, damage.target.0)
}

/// Targets that were behind and lack nothing any more are whole.
async fn whole_again(parts: &Parts, lacking: &BTreeMap<TargetId, Vec<String>>) -> Result<(), LogError> {
    let maps = parts.cluster.maps();
    for (target, entry) in &maps.targets {
        if entry.state == TargetState::Behind && !lacking.contains_key(target) {
            let whole = RegistryRequest::SetTarget(*target, TargetState::Whole);
            parts.cluster.registry(whole).await.map_err(|error| LogError::Unavailable(error.to_string()))?;
        }
    }
    Ok(())
}

/// What is wrong with a target that is not whole.
fn not_whole(name: &str, state: TargetState) -> Option<String> {
    match state {
        TargetState::Whole => None,
        TargetState::Behind => Some(format!("{name} missed writes; what it lacks is being rebuilt")),
        TargetState::Failed => Some(format!(
            "{name} is missing: what lies on it has less redundancy; bring it back or put an empty one in its place, then \
             `dazzle up` and `dazzle repair`"
        )),
    }
}

fn is_whole(maps: &Maps, target: TargetId) -> bool {
    maps.targets.get(&target).is_some_and(|entry| entry.state == TargetState::Whole)
}

fn report(progress: &Progress, what: &str, done: u64, total: u64) {
    // Whoever asked may have hung up; the work goes on.
    let _ = progress.send(Line::Progress { what: what.to_owned(), done, total });
}
