//! The bytes of a stripe of a log: record after record, as a reader of a sealed log walks over them. The walk always goes
//! forward and never beyond the end; a header that is believed is the header of its own encoding.
#![no_main]

use libfuzzer_sys::fuzz_target;
use protocol::address::Position;
use protocol::id::{LogId, StripeNumber};
use protocol::record::{HEADER_SIZE, Owner, RecordHeader, RecordKind};

const LOG: LogId = LogId(7);

/// Magic, a kind and the version, as they must stand at the front for anything behind them to be looked at.
fn mend(header: &mut [u8]) {
    let front = RecordHeader { kind: RecordKind::Data, padding: 0, length: 0, owner: Owner::default() };
    let right = front.encode(LOG, Position::START, []);
    header[..2].copy_from_slice(&right[..2]);
    header[2] = header[2] % 7 + 1;
    header[3] = right[3];
    // Lengths that stay within the stripe, most often.
    header[6] = 0;
    header[7] = 0;
    header[9] &= 0x0f;
}

fuzz_target!(|input: &[u8]| {
    let (mut at, mut stripe) = (0, input.to_vec());
    while at + HEADER_SIZE <= stripe.len() {
        if stripe[at] % 8 != 0 {
            mend(&mut stripe[at..at + HEADER_SIZE]);
        }
        let place = Position::new(StripeNumber(3), at as u32);
        let encoded = &stripe[at..at + HEADER_SIZE];
        let Ok(header) = RecordHeader::decode(encoded) else { return };
        let body = header.body(LOG, place);
        let Some(end) = body.offset.checked_add(body.length).filter(|end| *end as usize <= stripe.len()) else {
            return;
        };
        assert!(body.offset as usize >= at + HEADER_SIZE, "a body lies behind its header");
        assert!(at as u32 + header.size() >= end, "the next record lies behind the body");
        let bytes = &stripe[body.offset as usize..end as usize];
        let summed: &[u8] = if header.kind == RecordKind::Data { &[] } else { bytes };
        // Right checksums are not to be guessed: what follows is made with them.
        let _ = header.verify(LOG, place, encoded, summed);
        let again = header.encode(LOG, place, [summed]);
        if let Ok(same) = RecordHeader::decode(&again) {
            assert_eq!(same.size(), header.size());
            assert_eq!(same.verify(LOG, place, &again, summed), Ok(()));
        }
        at += header.size() as usize;
    }
});
