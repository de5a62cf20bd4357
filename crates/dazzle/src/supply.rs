//! What a target that is added gives, and what an empty disk in the place of one would cost: what `--plan` prints. Pure.

use std::collections::{BTreeMap, BTreeSet};

use host::DiskUsage;
use log::exposure::Safety;
use log::leaving::Left;
use log::stripes::StripeState;
use protocol::id::TargetId;
use protocol::maps::{GroupEntry, Maps, TargetEntry, TargetState};
use protocol::registry::RegistryRequest;
use protocol::storage::TargetStat;
use registry::change::{self, Outcome};
use serde_json::{Value, json};

use crate::config::Size;
use crate::pace::{BytesIn, Estimate, Pace, Work};
use crate::plan::joined;

/// What a new target gives.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Gain {
    /// Data bytes for which there is room now, and with it.
    room: (u64, u64),
    /// What may be lost of what is written from now on, and with it.
    safety: (Option<Safety>, Option<Safety>),
}

impl Gain {
    /// Of one called `name` on this `node` in its session, on a disk with so much room. `stats` is what the others that
    /// answer say of themselves.
    pub(crate) fn of(
        maps: &Maps,
        (node, session, name): (u32, u64, String),
        disk: DiskUsage,
        mut stats: BTreeMap<TargetId, TargetStat>,
    ) -> Result<Gain, String> {
        let (added, outcome) = change::apply(maps, RegistryRequest::AddTarget { node, session, name });
        let Ok(Outcome::Targets(target)) = outcome else {
            return Err(outcome.err().map_or_else(String::new, |error| error.to_string()));
        };
        let added = added.unwrap_or_else(|| maps.clone());
        let (sized, _) = change::apply(&added, RegistryRequest::TargetSizes(vec![(target, disk.bytes_total)]));
        let sized = sized.unwrap_or(added);
        let (serves, _) = change::apply(&sized, RegistryRequest::SetTarget(target, TargetState::Behind));
        let serves = serves.unwrap_or(sized);
        let (whole, _) = change::apply(&serves, RegistryRequest::TargetWhole(target, serves.epoch));
        let whole = whole.unwrap_or(serves);
        let room = |maps: &Maps, stats: &BTreeMap<TargetId, TargetStat>| {
            client::usable(maps, stats, |stat| stat.bytes_free.saturating_sub(stat.bytes_reserved))
        };
        let now = room(maps, &stats);
        let DiskUsage { bytes_total, bytes_free, .. } = disk;
        stats.insert(target, TargetStat { bytes_total, bytes_free, ..TargetStat::default() });
        let safety = (Safety::of_current(maps), Safety::of_current(&whole));
        Ok(Gain { room: (now, room(&whole, &stats)), safety })
    }

    pub(crate) fn in_json(&self) -> Value {
        json!({
            "bytes_to_move": 0, "seconds": 0, "room_now": self.room.0, "room": self.room.1,
            "now": safety(self.safety.0), "then": safety(self.safety.1),
        })
    }
}

/// What was to lie on a target.
#[derive(Clone, Debug, Default)]
pub(crate) struct Owed {
    left: Left,
    by_group: BytesIn,
    bytes_lost: u64,
}

impl Owed {
    /// Takes note of a stripe.
    pub(crate) fn add(&mut self, maps: &Maps, state: &StripeState, target: TargetId) {
        let own = [target].into();
        let left = Left::on(maps, state, &own);
        self.left += left;
        *self.by_group.entry(state.group).or_default() += left.bytes_data;
        self.bytes_lost += if needs(maps, state, &own) { u64::from(state.length) } else { 0 };
    }
}

/// What is to be made again on an empty disk.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Refill {
    /// What was to lie there.
    left: Left,
    /// Data bytes of which the others have too little.
    bytes_lost: u64,
    /// How long it takes.
    estimate: Estimate,
}

impl Refill {
    /// Of a target.
    pub(crate) fn of(maps: &Maps, owed: Owed, target: TargetId, pace: Pace) -> Refill {
        let (own, mut work) = ([target].into(), Work::default());
        for (group, bytes) in owed.by_group.into_iter().filter(|(_, bytes)| *bytes > 0) {
            work.make_again(maps, (&maps.groups[&group], &own), bytes);
        }
        Refill { left: owed.left, bytes_lost: owed.bytes_lost, estimate: work.estimate(pace) }
    }

    /// What speaks against it: what lies there may be all that there is of something.
    pub(crate) fn objection(&self, name: &str) -> Option<String> {
        let lost = Size(self.bytes_lost);
        (self.bytes_lost > 0).then(|| {
            format!(
                "{lost} cannot be made again without what lies on {name}: bring its disk back, or other targets that are \
                 missing"
            )
        })
    }

    pub(crate) fn in_json(&self) -> Value {
        let refill = json!({
            "stripes": self.left.stripes, "bytes_to_make": self.left.bytes, "bytes_lost": self.bytes_lost,
        });
        joined(refill, self.estimate.in_json())
    }
}

/// Whether a stripe lies over some of `targets`, and the others have too little of it.
pub(crate) fn needs(maps: &Maps, state: &StripeState, targets: &BTreeSet<TargetId>) -> bool {
    let is_over = |group: &&GroupEntry| group.targets.iter().any(|target| targets.contains(target));
    let Some(group) = maps.groups.get(&state.group).filter(is_over) else {
        return false;
    };
    let silent = |target: &&TargetId| !maps.targets.get(target).is_some_and(TargetEntry::serves);
    let mut absent: BTreeSet<TargetId> = group.targets.iter().filter(silent).copied().collect();
    absent.extend(state.missing.iter().map(|damage| damage.target).chain(targets.iter().copied()));
    state.ended && Safety::of_group(maps, group, &absent).is_none()
}

/// The bytes of a stripe that `target` lacks still.
pub(crate) fn lacking(maps: &Maps, state: &StripeState, target: TargetId) -> u64 {
    let lacks = state.missing.iter().any(|damage| damage.target == target);
    if lacks { Left::on(maps, state, &[target].into()).bytes } else { 0 }
}

fn safety(safety: Option<Safety>) -> Value {
    safety.map_or(Value::Null, |it| json!({"machines": it.machines, "targets": it.targets}))
}

#[cfg(test)]
mod tests {
    use log::Damage;
    use protocol::fragment::{FRAGMENT_SIZE, FragmentId, Part};
    use protocol::id::{GroupId, LogId, RunNumber, StripeNumber};

    use super::*;

    const FRAGMENT: u64 = FRAGMENT_SIZE as u64;
    const PACE: Pace = Pace { budget: FRAGMENT / 4, link: None };

    /// Machines of one target each, and one stripe of three fragments' data over all of them.
    fn cluster(machines: u32) -> (Maps, StripeState) {
        let targets = (1..=machines).map(|node| (TargetId(node), TargetEntry::new(node, String::new()))).collect();
        let maps = change::new_cluster(1, targets, 1, 1);
        let (log, number) = (LogId(1), StripeNumber(0));
        let (length, group) = (3 * FRAGMENT_SIZE, GroupId(0));
        (maps, StripeState { log, number, length, ended: true, group, cut_off: false, missing: vec![], astray: vec![] })
    }

    #[test]
    fn a_plan_to_add_says_for_how_much_there_is_room_then() {
        let stat = TargetStat { bytes_total: 100 << 20, bytes_free: 50 << 20, ..TargetStat::default() };
        let gain = |maps: &Maps, session| {
            let stats = maps.targets.keys().map(|&target| (target, stat)).collect();
            let disk = DiskUsage { bytes_total: 200 << 20, bytes_free: 200 << 20, is_shared: false };
            Gain::of(maps, (1, session, "new".into()), disk, stats)
        };
        let targets = (0..3).map(|id| (TargetId(id), TargetEntry::new(1, String::new()))).collect();
        let alone = gain(&change::new_cluster(1, targets, 1, 1), 1).expect("it can be added");
        assert!(alone.room.0 > 0 && alone.room.1 > alone.room.0, "{alone:?}");
        assert_eq!(alone.safety, (Some(Safety { machines: 0, targets: 1 }), Some(Safety { machines: 0, targets: 1 })));
        let (maps, _) = cluster(3);
        let beside = gain(&maps, 1).expect("it can be added");
        assert_eq!(
            beside.room,
            (100 << 20, 100 << 20),
            "a part of every stripe lies on each machine: two have no more room"
        );
        assert_eq!(beside.safety.1, Some(Safety { machines: 1, targets: 1 }));
        let over = gain(&maps, 2);
        assert!(over.is_err_and(|why| why.contains("session")), "a session that is over adds nothing");
    }

    #[test]
    fn of_unequal_targets_about_all_can_be_written() {
        let gib = [100, 400, 400, 200, 300];
        let entry = |node: u32| TargetEntry {
            size: Some(gib[node as usize - 1] << 30),
            ..TargetEntry::new(node, String::new())
        };
        let targets = (1..=5).map(|node| (TargetId(node), entry(node))).collect();
        let class = protocol::maps::Class { parity: 1, data_max: Some(2) };
        let maps = change::new_cluster(1, targets, 1, class);
        let stat = |gib: &u64| TargetStat { bytes_total: gib << 30, bytes_free: gib << 30, ..TargetStat::default() };
        let stats: BTreeMap<TargetId, TargetStat> = (1..).map(TargetId).zip(gib.iter().map(stat)).collect();
        let room = client::usable(&maps, &stats, |stat| stat.bytes_free);
        let all = gib.iter().sum::<u64>() << 30;
        assert!(room <= all * 2 / 3 && room >= all * 2 / 3 * 19 / 20, "{room} of {all}, less a third for parity");
        let mut unsized_maps = maps.clone();
        unsized_maps.targets.values_mut().for_each(|entry| entry.size = None);
        let targets = unsized_maps.targets.into_iter().collect();
        let even = client::usable(&change::new_cluster(1, targets, 1, class), &stats, |stat| stat.bytes_free);
        assert!(even < room * 9 / 10, "{even}: it is their sizes that make it so");
    }

    #[test]
    fn a_plan_to_replace_says_what_is_made_again_and_what_cannot_be() {
        let (mut maps, mut state) = cluster(4);
        let plan = |maps: &Maps, state: &StripeState| {
            let mut owed = Owed::default();
            owed.add(maps, state, TargetId(4));
            Refill::of(maps, owed, TargetId(4), PACE)
        };
        let refill = plan(&maps, &state);
        assert_eq!((refill.left.stripes, refill.left.bytes, refill.bytes_lost), (1, FRAGMENT, 0));
        assert_eq!(refill.estimate.seconds, 3);
        state.missing = vec![Damage { id: fragment(), target: TargetId(4) }];
        assert_eq!(plan(&maps, &state).objection("t4"), None, "it may lack there already");
        assert_eq!(lacking(&maps, &state, TargetId(4)), FRAGMENT);
        assert_eq!(lacking(&maps, &state, TargetId(3)), 0);
        state.missing.push(Damage { id: fragment(), target: TargetId(1) });
        assert_eq!(plan(&maps, &state).bytes_lost, 3 * FRAGMENT, "another lacks its part, too");
        assert!(plan(&maps, &state).objection("t4").is_some_and(|why| why.starts_with("1.5 MiB cannot be made again")));
        state.missing.clear();
        maps.targets.get_mut(&TargetId(2)).expect("one of four").state = TargetState::Failed;
        assert_eq!(plan(&maps, &state).bytes_lost, 3 * FRAGMENT, "another is away");
    }

    fn fragment() -> FragmentId {
        FragmentId { log: LogId(1), stripe: StripeNumber(0), run: RunNumber(0), part: Part::Data(0) }
    }
}
