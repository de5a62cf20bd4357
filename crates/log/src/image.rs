//! The bytes of one stripe as a recoverer puts them together from what it can read, and where its records end. Pure.

use std::collections::BTreeMap;
use std::ops::Range;

use protocol::address::Position;
use protocol::fragment::Geometry;
use protocol::id::{LogId, StripeNumber};
use protocol::record::{HEADER_SIZE, RecordHeader, RecordKind};

/// Verified bytes of one stripe. The same address means the same bytes in every run, so pieces of any may be joined.
#[derive(Clone, Debug, Default)]
pub(crate) struct Image {
    bytes: Vec<u8>,
    /// Start to end, apart from each other.
    covered: BTreeMap<u32, u32>,
}

impl Image {
    /// Adds verified bytes.
    pub(crate) fn add(&mut self, start: u32, bytes: &[u8]) {
        if bytes.is_empty() {
            return;
        }
        let (mut from, mut to) = (start, start + bytes.len() as u32);
        if self.bytes.len() < to as usize {
            self.bytes.resize(to as usize, 0);
        }
        self.bytes[start as usize..to as usize].copy_from_slice(bytes);
        let touching: Vec<_> =
            self.covered.range(..=to).filter(|(_, end)| **end >= from).map(|(s, e)| (*s, *e)).collect();
        for (start, end) in touching {
            (from, to) = (from.min(start), to.max(end));
            self.covered.remove(&start);
        }
        self.covered.insert(from, to);
    }

    /// Whether all of `range` is there.
    pub(crate) fn has(&self, range: &Range<u32>) -> bool {
        let before = self.covered.range(..=range.start).next_back();
        range.is_empty() || before.is_some_and(|(_, &end)| end >= range.end)
    }

    /// How far the beginning is there without a gap.
    pub(crate) fn prefix(&self) -> u32 {
        self.covered.get(&0).copied().unwrap_or(0)
    }

    /// The bytes of a range that is there.
    pub(crate) fn bytes(&self, range: Range<u32>) -> &[u8] {
        assert!(self.has(&range), "only what was read can be written");
        // Of nothing there is everything, wherever it lies.
        if range.is_empty() { &[] } else { &self.bytes[range.start as usize..range.end as usize] }
    }

    /// Where the last whole record of the gapless beginning ends.
    pub(crate) fn records_end(&self, log: LogId, stripe: StripeNumber) -> u32 {
        let bytes = &self.bytes[..self.prefix() as usize];
        let mut end = 0;
        while let Some((header, _)) = record_at(log, Position::new(stripe, end), &bytes[end as usize..]) {
            end += header.size();
        }
        end
    }
}

/// The whole record at the beginning of `bytes`, which lie at `place`, with its body; nothing else verifies.
pub(crate) fn record_at(log: LogId, place: Position, bytes: &[u8]) -> Option<(RecordHeader, Range<usize>)> {
    let header = RecordHeader::decode(bytes).ok()?;
    let start = HEADER_SIZE + usize::from(header.padding);
    let body = start..start.checked_add(header.length as usize)?;
    let whole = bytes.get(body.clone())?;
    let sum_of = if header.kind == RecordKind::Data { &[] } else { whole };
    header.verify(log, place, bytes, sum_of).ok()?;
    Some((header, body))
}

/// Where data fragment `index` of a stripe with `length` data bytes lies in the stripe.
pub(crate) fn fragment_range(geometry: Geometry, index: u8, length: u32) -> Range<u32> {
    let start = (u32::from(index) * geometry.fragment_size).min(length);
    start..(start + geometry.fragment_size).min(length)
}

#[cfg(test)]
mod tests {
    use super::*;
    use protocol::record::Owner;

    #[test]
    fn pieces_join_in_any_order() {
        let mut image = Image::default();
        image.add(10, &[1; 10]);
        assert_eq!(image.prefix(), 0);
        image.add(30, &[3; 5]);
        image.add(0, &[0; 12]);
        assert_eq!(image.prefix(), 20);
        assert!(image.has(&(5..20)) && !image.has(&(5..21)) && image.has(&(31..35)) && image.has(&(99..99)));
        assert_eq!((image.bytes(99..99), image.bytes(31..33)), (&[][..], &[3, 3][..]));
        image.add(20, &[2; 10]);
        assert_eq!(image.prefix(), 35);
    }

    #[test]
    fn records_end_where_nothing_verifies() {
        let (log, stripe) = (LogId(4), StripeNumber(7));
        let mut bytes = Vec::new();
        for body in [&b"one"[..], b"two", b"three"] {
            let header = RecordHeader {
                kind: RecordKind::Journal,
                padding: 0,
                length: body.len() as u32,
                owner: Owner::default(),
            };
            let place = Position::new(stripe, bytes.len() as u32);
            bytes.extend_from_slice(&header.encode(log, place, [body]));
            bytes.extend_from_slice(body);
        }
        let mut image = Image::default();
        image.add(0, &bytes);
        assert_eq!(image.records_end(log, stripe), bytes.len() as u32);
        assert_eq!(image.records_end(log, StripeNumber(8)), 0);
        let mut cut = Image::default();
        cut.add(0, &bytes[..bytes.len() - 1]);
        assert_eq!(cut.records_end(log, stripe), bytes.len() as u32 - 37);
    }

    #[test]
    fn rubbish_has_no_records() {
        let mut state = 1u64;
        for length in 0..600 {
            let rubbish: Vec<u8> = (0..length)
                .map(|_| {
                    state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
                    (state >> 56) as u8
                })
                .collect();
            let mut image = Image::default();
            image.add(0, &rubbish);
            assert_eq!(image.records_end(LogId(1), StripeNumber(0)), 0);
        }
    }
}
