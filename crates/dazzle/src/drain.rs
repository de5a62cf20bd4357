//! Emptying targets and machines and taking them away, as commands ask for it. This file awaits; `plan` decides whether, the
//! registry what follows, and cleaner and managers carry it out.

use std::collections::BTreeSet;
use std::time::Duration;

use log::Walk;
use log::exposure::is_unreadable;
use log::leaving::{Left, hidden};
use log::removal::{self, RemovalError, Silence};
use log::stripes::StripeState;
use protocol::id::TargetId;
use protocol::maps::{Drain, Maps, NodeEntry, NodeState, TargetEntry, TargetState};
use protocol::registry::{RegistryAnswer, RegistryError, RegistryRequest};
use registry::change;
use roles::targets::give_up_disks;
use serde_json::{Value, json};

use crate::config::Size;
use crate::edge::control::{Line, Progress, Whom};
use crate::node::Parts;
use crate::oracle::of_all_stripes;
use crate::pace::Pace;
use crate::plan::{Known, Lying, Plan, joined};
use crate::probe;

/// How often it is looked what is left, at most, and how much of the time.
const LOOK: Duration = Duration::from_secs(1);
const LOOK_SHARE: u32 = 4;
/// How many looks in a row must show the same, and nothing but what may be lost, before that is given up: what can be read is
/// laid anew elsewhere until then.
const LOST_LOOKS: u32 = 60;
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
                    [target] => Ok(Leaver { node: None, targets: [target].into(), name: maps.called(target) }),
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

    /// Those of its targets that do not serve.
    fn lost(&self, maps: &Maps) -> Vec<TargetId> {
        let has_failed = |target: &TargetId| maps.targets.get(target).is_some_and(|it| it.state == TargetState::Failed);
        self.targets.iter().copied().filter(has_failed).collect()
    }

    fn drains(&self, maps: &Maps) -> bool {
        self.targets.iter().all(|target| maps.targets.get(target).is_some_and(TargetEntry::drains))
    }

    fn may_go(&self, maps: &Maps) -> bool {
        self.targets.iter().all(|target| maps.targets.get(target).is_some_and(TargetEntry::may_go))
    }

    /// What has to be done before it can be removed.
    fn needs_first(&self, maps: &Maps) -> Option<String> {
        let name = &self.name;
        if self.node.is_some() && !self.is_gone(maps) {
            return Some(format!(
                "{name} runs, and programs there may use the file system: `dazzle node drain` it, if that is not done, and \
                 stop it there with `dazzle down`; then remove it. Nothing was changed"
            ));
        }
        let in_use = || format!("{name} is in use: `dazzle target drain` empties it first. Nothing was changed");
        (self.node.is_none() && !self.may_go(maps)).then(in_use)
    }

    /// Why it is not emptied, if it is not.
    fn refusal_to_empty(&self, plan: &Plan, force: bool) -> Option<String> {
        let (name, why) = (&self.name, plan.refusal.as_ref()?);
        match (plan.forcible, force) {
            (true, true) => None,
            (true, false) => {
                Some(format!("{name} is needed: {why}. Nothing was changed; --force drains it all the same"))
            }
            (false, _) => Some(format!("{name} is needed: {why}. Nothing was changed")),
        }
    }

    /// Why it is not removed, as far as that can be told before: of so many groups nobody knows whether something lies there.
    fn refusal_to_remove(&self, maps: &Maps, (plan, hidden): (&Plan, usize), force: bool) -> Option<String> {
        let is_hidden = hidden > 0 && !force;
        let refusal = match self.is_gone(maps) {
            _ if self.targets.is_empty() => None,
            true => {
                let hides = || is_hidden.then(|| RemovalError::Hidden(hidden).to_string());
                self.refusal_to_empty(plan, force).or_else(hides)
            }
            false if plan.left.stripes > 0 && (!force || self.lost(maps).is_empty()) => {
                Some(self.not_removed(&RemovalError::Left(plan.left)))
            }
            false if is_hidden => Some(self.not_removed(&RemovalError::Hidden(hidden))),
            false => {
                let request = RegistryRequest::RemoveTargets(self.targets.iter().copied().collect(), maps.epoch);
                change::apply(maps, request).1.err().map(|error| self.not_removed(&error.into()))
            }
        };
        refusal.or_else(|| {
            let forgotten = change::apply(&self.taken_from(maps), RegistryRequest::RemoveNode(self.node?)).1;
            forgotten.err().map(|error| self.not_forgotten(&error))
        })
    }

    /// The maps once its targets are taken away.
    fn taken_from(&self, maps: &Maps) -> Maps {
        let mut without = maps.clone();
        for target in &self.targets {
            without.targets.get_mut(target).expect("it was found there").state = TargetState::Removed;
        }
        let storing: BTreeSet<u32> = without.present().map(|(_, entry)| entry.node).collect();
        let own = |node: &u32| self.targets.iter().any(|target| maps.targets[target].node == *node);
        without
            .nodes
            .iter_mut()
            .filter(|(node, _)| own(node))
            .for_each(|(node, it)| it.stores &= storing.contains(node));
        without
    }

    fn not_removed(&self, why: &RemovalError) -> String {
        let name = &self.name;
        match why {
            RemovalError::Left(left) => {
                let bytes = Size(left.bytes_data);
                format!("{name} is not drained yet: {bytes} still lie over it. Nothing was changed")
            }
            RemovalError::Hidden(_) => format!(
                "{name} cannot be removed: {why}. Bring back the machines that are missing; or, if they are gone for good, \
                 --force removes it, and what lay on these alone is lost. Nothing was changed"
            ),
            RemovalError::Registry(RegistryError::Unavailable(_)) => {
                format!("whether {name} was removed is not known: {why}. Give the same command again")
            }
            RemovalError::Registry(_) => format!("{name} cannot be removed: {why}. Nothing was changed"),
        }
    }

    fn not_forgotten(&self, why: &RegistryError) -> String {
        format!("{} has no targets any more, but could not be removed: {why}", self.name)
    }

    /// How many slots its machine manages still.
    fn slots(&self, maps: &Maps) -> usize {
        self.node.map_or(0, |node| maps.slots.values().filter(|slot| slot.node == node).count())
    }
}

fn is_target(maps: &Maps, target: TargetId, name: &str) -> bool {
    target.0.to_string() == name || maps.called(target) == name || maps.targets[&target].name == name
}

/// What draining would cost and leave; changes nothing.
pub(crate) async fn plan(parts: &Parts, whom: &Whom) -> Result<Value, String> {
    let maps = refreshed(parts).await?;
    let leaver = Leaver::find(&maps, whom)?;
    let mut lying = Lying::default();
    Walk::over_all(&parts.roles.cluster, &maps).to_end(|state| lying.add(&maps, &state, &leaver.targets)).await;
    let plan = measured_plan(parts, (&maps, lying), &leaver.targets).await;
    Ok(joined(json!({"name": leaver.name, "votes_then": votes_without(parts, &maps, &leaver)}), plan.in_json()))
}

/// What taking away would cost and leave; changes nothing. It is refused as the removal would be.
pub(crate) async fn plan_to_remove(parts: &Parts, whom: &Whom, force: bool) -> Result<Value, String> {
    let maps = refreshed(parts).await?;
    let leaver = Leaver::find(&maps, whom)?;
    let (mut lying, mut is_any_lost) = (Lying::default(), false);
    let note = |state: StripeState| {
        lying.add(&maps, &state, &leaver.targets);
        is_any_lost |= is_unreadable(&maps, &state);
    };
    let silent = Walk::over_all(&parts.roles.cluster, &maps).to_end(note).await;
    if is_any_lost {
        // Nothing is called lost that is just being deleted.
        lying = of_all_stripes(parts, &maps, |lying: &mut Lying, state| lying.add(&maps, state, &leaver.targets)).await;
    }
    let plan = measured_plan(parts, (&maps, lying), &leaver.targets).await;
    let hidden = hidden(&maps, &leaver.targets, &silent).len();
    let refused = leaver.needs_first(&maps).or_else(|| leaver.refusal_to_remove(&maps, (&plan, hidden), force));
    let told = json!({
        "name": leaver.name, "votes_then": votes_without(parts, &maps, &leaver), "groups_unknown": hidden, "refused": refused,
    });
    Ok(joined(plan.in_json(), told))
}

/// How many machines vote when it is gone; nothing where it is not about one that stores, or this one cannot tell.
fn votes_without(parts: &Parts, maps: &Maps, leaver: &Leaver) -> Option<usize> {
    let registry = parts.roles.registry.as_ref()?;
    let stores = |maps: &Maps| maps.nodes.values().filter(|entry| entry.stores).count();
    let mut without = leaver.taken_from(maps);
    without.nodes.retain(|&node, _| Some(node) != leaver.node);
    let votes = || registry::voters::wanted(&without, &registry.voters().into_iter().collect()).len();
    (stores(&without) < stores(maps)).then(votes)
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
        emptied(parts, &leaver, Silence::Refused, progress).await?;
    }
    Ok(joined(json!({"name": leaver.name, "drained": wait}), plan.in_json()))
}

/// It stays after all.
pub(crate) async fn keep(parts: &Parts, whom: &Whom) -> Result<Value, String> {
    let leaver = Leaver::find(&*refreshed(parts).await?, whom)?;
    set(parts, &leaver, Drain::No).await?;
    Ok(json!({"name": leaver.name}))
}

/// Takes it away, for good. What is drained already goes at once; what a machine had that is gone is laid anew first, and what
/// a target had that has failed, if it is to go by force. All that is refused is before anything is given up.
pub(crate) async fn remove(parts: &Parts, whom: &Whom, force: bool, progress: &Progress) -> Result<Value, String> {
    let maps = refreshed(parts).await?;
    let leaver = Leaver::find(&maps, whom)?;
    if let Some(why) = leaver.needs_first(&maps) {
        return Err(why);
    }
    let silence = if force { Silence::Accepted } else { Silence::Refused };
    let (stored, lost) = (leaver.is_gone(&maps) && !leaver.targets.is_empty(), leaver.lost(&maps));
    if stored {
        begin(parts, &maps, &leaver, force).await?;
    }
    let is_given_up = force && !lost.is_empty();
    if is_given_up {
        give_up_disks(&parts.roles.cluster, lost).await?;
    }
    if stored || is_given_up {
        emptied(parts, &leaver, silence, progress).await?;
    }
    if !leaver.targets.is_empty() {
        take_away(parts, &leaver, silence).await?;
    }
    if let Some(node) = leaver.node {
        forgotten(parts.roles.cluster.registry(RegistryRequest::RemoveNode(node)).await)
            .map_err(|error| leaver.not_forgotten(&error))?;
    }
    Ok(json!({"name": leaver.name}))
}

/// Whether a machine is one of the cluster no more, as the registry answers. It has been taken out already where the answer to
/// that was lost, and it was asked for again.
fn forgotten(answer: RegistryAnswer) -> Result<(), RegistryError> {
    match answer {
        Ok(_) | Err(RegistryError::Removed(_)) => Ok(()),
        Err(error) => Err(error),
    }
}

async fn begin(parts: &Parts, maps: &Maps, leaver: &Leaver, force: bool) -> Result<Plan, String> {
    let name = &leaver.name;
    if leaver.targets.is_empty() {
        return Err(format!("{name} has no targets: there is nothing to drain"));
    }
    let mut lying = Lying::default();
    Walk::over_all(&parts.roles.cluster, maps).to_end(|state| lying.add(maps, &state, &leaver.targets)).await;
    let plan = plan_of(parts, (maps, lying), &leaver.targets, pace(parts)).await;
    if let Some(why) = leaver.refusal_to_empty(&plan, force) {
        return Err(why);
    }
    let drain = match &plan.refusal {
        None if leaver.drains(maps) => return Ok(plan),
        None => Drain::Careful,
        Some(_) => Drain::Forced,
    };
    set(parts, leaver, drain).await?;
    Ok(plan)
}

async fn set(parts: &Parts, leaver: &Leaver, drain: Drain) -> Result<(), String> {
    let targets: Vec<TargetId> = leaver.targets.iter().copied().collect();
    let answer = parts.roles.cluster.decide(|seen| RegistryRequest::Drain(targets.clone(), drain, seen)).await;
    answer.map(drop).map_err(|error| format!("the registry did not do it: {error}"))
}

/// The plan for whoever asks for one; where anything moves, with what links carry.
async fn measured_plan(parts: &Parts, (maps, lying): (&Maps, Lying), targets: &BTreeSet<TargetId>) -> Plan {
    let pace = if lying.left.stripes > 0 { measured_pace(parts).await } else { pace(parts) };
    plan_of(parts, (maps, lying), targets, pace).await
}

async fn plan_of(parts: &Parts, (maps, lying): (&Maps, Lying), targets: &BTreeSet<TargetId>, pace: Pace) -> Plan {
    let stats = probe::stats(&parts.roles.cluster, maps).await;
    Plan::of(Known { maps, lying, stats, pace }, targets)
}

/// How fast bytes may move, as the settings say.
pub(crate) fn pace(parts: &Parts) -> Pace {
    Pace { budget: parts.roles.cluster.maps().settings.rebuild_or(parts.config.rebuild.0), link: None }
}

/// The same, with what this machine's link carries just now.
pub(crate) async fn measured_pace(parts: &Parts) -> Pace {
    Pace { link: probe::link(&parts.roles.cluster).await, ..pace(parts) }
}

/// Waits until nothing lies there, but for what is accepted to be lost, and no slot is managed there.
async fn emptied(parts: &Parts, leaver: &Leaver, silence: Silence, progress: &Progress) -> Result<(), String> {
    let host = parts.roles.cluster.host();
    let (mut most, mut still) = (0, Still::default());
    loop {
        let began = host.now();
        let (left, lost) = left_of(parts, leaver).await?;
        let maps = parts.roles.cluster.maps();
        if !leaver.drains(&maps) {
            return Err(format!("somebody decided that {} stays, or took it away", leaver.name));
        }
        let slots = if leaver.is_gone(&maps) { 0 } else { leaver.slots(&maps) };
        let mut why = None;
        if silence == Silence::Accepted && still.looks(left, lost) == LOST_LOOKS {
            return Ok(());
        }
        if left.stripes == 0 && slots == 0 {
            match removal::conclude(&parts.roles.cluster, &leaver.targets).await {
                Ok(()) => return Ok(()),
                Err(RemovalError::Hidden(_)) if silence == Silence::Accepted => return Ok(()),
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

/// How long nothing has moved.
#[derive(Default)]
struct Still {
    last: Left,
    looks: u32,
}

impl Still {
    /// How many looks in a row have shown nothing but what may be lost, and as much of it.
    fn looks(&mut self, left: Left, lost: Left) -> u32 {
        let is_same = std::mem::replace(&mut self.last, left) == left;
        self.looks = match left == lost {
            true if is_same => self.looks + 1,
            is_lost => u32::from(is_lost),
        };
        self.looks
    }
}

async fn left_of(parts: &Parts, leaver: &Leaver) -> Result<(Left, Left), String> {
    // A registry that does not answer now is asked again.
    let mut tried = Err(String::new());
    for _ in 0..REMOVE_TRIES {
        let left = removal::left(&parts.roles.cluster, &leaver.targets).await;
        tried = left.map_err(|error| error.to_string());
        if tried.is_ok() {
            break;
        }
        parts.roles.cluster.host().sleep(LOOK).await;
    }
    tried
}

async fn take_away(parts: &Parts, leaver: &Leaver, silence: Silence) -> Result<(), String> {
    let mut last = RemovalError::Registry(RegistryError::Lost);
    for _ in 0..REMOVE_TRIES {
        last = match removal::remove(&parts.roles.cluster, &leaver.targets, silence).await {
            Ok(()) => return Ok(()),
            Err(error @ (RemovalError::Left(_) | RemovalError::Hidden(_))) => return Err(leaver.not_removed(&error)),
            Err(error) => error,
        };
        parts.roles.cluster.host().sleep(LOOK).await;
    }
    Err(leaver.not_removed(&last))
}

/// The newest maps.
pub(crate) async fn refreshed(parts: &Parts) -> Result<std::sync::Arc<Maps>, String> {
    parts.roles.cluster.refresh().await.map_err(|error| error.to_string())
}

#[cfg(test)]
mod tests {
    use protocol::id::{LogId, StripeNumber};
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

    /// Three machines with a target each, the third of which is gone, and a stripe over all of them.
    fn without_the_third() -> (Maps, Vec<StripeState>) {
        let targets = (1..=3).map(|node| (TargetId(node), TargetEntry::new(node, format!("target-{node}")))).collect();
        let maps = change::new_cluster(1, targets, 1, 1);
        let group = *maps.groups.keys().next().expect("three serve");
        let (log, number) = (LogId(1), StripeNumber(0));
        let states = vec![StripeState {
            log,
            number,
            length: 9,
            ended: true,
            group,
            cut_off: false,
            missing: vec![],
            astray: vec![],
        }];
        let (left, _) = change::apply(&maps, RegistryRequest::End { node: 3, session: 1 });
        (Maps { groups: maps.groups.clone(), ..left.expect("it was there") }, states)
    }

    #[test]
    fn what_was_taken_away_already_is_taken_away() {
        let (mut maps, _) = without_the_third();
        maps.groups.clear();
        maps.targets.get_mut(&TargetId(3)).expect("one of three").drain = Drain::Forced;
        let mut step = |request| {
            let (next, reply) = change::apply(&maps, request);
            let changed = next.is_some();
            maps = next.unwrap_or(maps.clone());
            (changed, reply.and_then(|outcome| outcome.with(std::sync::Arc::new(maps.clone()))))
        };
        let (_, runs) = step(RegistryRequest::RemoveNode(1));
        assert!(matches!(forgotten(runs), Err(RegistryError::InUse(_))));
        let (_, stores) = step(RegistryRequest::RemoveNode(3));
        assert!(matches!(forgotten(stores), Err(RegistryError::InUse(_))));
        let targets = |seen| RegistryRequest::RemoveTargets(vec![TargetId(3)], seen);
        let seen = step(RegistryRequest::Maps).1.expect("it tells").maps().expect("the maps").epoch;
        for asked in [0, 1] {
            // The second time the answer to the first was lost.
            let (changed, answer) = step(targets(seen));
            assert!(answer.is_ok() && changed == (asked == 0), "{answer:?}");
        }
        for asked in [0, 1] {
            let (changed, answer) = step(RegistryRequest::RemoveNode(3));
            assert_eq!((changed, forgotten(answer)), (asked == 0, Ok(())));
        }
        let (_, never) = step(RegistryRequest::RemoveNode(4));
        assert!(matches!(forgotten(never), Err(RegistryError::Unknown(_))), "there never was such a machine");
    }

    /// Why a plan says that a removal would be refused, where so many groups tell nothing.
    fn refused(maps: &Maps, states: &[StripeState], whom: &Whom, (hidden, force): (usize, bool)) -> Option<String> {
        let leaver = Leaver::find(maps, whom).expect("it is there");
        let (stats, pace) = (std::collections::BTreeMap::new(), Pace { budget: 1, link: None });
        let mut lying = Lying::default();
        states.iter().for_each(|state| lying.add(maps, state, &leaver.targets));
        let plan = Plan::of(Known { maps, lying, stats, pace }, &leaver.targets);
        leaver.needs_first(maps).or_else(|| leaver.refusal_to_remove(maps, (&plan, hidden), force))
    }

    #[test]
    fn a_plan_to_remove_is_refused_in_the_words_of_the_command() {
        let (mut maps, states) = without_the_third();
        let (node, target) = (|name: &str| Whom::Node(name.into()), |name: &str| Whom::Target(name.into()));
        let says = |refused: Option<String>, words: &str| refused.is_some_and(|why| why.contains(words));
        assert!(says(refused(&maps, &[], &node("1"), (0, true)), "runs, and programs there"), "no force helps");
        assert_eq!(refused(&maps, &[], &node("3"), (0, false)), None);
        assert!(says(refused(&maps, &[], &node("3"), (2, false)), "of 2 stripe group(s) too few targets answer"));
        assert_eq!(refused(&maps, &[], &node("3"), (2, true)), None, "what lies there alone is given up");
        assert!(says(refused(&maps, &[], &target("target-2"), (0, true)), "`dazzle target drain` empties it first"));
        maps.targets.get_mut(&TargetId(2)).expect("one of three").drain = Drain::Careful;
        assert!(says(refused(&maps, &states, &target("target-2"), (0, true)), "9 B still lie over it. Nothing was"));
        let mut failed = maps.clone();
        failed.targets.get_mut(&TargetId(2)).expect("one of three").state = TargetState::Failed;
        let refusal = |force| refused(&failed, &states, &target("target-2"), (0, force));
        assert!(says(refusal(false), "9 B still lie over it. Nothing was"));
        assert!(!says(refusal(true), "still lie over it"), "it is laid anew as far as it can be, and then given up");
        assert!(says(refused(&maps, &[], &target("target-2"), (1, false)), "--force removes it"));
        assert!(says(refused(&maps, &[], &target("target-2"), (0, false)), "stripes may still be written to it"));
        maps.groups.clear();
        assert_eq!(refused(&maps, &[], &target("target-2"), (0, false)), None);
        let without = Leaver::find(&maps, &target("target-2")).expect("it is there").taken_from(&maps);
        assert!(!without.nodes[&2].stores && without.nodes[&1].stores, "its machine stores nothing then");
    }
}
