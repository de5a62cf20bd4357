//! An audit of all slots of all managers, by whoever is asked for it (`docs/decisions/0019-a-check-sees-one-moment.md`).
//!
//! 1. *Hold*: every manager begins nothing that changes several managers' slots, and ends what it began.
//! 2. *Keep*: when all hold, each keeps its records as they are.
//! 3. *Go on*: when all keep them. Where each says that it held until then, what is kept was so in one moment.
//! 4. *Tell*: page by page, what cannot be judged in a slot alone; `audit` joins it.
//!
//! Whenever this fails, because a manager dies, slots move or an operation does not end, it begins again. Awaits.

use std::collections::BTreeSet;
use std::pin::pin;
use std::time::Duration;

use futures_util::future::{Either, join_all, select};
use host::NodeId;
use protocol::audit::{AuditId, AuditRequest, Fact};
use protocol::id::InodeId;
use protocol::manager::{Answer, ManagerError, ManagerRequest};
use protocol::maps::ManagerMapSum;

use crate::audit::{Audit, AuditReport};
use crate::manager::Manager;
use crate::moments::HOLD_MAX;

/// How often an audit begins again, and after which pause: some managers may die one after the other meanwhile. Longer than
/// operations were held, so that they get on.
const TRIES: u32 = 40;
const PAUSE: Duration = Duration::from_millis(2500);
/// How long one page may take: it may have to be read from disks that do other work.
const PAGE_WAIT: Duration = Duration::from_secs(60);
/// How often a page is asked for again.
const PAGE_TRIES: u32 = 5;

/// One attempt.
struct Attempt<'a> {
    manager: &'a Manager,
    id: AuditId,
    map: ManagerMapSum,
    /// All managers.
    nodes: BTreeSet<u32>,
}

impl Manager {
    /// Whether all records of all managers' slots agree with each other, as of one moment; [`ManagerError::Failed`] when
    /// there is none in which all can be looked at.
    pub async fn audit(&self) -> Result<AuditReport, ManagerError> {
        let mut tries = 0;
        loop {
            let maps = self.cluster.maps();
            let id = AuditId { node: self.host().node().0, number: self.host().random() };
            let nodes = maps.slots.values().map(|slot| slot.node).collect();
            let attempt = Attempt { manager: self, id, map: maps.manager_map_sum(), nodes };
            let outcome = attempt.run().await;
            attempt.ask_all(&AuditRequest::Forget, HOLD_MAX).await;
            tries += 1;
            match outcome {
                Ok(report) => return Ok(report),
                Err(trouble) if tries == TRIES => {
                    return Err(ManagerError::Failed(format!("there is no moment to look at them all: {trouble}")));
                }
                Err(_) => {}
            }
            // The first of several that began at once should not be met again by all.
            self.host().sleep(PAUSE + Duration::from_millis(self.host().random() % 500)).await;
            // A registry that does not answer is met again in the next round.
            let _ = self.cluster.refresh().await;
        }
    }
}

impl Attempt<'_> {
    async fn run(&self) -> Result<AuditReport, String> {
        let steps = [AuditRequest::Hold(self.map), AuditRequest::Keep(self.map), AuditRequest::GoOn(self.map)];
        for step in steps {
            for (node, answer) in self.ask_all(&step, HOLD_MAX).await {
                match answer {
                    Ok(Answer::Held(true)) => {}
                    Ok(_) => return Err(format!("operations of the manager on node {node} do not end")),
                    Err(error) => return Err(format!("the manager on node {node}: {error}")),
                }
            }
        }
        let mut audit = Audit::default();
        for &node in &self.nodes {
            self.hear(node, &mut audit).await?;
        }
        let unknown = audit.unknown();
        for &node in &self.nodes {
            for fact in self.describe(node, &unknown).await? {
                audit.hear(fact);
            }
        }
        Ok(audit.finish())
    }

    /// All that a manager has to tell.
    async fn hear(&self, node: u32, audit: &mut Audit) -> Result<(), String> {
        for page in 0.. {
            let (facts, is_last) = self.facts(node, AuditRequest::Tell(page)).await?;
            facts.into_iter().for_each(|fact| audit.hear(fact));
            if is_last {
                break;
            }
        }
        Ok(())
    }

    /// What a manager says of those of these inodes that are its own.
    async fn describe(&self, node: u32, inodes: &[InodeId]) -> Result<Vec<Fact>, String> {
        let maps = self.manager.cluster.maps();
        let own: Vec<InodeId> = inodes.iter().copied().filter(|inode| maps.slot(inode.slot().0).node == node).collect();
        if own.is_empty() {
            return Ok(Vec::new());
        }
        Ok(self.facts(node, AuditRequest::Describe(own)).await?.0)
    }

    async fn facts(&self, node: u32, request: AuditRequest) -> Result<(Vec<Fact>, bool), String> {
        let mut tries = 0;
        loop {
            tries += 1;
            match self.ask(node, request.clone(), PAGE_WAIT).await {
                Ok(Answer::Facts(facts, is_last)) => return Ok((facts, is_last)),
                Ok(other) => return Err(format!("the manager on node {node} answered with {other:?}")),
                Err(error) if tries == PAGE_TRIES => return Err(format!("the manager on node {node}: {error}")),
                Err(_) => {}
            }
        }
    }

    async fn ask_all(&self, request: &AuditRequest, wait: Duration) -> Vec<(u32, Result<Answer, ManagerError>)> {
        let asked = |&node: &u32| {
            let request = request.clone();
            async move { (node, self.ask(node, request, wait).await) }
        };
        join_all(self.nodes.iter().map(asked)).await
    }

    /// Asks one manager, which may be this one.
    async fn ask(&self, node: u32, request: AuditRequest, wait: Duration) -> Result<Answer, ManagerError> {
        let (host, id) = (self.manager.host(), self.id);
        let answer = async {
            if node == host.node().0 {
                return self.manager.answer(node, ManagerRequest::Audit(id, request)).await.map(|reply| reply.answer);
            }
            self.manager.call_manager(NodeId(node), ManagerRequest::Audit(id, request)).await
        };
        match select(pin!(answer), pin!(host.sleep(wait))).await {
            Either::Left((answer, _)) => answer,
            Either::Right(_) => Err(ManagerError::Failed(format!("no answer for {} s", wait.as_secs()))),
        }
    }
}
