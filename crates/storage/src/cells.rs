//! Which cells are free: `docs/format.md`, *Cells and heads* and *Replacing, deleting*.
//!
//! A cell is, in turn: free → announced (its window is being made durable) → in the window → used → free again.
//!
//! Invariants
//! 1. `free`, `announced` and `window` share no cell.
//! 2. New fragments take cells of the window only.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

/// Consecutive cells.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub(crate) struct CellRun {
    pub(crate) first: u32,
    pub(crate) count: u32,
}

impl CellRun {
    /// The cell behind the last.
    pub(crate) fn end(self) -> u32 {
        self.first + self.count
    }
}

/// A set of cells, kept as runs that neither overlap nor touch.
#[derive(Clone, Debug, Default)]
pub(crate) struct CellSet {
    count_by_first: BTreeMap<u32, u32>,
    cells: u32,
}

impl CellSet {
    /// How many cells it holds.
    pub(crate) fn cells(&self) -> u32 {
        self.cells
    }

    /// Its runs in order.
    pub(crate) fn runs(&self) -> impl Iterator<Item = CellRun> + '_ {
        self.count_by_first.iter().map(|(&first, &count)| CellRun { first, count })
    }

    /// Adds cells, none of which is in it.
    pub(crate) fn insert(&mut self, run: CellRun) {
        if run.count == 0 {
            return;
        }
        let mut merged = run;
        if let Some((&first, &count)) = self.count_by_first.range(..=run.first).next_back() {
            assert!(first + count <= run.first, "cell {} was freed twice", run.first);
            if first + count == run.first {
                merged = CellRun { first, count: count + merged.count };
            }
        }
        if let Some((&first, &count)) = self.count_by_first.range(run.first..).next() {
            assert!(run.end() <= first, "cell {first} was freed twice");
            if run.end() == first {
                self.count_by_first.remove(&first);
                merged.count += count;
            }
        }
        self.count_by_first.insert(merged.first, merged.count);
        self.cells += run.count;
    }

    /// Takes the first `count` consecutive cells.
    pub(crate) fn take_run(&mut self, count: u32) -> Option<CellRun> {
        let first = self.runs().find(|run| run.count >= count)?.first;
        Some(self.take_front(first, count))
    }

    /// Takes cells out wherever they are in it.
    pub(crate) fn remove(&mut self, run: CellRun) {
        let overlapping: Vec<CellRun> = self
            .runs_from(run.first)
            .take_while(|other| other.first < run.end())
            .filter(|other| other.end() > run.first)
            .collect();
        for other in overlapping {
            self.take_front(other.first, other.count);
            let before = run.first.saturating_sub(other.first);
            self.insert(CellRun { first: other.first, count: before });
            let after = other.end().saturating_sub(run.end());
            self.insert(CellRun { first: other.end() - after, count: after });
        }
    }

    /// The runs from the one that holds or precedes `cell` on.
    fn runs_from(&self, cell: u32) -> impl Iterator<Item = CellRun> + '_ {
        let start = self.count_by_first.range(..=cell).next_back().map_or(cell, |(&first, _)| first);
        self.count_by_first.range(start..).map(|(&first, &count)| CellRun { first, count })
    }

    /// Takes the first `count` cells of the run that begins at `first`.
    fn take_front(&mut self, first: u32, count: u32) -> CellRun {
        let held = self.count_by_first.remove(&first).expect("a run of the set begins here");
        if held > count {
            self.count_by_first.insert(first + count, held - count);
        }
        self.cells -= count;
        CellRun { first, count }
    }
}

/// All cells of a target that hold nothing.
#[derive(Clone, Debug)]
pub(crate) struct Cells {
    total: u32,
    /// Behind this cell none was ever used or free.
    end: u32,
    free: CellSet,
    announced: CellSet,
    window: CellSet,
}

impl Cells {
    /// `total` cells, all free but for those that `used` names.
    pub(crate) fn new(total: u32, used: impl IntoIterator<Item = CellRun>) -> Cells {
        let (mut free, mut end) = (CellSet::default(), total);
        free.insert(CellRun { first: 0, count: total });
        for run in used {
            free.remove(run);
            end = end.max(run.end());
        }
        Cells { total, end, free, announced: CellSet::default(), window: CellSet::default() }
    }

    /// There is room for so many cells now; whether that is more than before. What was used beyond the target's end, from
    /// when it was larger, is freed when its fragment goes, and what was free there after the next opening.
    pub(crate) fn grow(&mut self, total: u32) -> bool {
        let grows = total > self.total;
        self.total = total.max(self.total);
        self.free.insert(CellRun { first: self.end, count: self.total.saturating_sub(self.end) });
        self.end = self.end.max(self.total);
        grows
    }

    /// How many cells the target has.
    pub(crate) fn total(&self) -> u32 {
        self.total
    }

    /// How many cells hold nothing.
    pub(crate) fn unused(&self) -> u32 {
        self.free.cells() + self.announced.cells() + self.window.cells()
    }

    /// How many cells can be taken at once.
    pub(crate) fn in_window(&self) -> u32 {
        self.window.cells()
    }

    /// How many free cells lie below `end`.
    pub(crate) fn free_below(&self, end: u32) -> u32 {
        self.free.runs().take_while(|run| run.first < end).map(|run| run.end().min(end) - run.first).sum()
    }

    /// Whether the window could be wider.
    pub(crate) fn can_widen(&self) -> bool {
        self.free.cells() > 0
    }

    /// Whether the window has a run of `count` cells.
    pub(crate) fn window_offers(&self, count: u32) -> bool {
        self.window.runs().any(|run| run.count >= count)
    }

    /// Whether a run of `count` cells could be announced.
    pub(crate) fn free_offers(&self, count: u32) -> bool {
        self.free.runs().any(|run| run.count >= count)
    }

    /// Takes `count` consecutive cells of the window.
    pub(crate) fn take(&mut self, count: u32) -> Option<CellRun> {
        self.window.take_run(count)
    }

    /// Puts cells back that were taken and are not used after all.
    pub(crate) fn untake(&mut self, run: CellRun) {
        self.window.insert(run);
    }

    /// Frees cells whose fragment is durably gone. Cells beyond the target's end, from when it was larger, vanish.
    pub(crate) fn free(&mut self, run: CellRun) {
        if run.end() <= self.total {
            self.free.insert(run);
        }
    }

    /// Chooses up to `size` free cells to be announced, with at least one run of `run_min` of them if there is any.
    pub(crate) fn announce(&mut self, size: u32, run_min: u32) -> Vec<CellRun> {
        assert!(self.announced.cells() == 0, "one window is announced at a time");
        let mut chosen = Vec::new();
        let mut wanted = size.max(run_min);
        chosen.extend(self.free.take_run(run_min));
        wanted -= chosen.iter().map(|run| run.count).sum::<u32>();
        while wanted > 0 {
            let Some(run) = self.free.runs().next() else { break };
            let run = self.free.take_front(run.first, run.count.min(wanted));
            wanted -= run.count;
            chosen.push(run);
        }
        for run in &chosen {
            self.announced.insert(*run);
        }
        chosen
    }

    /// What the window will be once the announcement is durable.
    pub(crate) fn window_announced(&self) -> impl Iterator<Item = CellRun> + '_ {
        self.window.runs().chain(self.announced.runs())
    }

    /// The announcement is durable.
    pub(crate) fn open_window(&mut self) {
        for run in std::mem::take(&mut self.announced).runs() {
            self.window.insert(run);
        }
    }

    /// The announcement was not written.
    pub(crate) fn withdraw(&mut self) {
        for run in std::mem::take(&mut self.announced).runs() {
            self.free.insert(run);
        }
    }

    /// Takes some announced cells back, for which the disk has no room.
    pub(crate) fn withdraw_run(&mut self, run: CellRun) {
        if run.count == 0 {
            return;
        }
        self.announced.remove(run);
        self.free.insert(run);
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use host::sim::Dice;

    use super::*;

    #[test]
    fn a_cell_set_is_a_set() {
        let mut dice = Dice::new(3);
        let mut set = CellSet::default();
        let mut model = BTreeSet::new();
        for _ in 0..20_000 {
            let run = CellRun { first: dice.below(60) as u32, count: 1 + dice.below(5) as u32 };
            match dice.below(3) {
                0 if (run.first..run.end()).all(|cell| !model.contains(&cell)) => {
                    set.insert(run);
                    model.extend(run.first..run.end());
                }
                1 => {
                    set.remove(run);
                    model.retain(|cell| !(run.first..run.end()).contains(cell));
                }
                2 => {
                    let possible = model.iter().any(|&cell| (cell..cell + run.count).all(|c| model.contains(&c)));
                    let taken = set.take_run(run.count);
                    assert_eq!(taken.is_some(), possible);
                    for cell in taken.into_iter().flat_map(|run| run.first..run.end()) {
                        assert!(model.remove(&cell));
                    }
                }
                _ => {}
            }
            let cells: Vec<u32> = set.runs().flat_map(|run| run.first..run.end()).collect();
            assert_eq!(cells, model.iter().copied().collect::<Vec<_>>());
            assert_eq!(set.cells() as usize, model.len());
            let runs: Vec<_> = set.runs().collect();
            assert!(runs.windows(2).all(|pair| pair[0].end() < pair[1].first), "runs touch: {runs:?}");
        }
    }

    #[test]
    fn cells_pass_through_the_window() {
        let mut cells = Cells::new(10, [CellRun { first: 2, count: 3 }]);
        assert_eq!((cells.unused(), cells.take(1)), (7, None));
        // A run of four exists only behind the used cells.
        let chosen = cells.announce(6, 4);
        assert_eq!(chosen, [CellRun { first: 5, count: 4 }, CellRun { first: 0, count: 2 }]);
        assert_eq!(cells.take(1), None);
        cells.open_window();
        let run = cells.take(4).unwrap();
        assert_eq!(run.first, 5);
        cells.free(run);
        assert_eq!((cells.in_window(), cells.unused()), (2, 7));
    }

    #[test]
    fn cells_are_added_where_none_ever_was() {
        let (inside, across, beyond) =
            (CellRun { first: 0, count: 2 }, CellRun { first: 9, count: 2 }, CellRun { first: 14, count: 2 });
        let mut cells = Cells::new(10, [inside, across, beyond]);
        assert_eq!(cells.unused(), 7);
        assert!(!cells.grow(10) && !cells.grow(3));
        assert!(cells.grow(12));
        assert_eq!((cells.total(), cells.unused()), (12, 7), "what lies before the last one used may be used");
        cells.free(across);
        assert_eq!(cells.unused(), 9);
        assert!(cells.grow(20));
        assert_eq!(cells.unused(), 13);
        cells.free(beyond);
        cells.free(inside);
        assert_eq!((cells.total(), cells.unused()), (20, 17));
    }
}
