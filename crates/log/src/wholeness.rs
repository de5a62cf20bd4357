//! Who is whole again, by what all targets tell at one time. This file awaits; `rebuilding` decides.

use std::collections::BTreeSet;
use std::sync::Arc;

use futures_util::future::join_all;
use protocol::id::TargetId;
use protocol::maps::Maps;
use protocol::registry::{RegistryError, RegistryRequest};
use protocol::storage::StorageRequest;

use crate::leaving::Occupied;
use crate::rebuilding::{Lacks, settled, whole_again};
use crate::stripes::StripeState;
use crate::{Cluster, Walk};

/// What all targets told.
#[derive(Debug)]
pub struct Look {
    /// From before they were asked: what has become of a target since, the registry knows.
    pub maps: Arc<Maps>,
    /// Who lacks something.
    lacks: Lacks,
    /// Where something lies that is to be emptied.
    occupied: Occupied,
    /// Those that did not tell all that they have.
    silent: BTreeSet<TargetId>,
}

/// What was called whole.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Called {
    /// Targets.
    pub targets: u64,
    /// Places that targets took in groups.
    pub places: u64,
    /// Why the registry could not be told of the others, if so.
    pub failed: Option<RegistryError>,
}

impl Look {
    /// Asks all targets. `each` has the stripes of which they tell, and these maps.
    pub async fn take(cluster: &Cluster, mut each: impl FnMut(&Maps, StripeState)) -> Result<Look, RegistryError> {
        let maps = cluster.refresh().await?;
        let mut silent = silent(cluster, &maps).await;
        let (mut lacks, mut occupied) = (Lacks::default(), Occupied::new(&maps));
        let note = |state: StripeState| {
            lacks.add(&state);
            occupied.add(&maps, &state);
            each(&maps, state);
        };
        // Who says how it is may still not have said all that it has.
        silent.extend(Walk::over_all(cluster, &maps).to_end(note).await);
        Ok(Look { maps, lacks, occupied, silent })
    }

    /// Has the registry call those whole that lack nothing any more, also of places that they took in groups. Nobody waits for
    /// those that are `given_up`. Of whom something was said meanwhile somebody looks again.
    pub async fn call_whole(&self, cluster: &Cluster, given_up: &BTreeSet<TargetId>) -> Called {
        let (mut called, seen) = (Called::default(), self.maps.epoch);
        for target in whole_again(&self.maps, &self.lacks, &self.silent, given_up) {
            let agreed = agreed(cluster, RegistryRequest::TargetWhole(target, seen)).await;
            called.targets += called.count(agreed);
        }
        for (group, newcomer) in settled(&self.maps, &self.lacks, &self.silent, given_up) {
            let agreed = agreed(cluster, RegistryRequest::MemberWhole(group, newcomer, seen)).await;
            called.places += called.count(agreed);
        }
        called
    }

    /// Has the registry know of the targets on which nothing lies any more that were to be emptied.
    pub async fn call_empty(&self, cluster: &Cluster) -> Result<(), RegistryError> {
        let empty = self.occupied.emptied(&self.maps, &self.silent);
        if !empty.is_empty() {
            agreed(cluster, RegistryRequest::TargetsEmpty(empty, self.maps.epoch)).await?;
        }
        Ok(())
    }
}

impl Called {
    /// Whether anything was.
    pub fn is_any(&self) -> bool {
        self.targets + self.places > 0
    }

    fn count(&mut self, agreed: Result<bool, RegistryError>) -> u64 {
        match agreed {
            Ok(agreed) => agreed.into(),
            Err(error) => {
                self.failed = Some(error);
                0
            }
        }
    }
}

/// Whether the registry agrees, which it does not if it knows more.
async fn agreed(cluster: &Cluster, request: RegistryRequest) -> Result<bool, RegistryError> {
    match cluster.registry(request).await {
        Ok(_) => Ok(true),
        Err(RegistryError::Lost | RegistryError::Unknown(_)) => Ok(false),
        Err(error) => Err(error),
    }
}

/// The targets that should answer and do not.
async fn silent(cluster: &Cluster, maps: &Maps) -> BTreeSet<TargetId> {
    let serving: Vec<TargetId> = maps.serving().map(|(target, _)| target).collect();
    let answers = join_all(serving.iter().map(|&target| cluster.ask(target, StorageRequest::Stat))).await;
    serving.into_iter().zip(answers).filter(|(_, answer)| answer.is_err()).map(|(target, _)| target).collect()
}
