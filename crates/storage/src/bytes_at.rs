//! Little-endian numbers at fixed places of a sector.
//!
//! Every caller has checked that the slice is as long as its format says; a place beyond it is our own mistake.

/// Puts `bytes` at `offset`.
pub(crate) fn put(sector: &mut [u8], offset: usize, bytes: &[u8]) {
    sector[offset..offset + bytes.len()].copy_from_slice(bytes);
}

/// The `N` bytes at `offset`.
fn array_at<const N: usize>(bytes: &[u8], offset: usize) -> [u8; N] {
    let mut array = [0; N];
    array.copy_from_slice(&bytes[offset..offset + N]);
    array
}

/// The number at `offset`.
pub(crate) fn u16_at(bytes: &[u8], offset: usize) -> u16 {
    u16::from_le_bytes(array_at(bytes, offset))
}

/// The number at `offset`.
pub(crate) fn u32_at(bytes: &[u8], offset: usize) -> u32 {
    u32::from_le_bytes(array_at(bytes, offset))
}

/// The number at `offset`.
pub(crate) fn u64_at(bytes: &[u8], offset: usize) -> u64 {
    u64::from_le_bytes(array_at(bytes, offset))
}

/// The number at `offset`.
pub(crate) fn u128_at(bytes: &[u8], offset: usize) -> u128 {
    u128::from_le_bytes(array_at(bytes, offset))
}
