//! Bytes of the journal and page formats (`docs/format-slot.md`): LEB128 integers, and a cursor that never panics.

/// The version byte that every body of ours begins with.
pub(crate) const VERSION: u8 = 1;

/// Bytes that are not what they should be.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("damaged {0}")]
pub struct Damaged(pub &'static str);

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
