//! What the leader does besides agreeing: it expires whose lease has run out, adjusts who votes, and shares slots out.
//! `leases`, `voters` and `balance` decide; this file carries it out.

use std::collections::BTreeSet;
use std::pin::pin;
use std::sync::Arc;
use std::time::Duration;

use futures_util::future::select;
use openraft::async_runtime::WatchReceiver;
use openraft::{ChangeMembers, EmptyNode};
use protocol::registry::RegistryRequest;

use crate::Registry;
use crate::balance::Balance;
use crate::consensus::Command;
use crate::runtime::{inside, within};
use crate::voters::{self, Members, Step};

/// How often a node looks whether it leads, and a leader who is up to date.
const LOOK: Duration = Duration::from_millis(100);
/// How long a change of the members may take.
const CHANGE_PATIENCE: Duration = Duration::from_secs(5);
/// How long a node that goes away waits until another leads.
const HAND_OVER_PATIENCE: Duration = Duration::from_secs(1);
/// Who lacks more entries than this does not vote yet.
const LAG_MAX: u64 = 64;

/// Looks after the cluster for as long as this node leads it, again and again.
pub(crate) async fn lead(registry: Arc<Registry>) {
    let mut balance: Option<(u64, Balance)> = None;
    loop {
        let maps = registry.maps();
        registry.leave_removed(&maps).await;
        let term = registry.leading();
        let alone = registry.is_alone().then_some(registry.host.node().0);
        let confirmed = registry.confirmed();
        let look = registry.look_at_leases(term, |leases, now| {
            confirmed.into_iter().for_each(|then| leases.confirmed(then));
            leases.look(&maps, alone, now)
        });
        let mut again = registry.host.now() + LOOK;
        if let (Some(term), Some(look)) = (term, look) {
            again = again.min(look.next);
            for (node, session) in look.expired {
                let request = RegistryRequest::Expire { node, session };
                let command = Command { id: registry.host.random(), request, term: Some(term) };
                // Whether it is done the next look shows.
                drop(registry.propose(command).await);
            }
            adjust(&registry).await;
            share_out(&registry, term, &mut balance).await;
        }
        select(pin!(registry.newer(maps.epoch)), pin!(registry.host.sleep_until(again))).await;
    }
}

impl Registry {
    /// Has another node lead, if this one does and another can: nobody need miss this one before it is replaced, when it goes
    /// away. Returns when another leads, or after a second.
    pub async fn hand_over(&self) {
        let own = self.host.node().0;
        let Some(heir) = self.leading().and_then(|_| voters::heir(&self.maps(), &members(self), own)) else { return };
        let handed_over = async {
            let mut metrics = inside(&self.host, || self.raft.metrics());
            // One that fails leads no more, either.
            drop(within(&self.host, self.raft.trigger().transfer_leader(heir)).await);
            while metrics.borrow_and_update().current_leader.is_none_or(|leader| leader == own) {
                if metrics.changed().await.is_err() {
                    return;
                }
            }
        };
        select(pin!(handed_over), pin!(self.host.sleep(HAND_OVER_PATIENCE))).await;
    }
}

/// Has it planned which slots move, when that is due. What an earlier term saw counts for nothing.
async fn share_out(registry: &Registry, term: u64, balance: &mut Option<(u64, Balance)>) {
    let now = registry.host.now();
    if balance.as_ref().is_none_or(|(of, _)| *of != term) {
        *balance = Some((term, Balance::new(now)));
    }
    let is_due = balance.as_mut().is_some_and(|(_, balance)| balance.is_due(&registry.maps(), now));
    if is_due {
        let command = Command { id: registry.host.random(), request: RegistryRequest::Balance, term: Some(term) };
        // Whether it is done the next look shows.
        drop(registry.propose(command).await);
    }
}

/// Takes one step towards the members that there should be.
async fn adjust(registry: &Registry) {
    let Some(step) = voters::step(&registry.maps(), &members(registry)) else { return };
    let change = async {
        match step {
            Step::Learn(node) => registry.raft.add_learner(node, EmptyNode {}, false).await.is_ok(),
            Step::Vote(voters) => registry.raft.change_membership(voters, true).await.is_ok(),
            Step::Forget(nodes) => {
                registry.raft.change_membership(ChangeMembers::RemoveNodes(nodes), true).await.is_ok()
            }
        }
    };
    // Whether it is done the next look shows.
    select(pin!(within(&registry.host, change)), pin!(registry.host.sleep(CHANGE_PATIENCE))).await;
}

fn members(registry: &Registry) -> Members {
    registry.metrics(|metrics| {
        let voters: BTreeSet<u32> = metrics.membership_config.voter_ids().collect();
        let all = metrics.membership_config.nodes().map(|(node, _)| *node).collect();
        let last = metrics.last_log_index.unwrap_or(0);
        let near = |matched: u64| matched + LAG_MAX >= last;
        let progress = metrics.replication.iter().flatten();
        let near = progress.filter(|(_, matched)| matched.as_ref().is_some_and(|matched| near(matched.index)));
        let is_joint = metrics.membership_config.get_joint_config().len() > 1;
        Members { voters, all, up_to_date: near.map(|(node, _)| *node).collect(), is_joint }
    })
}
