//! The slot engine against a `BTreeMap`, with images and evictions in between.

use std::collections::BTreeMap;

use protocol::address::LogAddress;
use protocol::id::{LogId, SlotId, StripeNumber};

use super::Dice;
use crate::page::Page;
use crate::slot::{PageId, Slot};

const SLOT: SlotId = SlotId(3);

struct Disk {
    pages: BTreeMap<u32, Vec<u8>>,
    next: u32,
}

impl Disk {
    fn image(&mut self, slot: &mut Slot) {
        for copy in slot.copies() {
            if let Some((page, version)) = copy.changed {
                self.next += 1;
                self.pages.insert(self.next, page.encode());
                drop(page);
                slot.stored(&copy.low, version, address(self.next));
            }
        }
    }

    fn load(&self, slot: &mut Slot, id: &PageId) {
        slot.fill(id, Page::decode(&self.pages[&id.address.offset]).unwrap());
    }
}

fn address(number: u32) -> LogAddress {
    LogAddress { log: LogId(1), stripe: StripeNumber(0), offset: number, length: 1 }
}

fn with_pages<T>(slot: &mut Slot, disk: &Disk, ask: impl Fn(&Slot) -> Result<T, PageId>) -> T {
    loop {
        let missing = match ask(slot) {
            Ok(answer) => return answer,
            Err(missing) => missing,
        };
        disk.load(slot, &missing);
    }
}

/// Stores every page anew, wherever it lies.
fn with_pages_mut(slot: &mut Slot, disk: &Disk) {
    while let Err(missing) = slot.renew(&[(LogId(1), StripeNumber(0))].into()) {
        disk.load(slot, &missing);
    }
    assert!(slot.copies().iter().all(|copy| copy.changed.is_some() || copy.stored.is_none()));
}

#[test]
fn a_slot_is_a_sorted_map_whatever_is_in_memory() {
    for seed in 0..20 {
        let mut dice = Dice::new(seed);
        let mut slot = Slot::empty(SLOT);
        let mut disk = Disk { pages: BTreeMap::new(), next: 0 };
        let mut model: BTreeMap<Vec<u8>, Vec<u8>> = BTreeMap::new();
        // Some seeds grow, some shrink, so that pages split and join.
        let removals = 2 + seed % 5;
        // An image that is being written shares its pages with the slot, which copies them before it changes them.
        let mut held = Vec::new();
        for step in 0..3000 {
            let key = vec![dice.below(4) as u8; 1 + dice.below(90) as usize];
            let key = [key, vec![dice.below(8) as u8]].concat();
            if dice.one_in(removals) {
                with_pages(&mut slot, &disk, |slot| slot.ready(&key));
                slot.apply(&key, None);
                model.remove(&key);
            } else {
                let size_max = if dice.one_in(50) { 3000 } else { 60 };
                let value = vec![step as u8; dice.below(size_max) as usize];
                with_pages(&mut slot, &disk, |slot| slot.ready(&key));
                slot.apply(&key, Some(&value));
                model.insert(key.clone(), value);
            }
            if dice.one_in(10) {
                held = slot.copies();
            }
            if dice.one_in(40) {
                disk.image(&mut slot);
                if dice.one_in(3) {
                    with_pages_mut(&mut slot, &disk);
                    disk.image(&mut slot);
                }
                assert!(slot.copies().iter().all(|copy| copy.changed.is_none()));
                slot.evict();
                slot.evict();
            }
            let probe = vec![dice.below(5) as u8; 1 + dice.below(90) as usize];
            let end = vec![dice.below(6) as u8];
            let found = with_pages(&mut slot, &disk, |slot| {
                slot.next(&probe, &end).map(|record| record.map(|(key, value)| (key.to_vec(), value.to_vec())))
            });
            let expected = if probe < end { model.range(probe.clone()..end.clone()).next() } else { None };
            assert_eq!(found.as_ref().map(|(key, value)| (key, value)), expected);
            if dice.one_in(20) {
                let all = with_pages(&mut slot, &disk, |slot| {
                    let owned = |(key, value): (&[u8], &[u8])| (key.to_vec(), value.to_vec());
                    slot.range(&probe, &end).map(|record| record.map(owned)).collect::<Result<Vec<_>, _>>()
                });
                let expected = model.iter().filter(|(key, _)| **key >= probe && **key < end);
                assert!(all.iter().map(|(key, value)| (key, value)).eq(expected), "seed {seed}, step {step}");
            }
            let value = with_pages(&mut slot, &disk, |slot| slot.value(&probe).map(|value| value.map(<[u8]>::to_vec)));
            assert_eq!(value.as_ref(), model.get(&probe));
        }
        drop(held);
        slot.evict();
        slot.evict();
        let dirty = slot.copies().into_iter().filter_map(|copy| copy.changed);
        let memory: usize = dirty.map(|(page, _)| page.memory()).sum();
        assert_eq!(slot.resident(), memory, "seed {seed}");
    }
}

#[test]
fn a_page_at_rest_takes_no_more_memory_than_one_that_was_loaded() {
    let mut slot = Slot::empty(SLOT);
    let mut disk = Disk { pages: BTreeMap::new(), next: 0 };
    for size in [20, 30] {
        for number in 0..500_u32 {
            slot.apply(&number.to_be_bytes(), Some(&vec![0; size]));
        }
    }
    let changed = slot.resident();
    disk.image(&mut slot);
    let at_rest = slot.resident();
    assert!(at_rest < changed * 3 / 4, "{at_rest} after {changed}");
    slot.evict();
    slot.evict();
    assert_eq!(slot.resident(), 0);
    for number in 0..500_u32 {
        let value =
            with_pages(&mut slot, &disk, |slot| slot.value(&number.to_be_bytes()).map(|it| it.map(<[u8]>::len)));
        assert_eq!(value, Some(30));
    }
    assert_eq!(slot.resident(), at_rest);
}

#[test]
fn keys_in_ascending_order_fill_their_pages() {
    let mut slot = Slot::empty(SLOT);
    for number in 0..2000_u32 {
        slot.apply(&number.to_be_bytes(), Some(&[0; 20]));
    }
    let copies = slot.copies();
    let size: usize = copies.iter().map(|copy| copy.changed.as_ref().unwrap().0.size()).sum();
    assert!(size / copies.len() > crate::page::PAGE_SIZE * 9 / 10);
}
