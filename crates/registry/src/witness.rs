//! How late an earlier leader may have granted leases, as those tell who elected the next ([`leases`](crate::leases), rule 2).
//!
//! 1. A node notes the moment when something arrives by which a lease may come to be granted: at a leader a renewal, at the
//!    others what a leader says, which they may confirm by their answer. It notes before it acts. A granted renewal arrived
//!    before the round that confirmed it began, so no node of that quorum noted its last before it.
//! 2. With its vote a node tells how long ago it noted last. Once it has voted it confirms no earlier leader.
//! 3. The quorum that confirmed and the quorum that elected have a node in common. So no renewal that was granted by an earlier
//!    leader arrived later than the latest note of those who elected this one.
//! 4. What a node noted in an earlier life of its process it does not know: it counts as noted when this life began.

use std::time::Duration;

use host::Moment;

/// What one node noted, and was told when it stood for election.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Witness {
    noted: Moment,
    /// The newest term for which this node stood, and the latest note of those asked.
    told: Option<(u64, Moment)>,
}

impl Witness {
    /// Of a node whose life begins `now`.
    pub fn new(now: Moment) -> Witness {
        Witness { noted: now, told: None }
    }

    /// Something arrived by which a lease may come to be granted.
    pub fn note(&mut self, now: Moment) {
        self.noted = self.noted.max(now);
    }

    /// How long ago it noted last: to be told with a vote, and looked up after it.
    pub fn ago(&self, now: Moment) -> Duration {
        now - self.noted
    }

    /// This node has voted for itself in `term`, and asks others to.
    pub fn stand(&mut self, term: u64) {
        self.hear(term, self.noted);
    }

    /// Another node, asked for its vote in `term`, noted last at `noted` or before.
    pub fn hear(&mut self, term: u64, noted: Moment) {
        self.told = match self.told {
            Some((of, before)) if of == term => Some((of, before.max(noted))),
            Some((of, before)) if of > term => Some((of, before)),
            _ => Some((term, noted)),
        };
    }

    /// For this node, elected in `term`: the moment after which no earlier leader was confirmed; nothing if nobody was asked.
    pub fn last(&self, term: u64) -> Option<Moment> {
        self.told.filter(|(of, _)| *of == term).map(|(_, last)| last)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(milliseconds: u64) -> Moment {
        Moment(0) + Duration::from_millis(milliseconds)
    }

    #[test]
    fn the_latest_note_of_all_who_were_asked_counts() {
        let mut witness = Witness::new(at(100));
        witness.note(at(700));
        witness.stand(5);
        assert_eq!(witness.last(5), Some(at(700)));
        witness.hear(5, at(650));
        assert_eq!(witness.last(5), Some(at(700)));
        witness.hear(5, at(730));
        assert_eq!(witness.last(5), Some(at(730)));
        witness.hear(4, at(900));
        assert_eq!(witness.last(5), Some(at(730)), "an answer of an election that is over");
        witness.stand(6);
        assert_eq!((witness.last(5), witness.last(6)), (None, Some(at(700))));
    }

    #[test]
    fn an_earlier_life_counts_as_noted_when_this_one_began() {
        let mut witness = Witness::new(at(100));
        assert_eq!(witness.ago(at(400)), Duration::from_millis(300));
        witness.note(at(350));
        witness.note(at(340));
        assert_eq!(witness.ago(at(400)), Duration::from_millis(50));
        assert_eq!(witness.last(1), None, "whom nobody elected nobody told");
    }
}
