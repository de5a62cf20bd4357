//! Virtual time: what will happen, in order. Time does not pass while anyone can run, and jumps when nobody can.

use std::collections::BTreeMap;
use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, Waker};

use crate::{Envelope, Moment};

use super::executor::Core;
use super::network::Double;

/// Something that the world does at its moment, whether or not a task still waits for it.
pub(super) enum Event {
    /// A sleep ends.
    Wake(Waker),
    /// A disk finishes an operation.
    Disk { disk: usize, operation: u64 },
    /// A request arrives.
    Request { call: u64 },
    /// A copy of a request arrives.
    Double { double: Double },
    /// An answer arrives.
    Answer { call: u64, answer: Envelope },
    /// The caller learns that no answer will come.
    GiveUp { call: u64 },
    /// The caller gives up if the way is still cut or the other end still frozen.
    Check { call: u64 },
}

/// Names a planned event: its moment, and a number that orders events of one moment by when they were planned.
pub(super) type EventKey = (Moment, u64);

/// All planned events.
#[derive(Default)]
pub(super) struct Calendar {
    events: BTreeMap<EventKey, Event>,
    planned: u64,
}

impl Calendar {
    pub(super) fn plan(&mut self, moment: Moment, event: Event) -> EventKey {
        self.planned += 1;
        let key = (moment, self.planned);
        self.events.insert(key, event);
        key
    }

    pub(super) fn next_moment(&self) -> Option<Moment> {
        self.events.first_key_value().map(|((moment, _), _)| *moment)
    }

    pub(super) fn take_next(&mut self) -> Option<(EventKey, Event)> {
        self.events.pop_first()
    }

    pub(super) fn take_all(&mut self) -> Vec<Event> {
        std::mem::take(&mut self.events).into_values().collect()
    }

    fn cancel(&mut self, key: EventKey) -> Option<Event> {
        self.events.remove(&key)
    }

    fn replace_waker(&mut self, key: EventKey, waker: &Waker) -> Option<Waker> {
        match self.events.get_mut(&key) {
            Some(Event::Wake(old)) if !old.will_wake(waker) => Some(std::mem::replace(old, waker.clone())),
            _ => None,
        }
    }
}

/// Waits for a moment of the world's own time. Dropped, it leaves the calendar.
pub(super) struct Sleep {
    core: Arc<Core>,
    until: Moment,
    key: Option<EventKey>,
}

impl Sleep {
    pub(super) fn new(core: Arc<Core>, until: Moment) -> Self {
        Sleep { core, until, key: None }
    }
}

impl Future for Sleep {
    type Output = ();

    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<()> {
        let core = self.core.clone();
        let mut state = core.lock();
        if state.now >= self.until {
            return Poll::Ready(());
        }
        // An old waker is dropped after the lock: it may hold whatever its maker put into it.
        let old = match self.key {
            Some(key) => state.calendar.replace_waker(key, context.waker()),
            None => {
                self.key = Some(state.calendar.plan(self.until, Event::Wake(context.waker().clone())));
                None
            }
        };
        drop(state);
        drop(old);
        Poll::Pending
    }
}

impl Drop for Sleep {
    fn drop(&mut self) {
        if let Some(key) = self.key {
            let cancelled = self.core.lock().calendar.cancel(key);
            drop(cancelled);
        }
    }
}

/// Lets others run first, once.
pub(super) struct Yield(bool);

impl Yield {
    pub(super) fn new() -> Self {
        Yield(false)
    }
}

impl Future for Yield {
    type Output = ();

    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<()> {
        if std::mem::replace(&mut self.0, true) {
            return Poll::Ready(());
        }
        context.waker().wake_by_ref();
        Poll::Pending
    }
}
