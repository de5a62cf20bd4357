//! Targets and nodes that are to go: what emptying them makes of the maps, and when they may be taken away
//! (`docs/decisions/0021-storage-is-taken-away.md`).
//!
//! 1. A target that is being emptied serves, and counts for what it holds; what is written from now on lies elsewhere.
//! 2. Emptying one costs no redundancy unless it was forced: where the others alone would be less redundant, because more
//!    of them have failed since, groups lie on it too.
//! 3. A target is taken away when no stripe can come to lie on it any more, and whoever asks found none there: no current
//!    group names it, and no run that is still written.
//! 4. A node is forgotten when it is gone, has no targets, and manages nothing. Its number is never given again.

use protocol::id::{GroupId, MapEpoch, TargetId};
use protocol::maps::{Drain, GroupEntry, LogState, Maps, NodeState, Run, TargetEntry, TargetState};
use protocol::registry::RegistryError;

use crate::change::{Outcome, Reply, forget_groups};
use crate::formation::{self, Machines};
use crate::{nodes, slots};

/// Begins to empty targets, or ends it.
pub(crate) fn set(maps: &mut Maps, targets: &[TargetId], drain: Drain) -> Reply {
    for target in targets {
        let entry = maps.targets.get_mut(target).filter(|entry| entry.state != TargetState::Removed);
        entry.ok_or_else(|| RegistryError::Unknown("target".into()))?.drain = drain;
    }
    if maps.present().all(|(_, entry)| entry.drain != Drain::No) {
        return Err(RegistryError::InUse("these are the last targets: there is nowhere for anything to go".into()));
    }
    // They rested on other shares.
    maps.wishes.clear();
    nodes::form(maps);
    Ok(Outcome::Maps)
}

/// Takes targets away; the maps of epoch `seen` are those with which nothing was found on them.
pub(crate) fn remove(maps: &mut Maps, targets: &[TargetId], seen: MapEpoch) -> Reply {
    if seen != maps.epoch {
        return Err(RegistryError::Lost);
    }
    for target in targets {
        if !maps.targets.get(target).is_some_and(TargetEntry::drains) {
            return Err(RegistryError::InUse("only what is being drained can be removed".into()));
        }
        if takes_stripes(maps, *target) {
            return Err(RegistryError::InUse("stripes may still be written to it".into()));
        }
    }
    for target in targets {
        maps.targets.get_mut(target).expect("it drains").state = TargetState::Removed;
    }
    let owners: Vec<u32> = targets.iter().map(|target| maps.targets[target].node).collect();
    for node in owners {
        if !maps.present().any(|(_, entry)| entry.node == node)
            && let Some(entry) = maps.nodes.get_mut(&node)
        {
            entry.stores = false;
        }
    }
    forget_groups(maps);
    Ok(Outcome::Maps)
}

/// Forgets a node.
pub(crate) fn remove_node(maps: &mut Maps, node: u32) -> Reply {
    let in_use = |what: &str| Err(RegistryError::InUse(what.into()));
    match maps.nodes.get(&node) {
        None if node < maps.next_node => return Err(RegistryError::Removed(node)),
        None => return Err(RegistryError::Unknown("node".into())),
        Some(entry) if entry.state == NodeState::Alive => return in_use("the node runs"),
        Some(_) => {}
    }
    if maps.present().any(|(_, entry)| entry.node == node) {
        return in_use("the node has targets");
    }
    slots::inherit(maps);
    if maps.slots.values().any(|slot| slot.node == node) {
        return in_use("the node manages slots that nobody has taken over");
    }
    maps.wishes.retain(|_, wish| wish.from != node && wish.to != node);
    maps.nodes.remove(&node);
    Ok(Outcome::Maps)
}

/// The groups that are laid over the targets that serve, without those that are being emptied wherever these can be spared.
pub(crate) fn spared(maps: &Maps) -> Vec<GroupEntry> {
    let over = |most: Drain| {
        let machines = serving(maps, most);
        let groups = formation::groups(&machines, maps.parity, maps.fragment_size);
        let parity = groups.iter().map(|group| group.geometry.parity).min();
        (parity, formation::are_domains(&machines, maps.parity), groups)
    };
    let staying = over(Drain::No);
    let careful = over(Drain::Careful);
    let best = if (careful.0, careful.1) > (staying.0, staying.1) { careful } else { staying };
    if best.2.is_empty() { over(Drain::Forced).2 } else { best.2 }
}

/// Whole targets of living nodes, but none that goes more surely than `most`.
fn serving(maps: &Maps, most: Drain) -> Machines {
    let mut machines = Machines::new();
    let whole = maps.targets.iter().filter(|(_, target)| target.state == TargetState::Whole && target.drain <= most);
    for (&id, target) in whole {
        if maps.nodes.get(&target.node).is_some_and(|node| node.state == NodeState::Alive) {
            machines.entry(target.node).or_default().push(id);
        }
    }
    machines
}

/// Whether stripes may still come to lie on a target: new ones, or those that a writer or recoverer has yet to end.
fn takes_stripes(maps: &Maps, target: TargetId) -> bool {
    let names = |group: &GroupId| maps.groups.get(group).is_some_and(|group| group.targets.contains(&target));
    let is_written = |run: &Run| run.end.is_none() && run.groups.iter().any(names);
    let unsealed = maps.logs.values().filter(|log| !matches!(log.state, LogState::Sealed(_)));
    maps.groups.values().any(|group| group.current && group.targets.contains(&target))
        || unsealed.flat_map(|log| &log.layout).any(is_written)
}
