//! What the list is told, and when: the catalog's side of `docs/format.md`, *The list*.
//!
//! Invariants
//! 1. A window's announcement goes along with an entry for every fragment that the window before covered, and covers
//!    the cells that are being filled right now. So each fragment is listed or in the last window's cells.
//! 2. What has been composed is told or restored; the order of what is told is the order of what happened.

use std::ops::Bound;

use protocol::fragment::FragmentId;

use crate::catalog::{Catalog, Change, Stored, Syncs};
use crate::cells::CellRun;
use crate::head::Generation;
use crate::list::{Entry, Payloads, Settled, WINDOW_RUNS_MAX, WindowRun};

/// A short fragment that was left alone through so many windows is settled as it is.
const IDLE_WINDOWS: u8 = 2;

/// Entries for the list, and what follows from their being durable.
#[derive(Debug)]
pub(crate) struct Composed {
    pub(crate) payloads: Vec<Vec<u8>>,
    /// The number of the last change among them.
    pub(crate) covers: u64,
    changes: Vec<Change>,
    listed: Vec<FragmentId>,
    window: bool,
}

impl Catalog {
    /// Collects what the list does not know yet; with `window`, announces the cells that were chosen for it.
    pub(crate) fn compose(&mut self, window: bool, syncs: Syncs) -> Composed {
        self.let_retired_go(syncs);
        let mut payloads = Payloads::default();
        let changes = std::mem::take(&mut self.changes);
        changes.iter().for_each(|change| payloads.push(&change_entry(change)));
        let mut listed = Vec::new();
        if window {
            self.list_retired(&mut payloads);
            listed = self.list_unsettled(&mut payloads, syncs);
            payloads.push(&Entry::Window(self.window_runs()));
        }
        Composed { payloads: payloads.take(), covers: self.changes_count, changes, listed, window }
    }

    /// What was composed is durable. Returns the cells that are free once their heads are wiped.
    pub(crate) fn told(&mut self, composed: Composed) -> Vec<CellRun> {
        if composed.window {
            self.cells.open_window();
        }
        self.fences_untold.retain(|_, change| *change > composed.covers);
        let gone = composed.changes.iter().filter_map(|change| match change {
            Change::Gone { run, .. } => Some(*run),
            Change::Open { .. } | Change::Fence { .. } => None,
        });
        gone.collect()
    }

    /// What was composed could not be written.
    pub(crate) fn restore(&mut self, composed: Composed) {
        let later = std::mem::replace(&mut self.changes, composed.changes);
        self.changes.extend(later);
        for id in composed.listed {
            if let Some(stored) = self.fragments.get_mut(&id) {
                self.unsettled.insert(id);
                if let Some(tail) = &mut stored.tail {
                    tail.listed = false;
                }
            }
        }
        if composed.window {
            self.cells.withdraw();
        }
    }

    /// These cells hold nothing any more.
    pub(crate) fn cells_left(&mut self, run: CellRun) {
        self.cells_leaving -= run.count;
        self.cells.free(run);
    }

    /// Part of a snapshot: up to `limit` fragments behind `after`; returns the last, unless there were none.
    pub(crate) fn snapshot_page(
        &self,
        after: Option<FragmentId>,
        limit: usize,
        payloads: &mut Payloads,
    ) -> Option<FragmentId> {
        let start = after.map_or(Bound::Unbounded, Bound::Excluded);
        let mut last = None;
        for (id, stored) in self.fragments.range((start, Bound::Unbounded)).take(limit) {
            payloads.push(&fragment_entry(stored));
            last = Some(*id);
        }
        last
    }

    /// The fences, for a snapshot.
    pub(crate) fn snapshot_fences(&self, payloads: &mut Payloads) {
        for (&log, &epoch) in &self.fences {
            payloads.push(&Entry::Fence { log, epoch });
        }
    }

    /// Retired fragments whose successor is durable are gone.
    fn let_retired_go(&mut self, syncs: Syncs) {
        let (gone, kept) = std::mem::take(&mut self.retired)
            .into_iter()
            .partition::<Vec<_>, _>(|retired| retired.until_sync <= syncs.completed);
        self.retired = kept;
        for retired in gone {
            let Stored { run, generation, .. } = retired.stored;
            self.change(Change::Gone { run, generation });
        }
    }

    /// Until their successors are durable, they may be needed again.
    fn list_retired(&self, payloads: &mut Payloads) {
        for retired in &self.retired {
            payloads.push(&fragment_entry(&retired.stored));
        }
    }

    /// Lists every fragment that is not, and settles what is durable and grows no more.
    fn list_unsettled(&mut self, payloads: &mut Payloads, syncs: Syncs) -> Vec<FragmentId> {
        let mut listed = Vec::new();
        let mut settled = Vec::new();
        for id in &self.unsettled {
            let stored = self.fragments.get_mut(id).expect("what is unsettled is stored");
            let durable = stored.until_sync(syncs).is_none();
            if let Some(tail) = &mut stored.tail {
                tail.idle = tail.idle.saturating_add(1);
                if durable && !tail.growing && (tail.complete || tail.idle > IDLE_WINDOWS) {
                    stored.tail = None;
                } else if std::mem::replace(&mut tail.listed, true) {
                    continue;
                }
            }
            if stored.tail.is_none() {
                settled.push(*id);
            }
            payloads.push(&fragment_entry(stored));
            listed.push(*id);
        }
        for id in settled {
            self.unsettled.remove(&id);
        }
        listed
    }

    fn window_runs(&self) -> Vec<WindowRun> {
        let floor = self.generation_next.0;
        let unused = self.cells.window_announced().map(|run| WindowRun { run, floor });
        let filling = self.filling.values().map(|(run, Generation(floor))| WindowRun { run: *run, floor: *floor });
        let runs: Vec<WindowRun> = unused.chain(filling).collect();
        assert!(runs.len() <= WINDOW_RUNS_MAX, "a window of {} runs", runs.len());
        runs
    }
}

fn change_entry(change: &Change) -> Entry<'static> {
    match *change {
        Change::Open { cell, generation } => Entry::Open { cell, generation: generation.0 },
        Change::Gone { run, generation } => Entry::Gone { cell: run.first, generation: generation.0 },
        Change::Fence { log, epoch } => Entry::Fence { log, epoch },
    }
}

fn fragment_entry(stored: &Stored) -> Entry<'_> {
    let settled = Settled { length: stored.length, partial: stored.partial };
    Entry::Fragment {
        cell: stored.run.first,
        generation: stored.generation.0,
        epoch: stored.epoch,
        settled: stored.tail.is_none().then_some(settled),
        header: &stored.header,
    }
}
