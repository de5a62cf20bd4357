//! Bytes of the journal and page formats (`docs/format-slot.md`): LEB128 integers, bodies that are packed, and a cursor that
//! never panics.

use std::borrow::Cow;

use lz4_flex::block;

/// The version byte that every body of ours begins with.
pub(crate) const VERSION: u8 = 1;

/// What a packed body begins with instead; then its unpacked size, and one LZ4 block of what is behind the version byte.
const PACKED: u8 = 2;
const PACKED_HEAD: usize = 1 + size_of::<u32>();
/// No body of more bytes is packed: so much memory rubbish may cost.
const UNPACKED_MAX: usize = 1 << 20;

/// Bytes that are not what they should be.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("damaged {0}")]
pub struct Damaged(pub &'static str);

/// A body in fewer bytes, where that saves an eighth of them.
pub(crate) fn pack(body: Vec<u8>) -> Vec<u8> {
    let Some((&VERSION, rest)) = body.split_first() else { unreachable!("bodies begin with the version") };
    if rest.len() > UNPACKED_MAX {
        return body;
    }
    let mut packed = vec![0; PACKED_HEAD + block::get_maximum_output_size(rest.len())];
    packed[0] = PACKED;
    packed[1..PACKED_HEAD].copy_from_slice(&(rest.len() as u32).to_le_bytes());
    let size = block::compress_into(rest, &mut packed[PACKED_HEAD..]).expect("there is room for whatever comes out");
    packed.truncate(PACKED_HEAD + size);
    if packed.len() <= body.len() / 8 * 7 { packed } else { body }
}

/// What [`pack`] made a body of, or what it left alone. Bodies that are neither come back as they are.
pub(crate) fn unpack<'a>(body: &'a [u8], what: &'static str) -> Result<Cow<'a, [u8]>, Damaged> {
    let Some((&PACKED, rest)) = body.split_first() else { return Ok(Cow::Borrowed(body)) };
    let mut cursor = Cursor { rest, what };
    let size = cursor.u32()? as usize;
    if size > UNPACKED_MAX {
        return Err(Damaged(what));
    }
    let mut unpacked = vec![0; 1 + size];
    unpacked[0] = VERSION;
    match block::decompress_into(cursor.rest, &mut unpacked[1..]) {
        Ok(filled) if filled == size => Ok(Cow::Owned(unpacked)),
        _ => Err(Damaged(what)),
    }
}

/// Appends `value` in seven-bit groups, lowest first.
pub(crate) fn put_varint(bytes: &mut Vec<u8>, mut value: u64) {
    while value >= 0x80 {
        bytes.push(value as u8 | 0x80);
        value >>= 7;
    }
    bytes.push(value as u8);
}

/// Reads bytes from front to back.
pub(crate) struct Cursor<'a> {
    rest: &'a [u8],
    what: &'static str,
}

impl<'a> Cursor<'a> {
    /// Over a body that begins with the version byte. `what` is named in errors.
    pub(crate) fn new(body: &'a [u8], what: &'static str) -> Result<Self, Damaged> {
        match body.split_first() {
            Some((&VERSION, rest)) => Ok(Cursor { rest, what }),
            _ => Err(Damaged(what)),
        }
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.rest.is_empty()
    }

    pub(crate) fn take(&mut self, count: usize) -> Result<&'a [u8], Damaged> {
        let (taken, rest) = self.rest.split_at_checked(count).ok_or(Damaged(self.what))?;
        self.rest = rest;
        Ok(taken)
    }

    pub(crate) fn u16(&mut self) -> Result<u16, Damaged> {
        Ok(u16::from_le_bytes(self.take(2)?.try_into().expect("two bytes")))
    }

    pub(crate) fn u32(&mut self) -> Result<u32, Damaged> {
        Ok(u32::from_le_bytes(self.take(4)?.try_into().expect("four bytes")))
    }

    pub(crate) fn varint(&mut self) -> Result<u64, Damaged> {
        let mut value = 0;
        for shift in (0..64).step_by(7) {
            let byte = self.take(1)?[0];
            value |= u64::from(byte & 0x7f) << shift;
            if byte < 0x80 {
                return Ok(value);
            }
        }
        Err(Damaged(self.what))
    }

    /// A length followed by so many bytes.
    pub(crate) fn run(&mut self) -> Result<&'a [u8], Damaged> {
        let count = self.varint()?;
        self.take(usize::try_from(count).map_err(|_| Damaged(self.what))?)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_packed_comes_back_and_rubbish_never_panics() {
        let alike: Vec<u8> = [VERSION].into_iter().chain((0..9000_u32).map(|at| (at / 50) as u8)).collect();
        let packed = pack(alike.clone());
        assert!(packed.len() < alike.len() / 8, "{} bytes", packed.len());
        assert_eq!(unpack(&packed, "body").as_deref(), Ok(&alike[..]));
        for at in 0..packed.len() {
            assert!(unpack(&packed[..at], "body").map_or(true, |unpacked| *unpacked != alike), "cut at {at}");
            for bit in 0..8 {
                let mut bad = packed.clone();
                bad[at] ^= 1 << bit;
                let _ = unpack(&bad, "body");
            }
        }
        assert_eq!(unpack(&[PACKED, 1, 0, 16, 0, 0], "body"), Err(Damaged("body")), "it would be too large");
    }

    #[test]
    fn what_packing_would_not_shorten_is_left_alone() {
        let mut word = 1_u64;
        let mut random = || {
            word = word.wrapping_mul(0x5851_f42d_4c95_7f2d).wrapping_add(1);
            (word >> 56) as u8
        };
        for size in [0, 1, 7, 300, 20_000] {
            let body: Vec<u8> = [VERSION].into_iter().chain(std::iter::repeat_with(&mut random).take(size)).collect();
            assert_eq!(pack(body.clone()), body);
            assert_eq!(unpack(&body, "body").as_deref(), Ok(&body[..]));
        }
        let large = [vec![VERSION], vec![0; UNPACKED_MAX + 1]].concat();
        assert_eq!(pack(large.clone()), large);
    }
}
