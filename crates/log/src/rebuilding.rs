//! What a rebuilder does: in which order, and when a target lacks nothing any more. Pure.
//!
//! A target that was away is *behind* until what it lacks was rebuilt (DESIGN §3, targets that come back). From then on what
//! it does not show counts as deleted, so the rule is strict: a stripe that nobody shows, because those who hold it are away
//! too, would be taken for one that never was.
//!
//! 1. Every fragment that it should hold of the stripes that are known is there.
//! 2. No stripe can be unknown: an ended stripe has at least m+1 fragments. So of each of its groups all others must be heard,
//!    or fewer than m lack some of what they held, or do not tell: what the rest does not show was not there.
//! 3. Those that were away for long are not waited for: their stripes are laid anew without them, or made again of the others.
//!
//! The same holds, in one group alone, for a target that took another's place there.

use std::collections::{BTreeMap, BTreeSet};

use protocol::id::{GroupId, LogId, StripeNumber, TargetId};
use protocol::maps::{GroupEntry, Maps, TargetEntry, TargetState};
use protocol::rebuild::Refill;

use crate::stripes::StripeState;

/// How far ahead a machine is looked for a stripe of its own.
const AHEAD: usize = 256;

/// The stripes that lack something on a target that serves, as they are to be handed out.
///
/// Those first of which the least more may be lost. Of as exposed ones a machine gets one of which it has a fragment, or lacks
/// one: k fragments then cross links for each that is made again, k - 1 to it and the new one from it, or all k to it. Any
/// other machine would fetch k and send the new one on.
#[derive(Debug, Default)]
pub(crate) struct Lacking(BTreeMap<(isize, LogId, StripeNumber), (GroupId, u32)>);

impl Lacking {
    /// Takes note of a stripe, if it is one.
    pub(crate) fn add(&mut self, maps: &Maps, state: &StripeState) {
        let serves = |target| maps.targets.get(&target).is_some_and(TargetEntry::serves);
        if state.ended && state.missing.iter().any(|damage| serves(damage.target)) {
            let parity = maps.groups.get(&state.group).map_or(0, |group| usize::from(group.geometry.parity));
            let spare = parity as isize - state.missing.len() as isize;
            self.0.insert((spare, state.log, state.number), (state.group, state.length));
        }
    }

    pub(crate) fn len(&self) -> usize {
        self.0.len()
    }

    /// What `node` is to make whole next.
    pub(crate) fn next_for(&mut self, maps: &Maps, node: u32) -> Option<Refill> {
        let first = *self.0.first_key_value()?.0;
        let is_on_node = |target: &TargetId| maps.targets.get(target).is_some_and(|entry| entry.node == node);
        let is_own = |group: &GroupId| maps.groups.get(group).is_some_and(|group| group.targets.iter().any(is_on_node));
        let mut alike = self.0.iter().take(AHEAD).take_while(|((spare, ..), _)| *spare == first.0);
        let next = alike.find(|(_, (group, _))| is_own(group)).map_or(first, |(next, _)| *next);
        let ((_, log, stripe), (_, length)) = self.0.remove_entry(&next)?;
        Some(Refill { log, stripe, length })
    }
}

/// Who lacks something of the stripes that were looked at, in which groups.
#[derive(Debug, Default)]
pub(crate) struct Lacks(BTreeSet<(GroupId, TargetId)>);

impl Lacks {
    /// Takes note of a stripe.
    pub(crate) fn add(&mut self, state: &StripeState) {
        self.0.extend(state.missing.iter().map(|damage| (state.group, damage.target)));
    }
}

/// The targets that were behind and lack nothing any more. `silent` did not answer when the stripes were listed.
pub(crate) fn whole_again(
    maps: &Maps,
    lacks: &Lacks,
    silent: &BTreeSet<TargetId>,
    given_up: &BTreeSet<TargetId>,
) -> Vec<TargetId> {
    let lacking: BTreeSet<TargetId> = lacks.0.iter().map(|(_, target)| *target).collect();
    let nothing_hides = |target: TargetId| {
        let mut groups = maps.groups.values().filter(|group| group.targets.contains(&target));
        groups.all(|group| !may_hide(maps, (group, target), silent, given_up))
    };
    let behind = maps.targets.iter().filter(|(_, entry)| entry.state == TargetState::Behind).map(|(&target, _)| target);
    behind.filter(|target| !lacking.contains(target) && !silent.contains(target) && nothing_hides(*target)).collect()
}

/// The targets that took another's place in a group and lack nothing of it any more.
pub(crate) fn settled(
    maps: &Maps,
    lacks: &Lacks,
    silent: &BTreeSet<TargetId>,
    given_up: &BTreeSet<TargetId>,
) -> Vec<(GroupId, TargetId)> {
    let newcomers = maps.groups.iter().flat_map(|(&id, group)| group.newcomers.iter().map(move |&it| (id, group, it)));
    let has_all = |&(id, group, target): &(GroupId, &GroupEntry, TargetId)| {
        let serves = maps.targets.get(&target).is_some_and(TargetEntry::serves) && !silent.contains(&target);
        serves && !lacks.0.contains(&(id, target)) && !may_hide(maps, (group, target), silent, given_up)
    };
    newcomers.filter(has_all).map(|(id, _, target)| (id, target)).collect()
}

/// Whether there may be stripes over a group that nobody shows, so that `target` may lack something of them.
fn may_hide(
    maps: &Maps,
    (group, target): (&GroupEntry, TargetId),
    silent: &BTreeSet<TargetId>,
    given_up: &BTreeSet<TargetId>,
) -> bool {
    let unheard = |target: &TargetId| {
        let failed = maps.targets.get(target).is_none_or(|entry| entry.state == TargetState::Failed);
        (failed || silent.contains(target)) && !given_up.contains(target)
    };
    let tells = |other: TargetId| maps.is_whole_in(group, other) && !silent.contains(&other);
    let others = || group.targets.iter().filter(|&&other| other != target);
    let uncertain = others().filter(|&&other| !tells(other)).count();
    others().any(unheard) && uncertain >= usize::from(group.geometry.parity)
}

#[cfg(test)]
mod tests {
    use protocol::fragment::{FragmentId, Geometry, Part};
    use protocol::id::RunNumber;
    use protocol::maps::GroupEntry;

    use super::*;
    use crate::Damage;

    const WHOLE: TargetState = TargetState::Whole;
    const BEHIND: TargetState = TargetState::Behind;
    const FAILED: TargetState = TargetState::Failed;

    /// One group over targets in these states, each on a machine of its own.
    fn maps(states: &[TargetState], parity: u8) -> Maps {
        let entry =
            |(node, &state): (u32, &TargetState)| TargetEntry { state, ..TargetEntry::new(node, String::new()) };
        let geometry = Geometry { data: states.len() as u8 - parity, parity, fragment_size: 4096 };
        let targets: Vec<_> = (0..states.len() as u32).map(TargetId).collect();
        Maps {
            fragment_size: 4096,
            targets: targets.iter().copied().zip((1..).zip(states).map(entry)).collect(),
            groups: [(GroupId(0), GroupEntry::new(targets, geometry, false))].into(),
            ..Maps::empty(1, parity)
        }
    }

    fn lacking(number: u64, targets: &[u32]) -> StripeState {
        let id = |part| FragmentId { log: LogId(1), stripe: StripeNumber(number), run: RunNumber(0), part };
        let damage = |&target: &u32| Damage { id: id(Part::Data(0)), target: TargetId(target) };
        let missing = targets.iter().map(damage).collect();
        let (log, number) = (LogId(1), StripeNumber(number));
        StripeState { log, number, length: 9, ended: true, group: GroupId(0), cut_off: false, missing, astray: vec![] }
    }

    fn next(lacking: &mut Lacking, maps: &Maps, node: u32) -> Option<u64> {
        lacking.next_for(maps, node).map(|refill| refill.stripe.0)
    }

    fn of(maps: &Maps, states: &[StripeState]) -> Lacking {
        let mut lacking = Lacking::default();
        states.iter().for_each(|state| lacking.add(maps, state));
        lacking
    }

    fn lacks(states: &[StripeState]) -> Lacks {
        let mut lacks = Lacks::default();
        states.iter().for_each(|state| lacks.add(state));
        lacks
    }

    fn whole(maps: &Maps, states: &[StripeState], silent: &[u32], given_up: &[u32]) -> Vec<u32> {
        let set = |list: &[u32]| list.iter().copied().map(TargetId).collect();
        whole_again(maps, &lacks(states), &set(silent), &set(given_up)).into_iter().map(|target| target.0).collect()
    }

    #[test]
    fn the_most_exposed_stripes_come_first_and_those_of_targets_that_are_away_not_at_all() {
        let mut maps = maps(&[BEHIND, BEHIND, FAILED, WHOLE, WHOLE], 2);
        let states = vec![
            lacking(1, &[0]),
            lacking(2, &[]),
            lacking(3, &[2]),
            lacking(4, &[0, 1]),
            lacking(5, &[1, 2]),
            lacking(6, &[9]),
        ];
        maps.targets
            .insert(TargetId(9), TargetEntry { state: TargetState::Removed, ..TargetEntry::new(9, String::new()) });
        let mut lacking = of(&maps, &states);
        assert_eq!(lacking.len(), 3);
        assert_eq!(std::array::from_fn(|_| next(&mut lacking, &maps, 3)), [Some(4), Some(5), Some(1), None]);
    }

    #[test]
    fn a_machine_gets_of_as_exposed_stripes_one_of_which_it_has_a_fragment() {
        let mut maps = maps(&[BEHIND, BEHIND, WHOLE, WHOLE, WHOLE], 2);
        let elsewhere = GroupEntry { targets: [0, 1, 2, 3].map(TargetId).into(), ..maps.groups[&GroupId(0)].clone() };
        maps.groups.insert(GroupId(1), elsewhere);
        let not_on_5 = |state| StripeState { group: GroupId(1), ..state };
        let states =
            || vec![not_on_5(lacking(1, &[0])), not_on_5(lacking(2, &[0, 1])), lacking(3, &[0]), lacking(4, &[1])];
        let mut of_5 = of(&maps, &states());
        let first = "none that is as exposed lies on it, so it gets what is most exposed";
        assert_eq!(next(&mut of_5, &maps, 5), Some(2), "{first}");
        assert_eq!(std::array::from_fn(|_| next(&mut of_5, &maps, 5)), [Some(3), Some(4), Some(1), None]);
        let mut of_4 = of(&maps, &states());
        assert_eq!(std::array::from_fn(|_| next(&mut of_4, &maps, 4)), [Some(2), Some(1), Some(3), Some(4), None]);
    }

    #[test]
    fn a_target_is_whole_when_it_lacks_nothing_that_anybody_knows() {
        let maps = maps(&[BEHIND, WHOLE, WHOLE], 1);
        assert_eq!(whole(&maps, &[lacking(1, &[])], &[], &[]), [0]);
        assert_eq!(whole(&maps, &[lacking(1, &[0])], &[], &[]), [0; 0]);
        assert_eq!(whole(&maps, &[lacking(1, &[1])], &[], &[]), [0], "the other's lack is the other's");
        assert_eq!(whole(&maps, &[], &[0], &[]), [0; 0], "it did not answer");
    }

    #[test]
    fn who_took_a_place_lacks_nothing_when_that_group_does_not() {
        let mut maps = maps(&[WHOLE, WHOLE, WHOLE], 1);
        let settled = |maps: &Maps, states: &[StripeState], silent: &[u32]| {
            settled(maps, &lacks(states), &silent.iter().copied().map(TargetId).collect(), &BTreeSet::new()).len()
        };
        assert_eq!(settled(&maps, &[], &[]), 0, "nobody is new");
        maps.groups.get_mut(&GroupId(0)).expect("the only one").newcomers.insert(TargetId(1));
        assert_eq!(settled(&maps, &[lacking(1, &[])], &[]), 1);
        assert_eq!(settled(&maps, &[lacking(1, &[1])], &[]), 0);
        assert_eq!(settled(&maps, &[lacking(1, &[2])], &[]), 1, "the other's lack is the other's");
        assert_eq!(
            settled(&maps, &[StripeState { group: GroupId(7), ..lacking(1, &[1]) }], &[]),
            1,
            "elsewhere it may"
        );
        assert_eq!((settled(&maps, &[], &[1]), settled(&maps, &[], &[2])), (0, 0), "nor where something may hide");
    }

    #[test]
    fn a_target_is_not_whole_while_stripes_may_hide_on_others_that_are_away() {
        assert_eq!(whole(&maps(&[BEHIND, WHOLE], 1), &[], &[1], &[]), [0; 0]);
        assert_eq!(whole(&maps(&[BEHIND, FAILED], 1), &[], &[], &[]), [0; 0]);
        assert_eq!(whole(&maps(&[BEHIND, FAILED], 1), &[], &[], &[1]), [0], "nobody waits for it any more");
        assert_eq!(whole(&maps(&[BEHIND, FAILED, WHOLE, WHOLE], 2), &[], &[], &[]), [0], "one cannot hide a stripe");
        assert_eq!(whole(&maps(&[BEHIND, FAILED, WHOLE, WHOLE], 2), &[], &[2], &[]), [0; 0]);
    }

    /// A short stripe has one data fragment and m of parity: whoever is away may have the only one that is left of it.
    #[test]
    fn one_that_is_away_hides_what_others_have_lost() {
        assert_eq!(whole(&maps(&[BEHIND, FAILED, FAILED, WHOLE], 2), &[], &[], &[1]), [0; 0], "what one had is lost");
        assert_eq!(whole(&maps(&[BEHIND, FAILED, FAILED, WHOLE], 2), &[], &[], &[1, 2]), [0], "nobody may come back");
        assert_eq!(whole(&maps(&[BEHIND, BEHIND, FAILED, WHOLE], 2), &[], &[], &[]), [0; 0], "both may be blank");
        assert_eq!(whole(&maps(&[BEHIND, BEHIND, WHOLE, WHOLE], 2), &[], &[], &[]), [0, 1], "all tell what they have");
        let mut maps = maps(&[BEHIND, WHOLE, FAILED, WHOLE], 2);
        maps.groups.get_mut(&GroupId(0)).expect("the only one").newcomers.insert(TargetId(1));
        assert_eq!(whole(&maps, &[], &[], &[]), [0; 0], "a newcomer has not got all yet");
    }
}
