//! `dazzle registry rebuild`: what can be made of a registry that is damaged, missing or older than what its targets hold, and
//! making it, where no daemon runs.

use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;
use std::sync::Arc;

use futures_util::future::join_all;
use host::{Host, NodeId};
use protocol::id::TargetId;
use protocol::maps::Maps;
use registry::Condition;
use registry::promotion;
use registry::rebuilding::Founder;
use roles::rebuild::{Findings, Rebuild};
use roles::targets::{Disks, Lost, own_disks};
use serde_json::{Value, json};
use storage::TargetOptions;
use tokio::runtime::Handle;

use crate::config::Config;
use crate::drain::node_called;
use crate::edge::machine::RealMachine;
use crate::membership;
use crate::targets::open_disks;

/// Rebuilds the registry of the machine of `dir`, where no daemon runs; or says what that would make of it.
pub(crate) async fn rebuild(dir: &Path, off: &[String], only_plan: bool, runtime: &Handle) -> Result<Value, String> {
    let config = Config::load(dir).map_err(|error| error.to_string())?;
    if config.targets.is_empty() {
        return Err("this machine only mounts: it has no registry. Rebuild that of one that stores".into());
    }
    let (machine, _) = membership::connect(dir, &config, runtime).await?;
    let host = Host::new(machine.clone());
    let opened = own_disks(open_disks(dir, &config, runtime)).await;
    let (disks, lost) = opened.map_err(|error| membership::advise(&config, host.node(), error))?;
    let (cluster, disks, lost) = owned(disks, lost).await?;
    let founder = founder(&config, host.node(), cluster);
    let names = founder.targets.clone();
    let looked = Rebuild::look(&host, founder, (disks, lost), TargetOptions::default()).await;
    let rebuild = looked.map_err(|error| error.to_string())?;
    let maps = Arc::new(rebuild.maps().clone());
    let off = off.iter().map(|name| node_called(&maps, name)).collect::<Result<BTreeSet<u32>, _>>()?;
    let answering = answering(&machine, host.node(), &maps).await;
    promotion::judge_rebuilt((host.node().0, &maps), &off, &answering).map_err(|error| error.to_string())?;
    let told = told(&rebuild.findings, &names, (&maps, &off));
    if !only_plan {
        let founded = rebuild.found().await;
        founded.map_err(|error| format!("{error}. What was left of it before is there still: try again"))?;
    }
    Ok(told)
}

/// The cluster that the disks belong to, those that do, and the others: an empty one holds nothing of it.
async fn owned(disks: Disks, mut lost: Lost) -> Result<(u128, Disks, Lost), String> {
    let (mut cluster, mut own) = (None, Vec::new());
    for (target, disk) in disks {
        match storage::owner(&disk).await {
            Ok(Some((found, _))) => {
                cluster = Some(found);
                own.push((target, disk));
            }
            Ok(None) => lost.push((target, "its disk is empty".into())),
            Err(error) => lost.push((target, error.to_string())),
        }
    }
    cluster.map(|cluster| (cluster, own, lost)).ok_or_else(|| "no target of this file system is there".into())
}

fn founder(config: &Config, node: NodeId, cluster: u128) -> Founder {
    let own = config.cluster.as_ref();
    let name = |(place, target): (u32, &crate::config::TargetConfig)| {
        (TargetId(target.id.unwrap_or(place)), target.path.display().to_string())
    };
    Founder {
        node: node.0,
        name: own.map_or_else(String::new, |own| own.name.clone()),
        address: own.map_or_else(String::new, |own| own.address.clone()),
        cluster,
        class: config.class(),
        targets: (0..).zip(&config.targets).map(name).collect(),
        present: BTreeSet::new(),
        outdated: BTreeSet::new(),
        peers: membership::peers(config).into_iter().map(|node| node.0).collect(),
    }
}

/// Which other machines can be connected with: a daemon runs there.
async fn answering(machine: &RealMachine, own: NodeId, maps: &Maps) -> BTreeSet<u32> {
    let others = maps.nodes.iter().filter(|&(&node, entry)| node != own.0 && !entry.address.is_empty());
    let others: Vec<u32> = others.map(|(&node, _)| node).collect();
    others.iter().for_each(|node| machine.know(NodeId(*node), maps.nodes[node].address.clone()));
    let reached =
        join_all(others.into_iter().map(async |node| machine.reach(NodeId(node)).await.is_ok().then_some(node)));
    reached.await.into_iter().flatten().collect()
}

/// What was found, what is missing, and what may be lost.
fn told(found: &Findings, names: &BTreeMap<TargetId, String>, (maps, off): (&Maps, &BTreeSet<u32>)) -> Value {
    let name = |target: &TargetId| names.get(target).cloned().unwrap_or_else(|| format!("target {}", target.0));
    let copy = |(target, condition): (&TargetId, &Condition)| {
        let state = match condition {
            Condition::Sound => "sound",
            Condition::Damaged => "damaged",
            Condition::Missing => "missing",
            Condition::Unreadable(_) => "unreadable",
        };
        json!({"target": name(target), "state": state})
    };
    let lost = found.lost.iter().map(|(target, why)| json!({"target": name(target), "why": why}));
    json!({
        "copies": found.copies.iter().map(copy).collect::<Vec<_>>(),
        "targets_missing": lost.collect::<Vec<_>>(),
        "targets_behind": found.behind.iter().map(name).collect::<Vec<_>>(),
        "has_copy": found.has_copy, "lacks": found.lacks, "fragments": found.fragments,
        "logs": found.logs, "logs_unknown": found.logs_unknown, "logs_unsealed": found.logs_unsealed,
        "off": off.iter().map(|node| maps.nodes[node].name.clone()).collect::<Vec<_>>(),
    })
}
