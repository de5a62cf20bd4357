//! Requests as `/dev/fuse` delivers them.
//!
//! Bytes: one of dialect and framing, then the read of the device. Held true:
//! 1. A request parses or is refused, whole as well as in parts; what is refused has a reply exactly when one is awaited.
//! 2. Parsing allocates no more than what it hands out can hold, and payload is a slice of the request, never a copy.
//! 3. Names hold no zero byte, and no slash where one component is meant.
//! 4. The handshake answers any offer, and what it settled is what was offered.
#![no_main]

use bytes::Bytes;
use dazzle_fuzz::memory::bounded;
use fuse::negotiate::{Handshake, Offer, Wishes, negotiate};
use fuse::operation::Unique;
use fuse::{Dialect, Operation, Request};
use libfuzzer_sys::fuzz_target;

/// The header's bytes.
const HEADER_SIZE: usize = 40;
/// A forget is 16 bytes on the wire and 16 in memory, in a list that doubles.
const FACTOR: usize = 8;

/// Holds one read of the device to what is said above.
fn run(input: &[u8]) {
    let Some((&first, raw)) = input.split_first() else { return };
    let dialect = Dialect { setxattr_extended: first & 1 != 0 };
    let mut raw = raw.to_vec();
    // Most inputs with a wrong length would end at the first comparison.
    if first & 2 == 0 && raw.len() >= 4 {
        let length = raw.len() as u32;
        raw[..4].copy_from_slice(&length.to_ne_bytes());
    }
    let raw = Bytes::from(raw);
    let parsed = bounded(raw.len(), FACTOR, || {
        if first & 4 == 0 {
            Request::parse(raw.clone(), dialect)
        } else {
            let header = raw.slice(..raw.len().min(HEADER_SIZE));
            let middle = raw.len().min(HEADER_SIZE + usize::from(first >> 3) * 4);
            let structure = raw.slice(header.len()..middle.max(header.len()));
            let payload = raw.slice(header.len() + structure.len()..);
            Request::parse_parts(&header, structure, payload, dialect)
        }
    });
    match parsed {
        Ok(request) => check(&raw, &request),
        Err(malformed) => {
            let _ = malformed.to_string();
            assert!(malformed.unique.is_some() || raw.len() < HEADER_SIZE, "a whole header names its request");
            assert!(malformed.reply().is_none() || malformed.unique.is_some());
        }
    }
}

fn check(raw: &Bytes, request: &Request) {
    let _ = format!("{request:?}");
    let _ = request.is_resent();
    for name in names(&request.operation) {
        assert!(!name.is_empty() && !name.contains(&0), "{name:?} is no name");
        assert!(is_slice(raw, name), "a name was copied");
    }
    for component in components(&request.operation) {
        assert!(!component.contains(&b'/'), "{component:?} is no component");
    }
    for payload in payloads(&request.operation) {
        assert!(is_slice(raw, payload), "payload was copied");
    }
    if let Operation::Init(offer) = &request.operation {
        handshake(offer, raw[0]);
    }
}

fn handshake(offer: &Offer, wish: u8) {
    let (io_uring, alone, passthrough) = (wish & 1 != 0, wish & 2 != 0, wish & 4 != 0);
    let wishes = Wishes { io_uring, alone, passthrough, ..Wishes::default() };
    if let Handshake::Agreed(session) = negotiate(offer, &wishes) {
        assert!(offer.flags.contains(session.flags.0), "only what was offered is in force");
        assert!(session.minor <= offer.minor && session.request_bytes_max <= wishes.request_bytes_max);
        let _ = session.reply(Unique(1));
    }
}

fn is_slice(whole: &Bytes, part: &Bytes) -> bool {
    let range = whole.as_ptr_range();
    part.is_empty() || (range.contains(&part.as_ptr()) && part.as_ptr_range().end <= range.end)
}

fn names(operation: &Operation) -> Vec<&Bytes> {
    use Operation::{Create, Getxattr, Removexattr, Setxattr, Symlink, Tmpfile};
    let mut names = components(operation);
    match operation {
        Symlink { target, .. } => names.push(target),
        Setxattr { name, .. } | Getxattr { name, .. } | Removexattr { name } => names.push(name),
        Create(create) | Tmpfile(create) => names.push(&create.name),
        _ => {}
    }
    names
}

fn components(operation: &Operation) -> Vec<&Bytes> {
    use Operation::{Create, Link, Lookup, Mkdir, Mknod, Rename, Rmdir, Symlink, Unlink};
    match operation {
        Lookup { name } | Symlink { name, .. } | Mknod { name, .. } | Mkdir { name, .. } => vec![name],
        Unlink { name } | Rmdir { name } | Link { name, .. } => vec![name],
        Rename { name, new_name, .. } => vec![name, new_name],
        Create(create) => vec![&create.name],
        _ => Vec::new(),
    }
}

fn payloads(operation: &Operation) -> Vec<&Bytes> {
    match operation {
        Operation::Write(write) => vec![&write.data],
        Operation::Setxattr { value, .. } => vec![value],
        Operation::Ioctl(ioctl) => vec![&ioctl.data],
        Operation::NotifyReply { data, .. } => vec![data],
        _ => Vec::new(),
    }
}

/// Requests as Linux wrote them, those that the tests of `fuse` keep, whole and in parts.
fn seeds() -> Vec<Vec<u8>> {
    let captured = include_str!("../../crates/fuse/tests/captured/requests.txt");
    let lines = captured.lines().filter(|line| !line.starts_with('#'));
    let requests = lines.filter_map(|line| line.split_once(' ')).map(|(_, hex)| {
        let digits: Vec<u32> = hex.chars().filter_map(|digit| digit.to_digit(16)).collect();
        digits.chunks_exact(2).map(|pair| (pair[0] << 4 | pair[1]) as u8).collect::<Vec<u8>>()
    });
    requests.flat_map(|request| [1, 4 | 8 << 3].map(|first| [&[first], &request[..]].concat())).collect()
}

fuzz_target!(init: dazzle_fuzz::seeds(seeds), |input: &[u8]| run(input));
