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
//! 5. Hence where no more than m+1 live, all of them have what is answered: a machine whose maps still show the session of the
//!    founder that the reign names has answered nothing that the founder did not have. Where more live, others than the founder
//!    will do, and what was answered may lie behind the last entry of the founder's replica, which the reign names too. A
//!    machine with such entries may have answered them, as may one that knows the founder's session as over: it is refused. So
//!    is one with the blank of a later leader there, by which older changes may have been agreed on. Any other follows, with an
//!    empty replica and its targets behind.

use std::collections::BTreeSet;

use protocol::id::{FenceEpoch, GroupId, LogId, MapEpoch, TargetId};
use protocol::maps::{Counted, LogState, Maps, NodeState, Reign, TargetState};
use protocol::registry::RegistryRequest;

use crate::{nodes, slots};

/// What a reign skips, of numbers with 64 bits and with 32: more than any reign gives.
pub(crate) const SKIPPED: u64 = 1 << 32;
const SKIPPED_SHORT: u32 = 1 << 20;

/// Term and index of an entry.
pub type Place = (u64, u64);

/// The maps with which the next reign begins, founded by `node`, which stores and has begun a session once. They are what its
/// replica tells up to the entry `last`.
pub fn begin(before: &Maps, node: u32, last: Option<Place>) -> Maps {
    let mut maps = before.clone();
    let session = maps.nodes[&node].session;
    assert!(maps.nodes[&node].stores && session > 0, "who founds a reign has a replica, and something to go on with");
    maps.reign = Reign { number: maps.reign.number + 1, node, session, last };
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
/// What lies behind `spared` in its log nobody can have answered unless all have it that live.
pub fn may_follow(own: &Maps, spared: Option<Place>, reign: Reign) -> bool {
    let lives = |node: &protocol::maps::NodeEntry| node.state == NodeState::Alive && node.session == reign.session;
    own.reign.number + 1 == reign.number && own.nodes.get(&reign.node).is_some_and(lives) && spared <= reign.last
}

/// How far the entries of a replica may have been answered though a machine lacked them that lives: read one after the other.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Spared {
    /// The last change that something durable may rest on, or the last blank behind it.
    weighty: Option<Place>,
    /// The last that others than all had, if they had it.
    until: Option<Place>,
}

impl Spared {
    /// A snapshot up to the entry `last`, whose maps are `maps`. Who is gone in these may have lived when one was answered.
    pub(crate) fn snapshot(maps: &Maps, last: Option<Place>) -> Spared {
        let stored = maps.nodes.values().filter(|node| node.stores).count();
        Spared { weighty: last, until: last.filter(|_| spares(maps, stored)) }
    }

    /// The next entry with a change, which made them `maps`. Others that live by then will do for those before it, too.
    pub(crate) fn next(&mut self, place: Place, request: &RegistryRequest, maps: &Maps) {
        if is_weighty(request) {
            self.weighty = Some(place);
        }
        if spares(maps, maps.storing().count()) {
            self.until = self.weighty;
        }
    }

    /// The first entry of a later leader. Changes of before may be agreed on no sooner than with it, and be answered then
    /// (figure 8 of the paper on Raft). A replica may lack them though its last entry is one of a leader between.
    pub(crate) fn blank(&mut self, place: Place, maps: &Maps) {
        self.weighty = self.weighty.and(Some(place));
        self.until = self.until.and(Some(place));
        if spares(maps, maps.storing().count()) {
            self.until = self.weighty;
        }
    }

    /// The last such entry.
    pub(crate) fn until(self) -> Option<Place> {
        self.until
    }
}

/// Whether a change is answered before all of so many machines have it.
fn spares(maps: &Maps, storing: usize) -> bool {
    storing > usize::from(maps.parity) + 1
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
        let mut maps = begin(&before, 2, None);
        assert_eq!(maps.verify(), Ok(()));
        assert_eq!(maps.reign, Reign { number: 1, node: 2, session: 1, last: None });
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
        let maps = begin(&before, 2, None);
        assert!(maps.epoch > unseen.epoch && maps.next_log > unseen.next_log && maps.next_node > unseen.next_node);
        assert!(maps.next_target > unseen.next_target && maps.next_group > unseen.next_group);
        assert!(maps.nodes[&1].session > unseen.nodes[&1].session + 1000);
    }

    #[test]
    fn what_missed_writes_is_whole_where_nothing_better_is_left() {
        let mut before = cluster(2);
        step(&mut before, RegistryRequest::Expire { node: 2, session: 1 }).unwrap();
        let maps = begin(&before, 2, None);
        assert_eq!(maps.targets[&TargetId(2)].state, TargetState::Whole);
        assert_eq!(maps.targets[&TargetId(1)].state, TargetState::Failed);
        assert!(maps.groups.values().any(|group| group.current && group.targets == [TargetId(2)]));
    }

    #[test]
    fn only_who_answered_nothing_without_the_founder_may_follow_it() {
        let before = cluster(2);
        let reign = begin(&before, 2, None).reign;
        let mut own = before.clone();
        open(&mut own, 1, Writer::Client).unwrap();
        assert!(may_follow(&own, None, reign));
        step(&mut own, RegistryRequest::Expire { node: 2, session: 1 }).unwrap();
        assert!(!may_follow(&own, None, reign));
        step(&mut own, RegistryRequest::Begin { node: 2, after: 1, address: String::new(), keeps: None }).unwrap();
        assert!(!may_follow(&own, None, reign), "it lives again, and another life answered meanwhile");
        let later = begin(&begin(&before, 2, None), 2, None).reign;
        assert!(!may_follow(&before, None, later), "of the reign between it knows nothing");
    }

    #[test]
    fn who_may_have_answered_what_the_founder_lacks_may_not_follow_it() {
        let (mut own, open) =
            (cluster(3), |node| RegistryRequest::OpenLog { node, session: 1, writer: Writer::Client, opening: 0 });
        let mut spared = Spared::snapshot(&own, Some((0, 0)));
        step(&mut own, open(1)).expect("it lives");
        spared.next((1, 7), &open(1), &own);
        assert_eq!(spared.until(), Some((1, 7)), "one of the two others will do");
        let founded = |last| begin(&own, 2, Some(last)).reign;
        assert!(may_follow(&own, spared.until(), founded((1, 7))));
        assert!(may_follow(&own, spared.until(), founded((2, 3))), "what is agreed on lies before it");
        assert!(!may_follow(&own, spared.until(), founded((1, 6))));
        let light = RegistryRequest::End { node: 1, session: 9 };
        spared.next((1, 8), &light, &own);
        assert_eq!(spared.until(), Some((1, 7)), "nothing durable rests on that");
    }

    /// Figure 8 of the paper on Raft: the founder's last entry is the blank (2, 7) of a leader that did not have (1, 7).
    #[test]
    fn a_change_of_before_may_be_answered_with_the_blank_of_a_later_leader() {
        let (own, change) = (cluster(3), RegistryRequest::Balance);
        let mut spared = Spared::default();
        spared.blank((1, 6), &own);
        assert_eq!(spared.until(), None, "there is nothing to answer before it");
        spared.next((1, 7), &change, &own);
        spared.blank((3, 8), &own);
        assert_eq!(spared.until(), Some((3, 8)));
        let founded = |last| begin(&own, 2, Some(last)).reign;
        assert!(!may_follow(&own, spared.until(), founded((2, 7))));
        assert!(may_follow(&own, spared.until(), founded((3, 8))));
    }

    #[test]
    fn where_no_more_live_than_the_class_asks_for_all_have_what_is_answered() {
        let (mut own, change) = (cluster(3), RegistryRequest::Balance);
        step(&mut own, RegistryRequest::Expire { node: 3, session: 1 }).unwrap();
        let mut spared = Spared::default();
        spared.next((1, 7), &change, &own);
        assert_eq!(spared.until(), None, "the other one must have it");
        assert_eq!(
            Spared::snapshot(&own, Some((1, 7))).until(),
            Some((1, 7)),
            "the third may have had it, and be gone since"
        );
        assert_eq!(Spared::snapshot(&cluster(2), Some((1, 7))).until(), None);
        let begin = RegistryRequest::Begin { node: 3, after: 1, address: String::new(), keeps: None };
        step(&mut own, begin.clone()).unwrap();
        spared.next((1, 9), &begin, &own);
        assert_eq!(spared.until(), Some((1, 7)), "it is there now, and will do");
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
