//! Hash tables that hash the same way in every run, for ids that no stranger chooses.
//!
//! The standard tables are seeded at random, which would make a simulation differ from run to run. Nobody may iterate
//! over these where the order could show; use a `BTreeMap` there.

use std::hash::{BuildHasherDefault, Hasher};

/// A hash map with a fixed hash function.
#[allow(clippy::disallowed_types)]
pub type FastMap<K, V> = std::collections::HashMap<K, V, BuildHasherDefault<FoldHasher>>;
/// A hash set with a fixed hash function.
#[allow(clippy::disallowed_types)]
pub type FastSet<K> = std::collections::HashSet<K, BuildHasherDefault<FoldHasher>>;

/// Multiply-and-fold: good enough for ids, and two instructions a word.
#[derive(Default, Clone, Copy)]
pub struct FoldHasher(u64);

impl FoldHasher {
    fn fold(&mut self, word: u64) {
        let wide = u128::from(self.0 ^ word ^ 0x9e37_79b9_7f4a_7c15) * 0xd6e8_feb8_6659_fd93;
        self.0 = (wide as u64) ^ ((wide >> 64) as u64);
    }
}

impl Hasher for FoldHasher {
    fn finish(&self) -> u64 {
        self.0
    }

    fn write(&mut self, bytes: &[u8]) {
        for chunk in bytes.chunks(8) {
            let mut word = [0; 8];
            word[..chunk.len()].copy_from_slice(chunk);
            self.fold(u64::from_le_bytes(word));
        }
        self.fold(bytes.len() as u64);
    }

    fn write_u8(&mut self, word: u8) {
        self.fold(u64::from(word));
    }

    fn write_u16(&mut self, word: u16) {
        self.fold(u64::from(word));
    }

    fn write_u32(&mut self, word: u32) {
        self.fold(u64::from(word));
    }

    fn write_u64(&mut self, word: u64) {
        self.fold(word);
    }

    fn write_usize(&mut self, word: usize) {
        self.fold(word as u64);
    }
}
