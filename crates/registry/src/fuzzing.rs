//! What fuzz targets call: parsers of what may come from a disk or a peer, with what must hold of their answers.

use protocol::id::SLOT_COUNT;
use protocol::maps::Maps;

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

/// Reads what a byte space of a registry's copy holds.
pub fn replica(bytes: &[u8]) {
    if let Some(maps) = crate::replica::decode(bytes) {
        check(&maps);
    }
}
