//! What the kernel sends over the FUSE device: one byte that says which dialect was agreed on, then a request as one read
//! of the device returns it. Whatever it is: it parses or is refused, and a refusal that somebody waits for can be told.
#![no_main]

use bytes::Bytes;
use fuse::request::{Dialect, Request};
use libfuzzer_sys::fuzz_target;

fuzz_target!(|input: &[u8]| {
    let Some((choice, request)) = input.split_first() else { return };
    let dialect = Dialect { setxattr_extended: choice & 1 != 0 };
    let mut request = request.to_vec();
    // A length that is right most often, so that what lies behind it is looked at.
    if choice & 2 == 0 && request.len() >= 4 {
        let length = (request.len() as u32).to_le_bytes();
        request[..4].copy_from_slice(&length);
    }
    if let Err(malformed) = Request::parse(Bytes::from(request), dialect) {
        assert!(malformed.reply().is_none_or(|frame| frame.size() == 16), "a refusal is a header with an error");
    }
});
