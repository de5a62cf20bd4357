//! The list of what lies in the cells, as bytes: `docs/format.md`, *The list*.

use protocol::checksum::crc_parts;
use protocol::id::{FenceEpoch, LogId};
use serde::{Deserialize, Serialize};

use crate::bytes_at::{put, u32_at, u64_at};
use crate::cells::CellRun;
use crate::superblock::SECTOR;

/// The most entry bytes in a batch, but for a single larger entry, which is none's case.
pub(crate) const PAYLOAD_SIZE_MAX: usize = 256 << 10;
/// The most runs that a window may consist of, so that its entry fits into a batch.
pub(crate) const WINDOW_RUNS_MAX: usize = 4096;
const MAGIC: [u8; 4] = *b"DzLs";
const HEADER_SIZE: usize = 48;
const CRC_OFFSET: usize = 44;

/// A length that start-up believes without looking at the fragment.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Settled {
    pub(crate) length: u32,
    /// CRC of the partial last block, zero if it is full.
    pub(crate) partial: u32,
}

/// Cells into which fragments may have been put since, with this generation or a higher one.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct WindowRun {
    pub(crate) run: CellRun,
    pub(crate) floor: u64,
}

/// One thing that the list says.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) enum Entry<'a> {
    /// What lies in a cell.
    Fragment {
        cell: u32,
        generation: u64,
        epoch: FenceEpoch,
        settled: Option<Settled>,
        /// The fragment header, encoded.
        #[serde(borrow)]
        header: &'a [u8],
    },
    /// The fragment of this generation is no longer settled.
    Open { cell: u32, generation: u64 },
    /// The fragment of this generation has left the cell.
    Gone { cell: u32, generation: u64 },
    /// The log is fenced.
    Fence { log: LogId, epoch: FenceEpoch },
    /// Replaces the window before.
    Window(Vec<WindowRun>),
    /// Ends the snapshot.
    End,
}

/// What identifies a batch beside its entries.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct BatchHeader {
    /// The number of the list.
    pub(crate) list: u64,
    /// The number of the batch in it.
    pub(crate) number: u64,
    pub(crate) incarnation: u64,
    /// How many bytes of the list were durable.
    pub(crate) synced: u64,
    /// The CRC of the batch before.
    pub(crate) chain: u32,
}

/// A batch found in bytes.
#[derive(Debug)]
pub(crate) struct Batch<'a> {
    pub(crate) header: BatchHeader,
    /// What the next batch's `chain` must be.
    pub(crate) crc: u32,
    pub(crate) payload: &'a [u8],
    /// How many bytes it takes, padding included.
    pub(crate) size: usize,
}

/// What stands at the start of some bytes.
#[derive(Debug)]
pub(crate) enum Found<'a> {
    Batch(Batch<'a>),
    /// More bytes are needed to tell.
    Short,
    /// No batch.
    Nothing,
}

/// The bytes of a batch, and its CRC.
pub(crate) fn encode_batch(header: &BatchHeader, payload: &[u8]) -> (Vec<u8>, u32) {
    assert!(payload.len() <= PAYLOAD_SIZE_MAX, "a batch has a bound");
    let size = (HEADER_SIZE + payload.len()).next_multiple_of(SECTOR);
    let mut bytes = vec![0; size];
    put(&mut bytes, 0, &MAGIC);
    put(&mut bytes, 4, &(payload.len() as u32).to_le_bytes());
    put(&mut bytes, 8, &header.list.to_le_bytes());
    put(&mut bytes, 16, &header.number.to_le_bytes());
    put(&mut bytes, 24, &header.incarnation.to_le_bytes());
    put(&mut bytes, 32, &header.synced.to_le_bytes());
    put(&mut bytes, 40, &header.chain.to_le_bytes());
    put(&mut bytes, HEADER_SIZE, payload);
    let sum = crc_parts([&bytes[..CRC_OFFSET], payload]);
    put(&mut bytes, CRC_OFFSET, &sum.to_le_bytes());
    (bytes, sum)
}

/// The batch at the start of `bytes`, right by itself.
pub(crate) fn find_batch(bytes: &[u8]) -> Found<'_> {
    if bytes.len() < HEADER_SIZE {
        return Found::Short;
    }
    let length = u32_at(bytes, 4) as usize;
    if bytes[..4] != MAGIC || length > PAYLOAD_SIZE_MAX {
        return Found::Nothing;
    }
    let size = (HEADER_SIZE + length).next_multiple_of(SECTOR);
    if bytes.len() < size {
        return Found::Short;
    }
    let payload = &bytes[HEADER_SIZE..HEADER_SIZE + length];
    let sum = u32_at(bytes, CRC_OFFSET);
    if sum != crc_parts([&bytes[..CRC_OFFSET], payload]) {
        return Found::Nothing;
    }
    let header = BatchHeader {
        list: u64_at(bytes, 8),
        number: u64_at(bytes, 16),
        incarnation: u64_at(bytes, 24),
        synced: u64_at(bytes, 32),
        chain: u32_at(bytes, 40),
    };
    Found::Batch(Batch { header, crc: sum, payload, size })
}

/// The entries of a batch; ends with `Err` at what is no entry.
pub(crate) fn entries(mut payload: &[u8]) -> impl Iterator<Item = Result<Entry<'_>, postcard::Error>> {
    std::iter::from_fn(move || {
        if payload.is_empty() {
            return None;
        }
        match postcard::take_from_bytes(payload) {
            Ok((entry, rest)) => {
                payload = rest;
                Some(Ok(entry))
            }
            Err(error) => {
                payload = &[];
                Some(Err(error))
            }
        }
    })
}

/// Collects entries into payloads that fit into batches.
#[derive(Debug, Default)]
pub(crate) struct Payloads(Vec<Vec<u8>>);

impl Payloads {
    /// Adds an entry.
    pub(crate) fn push(&mut self, entry: &Entry<'_>) {
        let bytes = postcard::to_stdvec(entry).expect("an entry of plain values is encoded");
        match self.0.last_mut() {
            Some(last) if last.len() + bytes.len() <= PAYLOAD_SIZE_MAX => last.extend_from_slice(&bytes),
            _ => self.0.push(bytes),
        }
    }

    /// Whether there are more than a write should hold back.
    pub(crate) fn are_many(&self) -> bool {
        self.0.len() > 4
    }

    /// The payloads in order.
    pub(crate) fn take(&mut self) -> Vec<Vec<u8>> {
        std::mem::take(&mut self.0)
    }
}

impl From<&Vec<Vec<u8>>> for Payloads {
    fn from(payloads: &Vec<Vec<u8>>) -> Payloads {
        Payloads(payloads.clone())
    }
}

#[cfg(test)]
mod tests {
    use host::sim::Dice;

    use super::*;

    #[test]
    fn a_batch_says_what_was_put_in() {
        let mut payloads = Payloads::default();
        let fence = Entry::Fence { log: LogId(7), epoch: FenceEpoch(2) };
        let fragment = Entry::Fragment {
            cell: 3,
            generation: 1 << 40,
            epoch: FenceEpoch(1),
            settled: Some(Settled { length: 5, partial: 6 }),
            header: b"header",
        };
        payloads.push(&fence);
        payloads.push(&fragment);
        let header = BatchHeader { list: 4, number: 2, incarnation: 9, synced: 512, chain: 77 };
        let payload = payloads.take().remove(0);
        let (bytes, sum) = encode_batch(&header, &payload);
        assert_eq!(bytes.len() % SECTOR, 0);
        let Found::Batch(batch) = find_batch(&bytes) else { panic!("the batch was not found") };
        assert_eq!((batch.header, batch.crc, batch.size), (header, sum, bytes.len()));
        assert_eq!(entries(batch.payload).collect::<Result<Vec<_>, _>>().unwrap(), [fence, fragment]);
    }

    #[test]
    fn rubbish_is_no_batch_and_no_entry() {
        let mut dice = Dice::new(5);
        let (good, _) = encode_batch(
            &BatchHeader { list: 1, number: 0, incarnation: 1, synced: 0, chain: 0 },
            &postcard::to_stdvec(&Entry::End).unwrap(),
        );
        for _ in 0..20_000 {
            let mut bytes = good.clone();
            bytes.truncate(dice.below(bytes.len() as u64 + 1) as usize);
            for _ in 0..=dice.below(3) {
                if !bytes.is_empty() {
                    let at = dice.below(bytes.len() as u64) as usize;
                    bytes[at] = dice.roll() as u8;
                }
            }
            let _ = find_batch(&bytes);
            let rubbish: Vec<u8> = (0..dice.below(64)).map(|_| dice.roll() as u8).collect();
            let _ = entries(&rubbish).count();
        }
    }
}
