//! Which pages of files the kernel may have locked for requests under way. Decides, never awaits.
//!
//! Linux locks a page that it reads until the READ is answered. The pages of a WRITE it fills and unlocks before it sends the
//! WRITE; but a last page that it had not, and fills in part only, stays locked until the WRITE is answered. A page that was
//! changed through a mapping stays under writeback until its WRITE is answered, which is as good as locked. A READ past the
//! pages (O_DIRECT) locks none, and the kernel may have filled those of its bytes long ago: they are dropped as all others. But
//! where a program has mapped what it opened so, or where the kernel reads the end of such a call by its pages, it says the
//! same of a READ that has locked them.
//!
//! A READ that waits may keep its pages where others are dropped, if it then looks anew at what the file has: it is *spoiled*.
//! One whose bytes are on their way to the kernel can do so no more, and is waited for.

use std::collections::BTreeMap;
use std::ops::Range;
use std::sync::{Arc, Mutex};

use event_listener::{Event, EventListener};
use protocol::id::InodeId;

use super::lock;

/// Bytes of a page.
const PAGE: u64 = 4096;

/// What a request does with pages.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Use {
    /// Fills them.
    Read,
    /// Passes them by, most likely.
    ReadPast,
    /// Tells of their new bytes.
    Write,
    /// Tells of what was changed through a mapping.
    WriteBack,
}

/// The requests of a mount that read or write.
#[derive(Default)]
pub(super) struct UnderWay {
    requests: Mutex<Requests>,
    moved: Event,
}

#[derive(Default)]
struct Requests {
    begun: u64,
    by_file: BTreeMap<InodeId, BTreeMap<u64, State>>,
}

struct State {
    used: Use,
    bytes: Range<u64>,
    spoiled: bool,
    answered: bool,
}

impl State {
    /// What stays locked while the request waits.
    fn kept(&self) -> Range<u64> {
        match self.used {
            Use::Write => self.bytes.end.saturating_sub(PAGE).max(self.bytes.start)..self.bytes.end,
            Use::Read | Use::WriteBack => self.bytes.clone(),
            Use::ReadPast => self.bytes.start..self.bytes.start,
        }
    }

    /// What it may have locked, each page for itself, or not: of a READ past the pages that is looked for when something is
    /// found to be locked there.
    fn doubtful(&self, is_locked: bool) -> impl Iterator<Item = Range<u64>> {
        let bytes = match self.used {
            Use::Write => self.kept(),
            Use::ReadPast if is_locked => self.bytes.clone(),
            Use::Read | Use::ReadPast | Use::WriteBack => 0..0,
        };
        bytes.step_by(PAGE as usize).map(|start| start..start.saturating_add(PAGE))
    }
}

impl Requests {
    fn of(&self, inode: InodeId) -> impl Iterator<Item = &State> {
        self.by_file.get(&inode).into_iter().flat_map(BTreeMap::values)
    }
}

/// A request, until the kernel has its answer.
pub(super) struct Request {
    all: Arc<UnderWay>,
    inode: InodeId,
    number: u64,
}

impl Request {
    /// A READ looks at the file from now on: what spoiled it before does so no more. Else one that waits for a file which
    /// others write all the time would begin anew for ever.
    pub(super) fn look(&self) {
        self.with(|state| state.spoiled = false);
    }

    /// The answer to a READ was found; false if it may be old, and is to be looked for again.
    pub(super) fn answer(&self) -> bool {
        self.with(|state| {
            state.answered = !state.spoiled;
            state.answered
        })
    }

    fn with<T>(&self, change: impl FnOnce(&mut State) -> T) -> T {
        let mut requests = lock(&self.all.requests);
        let of_file = requests.by_file.get_mut(&self.inode);
        change(of_file.and_then(|of_file| of_file.get_mut(&self.number)).expect("what is under way is known"))
    }
}

impl Drop for Request {
    fn drop(&mut self) {
        let mut requests = lock(&self.all.requests);
        let of_file = requests.by_file.get_mut(&self.inode).expect("what is under way is known");
        of_file.remove(&self.number).expect("and ends once");
        if of_file.is_empty() {
            requests.by_file.remove(&self.inode);
        }
        drop(requests);
        self.all.moved.notify(usize::MAX);
    }
}

/// The bytes of a file beside those that requests under way have locked while they wait.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Beside {
    /// Locked for moments at most.
    pub(super) free: Vec<Range<u64>>,
    /// A request may have these locked, each for itself, or nobody.
    pub(super) doubtful: Vec<Range<u64>>,
}

impl UnderWay {
    /// A request has come.
    pub(super) fn begin(self: &Arc<Self>, inode: InodeId, used: Use, offset: u64, size: u32) -> Request {
        let end = offset.saturating_add(u64::from(size)).checked_next_multiple_of(PAGE).unwrap_or(u64::MAX);
        let state = State { used, bytes: offset / PAGE * PAGE..end, spoiled: false, answered: false };
        let mut requests = lock(&self.requests);
        requests.begun += 1;
        let number = requests.begun;
        requests.by_file.entry(inode).or_default().insert(number, state);
        drop(requests);
        self.moved.notify(usize::MAX);
        Request { all: self.clone(), inode, number }
    }

    /// The next request that comes or goes.
    pub(super) fn moved(&self) -> EventListener {
        self.moved.listen()
    }

    /// READs of these bytes that wait will look at the file from now on.
    pub(super) fn spoil(&self, inode: InodeId, range: &Range<u64>) {
        let mut requests = lock(&self.requests);
        let of_file = requests.by_file.get_mut(&inode).into_iter().flat_map(BTreeMap::values_mut);
        for state in of_file.filter(|state| overlap(&state.bytes, range)) {
            state.spoiled = !state.answered;
        }
    }

    /// Whether some of these bytes are on their way to the kernel.
    pub(super) fn is_answered(&self, inode: InodeId, range: &Range<u64>) -> bool {
        let requests = lock(&self.requests);
        requests.of(inode).any(|state| state.answered && overlap(&state.bytes, range))
    }

    /// What of `ranges` lies beside the requests of now; `are_locked`: something is locked in each of them.
    pub(super) fn beside(&self, inode: InodeId, ranges: &[Range<u64>], are_locked: bool) -> Beside {
        let requests = lock(&self.requests);
        let mut beside = Beside { free: ranges.to_vec(), doubtful: Vec::new() };
        let take = |beside: &mut Beside, taken: &Range<u64>| {
            beside.free = beside.free.iter().flat_map(|free| without(free, taken)).collect();
        };
        for state in requests.of(inode).filter(|state| !state.answered) {
            take(&mut beside, &state.kept());
            for page in state.doubtful(are_locked).filter(|page| ranges.iter().any(|range| overlap(range, page))) {
                take(&mut beside, &page);
                beside.doubtful.push(page);
            }
        }
        beside
    }
}

fn overlap(one: &Range<u64>, other: &Range<u64>) -> bool {
    one.start.max(other.start) < one.end.min(other.end)
}

/// The parts of `whole` before and behind `taken`.
fn without(whole: &Range<u64>, taken: &Range<u64>) -> impl Iterator<Item = Range<u64>> {
    let before = whole.start..whole.end.min(taken.start);
    let behind = whole.start.max(taken.end)..whole.end;
    // Where nothing is taken there is one part, and not two.
    let parts = if taken.start >= taken.end { [whole.clone(), 0..0] } else { [before, behind] };
    parts.into_iter().filter(|part| part.start < part.end)
}

#[cfg(test)]
mod tests {
    use super::*;

    const FILE: InodeId = InodeId(7);

    const ALL: Range<u64> = 0..u64::MAX;

    #[test]
    fn pages_that_are_read_are_left_out_and_of_a_write_the_last() {
        let under_way = Arc::new(UnderWay::default());
        let read = under_way.begin(FILE, Use::Read, PAGE + 1, 1);
        let written = under_way.begin(FILE, Use::Write, 4 * PAGE, 2 * PAGE as u32 + 1);
        let back = under_way.begin(FILE, Use::WriteBack, 9 * PAGE, 2 * PAGE as u32);
        let beside = under_way.beside(FILE, &[ALL], false);
        assert_eq!(beside.free, [0..PAGE, 2 * PAGE..6 * PAGE, 7 * PAGE..9 * PAGE, 11 * PAGE..u64::MAX]);
        let tail = 6 * PAGE..7 * PAGE;
        assert_eq!(beside.doubtful, [tail]);
        drop((read, written, back));
        assert_eq!(under_way.beside(FILE, &[ALL], false), Beside { free: vec![ALL], doubtful: Vec::new() });
    }

    #[test]
    fn a_read_past_the_pages_keeps_none_unless_one_is_found_to_be_locked() {
        let under_way = Arc::new(UnderWay::default());
        let _past = under_way.begin(FILE, Use::ReadPast, PAGE, 2 * PAGE as u32);
        let _read = under_way.begin(FILE, Use::Read, 2 * PAGE, 1);
        let beside = under_way.beside(FILE, &[ALL], false);
        assert_eq!((beside.free, beside.doubtful), (vec![0..2 * PAGE, 3 * PAGE..u64::MAX], Vec::new()));
        let (both, first, second) = (0..2 * PAGE, 0..PAGE, PAGE..2 * PAGE);
        let beside = under_way.beside(FILE, &[both], true);
        assert_eq!((beside.free, beside.doubtful), (vec![first], vec![second]));
    }

    #[test]
    fn bytes_on_their_way_are_waited_for_and_those_to_come_looked_for_again() {
        let under_way = Arc::new(UnderWay::default());
        let (early, late) = (under_way.begin(FILE, Use::Read, 0, 1), under_way.begin(FILE, Use::Read, PAGE, 1));
        assert!(early.answer());
        under_way.spoil(FILE, &(0..2 * PAGE));
        assert_eq!(under_way.beside(FILE, &[ALL], false).free, [0..PAGE, 2 * PAGE..u64::MAX]);
        assert!(!late.answer());
        late.look();
        assert!(late.answer());
        assert!(under_way.is_answered(FILE, &(PAGE..PAGE + 1)));
        // Until the kernel has them.
        let frame = crate::reply::done(crate::operation::Unique(1)).guarded(early);
        assert!(under_way.is_answered(FILE, &(0..1)));
        drop(frame);
        assert!(!under_way.is_answered(FILE, &(0..1)));
    }

    #[test]
    fn nothing_under_way_takes_nothing() {
        let under_way = Arc::new(UnderWay::default());
        let _empty = under_way.begin(FILE, Use::Write, PAGE, 0);
        let _far = under_way.begin(FILE, Use::Read, u64::MAX - 1, 1);
        let beside = under_way.beside(FILE, &[ALL], false);
        let free = 0..u64::MAX / PAGE * PAGE;
        assert_eq!((beside.free, beside.doubtful), (vec![free], Vec::new()));
    }
}
