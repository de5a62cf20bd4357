//! Shows all records of all slots to an audit, while the manager serves. Awaits.

use std::sync::Arc;

use protocol::id::SlotId;
use protocol::manager::ManagerError;

use crate::audit::{Audit, AuditReport};
use crate::manager::Manager;

/// How often the records are read again because somebody changed them meanwhile.
const TRIES: u32 = 20;
/// Records shown before the slot is let go for others.
const RECORDS_AT_ONCE: usize = 4096;
/// Just behind every key.
const KEY_END: [u8; 9] = [0xff; 9];

impl Manager {
    /// Whether this manager would answer for a slot: of all managers of a cluster, one at most.
    pub fn holds(&self, slot: SlotId) -> bool {
        self.table.lock(slot).is_some()
    }

    /// Whether all records agree with each other. They are compared as of one moment: when operations change them while
    /// they are read, they are read again; [`ManagerError::Failed`] when that never ends.
    pub async fn audit(&self) -> Result<AuditReport, ManagerError> {
        self.audit_with(&[]).await
    }

    /// The same, of the slots of all these managers together.
    pub async fn audit_with(&self, others: &[Arc<Manager>]) -> Result<AuditReport, ManagerError> {
        let all = || std::iter::once(self).chain(others.iter().map(|other| &**other));
        let changes = || all().map(Manager::changes).sum::<u64>();
        for _ in 0..TRIES {
            let before = changes();
            let mut audit = Audit::default();
            for manager in all() {
                for &slot in manager.table.mine().iter() {
                    manager.show(slot, &mut audit).await?;
                }
            }
            if changes() == before {
                return Ok(audit.finish());
            }
        }
        Err(ManagerError::Failed("names and files change faster than they can be read; check again later".into()))
    }

    fn changes(&self) -> u64 {
        let of = |&slot: &SlotId| self.table.lock(slot).map_or(0, |state| state.records.changes());
        self.table.mine().iter().map(of).sum()
    }

    async fn show(&self, slot: SlotId, audit: &mut Audit) -> Result<(), ManagerError> {
        let mut from = Vec::new();
        loop {
            let mut shown = 0;
            let absent = {
                let Some(state) = self.table.lock(slot) else { return Err(ManagerError::NotMine) };
                loop {
                    match state.records.next(&from, &KEY_END) {
                        Ok(Some((key, value))) => {
                            audit.record(slot, key, value);
                            from.clear();
                            from.extend_from_slice(key);
                            from.push(0);
                            shown += 1;
                        }
                        Ok(None) => return Ok(()),
                        Err(page) => break Some(page),
                    }
                    if shown == RECORDS_AT_ONCE {
                        break None;
                    }
                }
            };
            if let Some(page) = absent {
                self.load(&page, 0).await?;
            }
        }
    }
}
