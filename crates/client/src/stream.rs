//! Who reads in order, and how far to read ahead of them. Decides, never awaits.
//!
//! A file may be read by a few at once, each in order (a player and an indexer); each is a stream. What is read out of
//! order costs nothing but its own bytes.

use std::ops::Range;

/// How many readers in order are told apart.
const STREAMS: usize = 4;
/// The first window, once a second read followed the first, in bytes.
const WINDOW_MIN: u64 = 256 << 10;
/// The largest window, in bytes: enough for the targets of a stripe to work in parallel.
const WINDOW_MAX: u64 = 8 << 20;
/// The kernel's read-ahead sends several reads at once, and they may arrive out of order by this many bytes.
const SLACK: u64 = 512 << 10;

/// The readers of one file.
#[derive(Clone, Debug, Default)]
pub(crate) struct Streams {
    list: [Stream; STREAMS],
    clock: u64,
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

impl Streams {
    /// Takes in a read; answers what to read ahead because of it.
    pub(crate) fn read(&mut self, range: &Range<u64>) -> Option<Range<u64>> {
        self.clock += 1;
        let follows = |stream: &&mut Stream| {
            stream.used > 0 && range.start <= stream.next + SLACK && range.end + SLACK >= stream.next
        };
        let Some(stream) = self.list.iter_mut().filter(follows).max_by_key(|stream| stream.used) else {
            self.begin(range);
            return None;
        };
        stream.used = self.clock;
        // Reading what lies behind, or again, is no progress.
        let progress = range.end > stream.next;
        stream.next = stream.next.max(range.end);
        if !progress {
            return None;
        }
        stream.ahead = stream.ahead.max(stream.next);
        if stream.ahead - stream.next >= stream.window.max(WINDOW_MIN) / 2 {
            return None;
        }
        stream.window = (stream.window * 2).clamp(WINDOW_MIN, WINDOW_MAX);
        let from = stream.ahead;
        stream.ahead = stream.next + stream.window;
        Some(from..stream.ahead)
    }

    fn begin(&mut self, range: &Range<u64>) {
        let oldest = self.list.iter_mut().min_by_key(|stream| stream.used).expect("there are some");
        *oldest = Stream { next: range.end, ahead: range.end, window: 0, used: self.clock };
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn reading_in_order_opens_a_growing_window() {
        let mut streams = Streams::default();
        let mut ahead = 0;
        for at in (0..64_u64 << 20).step_by(128 << 10) {
            if let Some(range) = streams.read(&(at..at + (128 << 10))) {
                assert!(range.start >= ahead, "nothing is asked for twice");
                ahead = range.end;
            }
        }
        let end = 64 << 20;
        assert!((end + WINDOW_MAX / 2..=end + WINDOW_MAX).contains(&ahead));
    }

    #[test]
    fn reading_at_random_reads_nothing_ahead() {
        let mut streams = Streams::default();
        let places = [7_u64, 900, 33, 512, 78, 1024, 64, 300, 5, 800];
        assert!(places.iter().all(|place| streams.read(&(place << 24..(place << 24) + 4096)).is_none()));
    }

    #[test]
    fn two_readers_in_order_are_told_apart() {
        let mut streams = Streams::default();
        let (mut first, mut second) = (0, 0);
        for at in (0..8_u64 << 20).step_by(128 << 10) {
            first += usize::from(streams.read(&(at..at + (128 << 10))).is_some());
            let far = at + (1 << 30);
            second += usize::from(streams.read(&(far..far + (128 << 10))).is_some());
        }
        assert!(first > 4 && second > 4);
    }
}
