//! Fragment headers as a fuzzer makes them: mostly such as a log has, in every field sometimes anything.

use protocol::address::Position;
use protocol::fragment::{FragmentHeader, FragmentId, Geometry, Part};
use protocol::id::{GroupId, LogId, RunNumber, StripeNumber};

use crate::feed::Feed;

/// A header of a small log whose stripes have the shape `usual`.
pub fn header(feed: &mut Feed<'_>, usual: Geometry) -> FragmentHeader {
    let odd = feed.byte();
    let geometry = match odd & 1 {
        0 => usual,
        _ => Geometry { data: feed.byte(), parity: feed.byte(), fragment_size: feed.word() },
    };
    let id = FragmentId { log: LogId(1 + u64::from(feed.choice(2))), ..id(feed, odd & 2 != 0) };
    let lengths = match (id.part, odd & 4) {
        (Part::Parity(_), 0) => usize::from(geometry.data),
        (_, 0) => 0,
        _ => usize::from(feed.byte()),
    };
    FragmentHeader {
        id,
        group: GroupId(if odd & 8 == 0 { 0 } else { feed.word() }),
        geometry,
        mark: if odd & 16 == 0 { Position::START } else { Position::new(StripeNumber(feed.number()), feed.word()) },
        previous_end: if odd & 32 == 0 { 0 } else { feed.word() },
        complete_below: StripeNumber(if odd & 64 == 0 { 0 } else { feed.number() }),
        data_lengths: (0..lengths).map(|_| if odd & 128 == 0 { length(feed, usual) } else { feed.word() }).collect(),
    }
}

/// The name of a fragment of a small log, or of any.
pub fn id(feed: &mut Feed<'_>, any: bool) -> FragmentId {
    let (of, at) = if any { (feed.byte(), feed.byte()) } else { (feed.choice(3), feed.choice(2)) };
    let part = match feed.choice(4) {
        0 | 1 => Part::Data(of),
        2 => Part::Parity(at),
        _ => Part::Copy { of, at },
    };
    let stripe = StripeNumber(if any { feed.number() } else { feed.choice(4).into() });
    FragmentId { log: LogId(1), stripe, run: RunNumber(feed.choice(3).into()), part }
}

/// A length that a fragment of the shape may have, in whole blocks or not.
pub fn length(feed: &mut Feed<'_>, usual: Geometry) -> u32 {
    let blocks = u32::from(feed.choice(8)) * 4096;
    let odd = feed.byte();
    (blocks + if odd < 128 { 0 } else { u32::from(odd) * 16 }).min(usual.fragment_size)
}
