//! Members of groups that others take the place of (`docs/decisions/0026-a-member-is-replaced.md`).
//!
//! 1. Only of a group over which nothing is written any more: its stripes are ended and complete, and no recoverer asks its
//!    members how far a log goes.
//! 2. Only in the place of a member that failed. Who took it is a newcomer until it lacks nothing. So there must be enough
//!    others of whom all is known that they hold: whoever asks may not have heard yet that one of them is away, too.
//! 3. Who was a member once never is one again, so that whoever takes what is left there for of no use, by maps as old as
//!    they may be, is right.

use protocol::id::{GroupId, MapEpoch, TargetId};
use protocol::maps::{Drain, GroupEntry, Maps, NodeState, TargetState};
use protocol::registry::RegistryError;

use crate::change::{Outcome, Reply};

/// Gives a member's place to another target.
pub(crate) fn replace(maps: &mut Maps, group: GroupId, old: TargetId, new: TargetId) -> Reply {
    if maps.written().contains(&group) {
        return Err(RegistryError::InUse("stripes may still be written over that group".into()));
    }
    if maps.targets.get(&old).is_none_or(|entry| entry.state != TargetState::Failed) {
        return Err(RegistryError::InUse("only a member that failed is replaced".into()));
    }
    let takes = maps.targets.get(&new).is_some_and(|entry| {
        let lives = maps.nodes.get(&entry.node).is_some_and(|node| node.state == NodeState::Alive);
        lives && entry.state == TargetState::Whole && entry.drain == Drain::No
    });
    let unsure = |entry: &GroupEntry| entry.targets.iter().filter(|&&it| !maps.is_whole_in(entry, it)).count();
    if maps.groups.get(&group).is_some_and(|entry| unsure(entry) > usize::from(entry.geometry.parity)) {
        return Err(RegistryError::InUse("more members of that group are away than parity makes up for".into()));
    }
    let entry = maps.groups.get_mut(&group).ok_or(RegistryError::Unknown("group".into()))?;
    if !takes || entry.targets.contains(&new) || entry.former.contains(&new) {
        return Err(RegistryError::InUse("that target cannot take the place of another".into()));
    }
    let place = entry.targets.iter_mut().find(|member| **member == old);
    *place.ok_or(RegistryError::Unknown("member of that group".into()))? = new;
    entry.newcomers.remove(&old);
    entry.newcomers.insert(new);
    entry.former.insert(old);
    Ok(Outcome::Maps)
}

/// A newcomer has all that lay in the place it took, unless something was said of it since it was looked at: its disk may be
/// another one.
pub(crate) fn whole(maps: &mut Maps, (group, member): (GroupId, TargetId), seen: MapEpoch) -> Reply {
    if !maps.targets.get(&member).is_some_and(|entry| entry.serves() && entry.since <= seen) {
        return Err(RegistryError::Lost);
    }
    let entry: &mut GroupEntry = maps.groups.get_mut(&group).ok_or(RegistryError::Unknown("group".into()))?;
    entry.newcomers.remove(&member);
    Ok(Outcome::Maps)
}

#[cfg(test)]
mod tests {
    use protocol::id::{FenceEpoch, LogId, StripeNumber};
    use protocol::maps::{Drain, TargetEntry, Writer};
    use protocol::registry::RegistryRequest;

    use super::*;
    use crate::change::{bring_back, new_cluster, open, step};

    /// Machines with one target each, numbered alike, a log that began in a group over the first four, and that group.
    fn cluster() -> (Maps, LogId, GroupId) {
        let targets = (1..=4).map(|node| (TargetId(node), TargetEntry::new(node, String::new()))).collect();
        let mut maps = new_cluster(1, targets, 1, 1);
        let Ok(Outcome::Log(log, _)) = open(&mut maps, 1, Writer::Client) else { panic!("a log is opened") };
        let group = maps.logs[&log].layout[0].groups[0];
        for node in 5..=6 {
            let add = RegistryRequest::AddNode {
                name: node.to_string(),
                address: String::new(),
                stores: true,
                attempt: None,
            };
            assert_eq!(step(&mut maps, add), Ok(Outcome::Node(node)));
            let names = vec![String::from("disk")];
            assert_eq!(
                step(&mut maps, RegistryRequest::AddTargets { node, names }),
                Ok(Outcome::Targets(TargetId(node)))
            );
            let begin = RegistryRequest::Begin { node, after: 0, address: String::new(), keeps: None };
            step(&mut maps, begin).expect("it is known");
        }
        (maps, log, group)
    }

    fn replace(maps: &mut Maps, group: GroupId, old: u32, new: u32) -> Reply {
        step(maps, RegistryRequest::ReplaceMember { group, old: TargetId(old), new: TargetId(new) })
    }

    /// The log goes on elsewhere from a stripe on, and all that it wrote before is complete.
    fn go_on(maps: &mut Maps, log: LogId, from: u64) {
        let groups = maps.groups.iter().filter(|(_, group)| group.current).map(|(&id, _)| id).collect();
        let (from, epoch, version) = (StripeNumber(from), FenceEpoch(1), maps.logs[&log].version);
        step(maps, RegistryRequest::AddRun { log, version, epoch, from, groups }).expect("it is the writer");
        let finish = RegistryRequest::FinishRuns { log, version: version + 1, epoch, end: from };
        step(maps, finish).expect("it is the writer");
    }

    fn fail(maps: &mut Maps, target: u32) {
        step(maps, RegistryRequest::SetTarget(TargetId(target), TargetState::Failed)).expect("it is there");
    }

    fn is_refused(reply: &Reply) -> bool {
        matches!(reply, Err(RegistryError::InUse(_) | RegistryError::Unknown(_)))
    }

    #[test]
    fn a_member_that_failed_is_replaced_where_nothing_is_written_any_more() {
        let (mut maps, log, group) = cluster();
        assert!(is_refused(&replace(&mut maps, group, 2, 5)), "it serves, and the log is written there");
        fail(&mut maps, 2);
        assert!(is_refused(&replace(&mut maps, group, 2, 5)), "the log is written there");
        go_on(&mut maps, log, 3);
        for (old, new) in [(1, 5), (2, 2), (2, 3), (2, 9), (5, 6)] {
            assert!(is_refused(&replace(&mut maps, group, old, new)), "{new} for {old}");
        }
        assert_eq!(replace(&mut maps, group, 2, 5), Ok(Outcome::Maps));
        let entry = &maps.groups[&group];
        assert_eq!(entry.targets, [1, 5, 3, 4].map(TargetId));
        assert_eq!((&entry.newcomers, &entry.former), (&[TargetId(5)].into(), &[TargetId(2)].into()));
        assert!(!maps.is_whole_in(entry, TargetId(5)) && maps.is_whole_in(entry, TargetId(1)));
    }

    #[test]
    fn nothing_is_written_where_somebody_is_new() {
        let (mut maps, log, group) = cluster();
        fail(&mut maps, 2);
        go_on(&mut maps, log, 3);
        replace(&mut maps, group, 2, 5).expect("it is complete there");
        let GroupEntry { targets, geometry, .. } = maps.groups[&group].clone();
        let run = |version, group| RegistryRequest::AddRun {
            log,
            version,
            epoch: FenceEpoch(1),
            from: StripeNumber(4),
            groups: vec![group],
        };
        assert_eq!(step(&mut maps, run(3, group)), Err(RegistryError::Lost));
        let form = RegistryRequest::FormGroup(GroupEntry::new(targets, geometry, false));
        let Ok(Outcome::Group(alike)) = step(&mut maps, form.clone()) else { panic!("a group is formed") };
        assert_ne!(alike, group, "that one has somebody new");
        step(&mut maps, run(3, alike)).expect("all members have all of that");
        let whole = |maps: &mut Maps, seen| step(maps, RegistryRequest::MemberWhole(group, TargetId(5), seen));
        let before = maps.epoch;
        fail(&mut maps, 5);
        let away = maps.epoch;
        assert_eq!(whole(&mut maps, away), Err(RegistryError::Lost), "it is away");
        bring_back(&mut maps, TargetId(5));
        assert_eq!(whole(&mut maps, before), Err(RegistryError::Lost), "it may have another disk");
        let seen = maps.epoch;
        assert_eq!(whole(&mut maps, seen), Ok(Outcome::Maps));
        assert!(maps.is_whole_in(&maps.groups[&group], TargetId(5)));
        assert_eq!(step(&mut maps, form), Ok(Outcome::Group(group)), "now it is as good as any");
    }

    #[test]
    fn nobody_is_replaced_where_more_are_away_than_parity_makes_up_for() {
        let (mut maps, log, group) = cluster();
        fail(&mut maps, 2);
        go_on(&mut maps, log, 3);
        let before = maps.clone();
        fail(&mut maps, 3);
        assert!(is_refused(&replace(&mut maps, group, 2, 5)), "a second one is away");
        bring_back(&mut maps, TargetId(3));
        assert_eq!(replace(&mut maps, group, 2, 5), Ok(Outcome::Maps));
        let mut maps = before;
        replace(&mut maps, group, 2, 5).expect("one is away");
        fail(&mut maps, 3);
        assert!(is_refused(&replace(&mut maps, group, 3, 6)), "who took a place lacks all of it still");
    }

    #[test]
    fn a_former_member_never_comes_back_and_who_is_new_may_be_replaced() {
        let (mut maps, log, group) = cluster();
        fail(&mut maps, 2);
        go_on(&mut maps, log, 3);
        replace(&mut maps, group, 2, 5).expect("it is complete there");
        bring_back(&mut maps, TargetId(2));
        fail(&mut maps, 5);
        assert!(is_refused(&replace(&mut maps, group, 5, 2)), "it was a member");
        assert_eq!(replace(&mut maps, group, 5, 6), Ok(Outcome::Maps));
        let entry = &maps.groups[&group];
        assert_eq!((&entry.newcomers, &entry.former), (&[TargetId(6)].into(), &[2, 5].map(TargetId).into()));
    }

    #[test]
    fn who_is_taken_away_before_it_was_whole_lacks_nothing() {
        let (mut maps, log, group) = cluster();
        fail(&mut maps, 2);
        go_on(&mut maps, log, 3);
        replace(&mut maps, group, 2, 5).expect("it is complete there");
        let drain = RegistryRequest::Drain(vec![TargetId(5)], Drain::Careful, maps.epoch);
        step(&mut maps, drain).expect("there are others");
        go_on(&mut maps, log, 5);
        let remove = RegistryRequest::RemoveTargets(vec![TargetId(5)], maps.epoch);
        assert_eq!(step(&mut maps, remove), Ok(Outcome::Maps));
        assert!(maps.groups[&group].newcomers.is_empty(), "nobody would ever bring it that");
    }
}
