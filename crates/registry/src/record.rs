//! What lies on one target, byte by byte: checkpoints and the records behind them (`docs/format.md`, Registry replica).

use bytes::Bytes;
use protocol::checksum::crc;

const MAGIC: &[u8; 7] = b"DZREG\0\0";
/// The version of this format.
pub const VERSION: u8 = 20;
/// The head of a checkpoint.
pub(crate) const CHECKPOINT_HEAD: usize = 36;
/// The head of a record.
const RECORD_HEAD: usize = 32;
/// Records begin where a sector does: a torn write harms none before it.
const SECTOR: usize = 512;
/// Larger than what the maps of 1,000 nodes need; a length beyond it is rubbish.
pub(crate) const LENGTH_MAX: usize = 64 << 20;

/// The head of a checkpoint: which it is, and what of the log before belongs to it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Head {
    /// Rises with every checkpoint.
    pub generation: u64,
    /// How many generations the one before is back; zero: too many to tell.
    pub back: u32,
    /// How many records that one had in the end.
    pub before: u32,
    /// Bytes of the body.
    pub length: usize,
    /// CRC of the body.
    pub sum: u32,
}

/// What the beginning of a byte space is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Beginning {
    /// Never written.
    Nothing,
    /// A checkpoint, if its body is right.
    Checkpoint(Head),
    /// Somebody was about to write a checkpoint of this generation.
    Claim(u64),
    /// Of another version of the format.
    Version(u8),
    /// Damaged, or torn.
    Damage,
}

/// A claim: the head of a checkpoint that has no body yet.
pub(crate) fn claim(generation: u64) -> Bytes {
    checkpoint(generation, (0, 0), &[])
}

/// A checkpoint with its head, so many generations behind one that had so many records.
pub(crate) fn checkpoint(generation: u64, (back, before): (u32, u32), body: &[u8]) -> Bytes {
    assert!(body.len() <= LENGTH_MAX, "a checkpoint of {} bytes would not be read again", body.len());
    let mut bytes = Vec::with_capacity(CHECKPOINT_HEAD + body.len());
    bytes.extend_from_slice(MAGIC);
    bytes.push(VERSION);
    bytes.extend_from_slice(&generation.to_le_bytes());
    bytes.extend_from_slice(&(body.len() as u32).to_le_bytes());
    bytes.extend_from_slice(&back.to_le_bytes());
    bytes.extend_from_slice(&before.to_le_bytes());
    bytes.extend_from_slice(&crc(body).to_le_bytes());
    bytes.extend_from_slice(&crc(&bytes).to_le_bytes());
    bytes.extend_from_slice(body);
    bytes.into()
}

/// Reads the head of a byte space.
pub(crate) fn beginning(bytes: &[u8]) -> Beginning {
    if bytes.iter().take(CHECKPOINT_HEAD).all(|&byte| byte == 0) {
        return Beginning::Nothing;
    }
    let Some(head) = bytes.first_chunk::<CHECKPOINT_HEAD>() else { return Beginning::Damage };
    if head[..7] != MAGIC[..] {
        return Beginning::Damage;
    }
    // A bit that flipped makes no other version: its own checksum says so first. That of version 1 stood earlier.
    let sum_at = if head[7] == 1 { 20 } else { 32 };
    if word(head, sum_at) != crc(&head[..sum_at]) {
        return Beginning::Damage;
    }
    if head[7] != VERSION {
        return Beginning::Version(head[7]);
    }
    let (generation, length) = (long(head, 8), word(head, 16) as usize);
    match length {
        0 => Beginning::Claim(generation),
        length if length > LENGTH_MAX => Beginning::Damage,
        length => {
            let (back, before, sum) = (word(head, 20), word(head, 24), word(head, 28));
            Beginning::Checkpoint(Head { generation, back, before, length, sum })
        }
    }
}

/// A record, padded to whole sectors.
pub(crate) fn record(generation: u64, number: u32, body: &[u8]) -> Bytes {
    assert!(body.len() <= LENGTH_MAX, "a record of {} bytes would not be read again", body.len());
    let mut bytes = Vec::with_capacity((RECORD_HEAD + body.len()).next_multiple_of(SECTOR));
    bytes.extend_from_slice(&generation.to_le_bytes());
    bytes.extend_from_slice(&number.to_le_bytes());
    bytes.extend_from_slice(&(body.len() as u32).to_le_bytes());
    bytes.extend_from_slice(&crc(body).to_le_bytes());
    bytes.extend_from_slice(&[0; 8]);
    bytes.extend_from_slice(&crc(&bytes).to_le_bytes());
    bytes.extend_from_slice(body);
    bytes.resize(bytes.len().next_multiple_of(SECTOR), 0);
    bytes.into()
}

/// The records of a generation, and where they end.
#[derive(Debug, Default, PartialEq, Eq)]
pub(crate) struct Records {
    /// Their bodies, in order.
    pub bodies: Vec<Bytes>,
    /// Whether the log goes on behind a record that cannot be read, or belongs to a checkpoint that is not there: then what
    /// was read is not all that was promised.
    pub damaged: bool,
}

/// Reads the records behind the checkpoint of `generation`.
pub(crate) fn records(log: &Bytes, generation: u64) -> Records {
    let mut found = Records::default();
    let mut at = 0;
    while let Some((number, body)) = record_at(log, at, generation) {
        if number as usize != found.bodies.len() {
            break;
        }
        at += (RECORD_HEAD + body.len()).next_multiple_of(SECTOR);
        found.bodies.push(body);
    }
    // Only one record is ever under way: a later one proves that those before it were whole once.
    let count = found.bodies.len() as u32;
    let is_later = |(number, of): (u32, u64)| of > generation || (of == generation && number > count);
    found.damaged =
        (at..log.len()).step_by(SECTOR).filter_map(|at| record_head(log, at)).any(|(n, of, ..)| is_later((n, of)));
    found
}

/// The newest generation of which any record is there, whole or not.
pub(crate) fn generation_max(log: &[u8]) -> u64 {
    let heads = (0..log.len()).step_by(SECTOR).filter_map(|at| record_head(log, at));
    heads.map(|(_, generation, ..)| generation).max().unwrap_or(0)
}

/// Number, generation, length and CRC of the body.
fn record_head(log: &[u8], at: usize) -> Option<(u32, u64, usize, u32)> {
    let head: &[u8; RECORD_HEAD] = log.get(at..)?.first_chunk()?;
    let length = word(head, 12) as usize;
    let whole = word(head, 28) == crc(&head[..28]) && length <= LENGTH_MAX;
    whole.then(|| (word(head, 8), long(head, 0), length, word(head, 16)))
}

fn record_at(log: &Bytes, at: usize, generation: u64) -> Option<(u32, Bytes)> {
    let (number, of, length, sum) = record_head(log, at)?;
    let from = at + RECORD_HEAD;
    let whole = of == generation && from + length <= log.len();
    let body = whole.then(|| log.slice(from..from + length))?;
    (crc(&body) == sum).then_some((number, body))
}

fn word(bytes: &[u8], at: usize) -> u32 {
    u32::from_le_bytes(bytes[at..at + 4].try_into().expect("four bytes"))
}

fn long(bytes: &[u8], at: usize) -> u64 {
    u64::from_le_bytes(bytes[at..at + 8].try_into().expect("eight bytes"))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn log(parts: &[Bytes]) -> Bytes {
        parts.concat().into()
    }

    fn bodies(log: &Bytes, generation: u64) -> Vec<usize> {
        records(log, generation).bodies.iter().map(Bytes::len).collect()
    }

    #[test]
    fn a_checkpoint_is_read_as_it_was_written() {
        let bytes = checkpoint(7, (2, 3), b"maps");
        let Beginning::Checkpoint(head) = beginning(&bytes) else { panic!("{:?}", beginning(&bytes)) };
        assert_eq!(head, Head { generation: 7, back: 2, before: 3, length: 4, sum: crc(b"maps") });
        assert_eq!(beginning(&claim(8)), Beginning::Claim(8));
        assert_eq!(beginning(&[0; 36]), Beginning::Nothing);
        assert_eq!(beginning(&[]), Beginning::Nothing);
        assert_eq!(beginning(&bytes[..20]), Beginning::Damage);
        let mut rotten = bytes.to_vec();
        rotten[9] ^= 1;
        assert_eq!(beginning(&rotten), Beginning::Damage);
        let mut old = b"DZREG\0\0\x01 twelve bytes".to_vec();
        old.truncate(20);
        old.extend_from_slice(&crc(&old).to_le_bytes());
        old.extend_from_slice(b"the maps as they were");
        assert_eq!(beginning(&old), Beginning::Version(1));
        old[7] ^= 4;
        assert_eq!(beginning(&old), Beginning::Damage);
    }

    #[test]
    fn a_torn_record_ends_the_log() {
        let whole = log(&[record(2, 0, &[1; 10]), record(2, 1, &[2; 700])]);
        assert_eq!(bodies(&whole, 2), [10, 700]);
        assert_eq!(whole.len(), 512 + 1024);
        let mut torn = whole.to_vec();
        torn[1024..].fill(0);
        assert_eq!(records(&torn.into(), 2), Records { bodies: vec![Bytes::from(vec![1; 10])], damaged: false });
    }

    #[test]
    fn what_an_older_generation_left_is_not_read() {
        let left = log(&[record(3, 0, &[9; 10]), record(2, 1, &[2; 20])]);
        assert_eq!(bodies(&left, 3), [10]);
        assert!(!records(&left, 3).damaged);
    }

    #[test]
    fn a_record_that_rots_before_others_is_damage() {
        let mut rotten = log(&[record(2, 0, &[1; 10]), record(2, 1, &[2; 20]), record(2, 2, &[3; 30])]).to_vec();
        rotten[512 + 40] ^= 1;
        let found = records(&rotten.into(), 2);
        assert_eq!((found.bodies.len(), found.damaged), (1, true));
        let newer = log(&[record(3, 0, &[1; 10])]);
        assert!(records(&newer, 2).damaged, "the checkpoint that it belongs to was durable");
    }
}
