//! How new a replica is, and what its registry knows: all that counts when a quorum is lost. It tells what is in the log
//! too, whether that was agreed on or not: who proposed it may have been told so.

use std::collections::BTreeSet;
use std::sync::Arc;

use host::Disk;
use openraft::EntryPayload;
use protocol::id::TargetId;
use protocol::maps::{Maps, Reign};
use serde::{Deserialize, Serialize};

use crate::consensus::{Agreed, LogId};
use crate::reign::{Place, Spared};
use crate::store::{Kept, Store};
use crate::{RegistryStart, reign};

/// What one replica tells.
#[derive(Clone, Debug)]
pub struct Standing {
    pub(crate) agreed: Agreed,
    /// The targets of the machine that have a copy.
    pub(crate) copies: Vec<TargetId>,
    voters: BTreeSet<u32>,
    last: Option<Place>,
    spared: Option<Place>,
}

/// How new a replica is: the greater of two has all that was answered by what either has.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub struct Age {
    /// Of another reign is another log.
    pub reign: Reign,
    /// Its last entry.
    pub last: Option<Place>,
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

    /// Whether its machine has answered nothing that the founder of `reign` did not have.
    pub fn may_follow(&self, reign: Reign) -> bool {
        reign::may_follow(self.maps(), self.spared, reign)
    }
}

impl Kept {
    /// What it tells; nothing on a machine that has just joined.
    pub fn standing(&self) -> Option<Standing> {
        let (meta, agreed) = self.snapshot.as_ref()?;
        let mut agreed = Agreed::clone(agreed);
        let mut spared = Spared::snapshot(&agreed.maps, meta.last_log_id.map(place));
        let from = meta.last_log_id.map_or(0, |last| last.index + 1);
        for (_, entry) in self.entries.range(from..) {
            if let EntryPayload::Normal(command) = &entry.payload {
                let _ = agreed.carry_out(command.clone(), entry.log_id.leader_id.term);
                spared.next(place(entry.log_id), &command.request, &agreed.maps);
            }
        }
        let last = self.last().max(meta.last_log_id).map(place);
        let (copies, voters, spared) = (self.copies.clone(), self.voters(), spared.until());
        Some(Standing { agreed, copies, voters, last, spared })
    }
}

fn place(entry: LogId) -> Place {
    (entry.leader_id.term, entry.index)
}
