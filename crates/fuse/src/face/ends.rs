//! Where the kernel takes files to end that it was told to forget something of. Decides, never awaits.
//!
//! A READ that is answered with less than it asked for tells the kernel where the file ends; but not if the kernel was told to
//! forget anything of the file since it sent that READ (`attr_version`, Linux fs/fuse/file.c): it was *overtaken*. Then a
//! program reads zeros behind the end, up to the size that the kernel knew. So such answers arrive before the kernel is told
//! more, and a READ that was overtaken, and finds a file shorter than the kernel may know it, is *refused*. No program sees
//! that: the kernel had read ahead for it, and asks for the page that it needs by itself then (mm/filemap.c,
//! `filemap_update_page`). What was found is *owed* to that READ, which is waited for a moment before the kernel is told more.
//! It is never refused itself. A READ of one page is not either, for the kernel may not have read ahead, and a program would
//! see the error: of a file of one page a program may read zeros behind the end still.

use std::collections::{BTreeMap, BTreeSet};
use std::ops::Range;
use std::time::Duration;

use bytes::Bytes;
use host::Moment;
use protocol::id::InodeId;

use super::under_way::PAGE;

/// How long a READ may be on its way here that the kernel sent before it was told to forget something.
const COMES_WITHIN: Duration = Duration::from_millis(50);
/// How long one is waited for that is sent because another was refused.
pub(super) const COMES_AGAIN_WITHIN: Duration = Duration::from_millis(50);
/// How long the program that sent this one may take to look at its answer, which nobody else does for it.
pub(super) const LOOKED_AT_WITHIN: Duration = Duration::from_millis(2);
/// So many files are remembered. Beyond, all are forgotten that no READ may come for again: of those nothing is known, as at
/// first.
const FILES_MAX: usize = 1 << 14;

/// Files of which the kernel was told to forget something.
#[derive(Default)]
pub(super) struct Ends {
    told: BTreeMap<InodeId, Told>,
    /// What READs that were refused have found. No change of the file has begun since.
    owed: BTreeMap<InodeId, Owed>,
    /// How many changes of files have begun or ended.
    changes: u64,
}

struct Told {
    /// Until when a READ may come that it sent before.
    until: Moment,
    /// No size that the kernel may know is larger.
    end: u64,
    /// Pages of READs that were refused: the next one that begins with one of these is not.
    again: BTreeSet<u64>,
    /// The kernel has an answer that tells of an end, and the program that waited for it has perhaps not looked at it.
    look: Option<Look>,
}

/// When a program has looked at its answer.
#[derive(Clone, Copy)]
enum Look {
    /// In a moment from when that is asked.
    Soon,
    /// By then.
    By(Moment),
}

struct Owed {
    bytes: Range<u64>,
    pieces: Vec<Bytes>,
    until: Moment,
}

/// What has to come before the kernel is told more of a file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Due {
    /// Nothing: now.
    Nothing,
    /// Answers that are on their way.
    Answer,
    /// What is owed, or a program's look at its answer: until then.
    Until(Moment),
}

impl Ends {
    /// The kernel will be told to forget something of a file that has `size` bytes, if that is known, and that somebody uses.
    pub(super) fn forget(&mut self, inode: InodeId, (size, is_used): (Option<u64>, bool), now: Moment) {
        if size.is_none() && !is_used && !self.told.contains_key(&inode) {
            return;
        }
        if self.told.len() >= FILES_MAX {
            self.told.retain(|_, told| !told.again.is_empty() || now < told.until);
        }
        // The first time it is not known what the kernel knows.
        let first = || Told { until: now, end: u64::MAX, again: BTreeSet::new(), look: None };
        let told = self.told.entry(inode).or_insert_with(first);
        told.until = now + COMES_WITHIN;
        told.end = told.end.max(size.unwrap_or(u64::MAX));
    }

    /// How many changes have begun or ended so far.
    pub(super) fn changes(&self) -> u64 {
        self.changes
    }

    /// Whether a READ that comes now may have been sent before the kernel was told.
    pub(super) fn is_told(&self, inode: InodeId, now: Moment) -> bool {
        self.told.get(&inode).is_some_and(|told| now < told.until)
    }

    /// A READ has found the end there. Whether the kernel hears of it: it knows no larger size, or takes notice.
    pub(super) fn tell(&mut self, inode: InodeId, end: u64, is_overtaken: bool) -> bool {
        let Some(told) = self.told.get_mut(&inode) else { return true };
        if !is_overtaken {
            told.end = end;
        }
        told.end <= end
    }

    /// A READ has found this, but is refused.
    pub(super) fn refuse(&mut self, inode: InodeId, bytes: &Range<u64>, found: Option<&[Bytes]>, now: Moment) {
        let told = self.told.get_mut(&inode).expect("of a file of which it was told nothing, it hears");
        told.again.extend(bytes.clone().step_by(PAGE as usize));
        self.owed.retain(|_, owed| now < owed.until);
        if let Some(pieces) = found {
            let until = now + COMES_AGAIN_WITHIN;
            self.owed.insert(inode, Owed { bytes: bytes.clone(), pieces: pieces.to_vec(), until });
        }
    }

    /// A READ comes. Whether it does because another was refused; and what is owed to it.
    pub(super) fn begin(&mut self, inode: InodeId, bytes: &Range<u64>, now: Moment) -> (bool, Option<Bytes>) {
        let Some(told) = self.told.get_mut(&inode) else { return (false, None) };
        let is_again = told.takes_again(bytes);
        (is_again, is_again.then(|| self.take_owed(inode, bytes, now)).flatten())
    }

    /// A change of the file begins, or ends: what was found may be what it had.
    pub(super) fn change(&mut self, inode: InodeId) {
        self.changes += 1;
        self.owed.remove(&inode);
    }

    /// The kernel has an answer that tells of an end, and the program that waited for it will look.
    pub(super) fn arrive(&mut self, inode: InodeId) {
        if let Some(told) = self.told.get_mut(&inode) {
            told.look = Some(Look::Soon);
        }
    }

    /// What is due.
    pub(super) fn due(&mut self, inode: InodeId, now: Moment) -> Due {
        let owed = self.owed.get(&inode).map(|owed| owed.until);
        let look = self.told.get_mut(&inode).and_then(|told| told.looked_by(now));
        owed.max(look).filter(|&until| now < until).map_or(Due::Nothing, Due::Until)
    }

    /// What is owed to this READ. Behind the page where the file ends, nothing is any more; and that one comes soon, or not.
    fn take_owed(&mut self, inode: InodeId, bytes: &Range<u64>, now: Moment) -> Option<Bytes> {
        let is_for =
            |owed: &&mut Owed| now < owed.until && owed.bytes.start <= bytes.start && bytes.end <= owed.bytes.end;
        let owed = self.owed.get_mut(&inode).filter(is_for)?;
        owed.until = owed.until.min(now + LOOKED_AT_WITHIN);
        let part = part(&owed.pieces, bytes.start - owed.bytes.start..bytes.end - owed.bytes.start);
        if (part.len() as u64) < bytes.end - bytes.start {
            self.owed.remove(&inode);
            self.tell(inode, bytes.start + part.len() as u64, false);
        }
        Some(part)
    }
}

impl Told {
    /// Whether this READ comes, or may come, because another was refused: for a page of that one, and perhaps some behind it.
    fn takes_again(&mut self, bytes: &Range<u64>) -> bool {
        let is_again = self.again.contains(&bytes.start);
        self.again.retain(|page| !bytes.contains(page));
        is_again
    }

    fn looked_by(&mut self, now: Moment) -> Option<Moment> {
        let by = match self.look? {
            Look::Soon => now + LOOKED_AT_WITHIN,
            Look::By(by) => by,
        };
        self.look = Some(Look::By(by));
        Some(by)
    }
}

/// What there is of these bytes of what was found.
fn part(pieces: &[Bytes], bytes: Range<u64>) -> Bytes {
    let [start, end] = [bytes.start, bytes.end].map(|at| usize::try_from(at).unwrap_or(usize::MAX));
    pieces.iter().flat_map(|piece| piece.iter()).take(end).skip(start).copied().collect()
}
