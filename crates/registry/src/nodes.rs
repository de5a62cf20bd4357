//! What nodes that come and go make of the maps.
//!
//! 1. A node that is gone has no whole targets, unless it never began a session, or nobody has formed groups since it left:
//!    whatever is written without it, it misses.
//! 2. Current groups lie on whole targets of living nodes alone, as long as there are any; on those that are being emptied
//!    (`drain`) only where the others alone would be less redundant.
//! 3. A session's number rises with each life of its node; what names an older one is refused. A session begins behind the
//!    one that its node knew of: a request that was made twice begins one.
//!    It may take over the log of its node's client, if the session before was not over: only then has nobody sealed it, nor
//!    been given what its client holds.
//! 4. A target that is added to a living node is in no group before it has served.
//! 5. No two nodes that can be called have one name, or had one address when they were added.
//! 6. By one invitation no two nodes are added that begin. Of the attempts of one machine to be added the latest counts, in
//!    whatever order they come.

use std::collections::{BTreeMap, BTreeSet};

use protocol::id::{LogId, TargetId};
use protocol::maps::{Invited, LogEntry, LogState, Maps, NodeEntry, NodeState, TargetEntry, TargetState, Writer};
use protocol::registry::{Attempt, Invitation, RegistryError};

use crate::change::{Outcome, Reply, find_or_form, next_epoch};
use crate::leases::Holder;
use crate::{drain, slots, stop};

/// More nodes and targets than this no maps hold: every map names them all.
const NODES_MAX: usize = 1000;
const TARGETS_MAX: usize = 10_000;
/// Longer than any invitation is good for.
const INVITATION_SECONDS_MAX: u64 = 2 * 86_400;
/// Longer than any path that people give a target, or any name of a machine.
const NAME_SIZE_MAX: usize = 4096;

/// A new node, which has not begun yet. One of its name or address that never began is a former attempt of the same machine:
/// it is forgotten, and its number never comes back.
pub(crate) fn add(maps: &mut Maps, (name, address, stores): (String, String, bool), attempt: Option<Attempt>) -> Reply {
    if name.len() > NAME_SIZE_MAX || address.len() > NAME_SIZE_MAX {
        return Err(RegistryError::Unknown("node with so long a name".into()));
    }
    let former = invited(maps, attempt, &name)?;
    let is_former = |node, other| former == Some(node) || is_alike(other, &name, &address);
    let alike: Vec<u32> =
        maps.nodes.iter().filter(|&(&node, other)| is_former(node, other)).map(|(&node, _)| node).collect();
    // Slots are given to who has begun, and never to be left without a manager.
    let is_begun = |node: u32| maps.nodes[&node].session > 0 || maps.slots.values().any(|slots| slots.node == node);
    if let Some((node, other)) = alike.iter().find(|&&node| is_begun(node)).map(|node| (node, &maps.nodes[node])) {
        return Err(RegistryError::InUse(taken(*node, other, &name)));
    }
    if let Some(attempt) = attempt
        && let Some(latest) = latest(maps, &alike).filter(|latest| latest.attempt >= attempt.number)
    {
        let is_same = |entry: &NodeEntry| (&entry.name, &entry.address, entry.stores) == (&name, &address, stores);
        let is_asked_again = former == Some(latest.node) && latest.attempt == attempt.number;
        if is_asked_again && is_same(&maps.nodes[&latest.node]) {
            return Ok(Outcome::Node(latest.node));
        }
        return Err(RegistryError::InUse(outrun(latest.node, &name)));
    }
    for former in alike {
        maps.nodes.remove(&former);
        // Only nodes that have begun are written to.
        maps.targets.retain(|_, target| target.node != former);
    }
    if maps.nodes.len() >= NODES_MAX {
        return Err(RegistryError::Unknown(format!("place for more than {NODES_MAX} nodes")));
    }
    let node = maps.next_node;
    maps.next_node += 1;
    maps.nodes.insert(node, NodeEntry::new(name, address, stores));
    if let Some(attempt) = attempt {
        note(maps, attempt, node);
    }
    Ok(Outcome::Node(node))
}

/// The node that was added by an invitation, if the machine of this name may come with it again: it has not begun yet.
fn invited(maps: &Maps, attempt: Option<Attempt>, name: &str) -> Result<Option<u32>, RegistryError> {
    let Some(used) = attempt.and_then(|attempt| maps.invitations.get(&attempt.invitation.number)) else {
        return Ok(None);
    };
    let waits = maps.nodes.get(&used.node).is_some_and(|former| former.name == name && former.session == 0);
    if waits { Ok(Some(used.node)) } else { Err(RegistryError::Used) }
}

/// Notes who came with an invitation. All are made for less than [`INVITATION_SECONDS_MAX`]: whatever expired so long before
/// this one was worth nothing when this one was made.
fn note(maps: &mut Maps, attempt: Attempt, node: u32) {
    let Invitation { number, expires } = attempt.invitation;
    maps.invitations.retain(|_, used| used.expires.saturating_add(INVITATION_SECONDS_MAX) > expires);
    maps.invitations.insert(number, Invited { node, expires, attempt: attempt.number });
}

/// The latest attempt by which one of `nodes` came.
fn latest(maps: &Maps, nodes: &[u32]) -> Option<Invited> {
    maps.invitations.values().filter(|used| nodes.contains(&used.node)).max_by_key(|used| used.attempt).copied()
}

fn outrun(node: u32, name: &str) -> String {
    format!(
        "{name} has tried to join in the same second or later, by its own clock, and is node {node}: try again; if its clock \
         was set back since, or another machine came with its token, remove that node with `dazzle node remove DIR {node}`, \
         and join with a new token"
    )
}

/// Whether people, or other nodes, would take the one for the other. Who has no address is called by nobody.
fn is_alike(other: &NodeEntry, name: &str, address: &str) -> bool {
    let can_be_called = !other.address.is_empty() && !address.is_empty();
    can_be_called && (other.name == name || other.address == address)
}

fn taken(node: u32, NodeEntry { name, address, .. }: &NodeEntry, wanted: &str) -> String {
    let advice = format!("or, if that machine is gone for good, remove it first with `dazzle node remove DIR {node}`");
    if name == wanted {
        format!("node {node} is called {name} already: give this machine another name with --name, {advice}")
    } else {
        format!(
            "node {node}, {name}, has the address {address} already: give this machine its own with --address, {advice}"
        )
    }
}

/// New targets, which lack nothing because nothing was written to them. A node that has begun is given none so: what comes
/// late may name a path that was corrected since, where there is no disk.
pub(crate) fn add_targets(maps: &mut Maps, node: u32, names: Vec<String>) -> Reply {
    let entry = maps.nodes.get(&node).filter(|entry| entry.stores);
    let session = entry.ok_or_else(|| RegistryError::Unknown("storing node".into()))?.session;
    if session > 0 {
        return Err(RegistryError::Begun(node, session));
    }
    if maps.targets.len() + names.len() > TARGETS_MAX || names.iter().any(|name| name.len() > NAME_SIZE_MAX) {
        return Err(RegistryError::Unknown("place for such targets".into()));
    }
    let first = maps.next_target;
    let own = maps.present().filter(|(_, entry)| entry.node == node);
    let mut known: BTreeSet<String> = own.map(|(_, entry)| entry.name.clone()).collect();
    for name in names.into_iter().filter(|name| known.insert(name.clone())) {
        maps.targets.insert(maps.next_target, TargetEntry::new(node, name));
        maps.next_target = TargetId(maps.next_target.0 + 1);
    }
    form(maps);
    Ok(Outcome::Targets(first))
}

/// A new target of a node that lives. Nobody misses it, and nothing is written to it, until it serves; it is behind then, and
/// whole once it was found to lack nothing. Asked again, nothing changes: names tell the targets of a node apart.
pub(crate) fn add_target(maps: &mut Maps, (node, session): (u32, u64), name: String) -> Reply {
    current(maps, node, session)?;
    if let Some((known, _)) = maps.present().find(|(_, entry)| entry.node == node && entry.name == name) {
        return Ok(Outcome::Targets(known));
    }
    if maps.targets.len() >= TARGETS_MAX || name.len() > NAME_SIZE_MAX {
        return Err(RegistryError::Unknown("place for such a target".into()));
    }
    let target = maps.next_target;
    maps.next_target = TargetId(target.0 + 1);
    maps.targets.insert(target, TargetEntry { state: TargetState::New, ..TargetEntry::new(node, name) });
    // Its last target may have been taken away.
    maps.nodes.get_mut(&node).expect("it is current").stores = true;
    Ok(Outcome::Targets(target))
}

/// How much fits on targets. Groups are formed by that, and stay where it is no news.
pub(crate) fn size_targets(maps: &mut Maps, sizes: &[(TargetId, u64)]) -> Reply {
    let mut is_news = false;
    for &(target, size) in sizes {
        let entry = maps.targets.get_mut(&target).filter(|entry| entry.state != TargetState::Removed);
        let entry = entry.ok_or_else(|| RegistryError::Unknown("target".into()))?;
        if entry.is_news(size) {
            entry.size = Some(size);
            is_news = true;
        }
    }
    if is_news {
        form(maps);
    }
    Ok(Outcome::Maps)
}

/// What people call a target from now on.
pub(crate) fn rename_target(maps: &mut Maps, target: TargetId, name: String) -> Reply {
    if name.len() > NAME_SIZE_MAX {
        return Err(RegistryError::Unknown("target with so long a name".into()));
    }
    let node = maps.present().find(|(id, _)| *id == target).map(|(_, entry)| entry.node);
    let node = node.ok_or(RegistryError::Unknown("target".into()))?;
    let is_alike = |(id, entry): (TargetId, &TargetEntry)| id != target && entry.node == node && entry.name == name;
    if maps.present().any(is_alike) {
        return Err(RegistryError::InUse(format!("another target of that node is called {name}")));
    }
    maps.targets.get_mut(&target).expect("it is present").name = name;
    Ok(Outcome::Maps)
}

/// What people call a node from now on. None has the name of another.
pub(crate) fn rename(maps: &mut Maps, node: u32, name: String) -> Reply {
    if name.len() > NAME_SIZE_MAX {
        return Err(RegistryError::Unknown("node with so long a name".into()));
    }
    let mut others = maps.nodes.iter().filter(|&(&other, _)| other != node);
    if let Some((&other, entry)) = others.find(|(_, entry)| !name.is_empty() && entry.name == name) {
        return Err(RegistryError::InUse(taken(other, entry, &name)));
    }
    let unknown = unknown(maps, node);
    maps.nodes.get_mut(&node).ok_or(unknown)?.name = name;
    Ok(Outcome::Maps)
}

/// A node lives, with a new session. What it missed while it was gone, its targets are behind with.
pub(crate) fn begin(maps: &mut Maps, (node, after): Holder, address: String, keeps: Option<LogId>) -> Reply {
    if address.len() > NAME_SIZE_MAX {
        return Err(RegistryError::Unknown("node with so long an address".into()));
    }
    stop::let_begin(maps)?;
    let unknown = unknown(maps, node);
    let entry = maps.nodes.get_mut(&node).ok_or(unknown)?;
    if entry.session != after {
        return Err(RegistryError::Begun(node, entry.session));
    }
    let session = after + 1;
    if let Some(log) = keeps {
        keep(&mut maps.logs, (entry, node), log)?;
    }
    (entry.session, entry.state, entry.address) = (session, NodeState::Alive, address);
    let since = next_epoch(maps);
    for target in maps.targets.values_mut().filter(|target| target.node == node) {
        if target.state == TargetState::Failed {
            (target.state, target.since) = (TargetState::Behind, since);
        }
    }
    form(maps);
    slots::forget_wishes(maps, node);
    slots::inherit(maps);
    Ok(Outcome::Session(session))
}

/// The next session of a node goes on with a log of the present one, if that is not over: then nobody seals the log.
fn keep(
    logs: &mut BTreeMap<LogId, LogEntry>,
    (entry, node): (&NodeEntry, u32),
    log: LogId,
) -> Result<(), RegistryError> {
    let over = RegistryError::Over(node, entry.session);
    let is_own = |log: &&mut LogEntry| (log.node, log.session, log.writer) == (node, entry.session, Writer::Client);
    let log = logs.get_mut(&log).filter(is_own).ok_or(over.clone())?;
    if entry.state == NodeState::Gone || !matches!(log.state, LogState::Open(_)) {
        return Err(over);
    }
    log.session += 1;
    log.version += 1;
    Ok(())
}

/// A session is over, by a clean stop or because its lease ran out. Where no other storing node lives, nobody can write
/// without its targets nor take its slots: then both stay as they are.
pub(crate) fn end(maps: &mut Maps, node: u32, session: u64) -> Reply {
    current(maps, node, session)?;
    maps.nodes.get_mut(&node).expect("it is current").state = NodeState::Gone;
    slots::forget_wishes(maps, node);
    if maps.storing().next().is_some() {
        fail_targets(maps, node);
        form(maps);
        slots::inherit(maps);
    }
    Ok(Outcome::Maps)
}

/// Refuses a session that is not the living one of its node.
pub fn current(maps: &Maps, node: u32, session: u64) -> Result<(), RegistryError> {
    let entry = maps.nodes.get(&node).ok_or_else(|| unknown(maps, node))?;
    let lives = entry.state == NodeState::Alive && entry.session == session;
    if lives { Ok(()) } else { Err(RegistryError::Over(node, session)) }
}

/// Numbers are never given twice, so a node that is not in the maps and could be was there once.
fn unknown(maps: &Maps, node: u32) -> RegistryError {
    if node < maps.next_node { RegistryError::Removed(node) } else { RegistryError::Unknown("node".into()) }
}

/// Forms the groups anew: stripes begun from now on lie on whole targets of living nodes only. Without any such target the
/// groups stay as they are, for whoever comes back.
pub(crate) fn form(maps: &mut Maps) {
    let wanted = drain::spared(maps);
    if wanted.is_empty() {
        return;
    }
    let left: Vec<_> =
        maps.nodes.iter().filter(|(_, node)| node.state == NodeState::Gone && node.session > 0).collect();
    let left: Vec<u32> = left.into_iter().map(|(&node, _)| node).collect();
    left.into_iter().for_each(|node| fail_targets(maps, node));
    for group in maps.groups.values_mut() {
        group.current = false;
    }
    let mut formed = BTreeSet::new();
    for group in wanted {
        let id = find_or_form(maps, group, &formed);
        maps.groups.get_mut(&id).expect("just formed or found").current = true;
        formed.insert(id);
    }
}

fn fail_targets(maps: &mut Maps, node: u32) {
    let since = next_epoch(maps);
    let served = |target: &&mut TargetEntry| target.node == node && target.serves();
    for target in maps.targets.values_mut().filter(served) {
        (target.state, target.since) = (TargetState::Failed, since);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::change::{self, new_cluster, step};
    use protocol::id::{GroupId, SLOT_COUNT};
    use protocol::registry::RegistryRequest;

    fn begin(maps: &mut Maps, node: u32) -> u64 {
        let after = maps.nodes[&node].session;
        match step(maps, RegistryRequest::Begin { node, after, address: format!("10.0.0.{node}:1"), keeps: None }) {
            Ok(Outcome::Session(session)) => session,
            other => panic!("{other:?}"),
        }
    }

    /// Machines with two disks each, all living.
    fn cluster(nodes: u32) -> Maps {
        let entry = |n: u32| TargetEntry::new(1, n.to_string());
        let mut maps = new_cluster(1, (0..2).map(|n| (TargetId(n), entry(n))).collect(), 1, 1);
        begin(&mut maps, 1);
        for node in 2..=nodes {
            let add = RegistryRequest::AddNode {
                name: node.to_string(),
                address: String::new(),
                stores: true,
                attempt: None,
            };
            assert_eq!(step(&mut maps, add), Ok(Outcome::Node(node)));
            let names = vec!["a".into(), "b".into()];
            let first = TargetId(2 * node - 2);
            assert_eq!(step(&mut maps, RegistryRequest::AddTargets { node, names }), Ok(Outcome::Targets(first)));
            begin(&mut maps, node);
        }
        maps
    }

    #[test]
    fn what_is_no_news_of_sizes_changes_nothing() {
        let mut maps = cluster(4);
        let tell = |maps: &mut Maps, sizes: &[(u32, u64)]| {
            let sizes = sizes.iter().map(|&(target, size)| (TargetId(target), size)).collect();
            step(maps, RegistryRequest::TargetSizes(sizes))
        };
        let current = |maps: &Maps| -> Vec<(GroupId, Vec<TargetId>)> {
            let current = maps.groups.iter().filter(|(_, group)| group.current);
            current.map(|(&id, group)| (id, group.targets.clone())).collect()
        };
        let equal = current(&maps);
        for target in 0..8 {
            tell(&mut maps, &[(target, 1000 + u64::from(target) * 17)]).expect("it is there");
            assert_eq!(current(&maps), equal, "they are alike, whoever has told");
        }
        let before = maps.clone();
        assert_eq!((tell(&mut maps, &[(0, 1062), (1, 960)]), &maps), (Ok(Outcome::Maps), &before), "it is no news");
        tell(&mut maps, &[(0, 4000), (1, 4000)]).expect("they have grown");
        assert_eq!(maps.targets[&TargetId(0)].size, Some(4000));
        let grown = current(&maps);
        let has = |targets: &Vec<TargetId>, node: u32| targets.iter().any(|target| maps.targets[target].node == node);
        assert!(grown.iter().all(|(_, targets)| has(targets, 1)), "as often as can be");
        assert_eq!(maps.verify(), Ok(()));
        assert!(matches!(tell(&mut maps, &[(9, 1)]), Err(RegistryError::Unknown(_))));
        tell(&mut maps, &[(0, 1000), (1, 1000)]).expect("they are as they were");
        assert_eq!(current(&maps), equal, "groups are found again");
    }

    #[test]
    fn what_is_wanted_twice_is_two_groups() {
        let targets = (0..3).map(|n| {
            let size = Some([3, 1, 4][n as usize] << 40);
            (TargetId(n), TargetEntry { size, ..TargetEntry::new(1 + n / 2, n.to_string()) })
        });
        let maps = new_cluster(1, targets.collect(), 1, 1);
        let of = |target| maps.groups.values().filter(|group| group.targets.contains(&TargetId(target))).count();
        assert_eq!(of(0), 3 * of(1), "two machines, and of one a disk is three times as large as the other");
        assert_eq!(of(2), of(0) + of(1));
    }

    fn in_groups(maps: &Maps) -> Vec<u32> {
        let current = maps.groups.values().filter(|group| group.current).flat_map(|group| group.targets.clone());
        let targets: std::collections::BTreeSet<_> = current.map(|target| target.0).collect();
        targets.into_iter().collect()
    }

    #[test]
    fn a_node_that_joins_is_written_to_when_it_begins() {
        let mut maps = cluster(1);
        let add = RegistryRequest::AddNode { name: "b".into(), address: String::new(), stores: true, attempt: None };
        assert_eq!(step(&mut maps, add), Ok(Outcome::Node(2)));
        let _ = step(&mut maps, RegistryRequest::AddTargets { node: 2, names: vec!["x".into()] });
        assert_eq!(in_groups(&maps), [0, 1]);
        begin(&mut maps, 2);
        assert_eq!(in_groups(&maps), [0, 1, 2]);
    }

    #[test]
    fn a_target_that_is_added_is_written_to_when_it_serves_and_missed_by_nobody_before() {
        let mut maps = cluster(2);
        let add = |name: &str| RegistryRequest::AddTarget { node: 2, session: 1, name: name.into() };
        assert_eq!(step(&mut maps, add("c")), Ok(Outcome::Targets(TargetId(4))));
        assert_eq!(step(&mut maps, add("c")), Ok(Outcome::Targets(TargetId(4))), "asked again");
        assert_eq!(maps.targets.len(), 5);
        assert_eq!(in_groups(&maps), [0, 1, 2, 3]);
        assert_eq!(step(&mut maps, RegistryRequest::End { node: 2, session: 1 }), Ok(Outcome::Maps));
        assert_eq!(begin(&mut maps, 2), 2);
        assert_eq!(maps.targets[&TargetId(4)].state, TargetState::New, "nobody waits for it");
        assert!(matches!(step(&mut maps, add("d")), Err(RegistryError::Over(2, 1))), "a former life adds nothing");
        let set = |state| RegistryRequest::SetTarget(TargetId(4), state);
        step(&mut maps, set(TargetState::Behind)).expect("it serves");
        assert!(!in_groups(&maps).contains(&4));
        let seen = maps.epoch;
        step(&mut maps, RegistryRequest::TargetWhole(TargetId(4), seen)).expect("it lacks nothing");
        assert!(in_groups(&maps).contains(&4));
        assert!(matches!(step(&mut maps, set(TargetState::New)), Err(RegistryError::InUse(_))), "it is new once");
    }

    #[test]
    fn a_new_target_is_no_place_for_what_the_others_hold_and_may_be_given_up() {
        let mut maps = cluster(1);
        let add = RegistryRequest::AddTarget { node: 1, session: 2, name: "c".into() };
        assert_eq!(step(&mut maps, add), Ok(Outcome::Targets(TargetId(2))));
        let all = RegistryRequest::Drain(vec![TargetId(0), TargetId(1)], protocol::maps::Drain::Careful, maps.epoch);
        assert!(matches!(step(&mut maps, all), Err(RegistryError::InUse(_))));
        let seen = maps.epoch;
        assert_eq!(step(&mut maps, RegistryRequest::RemoveTargets(vec![TargetId(2)], seen)), Ok(Outcome::Maps));
        assert!(!maps.targets.contains_key(&TargetId(2)), "nothing names it");
    }

    #[test]
    fn a_node_whose_last_target_was_taken_away_stores_again_with_another() {
        let mut maps = cluster(3);
        let own = vec![TargetId(4), TargetId(5)];
        let drain = RegistryRequest::Drain(own.clone(), protocol::maps::Drain::Careful, maps.epoch);
        step(&mut maps, drain).expect("others are left");
        let seen = maps.epoch;
        step(&mut maps, RegistryRequest::RemoveTargets(own, seen)).expect("nothing lies there");
        assert!(!maps.nodes[&3].stores);
        let add = RegistryRequest::AddTarget { node: 3, session: 1, name: "a".into() };
        assert_eq!(step(&mut maps, add), Ok(Outcome::Targets(TargetId(6))), "the name is free again");
        assert!(maps.nodes[&3].stores);
    }

    #[test]
    fn a_target_is_called_by_the_path_of_the_disk_that_took_its_place() {
        let mut maps = cluster(2);
        let rename = |target, name: &str| RegistryRequest::RenameTarget(TargetId(target), name.into());
        assert_eq!(step(&mut maps, rename(2, "c")), Ok(Outcome::Maps));
        assert_eq!(maps.targets[&TargetId(2)].name, "c");
        assert!(matches!(step(&mut maps, rename(3, "c")), Err(RegistryError::InUse(_))));
        assert_eq!(step(&mut maps, rename(0, "c")), Ok(Outcome::Maps), "on another machine");
        assert!(matches!(step(&mut maps, rename(9, "d")), Err(RegistryError::Unknown(_))));
    }

    #[test]
    fn a_node_is_called_as_it_says_unless_another_one_is() {
        let mut maps = cluster(2);
        let rename = |node, name: &str| RegistryRequest::RenameNode(node, name.into());
        assert_eq!(step(&mut maps, rename(1, "rack-1")), Ok(Outcome::Maps));
        assert_eq!(maps.nodes[&1].name, "rack-1");
        assert!(matches!(step(&mut maps, rename(2, "rack-1")), Err(RegistryError::InUse(_))));
        assert_eq!(step(&mut maps, rename(1, "rack-1")), Ok(Outcome::Maps), "asked again");
        assert_eq!(step(&mut maps, rename(9, "rack-9")), Err(RegistryError::Unknown("node".into())));
        let long = "x".repeat(NAME_SIZE_MAX + 1);
        assert!(matches!(step(&mut maps, rename(2, &long)), Err(RegistryError::Unknown(_))));
    }

    /// Whoever gets no answer in time asks another registry, and both requests arrive in the end.
    #[test]
    fn a_late_request_to_begin_does_not_end_the_session_that_an_earlier_one_began() {
        let mut maps = cluster(2);
        let request = RegistryRequest::Begin { node: 2, after: 1, address: "10.0.0.2:1".into(), keeps: None };
        assert_eq!(step(&mut maps, request.clone()), Ok(Outcome::Session(2)));
        let before = maps.clone();
        assert_eq!(step(&mut maps, request.clone()), Err(RegistryError::Begun(2, 2)));
        assert_eq!(maps, before);
        assert_eq!(current(&maps, 2, 2), Ok(()));
        let _ = step(&mut maps, RegistryRequest::End { node: 2, session: 2 });
        assert_eq!(step(&mut maps, request), Err(RegistryError::Begun(2, 2)), "who has stopped does not live again");
    }

    #[test]
    fn a_machine_that_tries_again_takes_the_place_of_its_former_attempt() {
        let mut maps = cluster(2);
        let add = |name: &str, address: &str| {
            let (name, address) = (name.into(), address.into());
            RegistryRequest::AddNode { name, address, stores: true, attempt: None }
        };
        assert_eq!(step(&mut maps, add("c", "10.0.0.9:1")), Ok(Outcome::Node(3)));
        let _ = step(&mut maps, RegistryRequest::AddTargets { node: 3, names: vec!["x".into()] });
        assert_eq!(step(&mut maps, add("c", "10.0.0.10:1")), Ok(Outcome::Node(4)));
        assert_eq!(step(&mut maps, add("d", "10.0.0.10:1")), Ok(Outcome::Node(5)));
        assert_eq!(maps.nodes.keys().collect::<Vec<_>>(), [&1, &2, &5]);
        assert!(maps.targets.values().all(|target| target.node < 3));
        let late = RegistryRequest::Begin { node: 3, after: 0, address: String::new(), keeps: None };
        assert_eq!(step(&mut maps, late), Err(RegistryError::Removed(3)));
    }

    fn add_by((name, port): (&str, u32), invitation: Invitation, number: u64) -> RegistryRequest {
        let (name, address, stores) = (name.into(), format!("10.0.0.9:{port}"), false);
        RegistryRequest::AddNode { name, address, stores, attempt: Some(Attempt { invitation, number }) }
    }

    #[test]
    fn an_attempt_to_join_that_comes_late_changes_nothing() {
        let mut maps = cluster(2);
        let by = |number| Invitation { number, expires: 1000 };
        assert_eq!(step(&mut maps, add_by(("c", 1), by(77), 20)), Ok(Outcome::Node(3)));
        for late in [add_by(("c", 1), by(77), 19), add_by(("c", 1), by(78), 19), add_by(("c", 2), by(77), 20)] {
            let before = maps.clone();
            assert!(
                matches!(step(&mut maps, late), Err(RegistryError::InUse(why)) if why.contains("node remove DIR 3"))
            );
            assert_eq!(maps, before);
        }
        assert_eq!(step(&mut maps, add_by(("c", 1), by(77), 20)), Ok(Outcome::Node(3)), "the same, asked twice");
        assert_eq!(step(&mut maps, add_by(("c", 1), by(78), 21)), Ok(Outcome::Node(4)), "it has tried once more");
    }

    #[test]
    fn targets_are_numbered_once() {
        let mut maps = cluster(2);
        let add = RegistryRequest::AddNode { name: "b".into(), address: String::new(), stores: true, attempt: None };
        assert_eq!(step(&mut maps, add), Ok(Outcome::Node(3)));
        let number = |maps: &mut Maps, names: &[&str]| {
            let names = names.iter().map(|name| name.to_string()).collect();
            step(maps, RegistryRequest::AddTargets { node: 3, names }).expect("it is known");
            maps.targets.values().filter(|target| target.node == 3).count()
        };
        assert_eq!((number(&mut maps, &["x", "y"]), number(&mut maps, &["x", "y"])), (2, 2));
        assert_eq!(number(&mut maps, &["y", "z"]), 3);
    }

    #[test]
    fn who_has_begun_is_given_no_targets_that_count_as_whole() {
        let mut maps = cluster(2);
        let late = RegistryRequest::AddTargets { node: 2, names: vec!["a path that was corrected since".into()] };
        let before = maps.clone();
        assert_eq!(step(&mut maps, late), Err(RegistryError::Begun(2, 1)));
        assert_eq!(maps, before);
    }

    #[test]
    fn an_invitation_is_good_for_one_machine() {
        let mut maps = cluster(2);
        let mut attempts = 0;
        let mut add = |name: &str, port: u32, number, expires| {
            attempts += 1;
            add_by((name, port), Invitation { number, expires }, attempts)
        };
        // What is refused for another reason does not use it up.
        assert_eq!(step(&mut maps, add("c", 1, 77, 1000)), Ok(Outcome::Node(3)));
        let begun = RegistryRequest::Begin { node: 3, after: 0, address: "10.0.0.9:1".into(), keeps: None };
        assert!(step(&mut maps, begun).is_ok());
        assert!(matches!(step(&mut maps, add("d", 1, 78, 1000)), Err(RegistryError::InUse(_))));
        assert_eq!(step(&mut maps, add("d", 2, 78, 1000)), Ok(Outcome::Node(4)));
        // The same machine may ask again until it begins; another one may not.
        assert_eq!(step(&mut maps, add("e", 3, 78, 1000)), Err(RegistryError::Used));
        assert_eq!(step(&mut maps, add("d", 3, 78, 1000)), Ok(Outcome::Node(5)));
        begin(&mut maps, 5);
        assert_eq!(step(&mut maps, add("d", 2, 78, 1000)), Err(RegistryError::Used));
        // Nor after the first one is gone.
        maps.nodes.remove(&5);
        assert_eq!(step(&mut maps, add("d", 2, 78, 1000)), Err(RegistryError::Used));
        // What is long worth nothing is forgotten.
        assert_eq!(step(&mut maps, add("f", 4, 79, 1000 + INVITATION_SECONDS_MAX)), Ok(Outcome::Node(6)));
        assert_eq!(maps.invitations.keys().collect::<Vec<_>>(), [&79]);
    }

    #[test]
    fn the_next_session_goes_on_with_a_log_only_while_the_present_one_is_not_over() {
        let mut maps = cluster(3);
        let open = |maps: &mut Maps, node, writer| match change::open(maps, node, writer) {
            Ok(Outcome::Log(log, _)) => log,
            other => panic!("{other:?}"),
        };
        let (own, journal) = (open(&mut maps, 2, Writer::Client), open(&mut maps, 2, Writer::Manager));
        let others = open(&mut maps, 3, Writer::Client);
        let again = |after, log| RegistryRequest::Begin { node: 2, after, address: String::new(), keeps: Some(log) };
        for log in [journal, others, LogId(99)] {
            assert_eq!(step(&mut maps, again(1, log)), Err(RegistryError::Over(2, 1)));
        }
        assert_eq!(step(&mut maps, again(1, own)), Ok(Outcome::Session(2)));
        assert_eq!(maps.dead_logs().collect::<Vec<_>>(), [journal]);
        assert_eq!(step(&mut maps, again(1, own)), Err(RegistryError::Begun(2, 2)), "asked twice");
        assert_eq!(step(&mut maps, again(2, own)), Ok(Outcome::Session(3)));
        let _ = step(&mut maps, RegistryRequest::Expire { node: 2, session: 3 });
        assert_eq!(step(&mut maps, again(3, own)), Err(RegistryError::Over(2, 3)), "others may seal it");
        assert_eq!(maps.dead_logs().collect::<Vec<_>>(), [own, journal]);
    }

    #[test]
    fn a_machine_with_the_name_or_the_address_of_another_is_refused_and_nothing_changes() {
        let mut maps = cluster(3);
        let _ = step(&mut maps, RegistryRequest::Expire { node: 3, session: 1 });
        let before = maps.clone();
        // One lives, one is gone and may come back.
        for (name, address, advice) in [
            ("2", "10.0.0.9:1", "another name"),
            ("new", "10.0.0.2:1", "--address"),
            ("3", "10.0.0.9:1", "another name"),
            ("new", "10.0.0.3:1", "--address"),
        ] {
            let add =
                RegistryRequest::AddNode { name: name.into(), address: address.into(), stores: true, attempt: None };
            let refused = step(&mut maps, add);
            assert!(matches!(&refused, Err(RegistryError::InUse(why)) if why.contains(advice)), "{refused:?}");
            assert_eq!(maps, before);
        }
    }

    #[test]
    fn who_manages_slots_is_nobodys_former_attempt() {
        let mut maps = cluster(1);
        let add = |name: &str| RegistryRequest::AddNode {
            name: name.into(),
            address: "10.0.0.2:1".into(),
            stores: true,
            attempt: None,
        };
        assert_eq!(step(&mut maps, add("b")), Ok(Outcome::Node(2)));
        assert_eq!(step(&mut maps, add("b")), Ok(Outcome::Node(3)), "the first attempt came to nothing");
        let epoch = maps.epoch.0;
        let set = RegistryRequest::SetSlots { first: 10, last: 19, node: 3, base: None, logs: Vec::new(), epoch };
        assert_eq!(step(&mut maps, set), Ok(Outcome::Maps));
        assert!(matches!(step(&mut maps, add("c")), Err(RegistryError::InUse(_))));
        assert_eq!((maps.verify(), maps.slot(10).node), (Ok(()), 3));
    }

    #[test]
    fn a_node_that_goes_leaves_groups_and_slots_to_the_others() {
        let mut maps = cluster(3);
        assert_eq!(step(&mut maps, RegistryRequest::Expire { node: 1, session: 2 }), Ok(Outcome::Maps));
        assert_eq!(in_groups(&maps), [2, 3, 4, 5]);
        assert!((0..SLOT_COUNT).all(|slot| maps.slot(slot).node != 1));
        assert_eq!(maps.slot(0).node, 2);
        assert_eq!(maps.slot(SLOT_COUNT - 1).node, 3);
        assert_eq!(begin(&mut maps, 1), 3);
        assert_eq!(in_groups(&maps), [2, 3, 4, 5], "what missed writes is behind");
        assert_eq!(maps.targets[&TargetId(0)].state, TargetState::Behind);
        assert!((0..SLOT_COUNT).all(|slot| maps.slot(slot).node != 1), "balancing comes later");
    }

    #[test]
    fn who_looked_at_a_machine_before_it_went_once_more_calls_nothing_whole() {
        let mut maps = cluster(3);
        assert_eq!(step(&mut maps, RegistryRequest::Expire { node: 1, session: 2 }), Ok(Outcome::Maps));
        assert_eq!(begin(&mut maps, 1), 3);
        let seen = maps.epoch;
        assert_eq!(step(&mut maps, RegistryRequest::Expire { node: 1, session: 3 }), Ok(Outcome::Maps));
        assert_eq!(begin(&mut maps, 1), 4);
        let whole = |maps: &mut Maps, seen| step(maps, RegistryRequest::TargetWhole(TargetId(0), seen));
        assert_eq!(whole(&mut maps, seen), Err(RegistryError::Lost));
        let seen = maps.epoch;
        assert_eq!(whole(&mut maps, seen), Ok(Outcome::Maps));
    }

    #[test]
    fn an_old_session_ends_nothing() {
        let mut maps = cluster(2);
        begin(&mut maps, 2);
        let before = maps.clone();
        for request in [RegistryRequest::End { node: 2, session: 1 }, RegistryRequest::Expire { node: 2, session: 3 }] {
            assert!(matches!(step(&mut maps, request), Err(RegistryError::Over(2, _))));
        }
        assert_eq!(maps, before);
    }

    #[test]
    fn the_last_to_leave_missed_nothing() {
        let mut maps = cluster(2);
        assert_eq!(step(&mut maps, RegistryRequest::End { node: 2, session: 1 }), Ok(Outcome::Maps));
        assert_eq!(step(&mut maps, RegistryRequest::End { node: 1, session: 2 }), Ok(Outcome::Maps));
        assert_eq!(maps.targets[&TargetId(0)].state, TargetState::Whole);
        begin(&mut maps, 2);
        assert_eq!(maps.targets[&TargetId(2)].state, TargetState::Behind);
        assert_eq!(maps.slot(0).node, 2, "the slots of one that is gone have a manager again");
        begin(&mut maps, 1);
        assert_eq!(in_groups(&maps), [0, 1], "and its targets are whole, for nobody wrote without them");
    }
}
