//! What is said late.
//!
//! A cleaner carries bytes into its own log, and then tells managers where they are now. If it dies, or
//! freezes, in between, its log is sealed and nobody names the copies: they are deleted. When it wakes it may still tell, and
//! whoever listened would give up the bytes for copies that are gone.
//!
//! Invariants
//! 1. A move takes effect only while the log of the copy is open, by the maps that the manager has at that moment, under the
//!    locks of the slots that it changes.
//! 2. A manager says what lives in a sealed log only when its maps know that it is sealed (`Manager::agree`): a move that
//!    is heard later has no effect, one that was heard before is counted.
//! 3. Deltas of a log that the registry forgot have no effect. All of them were replayed, what they name may be deleted, and
//!    what slots knew of how far they were is forgotten, too.
//! 4. What is to take effect once has none after its client's log was sealed: others may have been given what it held, and the
//!    answer that would tell that it took effect before may be forgotten.
//! 5. Nor has it when its client may have told the program that it failed, and taken in what the program did then.
//! 6. Whoever decides for slots of several managers knows of logs what each of these knew when it was asked (`coordinate`).

use host::Moment;
use log::Cluster;
use protocol::id::LogId;
use protocol::manager::{ManagerError, ManagerRequest, Moved};
use protocol::maps::{LogState, Maps};

use crate::ops::Operation;

/// What must be true of a log when an operation takes effect.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Premise {
    /// That it was not sealed, for its writer has asked, and waits for the answer until then.
    Waits(LogId, Moment),
    /// That it was not forgotten.
    Known(LogId),
}

impl Premise {
    pub(crate) fn of(operation: &Operation) -> Option<Premise> {
        match operation {
            Operation::Asked(ManagerRequest::Deltas(deltas)) => Some(Premise::Known(deltas.log)),
            Operation::Once(call, _) => Some(Premise::Waits(call.name.call.client, call.until)),
            Operation::Decide(decide) => decide.premise,
            _ => None,
        }
    }

    fn check(self, maps: &Maps, now: Moment) -> Result<(), ManagerError> {
        let is_sealing = |log| maps.logs.get(&log).is_some_and(|entry| matches!(entry.state, LogState::Sealing(_)));
        match self {
            Premise::Known(log) if maps.is_forgotten(log) => Err(ManagerError::Stale),
            Premise::Waits(log, _) if maps.is_over(log) || is_sealing(log) => {
                Err(ManagerError::Failed("the lease of the machine that asks has ended".into()))
            }
            Premise::Waits(_, until) if now > until => {
                Err(ManagerError::Failed("it took longer than the machine that asks waits".into()))
            }
            _ => Ok(()),
        }
    }
}

/// Those of `list` whose copies nobody may have deleted.
pub(crate) async fn not_void(cluster: &Cluster, mut list: Vec<Moved>) -> Result<Vec<Moved>, ManagerError> {
    let mut maps = cluster.maps();
    // A log may have been opened a moment ago.
    if list.iter().any(|moved| moved.new.log >= maps.next_log) {
        maps = cluster.refresh().await.map_err(|error| ManagerError::Failed(error.to_string()))?;
    }
    list.retain(|moved| !is_void(&maps, moved));
    Ok(list)
}

/// Refuses a list of which something has become void: it is to be sent again without. And what rests on a log that is not what
/// it was: that is not to be sent again.
pub(crate) fn check(cluster: &Cluster, operation: &Operation) -> Result<(), ManagerError> {
    match operation {
        Operation::Asked(ManagerRequest::Move(list)) => {
            let maps = cluster.maps();
            if list.iter().any(|moved| is_void(&maps, moved)) { Err(ManagerError::NotMine) } else { Ok(()) }
        }
        _ => Premise::of(operation).map_or(Ok(()), |premise| premise.check(&cluster.maps(), cluster.host().now())),
    }
}

fn is_void(maps: &Maps, moved: &Moved) -> bool {
    !maps.logs.get(&moved.new.log).is_some_and(|entry| matches!(entry.state, LogState::Open(_)))
}

#[cfg(test)]
mod tests {
    use protocol::address::Position;
    use protocol::id::FenceEpoch;
    use protocol::maps::{LogEntry, Writer};

    use super::*;

    #[test]
    fn nothing_is_done_for_who_waits_no_longer() {
        let log = |state| LogEntry::new((1, 1), Writer::Client, vec![], state);
        let epoch = FenceEpoch(1);
        let states = [LogState::Open(epoch), LogState::Sealing(epoch), LogState::Sealed(Position::START)];
        let logs = (2..).map(LogId).zip(states.map(log)).collect();
        let maps = Maps { logs, next_log: LogId(5), ..Maps::empty(1, 1) };
        let holds = |premise: Premise, now| premise.check(&maps, Moment(now)).is_ok();
        let waits = |now| (1..=5).map(|log| holds(Premise::Waits(LogId(log), Moment(7)), now)).collect::<Vec<_>>();
        assert_eq!(waits(7), [false, true, false, false, true], "forgotten, open, being sealed, sealed, not yet known");
        assert_eq!(waits(8), [false; 5]);
        let known = (1..=5).map(|log| holds(Premise::Known(LogId(log)), 8)).collect::<Vec<_>>();
        assert_eq!(known, [false, true, true, true, true]);
    }
}
