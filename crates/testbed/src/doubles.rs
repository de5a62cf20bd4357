//! Which requests reach their handlers twice in a world: those that callers ask again, word for word, when no answer came. What
//! is asked once is never doubled; nor are the messages of byways, which each go once and are bound to a moment
//! (`host/src/byways.rs`, 1 and 2).
//!
//! Of the first asking something may be under way yet when the second one is answered: not on its caller's machine, which
//! sends nothing more on a connection that broke (`dazzle/src/edge/network/connection.rs`, 5), but at the called end, where
//! its handler waits for pages, other managers, clients or a disk, or where the machine stands still. So a copy may be late.
//!
//! Where a handler waits for nothing, it is done before the second asking can be: what a daemon that runs has been sent it
//! reads at once, and one that stood still reads what is there before it makes another connection. So locks are not doubled
//! here, nor are opening and closing a file. They count in a manager's memory only and have no number: a late copy would take
//! what was given up since, or give up what was taken.

use host::Envelope;
use host::sim::Passing;
use protocol::manager::{MANAGER_PORT, ManagerRequest};
use protocol::once::needs_once;
use protocol::rebuild::{REBUILD_PORT, Refill};
use protocol::registry::{CONSENSUS_PORT, ConsensusMessage, REGISTRY_PORT, RegistryRequest};
use protocol::storage::{STORAGE_PORT, ToTarget};
use protocol::token::{CLIENT_PORT, ClientRequest};

/// The copy of a request that its caller may ask again: for [`World::copy_requests`](host::sim::World::copy_requests).
pub fn copy(passing: Passing<'_>) -> Option<Envelope> {
    let message = passing.message;
    match passing.called.port.0 {
        // A send whose commit was given up is sent again; so is whatever is read, deleted, fenced, or repaired.
        STORAGE_PORT => message.copied::<ToTarget>(),
        MANAGER_PORT if may_be_late(message.peek().downcast_ref()?) => message.copied::<ManagerRequest>(),
        REGISTRY_PORT if is_proposed_again(message.peek().downcast_ref()?) => message.copied::<RegistryRequest>(),
        // The library appends and asks for votes again; a change is brought to the leader until that has answered.
        CONSENSUS_PORT => message.copied::<ConsensusMessage>(),
        // Call-backs and claims are repeated until they are answered.
        CLIENT_PORT => message.copied::<ClientRequest>(),
        REBUILD_PORT => message.copied::<Refill>(),
        _ => None,
    }
}

/// Changes travel under a number (decision 0043). What is told as forgotten is told once; and a coordinator to whom no answer
/// came prepares nothing again, but begins under another intention.
fn may_be_late(request: &ManagerRequest) -> bool {
    use ManagerRequest as R;
    let is_asked_once = needs_once(request) || matches!(request, R::Forgotten(_) | R::Prepare(_));
    let is_done_when_read = matches!(
        request,
        R::Lock { .. } | R::CancelLock { .. } | R::Unlock { .. } | R::UnlockAll { .. } | R::Open { .. } | R::Close(_)
    );
    !is_asked_once && !is_done_when_read
}

/// Whoever joins asks again as a later attempt, and numbers those targets only that the newest maps lack.
fn is_proposed_again(request: &RegistryRequest) -> bool {
    !matches!(request, RegistryRequest::AddNode { .. } | RegistryRequest::AddTargets { .. })
}
