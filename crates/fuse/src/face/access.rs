//! Access times, as `relatime` has them: a read moves the time if the file was changed since it was last read, or if that
//! is a day ago (Linux, `fs/inode.c`, `relatime_need_update`). Decides, never awaits.
//!
//! The kernel leaves access times to the file system, but keeps what it read, and answers from that without a word to
//! us. So opening a file for reading alone counts as reading it; of a file opened for writing as well, the first READ
//! does. Directories and symbolic links keep the access time that they were made with.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use protocol::file::{Attributes, Time};
use protocol::id::InodeId;

use super::lock;
use super::translation::OpenFlags;
use crate::operation::Handle;

const DAY: Duration = Duration::from_hours(24);

/// What an open means for the access time.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Due {
    /// Nothing.
    Never,
    /// It moves now.
    Now,
    /// It moves with the first read.
    WithRead,
}

/// Whether and when opening a file makes its access time move.
pub(crate) fn due(attributes: &Attributes, flags: OpenFlags, now: Time) -> Due {
    let accessed = attributes.accessed;
    let is_old = now.0.saturating_sub(accessed.0) >= DAY.as_nanos() as i64;
    let is_due = accessed <= attributes.modified || accessed <= attributes.changed || is_old;
    match () {
        () if !is_due || flags.keeps_access_time() || attributes.size == 0 || flags.truncates() => Due::Never,
        () if flags.only_reads() => Due::Now,
        () => Due::WithRead,
    }
}

/// Access times on their way to the managers, who are told beside the reader.
#[derive(Debug, Default)]
pub(crate) struct AccessTimes {
    /// Spares most readers the lock.
    any_due: AtomicBool,
    due: Mutex<BTreeSet<Handle>>,
    told: Mutex<BTreeMap<InodeId, Time>>,
}

impl AccessTimes {
    /// The first read through this handle moves the time.
    pub(crate) fn opened(&self, handle: Handle) {
        lock(&self.due).insert(handle);
        self.any_due.store(true, Ordering::Release);
    }

    /// A read, or the end, of this handle; whether the time is due.
    pub(crate) fn take(&self, handle: Handle) -> bool {
        self.any_due.load(Ordering::Acquire) && lock(&self.due).remove(&handle)
    }

    /// A manager is about to be told. False if that is under way already.
    pub(crate) fn begin(&self, inode: InodeId, now: Time) -> bool {
        lock(&self.told).insert(inode, now).is_none()
    }

    /// It was told, or could not be.
    pub(crate) fn end(&self, inode: InodeId) {
        lock(&self.told).remove(&inode);
    }

    /// Puts what is under way over what a manager said.
    pub(crate) fn overlay(&self, attributes: &mut Attributes) {
        if let Some(&time) = lock(&self.told).get(&attributes.inode) {
            attributes.accessed = attributes.accessed.max(time);
        }
    }
}

#[cfg(test)]
mod tests {
    use protocol::file::Kind;

    use super::*;

    const SECOND: i64 = 1_000_000_000;

    fn file(accessed: i64, modified: i64, changed: i64) -> Attributes {
        Attributes {
            inode: InodeId(7),
            kind: Kind::File,
            mode: 0o644,
            links: 1,
            uid: 0,
            gid: 0,
            device: 0,
            size: 1,
            stored: 1,
            accessed: Time(accessed * SECOND),
            modified: Time(modified * SECOND),
            changed: Time(changed * SECOND),
            created: Time(0),
            version: 1,
        }
    }

    #[test]
    fn an_access_time_moves_once_after_a_change_and_once_a_day() {
        let (reading, now) = (OpenFlags(0), Time(1_000 * SECOND));
        assert_eq!(due(&file(10, 10, 5), reading, now), Due::Now);
        assert_eq!(due(&file(11, 10, 20), reading, now), Due::Now);
        assert_eq!(due(&file(21, 10, 20), reading, now), Due::Never);
        let tomorrow = Time((21 + 24 * 3600) * SECOND);
        assert_eq!(due(&file(21, 10, 20), reading, tomorrow), Due::Now);
        assert_eq!(due(&file(i64::MIN / SECOND, 10, 20), reading, now), Due::Now);
    }

    #[test]
    fn only_reading_moves_an_access_time() {
        let (about, now) = (file(10, 10, 10), Time(1_000 * SECOND));
        assert_eq!(due(&about, OpenFlags(0o2), now), Due::WithRead);
        assert_eq!(due(&about, OpenFlags(0o1_000_000), now), Due::Never, "O_NOATIME");
        assert_eq!(due(&about, OpenFlags(0o1000), now), Due::Never, "O_TRUNC leaves nothing to read");
        assert_eq!(due(&Attributes { size: 0, ..about }, OpenFlags(0), now), Due::Never);
    }

    #[test]
    fn a_time_under_way_is_seen_at_once() {
        let times = AccessTimes::default();
        let mut about = file(10, 10, 10);
        assert!(times.begin(about.inode, Time(99 * SECOND)));
        assert!(!times.begin(about.inode, Time(99 * SECOND)));
        times.overlay(&mut about);
        assert_eq!(about.accessed, Time(99 * SECOND));
        times.opened(Handle(3));
        assert!(times.take(Handle(3)) && !times.take(Handle(3)) && !times.take(Handle(4)));
    }
}
