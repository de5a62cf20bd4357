//! Where bytes lie in a log.
//!
//! Invariant: a log address means the same bytes for ever, in every copy. Nothing is appended twice.

use serde::{Deserialize, Serialize};

use crate::id::{LogId, StripeNumber};

/// A place in one log. Offsets count the data bytes of a stripe over its data fragments, 0 to k × fragment size.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Default, Serialize, Deserialize)]
pub struct Position {
    /// The stripe.
    pub stripe: StripeNumber,
    /// Bytes from the start of the stripe's data.
    pub offset: u32,
}

impl Position {
    /// The beginning of every log.
    pub const START: Position = Position { stripe: StripeNumber(0), offset: 0 };

    /// The place `offset` bytes into `stripe`.
    pub fn new(stripe: StripeNumber, offset: u32) -> Self {
        Position { stripe, offset }
    }
}

/// Names bytes in a log for ever: the body of a record, or a part of it. It never spans stripes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct LogAddress {
    /// The log.
    pub log: LogId,
    /// The stripe.
    pub stripe: StripeNumber,
    /// Bytes from the start of the stripe's data.
    pub offset: u32,
    /// How many bytes.
    pub length: u32,
}

impl LogAddress {
    /// The place of the first byte.
    pub fn position(self) -> Position {
        Position { stripe: self.stripe, offset: self.offset }
    }

    /// The place just behind the last byte.
    pub fn end(self) -> Position {
        Position { stripe: self.stripe, offset: self.offset + self.length }
    }

    /// The `length` bytes that begin `skip` bytes into this address.
    ///
    /// # Panics
    /// When that reaches past the end.
    pub fn part(self, skip: u32, length: u32) -> LogAddress {
        assert!(u64::from(skip) + u64::from(length) <= u64::from(self.length), "a part of an address lies within it");
        LogAddress { offset: self.offset + skip, length, ..self }
    }

    /// Whether `other` begins where this address ends, in the same stripe.
    pub fn joins(self, other: LogAddress) -> bool {
        self.log == other.log && self.stripe == other.stripe && self.offset + self.length == other.offset
    }
}
