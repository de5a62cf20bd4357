//! Emptying targets and machines and taking them away, as commands ask for it. This file awaits; `plan` decides whether, the
//! registry what follows, and cleaner and managers carry it out.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use log::leaving::Left;
use log::removal::{self, RemovalError, Silence};
use log::stripes;
use protocol::id::TargetId;
use protocol::maps::{Drain, Maps, NodeEntry, NodeState, TargetEntry};
use protocol::registry::{RegistryError, RegistryRequest};
use protocol::storage::{StorageReply, StorageRequest};
use roles::targets::called;
use serde_json::{Value, json};

use crate::config::Size;
use crate::edge::control::{Line, Progress, Whom};
use crate::node::Parts;
use crate::plan::{Known, Plan};

/// How often it is looked what is left, at most, and how much of the time.
const LOOK: Duration = Duration::from_secs(1);
const LOOK_SHARE: u32 = 4;
/// How often what is empty is tried to take away while a writer is still about to say that it has left.
const REMOVE_TRIES: u32 = 30;

/// What a command is about.
struct Leaver {
    node: Option<u32>,
    targets: BTreeSet<TargetId>,
    name: String,
}

/// The node with this name or number.
pub(crate) fn node_called(maps: &Maps, name: &str) -> Result<u32, String> {
    let is_it = |(number, entry): &(&u32, &NodeEntry)| number.to_string() == name || entry.name == name;
    let found: Vec<u32> = maps.nodes.iter().filter(is_it).map(|(&number, _)| number).collect();
    match found[..] {
        [node] => Ok(node),
        [] => Err(format!("there is no node {name}; `dazzle status` lists them by number")),
        _ => Err(format!("there is more than one node {name}; `dazzle status` lists them by number")),
    }
}

impl Leaver {
    /// Finds it by number or name.
    fn find(maps: &Maps, whom: &Whom) -> Result<Leaver, String> {
        match whom {
            Whom::Target(name) => {
                let found: Vec<TargetId> =
                    maps.present().map(|(id, _)| id).filter(|&id| is_target(maps, id, name)).collect();
                match found[..] {
                    [target] => Ok(Leaver { node: None, targets: [target].into(), name: called(maps, target) }),
                    [] => Err(format!("there is no target {name}; `dazzle status` lists them")),
                    _ => Err(format!("there are {} targets {name}; say which by its number", found.len())),
                }
            }
            Whom::Node(name) => {
                let node = node_called(maps, name)?;
                let own = maps.present().filter(|(_, entry)| entry.node == node).map(|(id, _)| id);
                let name = maps.nodes[&node].name.clone();
                let name = if name.is_empty() { format!("node {node}") } else { name };
                Ok(Leaver { node: Some(node), targets: own.collect(), name })
            }
        }
    }

    fn is_gone(&self, maps: &Maps) -> bool {
        self.node.is_some_and(|node| maps.nodes.get(&node).is_some_and(|entry| entry.state == NodeState::Gone))
    }

    fn drains(&self, maps: &Maps) -> bool {
        self.targets.iter().all(|target| maps.targets.get(target).is_some_and(TargetEntry::drains))
    }

    fn may_go(&self, maps: &Maps) -> bool {
        self.targets.iter().all(|target| maps.targets.get(target).is_some_and(TargetEntry::may_go))
    }

    /// How many slots its machine manages still.
    fn slots(&self, maps: &Maps) -> usize {
        self.node.map_or(0, |node| maps.slots.values().filter(|slot| slot.node == node).count())
    }
}

fn is_target(maps: &Maps, target: TargetId, name: &str) -> bool {
    target.0.to_string() == name || called(maps, target) == name || maps.targets[&target].name == name
}

/// What draining would cost and leave; changes nothing.
pub(crate) async fn plan(parts: &Parts, whom: &Whom) -> Result<Value, String> {
    let maps = refreshed(parts).await?;
    let leaver = Leaver::find(&maps, whom)?;
    let plan = plan_of(parts, &maps, &leaver.targets).await;
    Ok(joined(json!({"name": leaver.name, "votes_then": votes_without(parts, &maps, &leaver)}), plan.in_json()))
}

/// How many machines vote when a machine is gone; nothing where that is not about one that stores, or this one cannot tell.
fn votes_without(parts: &Parts, maps: &Maps, leaver: &Leaver) -> Option<usize> {
    let registry = parts.roles.registry.as_ref()?;
    let mut without = maps.clone();
    without.nodes.remove(&leaver.node?).filter(|entry| entry.stores)?;
    Some(registry::voters::wanted(&without, &registry.voters().into_iter().collect()).len())
}

/// Begins to empty it, and waits until nothing lies there if `wait` says so. Who hangs up ends the waiting alone.
pub(crate) async fn drain(
    parts: &Parts,
    whom: &Whom,
    (force, wait): (bool, bool),
    progress: &Progress,
) -> Result<Value, String> {
    let maps = refreshed(parts).await?;
    let leaver = Leaver::find(&maps, whom)?;
    let plan = begin(parts, &maps, &leaver, force).await?;
    if wait {
        emptied(parts, &leaver, progress).await?;
    }
    Ok(joined(json!({"name": leaver.name, "drained": wait}), plan.in_json()))
}

/// It stays after all.
pub(crate) async fn keep(parts: &Parts, whom: &Whom) -> Result<Value, String> {
    let leaver = Leaver::find(&*refreshed(parts).await?, whom)?;
    set(parts, &leaver, Drain::No).await?;
    Ok(json!({"name": leaver.name}))
}

/// Takes it away, for good. What is drained already goes at once; what a machine had that is gone is laid anew first.
pub(crate) async fn remove(parts: &Parts, whom: &Whom, force: bool, progress: &Progress) -> Result<Value, String> {
    let maps = refreshed(parts).await?;
    let leaver = Leaver::find(&maps, whom)?;
    let command = if leaver.node.is_some() { "node" } else { "target" };
    if leaver.node.is_some() && !leaver.is_gone(&maps) {
        return Err(format!(
            "{} runs, and programs there may use the file system: `dazzle node drain` it, if that is not done, and stop it \
             there with `dazzle down`; then remove it. Nothing was changed",
            leaver.name
        ));
    }
    if leaver.is_gone(&maps) && !leaver.targets.is_empty() {
        begin(parts, &maps, &leaver, force).await?;
        emptied(parts, &leaver, progress).await.or_else(|error| if force { Ok(()) } else { Err(error) })?;
    } else if !leaver.may_go(&maps) {
        let name = &leaver.name;
        return Err(format!("{name} is in use: `dazzle {command} drain` empties it first. Nothing was changed"));
    }
    let silence = if force { Silence::Accepted } else { Silence::Refused };
    if !leaver.targets.is_empty() {
        take_away(parts, &leaver, silence).await?;
    }
    if let Some(node) = leaver.node {
        let removed = parts.roles.cluster.registry(RegistryRequest::RemoveNode(node)).await;
        removed
            .map_err(|error| format!("{} has no targets any more, but could not be removed: {error}", leaver.name))?;
    }
    Ok(json!({"name": leaver.name}))
}

async fn begin(parts: &Parts, maps: &Maps, leaver: &Leaver, force: bool) -> Result<Plan, String> {
    let name = &leaver.name;
    if leaver.targets.is_empty() {
        return Err(format!("{name} has no targets: there is nothing to drain"));
    }
    let plan = plan_of(parts, maps, &leaver.targets).await;
    let drain = match (&plan.refusal, plan.forcible && force) {
        (None, _) if leaver.drains(maps) => return Ok(plan),
        (None, _) => Drain::Careful,
        (Some(_), true) => Drain::Forced,
        (Some(why), false) if plan.forcible => {
            return Err(format!("{name} is needed: {why}. Nothing was changed; --force drains it all the same"));
        }
        (Some(why), false) => return Err(format!("{name} is needed: {why}. Nothing was changed")),
    };
    set(parts, leaver, drain).await?;
    Ok(plan)
}

async fn set(parts: &Parts, leaver: &Leaver, drain: Drain) -> Result<(), String> {
    let request = RegistryRequest::Drain(leaver.targets.iter().copied().collect(), drain);
    let answer = parts.roles.cluster.registry(request).await;
    answer.map(drop).map_err(|error| format!("the registry did not do it: {error}"))
}

async fn plan_of(parts: &Parts, maps: &Maps, targets: &BTreeSet<TargetId>) -> Plan {
    let mut stats = BTreeMap::new();
    for (target, _) in maps.present() {
        if let Ok(StorageReply::Stat(stat)) = parts.roles.cluster.ask(target, StorageRequest::Stat).await {
            stats.insert(target, stat);
        }
    }
    let states = stripes::list(&parts.roles.cluster, None).await;
    Plan::of(Known { maps, states: &states, stats, rate: parts.config.rebuild.0 }, targets)
}

/// Waits until nothing lies there, and no slot is managed there.
async fn emptied(parts: &Parts, leaver: &Leaver, progress: &Progress) -> Result<(), String> {
    let host = parts.roles.cluster.host();
    let mut most = 0;
    loop {
        let began = host.now();
        let left = left_of(parts, leaver).await?;
        let maps = parts.roles.cluster.maps();
        if !leaver.drains(&maps) {
            return Err(format!("somebody decided that {} stays, or took it away", leaver.name));
        }
        let slots = if leaver.is_gone(&maps) { 0 } else { leaver.slots(&maps) };
        let mut why = None;
        if left.stripes == 0 && slots == 0 {
            match removal::conclude(&parts.roles.cluster, &leaver.targets).await {
                Ok(()) => return Ok(()),
                Err(error @ RemovalError::Hidden(_)) => return Err(error.to_string()),
                // The registry does not answer, or somebody has yet to end what may be written there.
                Err(error) => why = Some(error.to_string()),
            }
        }
        most = most.max(left.bytes_data);
        let what = match (left.stripes, why) {
            (0, Some(why)) => why,
            (0, None) => "slots are handed over".to_owned(),
            _ => format!("{} left", Size(left.bytes_data)),
        };
        let line = Line::Progress { what, done: most - left.bytes_data, total: most.max(1) };
        if progress.send(line).is_err() {
            return Err("nobody waits for it".into());
        }
        host.sleep(LOOK.max(host.now().since(began) * LOOK_SHARE)).await;
    }
}

async fn left_of(parts: &Parts, leaver: &Leaver) -> Result<Left, String> {
    // A registry that does not answer now is asked again.
    let mut tried = Err(String::new());
    for _ in 0..REMOVE_TRIES {
        tried = removal::left(&parts.roles.cluster, &leaver.targets).await.map_err(|error| error.to_string());
        if tried.is_ok() {
            break;
        }
        parts.roles.cluster.host().sleep(LOOK).await;
    }
    tried
}

async fn take_away(parts: &Parts, leaver: &Leaver, silence: Silence) -> Result<(), String> {
    let name = &leaver.name;
    let mut last = RemovalError::Registry(RegistryError::Lost);
    for _ in 0..REMOVE_TRIES {
        last = match removal::remove(&parts.roles.cluster, &leaver.targets, silence).await {
            Ok(()) => return Ok(()),
            Err(RemovalError::Left(left)) => {
                let bytes = Size(left.bytes_data);
                return Err(format!("{name} is not drained yet: {bytes} still lie over it. Nothing was changed"));
            }
            Err(error @ RemovalError::Hidden(_)) => {
                return Err(format!(
                    "{name} cannot be removed: {error}. Bring back the machines that are missing; or, if they are gone for \
                     good, --force removes it, and what lay on these alone is lost. Nothing was changed"
                ));
            }
            Err(error) => error,
        };
        parts.roles.cluster.host().sleep(LOOK).await;
    }
    Err(format!("{name} cannot be removed: {last}. Nothing was changed"))
}

/// The newest maps.
pub(crate) async fn refreshed(parts: &Parts) -> Result<std::sync::Arc<Maps>, String> {
    parts.roles.cluster.refresh().await.map_err(|error| error.to_string())
}

/// One answer with the fields of both.
pub(crate) fn joined(mut one: Value, other: Value) -> Value {
    if let (Value::Object(one), Value::Object(other)) = (&mut one, other) {
        one.extend(other);
    }
    one
}

#[cfg(test)]
mod tests {
    use protocol::maps::NodeEntry;

    use super::*;

    #[test]
    fn targets_and_nodes_are_found_by_number_and_by_name_if_it_is_one_only() {
        let targets = vec![
            (TargetId(0), TargetEntry::new(1, "target-0".into())),
            (TargetId(1), TargetEntry::new(2, "target-0".into())),
        ];
        let mut maps = registry::change::new_cluster(1, targets, 1, 1);
        maps.nodes.insert(2, NodeEntry { name: "host-2".into(), ..maps.nodes[&1].clone() });
        let target = |name: &str| {
            Leaver::find(&maps, &Whom::Target(name.into())).map(|it| it.targets.into_iter().collect::<Vec<_>>())
        };
        assert_eq!(target("1"), Ok(vec![TargetId(1)]));
        assert_eq!(target("host-2:target-0"), Ok(vec![TargetId(1)]));
        assert!(target("target-0").is_err_and(|why| why.contains("2 targets")));
        assert!(target("7").is_err());
        let node = |name: &str| Leaver::find(&maps, &Whom::Node(name.into())).map(|it| (it.node, it.targets.len()));
        assert_eq!(node("host-2"), Ok((Some(2), 1)));
        assert_eq!(node("1"), Ok((Some(1), 1)));
        assert!(node("3").is_err());
    }
}
