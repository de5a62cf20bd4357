//! What plans ask of targets: how much room there is, and how fast the link of this machine is, for which it reads for a moment
//! what lies on other machines. Nothing is changed. This file awaits; what came is judged by [`Gauge`].

use std::collections::BTreeMap;
use std::pin::pin;
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use futures_util::future::{join_all, select};
use host::Moment;
use log::Cluster;
use protocol::fragment::FragmentId;
use protocol::id::TargetId;
use protocol::maps::Maps;
use protocol::storage::{StorageReply, StorageRequest, TargetStat};

/// It reads for so long, and no more than so many bytes: what others do meanwhile waits for part of them.
const MOMENT: Duration = Duration::from_secs(1);
const BYTES_MAX: u64 = 64 << 20;
/// From fewer bytes than this nobody can tell.
const BYTES_MIN: u64 = 1 << 20;
/// It reads in pieces, so many at once of each target, and of so many targets.
const PIECE: u32 = 256 << 10;
const AT_ONCE: usize = 2;
const TARGETS_MAX: usize = 16;
/// So many fragments of each are read, again and again where they are few.
const FRAGMENTS: u32 = 64;

/// What came, and when.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct Gauge {
    first: Option<Moment>,
    last: Option<Moment>,
    /// What came after the first piece: that was asked for while nothing was under way.
    bytes: u64,
}

impl Gauge {
    fn note(&mut self, now: Moment, bytes: u64) {
        if self.first.is_none() {
            self.first = Some(now);
        } else {
            self.bytes += bytes;
        }
        self.last = Some(now);
    }

    /// Bytes a second, if enough came.
    fn rate(&self) -> Option<u64> {
        let seconds = self.last?.since(self.first?).as_secs_f64();
        (self.bytes >= BYTES_MIN && seconds > 0.0).then(|| (self.bytes as f64 / seconds) as u64)
    }
}

/// What the targets that answer say of themselves.
pub(crate) async fn stats(cluster: &Cluster, maps: &Maps) -> BTreeMap<TargetId, TargetStat> {
    let asked = maps.present().map(async |(target, _)| match cluster.ask(target, StorageRequest::Stat).await {
        Ok(StorageReply::Stat(stat)) => Some((target, stat)),
        _ => None,
    });
    join_all(asked).await.into_iter().flatten().collect()
}

/// How many bytes a second come to this machine from all others together, if that can be told.
pub(crate) async fn link(cluster: &Cluster) -> Option<u64> {
    let (maps, host) = (cluster.maps(), cluster.host());
    let others = maps.serving().filter(|(_, entry)| entry.node != host.node().0).map(|(target, _)| target);
    let others: Vec<TargetId> = others.take(TARGETS_MAX).collect();
    let (gauge, until) = (Mutex::new(Gauge::default()), host.now() + MOMENT);
    let note = |bytes: u64| {
        let mut gauge = gauge.lock().unwrap_or_else(PoisonError::into_inner);
        gauge.note(host.now(), bytes);
        gauge.bytes < BYTES_MAX
    };
    let goes_on = |bytes: u64| note(bytes) && host.now() < until;
    let reading = join_all(others.into_iter().map(|target| read_all(cluster, target, &goes_on)));
    // Who does not answer is not waited for.
    select(pin!(reading), pin!(host.sleep(MOMENT + MOMENT))).await;
    let gauge = *gauge.lock().unwrap_or_else(PoisonError::into_inner);
    gauge.rate()
}

/// Reads what lies on a target for as long as it is to go on.
async fn read_all(cluster: &Cluster, target: TargetId, goes_on: &impl Fn(u64) -> bool) {
    let list = StorageRequest::List { after: None, limit: FRAGMENTS };
    let Ok(StorageReply::Fragments(page)) = cluster.ask(target, list).await else { return };
    let pieces: Vec<(FragmentId, u32, u32)> = page
        .iter()
        .flat_map(|fragment| {
            let starts = (0..fragment.length).step_by(PIECE as usize);
            starts.map(|offset| (fragment.header.id, offset, PIECE.min(fragment.length - offset)))
        })
        .collect();
    let one_after_another = async |lane: usize| {
        for &(id, offset, length) in pieces.iter().skip(lane).step_by(AT_ONCE).cycle() {
            match cluster.ask(target, StorageRequest::Read { id, offset, length }).await {
                Ok(StorageReply::Blocks { bytes, .. }) if goes_on(bytes.len() as u64) => {}
                _ => return,
            }
        }
    };
    join_all((0..AT_ONCE).map(one_after_another)).await;
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_link_is_as_fast_as_what_comes_after_the_first_piece() {
        let (mut gauge, start) = (Gauge::default(), Moment::default());
        assert_eq!(gauge.rate(), None);
        // The first one took long: it had to be found, and nothing else was under way.
        for tenth in 10..=20 {
            gauge.note(start + Duration::from_millis(100 * tenth), 1 << 20);
        }
        assert_eq!(gauge.rate(), Some(10 << 20));
    }

    #[test]
    fn from_little_nobody_can_tell() {
        let (mut gauge, start) = (Gauge::default(), Moment::default());
        gauge.note(start, BYTES_MIN);
        assert_eq!(gauge.rate(), None, "one piece takes no time");
        gauge.note(start + Duration::from_millis(1), BYTES_MIN - 1);
        assert_eq!(gauge.rate(), None);
        gauge.note(start + Duration::from_millis(2), 1);
        assert!(gauge.rate().is_some());
        let mut at_once = Gauge::default();
        (0..9).for_each(|_| at_once.note(start, BYTES_MIN));
        assert_eq!(at_once.rate(), None, "a clock that stood still");
    }
}
