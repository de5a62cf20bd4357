//! The copies of one node, and what is written to them. A write that was begun goes on to its end, however late that is: until
//! then nothing else is written to its copy.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use futures_util::FutureExt;
use futures_util::stream::{FuturesUnordered, StreamExt};
use host::DiskError;
use openraft::AsyncRuntime;
use protocol::id::TargetId;

use crate::runtime::{HostRuntime, Outcome, in_time, is_within};
use crate::{Replica, ReplicaError};

/// How long a write of a copy may take where enough others are written.
const LATE_PATIENCE: Duration = Duration::from_millis(500);
/// How long it may take where they are not.
const WRITE_PATIENCE: Duration = Duration::from_secs(8);

/// The copies of one node.
pub(crate) struct Copies {
    copies: Vec<(TargetId, Copy)>,
    /// Those that failed since the last checkpoint, with the reason.
    failed: BTreeMap<TargetId, String>,
    /// Those that do not count any more, until they are taken back.
    aside: Vec<(TargetId, Copy)>,
}

enum Copy {
    Ready(Replica),
    Written(Outcome<Wrote>),
    /// Its write was cut short, and nobody knows where.
    Lost,
}

/// A copy, and what became of a write to it.
type Wrote = (Replica, Result<(), ReplicaError>);

/// How many copies a write reached.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Reached {
    pub stored: usize,
    /// Their disks had no room for it.
    pub full: usize,
    /// They are still being written.
    pub late: usize,
}

impl Copies {
    pub(crate) fn new(replicas: Vec<(TargetId, Replica)>) -> Copies {
        let copies = replicas.into_iter().map(|(target, replica)| (target, Copy::Ready(replica))).collect();
        Copies { copies, failed: BTreeMap::new(), aside: Vec::new() }
    }

    pub(crate) fn targets(&self) -> impl Iterator<Item = TargetId> {
        self.copies.iter().map(|(target, _)| *target)
    }

    /// The latest generation that any has, or that somebody was about to write there.
    pub(crate) fn latest(&self) -> u64 {
        let of = |(_, copy): &(TargetId, Copy)| if let Copy::Ready(replica) = copy { replica.latest() } else { 0 };
        self.copies.iter().map(of).max().unwrap_or(0)
    }

    /// Those that have not failed since the last checkpoint.
    pub(crate) fn sound(&self) -> impl Iterator<Item = TargetId> {
        self.targets().filter(|target| !self.failed.contains_key(target))
    }

    pub(crate) fn retain(&mut self, stays: impl Fn(&TargetId) -> bool) {
        self.copies.retain(|(target, _)| stays(target));
        self.aside.retain(|(target, _)| stays(target));
        self.failed.retain(|target, _| stays(target));
    }

    /// Goes on with these alone.
    pub(crate) fn set_aside(&mut self, left: &BTreeSet<TargetId>) {
        let (stay, go): (Vec<_>, Vec<_>) =
            std::mem::take(&mut self.copies).into_iter().partition(|(target, _)| left.contains(target));
        self.copies = stay;
        self.aside.extend(go);
        self.failed.retain(|target, _| left.contains(target));
    }

    /// Those that were set aside, are not being written, and serve.
    pub(crate) fn back(&mut self, mut serves: impl FnMut(TargetId) -> Option<()>) -> Vec<(TargetId, Replica)> {
        see_ends(&mut self.aside);
        let mut back = Vec::new();
        for (target, copy) in std::mem::take(&mut self.aside) {
            match copy {
                Copy::Ready(replica) if serves(target).is_some() => back.push((target, replica)),
                Copy::Lost => {}
                copy => self.aside.push((target, copy)),
            }
        }
        back
    }

    /// One more copy, or another in the place of a target's. What it holds is worth nothing before the next checkpoint.
    pub(crate) fn take(&mut self, target: TargetId, replica: Replica) {
        self.retain(|other| *other != target);
        self.copies.push((target, Copy::Ready(replica)));
    }

    /// Why those that failed did.
    pub(crate) fn reasons(&self) -> Vec<String> {
        self.failed.values().cloned().collect()
    }

    /// Whether copies have come to the end of writes that nobody waited for any more. They are behind until the next
    /// checkpoint.
    pub(crate) fn have_come_back(&mut self) -> bool {
        see_ends(&mut self.copies)
    }

    /// Notes on all that are not being written that a checkpoint of this generation is going to be.
    pub(crate) async fn claim(&mut self, generation: u64, needed: usize) -> Reached {
        self.begin_anew();
        self.write(needed, |mut replica| async move {
            let wrote = replica.claim(generation).await;
            (replica, wrote)
        })
        .await
    }

    /// Those that failed are tried again, if they are not being written.
    fn begin_anew(&mut self) {
        self.have_come_back();
        let Copies { copies, failed, .. } = self;
        let is_written =
            |target: &TargetId| copies.iter().any(|(of, copy)| of == target && matches!(copy, Copy::Written(_)));
        failed.retain(|target, _| is_written(target));
    }

    /// Writes a checkpoint to all that are not being written.
    pub(crate) async fn checkpoint(&mut self, write: Checkpoint, needed: usize) -> Reached {
        self.begin_anew();
        self.write(needed, |mut replica| {
            let Checkpoint { generation, before, body } = write.clone();
            async move {
                let wrote = replica.checkpoint(generation, before, &body).await;
                (replica, wrote)
            }
        })
        .await
    }

    /// Appends a record to all that failed not.
    pub(crate) async fn append(&mut self, body: bytes::Bytes, needed: usize) -> Reached {
        self.write(needed, |mut replica| {
            let body = body.clone();
            async move {
                let wrote = replica.append(&body).await;
                (replica, wrote)
            }
        })
        .await
    }

    async fn write<F>(&mut self, needed: usize, write: impl Fn(Replica) -> F) -> Reached
    where
        F: Future<Output = Wrote> + Send + 'static,
    {
        let mut wrote = Vec::new();
        let Copies { copies, failed, .. } = self;
        let living = copies.iter_mut().filter(|(target, _)| !failed.contains_key(target));
        let mut ending = FuturesUnordered::new();
        for (target, copy) in living {
            match std::mem::replace(copy, Copy::Lost) {
                Copy::Ready(replica) if is_within() => *copy = Copy::Written(HostRuntime::spawn(write(replica))),
                // Nothing else goes on yet.
                Copy::Ready(replica) => {
                    let (replica, result) = write(replica).await;
                    *copy = Copy::Ready(replica);
                    wrote.push((*target, result));
                }
                other => *copy = other,
            }
            ending.push(async { (*target, copy.end().await) });
        }
        let is_stored =
            |wrote: &[(TargetId, Result<(), ReplicaError>)]| wrote.iter().filter(|(_, it)| it.is_ok()).count();
        let mut gather = async |wrote: &mut Vec<_>| {
            while let Some((target, ended)) = ending.next().await {
                wrote.extend(ended.map(|result| (target, result)));
            }
        };
        if in_time(LATE_PATIENCE, gather(&mut wrote)).await.is_none() && is_stored(&wrote) < needed {
            in_time(WRITE_PATIENCE - LATE_PATIENCE, gather(&mut wrote)).await;
        }
        drop(ending);
        self.reached(wrote)
    }

    fn reached(&mut self, wrote: Vec<(TargetId, Result<(), ReplicaError>)>) -> Reached {
        let mut reached = Reached::default();
        for (target, result) in wrote {
            reached.stored += usize::from(result.is_ok());
            reached.full += usize::from(matches!(result, Err(ReplicaError::Disk(DiskError::Full))));
            if let Err(error) = result {
                self.failed.insert(target, error.to_string());
            }
        }
        for (target, copy) in &self.copies {
            if let Copy::Written(_) = copy {
                reached.late += 1;
                self.failed.insert(*target, ReplicaError::Hung.to_string());
            }
        }
        reached
    }
}

/// Sees which of these have come to the end of their writes, and whether any is as good as before.
fn see_ends(copies: &mut [(TargetId, Copy)]) -> bool {
    let mut is_any = false;
    for (_, copy) in copies {
        if let Copy::Written(outcome) = copy
            && let Some(wrote) = outcome.now_or_never()
        {
            *copy = wrote.map_or(Copy::Lost, |(replica, _)| Copy::Ready(replica));
            is_any |= matches!(copy, Copy::Ready(_));
        }
    }
    is_any
}

impl Copy {
    /// Waits for the end of its write, if it is being written.
    async fn end(&mut self) -> Option<Result<(), ReplicaError>> {
        let Copy::Written(outcome) = self else { return None };
        let (copy, result) = match outcome.await {
            Ok((replica, result)) => (Copy::Ready(replica), result),
            Err(_) => (Copy::Lost, Err(ReplicaError::Damaged)),
        };
        *self = copy;
        Some(result)
    }
}

/// A checkpoint to be written.
#[derive(Clone)]
pub(crate) struct Checkpoint {
    pub generation: u64,
    /// How many generations the one before is back, and how many records that had.
    pub before: (u32, u32),
    pub body: bytes::Bytes,
}
