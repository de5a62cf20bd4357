//! Audits that are under way: until when nothing over several managers begins here for one, and the records that it reads
//! (`docs/decisions/0019-a-check-sees-one-moment.md`). Decides.
//!
//! Invariants
//! 1. While any audit is held, no operation that changes several managers' slots begins here.
//! 2. [`Moments::go_on`] says yes only to an audit that was held from `hold` on until now.
//! 3. An audit that nobody asks about is forgotten after a while, and so are too many at once: none keeps memory for ever.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::Duration;

use host::Moment;
use protocol::audit::AuditId;

use crate::telling::Telling;

/// How long operations over several managers wait for an audit at most: little of what their callers wait at most.
pub(crate) const HOLD_MAX: Duration = Duration::from_secs(2);
/// How long records are kept for an audit that asks nothing.
const KEEP_MAX: Duration = Duration::from_secs(60);
/// Audits at once; each may keep a copy of what changes meanwhile.
const AUDITS_MAX: usize = 4;

/// Records that are kept; one page of them is told at a time.
pub(crate) type Kept = Arc<async_lock::Mutex<Telling>>;

/// All audits under way.
#[derive(Default)]
pub(crate) struct Moments(Mutex<BTreeMap<AuditId, Audit>>);

struct Audit {
    /// Nothing once it went on.
    held_until: Option<Moment>,
    kept: Option<Kept>,
    asked: Moment,
}

impl Moments {
    /// Holds operations for an audit, unless there are too many.
    pub(crate) fn hold(&self, id: AuditId, now: Moment) -> bool {
        self.tidy(now);
        let mut audits = self.lock();
        let is_possible = audits.len() < AUDITS_MAX && !audits.contains_key(&id);
        if is_possible {
            audits.insert(id, Audit { held_until: Some(now + HOLD_MAX), kept: None, asked: now });
        }
        is_possible
    }

    /// Whether an operation over several managers has to wait.
    pub(crate) fn is_held(&self, now: Moment) -> bool {
        self.lock().values().any(|audit| audit.is_held(now))
    }

    /// Whether operations are still held for this audit.
    pub(crate) fn is_held_for(&self, id: AuditId, now: Moment) -> bool {
        self.lock().get(&id).is_some_and(|audit| audit.is_held(now))
    }

    /// Keeps records for an audit.
    pub(crate) fn keep(&self, id: AuditId, telling: Telling) {
        if let Some(audit) = self.lock().get_mut(&id) {
            audit.kept = Some(Arc::new(async_lock::Mutex::new(telling)));
        }
    }

    /// Whether records are kept for anybody.
    pub(crate) fn keeps_any(&self, now: Moment) -> bool {
        self.tidy(now);
        self.lock().values().any(|audit| audit.kept.is_some())
    }

    /// What is kept for an audit.
    pub(crate) fn kept(&self, id: AuditId, now: Moment) -> Option<Kept> {
        let mut audits = self.lock();
        let audit = audits.get_mut(&id)?;
        audit.asked = now;
        audit.kept.clone()
    }

    /// Holds operations no longer; whether they were held until now.
    pub(crate) fn go_on(&self, id: AuditId, now: Moment) -> bool {
        let mut audits = self.lock();
        let Some(audit) = audits.get_mut(&id) else { return false };
        let was_held = audit.is_held(now);
        audit.held_until = None;
        was_held
    }

    /// An audit is over.
    pub(crate) fn forget(&self, id: AuditId) {
        self.lock().remove(&id);
    }

    /// Forgets audits that nobody asks about any more.
    pub(crate) fn tidy(&self, now: Moment) {
        self.lock().retain(|_, audit| now < audit.asked + KEEP_MAX);
    }

    fn lock(&self) -> MutexGuard<'_, BTreeMap<AuditId, Audit>> {
        self.0.lock().expect("nobody panics over audits")
    }
}

impl Audit {
    fn is_held(&self, now: Moment) -> bool {
        self.held_until.is_some_and(|until| now < until)
    }
}
