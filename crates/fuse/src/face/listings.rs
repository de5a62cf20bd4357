//! Listings on their way to the kernel with names that it may use. Decides, never awaits.
//!
//! Linux takes the epoch of a name that it looks up from before it asks, so that no answer brings an old one back. The
//! names of a READDIRPLUS it links behind the answer, in the epoch of then (fs/fuse/readdir.c, `fuse_direntplus_link`):
//! what was told before the names were called back may be linked when all names have been forgotten. That the kernel has an
//! answer can be seen; not when the thread that asked has linked it.

use std::collections::BTreeSet;
use std::sync::{Arc, Mutex};

use event_listener::{Event, EventListener};
use host::{Host, Moment};

use super::lock;

/// The listings of a mount.
#[derive(Default)]
pub(super) struct Listings {
    state: Mutex<State>,
    moved: Event,
}

#[derive(Default)]
struct State {
    begun: u64,
    on_their_way: BTreeSet<u64>,
    /// When the kernel got the last one that had names which it may use.
    arrived: Moment,
}

/// A listing, from before it is decided for how long its names are valid until the kernel has it.
pub(super) struct Listing {
    all: Arc<Listings>,
    host: Host,
    number: u64,
    names_are_valid: bool,
}

impl Listings {
    /// What a listing has is about to be decided.
    pub(super) fn begin(self: &Arc<Self>, host: &Host) -> Listing {
        let mut state = lock(&self.state);
        state.begun += 1;
        let number = state.begun;
        state.on_their_way.insert(number);
        Listing { all: self.clone(), host: host.clone(), number, names_are_valid: false }
    }

    /// The listings so far, by the number of the last.
    pub(super) fn so_far(&self) -> u64 {
        lock(&self.state).begun
    }

    /// When the kernel got names by the listings up to this one; none while one of these is on its way.
    pub(super) fn arrived(&self, last: u64) -> Option<Moment> {
        let state = lock(&self.state);
        state.on_their_way.first().is_none_or(|&first| first > last).then_some(state.arrived)
    }

    /// The next listing that arrives.
    pub(super) fn moved(&self) -> EventListener {
        self.moved.listen()
    }
}

impl Listing {
    /// The kernel may use the names in it for a while.
    pub(super) fn gives_names(&mut self) {
        self.names_are_valid = true;
    }
}

impl Drop for Listing {
    fn drop(&mut self) {
        let mut state = lock(&self.all.state);
        state.on_their_way.remove(&self.number);
        if self.names_are_valid {
            state.arrived = self.host.now();
        }
        drop(state);
        self.all.moved.notify(usize::MAX);
    }
}
