//! A machine's way into a cluster that is there: its targets get numbers, and its registry a replica. Each step is done
//! again after a crash, and changes nothing the second time.

use std::sync::Arc;
use std::time::Duration;

use host::{Disk, Host, NodeId};
use log::{Cluster, LogError};
use protocol::id::TargetId;
use protocol::maps::Maps;
use protocol::registry::RegistryRequest;
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
        "{over}, after this one had gone on without that one, or that one had lost its registry: what was fsynced in that \
         time may lie here alone, and is not in the file system that goes on. Nothing here was changed. To give it up and take \
         part again, remove this machine with `dazzle node remove` on another one, and `dazzle join` with another, empty \
         directory"
    )
}

/// Has the cluster of `peers` number this machine's targets, which people call `names`. What was done before a crash is found
/// in the maps, and not done again.
pub async fn number_targets(
    host: &Host,
    peers: &[NodeId],
    names: &[String],
) -> Result<(Arc<Maps>, Vec<TargetId>), String> {
    let cluster = ask(host, peers).await?;
    let node = host.node().0;
    let called = |maps: &Maps, name: &String| {
        maps.present().find(|(_, entry)| entry.node == node && entry.name == *name).map(|(id, _)| id)
    };
    let missing =
        |maps: &Maps| -> Vec<String> { names.iter().filter(|name| called(maps, name).is_none()).cloned().collect() };
    let refused = |error| format!("the cluster took no targets of this machine: {error}");
    let mut known = cluster.maps();
    if !missing(&known).is_empty() {
        // Whoever was asked first may not have heard yet of what was done before.
        known = cluster.newest_to_begin().await.map_err(refused)?;
    }
    let missing = missing(&known);
    if !missing.is_empty() {
        let added = cluster.registry(RegistryRequest::AddTargets { node, names: missing }).await;
        added.map_err(refused)?;
    }
    let maps = cluster.maps();
    let own: Option<Vec<TargetId>> = names.iter().map(|name| called(&maps, name)).collect();
    let own = own.ok_or("the cluster took some targets of this machine away meanwhile")?;
    Ok((maps, own))
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
