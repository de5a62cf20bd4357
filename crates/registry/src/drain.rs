//! Targets and nodes that are to go: what emptying them makes of the maps, and when they may be taken away
//! (`docs/decisions/0021-storage-is-taken-away.md`).
//!
//! 1. A target that is being emptied serves, and counts for what it holds; what is written from now on lies elsewhere.
//! 2. Emptying one costs no redundancy unless it was forced: where the others alone would be less redundant, because more
//!    of them have failed since, groups lie on it too.
//! 3. A target is taken away when no stripe can come to lie on it any more, and whoever asks found none there: no current
//!    group names it, and no run that is still written.
//! 4. That it is empty may be known before, so that it may be switched off then and is not asked any more. It counts as long
//!    as nothing has come to lie there: no longer where it stays after all, or a log is written over it again. That groups
//!    lie on it again, for redundancy needs it, is not enough: it may be off before any log goes there.
//! 5. That a target is to go, or to stay, was decided with maps that say what was decided before: a request that comes late
//!    undoes nothing.
//! 6. A node is forgotten when it is gone, has no targets, and manages nothing. Its number is never given again.

use protocol::id::{MapEpoch, TargetId};
use protocol::maps::{Drain, GroupEntry, Maps, NodeState, TargetEntry, TargetState};
use protocol::registry::RegistryError;

use crate::change::{self, Outcome, Reply, forget_groups};
use crate::formation::{self, Domains, Machines};
use crate::{nodes, slots};

/// Begins to empty targets, or ends it, as was decided with the maps of epoch `seen`. Asked again, nothing changes.
pub(crate) fn set(maps: &mut Maps, targets: &[TargetId], drain: Drain, seen: MapEpoch) -> Reply {
    let is_so = |entry: &TargetEntry| entry.state != TargetState::Removed && entry.drain == drain;
    if targets.iter().all(|target| maps.targets.get(target).is_some_and(is_so)) {
        return Ok(Outcome::Maps);
    }
    change::decide(maps, seen)?;
    for target in targets {
        let entry = maps.targets.get_mut(target).filter(|entry| entry.state != TargetState::Removed);
        entry.ok_or_else(|| RegistryError::Unknown("target".into()))?.drain = drain;
    }
    let may_take = |entry: &TargetEntry| entry.drain == Drain::No && entry.state != TargetState::New;
    if !maps.present().any(|(_, entry)| may_take(entry)) {
        return Err(RegistryError::InUse("these are the last targets: there is nowhere for anything to go".into()));
    }
    // They rested on other shares.
    maps.wishes.clear();
    nodes::form(maps);
    Ok(Outcome::Maps)
}

/// Remembers that targets are empty; the maps of epoch `seen` are those with which nothing was found on them.
pub(crate) fn conclude(maps: &mut Maps, targets: &[TargetId], seen: MapEpoch) -> Reply {
    expect_empty(maps, targets, seen)?;
    for target in targets {
        maps.targets.get_mut(target).expect("it may go").empty = true;
    }
    Ok(Outcome::Maps)
}

/// Forgets that targets were empty on which something may lie again.
pub(crate) fn reconsider(maps: &mut Maps) {
    let empty = maps.targets.iter().filter(|(_, entry)| entry.empty);
    let takes = empty.filter(|&(&target, entry)| !entry.may_go() || maps.is_written(target));
    let takes: Vec<TargetId> = takes.map(|(&target, _)| target).collect();
    for target in takes {
        maps.targets.get_mut(&target).expect("it is there").empty = false;
    }
}

/// Takes targets away; the maps of epoch `seen` are those with which nothing was found on them. Asked again, nothing changes.
pub(crate) fn remove(maps: &mut Maps, targets: &[TargetId], seen: MapEpoch) -> Reply {
    let left: Vec<TargetId> = targets.iter().copied().filter(|&target| !was_removed(maps, target)).collect();
    let targets = &left[..];
    if targets.is_empty() {
        return Ok(Outcome::Maps);
    }
    expect_empty(maps, targets, seen)?;
    for target in targets {
        let entry = maps.targets.get_mut(target).expect("it may go");
        (entry.state, entry.empty) = (TargetState::Removed, false);
    }
    // Whatever they were yet to get in a group of the past nobody needs there any more.
    for group in maps.groups.values_mut() {
        group.newcomers.retain(|member| !targets.contains(member));
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

/// Whether a target was taken away: as long as a log names it, it is in the maps.
fn was_removed(maps: &Maps, target: TargetId) -> bool {
    maps.targets.get(&target).map_or(target < maps.next_target, |entry| entry.state == TargetState::Removed)
}

/// Whether nothing can come to lie on targets on which nothing was found.
fn expect_empty(maps: &Maps, targets: &[TargetId], seen: MapEpoch) -> Result<(), RegistryError> {
    if seen != maps.epoch {
        return Err(RegistryError::Lost);
    }
    for target in targets {
        if !maps.targets.get(target).is_some_and(TargetEntry::may_go) {
            return Err(RegistryError::InUse("only what is being drained can be removed".into()));
        }
        if maps.takes_stripes(*target) {
            return Err(RegistryError::InUse("stripes may still be written to it".into()));
        }
    }
    Ok(())
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
        let groups = formation::groups(&machines, maps.class(), maps.fragment_size);
        let parity = groups.iter().map(|group| group.geometry.parity).min();
        (parity, Domains::over(&machines, maps.parity), groups)
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
            machines.entry(target.node).or_default().push((id, target.size));
        }
    }
    machines
}

#[cfg(test)]
mod tests {
    use protocol::id::LogId;
    use protocol::maps::Writer;
    use protocol::registry::RegistryRequest;

    use super::*;
    use crate::change::{new_cluster, open, step};

    /// Machines with one target each; node n has target n.
    fn cluster(nodes: u32) -> Maps {
        let targets = (1..=nodes).map(|node| (TargetId(node), TargetEntry::new(node, String::new()))).collect();
        new_cluster(1, targets, 1, 1)
    }

    fn drain(maps: &mut Maps, target: u32, drain: Drain) -> Reply {
        let seen = maps.epoch;
        step(maps, RegistryRequest::Drain(vec![TargetId(target)], drain, seen))
    }

    fn remove(maps: &mut Maps, target: u32) -> Reply {
        let seen = maps.epoch;
        step(maps, RegistryRequest::RemoveTargets(vec![TargetId(target)], seen))
    }

    fn in_groups(maps: &Maps) -> Vec<u32> {
        let current = maps.groups.values().filter(|group| group.current).flat_map(|group| group.targets.clone());
        let targets: std::collections::BTreeSet<_> = current.map(|target| target.0).collect();
        targets.into_iter().collect()
    }

    fn set_state(maps: &mut Maps, target: u32, state: TargetState) {
        step(maps, RegistryRequest::SetTarget(TargetId(target), state)).expect("it is there");
    }

    #[test]
    fn what_is_drained_takes_no_new_stripes_and_may_stay_after_all() {
        let mut maps = cluster(4);
        assert_eq!(drain(&mut maps, 4, Drain::Careful), Ok(Outcome::Maps));
        assert_eq!(in_groups(&maps), [1, 2, 3]);
        assert_eq!(maps.targets[&TargetId(4)].state, TargetState::Whole, "it serves what it has");
        assert_eq!(drain(&mut maps, 4, Drain::No), Ok(Outcome::Maps));
        assert_eq!(in_groups(&maps), [1, 2, 3, 4]);
        assert!(matches!(drain(&mut maps, 9, Drain::Careful), Err(RegistryError::Unknown(_))));
    }

    #[test]
    fn what_was_decided_with_older_maps_undoes_nothing() {
        let mut maps = cluster(5);
        let decide = |maps: &mut Maps, targets: &[u32], drain, seen| {
            step(maps, RegistryRequest::Drain(targets.iter().copied().map(TargetId).collect(), drain, seen))
        };
        let before = maps.epoch;
        decide(&mut maps, &[4], Drain::Careful, before).expect("three are left");
        let decided = maps.clone();
        assert_eq!(decide(&mut maps, &[4], Drain::Careful, before), Ok(Outcome::Maps), "it was asked twice");
        assert_eq!(decide(&mut maps, &[5, 4], Drain::No, before), Err(RegistryError::Lost), "that was not known");
        assert_eq!(maps, decided, "neither changes anything");
        decide(&mut maps, &[4], Drain::No, decided.epoch).expect("it stays");
        assert_eq!(decide(&mut maps, &[4], Drain::Careful, before), Err(RegistryError::Lost), "it comes late");
        assert_eq!(in_groups(&maps), [1, 2, 3, 4, 5]);
    }

    #[test]
    fn redundancy_counts_for_more_than_a_drain_that_was_not_forced() {
        let mut maps = cluster(3);
        drain(&mut maps, 3, Drain::Careful).expect("two are left");
        set_state(&mut maps, 2, TargetState::Failed);
        assert_eq!(in_groups(&maps), [1, 3], "one machine alone may not be lost");
        drain(&mut maps, 3, Drain::Forced).expect("one is left");
        assert_eq!(in_groups(&maps), [1]);
        set_state(&mut maps, 1, TargetState::Failed);
        assert_eq!(in_groups(&maps), [3], "there is nothing else");
        let all = RegistryRequest::Drain((1..=3).map(TargetId).collect(), Drain::Forced, maps.epoch);
        assert!(matches!(step(&mut maps, all), Err(RegistryError::InUse(_))), "something must stay");
    }

    #[test]
    fn a_target_is_removed_when_nothing_can_come_to_lie_on_it() {
        let mut maps = cluster(4);
        let Ok(Outcome::Log(log, epoch)) = open(&mut maps, 1, Writer::Client) else { panic!("a log is opened") };
        assert!(matches!(remove(&mut maps, 4), Err(RegistryError::InUse(_))), "nobody drained it");
        drain(&mut maps, 4, Drain::Careful).expect("three are left");
        assert!(matches!(remove(&mut maps, 4), Err(RegistryError::InUse(_))), "the log is written there");
        let current: Vec<_> = maps.groups.iter().filter(|(_, group)| group.current).map(|(&id, _)| id).collect();
        let from = protocol::id::StripeNumber(3);
        step(&mut maps, RegistryRequest::AddRun { log, version: 1, epoch, from, groups: current }).expect("it goes on");
        assert!(matches!(remove(&mut maps, 4), Err(RegistryError::InUse(_))), "what it left may be laid there anew");
        step(&mut maps, RegistryRequest::FinishRuns { log, version: 2, epoch, end: from }).expect("all is elsewhere");
        let seen = MapEpoch(maps.epoch.0 - 1);
        let early = RegistryRequest::RemoveTargets(vec![TargetId(4)], seen);
        assert_eq!(step(&mut maps, early), Err(RegistryError::Lost), "it was looked at before that");
        assert_eq!(remove(&mut maps, 4), Ok(Outcome::Maps));
        assert_eq!(maps.targets[&TargetId(4)].state, TargetState::Removed, "the log's past names it");
        let back = RegistryRequest::SetTarget(TargetId(4), TargetState::Behind);
        assert!(matches!(step(&mut maps, back), Err(RegistryError::Unknown(_))), "nothing brings it back");
        let other = RegistryRequest::SetTarget(TargetId(1), TargetState::Removed);
        assert!(
            matches!(step(&mut maps, other), Err(RegistryError::InUse(_))),
            "nor does anything go by the back door"
        );
        step(&mut maps, RegistryRequest::Begin { node: 4, after: 1, address: String::new(), keeps: None })
            .expect("the node is there still");
        assert_eq!(in_groups(&maps), [1, 2, 3]);
        seal(&mut maps, log);
        let seen = maps.epoch;
        step(&mut maps, RegistryRequest::ForgetLogs(vec![log], seen)).expect("nothing is left of it");
        assert!(!maps.targets.contains_key(&TargetId(4)), "nothing names it any more");
    }

    #[test]
    fn what_was_taken_away_already_is_taken_away() {
        let mut maps = cluster(4);
        let Ok(Outcome::Log(log, _)) = open(&mut maps, 1, Writer::Client) else { panic!("a log is opened") };
        drain(&mut maps, 4, Drain::Careful).expect("three are left");
        seal(&mut maps, log);
        remove(&mut maps, 4).expect("nothing comes to lie there");
        assert_eq!(maps.targets[&TargetId(4)].state, TargetState::Removed, "the log's past names it");
        let removed = maps.clone();
        assert_eq!((remove(&mut maps, 4), &maps), (Ok(Outcome::Maps), &removed), "the answer was lost");
        let seen = maps.epoch;
        step(&mut maps, RegistryRequest::ForgetLogs(vec![log], seen)).expect("nothing is left of it");
        let forgotten = maps.clone();
        assert_eq!((remove(&mut maps, 4), &maps), (Ok(Outcome::Maps), &forgotten), "nothing names it any more");
        assert!(matches!(remove(&mut maps, 5), Err(RegistryError::InUse(_))), "there never was one");
        let both = RegistryRequest::RemoveTargets(vec![TargetId(3), TargetId(4)], maps.epoch);
        assert!(matches!(step(&mut maps, both), Err(RegistryError::InUse(_))), "the third is not to go");
    }

    #[test]
    fn what_is_empty_is_known_until_a_log_goes_there() {
        let mut maps = cluster(3);
        let is_empty = |maps: &Maps| maps.targets[&TargetId(3)].empty;
        let conclude = |maps: &mut Maps, seen| step(maps, RegistryRequest::TargetsEmpty(vec![TargetId(3)], seen));
        let now = maps.epoch;
        assert!(matches!(conclude(&mut maps, now), Err(RegistryError::InUse(_))), "nobody drained it");
        drain(&mut maps, 3, Drain::Careful).expect("two are left");
        assert_eq!(conclude(&mut maps, now), Err(RegistryError::Lost), "it was looked at before that");
        let now = maps.epoch;
        assert_eq!((conclude(&mut maps, now), is_empty(&maps)), (Ok(Outcome::Maps), true));
        step(&mut maps, RegistryRequest::End { node: 3, session: 1 }).expect("it is switched off");
        set_state(&mut maps, 3, TargetState::Failed);
        assert!(is_empty(&maps), "as it was before");
        drain(&mut maps, 3, Drain::No).expect("it stays");
        assert!(!is_empty(&maps), "it may be written again when it is back");

        step(&mut maps, RegistryRequest::Begin { node: 3, after: 1, address: String::new(), keeps: None })
            .expect("it is back");
        crate::change::bring_back(&mut maps, TargetId(3));
        drain(&mut maps, 3, Drain::Careful).expect("two are left");
        let now = maps.epoch;
        conclude(&mut maps, now).expect("nothing was written");
        set_state(&mut maps, 2, TargetState::Failed);
        assert_eq!(in_groups(&maps), [1, 3], "redundancy needs it once more");
        assert!(is_empty(&maps), "no log is there");
        assert!(matches!(remove(&mut maps, 3), Err(RegistryError::InUse(_))), "one may come");
        step(&mut maps, RegistryRequest::End { node: 3, session: 2 }).expect("it is switched off");
        assert_eq!((in_groups(&maps), is_empty(&maps)), (vec![1], true), "none came");
        step(&mut maps, RegistryRequest::Begin { node: 3, after: 2, address: String::new(), keeps: None })
            .expect("it is back");
        crate::change::bring_back(&mut maps, TargetId(3));
        let Ok(Outcome::Log(log, _)) = open(&mut maps, 1, Writer::Client) else { panic!("a log is opened") };
        assert_eq!((in_groups(&maps), is_empty(&maps)), (vec![1, 3], false), "it is written");
        crate::change::bring_back(&mut maps, TargetId(2));
        seal(&mut maps, log);
        assert!(!is_empty(&maps), "it may have something");
        let now = maps.epoch;
        conclude(&mut maps, now).expect("nothing was written");
        assert!(is_empty(&maps) && !is_empty(&crate::reign::begin(&maps, 1, None)), "another reign looks for itself");
    }

    fn seal(maps: &mut Maps, log: LogId) {
        let version = maps.logs[&log].version;
        let Ok(Outcome::Log(_, epoch)) = step(maps, RegistryRequest::Claim { log, version }) else { panic!("claimed") };
        let (length, tail) = (protocol::address::Position::START, protocol::id::StripeNumber(0));
        step(maps, RegistryRequest::Seal { log, epoch, length, tail }).expect("it is the claimant");
    }

    #[test]
    fn a_node_is_forgotten_when_it_is_gone_and_has_nothing() {
        let mut maps = cluster(3);
        let removal = RegistryRequest::RemoveNode(3);
        assert!(matches!(step(&mut maps, removal.clone()), Err(RegistryError::InUse(_))), "it runs");
        step(&mut maps, RegistryRequest::End { node: 3, session: 1 }).expect("it stops");
        assert!(matches!(step(&mut maps, removal.clone()), Err(RegistryError::InUse(_))), "it has a target");
        drain(&mut maps, 3, Drain::Careful).expect("two are left");
        remove(&mut maps, 3).expect("nothing was written there");
        assert_eq!(step(&mut maps, removal.clone()), Ok(Outcome::Maps));
        let begin = RegistryRequest::Begin { node: 3, after: 1, address: String::new(), keeps: None };
        assert_eq!(step(&mut maps, begin), Err(RegistryError::Removed(3)));
        assert_eq!(step(&mut maps, removal), Err(RegistryError::Removed(3)));
        let add = RegistryRequest::AddNode { name: String::new(), address: String::new(), stores: true, attempt: None };
        assert_eq!(step(&mut maps, add), Ok(Outcome::Node(4)), "numbers are never given twice");
    }

    #[test]
    fn a_node_that_is_drained_keeps_no_slots_and_gets_none() {
        let mut maps = cluster(3);
        step(&mut maps, RegistryRequest::Balance).expect("all slots are the first node's");
        drain(&mut maps, 1, Drain::Careful).expect("two are left");
        assert!(maps.wishes.is_empty(), "they rested on other shares");
        step(&mut maps, RegistryRequest::Balance).expect("shares changed");
        let shares: Vec<_> = maps.wishes.values().map(|wish| (wish.from, wish.to)).collect();
        assert_eq!(shares, [(1, 2), (1, 3)]);
        drain(&mut maps, 1, Drain::No).expect("it stays");
        drain(&mut maps, 3, Drain::Careful).expect("two are left");
        step(&mut maps, RegistryRequest::End { node: 1, session: 1 }).expect("it stops");
        assert!(maps.slots.values().all(|slot| slot.node == 2), "who is to go inherits nothing");
    }
}
