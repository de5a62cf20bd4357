//! Requests that take effect once, however often they are sent: their answers are kept with what they changed, in the same
//! journal record, until the client has one (DESIGN §5). So a client whose manager died before it answered asks the next one.
//!
//! Sent to managers on other nodes only: a client and a manager of one node die together, and a local call is never lost.

use bytes::Bytes;
use serde::{Deserialize, Serialize};

use crate::id::{LogId, SlotId};
use crate::manager::ManagerRequest;

/// Names a request among all that were ever sent.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub struct CallId {
    /// The log that the client writes in this life.
    pub client: LogId,
    /// Counts up; a number that was given up is never used again.
    pub number: u64,
}

/// What a request that takes effect once brings along.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct OnceName {
    /// Its name, the same each time it is sent.
    pub call: CallId,
    /// Of this client's calls before this number none is sent again: their answers can be forgotten.
    pub below: u64,
    /// Where the answer is kept: one of the slots that the request is about.
    pub slot: SlotId,
}

/// A request that takes effect once, on its way.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Once {
    /// Its name, the same each time it is sent.
    pub name: OnceName,
    /// The request, encoded by itself: however it is nested, nobody decodes more than one of it.
    request: Bytes,
}

impl Once {
    /// A request under a name.
    pub fn new(name: OnceName, request: &ManagerRequest) -> Once {
        let request = postcard::to_stdvec(request).expect("memory is the only thing that can lack");
        Once { name, request: request.into() }
    }

    /// The request, if it is one of those that can take effect once.
    pub fn request(&self) -> Option<ManagerRequest> {
        postcard::from_bytes(&self.request).ok().filter(needs_once)
    }
}

/// Whether a request takes one step, changes names or attributes, and would do something else the second time. Whoever sets a
/// size holds the file, and nobody else does so meanwhile.
pub fn needs_once(request: &ManagerRequest) -> bool {
    use ManagerRequest as R;
    match request {
        R::SetAttributes(_, set) => set.size.is_none(),
        R::Create { .. }
        | R::CreateUnnamed { .. }
        | R::Link { .. }
        | R::Unlink { .. }
        | R::RemoveDirectory { .. }
        | R::Rename(_)
        | R::SetXattr { .. }
        | R::RemoveXattr { .. } => true,
        _ => false,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::id::InodeId;

    #[test]
    fn only_what_needs_it_takes_effect_once() {
        let name = OnceName { call: CallId { client: LogId(3), number: 4 }, below: 4, slot: SlotId(0) };
        let unlink = ManagerRequest::Unlink { directory: InodeId::ROOT, name: "a".into() };
        let once = Once::new(name, &unlink);
        assert!(matches!(once.request(), Some(ManagerRequest::Unlink { .. })));
        let nested = Once::new(name, &ManagerRequest::Once(once));
        assert!(nested.request().is_none());
        let rubbish = Once { request: Bytes::from_static(&[255; 40]), ..nested };
        assert!(rubbish.request().is_none());
    }
}
