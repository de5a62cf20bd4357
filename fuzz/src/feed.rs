//! Values out of a fuzzer's bytes. When they run out everything is zero, so every prefix of an input is an input.

/// Bytes that are being used up.
#[derive(Clone, Debug)]
pub struct Feed<'a>(&'a [u8]);

impl<'a> Feed<'a> {
    /// Over an input.
    pub fn new(input: &'a [u8]) -> Feed<'a> {
        Feed(input)
    }

    /// Whether all is used up.
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// How much is left.
    pub fn left(&self) -> usize {
        self.0.len()
    }

    /// The next bytes, fewer at the end.
    pub fn bytes(&mut self, count: usize) -> &'a [u8] {
        let (taken, rest) = self.0.split_at(count.min(self.0.len()));
        self.0 = rest;
        taken
    }

    /// All that is left.
    pub fn rest(&mut self) -> &'a [u8] {
        self.bytes(usize::MAX)
    }

    /// One byte.
    pub fn byte(&mut self) -> u8 {
        self.bytes(1).first().copied().unwrap_or(0)
    }

    /// One of `count` choices.
    pub fn choice(&mut self, count: u8) -> u8 {
        self.byte() % count
    }

    /// A number: mostly small, sometimes near a power of two, sometimes anything.
    pub fn number(&mut self) -> u64 {
        match self.byte() {
            small @ 0..=191 => u64::from(small),
            power @ 192..=250 => (1u64 << (power - 192)).wrapping_add(u64::from(self.byte())).wrapping_sub(128),
            _ => {
                let mut bytes = [0; 8];
                let some = self.bytes(8);
                bytes[..some.len()].copy_from_slice(some);
                u64::from_le_bytes(bytes)
            }
        }
    }

    /// A number that fits 32 bits; too large ones are cut, so that the largest is met often.
    pub fn word(&mut self) -> u32 {
        u32::try_from(self.number()).unwrap_or(u32::MAX)
    }

    /// A run of bytes that says its length itself.
    pub fn run(&mut self) -> &'a [u8] {
        let length = usize::from(self.byte());
        self.bytes(length)
    }
}
