//! What a target reads from its disk: one byte that says what, then a superblock, the head of a fragment, a list, an intake, or
//! the entries of a list whose checksums are right.
#![no_main]

use libfuzzer_sys::fuzz_target;

fuzz_target!(|input: &[u8]| {
    let Some((kind, bytes)) = input.split_first() else { return };
    if kind % 2 == 0 { storage::fuzzing::disk(*kind, bytes) } else { registry::fuzzing::replica(bytes) }
});
