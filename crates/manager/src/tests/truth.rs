//! The invariants of `docs/format-slot.md`, recomputed from all records.

use std::collections::BTreeMap;

use protocol::file::Kind;
use protocol::id::{InodeId, LogId, SlotId, StripeNumber};

use super::bench::{Bench, SLOTS};
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
    stored: BTreeMap<InodeId, u64>,
    live: BTreeMap<(SlotId, LogId, StripeNumber), u64>,
    references: BTreeMap<(SlotId, SharedId), u32>,
}

/// Panics when an invariant does not hold.
pub(crate) fn check(bench: &Bench) {
    let records = bench.records();
    let found = gather(&records);
    check_inodes(&found);
    check_counts(&records, &found);
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
            _ => {}
        }
    }
    found
}

fn check_inodes(found: &Found) {
    for (inode, record) in &found.inodes {
        let names = found.names.get(inode).copied().unwrap_or(0);
        let orphan = found.orphans.contains(inode);
        assert_eq!(orphan, names == 0 && *inode != InodeId::ROOT, "{inode:?}");
        if record.is_directory() {
            let children = found.children.get(inode).map(Vec::as_slice).unwrap_or_default();
            let directories = children.iter().filter(|(_, kind)| *kind == Kind::Directory).count() as u32;
            assert_eq!(record.links, if orphan { 0 } else { 2 + directories });
            for (child, kind) in children {
                assert_eq!(found.inodes[child].kind, *kind);
                if *kind == Kind::Directory {
                    assert_eq!(found.inodes[child].body, Body::Parent(*inode));
                }
            }
            assert_eq!(children.is_empty(), record.size == 0);
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
