//! What audits ask of a manager: to hold what changes several managers' slots, to keep all records as of one moment, to tell
//! what they say (`docs/decisions/0019-a-check-sees-one-moment.md`). Awaits.

use std::time::Duration;

use protocol::audit::{AuditId, AuditRequest};
use protocol::id::{MapEpoch, SlotId};
use protocol::manager::{Answer, ManagerError};
use protocol::maps::ManagerMapSum;

use crate::manager::Manager;
use crate::moments::Kept;
use crate::telling::Telling;

/// How long `Hold` waits for what is under way, and how often it looks. Shorter than operations are held, so that there is
/// time to keep the records.
const QUIET_WAIT: Duration = Duration::from_secs(1);
const QUIET_LOOK: Duration = Duration::from_millis(5);
/// The most inodes that are described at once.
const DESCRIBED_MAX: usize = 10_000;

impl Manager {
    /// Whether this manager would answer for a slot: of all managers of a cluster, one at most.
    pub fn holds(&self, slot: SlotId) -> bool {
        self.table.lock(slot).is_some()
    }

    /// Answers an audit.
    pub(crate) async fn answer_audit(&self, id: AuditId, request: AuditRequest) -> Result<Answer, ManagerError> {
        match request {
            AuditRequest::Hold(map) => {
                self.agree(map, MapEpoch::default()).await?;
                Ok(Answer::Held(self.moments.hold(id, self.host().now()) && self.becomes_quiet().await))
            }
            AuditRequest::Keep(map) => {
                self.agree(map, MapEpoch::default()).await?;
                Ok(Answer::Held(self.keep_all(id, map)))
            }
            AuditRequest::GoOn(map) => {
                let was_held = self.moments.go_on(id, self.host().now());
                self.agree(map, MapEpoch::default()).await?;
                Ok(Answer::Held(was_held))
            }
            AuditRequest::Tell(page) => {
                let kept = self.kept(id)?;
                let (facts, is_last) = kept.lock().await.page(&self.reader, page).await?;
                Ok(Answer::Facts(facts, is_last))
            }
            AuditRequest::Describe(inodes) if inodes.len() <= DESCRIBED_MAX => {
                let kept = self.kept(id)?;
                let facts = kept.lock().await.describe(&self.reader, &inodes).await?;
                Ok(Answer::Facts(facts, true))
            }
            AuditRequest::Describe(_) => Err(ManagerError::Invalid("too many inodes at once".into())),
            AuditRequest::Forget => {
                self.moments.forget(id);
                Ok(Answer::Done)
            }
        }
    }

    fn kept(&self, id: AuditId) -> Result<Kept, ManagerError> {
        let forgotten = || ManagerError::Failed("what was kept for this audit is forgotten".into());
        self.moments.kept(id, self.host().now()).ok_or_else(forgotten)
    }

    /// Waits until no operation over several managers is under way.
    async fn becomes_quiet(&self) -> bool {
        let until = self.host().now() + QUIET_WAIT;
        while !self.is_quiet() {
            if self.host().now() >= until {
                return false;
            }
            self.host().sleep(QUIET_LOOK).await;
        }
        true
    }

    fn is_quiet(&self) -> bool {
        let is_over = |slot| self.table.lock(slot).is_none_or(|state| state.intentions.are_over());
        self.flights.are_over() && self.table.mine().iter().copied().all(is_over)
    }

    /// Keeps the records of all slots, which are locked together for as long as that takes. False unless operations are held,
    /// and none is under way.
    fn keep_all(&self, id: AuditId, map: ManagerMapSum) -> bool {
        let mine = self.table.mine();
        // In ascending order, as operations lock them.
        let guards: Option<Vec<_>> = mine.iter().map(|&slot| self.table.lock(slot)).collect();
        let Some(guards) = guards else { return false };
        let maps = self.cluster.maps();
        let is_whole = maps.manager_map_sum() == map && self.is_settled(&maps);
        let is_quiet = self.flights.are_over() && guards.iter().all(|state| state.intentions.are_over());
        if !(is_whole && is_quiet && self.moments.is_held_for(id, self.host().now())) {
            return false;
        }
        let filled = guards.iter().filter(|state| !state.records.is_empty());
        let telling = Telling::new(filled.map(|state| (state.id, state.records.kept())).collect());
        self.moments.keep(id, telling);
        true
    }
}
