//! File locks. Awaits: a waiting call is a future that nobody polls until the manager answers or a signal comes.

use futures_util::future::Abortable;
use protocol::file;

use super::{Call, Outcome};
use crate::operation::{Lock, LockFamily, LockKind, LockRequest};
use crate::{Errno, reply};

/// The last byte of a range that reaches to the end of the file, as the kernel says it.
const KERNEL_END: u64 = i64::MAX as u64;

impl Call {
    pub(super) async fn getlk(self, request: LockRequest) -> Outcome {
        let conflict = self.client().test_lock(self.inode, self.lock_meant(&request)).await?;
        Ok(reply::lock(self.unique, &conflict_shown(conflict, request.lock)))
    }

    pub(super) async fn setlk(self, request: LockRequest) -> Outcome {
        let lock = self.lock_meant(&request);
        if request.lock.kind == LockKind::Unlock {
            self.client().unlock(self.inode, lock).await?;
        } else {
            self.note_holder(&request);
            self.client().lock(self.inode, lock).await?;
            self.note_holder(&request);
        }
        Ok(self.done())
    }

    pub(super) async fn setlkw(self, request: LockRequest) -> Outcome {
        if request.lock.kind == LockKind::Unlock {
            return self.setlk(request).await;
        }
        self.note_holder(&request);
        let waits = &self.shared.waits;
        loop {
            let registration = waits.begin(self.unique);
            let waiting = self.client().lock_waiting(self.caller.uid, self.inode, self.lock_meant(&request));
            // Dropping what waits is how the client learns that nobody does any more.
            let outcome = Abortable::new(waiting, registration).await;
            waits.end(self.unique);
            if let Ok(locked) = outcome {
                locked?;
                self.note_holder(&request);
                return Ok(self.done());
            }
            let Some(taken) = waits.leave_one() else { return Err(Errno::EINTR) };
            taken.await;
        }
    }

    /// Before it asks, for a close beside that may find the lock granted; and again behind the answer, for a close in between
    /// took the note, and perhaps not the lock.
    fn note_holder(&self, request: &LockRequest) {
        self.shared.holders.note(self.inode, request.owner, request.handle);
    }

    fn lock_meant(&self, request: &LockRequest) -> file::Lock {
        let Lock { start, end, kind, pid } = request.lock;
        file::Lock {
            family: match request.family {
                LockFamily::Posix => file::LockFamily::Posix,
                LockFamily::Flock => file::LockFamily::Flock,
            },
            owner: self.client().lock_owner(request.owner.0),
            pid,
            exclusive: kind == LockKind::Write,
            start,
            last: if end >= KERNEL_END { u64::MAX } else { end },
        }
    }
}

/// The lock in the way, in the kernel's words; without one, what was asked about, as unlocked.
fn conflict_shown(conflict: Option<file::Lock>, asked: Lock) -> Lock {
    match conflict {
        Some(held) => Lock {
            start: held.start,
            end: held.last.min(KERNEL_END),
            kind: if held.exclusive { LockKind::Write } else { LockKind::Read },
            pid: held.pid,
        },
        None => Lock { kind: LockKind::Unlock, ..asked },
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_lock_in_the_way_is_shown_with_its_holder() {
        let asked = Lock { start: 5, end: 9, kind: LockKind::Write, pid: 1 };
        assert_eq!(conflict_shown(None, asked), Lock { kind: LockKind::Unlock, ..asked });
        let held = file::Lock {
            family: file::LockFamily::Posix,
            owner: file::LockOwner { node: 1, owner: 2 },
            pid: 42,
            exclusive: false,
            start: 0,
            last: u64::MAX,
        };
        let shown = Lock { start: 0, end: i64::MAX as u64, kind: LockKind::Read, pid: 42 };
        assert_eq!(conflict_shown(Some(held), asked), shown);
    }
}
