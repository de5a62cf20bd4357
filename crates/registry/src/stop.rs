//! How all machines stop at once, phase by phase: each needs the others to store what it holds, so nobody may go before the
//! last one has (`docs/decisions/0022-all-stop-together.md`).
//!
//! 1. A phase ends when every living node has finished it. Who dies is not waited for, and who is not there may not begin
//!    meanwhile.
//! 2. Nothing has happened until all have found their mounts unused, or need not look: up to then it can be called off.
//! 3. Nobody is stopped once more by what was asked before the last stop was over. What was said of one stop, and comes late,
//!    counts in no other.
//! 4. When it is over, no lease runs out and nothing changes hands: whoever begins first finds the cluster as it was, and has
//!    as long as a lease holds to be followed by the others.

use std::collections::BTreeSet;

use protocol::id::MapEpoch;
use protocol::maps::{Maps, NodeState, Stop, StopPhase};
use protocol::registry::RegistryError;

use crate::change::{self, Outcome, Reply};
use crate::leases::Holder;
use crate::nodes;

/// Whether a stop of all goes on, or is over.
pub fn goes_on(maps: &Maps) -> bool {
    maps.stop.as_ref().is_some_and(|stop| !matches!(stop.phase, StopPhase::CalledOff(_)))
}

/// Whether everything is stored, and daemons end.
pub fn is_over(maps: &Maps) -> bool {
    maps.stop.as_ref().is_some_and(|stop| stop.phase == StopPhase::Over)
}

/// Somebody wants all to stop. Asking again changes nothing, but who knows of the stop may force what was only asked for.
pub(crate) fn ask(maps: &mut Maps, force: bool, seen: MapEpoch) -> Reply {
    if let Some(stop) = maps.stop.as_mut().filter(|stop| !matches!(stop.phase, StopPhase::CalledOff(_))) {
        if force && !stop.force && seen < stop.asked {
            return Err(RegistryError::Lost);
        }
        stop.force |= force;
        return Ok(Outcome::Maps);
    }
    change::decide(maps, seen)?;
    let (left, asked) = (living(maps), change::next_epoch(maps));
    maps.stop = Some(Stop { force, phase: StopPhase::Asked, left, asked });
    // What was to move stays where it is.
    maps.wishes.clear();
    Ok(Outcome::Maps)
}

/// A node has finished a phase of the stop that was asked for in epoch `asked`; saying so again changes nothing.
pub(crate) fn finish(maps: &mut Maps, (node, session): Holder, (phase, asked): (StopPhase, MapEpoch)) -> Reply {
    nodes::current(maps, node, session)?;
    if let Some(stop) = maps.stop.as_mut().filter(|stop| (stop.phase, stop.asked) == (phase, asked)) {
        stop.left.remove(&node);
    }
    Ok(Outcome::Maps)
}

/// Programs use a node's mount. Where that does not matter, or comes too late, it changes nothing.
pub(crate) fn call_off(maps: &mut Maps, (node, session): Holder, asked: MapEpoch) -> Reply {
    nodes::current(maps, node, session)?;
    let is_it = |stop: &&mut Stop| stop.phase == StopPhase::Asked && stop.asked == asked && !stop.force;
    if let Some(stop) = maps.stop.as_mut().filter(is_it) {
        (stop.phase, stop.left) = (StopPhase::CalledOff(node), BTreeSet::new());
    }
    Ok(Outcome::Maps)
}

/// Ends the phases that nobody has to finish any more.
pub(crate) fn go_on(maps: &mut Maps) {
    let living = living(maps);
    let Some(stop) = maps.stop.as_mut() else { return };
    stop.left.retain(|node| living.contains(node));
    while stop.left.is_empty() {
        let (next, left) = match stop.phase {
            StopPhase::Asked => (StopPhase::Clients, living.clone()),
            StopPhase::Clients => (StopPhase::Managers, living.clone()),
            StopPhase::Managers => (StopPhase::Over, BTreeSet::new()),
            StopPhase::CalledOff(_) | StopPhase::Over => return,
        };
        (stop.phase, stop.left) = (next, left);
    }
}

/// A node wants to begin: the first to do so when all have stopped ends the stop; while they stop nobody may.
pub(crate) fn let_begin(maps: &mut Maps) -> Result<(), RegistryError> {
    if goes_on(maps) && !is_over(maps) {
        let why = "all machines of the cluster are being stopped; start this one when they are, or later";
        return Err(RegistryError::Unavailable(why.into()));
    }
    if maps.stop.take().is_some() {
        // Whoever asked for it, or for another one meanwhile, has what he asked for.
        maps.decided = change::next_epoch(maps);
    }
    Ok(())
}

fn living(maps: &Maps) -> BTreeSet<u32> {
    maps.nodes.iter().filter(|(_, node)| node.state == NodeState::Alive).map(|(&number, _)| number).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::change::{apply, new_cluster};
    use protocol::id::TargetId;
    use protocol::maps::TargetEntry;
    use protocol::registry::RegistryRequest;

    fn cluster() -> Maps {
        let entry = |node: u32| TargetEntry::new(node, String::new());
        new_cluster(7, (1..=3).map(|node| (TargetId(node), entry(node))).collect(), 1, 1)
    }

    fn step(maps: &mut Maps, request: RegistryRequest) -> Reply {
        let (next, reply) = apply(maps, request);
        *maps = next.unwrap_or_else(|| maps.clone());
        reply
    }

    fn finish(maps: &mut Maps, nodes: &[u32], phase: StopPhase) {
        let asked = asked(maps);
        for &node in nodes {
            assert!(step(maps, RegistryRequest::FinishPhase { node, session: 1, phase, asked }).is_ok());
        }
    }

    fn asked(maps: &Maps) -> MapEpoch {
        maps.stop.as_ref().expect("all are to stop").asked
    }

    fn phase(maps: &Maps) -> Option<StopPhase> {
        maps.stop.as_ref().map(|stop| stop.phase)
    }

    fn ask(maps: &mut Maps, force: bool) -> Reply {
        let seen = maps.epoch;
        step(maps, RegistryRequest::StopAll { force, seen })
    }

    fn begin(node: u32) -> RegistryRequest {
        RegistryRequest::Begin { node, after: 1, address: String::new(), keeps: None }
    }

    #[test]
    fn a_phase_begins_when_all_have_finished_the_one_before() {
        let mut maps = cluster();
        let before = maps.clone();
        assert!(ask(&mut maps, false).is_ok());
        for (now, next) in [
            (StopPhase::Asked, StopPhase::Clients),
            (StopPhase::Clients, StopPhase::Managers),
            (StopPhase::Managers, StopPhase::Over),
        ] {
            finish(&mut maps, &[1, 3, 3], now);
            assert_eq!(phase(&maps), Some(now));
            assert!(matches!(step(&mut maps, begin(2)), Err(RegistryError::Unavailable(_))));
            finish(&mut maps, &[2], now);
            assert_eq!(phase(&maps), Some(next));
            finish(&mut maps, &[1, 2, 3], now);
            assert_eq!(phase(&maps), Some(next), "what is past is not finished again");
        }
        assert!(step(&mut maps, begin(2)).is_ok());
        assert_eq!((phase(&maps), &maps.slots, &maps.targets), (None, &before.slots, &before.targets));
    }

    #[test]
    fn what_was_asked_before_the_last_stop_stops_nobody() {
        let mut maps = cluster();
        let asked = RegistryRequest::StopAll { force: true, seen: maps.epoch };
        step(&mut maps, asked.clone()).expect("nothing else was decided");
        assert_eq!(step(&mut maps, asked.clone()), Ok(Outcome::Maps), "it was asked twice");
        for now in [StopPhase::Asked, StopPhase::Clients, StopPhase::Managers] {
            finish(&mut maps, &[1, 2, 3], now);
        }
        step(&mut maps, begin(2)).expect("all have stopped");
        assert_eq!((step(&mut maps, asked), phase(&maps)), (Err(RegistryError::Lost), None), "it comes late");
    }

    #[test]
    fn what_was_said_in_an_earlier_stop_counts_in_no_later_one() {
        let mut maps = cluster();
        let forced = RegistryRequest::StopAll { force: true, seen: maps.epoch };
        ask(&mut maps, false).expect("nothing else was decided");
        let said = asked(&maps);
        let call_off = RegistryRequest::CallStopOff { node: 2, session: 1, asked: said };
        step(&mut maps, call_off.clone()).expect("nothing has happened");
        ask(&mut maps, false).expect("that one is over");
        let before = maps.clone();
        for node in 1..=3 {
            let finished = RegistryRequest::FinishPhase { node, session: 1, phase: StopPhase::Asked, asked: said };
            step(&mut maps, finished).expect("it is late");
        }
        step(&mut maps, call_off).expect("it is late");
        assert_eq!(step(&mut maps, forced), Err(RegistryError::Lost), "nobody knew of this one");
        assert_eq!(maps, before);
        ask(&mut maps, true).expect("somebody does now");
        assert!(maps.stop.is_some_and(|stop| stop.force));
    }

    #[test]
    fn who_dies_is_not_waited_for() {
        let mut maps = cluster();
        assert!(ask(&mut maps, true).is_ok());
        finish(&mut maps, &[1, 2], StopPhase::Asked);
        assert!(step(&mut maps, RegistryRequest::Expire { node: 3, session: 1 }).is_ok());
        finish(&mut maps, &[1, 2], StopPhase::Clients);
        assert_eq!(phase(&maps), Some(StopPhase::Managers));
        let late =
            RegistryRequest::FinishPhase { node: 3, session: 1, phase: StopPhase::Managers, asked: asked(&maps) };
        assert!(matches!(step(&mut maps, late), Err(RegistryError::Over(3, 1))));
    }

    #[test]
    fn it_is_called_off_before_anything_happens_or_not_at_all() {
        let mut maps = cluster();
        let call_off = |maps: &mut Maps| {
            let asked = asked(maps);
            step(maps, RegistryRequest::CallStopOff { node: 2, session: 1, asked })
        };
        assert!(ask(&mut maps, false).is_ok());
        call_off(&mut maps).expect("it is heard");
        assert_eq!((phase(&maps), goes_on(&maps)), (Some(StopPhase::CalledOff(2)), false));
        finish(&mut maps, &[1, 2, 3], StopPhase::Asked);
        assert_eq!(phase(&maps), Some(StopPhase::CalledOff(2)));
        assert!(ask(&mut maps, true).is_ok());
        call_off(&mut maps).expect("it is heard");
        assert_eq!(phase(&maps), Some(StopPhase::Asked), "force is force");
        finish(&mut maps, &[1, 2, 3], StopPhase::Asked);
        maps.stop.as_mut().expect("it goes on").force = false;
        call_off(&mut maps).expect("it is heard");
        assert_eq!(phase(&maps), Some(StopPhase::Clients), "too late");
    }
}
