//! Which node manages which slots: what a lost node leaves, and how to make shares even again.
//!
//! 1. Slots move in contiguous runs, and each run keeps its list of logs to roll: that list, and nobody's memory, is what
//!    the new manager recovers it from (DESIGN §5).
//! 2. Only as many slots move as evenness asks for.
//! 3. A wish changes nobody's manager: the present one does, when it has handed the slots over. A wish lasts as long as its
//!    slots are with the one who is to give them and both lives go on; when a storing node comes or goes, all wishes end
//!    (`docs/decisions/0020-slots-are-handed-over.md`).

use std::collections::BTreeMap;

use protocol::id::SLOT_COUNT;
use protocol::maps::{Maps, NodeState, SlotEntry, SlotWish};

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

/// Gives the slots of nodes that are gone to those that live, store and stay, so that all have about equally many. Without
/// such a node the slots stay.
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

/// What would make the shares of all living, storing nodes even, with the fewest slots moved; a living node that takes no
/// share, as one that is being emptied, keeps none. Whoever carries a move out splits it where the lists of logs differ.
pub fn rebalance(maps: &Maps) -> Vec<Move> {
    let counts = managed(maps);
    let mut surplus = without_share(maps);
    let shares = counts.len();
    let total: usize = counts.values().chain(surplus.values()).sum();
    if shares == 0 {
        return Vec::new();
    }
    let (share, more) = (total / shares, total % shares);
    // Those that have the most already keep one more, where shares cannot be equal.
    let mut ranked: Vec<u32> = counts.keys().copied().collect();
    ranked.sort_by_key(|node| (std::cmp::Reverse(counts[node]), *node));
    let wanted = |rank: usize| share + usize::from(rank < more);
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

/// Wishes for what would make shares even, in place of all earlier wishes.
pub(crate) fn plan(maps: &mut Maps) {
    let wish = |slots: Move| (slots.first, SlotWish { last: slots.last, from: slots.from, to: slots.to });
    maps.wishes = rebalance(maps).into_iter().map(wish).collect();
}

/// A life of a node begins or is over: what was wished for rested on other shares.
pub(crate) fn forget_wishes(maps: &mut Maps, node: u32) {
    if maps.nodes.get(&node).is_some_and(|entry| entry.stores) {
        maps.wishes.clear();
    }
}

/// Cuts wishes down to the slots that are still where they were when they were wished elsewhere.
pub(crate) fn drop_fulfilled(maps: &mut Maps) {
    if maps.wishes.is_empty() {
        return;
    }
    let managed = stretches(maps);
    let mut left = BTreeMap::new();
    for (&first, wish) in &maps.wishes {
        let there = managed.iter().filter(|run| run.entry.node == wish.from);
        for run in there.filter(|run| run.first <= wish.last && first <= run.last()) {
            left.insert(run.first.max(first), SlotWish { last: run.last().min(wish.last), ..*wish });
        }
    }
    maps.wishes = left;
    let wishes = std::mem::take(&mut maps.wishes);
    for (first, wish) in wishes {
        match maps.wishes.last_entry() {
            Some(mut before)
                if before.get().last + 1 == first && SlotWish { last: wish.last, ..*before.get() } == wish =>
            {
                before.get_mut().last = wish.last;
            }
            _ => drop(maps.wishes.insert(first, wish)),
        }
    }
}

/// Neighbours with one entry become one run.
pub(crate) fn join(maps: &mut Maps) {
    maps.slots = joined(stretches(maps));
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
        let entry = SlotEntry { node: *next.key(), ..run.entry.clone() };
        if *next.get() == 0 {
            next.remove();
        }
        parts.push(Stretch { first, count: count as u16, entry });
        first += count as u16;
        left -= count;
    }
    parts
}

/// How many slots each node manages that is to have any: those that live, store and stay.
fn managed(maps: &Maps) -> BTreeMap<u32, usize> {
    let mut counts: BTreeMap<u32, usize> = maps.staying().into_iter().map(|node| (node, 0)).collect();
    for run in stretches(maps) {
        if let Some(count) = counts.get_mut(&run.entry.node) {
            *count += usize::from(run.count);
        }
    }
    counts
}

/// How many slots living nodes manage that take no share.
fn without_share(maps: &Maps) -> BTreeMap<u32, usize> {
    let sharing = maps.staying();
    let lives = |node: &u32| maps.nodes.get(node).is_some_and(|entry| entry.state == NodeState::Alive);
    let mut counts = BTreeMap::new();
    for run in stretches(maps).iter().filter(|run| lives(&run.entry.node) && !sharing.contains(&run.entry.node)) {
        *counts.entry(run.entry.node).or_default() += usize::from(run.count);
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
    use protocol::maps::{NodeEntry, SlotLog, TargetEntry};
    use protocol::registry::RegistryRequest;

    /// Slots in runs of a size and a node each, every run with a log of its own to roll.
    fn cluster(nodes: u32, runs: &[(u16, u32)]) -> Maps {
        let entry = |n: u32| TargetEntry::new(n, n.to_string());
        let mut maps = new_cluster(1, (1..=nodes).map(|n| (TargetId(n), entry(n))).collect(), 1, 1);
        let mut first = 0;
        maps.slots.clear();
        for (log, &(count, node)) in (1..).zip(runs) {
            maps.slots.insert(
                first,
                SlotEntry { node, base: None, logs: vec![SlotLog { log: LogId(log), from: Position::START }] },
            );
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
        let request = RegistryRequest::SetSlots { first, last, node: slots.to, base: None, logs, epoch: maps.epoch.0 };
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

    /// Numbers that look random, from a seed.
    fn dice(mut seed: u64) -> impl FnMut(u64) -> u64 {
        move |below| {
            seed = seed.wrapping_mul(0x5851_f42d_4c95_7f2d).wrapping_add(0x1405_7b7e_f767_814f);
            (seed >> 33) % below
        }
    }

    #[test]
    fn whatever_the_shares_are_a_plan_evens_them_with_the_fewest_moves() {
        for seed in 0..200 {
            let mut dice = dice(seed);
            let nodes = 1 + dice(7) as u32;
            let (mut runs, mut left) = (Vec::new(), SLOT_COUNT);
            while left > 0 {
                let count = 1 + dice(left.into()) as u16;
                runs.push((count, 1 + dice(nodes.into()) as u32));
                left -= count;
            }
            let mut maps = cluster(nodes, &runs);
            if nodes > 1 && dice(3) == 0 {
                // It lives, and takes no share.
                maps.nodes.get_mut(&nodes).unwrap().stores = false;
            }
            let before = counts(&maps);
            plan(&mut maps);
            assert_eq!(maps.verify(), Ok(()));
            let planned = maps.wishes.clone();
            plan(&mut maps);
            assert_eq!(maps.wishes, planned, "the same maps, the same plan");
            let moved: usize = planned.iter().map(|(first, wish)| usize::from(wish.last - first) + 1).sum();
            let moves = rebalance(&maps);
            moves.into_iter().for_each(|slots| carry_out(&mut maps, slots));
            let after = counts(&maps);
            let (least, most) = (*after.iter().min().unwrap(), *after.iter().max().unwrap());
            assert!(most - least <= 1 && after.iter().sum::<usize>() == usize::from(SLOT_COUNT), "{after:?}");
            let gained: usize = before.iter().zip(&after).map(|(before, after)| after.saturating_sub(*before)).sum();
            assert_eq!(moved, gained, "nothing moves that need not");
            assert!(maps.wishes.is_empty(), "{:?}", maps.wishes);
        }
    }

    #[test]
    fn a_wish_shrinks_as_its_slots_move_and_ends_when_a_node_comes_or_goes() {
        let mut maps = cluster(3, &[(4096, 1)]);
        maps = apply(&maps, RegistryRequest::Balance).0.unwrap();
        let wished = |maps: &Maps| -> Vec<(u16, u16, u32)> {
            maps.wishes.iter().map(|(first, wish)| (*first, wish.last, wish.to)).collect()
        };
        assert_eq!(wished(&maps), [(1366, 2730, 2), (2731, 4095, 3)]);
        carry_out(&mut maps, Move { first: 1366, last: 1500, from: 1, to: 2 });
        carry_out(&mut maps, Move { first: 3000, last: 3000, from: 1, to: 3 });
        assert_eq!(wished(&maps), [(1501, 2730, 2), (2731, 2999, 3), (3001, 4095, 3)]);
        let log = RegistryRequest::open_log(&maps, 1, protocol::maps::Writer::Client, 0);
        assert_eq!(wished(&apply(&maps, log).0.unwrap()), wished(&maps), "what else happens is no matter");
        for request in [
            RegistryRequest::Begin { node: 2, after: 1, address: String::new(), keeps: None },
            RegistryRequest::Expire { node: 3, session: 1 },
        ] {
            assert_eq!(wished(&apply(&maps, request).0.unwrap()), []);
        }
    }

    #[test]
    fn neighbours_with_one_entry_become_one_run() {
        let mut maps = cluster(2, &[(1000, 1), (1000, 2), (2096, 1)]);
        let logs = maps.slot(0).logs.clone();
        let list = |first, last, epoch| {
            let logs = logs.clone();
            RegistryRequest::SetSlots { first, last, node: 1, base: None, logs, epoch }
        };
        maps = apply(&maps, list(1000, 1999, maps.epoch.0)).0.unwrap();
        assert_eq!(maps.slots.keys().copied().collect::<Vec<_>>(), [0, 2000]);
        maps = apply(&maps, list(2000, 4095, maps.epoch.0)).0.unwrap();
        assert_eq!(maps.slots.len(), 1);
    }
}
