//! Parity and reconstruction: XOR for one parity fragment, Reed–Solomon for more (DESIGN §3; Zebra 3.1).
//!
//! The code is systematic over GF(2⁸) with polynomial 0x11d. Parity j of k data fragments is Σ c(j, i) · data(i), with
//! c(j, i) = (x₀ + yᵢ) / (xⱼ + yᵢ), yᵢ = i, xⱼ = 32 + j: a Cauchy matrix whose columns are scaled so that its first row
//! is all ones. Scaling columns keeps every square submatrix regular, so any k of the k+m fragments give the rest; and
//! the first parity is the plain XOR, whatever m is.
//!
//! Every byte column of a stripe is coded by itself, so any range can be decoded alone. Data fragments shorter than the
//! longest count as if zeros followed.

mod field;

use bytes::BytesMut;

use crate::fragment::WIDTH_MAX;

/// Adds `data`, a piece of data fragment `index` that begins `at` bytes into it, into the `parities`, which began as
/// zeros. Once every piece of every data fragment was added, in any order, they are the parity.
///
/// # Panics
/// When the piece reaches beyond a parity's end, or there are more parities or fragments than a stripe may have.
pub fn accumulate(parities: &mut [impl AsMut<[u8]>], index: u8, at: usize, data: &[u8]) {
    assert!(parities.len() <= usize::from(WIDTH_MAX) && index < WIDTH_MAX, "a stripe has at most {WIDTH_MAX} of each");
    for (row, parity) in (0u8..).zip(parities.iter_mut()) {
        field::add_product(&mut parity.as_mut()[at..at + data.len()], coefficient(row, index), data);
    }
}

/// Begins `parities` with the next piece of data fragment 0, by which they grow: what [`accumulate`] makes of as many zeros,
/// without the zeros where the parity is the data itself.
pub fn begin(parities: &mut [BytesMut], data: &[u8]) {
    for (row, parity) in (0u8..).zip(parities) {
        match coefficient(row, 0) {
            1 => parity.extend_from_slice(data),
            factor => {
                let at = parity.len();
                parity.resize(at + data.len(), 0);
                field::add_product(&mut parity[at..], factor, data);
            }
        }
    }
}

/// One survivor's bytes of the wanted range. Bytes may end early: zeros follow.
#[derive(Clone, Copy, Debug)]
pub struct Survivor<'a> {
    /// 0..k for data, k..k+m for parity.
    pub index: u8,
    /// Its bytes of the range.
    pub bytes: &'a [u8],
}

/// Computes `length` bytes of data fragment `wanted` from any k survivors of a stripe with `data` data fragments.
///
/// # Panics
/// When there are not exactly k survivors, or two are the same, or the wanted fragment is no data fragment.
pub fn reconstruct(data: u8, wanted: u8, survivors: &[Survivor<'_>], length: usize) -> Vec<u8> {
    assert_eq!(survivors.len(), usize::from(data), "k survivors make a fragment");
    assert!(wanted < data, "only data is reconstructed; parity is computed again");
    let weights = weights(data, wanted, survivors);
    let mut bytes = vec![0; length];
    for (survivor, weight) in survivors.iter().zip(weights) {
        let count = survivor.bytes.len().min(length);
        field::add_product(&mut bytes[..count], weight, &survivor.bytes[..count]);
    }
    bytes
}

/// c(row, column): what data fragment `column` is multiplied with in parity `row`.
fn coefficient(row: u8, column: u8) -> u8 {
    let x = |row: u8| WIDTH_MAX + row;
    field::divide(x(0) ^ column, x(row) ^ column)
}

/// How much of each survivor makes the wanted fragment: solves wᵀ · S = eᵀ, where the rows of S say how each survivor
/// came from the data, by Gauss–Jordan elimination on Sᵀ.
fn weights(data: u8, wanted: u8, survivors: &[Survivor<'_>]) -> Vec<u8> {
    let size = usize::from(data);
    // Row i of the system: what every survivor holds of data fragment i, and whether i is the wanted one.
    let mut system: Vec<Vec<u8>> = (0..data)
        .map(|column| {
            let held = survivors.iter().map(|survivor| {
                if survivor.index < data {
                    u8::from(survivor.index == column)
                } else {
                    coefficient(survivor.index - data, column)
                }
            });
            held.chain([u8::from(column == wanted)]).collect()
        })
        .collect();
    for pivot in 0..size {
        let row = (pivot..size).find(|&row| system[row][pivot] != 0).expect("survivors are distinct");
        system.swap(pivot, row);
        let scale = field::divide(1, system[pivot][pivot]);
        system[pivot].iter_mut().for_each(|value| *value = field::multiply(*value, scale));
        let pivot_row = system[pivot].clone();
        for (row, values) in system.iter_mut().enumerate() {
            if row != pivot && values[pivot] != 0 {
                let factor = values[pivot];
                field::add_product(values, factor, &pivot_row);
            }
        }
    }
    system.iter().map(|row| row[size]).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn parities(data: &[Vec<u8>], count: usize) -> Vec<Vec<u8>> {
        let length = data.iter().map(Vec::len).max().unwrap_or(0);
        let mut parities = vec![vec![0; length]; count];
        for (index, bytes) in (0u8..).zip(data) {
            // In two pieces, as a stripe that fills does.
            let (first, second) = bytes.split_at(bytes.len() / 3);
            let mut slices: Vec<_> = parities.iter_mut().map(Vec::as_mut_slice).collect();
            accumulate(&mut slices, index, first.len(), second);
            accumulate(&mut slices, index, 0, first);
        }
        parities
    }

    #[test]
    fn parities_that_were_begun_are_those_that_were_accumulated() {
        let data: Vec<u8> = (0..=255).collect();
        let mut begun = vec![BytesMut::new(); 3];
        data.chunks(100).for_each(|piece| begin(&mut begun, piece));
        assert_eq!(begun, parities(&[data], 3));
    }

    #[test]
    fn the_first_parity_is_the_xor() {
        assert_eq!(parities(&[vec![1, 2, 3], vec![4, 8]], 2)[0], [5, 10, 3]);
    }

    proptest! {
        #[test]
        fn any_k_fragments_give_the_rest(
            data in prop::collection::vec(prop::collection::vec(any::<u8>(), 0..200), 1..9),
            count in 1usize..5,
            order in any::<[u64; 12]>(),
        ) {
            let parity = parities(&data, count);
            let length = parity[0].len();
            let mut all: Vec<_> = (0u8..).zip(data.iter().chain(&parity)).collect();
            all.sort_by_key(|(index, _)| order[usize::from(*index) % 12].rotate_left(u32::from(*index)));
            let survivors: Vec<_> =
                all[..data.len()].iter().map(|(index, bytes)| Survivor { index: *index, bytes }).collect();
            for (wanted, bytes) in (0u8..).zip(&data) {
                let mut found = reconstruct(data.len() as u8, wanted, &survivors, length);
                prop_assert!(found[bytes.len()..].iter().all(|&byte| byte == 0));
                found.truncate(bytes.len());
                prop_assert_eq!(&found, bytes);
            }
        }
    }
}
