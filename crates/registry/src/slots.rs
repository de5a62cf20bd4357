//! Which node manages which slots: what a lost node leaves, and how to make shares even again.
//!
//! 1. Slots move in contiguous runs, and each run keeps its list of logs to roll: that list, and nobody's memory, is what
//!    the new manager recovers it from (DESIGN §5).
//! 2. Only as many slots move as evenness asks for.

use std::collections::BTreeMap;

use protocol::id::SLOT_COUNT;
use protocol::maps::{Maps, NodeState, SlotEntry};

/// Slots that change hands: `first..=last`, all managed by `from` now.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Move {
    /// First slot.
    pub first: u16,
    /// Last slot, inclusive.
    pub last: u16,
    /// The node that manages them now.
    pub from: u32,
    /// The node that shall.
    pub to: u32,
}

/// A run of slots with one entry.
struct Stretch {
    first: u16,
    count: u16,
    entry: SlotEntry,
}

/// Gives the slots of nodes that are gone to those that live and store, so that all have about equally many. Without such
/// a node the slots stay.
pub fn inherit(maps: &mut Maps) {
    let mut counts = managed(maps);
    let is_gone = |node: u32| maps.nodes.get(&node).is_none_or(|entry| entry.state == NodeState::Gone);
    let left = stretches(maps).into_iter().filter(|run| is_gone(run.entry.node));
    let orphans: usize = left.map(|run| usize::from(run.count)).sum();
    if counts.is_empty() || orphans == 0 {
        return;
    }
    let mut heirs: BTreeMap<u32, usize> = BTreeMap::new();
    for _ in 0..orphans {
        let (&heir, count) = counts.iter_mut().min_by_key(|(_, count)| **count).expect("somebody lives");
        *count += 1;
        *heirs.entry(heir).or_default() += 1;
    }
    let mut parts: Vec<Stretch> = Vec::new();
    for run in stretches(maps) {
        if is_gone(run.entry.node) {
            parts.extend(shared_out(run, &mut heirs));
        } else {
            parts.push(run);
        }
    }
    maps.slots = joined(parts);
}

/// What would make the shares of all living, storing nodes even, with the fewest slots moved. Whoever carries a move out
/// splits it where the lists of logs differ.
pub fn rebalance(maps: &Maps) -> Vec<Move> {
    let counts = managed(maps);
    let total: usize = counts.values().sum();
    if counts.is_empty() {
        return Vec::new();
    }
    let (share, more) = (total / counts.len(), total % counts.len());
    // Those that have the most already keep one more, where shares cannot be equal.
    let mut ranked: Vec<u32> = counts.keys().copied().collect();
    ranked.sort_by_key(|node| (std::cmp::Reverse(counts[node]), *node));
    let wanted = |rank: usize| share + usize::from(rank < more);
    let mut surplus: BTreeMap<u32, usize> = BTreeMap::new();
    let mut wants: BTreeMap<u32, usize> = BTreeMap::new();
    for (rank, node) in ranked.into_iter().enumerate() {
        let (count, wanted) = (counts[&node], wanted(rank));
        if count > wanted {
            surplus.insert(node, count - wanted);
        } else if count < wanted {
            wants.insert(node, wanted - count);
        }
    }
    let mut moves: Vec<Move> = Vec::new();
    // From the upper end of each run, so that what stays is contiguous too.
    for run in stretches(maps).into_iter().rev() {
        let from = run.entry.node;
        let Some(over) = surplus.get_mut(&from).filter(|over| **over > 0) else { continue };
        let count = (*over).min(run.count.into());
        *over -= count;
        let last = run.first + run.count;
        let given = Stretch { first: last - count as u16, count: count as u16, entry: run.entry };
        let parts = shared_out(given, &mut wants).into_iter();
        moves.extend(parts.map(|part| Move { first: part.first, last: part.last(), from, to: part.entry.node }));
    }
    moves.sort_by_key(|slots| slots.first);
    moves
}

impl Stretch {
    fn last(&self) -> u16 {
        self.first + (self.count - 1)
    }
}

/// Cuts a run into contiguous parts, one heir after the other, and takes them off what each is still to get.
fn shared_out(run: Stretch, heirs: &mut BTreeMap<u32, usize>) -> Vec<Stretch> {
    let mut parts = Vec::new();
    let (mut first, mut left) = (run.first, usize::from(run.count));
    while left > 0 {
        let mut next = heirs.first_entry().expect("the heirs' parts make up the whole");
        let count = left.min(*next.get());
        *next.get_mut() -= count;
        let entry = SlotEntry { node: *next.key(), logs: run.entry.logs.clone() };
        if *next.get() == 0 {
            next.remove();
        }
        parts.push(Stretch { first, count: count as u16, entry });
        first += count as u16;
        left -= count;
    }
    parts
}

/// How many slots each living, storing node manages.
fn managed(maps: &Maps) -> BTreeMap<u32, usize> {
    let mut counts: BTreeMap<u32, usize> = maps.storing().map(|node| (node, 0)).collect();
    for run in stretches(maps) {
        if let Some(count) = counts.get_mut(&run.entry.node) {
            *count += usize::from(run.count);
        }
    }
    counts
}

fn stretches(maps: &Maps) -> Vec<Stretch> {
    let ends = maps.slots.keys().copied().skip(1).chain([SLOT_COUNT]);
    let runs = maps.slots.iter().zip(ends);
    runs.map(|((&first, entry), end)| Stretch { first, count: end - first, entry: entry.clone() }).collect()
}

/// Neighbours with one entry become one run.
fn joined(parts: Vec<Stretch>) -> BTreeMap<u16, SlotEntry> {
    let mut slots: BTreeMap<u16, SlotEntry> = BTreeMap::new();
    for part in parts {
        if slots.last_key_value().is_none_or(|(_, before)| *before != part.entry) {
            slots.insert(part.first, part.entry);
        }
    }
    slots
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::change::{apply, new_cluster};
    use protocol::address::Position;
    use protocol::id::{LogId, TargetId};
    use protocol::maps::{NodeEntry, SlotLog, TargetEntry, TargetState};
    use protocol::registry::RegistryRequest;

    /// Slots in runs of a size and a node each, every run with a log of its own to roll.
    fn cluster(nodes: u32, runs: &[(u16, u32)]) -> Maps {
        let entry = |n: u32| TargetEntry { node: n, name: n.to_string(), state: TargetState::Whole };
        let mut maps = new_cluster(1, (1..=nodes).map(|n| (TargetId(n), entry(n))).collect(), 1, 1);
        let mut first = 0;
        maps.slots.clear();
        for (log, &(count, node)) in (1..).zip(runs) {
            maps.slots
                .insert(first, SlotEntry { node, logs: vec![SlotLog { log: LogId(log), from: Position::START }] });
            first += count;
        }
        assert_eq!(first, SLOT_COUNT);
        maps
    }

    fn counts(maps: &Maps) -> Vec<usize> {
        managed(maps).into_values().collect()
    }

    fn carry_out(maps: &mut Maps, slots: Move) {
        assert!((slots.first..=slots.last).all(|slot| maps.slot(slot).node == slots.from));
        let (first, last, logs) = (slots.first, slots.last, maps.slot(slots.first).logs.clone());
        let request = RegistryRequest::SetSlots { first, last, node: slots.to, logs, epoch: maps.epoch.0 };
        let (next, reply) = apply(maps, request);
        assert!(reply.is_ok());
        *maps = next.expect("slots moved");
    }

    #[test]
    fn what_a_lost_node_leaves_is_spread_over_all_that_live() {
        let mut maps = cluster(4, &[(1024, 1), (1024, 2), (1024, 3), (1024, 4)]);
        maps.nodes.get_mut(&2).unwrap().state = NodeState::Gone;
        inherit(&mut maps);
        assert_eq!(counts(&maps), [1366, 1365, 1365]);
        assert!((1024..2048).all(|slot| maps.slot(slot).logs[0].log == LogId(2)), "each run keeps its list of logs");
        assert!((0..1024).all(|slot| maps.slot(slot).node == 1), "what was not lost stays");
        assert_eq!(maps.slots.len(), 6);
    }

    #[test]
    fn the_idle_inherit_most() {
        let mut maps = cluster(3, &[(3000, 1), (96, 2), (1000, 3)]);
        maps.nodes.get_mut(&3).unwrap().state = NodeState::Gone;
        inherit(&mut maps);
        assert_eq!(counts(&maps), [3000, 1096]);
    }

    #[test]
    fn without_an_heir_the_slots_stay() {
        let mut maps = cluster(1, &[(4096, 1)]);
        maps.nodes.get_mut(&1).unwrap().state = NodeState::Gone;
        let client = NodeEntry { stores: false, state: NodeState::Alive, ..maps.nodes[&1].clone() };
        maps.nodes.insert(2, client);
        let before = maps.clone();
        inherit(&mut maps);
        assert_eq!(maps, before);
        assert_eq!(rebalance(&maps), []);
    }

    #[test]
    fn balancing_moves_no_more_than_evenness_asks_for() {
        let mut maps = cluster(4, &[(2048, 1), (1000, 2), (1048, 1)]);
        let moves = rebalance(&maps);
        let moved: usize = moves.iter().map(|slots| usize::from(slots.last - slots.first) + 1).sum();
        assert_eq!(moved, 3096 - 1024);
        assert!(moves.len() <= 4, "{moves:?}");
        moves.into_iter().for_each(|slots| carry_out(&mut maps, slots));
        assert_eq!(counts(&maps), [1024; 4]);
        assert_eq!(rebalance(&maps), []);
    }

    #[test]
    fn shares_that_cannot_be_equal_are_left_as_they_are() {
        let maps = cluster(3, &[(1366, 3), (1365, 1), (1365, 2)]);
        assert_eq!(rebalance(&maps), []);
    }
}
