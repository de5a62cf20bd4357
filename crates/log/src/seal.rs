//! Taking a log from its writer and fixing its length, in five steps (DESIGN §3, fencing and sealing; rules 16 to 22).
//! This file awaits; `image`, `decode` and `reform` decide.
//!
//! 1. Claim the log: the registry's answer has the layout, which only this claimant changes from now on.
//! 2. Fence at least k of the k+m targets of every group of every unfinished run, not counting those whose disks are gone that
//!    were there while it was written: an empty one tells of nothing. Where fewer than k are left, all of these.
//! 3. Read the tail from the fenced targets: record by record, as long as each can be read. When all have told what they hold,
//!    the claim must stand still: it is void if one of them got an empty disk meanwhile.
//! 4. Make it as redundant as can be, in one run whose k+m targets all answer.
//! 5. Record the length.
//!
//! Whatever refuses on the way, nothing is lost by beginning again with a new claim.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use bytes::Bytes;
use event_listener::Event;
use futures_util::future::join_all;
use protocol::address::Position;
use protocol::checksum::{BLOCK_SIZE, block_checksums};
use protocol::erasure;
use protocol::fragment::{FragmentHeader, FragmentId, Part};
use protocol::id::{FenceEpoch, LogId, StripeNumber, TargetId};
use protocol::maps::{LogState, Maps, Run, TargetState};
use protocol::registry::{RegistryError, RegistryReply, RegistryRequest};
use protocol::storage::{Append, Durability, Room, StorageError, StorageReply, StorageRequest, StoredFragment};

use crate::gather::{Gathered, gather};
use crate::image::{Image, fragment_range};
use crate::lay::Group;
use crate::reform::{Need, Reformed, reform};
use crate::sender::groups_of;
use crate::{Cluster, SealError, fetch};

/// How often a claim that came a moment too late is tried again.
const CLAIMS_MAX: usize = 8;

/// How often, and how long after, a target that was fenced and then did not give what it holds is asked again.
const READS_AGAIN: usize = 3;
const READ_PAUSE: Duration = Duration::from_millis(50);

type Held = BTreeMap<StripeNumber, Vec<(TargetId, StoredFragment)>>;

/// Takes the log from its writer, dead or not, and fixes its length. A log that is sealed already just tells it.
pub(crate) async fn seal(cluster: &Cluster, log: LogId) -> Result<Position, SealError> {
    let _turn = cluster.sealing().turn(log).await;
    let mut outcome = Err(SealError::Lost);
    for new_run in [false, true] {
        let claim = match Claim::make(cluster, log).await? {
            Claimed::Sealed(length) => return Ok(length),
            Claimed::Mine(claim) => claim,
        };
        match claim.finish(new_run).await {
            // A fragment of the run that would have been completed is damaged: appends cannot mend it.
            Err(Refused::Damaged) => outcome = Err(SealError::Unavailable("a new run was damaged at once".into())),
            Err(Refused::Because(error)) => return Err(error),
            Ok(length) => return Ok(length),
        }
    }
    outcome
}

/// Whether as many targets answer as a seal needs. It is asked before a claim is made again that was vain: another recoverer
/// may reach more, and a claim would void what it does.
pub(crate) async fn can_be_fenced(cluster: &Cluster, log: LogId) -> bool {
    let maps = cluster.maps();
    let Some(entry) = maps.logs.get(&log) else { return true };
    let witnesses = witnesses(&maps, &entry.layout);
    let targets: BTreeSet<TargetId> = witnesses.iter().flat_map(|of_group| &of_group.targets).copied().collect();
    let answers = join_all(targets.iter().map(|&target| cluster.ask(target, StorageRequest::Stat))).await;
    let heard: BTreeSet<TargetId> =
        targets.iter().zip(answers).filter(|(_, answer)| answer.is_ok()).map(|(&target, _)| target).collect();
    witnesses.iter().all(|of_group| of_group.missed(|target| heard.contains(target)).is_none())
}

/// Those of a group's targets that know what was written over it in one run.
struct Witnesses {
    targets: Vec<TargetId>,
    /// So many of them are needed.
    needed: usize,
}

/// The witnesses of all runs that are not finished.
fn witnesses(maps: &Maps, layout: &[Run]) -> Vec<Witnesses> {
    let of_group = |group: Group, run: &Run| {
        let targets: Vec<TargetId> = group.targets.into_iter().filter(|target| !run.gone.contains(target)).collect();
        Witnesses { needed: targets.len().min(usize::from(group.geometry.data)), targets }
    };
    let unfinished = layout.iter().filter(|run| run.end.is_none());
    let groups = unfinished.flat_map(|run| groups_of(maps, run).into_iter().flatten().map(move |group| (group, run)));
    groups.map(|(group, run)| of_group(group, run)).collect()
}

impl Witnesses {
    /// Those that are not heard, if too few are.
    fn missed(&self, is_heard: impl Fn(&TargetId) -> bool) -> Option<BTreeSet<TargetId>> {
        let missed: BTreeSet<TargetId> = self.targets.iter().filter(|target| !is_heard(target)).copied().collect();
        (self.targets.len() - missed.len() < self.needed).then_some(missed)
    }
}

/// Whose turn it is to seal a log on this node: a claim voids the one before, and all that was done under it.
#[derive(Debug, Default)]
pub(crate) struct Turns {
    under_way: Mutex<BTreeSet<LogId>>,
    ended: Event,
}

/// Nobody else on this node seals the log until this is dropped.
struct Turn<'a> {
    turns: &'a Turns,
    log: LogId,
}

impl Turns {
    async fn turn(&self, log: LogId) -> Turn<'_> {
        loop {
            let ended = self.ended.listen();
            if self.logs().insert(log) {
                return Turn { turns: self, log };
            }
            ended.await;
        }
    }

    fn logs(&self) -> MutexGuard<'_, BTreeSet<LogId>> {
        self.under_way.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Drop for Turn<'_> {
    fn drop(&mut self) {
        self.turns.logs().remove(&self.log);
        self.turns.ended.notify(usize::MAX);
    }
}

/// What came of a claim.
enum Claimed<'a> {
    Mine(Claim<'a>),
    /// The log is sealed already.
    Sealed(Position),
}

/// Why a claim did not end in a sealed log.
enum Refused {
    Damaged,
    Because(SealError),
}

impl From<SealError> for Refused {
    fn from(error: SealError) -> Self {
        Refused::Because(error)
    }
}

/// A log that this recoverer may seal.
struct Claim<'a> {
    cluster: &'a Cluster,
    log: LogId,
    epoch: FenceEpoch,
    maps: Arc<Maps>,
}

/// The targets that let nobody but this claimant write, and what they know.
struct FencedTargets {
    /// With their incarnations.
    incarnations: BTreeMap<TargetId, u64>,
    /// Below which stripe all are complete, as the writer told any of them.
    complete_below: StripeNumber,
}

/// What is written of one stripe.
struct Whole<'a> {
    number: StripeNumber,
    length: u32,
    previous_end: u32,
    gathered: &'a Gathered,
    held: &'a [(TargetId, StoredFragment)],
}

/// What is there of the stripes not known to be complete.
struct Tail {
    held: Held,
    /// The first of them.
    from: StripeNumber,
    /// The targets that told what they hold.
    answered: BTreeMap<TargetId, u64>,
}

/// Under which run, and with which promises, the tail is written again.
struct Target {
    run: Run,
    groups: Vec<Group>,
    tail: StripeNumber,
    mark: Position,
}

impl<'a> Claim<'a> {
    /// Step 1.
    async fn make(cluster: &'a Cluster, log: LogId) -> Result<Claimed<'a>, SealError> {
        let mut first = None;
        for _ in 0..CLAIMS_MAX {
            let maps = cluster.refresh().await.map_err(|error| unavailable(&error))?;
            let entry = maps.logs.get(&log).ok_or(SealError::Unknown(log))?;
            if let LogState::Sealed(length) = entry.state {
                return Ok(Claimed::Sealed(length));
            }
            // Somebody else has just claimed it: to claim it from that one would only void what it does.
            if *first.get_or_insert(entry.state) != entry.state {
                return Err(SealError::Lost);
            }
            let request = RegistryRequest::Claim { log, version: entry.version };
            match cluster.registry(request).await {
                Ok(RegistryReply::Log(_, epoch, maps)) => {
                    return Ok(Claimed::Mine(Claim { cluster, log, epoch, maps }));
                }
                Ok(_) => return Err(SealError::Unavailable("the registry answered something else".into())),
                Err(RegistryError::Lost) => {}
                Err(error) => return Err(unavailable(&error)),
            }
        }
        Err(SealError::Lost)
    }

    /// Steps 2 to 5.
    async fn finish(mut self, new_run: bool) -> Result<Position, Refused> {
        let fenced = self.fence().await?;
        let Tail { held, from: tail, answered } = self.tail(&fenced).await?;
        self.stands().await?;
        let fenced = fenced.incarnations;
        let target = self.target(&fenced, &held, tail, new_run).await?;
        let length = self.rewrite(&target, &held, &answered).await?;
        self.make_durable(&target, &fenced).await?;
        let request = RegistryRequest::Seal { log: self.log, epoch: self.epoch, length, tail };
        match self.cluster.registry(request).await {
            Ok(_) => Ok(length),
            Err(RegistryError::Lost) => Err(SealError::Lost.into()),
            Err(error) => Err(unavailable(&error).into()),
        }
    }

    fn layout(&self) -> Result<&[Run], SealError> {
        Ok(&self.maps.logs.get(&self.log).ok_or(SealError::Unknown(self.log))?.layout)
    }

    /// The groups of all runs that are not finished.
    fn groups(&self) -> Result<Vec<Group>, SealError> {
        let unfinished = self.layout()?.iter().filter(|run| run.end.is_none());
        let groups: Option<Vec<_>> = unfinished.map(|run| groups_of(&self.maps, run)).collect();
        Ok(groups.ok_or_else(|| SealError::Unavailable("a group of the log is unknown".into()))?.concat())
    }

    /// Step 2.
    async fn fence(&self) -> Result<FencedTargets, SealError> {
        let targets: BTreeSet<_> = self.groups()?.into_iter().flat_map(|group| group.targets).collect();
        let (log, epoch) = (self.log, self.epoch);
        let asks = targets.iter().map(|&target| async move {
            let stat = self.cluster.ask(target, StorageRequest::Stat).await?;
            match (stat, self.cluster.ask(target, StorageRequest::Fence { log, epoch }).await?) {
                (StorageReply::Stat(stat), StorageReply::Fence { complete_below }) => {
                    Ok((stat.incarnation, complete_below))
                }
                _ => Err(StorageError::Failed("it answers something else".into())),
            }
        });
        let (mut incarnations, mut complete_below) = (BTreeMap::new(), StripeNumber(0));
        for (&target, answer) in targets.iter().zip(join_all(asks).await) {
            match answer {
                Ok((incarnation, below)) => {
                    incarnations.insert(target, incarnation);
                    complete_below = complete_below.max(below);
                }
                Err(StorageError::Fenced(_)) => return Err(SealError::Lost),
                Err(_) => {}
            }
        }
        self.enough(&incarnations)?;
        Ok(FencedTargets { incarnations, complete_below })
    }

    /// Whether nobody has claimed the log since, nor got an empty disk that this claim would count.
    async fn stands(&self) -> Result<(), SealError> {
        let maps = self.cluster.newest().await.map_err(|error| unavailable(&error))?;
        match maps.logs.get(&self.log).map(|entry| entry.state) {
            Some(LogState::Sealing(epoch)) if epoch == self.epoch => Ok(()),
            _ => Err(SealError::Lost),
        }
    }

    /// With too few targets of a group that know what was written there is no sealing: wait for targets.
    fn enough(&self, fenced: &BTreeMap<TargetId, u64>) -> Result<(), SealError> {
        let too_few = witnesses(&self.maps, self.layout()?)
            .into_iter()
            .find_map(|of_group| of_group.missed(|target| fenced.contains_key(target)));
        let named = |missed: BTreeSet<TargetId>| missed.into_iter().map(|target| self.maps.called(target)).collect();
        too_few.map_or(Ok(()), |missed| Err(SealError::Awaits(named(missed))))
    }

    /// Step 3, first half: what the fenced targets hold of the stripes not known to be complete, and the first of them.
    async fn tail(&self, fenced: &FencedTargets) -> Result<Tail, SealError> {
        let last = self.layout()?.last().ok_or(SealError::Unknown(self.log))?;
        let (log, from) = (self.log, last.from.max(fenced.complete_below));
        let fenced = &fenced.incarnations;
        // Nobody else writes here: what comes page by page is what was there at once.
        let answers = join_all(fenced.keys().map(|&target| fetch::tail(self.cluster, target, log, from))).await;
        let unfinished: BTreeSet<_> =
            self.layout()?.iter().filter(|run| run.end.is_none()).map(|run| run.number).collect();
        let (mut held, mut tail, mut answered) = (Held::new(), from, BTreeMap::new());
        for ((&target, &incarnation), answer) in fenced.iter().zip(answers) {
            let Some(fragments) = answer else { continue };
            answered.insert(target, incarnation);
            for fragment in fragments {
                tail = tail.max(fragment.header.complete_below);
                if unfinished.contains(&fragment.header.id.run) {
                    held.entry(fragment.header.id.stripe).or_default().push((target, fragment));
                }
            }
        }
        self.enough(&answered)?;
        Ok(Tail { held: held.split_off(&tail), from: tail, answered })
    }

    /// The run in which the tail is completed: the last one if all its targets answer, else a new one (rule 20).
    async fn target(
        &mut self,
        fenced: &BTreeMap<TargetId, u64>,
        held: &Held,
        tail: StripeNumber,
        new_run: bool,
    ) -> Result<Target, SealError> {
        let mark = held.values().flatten().map(|(_, fragment)| fragment.header.mark).max().unwrap_or(Position::START);
        let run = self.layout()?.last().ok_or(SealError::Unknown(self.log))?.clone();
        let groups = groups_of(&self.maps, &run).ok_or_else(|| SealError::Unavailable("unknown group".into()))?;
        let answers = |group: &Group| group.targets.iter().all(|target| fenced.contains_key(target));
        if !new_run && groups.iter().all(answers) {
            return Ok(Target { run, groups, tail, mark });
        }
        let capacity = held
            .values()
            .flatten()
            .map(|(_, fragment)| fragment.header.geometry.stripe_capacity())
            .chain(groups.iter().map(|group| group.geometry.stripe_capacity()))
            .max()
            .unwrap_or(0);
        let need = Need { geometry: groups[0].geometry, capacity, parity: self.maps.parity, parity_min: 0 };
        let ids = self.reform(&groups[0].targets, need).await?;
        let version = self.maps.logs.get(&self.log).ok_or(SealError::Unknown(self.log))?.version;
        let request = RegistryRequest::AddRun { log: self.log, version, epoch: self.epoch, from: tail, groups: ids };
        self.maps = self.maps_of(request).await?;
        let run = self.layout()?.last().ok_or(SealError::Unknown(self.log))?.clone();
        let groups = groups_of(&self.maps, &run).ok_or_else(|| SealError::Unavailable("unknown group".into()))?;
        Ok(Target { run, groups, tail, mark })
    }

    async fn reform(&self, old: &[TargetId], need: Need) -> Result<Vec<protocol::id::GroupId>, SealError> {
        let whole = self.maps.targets.iter().filter(|(_, entry)| entry.state == TargetState::Whole);
        let targets: Vec<_> = whole.map(|(&id, _)| id).collect();
        let stats = join_all(targets.iter().map(|&target| self.cluster.ask(target, StorageRequest::Stat))).await;
        let live = targets.iter().zip(stats).filter(|(_, stat)| stat.is_ok()).map(|(&target, _)| target).collect();
        let few = || SealError::Unavailable("too few targets answer to hold the tail".into());
        match reform(&self.maps, &live, old, need).ok_or_else(few)? {
            Reformed::Known(groups) => Ok(groups),
            Reformed::New(group) => match self.cluster.registry(RegistryRequest::FormGroup(group)).await {
                Ok(RegistryReply::Group(id, _)) => Ok(vec![id]),
                Ok(_) => Err(SealError::Unavailable("the registry formed no group".into())),
                Err(error) => Err(unavailable(&error)),
            },
        }
    }

    async fn maps_of(&self, request: RegistryRequest) -> Result<Arc<Maps>, SealError> {
        match self.cluster.registry(request).await {
            Ok(RegistryReply::Maps(maps)) => Ok(maps),
            Ok(_) => Err(SealError::Unavailable("the registry answered something else".into())),
            Err(RegistryError::Lost) => Err(SealError::Lost),
            Err(error) => Err(unavailable(&error)),
        }
    }

    /// Steps 3 and 4, stripe by stripe: reads what there is, decides where it ends, writes it again. The length.
    /// What a target holds and does not give now counts as what a target holds that was not fenced: where too few are left,
    /// it may be all that there is of what was acknowledged.
    async fn rewrite(
        &self,
        target: &Target,
        held: &Held,
        answered: &BTreeMap<TargetId, u64>,
    ) -> Result<Position, Refused> {
        let mut number = target.tail;
        let mut previous_end = previous_end_of(held, number).unwrap_or(0);
        let mut given_up = BTreeSet::new();
        loop {
            let Some(fragments) = held.get(&number) else { return Ok(behind(number, previous_end)) };
            // Only a header of the next stripe says where this one ended (rule 19).
            let next = StripeNumber(number.0 + 1);
            let gathered = self.gather(fragments, previous_end_of(held, next), &mut given_up).await;
            let heard = answered.iter().filter(|(target, _)| !gathered.silent.contains(target));
            self.enough(&heard.map(|(&target, &incarnation)| (target, incarnation)).collect())?;
            let ended = previous_end_of(held, next).filter(|&end| gathered.image.prefix() >= end);
            let length = ended.unwrap_or_else(|| gathered.image.records_end(self.log, number));
            if length == 0 {
                return Ok(behind(number, previous_end));
            }
            let whole = Whole { number, length, previous_end, gathered: &gathered, held: fragments };
            self.write(target, &whole).await?;
            if ended.is_none() {
                return Ok(Position::new(number, length));
            }
            (number, previous_end) = (next, length);
        }
    }

    /// What can be read of a stripe that ends at `end`, if that is known. Who was fenced and does not give what it holds is
    /// asked again, until it is given up: its fragment may be one that another has lost with its power.
    async fn gather(
        &self,
        fragments: &[(TargetId, StoredFragment)],
        end: Option<u32>,
        given_up: &mut BTreeSet<TargetId>,
    ) -> Gathered {
        let mut gathered = gather(self.cluster, fragments).await;
        for _ in 0..READS_AGAIN {
            let is_whole = end.is_some_and(|end| gathered.image.prefix() >= end);
            if is_whole || gathered.silent.is_subset(given_up) {
                return gathered;
            }
            self.cluster.host().sleep(READ_PAUSE).await;
            gathered = gather(self.cluster, fragments).await;
        }
        given_up.extend(gathered.silent.iter().copied());
        gathered
    }

    /// Makes one stripe complete in the target run: data first, then parity, all under this claim's epoch.
    async fn write(&self, target: &Target, whole: &Whole<'_>) -> Result<(), Refused> {
        let group = &target.groups[(whole.number.0 % target.groups.len() as u64) as usize];
        let geometry = group.geometry;
        if whole.length > geometry.stripe_size() {
            return Err(Refused::Damaged);
        }
        let mut appends = Vec::new();
        for index in 0..geometry.data {
            let range = fragment_range(geometry, index, whole.length);
            let part = Part::Data(index);
            if whole.gathered.damaged.iter().any(|&(run, bad, _)| run == target.run.number && bad == part) {
                return Err(Refused::Damaged);
            }
            let is_it = |fragment: &StoredFragment| {
                fragment.header.id.run == target.run.number && fragment.header.id.part == part
            };
            let stored = whole.held.iter().find(|(_, fragment)| is_it(fragment)).map_or(0, |(_, found)| found.length);
            if stored < range.end - range.start {
                let missing = &whole.gathered.image;
                appends.push((part, self.append(target, whole, part, rest(missing, range, stored))));
            }
        }
        self.send(group, whole.number, appends).await?;
        let parity = parities(geometry, &whole.gathered.image, whole.length);
        let replaces = parity.into_iter().enumerate().map(|(at, bytes)| {
            let part = Part::Parity(at as u8);
            let checksums = block_checksums(&bytes);
            (part, self.append(target, whole, part, (0, Bytes::from(bytes), checksums)))
        });
        Ok(self.send(group, whole.number, replaces.collect()).await?)
    }

    fn append(&self, target: &Target, whole: &Whole<'_>, part: Part, rest: (u32, Bytes, Vec<u32>)) -> Append {
        let group = &target.groups[(whole.number.0 % target.groups.len() as u64) as usize];
        let ends = matches!(part, Part::Parity(_));
        let header = FragmentHeader {
            id: FragmentId { log: self.log, stripe: whole.number, run: target.run.number, part },
            group: group.id,
            geometry: group.geometry,
            mark: target.mark,
            previous_end: whole.previous_end,
            complete_below: target.tail,
            data_lengths: if ends { group.geometry.data_lengths(whole.length) } else { Vec::new() },
        };
        let (offset, bytes, checksums) = rest;
        let (fence, room, durability) = (self.epoch, Room::Clean, Durability::Disk);
        Append { header, fence, offset, parts: vec![bytes], checksums, durability, room }
    }

    async fn send(&self, group: &Group, stripe: StripeNumber, appends: Vec<(Part, Append)>) -> Result<(), SealError> {
        let asks = appends.into_iter().map(|(part, append)| {
            let target = group.targets[group.geometry.member(stripe, part)];
            let request = match part {
                Part::Parity(_) => StorageRequest::Replace(append),
                Part::Data(_) | Part::Copy { .. } => StorageRequest::Append(append),
            };
            self.cluster.ask(target, request)
        });
        for answer in join_all(asks).await {
            match answer {
                Ok(_) => {}
                Err(StorageError::Fenced(_)) => return Err(SealError::Lost),
                Err(error) => return Err(SealError::Unavailable(error.to_string())),
            }
        }
        Ok(())
    }

    /// What was there before may rest in caches: syncs it, and makes sure that no target restarted meanwhile.
    async fn make_durable(&self, target: &Target, fenced: &BTreeMap<TargetId, u64>) -> Result<(), SealError> {
        let targets: BTreeSet<_> = target.groups.iter().flat_map(|group| group.targets.iter().copied()).collect();
        let syncs = targets.iter().map(|&target| self.cluster.ask(target, StorageRequest::Sync));
        for (target, answer) in targets.iter().zip(join_all(syncs).await) {
            match answer {
                Ok(StorageReply::Synced { incarnation }) if fenced.get(target).is_none_or(|&it| it == incarnation) => {}
                Ok(_) => return Err(SealError::Unavailable("a target restarted while the log was sealed".into())),
                Err(error) => return Err(SealError::Unavailable(error.to_string())),
            }
        }
        Ok(())
    }
}

fn unavailable(error: &RegistryError) -> SealError {
    SealError::Unavailable(error.to_string())
}

/// The place behind the last byte before `number`.
fn behind(number: StripeNumber, previous_end: u32) -> Position {
    match number.0.checked_sub(1) {
        Some(previous) if previous_end > 0 => Position::new(StripeNumber(previous), previous_end),
        _ => Position::new(number, 0),
    }
}

/// Where stripe `next` − 1 ended, as any header of `next` says.
fn previous_end_of(held: &Held, next: StripeNumber) -> Option<u32> {
    held.get(&next)?.first().map(|(_, fragment)| fragment.header.previous_end)
}

/// What a data fragment that occupies `range` of its stripe lacks behind its `stored` bytes, with the checksums of the
/// blocks that it touches.
fn rest(image: &Image, range: std::ops::Range<u32>, stored: u32) -> (u32, Bytes, Vec<u32>) {
    let bytes = Bytes::copy_from_slice(image.bytes(range.start + stored..range.end));
    let block = stored as usize / BLOCK_SIZE * BLOCK_SIZE;
    let checksums = block_checksums(image.bytes(range.start + block as u32..range.end));
    (stored, bytes, checksums)
}

/// The parity of a stripe's bytes up to `length`.
pub(crate) fn parities(geometry: protocol::fragment::Geometry, image: &Image, length: u32) -> Vec<Vec<u8>> {
    let size = length.min(geometry.fragment_size) as usize;
    let mut parities = vec![vec![0; size]; usize::from(geometry.parity)];
    if parities.is_empty() {
        return parities;
    }
    let mut slices: Vec<&mut [u8]> = parities.iter_mut().map(|parity| &mut parity[..]).collect();
    for index in 0..geometry.data {
        let range = fragment_range(geometry, index, length);
        erasure::accumulate(&mut slices, index, 0, image.bytes(range));
    }
    parities
}
