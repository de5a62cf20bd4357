//! What a target holds, in memory, and what may be done to it: all decisions about fragments, none of the I/O.
//!
//! A fragment is *open* (it has an [`OpenTail`]) or *settled* (the list knows its length). Operations ask, do their I/O
//! without any lock but that of their stripe, and report back.
//!
//! Invariants
//! 1. Lengths and fences never go back. What is accepted after a fence was raised carries its epoch or a higher one:
//!    it is checked when an operation begins and again when its bytes have been written.
//! 2. Every cell is used by a stored or retired fragment, being filled, leaving, or known to [`Cells`]. Exactly one.
//! 3. `unsettled` holds every open fragment, and settled ones that the list could not be told about yet.

use std::collections::{BTreeMap, BTreeSet};

use protocol::checksum::{BLOCK_SIZE, crc_behind};
use protocol::fragment::{FragmentHeader, FragmentId, Part};
use protocol::id::{FenceEpoch, LogId, RunNumber, StripeNumber};
use protocol::storage::{Append, Room, StorageError, StoredFragment, TargetStat};

use crate::cells::{CellRun, Cells};
use crate::head::{Generation, SLOT_COUNT, TailSlot, blocks_full, blocks_touched, decode_header};

/// How much room is kept for whom, in cells.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Reserve {
    /// Not for data.
    pub(crate) journal: u32,
    /// Neither for data nor for journals.
    pub(crate) clean: u32,
}

/// So many cells are kept at least for each, of a disk that has eight times as many.
const LEAST_KEPT: u32 = 4;

/// How many cells a disk has room for, and how many of them are kept for whom.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Plan {
    /// Bytes that are not for cells.
    pub(crate) overhead: u64,
    /// Bytes for a cell, and for what the list says of it.
    pub(crate) cell: u64,
    pub(crate) journal_permille: u32,
    pub(crate) clean_permille: u32,
}

impl Plan {
    /// The cells of a disk of so many bytes.
    pub(crate) fn cells(&self, bytes: u64) -> u32 {
        u32::try_from(bytes.saturating_sub(self.overhead) / self.cell).unwrap_or(u32::MAX)
    }

    /// How many of so many cells are kept. However small the disk is: who takes a log over writes some stripes anew, and
    /// one that cannot be taken over on a full disk keeps its machine from starting.
    pub(crate) fn reserve(&self, cells: u32) -> Reserve {
        let least = LEAST_KEPT.min(cells / 8);
        let part = |permille: u32| ((u64::from(cells) * u64::from(permille)).div_ceil(1000) as u32).max(least);
        Reserve { journal: part(self.journal_permille), clean: part(self.clean_permille) }
    }
}

/// A fragment.
#[derive(Clone, Debug)]
pub(crate) struct Stored {
    pub(crate) run: CellRun,
    pub(crate) generation: Generation,
    pub(crate) epoch: FenceEpoch,
    pub(crate) length: u32,
    /// CRC of the partial last block, zero if there is none.
    pub(crate) partial: u32,
    /// The fragment header, encoded.
    pub(crate) header: Box<[u8]>,
    /// `None`: settled.
    pub(crate) tail: Option<Box<OpenTail>>,
}

/// What is known of a fragment that is appended to, or was not long ago.
#[derive(Clone, Debug)]
pub(crate) struct OpenTail {
    /// The newest slot.
    pub(crate) slot: u8,
    /// The slot that describes what is durable; the newest itself while nothing is.
    pub(crate) stable: u8,
    /// The slot that was the newest when a sync began that covers it: once that is over, it is the stable one.
    pub(crate) becoming: Option<Becoming>,
    /// The sequence of the newest slot that may be on the disk.
    pub(crate) sequence: u64,
    /// How many syncs had begun when the newest slot took its place in the ring. It may have been written over since, which
    /// may have ended when the next sync had begun: that one makes either durable, and the bytes of both.
    pub(crate) slot_at: u64,
    /// What the newest slot says at least, once that sync is over: what it was written over with while the sync began may
    /// have come too late.
    pub(crate) slot_says: u32,
    /// How many syncs had begun when the newest slot was written: later ones cover it.
    pub(crate) written_at: u64,
    /// A length known to be durable.
    pub(crate) floor: u32,
    /// Whether it gets no longer.
    pub(crate) complete: bool,
    /// Whether the list knows that the fragment is there.
    pub(crate) listed: bool,
    /// How many windows were announced since it last grew.
    pub(crate) idle: u8,
    /// The change that told the list it is open again; zero if none had to. Nothing is appended before that is durable.
    pub(crate) opened_by: u64,
    /// Bytes for it are being written, or were in vain: it is not settled then.
    pub(crate) growing: bool,
    /// Up to here it is in the intake, as far as it is not durable: a sync of the intake makes it so. Zero if it is not.
    pub(crate) taken_in: u32,
}

/// A slot that a sync may be making stable.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Becoming {
    slot: u8,
    /// As in [`OpenTail`].
    slot_at: u64,
    slot_says: u32,
}

/// A slot that has been written.
#[derive(Clone, Copy, Debug)]
pub(crate) struct WrittenSlot {
    pub(crate) index: u8,
    /// How many syncs had begun when it was chosen.
    pub(crate) chosen_at: u64,
    /// How many when it was written.
    pub(crate) written_at: u64,
}

/// A fragment that something newer took the place of, kept until that is durable.
#[derive(Clone, Debug)]
pub(crate) struct Retired {
    pub(crate) id: FragmentId,
    pub(crate) stored: Stored,
    /// The sync that makes the newer one durable.
    pub(crate) until_sync: u64,
}

/// Something that the list must be told.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Change {
    Open { cell: u32, generation: Generation },
    Gone { run: CellRun, generation: Generation },
    Fence { log: LogId, epoch: FenceEpoch },
}

/// What to do about an append or a replace.
#[derive(Debug)]
pub(crate) enum Admission {
    /// Nothing: these bytes are stored.
    Repeated { length: u32, until_sync: Option<u64> },
    /// Begin a fragment.
    Create,
    /// Make a fragment longer.
    Extend(Extension),
    /// The fragment is settled: read its head, and ask again.
    Thaw { run: CellRun, generation: Generation },
    /// The list must know first that the fragment is open again.
    AwaitListing(u64),
    /// Parity of this length is there: see whether it is the same.
    Compare { run: CellRun, generation: Generation, partial: u32, supersede: bool },
}

/// How a fragment becomes longer.
#[derive(Debug)]
pub(crate) struct Extension {
    pub(crate) run: CellRun,
    pub(crate) generation: Generation,
    /// Where the new bytes go.
    pub(crate) from: u32,
    /// How many of the bytes sent are there already.
    pub(crate) skip: u32,
    /// The first block that becomes full.
    pub(crate) first_filled: usize,
    /// The table entries from there on.
    pub(crate) filled: Vec<u32>,
    pub(crate) length: u32,
    pub(crate) partial: u32,
    /// Whether what it continues is durable, or in the intake.
    pub(crate) may_enter: bool,
    /// Whether it is in the intake itself.
    pub(crate) taken_in: bool,
}

/// What to read for a reader.
#[derive(Debug)]
pub(crate) struct ReadPlan {
    pub(crate) run: CellRun,
    pub(crate) generation: Generation,
    pub(crate) offset: u32,
    pub(crate) length: u32,
    /// How many of the blocks are full.
    pub(crate) full: usize,
    /// The CRC of the last block, when it is partial and among those to read.
    pub(crate) partial: Option<u32>,
}

/// Cells for a new fragment, or why there are none.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Begun {
    Cells(CellRun, Generation),
    /// A wider window may help.
    Window,
    Full,
}

/// The counters of a target's syncs and listings.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Syncs {
    pub(crate) started: u64,
    pub(crate) completed: u64,
    /// The last change that the list knows durably.
    pub(crate) listed: u64,
}

/// Of so many logs it is remembered how far they are complete.
const COMPLETE_MAX: usize = 4096;

/// See the top of the file.
#[derive(Debug)]
pub(crate) struct Catalog {
    pub(crate) fragments: BTreeMap<FragmentId, Stored>,
    pub(crate) unsettled: BTreeSet<FragmentId>,
    pub(crate) fences: BTreeMap<LogId, FenceEpoch>,
    /// Fences that the list may not know yet, by the number of the change.
    pub(crate) fences_untold: BTreeMap<LogId, u64>,
    /// Below which stripe all of a log are complete, as its writer said.
    complete: BTreeMap<LogId, StripeNumber>,
    pub(crate) cells: Cells,
    /// Cells that are being filled, by the first.
    pub(crate) filling: BTreeMap<u32, (CellRun, Generation)>,
    pub(crate) retired: Vec<Retired>,
    /// To be listed.
    pub(crate) changes: Vec<Change>,
    /// How many changes there ever were.
    pub(crate) changes_count: u64,
    /// Cells of retired and gone fragments that are not free yet.
    pub(crate) cells_leaving: u32,
    pub(crate) generation_next: Generation,
    reserve: Reserve,
    cell_data: u32,
}

impl Stored {
    /// What it says of itself.
    pub(crate) fn decode_header(&self) -> FragmentHeader {
        decode_header(&self.header).expect("a header is decoded before it is stored")
    }

    /// The sync to wait for until it is durable.
    pub(crate) fn until_sync(&self, syncs: Syncs) -> Option<u64> {
        let tail = self.tail.as_ref()?;
        (syncs.completed <= tail.written_at).then_some(tail.written_at + 1)
    }
}

impl OpenTail {
    /// That of a fragment which is durable in this length, with this slot and sequence the newest.
    pub(crate) fn durable(slot: u8, sequence: u64, length: u32) -> OpenTail {
        OpenTail {
            slot,
            stable: slot,
            becoming: None,
            sequence,
            // As if a sync had begun since: the next slot is another one.
            slot_at: 0,
            slot_says: length,
            written_at: 0,
            floor: length,
            complete: false,
            listed: false,
            idle: 0,
            opened_by: 0,
            growing: false,
            taken_in: 0,
        }
    }

    /// That of a fragment which was created in this length by one write, when so many syncs had begun.
    pub(crate) fn created(length: u32, written_at: u64) -> OpenTail {
        OpenTail { slot_at: written_at, slot_says: length, written_at, ..OpenTail::durable(0, 1, 0) }
    }

    /// The slot to write next. Neither the stable one, nor the newest once a sync has begun that may cover it.
    fn slot_next(&mut self, syncs: Syncs) -> u8 {
        let newest = Becoming { slot: self.slot, slot_at: self.slot_at, slot_says: self.slot_says };
        for known in [self.becoming, Some(newest)].into_iter().flatten() {
            if syncs.completed > known.slot_at {
                (self.stable, self.floor) = (known.slot, known.slot_says);
            }
        }
        if syncs.started == self.slot_at {
            return self.slot;
        }
        self.becoming = Some(newest);
        let free = |slot: &u8| *slot != self.slot && *slot != self.stable;
        (0..SLOT_COUNT).find(free).expect("of three slots one is neither newest nor stable")
    }

    /// The slot that was to be written next is the newest, and says `length`.
    fn written(&mut self, slot: WrittenSlot, length: u32) {
        let WrittenSlot { index, chosen_at, written_at } = slot;
        if index != self.slot {
            (self.slot, self.slot_at) = (index, written_at);
            self.slot_says = length;
        } else if chosen_at == written_at {
            self.slot_says = length;
        }
        self.written_at = written_at;
    }
}

impl Catalog {
    /// A target's catalog with no fragments.
    pub(crate) fn new(cells: Cells, generation_next: Generation, reserve: Reserve, cell_data: u32) -> Catalog {
        Catalog {
            fragments: BTreeMap::new(),
            unsettled: BTreeSet::new(),
            fences: BTreeMap::new(),
            fences_untold: BTreeMap::new(),
            complete: BTreeMap::new(),
            cells,
            filling: BTreeMap::new(),
            retired: Vec::new(),
            changes: Vec::new(),
            changes_count: 0,
            cells_leaving: 0,
            generation_next,
            reserve,
            cell_data,
        }
    }

    /// Says what to do about an append that makes sense by itself.
    pub(crate) fn admit_append(&mut self, append: &Append, syncs: Syncs) -> Result<Admission, StorageError> {
        self.check_fence(append)?;
        let id = append.header.id;
        if let Part::Copy { at, .. } = id.part
            && self.fragments.contains_key(&FragmentId { part: Part::Parity(at), ..id })
        {
            return Err(StorageError::Refused("the stripe has ended: parity has replaced its copies".into()));
        }
        let Some(stored) = self.fragments.get_mut(&id) else {
            return match append.offset {
                0 if append.length() == 0 => Ok(Admission::Repeated { length: 0, until_sync: None }),
                0 => Ok(Admission::Create),
                _ => Err(StorageError::Gap { length: 0 }),
            };
        };
        check_agreement(stored, &append.header)?;
        let end = append.offset + append.length() as u32;
        if append.offset > stored.length {
            return Err(StorageError::Gap { length: stored.length });
        }
        if end <= stored.length {
            return Ok(Admission::Repeated { length: stored.length, until_sync: stored.until_sync(syncs) });
        }
        check_joint(stored, append)?;
        let Some(tail) = &mut stored.tail else {
            return Ok(Admission::Thaw { run: stored.run, generation: stored.generation });
        };
        if tail.opened_by > syncs.listed {
            return Ok(Admission::AwaitListing(tail.opened_by));
        }
        tail.growing = true;
        let may_enter = syncs.completed > tail.written_at || tail.taken_in == stored.length;
        Ok(Admission::Extend(Extension { may_enter, ..extension(stored, append, end) }))
    }

    /// Says what to do about a replace that makes sense by itself.
    pub(crate) fn admit_replace(&self, append: &Append) -> Result<Admission, StorageError> {
        self.check_fence(append)?;
        let Some(stored) = self.fragments.get(&append.header.id) else { return Ok(Admission::Create) };
        let supersede = append.fence > stored.epoch;
        let old = stored.decode_header();
        let alike = check_agreement(stored, &append.header).is_ok() && old.data_lengths == append.header.data_lengths;
        if alike && stored.length as usize == append.length() {
            let Stored { run, generation, partial, .. } = *stored;
            return Ok(Admission::Compare { run, generation, partial, supersede });
        }
        if supersede { Ok(Admission::Create) } else { Err(other_parity()) }
    }

    /// The disk has room for so many cells now; whether that is more than before.
    pub(crate) fn grow(&mut self, total: u32, reserve: Reserve) -> bool {
        let grows = self.cells.grow(total);
        if grows {
            self.reserve = reserve;
        }
        grows
    }

    /// The incarnation that the next start must exceed, however many fragments are begun before the list is written again: each
    /// needs a cell of a window, and windows are in the list.
    pub(crate) fn incarnation_reached(&self) -> u64 {
        Generation(self.generation_next.0 + u64::from(u32::MAX / 2)).incarnation()
    }

    /// Takes cells for a new fragment, where the disk has room for `backed` more and a window is of `window` cells.
    pub(crate) fn begin(&mut self, append: &Append, backed: u32, window: u32) -> Begun {
        let count = cells_for(append.header.geometry.fragment_size, self.cell_data);
        // Others' files may fill the disk faster than writers hear of it: a part of the last window is kept back, too.
        let (kept, kept_last) = match append.room {
            Room::Data => (self.reserve.journal + self.reserve.clean, window / 2),
            Room::Journal => (self.reserve.clean, window / 4),
            Room::Clean => (0, 0),
        };
        if self.cells_free() < count + kept || backed < count + kept.min(kept_last) {
            return Begun::Full;
        }
        let Some(run) = self.cells.take(count) else { return Begun::Window };
        let generation = self.generation_next;
        self.generation_next = Generation(generation.0 + 1);
        self.filling.insert(run.first, (run, generation));
        Begun::Cells(run, generation)
    }

    /// Gives cells back whose writing failed without harm.
    pub(crate) fn abandon(&mut self, run: CellRun) {
        self.filling.remove(&run.first);
        self.cells.untake(run);
    }

    /// The fragment has been written into cells that [`Catalog::begin`] gave: from now on it is there. The parity of a
    /// stripe takes the place of its copies and of older parity.
    pub(crate) fn created(&mut self, append: &Append, stored: Stored, syncs: Syncs) -> Result<u64, StorageError> {
        self.check_fence(append)?;
        let id = append.header.id;
        let until_sync = syncs.started + 1;
        self.filling.remove(&stored.run.first);
        for other in self.superseded_by(id) {
            self.retire(other, until_sync);
        }
        self.unsettled.insert(id);
        self.fragments.insert(id, stored);
        Ok(until_sync)
    }

    /// The sequence of an entry in the intake for an extension. `None`: the fragment is gone.
    pub(crate) fn entry_for(&mut self, id: FragmentId, extension: &Extension) -> Option<u64> {
        let stored = self.fragments.get_mut(&id).filter(|stored| stored.generation == extension.generation)?;
        let tail = stored.tail.as_mut()?;
        // Counted like a slot's, whether or not it comes to be written.
        tail.sequence += 1;
        Some(tail.sequence)
    }

    /// The bytes of an extension are written: the slot that says so, and its index. `None`: the fragment is gone.
    pub(crate) fn slot_for(&mut self, id: FragmentId, extension: &Extension, syncs: Syncs) -> Option<(u8, TailSlot)> {
        let stored = self.fragments.get_mut(&id).filter(|stored| stored.generation == extension.generation)?;
        let tail = stored.tail.as_mut()?;
        let index = tail.slot_next(syncs);
        // Counted even if the write fails: what may be on the disk is never taken for newer than what comes after.
        tail.sequence += 1;
        let (length, partial, generation) = (extension.length, extension.partial, extension.generation);
        Some((index, TailSlot { generation, sequence: tail.sequence, length, partial, floor: tail.floor }))
    }

    /// All is written: from now on the fragment is longer. Returns the sync to wait for until it is durable.
    pub(crate) fn extended(
        &mut self,
        append: &Append,
        extension: &Extension,
        slot: WrittenSlot,
    ) -> Result<u64, StorageError> {
        self.check_fence(append)?;
        let stored = self.fragments.get_mut(&append.header.id);
        let stored = stored.filter(|stored| stored.generation == extension.generation).ok_or(StorageError::Missing)?;
        stored.length = extension.length;
        stored.partial = extension.partial;
        let tail = stored.tail.as_mut().ok_or(StorageError::Missing)?;
        tail.written(slot, extension.length);
        tail.complete = extension.length == append.header.geometry.fragment_size;
        tail.idle = 0;
        tail.growing = false;
        if extension.taken_in {
            tail.taken_in = extension.length;
        }
        Ok(slot.written_at + 1)
    }

    /// A settled fragment is to be appended to; `slots` are those of its head, newest first. The list must be told
    /// before an append is answered: returns the number of that change.
    pub(crate) fn thaw(&mut self, id: FragmentId, generation: Generation, slots: &[(u8, TailSlot)]) -> Option<u64> {
        let stored = self.fragments.get_mut(&id).filter(|stored| stored.generation == generation)?;
        // A newer slot may speak of bytes that came too late behind a fence.
        let slot = slots.iter().find(|(_, slot)| slot.length == stored.length).or(slots.first());
        let (slot, sequence) =
            (slot.map_or(0, |(index, _)| *index), slots.first().map_or(0, |(_, slot)| slot.sequence));
        let cell = stored.run.first;
        let opened_by = self.change(Change::Open { cell, generation });
        let stored = self.fragments.get_mut(&id)?;
        let tail = OpenTail::durable(slot, sequence, stored.length);
        stored.tail = Some(Box::new(OpenTail { opened_by, ..tail }));
        self.unsettled.insert(id);
        Some(opened_by)
    }

    /// Removes all fragments of a stripe. Returns the number of the last change, if there were any.
    pub(crate) fn delete(&mut self, log: LogId, stripe: StripeNumber) -> Option<u64> {
        let ids: Vec<FragmentId> = self.of_stripe(log, stripe).collect();
        for id in &ids {
            self.retire(*id, 0);
        }
        self.leave(|id| id.log == log && id.stripe == stripe)
    }

    /// Deletes one fragment, unless another has its name by now. Returns the number of the change to be listed before the
    /// answer.
    pub(crate) fn discard(&mut self, id: FragmentId, generation: Generation) -> Option<u64> {
        if self.fragments.get(&id).is_none_or(|stored| stored.generation != generation) {
            return None;
        }
        self.retire(id, 0);
        self.leave(|other| (other.log, other.stripe, other.run) == (id.log, id.stripe, id.run))
    }

    /// What was retired goes for good where nothing is left for whose durability it could wait.
    fn leave(&mut self, goes: impl Fn(&FragmentId) -> bool) -> Option<u64> {
        let (gone, kept): (Vec<_>, Vec<_>) = std::mem::take(&mut self.retired).into_iter().partition(|it| goes(&it.id));
        self.retired = kept;
        let mut last = None;
        for Retired { stored, .. } in gone {
            last = Some(self.change(Change::Gone { run: stored.run, generation: stored.generation }));
        }
        last
    }

    /// Raises a log's fence. Returns the number of the change to be listed before the answer, or the higher epoch.
    pub(crate) fn fence(&mut self, log: LogId, epoch: FenceEpoch) -> Result<u64, StorageError> {
        let fence = self.fences.entry(log).or_default();
        if epoch < *fence {
            return Err(StorageError::Fenced(*fence));
        }
        *fence = epoch;
        // Told even if it was raised before: whether that is durable yet, nobody remembers.
        let change = self.change(Change::Fence { log, epoch });
        self.fences_untold.insert(log, change);
        Ok(change)
    }

    /// An append with a higher epoch than the log's fence raises it. Returns the change to be listed before the bytes
    /// are taken, if the list does not know of the fence yet.
    pub(crate) fn fence_by(&mut self, append: &Append) -> Result<Option<u64>, StorageError> {
        let log = append.header.id.log;
        if append.fence > self.fences.get(&log).copied().unwrap_or_default() {
            return self.fence(log, append.fence).map(Some);
        }
        Ok(self.fences_untold.get(&log).copied())
    }

    /// A log's writer says below which stripe all are complete.
    pub(crate) fn note_complete(
        &mut self,
        log: LogId,
        epoch: FenceEpoch,
        below: StripeNumber,
    ) -> Result<(), StorageError> {
        if let Some(fence) = self.fences.get(&log).filter(|fence| **fence > epoch) {
            return Err(StorageError::Fenced(*fence));
        }
        let known = self.complete.entry(log).or_insert(below);
        *known = below.max(*known);
        if self.complete.len() > COMPLETE_MAX {
            // The oldest log: whoever seals it reads more of it.
            self.complete.pop_first();
        }
        Ok(())
    }

    /// Below which stripe all of a log are complete, as far as its writer said.
    pub(crate) fn complete_below(&self, log: LogId) -> StripeNumber {
        self.complete.get(&log).copied().unwrap_or(StripeNumber(0))
    }

    /// What to read for `length` bytes from `offset` on. Whole blocks; `None` if the fragment is not here.
    pub(crate) fn plan_read(&self, id: FragmentId, offset: u32, length: u32) -> Option<ReadPlan> {
        let stored = self.fragments.get(&id)?;
        let wanted = u64::from(offset) + u64::from(length);
        let end = wanted.next_multiple_of(BLOCK_SIZE as u64).min(u64::from(stored.length)) as u32;
        let start = blocks_full(offset.min(stored.length)) as u32 * BLOCK_SIZE as u32;
        let length = if length == 0 || offset >= stored.length { 0 } else { end - start };
        let full = blocks_full(length);
        let partial = (blocks_touched(length) > full).then_some(stored.partial);
        Some(ReadPlan { run: stored.run, generation: stored.generation, offset: start, length, full, partial })
    }

    /// Whether what was read is still that fragment's.
    pub(crate) fn holds(&self, id: FragmentId, generation: Generation) -> bool {
        self.fragments.get(&id).is_some_and(|stored| stored.generation == generation)
    }

    /// All fragments of a log from a stripe on.
    pub(crate) fn tail(&self, log: LogId, from: StripeNumber) -> Vec<StoredFragment> {
        let first = first_id(log, from);
        self.fragments.range(first..).take_while(|(id, _)| id.log == log).map(|(_, stored)| answer(stored)).collect()
    }

    /// Up to `limit` fragments behind `after`.
    pub(crate) fn page(&self, after: Option<FragmentId>, limit: usize) -> Vec<StoredFragment> {
        let start = after.map_or(std::ops::Bound::Unbounded, std::ops::Bound::Excluded);
        self.fragments.range((start, std::ops::Bound::Unbounded)).take(limit).map(|(_, s)| answer(s)).collect()
    }

    /// How full the target is; the disk below has `room` bytes for cells that were never used.
    pub(crate) fn stat(&self, incarnation: u64, cells_backed: u32) -> TargetStat {
        let data = u64::from(self.cell_data);
        let free = self.cells_free().min(cells_backed);
        let reserved = (self.reserve.journal + self.reserve.clean).min(free);
        TargetStat {
            // Cells that others' files beneath have taken the room of are neither used nor free.
            bytes_total: u64::from(self.cells.total() - (self.cells_free() - free)) * data,
            bytes_free: u64::from(free) * data,
            bytes_reserved: u64::from(reserved) * data,
            fragments: self.fragments.len() as u64,
            incarnation,
            ..TargetStat::default()
        }
    }

    /// Notes something for the list; returns its number.
    pub(crate) fn change(&mut self, change: Change) -> u64 {
        self.changes.push(change);
        self.changes_count += 1;
        self.changes_count
    }

    /// Cells that are free or will be soon.
    pub(crate) fn cells_free(&self) -> u32 {
        self.cells.unused() + self.cells_leaving
    }

    fn check_fence(&self, append: &Append) -> Result<(), StorageError> {
        match self.fences.get(&append.header.id.log) {
            Some(fence) if *fence > append.fence => Err(StorageError::Fenced(*fence)),
            _ => Ok(()),
        }
    }

    /// What vanishes when `id` is stored.
    pub(crate) fn superseded_by(&self, id: FragmentId) -> Vec<FragmentId> {
        let Part::Parity(at) = id.part else { return Vec::new() };
        let superseded = |part: Part| match part {
            Part::Copy { at: copy_at, .. } => copy_at == at,
            Part::Parity(other) => other == at,
            Part::Data(_) => false,
        };
        self.of_stripe(id.log, id.stripe).filter(|other| other.run == id.run && superseded(other.part)).collect()
    }

    fn of_stripe(&self, log: LogId, stripe: StripeNumber) -> impl Iterator<Item = FragmentId> + '_ {
        let ids = self.fragments.range(first_id(log, stripe)..).map(|(id, _)| *id);
        ids.take_while(move |id| id.log == log && id.stripe == stripe)
    }

    /// Takes a fragment out; its cells are free once a sync makes what replaces it durable and the list knows.
    pub(crate) fn retire(&mut self, id: FragmentId, until_sync: u64) {
        let stored = self.fragments.remove(&id).expect("what is retired is stored");
        self.unsettled.remove(&id);
        self.cells_leaving += stored.run.count;
        self.retired.push(Retired { id, stored, until_sync });
    }
}

/// How many cells a fragment of this size takes.
pub(crate) fn cells_for(fragment_size: u32, cell_data: u32) -> u32 {
    let head = crate::head::HEAD_SIZE as u32;
    (head + fragment_size).div_ceil(head + cell_data)
}

/// Refuses parity that contradicts what is stored.
pub(crate) fn other_parity() -> StorageError {
    StorageError::Refused("another parity is stored, and its epoch is not lower".into())
}

/// The lowest id of a stripe.
fn first_id(log: LogId, stripe: StripeNumber) -> FragmentId {
    FragmentId { log, stripe, run: RunNumber(0), part: Part::Data(0) }
}

fn answer(stored: &Stored) -> StoredFragment {
    StoredFragment { header: stored.decode_header(), length: stored.length, generation: stored.generation.0 }
}

/// Whether a later request speaks of the fragment that is stored. The mark may differ: it moves on.
fn check_agreement(stored: &Stored, header: &FragmentHeader) -> Result<(), StorageError> {
    let old = stored.decode_header();
    if old.group == header.group && old.geometry == header.geometry {
        return Ok(());
    }
    let text = format!("the fragment is stored with {:?} of group {}", old.geometry, old.group.0);
    Err(StorageError::Refused(text))
}

/// Refuses bytes that do not continue the last block as it is stored: its new checksum, which guards what was acknowledged
/// before as well, would not fit, neither for readers nor at the next start. It follows from the old one and the new bytes.
fn check_joint(stored: &Stored, append: &Append) -> Result<(), StorageError> {
    let (begun, skip) = (stored.length as usize % BLOCK_SIZE, (stored.length - append.offset) as usize);
    if begun == 0 {
        return Ok(());
    }
    let end = skip + BLOCK_SIZE - begun;
    let mut at = 0;
    let joining = append.parts.iter().map(|part| {
        let start = at;
        at += part.len();
        let cut = |place: usize| place.saturating_sub(start).min(part.len());
        &part[cut(skip)..cut(end)]
    });
    let block = blocks_full(stored.length) - blocks_full(append.offset);
    if crc_behind(stored.partial, joining) == append.checksums[block] {
        return Ok(());
    }
    Err(StorageError::Refused("the checksum of the block that is stored in part does not continue it".into()))
}

fn extension(stored: &Stored, append: &Append, end: u32) -> Extension {
    let base = blocks_full(append.offset);
    let first_filled = blocks_full(stored.length);
    let filled = append.checksums[first_filled - base..blocks_full(end) - base].to_vec();
    Extension {
        run: stored.run,
        generation: stored.generation,
        from: stored.length,
        skip: stored.length - append.offset,
        first_filled,
        filled,
        length: end,
        partial: partial_of(end, &append.checksums),
        may_enter: false,
        taken_in: false,
    }
}

/// The CRC of the last block if it is partial, else zero.
pub(crate) fn partial_of(length: u32, checksums: &[u32]) -> u32 {
    if (length as usize).is_multiple_of(BLOCK_SIZE) { 0 } else { checksums.last().copied().unwrap_or(0) }
}

#[cfg(test)]
mod tests {
    use host::sim::Dice;

    use super::*;

    /// What the newest slots may say on the medium, and the ones before them: the last of each is what is read.
    #[derive(Default)]
    struct Ring {
        places: [Vec<u32>; 3],
        bytes_durable: u32,
    }

    impl Ring {
        /// The most that the ring says whatever the medium has kept.
        fn promise(&self) -> u32 {
            let is_there = |says: &u32| if *says <= self.bytes_durable { *says } else { 0 };
            self.places.iter().map(|says| says.iter().map(is_there).min().unwrap_or(0)).max().unwrap_or(0)
        }
    }

    /// Appenders do not wait for syncs; these run one at a time, begin and end as they like, and some are given up.
    #[test]
    fn a_slot_that_is_durable_stays_until_another_is() {
        let mut dice = Dice::new(3);
        for _ in 0..3_000 {
            let mut ring = Ring { places: [vec![1], vec![0], vec![0]], bytes_durable: 0 };
            let mut tail = OpenTail::durable(0, 1, 0);
            let mut syncs = Syncs { started: 0, completed: 0, listed: 0 };
            // What the sync that runs found in the ring, and the bytes and the length that it covers.
            let mut running: Option<([usize; 3], u32, u32)> = None;
            // A slot that is being written.
            let mut chosen: Option<WrittenSlot> = None;
            let mut is_told = true;
            let (mut length, mut written, mut promised) = (1, 1, 0);
            for _ in 0..80 {
                match (dice.below(4), running, chosen) {
                    (0, None, _) => {
                        syncs.started += 1;
                        running = Some((ring.places.each_ref().map(|says| says.len() - 1), written, length));
                    }
                    (1, Some((found, bytes, covered)), _) => {
                        running = None;
                        if !dice.chance(100_000) {
                            syncs.completed = syncs.started;
                            ring.bytes_durable = bytes;
                            promised = covered;
                            ring.places.iter_mut().zip(found).for_each(|(says, found)| drop(says.drain(..found)));
                        }
                    }
                    (0 | 1, ..) => {}
                    (_, _, None) => {
                        written = length + 1;
                        let (index, chosen_at) = (tail.slot_next(syncs), syncs.started);
                        chosen = Some(WrittenSlot { index, chosen_at, written_at: chosen_at });
                        is_told = false;
                    }
                    (2, _, Some(slot)) if !is_told => {
                        ring.places[usize::from(slot.index)].push(written);
                        chosen = Some(WrittenSlot { written_at: syncs.started, ..slot });
                        is_told = true;
                    }
                    (_, _, Some(slot)) if is_told => {
                        chosen = None;
                        length = written;
                        tail.written(slot, length);
                    }
                    (_, _, Some(_)) => {}
                }
                assert!(ring.promise() >= promised, "nothing says {promised} for sure");
                assert!(ring.promise() >= tail.floor, "what is known to be durable is told");
            }
        }
    }
}
