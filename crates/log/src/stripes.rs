//! Stripes as things to list, verify, repair and delete: for cleaner, check and status.

use std::collections::BTreeSet;
use std::sync::Arc;

use bytes::Bytes;
use futures_util::future::join_all;
use protocol::address::LogAddress;
use protocol::checksum::block_checksums;
use protocol::fragment::{FragmentHeader, FragmentId, Part};
use protocol::id::{FenceEpoch, GroupId, LogId, RunNumber, StripeNumber, TargetId};
use protocol::maps::{LogState, Maps};
use protocol::storage::{Append, Durability, Room, StorageError, StorageRequest, StoredFragment};

use crate::gather::{Gathered, gather};
use crate::image::fragment_range;
use crate::seal::parities;
use crate::{Cluster, Damage, ReadError, Walk, fetch};

/// What the targets hold of one stripe.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct StripeState {
    /// The log.
    pub log: LogId,
    /// The stripe of it.
    pub number: StripeNumber,
    /// Its data bytes, as far as the answering targets tell.
    pub length: u32,
    /// Whether it has its parity, or needs none. An open stripe belongs to its writer or recoverer.
    pub ended: bool,
    /// The group in which it lies.
    pub group: GroupId,
    /// It lies beyond the length of its sealed log, or its log is forgotten: it means nothing, and may be deleted.
    pub cut_off: bool,
    /// Fragments that should be there and are not.
    pub missing: Vec<Damage>,
    /// What former members of the group hold of it, and what is left of it in runs in which it lies no more.
    pub astray: Vec<Stray>,
}

/// A fragment that lies where it was to lie before, in one generation.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Stray {
    /// On this target.
    pub target: TargetId,
    /// This one.
    pub id: FragmentId,
    /// As it was seen there.
    pub generation: u64,
}

/// Something wrong with a stripe.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Problem {
    /// A fragment is absent, or its target does not answer.
    Missing(Damage),
    /// Bytes do not match their checksums.
    Checksum(Damage),
    /// A parity fragment is not the parity of the data.
    Parity(Damage),
}

impl Problem {
    /// The fragment that is wrong.
    pub fn damage(&self) -> Damage {
        match self {
            Problem::Missing(damage) | Problem::Checksum(damage) | Problem::Parity(damage) => *damage,
        }
    }
}

/// What targets hold of one stripe.
pub(crate) type Held = Vec<(TargetId, StoredFragment)>;

/// All stripes of one log, or of all logs, in order, for who needs them all at once: a log is short, and what is stored is not.
pub async fn list(cluster: &Cluster, log: Option<LogId>) -> Vec<StripeState> {
    let (maps, mut states) = (cluster.maps(), Vec::new());
    let walk = match log {
        Some(log) => Walk::over(cluster, &maps, log),
        None => Walk::over_all(cluster, &maps),
    };
    walk.to_end(|state| states.push(state)).await;
    states
}

/// What is held of a stripe, as it says itself: it may be ended though nothing of its own says so, and what it lacks is so if
/// it is.
pub(crate) fn state_of(maps: &Maps, (log, number): (LogId, StripeNumber), held: &Held) -> Option<StripeState> {
    let (header, lengths) = shape_of(maps, (log, number), held)?;
    let length = total(&lengths);
    let ended = header.ended() || is_closed(maps, log, number);
    let cut_off = is_cut_off(maps, log, number);
    let missing = if cut_off { Vec::new() } else { missing(maps, header, &lengths, held) };
    let group = maps.groups.get(&header.group);
    let is_former = |target: &TargetId| group.is_some_and(|group| group.former.contains(target));
    // Where nothing is shown of the runs in which it lies now, what is left of it may be all there is.
    let is_laid_anew = !is_left(maps, log, &header.id);
    let stray = |&(target, ref found): &(TargetId, StoredFragment)| {
        let is_astray = is_former(&target) || (is_laid_anew && is_left(maps, log, &found.header.id));
        is_astray.then_some(Stray { target, id: found.header.id, generation: found.generation })
    };
    let astray = held.iter().filter_map(stray).collect();
    Some(StripeState { log, number, length, ended, group: header.group, cut_off, missing, astray })
}

fn total(lengths: &[u32]) -> u32 {
    lengths.iter().fold(0, |sum, length| sum.saturating_add(*length))
}

/// In which run a stripe lies: a header of that run, a parity's if there is one, and the lengths of its data fragments.
///
/// All runs have the same bytes, as far as they go. Of those that go farthest the one counts that lacks least, and among
/// equals the newest: an older run may have been left incomplete, and a newer one may have lost all its parity since. What lies
/// over a target that was found to be empty counts only where there is nothing else: it may be switched off at any time.
/// Readers look only where the layout says that the stripe may lie: what else is left of it is as safe as nothing.
fn shape_of<'a>(
    maps: &Maps,
    (log, number): (LogId, StripeNumber),
    held: &'a Held,
) -> Option<(&'a FragmentHeader, Vec<u32>)> {
    let end = match maps.logs.get(&log).map(|entry| entry.state) {
        Some(LogState::Sealed(length)) if length.stripe == number => length.offset,
        _ => u32::MAX,
    };
    let reach = |lengths: &[u32]| total(lengths).min(end);
    let mut runs: BTreeSet<RunNumber> = held.iter().map(|(_, found)| found.header.id.run).collect();
    let layout = maps.logs.get(&log).map_or(&[][..], |entry| &entry.layout);
    let covering = layout.iter().filter(|run| run.covers(number)).map(|run| run.number);
    let covering: BTreeSet<RunNumber> = covering.filter(|run| runs.contains(run)).collect();
    if !covering.is_empty() {
        runs = covering;
    }
    let shapes: Vec<_> = runs.into_iter().rev().filter_map(|run| shape_in(held, run)).collect();
    let farthest = shapes.iter().map(|(_, lengths)| reach(lengths)).max()?;
    let farthest = shapes.into_iter().filter(|(_, lengths)| reach(lengths) == farthest);
    farthest.min_by_key(|(header, lengths)| {
        (lies_over_empty(maps, header.group), missing(maps, header, lengths, held).len())
    })
}

/// Whether a group has a member on which nothing is that anybody needs: nothing over that group is, then.
fn lies_over_empty(maps: &Maps, group: GroupId) -> bool {
    maps.groups.get(&group).is_some_and(|group| group.targets.iter().any(|target| maps.has_nothing(*target)))
}

/// What the fragments of one run say. Where no parity is left, or there is none yet, the lengths are those of the data
/// that is there: when as much is lost as parity makes up for, no data fragment is.
fn shape_in(held: &Held, run: RunNumber) -> Option<(&FragmentHeader, Vec<u32>)> {
    let of_run = || held.iter().filter(move |(_, found)| found.header.id.run == run).map(|(_, found)| found);
    let header = &of_run().max_by_key(|found| found.header.ended())?.header;
    if !header.data_lengths.is_empty() {
        return Some((header, header.data_lengths.clone()));
    }
    let length =
        |index| of_run().filter(|found| found.header.id.part == Part::Data(index)).map(|found| found.length).max();
    Some((header, (0..header.geometry.data).map(|index| length(index).unwrap_or(0)).collect()))
}

/// Whether one of the group's targets did not say what data it holds, or may have lost some, and nobody else shows it. Where no
/// parity shows, data that is not shown may lie there: as it is, the stripe would pass for shorter, and parity for it, made
/// anew, would take the place of the right one. Who has nothing that is needed counts as heard (as `absence`, rule 1).
fn hides_data(maps: &Maps, header: &FragmentHeader, held: &Held, heard: &BTreeSet<TargetId>) -> bool {
    let FragmentHeader { id, geometry, .. } = header;
    let Some(group) = maps.groups.get(&header.group) else { return false };
    let member = |part| group.targets.get(geometry.member(id.stripe, part));
    let is_heard = |target: &TargetId| heard.contains(target) || maps.has_nothing(*target);
    // Where all who were to have parity have none, as much is lost as may be, and no data is.
    let is_all_lost = (0..geometry.parity).all(|at| member(Part::Parity(at)).is_some_and(is_heard));
    let has_all = |target: &TargetId| maps.is_whole_in(group, *target) || maps.has_nothing(*target) || is_all_lost;
    let tells = |target: &TargetId| is_heard(target) && !group.newcomers.contains(target) && has_all(target);
    let is_told = |part| member(part).is_some_and(tells);
    let is_shown = |part| held.iter().any(|(_, found)| found.header.id == FragmentId { part, ..*id });
    (0..geometry.data).map(Part::Data).any(|part| !is_told(part) && !is_shown(part))
}

/// Whether the stripe was laid anew in a later run than this fragment's. One that is not known may be newer than these maps.
pub(crate) fn is_left(maps: &Maps, log: LogId, id: &FragmentId) -> bool {
    let layout = maps.logs.get(&log).map_or(&[][..], |entry| &entry.layout);
    layout.iter().any(|run| run.number == id.run && !run.covers(id.stripe))
}

/// Whether no address can lie in the stripe: beyond a sealed length there is nothing, whatever targets hold (rule 23).
fn is_cut_off(maps: &Maps, log: LogId, number: StripeNumber) -> bool {
    match maps.logs.get(&log).map(|entry| entry.state) {
        Some(LogState::Sealed(length)) => number > length.stripe || (number == length.stripe && length.offset == 0),
        Some(LogState::Open(_) | LogState::Sealing(_)) => false,
        None => maps.is_forgotten(log),
    }
}

/// Whether a stripe is ended whatever its fragments say, for all parity may be lost or there be none: its log is sealed.
fn is_closed(maps: &Maps, log: LogId, number: StripeNumber) -> bool {
    let state = maps.logs.get(&log).map(|entry| entry.state);
    matches!(state, Some(LogState::Sealed(length)) if number <= length.stripe)
}

/// The fragments of an ended stripe that its targets lack.
fn missing(maps: &Maps, header: &FragmentHeader, lengths: &[u32], held: &Held) -> Vec<Damage> {
    let Some(group) = maps.groups.get(&header.group) else { return Vec::new() };
    let geometry = header.geometry;
    let data = (0..geometry.data)
        .filter(|&index| lengths.get(usize::from(index)).is_some_and(|&length| length > 0))
        .map(|index| (Part::Data(index), lengths[usize::from(index)]));
    let parity = (0..geometry.parity).map(|at| (Part::Parity(at), lengths.iter().copied().max().unwrap_or(0)));
    data.chain(parity)
        .filter_map(|(part, length)| {
            let id = FragmentId { part, ..header.id };
            let target = *group.targets.get(geometry.member(id.stripe, part))?;
            let there = |(at, found): &(TargetId, StoredFragment)| {
                *at == target && found.header.id == id && found.length >= length
            };
            (!held.iter().any(there)).then_some(Damage { id, target })
        })
        .collect()
}

/// Deletes stripes on all targets that answer; the others compare lists when they come back.
pub async fn delete(cluster: &Cluster, stripes: &[(LogId, StripeNumber)]) {
    let maps = cluster.maps();
    let asks = maps.present().map(|(target, _)| {
        let request = StorageRequest::Delete { stripes: stripes.to_vec() };
        cluster.ask(target, request)
    });
    join_all(asks).await;
}

/// One ended stripe, read whole.
struct Whole {
    maps: Arc<Maps>,
    header: FragmentHeader,
    lengths: Vec<u32>,
    held: Held,
    /// The targets that said what they hold of it.
    heard: BTreeSet<TargetId>,
    gathered: Gathered,
}

impl Whole {
    /// A stripe of an open log that shows no parity is its writer's, unless it is known to have `ended` with so many bytes.
    async fn read(
        cluster: &Cluster,
        (log, stripe): (LogId, StripeNumber),
        ended: Option<u32>,
    ) -> Result<Option<Whole>, ReadError> {
        let maps = cluster.maps();
        if is_cut_off(&maps, log, stripe) {
            return Ok(None);
        }
        let whole = maps.serving();
        let targets: Vec<_> = whole.map(|(target, _)| target).collect();
        let asks = targets.iter().map(|&target| fetch::held(cluster, target, log, (stripe, stripe)));
        let answers = join_all(asks).await;
        let heard: BTreeSet<TargetId> =
            targets.iter().zip(&answers).filter(|(_, answer)| answer.is_ok()).map(|(&target, _)| target).collect();
        let mut held: Held = Vec::new();
        for (&target, found) in targets.iter().zip(answers) {
            held.extend(found.unwrap_or_default().into_iter().map(|fragment| (target, fragment)));
        }
        // It may be all that is left of a deleted stripe, on a target that was away meanwhile: nobody reads it, and it need not
        // be whole.
        held.retain(|(_, found)| !is_left(&maps, log, &found.header.id));
        let Some((header, lengths)) = shape_of(&maps, (log, stripe), &held) else { return Ok(None) };
        let is_known = ended.map_or(is_closed(&maps, log, stripe), |length| length == total(&lengths));
        if !header.ended() && !is_known {
            return Ok(None);
        }
        if !header.ended() && hides_data(&maps, header, &held, &heard) {
            let address = LogAddress { log, stripe, offset: 0, length: 0 };
            return Err(ReadError::Unreadable { address, reason: "too few targets tell how long it is".into() });
        }
        let header = header.clone();
        let alike =
            |fragment: &FragmentHeader| (fragment.id.run, fragment.geometry) == (header.id.run, header.geometry);
        held.retain(|(_, fragment)| alike(&fragment.header));
        let gathered = gather(cluster, &held).await;
        Ok(Some(Whole { maps, header, lengths, held, heard, gathered }))
    }

    fn length(&self) -> u32 {
        total(&self.lengths)
    }

    fn problems(&self) -> Vec<Problem> {
        let missing = missing(&self.maps, &self.header, &self.lengths, &self.held).into_iter().map(Problem::Missing);
        let id = |part| FragmentId { part, ..self.header.id };
        let damaged = self.gathered.damaged.iter().map(|&(_, part, target)| {
            let damage = Damage { id: id(part), target };
            if self.gathered.unheard.contains(&target) { Problem::Missing(damage) } else { Problem::Checksum(damage) }
        });
        missing.chain(damaged).collect()
    }

    /// What lies where a fragment is wrong, in the generation that was read.
    fn generations(&self, damage: Damage) -> Vec<(FragmentId, u64)> {
        let wrong = |(at, found): &&(TargetId, StoredFragment)| (*at, found.header.id) == (damage.target, damage.id);
        self.held.iter().filter(wrong).map(|(_, found)| (damage.id, found.generation)).collect()
    }

    /// The bytes that the fragment `part` should have; `None` when too much is lost.
    fn content(&self, part: Part) -> Option<Vec<u8>> {
        let (geometry, length) = (self.header.geometry, self.length());
        match part {
            Part::Data(index) => {
                let range = fragment_range(geometry, index, length);
                self.gathered.image.has(&range).then(|| self.gathered.image.bytes(range).to_vec())
            }
            Part::Parity(at) => {
                let whole = self.gathered.image.has(&(0..length));
                whole.then(|| parities(geometry, &self.gathered.image, length).swap_remove(usize::from(at)))
            }
            Part::Copy { .. } => None,
        }
    }
}

/// Reads a whole stripe and says what is wrong with it. An open stripe, or one without parity, has nothing to compare.
pub async fn verify(cluster: &Cluster, log: LogId, stripe: StripeNumber) -> Result<Vec<Problem>, ReadError> {
    match Whole::read(cluster, (log, stripe), None).await? {
        Some(whole) => Ok(compare(cluster, &whole).await),
        None => Ok(Vec::new()),
    }
}

async fn compare(cluster: &Cluster, whole: &Whole) -> Vec<Problem> {
    let mut problems = whole.problems();
    let wrong: BTreeSet<_> = problems.iter().map(Problem::damage).collect();
    for (target, fragment) in &whole.held {
        let id = fragment.header.id;
        let damage = Damage { id, target: *target };
        if !fragment.header.ended()
            || wrong.contains(&damage)
            || wrong.iter().any(|bad| matches!(bad.id.part, Part::Data(_)))
        {
            continue;
        }
        let Ok(stored) = fetch::read_prefix(cluster, *target, id, fragment.length).await else { continue };
        if whole.content(id.part).is_some_and(|content| content[..] != stored[..]) {
            problems.push(Problem::Parity(damage));
        }
    }
    problems
}

/// What became of a stripe's missing and wrong fragments.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Repair {
    /// Made again.
    pub mended: usize,
    /// More is lost than parity makes up for.
    pub beyond: usize,
}

/// Makes the fragments of an ended stripe, which is `length` bytes long, that are missing or wrong again, on the targets that
/// should have them and answer. Open stripes belong to their writer.
pub async fn repair(cluster: &Cluster, log: LogId, stripe: StripeNumber, length: u32) -> Result<Repair, ReadError> {
    let whole = Whole::read(cluster, (log, stripe), Some(length)).await?;
    let Some(whole) = whole else { return Ok(Repair::default()) };
    let problems = compare(cluster, &whole).await;
    Ok(mend(cluster, &whole, problems).await)
}

/// The same of what is missing or does not read: parity that is there is taken for right.
pub async fn refill(cluster: &Cluster, log: LogId, stripe: StripeNumber, length: u32) -> Result<Repair, ReadError> {
    match Whole::read(cluster, (log, stripe), Some(length)).await? {
        Some(whole) => Ok(mend(cluster, &whole, whole.problems()).await),
        None => Ok(Repair::default()),
    }
}

async fn mend(cluster: &Cluster, whole: &Whole, problems: Vec<Problem>) -> Repair {
    let mut repair = Repair::default();
    let Some(fence) = epoch_of(&whole.maps, whole.header.id.log) else { return repair };
    for problem in problems {
        let damage = problem.damage();
        // Nothing is known to be wrong there: what it has may be right, and what is made here of the rest is not then.
        if !whole.heard.contains(&damage.target) || whole.gathered.unheard.contains(&damage.target) {
            continue;
        }
        let Some(content) = whole.content(damage.id.part) else {
            repair.beyond += 1;
            continue;
        };
        if !matches!(problem, Problem::Missing(_)) {
            // Only deleting makes way for right bytes. The stripe has k other fragments, or there would be no content. What
            // another one made anew meanwhile is of another generation, and stays.
            let fragments = whole.generations(damage);
            if cluster.ask(damage.target, StorageRequest::Discard { fragments }).await.is_err() {
                continue;
            }
        }
        if write(cluster, whole, damage, fence, content.into()).await {
            repair.mended += 1;
        }
    }
    repair
}

/// The epoch to repair with. A sealed log has no writer left who could be shut out, and who still takes himself for one is; in
/// one that is being sealed only its recoverer writes.
fn epoch_of(maps: &Maps, log: LogId) -> Option<FenceEpoch> {
    match maps.logs.get(&log)?.state {
        LogState::Open(epoch) => Some(epoch),
        LogState::Sealing(_) => None,
        LogState::Sealed(_) => Some(FenceEpoch::SEALED),
    }
}

async fn write(cluster: &Cluster, whole: &Whole, damage: Damage, fence: FenceEpoch, content: Bytes) -> bool {
    let ends = matches!(damage.id.part, Part::Parity(_));
    let data_lengths = if ends { whole.lengths.clone() } else { Vec::new() };
    let header = FragmentHeader { id: damage.id, data_lengths, ..whole.header.clone() };
    let stored = whole.held.iter().find(|(at, found)| *at == damage.target && found.header.id == damage.id);
    let checksums = block_checksums(&content);
    let mut append = Append {
        header,
        fence,
        offset: 0,
        parts: vec![content],
        checksums,
        durability: Durability::Disk,
        room: Room::Clean,
    };
    debug_assert!(stored.is_none_or(|(_, found)| found.length > 0), "an empty fragment is never stored");
    let request = |append| if ends { StorageRequest::Replace(append) } else { StorageRequest::Append(append) };
    match cluster.ask(damage.target, request(append.clone())).await {
        // It was sealed once more, by a registry that had been made anew from fragments.
        Err(StorageError::Fenced(higher)) if fence == FenceEpoch::SEALED => {
            append.fence = higher;
            cluster.ask(damage.target, request(append)).await.is_ok()
        }
        answer => answer.is_ok(),
    }
}

#[cfg(test)]
mod tests {
    use protocol::address::Position;
    use protocol::fragment::Geometry;
    use protocol::maps::{GroupEntry, LogEntry, Run, TargetEntry, Writer};

    use super::*;

    const GEOMETRY: Geometry = Geometry { data: 2, parity: 1, fragment_size: 4096 };

    /// A stripe that was laid over targets 0 to 2, and then over 1 to 3; one run has ended, and both cover it.
    fn maps() -> Maps {
        let group = |first: u32| GroupEntry::new((first..first + 3).map(TargetId).collect(), GEOMETRY, false);
        let run = |number, end| Run { end, ..Run::new(RunNumber(number), StripeNumber(0), vec![GroupId(number)]) };
        let (layout, state) = (vec![run(0, Some(StripeNumber(1))), run(1, None)], LogState::Open(FenceEpoch(1)));
        let log = LogEntry::new((1, 1), Writer::Client, layout, state);
        Maps {
            targets: (0..4).map(|id| (TargetId(id), TargetEntry::new(id, String::new()))).collect(),
            groups: [(GroupId(0), group(0)), (GroupId(1), group(1))].into(),
            logs: [(LogId(1), log)].into(),
            ..Maps::empty(1, 1)
        }
    }

    /// All fragments of the stripe, in both runs.
    fn held(maps: &Maps) -> Held {
        let fragment = |run: u32, part| {
            let id = FragmentId { log: LogId(1), stripe: StripeNumber(0), run: RunNumber(run), part };
            let header = FragmentHeader {
                id,
                group: GroupId(run),
                geometry: GEOMETRY,
                mark: Position::START,
                previous_end: 0,
                complete_below: StripeNumber(0),
                data_lengths: if matches!(part, Part::Parity(_)) { vec![4096, 4096] } else { Vec::new() },
            };
            let target = maps.groups[&GroupId(run)].targets[GEOMETRY.member(StripeNumber(0), part)];
            (target, StoredFragment { header, length: 4096, generation: 0 })
        };
        let parts = [Part::Data(0), Part::Data(1), Part::Parity(0)];
        [0, 1].iter().flat_map(|&run| parts.map(|part| fragment(run, part))).collect()
    }

    #[test]
    fn what_lies_over_an_empty_target_does_not_come_to_count_again() {
        let mut maps = maps();
        let mut held = held(&maps);
        let counts = |maps: &Maps, held: &Held| {
            let state = state_of(maps, (LogId(1), StripeNumber(0)), held).expect("it is held");
            (state.group, state.missing.len())
        };
        assert_eq!(counts(&maps, &held), (GroupId(1), 0), "the newer of equals");
        let lost = |id: &FragmentId| (id.run, id.part) == (RunNumber(1), Part::Data(0));
        held.retain(|(_, fragment)| !lost(&fragment.header.id));
        assert_eq!(counts(&maps, &held), (GroupId(0), 0), "the one that lacks less");
        maps.targets.get_mut(&TargetId(0)).expect("one of four").empty = true;
        assert_eq!(counts(&maps, &held), (GroupId(1), 1), "what the other lacks is made again");
        held.retain(|(_, fragment)| fragment.header.id.run == RunNumber(0));
        assert_eq!(counts(&maps, &held).0, GroupId(0), "there is nothing else");
    }
}
