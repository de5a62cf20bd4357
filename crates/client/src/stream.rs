//! Who reads in order, and how far to read ahead of them. Decides, never awaits.
//!
//! A file may be read by a few at once, each in order (a player and an indexer); each is a stream. What is read out of
//! order costs nothing but its own bytes.

use std::collections::VecDeque;
use std::ops::Range;

/// How many readers in order are told apart.
const STREAMS: usize = 4;
/// The least window, in bytes.
const WINDOW_MIN: u64 = 256 << 10;
/// A file's beginning is often all that is read of it. Who asks for so much of it at once, in bytes, wants more.
const BEGINNING_MIN: u64 = 512 << 10;
/// And then the first window is so many times what was read: until it has come nothing else is under way.
const WINDOW_OF_BEGINNING: u64 = 16;
/// Else the first window is so many times what was read.
const WINDOW_FIRST: u64 = 2;
/// A window of this size, in bytes, is had whatever the cache is full of. Not more: where hundreds read, each would lose what
/// was read ahead for it before it came there.
const WINDOW_SURE: u64 = 512 << 10;
/// The largest window, in bytes: where links are full, a reader that waits for the busiest target has something under way
/// from all the others.
const WINDOW_MAX: u64 = 32 << 20;
/// So much of a window is asked for at once, at most, in bytes: small enough for targets to be kept busy evenly.
const STEP_MAX: u64 = 1 << 20;
/// The kernel's read-ahead sends several reads at once, and they may arrive out of order by this many bytes.
const SLACK: u64 = 512 << 10;

/// The readers of one file.
#[derive(Clone, Debug, Default)]
pub(crate) struct Streams {
    list: [Stream; STREAMS],
    clock: u64,
    /// What is to be read ahead and was not asked for yet, what was read first at the front.
    due: VecDeque<Range<u64>>,
    /// What was read ahead for who does not go on.
    given_up: Vec<Range<u64>>,
}

#[derive(Clone, Copy, Debug, Default)]
struct Stream {
    /// Just behind the furthest byte read.
    next: u64,
    /// Up to where bytes were asked for ahead.
    ahead: u64,
    window: u64,
    used: u64,
}

impl Stream {
    /// What was asked for ahead, and not read.
    fn left(&self) -> Range<u64> {
        self.next..self.ahead
    }
}

impl Streams {
    /// Takes in a read; answers whether something is due because of it. `spare` is how many bytes the cache has room for
    /// beside what others have read ahead.
    pub(crate) fn read(&mut self, range: &Range<u64>, spare: u64) -> bool {
        let ahead = self.ahead_of(range, spare);
        self.due.extend(ahead.clone());
        ahead.is_some()
    }

    /// What to ask for next. Who asks takes it just then, so that what is due is asked for in order whoever comes first.
    pub(crate) fn take_due(&mut self) -> Option<Range<u64>> {
        self.due.pop_front()
    }

    /// What to read ahead because of a read.
    fn ahead_of(&mut self, range: &Range<u64>, spare: u64) -> Option<Range<u64>> {
        self.clock += 1;
        let follows = |stream: &&mut Stream| {
            stream.used > 0 && range.start <= stream.next + SLACK && range.end + SLACK >= stream.next
        };
        let Some(stream) = self.list.iter_mut().filter(follows).max_by_key(|stream| stream.used) else {
            return self.begin(range, spare);
        };
        stream.used = self.clock;
        // Reading what lies behind, or again, is no progress.
        let progress = range.end > stream.next;
        stream.next = stream.next.max(range.end);
        if !progress {
            return None;
        }
        stream.ahead = stream.ahead.max(stream.next);
        let (window, left) = (stream.window.max(WINDOW_MIN), stream.ahead - stream.next);
        if left > window - (window / 2).min(STEP_MAX) {
            return None;
        }
        let grown = (stream.window * 2).max(WINDOW_FIRST * (range.end - range.start));
        stream.window = grown.clamp(WINDOW_MIN, most_of(spare + left));
        let from = stream.ahead;
        stream.ahead = from.max(stream.next + stream.window);
        Some(from..stream.ahead).filter(|ahead| !ahead.is_empty())
    }

    /// Nobody reads it any more.
    pub(crate) fn end(&mut self) {
        self.due.clear();
        let streams = std::mem::take(&mut self.list);
        self.given_up.extend(streams.iter().map(Stream::left).filter(|left| !left.is_empty()));
    }

    /// What was read ahead for who has not gone on, since this was asked last.
    pub(crate) fn take_given_up(&mut self) -> Vec<Range<u64>> {
        std::mem::take(&mut self.given_up)
    }

    /// What was to be read ahead up to `from` was read up to `to`.
    pub(crate) fn went_on(&mut self, from: u64, to: u64) {
        self.list.iter_mut().filter(|stream| stream.ahead == from).for_each(|stream| stream.ahead = to);
    }

    fn begin(&mut self, range: &Range<u64>, spare: u64) -> Option<Range<u64>> {
        let oldest = self.list.iter_mut().min_by_key(|stream| stream.used).expect("there are some");
        self.given_up.extend(Some(oldest.left()).filter(|left| !left.is_empty()));
        *oldest = Stream { next: range.end, ahead: range.end, window: 0, used: self.clock };
        if range.start > 0 || range.end < BEGINNING_MIN {
            return None;
        }
        oldest.window = (WINDOW_OF_BEGINNING * range.end).min(most_of(spare));
        oldest.ahead += oldest.window;
        Some(range.end..oldest.ahead)
    }
}

/// The largest window: half of what is spare, as another reader may begin at the same moment.
fn most_of(spare: u64) -> u64 {
    (spare / 2).clamp(WINDOW_SURE, WINDOW_MAX)
}

#[cfg(test)]
mod tests {
    use super::*;

    const SPARE: u64 = 1 << 30;

    /// What is due because of a read, and asked for at once.
    fn read(streams: &mut Streams, range: Range<u64>, spare: u64) -> Option<Range<u64>> {
        let is_due = streams.read(&range, spare);
        let due = streams.take_due();
        assert_eq!(due.is_some(), is_due);
        due
    }

    #[test]
    fn reading_in_order_opens_a_growing_window() {
        let mut streams = Streams::default();
        let mut ahead = 0;
        let end = 128 << 20;
        for at in (0..end).step_by(128 << 10) {
            if let Some(range) = read(&mut streams, at..at + (128 << 10), SPARE) {
                assert!(range.start >= ahead, "nothing is asked for twice");
                ahead = range.end;
            }
        }
        assert!((end + WINDOW_MAX - STEP_MAX..=end + WINDOW_MAX).contains(&ahead));
    }

    #[test]
    fn who_reads_much_at_once_has_much_ahead_soon() {
        let mut streams = Streams::default();
        let mut ahead =
            |at: u64| read(&mut streams, at << 20..(at + 1) << 20, SPARE).expect("there is more to read").end >> 20;
        assert_eq!([0, 1, 2, 3].map(|at| ahead(at) - at - 1), [16, 32, 32, 32]);
    }

    #[test]
    fn who_reads_little_of_it_has_little_ahead() {
        let mut streams = Streams::default();
        for at in (0..16 << 20).step_by(4 << 10) {
            let ahead = read(&mut streams, at..at + (4 << 10), SPARE).map_or(0, |range| range.end - at);
            assert!(ahead <= WINDOW_MIN + 8 * at, "{ahead} at {at}");
        }
    }

    #[test]
    fn a_full_cache_leaves_a_reader_what_it_is_sure_of() {
        let mut streams = Streams::default();
        let (mut next, mut ahead) = (0, 0);
        let mut read_to = |to: u64, spare| {
            for at in (next..to).step_by(128 << 10) {
                if let Some(range) = read(&mut streams, at..at + (128 << 10), spare) {
                    assert!(range.start >= ahead, "nothing is asked for twice");
                    ahead = range.end;
                }
                assert!(at < WINDOW_MAX || ahead > at + (128 << 10), "a reader in order has something ahead");
            }
            next = to;
            ahead - to
        };
        assert!(read_to(128 << 20, SPARE) > WINDOW_SURE);
        assert!(read_to(256 << 20, 0) <= WINDOW_SURE, "what others need is given back");
        assert!(read_to(384 << 20, SPARE) > WINDOW_SURE);
    }

    #[test]
    fn reading_at_random_reads_nothing_ahead() {
        let mut streams = Streams::default();
        let places = [7_u64, 900, 33, 512, 78, 1024, 64, 300, 5, 800];
        assert!(places.iter().all(|place| !streams.read(&(place << 24..(place << 24) + 4096), SPARE)));
    }

    #[test]
    fn what_is_due_is_asked_for_in_order() {
        let mut streams = Streams::default();
        let due = (0..4_u64).filter(|at| streams.read(&(at << 20..(at + 1) << 20), SPARE)).count();
        let taken: Vec<_> = std::iter::from_fn(|| streams.take_due()).collect();
        assert_eq!((due, taken.len()), (4, 4));
        assert!(taken.windows(2).all(|two| two[0].end == two[1].start));
    }

    #[test]
    fn what_was_read_ahead_for_nobody_is_given_up() {
        let mut streams = Streams::default();
        let range = read(&mut streams, 0..1 << 20, SPARE).expect("it has read much");
        assert!(streams.take_given_up().is_empty());
        // As many others as are told apart.
        for at in 1..=4_u64 {
            assert!(!streams.read(&(at << 30..(at << 30) + 4096), SPARE));
        }
        assert!(matches!(&streams.take_given_up()[..], [given_up] if *given_up == range));
        let again = read(&mut streams, 0..1 << 20, SPARE).expect("it has read much");
        assert!(streams.read(&(1 << 20..2 << 20), SPARE), "more is due, and is not asked for");
        streams.end();
        assert_eq!((streams.take_due(), streams.take_given_up().len()), (None, 1));
        assert_eq!(again, range);
    }

    #[test]
    fn two_readers_in_order_are_told_apart() {
        let mut streams = Streams::default();
        let (mut first, mut second) = (0, 0);
        for at in (0..8_u64 << 20).step_by(128 << 10) {
            first += usize::from(read(&mut streams, at..at + (128 << 10), SPARE).is_some());
            let far = at + (1 << 30);
            second += usize::from(read(&mut streams, far..far + (128 << 10), SPARE).is_some());
        }
        assert!(first > 4 && second > 4);
    }
}
