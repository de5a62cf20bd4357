//! The targets of this machine at the start: which disks are there, whose they are, which lack something.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use host::{Disk, DiskError};
use log::Cluster;
use protocol::id::TargetId;
use protocol::maps::{Maps, TargetState};
use protocol::registry::RegistryRequest;
use protocol::storage::{StorageReply, StorageRequest};
use storage::{OpenError, Opening, Target, TargetOptions};
use tracing::warn;

/// How long a start waits for maps that know all targets that its settings name.
const KNOWN_PATIENCE: Duration = Duration::from_secs(30);
const KNOWN_LOOK: Duration = Duration::from_millis(100);

/// A target that does not serve, and why.
#[derive(Clone, Debug)]
pub struct Absent {
    /// Which.
    pub target: TargetId,
    /// What people call it.
    pub name: String,
    /// What is wrong.
    pub why: String,
}

/// The disks of this machine, by their targets.
pub type Disks = Vec<(TargetId, Disk)>;
/// Targets whose disks are not there, and why.
pub type Lost = Vec<(TargetId, String)>;

/// The disks that hold this file system's targets, or nothing; and the others, which are left as they are. A disk may be
/// anything: a device whose name has changed, a target of another file system that was put in the wrong place.
pub async fn own_disks(opened: Vec<(TargetId, Result<Disk, DiskError>)>) -> Result<(Disks, Lost), String> {
    let (mut disks, mut lost) = (Vec::new(), Vec::new());
    for (target, opened) in opened {
        let owned = match opened {
            Ok(disk) => storage::owner(&disk).await.map(|owner| (disk, owner)),
            Err(error) => Err(OpenError::Disk(error)),
        };
        match owned {
            Ok((_, Some((_, found)))) if found != target => {
                lost.push((target, OpenError::OtherTarget { found }.to_string()))
            }
            Ok((disk, owner)) => disks.push((target, disk, owner.map(|(cluster, _)| cluster))),
            Err(error) => lost.push((target, error.to_string())),
        }
    }
    let Some(cluster) = most(disks.iter().filter_map(|(_, _, cluster)| *cluster))? else {
        // None is said to be anybody's.
        let empty = disks.iter().map(|(target, ..)| (target.0, "its disk is empty"));
        let lost = lost.iter().map(|(target, why)| (target.0, why.as_str()));
        let reasons: String = lost.chain(empty).map(|(target, why)| format!("\ntarget {target}: {why}")).collect();
        return Err(format!("no target of this file system is there{reasons}"));
    };
    let foreign = |found: Option<u128>| found.filter(|found| *found != cluster);
    for (target, _, owner) in &disks {
        lost.extend(foreign(*owner).map(|found| (*target, OpenError::OtherCluster { found }.to_string())));
    }
    let own = disks.into_iter().filter(|(_, _, owner)| foreign(*owner).is_none());
    Ok((own.map(|(target, disk, _)| (target, disk)).collect(), lost))
}

/// The cluster that most targets belong to.
fn most(clusters: impl Iterator<Item = u128>) -> Result<Option<u128>, String> {
    let mut counts: BTreeMap<u128, usize> = BTreeMap::new();
    clusters.for_each(|cluster| *counts.entry(cluster).or_default() += 1);
    let Some((&first, &count)) = counts.iter().max_by_key(|(_, count)| **count) else { return Ok(None) };
    if counts.iter().any(|(&cluster, &other)| cluster != first && other == count) {
        return Err(
            "as many targets belong to one file system as to another; take away those that do not belong here. \
                    Nothing was changed"
                .into(),
        );
    }
    Ok(Some(first))
}

/// Waits a while for maps that know all these targets: one of them may have got its number just before this node stopped, and
/// its own replica has not heard of that yet.
pub async fn until_known(cluster: &Cluster, disks: &[(TargetId, Disk)]) {
    let end = cluster.host().now() + KNOWN_PATIENCE;
    let unknown = || disks.iter().any(|(target, _)| *target >= cluster.maps().next_target);
    while unknown() && cluster.host().now() < end {
        cluster.host().sleep(KNOWN_LOOK).await;
        // Who does not answer now is asked again.
        drop(cluster.refresh().await);
    }
}

/// Formats disks of known targets that hold nothing: each takes the place of one that was lost. It is behind, and tells of no
/// end of a log of before, ere it can be opened: a crash in between leaves no empty target that passes for whole.
pub async fn replace_blank(
    cluster: &Cluster,
    disks: &[(TargetId, Disk)],
    options: TargetOptions,
) -> Result<Vec<TargetId>, String> {
    let maps = cluster.maps();
    let mut replaced = Vec::new();
    for (target, disk) in disks {
        // A disk that cannot be read is no blank one; opening it says what is wrong.
        if maps.present().any(|(id, _)| id == *target) && storage::is_blank(disk).await.unwrap_or(false) {
            mark(cluster, *target, TargetState::Behind).await?;
            give_up_disks(cluster, vec![*target]).await?;
            storage::format(disk, maps.cluster, *target, options)
                .await
                .map_err(|error| format!("the empty target {} cannot be formatted: {error}", target.0))?;
            replaced.push(*target);
        }
    }
    Ok(replaced)
}

/// Tells the registry which targets serve. One that comes back, or whose copy of the registry shows that it missed
/// changes, stays behind until it was repaired (DESIGN §3, targets that come back).
pub async fn settle_targets(cluster: &Cluster, serving: &[TargetId], outdated: &[TargetId]) -> Result<(), String> {
    let node = cluster.host().node().0;
    for (target, entry) in cluster.maps().present().filter(|(_, entry)| entry.node == node) {
        let state = match (serving.contains(&target), entry.state) {
            (false, TargetState::New) => TargetState::New,
            (false, _) => TargetState::Failed,
            (true, TargetState::Failed) => TargetState::Behind,
            (true, _) if outdated.contains(&target) => TargetState::Behind,
            (true, state) => state,
        };
        if state != entry.state {
            warn!(target = target.0, ?state, "a target's state has changed");
            mark(cluster, target, state).await?;
        }
    }
    Ok(())
}

/// Tells the registry of one target.
pub async fn mark(cluster: &Cluster, target: TargetId, state: TargetState) -> Result<(), String> {
    let marked = cluster.registry(RegistryRequest::SetTarget(target, state)).await;
    marked.map(drop).map_err(|error| format!("target {} could not be marked {state:?}: {error}", target.0))
}

/// Tells the registry that what lay on the disks of these targets is gone. Ends of logs that they knew are asked of others from
/// then on; where those are too few, of those that are left.
pub async fn give_up_disks(cluster: &Cluster, targets: Vec<TargetId>) -> Result<(), String> {
    let gone = cluster.decide(|seen| RegistryRequest::DisksGone(targets.clone(), seen)).await;
    gone.map(drop).map_err(|error| format!("the registry was not told whose disks are gone: {error}"))
}

/// Tells the registry of targets of which the disks did not give all that tells of what was written last. They begin only then:
/// after that nothing may tell any more that they have forgotten something.
pub async fn give_up_forgotten(cluster: &Cluster, openings: &[Opening]) -> Result<(), String> {
    let is_present = |id: TargetId| cluster.maps().present().any(|(present, _)| present == id);
    let forgetful = openings.iter().filter(|opening| opening.may_have_forgotten()).map(Opening::id);
    let forgetful: Vec<TargetId> = forgetful.filter(|target| is_present(*target)).collect();
    if forgetful.is_empty() {
        return Ok(());
    }
    warn!(
        ?forgetful,
        "parts of these targets cannot be read: they are not asked where logs end that were written before"
    );
    give_up_disks(cluster, forgetful).await
}

/// Gives up the disks of targets that people call so.
pub async fn give_up(cluster: &Cluster, names: &[String]) -> Result<(), String> {
    if names.is_empty() {
        return Ok(());
    }
    let maps = cluster.maps();
    let find = |name: &String| {
        let is_it = |target: TargetId| target.0.to_string() == *name || maps.called(target) == *name;
        let found = maps.present().find(|(target, _)| is_it(*target)).map(|(target, _)| target);
        found.ok_or_else(|| format!("there is no target {name} that could be given up. Nothing was changed"))
    };
    let targets = names.iter().map(find).collect::<Result<Vec<_>, _>>()?;
    warn!(?targets, "the disks of these targets are given up");
    give_up_disks(cluster, targets).await
}

/// Tells the registry how much fits on targets of this machine, where that is news: what lies beneath a target may have
/// grown, or been taken by others' files.
pub async fn tell_sizes(cluster: &Cluster, targets: &[Arc<Target>]) -> Result<(), String> {
    let maps = cluster.maps();
    let mut news = Vec::new();
    for target in targets {
        let id = target.id();
        let Some((_, entry)) = maps.present().find(|(present, _)| *present == id) else { continue };
        // One that fails is told of by who watches it.
        let Ok(StorageReply::Stat(stat)) = target.serve(StorageRequest::Stat).await else { continue };
        if entry.is_news(stat.bytes_total) {
            news.push((id, stat.bytes_total));
        }
    }
    if news.is_empty() {
        return Ok(());
    }
    let told = cluster.registry(RegistryRequest::TargetSizes(news)).await;
    told.map(drop).map_err(|error| format!("the registry was not told how large targets are: {error}"))
}

/// Targets that do not serve, with their names and what to do about each. Nobody misses one that was taken away.
pub fn absent_targets(maps: &Maps, lost: Lost) -> Vec<Absent> {
    let is_present = |target: TargetId| maps.present().any(|(id, _)| id == target);
    let absent = |(target, why): (TargetId, String)| {
        let name = maps.called(target);
        warn!(target = target.0, why, "a target does not serve; going on without it");
        Absent { target, name, why }
    };
    lost.into_iter().filter(|(target, _)| is_present(*target)).map(absent).collect()
}

#[cfg(test)]
mod tests {
    use protocol::maps::TargetEntry;

    use super::*;

    #[test]
    fn nobody_misses_a_target_that_was_taken_away() {
        let targets = (0..3).map(|id| (TargetId(id), TargetEntry::new(1, format!("target-{id}")))).collect();
        let mut maps = registry::change::new_cluster(1, targets, 1, 1);
        maps.targets.get_mut(&TargetId(1)).expect("one of three").state = TargetState::Removed;
        let lost = (0..4).map(|id| (TargetId(id), "it is not there".to_owned())).collect();
        let absent: Vec<String> = absent_targets(&maps, lost).into_iter().map(|absent| absent.name).collect();
        assert_eq!(absent, ["target-0", "target-2"]);
    }
}
