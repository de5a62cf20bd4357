//! Which room of the intake may be written: `docs/format.md`, *The intake*.
//!
//! Invariants
//! 1. Entries that stand side by side do not overlap, and none is written over before a sync of the data covers it.
//! 2. A half whose entry may still be on its way to the disk is not used anew: it would land on a later one.

/// The two halves of an intake.
#[derive(Debug)]
pub(crate) struct Halves {
    half_size: u64,
    /// The one that is being filled.
    current: usize,
    halves: [Half; 2],
    /// The highest sync that [`Halves::due`] asked for.
    asked: u64,
}

#[derive(Clone, Copy, Debug, Default)]
struct Half {
    used: u64,
    /// Entries that are being written, or whose fragment does not say the same yet.
    held: u32,
    /// The sync of the data that covers what all others say.
    until_sync: u64,
}

/// Room for an entry. Given back with [`Halves::release`] once it has been written and its fragment says the same, or
/// never will.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Room {
    /// Where it begins in the intake.
    pub(crate) place: u64,
    half: usize,
}

impl Halves {
    /// Those of an intake of so many bytes, which holds nothing that is needed.
    pub(crate) fn new(intake_size: u32) -> Halves {
        Halves { half_size: u64::from(intake_size / 2), current: 0, halves: [Half::default(); 2], asked: 0 }
    }

    /// Room for an entry, when so many syncs of the data are over; `None` while there is none.
    pub(crate) fn take(&mut self, size: u64, completed: u64) -> Option<Room> {
        if self.halves[self.current].used + size > self.half_size {
            let other = &mut self.halves[1 - self.current];
            if size > self.half_size || other.held > 0 || other.until_sync > completed {
                return None;
            }
            other.used = 0;
            self.current = 1 - self.current;
        }
        let half = &mut self.halves[self.current];
        let place = self.current as u64 * self.half_size + half.used;
        half.used += size;
        half.held += 1;
        Some(Room { place, half: self.current })
    }

    /// The sync of the data to begin now, so that nobody waits for the other half.
    pub(crate) fn due(&mut self, completed: u64) -> Option<u64> {
        let other = self.halves[1 - self.current];
        let is_due = 2 * self.halves[self.current].used > self.half_size;
        if !is_due || other.until_sync <= completed.max(self.asked) {
            return None;
        }
        self.asked = other.until_sync;
        Some(other.until_sync)
    }

    /// The entry is needed until this sync of the data; not at all if there is none.
    pub(crate) fn release(&mut self, room: Room, until_sync: Option<u64>) {
        let half = &mut self.halves[room.half];
        half.held -= 1;
        half.until_sync = half.until_sync.max(until_sync.unwrap_or(0));
    }
}

#[cfg(test)]
mod tests {
    use host::sim::Dice;

    use super::*;

    /// Against a list of what lies where.
    #[test]
    fn nothing_is_written_over_before_a_sync_covers_it() {
        let mut dice = Dice::new(7);
        let mut halves = Halves::new(10_000);
        let (mut completed, mut turns) = (0, 0);
        // Range, whether it is held, and the sync that it waits for.
        let mut taken: Vec<(std::ops::Range<u64>, Option<Room>, u64)> = Vec::new();
        for _ in 0..50_000 {
            match dice.below(4) {
                0 | 1 => {
                    let size = 1 + dice.below(900);
                    let Some(room) = halves.take(size, completed) else { continue };
                    let range = room.place..room.place + size;
                    assert!(range.end <= 10_000);
                    taken.retain(|(other, held, until_sync)| {
                        let overlap = other.start < range.end && range.start < other.end;
                        assert!(!overlap || held.is_none() && *until_sync <= completed, "{range:?} over {other:?}");
                        turns += u32::from(overlap && other.start == 0);
                        !overlap
                    });
                    taken.push((range, Some(room), 0));
                }
                2 => {
                    let held: Vec<usize> = (0..taken.len()).filter(|index| taken[*index].1.is_some()).collect();
                    let Some(index) = dice.pick(&held) else { continue };
                    let until_sync = dice.coin().then_some(completed + 1 + dice.below(2));
                    let (_, room, until) = &mut taken[*index];
                    halves.release(room.take().expect("it is held"), until_sync);
                    *until = until_sync.unwrap_or(0);
                }
                _ => completed = halves.due(completed).unwrap_or(completed + dice.below(2)),
            }
        }
        assert!(turns > 50, "the first half was used anew {turns} times");
    }

    #[test]
    fn a_sync_is_asked_for_once_when_half_of_the_other_half_is_full() {
        let mut halves = Halves::new(2_000);
        for until_sync in [1, 2] {
            let room = halves.take(400, 0).expect("there is room");
            halves.release(room, Some(until_sync));
        }
        assert_eq!(halves.due(0), None);
        assert_eq!(halves.take(1_001, 0), None);
        let room = halves.take(400, 0).expect("there is room in the other half");
        assert_eq!((room.place, halves.due(0)), (1_000, None));
        let room = halves.take(400, 0).expect("there is room");
        assert_eq!((halves.due(0), halves.due(0)), (Some(2), None));
        halves.release(room, Some(3));
        assert_eq!((halves.take(400, 1), halves.take(400, 2).map(|room| room.place)), (None, Some(0)));
    }
}
