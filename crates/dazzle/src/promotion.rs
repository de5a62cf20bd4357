//! `dazzle registry promote`: whether this machine may go on without the others that vote, what that costs, and
//! doing it. Asked of the running daemon it only judges; it is done where no daemon runs, for its sessions end by it.

use std::collections::BTreeSet;
use std::path::Path;
use std::sync::Arc;

use futures_util::future::join_all;
use host::{Disk, Host, NodeId};
use protocol::id::TargetId;
use protocol::maps::Maps;
use registry::Standing;
use registry::promotion::{self, Answer};
use roles::targets::own_disks;
use serde_json::{Value, json};
use tokio::runtime::Handle;

use crate::config::Config;
use crate::drain::node_called;
use crate::edge::machine::RealMachine;
use crate::membership;
use crate::node::Parts;
use crate::targets::open_disks;

/// What a running daemon says: whether the machine may be promoted, and what that costs.
pub(crate) async fn plan(parts: &Parts, off: &[String]) -> Result<Value, String> {
    if parts.roles.cluster.is_trusted() {
        return Err(
            "this machine's registry has its quorum: the machines that vote answer, and all goes on. Nothing was \
                    changed"
                .into(),
        );
    }
    let registry = parts.roles.registry.as_ref().ok_or(ONLY_MOUNTS)?;
    let standing = registry.standing().ok_or("this machine has no maps yet: it cannot go on with them")?;
    let host = parts.roles.cluster.host();
    let off = numbers(standing.maps(), off)?;
    let answers = promotion::ask_others(host, &standing).await;
    promotion::judge((host.node().0, &standing), &off, &answers).map_err(|error| error.to_string())?;
    Ok(cost(host.node(), &standing, &off))
}

const ONLY_MOUNTS: &str = "this machine only mounts: it has no replica of the registry. Promote one that stores";

/// Promotes the machine of `dir`, where no daemon runs; or says what that would cost.
pub(crate) async fn promote(dir: &Path, off: &[String], only_plan: bool, runtime: &Handle) -> Result<Value, String> {
    let config = Config::load(dir).map_err(|error| error.to_string())?;
    if config.targets.is_empty() {
        return Err(ONLY_MOUNTS.into());
    }
    let (machine, _) = membership::connect(dir, &config, runtime).await?;
    let (disks, _) = own_disks(open_disks(dir, &config, runtime)).await?;
    let standing = Standing::read(&disks).await.map_err(|error| error.to_string())?;
    let off = numbers(standing.maps(), off)?;
    let host = Host::new(machine.clone());
    membership::introduce_known(&machine, &disks).await;
    let answers = answers(&machine, &host, &standing).await;
    promotion::judge((host.node().0, &standing), &off, &answers).map_err(|error| error.to_string())?;
    let cost = cost(host.node(), &standing, &off);
    if !only_plan {
        found(host.node(), &disks).await?;
    }
    Ok(cost)
}

async fn found(node: NodeId, disks: &[(TargetId, Disk)]) -> Result<Arc<Maps>, String> {
    let founded = promotion::promote(node.0, disks).await;
    founded.map_err(|error| format!("{error}. Whether this machine was promoted is unknown: try again"))
}

/// Who answers: a daemon that can be connected with runs, whatever its registry says.
async fn answers(machine: &RealMachine, host: &Host, standing: &Standing) -> Vec<Answer> {
    let mut answers = promotion::ask_others(host, standing).await;
    let silent: Vec<u32> = standing.maps().nodes.keys().copied().collect();
    let silent =
        silent.into_iter().filter(|&node| node != host.node().0 && answers.iter().all(|known| known.node != node));
    let reached = join_all(silent.map(async |node| machine.reach(NodeId(node)).await.is_ok().then_some(node))).await;
    // One that only mounts is in nobody's way.
    let stores = |node: &u32| standing.maps().nodes[node].stores;
    answers.extend(reached.into_iter().flatten().filter(stores).map(|node| Answer { node, age: None }));
    answers
}

fn numbers(maps: &Maps, names: &[String]) -> Result<BTreeSet<u32>, String> {
    names.iter().map(|name| node_called(maps, name)).collect()
}

/// What goes on, and what is missed then.
fn cost(node: NodeId, standing: &Standing, off: &BTreeSet<u32>) -> Value {
    let maps = standing.maps();
    let missing = maps.present().filter(|(_, target)| target.node != node.0).map(|(id, _)| maps.called(id));
    json!({
        "node": node.0, "name": maps.nodes.get(&node.0).map(|entry| entry.name.clone()),
        "off": off.iter().map(|node| maps.nodes[node].name.clone()).collect::<Vec<_>>(),
        "parity": maps.parity, "targets_missing": missing.collect::<Vec<_>>(),
        "more_than_parity": off.len() > usize::from(maps.parity),
    })
}
