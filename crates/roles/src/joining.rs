//! A machine's way into a cluster that is there: its targets get numbers, and its registry a replica. Each step is done
//! again after a crash, and changes nothing the second time.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::Duration;

use host::{Disk, Host, NodeId};
use log::{Cluster, LogError};
use protocol::id::TargetId;
use protocol::maps::Maps;
use protocol::registry::{RegistryError, RegistryRequest};
use registry::{Registry, RegistryStart};
use tracing::warn;

/// How long a machine that begins waits for others that are beginning, too.
const PATIENCE: Duration = Duration::from_secs(30);
const PAUSE: Duration = Duration::from_millis(250);

/// Notes who else is in the cluster, for a start at which the replica does not tell.
pub type Note<'a> = &'a (dyn Fn(&Maps) -> Result<(), String> + Sync);

/// Starts the registry's replica on this node; on a machine that was let in by `peers` and has none yet, an empty one, which
/// the cluster fills. So also where another machine was promoted without this one, if nothing that this one ever answered
/// can be lost by that.
pub async fn start_registry(
    host: &Host,
    peers: &[NodeId],
    disks: Vec<(TargetId, Disk)>,
    note: Note<'_>,
) -> Result<Arc<Registry>, String> {
    match Registry::start(host, disks.clone()).await {
        Err(RegistryStart::Nothing | RegistryStart::Empty) if !peers.is_empty() => {
            let maps = ask(host, peers).await?.maps();
            Registry::join(host, maps, disks).await.map_err(|error| error.to_string())
        }
        Err(over @ RegistryStart::Over { may_follow: false, .. }) => Err(abandoned(&over)),
        Err(RegistryStart::Over { node, founder, .. }) => {
            let maps = ask(host, &[NodeId(node)]).await?.maps();
            // From here on a crash leaves a replica that tells nothing.
            note(&maps)?;
            warn!("{founder} was promoted while this machine was off: it follows, and what it missed is rebuilt");
            Registry::follow(host, maps, disks).await.map_err(|error| error.to_string())
        }
        started => started.map_err(|error| error.to_string()),
    }
}

/// What a machine is told that went on by itself.
fn abandoned(over: &RegistryStart) -> String {
    format!(
        "{over}, after this one had gone on without that one, or with others had agreed on changes of which that one never \
         heard, or that one had lost its registry: what was fsynced in that time may lie here and on such others alone, and is \
         not in the file system that goes on. Nothing here was changed. To give it up and take part again, remove this machine \
         with `dazzle node remove` on another one, and `dazzle join` with another, empty directory"
    )
}

/// Has the cluster of `peers` number this machine's targets, which people call `names`, beside those that are `numbered`. What
/// was done before a crash is found in the maps, and not done again.
pub async fn number_targets(
    host: &Host,
    peers: &[NodeId],
    names: &[String],
    numbered: &BTreeSet<TargetId>,
) -> Result<(Arc<Maps>, Vec<TargetId>), String> {
    let mut given = BTreeSet::new();
    if let Some(twice) = names.iter().find(|name| !given.insert(*name)) {
        return Err(format!(
            "{twice} is given twice: two targets lie at two paths; correct dazzle.toml, and start again"
        ));
    }
    let cluster = ask(host, peers).await?;
    let node = host.node().0;
    let places = |maps: &Maps| places(maps, node, names, numbered);
    let missing = |maps: &Maps| -> Vec<String> {
        names.iter().zip(places(maps)).filter(|(_, id)| id.is_none()).map(|(name, _)| name.clone()).collect()
    };
    let refused = |error| format!("the cluster took no targets of this machine: {error}");
    let mut known = cluster.maps();
    if !missing(&known).is_empty() {
        // Whoever was asked first may not have heard yet of what was done before.
        known = cluster.newest_to_begin().await.map_err(refused)?;
    }
    let missing = missing(&known);
    if !missing.is_empty() {
        let added = cluster.registry(RegistryRequest::AddTargets { node, names: missing }).await;
        added.map_err(|error| match error {
            RegistryError::Begun(..) => {
                "dazzle.toml names targets without numbers, and this machine takes part already: take \
                                         them out, start, and give each to `dazzle target add`"
                    .to_owned()
            }
            error => refused(error),
        })?;
    }
    let own: Option<Vec<TargetId>> = places(&cluster.maps()).into_iter().collect();
    let own = own.ok_or("the cluster took some targets of this machine away meanwhile")?;
    for (name, target) in names.iter().zip(&own) {
        if cluster.maps().targets.get(target).is_some_and(|entry| entry.name != *name) {
            let renamed = cluster.registry(RegistryRequest::RenameTarget(*target, name.clone())).await;
            renamed.map_err(refused)?;
        }
    }
    Ok((cluster.maps(), own))
}

/// Which targets of a node those are that people call `names`: in a node that never began also those of other names, in order,
/// for a path may have been corrected since they were numbered.
fn places(maps: &Maps, node: u32, names: &[String], numbered: &BTreeSet<TargetId>) -> Vec<Option<TargetId>> {
    let has_begun = maps.nodes.get(&node).is_none_or(|entry| entry.session > 0);
    let own = maps.present().filter(|(id, entry)| entry.node == node && !numbered.contains(id));
    let (called, others): (Vec<_>, Vec<_>) = own.partition(|(_, entry)| names.contains(&entry.name));
    let mut others = others.into_iter().filter(|_| !has_begun).map(|(id, _)| id);
    let place = |name: &String| {
        let known = called.iter().find(|(_, entry)| entry.name == *name).map(|(id, _)| *id);
        known.or_else(|| others.next())
    };
    names.iter().map(place).collect()
}

/// The cluster of `peers`, for a machine that has no replica of its registry. Machines that are switched on together begin
/// together: for a while it is waited until one of them answers.
pub async fn ask(host: &Host, peers: &[NodeId]) -> Result<Cluster, String> {
    let end = host.now() + PATIENCE;
    loop {
        match Cluster::connect_any(host.clone(), peers).await {
            Err(LogError::Unavailable(_)) if host.now() < end => host.sleep(PAUSE).await,
            Err(LogError::Unavailable(why)) => {
                return Err(format!("none of the machines that let this one in can be asked: {why}"));
            }
            asked => return asked.map_err(|error| error.to_string()),
        }
    }
}

#[cfg(test)]
mod tests {
    use host::sim::World;
    use protocol::maps::{NodeEntry, TargetEntry};

    use super::*;

    #[test]
    fn one_path_is_no_two_targets() {
        let world = World::new(1);
        let host = world.add_node(NodeId(1));
        let names = ["/d1".into(), "/d1".into()];
        let refused = world.block_on(number_targets(&host, &[], &names, &BTreeSet::new()));
        assert!(refused.is_err_and(|why| why.contains("/d1 is given twice")));
    }

    #[test]
    fn a_target_is_told_by_its_path_and_one_whose_path_was_corrected_by_being_left() {
        let mut maps = Maps::empty(1, 1);
        maps.nodes.insert(2, NodeEntry::new("b", "", true));
        for (id, owner, name) in [(3, 1, "/d1"), (4, 2, "/d1"), (5, 2, "/d2"), (6, 2, "/d4")] {
            maps.targets.insert(TargetId(id), TargetEntry::new(owner, name.into()));
        }
        let places = |maps: &Maps, names: &[&str], numbered: &[u32]| -> Vec<Option<u32>> {
            let names: Vec<String> = names.iter().map(|name| name.to_string()).collect();
            let numbered = numbered.iter().copied().map(TargetId).collect();
            places(maps, 2, &names, &numbered).into_iter().map(|id| id.map(|id| id.0)).collect()
        };
        assert_eq!(places(&maps, &["/d2", "/d1"], &[]), [Some(5), Some(4)]);
        assert_eq!(places(&maps, &["/d3", "/d1", "/d5", "/d6"], &[]), [Some(5), Some(4), Some(6), None]);
        assert_eq!(places(&maps, &["/d3", "/d1"], &[5, 6]), [None, Some(4)], "these have their places");
        maps.nodes.get_mut(&2).expect("it was let in").session = 1;
        assert_eq!(places(&maps, &["/d3", "/d1"], &[]), [None, Some(4)], "what it had may be there still");
    }
}
