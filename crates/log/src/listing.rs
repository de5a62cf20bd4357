//! What all targets tell of what they have, page by page, joined to stripes. Decides, never awaits; `walk` asks.
//!
//! Invariants
//! 1. A target tells of its fragments in the order of stripes. One that goes back, or does not get on, has not told all; what
//!    it tells from there on does not count.
//! 2. A stripe is looked at when each target has told of something behind it, or has nothing more to tell: all that is held
//!    of it is together then, in the order of targets.
//! 3. Where nothing of a stripe's own says that it is ended, stripes of its log may that were begun later, and lie behind it:
//!    the next one where it ended, each of them below which all are complete. Until they have, or the log is over, it waits,
//!    and the stripes behind it wait, too, so that all come in order.
//! 4. What is held is a page and a half of each target, and the stripes that wait: no more of a log than its writer has under
//!    way.

use std::collections::{BTreeSet, VecDeque};

use protocol::fragment::{FragmentHeader, FragmentId, Part};
use protocol::id::{LogId, RunNumber, StripeNumber, TargetId};
use protocol::maps::Maps;
use protocol::storage::StoredFragment;

use crate::stripes::{Held, StripeState, state_of};

/// Fragments asked for at once: some 100 KiB in memory. Asking costs less than telling by then, and a thousand targets are no
/// burden.
pub(crate) const PAGE_SIZE: usize = 1024;
/// Pages of one stripe; a target that has more to say about one stripe talks rubbish.
const PAGES_MAX: usize = 16;

/// A stripe of a log.
pub(crate) type Place = (LogId, StripeNumber);

/// From where on a target is asked, and what it tells: nothing, if it does not answer.
pub(crate) type Question = (TargetId, Option<FragmentId>);
pub(crate) type Answer = Option<Vec<StoredFragment>>;

/// What comes next.
#[derive(Debug)]
pub(crate) enum Next {
    /// This stripe.
    Stripe(StripeState),
    /// First these targets are to be asked, all at once.
    Ask(Vec<Question>),
    /// Nothing: these targets did not tell all they have.
    End(BTreeSet<TargetId>),
}

/// The lists of all targets.
pub(crate) struct Listing<'a> {
    maps: &'a Maps,
    lists: Vec<List>,
    hearing: Hearing,
    /// Fragments asked for at once.
    page: usize,
}

impl<'a> Listing<'a> {
    /// Of the stripes behind one, or of all, in one log, or in all.
    pub(crate) fn new(maps: &'a Maps, behind: Option<Place>, log: Option<LogId>) -> Listing<'a> {
        let list =
            |(target, _)| List { target, log, told: VecDeque::new(), after: behind.map(last_of), state: Telling::Goes };
        Listing { maps, lists: maps.present().map(list).collect(), hearing: Hearing::default(), page: PAGE_SIZE }
    }

    /// The next stripe, or what is to be asked before.
    pub(crate) fn next(&mut self) -> Next {
        loop {
            if let Some(state) = self.hearing.settled.pop_front() {
                return Next::Stripe(state);
            }
            let first = self.lists.iter().filter_map(|list| Some(place_of(list.told.front()?))).min();
            let questions = self.questions(first);
            if !questions.is_empty() {
                return Next::Ask(questions);
            }
            match first {
                Some(place) => self.join(place),
                None if self.hearing.waiting.is_empty() => return Next::End(self.silent()),
                None => self.hearing.end_log(),
            }
        }
    }

    /// Takes what the targets answer that were asked.
    pub(crate) fn take(&mut self, answers: impl Iterator<Item = (TargetId, Answer)>) {
        for (target, answer) in answers {
            if let Some(list) = self.lists.iter_mut().find(|list| list.target == target) {
                list.take(answer, self.page);
            }
        }
    }

    /// Whom to ask before the stripe `first` is looked at. Whoever will be asked soon is asked along: lists that get on
    /// together are told together.
    fn questions(&self, first: Option<Place>) -> Vec<Question> {
        let asks = |list: &&List| list.state == Telling::Goes;
        if !self.lists.iter().any(|list| asks(&list) && !list.is_beyond(first)) {
            return Vec::new();
        }
        let soon = |list: &&List| !list.is_beyond(first) || list.told.len() < self.page / 2;
        self.lists.iter().filter(asks).filter(soon).map(|list| (list.target, list.after)).collect()
    }

    fn join(&mut self, place: Place) {
        let mut held = Held::new();
        for list in &mut self.lists {
            while let Some(fragment) = list.told.pop_front_if(|fragment| place_of(fragment) == place) {
                held.push((list.target, fragment));
            }
        }
        self.hearing.hear(place, held.iter().map(|(_, fragment)| &fragment.header));
        self.hearing.waiting.extend(state_of(self.maps, place, &held).map(Waiting::new));
        self.hearing.settle();
    }

    fn silent(&self) -> BTreeSet<TargetId> {
        self.lists.iter().filter(|list| list.state == Telling::Broken).map(|list| list.target).collect()
    }
}

/// How far a target is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Telling {
    /// It may have more to tell.
    Goes,
    /// It told all.
    Over,
    /// It did not tell all it has, and is not asked again.
    Broken,
}

/// The list of one target.
struct List {
    target: TargetId,
    log: Option<LogId>,
    /// What it told and was not looked at.
    told: VecDeque<StoredFragment>,
    /// The last that it told.
    after: Option<FragmentId>,
    state: Telling,
}

impl List {
    fn take(&mut self, answer: Answer, page_size: usize) {
        let Some(page) = answer else { return self.state = Telling::Broken };
        let (is_full, asked) = (page.len() >= page_size, self.after);
        for fragment in page {
            let id = fragment.header.id;
            let goes_back = |after: FragmentId| (id.log, id.stripe) < (after.log, after.stripe);
            if asked.is_some_and(|asked| id <= asked) || self.after.is_some_and(goes_back) {
                return self.state = Telling::Broken;
            }
            if self.log.is_some_and(|log| id.log != log) {
                return self.state = Telling::Over;
            }
            self.after = Some(id);
            self.told.push_back(fragment);
        }
        let is_too_much = self.told.len() >= PAGES_MAX * page_size;
        self.state = match is_full {
            false => Telling::Over,
            true if is_too_much => Telling::Broken,
            true => Telling::Goes,
        };
    }

    /// Whether it told of something behind the stripe `first`.
    fn is_beyond(&self, first: Option<Place>) -> bool {
        self.told.back().is_some_and(|last| Some(place_of(last)) > first)
    }
}

/// What the stripes of one log say of those before. Where all parity of a stripe is lost nothing of its own tells that it is
/// ended, and no work of its writer's.
#[derive(Default)]
struct Hearing {
    log: Option<LogId>,
    /// Below which stripe all are complete.
    complete_below: StripeNumber,
    /// Those of which something is still to be heard, and those behind them.
    waiting: VecDeque<Waiting>,
    /// Those of which all is known.
    settled: VecDeque<StripeState>,
}

/// A stripe that waits for what others say of it.
struct Waiting {
    /// What it lacks is so if it is ended.
    state: StripeState,
    /// One behind it has told where it ended, if that was the next.
    heard: Option<Option<u32>>,
}

impl Waiting {
    fn new(state: StripeState) -> Waiting {
        Waiting { state, heard: None }
    }
}

impl Hearing {
    /// A stripe is next, of which there are these headers.
    fn hear<'a>(&mut self, (log, number): Place, headers: impl Iterator<Item = &'a FragmentHeader>) {
        if self.log != Some(log) {
            self.end_log();
            (self.log, self.complete_below) = (Some(log), StripeNumber(0));
        }
        let mut previous_end = None;
        for header in headers {
            self.complete_below = self.complete_below.max(header.complete_below);
            previous_end = Some(header.previous_end);
        }
        if let Some(before) = self.waiting.back_mut().filter(|before| before.heard.is_none()) {
            let is_next = before.state.number.0.checked_add(1) == Some(number.0);
            before.heard = Some(previous_end.filter(|_| is_next));
        }
    }

    /// Lets those go of which nothing more can be heard.
    fn settle(&mut self) {
        let below = self.complete_below;
        let is_known = |waiting: &mut Waiting| {
            let Waiting { state, heard } = waiting;
            let other_end = |end: Option<u32>| end.is_some_and(|end| end != state.length);
            state.ended || heard.is_some_and(|end| other_end(end) || state.number < below)
        };
        while let Some(waiting) = self.waiting.pop_front_if(is_known) {
            self.settled.push_back(self.settled_now(waiting));
        }
    }

    /// No more stripes of the log follow.
    fn end_log(&mut self) {
        while let Some(waiting) = self.waiting.pop_front() {
            self.settled.push_back(self.settled_now(waiting));
        }
    }

    fn settled_now(&self, Waiting { mut state, heard }: Waiting) -> StripeState {
        let is_its_end = |end| end == state.length;
        state.ended |= state.number < self.complete_below && heard.flatten().is_none_or(is_its_end);
        if !state.ended {
            state.missing = Vec::new();
        }
        state
    }
}

fn place_of(fragment: &StoredFragment) -> Place {
    (fragment.header.id.log, fragment.header.id.stripe)
}

/// The greatest id that a fragment of a stripe can have.
fn last_of((log, stripe): Place) -> FragmentId {
    FragmentId { log, stripe, run: RunNumber(u32::MAX), part: Part::Parity(u8::MAX) }
}

#[cfg(test)]
mod model;
