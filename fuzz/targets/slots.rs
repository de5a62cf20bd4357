//! What a manager reads from its logs: one byte that says what, then the body of such a record. It decodes or is named
//! damaged; what decodes is encoded and decoded again to the same.
#![no_main]

use libfuzzer_sys::fuzz_target;

fuzz_target!(|input: &[u8]| {
    if let Some((kind, body)) = input.split_first() {
        manager::fuzzing::body(*kind, body);
    }
});
