//! Who is no node of the cluster any more, though its certificate holds for years: by the maps, in which a number that was
//! given once and has no node is one that was removed. Decides.

use std::collections::BTreeSet;
use std::sync::RwLock;

use host::byways::Ask;
use host::{Envelope, NodeId};
use protocol::maps::Maps;
use protocol::registry::RegistryRequest;

/// The nodes by the newest maps that were seen here.
#[derive(Debug, Default)]
pub(super) struct Members(RwLock<Known>);

#[derive(Debug, Default)]
struct Known {
    epoch: u64,
    nodes: BTreeSet<u32>,
    /// The number of the next node. Who has it, or a greater one, came after these maps.
    next: u32,
}

impl Members {
    /// These are the maps, unless newer ones were seen.
    pub(super) fn know(&self, maps: &Maps) {
        let mut known = self.0.write().expect("no panic while members are held");
        if maps.epoch.0 >= known.epoch {
            *known = Known { epoch: maps.epoch.0, nodes: maps.nodes.keys().copied().collect(), next: maps.next_node };
        }
    }

    /// Whether `peer` may ask this here. Who was removed says that it is there, which comes before everything else, and asks
    /// for maps, for targets and for a session: it is told then that it was removed.
    pub(super) fn may_ask(&self, peer: NodeId, request: &Envelope) -> bool {
        let known = self.0.read().expect("no panic while members are held");
        let may_ask = |node: NodeId, request: &Envelope| !known.has_removed(node) || is_told(node, request);
        match request.peek().downcast_ref() {
            Some(Ask::Here(_)) => true,
            Some(Ask::Take(passed)) => !known.has_removed(peer) && may_ask(passed.from, &passed.request),
            Some(Ask::Reach(..) | Ask::Pass(_)) => !known.has_removed(peer),
            None => may_ask(peer, request),
        }
    }
}

impl Known {
    fn has_removed(&self, NodeId(node): NodeId) -> bool {
        node < self.next && !self.nodes.contains(&node)
    }
}

/// Whether a node that was removed finds out by the answer, and changes nothing.
fn is_told(asker: NodeId, request: &Envelope) -> bool {
    use RegistryRequest::{AddTargets, Begin, Maps, Newest, Renew, Watch};
    match request.peek().downcast_ref() {
        Some(AddTargets { node, .. } | Begin { node, .. } | Renew { node, .. }) => *node == asker.0,
        Some(Maps | Watch { .. } | Newest { .. }) => true,
        _ => false,
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use host::byways::{Name, Passed, Sight};
    use host::{Address, Moment, Port};
    use protocol::id::MapEpoch;
    use protocol::maps::NodeEntry;

    use super::*;

    fn maps(epoch: u64, nodes: &[u32], next_node: u32) -> Maps {
        let mut maps = Maps::empty(1, 1);
        (maps.epoch, maps.next_node) = (MapEpoch(epoch), next_node);
        maps.nodes = nodes.iter().map(|&node| (node, NodeEntry::new(String::new(), String::new(), true))).collect();
        maps
    }

    fn begin(node: u32) -> RegistryRequest {
        RegistryRequest::Begin { node, after: 1, address: String::new(), keeps: None }
    }

    fn passed(from: u32, request: Envelope) -> Passed {
        let to = Address { node: NodeId(1), port: Port(17) };
        Passed { from: NodeId(from), to, seen: Sight { life: 1, at: Moment(0) }, request }
    }

    #[test]
    fn who_was_removed_is_told_so_and_nothing_else() {
        let members = Members::default();
        let may = |node| members.may_ask(NodeId(node), &Envelope::new(()));
        assert!(may(2), "nothing is known yet");
        members.know(&maps(5, &[1, 3], 4));
        assert!(may(1) && may(3) && may(4) && may(9), "who may have come since is answered");
        members.know(&maps(4, &[1, 2, 3], 4));
        assert!(!may(2), "these maps are older");
        let may = |request: RegistryRequest| members.may_ask(NodeId(2), &Envelope::new(request));
        let renewal = |node| RegistryRequest::Renew { node, session: 1, pause: Duration::ZERO };
        assert!(may(begin(2)) && may(renewal(2)) && may(RegistryRequest::Maps));
        assert!(!may(begin(3)) && !may(renewal(3)), "in the name of another");
        assert!(!may(RegistryRequest::RemoveNode(3)) && !may(RegistryRequest::Expire { node: 3, session: 1 }));
    }

    #[test]
    fn who_was_removed_goes_no_other_way() {
        let members = Members::default();
        members.know(&maps(5, &[1, 3], 4));
        let may = |node, ask| members.may_ask(NodeId(node), &Envelope::new(ask));
        let (name, other) = (|node| Name { node: NodeId(node), life: 1 }, || Envelope::new(()));
        assert!(may(2, Ask::Here(name(2))) && may(3, Ask::Here(name(2))));
        assert!(may(3, Ask::Take(passed(1, other()))) && may(3, Ask::Take(passed(2, Envelope::new(begin(2))))));
        assert!(!may(3, Ask::Take(passed(2, other()))), "a third node has older maps");
        assert!(!may(2, Ask::Take(passed(3, other()))), "in the name of another");
        assert!(!may(2, Ask::Pass(passed(2, other()))) && !may(2, Ask::Reach(NodeId(1), name(2))));
        assert!(may(3, Ask::Pass(passed(3, other()))) && may(3, Ask::Reach(NodeId(1), name(3))));
    }
}
