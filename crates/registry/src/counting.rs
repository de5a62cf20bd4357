//! Which copies of a node's replica count, so that it may go on without some that failed
//! (`docs/decisions/0051-a-replica-goes-on-without-a-copy.md`).
//!
//! A replica lies on n targets of its node, which are its *set*, and what it promised on min(m+1, n) of them (`store`). A node
//! that can write fewer may go on with those that are left, as a smaller set. But whoever finds only the lost ones at a later
//! start must not go on with these: they tell of a vote that was changed since. So the others are asked.
//!
//! 1. A set counts once min(m+1, n) of its targets hold it and all that was promised. A start takes the newest copy there is,
//!    and with it the set that this one names. Of that it must read n−m and write min(m+1, n), and changes nothing before it
//!    has found so many.
//! 2. A set lacks m targets at most of the one before. Then fewer targets of that one are without the newer set than a start
//!    needs: who needs nobody's consent finds the newer set, or does not start.
//! 3. A node that can write fewer goes on with a smaller set once the cluster has agreed: that the set that it had is the one
//!    that was agreed on last, and that nothing was said of it since the node looked. Of two sets that have no target in
//!    common, one alone is agreed to. Its generations begin beyond all that the copies can be at that were given up: starts
//!    that were stopped may have written some of these, and not those that are left.
//! 4. Whoever goes on with a set that is not the one agreed on says so, after it was written. A life that is over cannot: what
//!    it said and comes late was said before it was looked at last.
//! 5. A set grows right behind a checkpoint that reached enough: then a start with the smaller one knows of all generations.

use std::collections::{BTreeMap, BTreeSet};
use std::pin::pin;
use std::sync::Arc;
use std::time::Duration;

use futures_util::future::{join_all, select};
use host::Host;
use protocol::id::{MapEpoch, TargetId};
use protocol::maps::{Counted, Maps, TargetState};
use protocol::registry::{RegistryError, RegistryReply, RegistryRequest};

use crate::change::{Outcome, Reply, next_epoch};
use crate::consensus::Command;
use crate::network::{Said, Talk, ask};
use crate::runtime::within;
use crate::{Registry, Standing};

/// How often the others are asked before a start gives up, and how long it waits in between.
const TRIES: u32 = 20;
const PAUSE: Duration = Duration::from_millis(500);
/// How often is looked whether there is something to say.
const LOOK: Duration = Duration::from_secs(1);

/// The targets of a set.
pub(crate) type Set = BTreeSet<TargetId>;

/// How many copies of a set of so many a start must read, where `spare` of them may be lost.
pub(crate) fn must_read(copies: usize, spare: u8) -> usize {
    copies - usize::from(spare).min(copies.saturating_sub(1))
}

/// How many copies of a set of so many whatever is promised must be on.
pub(crate) fn must_write(copies: usize, spare: u8) -> usize {
    (usize::from(spare) + 1).min(copies)
}

/// What the cluster knows of a node's set from now on.
pub(crate) fn set(maps: &mut Maps, (node, seen): (u32, MapEpoch), from: Option<Set>, to: Set) -> Reply {
    let since = next_epoch(maps);
    let is_there = |target: &TargetId| maps.targets.get(target).is_some_and(|entry| entry.node == node);
    if to.is_empty() || !to.iter().all(is_there) {
        return Err(RegistryError::Unknown("target of that node".into()));
    }
    let parity = maps.parity;
    let known = maps.nodes.get_mut(&node).ok_or(RegistryError::Unknown("node".into()))?;
    if from.is_none() && known.copies.targets == to {
        return Ok(Outcome::Maps);
    }
    if known.copies.since > seen {
        return Err(RegistryError::Lost);
    }
    if from.is_some_and(|from| !may_follow(&known.copies, &from, &to, parity)) {
        return Err(RegistryError::InUse("other copies of that node's replica count".into()));
    }
    // Also where it was agreed to before: what its node said in between, and comes later, counts for nothing.
    known.copies = Counted { targets: to, since };
    Ok(Outcome::Maps)
}

/// Whether a node that had the set `from` may go on with `to`, as nobody hindered it before; see rules 2 and 3.
fn may_follow(known: &Counted, from: &Set, to: &Set, parity: u8) -> bool {
    let is_known = [from, to].contains(&&known.targets);
    is_known && to.is_subset(from) && from.len() - to.len() <= usize::from(parity)
}

/// What a node has the cluster know of its set.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Due {
    /// What it had, where it gives up some.
    from: Option<Set>,
    to: Set,
}

/// What is to be said of a node's own set, which is `held`, and which of its copies `failed`.
pub(crate) fn due(maps: &Maps, node: u32, (held, failed): (&Set, &Set)) -> Option<Due> {
    let known = &maps.nodes.get(&node)?.copies;
    if known.targets != *held {
        return Some(Due { from: None, to: held.clone() });
    }
    // Who watches a target has given it up, too. Should more fail, the replica still goes on.
    let is_lost = |target: &TargetId| {
        failed.contains(target) && maps.targets.get(target).is_some_and(|entry| entry.state == TargetState::Failed)
    };
    let to: Set = held.iter().copied().filter(|target| !is_lost(target)).collect();
    let gives_up = to != *held && !to.is_empty() && may_follow(known, held, &to, maps.parity);
    gives_up.then(|| Due { from: Some(held.clone()), to })
}

/// Has the cluster know with which copies this node's replica goes on; gives up those that failed, and takes them in again.
pub(crate) async fn look_after(registry: Arc<Registry>) {
    let node = registry.host.node().0;
    let mut tried = BTreeMap::new();
    loop {
        // First what the cluster knows: what is said of it meanwhile is newer than that.
        let maps = registry.maps();
        let serves = |target: TargetId| {
            let entry = maps.targets.get(&target).filter(|entry| entry.serves())?;
            // Once, each time that its state has changed.
            (tried.insert(target, entry.since) != Some(entry.since)).then_some(())
        };
        within(&registry.host, registry.store.take_back(serves)).await;
        let (held, failed) = within(&registry.host, registry.store.counted()).await;
        if let Some(Due { from, to }) = due(&maps, node, (&held, &failed)) {
            let seen = maps.epoch;
            let said = RegistryRequest::SetCopies { node, from: from.clone(), to: to.clone(), seen };
            if registry.answer(said).await.is_ok()
                && let Some(from) = from
            {
                // What could not be stored is stored with whatever is to be kept next.
                drop(within(&registry.host, registry.store.narrow(&from, &to)).await);
            }
        }
        select(pin!(registry.newer(maps.epoch)), pin!(registry.host.sleep(LOOK))).await;
    }
}

/// Why a node may not go on with the copies that are left.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Dissent {
    /// It never may.
    Refused(String),
    /// Too few of the others answer.
    Unheard(String),
}

/// The other machines agree that the node goes on with `to` of the copies that it had.
pub(crate) async fn consent(host: &Host, standing: &Standing, from: &Set, to: &Set) -> Result<(), Dissent> {
    let own = host.node().0;
    if standing.voters().iter().all(|voter| *voter == own) {
        return Err(Dissent::Refused("no other machine votes".into()));
    }
    let maps = match ask_leader(host, standing, &Talk::Newest(MapEpoch(0))).await? {
        Ok(RegistryReply::Maps(maps)) => maps,
        Ok(_) => return Err(Dissent::Unheard("the others answered something else than they were asked".into())),
        Err(error) => return Err(Dissent::Unheard(error.to_string())),
    };
    let Some(known) = maps.nodes.get(&own).map(|node| &node.copies) else {
        return Err(Dissent::Refused("this machine was taken out of the cluster".into()));
    };
    if !may_follow(known, from, to, maps.parity) {
        return Err(Dissent::Refused(why_not(&maps, known, from)));
    }
    let request = RegistryRequest::SetCopies { node: own, from: Some(from.clone()), to: to.clone(), seen: maps.epoch };
    let command = Command { id: host.random(), request, term: None };
    match ask_leader(host, standing, &Talk::Change(command)).await? {
        Ok(_) => Ok(()),
        Err(error) => Err(Dissent::Unheard(error.to_string())),
    }
}

/// The same, for a start: it is asked for again, for a while.
pub(crate) async fn patient_consent(host: &Host, standing: &Standing, from: &Set, to: &Set) -> Result<(), Dissent> {
    let mut tries = 0;
    loop {
        let answer = consent(host, standing, from, to).await;
        tries += 1;
        if tries == TRIES || !matches!(answer, Err(Dissent::Unheard(_))) {
            return answer;
        }
        host.sleep(PAUSE).await;
    }
}

/// In words for people.
fn why_not(maps: &Maps, known: &Counted, from: &Set) -> String {
    if known.targets == *from {
        return format!("more of its copies are missing than the {} that may be lost at once", maps.parity);
    }
    let name = |target: &TargetId| {
        let name = maps.targets.get(target).map(|entry| entry.name.as_str()).filter(|name| !name.is_empty());
        name.map_or(format!("target {}", target.0), |name| format!("{name} (target {})", target.0))
    };
    match known.targets.iter().map(name).collect::<Vec<_>>() {
        none if none.is_empty() => "the cluster was not told yet which copies it has".into(),
        names => {
            format!("this machine went on without it, and what counts is on {}: bring that back", names.join(", "))
        }
    }
}

/// What the machine answers that leads among the others.
async fn ask_leader(
    host: &Host,
    standing: &Standing,
    talk: &Talk,
) -> Result<protocol::registry::RegistryAnswer, Dissent> {
    let own = host.node().0;
    let maps = standing.maps();
    let others: BTreeSet<u32> =
        maps.storing().chain(standing.voters().iter().copied()).filter(|&it| it != own).collect();
    let asked = others.into_iter().map(|node| ask(host, node, maps.reign, talk));
    let mut why = "no other machine is known".to_owned();
    for said in join_all(asked).await {
        match said {
            Ok(Said::Answer(answer)) => return Ok(answer),
            Ok(Said::Outdated(_)) => return Err(Dissent::Refused("another machine was promoted without it".into())),
            Ok(Said::Failed(reason)) | Err(reason) => why = reason,
            Ok(_) => why = "none of them leads".into(),
        }
    }
    Err(Dissent::Unheard(why))
}

#[cfg(test)]
mod model;
