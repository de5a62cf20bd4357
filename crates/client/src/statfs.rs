//! `statfs`. Awaits.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use futures_util::future::join_all;
use host::{Moment, NodeId};
use protocol::id::TargetId;
use protocol::manager::{Answer, ManagerRequest};
use protocol::storage::{Durability, StorageReply, StorageRequest, TargetStat};

use crate::ClientError;
use crate::client::{Client, Inner};
use crate::space::{Room, Settling, Statfs, margin, usable};

/// An inode needs about so much room, in bytes: what `statfs` makes of free room.
const INODE_BYTES: u64 = 512;
/// How long room that was given back is awaited, and how often it is looked for.
const ROOM_WAIT: Duration = Duration::from_secs(10);
const ROOM_INTERVAL: Duration = Duration::from_millis(100);

impl Client {
    /// `statfs`: the truth after redundancy, of the fullest targets (DESIGN §4).
    pub async fn statfs(&self) -> Result<Statfs, ClientError> {
        let (stats, stored) = self.0.stats().await;
        let maps = self.0.cluster.maps();
        let Room { total, free, available } = Room::of(&maps, &stats, self.0.budget.under_way_since(stored));
        let inodes = self.0.inodes().await;
        Ok(Statfs {
            bytes_total: total,
            bytes_free: free,
            bytes_available: available,
            inodes_total: inodes + available / INODE_BYTES,
            inodes_free: available / INODE_BYTES,
        })
    }
}

impl Inner {
    /// What the targets that answer tell of themselves, and how many bytes of those that ever went to the log they had by then
    /// for sure.
    pub(crate) async fn stats(&self) -> (BTreeMap<TargetId, TargetStat>, u64) {
        self.settle_room();
        let stored = self.budget.stored_so_far();
        let maps = self.cluster.maps();
        let alive = maps.serving();
        let calls = alive.map(async |(target, _)| (target, self.cluster.ask(target, StorageRequest::Stat).await));
        let mut stats = BTreeMap::new();
        for (target, answer) in join_all(calls).await {
            if let Ok(StorageReply::Stat(stat)) = answer {
                stats.insert(target, stat);
            }
        }
        (stats, stored)
    }

    /// Looks whether there is room for `bytes`, and waits a while for what is on its way, and for what removed files gave back:
    /// their stripes are deleted some moments later (DESIGN §8), and a program that makes room and takes it again is not
    /// to notice.
    pub(crate) async fn await_room(&self, bytes: u64) -> bool {
        let until = self.room_until();
        let _awaited = self.budget.awaited();
        loop {
            self.refresh_space().await;
            if self.budget.fits(bytes) {
                return true;
            }
            if !self.may_settle(bytes, until).await && !self.may_room_come(bytes, until).await {
                return false;
            }
            self.host.sleep(ROOM_INTERVAL).await;
        }
    }

    /// Whether it makes sense to wait for what is on its way, if room for `bytes` is wanted; not beyond `until`.
    async fn may_settle(&self, bytes: u64, until: Moment) -> bool {
        if self.is_stopped() || self.host.now() >= until {
            return false;
        }
        match self.budget.may_settle(bytes) {
            Settling::Never => false,
            Settling::WrittenOut => true,
            // Of what is told to no manager, for its file was cut or removed since, nobody else takes care.
            Settling::Committed => self.log.commit(self.log.end(), Durability::Disk).await.is_ok(),
        }
    }

    /// Until when room is awaited from now on.
    pub(crate) fn room_until(&self) -> Moment {
        self.host.now() + ROOM_WAIT
    }

    /// After bytes that were taken in could not be stored: whether another attempt makes sense, once it does. Targets may be
    /// full meanwhile, for what was written takes more of their room than itself; that is no reason to refuse it as long
    /// as a cleaner makes room.
    pub(crate) async fn room_comes(&self, until: Moment) -> bool {
        let may_come = self.may_room_come(0, until).await;
        if may_come {
            self.host.sleep(ROOM_INTERVAL).await;
        }
        may_come
    }

    /// Whether it makes sense to wait for room for `bytes` more; not beyond `until`.
    async fn may_room_come(&self, bytes: u64, until: Moment) -> bool {
        let now = self.host.now();
        if self.is_stopped() || !self.budget.may_come(bytes, self.in_use().await, now) {
            return false;
        }
        if now >= until {
            self.budget.did_not_come(now);
        }
        now < until
    }

    /// How many bytes of files the targets could hold in all, and how many live, as far as managers answer.
    async fn in_use(&self) -> (u64, u64) {
        let (maps, (stats, _)) = (self.cluster.maps(), self.stats().await);
        let room = |stat: &TargetStat| stat.bytes_total.saturating_sub(stat.bytes_reserved);
        (usable(&maps, &stats, room).saturating_sub(margin(&maps)), self.census().await.1)
    }

    /// How many inodes there are, as far as managers answer.
    async fn inodes(&self) -> u64 {
        self.census().await.0
    }

    /// How many inodes and live bytes of files there are, as far as managers answer.
    async fn census(&self) -> (u64, u64) {
        let managers: BTreeSet<NodeId> = self.cluster.maps().slots.values().map(|slot| NodeId(slot.node)).collect();
        let calls = managers.into_iter().map(|manager| self.ask_node(manager, ManagerRequest::Census));
        let counts = join_all(calls).await.into_iter().map(|answer| match answer {
            Ok(Ok(reply)) => match reply.answer {
                Answer::Census(inodes, bytes) => (inodes, bytes),
                _ => (0, 0),
            },
            _ => (0, 0),
        });
        counts.fold((0, 0), |(inodes, bytes), (more_inodes, more_bytes)| (inodes + more_inodes, bytes + more_bytes))
    }
}
