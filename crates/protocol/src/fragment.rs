//! The part of a stripe that lies on one target.
//!
//! Invariants
//! 1. A fragment is identified by (log, stripe, run, part). A target holds at most one of each.
//! 2. `Data` and `Copy` fragments only grow. A `Copy` is a byte-exact mirror of a prefix of its data fragment.
//! 3. A `Parity` fragment is written once, whole; it takes the place of all copies of its stripe on its target, in one
//!    step, and its header gives the lengths of all data fragments: the stripe is *ended*.
//! 4. A fragment of length zero is never stored and never missing.

use serde::{Deserialize, Serialize};

use crate::address::Position;
use crate::id::{GroupId, LogId, RunNumber, StripeNumber};

/// How large a fragment is unless the cluster says otherwise, in bytes.
pub const FRAGMENT_SIZE: u32 = 1 << 20;
/// The largest fragment that a target stores, in bytes.
pub const FRAGMENT_SIZE_MAX: u32 = 4 << 20;
/// The most data or parity fragments a stripe may have.
pub const WIDTH_MAX: u8 = 32;

/// What a fragment is within its stripe.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub enum Part {
    /// Data fragment `0..k`.
    Data(u8),
    /// A mirror of the beginning of data fragment `of`, on the target of parity `at` (DESIGN §3, small durable append).
    Copy {
        /// The data fragment that it mirrors.
        of: u8,
        /// The parity, `0..m`, on whose target it lies.
        at: u8,
    },
    /// Parity fragment `0..m`.
    Parity(u8),
}

/// Names a fragment.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct FragmentId {
    /// The log.
    pub log: LogId,
    /// The stripe of it.
    pub stripe: StripeNumber,
    /// The run of the log's layout under which it was laid: the groups of two runs share targets, and a stripe laid anew
    /// must not be taken for what it replaces (`docs/decisions/0003-log-model.md`, rule 4).
    pub run: RunNumber,
    /// Which part of the stripe.
    pub part: Part,
}

/// The shape of a stripe.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Geometry {
    /// k: how many data fragments.
    pub data: u8,
    /// m: how many parity fragments.
    pub parity: u8,
    /// The size of a fragment, in bytes.
    pub fragment_size: u32,
}

impl Geometry {
    /// Whether a stripe can have this shape.
    pub fn is_possible(self) -> bool {
        (1..=WIDTH_MAX).contains(&self.data)
            && self.parity <= WIDTH_MAX
            && (1..=FRAGMENT_SIZE_MAX).contains(&self.fragment_size)
    }

    /// How many data bytes a stripe of this shape holds.
    pub fn stripe_size(self) -> u32 {
        u32::from(self.data) * self.fragment_size
    }

    /// How many targets a group of this shape has.
    pub fn width(self) -> usize {
        usize::from(self.data) + usize::from(self.parity)
    }

    /// Which member of its group holds `part` of `stripe`: a rotation by stripe number, so that parity load rotates.
    /// A copy lies where the parity will.
    pub fn member(self, stripe: StripeNumber, part: Part) -> usize {
        let index = match part {
            Part::Data(index) => usize::from(index),
            Part::Parity(at) | Part::Copy { at, .. } => usize::from(self.data) + usize::from(at),
        };
        assert!(index < self.width(), "a part lies within its stripe");
        let width = self.width();
        (index + (stripe.0 % width as u64) as usize) % width
    }

    /// How the `length` data bytes of a stripe spread over its data fragments.
    pub fn data_lengths(self, length: u32) -> Vec<u32> {
        assert!(length <= self.stripe_size(), "a stripe holds no more than its size");
        (0..u32::from(self.data))
            .map(|index| length.saturating_sub(index * self.fragment_size).min(self.fragment_size))
            .collect()
    }
}

/// What a fragment says of itself, so that a bare disk explains itself.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct FragmentHeader {
    /// Which fragment.
    pub id: FragmentId,
    /// The group over which its stripe is laid.
    pub group: GroupId,
    /// The shape of its stripe.
    pub geometry: Geometry,
    /// Where the log's newest mark lay when the fragment was begun: replay starts there (DESIGN §5).
    pub mark: Position,
    /// At which length, in data bytes, the previous stripe ended; zero for the first stripe. A stripe is begun only when
    /// this is final (rule 9).
    pub previous_end: u32,
    /// All stripes below this one were complete when the fragment was begun (rule 9).
    pub complete_below: StripeNumber,
    /// For parity: the length of each data fragment. Empty for data and copies.
    pub data_lengths: Vec<u32>,
}

impl FragmentHeader {
    /// Whether this header belongs to an ended stripe.
    pub fn ended(&self) -> bool {
        matches!(self.id.part, Part::Parity(_))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn parity_rotates_over_all_members() {
        let geometry = Geometry { data: 4, parity: 1, fragment_size: FRAGMENT_SIZE };
        let members: Vec<_> = (0..5).map(|n| geometry.member(StripeNumber(n), Part::Parity(0))).collect();
        assert_eq!(members, [4, 0, 1, 2, 3]);
    }

    #[test]
    fn bytes_fill_data_fragments_in_order() {
        let geometry = Geometry { data: 3, parity: 1, fragment_size: 100 };
        assert_eq!(geometry.data_lengths(0), [0, 0, 0]);
        assert_eq!(geometry.data_lengths(150), [100, 50, 0]);
        assert_eq!(geometry.data_lengths(300), [100, 100, 100]);
    }
}
