//! What becomes of the maps when a registry that lost its quorum goes on with what one machine has, and who may follow it
//! (`docs/decisions/0024-a-registry-without-quorum.md`).
//!
//! 1. A reign is a cluster of voters of its own, founded by one machine on the maps that its replica tells. Registries name
//!    their reign in all that they say to each other; who hears of a greater one agrees on nothing any more, grants no lease,
//!    and ends the life of its machine. So where two reigns meet, one leads.
//! 2. No number that the reign before may have given, unheard by the founder, is given again: of maps, logs, runs of writers
//!    (fence epochs, versions), groups, targets, nodes and sessions. What lies on a target under such a number is nobody's.
//! 3. All sessions of before are over: slots are taken over, and logs claimed and sealed, as after a crash of all machines.
//! 4. A change is answered when min(m+1, living) machines that store have it: so no m losses take it away, though one node
//!    alone votes. It counts who lives by the maps: whom the leader expires, with whose replica it does not wait any more,
//!    that one's session is over in the maps of all that the leader answers from then on. So it expires those whose replicas
//!    store nothing any more while changes wait for them ([`awaited`](crate::awaited)).
//! 5. Hence a machine whose maps still show the session of the founder that the reign names has answered nothing that the
//!    founder did not have: it follows, with an empty replica and its targets behind. Any other may have, and is refused.

use std::collections::BTreeSet;

use protocol::id::{FenceEpoch, GroupId, LogId, MapEpoch, TargetId};
use protocol::maps::{Counted, LogState, Maps, NodeState, Reign, TargetState};
use protocol::registry::RegistryRequest;

use crate::{nodes, slots};

/// What a reign skips, of numbers with 64 bits and with 32: more than any reign gives.
pub(crate) const SKIPPED: u64 = 1 << 32;
const SKIPPED_SHORT: u32 = 1 << 20;

/// The maps with which the next reign begins, founded by `node`, which stores and has begun a session once.
pub fn begin(before: &Maps, node: u32) -> Maps {
    let mut maps = before.clone();
    let session = maps.nodes[&node].session;
    assert!(maps.nodes[&node].stores && session > 0, "who founds a reign has a replica, and something to go on with");
    maps.reign = Reign { number: maps.reign.number + 1, node, session };
    skip(&mut maps);
    for (&number, entry) in maps.nodes.iter_mut().filter(|(_, entry)| entry.session > 0) {
        entry.session += SKIPPED;
        entry.state = if number == node { NodeState::Alive } else { NodeState::Gone };
    }
    (maps.stop, maps.wishes) = (None, Default::default());
    let own = |target: &&mut protocol::maps::TargetEntry| target.node == node && target.state != TargetState::Removed;
    if !maps.targets.values_mut().filter(own).any(|target| target.state == TargetState::Whole) {
        // Nothing better comes: what missed writes has all that is left.
        maps.targets.values_mut().filter(own).for_each(|target| target.state = TargetState::Whole);
    }
    nodes::form(&mut maps);
    slots::inherit(&mut maps);
    looked_at_anew(&mut maps);
    maps
}

/// What was found out of targets in another reign does not count in this one, nor which copies its replicas had, nor what was
/// asked for there and comes late.
pub(crate) fn looked_at_anew(maps: &mut Maps) {
    let epoch = maps.epoch;
    maps.decided = epoch;
    maps.nodes.values_mut().for_each(|node| node.copies = Counted::default());
    maps.targets.values_mut().for_each(|target| (target.since, target.empty) = (epoch, false));
}

fn skip(maps: &mut Maps) {
    maps.epoch = MapEpoch(maps.epoch.0 + SKIPPED);
    maps.next_log = LogId(maps.next_log.0 + SKIPPED);
    maps.next_node += SKIPPED_SHORT;
    maps.next_target = TargetId(maps.next_target.0 + SKIPPED_SHORT);
    maps.next_group = GroupId(maps.next_group.0 + SKIPPED_SHORT);
    for log in maps.logs.values_mut() {
        if let LogState::Open(epoch) | LogState::Sealing(epoch) = log.state {
            // It may have been sealed, and repaired since.
            log.state = LogState::Sealing(FenceEpoch(epoch.max(FenceEpoch::SEALED).0 + SKIPPED_SHORT));
            log.version += SKIPPED;
        }
    }
}

/// Whether a machine that last knew `own` of the reign before has answered nothing that the founder of `reign` did not have.
pub fn may_follow(own: &Maps, reign: Reign) -> bool {
    let lives = |node: &protocol::maps::NodeEntry| node.state == NodeState::Alive && node.session == reign.session;
    own.reign.number + 1 == reign.number && own.nodes.get(&reign.node).is_some_and(lives)
}

/// Whether a change is answered only when as many machines have it as the class asks for: all that something durable may
/// rest on. Sessions do not; a reign ends them all. Nor do the copies of replicas, which each reign looks at anew: and whoever
/// says which of its own count stores nothing before it has the answer.
pub fn is_weighty(request: &RegistryRequest) -> bool {
    use RegistryRequest as Ask;
    let is_light = matches!(
        request,
        Ask::Begin { .. }
            | Ask::End { .. }
            | Ask::StopAll { .. }
            | Ask::FinishPhase { .. }
            | Ask::CallStopOff { .. }
            | Ask::SetCopies { .. }
    );
    !is_light
}

/// The machines that an entry waits for: none, once as many have it as the class asks for, `leader` and those of which `has`
/// says so.
pub fn awaited(maps: &Maps, leader: u32, has: impl Fn(u32) -> bool) -> BTreeSet<u32> {
    let others: BTreeSet<u32> = maps.storing().filter(|&node| node != leader).collect();
    let wanted = usize::from(maps.parity).min(others.len());
    let (having, lacking): (BTreeSet<u32>, BTreeSet<u32>) = others.into_iter().partition(|&node| has(node));
    if having.len() >= wanted { BTreeSet::new() } else { lacking }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::change::{Outcome, apply, new_cluster, open};
    use protocol::maps::{Drain, TargetEntry, Writer};

    fn cluster(nodes: u32) -> Maps {
        let entry = |node: u32| TargetEntry::new(node, String::new());
        new_cluster(1, (1..=nodes).map(|node| (TargetId(node), entry(node))).collect(), 1, 1)
    }

    fn step(maps: &mut Maps, request: RegistryRequest) -> Result<Outcome, protocol::registry::RegistryError> {
        let (next, reply) = apply(maps, request);
        *maps = next.unwrap_or_else(|| maps.clone());
        assert_eq!(maps.verify(), Ok(()));
        reply
    }

    #[test]
    fn the_founder_has_all_slots_and_groups_and_all_logs_are_to_be_sealed() {
        let mut before = cluster(3);
        for node in 1..=3 {
            open(&mut before, node, Writer::Client).unwrap();
        }
        let mut maps = begin(&before, 2);
        assert_eq!(maps.verify(), Ok(()));
        assert_eq!(maps.reign, Reign { number: 1, node: 2, session: 1 });
        assert!((0..4096).all(|slot| maps.slot(slot).node == 2));
        let current: Vec<_> = maps.groups.values().filter(|group| group.current).collect();
        assert!(current.iter().all(|group| group.targets == [TargetId(2)]));
        assert_eq!(maps.targets[&TargetId(1)].state, TargetState::Failed);
        assert_eq!(maps.dead_logs().count(), 3, "those of the founder's former life too");
        // Whoever wrote or sealed them before is refused, by the registry and by targets.
        for (&log, entry) in &before.logs {
            let LogState::Open(epoch) = entry.state else { panic!("it is open") };
            let (version, groups) = (entry.version, entry.layout[0].groups.clone());
            let from = protocol::id::StripeNumber(1);
            let add = RegistryRequest::AddRun { log, version, epoch, from, groups };
            assert!(step(&mut maps, add).is_err());
            let version = maps.logs[&log].version;
            let Ok(Outcome::Log(_, claimed)) = step(&mut maps, RegistryRequest::Claim { log, version }) else {
                panic!("it can be claimed")
            };
            assert!(claimed.0 > epoch.0 + 1000);
        }
    }

    #[test]
    fn no_number_of_a_life_that_the_founder_did_not_see_is_given_again() {
        let (mut unseen, before) = (cluster(2), cluster(2));
        for n in 0..100 {
            open(&mut unseen, 1, Writer::Client).unwrap();
            let (name, address) = (format!("new {n}"), format!("10.0.0.{n}:1"));
            step(&mut unseen, RegistryRequest::AddNode { name, address, stores: true, attempt: None }).unwrap();
        }
        step(&mut unseen, RegistryRequest::AddTarget { node: 1, session: 1, name: "x".into() }).unwrap();
        let seen = unseen.epoch;
        step(&mut unseen, RegistryRequest::Drain(vec![TargetId(1)], Drain::Careful, seen)).unwrap();
        let maps = begin(&before, 2);
        assert!(maps.epoch > unseen.epoch && maps.next_log > unseen.next_log && maps.next_node > unseen.next_node);
        assert!(maps.next_target > unseen.next_target && maps.next_group > unseen.next_group);
        assert!(maps.nodes[&1].session > unseen.nodes[&1].session + 1000);
    }

    #[test]
    fn what_missed_writes_is_whole_where_nothing_better_is_left() {
        let mut before = cluster(2);
        step(&mut before, RegistryRequest::Expire { node: 2, session: 1 }).unwrap();
        let maps = begin(&before, 2);
        assert_eq!(maps.targets[&TargetId(2)].state, TargetState::Whole);
        assert_eq!(maps.targets[&TargetId(1)].state, TargetState::Failed);
        assert!(maps.groups.values().any(|group| group.current && group.targets == [TargetId(2)]));
    }

    #[test]
    fn only_who_answered_nothing_without_the_founder_may_follow_it() {
        let before = cluster(2);
        let reign = begin(&before, 2).reign;
        let mut own = before.clone();
        open(&mut own, 1, Writer::Client).unwrap();
        assert!(may_follow(&own, reign));
        step(&mut own, RegistryRequest::Expire { node: 2, session: 1 }).unwrap();
        assert!(!may_follow(&own, reign));
        step(&mut own, RegistryRequest::Begin { node: 2, after: 1, address: String::new(), keeps: None }).unwrap();
        assert!(!may_follow(&own, reign), "it lives again, and another life answered meanwhile");
        let later = begin(&begin(&before, 2), 2).reign;
        assert!(!may_follow(&before, later), "of the reign between it knows nothing");
    }

    #[test]
    fn a_change_waits_for_as_many_as_the_class_asks_for_or_live() {
        let mut maps = cluster(2);
        let is_held = |maps: &Maps, has: fn(u32) -> bool| awaited(maps, 1, has).is_empty();
        assert!(!is_held(&maps, |_| false));
        assert!(is_held(&maps, |node| node == 2));
        step(&mut maps, RegistryRequest::Expire { node: 2, session: 1 }).unwrap();
        assert!(is_held(&maps, |_| false), "nobody else lives");
        let maps = cluster(4);
        assert!(is_held(&maps, |node| node == 4), "any one will do");
        let maps = Maps { parity: 2, ..cluster(4) };
        assert_eq!(awaited(&maps, 1, |node| node == 4), [2, 3].into());
        assert!(is_held(&maps, |node| node > 2));
    }
}
