//! Bytes by log address. A healthy read is one call to one target, and returns a part of what storage gave.

use std::collections::{BTreeMap, BTreeSet};
use std::ops::Range;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError, Weak};
use std::time::Duration;

use bytes::{Bytes, BytesMut};
use futures_util::future::{join, join_all, try_join};
use protocol::address::LogAddress;
use protocol::erasure::{Survivor, reconstruct};
use protocol::fragment::{FragmentId, Part};
use protocol::id::{LogId, RunNumber, StripeNumber, TargetId};
use protocol::maps::{GroupEntry, LogState, Maps, TargetEntry};
use protocol::storage::StoredFragment;

use crate::absence::{self, Told};
use crate::cluster::NEWEST_PATIENCE;
use crate::decode::{self, Plan};
use crate::detour::{self, Costs, Detour, Ways};
use crate::fetch::{self, Refusal};
use crate::sender::Shared;
use crate::turns::{Turn, Turns};
use crate::{Cluster, LogWriter, ReadError};

/// How long the newest maps are waited for where targets are late, too.
const LATE_PATIENCE: Duration = Duration::from_millis(500);

/// Reads any log. Clones share the local writers, and count together.
#[derive(Clone, Debug)]
pub struct LogReader {
    cluster: Cluster,
    inner: Arc<Inner>,
}

#[derive(Default)]
struct Inner {
    writers: Mutex<BTreeMap<LogId, Weak<Shared>>>,
    decoded: AtomicU64,
    gone_around: AtomicU64,
    turns: Arc<Turns>,
}

impl std::fmt::Debug for Inner {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Inner")
    }
}

/// A fragment that a target should hold and does not, or holds wrong.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Damage {
    /// Which fragment.
    pub id: FragmentId,
    /// On which target.
    pub target: TargetId,
}

/// One stripe in one run.
#[derive(Clone, Copy)]
struct Place<'a> {
    log: LogId,
    stripe: StripeNumber,
    run: RunNumber,
    group: &'a GroupEntry,
}

impl Place<'_> {
    fn id(&self, part: Part) -> FragmentId {
        FragmentId { log: self.log, stripe: self.stripe, run: self.run, part }
    }

    fn target(&self, part: Part) -> TargetId {
        self.group.targets[self.group.geometry.member(self.stripe, part)]
    }
}

/// A range of one of a stripe's data fragments.
type Piece = (u8, Range<u32>);
/// One that was read.
type Had = (Piece, Bytes);

/// Whether somebody did not answer who should.
struct Late {
    maps: Arc<Maps>,
    is_any: AtomicBool,
}

impl Late {
    fn new(maps: Arc<Maps>) -> Late {
        Late { maps, is_any: AtomicBool::new(false) }
    }

    fn note(&self, target: TargetId, refusal: &Refusal) {
        let should_answer = self.maps.targets.get(&target).is_some_and(TargetEntry::serves);
        if should_answer && matches!(refusal, Refusal::Silent(_)) {
            self.is_any.store(true, Ordering::Relaxed);
        }
    }

    fn is_any(&self) -> bool {
        self.is_any.load(Ordering::Relaxed)
    }
}

/// Why one run did not give the bytes.
struct Miss {
    /// It was deleted from this run, or never lay there.
    gone: bool,
    /// Targets that should answer did not.
    late: bool,
    reason: String,
}

impl LogReader {
    /// A reader of all logs of the cluster.
    pub fn new(cluster: Cluster) -> LogReader {
        LogReader { cluster, inner: Arc::default() }
    }

    /// The same, for what many wait for: see [`Cluster::urgently`].
    pub fn urgently(&self) -> LogReader {
        LogReader { cluster: self.cluster.urgently(), inner: self.inner.clone() }
    }

    /// The cluster that it reads from.
    pub fn cluster(&self) -> &Cluster {
        &self.cluster
    }

    /// From now on bytes that are still in `writer`'s memory are read from there.
    pub fn attach(&self, writer: &LogWriter) {
        let mut writers = self.inner.writers.lock().unwrap_or_else(PoisonError::into_inner);
        writers.retain(|_, handle| handle.strong_count() > 0);
        writers.insert(writer.log(), writer.downgrade());
    }

    /// The bytes at `address`, verified; decoded from the other fragments where a target fails.
    pub async fn read(&self, address: LogAddress) -> Result<Bytes, ReadError> {
        if address.length == 0 {
            return Ok(Bytes::new());
        }
        if address.offset.checked_add(address.length).is_none() {
            return Err(ReadError::Beyond(address));
        }
        if let Some(bytes) = self.peek(address) {
            return Ok(bytes);
        }
        let maps = self.cluster.maps();
        match self.read_with(&maps, address).await {
            Ok(bytes) => Ok(bytes),
            Err(error) => Box::pin(self.read_with_newer(&maps, address, error)).await,
        }
    }

    /// The layout may have changed: once more, with fresh maps. By maps that may be behind nobody knows that something was
    /// deleted, or cannot be read: it may lie in a run that they do not show. Where targets are late it is asked again anyway,
    /// so the newest maps are not waited for long.
    async fn read_with_newer(&self, maps: &Maps, address: LogAddress, error: ReadError) -> Result<Bytes, ReadError> {
        let (mut seen, mut error) = (maps.epoch, error);
        if error.may_pass()
            && let Ok(fresh) = self.cluster.refresh().await
            && fresh.epoch > seen
        {
            match self.read_with(&fresh, address).await {
                Ok(bytes) => return Ok(bytes),
                Err(still) => (seen, error) = (fresh.epoch, still),
            }
        }
        let patience = match &error {
            // What was sealed has its length for ever.
            ReadError::Beyond(_) => return Err(error),
            late if late.may_pass() => LATE_PATIENCE,
            _ => NEWEST_PATIENCE,
        };
        match self.cluster.newest_within(patience).await {
            Ok(newest) if newest.epoch > seen => self.read_with(&newest, address).await,
            Err(unknown) if !error.may_pass() => Err(ReadError::Unconfirmed { address, reason: unknown.to_string() }),
            _ => Err(error),
        }
    }

    /// The beginning of `address` that one target holds: all of it, most often. Reading such parts by themselves asks their
    /// targets at once, and copies nothing.
    pub fn on_one_target(&self, address: LogAddress) -> LogAddress {
        let maps = self.cluster.maps();
        let run = maps.logs.get(&address.log).and_then(|log| log.run(address.stripe));
        let Some(group) = run.and_then(|run| maps.groups.get(&run.group(address.stripe))) else { return address };
        let left = group.geometry.fragment_size - address.offset % group.geometry.fragment_size;
        address.part(0, address.length.min(left))
    }

    /// How much of its stripe lies behind `address`, in bytes, where who wants that too, and asks for `asked` bytes at once,
    /// had better ask for all of it ([`LogReader::detours`]): some of it is away, or on other machines. Else zero.
    pub fn rest_of_stripe(&self, address: LogAddress, asked: u64) -> u32 {
        detour::rest_of_stripe(&self.cluster.maps(), address, asked, &|target| self.cluster.is_here(target))
    }

    /// The ways to each of `pieces`, all of which are wanted, and each of which one target holds; `None` where the maps do not
    /// say which.
    pub fn ways(&self, pieces: &[LogAddress]) -> Vec<Option<Ways>> {
        let is_here = |target| self.cluster.is_here(target);
        let costs = Costs { under_way: self.inner.turns.loads(), is_here: &is_here };
        detour::ways(&self.cluster.maps(), pieces, costs)
    }

    /// Waits until it is a piece's turn to be asked for that will be wanted soon. Who has a turn asks by its way, and keeps
    /// it until the target has answered.
    pub async fn turn(&self, ways: Ways) -> Turn {
        self.inner.turns.wait(ways).await
    }

    /// Somebody waits for what lies at `address`: if that waits for its turn, it has it now.
    pub fn hurry(&self, address: LogAddress) {
        self.inner.turns.hurry(address);
    }

    /// The piece that a turn's detour leads to, of a parity and of what `others` gives: [`Detour::others`], in order. `None`
    /// where it cannot be had so.
    pub async fn read_around(
        &self,
        turn: Turn,
        others: impl Future<Output = Result<Vec<Bytes>, ReadError>>,
    ) -> Option<Bytes> {
        let detour = turn.detour()?.clone();
        let others = async { others.await.map_err(drop) };
        let parity = async {
            let parity = self.parity_of(&detour).await.ok_or(());
            drop(turn);
            parity
        };
        let (others, parity) = try_join(others, parity).await.ok()?;
        let bytes = detour.compute(&others, &parity);
        self.inner.gone_around.fetch_add(1, Ordering::Relaxed);
        Some(bytes)
    }

    async fn parity_of(&self, detour: &Detour) -> Option<Bytes> {
        let find = fetch::find_parity(&self.cluster, detour.target, detour.parity);
        let read = fetch::read(&self.cluster, detour.target, detour.parity, detour.range());
        let (found, bytes) = join(find, read).await;
        bytes.ok().filter(|_| found.is_some_and(|found| detour.fits(&found)))
    }

    /// How many pieces were decoded because their target did not give them.
    pub fn pieces_decoded(&self) -> u64 {
        self.inner.decoded.load(Ordering::Relaxed)
    }

    /// How many pieces were had by a detour.
    pub fn detours_taken(&self) -> u64 {
        self.inner.gone_around.load(Ordering::Relaxed)
    }

    fn peek(&self, address: LogAddress) -> Option<Bytes> {
        let handle = {
            let writers = self.inner.writers.lock().unwrap_or_else(PoisonError::into_inner);
            writers.get(&address.log)?.clone()
        };
        LogWriter::upgrade(&handle)?.peek(address)
    }

    async fn read_with(&self, maps: &Maps, address: LogAddress) -> Result<Bytes, ReadError> {
        let Some(entry) = maps.logs.get(&address.log) else { return Err(ReadError::Deleted(address)) };
        if matches!(entry.state, LogState::Sealed(length) if address.end() > length) {
            return Err(ReadError::Beyond(address));
        }
        let (mut gone, mut late, mut reason) = (true, false, String::from("no run of its log covers it"));
        for run in entry.layout.iter().rev().filter(|run| run.covers(address.stripe)) {
            let Some(group) = maps.groups.get(&run.group(address.stripe)) else { continue };
            let place = Place { log: address.log, stripe: address.stripe, run: run.number, group };
            match self.read_run(place, address.offset..address.offset + address.length).await {
                Ok(bytes) => return Ok(bytes),
                Err(miss) => {
                    gone &= miss.gone;
                    late |= miss.late;
                    reason = miss.reason;
                }
            }
        }
        Err(match (gone, late) {
            (true, _) => ReadError::Deleted(address),
            (false, true) => ReadError::Late { address, reason },
            (false, false) => ReadError::Unreadable { address, reason },
        })
    }

    async fn read_run(&self, place: Place<'_>, range: Range<u32>) -> Result<Bytes, Miss> {
        let geometry = place.group.geometry;
        if range.end > geometry.stripe_size() {
            return Err(Miss { gone: false, late: false, reason: "the address reaches beyond its stripe".into() });
        }
        let pieces = decode::pieces(geometry, range);
        if let [piece] = &pieces[..] {
            return match self.read_piece(place, piece).await {
                Ok(bytes) => Ok(bytes),
                // Boxed, so that the healthy read's future stays small.
                Err(refusal) => Box::pin(self.read_degraded(place, (piece, refusal), &[])).await,
            };
        }
        let parts = join_all(pieces.iter().map(|piece| self.read_piece(place, piece))).await;
        let had: Vec<Had> =
            pieces.iter().cloned().zip(&parts).filter_map(|(at, it)| Some((at, it.clone().ok()?))).collect();
        let mut whole = BytesMut::new();
        for (piece, part) in pieces.iter().zip(parts) {
            match part {
                Ok(bytes) => whole.extend_from_slice(&bytes),
                Err(refusal) => {
                    let decoded = Box::pin(self.read_degraded(place, (piece, refusal), &had)).await?;
                    whole.extend_from_slice(&decoded);
                }
            }
        }
        Ok(whole.freeze())
    }

    async fn read_piece(&self, place: Place<'_>, (index, range): &Piece) -> Result<Bytes, Refusal> {
        let part = Part::Data(*index);
        if self.mirrors_here(place) {
            let mirror = Part::Parity(0);
            if let Ok(bytes) = fetch::read(&self.cluster, place.target(mirror), place.id(mirror), range.clone()).await {
                return Ok(bytes);
            }
        }
        fetch::read(&self.cluster, place.target(part), place.id(part), range.clone()).await
    }

    /// Whether a target of this machine has as parity what a target of another one has as data: the first parity of one data
    /// fragment is that fragment, as far as it goes.
    fn mirrors_here(&self, place: Place<'_>) -> bool {
        let geometry = place.group.geometry;
        let is_here = |part| self.cluster.is_here(place.target(part));
        geometry.data == 1 && geometry.parity > 0 && !is_here(Part::Data(0)) && is_here(Part::Parity(0))
    }

    /// A piece that its target did not give. What was read of others is not fetched again.
    async fn read_degraded(
        &self,
        place: Place<'_>,
        (piece, refusal): (&Piece, Refusal),
        had: &[Had],
    ) -> Result<Bytes, Miss> {
        let (index, range) = (piece.0, piece.1.clone());
        let stripes = (place.stripe, place.stripe);
        let asks = place.group.targets.iter().map(|&target| fetch::held(&self.cluster, target, place.log, stripes));
        let answers = join_all(asks).await;
        let late = Late::new(self.cluster.maps());
        late.note(place.target(Part::Data(index)), &refusal);
        for (&target, answer) in place.group.targets.iter().zip(&answers) {
            answer.as_ref().err().into_iter().for_each(|refusal| late.note(target, refusal));
        }
        let silent: BTreeSet<TargetId> =
            place.group.targets.iter().zip(&answers).filter(|(_, answer)| answer.is_err()).map(|(&it, _)| it).collect();
        let held: Vec<(TargetId, StoredFragment)> = place
            .group
            .targets
            .iter()
            .zip(answers)
            .flat_map(|(&target, found)| found.unwrap_or_default().into_iter().map(move |fragment| (target, fragment)))
            .collect();
        let found = match self.read_copies(place, (index, &range), &held, &late).await {
            Some(bytes) => Some(bytes),
            None => self.decode(place, piece, &held, (had, &late)).await,
        };
        let Some(bytes) = found else {
            let gone = self.is_gone(place, (index, range), &held, &silent).await;
            return Err(Miss { gone, late: late.is_any(), reason: refusal.to_string() });
        };
        self.inner.decoded.fetch_add(1, Ordering::Relaxed);
        Ok(bytes)
    }

    /// Whether bytes that could not be had were deleted.
    async fn is_gone(
        &self,
        place: Place<'_>,
        (wanted, range): (u8, Range<u32>),
        held: &[(TargetId, StoredFragment)],
        silent: &BTreeSet<TargetId>,
    ) -> bool {
        let (geometry, at) = (place.group.geometry, (place.stripe, place.run));
        let length = u32::from(wanted) * geometry.fragment_size + range.end;
        let lengths = absence::lengths(held, at, geometry, length);
        let asks = held.iter().filter(|(_, found)| found.header.id.run == place.run).map(|(target, found)| {
            let id = found.header.id;
            let end = match id.part {
                Part::Data(index) => lengths.get(usize::from(index)).copied().unwrap_or(0),
                Part::Copy { of, .. } if of != wanted => 0,
                Part::Copy { .. } | Part::Parity(_) => range.end,
            };
            let range = range.start..range.end.min(end);
            async move {
                if range.is_empty() {
                    return None;
                }
                let refusal = fetch::read(&self.cluster, *target, id, range).await.err()?;
                matches!(refusal, Refusal::Damaged | Refusal::Short).then_some((*target, id.part))
            }
        });
        let broken = join_all(asks).await.into_iter().flatten().collect();
        let maps = self.cluster.maps();
        Told { maps: &maps, group: place.group, held, silent, broken: &broken }.is_gone(at, length)
    }

    async fn read_copies(
        &self,
        place: Place<'_>,
        (index, range): (u8, &Range<u32>),
        held: &[(TargetId, StoredFragment)],
        late: &Late,
    ) -> Option<Bytes> {
        for (target, copy) in decode::copies(held, place.run, index, range.end) {
            match fetch::read(&self.cluster, target, copy.header.id, range.clone()).await {
                Ok(bytes) => return Some(bytes),
                Err(refusal) => late.note(target, &refusal),
            }
        }
        None
    }

    async fn decode(
        &self,
        place: Place<'_>,
        piece: &Piece,
        held: &[(TargetId, StoredFragment)],
        (had, late): (&[Had], &Late),
    ) -> Option<Bytes> {
        for plan in decode::plans(held, (place.run, place.group.geometry), piece.0, &piece.1) {
            if let Some(bytes) = self.decode_plan(place, piece, &plan, (had, late)).await {
                return Some(bytes);
            }
        }
        None
    }

    async fn decode_plan(
        &self,
        place: Place<'_>,
        (wanted, range): &Piece,
        plan: &Plan,
        (had, late): (&[Had], &Late),
    ) -> Option<Bytes> {
        let k = place.group.geometry.data;
        let data = plan.data.iter().map(|(index, range)| (*index, Part::Data(*index), range.clone()));
        let parity = plan.parity.iter().map(|&(at, _)| (k + at, Part::Parity(at), range.clone()));
        let asks = data.chain(parity).map(|(index, part, range)| async move {
            if range.is_empty() {
                return Some((index, Bytes::new()));
            }
            let of_it = |((other, had), _): &&Had| *other == index && had.start <= range.start && had.end >= range.end;
            if let Some(((_, had), bytes)) = had.iter().find(of_it) {
                return Some((
                    index,
                    bytes.slice((range.start - had.start) as usize..(range.end - had.start) as usize),
                ));
            }
            let target = place.target(part);
            match fetch::read(&self.cluster, target, place.id(part), range).await {
                Ok(bytes) => Some((index, bytes)),
                Err(refusal) => {
                    late.note(target, &refusal);
                    None
                }
            }
        });
        let found: Vec<(u8, Bytes)> = join_all(asks).await.into_iter().flatten().take(usize::from(k)).collect();
        if found.len() < usize::from(k) {
            return None;
        }
        let survivors: Vec<_> = found.iter().map(|(index, bytes)| Survivor { index: *index, bytes }).collect();
        Some(reconstruct(k, *wanted, &survivors, range.len()).into())
    }
}
