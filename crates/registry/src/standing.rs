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
            match &entry.payload {
                EntryPayload::Normal(command) => {
                    let _ = agreed.carry_out(command.clone(), entry.log_id.leader_id.term);
                    spared.next(place(entry.log_id), &command.request, &agreed.maps);
                }
                EntryPayload::Blank => spared.blank(place(entry.log_id), &agreed.maps),
                EntryPayload::Membership(_) => {}
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

#[cfg(test)]
mod tests {
    use openraft::impls::leader_id_adv::LeaderId;
    use protocol::maps::TargetEntry;
    use protocol::registry::RegistryRequest;

    use super::*;
    use crate::consensus::{Command, Entry};
    use crate::{change, store};

    /// What was written on one replica alone counts for nothing there, until a later leader has it agreed on.
    #[test]
    fn a_change_that_a_later_leader_had_agreed_on_is_not_spared() {
        let target = |node: u32| (TargetId(node), TargetEntry::new(node, String::new()));
        let maps = Arc::new(change::new_cluster(1, (1..=3).map(target).collect(), 1, 1));
        let mut kept = store::first(1, Some((1, Arc::new(Agreed { maps, answered: Default::default() }))));
        let mut write = |term: u64, index: u64, payload| {
            let log_id = LogId::new(LeaderId { term, node_id: 1 }, index);
            kept.entries.insert(index, Entry { log_id, payload });
            kept.standing().expect("there are maps").spared
        };
        let change = EntryPayload::Normal(Command { id: 1, request: RegistryRequest::Balance, term: None });
        assert_eq!(write(1, 7, change), Some((1, 7)));
        assert_eq!(write(3, 8, EntryPayload::Blank), Some((3, 8)), "a founder with (2, 7) may lack both");
    }
}
