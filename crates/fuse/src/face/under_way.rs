//! Which pages of files the kernel may have locked for requests under way; with `ends`, where it takes files to end.
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
use std::pin::pin;
use std::sync::{Arc, Mutex};

use bytes::Bytes;
use client::Reading;
use event_listener::{Event, EventListener};
use futures_util::future::select;
use host::{Host, Moment};
use protocol::id::InodeId;

use super::ends::{Due, Ends};
use super::lock;

/// Bytes of a page.
pub(super) const PAGE: u64 = 4096;

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
    /// None, but changes the file, or where it ends.
    Change,
}

impl Use {
    /// After its answer the kernel takes no notice of where a READ that it sent before finds the end.
    fn changes(self) -> bool {
        matches!(self, Use::Write | Use::WriteBack | Use::Change)
    }
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
    ends: Ends,
}

struct State {
    used: Use,
    bytes: Range<u64>,
    asked: u64,
    spoiled: bool,
    overtaken: bool,
    /// Changes of files before it began to look.
    changes: u64,
    /// Another was refused before it.
    is_again: bool,
    /// It has looked, if it is a READ.
    found: Option<Found>,
    /// What it has found says where the file ends.
    is_end: bool,
    /// The kernel will have that, whatever comes.
    is_sent: bool,
}

/// From when on the answer to a READ counts as on its way to the kernel.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Since {
    /// It has found something, under a token that is held until the answer is there.
    Found,
    /// It was sure of the lease behind that.
    Sent,
}

/// What becomes of a READ that has found its bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Found {
    /// They are on their way to the kernel.
    Answered,
    /// They may be old, and are to be looked for again.
    Spoiled,
    /// The kernel has to ask again, lest it takes the file to be longer than it is.
    Refused,
}

impl State {
    /// Its answer is on its way to the kernel.
    fn is_answered(&self, since: Since) -> bool {
        let is_found = matches!(self.found, Some(Found::Answered | Found::Refused));
        !self.spoiled && is_found && (self.is_sent || since == Since::Found)
    }

    fn tells_end(&self) -> bool {
        self.is_end && self.is_answered(Since::Sent)
    }

    /// A READ has found this.
    fn find(&mut self, pieces: &[Bytes], (inode, ends): (InodeId, &mut Ends), now: Moment) -> Found {
        let length: u64 = pieces.iter().map(|piece| piece.len() as u64).sum();
        if self.spoiled {
            return Found::Spoiled;
        }
        if length >= self.asked || self.used != Use::Read {
            return Found::Answered;
        }
        let is_told = ends.tell(inode, self.bytes.start.saturating_add(length), self.overtaken);
        let is_ahead = self.bytes.end - self.bytes.start > PAGE;
        if !is_told && is_ahead && !self.is_again {
            // What has changed since it began to look it may not have seen.
            let found = Some(pieces).filter(|_| self.changes == ends.changes());
            ends.refuse(inode, &self.bytes, found, now);
            return Found::Refused;
        }
        self.is_end = true;
        Found::Answered
    }

    /// What stays locked while the request waits.
    fn kept(&self) -> Range<u64> {
        match self.used {
            Use::Write => self.bytes.end.saturating_sub(PAGE).max(self.bytes.start)..self.bytes.end,
            Use::Read | Use::WriteBack => self.bytes.clone(),
            Use::ReadPast | Use::Change => self.bytes.start..self.bytes.start,
        }
    }

    /// What it may have locked, each page for itself, or not: of a READ past the pages that is looked for when something is
    /// found to be locked there.
    fn doubtful(&self, is_locked: bool) -> impl Iterator<Item = Range<u64>> {
        let bytes = match self.used {
            Use::Write => self.kept(),
            Use::ReadPast if is_locked => self.bytes.clone(),
            Use::Read | Use::ReadPast | Use::WriteBack | Use::Change => 0..0,
        };
        bytes.step_by(PAGE as usize).map(|start| start..start.saturating_add(PAGE))
    }
}

impl Requests {
    fn of(&self, inode: InodeId) -> impl Iterator<Item = &State> {
        self.by_file.get(&inode).into_iter().flat_map(BTreeMap::values)
    }

    /// Requests that wait were sent before something of which the kernel hears now. Those that are not sure of what they
    /// found have to look again, for what becomes of them is another question then.
    fn overtake(&mut self, inode: InodeId) {
        let of_file = self.by_file.get_mut(&inode).into_iter().flat_map(BTreeMap::values_mut);
        for state in of_file.filter(|state| !state.is_answered(Since::Sent)) {
            state.overtaken = true;
            state.spoiled |= state.found.is_some();
        }
    }
}

/// A request, until the kernel has its answer.
pub(super) struct Request {
    all: Arc<UnderWay>,
    inode: InodeId,
    number: u64,
    owed: Option<Bytes>,
}

impl Request {
    /// What another READ has found for this one, which is its answer.
    pub(super) fn take_owed(&mut self) -> Option<Bytes> {
        self.owed.take()
    }

    /// What becomes of a READ that has found its bytes, and may use them.
    pub(super) fn outcome(&self) -> Found {
        let outcome = self.with(|state, _| {
            let found = state.found.expect("it has found something");
            state.is_sent = !state.spoiled;
            if state.is_sent { found } else { Found::Spoiled }
        });
        self.all.moved.notify(usize::MAX);
        outcome
    }

    fn with<T>(&self, change: impl FnOnce(&mut State, (InodeId, &mut Ends)) -> T) -> T {
        let mut requests = lock(&self.all.requests);
        let Requests { by_file, ends, .. } = &mut *requests;
        let state = by_file.get_mut(&self.inode).and_then(|of_file| of_file.get_mut(&self.number));
        change(state.expect("what is under way is known"), (self.inode, ends))
    }
}

impl Reading for Request {
    /// What spoiled it before does so no more. Else one that waits for a file which others write all the time would begin
    /// anew for ever.
    fn begun(&self) {
        self.with(|state, (_, ends)| {
            (state.spoiled, state.found, state.is_end) = (false, None, false);
            state.changes = ends.changes();
        });
    }

    /// While the file is held: whoever gives it up finds the answer on its way, and waits for that.
    fn found(&self, pieces: &[Bytes], now: Moment) {
        self.with(|state, ends| state.found = Some(state.find(pieces, ends, now)));
    }
}

impl Drop for Request {
    fn drop(&mut self) {
        let mut requests = lock(&self.all.requests);
        let of_file = requests.by_file.get_mut(&self.inode).expect("what is under way is known");
        let state = of_file.remove(&self.number).expect("and ends once");
        if of_file.is_empty() {
            requests.by_file.remove(&self.inode);
        }
        if state.used.changes() {
            requests.ends.change(self.inode);
        }
        if state.is_end && state.is_again {
            requests.ends.arrive(self.inode);
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
    pub(super) fn begin(self: &Arc<Self>, inode: InodeId, used: Use, bytes: (u64, u32), now: Moment) -> Request {
        let (offset, asked) = (bytes.0, u64::from(bytes.1));
        let end = offset.saturating_add(asked).checked_next_multiple_of(PAGE).unwrap_or(u64::MAX);
        let bytes = offset / PAGE * PAGE..end;
        let mut requests = lock(&self.requests);
        if used.changes() {
            requests.overtake(inode);
            requests.ends.change(inode);
        }
        let (is_again, owed) = match used {
            Use::Read => requests.ends.begin(inode, &bytes, now),
            _ => (false, None),
        };
        // What a write leaves counts as told, too.
        let overtaken = requests.ends.is_told(inode, now) || requests.of(inode).any(|other| other.used.changes());
        let found = owed.as_ref().map(|_| Found::Answered);
        let (is_end, is_sent) = (owed.is_some(), owed.is_some());
        let changes = requests.ends.changes();
        let state = State { used, bytes, asked, spoiled: false, overtaken, changes, is_again, found, is_end, is_sent };
        requests.begun += 1;
        let number = requests.begun;
        requests.by_file.entry(inode).or_default().insert(number, state);
        drop(requests);
        self.moved.notify(usize::MAX);
        Request { all: self.clone(), inode, number, owed }
    }

    /// A request has come that changes the file otherwise than by a WRITE.
    pub(super) fn change(self: &Arc<Self>, inode: InodeId, now: Moment) -> Request {
        self.begin(inode, Use::Change, (0, 0), now)
    }

    /// The next request that comes or goes.
    pub(super) fn moved(&self) -> EventListener {
        self.moved.listen()
    }

    /// READs of these bytes that wait will look at the file from now on.
    pub(super) fn spoil(&self, inode: InodeId, range: &Range<u64>, since: Since) {
        let mut requests = lock(&self.requests);
        let of_file = requests.by_file.get_mut(&inode).into_iter().flat_map(BTreeMap::values_mut);
        for state in of_file.filter(|state| overlap(&state.bytes, range)) {
            state.spoiled = !state.is_answered(since);
        }
        if since == Since::Sent {
            requests.ends.change(inode);
            drop(requests);
            self.moved.notify(usize::MAX);
        }
    }

    /// Waits for READs that have found something until they know whether they may use it: the lease was not sure just then.
    pub(super) async fn decided(&self, inode: InodeId) {
        loop {
            let moved = self.moved();
            let is_undecided = |state: &State| state.is_answered(Since::Found) && !state.is_answered(Since::Sent);
            if !lock(&self.requests).of(inode).any(is_undecided) {
                return;
            }
            moved.await;
        }
    }

    /// The kernel will be told to forget something of a file that has `size` bytes, if that is known here.
    pub(super) fn tell(&self, inode: InodeId, size: Option<u64>, now: Moment) {
        let mut requests = lock(&self.requests);
        let is_used = requests.by_file.contains_key(&inode);
        requests.ends.forget(inode, (size, is_used), now);
        requests.overtake(inode);
    }

    /// An earlier process told the kernel to forget something of a file.
    pub(super) fn inherit(&self, inode: InodeId, now: Moment) {
        lock(&self.requests).ends.forget(inode, (None, true), now);
    }

    /// What has to come before the kernel is told more: answers that say where the file ends, and what is owed.
    pub(super) fn due(&self, inode: InodeId, now: Moment) -> Due {
        let mut requests = lock(&self.requests);
        let is_coming = requests.of(inode).any(State::tells_end);
        if is_coming { Due::Answer } else { requests.ends.due(inode, now) }
    }

    /// Waits until the kernel has those that are on their way.
    pub(super) async fn answers_arrive(&self, inode: InodeId) {
        let is_due = || lock(&self.requests).of(inode).any(State::tells_end);
        // Nearly always there is nothing, and nobody to wake.
        while is_due() {
            let moved = self.moved();
            if is_due() {
                moved.await;
            }
        }
    }

    /// Waits until the kernel has those, and what is owed.
    pub(super) async fn end_arrives(&self, inode: InodeId, host: &Host) {
        loop {
            let moved = self.moved();
            match self.due(inode, host.now()) {
                Due::Nothing => return,
                Due::Answer => moved.await,
                Due::Until(until) => drop(select(moved, pin!(host.sleep_until(until))).await),
            }
        }
    }

    /// Whether some of these bytes are on their way to the kernel.
    pub(super) fn is_answered(&self, inode: InodeId, range: &Range<u64>, since: Since) -> bool {
        let requests = lock(&self.requests);
        requests.of(inode).any(|state| state.is_answered(since) && overlap(&state.bytes, range))
    }

    /// What of `ranges` lies beside the requests of now; `are_locked`: something is locked in each of them.
    pub(super) fn beside(&self, inode: InodeId, ranges: &[Range<u64>], are_locked: bool, since: Since) -> Beside {
        let requests = lock(&self.requests);
        let mut beside = Beside { free: ranges.to_vec(), doubtful: Vec::new() };
        let take = |beside: &mut Beside, taken: &Range<u64>| {
            beside.free = beside.free.iter().flat_map(|free| without(free, taken)).collect();
        };
        for state in requests.of(inode).filter(|state| !state.is_answered(since)) {
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
    use super::super::ends::{COMES_AGAIN_WITHIN, LOOKED_AT_WITHIN};
    use super::*;

    const FILE: InodeId = InodeId(7);

    const ALL: Range<u64> = 0..u64::MAX;
    const NOW: Moment = Moment(5);

    #[test]
    fn pages_that_are_read_are_left_out_and_of_a_write_the_last() {
        let under_way = Arc::new(UnderWay::default());
        let read = under_way.begin(FILE, Use::Read, (PAGE + 1, 1), NOW);
        let written = under_way.begin(FILE, Use::Write, (4 * PAGE, 2 * PAGE as u32 + 1), NOW);
        let back = under_way.begin(FILE, Use::WriteBack, (9 * PAGE, 2 * PAGE as u32), NOW);
        let beside = under_way.beside(FILE, &[ALL], false, Since::Found);
        assert_eq!(beside.free, [0..PAGE, 2 * PAGE..6 * PAGE, 7 * PAGE..9 * PAGE, 11 * PAGE..u64::MAX]);
        let tail = 6 * PAGE..7 * PAGE;
        assert_eq!(beside.doubtful, [tail]);
        drop((read, written, back));
        assert_eq!(
            under_way.beside(FILE, &[ALL], false, Since::Found),
            Beside { free: vec![ALL], doubtful: Vec::new() }
        );
    }

    #[test]
    fn a_read_past_the_pages_keeps_none_unless_one_is_found_to_be_locked() {
        let under_way = Arc::new(UnderWay::default());
        let _past = under_way.begin(FILE, Use::ReadPast, (PAGE, 2 * PAGE as u32), NOW);
        let _read = under_way.begin(FILE, Use::Read, (2 * PAGE, 1), NOW);
        let beside = under_way.beside(FILE, &[ALL], false, Since::Found);
        assert_eq!((beside.free, beside.doubtful), (vec![0..2 * PAGE, 3 * PAGE..u64::MAX], Vec::new()));
        let (both, first, second) = (0..2 * PAGE, 0..PAGE, PAGE..2 * PAGE);
        let beside = under_way.beside(FILE, &[both], true, Since::Found);
        assert_eq!((beside.free, beside.doubtful), (vec![first], vec![second]));
    }

    #[test]
    fn bytes_on_their_way_are_waited_for_and_those_to_come_looked_for_again() {
        let under_way = Arc::new(UnderWay::default());
        let [early, late] = [0, PAGE].map(|offset| under_way.begin(FILE, Use::Read, (offset, 1), NOW));
        assert_eq!(found(&early, 1), Found::Answered);
        under_way.spoil(FILE, &(0..2 * PAGE), Since::Found);
        assert_eq!(under_way.beside(FILE, &[ALL], false, Since::Found).free, [0..PAGE, 2 * PAGE..u64::MAX]);
        assert_eq!(found(&late, 1), Found::Spoiled);
        late.begun();
        assert_eq!(found(&late, 1), Found::Answered);
        assert!(under_way.is_answered(FILE, &(PAGE..PAGE + 1), Since::Found));
        // Until the kernel has them.
        let frame = crate::reply::done(crate::operation::Unique(1)).guarded(early);
        assert!(under_way.is_answered(FILE, &(0..1), Since::Found));
        drop(frame);
        assert!(!under_way.is_answered(FILE, &(0..1), Since::Found));
    }

    #[test]
    fn nothing_under_way_takes_nothing() {
        let under_way = Arc::new(UnderWay::default());
        let _empty = under_way.begin(FILE, Use::Write, (PAGE, 0), NOW);
        let _far = under_way.begin(FILE, Use::Read, (u64::MAX - 1, 1), NOW);
        let beside = under_way.beside(FILE, &[ALL], false, Since::Found);
        let free = 0..u64::MAX / PAGE * PAGE;
        assert_eq!((beside.free, beside.doubtful), (vec![free], Vec::new()));
    }

    /// What becomes of a READ that finds so many bytes.
    fn found(read: &Request, length: usize) -> Found {
        read.found(&[Bytes::from(vec![b'x'; length])], NOW);
        read.outcome()
    }

    /// What a READ of two pages comes to that finds so many bytes, while the kernel is told to forget the file, or not.
    fn read(under_way: &Arc<UnderWay>, told: Option<u64>, length: usize) -> Found {
        let read = under_way.begin(FILE, Use::Read, (0, 2 * PAGE as u32), NOW);
        if told.is_some() {
            under_way.tell(FILE, told, NOW);
        }
        found(&read, length)
    }

    #[test]
    fn a_file_that_is_shorter_than_the_kernel_knows_is_read_again() {
        let under_way = Arc::new(UnderWay::default());
        assert_eq!(read(&under_way, None, 5), Found::Answered, "of that file it was told nothing");
        assert_eq!(read(&under_way, Some(9), 2 * PAGE as usize), Found::Answered, "there may be more");
        assert_eq!(under_way.due(FILE, NOW), Due::Nothing);
        assert_eq!(read(&under_way, Some(9), PAGE as usize + 5), Found::Refused);
        assert_eq!(under_way.due(FILE, NOW), Due::Until(NOW + COMES_AGAIN_WITHIN));
        let mut again = under_way.begin(FILE, Use::Read, (PAGE, PAGE as u32), NOW);
        assert_eq!((again.take_owed().unwrap(), again.outcome()), (Bytes::from("xxxxx"), Found::Answered));
        assert_eq!(under_way.due(FILE, NOW), Due::Answer);
        drop(again);
        let looked_at = NOW + LOOKED_AT_WITHIN;
        assert_eq!(
            [NOW, NOW, looked_at].map(|now| under_way.due(FILE, now)),
            [Due::Until(looked_at), Due::Until(looked_at), Due::Nothing]
        );
    }

    #[test]
    fn only_a_read_that_was_overtaken_is_refused() {
        let under_way = Arc::new(UnderWay::default());
        let later = NOW + COMES_AGAIN_WITHIN;
        under_way.tell(FILE, Some(9), NOW);
        assert_eq!(read(&under_way, None, 5), Found::Refused, "it may have been sent before");
        assert_eq!(found(&under_way.begin(FILE, Use::Read, (0, 9), later), 5), Found::Answered);
        assert_eq!(read(&under_way, Some(5), 5), Found::Answered, "the kernel knows no more than there is");
    }

    #[test]
    fn a_write_overtakes_as_well() {
        let under_way = Arc::new(UnderWay::default());
        under_way.tell(FILE, Some(9), NOW);
        let later = NOW + COMES_AGAIN_WITHIN;
        let begin = |used| under_way.begin(FILE, used, (0, 2 * PAGE as u32), later);
        let (before, written, behind) = (begin(Use::Read), begin(Use::Write), begin(Use::Read));
        assert_eq!((found(&before, 5), found(&behind, 5)), (Found::Refused, Found::Refused));
        drop((before, written, behind));
    }

    #[test]
    fn what_is_owed_is_from_before_no_change_and_not_for_long() {
        let under_way = Arc::new(UnderWay::default());
        let refuse = || {
            under_way.tell(FILE, Some(9), NOW);
            assert_eq!(read(&under_way, Some(9), 5), Found::Refused);
        };
        let owed = |now| under_way.begin(FILE, Use::Read, (0, PAGE as u32), now).take_owed();
        refuse();
        assert_eq!(under_way.due(FILE, NOW), Due::Until(NOW + COMES_AGAIN_WITHIN));
        drop(under_way.begin(FILE, Use::Write, (PAGE, 1), NOW));
        assert_eq!(owed(NOW), None);
        refuse();
        drop(under_way.change(FILE, NOW));
        assert_eq!(owed(NOW), None);
        let written = under_way.begin(FILE, Use::Write, (PAGE, 1), NOW);
        refuse();
        drop(written);
        assert_eq!(owed(NOW), None, "it was found before the write");
        let read = under_way.begin(FILE, Use::Read, (0, 2 * PAGE as u32), NOW);
        under_way.tell(FILE, Some(9), NOW);
        drop(under_way.change(FILE, NOW));
        assert_eq!((found(&read, 5), owed(NOW)), (Found::Refused, None), "it may have looked before the change");
        refuse();
        assert_eq!(under_way.due(FILE, NOW + COMES_AGAIN_WITHIN), Due::Nothing);
        let again = under_way.begin(FILE, Use::Read, (0, PAGE as u32), NOW);
        under_way.tell(FILE, Some(9), NOW);
        assert_eq!(found(&again, 5), Found::Answered, "nobody is refused twice");
        refuse();
        assert_eq!(owed(NOW), Some(Bytes::from("xxxxx")));
    }

    #[test]
    fn what_is_owed_stays_when_another_read_is_refused_that_has_found_nothing_sure() {
        let under_way = Arc::new(UnderWay::default());
        let early = under_way.begin(FILE, Use::Read, (0, 2 * PAGE as u32), NOW);
        under_way.tell(FILE, Some(9), NOW);
        let written = under_way.change(InodeId(8), NOW);
        assert_eq!(read(&under_way, Some(9), 5), Found::Refused);
        assert_eq!(found(&early, 5), Found::Refused);
        drop(written);
        let mut owed = under_way.begin(FILE, Use::Read, (0, PAGE as u32), NOW);
        assert_eq!(owed.take_owed(), Some(Bytes::from("xxxxx")));
    }

    #[test]
    fn a_read_that_is_overtaken_before_it_is_sure_of_what_it_found_looks_again() {
        let under_way = Arc::new(UnderWay::default());
        let read = under_way.begin(FILE, Use::Read, (0, 2 * PAGE as u32), NOW);
        read.found(&[Bytes::from("xxxxx")], NOW);
        under_way.tell(FILE, Some(9), NOW);
        assert_eq!(read.outcome(), Found::Spoiled);
        read.begun();
        assert_eq!(found(&read, 5), Found::Refused);
    }

    #[test]
    fn a_change_that_is_no_write_locks_no_pages_and_overtakes() {
        let under_way = Arc::new(UnderWay::default());
        under_way.tell(FILE, Some(9), NOW);
        let later = NOW + COMES_AGAIN_WITHIN;
        let before = under_way.begin(FILE, Use::Read, (0, 2 * PAGE as u32), later);
        let change = under_way.change(FILE, later);
        assert_eq!(found(&before, 5), Found::Refused);
        drop(before);
        assert_eq!(under_way.beside(FILE, &[ALL], true, Since::Found).free, [ALL]);
        drop(change);
    }
}
