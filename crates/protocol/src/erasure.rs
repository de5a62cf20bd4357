//! Parity and reconstruction: XOR for one parity fragment, Reed–Solomon for more (DESIGN §3).
//!
//! Every byte column of a stripe is coded by itself, so any range can be decoded alone. Data fragments shorter than the
//! longest count as if zeros followed.

/// Adds `data` fragment `index` (of any length up to the parities') into the `parities`, which began as zeros. Calling
/// it once for every data fragment, in any order and in any pieces, makes the parity; `at` is where in the fragment
/// the piece begins.
pub fn accumulate(parities: &mut [&mut [u8]], index: u8, at: usize, data: &[u8]) {
    assert!(parities.len() == 1, "Reed-Solomon is not written yet");
    let _ = index;
    for (p, d) in parities[0][at..at + data.len()].iter_mut().zip(data) {
        *p ^= d;
    }
}

/// One survivor's bytes of the wanted range. Bytes may end early: zeros follow.
pub struct Survivor<'a> {
    /// 0..k for data, k..k+m for parity.
    pub index: u8,
    /// Its bytes of the range.
    pub bytes: &'a [u8],
}

/// Computes `length` bytes of data fragment `wanted` from any k survivors of a stripe with `data` data fragments.
///
/// # Panics
/// When fewer than k survivors are given, or two are the same.
pub fn reconstruct(data: u8, wanted: u8, survivors: &[Survivor<'_>], length: usize) -> Vec<u8> {
    assert_eq!(survivors.len(), usize::from(data), "k survivors make a fragment");
    assert!(wanted < data, "only data is reconstructed; parity is computed again");
    let mut bytes = vec![0; length];
    for survivor in survivors {
        let n = survivor.bytes.len().min(length);
        for (b, s) in bytes[..n].iter_mut().zip(&survivor.bytes[..n]) {
            *b ^= s;
        }
    }
    bytes
}
