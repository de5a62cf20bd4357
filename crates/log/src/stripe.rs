//! One stripe of an open log in memory: its bytes, where records go in it, how it is laid.

use protocol::address::{LogAddress, Position};
use protocol::checksum::BLOCK_SIZE;
use protocol::id::{LogId, StripeNumber};
use protocol::record::{HEADER_SIZE, RecordHeader};
use protocol::storage::Durability;

use crate::buffer::{Pool, StripeBytes};
use crate::lay::{Lay, SLICE_SIZE};
use crate::writer::{BodyPart, Record};

const ZEROS: [u8; BLOCK_SIZE] = [0; BLOCK_SIZE];

/// A stripe that is not yet durable.
#[derive(Debug)]
pub(crate) struct Stripe {
    pub(crate) number: StripeNumber,
    /// Where the previous stripe ended (rule 9).
    pub(crate) previous_end: u32,
    /// How many data bytes it may take: of the geometry it was begun with.
    pub(crate) capacity: u32,
    pub(crate) bytes: StripeBytes,
    /// Its length, known to `bytes` until they are given back.
    pub(crate) length: u32,
    /// Nothing more is appended: the length is final.
    pub(crate) ended: bool,
    /// All k+m fragments are stored. The bytes are given back once all stripes before are complete too.
    pub(crate) complete: bool,
    /// A copy was sent, in any run (rule 12).
    pub(crate) copied: bool,
    /// It was laid in an older run before.
    pub(crate) relaid: bool,
    /// The strongest durability that anyone asked for bytes of this stripe.
    pub(crate) wanted: Durability,
    pub(crate) lay: Lay,
}

impl Stripe {
    pub(crate) fn new(number: StripeNumber, previous_end: u32, bytes: StripeBytes, lay: Lay) -> Stripe {
        Stripe {
            number,
            previous_end,
            capacity: lay.group.geometry.stripe_capacity(),
            bytes,
            length: 0,
            ended: false,
            complete: false,
            copied: false,
            relaid: false,
            wanted: Durability::Replicated,
            lay,
        }
    }

    /// The header of `record` if it goes to the end of what is there, and whether it fits.
    pub(crate) fn place(&self, record: &Record<'_>, length: u32) -> (RecordHeader, bool) {
        let body = self.length as usize + HEADER_SIZE;
        let padding = if record.aligned { body.next_multiple_of(BLOCK_SIZE) - body } else { 0 };
        let header = RecordHeader { kind: record.kind, padding: padding as u16, length, owner: record.owner };
        let size = HEADER_SIZE as u64 + padding as u64 + u64::from(length);
        (header, u64::from(self.length) + size <= u64::from(self.capacity))
    }

    /// Appends a record that fits. Returns its place and its body's address.
    pub(crate) fn append(
        &mut self,
        log: LogId,
        header: RecordHeader,
        record: &Record<'_>,
        pool: &mut Pool,
    ) -> (Position, LogAddress) {
        assert!(!self.ended, "an ended stripe takes no records");
        let place = Position::new(self.number, self.length);
        self.bytes.append(pool, &header.encode(log, place, record.parts.iter().map(BodyPart::bytes)));
        self.bytes.append(pool, &ZEROS[..usize::from(header.padding)]);
        for part in record.parts {
            self.bytes.append_part(pool, part);
        }
        while self.length < self.bytes.length() {
            // Little by little, so that parity finds hot what was just summed.
            self.length = self.bytes.length().min(self.length + SLICE_SIZE);
            self.bytes.sum(self.length);
            self.lay.accumulate(&self.bytes, self.length, pool);
        }
        (place, header.body(log, place))
    }

    /// Nothing more is appended.
    pub(crate) fn end(&mut self, pool: &mut Pool) {
        if !self.ended {
            self.ended = true;
            self.lay.end(&self.bytes, pool);
        }
    }

    /// Lays the stripe in another run: same number, same bytes, same length (rule 10).
    pub(crate) fn lay_anew(&mut self, lay: Lay, pool: &mut Pool) {
        assert!(lay.group.geometry.stripe_size() >= self.capacity, "a stripe laid anew holds as much as before");
        self.lay.retire(pool);
        self.lay = lay;
        (self.complete, self.relaid) = (false, true);
        if self.ended {
            self.lay.end(&self.bytes, pool);
        } else {
            self.lay.accumulate(&self.bytes, self.length, pool);
        }
    }

    /// Whether it is marked complete if it is.
    pub(crate) fn is_marked(&self) -> bool {
        self.complete == (self.ended && self.lay.complete(self.length, Durability::Replicated))
    }

    /// Up to which byte everything before is as durable as asked.
    pub(crate) fn reached(&self, durability: Durability) -> u32 {
        if self.ended && self.lay.complete(self.length, durability) {
            return self.length;
        }
        self.lay.copied(self.length, durability)
    }
}
