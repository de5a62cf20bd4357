//! Formatting a target, and looking one through: the list first, then the heads of what the list leaves open.
//! `docs/format.md`, *Start after a crash* and *The list*.

use std::collections::BTreeMap;

use bytes::Bytes;
use futures_util::StreamExt;
use futures_util::stream;
use host::{Disk, DiskError};
use protocol::checksum::BLOCK_SIZE;
use protocol::fragment::{FRAGMENT_SIZE, FragmentHeader, FragmentId, Part};
use protocol::id::{FenceEpoch, TargetId};
use protocol::{FastMap, FastSet};

use crate::around::{UNREADABLE_MAX, read_around};
use crate::catalog::{OpenTail, Stored, cells_for};
use crate::cells::CellRun;
use crate::head::{
    Generation, HEAD_SIZE, Identity, TABLE_OFFSET, TailSlot, blocks_full, decode_header, decode_table, encode_table,
    slots_of,
};
use crate::intake::{Entry, INTAKE_SIZE_MAX, Regained, regain};
use crate::list::{Settled, WindowRun};
use crate::replay::{ListReader, Place, Replay};
use crate::superblock::{SECTOR, SUPERBLOCK_SPACE, Superblock, Unreadable};
use crate::tail::{decide, to_verify};
use crate::watch::WatchedFile;

/// The list is read in pieces of this many bytes.
const PIECE_SIZE: usize = 4 << 20;
/// So many heads are read at a time: a spinning disk sorts them.
const HEADS_AT_ONCE: usize = 16;

/// The byte spaces of a target.
pub(crate) const SPACES: [&str; 5] = ["target", "data", "list.0", "list.1", "intake"];

/// How a target is laid out and kept.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TargetOptions {
    /// Data bytes of a cell: the usual fragment size. Fixed when the target is formatted.
    pub cell_data: u32,
    /// How many cells are announced at a time: start-up reads so many heads, and each announcement costs a sync.
    pub window_cells: u32,
    /// Room that file data may not take but journals may, in parts of a thousand.
    pub journal_permille: u32,
    /// Room that only what frees room may take, in parts of a thousand.
    pub clean_permille: u32,
    /// The list is written anew when it has doubled and grown by this many bytes.
    pub list_growth: u32,
    /// Room for small durable appends, up to 4 MiB: a start reads all of it, and each half of it that fills costs a sync.
    pub intake_size: u32,
}

impl Default for TargetOptions {
    fn default() -> Self {
        TargetOptions {
            cell_data: FRAGMENT_SIZE,
            window_cells: 128,
            journal_permille: 20,
            clean_permille: 20,
            list_growth: 1 << 20,
            intake_size: INTAKE_SIZE_MAX,
        }
    }
}

/// Why a target cannot be opened. Nothing on its disk was changed.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum OpenError {
    /// There is no target on this disk.
    #[error("it has no superblock, though it is not empty; empty it, and it is rebuilt from the others")]
    Unformatted,
    /// Something else lies there, or the superblock is lost.
    #[error(
        "it holds something that is no target, or its superblock is damaged; nothing was changed. If nothing in it is \
         needed, empty it, and it is rebuilt from the others"
    )]
    Rubbish,
    /// A newer program made it.
    #[error(
        "it has format version {0}, which is newer than this program; use the program that wrote it. Nothing was changed"
    )]
    Newer(u32),
    /// An older program made it.
    #[error(
        "it was formatted by an older Dazzle, with format version {0}, which this program does not read; copy what it holds \
         with that one, empty it and format it anew. Nothing was changed"
    )]
    Older(u32),
    /// It belongs to another cluster.
    #[error("it belongs to another file system, {found:032x}; nothing was changed")]
    OtherCluster {
        /// The cluster that it names.
        found: u128,
    },
    /// It is another target of this cluster.
    #[error("it is target {} of this file system, in the wrong place; nothing was changed", .found.0)]
    OtherTarget {
        /// The target that it says it is.
        found: TargetId,
    },
    /// The disk does not do what it is asked.
    #[error(transparent)]
    Disk(#[from] DiskError),
}

/// Why a disk is not formatted.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum FormatError {
    /// The disk holds something. Nothing was changed.
    #[error("the disk is not empty: {0} holds something")]
    NotEmpty(&'static str),
    /// Cells are whole blocks, at most as large as the largest fragment.
    #[error("a cell cannot hold {0} bytes of data")]
    CellSize(u32),
    /// The disk does not do what it is asked.
    #[error(transparent)]
    Disk(#[from] DiskError),
}

/// Which cluster's target a disk says it is, and which of it; `None` when it is blank. Nothing is changed.
pub async fn owner(disk: &Disk) -> Result<Option<(u128, TargetId)>, OpenError> {
    match decode_superblock(&disk.open(SPACES[0])?.read(0, SUPERBLOCK_SPACE).await?) {
        Ok(superblock) => Ok(Some((superblock.cluster, superblock.target))),
        Err(OpenError::Unformatted) if is_blank(disk).await? => Ok(None),
        Err(error) => Err(error),
    }
}

/// Whether a disk holds nothing of a target.
pub async fn is_blank(disk: &Disk) -> Result<bool, DiskError> {
    Ok(occupied_space(disk).await?.is_none())
}

/// The first byte space that holds something.
async fn occupied_space(disk: &Disk) -> Result<Option<&'static str>, DiskError> {
    for space in SPACES {
        // A device's spaces have their size from the beginning: what counts is whether anything lies there.
        if disk.open(space)?.read(0, BLOCK_SIZE).await?.iter().any(|&byte| byte != 0) {
            return Ok(Some(space));
        }
    }
    Ok(None)
}

/// Makes a target of an empty disk.
pub async fn format(disk: &Disk, cluster: u128, target: TargetId, options: TargetOptions) -> Result<(), FormatError> {
    if let Some(space) = occupied_space(disk).await? {
        return Err(FormatError::NotEmpty(space));
    }
    let cell_data = options.cell_data;
    let largest = protocol::fragment::FRAGMENT_SIZE_MAX;
    if cell_data == 0 || !(cell_data as usize).is_multiple_of(BLOCK_SIZE) || cell_data > largest {
        return Err(FormatError::CellSize(cell_data));
    }
    let file = disk.open(SPACES[0])?;
    // Both copies, so that the space has its size and no later write of one depends on it.
    for sequence in [0, 1] {
        let superblock = Superblock { cluster, target, cell_data, sequence, incarnation: 0, list: 0, list_synced: 0 };
        file.write(superblock.place(), vec![superblock.encode()]).await?;
    }
    Ok(file.sync().await?)
}

/// Something that may be a fragment.
struct Candidate {
    cell: u32,
    generation: Generation,
    epoch: FenceEpoch,
    settled: Option<Settled>,
    /// Encoded.
    header: Box<[u8]>,
}

/// A target that is looked through.
pub(crate) struct Search {
    pub(crate) data: WatchedFile,
    pub(crate) superblock: Superblock,
    pub(crate) owner: u32,
    /// What the intake holds.
    pub(crate) taken_in: FastMap<Generation, Vec<Entry>>,
}

pub(crate) async fn read_superblock(file: &WatchedFile, cluster: u128, id: TargetId) -> Result<Superblock, OpenError> {
    let superblock = decode_superblock(&file.read(0, SUPERBLOCK_SPACE).await?)?;
    if superblock.cluster != cluster {
        return Err(OpenError::OtherCluster { found: superblock.cluster });
    }
    if superblock.target != id {
        return Err(OpenError::OtherTarget { found: superblock.target });
    }
    Ok(superblock)
}

fn decode_superblock(space: &[u8]) -> Result<Superblock, OpenError> {
    Superblock::decode(space).map_err(|why| match why {
        Unreadable::Blank => OpenError::Unformatted,
        Unreadable::Rubbish => OpenError::Rubbish,
        Unreadable::Newer(version) => OpenError::Newer(version),
        Unreadable::Older(version) => OpenError::Older(version),
    })
}

/// What the lists say.
#[derive(Default)]
pub(crate) struct Lists {
    pub(crate) replay: Replay,
    /// Where the current one ends; `None` if it is damaged, or there is none: a new one is due.
    pub(crate) place: Option<Place>,
    /// Blocks that could not be read.
    pub(crate) unread: usize,
}

/// Reads the current list; if it is damaged, the other one too, for fences.
pub(crate) async fn read_lists(files: &[WatchedFile; 2], superblock: &Superblock) -> Result<Lists, DiskError> {
    if superblock.list == 0 {
        return Ok(Lists::default());
    }
    let current = (superblock.list % 2) as usize;
    let mut lists = read_list(&files[current], superblock.list, superblock.list_synced).await?;
    if lists.place.is_none() {
        let other = read_list(&files[1 - current], superblock.list - 1, 0).await?;
        lists.unread += other.unread;
        for (log, epoch) in other.replay.fences {
            let fence = lists.replay.fences.entry(log).or_insert(epoch);
            *fence = epoch.max(*fence);
        }
    }
    Ok(lists)
}

async fn read_list(file: &WatchedFile, list: u64, synced: u64) -> Result<Lists, DiskError> {
    let (size, mut offset, mut reader, mut unread) = (file.size()?, 0, ListReader::new(list), 0);
    while offset < size {
        let (piece, lacking) = read_around(file, offset, PIECE_SIZE).await?;
        if piece.is_empty() {
            break;
        }
        offset += piece.len() as u64;
        unread += lacking;
        reader.feed(&piece);
    }
    let (replay, place) = reader.finish(synced);
    // It may have gone on where it seems to end.
    Ok(Lists { replay, place: place.filter(|_| unread == 0), unread })
}

/// What a start finds.
pub(crate) struct Found {
    /// Every fragment there is.
    pub(crate) fragments: BTreeMap<FragmentId, Stored>,
    /// Those that something newer takes the place of.
    pub(crate) losers: Vec<Stored>,
    /// Where something may lie that the disk does not give. It is missing, as what rots is, and its cells take nothing else.
    pub(crate) unreadable: Vec<CellRun>,
    /// The list tells of fragments that cannot be there, or not with one another. No target writes such a list; but what is
    /// passed over now shall not come back when what it had to give way to is deleted.
    pub(crate) belied: bool,
}

/// What a candidate turns out to be.
enum Looked {
    Fragment(FragmentHeader, Stored),
    Nothing,
    /// Nobody can tell.
    Unreadable(CellRun),
}

/// Why the length of a fragment is not known.
enum Unmeasured {
    Unreadable,
    Disk(DiskError),
}

impl From<DiskError> for Unmeasured {
    fn from(error: DiskError) -> Self {
        Unmeasured::Disk(error)
    }
}

impl Search {
    /// Looks at everything that may be a fragment.
    pub(crate) async fn find(&self, replay: &mut Replay, damaged: bool) -> Result<Found, DiskError> {
        let cells = if damaged {
            replay.listed.clear();
            let count = self.data.size()?.div_ceil(self.cell_size()) as u32;
            (0..count).map(|cell| (cell, 0)).collect()
        } else {
            window_cells(&replay.window, self.data.size()?.div_ceil(self.cell_size()) as u32)
        };
        let (mut candidates, mut unreadable) = self.candidates(cells, replay).await?;
        if damaged {
            // A fence is at least as high as the epoch of what was accepted.
            for candidate in &candidates {
                if let Some(header) = decode_header(&candidate.header) {
                    let fence = replay.fences.entry(header.id.log).or_default();
                    *fence = candidate.epoch.max(*fence);
                }
            }
        }
        let seen: FastSet<(u32, Generation)> = candidates.iter().map(|c| (c.cell, c.generation)).collect();
        for (cell, listed) in std::mem::take(&mut replay.listed) {
            // The window's cell has been read: it holds what the list says, or something newer, or rubbish.
            if !seen.contains(&(cell, listed.generation)) || listed.settled.is_some() {
                let (generation, epoch, settled) = (listed.generation, listed.epoch, listed.settled);
                candidates.push(Candidate { cell, generation, epoch, settled, header: listed.header });
            }
        }
        // The order must not show: it would differ with the hash table's history.
        candidates.sort_by_key(|candidate| (candidate.cell, candidate.generation, candidate.settled.is_none()));
        candidates.dedup_by_key(|candidate| (candidate.cell, candidate.generation));
        let count = candidates.len();
        newest_of_each_cell(&mut candidates);
        let belied = candidates.len() < count;
        let found = self.resolve(candidates).await?;
        unreadable.extend(&found.unreadable);
        if unreadable.len() > UNREADABLE_MAX {
            return Err(DiskError::Failed(format!("{} fragments cannot be read", unreadable.len())));
        }
        Ok(Found { belied: belied || found.belied, unreadable, ..found })
    }

    /// The identities in these cells, with generations not below the floor beside them; and the cells that cannot be read.
    async fn candidates(
        &self,
        cells: Vec<(u32, u64)>,
        replay: &Replay,
    ) -> Result<(Vec<Candidate>, Vec<CellRun>), DiskError> {
        let mut heads = stream::iter(cells)
            .map(|(cell, floor)| async move { (cell, floor, self.data.read(self.place(cell), SECTOR).await) })
            .buffered(HEADS_AT_ONCE);
        let (mut candidates, mut unreadable) = (Vec::new(), Vec::new());
        while let Some((cell, floor, head)) = heads.next().await {
            let sector = match head {
                Err(DiskError::Failed(_)) if unreadable.len() <= UNREADABLE_MAX => {
                    unreadable.push(CellRun { first: cell, count: 1 });
                    continue;
                }
                head => head?,
            };
            let identity = Identity::decode(&sector, self.owner).filter(|found| found.generation.0 >= floor);
            let Some(identity) = identity else { continue };
            if replay.gone.get(&cell).is_some_and(|gone| *gone >= identity.generation) {
                continue;
            }
            let Identity { generation, epoch, header, .. } = identity;
            candidates.push(Candidate { cell, generation, epoch, settled: None, header });
        }
        Ok((candidates, unreadable))
    }

    /// Looks at each candidate and lets the newest of each fragment, and parity over copies, win.
    async fn resolve(&self, candidates: Vec<Candidate>) -> Result<Found, DiskError> {
        // Nearly all are settled, and cost no read: they do not go through the queue of reads.
        let (settled, open): (Vec<_>, Vec<_>) = candidates.into_iter().partition(|c| c.settled.is_some());
        let told = settled.len();
        let mut right: Vec<_> =
            settled.into_iter().filter_map(|candidate| believe(candidate, self.superblock.cell_data)).collect();
        let impossible = right.len() < told;
        let mut looked = stream::iter(open).map(|candidate| self.look(candidate)).buffered(HEADS_AT_ONCE);
        let mut unreadable = Vec::new();
        while let Some(one) = looked.next().await {
            match one? {
                Looked::Fragment(header, stored) => right.push((header, stored)),
                Looked::Unreadable(run) => unreadable.push(run),
                Looked::Nothing => {}
            }
        }
        let count = right.len();
        drop_overlapping(&mut right);
        let belied = impossible || right.len() < count;
        let (mut found, mut losers) = (BTreeMap::new(), Vec::new());
        for (header, stored) in right {
            match found.entry(header.id) {
                std::collections::btree_map::Entry::Vacant(entry) => drop(entry.insert(stored)),
                std::collections::btree_map::Entry::Occupied(mut entry) => {
                    let newer = entry.get().generation < stored.generation;
                    losers.push(if newer { entry.insert(stored) } else { stored });
                }
            }
        }
        let superseded = |id: &FragmentId| match id.part {
            Part::Copy { at, .. } => found.contains_key(&FragmentId { part: Part::Parity(at), ..*id }),
            Part::Data(_) | Part::Parity(_) => false,
        };
        let copies: Vec<FragmentId> = found.keys().filter(|id| superseded(id)).copied().collect();
        losers.extend(copies.iter().filter_map(|id| found.remove(id)));
        Ok(Found { fragments: found, losers, unreadable, belied })
    }

    /// A candidate as its head describes it.
    async fn look(&self, candidate: Candidate) -> Result<Looked, DiskError> {
        let Some((decoded, mut stored)) = believe(candidate, self.superblock.cell_data) else {
            return Ok(Looked::Nothing);
        };
        match self.measure(&mut stored, &decoded).await {
            Ok(None) => Ok(Looked::Nothing),
            Ok(tail) => {
                stored.tail = tail.map(Box::new);
                Ok(Looked::Fragment(decoded, stored))
            }
            Err(Unmeasured::Unreadable) => Ok(Looked::Unreadable(stored.run)),
            Err(Unmeasured::Disk(error)) => Err(error),
        }
    }

    async fn read(&self, place: u64, length: usize) -> Result<Bytes, Unmeasured> {
        self.data.read(place, length).await.map_err(|error| match error {
            DiskError::Failed(_) => Unmeasured::Unreadable,
            error => Unmeasured::Disk(error),
        })
    }

    /// Finds out how long an unsettled fragment is, and writes what the intake adds, and a slot that says so if none does.
    async fn measure(&self, stored: &mut Stored, header: &FragmentHeader) -> Result<Option<OpenTail>, Unmeasured> {
        let place = self.place(stored.run.first);
        let head = self.read(place, HEAD_SIZE).await?;
        let (generation, size) = (stored.generation, header.geometry.fragment_size);
        let mut slots = slots_of(&head, generation);
        slots.retain(|(_, slot)| slot.length <= size);
        let Some((start, end)) = to_verify(&slots) else { return Ok(None) };
        let bytes = self.read(place + (HEAD_SIZE as u64) + u64::from(start), (end - start) as usize).await?;
        let table = decode_table(head.get(TABLE_OFFSET..).unwrap_or(&[]), generation);
        let verdict = decide(&slots, &table, start, &bytes);
        let whole = verdict.as_newest || !header.ended();
        if verdict.length == 0 || !whole {
            return Ok(None);
        }
        if Identity::decode(&head, self.owner).is_none_or(|identity| identity.generation != generation) {
            // The list was told of it before its head was on the disk, and of that the first sector was lost.
            let identity =
                Identity { generation, owner: self.owner, epoch: stored.epoch, header: stored.header.clone() };
            self.data.write(place, vec![identity.encode()]).await?;
        }
        (stored.length, stored.partial) = (verdict.length, verdict.partial);
        let (mut slot, mut sequence) = (slots[0].0, slots[0].1.sequence);
        // What has ended was written whole.
        let entries = self.taken_in.get(&generation).filter(|_| !header.ended()).map_or(&[][..], Vec::as_slice);
        let untold = entries.last().is_some_and(|entry| entry.sequence > verdict.sequence());
        if untold || !verdict.as_newest {
            let regained = regain(entries, &verdict, size, start, &bytes);
            slot = verdict.spare(regained.as_ref().map_or(verdict.length, |regained| regained.from));
            if let Some(regained) = regained {
                (stored.length, stored.partial) = (regained.length, regained.partial);
                self.write_regained(place, generation, regained).await?;
            }
            sequence = entries.last().map_or(sequence, |entry| entry.sequence.max(sequence)) + 1;
            let (length, partial, floor) = (stored.length, stored.partial, verdict.floor.min(stored.length));
            let fresh = TailSlot { generation, sequence, length, partial, floor };
            self.data.write(place + TailSlot::place(slot) as u64, vec![fresh.encode()]).await?;
        }
        let complete = header.ended() || stored.length == size;
        Ok(Some(OpenTail { complete, ..OpenTail::durable(slot, sequence, stored.length) }))
    }

    /// Writes what the intake adds to the fragment at `place`: like any append, before the slot that says so.
    async fn write_regained(&self, place: u64, generation: Generation, regained: Regained) -> Result<(), DiskError> {
        let Regained { from, bytes, filled, .. } = regained;
        self.data.write(place + HEAD_SIZE as u64 + u64::from(from), vec![bytes.into()]).await?;
        if filled.is_empty() {
            return Ok(());
        }
        let entries = place + (TABLE_OFFSET + 4 * blocks_full(from)) as u64;
        self.data.write(entries, vec![encode_table(&filled, generation)]).await
    }

    fn cell_size(&self) -> u64 {
        HEAD_SIZE as u64 + u64::from(self.superblock.cell_data)
    }

    fn place(&self, cell: u32) -> u64 {
        u64::from(cell) * self.cell_size()
    }
}

/// A candidate as the list describes it; `None` if it is no fragment.
fn believe(candidate: Candidate, cell_data: u32) -> Option<(FragmentHeader, Stored)> {
    let Candidate { cell, generation, epoch, settled, header } = candidate;
    let decoded = decode_header(&header).filter(|header| header.contradiction().is_none())?;
    let size = decoded.geometry.fragment_size;
    let count = cells_for(size, cell_data);
    let run = CellRun { first: cell, count };
    let is_possible = settled.is_none_or(|settled| (1..=size).contains(&settled.length));
    if !is_possible || cell.checked_add(count).is_none() {
        return None;
    }
    let (length, partial) = settled.map_or((0, 0), |settled| (settled.length, settled.partial));
    Some((decoded, Stored { run, generation, epoch, length, partial, header, tail: None }))
}

/// The cells of a window that lie below `end`, each with its floor, in order. Behind the end of the data nothing was put.
fn window_cells(window: &[WindowRun], end: u32) -> Vec<(u32, u64)> {
    let mut floors: BTreeMap<u32, u64> = BTreeMap::new();
    for WindowRun { run, floor } in window {
        for cell in run.first..run.first.saturating_add(run.count).min(end) {
            let known = floors.entry(cell).or_insert(*floor);
            *known = (*known).min(*floor);
        }
    }
    floors.into_iter().collect()
}

/// Of two fragments that share a cell, the older has been overwritten. Only a damaged list leaves such, or one that lies.
fn drop_overlapping(fragments: &mut Vec<(FragmentHeader, Stored)>) {
    fragments.sort_by_key(|(_, stored)| stored.run.first);
    fragments.dedup_by(|(_, next), (kept_header, kept)| {
        let overlap = next.run.first < kept.run.end();
        if overlap && next.generation > kept.generation {
            // The one kept so far loses: what comes behind it is compared with the newer one.
            std::mem::swap(next, kept);
            *kept_header = kept.decode_header();
        }
        overlap
    });
}

/// Of two generations in one cell the older has been overwritten.
fn newest_of_each_cell(candidates: &mut Vec<Candidate>) {
    candidates.reverse();
    candidates.dedup_by_key(|candidate| candidate.cell);
    candidates.reverse();
}

#[cfg(test)]
mod tests {
    use host::Host;
    use protocol::address::Position;
    use protocol::checksum::block_checksums;
    use protocol::fragment::Geometry;
    use protocol::id::{GroupId, LogId, RunNumber, StripeNumber};
    use protocol::storage::{Append, Durability, Room, StorageRequest};

    use super::*;
    use crate::list::{BatchHeader, Entry, encode_batch};
    use crate::target::{Target, owner_of};

    fn fragment_header(stripe: StripeNumber, fragment_size: u32) -> FragmentHeader {
        FragmentHeader {
            id: FragmentId { log: LogId(1), stripe, run: RunNumber(0), part: Part::Data(0) },
            group: GroupId(0),
            geometry: Geometry { data: 1, parity: 0, fragment_size },
            mark: Position::START,
            previous_end: 0,
            complete_below: StripeNumber(0),
            data_lengths: Vec::new(),
        }
    }

    fn candidate(cell: u32, fragment_size: u32, length: u32) -> Candidate {
        let header = fragment_header(StripeNumber(0), fragment_size);
        let header = crate::head::encode_header(&header).expect("it fits");
        let settled = Some(Settled { length, partial: 0 });
        Candidate { cell, generation: Generation(1), epoch: FenceEpoch(0), settled, header }
    }

    #[test]
    fn a_fragment_that_cannot_be_is_none() {
        assert!(believe(candidate(3, 4096, 4096), 4096).is_some());
        for (cell, size, length) in [
            (3, 4096, 0),
            (3, 4096, 4097),
            (3, u32::MAX, 1),
            (3, 0, 0),
            (u32::MAX, 4096, 1),
            (u32::MAX - 1, 1 << 20, 1),
        ] {
            assert!(
                believe(candidate(cell, size, length), 4096).is_none(),
                "{size} bytes in cell {cell}, {length} used"
            );
        }
    }

    /// Two lists that no target writes: fragments that share a cell, and one in a cell that a newer head took.
    #[test]
    fn what_a_start_passes_over_does_not_come_back() {
        let told = |cell, generation, stripe| {
            let mut header = decode_header(&candidate(0, 16 << 10, 4096).header).expect("it is one");
            header.id.stripe = StripeNumber(stripe);
            let header = crate::head::encode_header(&header).expect("it fits");
            (cell, generation, header)
        };
        let sharing = [told(0, 1, 0), told(1, 2, 1)];
        let window = WindowRun { run: CellRun { first: 0, count: 4 }, floor: 0 };
        for (fragments, window, kept) in [(&sharing[..], vec![], 1), (&sharing[..1], vec![window], 0)] {
            host::sim::run(1, async |world, host| {
                let disk = world.add_disk(host.node(), "d", host::sim::DiskOptions::default());
                forge(&disk.plug(), fragments, window.clone()).await;
                let open = async || {
                    let options = TargetOptions::default();
                    Target::open(host.clone(), disk.plug(), 42, TargetId(7), options).await.expect("it opens")
                };
                let target = open().await;
                assert_eq!(target.catalog().fragments.len(), kept);
                let stripes = vec![(LogId(1), StripeNumber(1))];
                target.serve(StorageRequest::Delete { stripes }).await.expect("it is deleted");
                drop(target);
                assert_eq!(open().await.catalog().fragments.len(), 0);
            });
        }
    }

    /// As many fragments as a generation counts: a target gets there in four years that takes thirty-four each second.
    #[test]
    fn a_start_after_a_long_life_gives_no_generation_twice() {
        host::sim::run(1, async |world, host| {
            let disk = world.add_disk(host.node(), "d", host::sim::DiskOptions::default());
            let options = TargetOptions { cell_data: 4096, window_cells: 4, ..TargetOptions::default() };
            format(&disk.plug(), 42, TargetId(7), options).await.expect("it is empty");
            let open =
                async |host: Host| Target::open(host, disk.plug(), 42, TargetId(7), options).await.expect("it opens");
            let target = open(host.clone()).await;
            target.catalog().generation_next = Generation(Generation::first_of(2).0 - 10);
            for stripe in 0..20 {
                target.serve(StorageRequest::Append(append(StripeNumber(stripe)))).await.expect("there is room");
            }
            let given = target.catalog().generation_next;
            assert!(given > Generation::first_of(2), "it has begun so many");
            drop(target);
            world.crash(host.node(), host::sim::Stop::PowerLoss);
            let next = open(world.restart(host.node())).await.catalog().generation_next;
            assert!(next >= given, "{given:?} was given, and {next:?} is next");
        });
    }

    /// One block in a stripe of its own.
    fn append(stripe: StripeNumber) -> Append {
        let parts = vec![Bytes::from_static(&[7; BLOCK_SIZE])];
        let (checksums, durability) = (block_checksums(&parts[0]), Durability::Replicated);
        let header = fragment_header(stripe, 4096);
        Append { header, fence: FenceEpoch(0), offset: 0, parts, checksums, durability, room: Room::Data }
    }

    /// A target of cells of one block whose list says this, and a head without a fragment in its first cell.
    async fn forge(disk: &Disk, fragments: &[(u32, u64, Box<[u8]>)], window: Vec<WindowRun>) {
        let options = TargetOptions { cell_data: 4096, ..TargetOptions::default() };
        format(disk, 42, TargetId(7), options).await.expect("it is empty");
        let superblock = Superblock {
            cluster: 42,
            target: TargetId(7),
            cell_data: 4096,
            sequence: 2,
            incarnation: 1,
            list: 1,
            list_synced: 0,
        };
        let mut payload = Vec::new();
        let settled = Some(Settled { length: 4096, partial: 0 });
        for (cell, generation, header) in fragments {
            let (cell, generation, epoch) = (*cell, *generation, FenceEpoch(0));
            let entry = Entry::Fragment { cell, generation, epoch, settled, header };
            payload.extend(postcard::to_stdvec(&entry).expect("it encodes"));
        }
        for entry in [Entry::Window(window), Entry::End] {
            payload.extend(postcard::to_stdvec(&entry).expect("it encodes"));
        }
        let header = BatchHeader { list: 1, number: 0, incarnation: 1, synced: 0, chain: 0 };
        let (batch, _) = encode_batch(&header, &payload);
        let generation = Generation(100);
        let identity =
            Identity { generation, owner: owner_of(42, TargetId(7)), epoch: FenceEpoch(0), header: Box::default() };
        let slot = TailSlot { generation, sequence: 1, length: 0, partial: 0, floor: 0 };
        let head = crate::head::encode_new(&identity, &slot, &[]);
        for (space, bytes) in [("target", superblock.encode()), ("list.1", batch.into()), ("data", head)] {
            disk.open(space).expect("it is there").write(0, vec![bytes]).await.expect("there is room");
        }
    }

    #[test]
    fn a_window_has_no_more_cells_than_the_disk() {
        let window = |first, count, floor| WindowRun { run: CellRun { first, count }, floor };
        let all = [window(2, u32::MAX, 9), window(0, u32::MAX, 7), window(3, 1, 8), window(u32::MAX, u32::MAX, 1)];
        assert_eq!(window_cells(&all, 4), [(0, 7), (1, 7), (2, 7), (3, 7)]);
    }
}
