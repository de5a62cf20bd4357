//! What comes over the network from another machine: a stream of frames, or the words before them. One byte says which.
#![no_main]

use libfuzzer_sys::fuzz_target;

fuzz_target!(|input: &[u8]| {
    match input.split_first() {
        Some((kind, bytes)) if kind % 2 == 0 => dazzle::network::fuzzing::check_frames(bytes),
        Some((_, bytes)) => dazzle::network::fuzzing::check_greetings(bytes),
        None => {}
    }
});
