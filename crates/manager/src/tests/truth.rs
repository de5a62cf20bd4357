//! The invariants of `docs/format-slot.md`, recomputed from all records.

use std::collections::{BTreeMap, BTreeSet};

use protocol::file::Kind;
use protocol::id::{InodeId, LogId, SlotId, StripeNumber};

use super::bench::{Bench, SLOTS};
use crate::audit;
use crate::directory::Holding;
use crate::entry::Entry;
use crate::extent::{Backing, Reference, Shared, SharedId};
use crate::inode::{Body, Inode};
use crate::key::{self, Key};
use crate::records::{Head, decode};

type Records = BTreeMap<(SlotId, Key), Vec<u8>>;

/// Everything that the records say, put together.
#[derive(Default)]
struct Found {
    inodes: BTreeMap<InodeId, Inode>,
    orphans: Vec<InodeId>,
    names: BTreeMap<InodeId, u32>,
    children: BTreeMap<InodeId, Vec<(InodeId, Kind)>>,
    /// Parts of split directories: last cookie, slot.
    parts: BTreeMap<InodeId, Vec<(u64, SlotId)>>,
    holdings: BTreeMap<(InodeId, SlotId), (u64, u32)>,
    /// Names in each slot: cookies, sizes, directories.
    places: BTreeMap<(InodeId, SlotId), (Vec<u64>, u64, u32)>,
    stored: BTreeMap<InodeId, u64>,
    live: BTreeMap<(SlotId, LogId, StripeNumber), u64>,
    references: BTreeMap<(SlotId, SharedId), u32>,
}

/// Panics when an invariant does not hold.
pub(crate) fn check(bench: &Bench) {
    let records = bench.records();
    let found = gather(&records);
    check_inodes(&found);
    check_parts(&found);
    check_counts(&records, &found);
    let audited = audit::of_records(records.iter().map(|((slot, key), value)| (*slot, &key[..], &value[..])));
    assert_eq!(audited.problems, Vec::<String>::new(), "the audit sees it otherwise");
}

/// The most parts that any directory has.
pub(crate) fn parts_max(bench: &Bench) -> usize {
    gather(&bench.records()).parts.values().map(Vec::len).max().unwrap_or(0)
}

fn gather(records: &Records) -> Found {
    let mut found = Found::default();
    let mut ends: BTreeMap<InodeId, u64> = BTreeMap::new();
    for ((slot, key), value) in records {
        let owner = InodeId(u64::from_be_bytes(key[..8].try_into().unwrap()));
        match key[8] {
            4 => {
                let shared: Shared = decode(value).unwrap();
                *found.live.entry((*slot, shared.address.log, shared.address.stripe)).or_default() +=
                    u64::from(shared.address.length);
                let place = &records[&(*slot, key::shared_place(shared.address))];
                assert_eq!(key::shared(decode::<SharedId>(place).unwrap()), *key);
            }
            6 => found.orphans.push(key::orphan_inode(key)),
            16 => {
                assert_eq!(owner.slot(), *slot);
                found.inodes.insert(owner, Inode::decode(value).unwrap());
            }
            17 => {
                let entry = Entry::decode(value).unwrap();
                *found.names.entry(entry.inode).or_default() += 1;
                found.children.entry(owner).or_default().push((entry.inode, entry.kind));
                let (cookies, size, directories) = found.places.entry((owner, *slot)).or_default();
                cookies.push(key::rest_number(key));
                *size += 32 + entry.name.len() as u64;
                *directories += u32::from(entry.kind == Kind::Directory);
            }
            18 => {
                let backing: Backing = decode(value).unwrap();
                let end = key::rest_number(key);
                let start = end - u64::from(backing.length());
                assert!(backing.length() > 0 && ends.insert(owner, end).unwrap_or(0) <= start, "extents overlap");
                *found.stored.entry(owner).or_default() += u64::from(backing.length());
                match backing {
                    Backing::Owned(address) => {
                        *found.live.entry((*slot, address.log, address.stripe)).or_default() +=
                            u64::from(address.length);
                    }
                    Backing::Shared(Reference { slot, id, .. }) => {
                        *found.references.entry((slot, id)).or_default() += 1
                    }
                }
            }
            20 => {
                assert_eq!(owner.slot(), *slot);
                found.parts.entry(owner).or_default().push((key::rest_number(key), decode(value).unwrap()));
            }
            21 => {
                let holding: Holding = decode(value).unwrap();
                found.holdings.insert((owner, *slot), (holding.size, holding.directories));
            }
            _ => {}
        }
    }
    found
}

/// Every name lies in the part that its cookie belongs to, and is counted there.
fn check_parts(found: &Found) {
    for ((directory, slot), (cookies, size, directories)) in &found.places {
        let home = directory.slot();
        let whole = vec![(i64::MAX as u64, home)];
        let parts = found.parts.get(directory).unwrap_or(&whole);
        for cookie in cookies {
            assert_eq!(parts.iter().find(|(last, _)| cookie <= last).unwrap().1, *slot, "{directory:?}");
        }
        let record = &found.inodes[directory];
        let said = if *slot == home { (record.size, record.links - 2) } else { found.holdings[&(*directory, *slot)] };
        assert_eq!(said, (*size, *directories), "{directory:?} in {slot:?}");
    }
    for (directory, parts) in &found.parts {
        let slots: BTreeSet<SlotId> = parts.iter().map(|(_, slot)| *slot).collect();
        assert!(slots.len() == parts.len() && slots.contains(&directory.slot()) && parts.is_sorted());
        assert_eq!(parts.last().unwrap().0, i64::MAX as u64);
        let holding = found.holdings.keys().filter(|(holder, _)| holder == directory);
        assert!(holding.map(|(_, slot)| *slot).eq(slots.into_iter().filter(|slot| *slot != directory.slot())));
    }
    assert!(found.holdings.keys().all(|(directory, _)| found.parts.contains_key(directory)));
    assert!(found.parts.keys().all(|directory| found.inodes.contains_key(directory)));
    for ((directory, slot), said) in &found.holdings {
        let (_, size, directories) = found.places.get(&(*directory, *slot)).cloned().unwrap_or_default();
        assert_eq!(*said, (size, directories));
    }
}

fn check_inodes(found: &Found) {
    for (inode, record) in &found.inodes {
        let names = found.names.get(inode).copied().unwrap_or(0);
        let orphan = found.orphans.contains(inode);
        assert_eq!(orphan, names == 0 && *inode != InodeId::ROOT, "{inode:?}");
        if record.is_directory() {
            let children = found.children.get(inode).map(Vec::as_slice).unwrap_or_default();
            assert!(if orphan { record.links == 0 } else { record.links >= 2 });
            for (child, kind) in children {
                assert_eq!(found.inodes[child].kind, *kind);
                if *kind == Kind::Directory {
                    assert_eq!(found.inodes[child].body, Body::Parent(*inode));
                }
            }
        } else {
            assert_eq!(record.links, names);
        }
        let stored = match &record.body {
            Body::Inline(bytes) => bytes.len() as u64,
            _ => found.stored.get(inode).copied().unwrap_or(0),
        };
        assert_eq!(record.stored, stored, "stored of {inode:?}");
    }
    assert!(found.names.keys().chain(found.stored.keys()).all(|inode| found.inodes.contains_key(inode)));
}

fn check_counts(records: &Records, found: &Found) {
    let mut live = BTreeMap::new();
    let mut shared = BTreeMap::new();
    for ((slot, key), value) in records {
        let number = |at: usize| u64::from_be_bytes(key[at..at + 8].try_into().unwrap());
        if key[..8] == [0; 8] && key[8] == 3 {
            live.insert((*slot, LogId(number(9)), StripeNumber(number(17))), decode::<u64>(value).unwrap());
        }
        if key[..8] == [0; 8] && key[8] == 4 {
            let offset = u32::from_be_bytes(key[25..29].try_into().unwrap());
            let id = SharedId { log: LogId(number(9)), stripe: StripeNumber(number(17)), offset };
            shared.insert((*slot, id), decode::<Shared>(value).unwrap().references);
        }
    }
    assert_eq!(live, found.live, "live counts");
    assert_eq!(shared, found.references, "references");
    for slot in SLOTS {
        let head: Option<Head> = records.get(&(slot, key::head())).map(|value| decode(value).unwrap());
        let inodes = found.inodes.keys().filter(|inode| inode.slot() == slot).count() as u64;
        let bytes: u64 = found.live.iter().filter(|((home, ..), _)| *home == slot).map(|(_, bytes)| bytes).sum();
        assert_eq!(head.map_or((0, 0), |head| (head.inodes, head.bytes_live)), (inodes, bytes));
    }
}
