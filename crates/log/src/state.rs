//! What a writer decides: where records go, which sends are due, what is acknowledged. No clock, no waiting.
//!
//! Invariants
//! 1. `stripes` are consecutive; all below the first are complete and durable, but for m fragments of each that are lost or in
//!    doubt (`failures`); all below `lowest_incomplete` are complete. Only the last may be open.
//! 2. What is acknowledged only grows, in log order (rule 11). Laying stripes anew takes nothing back: the old run's
//!    copies stay until the new ones are complete (rule 14).
//! 3. Nothing is sent for an incomplete stripe while a target of the present groups is known to have failed: the
//!    stripes are laid anew first. While a run is added for another reason, sends go on in the present one.
//! 4. After `fault` is set nothing more is acknowledged (rule 15).
//! 5. An ended stripe is marked complete exactly when all k+m fragments are stored: then nothing of it is left to send, and no
//!    answer comes that would tell.

use std::collections::{BTreeMap, BTreeSet, VecDeque};

use protocol::address::{LogAddress, Position};
use protocol::checksum::BLOCK_SIZE;
use protocol::fragment::Part;
use protocol::id::{FenceEpoch, GroupId, LogId, RunNumber, StripeNumber, TargetId};
use protocol::record::HEADER_SIZE;
use protocol::storage::{Durability, Room, StorageAnswer, StorageError, StorageReply, StoredFragment};

use crate::LogError;
use crate::attempts::{Attempts, Since};
use crate::buffer::{Pool, StripeBytes};
use crate::due::{SyncTicket, Ticket};
use crate::failures::{Failure, Failures};
use crate::lay::{Group, Lay};
use crate::stripe::Stripe;
use crate::writer::{Appended, BodyPart, Record, Rest, WriterStatus};

/// After so many answers in a row that brought a fragment no further its target counts as failed.
const SETBACKS_MAX: u8 = 3;
/// While stripes are under way it is told how far all is complete whenever it is so many more.
const NOTE_STRIPES: u64 = 8;
/// No body is larger, so that it fits a stripe of any shape that may follow.
const RECORD_SIZE_MAX: u32 = protocol::fragment::FRAGMENT_SIZE_MAX;

/// What a log was opened as.
#[derive(Clone, Debug)]
pub(crate) struct Opened {
    pub(crate) log: LogId,
    pub(crate) epoch: FenceEpoch,
    pub(crate) room: Room,
    pub(crate) run: RunNumber,
    pub(crate) groups: Vec<Group>,
}

/// What came of a sync.
#[derive(Clone, Debug)]
pub(crate) enum Synced {
    /// Everything that was stored before is durable: the target has the incarnation it had then.
    Durable,
    /// The target restarted in between, and kept this (DESIGN §3, targets that come back).
    Restarted(u64, Vec<StoredFragment>),
    /// The target failed.
    Failed(Failure),
}

/// Older runs to be finished once every stripe below `next` is complete in the newest (rule 14).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Finish {
    /// The newest.
    pub(crate) run: RunNumber,
    pub(crate) end: StripeNumber,
    next: StripeNumber,
}

/// What targets are told of a log's complete stripes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Note {
    pub(crate) epoch: FenceEpoch,
    /// All below are complete and durable, and this one is.
    pub(crate) below: StripeNumber,
    pub(crate) targets: Vec<TargetId>,
}

/// One open log's writer.
#[derive(Debug)]
pub(crate) struct State {
    pub(crate) opened: Opened,
    pub(crate) stripes: VecDeque<Stripe>,
    pub(crate) lowest_incomplete: StripeNumber,
    pub(crate) pool: Pool,
    pub(crate) mark: Position,
    pub(crate) failures: Failures,
    pub(crate) incarnations: BTreeMap<TargetId, u64>,
    pub(crate) syncing: Vec<TargetId>,
    pub(crate) fault: Option<LogError>,
    /// A target had no room; sends rest until somebody tries again.
    pub(crate) full: bool,
    pub(crate) attempts: Attempts,
    /// A run is being added: because a target failed, or because the registry formed other groups.
    pub(crate) relaying: bool,
    /// The current groups when it was last decided whether to go on in them.
    pub(crate) considered: BTreeSet<GroupId>,
    /// Since nobody looked: the log left current groups, or could not go to all of them, for a target did not answer.
    pub(crate) left: bool,
    pub(crate) finish: Option<Finish>,
    /// How far targets were told that all is complete.
    told: StripeNumber,
    pub(crate) status: WriterStatus,
    next: StripeNumber,
    previous_end: u32,
    end: Position,
    acknowledged: [Position; 2],
    record_size_max: u32,
}

impl State {
    pub(crate) fn new(opened: Opened, parity_wanted: u8) -> State {
        let geometry = opened.groups[0].geometry;
        let stripe_size = opened.groups.iter().map(|group| group.geometry.stripe_size()).min().unwrap_or(0);
        let status = WriterStatus { parity_now: geometry.parity, parity_wanted, ..WriterStatus::default() };
        let considered = opened.groups.iter().map(|group| group.id).collect();
        State {
            opened,
            stripes: VecDeque::new(),
            lowest_incomplete: StripeNumber(0),
            pool: Pool::new(geometry.fragment_size as usize),
            mark: Position::START,
            failures: Failures::default(),
            incarnations: BTreeMap::new(),
            syncing: Vec::new(),
            fault: None,
            full: false,
            attempts: Attempts::default(),
            relaying: false,
            considered,
            left: false,
            finish: None,
            told: StripeNumber(0),
            status,
            next: StripeNumber(0),
            previous_end: 0,
            end: Position::START,
            acknowledged: [Position::START; 2],
            record_size_max: stripe_size.min(RECORD_SIZE_MAX) - BLOCK_SIZE as u32,
        }
    }

    /// One that goes on with a log which its writer left at rest. Where the newest run begins, if the registry does not know
    /// yet that the older ones end there.
    pub(crate) fn resumed(opened: Opened, parity_wanted: u8, rest: Rest, unfinished: Option<StripeNumber>) -> State {
        let Rest { next, previous_end, mark, end, .. } = rest;
        State {
            lowest_incomplete: next,
            mark,
            finish: unfinished.map(|end| Finish { run: opened.run, end, next }),
            told: StripeNumber(next.0.saturating_sub(1)),
            next,
            previous_end,
            end,
            acknowledged: [end; 2],
            ..State::new(opened, parity_wanted)
        }
    }

    /// Where the log rests, if all of it is complete and durable, in one run alone.
    pub(crate) fn rest(&self) -> Option<Rest> {
        let rests = self.stripes.is_empty() && !self.relaying && self.finish.is_none();
        let Opened { log, epoch, run, room, .. } = self.opened;
        let (next, previous_end, mark, end) = (self.next, self.previous_end, self.mark, self.end);
        rests.then_some(Rest { log, epoch, run, room, next, previous_end, mark, end })
    }

    pub(crate) fn record_size_max(&self) -> u32 {
        self.record_size_max
    }

    pub(crate) fn end(&self) -> Position {
        self.end
    }

    pub(crate) fn acknowledged(&self, durability: Durability) -> Position {
        self.acknowledged[durability as usize]
    }

    /// Bytes in memory.
    pub(crate) fn backlog(&self) -> usize {
        self.incomplete().map(|stripe| stripe.length as usize).sum()
    }

    /// The stripes from the lowest incomplete one on: those whose bytes are in memory.
    pub(crate) fn incomplete(&self) -> impl Iterator<Item = &Stripe> {
        self.stripes.range(self.first_incomplete()..)
    }

    pub(crate) fn first_incomplete(&self) -> usize {
        let front = self.stripes.front().map_or(self.next, |stripe| stripe.number);
        (self.lowest_incomplete.0 - front.0) as usize
    }

    pub(crate) fn stripe_mut(&mut self, number: StripeNumber) -> Option<&mut Stripe> {
        let front = self.stripes.front()?.number;
        let index = number.0.checked_sub(front.0)?;
        self.stripes.get_mut(usize::try_from(index).ok()?)
    }

    /// Puts a record into the open stripe.
    /// Also tells whether a fragment became full or a stripe ended, so that bulk sends are due.
    pub(crate) fn append(&mut self, record: &Record<'_>) -> Result<(Appended, bool), LogError> {
        if let Some(fault) = &self.fault {
            return Err(fault.clone());
        }
        let length = BodyPart::length(record.parts);
        if length > self.record_size_max as usize {
            return Err(LogError::TooLarge { length, length_max: self.record_size_max });
        }
        let mut filled = false;
        let fits = |stripe: &Stripe| !stripe.ended && stripe.place(record, length as u32).1;
        if !self.stripes.back().is_some_and(fits) {
            filled = !self.stripes.is_empty();
            self.end_stripe();
            self.begin_stripe();
        }
        let log = self.opened.log;
        let stripe = self.stripes.back_mut().expect("a stripe is open");
        let (header, fits) = stripe.place(record, length as u32);
        assert!(fits, "an empty stripe takes the largest record");
        let (place, body) = stripe.append(log, header, record, &mut self.pool);
        self.end = Position::new(place.stripe, stripe.length);
        self.status.bytes_appended += u64::from(header.size());
        debug_assert!(header.size() as usize >= HEADER_SIZE + length);
        let size = stripe.lay.group.geometry.fragment_size;
        filled |= place.offset / size != stripe.length / size;
        Ok((Appended { body, place, end: self.end }, filled))
    }

    /// Ends the open stripe, if one is open and holds anything.
    pub(crate) fn end_stripe(&mut self) {
        if let Some(stripe) = self.stripes.back_mut()
            && !stripe.ended
        {
            stripe.end(&mut self.pool);
            self.previous_end = stripe.length;
            // Without parity all of it may be stored already: then no answer is to come that would tell.
            if stripe.lay.parity.is_empty() {
                let number = stripe.number;
                self.settle(number);
            }
        }
    }

    fn begin_stripe(&mut self) {
        let number = self.next;
        self.next = StripeNumber(number.0 + 1);
        let lay = self.new_lay(number);
        self.stripes.push_back(Stripe::new(number, self.previous_end, StripeBytes::default(), lay));
    }

    fn new_lay(&self, number: StripeNumber) -> Lay {
        let group = &self.opened.groups[(number.0 % self.opened.groups.len() as u64) as usize];
        Lay::new(self.opened.run, group.clone())
    }

    /// The bytes at `address` if they are still in memory.
    pub(crate) fn peek(&mut self, address: LogAddress) -> Option<bytes::Bytes> {
        let in_memory = address.stripe >= self.lowest_incomplete;
        let stripe = self.stripe_mut(address.stripe).filter(|_| in_memory)?;
        let end = address.offset.checked_add(address.length)?;
        (end <= stripe.length).then(|| stripe.bytes.read(address.offset..end))
    }

    /// Takes a target's answer to a send.
    pub(crate) fn answered(&mut self, ticket: &Ticket, answer: StorageAnswer) {
        match answer {
            Err(StorageError::Fenced(_)) => drop(self.fault.get_or_insert(LogError::Fenced(self.opened.log))),
            Ok(_) => self.failures.took(ticket.target),
            Err(_) => {}
        }
        let present = |stripe: &&mut Stripe| stripe.lay.run == ticket.run && !stripe.complete;
        let Some(stripe) = self.stripe_mut(ticket.stripe).filter(present) else { return };
        let lane = stripe.lay.lane(ticket.part);
        lane.in_flight = false;
        match answer {
            Ok(StorageReply::Done { .. }) => {
                lane.stored = lane.stored.max(ticket.to);
                lane.setbacks = 0;
                if ticket.durability == Durability::Disk {
                    lane.disk = lane.disk.max(ticket.to);
                }
                self.settle(ticket.stripe);
            }
            Err(StorageError::Gap { length }) if lane.setbacks < SETBACKS_MAX => {
                // The target restarted and lost what was not durable, or has what an abandoned send brought.
                lane.stored = length.min(ticket.to);
                lane.disk = lane.disk.min(lane.stored);
                lane.setbacks += 1;
            }
            Err(StorageError::Full) => self.full = true,
            // A copy that comes when its parity is there already has nothing more to do.
            Err(StorageError::Refused(_)) if stripe.ended && matches!(ticket.part, Part::Copy { .. }) => {}
            Err(StorageError::Fenced(_)) => {}
            other => self.target_failed(ticket.target, Failure::of(&other)),
        }
    }

    /// The caller of a send went away before its answer: it may be sent again.
    pub(crate) fn abandoned(&mut self, ticket: &Ticket) {
        if let Some(stripe) = self.stripe_mut(ticket.stripe).filter(|stripe| stripe.lay.run == ticket.run) {
            stripe.lay.lane(ticket.part).in_flight = false;
        }
    }

    /// Takes the outcome of a sync.
    pub(crate) fn synced(&mut self, ticket: &SyncTicket, outcome: Synced) {
        self.syncing.retain(|&target| target != ticket.target);
        match outcome {
            Synced::Durable => {
                for &(number, run, part, stored) in &ticket.stored {
                    let found = self.stripe_mut(number).filter(|stripe| stripe.lay.run == run);
                    if let Some(stripe) = found
                        && !stripe.lay.is_replaced(part)
                    {
                        let lane = stripe.lay.lane(part);
                        lane.disk = lane.disk.max(stored.min(lane.stored));
                    }
                }
                self.advance();
            }
            Synced::Restarted(incarnation, kept) => self.restarted(ticket.target, incarnation, &kept),
            Synced::Failed(failure) => self.target_failed(ticket.target, failure),
        }
    }

    /// The target may have lost what was not durable: what it did not keep counts as never stored there.
    fn restarted(&mut self, target: TargetId, incarnation: u64, kept: &[StoredFragment]) {
        self.incarnations.insert(target, incarnation);
        self.status.targets_restarted += 1;
        let kept: BTreeMap<_, _> = kept
            .iter()
            .map(|found| ((found.header.id.stripe, found.header.id.run, found.header.id.part), found.length))
            .collect();
        let mut lost = Vec::new();
        for stripe in &mut self.stripes {
            let (number, run, gone) = (stripe.number, stripe.lay.run, stripe.number < self.lowest_incomplete);
            for (part, lane) in stripe.lay.lanes_on(number, target) {
                let length = kept.get(&(number, run, part)).copied().unwrap_or(0);
                if lane.stored <= length || (gone && matches!(part, Part::Copy { .. })) {
                    continue;
                }
                if gone {
                    lost.push((number, part));
                } else {
                    lane.stored = length;
                    lane.disk = lane.disk.min(length);
                }
            }
            // Copies may be gone because parity took their place: without them it is complete all the same.
            stripe.complete &= stripe.lay.complete(stripe.length, Durability::Replicated);
        }
        lost.into_iter().for_each(|(number, part)| self.lose(number, part));
        self.advance();
    }

    /// The target takes no more: incomplete stripes will be laid anew. What of complete ones it had not yet synced is lost, or
    /// in doubt.
    pub(crate) fn target_failed(&mut self, target: TargetId, failure: Failure) {
        self.failures.add(target, failure);
        self.advance();
    }

    /// A complete stripe, whose bytes are no more in memory, lost a fragment before it was durable. More than m of
    /// them, and the log has a hole: nothing behind it may be acknowledged.
    fn lose(&mut self, number: StripeNumber, part: Part) {
        let log = self.opened.log;
        let stripe = self.stripe_mut(number).expect("it was just looked at");
        if std::mem::replace(&mut stripe.lay.lane(part).lost, true) {
            return;
        }
        let is_hole = stripe.lay.lost() > stripe.lay.parity.len();
        self.status.fragments_exposed += 1;
        if is_hole {
            self.fault.get_or_insert(LogError::Lost(log));
        }
    }

    /// Gives up what failed targets had not made durable of complete stripes: what is lost; and what is in doubt, in log order,
    /// once all the rest of the stripe is durable and parity makes up for it. Such a stripe is as durable as it gets until it
    /// is rebuilt.
    fn give_up(&mut self) {
        let mut in_order = true;
        for index in 0..self.first_incomplete() {
            let stripe = &self.stripes[index];
            let (number, m) = (stripe.number, stripe.lay.parity.len());
            let (lost, late): (Vec<_>, Vec<_>) =
                stripe.lay.late(number).into_iter().partition(|(_, target)| self.failures.is_broken(*target));
            lost.into_iter().for_each(|(part, _)| self.lose(number, part));
            let is_doubt = late.iter().all(|(_, target)| self.failures.contains(*target));
            in_order &= is_doubt && self.stripes[index].lay.lost() + late.len() <= m;
            if in_order {
                late.into_iter().for_each(|(part, _)| self.lose(number, part));
            }
        }
    }

    /// Whether complete stripes wait until a silent target tells what it kept: parity does not make up for all that is in
    /// doubt.
    pub(crate) fn is_in_doubt(&self) -> bool {
        let is_late = |stripe: &Stripe| {
            let late = stripe.lay.late(stripe.number);
            late.iter().filter(|(_, target)| self.failures.contains(*target)).count() + stripe.lay.lost()
                > stripe.lay.parity.len()
        };
        !self.failures.is_empty() && self.stripes.range(..self.first_incomplete()).any(is_late)
    }

    /// Whether the stripes must be laid anew before anything more is sent.
    pub(crate) fn relay_due(&self) -> bool {
        self.fault.is_none()
            && self.opened.groups.iter().any(|group| group.targets.iter().any(|&target| self.failures.contains(target)))
    }

    /// Goes on in a new run whose groups are `groups`, with all incomplete stripes laid anew.
    pub(crate) fn relay(&mut self, run: RunNumber, groups: Vec<Group>) {
        assert!(self.relaying, "the stripes to lay anew are held in memory");
        assert!(run > self.opened.run, "runs count up");
        debug_assert_eq!(self.first_incomplete(), 0, "a recoverer looks at nothing below the new run");
        let on_disk = self.acknowledged(Durability::Disk);
        let is_kept = |stripe: &Stripe| Position::new(stripe.number, 0) >= on_disk || stripe.wanted == Durability::Disk;
        assert!(self.incomplete().all(is_kept), "what is acknowledged as on disk is laid anew as such");
        self.opened.run = run;
        self.opened.groups = groups;
        self.failures.go_on(self.opened.groups.iter().flat_map(|group| group.targets.iter().copied()));
        self.status.runs_added += 1;
        self.status.parity_now = self.opened.groups[0].geometry.parity;
        let first = self.first_incomplete();
        for index in first..self.stripes.len() {
            let lay = self.new_lay(self.stripes[index].number);
            self.stripes[index].lay_anew(lay, &mut self.pool);
            self.status.stripes_relaid += 1;
        }
        self.finish = Some(Finish { run, end: self.lowest_incomplete, next: self.next });
    }

    /// No run is being added any more: what became complete meanwhile is let go.
    pub(crate) fn end_relaying(&mut self) {
        self.relaying = false;
        self.advance();
    }

    /// From now on records of this size are taken. Before the first of them the log goes on in groups where they fit.
    pub(crate) fn widen(&mut self, record_size: u32) {
        assert!(self.stripes.is_empty(), "nothing was appended yet");
        self.record_size_max = self.record_size_max.max(record_size.min(RECORD_SIZE_MAX - BLOCK_SIZE as u32));
        if !self.fits() {
            self.considered.clear();
        }
    }

    /// Whether the largest record fits a stripe of the present groups.
    pub(crate) fn fits(&self) -> bool {
        let least = self.opened.groups.iter().map(|group| group.geometry.stripe_size()).min().unwrap_or(0);
        least >= self.record_size_max + BLOCK_SIZE as u32
    }

    /// Whether all stripes through `last` are complete, and on disk.
    pub(crate) fn is_laid(&self, last: StripeNumber) -> bool {
        self.stripes.front().is_none_or(|first| first.number > last)
    }

    /// How many bytes a group must take so that every stripe in memory fits, and every one that is begun before another
    /// run is in the layout.
    pub(crate) fn capacity_needed(&self) -> u32 {
        let in_memory = self.incomplete().map(|stripe| stripe.capacity);
        let begun_next = self.opened.groups.iter().map(|group| group.geometry.stripe_capacity());
        in_memory.chain(begun_next).max().unwrap_or(0).max(self.record_size_max + BLOCK_SIZE as u32)
    }

    /// Whoever comes first clears the way for another attempt; whoever comes again is told why it did not help.
    pub(crate) fn try_again(&mut self, since: &mut Option<Since>) -> Result<(), LogError> {
        let since = *since.get_or_insert_with(|| {
            self.full = false;
            self.attempts.ask()
        });
        self.attempts.outcome(since)?;
        if self.full { Err(LogError::Full) } else { Ok(()) }
    }

    /// The older runs that may be finished now.
    pub(crate) fn take_finish(&mut self) -> Option<Finish> {
        let done = self.finish.is_some_and(|finish| self.lowest_incomplete >= finish.next) && !self.relaying;
        if done { self.finish.take() } else { None }
    }

    /// How far all is complete and durable, and whom to tell, so that whoever seals the log need not read and write that
    /// again: when nothing is under way, and now and then meanwhile. Headers say the same, but of when they were begun.
    ///
    /// One stripe is kept back that is complete: there is always one that is found in full at those who were told.
    pub(crate) fn take_note(&mut self) -> Option<Note> {
        let whole = self.stripes.front().map_or(self.next, |stripe| stripe.number);
        let below = StripeNumber(whole.0.saturating_sub(1));
        let rests = self.incomplete().all(|stripe| !stripe.ended);
        let is_news = below > self.told && (rests || below.0 - self.told.0 >= NOTE_STRIPES);
        if !is_news || self.fault.is_some() {
            return None;
        }
        self.told = below;
        // Of the last run every group is fenced by whoever seals, each but for m of its targets: to tell one group is enough.
        let group = &self.opened.groups[(whole.0 % self.opened.groups.len() as u64) as usize];
        Some(Note { epoch: self.opened.epoch, below, targets: group.targets.clone() })
    }

    fn settle(&mut self, number: StripeNumber) {
        let stripe = self.stripe_mut(number).expect("the caller found it");
        stripe.complete |= stripe.ended && stripe.lay.complete(stripe.length, Durability::Replicated);
        self.advance();
    }

    /// Moves on what is acknowledged, and forgets stripes that are durable.
    fn advance(&mut self) {
        if self.fault.is_some() {
            return;
        }
        let mut index = self.first_incomplete();
        debug_assert!(self.stripes.range(index..).all(Stripe::is_marked), "invariant 5");
        // While a run is being added, the stripes that it will begin with stay in memory.
        while let Some(stripe) = self.stripes.get_mut(index)
            && stripe.complete
            && !self.relaying
        {
            stripe.bytes.retire(&mut self.pool);
            stripe.lay.retire(&mut self.pool);
            self.status.stripes_complete += 1;
            self.lowest_incomplete.0 += 1;
            index += 1;
        }
        if !self.failures.is_empty() {
            self.give_up();
        }
        if self.fault.is_some() {
            return;
        }
        let first = self.first_incomplete().saturating_sub(1);
        self.acknowledge(first, Durability::Replicated);
        self.acknowledge(0, Durability::Disk);
        while let Some(stripe) = self.stripes.front()
            && stripe.number < self.lowest_incomplete
            && stripe.lay.complete(stripe.length, Durability::Disk)
        {
            self.stripes.pop_front();
        }
    }

    fn acknowledge(&mut self, first: usize, durability: Durability) {
        let mut reached = None;
        for stripe in self.stripes.range_mut(first..) {
            let offset = stripe.reached(durability);
            if offset > 0 {
                reached = Some(Position::new(stripe.number, offset));
                // A sync for another stripe may have brought it there. What takes the place of this must be there, too.
                stripe.wanted = stripe.wanted.max(durability);
            }
            if offset < stripe.length || !stripe.ended {
                break;
            }
        }
        if let Some(reached) = reached {
            let known = &mut self.acknowledged[durability as usize];
            *known = reached.max(*known);
        }
    }

    /// The header that a fragment begun now carries.
    pub(crate) fn complete_below(&self) -> StripeNumber {
        self.stripes.front().map_or(self.lowest_incomplete, |stripe| stripe.number)
    }
}
