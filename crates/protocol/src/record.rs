//! What is appended to a log: a header of fixed size and a body (`docs/format.md`, Records).
//!
//! Invariants
//! 1. A record lies within one stripe; it may span fragments.
//! 2. Its checksum covers its place (log, stripe, offset), so a record read from anywhere else does not verify.
//! 3. The body of a data record is guarded by the block checksums of its fragment alone, so that bulk bytes are
//!    summed once; all other bodies are covered by the record's checksum too.
//! 4. A zero byte where a magic is expected ends the stripe.

use serde::{Deserialize, Serialize};

use crate::address::{LogAddress, Position};
use crate::checksum::{crc_behind, crc_parts};
use crate::id::{InodeId, LogId};

/// The bytes of a record's header.
pub const HEADER_SIZE: usize = 32;
/// The version of the record format that this code writes.
pub const VERSION: u8 = 1;
const MAGIC: u16 = 0xda22;

/// What a record is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[repr(u8)]
pub enum RecordKind {
    /// Bytes of a file.
    Data = 1,
    /// Deltas: which bytes of which files now live where.
    Deltas = 2,
    /// A manager's operations, as changes to its slots.
    Journal = 3,
    /// One page of a slot image.
    Page = 4,
    /// The index over the pages of one slot image.
    PageIndex = 5,
    /// The newest image of every slot.
    Checkpoint = 6,
    /// "Before this position everything is applied, durably."
    Mark = 7,
    /// Images of slots that their manager hands over to another.
    Handover = 8,
}

impl RecordKind {
    fn from_byte(byte: u8) -> Option<Self> {
        use RecordKind::{Checkpoint, Data, Deltas, Handover, Journal, Mark, Page, PageIndex};
        [Data, Deltas, Journal, Page, PageIndex, Checkpoint, Mark, Handover]
            .into_iter()
            .find(|&kind| kind as u8 == byte)
    }
}

/// Whose bytes a data record holds, so that a cleaner can ask whether they still live (Zebra 3.4, LFS's summary).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default, Serialize, Deserialize)]
pub struct Owner {
    /// The inode's number; zero for records that are not data.
    pub inode: u64,
    /// Where in the file the first byte belongs.
    pub file_offset: u64,
}

impl Owner {
    /// The bytes of `inode` from `file_offset`.
    pub fn new(inode: InodeId, file_offset: u64) -> Self {
        Owner { inode: inode.0, file_offset }
    }
}

/// The header of a record, read or to be written.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RecordHeader {
    /// What the body is.
    pub kind: RecordKind,
    /// Zero bytes between header and body, which bring bulk bytes to a block boundary. Less than a block.
    pub padding: u16,
    /// The body's bytes.
    pub length: u32,
    /// Whose bytes, for data.
    pub owner: Owner,
}

/// Why bytes are no record.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum RecordError {
    /// Nothing was ever appended here: the stripe ends.
    #[error("no record begins here")]
    End,
    /// The bytes are cut off.
    #[error("a record is cut off")]
    Short,
    /// The bytes do not verify.
    #[error("a record does not verify: {0}")]
    Damaged(&'static str),
    /// Written by a newer Dazzle.
    #[error("a record has format version {0}; this Dazzle reads up to {VERSION}: upgrade this node")]
    Version(u8),
}

impl RecordHeader {
    /// How many bytes the record takes from its position on.
    pub fn size(self) -> u32 {
        HEADER_SIZE as u32 + u32::from(self.padding) + self.length
    }

    /// Where the body lies when the record is at `place` of `log`.
    pub fn body(self, log: LogId, place: Position) -> LogAddress {
        let offset = place.offset + HEADER_SIZE as u32 + u32::from(self.padding);
        LogAddress { log, stripe: place.stripe, offset, length: self.length }
    }

    /// The bytes of the header, for a record with `body` at `place` of `log`. A data record's body is not looked at.
    pub fn encode<'a>(
        self,
        log: LogId,
        place: Position,
        body: impl IntoIterator<Item = &'a [u8]>,
    ) -> [u8; HEADER_SIZE] {
        let mut bytes = [0; HEADER_SIZE];
        bytes[0..2].copy_from_slice(&MAGIC.to_le_bytes());
        bytes[2] = self.kind as u8;
        bytes[3] = VERSION;
        bytes[4..8].copy_from_slice(&self.length.to_le_bytes());
        bytes[8..10].copy_from_slice(&self.padding.to_le_bytes());
        bytes[16..24].copy_from_slice(&self.owner.inode.to_le_bytes());
        bytes[24..32].copy_from_slice(&self.owner.file_offset.to_le_bytes());
        let crc = self.crc(log, place, &bytes, body);
        bytes[12..16].copy_from_slice(&crc.to_le_bytes());
        bytes
    }

    /// Reads the header at the beginning of `bytes`, without verifying its checksum: [`RecordHeader::verify`] does,
    /// once the body is at hand.
    pub fn decode(bytes: &[u8]) -> Result<RecordHeader, RecordError> {
        let header: &[u8; HEADER_SIZE] = match bytes.first_chunk() {
            Some(header) => header,
            None if bytes.iter().all(|&byte| byte == 0) => return Err(RecordError::End),
            None => return Err(RecordError::Short),
        };
        let magic = u16::from_le_bytes([header[0], header[1]]);
        if magic == 0 {
            return Err(RecordError::End);
        }
        if magic != MAGIC {
            return Err(RecordError::Damaged("no magic"));
        }
        if header[3] > VERSION {
            return Err(RecordError::Version(header[3]));
        }
        let kind = RecordKind::from_byte(header[2]).ok_or(RecordError::Damaged("unknown kind"))?;
        let word = |at: usize| u64::from_le_bytes(header[at..at + 8].try_into().expect("eight bytes"));
        Ok(RecordHeader {
            kind,
            padding: u16::from_le_bytes([header[8], header[9]]),
            length: u32::from_le_bytes(header[4..8].try_into().expect("four bytes")),
            owner: Owner { inode: word(16), file_offset: word(24) },
        })
    }

    /// Whether `encoded`, the header's own bytes, and `body` belong to `place` of `log`.
    pub fn verify(self, log: LogId, place: Position, encoded: &[u8], body: &[u8]) -> Result<(), RecordError> {
        let encoded: &[u8; HEADER_SIZE] = encoded.first_chunk().ok_or(RecordError::Short)?;
        let stored = u32::from_le_bytes(encoded[12..16].try_into().expect("four bytes"));
        if stored == self.crc(log, place, encoded, [body]) {
            Ok(())
        } else {
            Err(RecordError::Damaged("wrong checksum"))
        }
    }

    fn crc<'a>(
        self,
        log: LogId,
        place: Position,
        encoded: &[u8; HEADER_SIZE],
        body: impl IntoIterator<Item = &'a [u8]>,
    ) -> u32 {
        let mut origin = [0; 20];
        origin[0..8].copy_from_slice(&log.0.to_le_bytes());
        origin[8..16].copy_from_slice(&place.stripe.0.to_le_bytes());
        origin[16..20].copy_from_slice(&place.offset.to_le_bytes());
        let head = crc_parts([&origin[..], &encoded[..12], &encoded[16..]]);
        if self.kind == RecordKind::Data { head } else { crc_behind(head, body) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::id::StripeNumber;

    const PLACE: Position = Position { stripe: StripeNumber(9), offset: 4096 };

    #[test]
    fn a_record_verifies_only_at_its_place() {
        let header = RecordHeader { kind: RecordKind::Journal, padding: 0, length: 5, owner: Owner::default() };
        let bytes = header.encode(LogId(3), PLACE, [&b"hel"[..], b"lo"]);
        assert_eq!(RecordHeader::decode(&bytes), Ok(header));
        assert_eq!(header.verify(LogId(3), PLACE, &bytes, b"hello"), Ok(()));
        assert!(header.verify(LogId(3), PLACE, &bytes, b"hellO").is_err());
        assert!(header.verify(LogId(4), PLACE, &bytes, b"hello").is_err());
        assert!(header.verify(LogId(3), Position { offset: 0, ..PLACE }, &bytes, b"hello").is_err());
    }

    #[test]
    fn zeros_end_a_stripe_and_rubbish_is_refused() {
        assert_eq!(RecordHeader::decode(&[0; 64]), Err(RecordError::End));
        assert_eq!(RecordHeader::decode(&[]), Err(RecordError::End));
        assert_eq!(RecordHeader::decode(&[1; 7]), Err(RecordError::Short));
        assert!(matches!(RecordHeader::decode(&[0xff; 64]), Err(RecordError::Damaged(_))));
    }
}
