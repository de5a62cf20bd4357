//! What emptying some targets would cost and leave: what `--plan` prints, and why a drain is refused. Pure.

use std::collections::{BTreeMap, BTreeSet};

use log::exposure::Safety;
use log::leaving::{Left, bytes_on};
use log::replacing::replaced;
use log::stripes::StripeState;
use protocol::id::{GroupId, StripeNumber, TargetId};
use protocol::maps::{Drain, GroupEntry, Maps, TargetState};
use protocol::registry::RegistryRequest;
use protocol::storage::TargetStat;
use registry::change;
use serde_json::{Value, json};

use crate::config::Size;
use crate::pace::{Estimate, Pace, Work};
use crate::supply::needs;

/// What is known before.
pub(crate) struct Known<'a> {
    pub(crate) maps: &'a Maps,
    /// What lies over the targets that are to be emptied.
    pub(crate) lying: Lying,
    /// What the targets that answer say of themselves.
    pub(crate) stats: BTreeMap<TargetId, TargetStat>,
    /// How fast bytes may move.
    pub(crate) pace: Pace,
}

/// What lies over some targets.
#[derive(Clone, Debug, Default)]
pub(crate) struct Lying {
    pub(crate) left: Left,
    by_group: BTreeMap<GroupId, Left>,
    /// Data bytes of which too little is left without what was on those that are lost.
    bytes_lost: u64,
    /// The bytes on all members of the groups in which it lies.
    bytes_on: BTreeMap<TargetId, u64>,
}

impl Lying {
    /// Takes note of a stripe.
    pub(crate) fn add(&mut self, maps: &Maps, state: &StripeState, targets: &BTreeSet<TargetId>) {
        let left = Left::on(maps, state, targets);
        self.left += left;
        *self.by_group.entry(state.group).or_default() += left;
        self.bytes_lost += if needs(maps, state, &lost(maps, targets)) { left.bytes_data } else { 0 };
        let is_over = |group: &&GroupEntry| group.targets.iter().any(|target| targets.contains(target));
        let Some(group) = maps.groups.get(&state.group).filter(is_over) else { return };
        for target in &group.targets {
            *self.bytes_on.entry(*target).or_default() += bytes_on(group, state, *target);
        }
    }
}

/// Those that failed.
fn lost(maps: &Maps, targets: &BTreeSet<TargetId>) -> BTreeSet<TargetId> {
    let is_lost = |target: &TargetId| maps.targets.get(target).is_some_and(|entry| entry.state == TargetState::Failed);
    targets.iter().copied().filter(is_lost).collect()
}

/// What it would be.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Plan {
    /// What lies there.
    pub(crate) left: Left,
    /// What becomes of it.
    pub(crate) fate: Fate,
    /// Data bytes for which there is room without the targets, once what moves is gone from where it was.
    pub(crate) room: u64,
    /// What may be lost now, of what is written from now on.
    pub(crate) now: Option<Safety>,
    /// What may be lost without the targets.
    pub(crate) then: Option<Safety>,
    /// How long it takes.
    pub(crate) estimate: Estimate,
    /// Why it is refused, in words; nothing when it is not.
    pub(crate) refusal: Option<String>,
    /// Whether it may be forced.
    pub(crate) forcible: bool,
}

/// What becomes of the stripes that lie over targets which go.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Fate {
    /// Data bytes that are laid anew over the others.
    pub(crate) bytes_to_move: u64,
    /// Bytes of fragments that are made again on others, which take the places of targets that are lost.
    pub(crate) bytes_to_make: u64,
    /// Data bytes of which too little is left without what was on targets that are lost.
    pub(crate) bytes_lost: u64,
}

impl Plan {
    /// Of draining `targets`; those that failed are given up at once.
    pub(crate) fn of(known: Known<'_>, targets: &BTreeSet<TargetId>) -> Plan {
        let Known { maps, lying, stats, pace } = known;
        let left = lying.left;
        let (now, fate, estimate) = (Safety::of_current(maps), Fate::default(), Work::default().estimate(pace));
        let mut plan = Plan { left, fate, room: 0, now, then: None, estimate, refusal: None, forcible: false };
        let request = RegistryRequest::Drain(targets.iter().copied().collect(), Drain::Forced, maps.epoch);
        let without = match change::apply(maps, request) {
            (_, Err(error)) => {
                plan.refusal = Some(error.to_string());
                return plan;
            }
            (next, Ok(_)) => next.unwrap_or_else(|| maps.clone()),
        };
        let (fate, work) = fate_of((maps, &without), &lying, targets);
        (plan.fate, plan.estimate) = (fate, work.estimate(pace));
        plan.then = Safety::of_current(&without);
        plan.room = room(&without, &lying, stats);
        plan.forcible = true;
        plan.refusal = plan.objection(usize::from(maps.parity));
        if without
            .groups
            .values()
            .filter(|group| group.current)
            .flat_map(|group| &group.targets)
            .any(|it| targets.contains(it))
        {
            plan.refusal = Some("no other target serves: there is nowhere for anything to go".into());
            plan.forcible = false;
        }
        plan
    }

    /// What speaks against it: less would be safe than is now, of what the class asks for; or there is no room.
    fn objection(&self, parity: usize) -> Option<String> {
        let asked = self.now.map(|now| Safety { machines: now.machines.min(parity), targets: now.targets.min(parity) });
        if self.then < asked {
            return Some(format!("{}; without it {}", promise("now", self.now), promise("only", self.then)));
        }
        (self.left.bytes_data > self.room).then(|| {
            let (bytes, room) = (Size(self.left.bytes_data), Size(self.room));
            format!("{bytes} would have to lie elsewhere, and without it there is room for {room}")
        })
    }

    pub(crate) fn in_json(&self) -> Value {
        let safety = |safety: Option<Safety>| {
            safety.map_or(Value::Null, |it| json!({"machines": it.machines, "targets": it.targets}))
        };
        let plan = json!({
            "stripes": self.left.stripes, "bytes_there": self.left.bytes, "bytes_to_move": self.fate.bytes_to_move,
            "bytes_to_make": self.fate.bytes_to_make, "bytes_lost": self.fate.bytes_lost,
            "room": self.room, "now": safety(self.now), "then": safety(self.then), "refused": self.refusal,
            "forcible": self.forcible,
        });
        joined(plan, self.estimate.in_json())
    }
}

/// What becomes of the stripes over `targets`, and what others have to do for that, when the maps become `without`.
fn fate_of((maps, without): (&Maps, &Maps), lying: &Lying, targets: &BTreeSet<TargetId>) -> (Fate, Work) {
    let mut fate = Fate { bytes_lost: lying.bytes_lost, ..Fate::default() };
    let (replaced, mut work) = (replaced(&with_ended_runs(without), &lost(maps, targets)), Work::default());
    for (id, left) in lying.by_group.iter().filter(|(_, left)| left.bytes_data > 0) {
        let group: &GroupEntry = replaced.get(id).unwrap_or(&maps.groups[id]);
        if group.newcomers.is_empty() {
            fate.bytes_to_move += left.bytes_data;
            work.lay_anew(maps, without, (group, left.bytes_data));
        } else {
            fate.bytes_to_make += left.bytes;
            work.make_again(maps, (group, &group.newcomers), left.bytes_data);
        }
    }
    (fate, work)
}

/// One answer with the fields of both.
pub(crate) fn joined(mut one: Value, other: Value) -> Value {
    if let (Value::Object(one), Value::Object(other)) = (&mut one, other) {
        one.extend(other);
    }
    one
}

fn promise(when: &str, safety: Option<Safety>) -> String {
    match safety {
        None => format!("{when} nothing can be written"),
        Some(Safety { machines: 0, targets }) => format!("{when} no machine and {targets} target(s) may be lost"),
        Some(Safety { machines, .. }) => format!("{when} {machines} machine(s) may be lost"),
    }
}

/// The maps once open logs have gone on over the current groups, as they do.
fn with_ended_runs(maps: &Maps) -> Maps {
    let mut after = maps.clone();
    let runs = after.logs.values_mut().flat_map(|log| &mut log.layout);
    runs.filter(|run| run.end.is_none()).for_each(|run| run.end = Some(StripeNumber(u64::MAX)));
    after
}

/// Data bytes that fit over the groups that are left, when what lies over the targets that go is gone from the others.
fn room(without: &Maps, lying: &Lying, mut stats: BTreeMap<TargetId, TargetStat>) -> u64 {
    for (target, stat) in &mut stats {
        stat.bytes_free += lying.bytes_on.get(target).copied().unwrap_or(0);
    }
    client::usable(without, &stats, |stat| stat.bytes_free.saturating_sub(stat.bytes_reserved))
}

#[cfg(test)]
mod tests {
    use log::Damage;
    use protocol::fragment::{FRAGMENT_SIZE, FragmentId, Geometry, Part};
    use protocol::id::{FenceEpoch, LogId, RunNumber};
    use protocol::maps::{LogEntry, LogState, NodeEntry, Run, TargetEntry, Writer};

    use super::*;
    use crate::pace::Bound;

    const FRAGMENT: u64 = FRAGMENT_SIZE as u64;

    /// Machines of one target each, and one stripe of three fragments' data over all of them.
    fn cluster(machines: u32) -> (Maps, Vec<StripeState>) {
        let targets = (1..=machines).map(|node| (TargetId(node), TargetEntry::new(node, String::new()))).collect();
        let maps = change::new_cluster(1, targets, 1, 1);
        let state = StripeState {
            log: LogId(1),
            number: StripeNumber(0),
            length: 3 * FRAGMENT_SIZE,
            ended: true,
            group: GroupId(0),
            cut_off: false,
            missing: vec![],
            astray: vec![],
        };
        (maps, vec![state])
    }

    fn plan(maps: &Maps, states: &[StripeState], bytes_free: u64, drained: &[u32]) -> Plan {
        let stat = TargetStat { bytes_total: 100 << 20, bytes_free, ..TargetStat::default() };
        let stats = maps.targets.keys().map(|&target| (target, stat)).collect();
        let (targets, mut lying) = (drained.iter().copied().map(TargetId).collect(), Lying::default());
        states.iter().for_each(|state| lying.add(maps, state, &targets));
        Plan::of(Known { maps, lying, stats, pace: Pace { budget: FRAGMENT, link: None } }, &targets)
    }

    #[test]
    fn a_plan_says_what_moves_how_long_it_takes_and_what_may_be_lost_then() {
        let (maps, states) = cluster(4);
        let plan = plan(&maps, &states, 50 << 20, &[4]);
        assert_eq!(
            (plan.left.stripes, plan.left.bytes_data, plan.left.bytes, plan.estimate.seconds),
            (1, 3 * FRAGMENT, FRAGMENT, 1)
        );
        let fate = Fate { bytes_to_move: 3 * FRAGMENT, ..Fate::default() };
        assert_eq!((plan.fate, plan.estimate.bound), (fate, Bound::Unknown));
        assert_eq!((plan.now, plan.then), (Some(Safety { machines: 1, targets: 1 }), plan.now));
        assert_eq!(
            plan.room,
            2 * ((50 << 20) + FRAGMENT),
            "over three machines, from each of which a fragment goes too"
        );
        assert_eq!(plan.refusal, None);
    }

    /// Machine 4 is lost, whose target had a part of the stripe over machines 1 to 4; more were added since, if any.
    fn lost(machines: u32) -> (Maps, Vec<StripeState>) {
        let ((mut maps, mut states), old) = (cluster(machines), GroupId(70));
        let geometry = Geometry { data: 3, parity: 1, fragment_size: FRAGMENT_SIZE };
        maps.groups.insert(old, GroupEntry::new((1..=4).map(TargetId).collect(), geometry, false));
        let run = Run::new(RunNumber(0), StripeNumber(0), vec![old]);
        let state = LogState::Open(FenceEpoch(1));
        let entry = LogEntry::new((1, 1), Writer::Client, vec![run], state);
        maps.logs.insert(LogId(1), entry);
        states[0].group = old;
        lacks(&mut states[0], 4);
        let (left, _) = change::apply(&maps, RegistryRequest::End { node: 4, session: 1 });
        (left.expect("it was there"), states)
    }

    fn lacks(state: &mut StripeState, target: u32) {
        let id = FragmentId { log: LogId(1), stripe: state.number, run: RunNumber(0), part: Part::Data(0) };
        state.missing.push(Damage { id, target: TargetId(target) });
    }

    #[test]
    fn what_a_lost_machine_had_is_made_again_where_one_is_free_and_laid_anew_where_none_is() {
        let (maps, mut states) = lost(5);
        let again = plan(&maps, &states, 50 << 20, &[4]);
        assert_eq!(again.fate, Fate { bytes_to_make: FRAGMENT, ..Fate::default() }, "machine 5 has none of it");
        assert_eq!((again.refusal, again.estimate.seconds), (None, 1));
        let (without_5, same) = lost(4);
        let anew = plan(&without_5, &same, 50 << 20, &[4]);
        assert_eq!(anew.fate, Fate { bytes_to_move: 3 * FRAGMENT, ..Fate::default() }, "three are left for four parts");
        lacks(&mut states[0], 1);
        assert_eq!(plan(&maps, &states, 50 << 20, &[4]).fate.bytes_lost, 3 * FRAGMENT, "another lacks its part, too");
        assert_eq!(plan(&maps, &states, 50 << 20, &[3]).fate.bytes_lost, 0, "nothing is lost by emptying what lives");
    }

    #[test]
    fn what_would_cost_redundancy_or_does_not_fit_is_refused_and_may_be_forced() {
        let (maps, states) = cluster(2);
        let lonely = plan(&maps, &states, 50 << 20, &[2]);
        let why = lonely.refusal.expect("one machine is left");
        assert_eq!(why, "now 1 machine(s) may be lost; without it only no machine and 0 target(s) may be lost");
        assert!(lonely.forcible);
        let (maps, states) = cluster(4);
        let full = plan(&maps, &states, 0, &[4]);
        assert_eq!(
            full.refusal.as_deref(),
            Some("1.5 MiB would have to lie elsewhere, and without it there is room for 1 MiB")
        );
        assert!(full.forcible);
        let all = plan(&maps, &states, 50 << 20, &[1, 2, 3, 4]);
        assert!(all.refusal.is_some() && !all.forcible);
    }

    #[test]
    fn where_nobody_else_serves_nothing_can_be_forced() {
        let (mut maps, states) = cluster(2);
        maps.targets.get_mut(&TargetId(1)).expect("one of two").state = TargetState::Behind;
        let last = plan(&maps, &states, 50 << 20, &[2]);
        assert!(last.refusal.is_some() && !last.forcible, "{last:?}");
        let other = NodeEntry { name: "client".into(), ..maps.nodes[&1].clone() };
        maps.nodes.insert(9, other);
        assert!(!plan(&maps, &states, 50 << 20, &[2]).forcible);
    }
}
