//! Sets of slots, as a table on disk tells them.
//!
//! Invariant: its runs are in order, and do not touch.

use protocol::id::{SLOT_COUNT, SlotId};
use serde::{Deserialize, Serialize};

use crate::encoding::Damaged;

/// Slots by their runs, each from its first to its last.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct SlotSet(Vec<(u16, u16)>);

impl SlotSet {
    /// These slots, which come in order.
    pub(crate) fn of(slots: &[SlotId]) -> SlotSet {
        let mut runs: Vec<(u16, u16)> = Vec::new();
        for slot in slots {
            match runs.last_mut() {
                Some(run) if run.1 + 1 == slot.0 => run.1 = slot.0,
                last => {
                    assert!(last.is_none_or(|run| run.1 < slot.0), "slots come in order");
                    runs.push((slot.0, slot.0));
                }
            }
        }
        SlotSet(runs)
    }

    /// Refuses what no manager wrote.
    pub(crate) fn checked(self) -> Result<SlotSet, Damaged> {
        let is_run = |&(first, last): &(u16, u16)| first <= last && last < SLOT_COUNT;
        let holds = self.0.iter().all(is_run) && self.0.windows(2).all(|pair| pair[0].1 + 1 < pair[1].0);
        if holds { Ok(self) } else { Err(Damaged("set of slots")) }
    }

    /// Whether all slots from one to another are in it.
    pub(crate) fn holds(&self, first: u16, last: u16) -> bool {
        self.0.iter().any(|run| run.0 <= first && last <= run.1)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_set_holds_what_it_was_made_of_and_rubbish_is_refused() {
        let slots = [0, 1, 2, 7, 4094, 4095].map(SlotId);
        let set = SlotSet::of(&slots);
        assert_eq!(set, SlotSet(vec![(0, 2), (7, 7), (4094, 4095)]));
        assert_eq!(set.clone().checked(), Ok(set.clone()));
        for first in [0, 1, 2, 3, 7, 8, 4093, 4094, 4095] {
            for last in [first, first + 1] {
                let all = [first, last].iter().all(|&slot| slots.contains(&SlotId(slot)));
                assert_eq!(set.holds(first, last), all, "{first} to {last}");
            }
        }
        assert!(!SlotSet::of(&[]).holds(0, 0) && !set.holds(2, 7));
        for bad in [vec![(3, 2)], vec![(0, 4096)], vec![(0, 2), (3, 4)], vec![(5, 6), (1, 2)], vec![(1, 4), (3, 5)]] {
            assert_eq!(SlotSet(bad.clone()).checked(), Err(Damaged("set of slots")), "{bad:?}");
        }
    }
}
