//! What one byte space of a simulated disk holds: what reads see, and what would be there after a power loss.
//!
//! Invariants:
//! 1. `seen` is what the last landed change to each byte made of it; bytes on no page are zero.
//! 2. `stable` differs from `seen` only in bytes of `changes`, and, after a sync failed, of changes it covered.
//! 3. `changes` are in the order in which they landed, and their sequence numbers rise.
//! 4. Sizes never shrink but by a power loss, which may take unsynced growth back.
//!
//! **A power loss** decides for each unsynced write alone: it is lost, or whole, or a prefix of its sectors is there, or
//! each of its sectors is there or not by a coin. A sector then shows the last of its states that any write brought to
//! the medium: of two writes to one sector, the older cannot undo the younger. The size is that of some moment since
//! the last sync: data may lie beyond it (and is gone) or be missing before it (and is zero).
//!
//! **A failed sync** decides for the writes it covered in the same way, at once. Reads go on to see them, yet no later
//! sync brings them to the medium: the page cache took them for clean.

use std::collections::BTreeMap;
use std::ops::Range;
use std::sync::Arc;

use bytes::Bytes;

use super::Dice;

/// What a disk writes whole or not at all.
pub(super) const SECTOR: u64 = crate::disk::SECTOR as u64;
/// How contents are kept, and room is counted.
pub(super) const PAGE: u64 = 4096;

type Page = [u8; PAGE as usize];

/// Pages are shared between `seen` and `stable` until one is written.
type Pages = BTreeMap<u64, Arc<Page>>;

/// The content of one byte space.
#[derive(Default)]
pub(super) struct Medium {
    seen: Pages,
    stable: Pages,
    changes: Vec<Change>,
    size_seen: u64,
    size_stable: u64,
    sequence: u64,
    /// A sync failed once: `seen` may hold what no sync will make stable.
    doubtful: bool,
}

/// Something that landed and was not synced.
struct Change {
    sequence: u64,
    offset: u64,
    content: Content,
    size_after: u64,
}

enum Content {
    Bytes(Bytes),
    Zeros(u64),
}

/// What becomes of one unsynced change.
enum Fate {
    Lost,
    Whole,
    /// Its first so many sectors.
    Prefix(u64),
    /// Each sector by a coin.
    Torn,
}

impl Medium {
    /// The end of the last written byte.
    pub(super) fn size(&self) -> u64 {
        self.size_seen
    }

    /// The number of the last change that landed: what a sync called now must cover.
    pub(super) fn sequence(&self) -> u64 {
        self.sequence
    }

    /// What reads see; short at the end of the space.
    pub(super) fn read(&self, offset: u64, length: usize) -> Bytes {
        let end = offset.saturating_add(length as u64).min(self.size_seen);
        if offset >= end {
            return Bytes::new();
        }
        let mut bytes = vec![0; (end - offset) as usize];
        for (index, page) in self.seen.range(offset / PAGE..end.div_ceil(PAGE)) {
            let start = (index * PAGE).max(offset);
            let stop = ((index + 1) * PAGE).min(end);
            let from = &page[(start - index * PAGE) as usize..(stop - index * PAGE) as usize];
            bytes[(start - offset) as usize..(stop - offset) as usize].copy_from_slice(from);
        }
        Bytes::from(bytes)
    }

    /// A write, or a part of one, lands.
    pub(super) fn write(&mut self, offset: u64, bytes: Bytes) {
        self.size_seen = self.size_seen.max(offset + bytes.len() as u64);
        self.land(offset, Content::Bytes(bytes));
    }

    /// A durable write lands. What of its sectors was not synced, of one that was cut short, is nowhere any more.
    pub(super) fn write_durably(&mut self, offset: u64, bytes: Bytes) {
        let range = offset..offset + bytes.len() as u64;
        assert!(range.end <= self.size_stable, "only what was synced before is written durably");
        let changes = std::mem::take(&mut self.changes);
        self.changes = changes.into_iter().flat_map(|change| change.outside(&range)).collect();
        let change =
            Change { sequence: self.sequence, offset, content: Content::Bytes(bytes), size_after: self.size_seen };
        apply(&mut self.seen, &change, range.clone());
        apply(&mut self.stable, &change, range);
    }

    /// A range becomes zero. The size stays.
    pub(super) fn zero(&mut self, range: Range<u64>) {
        let end = range.end.min(self.size_seen);
        if range.start < end {
            self.land(range.start, Content::Zeros(end - range.start));
        }
    }

    /// Makes every change up to `covered` stable.
    pub(super) fn sync(&mut self, covered: u64) {
        let count = self.changes.partition_point(|change| change.sequence <= covered);
        let all = count == self.changes.len();
        for change in self.changes.drain(..count) {
            self.size_stable = change.size_after;
            if all && !self.doubtful {
                // The short way: nothing younger is in the way, so that whole pages can be shared.
                share(&self.seen, &mut self.stable, change.range());
            } else {
                apply(&mut self.stable, &change, change.range());
            }
        }
    }

    /// A sync of every change up to `covered` failed.
    pub(super) fn fail_sync(&mut self, covered: u64, dice: &mut Dice) {
        let count = self.changes.partition_point(|change| change.sequence <= covered);
        let changes: Vec<Change> = self.changes.drain(..count).collect();
        self.doubtful |= !changes.is_empty();
        settle(&mut self.stable, &changes, dice);
        self.size_stable = size_after(self.size_stable, &changes, dice);
    }

    /// The machine lost power: what was not synced meets its fate.
    pub(super) fn lose_power(&mut self, dice: &mut Dice) {
        let changes = std::mem::take(&mut self.changes);
        settle(&mut self.stable, &changes, dice);
        self.size_stable = size_after(self.size_stable, &changes, dice);
        truncate(&mut self.stable, self.size_stable);
        self.seen = self.stable.clone();
        self.size_seen = self.size_stable;
        self.doubtful = false;
    }

    /// Turns one bit of the byte at `offset`, on the medium and in what reads see.
    pub(super) fn flip(&mut self, offset: u64, bit: u8) {
        for pages in [&mut self.seen, &mut self.stable] {
            if let Some(page) = pages.get_mut(&(offset / PAGE)) {
                Arc::make_mut(page)[(offset % PAGE) as usize] ^= 1 << (bit % 8);
            }
        }
    }

    /// The offset of some byte that was written; none if nothing was.
    pub(super) fn some_byte(&self, dice: &mut Dice) -> Option<u64> {
        if self.seen.is_empty() {
            return None;
        }
        let index = self.seen.keys().nth(dice.below(self.seen.len() as u64) as usize)?;
        let start = index * PAGE;
        let end = (start + PAGE).min(self.size_seen);
        (start < end).then(|| dice.within(start..end))
    }

    /// Where the pages that are there begin.
    pub(super) fn pages(&self) -> impl Iterator<Item = u64> {
        self.seen.keys().map(|index| index * PAGE)
    }

    fn land(&mut self, offset: u64, content: Content) {
        self.sequence += 1;
        let change = Change { sequence: self.sequence, offset, content, size_after: self.size_seen };
        if change.range().is_empty() {
            return;
        }
        apply(&mut self.seen, &change, change.range());
        self.changes.push(change);
    }
}

impl Change {
    fn range(&self) -> Range<u64> {
        let length = match &self.content {
            Content::Bytes(bytes) => bytes.len() as u64,
            Content::Zeros(length) => *length,
        };
        self.offset..self.offset + length
    }

    /// What of it lies before `range`, and what behind.
    fn outside(self, range: &Range<u64>) -> impl Iterator<Item = Change> + use<> {
        let own = self.range();
        let parts = [own.start..own.end.min(range.start), own.start.max(range.end)..own.end];
        parts.into_iter().filter(|part| !part.is_empty()).map(move |part| {
            let content = match &self.content {
                Content::Bytes(bytes) => {
                    Content::Bytes(bytes.slice((part.start - own.start) as usize..(part.end - own.start) as usize))
                }
                Content::Zeros(_) => Content::Zeros(part.end - part.start),
            };
            Change { offset: part.start, content, ..self }
        })
    }

    /// The sectors it touches.
    fn sectors(&self) -> Range<u64> {
        let range = self.range();
        range.start / SECTOR..range.end.div_ceil(SECTOR)
    }
}

impl Fate {
    fn roll(sectors: u64, dice: &mut Dice) -> Fate {
        match dice.below(4) {
            0 => Fate::Lost,
            1 => Fate::Whole,
            2 => Fate::Prefix(dice.below(sectors + 1)),
            _ => Fate::Torn,
        }
    }

    fn spares(&self, sector_index: u64, dice: &mut Dice) -> bool {
        match self {
            Fate::Lost => false,
            Fate::Whole => true,
            Fate::Prefix(count) => sector_index < *count,
            Fate::Torn => dice.coin(),
        }
    }
}

/// Which of the pieces of something in flight arrive, when it is cut short: the same four fates.
pub(super) fn survivors(pieces: u64, dice: &mut Dice) -> Vec<bool> {
    let fate = Fate::roll(pieces, dice);
    (0..pieces).map(|index| fate.spares(index, dice)).collect()
}

/// Rolls the fate of unsynced changes, and brings to `stable` what the dice spare.
fn settle(stable: &mut Pages, changes: &[Change], dice: &mut Dice) {
    let mut last_by_sector: BTreeMap<u64, u64> = BTreeMap::new();
    for change in changes {
        let sectors = change.sectors();
        let fate = Fate::roll(sectors.end - sectors.start, dice);
        for sector in sectors.clone() {
            if fate.spares(sector - sectors.start, dice) {
                last_by_sector.insert(sector, change.sequence);
            }
        }
    }
    for change in changes {
        for sector in change.sectors() {
            if last_by_sector.get(&sector).is_some_and(|last| *last >= change.sequence) {
                apply(stable, change, sector * SECTOR..(sector + 1) * SECTOR);
            }
        }
    }
}

/// The size that the medium shows when `changes` were not synced: one of those it had, the last as likely as the rest.
fn size_after(size_stable: u64, changes: &[Change], dice: &mut Dice) -> u64 {
    let Some(last) = changes.last() else { return size_stable };
    if dice.coin() {
        return last.size_after;
    }
    match dice.below(changes.len() as u64 + 1) {
        0 => size_stable,
        count => changes[count as usize - 1].size_after,
    }
}

/// Applies that part of `change` which lies within `window`.
fn apply(pages: &mut Pages, change: &Change, window: Range<u64>) {
    let range = change.range();
    let (mut at, end) = (range.start.max(window.start), range.end.min(window.end));
    while at < end {
        let index = at / PAGE;
        let stop = end.min((index + 1) * PAGE);
        let inside = (at - index * PAGE) as usize..(stop - index * PAGE) as usize;
        match &change.content {
            Content::Zeros(_) if inside.len() == PAGE as usize => drop(pages.remove(&index)),
            Content::Zeros(_) => {
                if let Some(page) = pages.get_mut(&index) {
                    Arc::make_mut(page)[inside].fill(0);
                }
            }
            Content::Bytes(bytes) => {
                let page = pages.entry(index).or_insert_with(|| Arc::new([0; PAGE as usize]));
                let from = (at - change.offset) as usize..(stop - change.offset) as usize;
                Arc::make_mut(page)[inside].copy_from_slice(&bytes[from]);
            }
        }
        at = stop;
    }
}

/// Makes the pages of `range` in `stable` the same as in `seen`.
fn share(seen: &Pages, stable: &mut Pages, range: Range<u64>) {
    for index in range.start / PAGE..range.end.div_ceil(PAGE) {
        match seen.get(&index) {
            Some(page) => drop(stable.insert(index, page.clone())),
            None => drop(stable.remove(&index)),
        }
    }
}

/// Forgets everything from `size` on.
fn truncate(pages: &mut Pages, size: u64) {
    drop(pages.split_off(&size.div_ceil(PAGE)));
    if let Some(page) = pages.get_mut(&(size / PAGE)) {
        Arc::make_mut(page)[(size % PAGE) as usize..].fill(0);
    }
}
