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

use log::Cluster;
use protocol::manager::{ManagerError, ManagerRequest, Moved};
use protocol::maps::{LogState, Maps};

use crate::ops::Operation;

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

/// Refuses a list of which something has become void: it is to be sent again without. And deltas that are void: they are not to
/// be sent again.
pub(crate) fn check(cluster: &Cluster, operation: &Operation) -> Result<(), ManagerError> {
    match operation {
        Operation::Asked(ManagerRequest::Move(list)) => {
            let maps = cluster.maps();
            if list.iter().any(|moved| is_void(&maps, moved)) { Err(ManagerError::NotMine) } else { Ok(()) }
        }
        Operation::Asked(ManagerRequest::Deltas(deltas)) => {
            let maps = cluster.maps();
            let is_forgotten = deltas.log < maps.next_log && !maps.logs.contains_key(&deltas.log);
            if is_forgotten { Err(ManagerError::Stale) } else { Ok(()) }
        }
        _ => Ok(()),
    }
}

fn is_void(maps: &Maps, moved: &Moved) -> bool {
    !maps.logs.get(&moved.new.log).is_some_and(|entry| matches!(entry.state, LogState::Open(_)))
}
