//! How new a replica is, and what its registry knows: all that counts when a quorum is lost. It tells what is in the log
//! too, whether that was agreed on or not: who proposed it may have been told so.

use std::collections::BTreeSet;
use std::sync::Arc;

use host::Disk;
use openraft::EntryPayload;
use protocol::id::TargetId;
use protocol::maps::{Maps, Reign};
use serde::{Deserialize, Serialize};

use crate::RegistryStart;
use crate::consensus::Agreed;
use crate::store::{Kept, Store};

/// What one replica tells.
#[derive(Clone, Debug)]
pub struct Standing {
    pub(crate) agreed: Agreed,
    /// The targets of the machine that have a copy.
    pub(crate) copies: Vec<TargetId>,
    voters: BTreeSet<u32>,
    last: Option<(u64, u64)>,
}

/// How new a replica is: the greater of two has all that was answered by what either has.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub struct Age {
    /// Of another reign is another log.
    pub reign: Reign,
    /// Term and index of its last entry.
    pub last: Option<(u64, u64)>,
}

impl Standing {
    /// Reads what the targets of a machine hold, and changes nothing.
    pub async fn read(disks: &[(TargetId, Disk)]) -> Result<Standing, RegistryStart> {
        Store::read(disks).await?.standing().ok_or(RegistryStart::Empty)
    }

    /// The newest maps that it knows of.
    pub fn maps(&self) -> &Arc<Maps> {
        &self.agreed.maps
    }

    /// Who votes.
    pub fn voters(&self) -> &BTreeSet<u32> {
        &self.voters
    }

    /// How new it is.
    pub fn age(&self) -> Age {
        Age { reign: self.agreed.maps.reign, last: self.last }
    }
}

impl Kept {
    /// What it tells; nothing on a machine that has just joined.
    pub fn standing(&self) -> Option<Standing> {
        let (meta, agreed) = self.snapshot.as_ref()?;
        let mut agreed = Agreed::clone(agreed);
        let from = meta.last_log_id.map_or(0, |last| last.index + 1);
        for (_, entry) in self.entries.range(from..) {
            if let EntryPayload::Normal(command) = &entry.payload {
                let _ = agreed.carry_out(command.clone(), entry.log_id.leader_id.term);
            }
        }
        let last = self.last().max(meta.last_log_id).map(|last| (last.leader_id.term, last.index));
        Some(Standing { agreed, copies: self.copies.clone(), voters: self.voters(), last })
    }
}
