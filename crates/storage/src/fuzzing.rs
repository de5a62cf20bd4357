//! What fuzz targets call: parsers of what may come from a disk or a peer, with what must hold of their answers.

use bytes::Bytes;
use protocol::checksum::BLOCK_SIZE;
use protocol::storage::Append;

use crate::head::{Generation, Identity, decode_header, encode_header, slots_of};
use crate::intake::find_entries;
use crate::list::{BatchHeader, PAYLOAD_SIZE_MAX, Payloads, encode_batch, entries};
use crate::replay::ListReader;
use crate::request::{check_append, check_replace};
use crate::superblock::Superblock;

/// Looks at a request as a target does before it believes it.
pub fn check(append: &Append) {
    for header in [check_append(append), check_replace(append)].into_iter().flatten() {
        assert_eq!(decode_header(&header).as_ref(), Some(&append.header), "what is stored is what was checked");
        let end = append.offset as usize + append.length();
        assert!(end <= append.header.geometry.fragment_size as usize);
        assert!(append.checksums.len() <= append.length() / BLOCK_SIZE + 2);
    }
}

/// Reads what a disk holds; `kind` says as what.
pub fn disk(kind: u8, bytes: &[u8]) {
    match kind / 2 % 5 {
        0 => {
            let _ = Superblock::decode(bytes).map(|superblock| superblock.cell_data);
        }
        1 => head(bytes),
        2 => list(bytes.chunks(97), 0),
        3 => drop(find_entries(&Bytes::copy_from_slice(bytes), 5)),
        _ => {
            let (header, payload) = bytes.split_at(bytes.len().min(1));
            let payload = &payload[..payload.len().min(PAYLOAD_SIZE_MAX)];
            let number = u64::from(header.first().is_some_and(|first| first & 1 != 0));
            let header = BatchHeader { list: 1, number, incarnation: 1, synced: 0, chain: 0 };
            list([&encode_batch(&header, payload).0[..]].into_iter(), 0);
            entries_come_back(payload);
        }
    }
}

fn head(bytes: &[u8]) {
    let generation = Generation(bytes.first().copied().unwrap_or_default().into());
    assert!(slots_of(bytes, generation).iter().all(|(_, slot)| slot.floor <= slot.length));
    if let Some(identity) = Identity::decode(bytes, 5) {
        let _ = decode_header(&identity.header);
    }
    if let Some(header) = decode_header(bytes)
        && let Some(encoded) = encode_header(&header)
    {
        assert_eq!(decode_header(&encoded), Some(header));
    }
}

fn list<'a>(pieces: impl Iterator<Item = &'a [u8]>, synced: u64) {
    let mut reader = ListReader::new(1);
    pieces.for_each(|piece| reader.feed(piece));
    let _ = reader.finish(synced);
}

fn entries_come_back(payload: &[u8]) {
    let found: Vec<_> = entries(payload).map_while(Result::ok).collect();
    let mut payloads = Payloads::default();
    found.iter().for_each(|entry| payloads.push(entry));
    let encoded = payloads.take();
    let again: Vec<_> = encoded.iter().flat_map(|payload| entries(payload)).map_while(Result::ok).collect();
    assert_eq!(again, found);
}
