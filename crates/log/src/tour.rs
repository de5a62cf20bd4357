//! All ended stripes, one by one, for who takes long over each. This file awaits; `listing` decides.
//!
//! Invariants
//! 1. Each stripe that was ended when the tour began, and is there when its turn comes, has one turn.
//! 2. A tour ends, however much is written meanwhile: what lies behind the newest ended stripe that a log had when it began has
//!    none.
//! 3. What targets told is not kept while somebody works: they are asked for the next stripes when the last are done.

use std::collections::{BTreeMap, VecDeque};

use protocol::id::{LogId, StripeNumber};

use crate::listing::Place;
use crate::stripes::StripeState;
use crate::{Cluster, Walk};

/// So many stripes are looked up at once: half of what a target tells at once, so that one page of each is enough.
const SOME: usize = 512;

/// A way through all stripes that are ended, but for those that are cut off: open ones belong to their writers, and what is cut
/// off to the cleaner.
#[derive(Debug)]
pub struct Tour {
    stripes: u64,
    ended: u64,
    newest: BTreeMap<LogId, StripeNumber>,
    /// Behind which stripe it goes on, and with which it ends: to the end of all, and then from the beginning.
    ways: VecDeque<(Option<Place>, Option<Place>)>,
    /// The next ones.
    some: VecDeque<StripeState>,
    done: u64,
}

impl Tour {
    /// Counts all stripes, and begins with the first.
    pub async fn begin(cluster: &Cluster) -> Tour {
        let (maps, mut newest) = (cluster.maps(), BTreeMap::new());
        let (mut stripes, mut ended) = (0, 0);
        let count = |state: StripeState| {
            stripes += 1;
            if has_turn(&state) {
                ended += 1;
                newest.insert(state.log, state.number);
            }
        };
        Walk::over_all(cluster, &maps).to_end(count).await;
        Tour { stripes, ended, newest, ways: [(None, None)].into(), some: VecDeque::new(), done: 0 }
    }

    /// Begins with the ended stripe behind so many others, and ends before it.
    pub async fn turned(mut self, cluster: &Cluster, count: u64) -> Tour {
        let (maps, mut last) = (cluster.maps(), None);
        let mut walk = Walk::over_all(cluster, &maps);
        let mut left = count;
        while left > 0
            && let Some(state) = walk.next().await
        {
            left -= u64::from(has_turn(&state));
            last = Some((state.log, state.number));
        }
        if last.is_some() {
            self.ways = [(last, None), (None, last)].into();
        }
        self
    }

    /// How many stripes there were when it began, whoever's they are.
    pub fn stripes(&self) -> u64 {
        self.stripes
    }

    /// How many of them have a turn, as far as is known: what was ended since, between others, has one, too.
    pub fn ended(&self) -> u64 {
        self.ended.max(self.done)
    }

    /// How many had one.
    pub fn done(&self) -> u64 {
        self.done
    }

    /// The stripe whose turn is next.
    pub async fn next(&mut self, cluster: &Cluster) -> Option<StripeState> {
        if self.some.is_empty() {
            self.some = self.next_some(cluster).await;
        }
        let next = self.some.pop_front();
        self.done += u64::from(next.is_some());
        next
    }

    async fn next_some(&mut self, cluster: &Cluster) -> VecDeque<StripeState> {
        let mut some = VecDeque::new();
        while some.is_empty()
            && let Some((behind, last)) = self.ways.pop_front()
        {
            let (maps, mut at) = (cluster.maps(), behind);
            let mut walk = Walk::behind(cluster, &maps, behind);
            while some.len() < SOME {
                let state = walk.next().await;
                let Some(state) = state.filter(|state| last.is_none_or(|last| (state.log, state.number) <= last))
                else {
                    break;
                };
                at = Some((state.log, state.number));
                let is_old = self.newest.get(&state.log).is_some_and(|newest| state.number <= *newest);
                some.extend(Some(state).filter(|state| is_old && has_turn(state)));
            }
            if some.len() == SOME {
                self.ways.push_front((at, last));
            }
        }
        some
    }
}

fn has_turn(state: &StripeState) -> bool {
    state.ended && !state.cut_off
}
