//! Which sends are due. Pure: the writer's tasks perform them and bring the answers back.
//!
//! A commit sends every byte not yet stored to its data fragment and, as copies, to the parity targets, in one round
//! trip. Where much waits, ending the stripe with real parity sends less: copies cost m times what is not yet copied,
//! parity m times the longest data fragment. So a stripe is ended when that is at most half; a journal that commits a
//! little at a time never wastes a stripe, and bulk behind an fsync never copies two whole fragments.

use protocol::address::Position;
use protocol::checksum::block_checksums;
use protocol::fragment::{FragmentHeader, FragmentId, Part};
use protocol::id::{RunNumber, StripeNumber, TargetId};
use protocol::storage::{Append, Durability, Room, StorageRequest};

use crate::state::State;

/// Below so many bytes not yet copied a commit never ends the stripe.
const END_SIZE_MIN: u32 = 256 << 10;

/// Why sends are looked for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Goal {
    /// Fragments that are full, stripes that have ended.
    Bulk,
    /// Everything there is in the stripes up to a position, as durable as this.
    Commit(Durability),
}

/// What a send is about.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Ticket {
    pub(crate) stripe: StripeNumber,
    pub(crate) run: RunNumber,
    pub(crate) part: Part,
    pub(crate) target: TargetId,
    pub(crate) to: u32,
    pub(crate) durability: Durability,
}

/// What a sync makes durable.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct SyncTicket {
    pub(crate) target: TargetId,
    pub(crate) stored: Vec<(StripeNumber, RunNumber, Part, u32)>,
}

/// Something to ask a target.
#[derive(Debug)]
pub(crate) enum Work {
    /// An append or replace.
    Send(Ticket, StorageRequest),
    /// A sync.
    Sync(SyncTicket),
}

/// What a part should have.
#[derive(Clone, Copy)]
struct Lack {
    part: Part,
    to: u32,
    durability: Durability,
}

impl State {
    /// The sends that full fragments and ended stripes wait for.
    pub(crate) fn due_bulk(&mut self) -> Vec<Work> {
        let mut works = Vec::new();
        if self.fault.is_none() && !self.full && !self.relay_due() {
            for index in self.first_incomplete()..self.stripes.len() {
                self.due_stripe(index, Goal::Bulk, &mut works);
            }
        }
        works
    }

    /// The sends that a commit through `through` waits for.
    pub(crate) fn due_commit(&mut self, through: Position, durability: Durability) -> Vec<Work> {
        let mut works = Vec::new();
        if self.fault.is_some() || self.full || self.relay_due() {
            return works;
        }
        let first = if durability == Durability::Disk { 0 } else { self.first_incomplete() };
        for index in first..self.stripes.len() {
            if self.stripes[index].number > through.stripe {
                break;
            }
            if self.copies_cost_more(index) {
                self.end_stripe();
            }
            self.due_stripe(index, Goal::Commit(durability), &mut works);
        }
        works
    }

    /// The syncs that make all complete stripes durable.
    pub(crate) fn due_syncs_of_complete(&mut self) -> Vec<Work> {
        let mut works = Vec::new();
        for index in 0..self.first_incomplete() {
            self.due_syncs(index, &mut works);
        }
        works
    }

    /// The syncs of silent targets that tell whether what is in doubt of complete stripes is there, where any wait for that.
    pub(crate) fn due_syncs_of_doubtful(&mut self) -> Vec<Work> {
        if !self.is_in_doubt() {
            return Vec::new();
        }
        let silent: Vec<_> = self.failures.doubtful().filter(|target| !self.syncing.contains(target)).collect();
        self.syncing.extend(silent.iter().copied());
        let ticket = |target| SyncTicket { target, stored: self.stored_on(target) };
        silent.into_iter().map(ticket).map(Work::Sync).collect()
    }

    /// Whether complete stripes wait for syncs that are under way, and may have begun before what is to be durable was stored.
    pub(crate) fn complete_wait_for_syncs(&mut self) -> bool {
        (0..self.first_incomplete()).any(|index| self.late_on(index).iter().any(|target| self.syncing.contains(target)))
    }

    /// Whether ending the stripe sends much less than copying what waits in it.
    fn copies_cost_more(&self, index: usize) -> bool {
        let stripe = &self.stripes[index];
        if stripe.ended || stripe.lay.parity.is_empty() {
            return false;
        }
        let uncopied: u32 = (0..stripe.lay.data.len())
            .map(|i| {
                let copied = stripe.lay.copies[i].iter().map(|copy| copy.stored).min().unwrap_or(0);
                stripe.lay.fragment(i, stripe.length).1 - copied
            })
            .sum();
        uncopied > END_SIZE_MIN && uncopied >= 2 * stripe.lay.parity_size(stripe.length)
    }

    fn due_stripe(&mut self, index: usize, goal: Goal, works: &mut Vec<Work>) {
        let stripe = &mut self.stripes[index];
        let asked = match goal {
            Goal::Commit(durability) => durability,
            Goal::Bulk => Durability::Replicated,
        };
        stripe.wanted = stripe.wanted.max(asked);
        let (length, ended, copied) = (stripe.length, stripe.ended, stripe.copied);
        // Parity takes the copies' place, and a new run that of an older one: it must be as durable as what was acknowledged
        // there.
        let durability = if stripe.relaid || (ended && copied) { stripe.wanted } else { asked };
        if !stripe.complete {
            self.due_data(index, goal, durability, works);
            if ended {
                let stripe = &self.stripes[index];
                if !copied || stripe.lay.data_stored(length, stripe.wanted) {
                    self.due_parity(index, durability, works);
                }
            } else if goal != Goal::Bulk {
                self.due_copies(index, durability, works);
            }
        }
        if durability == Durability::Disk {
            self.due_syncs(index, works);
        }
    }

    fn due_data(&mut self, index: usize, goal: Goal, durability: Durability, works: &mut Vec<Work>) {
        for i in 0..self.stripes[index].lay.data.len() {
            let stripe = &self.stripes[index];
            let (_, size) = stripe.lay.fragment(i, stripe.length);
            let full = size == stripe.lay.group.geometry.fragment_size;
            if stripe.ended || full || goal != Goal::Bulk {
                self.send(index, Lack { part: Part::Data(i as u8), to: size, durability }, works);
            }
        }
    }

    fn due_copies(&mut self, index: usize, durability: Durability, works: &mut Vec<Work>) {
        for of in 0..self.stripes[index].lay.copies.len() {
            for at in 0..self.stripes[index].lay.parity.len() {
                let (_, size) = self.stripes[index].lay.fragment(of, self.stripes[index].length);
                let part = Part::Copy { of: of as u8, at: at as u8 };
                self.send(index, Lack { part, to: size, durability }, works);
            }
        }
    }

    fn due_parity(&mut self, index: usize, durability: Durability, works: &mut Vec<Work>) {
        for at in 0..self.stripes[index].lay.parity.len() {
            let size = self.stripes[index].lay.parity_size(self.stripes[index].length);
            self.send(index, Lack { part: Part::Parity(at as u8), to: size, durability }, works);
        }
    }

    /// Sends what a part lacks, unless a send of it is in flight.
    fn send(&mut self, index: usize, lack: Lack, works: &mut Vec<Work>) {
        let Lack { part, to, durability } = lack;
        let lane = self.stripes[index].lay.lane(part);
        if lane.in_flight || lane.stored >= to {
            return;
        }
        lane.in_flight = true;
        let from = lane.stored;
        let append = self.append_of(index, lack, from);
        let stripe = &mut self.stripes[index];
        let target = stripe.lay.target(stripe.number, part);
        let ticket = Ticket { stripe: stripe.number, run: stripe.lay.run, part, target, to, durability };
        works.push(match part {
            Part::Data(_) => Work::Send(ticket, StorageRequest::Append(append)),
            Part::Copy { .. } => {
                stripe.copied = true;
                self.status.bytes_copied += u64::from(to - from);
                Work::Send(ticket, StorageRequest::Append(append))
            }
            Part::Parity(_) => {
                self.status.bytes_parity += u64::from(to);
                Work::Send(ticket, StorageRequest::Replace(append))
            }
        });
    }

    /// The message that brings what a part lacks from `from` on. Parity is always brought whole.
    fn append_of(&mut self, index: usize, lack: Lack, from: u32) -> Append {
        let (log, fence, mark, own_room) = (self.opened.log, self.opened.epoch, self.mark, self.opened.room);
        let complete_below = self.complete_below();
        let stripe = &mut self.stripes[index];
        let geometry = stripe.lay.group.geometry;
        let is_parity = matches!(lack.part, Part::Parity(_));
        let header = FragmentHeader {
            id: FragmentId { log, stripe: stripe.number, run: stripe.lay.run, part: lack.part },
            group: stripe.lay.group.id,
            geometry,
            mark,
            previous_end: stripe.previous_end,
            complete_below,
            data_lengths: if is_parity { geometry.data_lengths(stripe.length) } else { Vec::new() },
        };
        let (offset, parts, checksums) = match lack.part {
            Part::Data(i) | Part::Copy { of: i, .. } => {
                let (start, _) = stripe.lay.fragment(usize::from(i), stripe.length);
                let range = start + from..start + lack.to;
                (from, stripe.bytes.parts(range.clone()), stripe.bytes.checksums(range))
            }
            Part::Parity(at) => {
                let bytes = stripe.lay.parity_bytes[usize::from(at)].clone();
                let checksums = block_checksums(&bytes);
                (0, vec![bytes], checksums)
            }
        };
        // Parity that lets copies go gives as much room as it takes. Other parity, of dozens of stripes at once, would leave
        // nothing to journals and cleaners.
        let room = if is_parity && stripe.copied { Room::Clean } else { own_room };
        Append { header, fence, offset, parts, checksums, durability: lack.durability, room }
    }

    /// Syncs the targets that hold something of the stripe which is stored and not durable.
    fn due_syncs(&mut self, index: usize, works: &mut Vec<Work>) {
        for target in self.late_on(index) {
            if !self.syncing.contains(&target) {
                self.syncing.push(target);
                let stored = self.stored_on(target);
                works.push(Work::Sync(SyncTicket { target, stored }));
            }
        }
    }

    /// The targets that serve and hold something of the stripe which is stored and not durable.
    fn late_on(&mut self, index: usize) -> Vec<TargetId> {
        let stripe = &mut self.stripes[index];
        let (number, ended) = (stripe.number, stripe.ended);
        let late: Vec<Part> = stripe
            .lay
            .lanes_mut()
            .filter(|(part, lane)| {
                let counts = !ended || !matches!(part, Part::Copy { .. });
                counts && !lane.in_flight && lane.stored > lane.disk && !lane.lost
            })
            .map(|(part, _)| part)
            .collect();
        let lay = &self.stripes[index].lay;
        let targets = late.into_iter().map(|part| lay.target(number, part));
        targets.filter(|target| !self.failures.contains(*target)).collect()
    }

    /// Everything that `target` has answered for and that is not durable there.
    fn stored_on(&mut self, target: TargetId) -> Vec<(StripeNumber, RunNumber, Part, u32)> {
        let mut stored = Vec::new();
        for stripe in &mut self.stripes {
            let (number, run) = (stripe.number, stripe.lay.run);
            for (part, lane) in stripe.lay.lanes_on(number, target) {
                if lane.stored > lane.disk {
                    stored.push((number, run, part, lane.stored));
                }
            }
        }
        stored
    }
}

#[cfg(test)]
mod tests {
    use protocol::fragment::Geometry;
    use protocol::id::{FenceEpoch, GroupId, LogId};
    use protocol::record::{Owner, RecordKind};
    use protocol::storage::StorageReply;

    use super::*;
    use crate::lay::Group;
    use crate::state::{Opened, Synced};
    use crate::{BodyPart, Record};

    fn groups() -> Vec<Group> {
        let geometry = Geometry { data: 2, parity: 1, fragment_size: 64 << 10 };
        vec![Group { id: GroupId(0), geometry, targets: vec![TargetId(0), TargetId(1), TargetId(2)] }]
    }

    fn state() -> State {
        let (log, epoch, room, run) = (LogId(1), FenceEpoch(1), Room::Data, RunNumber(0));
        State::new(Opened { log, epoch, room, run, groups: groups() }, 1)
    }

    /// Appends so much that all targets of a stripe have some of it, and another one begins.
    fn append(state: &mut State) -> Position {
        let parts = &[BodyPart::Copied(&[7; 70_000])];
        let record = Record { kind: RecordKind::Data, owner: Owner::default(), parts, aligned: false };
        state.append(&record).expect("there is room").0.end
    }

    /// Has targets store what they are sent; the syncs that they are asked for.
    fn stored(state: &mut State, works: Vec<Work>) -> Vec<SyncTicket> {
        let mut syncs = Vec::new();
        for work in works {
            match work {
                Work::Send(ticket, _) => state.answered(&ticket, Ok(StorageReply::Done { length: ticket.to })),
                Work::Sync(ticket) => syncs.push(ticket),
            }
        }
        syncs
    }

    /// Commits without a sync.
    fn replicate(state: &mut State, through: Position) {
        let works = state.due_commit(through, Durability::Replicated);
        assert!(stored(state, works).is_empty());
        assert_eq!(state.acknowledged(Durability::Replicated), through);
    }

    /// Ends the open stripe and brings it to its targets.
    fn end(state: &mut State) {
        state.end_stripe();
        while let works = state.due_bulk()
            && !works.is_empty()
        {
            assert!(stored(state, works).is_empty());
        }
        assert_eq!(state.incomplete().count(), 0);
    }

    fn are_for_disk(works: &[Work]) {
        let sent = works
            .iter()
            .filter_map(|work| if let Work::Send(ticket, _) = work { Some(ticket.durability) } else { None });
        let sent: Vec<_> = sent.collect();
        assert!(!sent.is_empty() && sent.iter().all(|durability| *durability == Durability::Disk), "{sent:?}");
    }

    #[test]
    fn what_the_sync_of_another_stripe_brought_to_disk_is_laid_anew_as_such() {
        let mut state = state();
        let first = append(&mut state);
        replicate(&mut state, first);
        end(&mut state);
        let second = append(&mut state);
        replicate(&mut state, second);
        assert!(second.stripe > first.stripe);
        let works = state.due_commit(first, Durability::Disk);
        for ticket in stored(&mut state, works) {
            state.synced(&ticket, Synced::Durable);
        }
        assert_eq!(state.acknowledged(Durability::Disk), second, "the syncs were of all that the targets had");
        state.relaying = true;
        state.relay(RunNumber(1), groups());
        state.end_relaying();
        let open = state.due_commit(second, Durability::Replicated);
        are_for_disk(&open);
        stored(&mut state, open);
        state.end_stripe();
        are_for_disk(&state.due_bulk());
    }

    #[test]
    fn a_sync_that_began_before_a_stripe_was_complete_is_not_enough() {
        let mut state = state();
        let first = append(&mut state);
        end(&mut state);
        let works = state.due_commit(first, Durability::Disk);
        let begun = stored(&mut state, works);
        assert_eq!(begun.len(), 3);
        append(&mut state);
        end(&mut state);
        assert!(state.due_syncs_of_complete().is_empty(), "one is under way of each");
        assert!(state.complete_wait_for_syncs());
        for ticket in begun {
            state.synced(&ticket, Synced::Durable);
        }
        let works = state.due_syncs_of_complete();
        for ticket in stored(&mut state, works) {
            state.synced(&ticket, Synced::Durable);
        }
        assert!(state.due_syncs_of_complete().is_empty() && !state.complete_wait_for_syncs());
        assert!(state.stripes.is_empty(), "all is durable");
    }

    /// Copies of a record, and a stripe that fills and ends behind it. A sync makes the data with the record durable, and what
    /// took the copies' place, but not yet the rest of the data, without which that is worth nothing.
    #[test]
    fn copies_that_parity_took_the_place_of_do_not_become_disk() {
        let mut state = state();
        let parts = &[BodyPart::Copied(&[7; 1000])];
        let record = Record { kind: RecordKind::Data, owner: Owner::default(), parts, aligned: false };
        let first = state.append(&record).expect("there is room").0.end;
        replicate(&mut state, first);
        append(&mut state);
        end(&mut state);
        let works = state.due_commit(first, Durability::Disk);
        let syncs = stored(&mut state, works);
        assert_eq!(syncs.len(), 3);
        let lay = &state.stripes[0].lay;
        let late = lay.target(first.stripe, Part::Data(1));
        let (late, soon): (Vec<_>, Vec<_>) = syncs.into_iter().partition(|ticket| ticket.target == late);
        for ticket in soon {
            state.synced(&ticket, Synced::Durable);
        }
        assert!(state.acknowledged(Durability::Disk) < first, "it would lie on one target alone");
        for ticket in late {
            state.synced(&ticket, Synced::Durable);
        }
        assert!(state.acknowledged(Durability::Disk) >= first);
    }
}
