//! Messages between nodes, as they will travel: one byte that says of which kind, then its encoding. What decodes is
//! encoded and decoded again to the same; what a part asks of a message before it believes it gives an answer.
#![no_main]

use libfuzzer_sys::fuzz_target;
use protocol::manager::{ManagerAnswer, ManagerRequest};
use protocol::maps::Maps;
use protocol::registry::{RegistryAnswer, RegistryRequest};
use protocol::storage::{StorageAnswer, StorageRequest, ToTarget};
use serde::Serialize;
use serde::de::DeserializeOwned;

fn there_and_back<T: Serialize + DeserializeOwned>(bytes: &[u8]) -> Option<T> {
    let value: T = postcard::from_bytes(bytes).ok()?;
    let encoded = postcard::to_stdvec(&value).expect("what was decoded can be encoded");
    let again: T = postcard::from_bytes(&encoded).expect("what was encoded decodes");
    assert_eq!(postcard::to_stdvec(&again).expect("as before"), encoded);
    Some(value)
}

fuzz_target!(|input: &[u8]| {
    let Some((kind, bytes)) = input.split_first() else { return };
    match kind % 8 {
        0 => drop(there_and_back::<ManagerRequest>(bytes)),
        1 => drop(there_and_back::<ManagerAnswer>(bytes)),
        2 => drop(there_and_back::<RegistryRequest>(bytes)),
        3 => drop(there_and_back::<RegistryAnswer>(bytes)),
        4 => drop(there_and_back::<StorageAnswer>(bytes)),
        5 => drop(there_and_back::<ToTarget>(bytes)),
        6 => {
            if let Some(StorageRequest::Append(append) | StorageRequest::Replace(append)) = there_and_back(bytes) {
                storage::fuzzing::check(&append);
            }
        }
        _ => {
            if let Some(maps) = there_and_back::<Maps>(bytes) {
                registry::fuzzing::check(&maps);
            }
        }
    }
});
