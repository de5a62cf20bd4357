//! What fuzz targets call: parsers of what may come from a disk or a peer, with what must hold of their answers.

use std::sync::Arc;

use protocol::id::SLOT_COUNT;
use protocol::maps::Maps;

use crate::consensus::Agreed;
use crate::record::{self, Beginning};
use crate::replica::Found;
use crate::store;

/// Looks at maps as those do who follow them: every slot and every stripe of every log has its place.
pub fn check(maps: &Maps) {
    if maps.verify().is_err() {
        return;
    }
    for slot in [0, 1, SLOT_COUNT - 1] {
        let _ = maps.slot(slot);
    }
    for run in maps.logs.values().flat_map(|log| &log.layout) {
        for stripe in [run.from, protocol::id::StripeNumber(run.from.0.saturating_add(7))] {
            let group = maps.groups.get(&run.group(stripe)).expect("a run names groups that exist");
            let geometry = group.geometry;
            let part = protocol::fragment::Part::Parity(geometry.parity.saturating_sub(1));
            let part = if geometry.parity == 0 { protocol::fragment::Part::Data(0) } else { part };
            let _ = group.targets[geometry.member(stripe, part)];
            assert_eq!(geometry.data_lengths(geometry.stripe_size()).len(), usize::from(geometry.data));
        }
    }
}

/// A checkpoint with a right head around any body, and a record likewise.
pub fn checkpoint(generation: u64, body: &[u8]) -> bytes::Bytes {
    record::checkpoint(generation, (1, 0), body)
}

/// See [`checkpoint`].
pub fn record(generation: u64, number: u32, body: &[u8]) -> bytes::Bytes {
    record::record(generation, number, body)
}

/// What a checkpoint of these maps holds, of a cluster whose only voter is `node`.
pub fn body(maps: Maps, node: u32) -> Vec<u8> {
    let agreed = Arc::new(Agreed { maps: Arc::new(maps), answered: Default::default() });
    postcard::to_stdvec(&store::first(1, Some((node, agreed)))).expect("it has no part that cannot be encoded")
}

/// Reads what the byte spaces of a registry's copy hold.
pub fn replica(bytes: &[u8]) {
    let log = bytes::Bytes::copy_from_slice(bytes);
    let generation = match record::beginning(bytes) {
        Beginning::Checkpoint(head) => head.generation,
        Beginning::Claim(generation) => generation,
        _ => 1,
    };
    let records = record::records(&log, generation).bodies;
    if let Some(body) = bytes.get(record::CHECKPOINT_HEAD..).map(bytes::Bytes::copy_from_slice) {
        let found = Found { generation, before: (1, 0), body, records };
        if let Some((_, agreed)) = found.read().and_then(|kept| kept.snapshot) {
            check(&agreed.maps);
        }
    }
}
