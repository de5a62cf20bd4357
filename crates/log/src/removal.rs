//! Taking targets away on which nothing lies any more. This file awaits; `leaving` decides, and the registry once more.
//!
//! That nothing lies there is told to the registry as soon as it is found, while all answer: from then on targets may be
//! switched off before they are taken away, also so many of one group that nobody could tell any more.

use std::collections::BTreeSet;

use protocol::id::{MapEpoch, TargetId};
use protocol::maps::{Maps, TargetEntry};
use protocol::registry::{RegistryError, RegistryRequest};

use crate::exposure::may_be_lost;
use crate::leaving::{Left, hidden};
use crate::stripes::StripeState;
use crate::{Cluster, Walk};

/// How often the targets are looked at again because the maps changed meanwhile: they do when machines come and go, not with
/// every write.
const TRIES: u32 = 20;

/// What is accepted of targets that do not tell what they have.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Silence {
    /// Nothing: there may be stripes that nobody else shows.
    Refused,
    /// That stripes which they alone have are lost, and those over more that are away than parity makes up for.
    Accepted,
}

/// Why targets were not taken away. Nothing was changed, unless the registry did not answer.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum RemovalError {
    /// Something lies there.
    #[error("{} stripe(s) still lie there", .0.stripes)]
    Left(Left),
    /// Too few others tell what they have.
    #[error("of {0} stripe group(s) too few targets answer to tell whether anything lies there still")]
    Hidden(usize),
    /// The registry refused, or did not answer.
    #[error(transparent)]
    Registry(#[from] RegistryError),
}

/// What lies on `targets`, as the others tell now; and how much of that may be lost whatever becomes of them.
pub async fn left(cluster: &Cluster, targets: &BTreeSet<TargetId>) -> Result<(Left, Left), RegistryError> {
    let maps = cluster.refresh().await?;
    let look = looked(cluster, &maps, targets).await;
    Ok((look.left, look.lost))
}

/// Has the registry know that `targets` are empty, if nothing lies on them.
pub async fn conclude(cluster: &Cluster, targets: &BTreeSet<TargetId>) -> Result<(), RemovalError> {
    ask_of_empty(cluster, targets, Silence::Refused, RegistryRequest::TargetsEmpty).await
}

/// Takes `targets` away, if nothing lies on them.
pub async fn remove(cluster: &Cluster, targets: &BTreeSet<TargetId>, silence: Silence) -> Result<(), RemovalError> {
    ask_of_empty(cluster, targets, silence, RegistryRequest::RemoveTargets).await
}

/// What all targets told of some.
struct Look {
    /// What lies there.
    left: Left,
    /// What of that may be lost.
    lost: Left,
    /// Those that did not tell all they have.
    silent: BTreeSet<TargetId>,
}

async fn looked(cluster: &Cluster, maps: &Maps, targets: &BTreeSet<TargetId>) -> Look {
    let (mut left, mut lost) = (Left::default(), Left::default());
    let add = |state: StripeState| {
        let there = Left::on(maps, &state, targets);
        left += there;
        if may_be_lost(maps, &state) && !has_part_of(maps, &state, targets) {
            lost += there;
        }
    };
    let silent = Walk::over_all(cluster, maps).to_end(add).await;
    Look { left, lost, silent }
}

/// Whether one of `targets` serves, and a part of the stripe is to be there: it may be what is needed to read it.
fn has_part_of(maps: &Maps, state: &StripeState, targets: &BTreeSet<TargetId>) -> bool {
    let serves = |target: &&TargetId| maps.targets.get(target).is_some_and(TargetEntry::serves);
    let group = maps.groups.get(&state.group);
    group.is_some_and(|group| group.targets.iter().filter(serves).any(|target| targets.contains(target)))
}

async fn ask_of_empty(
    cluster: &Cluster,
    targets: &BTreeSet<TargetId>,
    silence: Silence,
    request: fn(Vec<TargetId>, MapEpoch) -> RegistryRequest,
) -> Result<(), RemovalError> {
    let mut error = RegistryError::Lost;
    for _ in 0..TRIES {
        let maps = cluster.refresh().await?;
        let Look { left, lost, silent } = looked(cluster, &maps, targets).await;
        let accepted = if silence == Silence::Accepted { lost } else { Left::default() };
        if left.stripes > accepted.stripes {
            return Err(RemovalError::Left(left));
        }
        let hidden = hidden(&maps, targets, &silent).len();
        if hidden > 0 && silence == Silence::Refused {
            return Err(RemovalError::Hidden(hidden));
        }
        match cluster.registry(request(targets.iter().copied().collect(), maps.epoch)).await {
            Ok(_) => return Ok(()),
            Err(RegistryError::Lost) => error = RegistryError::Lost,
            Err(other) => return Err(other.into()),
        }
    }
    Err(error.into())
}
