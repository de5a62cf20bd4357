//! What fuzz targets call: parsers of what a manager's log may hold, with what must hold of their answers.

use protocol::delta::Delta;
use protocol::id::SlotId;
use serde::Serialize;
use serde::de::DeserializeOwned;

use crate::acl::Acl;
use crate::directory::Holding;
use crate::encoding::unpack;
use crate::entry::Entry;
use crate::extent::Backing;
use crate::image::{self, Handover, Mark, Table};
use crate::inode::Inode;
use crate::journal;
use crate::page::Page;
use crate::records::{self, Head};
use crate::slot::Slot;
use crate::transaction::Changes;

/// Reads `body`; `kind` says as what.
pub fn body(kind: u8, body: &[u8]) {
    match kind % 10 {
        0 => page(body),
        1 => journal(body),
        2 => {
            if let Ok(table) = Table::decode(body) {
                assert_eq!(Table::decode(&table.encode()), Ok(table));
            }
            there_and_back::<Handover>(body);
        }
        3 => there_and_back::<Mark>(body),
        4 => drop(image::decode_index(body)),
        5 => {
            if let Ok(inode) = Inode::decode(body) {
                assert_eq!(Inode::decode(&inode.encode()), Ok(inode));
            }
        }
        6 => {
            if let Ok(entry) = Entry::decode(body) {
                assert_eq!(entry.encode(), body);
            }
        }
        7 => drop(Acl::decode(body)),
        8 => {
            let _ = records::decode::<Head>(body).map(|head| records::encode(&head));
            let _ = records::decode::<Holding>(body).map(|holding| records::encode(&holding));
            let _ = records::decode::<Backing>(body).map(|backing| records::encode(&backing));
        }
        _ => drop(records::decode::<Vec<Delta>>(body)),
    }
}

fn page(body: &[u8]) {
    let Ok(page) = Page::decode(body) else { return };
    assert_eq!(page.plain(), *unpack(body, "page").expect("it was decoded"), "a page has one encoding");
    assert_eq!(Page::decode(&page.encode()).map(|page| page.plain()), Ok(page.plain()));
    for index in 0..page.count() {
        let (key, value) = page.record(index).expect("within the page");
        assert_eq!(page.value(key), Some(value));
    }
}

/// A record that decodes can be rolled, whatever keys it names.
fn journal(body: &[u8]) {
    let Ok(changes) = journal::decode(body) else { return };
    let mut slot = Slot::empty(SlotId(0));
    let mut expected = Changes::new();
    for change in changes.iter().filter(|change| !change.key.is_empty()) {
        slot.apply(change.key, change.value);
        expected.insert(change.key.to_vec(), change.value.map(<[u8]>::to_vec));
    }
    for (key, value) in &expected {
        assert_eq!(slot.value(key), Ok(value.as_deref()));
    }
}

fn there_and_back<T: Serialize + DeserializeOwned + PartialEq + std::fmt::Debug>(body: &[u8]) {
    if let Ok(value) = image::decode::<T>(body) {
        assert_eq!(image::decode(&image::encode(&value)), Ok(value));
    }
}
