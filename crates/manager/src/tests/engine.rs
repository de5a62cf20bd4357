//! The slot engine against a `BTreeMap`, with images, evictions and take-overs in between.

use std::collections::BTreeMap;
use std::sync::Arc;

use protocol::address::LogAddress;
use protocol::id::{InodeId, LogId, SlotId, StripeNumber};

use super::Dice;
use crate::key::{self, Key};
use crate::page::Page;
use crate::slot::{PageId, Slot};
use crate::telling::KeptPage;

const SLOT: SlotId = SlotId(3);

#[derive(Default)]
struct Disk {
    pages: BTreeMap<u32, Vec<u8>>,
    next: u32,
    /// The newest image, and what was changed since.
    index: Vec<(Key, LogAddress)>,
    journal: Vec<(Key, Option<Vec<u8>>)>,
}

impl Disk {
    fn image(&mut self, slot: &mut Slot) {
        self.bring_wanted(slot);
        for copy in slot.copies() {
            if let Some((page, version)) = copy.changed {
                self.next += 1;
                self.pages.insert(self.next, page.encode());
                drop(page);
                slot.stored(&copy.low, version, address(self.next));
            }
        }
        let stored = slot.copies().into_iter().filter_map(|copy| copy.stored.map(|stored| (copy.low, stored)));
        (self.index, self.journal) = (stored.collect(), Vec::new());
    }

    fn bring_wanted(&self, slot: &mut Slot) {
        while let Some(page) = slot.wanted() {
            self.load(slot, &page);
        }
    }

    /// All records, as an audit finds them.
    fn kept(&self, slot: &Slot) -> BTreeMap<Key, Vec<u8>> {
        let page = |kept| match kept {
            KeptPage::Here(page) => page,
            KeptPage::Stored(address, changes) => {
                let mut page = Page::decode(&self.pages[&address.offset]).unwrap();
                changes.iter().for_each(|(key, value)| page.change(key, value.as_deref()));
                Arc::new(page)
            }
        };
        let pages: Vec<Arc<Page>> = slot.kept().into_iter().map(page).collect();
        let records = pages.iter().flat_map(|page| (0..).map_while(|index| page.record(index)));
        records.map(|(key, value)| (key.to_vec(), value.to_vec())).collect()
    }

    /// The slot as a new manager has it, without a look at any page.
    fn taken_over(&self) -> Slot {
        let mut slot = Slot::from_index(SLOT, self.index.clone());
        self.journal.iter().for_each(|(key, value)| slot.roll(key, value.as_deref()));
        slot
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
    disk.bring_wanted(slot);
    while let Err(missing) = slot.renew(&[(LogId(1), StripeNumber(0))].into()) {
        disk.load(slot, &missing);
    }
    assert!(slot.copies().iter().all(|copy| copy.changed.is_some() || copy.stored.is_none()));
}

/// Looks from somewhere for one record, and for many.
fn probe(slot: &mut Slot, disk: &Disk, model: &BTreeMap<Key, Vec<u8>>, dice: &mut Dice) {
    let probe = vec![dice.below(5) as u8; 1 + dice.below(90) as usize];
    let end = vec![dice.below(6) as u8];
    let found = with_pages(slot, disk, |slot| {
        slot.next(&probe, &end).map(|record| record.map(|(key, value)| (key.to_vec(), value.to_vec())))
    });
    let expected = if probe < end { model.range(probe.clone()..end.clone()).next() } else { None };
    assert_eq!(found.as_ref().map(|(key, value)| (key, value)), expected);
    if dice.one_in(20) {
        let all = with_pages(slot, disk, |slot| {
            let owned = |(key, value): (&[u8], &[u8])| (key.to_vec(), value.to_vec());
            slot.range(&probe, &end).map(|record| record.map(owned)).collect::<Result<Vec<_>, _>>()
        });
        let expected = model.iter().filter(|(key, _)| **key >= probe && **key < end);
        assert!(all.iter().map(|(key, value)| (key, value)).eq(expected));
    }
    let value = with_pages(slot, disk, |slot| slot.value(&probe).map(|value| value.map(<[u8]>::to_vec)));
    assert_eq!(value.as_ref(), model.get(&probe));
}

#[test]
fn a_slot_is_a_sorted_map_whatever_is_in_memory() {
    for seed in 0..20 {
        let mut dice = Dice::new(seed);
        let mut slot = Slot::empty(SLOT);
        let mut disk = Disk::default();
        let mut model: BTreeMap<Vec<u8>, Vec<u8>> = BTreeMap::new();
        // Some seeds grow, some shrink, so that pages split and join.
        let removals = 2 + seed % 5;
        // An image that is being written shares its pages with the slot, which copies them before it changes them.
        let mut held = Vec::new();
        let mut waited = 0;
        for step in 0..3000 {
            let key = vec![dice.below(4) as u8; 1 + dice.below(90) as usize];
            let key = [key, vec![dice.below(8) as u8]].concat();
            if dice.one_in(removals) {
                with_pages(&mut slot, &disk, |slot| slot.ready(&key));
                slot.apply(&key, None);
                model.remove(&key);
                disk.journal.push((key, None));
            } else {
                let size_max = if dice.one_in(50) { 3000 } else { 60 };
                let value = vec![step as u8; dice.below(size_max) as usize];
                with_pages(&mut slot, &disk, |slot| slot.ready(&key));
                slot.apply(&key, Some(&value));
                model.insert(key.clone(), value.clone());
                disk.journal.push((key, Some(value)));
            }
            if dice.one_in(30) {
                held.clear();
                slot = disk.taken_over();
                waited += usize::from(slot.wanted().is_some());
                assert_eq!(disk.kept(&slot), model, "seed {seed}, step {step}");
            }
            if dice.one_in(10) {
                disk.bring_wanted(&mut slot);
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
            probe(&mut slot, &disk, &model, &mut dice);
        }
        drop(held);
        assert!(waited > 20, "seed {seed}: changes hardly ever waited for a page");
        disk.bring_wanted(&mut slot);
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
    let mut disk = Disk::default();
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

#[test]
fn what_a_slot_keeps_beside_its_inodes_shares_no_split_page_with_them() {
    let mut slot = Slot::empty(SLOT);
    for number in 0..400_u64 {
        slot.apply(&key::live(LogId(1), StripeNumber(number)), Some(&[7; 8]));
        slot.apply(&key::inode(InodeId::new(SLOT, 1 + number)), Some(&[7; 40]));
    }
    let pages: Vec<Arc<Page>> = slot.copies().into_iter().map(|copy| copy.changed.unwrap().0).collect();
    let is_beside = |page: &Page, index| page.record(index).unwrap().0 < &key::first_of_inodes()[..];
    assert!(pages.len() > 10 && pages.iter().all(|page| is_beside(page, 0) == is_beside(page, page.count() - 1)));
}
