//! A look at all stripes: what is dead, and what may be cleaned. This file awaits; `standing` decides.

use std::collections::{BTreeMap, BTreeSet};

use futures_util::future::join_all;
use log::stripes::StripeState;
use log::{Cluster, Walk};
use protocol::address::Position;
use protocol::fragment::FragmentHeader;
use protocol::id::{GroupId, LogId, StripeNumber, TargetId};
use protocol::maps::{LogState, Maps, TargetState};
use protocol::storage::{StorageReply, StorageRequest, TargetStat};

use crate::managers::{Managers, Unheard};
use crate::policy::{Space, Stripe, bytes_occupied};
use crate::standing::{Edge, Standing, edge_of, standing};

/// In how many stripes before the newest a log is asked how far it is: more than are in flight at once.
const NEWEST: u64 = 4;

/// What a stripe is and holds.
#[derive(Clone, Copy, Debug)]
pub struct Found {
    /// Which.
    pub stripe: Stripe,
    /// Bytes in it that live.
    pub bytes_live: u64,
    /// The data bytes for which its deletion makes room.
    pub bytes_occupied: u64,
    /// Where it lies.
    pub group: GroupId,
}

/// What one look found.
#[derive(Debug, Default)]
pub struct Survey {
    /// All stripes, in order.
    pub stripes: Vec<Stripe>,
    /// Those in which nothing lives.
    pub dead: Vec<Stripe>,
    /// Those with file data in which something lives.
    pub alive: Vec<Found>,
    /// Bytes on the targets that these take,
    pub bytes_judged: f64,
    /// and that cleaning them would give back, at the most.
    pub bytes_dead: f64,
    /// The data bytes of stripes that nobody can judge yet: being written, or behind a mark.
    pub bytes_busy: u64,
    /// The data bytes of all stripes that are not dead, by the group in which they lie.
    pub bytes_in: BTreeMap<GroupId, u64>,
}

impl Survey {
    /// Bytes on the targets that cleaning would give back if what nobody can judge yet is as dead as the rest.
    pub fn bytes_dead_about(&self) -> f64 {
        let dead = if self.bytes_judged > 0.0 { self.bytes_dead / self.bytes_judged } else { 1.0 };
        self.bytes_dead + dead * self.bytes_busy as f64
    }
}

/// Looks at all stripes. `own` is the log that this cleaner writes, and its mark, which its fragments may not yet tell.
pub async fn survey(
    cluster: &Cluster,
    managers: &Managers,
    maps: &Maps,
    own: Option<(LogId, Position)>,
) -> Result<Survey, Unheard> {
    let listed = listed(cluster).await;
    let mut edges = edges(cluster, maps, listed.iter().map(|listed| listed.stripe)).await;
    if let Some((log, mark)) = own
        && let Some(edge) = edges.get_mut(&log)
    {
        edge.mark = edge.mark.max(mark);
    }
    let mut data = Vec::new();
    let mut journals = Vec::new();
    let mut survey = Survey { stripes: listed.iter().map(|listed| listed.stripe).collect(), ..Survey::default() };
    for one in &listed {
        match standing(maps, one.stripe, edges.get(&one.stripe.0)) {
            Standing::Busy => survey.bytes_busy += one.bytes_occupied(maps),
            Standing::Data => data.push(one.stripe),
            Standing::Manager => journals.push(one.stripe),
            Standing::Forgotten => survey.dead.push(one.stripe),
        }
    }
    let asked = managers.live(&data).await?;
    // Both are in the order of stripes.
    let mut judged = listed.iter();
    for (stripe, bytes_live) in data.into_iter().zip(asked) {
        let Some(one) = judged.find(|one| one.stripe == stripe) else { continue };
        let (group, bytes_occupied) = (one.group, one.bytes_occupied(maps));
        match bytes_live {
            0 => survey.dead.push(stripe),
            // Of its log some slot has not seen all deltas.
            u64::MAX => survey.bytes_busy += bytes_occupied,
            _ => {
                let found = Found { stripe, bytes_live, bytes_occupied, group };
                let dead = found.bytes_occupied.saturating_sub(bytes_live);
                let raw = raw_per_data(maps, found.group);
                survey.bytes_judged += found.bytes_occupied as f64 * raw;
                survey.bytes_dead += dead as f64 * raw;
                survey.alive.push(found);
            }
        }
    }
    survey.dead.extend(managers.dead(&journals).await?);
    let dead: BTreeSet<Stripe> = survey.dead.iter().copied().collect();
    for one in listed.iter().filter(|one| !dead.contains(&one.stripe)) {
        *survey.bytes_in.entry(one.group).or_default() += u64::from(one.length);
    }
    Ok(survey)
}

/// Bytes on the targets for each data byte.
fn raw_per_data(maps: &Maps, group: GroupId) -> f64 {
    maps.groups.get(&group).map_or(1.0, |group| group.geometry.width() as f64 / f64::from(group.geometry.data.max(1)))
}

/// What is kept of each stripe while managers are asked: there are millions.
struct Listed {
    stripe: Stripe,
    length: u32,
    group: GroupId,
}

impl Listed {
    /// The data bytes for which its deletion makes room.
    fn bytes_occupied(&self, maps: &Maps) -> u64 {
        let geometry = maps.groups.get(&self.group).map(|group| group.geometry);
        geometry.map_or(u64::from(self.length), |shape| bytes_occupied(shape, self.length))
    }
}

/// All stripes, in order.
async fn listed(cluster: &Cluster) -> Vec<Listed> {
    let (maps, mut listed) = (cluster.maps(), Vec::new());
    let note = |StripeState { log, number, length, group, .. }: StripeState| {
        listed.push(Listed { stripe: (log, number), length, group });
    };
    Walk::over_all(cluster, &maps).to_end(note).await;
    listed
}

/// How far each open log among `stripes` has come.
async fn edges(cluster: &Cluster, maps: &Maps, stripes: impl Iterator<Item = Stripe>) -> BTreeMap<LogId, Edge> {
    let open = |log: &LogId| maps.logs.get(log).is_some_and(|entry| matches!(entry.state, LogState::Open(_)));
    // In order of numbers, so that the newest stripe of each log comes last.
    let newest: BTreeMap<LogId, StripeNumber> = stripes.filter(|(log, _)| open(log)).collect();
    if newest.is_empty() {
        return BTreeMap::new();
    }
    let answers = join_all(maps.present().map(|(target, _)| tails_on_disk(cluster, target, &newest))).await;
    let mut tails: BTreeMap<LogId, Vec<Tail>> = newest.into_keys().map(|log| (log, Vec::new())).collect();
    for (log, tail) in answers.into_iter().flatten().flatten() {
        tails.entry(log).or_default().push(tail);
    }
    tails.into_iter().map(|(log, tails)| (log, edge_of(tails))).collect()
}

/// The headers of a log's newest fragments on one target.
type Tail = Vec<FragmentHeader>;

/// What a target has of the newest stripes of each log, once that is on its disk: what is deleted because of it is gone at
/// once, and a loss of power must not take back the reason. `None` where it does not answer, or may have lost some meanwhile.
async fn tails_on_disk(
    cluster: &Cluster,
    target: TargetId,
    newest: &BTreeMap<LogId, StripeNumber>,
) -> Option<Vec<(LogId, Tail)>> {
    let Ok(StorageReply::Stat(stat)) = cluster.ask(target, StorageRequest::Stat).await else { return None };
    let asks = newest.iter().map(|(&log, newest)| {
        let from = StripeNumber(newest.0.saturating_sub(NEWEST));
        cluster.ask(target, StorageRequest::Tail { log, from })
    });
    let answers = join_all(asks).await;
    let tails = newest.keys().zip(answers).filter_map(|(&log, answer)| match answer {
        Ok(StorageReply::Fragments(fragments)) => Some((log, fragments.into_iter().map(|it| it.header).collect())),
        _ => None,
    });
    match cluster.ask(target, StorageRequest::Sync).await {
        Ok(StorageReply::Synced { incarnation }) if incarnation == stat.incarnation => Some(tails.collect()),
        _ => None,
    }
}

/// Whether no target that may come back holds anything of `log`. Unlike a listing, this knows who was silent.
pub async fn is_gone(cluster: &Cluster, maps: &Maps, log: LogId) -> bool {
    let kept = maps.serving();
    let request = StorageRequest::Tail { log, from: StripeNumber(0) };
    let answers = join_all(kept.map(|(target, _)| cluster.ask(target, request.clone()))).await;
    answers.iter().all(|answer| matches!(answer, Ok(StorageReply::Fragments(list)) if list.is_empty()))
}

/// The targets that take new stripes. A full one that is being emptied must not keep room from being made of it.
fn taking(maps: &Maps) -> Vec<TargetId> {
    let is_written = |target| maps.groups.values().any(|group| group.current && group.targets.contains(&target));
    let whole = maps.present().filter(|(_, entry)| entry.state == TargetState::Whole);
    whole.filter(|&(target, entry)| !entry.drains() || is_written(target)).map(|(target, _)| target).collect()
}

/// How full the targets are that take new stripes. `None`: none answers.
pub async fn space(cluster: &Cluster, maps: &Maps) -> Option<Space> {
    let answers = join_all(taking(maps).into_iter().map(|target| cluster.ask(target, StorageRequest::Stat))).await;
    let stats = answers.into_iter().filter_map(|answer| match answer {
        Ok(StorageReply::Stat(stat)) => Some(stat),
        _ => None,
    });
    stats.map(of_target).reduce(|one, other| Space {
        free: one.free.min(other.free),
        bytes_used: one.bytes_used + other.bytes_used,
        bytes_total: one.bytes_total + other.bytes_total,
        bytes_free_min: one.bytes_free_min.min(other.bytes_free_min),
    })
}

fn of_target(stat: TargetStat) -> Space {
    let for_clients = stat.bytes_free.saturating_sub(stat.bytes_reserved);
    Space {
        free: for_clients as f64 / stat.bytes_total.max(1) as f64,
        bytes_used: stat.bytes_total.saturating_sub(stat.bytes_free),
        bytes_total: stat.bytes_total,
        bytes_free_min: stat.bytes_free,
    }
}

#[cfg(test)]
mod tests {
    use protocol::fragment::Geometry;

    use protocol::maps::{Drain, GroupEntry, TargetEntry};

    use super::*;

    #[test]
    fn what_nobody_can_judge_is_as_dead_as_the_rest() {
        let unjudged = Survey { bytes_busy: 100, ..Survey::default() };
        assert_eq!(unjudged.bytes_dead_about(), 100.0, "as far as anybody knows");
        let survey = Survey { bytes_judged: 1000.0, bytes_dead: 50.0, ..unjudged };
        assert_eq!(survey.bytes_dead_about(), 55.0);
    }

    #[test]
    fn room_is_asked_of_those_that_take_new_stripes() {
        let geometry = Geometry { data: 1, parity: 1, fragment_size: 4096 };
        let targets = vec![TargetId(0), TargetId(1)];
        let mut maps = Maps {
            fragment_size: 4096,
            targets: (0..3).map(|id| (TargetId(id), TargetEntry::new(id, String::new()))).collect(),
            groups: [(GroupId(0), GroupEntry::new(targets, geometry, true))].into(),
            ..Maps::empty(1, 1)
        };
        assert_eq!(taking(&maps), [TargetId(0), TargetId(1), TargetId(2)]);
        for target in [TargetId(1), TargetId(2)] {
            maps.targets.get_mut(&target).expect("one of three").drain = Drain::Careful;
        }
        assert_eq!(taking(&maps), [TargetId(0), TargetId(1)], "redundancy still needs one of them");
    }
}
