//! Calls that wait for a lock, and the signals that end them. Decides, never awaits.
//!
//! INTERRUPT names a request that was read from any of the mount's descriptors, so it may be here before its target is:
//! then it is kept until that comes. Most interrupts are for requests that end soon by themselves, and never find one.

use std::collections::{BTreeMap, VecDeque};
use std::sync::Mutex;

use futures_util::future::{AbortHandle, AbortRegistration};

use super::lock;
use crate::operation::Unique;

/// How many interrupts are kept. A target comes within the time that another thread needs to parse it.
const EARLY_MAX: usize = 256;

/// The calls.
#[derive(Debug, Default)]
pub(crate) struct Waits(Mutex<State>);

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
        let mut state = lock(&self.0);
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
        lock(&self.0).waiting.remove(&unique);
    }

    /// All calls are broken off; where the kernel sends them again, without an answer.
    pub(crate) fn leave(&self, is_sent_again: bool) {
        let mut state = lock(&self.0);
        state.leaving = Some(is_sent_again);
        std::mem::take(&mut state.waiting).into_values().for_each(|handle| handle.abort());
    }

    /// A call was broken off; true if nobody answers it here.
    pub(crate) fn is_left(&self) -> bool {
        let mut state = lock(&self.0);
        let is_left = state.leaving == Some(true);
        state.left += usize::from(is_left);
        is_left
    }

    /// How many calls were left.
    pub(crate) fn left(&self) -> usize {
        lock(&self.0).left
    }

    /// Nobody else has them: those that come are answered again.
    pub(crate) fn take(&self) {
        lock(&self.0).leaving = None;
    }

    /// A signal came for the caller of `target`.
    pub(crate) fn interrupt(&self, target: Unique) {
        let mut state = lock(&self.0);
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
        assert!(waits.is_left() && waits.is_left());
        assert_eq!(waits.left(), 2);
        waits.take();
        assert_eq!(begin(6).now_or_never(), None, "it waits here again");
        waits.leave(false);
        assert!(!waits.is_left(), "nobody would send it again");
    }

    #[test]
    fn an_interrupt_of_a_call_that_is_over_does_nothing() {
        let waits = Waits::default();
        let call = Abortable::new(ready(1), waits.begin(Unique(2)));
        waits.end(Unique(2));
        (0..1000).for_each(|number| waits.interrupt(Unique(number * 2)));
        assert_eq!(call.now_or_never(), Some(Ok(1)));
        assert_eq!(lock(&waits.0).early.len(), EARLY_MAX);
    }
}
