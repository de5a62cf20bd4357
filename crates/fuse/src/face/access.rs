//! Access times, as `relatime` has them: a read moves the time if the file was changed since it was last read, or if that
//! is a day ago (Linux, `fs/inode.c`, `relatime_need_update`). Decides, never awaits.
//!
//! The kernel leaves access times to the file system, but keeps what it read, and answers from that without a word to
//! us. So opening a file for reading alone counts as reading it; of a file opened for writing as well, the first READ
//! does. Directories and symbolic links keep the access time that they were made with.
//!
//! Times are told to managers late, as with `lazytime`: a file that is made, read once and removed costs no call. Until
//! then they are here, and whoever asks sees them. A clean stop tells them all; a crash loses those of the last half minute.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use protocol::file::{Attributes, Time};
use protocol::id::InodeId;

use super::lock;
use super::translation::OpenFlags;
use crate::operation::Handle;

/// After so long managers are told.
pub(crate) const TELL_AFTER: Duration = Duration::from_secs(30);

const DAY: Duration = Duration::from_hours(24);
/// How many wait to be told. Beyond, reading moves no access time: it is a hint, not a promise.
const WAITING_MAX: usize = 1 << 16;

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
        () if !is_due || flags.keeps_access_time() || attributes.size == 0 => Due::Never,
        () if flags.only_reads() => Due::Now,
        () => Due::WithRead,
    }
}

/// Access times that managers do not know yet.
#[derive(Debug, Default)]
pub(crate) struct AccessTimes {
    /// Spares most readers the lock.
    any_due: AtomicBool,
    due: Mutex<BTreeSet<Handle>>,
    waiting: Mutex<Waiting>,
}

#[derive(Debug, Default)]
struct Waiting {
    times: BTreeMap<InodeId, Time>,
    /// Somebody will tell the managers.
    is_awaited: bool,
}

impl AccessTimes {
    /// The first read through this handle moves the time.
    pub(crate) fn opened(&self, handle: Handle) {
        lock(&self.due).insert(handle);
        self.any_due.store(true, Ordering::Release);
    }

    /// The handles whose first read moves the time.
    pub(crate) fn due(&self) -> Vec<Handle> {
        lock(&self.due).iter().copied().collect()
    }

    /// A read, or the end, of this handle; whether the time is due.
    pub(crate) fn take(&self, handle: Handle) -> bool {
        self.any_due.load(Ordering::Acquire) && lock(&self.due).remove(&handle)
    }

    /// The file was read. True if the caller has to see to it that managers are told.
    #[must_use = "nobody else tells the managers"]
    pub(crate) fn read(&self, inode: InodeId, now: Time) -> bool {
        let mut waiting = lock(&self.waiting);
        if waiting.times.len() < WAITING_MAX {
            waiting.times.insert(inode, now);
        }
        !std::mem::replace(&mut waiting.is_awaited, true)
    }

    /// Files of which managers are to be told. None at all end the duty of telling.
    pub(crate) fn to_tell(&self) -> Vec<InodeId> {
        let mut waiting = lock(&self.waiting);
        waiting.is_awaited = !waiting.times.is_empty();
        waiting.times.keys().copied().collect()
    }

    /// The time to tell of a file, unless there is none any more.
    pub(crate) fn waiting(&self, inode: InodeId) -> Option<Time> {
        lock(&self.waiting).times.get(&inode).copied()
    }

    /// A manager knows better: it was told, or a program set the time.
    pub(crate) fn settle(&self, inode: InodeId) {
        lock(&self.waiting).times.remove(&inode);
    }

    /// Puts what waits over what a manager said.
    pub(crate) fn overlay(&self, attributes: &mut Attributes) {
        if let Some(time) = self.waiting(attributes.inode) {
            attributes.accessed = attributes.accessed.max(time);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::face::tests;

    const SECOND: i64 = 1_000_000_000;

    fn file(accessed: i64, modified: i64, changed: i64) -> Attributes {
        let [accessed, modified, changed] = [accessed, modified, changed].map(|seconds| Time(seconds * SECOND));
        Attributes { accessed, modified, changed, ..tests::file() }
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
        assert_eq!(due(&Attributes { size: 0, ..about }, OpenFlags(0), now), Due::Never);
        let times = AccessTimes::default();
        times.opened(Handle(3));
        assert!(times.take(Handle(3)) && !times.take(Handle(3)) && !times.take(Handle(4)));
    }

    #[test]
    fn a_time_is_seen_at_once_and_told_late() {
        let times = AccessTimes::default();
        let mut about = file(10, 10, 10);
        assert!(times.read(about.inode, Time(98 * SECOND)), "the first reader has to tell");
        assert!(!times.read(about.inode, Time(99 * SECOND)));
        times.overlay(&mut about);
        assert_eq!(about.accessed, Time(99 * SECOND));
        assert_eq!(times.to_tell(), [about.inode]);
        assert!(!times.read(InodeId(8), Time(99 * SECOND)), "the teller looks again");
        times.settle(about.inode);
        assert_eq!(times.waiting(about.inode), None);
        assert_eq!(times.to_tell(), [InodeId(8)]);
        times.settle(InodeId(8));
        assert!(times.to_tell().is_empty());
        assert!(times.read(InodeId(9), Time(99 * SECOND)), "the duty had ended");
    }
}
