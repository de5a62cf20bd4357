//! How one stripe is laid over one group: what was sent of each part and what is stored.
//!
//! Invariants
//! 1. disk ≤ stored ≤ the part's length; one send of a part is in flight at a time, so appends arrive in order.
//! 2. What is stored in another run counts for nothing here (rule 11): laying a stripe anew makes a new `Lay`.
//! 3. Where a copy was ever sent, parity is sent only when all data is stored (rule 12), as durably as anything in the
//!    stripe was asked to be: the parity takes the copies' place.

use bytes::{Bytes, BytesMut};
use protocol::erasure;
use protocol::fragment::{Geometry, Part};
use protocol::id::{GroupId, RunNumber, StripeNumber, TargetId};
use protocol::storage::Durability;

use crate::buffer::{Pool, StripeBytes};

/// Parity is made in pieces of this size while they are hot.
pub(crate) const SLICE_SIZE: u32 = 128 << 10;

/// A group as a writer uses it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Group {
    pub(crate) id: GroupId,
    pub(crate) geometry: Geometry,
    pub(crate) targets: Vec<TargetId>,
}

/// One part of a stripe on its way to its target.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Lane {
    pub(crate) in_flight: bool,
    /// Stored, as the target answered.
    pub(crate) stored: u32,
    /// Durable, as the target answered.
    pub(crate) disk: u32,
    /// Answers in a row that brought nothing forward.
    pub(crate) setbacks: u8,
    /// Of a complete stripe: it was lost before it was durable, or may be and nobody waits for it.
    pub(crate) lost: bool,
}

impl Lane {
    pub(crate) fn reached(&self, durability: Durability) -> u32 {
        match durability {
            Durability::Replicated => self.stored,
            Durability::Disk => self.disk,
        }
    }
}

/// One stripe over one group.
#[derive(Debug)]
pub(crate) struct Lay {
    pub(crate) run: RunNumber,
    pub(crate) group: Group,
    pub(crate) data: Vec<Lane>,
    /// By data fragment, then parity.
    pub(crate) copies: Vec<Vec<Lane>>,
    pub(crate) parity: Vec<Lane>,
    sums: Vec<BytesMut>,
    summed: u32,
    /// The finished parity.
    pub(crate) parity_bytes: Vec<Bytes>,
}

impl Lay {
    pub(crate) fn new(run: RunNumber, group: Group) -> Lay {
        let (k, m) = (usize::from(group.geometry.data), usize::from(group.geometry.parity));
        Lay {
            run,
            group,
            data: vec![Lane::default(); k],
            copies: vec![vec![Lane::default(); m]; k],
            parity: vec![Lane::default(); m],
            sums: Vec::new(),
            summed: 0,
            parity_bytes: Vec::new(),
        }
    }

    pub(crate) fn target(&self, stripe: StripeNumber, part: Part) -> TargetId {
        self.group.targets[self.group.geometry.member(stripe, part)]
    }

    pub(crate) fn lane(&mut self, part: Part) -> &mut Lane {
        match part {
            Part::Data(index) => &mut self.data[usize::from(index)],
            Part::Copy { of, at } => &mut self.copies[usize::from(of)][usize::from(at)],
            Part::Parity(at) => &mut self.parity[usize::from(at)],
        }
    }

    /// Whether it is a copy that parity may have taken the place of by now: a sync did not make it durable, then, and without
    /// all the data that parity is worth nothing.
    pub(crate) fn is_replaced(&self, part: Part) -> bool {
        let Part::Copy { at, .. } = part else { return false };
        let parity = &self.parity[usize::from(at)];
        parity.in_flight || parity.stored > 0
    }

    /// The lanes of `target`, with their parts.
    pub(crate) fn lanes_on(
        &mut self,
        number: StripeNumber,
        target: TargetId,
    ) -> impl Iterator<Item = (Part, &mut Lane)> {
        let geometry = self.group.geometry;
        let member = self.group.targets.iter().position(|&member| member == target);
        self.lanes_mut().filter(move |(part, _)| Some(geometry.member(number, *part)) == member)
    }

    /// All lanes, with their parts.
    pub(crate) fn lanes_mut(&mut self) -> impl Iterator<Item = (Part, &mut Lane)> {
        let data = self.data.iter_mut().enumerate().map(|(i, lane)| (Part::Data(i as u8), lane));
        let copies = self.copies.iter_mut().enumerate().flat_map(|(of, lanes)| {
            let part = move |at: usize| Part::Copy { of: of as u8, at: at as u8 };
            lanes.iter_mut().enumerate().map(move |(at, lane)| (part(at), lane))
        });
        let parity = self.parity.iter_mut().enumerate().map(|(i, lane)| (Part::Parity(i as u8), lane));
        data.chain(copies).chain(parity)
    }

    /// All lanes.
    pub(crate) fn lanes(&self) -> impl Iterator<Item = &Lane> {
        self.data.iter().chain(self.copies.iter().flatten()).chain(&self.parity)
    }

    /// Where data fragment `index` of a stripe with `length` bytes begins in the stripe, and how long it is.
    pub(crate) fn fragment(&self, index: usize, length: u32) -> (u32, u32) {
        let size = self.group.geometry.fragment_size;
        let start = index as u32 * size;
        (start, length.saturating_sub(start).min(size))
    }

    /// Up to which byte of a stripe with `length` bytes everything is stored with copies, or data alone where m = 0.
    pub(crate) fn copied(&self, length: u32, durability: Durability) -> u32 {
        for (index, (data, copies)) in self.data.iter().zip(&self.copies).enumerate() {
            let (start, size) = self.fragment(index, length);
            let least = copies.iter().map(|copy| copy.reached(durability)).min().unwrap_or(u32::MAX);
            let safe = data.reached(durability).min(least);
            if safe < size {
                return start + safe;
            }
        }
        length
    }

    /// Whether every data fragment of an ended stripe is stored.
    pub(crate) fn data_stored(&self, length: u32, durability: Durability) -> bool {
        self.data.iter().enumerate().all(|(index, lane)| lane.reached(durability) >= self.fragment(index, length).1)
    }

    /// Whether all k+m fragments of an ended stripe are stored, but for those that are lost.
    pub(crate) fn complete(&self, length: u32, durability: Durability) -> bool {
        let reached = |lane: &Lane, size| lane.lost || lane.reached(durability) >= size;
        let mut data = self.data.iter().enumerate();
        let size = self.parity_size(length);
        data.all(|(index, lane)| reached(lane, self.fragment(index, length).1))
            && self.parity.iter().all(|lane| reached(lane, size))
    }

    /// What an ended stripe needs and is stored and not durable, and where.
    pub(crate) fn late(&self, number: StripeNumber) -> Vec<(Part, TargetId)> {
        let needed = self.needed().filter(|(_, lane)| lane.stored > lane.disk && !lane.lost);
        needed.map(|(part, _)| (part, self.target(number, part))).collect()
    }

    /// How many of an ended stripe's fragments are lost, or are not waited for.
    pub(crate) fn lost(&self) -> usize {
        self.needed().filter(|(_, lane)| lane.lost).count()
    }

    /// The lanes of an ended stripe: data and parity.
    fn needed(&self) -> impl Iterator<Item = (Part, &Lane)> {
        let data = self.data.iter().enumerate().map(|(index, lane)| (Part::Data(index as u8), lane));
        data.chain(self.parity.iter().enumerate().map(|(at, lane)| (Part::Parity(at as u8), lane)))
    }

    /// The size of a parity fragment: that of the longest data fragment.
    pub(crate) fn parity_size(&self, length: u32) -> u32 {
        length.min(self.group.geometry.fragment_size)
    }

    /// Adds what was appended before `through` to the parity, once there is enough of it.
    pub(crate) fn accumulate(&mut self, bytes: &StripeBytes, through: u32, pool: &mut Pool) {
        if through - self.summed >= SLICE_SIZE {
            self.add(bytes, through, pool);
        }
    }

    /// Nothing more is appended: finishes the parity.
    pub(crate) fn end(&mut self, bytes: &StripeBytes, pool: &mut Pool) {
        self.add(bytes, bytes.length(), pool);
        if self.parity_bytes.is_empty() {
            self.parity_bytes = self.sums.iter_mut().map(|sum| sum.split().freeze()).collect();
        }
    }

    fn add(&mut self, bytes: &StripeBytes, through: u32, pool: &mut Pool) {
        if self.parity.is_empty() {
            return;
        }
        if self.sums.is_empty() {
            self.sums = self.parity.iter().map(|_| pool.take()).collect();
        }
        let size = self.group.geometry.fragment_size;
        while self.summed < through {
            let (index, at) = (self.summed / size, self.summed % size);
            let end = through.min(self.summed + SLICE_SIZE).min((index + 1) * size);
            let mut at = at as usize;
            bytes.slices(self.summed..end, |slice| {
                // Fragments fill in order: the first makes the parity as long as it gets.
                match index {
                    0 => erasure::begin(&mut self.sums, slice),
                    _ => erasure::accumulate(&mut self.sums, index as u8, at, slice),
                }
                at += slice.len();
            });
            self.summed = end;
        }
    }

    /// Gives the memory back.
    pub(crate) fn retire(&mut self, pool: &mut Pool) {
        self.parity_bytes.clear();
        self.sums.drain(..).for_each(|sum| pool.put(sum));
    }
}
