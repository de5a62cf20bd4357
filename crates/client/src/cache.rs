//! Bytes read ahead, by log address, and loads under way. Decides, never awaits.
//!
//! A log address means the same bytes for ever, so nothing here is ever stale, and no write has to look here. The kernel
//! keeps what programs have read: what was handed out to its end is the first to go, and what was read ahead stays until then
//! as long as there is anything else to drop.
//!
//! Invariants
//! 1. No two entries overlap.
//! 2. `bytes` is the sum of the lengths of the entries that are ready; at most `bytes_max` once a step is over.
//! 3. Every ready entry is in `order` once, and nothing else is.
//! 4. `unspent` is the sum of the lengths of the entries, loading or ready, that are not spent.
//! 5. No load by a detour waits for another one, for by different maps each might need the other. A load goes around before it
//!    looks for what it needs: so of those that wait for each other in a circle, none could have been the first to look.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};

use bytes::Bytes;
use event_listener::Event;
use log::ReadError;
use protocol::address::LogAddress;
use protocol::id::{LogId, StripeNumber};

use crate::client::lock;

/// The cache. Clones share it.
#[derive(Clone, Debug)]
pub(crate) struct Cache(Arc<Mutex<State>>);

type Key = (LogId, StripeNumber, u32);
/// Whether somebody is to come for an entry; since when; which it is.
type Place = (bool, u64, Key);

#[derive(Debug, Default)]
struct State {
    entries: BTreeMap<Key, Entry>,
    /// In which order entries go: those that are spent, and then the others, each as they came to be that.
    order: BTreeSet<Place>,
    turn: u64,
    bytes: usize,
    unspent: usize,
    bytes_max: usize,
}

#[derive(Debug)]
struct Entry {
    length: u32,
    content: Content,
    /// Handed out to its end, or nobody comes for it.
    spent: bool,
    /// Where it is in the order, once it is ready.
    turn: u64,
}

#[derive(Debug)]
enum Content {
    Ready(Bytes),
    Loading(Arc<Load>),
}

/// What the cache has of the beginning of an address.
#[derive(Debug)]
pub(crate) enum Found {
    /// These bytes.
    Ready(Bytes),
    /// Somebody loads them: of what comes, skip so many bytes and take at most so many.
    Loading(Arc<Load>, usize, usize),
    /// Nothing; the caller now loads it for all.
    Begun(Loading),
    /// Nothing.
    Absent(LogAddress),
}

/// What the caller of [`Cache::look`] means to do about absent bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Intent {
    /// Read them alone.
    Alone,
    /// Read them for all who want them meanwhile.
    Shared,
    /// Read them before anyone wants them.
    Ahead,
    /// Read them for a load by a detour, which waits for no other one: those are absent.
    Around,
}

impl Cache {
    pub(crate) fn new(bytes_max: usize) -> Cache {
        Cache(Arc::new(Mutex::new(State { bytes_max, ..State::default() })))
    }

    /// Looks for the beginning of `address`.
    pub(crate) fn look(&self, address: LogAddress, intent: Intent) -> Found {
        let state = &mut *lock(&self.0);
        let key = (address.log, address.stripe, address.offset);
        if let Some((&at, entry)) = state.entries.range(..=key).next_back()
            && (at.0, at.1) == (address.log, address.stripe)
            && at.2 + entry.length > address.offset
        {
            let skip = (address.offset - at.2) as usize;
            let length = (entry.length as usize - skip).min(address.length as usize);
            let is_end = skip + length == entry.length as usize;
            let found = match &entry.content {
                Content::Loading(load) if intent == Intent::Around && load.goes_around.load(Ordering::SeqCst) => {
                    Found::Absent(address.part(0, length as u32))
                }
                Content::Loading(load) => Found::Loading(load.clone(), skip, length),
                Content::Ready(bytes) => Found::Ready(bytes.slice(skip..skip + length)),
            };
            if is_end && matches!(intent, Intent::Alone | Intent::Shared) {
                state.spend(at);
            }
            return found;
        }
        let end = (address.log, address.stripe, address.offset + address.length);
        let next = state.entries.range(key..end).next();
        let length = next.map_or(address.length, |((_, _, start), _)| start - address.offset);
        let absent = address.part(0, length);
        if intent == Intent::Alone {
            return Found::Absent(absent);
        }
        let load = Arc::new(Load::default());
        let content = Content::Loading(load.clone());
        state.entries.insert(key, Entry { length, content, spent: false, turn: 0 });
        state.unspent += length as usize;
        Found::Begun(Loading { cache: self.clone(), address: absent, load: Some(load) })
    }

    /// How many bytes of `address` are neither here nor on their way.
    pub(crate) fn lacks(&self, address: LogAddress) -> u32 {
        let (log, stripe, start) = (address.log, address.stripe, address.offset);
        let end = start + address.length;
        let state = lock(&self.0);
        let before_end = state.entries.range((log, stripe, 0)..(log, stripe, end)).rev();
        let overlap =
            |(&(_, _, from), entry): (&Key, &Entry)| end.min(from + entry.length).checked_sub(start.max(from));
        let held: u32 = before_end.map_while(overlap).sum();
        address.length - held
    }

    /// Who was to have what is here of `address` does not come for it: it is as if it had been handed out.
    pub(crate) fn release(&self, address: LogAddress) {
        let (log, stripe, start) = (address.log, address.stripe, address.offset);
        let state = &mut *lock(&self.0);
        let before_end = state.entries.range((log, stripe, 0)..(log, stripe, start + address.length)).rev();
        let overlap = before_end.take_while(|((_, _, from), entry)| from + entry.length > start);
        let released: Vec<Key> = overlap.map(|(&key, _)| key).collect();
        released.into_iter().for_each(|key| state.spend(key));
    }

    /// For how many bytes there is room without losing what nobody has had yet.
    pub(crate) fn spare(&self) -> u64 {
        let state = lock(&self.0);
        state.bytes_max.saturating_sub(state.unspent) as u64
    }

    /// How many bytes are kept.
    pub(crate) fn bytes(&self) -> usize {
        lock(&self.0).bytes
    }
}

impl State {
    /// Replaces a load by its bytes, or by nothing.
    fn settle(&mut self, key: Key, bytes: Option<Bytes>) {
        let Some(bytes) = bytes else {
            self.remove(key);
            return;
        };
        let entry = self.entries.get_mut(&key).expect("a load has an entry until it ends");
        self.bytes += bytes.len();
        entry.content = Content::Ready(bytes);
        let is_wanted = !entry.spent;
        self.line_up(key, is_wanted);
        self.shrink();
    }

    /// Nobody comes for the rest of an entry.
    fn spend(&mut self, key: Key) {
        let entry = self.entries.get_mut(&key).expect("what is spent exists");
        if entry.spent {
            return;
        }
        entry.spent = true;
        self.unspent -= entry.length as usize;
        if let Content::Ready(_) = entry.content {
            assert!(self.order.remove(&(true, entry.turn, key)), "what is ready is in the order");
            self.line_up(key, false);
        }
    }

    fn line_up(&mut self, key: Key, is_wanted: bool) {
        self.turn += 1;
        self.entries.get_mut(&key).expect("what lines up exists").turn = self.turn;
        self.order.insert((is_wanted, self.turn, key));
    }

    fn shrink(&mut self) {
        while self.bytes > self.bytes_max {
            let (_, _, key) = self.order.pop_first().expect("what has bytes is in the order");
            self.bytes -= self.entries[&key].length as usize;
            self.remove(key);
        }
    }

    /// Takes away an entry that is not in the order, or not any more.
    fn remove(&mut self, key: Key) {
        let entry = self.entries.remove(&key).expect("what is removed exists");
        if !entry.spent {
            self.unspent -= entry.length as usize;
        }
    }
}

/// A load under way, as those see it who wait for it.
#[derive(Debug, Default)]
pub(crate) struct Load {
    outcome: Mutex<Option<Outcome>>,
    goes_around: AtomicBool,
    pub(crate) ended: Event,
}

/// How a load ended.
#[derive(Clone, Debug)]
pub(crate) enum Outcome {
    /// With the bytes, or without.
    Loaded(Result<Bytes, ReadError>),
    /// Who loaded went away: look again.
    Abandoned,
}

impl Load {
    /// How it ended, if it has.
    pub(crate) fn outcome(&self) -> Option<Outcome> {
        lock(&self.outcome).clone()
    }
}

/// The duty to load something for all. Dropping it tells those who wait to look again.
#[derive(Debug)]
pub(crate) struct Loading {
    cache: Cache,
    address: LogAddress,
    load: Option<Arc<Load>>,
}

impl Loading {
    /// What is to be loaded.
    pub(crate) fn address(&self) -> LogAddress {
        self.address
    }

    /// It is done by a detour from now on: said before anything is looked for that this needs.
    pub(crate) fn go_around(&self) {
        self.load.as_ref().expect("it has not ended").goes_around.store(true, Ordering::SeqCst);
    }

    /// Hands the bytes to those who wait, and to the cache if they were read ahead.
    pub(crate) fn end(mut self, outcome: Result<Bytes, ReadError>, keep: bool) {
        let kept = outcome.as_ref().ok().filter(|_| keep).cloned();
        self.settle(kept, Outcome::Loaded(outcome));
    }

    fn settle(&mut self, kept: Option<Bytes>, outcome: Outcome) {
        let Some(load) = self.load.take() else { return };
        let key = (self.address.log, self.address.stripe, self.address.offset);
        lock(&self.cache.0).settle(key, kept);
        *lock(&load.outcome) = Some(outcome);
        load.ended.notify(usize::MAX);
    }
}

impl Drop for Loading {
    fn drop(&mut self) {
        self.settle(None, Outcome::Abandoned);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn address(offset: u32, length: u32) -> LogAddress {
        LogAddress { log: LogId(1), stripe: StripeNumber(1), offset, length }
    }

    fn load(cache: &Cache, address: LogAddress) {
        let Found::Begun(loading) = cache.look(address, Intent::Shared) else { panic!("nobody loads it yet") };
        let bytes = Bytes::from(vec![loading.address().offset as u8; loading.address().length as usize]);
        loading.end(Ok(bytes), true);
    }

    #[test]
    fn what_was_read_ahead_is_found_in_parts() {
        let cache = Cache::new(1000);
        load(&cache, address(100, 50));
        load(&cache, address(200, 50));
        assert!(matches!(cache.look(address(110, 100), Intent::Alone), Found::Ready(bytes) if bytes.len() == 40));
        assert!(
            matches!(cache.look(address(150, 100), Intent::Alone), Found::Absent(part) if part == address(150, 50))
        );
        assert!(matches!(cache.look(address(200, 10), Intent::Alone), Found::Ready(bytes) if bytes.len() == 10));
        assert!(matches!(cache.look(address(250, 10), Intent::Alone), Found::Absent(_)));
        assert_eq!(cache.bytes(), 100);
    }

    #[test]
    fn what_is_here_or_on_its_way_is_not_lacking() {
        let cache = Cache::new(1000);
        load(&cache, address(100, 50));
        let Found::Begun(_loading) = cache.look(address(150, 50), Intent::Ahead) else { panic!("nobody loads it yet") };
        let lacks = |offset, length| cache.lacks(address(offset, length));
        assert_eq!((lacks(100, 100), lacks(120, 60), lacks(0, 100), lacks(200, 10)), (0, 0, 100, 10));
        assert_eq!((lacks(90, 20), lacks(190, 20), lacks(90, 200)), (10, 10, 100));
    }

    #[test]
    fn one_loads_and_the_others_wait() {
        let cache = Cache::new(1000);
        let Found::Begun(loading) = cache.look(address(0, 100), Intent::Shared) else { panic!("nobody loads it yet") };
        let Found::Loading(load, 40, 60) = cache.look(address(40, 100), Intent::Shared) else { panic!("it is loaded") };
        assert!(load.outcome().is_none());
        drop(loading);
        assert!(matches!(load.outcome(), Some(Outcome::Abandoned)));
        assert!(matches!(cache.look(address(40, 100), Intent::Shared), Found::Begun(_)));
    }

    #[test]
    fn who_waits_for_a_load_has_had_it() {
        let cache = Cache::new(100);
        let Found::Begun(loading) = cache.look(address(0, 60), Intent::Ahead) else { panic!("nobody loads it yet") };
        assert!(matches!(cache.look(address(0, 40), Intent::Shared), Found::Loading(_, 0, 40)));
        assert_eq!(cache.spare(), 40);
        assert!(matches!(cache.look(address(40, 20), Intent::Shared), Found::Loading(_, 40, 20)));
        assert_eq!(cache.spare(), 100);
        loading.end(Ok(Bytes::from(vec![1; 60])), true);
        load(&cache, address(100, 60));
        assert_eq!((cache.bytes(), cache.spare()), (60, 40));
        assert!(matches!(cache.look(address(100, 10), Intent::Alone), Found::Ready(_)));
    }

    #[test]
    fn what_nobody_comes_for_goes_first() {
        let cache = Cache::new(100);
        load(&cache, address(0, 50));
        load(&cache, address(50, 50));
        let Found::Begun(loading) = cache.look(address(100, 50), Intent::Ahead) else { panic!("nobody loads it yet") };
        assert_eq!(cache.spare(), 0);
        cache.release(address(60, 10));
        assert_eq!(cache.spare(), 0, "there are 150 bytes for 100, of which 50 may go");
        cache.release(address(140, 100));
        cache.release(address(50, 50));
        assert_eq!(cache.spare(), 50);
        loading.end(Ok(Bytes::from(vec![1; 50])), true);
        assert!(matches!(cache.look(address(0, 50), Intent::Alone), Found::Ready(_)));
        assert!(matches!(cache.look(address(50, 50), Intent::Alone), Found::Absent(_)));
        assert_eq!((cache.bytes(), cache.spare()), (100, 100));
    }

    #[test]
    fn a_load_by_a_detour_waits_for_no_other() {
        let cache = Cache::new(1000);
        let Found::Begun(plain) = cache.look(address(0, 100), Intent::Ahead) else { panic!("nobody loads it yet") };
        let Found::Begun(around) = cache.look(address(100, 100), Intent::Ahead) else { panic!("nobody loads it yet") };
        around.go_around();
        assert!(matches!(cache.look(address(40, 100), Intent::Around), Found::Loading(_, 40, 60)));
        assert!(
            matches!(cache.look(address(140, 100), Intent::Around), Found::Absent(part) if part == address(140, 60))
        );
        assert!(matches!(cache.look(address(140, 100), Intent::Ahead), Found::Loading(_, 40, 60)));
        around.end(Ok(Bytes::from(vec![1; 100])), true);
        assert!(matches!(cache.look(address(140, 60), Intent::Around), Found::Ready(bytes) if bytes.len() == 60));
        drop(plain);
        assert!(matches!(cache.look(address(0, 100), Intent::Around), Found::Begun(_)));
    }

    #[test]
    fn what_programs_have_seen_goes_first() {
        let cache = Cache::new(100);
        load(&cache, address(0, 50));
        load(&cache, address(50, 50));
        assert!(matches!(cache.look(address(50, 50), Intent::Alone), Found::Ready(_)));
        load(&cache, address(200, 50));
        assert!(matches!(cache.look(address(0, 50), Intent::Alone), Found::Ready(_)));
        assert!(matches!(cache.look(address(50, 50), Intent::Alone), Found::Absent(_)));
        assert_eq!(cache.bytes(), 100);
        assert_eq!(cache.spare(), 50, "what was handed out may go");
        for at in 3..40 {
            load(&cache, address(at * 100, 50));
            assert!(cache.bytes() <= 100);
        }
    }
}
