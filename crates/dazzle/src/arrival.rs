//! What a machine that joins gives and costs: what `dazzle join --plan` prints. Pure.

use std::collections::{BTreeMap, BTreeSet};

use log::exposure::{Safety, to_lay_anew};
use log::stripes::StripeState;
use protocol::id::{GroupId, TargetId};
use protocol::maps::Maps;
use protocol::registry::{Attempt, RegistryError, RegistryRequest};
use protocol::storage::TargetStat;
use registry::change::{self, Outcome};
use registry::voters;
use serde_json::{Value, json};

use crate::pace::{Pace, Work};
use crate::plan::joined;

/// Who comes.
#[derive(Clone, Debug)]
pub(crate) struct Comer {
    pub(crate) name: String,
    pub(crate) address: String,
    pub(crate) stores: bool,
    pub(crate) attempt: Option<Attempt>,
    /// For each of its targets, how many bytes are free there.
    pub(crate) bytes_free: Vec<u64>,
}

/// How many stripes lie in each group, and how many data bytes.
pub(crate) type Stored = BTreeMap<GroupId, (u64, u64)>;

/// Data and parity fragments, where anything is written.
type Shape = Option<(u8, u8)>;

/// What it is like before and after.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Arrival {
    /// Data bytes for which there is room.
    room: (u64, u64),
    /// What may be lost of what is written from then on.
    safety: (Option<Safety>, Option<Safety>),
    /// How wide stripes are.
    shape: (Shape, Shape),
    /// Machines that store.
    machines: (usize, usize),
    /// How many vote.
    votes: (usize, usize),
    /// Stripes that lie over too few machines by then, and their data bytes.
    stripes: u64,
    bytes_to_move: u64,
    work: Work,
}

impl Arrival {
    /// Of a machine, or why it would not be let in. `stats` is what targets that answer say of themselves.
    pub(crate) fn of(
        (maps, stored): (&Maps, &Stored),
        comer: Comer,
        mut stats: BTreeMap<TargetId, TargetStat>,
        voters: &BTreeSet<u32>,
    ) -> Result<Arrival, RegistryError> {
        let room = |maps: &Maps, stats: &BTreeMap<TargetId, TargetStat>| {
            client::usable(maps, stats, |stat| stat.bytes_free.saturating_sub(stat.bytes_reserved))
        };
        let room_now = room(maps, &stats);
        let (then, own) = with(maps, &comer)?;
        for (target, bytes_free) in own.into_iter().zip(comer.bytes_free) {
            stats.insert(target, TargetStat { bytes_total: bytes_free, bytes_free, ..TargetStat::default() });
        }
        // What is to be laid anew already is so without it.
        let (before, after) = (to_lay_anew(maps, &BTreeSet::new()), to_lay_anew(&then, &BTreeSet::new()));
        let is_exposed = |group: &GroupId| after.contains_key(group) && !before.contains_key(group);
        let (mut stripes, mut bytes_to_move, mut work) = (0, 0, Work::default());
        for (group, &(count, bytes)) in stored.iter().filter(|(group, _)| is_exposed(group)) {
            (stripes, bytes_to_move) = (stripes + count, bytes_to_move + bytes);
            work.lay_anew(&then, &then, (&then.groups[group], bytes));
        }
        let votes = |maps: &Maps| voters::wanted(maps, voters).len();
        Ok(Arrival {
            room: (room_now, room(&then, &stats)),
            safety: (Safety::of_current(maps), Safety::of_current(&then)),
            shape: (shape(maps), shape(&then)),
            machines: (maps.storing().count(), then.storing().count()),
            votes: (votes(maps), votes(&then)),
            stripes,
            bytes_to_move,
            work,
        })
    }

    /// Whether anything moves.
    pub(crate) fn moves(&self) -> bool {
        self.bytes_to_move > 0
    }

    pub(crate) fn in_json(&self, pace: Pace) -> Value {
        let safety = |safety: Option<Safety>| {
            safety.map_or(Value::Null, |it| json!({"machines": it.machines, "targets": it.targets}))
        };
        let shape = |shape: Shape| shape.map(|(data, parity)| json!({"data": data, "parity": parity}));
        let told = json!({
            "room_now": self.room.0, "room": self.room.1, "now": safety(self.safety.0), "then": safety(self.safety.1),
            "stripes_now": shape(self.shape.0), "stripes_then": shape(self.shape.1),
            "machines_now": self.machines.0, "machines_then": self.machines.1,
            "votes_now": self.votes.0, "votes_then": self.votes.1,
            "stripes": self.stripes, "bytes_to_move": self.bytes_to_move,
        });
        joined(told, self.work.estimate(pace).in_json())
    }
}

/// Takes note of a stripe.
pub(crate) fn add(stored: &mut Stored, state: &StripeState) {
    let (stripes, bytes) = stored.entry(state.group).or_default();
    (*stripes, *bytes) = (*stripes + 1, *bytes + u64::from(state.length));
}

/// The maps with a machine that has joined and begun, and its targets.
fn with(maps: &Maps, comer: &Comer) -> Result<(Maps, Vec<TargetId>), RegistryError> {
    let Comer { name, address, stores, attempt, bytes_free } = comer.clone();
    let mut then = maps.clone();
    let mut agree = |request| {
        let (next, outcome) = change::apply(&then, request);
        then = next.unwrap_or_else(|| then.clone());
        outcome
    };
    let Outcome::Node(node) = agree(RegistryRequest::AddNode { name, address: address.clone(), stores, attempt })?
    else {
        return Err(RegistryError::Lost);
    };
    let mut own = Vec::new();
    if stores {
        let names = (0..bytes_free.len()).map(|number| format!("target-{number}")).collect();
        if let Outcome::Targets(TargetId(first)) = agree(RegistryRequest::AddTargets { node, names })? {
            own.extend((first..).map(TargetId).take(bytes_free.len()));
        }
    }
    agree(RegistryRequest::Begin { node, after: 0, address, keeps: None })?;
    Ok((then, own))
}

/// The widest stripes that are written.
fn shape(maps: &Maps) -> Shape {
    let current = maps.groups.values().filter(|group| group.current).map(|group| group.geometry);
    current.map(|geometry| (geometry.data, geometry.parity)).max()
}

#[cfg(test)]
mod tests {
    use protocol::fragment::FRAGMENT_SIZE;
    use protocol::id::{FenceEpoch, LogId, RunNumber, StripeNumber};
    use protocol::maps::{LogEntry, LogState, Run, TargetEntry, Writer};
    use protocol::registry::Invitation;

    use super::*;
    use crate::pace::Bound;

    const PACE: Pace = Pace { budget: 1 << 20, link: None };

    /// Machines with two targets each, numbered from 1, and a stripe in the first group.
    fn cluster(machines: u32) -> (Maps, Stored) {
        let target = |id: u32| (TargetId(id), TargetEntry::new(id / 2 + 1, format!("target-{}", id % 2)));
        let mut maps = change::new_cluster(1, (0..2 * machines).map(target).collect(), 1, 1);
        for (number, node) in &mut maps.nodes {
            (node.name, node.address) = (format!("host-{number}"), format!("192.0.2.{number}:4747"));
        }
        let group = *maps.groups.keys().next().expect("targets serve");
        let run = Run::new(RunNumber(0), StripeNumber(0), vec![group]);
        let state = LogState::Open(FenceEpoch(1));
        let entry = LogEntry::new((1, 1), Writer::Client, vec![run], state);
        maps.logs.insert(LogId(1), entry);
        let mut stored = Stored::new();
        add(&mut stored, &stripe(group));
        (maps, stored)
    }

    fn stripe(group: GroupId) -> StripeState {
        let (log, number, length) = (LogId(1), StripeNumber(0), FRAGMENT_SIZE);
        StripeState { log, number, length, ended: true, group, cut_off: false, missing: vec![], astray: vec![] }
    }

    fn comer(number: u32) -> Comer {
        let (name, address) = (format!("host-{number}"), format!("192.0.2.{number}:4747"));
        Comer { name, address, stores: true, attempt: None, bytes_free: vec![100 << 20; 2] }
    }

    fn arrival(machines: u32, comer: Comer) -> Result<Arrival, RegistryError> {
        let (maps, stored) = cluster(machines);
        let stat = TargetStat { bytes_total: 100 << 20, bytes_free: 50 << 20, ..TargetStat::default() };
        let stats = maps.targets.keys().map(|&target| (target, stat)).collect();
        Arrival::of((&maps, &stored), comer, stats, &[1].into())
    }

    #[test]
    fn the_second_machine_makes_one_expendable_and_what_lies_on_the_first_alone_moves() {
        let second = arrival(1, comer(2)).expect("it is let in");
        let safety = |machines, targets| Some(Safety { machines, targets });
        assert_eq!(second.safety, (safety(0, 1), safety(1, 1)));
        assert_eq!((second.machines, second.votes), ((1, 2), (1, 1)));
        assert_eq!((second.stripes, second.bytes_to_move), (1, u64::from(FRAGMENT_SIZE)));
        let told = second.in_json(PACE);
        assert_eq!((&told["seconds"], &told["bound"]), (&json!(1), &json!("unknown")));
        assert_eq!(second.work.estimate(Pace { link: Some(1 << 10), ..PACE }).bound, Bound::Links);
    }

    #[test]
    fn the_fourth_machine_widens_stripes_and_moves_nothing() {
        let fourth = arrival(3, comer(4)).expect("it is let in");
        assert_eq!(fourth.shape, (Some((2, 1)), Some((3, 1))));
        assert!(!fourth.moves(), "what lies over three machines is as safe");
        assert!(fourth.room.1 > fourth.room.0, "{fourth:?}");
        assert_eq!(fourth.in_json(PACE)["seconds"], 0);
    }

    #[test]
    fn who_only_mounts_gives_no_room_and_moves_nothing() {
        let guest = arrival(1, Comer { stores: false, bytes_free: Vec::new(), ..comer(2) }).expect("it is let in");
        assert_eq!((guest.room.0, guest.safety.0, guest.shape.0), (guest.room.1, guest.safety.1, guest.shape.1));
        assert!(!guest.moves() && guest.machines == (1, 1));
    }

    #[test]
    fn who_would_be_refused_is_refused_by_the_plan_too() {
        assert!(arrival(2, comer(2)).is_err_and(|error| error.to_string().contains("is called host-2 already")));
        let (mut maps, stored) = cluster(1);
        let attempt = Attempt { invitation: Invitation { number: 7, expires: 9 }, number: 1 };
        let add = |name: &str| RegistryRequest::AddNode {
            name: name.into(),
            address: format!("{name}:1"),
            stores: true,
            attempt: Some(attempt),
        };
        maps = change::apply(&maps, add("host-5")).0.expect("it was let in");
        let late = Comer { attempt: Some(attempt), ..comer(6) };
        let used = Arrival::of((&maps, &stored), late, BTreeMap::new(), &BTreeSet::new());
        assert_eq!(used.err(), Some(RegistryError::Used), "the token brought another machine");
    }
}
