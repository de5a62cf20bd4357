//! Calls that take effect once, as this manager hears of them: which are carried out now, and which were refused. A client
//! asks again where no answer came; and its first asking may be under way yet, and come behind the answer to the second one.
//! Decides, never awaits.
//!
//! Invariants
//! 1. Of one call one asking is carried out at a time: the next one finds how that ended.
//! 2. A call that was refused has no effect any more, though what it lacked was made since: its client has told the program.
//!    That holds for the slot's stay here. Where a call took effect the slot tells so (`ops/once.rs`).
//! 3. A call that was given up has no effect any more, and is forgotten here. So no more is known than what clients asked while
//!    their oldest call was under way.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Mutex, MutexGuard, PoisonError};

use event_listener::{Event, EventListener};
use protocol::id::LogId;
use protocol::manager::ManagerError;
use protocol::once::{CallId, OnceName};

/// The calls of all clients.
#[derive(Default)]
pub(crate) struct Askings {
    clients: Mutex<BTreeMap<LogId, Client>>,
    ended: Event,
}

/// The calls of one client.
#[derive(Default)]
struct Client {
    /// Before this number all were given up.
    below: u64,
    carried_out: BTreeSet<u64>,
    /// What was refused, in which stay of its slot.
    refused: BTreeMap<u64, (u64, ManagerError)>,
}

/// An asking that is carried out; dropped, it is not any more.
pub(crate) struct Asking<'a> {
    askings: &'a Askings,
    call: CallId,
    stay: u64,
}

/// What becomes of an asking.
pub(crate) enum Begun<'a> {
    /// It is to be carried out.
    Now(Asking<'a>),
    /// Again behind an earlier one.
    Behind(EventListener),
    /// No.
    Refused(ManagerError),
}

impl Askings {
    /// An asking comes for a slot in that stay.
    pub(crate) fn begin(&self, name: OnceName, stay: u64) -> Begun<'_> {
        let (call, number) = (name.call, name.call.number);
        let mut clients = self.clients();
        let client = clients.entry(call.client).or_default();
        client.give_up(name.below.min(number));
        if number < client.below {
            return Begun::Refused(ManagerError::Invalid("this call was given up".into()));
        }
        if let Some((_, error)) = client.refused.get(&number).filter(|(known, _)| *known == stay) {
            return Begun::Refused(error.clone());
        }
        // Heard under the lock: what ends behind this is not missed.
        match client.carried_out.insert(number) {
            true => Begun::Now(Asking { askings: self, call, stay }),
            false => Begun::Behind(self.ended.listen()),
        }
    }

    /// Forgets clients whose log is over: nothing that they ask has an effect (`late`).
    pub(crate) fn forget(&self, is_over: impl Fn(LogId) -> bool) {
        self.clients().retain(|&log, client| !client.carried_out.is_empty() || !is_over(log));
    }

    fn clients(&self) -> MutexGuard<'_, BTreeMap<LogId, Client>> {
        self.clients.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Client {
    fn give_up(&mut self, below: u64) {
        if below > self.below {
            self.below = below;
            self.refused = self.refused.split_off(&below);
        }
    }
}

impl Asking<'_> {
    /// It was refused for good, and its client is about to be told.
    pub(crate) fn refuse(self, error: ManagerError) {
        if let Some(client) = self.askings.clients().get_mut(&self.call.client) {
            client.refused.insert(self.call.number, (self.stay, error));
        }
    }
}

impl Drop for Asking<'_> {
    fn drop(&mut self) {
        if let Some(client) = self.askings.clients().get_mut(&self.call.client) {
            client.carried_out.remove(&self.call.number);
        }
        self.askings.ended.notify(usize::MAX);
    }
}

#[cfg(test)]
mod tests {
    use protocol::id::SlotId;

    use super::*;

    const CLIENT: LogId = LogId(77);

    fn name(number: u64, below: u64) -> OnceName {
        OnceName { call: CallId { client: CLIENT, number }, below, slot: SlotId(0) }
    }

    fn now(begun: Begun<'_>) -> Asking<'_> {
        match begun {
            Begun::Now(asking) => asking,
            Begun::Behind(_) => panic!("another is carried out"),
            Begun::Refused(error) => panic!("refused: {error}"),
        }
    }

    #[test]
    fn one_asking_of_a_call_waits_for_the_other() {
        let askings = Askings::default();
        let first = now(askings.begin(name(4, 4), 1));
        assert!(matches!(askings.begin(name(4, 4), 1), Begun::Behind(_)));
        drop(now(askings.begin(name(5, 4), 1)));
        drop(first);
        drop(now(askings.begin(name(4, 4), 1)));
    }

    #[test]
    fn what_was_refused_stays_so_while_the_slot_stays() {
        let askings = Askings::default();
        now(askings.begin(name(4, 4), 1)).refuse(ManagerError::NotFound);
        assert!(matches!(askings.begin(name(4, 4), 1), Begun::Refused(ManagerError::NotFound)));
        drop(now(askings.begin(name(4, 4), 2)));
    }

    #[test]
    fn what_was_given_up_is_refused_and_forgotten() {
        let askings = Askings::default();
        for number in 0..100 {
            now(askings.begin(name(number, number), 1)).refuse(ManagerError::Exists);
        }
        assert!(matches!(askings.begin(name(98, 0), 1), Begun::Refused(ManagerError::Invalid(_))));
        assert_eq!(askings.clients()[&CLIENT].refused.len(), 1);
        askings.forget(|log| log == CLIENT);
        assert!(askings.clients().is_empty());
    }
}
