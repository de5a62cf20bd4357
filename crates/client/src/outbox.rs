//! Deltas that are in the log and that managers have not acknowledged (DESIGN §5, block maps and deltas). Decides,
//! never awaits.
//!
//! Invariants
//! 1. Batches lie in log order, and leave in log order: a slot gets the deltas of one log in the order of the log.
//! 2. A batch leaves only when the log is `disk` through its end, and is kept until every manager acknowledged it.
//! 3. Deltas of one slot are all laid out for one manager: what is laid out at once goes by the same maps.

use std::collections::{BTreeMap, VecDeque};
use std::sync::Arc;

use host::NodeId;
use protocol::address::Position;
use protocol::delta::Delta;
use protocol::maps::Maps;

use crate::ClientError;

/// So many deltas are sent at once, at most; one batch always is.
const SEND_MAX: usize = 4096;
/// With so many waiting, sending does not wait for more.
const URGENT_MIN: usize = 1024;

/// What managers do not know yet.
#[derive(Debug, Default)]
pub(crate) struct Outbox {
    batches: VecDeque<Batch>,
    delta_count: usize,
    acknowledged: Position,
    /// Somebody waits for acknowledgements up to here.
    wanted: Position,
    /// Why the log could not be committed the last time. Nothing is lost: it is tried again.
    failed: Option<ClientError>,
}

/// The deltas of one record.
#[derive(Clone, Debug)]
pub(crate) struct Batch {
    /// Where the record's body lies: what *applied* becomes. Between the record's place and its end, so that it means
    /// the same whether one asks for records that begin behind it or that end behind it.
    pub(crate) position: Position,
    /// Just behind the record.
    pub(crate) end: Position,
    /// Where the oldest data record begins that the deltas name, or this record.
    pub(crate) from: Position,
    pub(crate) deltas: Arc<[Delta]>,
}

/// What to send: per manager, in log order.
#[derive(Debug, Default)]
pub(crate) struct Sending {
    pub(crate) position: Position,
    pub(crate) end: Position,
    pub(crate) parts: BTreeMap<NodeId, Vec<Delta>>,
}

impl Sending {
    fn lay_out(&mut self, deltas: impl Iterator<Item = Delta>, maps: &Maps) {
        for delta in deltas {
            let manager = NodeId(maps.slot(delta.inode.slot().0).node);
            self.parts.entry(manager).or_default().push(delta);
        }
    }

    /// Slots may have moved: what is left goes by other maps.
    pub(crate) fn lay_out_anew(&mut self, maps: &Maps) {
        let left = std::mem::take(&mut self.parts);
        self.lay_out(left.into_values().flatten(), maps);
    }
}

impl Outbox {
    pub(crate) fn push(&mut self, batch: Batch) {
        assert!(self.batches.back().is_none_or(|last| last.end <= batch.position), "records are appended in order");
        self.delta_count += batch.deltas.len();
        self.batches.push_back(batch);
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.batches.is_empty()
    }

    /// Just behind the last record with deltas.
    pub(crate) fn end(&self) -> Position {
        self.batches.back().map_or(self.acknowledged, |batch| batch.end)
    }

    /// All records that end at or before this are acknowledged.
    pub(crate) fn acknowledged(&self) -> Position {
        self.acknowledged
    }

    /// Before this, managers know of all data whose deltas are in a record (DESIGN §8: what lies behind a mark lives).
    pub(crate) fn mark(&self) -> Position {
        self.batches.iter().map(|batch| batch.from).min().unwrap_or(self.acknowledged).min(self.acknowledged)
    }

    /// Somebody waits until everything through `position` is acknowledged.
    pub(crate) fn want(&mut self, position: Position) {
        self.wanted = self.wanted.max(position);
    }

    /// Whether to send at once rather than to gather more.
    pub(crate) fn is_urgent(&self) -> bool {
        self.wanted > self.acknowledged || self.delta_count >= URGENT_MIN
    }

    /// What may leave, as the log is `disk` through `disk`; none if nothing may.
    pub(crate) fn sending(&self, disk: Position, maps: &Maps) -> Option<Sending> {
        let mut sending = Sending::default();
        let mut count = 0;
        for batch in self.batches.iter().take_while(|batch| batch.end <= disk) {
            if count > 0 && count + batch.deltas.len() > SEND_MAX {
                break;
            }
            count += batch.deltas.len();
            (sending.position, sending.end) = (batch.position, batch.end);
            sending.lay_out(batch.deltas.iter().cloned(), maps);
        }
        // A batch may have no deltas: it only moves the mark.
        (sending.end > Position::default()).then_some(sending)
    }

    /// Every manager has everything through `end`.
    pub(crate) fn acknowledge(&mut self, end: Position) {
        while self.batches.front().is_some_and(|batch| batch.end <= end) {
            let batch = self.batches.pop_front().expect("there is a first");
            self.delta_count -= batch.deltas.len();
        }
        self.acknowledged = self.acknowledged.max(end);
        self.failed = None;
    }

    /// The log could not be committed.
    pub(crate) fn fail(&mut self, error: ClientError) {
        self.failed = Some(error);
    }

    /// It is tried again.
    pub(crate) fn retry(&mut self) {
        self.failed = None;
    }

    pub(crate) fn failed(&self) -> Option<ClientError> {
        self.failed.clone()
    }
}

#[cfg(test)]
mod tests {
    use protocol::delta::Change;
    use protocol::file::Time;
    use protocol::id::{InodeId, SlotId, StripeNumber};
    use protocol::maps::SlotEntry;

    use super::*;

    fn at(offset: u32) -> Position {
        Position::new(StripeNumber(0), offset)
    }

    fn batch(start: u32, slots: &[u16]) -> Batch {
        let delta = |&slot| Delta {
            inode: InodeId::new(SlotId(slot), 5),
            change: Change::Wrote { size: u64::from(start), time: Time(0) },
        };
        Batch {
            position: at(start + 1),
            end: at(start + 10),
            from: at(start.saturating_sub(15)),
            deltas: slots.iter().map(delta).collect(),
        }
    }

    /// Slots 1 and so on are managed by these nodes.
    fn managed(nodes: &[u32]) -> Maps {
        let slots = (1..).zip(nodes.iter().map(|&node| SlotEntry { node, base: None, logs: Vec::new() }));
        Maps { slots: slots.collect(), ..Maps::empty(1, 1) }
    }

    #[test]
    fn what_is_left_when_slots_move_stays_in_log_order() {
        let mut outbox = Outbox::default();
        outbox.push(batch(0, &[1, 2]));
        outbox.push(batch(10, &[2, 1]));
        outbox.push(batch(20, &[1]));
        let mut sending = outbox.sending(at(30), &managed(&[7, 8])).expect("all are on disk");
        for maps in [managed(&[8, 7]), managed(&[3, 3]), managed(&[2, 1])] {
            sending.lay_out_anew(&maps);
            for slot in [1, 2] {
                let with = |part: &&Vec<Delta>| part.iter().any(|delta| delta.inode.slot() == SlotId(slot));
                assert_eq!(sending.parts.values().filter(with).count(), 1, "one manager has all of a slot");
            }
            let of_first = sending.parts.values().flatten().filter(|delta| delta.inode.slot() == SlotId(1));
            let sizes = of_first.map(|delta| match delta.change {
                Change::Wrote { size, .. } => size,
                _ => unreachable!("nothing else was made"),
            });
            assert_eq!(sizes.collect::<Vec<_>>(), [0, 10, 20]);
        }
    }

    #[test]
    fn deltas_leave_in_log_order_once_the_log_is_on_disk() {
        let mut outbox = Outbox::default();
        outbox.push(batch(0, &[1, 2]));
        outbox.push(batch(10, &[1]));
        outbox.push(batch(20, &[2]));
        let maps = managed(&[1, 2]);
        assert!(outbox.sending(at(9), &maps).is_none());
        let sending = outbox.sending(at(25), &maps).expect("two batches are on disk");
        assert_eq!((sending.position, sending.end), (at(11), at(20)));
        assert_eq!((sending.parts[&NodeId(1)].len(), sending.parts[&NodeId(2)].len()), (2, 1));
        outbox.want(at(20));
        assert!(outbox.is_urgent());
        outbox.acknowledge(sending.end);
        assert!(!outbox.is_urgent() && !outbox.is_empty());
        assert_eq!((outbox.acknowledged(), outbox.end()), (at(20), at(30)));
        assert_eq!(outbox.mark(), at(5), "the last batch names data that lies before others' deltas");
    }
}
