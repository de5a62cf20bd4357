//! Who votes on the maps, and who only learns them (DESIGN §9).
//!
//! 1. There are min(2m+1, storing nodes that ever began) voters, made odd: an even one adds nothing that may fail.
//! 2. Who lives is preferred, and then who votes already: a voter that is gone is replaced as soon as another node lives
//!    that does not vote. One that is up to date comes before one that is not, and may never be.
//!    So is one that is being emptied: whoever is to go must be able to.
//! 3. A voter that nobody can replace stays one: to count fewer would let fewer agree.
//! 4. Whoever leads finishes a change that was left half done: until then those that voted before are needed, too.
//! 5. All other storing nodes learn. Who was taken out of the cluster is no member any more.

use std::collections::BTreeSet;

use protocol::maps::{Maps, NodeEntry, NodeState};

/// What the leader has to do about the members, one step at a time.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Step {
    /// This node learns from now on.
    Learn(u32),
    /// These vote from now on, and those that voted before learn. All of them have learnt so far.
    Vote(BTreeSet<u32>),
    /// These, which do not vote, are members no more.
    Forget(BTreeSet<u32>),
}

/// The members now, as the leader sees them.
#[derive(Clone, Debug, Default)]
pub struct Members {
    /// Those that vote.
    pub voters: BTreeSet<u32>,
    /// All, learners too.
    pub all: BTreeSet<u32>,
    /// Those that have nearly all that was agreed on: who lacks much cannot help to agree on more.
    pub up_to_date: BTreeSet<u32>,
    /// A change of those that vote is half done: more than half of those of before must agree, and of those to come. Whoever
    /// led then may be gone.
    pub is_joint: bool,
}

/// Who should vote, where all that live are up to date.
pub fn wanted(maps: &Maps, voters: &BTreeSet<u32>) -> BTreeSet<u32> {
    preferred(maps, voters, |_| true)
}

fn preferred(maps: &Maps, voters: &BTreeSet<u32>, is_up_to_date: impl Fn(u32) -> bool) -> BTreeSet<u32> {
    let began = maps.nodes.iter().filter(|(_, node)| node.stores && node.session > 0);
    let rank = |(&number, node): (&u32, &NodeEntry)| {
        let (is_away, is_new) = (node.state != NodeState::Alive, !voters.contains(&number));
        (is_away, maps.drains(number), is_new, is_new && !is_up_to_date(number), number)
    };
    let mut ranked: Vec<_> = began.map(rank).collect();
    ranked.sort_unstable();
    let most = (2 * usize::from(maps.parity) + 1).min(ranked.len());
    let count = if most.is_multiple_of(2) { most.saturating_sub(1) } else { most };
    ranked.into_iter().take(count).map(|(.., number)| number).collect()
}

/// How many of those that vote must answer for anything to be agreed on.
pub fn majority(voters: &BTreeSet<u32>) -> usize {
    voters.len() / 2 + 1
}

/// How many more of those that vote may be lost while the others still agree.
pub fn to_spare(maps: &Maps, voters: &BTreeSet<u32>) -> usize {
    let lives = |node: &&u32| maps.nodes.get(node).is_some_and(|entry| entry.state == NodeState::Alive);
    voters.iter().filter(lives).count().saturating_sub(majority(voters))
}

/// What to do next; nothing when all is as it should be, or has to be awaited.
pub fn step(maps: &Maps, members: &Members) -> Option<Step> {
    let began = maps.nodes.iter().filter(|(_, node)| node.stores && node.session > 0).map(|(&number, _)| number);
    if let Some(node) = began.into_iter().find(|node| !members.all.contains(node)) {
        return Some(Step::Learn(node));
    }
    let wanted = preferred(maps, &members.voters, |node| members.up_to_date.contains(&node));
    let ready = wanted.iter().all(|node| members.voters.contains(node) || members.up_to_date.contains(node));
    if ready && !wanted.is_empty() && (wanted != members.voters || members.is_joint) {
        return Some(Step::Vote(wanted));
    }
    let removed = |node: &u32| !maps.nodes.contains_key(node) && !members.voters.contains(node);
    let removed: BTreeSet<u32> = members.all.iter().copied().filter(removed).collect();
    (!removed.is_empty()).then_some(Step::Forget(removed))
}

/// Who can lead in place of `own`.
pub fn heir(maps: &Maps, members: &Members, own: u32) -> Option<u32> {
    let lives = |node: &u32| maps.nodes.get(node).is_some_and(|entry| entry.state == NodeState::Alive);
    members.voters.intersection(&members.up_to_date).copied().find(|node| *node != own && lives(node))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::change::new_cluster;
    use protocol::id::TargetId;
    use protocol::maps::{Drain, TargetEntry};

    /// So many nodes, of which these are gone.
    fn maps(nodes: u32, parity: u8, gone: &[u32]) -> Maps {
        let entry = |node: u32| TargetEntry::new(node, String::new());
        let mut maps = new_cluster(1, (1..=nodes).map(|node| (TargetId(node), entry(node))).collect(), 1, parity);
        gone.iter().for_each(|node| maps.nodes.get_mut(node).unwrap().state = NodeState::Gone);
        maps
    }

    fn voters(nodes: u32, parity: u8, gone: &[u32], now: &[u32]) -> Vec<u32> {
        wanted(&maps(nodes, parity, gone), &now.iter().copied().collect()).into_iter().collect()
    }

    #[test]
    fn voters_are_odd_and_no_more_than_the_class_needs() {
        assert_eq!(voters(1, 1, &[], &[1]), [1]);
        assert_eq!(voters(2, 1, &[], &[1]), [1]);
        assert_eq!(voters(3, 1, &[], &[1]), [1, 2, 3]);
        assert_eq!(voters(9, 1, &[], &[1, 2, 3]), [1, 2, 3]);
        assert_eq!(voters(4, 2, &[], &[1, 2, 3]), [1, 2, 3]);
        assert_eq!(voters(9, 2, &[], &[1, 2, 3]), [1, 2, 3, 4, 5]);
        assert_eq!(voters(3, 0, &[], &[1]), [1]);
    }

    #[test]
    fn calls_go_on_while_more_than_half_of_the_voters_live() {
        let spare = |parity: u8, gone: &[u32], voters: &[u32]| {
            to_spare(&maps(9, parity, gone), &voters.iter().copied().collect())
        };
        assert_eq!(spare(1, &[], &[1]), 0);
        assert_eq!(spare(1, &[], &[1, 2, 3]), 1);
        assert_eq!(spare(1, &[2], &[1, 2, 3]), 0);
        assert_eq!(spare(1, &[2, 3], &[1, 2, 3]), 0);
        assert_eq!(spare(1, &[9], &[1, 2, 3]), 1);
        assert_eq!(spare(2, &[], &[1, 2, 3, 4, 5]), 2);
    }

    #[test]
    fn a_voter_that_is_gone_is_replaced_where_somebody_lives() {
        assert_eq!(voters(3, 1, &[2], &[1, 2, 3]), [1, 2, 3]);
        assert_eq!(voters(5, 1, &[2], &[1, 2, 3]), [1, 3, 4]);
        assert_eq!(voters(5, 1, &[], &[1, 3, 4]), [1, 3, 4], "who comes back learns");
        assert_eq!(voters(2, 1, &[1], &[1]), [2]);
    }

    #[test]
    fn a_replica_that_is_stuck_keeps_no_other_from_taking_the_place_of_who_is_gone() {
        let all: BTreeSet<u32> = (1..=5).collect();
        let mut members = Members { voters: [1, 2, 3].into(), all, up_to_date: [1, 3, 5].into(), ..Members::default() };
        assert_eq!(step(&maps(5, 1, &[2]), &members), Some(Step::Vote([1, 3, 5].into())));
        members.up_to_date = [1, 3].into();
        assert_eq!(step(&maps(5, 1, &[2]), &members), None, "nobody can yet");
    }

    #[test]
    fn who_is_drained_does_not_vote_where_others_can_and_who_was_removed_is_forgotten() {
        let mut maps = maps(4, 1, &[]);
        maps.targets.get_mut(&TargetId(1)).unwrap().drain = Drain::Careful;
        assert_eq!(wanted(&maps, &[1, 2, 3].into()), [2, 3, 4].into());
        maps.nodes.remove(&4);
        maps.targets.remove(&TargetId(4));
        assert_eq!(wanted(&maps, &[1, 2, 3].into()), [1, 2, 3].into(), "nobody can replace it");
        let mut members = Members {
            voters: [2, 3, 4].into(),
            all: [1, 2, 3, 4].into(),
            up_to_date: [1, 2, 3].into(),
            is_joint: false,
        };
        assert_eq!(step(&maps, &members), Some(Step::Vote([1, 2, 3].into())), "first it ceases to vote");
        members.voters = [1, 2, 3].into();
        assert_eq!(step(&maps, &members), Some(Step::Forget([4].into())));
    }

    #[test]
    fn an_heir_votes_lives_and_knows_what_was_agreed() {
        let members = Members {
            voters: [1, 2, 3].into(),
            all: [1, 2, 3, 4].into(),
            up_to_date: [1, 3, 4].into(),
            is_joint: false,
        };
        assert_eq!(heir(&maps(4, 1, &[]), &members, 1), Some(3));
        assert_eq!(heir(&maps(4, 1, &[]), &members, 3), Some(1));
        assert_eq!(heir(&maps(4, 1, &[3]), &members, 1), None);
    }

    #[test]
    fn nodes_learn_before_they_vote() {
        let maps = maps(3, 1, &[]);
        let mut members = Members { voters: [1].into(), all: [1].into(), up_to_date: [1].into(), is_joint: false };
        for node in [2, 3] {
            assert_eq!(step(&maps, &members), Some(Step::Learn(node)));
            members.all.insert(node);
        }
        assert_eq!(step(&maps, &members), None);
        members.up_to_date.extend([2, 3]);
        assert_eq!(step(&maps, &members), Some(Step::Vote([1, 2, 3].into())));
        members.voters = [1, 2, 3].into();
        assert_eq!(step(&maps, &members), None);
    }

    #[test]
    fn a_change_that_was_left_half_done_is_finished() {
        let voters: BTreeSet<u32> = [1, 2, 3].into();
        let members = Members { voters: voters.clone(), all: voters.clone(), is_joint: true, ..Members::default() };
        assert_eq!(step(&maps(3, 1, &[]), &members), Some(Step::Vote(voters)));
    }
}
