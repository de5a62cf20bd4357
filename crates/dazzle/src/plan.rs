//! What draining some targets would cost and leave: what `--plan` prints, and why a drain is refused. Pure.

use std::collections::{BTreeMap, BTreeSet};

use log::exposure::Safety;
use log::leaving::{Left, bytes_on};
use log::stripes::StripeState;
use protocol::id::TargetId;
use protocol::maps::{Drain, Maps};
use protocol::registry::RegistryRequest;
use protocol::storage::TargetStat;
use registry::change;
use serde_json::{Value, json};

use crate::config::Size;

/// What is known before.
pub(crate) struct Known<'a> {
    pub(crate) maps: &'a Maps,
    pub(crate) states: &'a [StripeState],
    /// What the targets that answer say of themselves.
    pub(crate) stats: BTreeMap<TargetId, TargetStat>,
    /// How many bytes each machine that helps lays anew in a second.
    pub(crate) rate: u64,
}

/// What it would be.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Plan {
    /// What lies there.
    pub(crate) left: Left,
    /// Data bytes for which there is room without the targets, once what moves is gone from where it was.
    pub(crate) room: u64,
    /// What may be lost now, of what is written from now on.
    pub(crate) now: Option<Safety>,
    /// What may be lost without the targets.
    pub(crate) then: Option<Safety>,
    /// How long it takes at least.
    pub(crate) seconds: u64,
    /// Bytes in a second that each machine's link must carry for that, in each direction, at most. None on one machine.
    pub(crate) link: u64,
    /// Why it is refused, in words; nothing when it is not.
    pub(crate) refusal: Option<String>,
    /// Whether it may be forced.
    pub(crate) forcible: bool,
}

impl Plan {
    /// Of draining `targets`.
    pub(crate) fn of(known: Known<'_>, targets: &BTreeSet<TargetId>) -> Plan {
        let Known { maps, states, stats, rate } = known;
        let left = Left::on(maps, states, targets);
        let now = Safety::of_current(maps);
        let mut plan = Plan { left, room: 0, now, then: None, seconds: 0, link: 0, refusal: None, forcible: false };
        plan.seconds = left.bytes_data.div_ceil(rate.max(1).saturating_mul(cleaner::helpers(maps).max(1) as u64));
        let request = RegistryRequest::Drain(targets.iter().copied().collect(), Drain::Forced);
        let without = match change::apply(maps, request) {
            (_, Err(error)) => {
                plan.refusal = Some(error.to_string());
                return plan;
            }
            (next, Ok(_)) => next.unwrap_or_else(|| maps.clone()),
        };
        plan.link = link(&without, rate);
        plan.then = Safety::of_current(&without);
        plan.room = room(maps, &without, states, (stats, targets));
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
        json!({
            "stripes": self.left.stripes, "bytes_there": self.left.bytes, "bytes_to_move": self.left.bytes_data,
            "room": self.room, "now": safety(self.now), "then": safety(self.then), "seconds": self.seconds,
            "link_bytes_per_second": self.link, "refused": self.refusal, "forcible": self.forcible,
        })
    }
}

fn promise(when: &str, safety: Option<Safety>) -> String {
    match safety {
        None => format!("{when} nothing can be written"),
        Some(Safety { machines: 0, targets }) => format!("{when} no machine and {targets} target(s) may be lost"),
        Some(Safety { machines, .. }) => format!("{when} {machines} machine(s) may be lost"),
    }
}

/// What each machine's link carries in each direction while each machine lays so many data bytes a second anew: it fetches
/// them, and sends them on with parity; and as much comes from the others. What stays at home is not taken off.
fn link(maps: &Maps, rate: u64) -> u64 {
    let current = || maps.groups.values().filter(|group| group.current);
    let machines: BTreeSet<u32> = current().flat_map(|group| &group.targets).map(|it| maps.targets[it].node).collect();
    let width = current().map(|group| group.targets.len() as u64).max().unwrap_or(0);
    let data = width.saturating_sub(u64::from(maps.parity));
    if machines.len() < 2 || data == 0 {
        return 0;
    }
    rate.saturating_add(rate.saturating_mul(width) / data)
}

/// Data bytes that fit over the groups without `targets`, when what lies over these is gone from the others.
fn room(
    maps: &Maps,
    without: &Maps,
    states: &[StripeState],
    (mut stats, targets): (BTreeMap<TargetId, TargetStat>, &BTreeSet<TargetId>),
) -> u64 {
    for state in states {
        let Some(group) = maps.groups.get(&state.group) else { continue };
        if !group.targets.iter().any(|target| targets.contains(target)) {
            continue;
        }
        for target in &group.targets {
            if let Some(stat) = stats.get_mut(target) {
                stat.bytes_free += bytes_on(group, state, *target);
            }
        }
    }
    client::usable(without, &stats, |stat| stat.bytes_free.saturating_sub(stat.bytes_reserved))
}

#[cfg(test)]
mod tests {
    use protocol::fragment::FRAGMENT_SIZE;
    use protocol::id::{GroupId, LogId, StripeNumber};
    use protocol::maps::{NodeEntry, TargetEntry, TargetState};

    use super::*;

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
        let known = Known { maps, states, stats, rate: FRAGMENT };
        Plan::of(known, &drained.iter().copied().map(TargetId).collect())
    }

    #[test]
    fn a_plan_says_what_moves_how_long_it_takes_and_what_may_be_lost_then() {
        let (maps, states) = cluster(4);
        let plan = plan(&maps, &states, 50 << 20, &[4]);
        assert_eq!(
            (plan.left.stripes, plan.left.bytes_data, plan.left.bytes, plan.seconds),
            (1, 3 * FRAGMENT, FRAGMENT, 1)
        );
        assert_eq!((plan.now, plan.then), (Some(Safety { machines: 1, targets: 1 }), plan.now));
        assert_eq!(
            plan.room,
            2 * ((50 << 20) + FRAGMENT),
            "over three machines, from each of which a fragment goes too"
        );
        assert_eq!(plan.refusal, None);
        assert_eq!(plan.link, FRAGMENT + FRAGMENT * 3 / 2, "each byte is fetched, and stored over three machines");
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
