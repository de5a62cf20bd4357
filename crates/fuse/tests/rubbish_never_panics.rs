//! Danger: whoever can write to the device's other end (a confused kernel, a hostile container) stops the daemon, and
//! with it every file of the machine. Nothing here is random: the numbers come from a fixed seed, so a failure replays.

use bytes::Bytes;
use fuse::{Dialect, Request};

use crate::captured;

const DIALECTS: [Dialect; 2] = [Dialect { setxattr_extended: false }, Dialect { setxattr_extended: true }];

/// Marsaglia's xorshift: enough disorder for bytes.
struct Disorder(u64);

impl Disorder {
    fn next(&mut self) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        self.0
    }

    fn below(&mut self, bound: u64) -> usize {
        (self.next() % bound) as usize
    }
}

/// Parses in both dialects, whole and in parts; tells whether any reading was accepted.
fn feed(raw: Vec<u8>) -> bool {
    let raw = Bytes::from(raw);
    let mut accepted = false;
    for dialect in DIALECTS {
        let whole = Request::parse(raw.clone(), dialect);
        if let Err(malformed) = &whole {
            // The error path must hold as well.
            let _ = (malformed.reply(), malformed.to_string());
        }
        let header = raw.slice(..raw.len().min(40));
        let structure = raw.slice(header.len()..raw.len().min(80));
        let payload = raw.slice(header.len() + structure.len()..);
        let parts = Request::parse_parts(&header, structure, payload, dialect);
        accepted |= whole.is_ok() || parts.is_ok();
    }
    accepted
}

/// Makes the header's length true, so that what follows is looked at.
fn with_true_length(mut raw: Vec<u8>) -> Vec<u8> {
    let length = raw.len() as u32;
    if let Some(field) = raw.get_mut(..4) {
        field.copy_from_slice(&length.to_ne_bytes());
    }
    raw
}

#[test]
fn every_truncation_of_every_request() {
    let (mut fed, mut accepted) = (0, 0);
    for (_, raw) in captured::requests() {
        for length in 0..=raw.len() {
            for cut in [raw[..length].to_vec(), with_true_length(raw[..length].to_vec())] {
                fed += 1;
                accepted += u32::from(feed(cut));
            }
        }
    }
    println!("{fed} truncated requests, {accepted} still meaningful");
    assert!(fed > 5000 && accepted < fed / 2);
}

#[test]
fn every_byte_of_every_request_changed() {
    let mut fed = 0;
    for (_, raw) in captured::requests() {
        for position in 0..raw.len() {
            for value in [0x00, 0x01, 0x07, 0x2f, 0x7f, 0x80, 0xff] {
                let mut changed = raw.to_vec();
                changed[position] = value;
                fed += 1;
                feed(changed);
            }
        }
    }
    println!("{fed} changed requests");
    assert!(fed > 15_000);
}

#[test]
fn noise_behind_every_opcode() {
    let mut disorder = Disorder(0x5eed_0002_f05e_0001);
    let (mut fed, mut accepted) = (0, 0);
    for _ in 0..100_000 {
        let length = disorder.below(300);
        // Mostly small numbers: they pass for counts and sizes, and lead deeper than large ones.
        let small = disorder.below(2) == 0;
        let mut raw: Vec<u8> = (0..length).map(|_| disorder.next() as u8 & if small { 3 } else { 0xff }).collect();
        if length >= 40 {
            raw[4..8].copy_from_slice(&(disorder.below(60) as u32).to_ne_bytes());
            raw[36..38].copy_from_slice(&(disorder.below(8) as u16).to_ne_bytes());
            raw = with_true_length(raw);
        }
        fed += 1;
        accepted += u32::from(feed(raw));
    }
    println!("{fed} noisy requests, {accepted} meaningful by chance");
    assert!(accepted > 1000, "the noise never got past the header");
}

#[test]
fn a_count_without_its_items_allocates_nothing() {
    // BATCH_FORGET of 2³² − 1 inodes in 48 bytes.
    let mut raw = vec![0; 48];
    raw[4] = 42;
    raw[40..44].copy_from_slice(&u32::MAX.to_ne_bytes());
    assert!(!feed(with_true_length(raw)));
}
