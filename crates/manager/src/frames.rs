//! The frames of a slot, in order of the lowest keys that may be in their pages.
//!
//! A slot of many files has many, and who looks for a key finds none of them in a processor's cache. So a piece of each
//! lowest key lies beside those of its neighbours, long enough to tell the names of one directory apart.
//!
//! Invariants
//! 1. `lows` and `frames` are as long as each other, and `lows` holds the piece of each frame's lowest key. `marks` are of
//!    these.
//! 2. Lowest keys strictly ascend, and the first is empty: every key is covered.

use std::cell::Cell;
use std::ops::{Index, IndexMut};
use std::sync::Arc;

use protocol::address::LogAddress;

use crate::key::Key;
use crate::marks::Marks;
use crate::page::Page;
use crate::transaction::Changes;

/// Two lines of a processor's cache: of a slot with as many pages squared, a share between two marks is no more.
const MARKS: usize = 8;

/// One page's place in a slot.
pub(crate) struct Frame {
    /// The lowest key that may be in the page.
    pub(crate) low: Key,
    pub(crate) page: Option<Arc<Page>>,
    pub(crate) stored: Option<LogAddress>,
    /// What a journal changed in the content that is stored.
    pub(crate) waiting: Changes,
    pub(crate) dirty: bool,
    /// The slot's change that came last here, so that an image knows whether it is still the newest.
    pub(crate) version: u64,
    /// Used since the evictor's hand came by. A cell, because looking is use.
    pub(crate) used: Cell<bool>,
}

impl Frame {
    /// Of a page that is not stored.
    pub(crate) fn fresh(low: Key, page: Page) -> Frame {
        Frame { page: Some(Arc::new(page)), dirty: true, used: Cell::new(true), ..Frame::cold(low, None) }
    }

    /// Of a page that is not in memory.
    pub(crate) fn cold(low: Key, stored: Option<LogAddress>) -> Frame {
        Frame { low, page: None, stored, waiting: Changes::new(), dirty: false, version: 0, used: Cell::new(false) }
    }
}

/// All frames of a slot.
pub(crate) struct Frames {
    marks: Marks<u128, MARKS>,
    lows: Vec<u128>,
    frames: Vec<Frame>,
}

impl Frames {
    /// These, in any order. Where none has the lowest key of all, one with an empty page does.
    pub(crate) fn new(mut frames: Vec<Frame>) -> Frames {
        frames.sort_unstable_by(|one, other| one.low.cmp(&other.low));
        frames.dedup_by(|one, other| one.low == other.low);
        if frames.first().is_none_or(|frame| !frame.low.is_empty()) {
            frames.insert(0, Frame { dirty: false, ..Frame::fresh(Key::new(), Page::default()) });
        }
        let lows = frames.iter().map(|frame| piece(&frame.low)).collect();
        let mut frames = Frames { marks: Marks::default(), lows, frames };
        frames.mark();
        frames
    }

    /// How many.
    pub(crate) fn count(&self) -> usize {
        self.frames.len()
    }

    /// Where the frame is in whose page a key would be.
    pub(crate) fn covering(&self, key: &[u8]) -> usize {
        let piece = piece(key);
        let share = self.marks.share(self.count(), |low| low <= piece);
        let behind = share.start + self.lows[share].partition_point(|&low| low <= piece);
        // Of those with the same piece some may lie behind the key. The first frame never does.
        (0..behind).rfind(|&at| self.lows[at] < piece || *self.frames[at].low <= *key).expect("frames cover all keys")
    }

    /// Where the frame is that has this lowest key.
    pub(crate) fn at(&self, low: &[u8]) -> Option<usize> {
        Some(self.covering(low)).filter(|&at| self.frames[at].low == low)
    }

    /// Puts a frame in its place.
    pub(crate) fn insert(&mut self, frame: Frame) {
        let at = self.covering(&frame.low) + 1;
        assert!(self.frames[at - 1].low < frame.low, "a lowest key is of one frame");
        self.lows.insert(at, piece(&frame.low));
        self.frames.insert(at, frame);
        self.mark();
    }

    /// Takes a frame out: the one before it covers its keys.
    pub(crate) fn remove(&mut self, at: usize) -> Frame {
        assert!(at > 0, "the first frame covers the lowest keys");
        self.lows.remove(at);
        self.mark();
        self.frames.remove(at)
    }

    fn mark(&mut self) {
        self.marks = Marks::of(self.lows.len(), |at| self.lows[at]);
    }

    /// All, in order.
    pub(crate) fn iter(&self) -> impl Iterator<Item = &Frame> {
        self.frames.iter()
    }

    /// All, to be changed; their lowest keys stay.
    pub(crate) fn iter_mut(&mut self) -> impl Iterator<Item = &mut Frame> {
        self.frames.iter_mut()
    }
}

impl Index<usize> for Frames {
    type Output = Frame;

    fn index(&self, at: usize) -> &Frame {
        &self.frames[at]
    }
}

impl IndexMut<usize> for Frames {
    fn index_mut(&mut self, at: usize) -> &mut Frame {
        &mut self.frames[at]
    }
}

/// The first bytes of a key, with zeros for what it lacks: no greater key has a lesser piece.
fn piece(key: &[u8]) -> u128 {
    if let Some(piece) = key.first_chunk() {
        return u128::from_be_bytes(*piece);
    }
    let mut piece = [0; size_of::<u128>()];
    piece[..key.len()].copy_from_slice(key);
    u128::from_be_bytes(piece)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn cold(low: &[u8]) -> Frame {
        Frame::cold(low.to_vec(), None)
    }

    #[test]
    fn the_frame_that_covers_a_key_is_found() {
        let stem = [9; 20];
        let ends: [&[u8]; 5] = [b"", b"\0", b"a", b"ab", b"\xff"];
        let mut lows: Vec<Vec<u8>> =
            ends.iter().flat_map(|&end| [0, 1, 15, 16, 20].map(|size| [&stem[..size], end].concat())).collect();
        lows.sort();
        lows.dedup();
        let check = |frames: &Frames| {
            for key in &lows {
                let at = frames.covering(key);
                assert!(frames[at].low <= *key && (at + 1 == frames.count() || frames[at + 1].low > *key), "{key:?}");
                assert_eq!(frames.at(key), Some(at).filter(|_| frames[at].low == *key));
            }
        };
        // The lowest is there by itself.
        let mut frames = Frames::new(lows.iter().step_by(2).skip(1).map(|low| cold(low)).rev().collect());
        check(&frames);
        lows.iter().skip(1).step_by(2).for_each(|low| frames.insert(cold(low)));
        check(&frames);
        assert_eq!(frames.count(), lows.len());
        assert!(frames.iter().map(|frame| &frame.low).eq(&lows));
    }
}
