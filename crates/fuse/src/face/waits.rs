//! Calls that wait for a lock, and the signals that end them. Decides, never awaits.
//!
//! INTERRUPT names a request that was read from any of the mount's descriptors, so it may be here before its target is:
//! then it is kept until that comes. Most interrupts are for requests that end soon by themselves, and never find one.
//!
//! Before another process takes the mount over all calls are broken off, and those that the kernel sends to it again are left
//! without an answer. If it does not come they wait here again: to have them sent again would have the kernel send, too, what
//! is being answered here.

use std::collections::{BTreeMap, VecDeque};
use std::sync::Mutex;

use event_listener::{Event, EventListener};
use futures_util::future::{AbortHandle, AbortRegistration};

use super::lock;
use crate::operation::Unique;

/// How many interrupts are kept. A target comes within the time that another thread needs to parse it.
const EARLY_MAX: usize = 256;

/// The calls.
#[derive(Debug, Default)]
pub(crate) struct Waits {
    state: Mutex<State>,
    /// Those that were left wait here again.
    taken: Event,
}

#[derive(Debug, Default)]
struct State {
    /// Another process is to have them, and whether the kernel sends them again; so many are left, which nobody answers here.
    leaving: Option<bool>,
    left: usize,
    waiting: BTreeMap<Unique, AbortHandle>,
    early: VecDeque<Unique>,
}

impl Waits {
    /// A call begins that an interrupt may end.
    pub(crate) fn begin(&self, unique: Unique) -> AbortRegistration {
        let (handle, registration) = AbortHandle::new_pair();
        let mut state = lock(&self.state);
        if let Some(index) = state.early.iter().position(|&early| early == unique) {
            state.early.remove(index);
            handle.abort();
        } else if state.leaving.is_some() {
            handle.abort();
        } else {
            state.waiting.insert(unique, handle);
        }
        registration
    }

    /// It is over.
    pub(crate) fn end(&self, unique: Unique) {
        lock(&self.state).waiting.remove(&unique);
    }

    /// All calls are broken off; where the kernel sends them again, without an answer.
    pub(crate) fn leave(&self, is_sent_again: bool) {
        let mut state = lock(&self.state);
        state.leaving = Some(is_sent_again);
        std::mem::take(&mut state.waiting).into_values().for_each(|handle| handle.abort());
    }

    /// A call was broken off: what it waits for if it is left to another process.
    pub(crate) fn leave_one(&self) -> Option<EventListener> {
        let mut state = lock(&self.state);
        let is_left = state.leaving == Some(true);
        state.left += usize::from(is_left);
        is_left.then(|| self.taken.listen())
    }

    /// How many calls are left.
    pub(crate) fn left(&self) -> usize {
        lock(&self.state).left
    }

    /// Nobody else has them: those that were left, and those that come, are answered here.
    pub(crate) fn take(&self) {
        let mut state = lock(&self.state);
        (state.leaving, state.left) = (None, 0);
        self.taken.notify(usize::MAX);
    }

    /// A signal came for the caller of `target`.
    pub(crate) fn interrupt(&self, target: Unique) {
        let mut state = lock(&self.state);
        if let Some(handle) = state.waiting.remove(&target) {
            handle.abort();
            return;
        }
        if state.early.len() == EARLY_MAX {
            state.early.pop_front();
        }
        state.early.push_back(target);
    }
}

#[cfg(test)]
mod tests {
    use futures_util::FutureExt;
    use futures_util::future::{Abortable, Aborted, pending, ready};

    use super::*;

    #[test]
    fn an_interrupt_ends_the_call_it_names_and_no_other() {
        let waits = Waits::default();
        let mut first = Abortable::new(pending::<()>(), waits.begin(Unique(2)));
        let mut other = Abortable::new(pending::<()>(), waits.begin(Unique(4)));
        assert_eq!((&mut first).now_or_never(), None);
        waits.interrupt(Unique(2));
        assert_eq!((&mut first).now_or_never(), Some(Err(Aborted)));
        assert_eq!((&mut other).now_or_never(), None);
    }

    #[test]
    fn an_interrupt_that_comes_first_is_not_lost() {
        let waits = Waits::default();
        waits.interrupt(Unique(2));
        let call = Abortable::new(pending::<()>(), waits.begin(Unique(2)));
        assert_eq!(call.now_or_never(), Some(Err(Aborted)));
        let again = Abortable::new(pending::<()>(), waits.begin(Unique(2)));
        assert_eq!(again.now_or_never(), None, "it is used up");
    }

    #[test]
    fn calls_that_another_process_is_to_have_are_broken_off_and_counted() {
        let waits = Waits::default();
        let begin = |number| Abortable::new(pending::<()>(), waits.begin(Unique(number)));
        let mut before = begin(2);
        waits.leave(true);
        assert_eq!(((&mut before).now_or_never(), begin(4).now_or_never()), (Some(Err(Aborted)), Some(Err(Aborted))));
        let mut left = [waits.leave_one(), waits.leave_one()].map(|left| left.expect("it is left"));
        assert_eq!((waits.left(), (&mut left[0]).now_or_never()), (2, None));
        waits.take();
        assert!(left.into_iter().all(|left| left.now_or_never().is_some()), "they wait here again");
        assert_eq!((waits.left(), begin(6).now_or_never()), (0, None));
        waits.leave(false);
        assert!(waits.leave_one().is_none(), "nobody would send it again");
    }

    #[test]
    fn an_interrupt_of_a_call_that_is_over_does_nothing() {
        let waits = Waits::default();
        let call = Abortable::new(ready(1), waits.begin(Unique(2)));
        waits.end(Unique(2));
        (0..1000).for_each(|number| waits.interrupt(Unique(number * 2)));
        assert_eq!(call.now_or_never(), Some(Ok(1)));
        assert_eq!(lock(&waits.state).early.len(), EARLY_MAX);
    }
}
