//! How somebody who reads a whole stripe goes around one of its targets: any k of its k + m fragments give the data, so that a
//! parity may take the place of one. Decides, never awaits.
//!
//! Rules
//! 1. Only who has the rest of the stripe, or has asked for it, goes around. Who wants a few bytes asks who holds what, and
//!    decodes ([`crate::decode`]).
//! 2. At most one fragment of a stripe is gone around; where more are away they are decoded.
//! 3. Only a stripe that is full is read so: its parity never changes, and every byte of it counts.
//! 4. A target that is away is gone around. Where none is, but a parity lies on this machine, that from which most is under
//!    way: one fragment less has to come. Else whoever would wait longest ([`crate::turns`]).

use std::collections::BTreeMap;
use std::ops::Range;

use bytes::Bytes;
use protocol::address::LogAddress;
use protocol::erasure::{Survivor, reconstruct};
use protocol::fragment::{FragmentId, Geometry, Part};
use protocol::id::{LogId, RunNumber, StripeNumber, TargetId};
use protocol::maps::{GroupEntry, Maps, TargetEntry};
use protocol::storage::StoredFragment;

/// Who asks for so much of a stripe at once, one part in so many, will want the rest of it.
const GOOD_PART: u64 = 4;

/// A piece of a data fragment that is computed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Detour {
    /// What is wanted, within one data fragment.
    pub(crate) address: LogAddress,
    /// Of the stripe.
    pub(crate) geometry: Geometry,
    /// The parity that takes the fragment's place.
    pub(crate) parity: FragmentId,
    /// Where that lies.
    pub(crate) target: TargetId,
}

impl Detour {
    /// The data fragment that is done without.
    pub(crate) fn wanted(&self) -> u8 {
        (self.address.offset / self.geometry.fragment_size) as u8
    }

    /// The piece, within the fragment and within the parity.
    pub(crate) fn range(&self) -> Range<u32> {
        let start = self.address.offset % self.geometry.fragment_size;
        start..start + self.address.length
    }

    /// The data fragments that are needed in its place.
    fn others_in_stripe(&self) -> impl Iterator<Item = u8> + use<> {
        let wanted = self.wanted();
        (0..self.geometry.data).filter(move |&index| index != wanted)
    }

    /// The same piece of all other data fragments: who has these needs only the parity.
    pub fn others(&self) -> impl Iterator<Item = LogAddress> + use<> {
        let (address, size, start) = (self.address, self.geometry.fragment_size, self.range().start);
        self.others_in_stripe().map(move |index| LogAddress { offset: u32::from(index) * size + start, ..address })
    }

    /// The piece, out of [`Detour::others`] and the parity's.
    pub(crate) fn compute(&self, others: &[Bytes], parity: &Bytes) -> Bytes {
        let (data, parity_at) = (self.geometry.data, self.parity.part);
        let Part::Parity(at) = parity_at else { unreachable!("a parity takes the fragment's place") };
        let indexes = self.others_in_stripe().chain([data + at]);
        let pieces = others.iter().chain([parity]);
        let survivors: Vec<_> = indexes.zip(pieces).map(|(index, bytes)| Survivor { index, bytes }).collect();
        assert!(survivors.iter().all(|it| it.bytes.len() == self.address.length as usize), "the same piece of each");
        reconstruct(data, self.wanted(), &survivors, self.address.length as usize).into()
    }

    /// Whether a parity that its target shows is that of a full stripe.
    pub(crate) fn fits(&self, shown: &StoredFragment) -> bool {
        let size = self.geometry.fragment_size;
        let is_full = shown.length == size && shown.header.data_lengths.iter().all(|&length| length == size);
        shown.header.id == self.parity && shown.header.geometry == self.geometry && is_full
    }
}

/// A way to a piece.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Way {
    /// The target that is asked: of the data fragment, or of the parity by which it is gone around.
    pub(crate) target: TargetId,
    /// It is on the reader's own machine.
    pub(crate) is_here: bool,
    pub(crate) detour: Option<Detour>,
}

/// The ways to a piece that one target holds.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Ways {
    pub(crate) address: LogAddress,
    pub(crate) first: Way,
    /// Those around its target, for where that takes long.
    pub(crate) other: Vec<Way>,
}

impl Ways {
    /// All of them, the first one first.
    pub(crate) fn all(&self) -> impl Iterator<Item = &Way> {
        std::iter::once(&self.first).chain(&self.other)
    }

    /// Leaves only detours that are worth it. `None` where the first choice is not.
    pub fn keep_detours(mut self, is_worth_it: impl Fn(&Detour) -> bool) -> Option<Ways> {
        let keep = |way: &Way| way.detour.as_ref().is_none_or(&is_worth_it);
        self.other.retain(keep);
        keep(&self.first).then_some(self)
    }
}

/// What each target costs who reads from it.
pub(crate) struct Costs<'a> {
    /// Bytes under way from it.
    pub(crate) under_way: BTreeMap<TargetId, u64>,
    /// Whether it is on the reader's own machine.
    pub(crate) is_here: &'a dyn Fn(TargetId) -> bool,
}

impl Costs<'_> {
    /// After how many bytes `length` more have come.
    fn of(&self, target: TargetId, length: u32) -> u64 {
        if (self.is_here)(target) {
            return 0;
        }
        self.under_way.get(&target).copied().unwrap_or(0) + u64::from(length)
    }

    fn around(&self, detour: Detour) -> Way {
        Way { target: detour.target, is_here: (self.is_here)(detour.target), detour: Some(detour) }
    }

    /// The way to a data fragment itself, or to its mirror.
    fn straight(&self, stripe: &Stripe<'_>, wanted: u8) -> Way {
        let target = stripe.target(Part::Data(wanted));
        let is_mirrored = stripe.group.geometry.data == 1 && stripe.group.geometry.parity > 0;
        let is_mirrored_here = is_mirrored && (self.is_here)(stripe.target(Part::Parity(0)));
        Way { target, is_here: (self.is_here)(target) || is_mirrored_here, detour: None }
    }

    fn add(&mut self, target: TargetId, length: u32) {
        *self.under_way.entry(target).or_default() += u64::from(length);
    }
}

/// How much of its stripe lies behind `address`, in bytes, where who wants that too had better ask for all at once; else zero.
/// That is where some of its data is away, or on other machines and `asked` bytes are asked for at once: a good part of it.
pub(crate) fn rest_of_stripe(maps: &Maps, address: LogAddress, asked: u64, is_here: &dyn Fn(TargetId) -> bool) -> u32 {
    let Some((_, stripe)) = Stripe::of(maps, address) else { return 0 };
    let geometry = stripe.group.geometry;
    let mut data = (0..geometry.data).map(Part::Data);
    let is_near = data.clone().all(|part| is_here(stripe.target(part)));
    let is_little = asked * GOOD_PART < u64::from(geometry.stripe_size());
    if (is_near || is_little) && data.all(|part| stripe.is_there(part)) {
        return 0;
    }
    geometry.stripe_size().saturating_sub(address.offset.saturating_add(address.length))
}

/// The ways to each of `pieces`, all of which are wanted; `None` where the maps do not say who has it.
pub(crate) fn ways(maps: &Maps, pieces: &[LogAddress], mut costs: Costs<'_>) -> Vec<Option<Ways>> {
    let mut gone_around: BTreeMap<(LogId, StripeNumber), Option<Around>> = BTreeMap::new();
    let ways = |&address: &LogAddress| {
        let (run, stripe) = Stripe::of(maps, address)?;
        let wanted = stripe.lies_in(address)?;
        let around = |at| {
            let (part, geometry) = (Part::Parity(at), stripe.group.geometry);
            let parity = FragmentId { log: address.log, stripe: address.stripe, run, part };
            costs.around(Detour { address, geometry, parity, target: stripe.target(part) })
        };
        let chosen = *gone_around.entry((address.log, address.stripe)).or_insert_with(|| stripe.around(&costs));
        let ways = match chosen {
            Some(Around { wanted: it, parity }) if it == wanted => {
                Ways { address, first: around(parity), other: Vec::new() }
            }
            Some(_) => Ways { address, first: costs.straight(&stripe, wanted), other: Vec::new() },
            None => {
                // The mirror of one data fragment is read as such.
                let others = stripe.parities().filter(|_| stripe.group.geometry.data > 1);
                Ways { address, first: costs.straight(&stripe, wanted), other: others.map(around).collect() }
            }
        };
        costs.add(ways.first.target, address.length);
        Some(ways)
    };
    pieces.iter().map(ways).collect()
}

/// Which data fragment of a stripe is gone around, by which parity, whoever has most to do.
#[derive(Clone, Copy)]
struct Around {
    wanted: u8,
    parity: u8,
}

/// One stripe in one run.
struct Stripe<'a> {
    maps: &'a Maps,
    group: &'a GroupEntry,
    number: StripeNumber,
}

impl<'a> Stripe<'a> {
    /// The stripe of an address, in the newest run that may have it.
    fn of(maps: &'a Maps, address: LogAddress) -> Option<(RunNumber, Stripe<'a>)> {
        let run = maps.logs.get(&address.log)?.run(address.stripe)?;
        let group = maps.groups.get(&run.group(address.stripe))?;
        Some((run.number, Stripe { maps, group, number: address.stripe }))
    }

    /// The way around one of its data fragments that is taken in any case, if there is one.
    fn around(&self, costs: &Costs<'_>) -> Option<Around> {
        let Geometry { data, fragment_size, .. } = self.group.geometry;
        let cost = |part| costs.of(self.target(part), fragment_size);
        let parity = self.parities().min_by_key(|&at| cost(Part::Parity(at)))?;
        let mut away = (0..data).filter(|&index| !self.is_there(Part::Data(index)));
        if let Some(wanted) = away.next() {
            return away.next().is_none().then_some(Around { wanted, parity });
        }
        let wanted = (0..data).max_by_key(|&index| cost(Part::Data(index)))?;
        let is_nearer = (costs.is_here)(self.target(Part::Parity(parity))) && cost(Part::Data(wanted)) > 0;
        // The mirror of one data fragment is read as such.
        (data > 1 && is_nearer).then_some(Around { wanted, parity })
    }

    /// Its parities that are there.
    fn parities(&self) -> impl Iterator<Item = u8> {
        (0..self.group.geometry.parity).filter(|&at| self.is_there(Part::Parity(at)))
    }

    fn target(&self, part: Part) -> TargetId {
        self.group.targets[self.group.geometry.member(self.number, part)]
    }

    /// Whether the target of a part serves, and has what it should.
    fn is_there(&self, part: Part) -> bool {
        let target = self.target(part);
        self.maps.is_whole_in(self.group, target) && self.maps.targets.get(&target).is_some_and(TargetEntry::serves)
    }

    /// The data fragment in which a piece lies, if it lies in one: it may have been cut by other maps.
    fn lies_in(&self, piece: LogAddress) -> Option<u8> {
        let Geometry { data, fragment_size, .. } = self.group.geometry;
        let (index, start) = (piece.offset / fragment_size, piece.offset % fragment_size);
        (index < u32::from(data) && piece.length <= fragment_size - start).then_some(index as u8)
    }
}

#[cfg(test)]
mod tests {
    use protocol::address::Position;
    use protocol::fragment::FragmentHeader;
    use protocol::id::{FenceEpoch, GroupId};
    use protocol::maps::{LogEntry, LogState, Run, TargetState, Writer};

    use super::*;

    const SIZE: u32 = 4096;
    const GEOMETRY: Geometry = Geometry { data: 2, parity: 2, fragment_size: SIZE };
    const LOG: LogId = LogId(1);

    /// One log over one group of four targets, of which some are away. In stripe 0 target `i` has part `i`.
    fn maps(away: &[u32]) -> Maps {
        let mut maps = Maps::empty(1, 2);
        for target in 0..4 {
            let mut entry = TargetEntry::new(target, target.to_string());
            if away.contains(&target) {
                entry.state = TargetState::Failed;
            }
            maps.targets.insert(TargetId(target), entry);
        }
        maps.groups.insert(GroupId(0), GroupEntry::new((0..4).map(TargetId).collect(), GEOMETRY, true));
        let run = Run::new(RunNumber(5), StripeNumber(0), vec![GroupId(0)]);
        let state = LogState::Open(FenceEpoch(0));
        let log = LogEntry::new((0, 0), Writer::Client, vec![run], state);
        maps.logs.insert(LOG, log);
        maps
    }

    fn piece(offset: u32, length: u32) -> LogAddress {
        LogAddress { log: LOG, stripe: StripeNumber(0), offset, length }
    }

    /// Nothing is under way, and all targets are on other machines.
    fn plain(maps: &Maps, pieces: &[LogAddress]) -> Vec<Option<Detour>> {
        let ways = ways(maps, pieces, Costs { under_way: BTreeMap::new(), is_here: &|_| false });
        ways.into_iter().map(|ways| ways.and_then(|ways| ways.first.detour)).collect()
    }

    fn rest(away: &[u32], address: LogAddress, asked: u64) -> u32 {
        rest_of_stripe(&maps(away), address, asked, &|target| target.0 != 1)
    }

    /// Which piece of a whole stripe is gone around, and by which target, where so much is under way from each, in fragments.
    fn way(under_way: [u64; 4], here: &[u32]) -> Option<(u8, u32)> {
        let under_way = (0..).map(TargetId).zip(under_way.map(|fragments| fragments * u64::from(SIZE))).collect();
        let costs = Costs { under_way, is_here: &|target| here.contains(&target.0) };
        let found = ways(&maps(&[]), &[piece(0, SIZE), piece(SIZE, SIZE)], costs);
        let around = found.into_iter().flatten().filter_map(|ways| ways.first.detour);
        around.map(|detour| (detour.wanted(), detour.target.0)).next()
    }

    #[test]
    fn each_piece_may_be_gone_around_by_any_parity_that_is_there() {
        let found = |away: &[u32]| {
            let costs = Costs { under_way: [(TargetId(0), 9 * u64::from(SIZE))].into(), is_here: &|_| false };
            let found = ways(&maps(away), &[piece(0, SIZE), piece(SIZE + 7, 9)], costs);
            found.into_iter().map(|ways| ways.expect("the maps say who has it")).collect::<Vec<_>>()
        };
        for (ways, index) in found(&[]).iter().zip([0, 1]) {
            assert_eq!((ways.first.target, &ways.first.detour), (TargetId(index), &None), "whoever is busy");
            let around = |way: &Way| way.detour.as_ref().map(|detour| (detour.wanted(), detour.target.0));
            let other: Vec<_> = ways.other.iter().map(around).collect();
            assert_eq!(other, [2, 3].map(|parity| Some((index as u8, parity))));
        }
        assert!(found(&[3]).iter().all(|ways| ways.other.len() == 1));
        assert!(found(&[1]).iter().all(|ways| ways.other.is_empty()), "one is gone around already");
    }

    #[test]
    fn a_detour_that_is_not_worth_it_is_none() {
        let mut found = ways(
            &maps(&[1]),
            &[piece(0, 9), piece(SIZE, 9)],
            Costs { under_way: BTreeMap::new(), is_here: &|_| false },
        );
        let [straight, around] = [0, 1].map(|at| found[at].take().expect("the maps say who has it"));
        assert_eq!(around.clone().keep_detours(|_| true), Some(around.clone()));
        assert_eq!((around.keep_detours(|_| false), straight.clone().keep_detours(|_| false)), (None, Some(straight)));
    }

    #[test]
    fn what_is_on_this_machine_takes_the_place_of_what_is_not() {
        assert_eq!(way([0, 1, 0, 0], &[3]), Some((1, 3)));
        assert_eq!(way([0, 0, 0, 0], &[2]), Some((1, 2)));
        assert_eq!(way([5, 0, 0, 0], &[0, 1, 2, 3]), None, "here nobody waits for a link");
        assert_eq!(way([5, 0, 0, 0], &[0, 3]), Some((1, 3)));
    }

    #[test]
    fn what_is_away_is_gone_around_by_the_first_parity_that_is_there() {
        let pieces = [piece(100, 200), piece(SIZE + 100, 300), piece(SIZE + 400, 1)];
        assert_eq!(plain(&maps(&[]), &pieces), [None, None, None]);
        for (away, target) in [(&[1][..], 2), (&[1, 2], 3)] {
            let found = plain(&maps(away), &pieces);
            assert_eq!(found[0], None, "its target is there");
            let detour = found[1].as_ref().expect("its target is away");
            let parity = Part::Parity(target as u8 - 2);
            assert_eq!(
                (detour.target, detour.parity.part, detour.parity.run),
                (TargetId(target), parity, RunNumber(5))
            );
            assert_eq!((detour.wanted(), detour.range()), (1, 100..400));
            assert_eq!(detour.others().collect::<Vec<_>>(), [piece(100, 300)]);
            assert!(found[2].is_some());
        }
    }

    #[test]
    fn there_is_no_way_where_more_is_away_or_pieces_were_cut_by_other_maps() {
        for away in [&[0, 1][..], &[1, 2, 3]] {
            assert_eq!(plain(&maps(away), &[piece(SIZE, 10)]), [None]);
        }
        let odd = [piece(SIZE, SIZE + 1), piece(2 * SIZE, 1), piece(SIZE - 1, 2)];
        assert_eq!(plain(&maps(&[0, 1]), &odd), [None, None, None]);
        assert_eq!(plain(&maps(&[1]), &odd), [None, None, None]);
    }

    #[test]
    fn the_rest_of_a_stripe_is_asked_for_only_where_data_is_away() {
        assert_eq!(rest(&[2, 3], piece(10, 20), 0), 0);
        assert_eq!(rest(&[1], piece(10, 20), 0), 2 * SIZE - 30);
        assert_eq!(rest(&[1], piece(2 * SIZE, 20), 0), 0);
        assert_eq!(rest(&[1], piece(10, u32::MAX), 0), 0, "no manager tells of such");
    }

    #[test]
    fn who_asks_for_a_good_part_of_a_stripe_on_other_machines_asks_for_all_of_it() {
        let asked = u64::from(2 * SIZE / 4);
        assert_eq!(rest(&[], piece(10, 20), asked - 1), 0);
        assert_eq!(rest(&[], piece(10, 20), asked), 2 * SIZE - 30);
        assert_eq!(rest_of_stripe(&maps(&[]), piece(10, 20), asked, &|_| true), 0);
    }

    #[test]
    fn only_a_full_stripe_has_the_parity_that_fits() {
        let detour = plain(&maps(&[1]), &[piece(SIZE, 10)]).remove(0).expect("its target is away");
        let stored = |lengths: [u32; 2], length| {
            let header = FragmentHeader {
                id: detour.parity,
                group: GroupId(0),
                geometry: GEOMETRY,
                mark: Position::START,
                previous_end: 0,
                complete_below: StripeNumber(0),
                data_lengths: lengths.to_vec(),
            };
            StoredFragment { header, length, generation: 0 }
        };
        assert!(detour.fits(&stored([SIZE, SIZE], SIZE)));
        assert!(!detour.fits(&stored([SIZE, SIZE - 1], SIZE)));
        assert!(!detour.fits(&stored([SIZE, SIZE], SIZE - 1)));
    }

    #[test]
    fn what_is_computed_is_what_was_written() {
        let data: Vec<Vec<u8>> =
            (0..2u8).map(|index| (0..SIZE).map(|at| (at as u8).wrapping_mul(index + 3)).collect()).collect();
        let mut parities = vec![vec![0; SIZE as usize]; 2];
        for (index, bytes) in (0..).zip(&data) {
            protocol::erasure::accumulate(&mut parities, index, 0, bytes);
        }
        for (away, parity) in [(&[0][..], 0), (&[0, 2], 1)] {
            let detour = plain(&maps(away), &[piece(100, 50)]).remove(0).expect("its target is away");
            let part = |bytes: &[u8]| Bytes::copy_from_slice(&bytes[100..150]);
            assert_eq!(detour.compute(&[part(&data[1])], &part(&parities[parity])), part(&data[0]));
        }
    }
}
