//! What can be had of a machine's copies of the registry that are damaged, missing or old, and the one with which it begins
//! anew (`docs/decisions/0027-a-registry-is-rebuilt.md`). `rebuilding` says what that one tells; this file awaits.
//!
//! 1. The best that is left is the newest that can be followed, of whatever generation, on any target: an older checkpoint that
//!    was not written over, or as many records behind one as can be read.
//! 2. Nothing is written before [`Salvage::found`], and that writes one checkpoint to each copy, over what tells less than the
//!    best of that copy. Until the first is durable the best is there, and from then on a start, or whoever rebuilds again,
//!    takes the new one.
//! 3. The generation skips as a reign does: what a disk holds that is away now is not taken for newer once it is back.

use std::collections::BTreeMap;
use std::sync::Arc;

use futures_util::future::join_all;
use host::Disk;
use protocol::id::TargetId;
use protocol::maps::Maps;

use crate::consensus::Agreed;
use crate::counting::must_write;
use crate::reign::SKIPPED;
use crate::replica::{Found, Replica, Salvaged};
use crate::store::{Kept, Store, first};
use crate::{RegistryStart, ReplicaError, Standing};

/// How a copy is.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Condition {
    /// All that was promised is there.
    Sound,
    /// It tells less than was promised, or nothing.
    Damaged,
    /// There is none.
    Missing,
    /// Its disk does not give it.
    Unreadable(String),
}

/// What is left of the copies on a machine's targets.
pub struct Salvage {
    replicas: Vec<(TargetId, Replica)>,
    generation: u64,
    best: Option<Standing>,
    is_whole: bool,
    /// How the copies are.
    pub conditions: BTreeMap<TargetId, Condition>,
    /// Targets whose copies show that they missed more than a crash explains.
    pub outdated: Vec<TargetId>,
}

/// The best so far.
struct Best {
    found: Found,
    kept: Kept,
    is_whole: bool,
}

impl Salvage {
    /// Looks at the copies on `disks`, and changes nothing.
    pub async fn read(disks: &[(TargetId, Disk)]) -> Result<Salvage, RegistryStart> {
        let read = join_all(disks.iter().map(|(id, disk)| async move { (*id, Replica::salvage(disk).await) })).await;
        let mut salvage = Salvage {
            replicas: Vec::new(),
            generation: 0,
            best: None,
            is_whole: false,
            conditions: BTreeMap::new(),
            outdated: Vec::new(),
        };
        let mut best = None;
        for (id, salvaged) in read {
            match salvaged {
                Ok(salvaged) => salvage.take(id, salvaged, &mut best),
                Err(error @ ReplicaError::Version(_)) => return Err(RegistryStart::Foreign(error)),
                Err(error) => drop(salvage.conditions.insert(id, Condition::Unreadable(error.to_string()))),
            }
        }
        if let Some(best) = best {
            salvage.best = best.kept.standing();
            salvage.is_whole = best.is_whole && salvage.must_count(&best.kept);
            salvage.outdated = outdated(disks, &best.found).await;
        }
        Ok(salvage)
    }

    /// Whether the machine cannot have gone on without the copies that are sound: that needs the consent of others, and more of
    /// the set to be missing.
    fn must_count(&self, best: &Kept) -> bool {
        let is_sound = |target: &&TargetId| self.conditions.get(target) == Some(&Condition::Sound);
        let sound = best.copies.iter().filter(is_sound).count();
        best.voters().len() == 1 || sound >= must_write(best.copies.len(), best.spare)
    }

    fn take(&mut self, id: TargetId, salvaged: Salvaged, best: &mut Option<Best>) {
        let Salvaged { replica, found, generation, is_damaged } = salvaged;
        let condition = match (is_damaged, found.is_empty()) {
            (true, _) => Condition::Damaged,
            (false, true) => Condition::Missing,
            (false, false) => Condition::Sound,
        };
        self.conditions.insert(id, condition);
        self.generation = self.generation.max(generation);
        self.replicas.push((id, replica));
        for found in found {
            let is_better = best.as_ref().is_none_or(|best| best.found.place() < found.place());
            // One that never got its maps tells nothing.
            let kept = found.read().filter(|kept| is_better && kept.snapshot.is_some());
            if let Some(kept) = kept {
                *best = Some(Best { found, kept, is_whole: !is_damaged });
            }
        }
    }

    /// What the best of them tells.
    pub fn standing(&self) -> Option<&Standing> {
        self.best.as_ref()
    }

    /// Whether the best of them tells all that was ever promised of it.
    pub fn is_whole(&self) -> bool {
        self.is_whole
    }

    /// Whether so many copies can be read and written as a start needs of those that the best one tells of.
    pub fn suffices(&self) -> bool {
        let (Some(best), true) = (&self.best, self.is_whole) else { return false };
        let may_be_lost = usize::from(best.maps().parity);
        let is_usable =
            |target: &&TargetId| matches!(self.conditions.get(target), Some(Condition::Sound | Condition::Missing));
        let is_sound = |target: &&TargetId| self.conditions.get(target) == Some(&Condition::Sound);
        let total = best.copies.len();
        let readable = best.copies.iter().filter(is_sound).count();
        let usable = best.copies.iter().filter(is_usable).count();
        readable + may_be_lost.min(total.saturating_sub(1)) >= total && usable >= (may_be_lost + 1).min(total)
    }

    /// Begins the reign of `maps` on all targets that can be written, whatever is left there.
    pub async fn found(mut self, node: u32, maps: Maps) -> Result<Arc<Maps>, RegistryStart> {
        assert_eq!(maps.verify(), Ok(()), "nothing is stored that a start would refuse");
        // Of those that were taken away a disk may still be there.
        self.replicas.retain(|(target, _)| maps.present().any(|(id, _)| id == *target));
        let maps = Arc::new(maps);
        let answered = self.best.map(|best| best.agreed.answered).unwrap_or_default();
        let agreed = Arc::new(Agreed { maps: maps.clone(), answered });
        let copies = self.replicas.iter().map(|(target, _)| *target).collect();
        let kept = Kept { copies, ..first(maps.parity, Some((node, agreed))) };
        let generation = self.generation.max(u64::from(maps.reign.number) << SKIPPED.trailing_zeros()) + SKIPPED;
        let founded = Store::begin(kept, self.replicas, generation).await;
        founded.map(|_| maps).map_err(|error| RegistryStart::Unwritten(error.to_string()))
    }
}

/// The targets whose sound copies lack more than a crash explains.
async fn outdated(disks: &[(TargetId, Disk)], newest: &Found) -> Vec<TargetId> {
    let opened = join_all(disks.iter().map(|(id, disk)| async move { (*id, Replica::open(disk).await) })).await;
    let sound = opened.into_iter().filter_map(|(id, opened)| Some((id, opened.ok()?.1?)));
    sound.filter(|(_, found)| !found.is_explained_by_a_crash(newest)).map(|(id, _)| id).collect()
}
