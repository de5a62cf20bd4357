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
pub const FRAGMENT_SIZE: u32 = 512 << 10;
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

    /// How many a writer puts into one: no more than what fits a single fragment, so that it can be laid anew over as few
    /// targets as are left.
    pub fn stripe_capacity(self) -> u32 {
        self.stripe_size().min(FRAGMENT_SIZE_MAX)
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

    /// Why no fragment can have this header, if none can. Whoever reads one from a disk or a peer asks first.
    pub fn contradiction(&self) -> Option<&'static str> {
        let geometry = self.geometry;
        if !geometry.is_possible() {
            return Some("no stripe has such a shape");
        }
        let within = match self.id.part {
            Part::Data(index) => index < geometry.data,
            Part::Copy { of, at } => of < geometry.data && at < geometry.parity,
            Part::Parity(at) => at < geometry.parity,
        };
        if !within {
            return Some("the stripe has no such part");
        }
        let lengths = if self.ended() { usize::from(geometry.data) } else { 0 };
        if self.data_lengths.len() != lengths {
            return Some("parity names the length of every data fragment, other parts of none");
        }
        if self.data_lengths.iter().any(|length| *length > geometry.fragment_size) {
            return Some("a data fragment is longer than its size");
        }
        None
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::storage::StoredFragment;

    #[test]
    fn parity_rotates_over_all_members() {
        let geometry = Geometry { data: 4, parity: 1, fragment_size: FRAGMENT_SIZE };
        let members: Vec<_> = (0..5).map(|n| geometry.member(StripeNumber(n), Part::Parity(0))).collect();
        assert_eq!(members, [4, 0, 1, 2, 3]);
    }

    #[test]
    fn a_header_that_contradicts_itself_is_known_as_such() {
        let geometry = Geometry { data: 2, parity: 1, fragment_size: 4096 };
        let header = |part, geometry, data_lengths: &[u32]| FragmentHeader {
            id: FragmentId { log: LogId(1), stripe: StripeNumber(3), run: RunNumber(0), part },
            group: GroupId(0),
            geometry,
            mark: Position::START,
            previous_end: 0,
            complete_below: StripeNumber(0),
            data_lengths: data_lengths.to_vec(),
        };
        assert_eq!(header(Part::Data(1), geometry, &[]).contradiction(), None);
        assert_eq!(header(Part::Parity(0), geometry, &[4096, 1]).contradiction(), None);
        let wide = Geometry { data: 255, parity: 255, fragment_size: u32::MAX };
        let bad = [
            header(Part::Data(0), wide, &[]),
            header(Part::Data(2), geometry, &[]),
            header(Part::Parity(1), geometry, &[1, 1]),
            header(Part::Copy { of: 0, at: 1 }, geometry, &[]),
            header(Part::Data(0), geometry, &[1, 1]),
            header(Part::Parity(0), geometry, &[1]),
            header(Part::Parity(0), geometry, &[4097, 1]),
        ];
        assert!(bad.iter().all(|header| header.contradiction().is_some()));
        let sound = header(Part::Data(1), geometry, &[]);
        let stored = |header: &FragmentHeader, length| {
            StoredFragment { header: header.clone(), length, generation: 0 }.contradiction()
        };
        assert!(stored(&sound, 1).is_none() && stored(&sound, 0).is_some() && stored(&sound, 4097).is_some());
        let early = FragmentHeader { complete_below: StripeNumber(4), ..sound };
        assert!(stored(&early, 1).is_some());
    }

    #[test]
    fn bytes_fill_data_fragments_in_order() {
        let geometry = Geometry { data: 3, parity: 1, fragment_size: 100 };
        assert_eq!(geometry.data_lengths(0), [0, 0, 0]);
        assert_eq!(geometry.data_lengths(150), [100, 50, 0]);
        assert_eq!(geometry.data_lengths(300), [100, 100, 100]);
    }
}
