//! Arithmetic in GF(2⁸) with polynomial 0x11d, and its one bulk operation.

const POLYNOMIAL: u16 = 0x11d;

/// Powers of the generator 2, twice over so that a sum of two logarithms needs no modulo; and logarithms.
const TABLES: ([u8; 510], [u8; 256]) = tables();

const fn tables() -> ([u8; 510], [u8; 256]) {
    let (mut powers, mut logarithms) = ([0; 510], [0; 256]);
    let mut value: u16 = 1;
    let mut exponent = 0;
    while exponent < 255 {
        powers[exponent] = value as u8;
        powers[exponent + 255] = value as u8;
        logarithms[value as usize] = exponent as u8;
        value <<= 1;
        if value & 0x100 != 0 {
            value ^= POLYNOMIAL;
        }
        exponent += 1;
    }
    (powers, logarithms)
}

/// a · b.
pub(super) fn multiply(a: u8, b: u8) -> u8 {
    let (powers, logarithms) = &TABLES;
    if a == 0 || b == 0 {
        return 0;
    }
    powers[usize::from(logarithms[usize::from(a)]) + usize::from(logarithms[usize::from(b)])]
}

/// a / b.
pub(super) fn divide(a: u8, b: u8) -> u8 {
    assert!(b != 0, "nothing is divided by zero");
    let (powers, logarithms) = &TABLES;
    if a == 0 {
        return 0;
    }
    powers[usize::from(logarithms[usize::from(a)]) + 255 - usize::from(logarithms[usize::from(b)])]
}

/// `sum += factor · data`, byte by byte.
pub(super) fn add_product(sum: &mut [u8], factor: u8, data: &[u8]) {
    assert_eq!(sum.len(), data.len(), "sum and data go in step");
    match factor {
        0 => {}
        1 => add(sum, data),
        _ => add_multiple(sum, factor, data),
    }
}

fn add(sum: &mut [u8], data: &[u8]) {
    #[cfg(target_arch = "x86_64")]
    if is_x86_feature_detected!("avx2") {
        // SAFETY: the processor has AVX2.
        unsafe { wide::add(sum, data) };
        return;
    }
    sum.iter_mut().zip(data).for_each(|(sum, data)| *sum ^= data);
}

fn add_multiple(sum: &mut [u8], factor: u8, data: &[u8]) {
    let nibbles = Nibbles::of(factor);
    #[cfg(target_arch = "x86_64")]
    if is_x86_feature_detected!("avx2") {
        // SAFETY: the processor has AVX2.
        unsafe { wide::add_multiple(sum, &nibbles, data) };
        return;
    }
    nibbles.add_multiple(sum, data);
}

/// The products of a factor with every low and every high half of a byte: a product is the sum of two look-ups.
struct Nibbles {
    low: [u8; 16],
    high: [u8; 16],
}

impl Nibbles {
    fn of(factor: u8) -> Nibbles {
        let product = |half: usize, shift: u32| multiply(factor, (half as u8) << shift);
        Nibbles {
            low: std::array::from_fn(|half| product(half, 0)),
            high: std::array::from_fn(|half| product(half, 4)),
        }
    }

    fn add_multiple(&self, sum: &mut [u8], data: &[u8]) {
        for (sum, data) in sum.iter_mut().zip(data) {
            *sum ^= self.low[usize::from(data & 15)] ^ self.high[usize::from(data >> 4)];
        }
    }
}

/// The same, 32 bytes at a time.
#[cfg(target_arch = "x86_64")]
mod wide {
    use std::arch::x86_64::{
        __m128i, __m256i, _mm_loadu_si128, _mm256_and_si256, _mm256_broadcastsi128_si256, _mm256_loadu_si256,
        _mm256_set1_epi8, _mm256_shuffle_epi8, _mm256_srli_epi64, _mm256_storeu_si256, _mm256_xor_si256,
    };

    use super::Nibbles;

    /// The compiler makes wide instructions of the plain loop once it may.
    #[target_feature(enable = "avx2")]
    pub(super) fn add(sum: &mut [u8], data: &[u8]) {
        sum.iter_mut().zip(data).for_each(|(sum, data)| *sum ^= data);
    }

    /// Each half of a byte picks its product from a register by a shuffle (Plank, "Screaming fast Galois field arithmetic").
    #[target_feature(enable = "avx2")]
    pub(super) fn add_multiple(sum: &mut [u8], nibbles: &Nibbles, data: &[u8]) {
        // SAFETY: both tables are 16 bytes long.
        let [low, high] = [&nibbles.low, &nibbles.high]
            .map(|table| unsafe { _mm256_broadcastsi128_si256(_mm_loadu_si128(table.as_ptr().cast::<__m128i>())) });
        let mask = _mm256_set1_epi8(15);
        let mut sums = sum.chunks_exact_mut(32);
        let mut datas = data.chunks_exact(32);
        for (sum, data) in sums.by_ref().zip(datas.by_ref()) {
            // SAFETY: both chunks are 32 bytes long, and unaligned loads and stores are used.
            unsafe {
                let bytes = _mm256_loadu_si256(data.as_ptr().cast::<__m256i>());
                let low_product = _mm256_shuffle_epi8(low, _mm256_and_si256(bytes, mask));
                let high_half = _mm256_and_si256(_mm256_srli_epi64::<4>(bytes), mask);
                let product = _mm256_xor_si256(low_product, _mm256_shuffle_epi8(high, high_half));
                let old = _mm256_loadu_si256(sum.as_ptr().cast::<__m256i>());
                _mm256_storeu_si256(sum.as_mut_ptr().cast::<__m256i>(), _mm256_xor_si256(old, product));
            }
        }
        nibbles.add_multiple(sums.into_remainder(), datas.remainder());
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn division_undoes_multiplication() {
        for a in 0..=255u8 {
            for b in 1..=255u8 {
                assert_eq!(divide(multiply(a, b), b), a);
            }
        }
        assert_eq!((multiply(2, 0x80), multiply(1, 77)), (0x1d, 77));
    }

    #[test]
    fn wide_and_narrow_agree() {
        let data: Vec<u8> = (0..1000u32).map(|n| (n * 37 % 251) as u8).collect();
        for factor in 0..=255 {
            let mut sum = data.clone();
            add_product(&mut sum, factor, &data);
            let narrow: Vec<u8> = data.iter().map(|&byte| byte ^ multiply(factor, byte)).collect();
            assert_eq!(sum, narrow);
        }
    }
}
