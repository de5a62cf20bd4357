//! Targets that are added to a machine while it runs, and empty disks that take the place of those of targets that do not
//! serve (`docs/decisions/0023-storage-is-added.md`).
//!
//! 1. The maps call a target new or failed before the settings name its disk, and these name it before it is formatted. So a
//!    start that finds it empty formats it, as it does with any empty disk that stands in for a lost one; and a number without
//!    a disk is missed by nobody, and found again by its name.
//! 2. Before an empty disk is formatted in the place of another one, the maps say that what lay on that is gone.
//! 3. A copy of the registry is on a disk before it serves: the next start counts with it.
//! 4. The target's own disk that is back may not give all that it held: the maps say so before it serves.
//! 5. Who serves from it is behind at first, and whole once a rebuilder found that it lacks nothing.
//!
//! Whoever calls has one target taken in after the other.

use std::sync::{Arc, PoisonError};

use host::Disk;
use protocol::id::TargetId;
use protocol::maps::{TargetEntry, TargetState};
use protocol::registry::{RegistryError, RegistryReply, RegistryRequest};
use registry::{Registry, Replica};
use storage::OpenError;
use tracing::{info, warn};

use crate::Roles;
use crate::targets::{give_up_disks, give_up_forgotten, mark, tell_sizes};

/// A smaller disk holds hardly more than what is kept about the cluster.
const ROOM_MIN: u64 = 64 << 20;

impl Roles {
    /// A new target of this machine, which people call `name`, on `disk`. `note` writes down durably where the disk is.
    pub async fn add_target<F: Future<Output = Result<(), String>>>(
        &self,
        name: String,
        disk: Disk,
        note: impl FnOnce(TargetId) -> F,
    ) -> Result<TargetId, String> {
        let registry = self.storing()?;
        let is_own =
            |entry: &TargetEntry| entry.node == self.node() && entry.name == name && entry.state == TargetState::New;
        let maps = self.cluster.maps();
        let begun = maps.targets.iter().find(|(_, entry)| is_own(entry)).map(|(&target, _)| target);
        self.expect_free(&disk, begun).await?;
        let request = RegistryRequest::AddTarget { node: self.node(), session: self.session(), name: name.clone() };
        let (target, maps) = match self.cluster.registry(request).await {
            Ok(RegistryReply::Targets(target, maps)) => (target, maps),
            Ok(_) => return Err("the registry answered another question".into()),
            Err(error) => return Err(format!("no target was added: {}", again(&error))),
        };
        if maps.targets.get(&target).is_none_or(|entry| entry.state != TargetState::New) {
            let name = maps.called(target);
            return Err(format!(
                "target {} is called {name} already: if its disk is lost, `dazzle target replace` puts an empty one in its \
                 place. Nothing was changed",
                target.0
            ));
        }
        self.take_in(registry, (target, disk), note).await.map(|()| target)
    }

    /// Has an empty disk, or the target's own that is back, take the place of that of a target of this machine which does not
    /// serve. People call the target `name` from now on. `place` is the disk that lies where the target's did, if one does.
    pub async fn replace_target<F: Future<Output = Result<(), String>>>(
        &self,
        (target, name): (TargetId, String),
        place: Option<Disk>,
        disk: Disk,
        note: impl FnOnce(TargetId) -> F,
    ) -> Result<(), String> {
        let registry = self.storing()?;
        if self.serves_from(target, place).await {
            let name = self.cluster.maps().called(target);
            return Err(format!(
                "{name} serves: to put another disk in its place, `dazzle target add` that one, then `dazzle target drain` \
                 and `dazzle target remove` this one. Nothing was changed"
            ));
        }
        self.expect_free(&disk, Some(target)).await?;
        // Asked for in any case: where the others do not answer, nothing is to change here.
        let renamed = self.cluster.registry(RegistryRequest::RenameTarget(target, name)).await;
        renamed.map_err(|error| format!("nothing was replaced: {}", again(&error)))?;
        if self.cluster.maps().targets.get(&target).is_some_and(TargetEntry::serves) {
            mark(&self.cluster, target, TargetState::Failed).await?;
        }
        self.take_in(registry, (target, disk), note).await
    }

    /// Whether a target serves what lies at its place. One whose files were deleted, or whose disk was exchanged, answers
    /// until its daemon ends, but not from there.
    pub async fn serves_from(&self, target: TargetId, place: Option<Disk>) -> bool {
        if self.storage.target(target).is_none_or(|serving| serving.failure().is_some()) {
            return false;
        }
        let Some(place) = place else { return false };
        let cluster = self.cluster.maps().cluster;
        // A disk that cannot be read now is asked again by who reads and writes it.
        storage::owner(&place).await.map_or(true, |owner| owner == Some((cluster, target)))
    }

    /// Refuses a disk that is a target already, unless it is `own`, or holds anything else, or next to nothing.
    async fn expect_free(&self, disk: &Disk, own: Option<TargetId>) -> Result<(), String> {
        let cluster = self.cluster.maps().cluster;
        let unfit = |why: String| format!("it cannot become a target: {why}");
        match storage::owner(disk).await.map_err(|error| unfit(error.to_string()))? {
            Some(owner) if own.is_some_and(|own| owner == (cluster, own)) => return Ok(()),
            Some((found, target)) if found == cluster => {
                return Err(format!("it is target {} of this file system. Nothing was changed", target.0));
            }
            Some(_) => {
                return Err("it is a target of another file system; if that is not needed, empty it, or name another \
                            place. Nothing was changed"
                    .into());
            }
            None => {}
        }
        // A start that finds it here before it is written over would believe it.
        if !matches!(Replica::open(disk).await, Ok((_, None))) {
            return Err("it holds what is left of a target, a copy of a registry: empty it. Nothing was changed".into());
        }
        let room = disk.usage().map_err(|error| unfit(error.to_string()))?.bytes_total;
        if room < ROOM_MIN {
            let (room, least) = (room >> 20, ROOM_MIN >> 20);
            return Err(format!("it has room for {room} MiB; a target needs at least {least}. Nothing was changed"));
        }
        Ok(())
    }

    /// From the settings to the first answer; see the invariants.
    async fn take_in<F: Future<Output = Result<(), String>>>(
        &self,
        registry: &Arc<Registry>,
        (target, disk): (TargetId, Disk),
        note: impl FnOnce(TargetId) -> F,
    ) -> Result<(), String> {
        let maps = self.cluster.maps();
        self.storage.close(target).await;
        note(target).await?;
        if storage::owner(&disk).await.map_err(|error| error.to_string())?.is_none() {
            give_up_disks(&self.cluster, vec![target]).await?;
            let formatted = storage::format(&disk, maps.cluster, target, self.target_options).await;
            formatted.map_err(|error| format!("target {} cannot be formatted: {error}", target.0))?;
        }
        registry.adopt(target, &disk).await.map_err(|error| format!("it takes no copy of the registry: {error}"))?;
        let unopened = |error: OpenError| format!("target {} cannot be opened: {error}", target.0);
        let opening = self.storage.look_at(target, disk).await.map_err(unopened)?;
        give_up_forgotten(&self.cluster, std::slice::from_ref(&opening)).await?;
        self.storage.begin(opening).await.map_err(unopened)?;
        self.absent.lock().unwrap_or_else(PoisonError::into_inner).retain(|absent| absent.target != target);
        info!(target = target.0, "a disk was taken in");
        // Before it is whole: groups are formed then, by its size.
        let taken_in: Vec<_> = self.storage.target(target).into_iter().collect();
        if let Err(error) = tell_sizes(&self.cluster, &taken_in).await {
            warn!(error, "it is told later");
        }
        if let Err(error) = mark(&self.cluster, target, TargetState::Behind).await {
            warn!(error, "it serves, and the registry is told as soon as it can be");
        }
        Ok(())
    }

    fn node(&self) -> u32 {
        self.cluster.host().node().0
    }

    /// What keeps copies of the maps on this machine's targets.
    fn storing(&self) -> Result<&Arc<Registry>, String> {
        self.registry.as_ref().ok_or_else(|| {
            "this machine only mounts, and keeps no copy of the cluster's maps: remove it with `dazzle node remove`, and let \
             it join anew without --client. Nothing was changed"
                .to_owned()
        })
    }
}

/// What to do about a change that the registry did not make.
fn again(error: &RegistryError) -> String {
    match error {
        RegistryError::Unavailable(_) => format!("{error}. The same command may be given again"),
        _ => error.to_string(),
    }
}
