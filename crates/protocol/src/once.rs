//! Requests that take effect once, however often they are sent: their answers are kept with what they changed, in the same
//! journal record, until the client has one (DESIGN §5). So a client whose manager died before it answered asks the next one.
//!
//! Sent to managers on other nodes only: a client and a manager of one node die together, and a local call is never lost.

use std::time::Duration;

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
    /// For so many milliseconds more somebody waits for it.
    patience: u32,
    /// The request, encoded by itself: however it is nested, nobody decodes more than one of it.
    request: Bytes,
}

impl Once {
    /// A request under a name, of which nothing may happen any more when so much time has gone by after it came.
    pub fn new(name: OnceName, patience: Duration, request: &ManagerRequest) -> Once {
        let request = postcard::to_stdvec(request).expect("memory is the only thing that can lack");
        Once { name, patience: u32::try_from(patience.as_millis()).unwrap_or(u32::MAX), request: request.into() }
    }

    /// How much longer somebody waits for it.
    pub fn patience(&self) -> Duration {
        Duration::from_millis(self.patience.into())
    }

    /// The request, if it is one of those that can take effect once.
    pub fn request(&self) -> Option<ManagerRequest> {
        postcard::from_bytes(&self.request).ok().filter(needs_once)
    }
}

/// Whether a request changes something, and would change something else the second time: what was written in between.
pub fn needs_once(request: &ManagerRequest) -> bool {
    use ManagerRequest as R;
    matches!(
        request,
        R::CloneRange(_)
            | R::Create { .. }
            | R::CreateUnnamed { .. }
            | R::Grow { .. }
            | R::Link { .. }
            | R::Punch { .. }
            | R::RemoveDirectory { .. }
            | R::RemoveXattr { .. }
            | R::Rename(_)
            | R::SetAttributes(..)
            | R::SetXattr { .. }
            | R::Unlink { .. }
    )
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::id::InodeId;

    #[test]
    fn only_what_needs_it_takes_effect_once() {
        let name = OnceName { call: CallId { client: LogId(3), number: 4 }, below: 4, slot: SlotId(0) };
        let unlink = ManagerRequest::Unlink { directory: InodeId::ROOT, name: "a".into() };
        let once = Once::new(name, Duration::ZERO, &unlink);
        assert!(matches!(once.request(), Some(ManagerRequest::Unlink { .. })));
        let nested = Once::new(name, Duration::ZERO, &ManagerRequest::Once(once));
        assert!(nested.request().is_none());
        let rubbish = Once { request: Bytes::from_static(&[255; 40]), ..nested };
        assert!(rubbish.request().is_none());
    }
}
