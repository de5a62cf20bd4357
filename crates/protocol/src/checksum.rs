//! CRC-32C, over blocks of fragments and over records.

use crc_fast::CrcAlgorithm;

/// The unit of a fragment that has a checksum of its own, in bytes (DESIGN §4).
pub const BLOCK_SIZE: usize = 4096;

/// CRC-32C of `bytes`.
pub fn crc(bytes: &[u8]) -> u32 {
    crc_fast::checksum(CrcAlgorithm::Crc32Iscsi, bytes) as u32
}

/// CRC-32C of several parts, one after the other.
pub fn crc_parts<'a>(parts: impl IntoIterator<Item = &'a [u8]>) -> u32 {
    let mut digest = crc_fast::Digest::new(CrcAlgorithm::Crc32Iscsi);
    for part in parts {
        digest.update(part);
    }
    digest.finalize() as u32
}

/// CRC-32C of bytes whose own is `before`, followed by `parts`: for whoever has forgotten the bytes and kept their sum.
pub fn crc_behind<'a>(before: u32, parts: impl IntoIterator<Item = &'a [u8]>) -> u32 {
    // The sum is the register, inverted.
    let mut digest = crc_fast::Digest::new_with_init_state(CrcAlgorithm::Crc32Iscsi, u64::from(!before));
    for part in parts {
        digest.update(part);
    }
    digest.finalize() as u32
}

/// The checksum of each block of `bytes`, which begin on a block; the last may be partial.
pub fn block_checksums(bytes: &[u8]) -> Vec<u32> {
    bytes.chunks(BLOCK_SIZE).map(crc).collect()
}

/// Whether `bytes`, beginning on a block, are what `checksums` say.
pub fn blocks_are_right(bytes: &[u8], checksums: &[u32]) -> bool {
    bytes.len().div_ceil(BLOCK_SIZE) == checksums.len()
        && bytes.chunks(BLOCK_SIZE).zip(checksums).all(|(block, &checksum)| crc(block) == checksum)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn crc_is_castagnoli() {
        assert_eq!(crc(b"123456789"), 0xe306_9283);
        assert_eq!(crc_parts([&b"1234"[..], b"", b"56789"]), 0xe306_9283);
        assert_eq!(crc_behind(crc(b"1234"), [&b"5"[..], b"", b"6789"]), 0xe306_9283);
        assert_eq!((crc_behind(crc(b""), [&b"123456789"[..]]), crc_behind(77, [])), (0xe306_9283, 77));
    }

    #[test]
    fn one_flipped_bit_is_found() {
        let mut bytes = vec![7; BLOCK_SIZE * 2 + 100];
        let checksums = block_checksums(&bytes);
        assert_eq!(checksums.len(), 3);
        assert!(blocks_are_right(&bytes, &checksums));
        bytes[BLOCK_SIZE + 5] ^= 1;
        assert!(!blocks_are_right(&bytes, &checksums));
        assert!(!blocks_are_right(&bytes[..BLOCK_SIZE], &checksums));
    }
}
