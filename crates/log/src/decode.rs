//! What of a stripe's data can be had from what targets hold, and how. Pure.

use std::collections::BTreeMap;
use std::ops::Range;

use protocol::fragment::{Geometry, Part};
use protocol::id::{RunNumber, TargetId};
use protocol::storage::StoredFragment;

/// One way to decode a range of a data fragment: k fragments, of which the bytes given are needed; the empty ones
/// need not be asked for.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Plan {
    /// Data fragments other than the wanted one, with the range that counts.
    pub(crate) data: Vec<(u8, Range<u32>)>,
    /// Parity fragments that agree on the lengths, each with its target.
    pub(crate) parity: Vec<(u8, TargetId)>,
}

/// Copies of data fragment `of` that reach to `end`.
pub(crate) fn copies(
    held: &[(TargetId, StoredFragment)],
    run: RunNumber,
    of: u8,
    end: u32,
) -> impl Iterator<Item = (TargetId, &StoredFragment)> {
    held.iter().filter_map(move |(target, fragment)| {
        let id = fragment.header.id;
        let mirrors = id.run == run && matches!(id.part, Part::Copy { of: mirrored, .. } if mirrored == of);
        (mirrors && fragment.length >= end).then_some((*target, fragment))
    })
}

/// The ways to decode `range` of data fragment `wanted`. Lengths are the parity's: a data fragment counts up to the
/// length given there (rule 24), and a parity that was cut as far as it goes. Parities that give different lengths, of
/// different sealers, are not mixed; of several targets that claim the same parity the first counts.
pub(crate) fn plans(
    held: &[(TargetId, StoredFragment)],
    (run, geometry): (RunNumber, Geometry),
    wanted: u8,
    range: &Range<u32>,
) -> Vec<Plan> {
    let mut by_lengths: BTreeMap<&[u32], Vec<(u8, TargetId)>> = BTreeMap::new();
    for (target, fragment) in held {
        let header = &fragment.header;
        let Part::Parity(at) = header.id.part else { continue };
        let whole = header.data_lengths.len() == usize::from(geometry.data) && at < geometry.parity;
        // What a parity lacks would be taken for zeros.
        let reaches = |length: u32| length >= range.end;
        if header.id.run == run
            && whole
            && reaches(header.data_lengths[usize::from(wanted)])
            && reaches(fragment.length)
        {
            let parity = by_lengths.entry(&header.data_lengths).or_default();
            if parity.iter().all(|&(known, _)| known != at) {
                parity.push((at, *target));
            }
        }
    }
    let plan = |(lengths, parity): (&[u32], Vec<(u8, TargetId)>)| Plan {
        data: (0..geometry.data)
            .filter(|&index| index != wanted)
            .map(|index| (index, range.start..range.end.min(lengths[usize::from(index)]).max(range.start)))
            .collect(),
        parity,
    };
    by_lengths.into_iter().map(plan).collect()
}

/// Cuts a range of a stripe's data into ranges of its data fragments.
pub(crate) fn pieces(geometry: Geometry, range: Range<u32>) -> Vec<(u8, Range<u32>)> {
    let size = geometry.fragment_size;
    let mut pieces = Vec::with_capacity(1);
    let mut at = range.start;
    while at < range.end {
        let index = at / size;
        let end = range.end.min((index + 1) * size);
        pieces.push((index as u8, at - index * size..end - index * size));
        at = end;
    }
    pieces
}

#[cfg(test)]
mod tests {
    use protocol::address::Position;
    use protocol::fragment::{FragmentHeader, FragmentId};
    use protocol::id::{GroupId, LogId, StripeNumber};

    use super::*;

    const GEOMETRY: Geometry = Geometry { data: 2, parity: 2, fragment_size: 4096 };
    const RUN: RunNumber = RunNumber(0);

    fn parity(target: u32, length: u32) -> (TargetId, StoredFragment) {
        let stripe = StripeNumber(0);
        let header = FragmentHeader {
            id: FragmentId { log: LogId(1), stripe, run: RUN, part: Part::Parity(0) },
            group: GroupId(0),
            geometry: GEOMETRY,
            mark: Position::START,
            previous_end: 0,
            complete_below: stripe,
            data_lengths: vec![100, 0],
        };
        (TargetId(target), StoredFragment { header, length, generation: 0 })
    }

    #[test]
    fn a_parity_that_two_targets_claim_counts_once() {
        let plans = plans(&[parity(2, 100), parity(3, 100)], (RUN, GEOMETRY), 0, &(0..100));
        assert_eq!(plans, [Plan { data: vec![(1, 0..0)], parity: vec![(0, TargetId(2))] }]);
    }

    #[test]
    fn a_parity_that_was_cut_decodes_as_far_as_it_goes() {
        let ways = |range: Range<u32>| plans(&[parity(2, 60)], (RUN, GEOMETRY), 0, &range).len();
        assert_eq!((ways(0..60), ways(0..61), ways(60..100)), (1, 0, 0));
    }
}
