//! What `status` says of redundancy: what may be lost of that which is stored, as its targets tell; not what the maps
//! promise for what is written next. And whether calls go on then, for which more than half of those that vote must run. Pure.

use std::collections::BTreeSet;

use cleaner::CleanerStatus;
use log::RebuildStatus;
use log::exposure::{Safety, Tally};
use protocol::maps::{Maps, TargetState};
use registry::voters;
use serde_json::{Value, json};

use crate::config::Size;

/// How it is, in a sentence. Who votes only machines that store know.
pub(crate) fn health(maps: &Maps, tally: &Tally, fragments_lost: u64, voters: Option<&BTreeSet<u32>>) -> String {
    if fragments_lost > 0 {
        return format!(
            "damaged: {fragments_lost} fragment(s) cannot be made again from the others; bring back targets that are \
             missing; `dazzle check --thorough` names the stripes"
        );
    }
    let count = |state| maps.targets.values().filter(|target| target.state == state).count();
    let (missing, behind) = (count(TargetState::Failed), count(TargetState::Behind));
    let promise = match Safety::of_current(maps) {
        Some(safety) => promise(safety) + &voters.map_or_else(String::new, |voters| limits(maps, safety, voters)),
        None => "nothing can be written".to_owned(),
    };
    let unreadable = tally.bytes_exposed.get(&None).copied().unwrap_or(0);
    let exposed = tally.bytes_exposed.values().sum::<u64>();
    if unreadable > 0 {
        return format!(
            "broken: of {} too little is left, with {missing} target(s) missing and {behind} that missed writes; bring the \
             missing ones back to reach it",
            Size(unreadable)
        );
    }
    match (missing + behind, exposed) {
        (0, 0) => format!("healthy, {promise}"),
        (0, exposed) => format!("{promise}: not yet; {} and is being laid anew", whereabouts(tally, exposed)),
        (_, 0) if behind == 0 => format!("healthy without {missing} missing target(s), {promise}"),
        _ => format!(
            "degraded: {missing} target(s) missing, {behind} missed writes, nothing lost; what they lack is rebuilt, and what \
             lies on those that stay away is laid anew over the others; {} lacks redundancy until then",
            Size(exposed)
        ),
    }
}

fn promise(safety: Safety) -> String {
    match safety {
        Safety { machines: 0, targets: 0 } => "without redundancy".to_owned(),
        Safety { machines: 0, targets } => format!("any {targets} target(s) may be lost"),
        Safety { machines, .. } => format!("any {machines} machine(s) may be lost"),
    }
}

/// What else is lost with as many machines, where too few would be left that vote.
fn limits(maps: &Maps, safety: Safety, voters: &BTreeSet<u32>) -> String {
    if voters::to_spare(maps, voters) >= safety.machines {
        return String::new();
    }
    let name = |node: &u32| match maps.nodes.get(node) {
        Some(entry) if !entry.name.is_empty() => entry.name.clone(),
        _ => format!("node {node}"),
    };
    let names = voters.iter().map(name).collect::<Vec<_>>().join(", ");
    match voters::majority(voters) {
        1 => format!(" without losing a byte; calls go on while {names} runs"),
        majority => format!(" without losing a byte; calls go on while {majority} of {names} run"),
    }
}

fn whereabouts(tally: &Tally, exposed: u64) -> String {
    let no_machine = tally.bytes_exposed.keys().all(|safety| safety.is_none_or(|safety| safety.machines == 0));
    if no_machine {
        format!("{} would not survive the loss of one machine", Size(exposed))
    } else {
        format!("{} would survive fewer", Size(exposed))
    }
}

/// The numbers behind it, and how far what is done about it is.
pub(crate) fn in_json(
    (maps, tally): (&Maps, &Tally),
    voters: Option<&BTreeSet<u32>>,
    cleaner: &CleanerStatus,
    rebuild: &RebuildStatus,
) -> Value {
    let exposed = tally.bytes_exposed.iter().map(|(safety, bytes)| {
        let (machines, targets) = (safety.map(|safety| safety.machines), safety.map(|safety| safety.targets));
        json!({"machines": machines, "targets": targets, "bytes": bytes})
    });
    let current = Safety::of_current(maps);
    json!({
        "machines": current.map(|safety| safety.machines), "targets": current.map(|safety| safety.targets),
        "machines_without_waiting": voters.map(|voters| voters::to_spare(maps, voters)),
        "full": tally.bytes_full, "exposed": exposed.collect::<Vec<_>>(),
        "laid_anew": cleaner.bytes_laid_anew, "trouble": cleaner.trouble,
        "rebuild": {"stripes": rebuild.stripes, "stripes_done": rebuild.stripes_done, "mended": rebuild.fragments_mended,
                    "targets_whole": rebuild.targets_whole, "members_replaced": rebuild.members_replaced,
                    "stripes_here": rebuild.stripes_here},
    })
}

#[cfg(test)]
mod tests {
    use protocol::fragment::Geometry;
    use protocol::id::{GroupId, TargetId};
    use protocol::maps::{GroupEntry, NodeEntry, NodeState, TargetEntry};

    use super::*;

    /// A current group of two targets, on as many machines.
    fn maps(nodes: [u32; 2], state: TargetState) -> Maps {
        let entry = |(node, state)| TargetEntry { state, ..TargetEntry::new(node, String::new()) };
        let geometry = Geometry { data: 1, parity: 1, fragment_size: 1 << 20 };
        let targets = vec![TargetId(0), TargetId(1)];
        Maps {
            targets: (0..).map(TargetId).zip([(nodes[0], TargetState::Whole), (nodes[1], state)].map(entry)).collect(),
            groups: [(GroupId(0), GroupEntry::new(targets, geometry, true))].into(),
            ..Maps::empty(1, 1)
        }
    }

    fn tally(exposed: &[(Option<(usize, usize)>, u64)]) -> Tally {
        let safety = |&(safety, bytes): &(Option<(usize, usize)>, u64)| {
            (safety.map(|(machines, targets)| Safety { machines, targets }), bytes)
        };
        Tally { bytes_full: 1, bytes_exposed: exposed.iter().map(safety).collect() }
    }

    #[test]
    fn who_votes_bounds_how_many_machines_calls_can_do_without() {
        let mut two = maps([1, 2], TargetState::Whole);
        let told = |maps: &Maps, voters: &[u32]| health(maps, &tally(&[]), 0, Some(&voters.iter().copied().collect()));
        let node = |name: &str| NodeEntry::new(name, "", true).begun();
        two.nodes = [(1, node("rack-1")), (2, node("")), (3, node("rack-3"))].into();
        assert_eq!(told(&two, &[1, 2, 3]), "healthy, any 1 machine(s) may be lost");
        let alone = "healthy, any 1 machine(s) may be lost without losing a byte; calls go on while rack-1 runs";
        assert_eq!(told(&two, &[1]), alone);
        two.nodes.get_mut(&3).expect("one of three").state = NodeState::Gone;
        let two_of = "healthy, any 1 machine(s) may be lost without losing a byte; calls go on while 2 of rack-1, node 2, \
                      rack-3 run";
        assert_eq!(told(&two, &[1, 2, 3]), two_of);
    }

    #[test]
    fn status_promises_only_what_holds_for_all_that_is_stored() {
        let (two, whole) = (maps([1, 2], TargetState::Whole), maps([1, 1], TargetState::Whole));
        let away = maps([1, 2], TargetState::Failed);
        assert_eq!(health(&two, &tally(&[]), 0, None), "healthy, any 1 machine(s) may be lost");
        assert_eq!(health(&whole, &tally(&[]), 0, None), "healthy, any 1 target(s) may be lost");
        let exposed = health(&two, &tally(&[(Some((0, 1)), 3 << 30)]), 0, None);
        assert_eq!(
            exposed,
            "any 1 machine(s) may be lost: not yet; 3 GiB would not survive the loss of one machine and is being laid anew"
        );
        assert!(
            health(&away, &tally(&[(Some((0, 0)), 1)]), 0, None).starts_with("degraded: 1 target(s) missing, 0 missed")
        );
        assert!(health(&away, &tally(&[]), 0, None).starts_with("healthy without 1 missing"));
        assert!(health(&away, &tally(&[(None, 1)]), 0, None).starts_with("broken: "));
        assert!(health(&two, &tally(&[]), 2, None).starts_with("damaged: "));
    }
}
