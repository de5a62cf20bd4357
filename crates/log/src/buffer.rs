//! The bytes of one stripe in memory, whatever its geometry: pieces in order, with a checksum a block. Long parts of
//! records are kept as they came, the rest is copied into chunks. Laying the stripe anew in another shape only cuts the
//! same bytes differently.
//!
//! Invariants
//! 1. Bytes never change once appended; a part that was handed out as [`Bytes`] shares the memory of the chunk, or of who
//!    appended it.
//! 2. `pieces` follow one another without a gap, none is empty, and what is in the open chunk follows the last of them.
//! 3. `sums` has the checksum of every block that is full, once the record that filled it is whole. The sum of the block
//!    being filled is made when asked for.
//! 4. A chunk goes back to the pool when the stripe is done, and is used again once nobody else holds a part of it:
//!    memory fresh from the system costs more than filling it. What was kept as it came is let go at the same moment, so
//!    that it too can be used again.

use std::ops::Range;

use bytes::{Bytes, BytesMut};
use protocol::checksum::{BLOCK_SIZE, crc, crc_behind};

use crate::writer::BodyPart;

/// A shorter part of a body is copied though it could be kept: many small pieces cost more than copying them.
const KEEP_SIZE_MIN: usize = 64 << 10;
/// A range shorter than this is copied out of the open chunk; a longer one is shared, which splits the chunk.
const SHARE_SIZE_MIN: usize = 8 << 10;
/// How many bytes of chunks a pool keeps, free or still held by others: what goes and comes while a backlog is steady. More
/// is kept for the moment by the allocator, which gives it back to the system when it is not used.
const POOL_BYTES_MAX: usize = 8 << 20;

/// Chunks to fill.
#[derive(Debug)]
pub(crate) struct Pool {
    chunk_size: usize,
    free: Vec<BytesMut>,
    /// Done with, but parts may still be held elsewhere.
    retired: Vec<BytesMut>,
}

impl Pool {
    pub(crate) fn new(chunk_size: usize) -> Pool {
        assert!(chunk_size > 0 && chunk_size.is_multiple_of(BLOCK_SIZE), "a chunk is whole blocks");
        Pool { chunk_size, free: Vec::new(), retired: Vec::new() }
    }

    /// An empty chunk with room for `chunk_size` bytes.
    pub(crate) fn take(&mut self) -> BytesMut {
        let size = self.chunk_size;
        if self.free.is_empty() {
            let mut held = Vec::with_capacity(self.retired.len());
            for mut chunk in self.retired.drain(..) {
                let list = if chunk.try_reclaim(size) { &mut self.free } else { &mut held };
                list.push(chunk);
            }
            self.retired = held;
        }
        self.free.pop().unwrap_or_else(|| BytesMut::with_capacity(size))
    }

    /// Takes back a handle on a chunk whose other parts were given up by the caller.
    pub(crate) fn put(&mut self, mut chunk: BytesMut) {
        chunk.clear();
        if (self.free.len() + self.retired.len()) * self.chunk_size < POOL_BYTES_MAX {
            self.retired.push(chunk);
        }
    }
}

/// The bytes of one stripe.
#[derive(Debug, Default)]
pub(crate) struct StripeBytes {
    /// Where each begins, and what it holds.
    pieces: Vec<(usize, Bytes)>,
    /// Where the last piece ends, and the bytes of the open chunk begin.
    frozen: usize,
    /// Handles on the chunks that pieces lie in. The last is open: what it holds is in no piece yet.
    chunks: Vec<BytesMut>,
    sums: Vec<u32>,
}

impl StripeBytes {
    pub(crate) fn length(&self) -> u32 {
        (self.frozen + self.open().len()) as u32
    }

    /// Adds bytes by copying them. Call [`StripeBytes::sum`] when a record is whole.
    pub(crate) fn append(&mut self, pool: &mut Pool, mut bytes: &[u8]) {
        while !bytes.is_empty() {
            let room = self.chunks.last().map_or(0, |chunk| chunk.capacity() - chunk.len());
            if room == 0 {
                self.freeze();
                self.chunks.push(pool.take());
                continue;
            }
            let (now, rest) = bytes.split_at(bytes.len().min(room));
            self.chunks.last_mut().expect("it has room").extend_from_slice(now);
            bytes = rest;
        }
    }

    /// Adds a part of a body: as it is, if it may be kept and is worth it.
    pub(crate) fn append_part(&mut self, pool: &mut Pool, part: &BodyPart<'_>) {
        match part {
            BodyPart::Kept(bytes) if bytes.len() >= KEEP_SIZE_MIN => {
                self.freeze();
                self.push(bytes.clone());
            }
            part => self.append(pool, part.bytes()),
        }
    }

    /// Makes the checksums of the blocks before `through` that have become full, while they are hot.
    pub(crate) fn sum(&mut self, through: u32) {
        let mut sums = std::mem::take(&mut self.sums);
        let (from, to) = (sums.len() * BLOCK_SIZE, through as usize / BLOCK_SIZE * BLOCK_SIZE);
        let (mut begun, mut sum) = (0, 0);
        self.slices(from as u32..to as u32, |mut slice| {
            while !slice.is_empty() {
                let (now, rest) = slice.split_at(slice.len().min(BLOCK_SIZE - begun));
                sum = if begun == 0 { crc(now) } else { crc_behind(sum, [now]) };
                begun = (begun + now.len()) % BLOCK_SIZE;
                if begun == 0 {
                    sums.push(sum);
                }
                slice = rest;
            }
        });
        self.sums = sums;
    }

    /// The checksums of the blocks that `range` touches, the last one up to the range's end.
    pub(crate) fn checksums(&self, range: Range<u32>) -> Vec<u32> {
        let (first, end) = (range.start as usize / BLOCK_SIZE, range.end as usize);
        (first..end.div_ceil(BLOCK_SIZE))
            .map(|block| match self.sums.get(block) {
                Some(&sum) if (block + 1) * BLOCK_SIZE <= end => sum,
                _ => self.crc(block * BLOCK_SIZE..end.min((block + 1) * BLOCK_SIZE)),
            })
            .collect()
    }

    /// The bytes of `range`, in parts, shared where that is cheaper than copying.
    pub(crate) fn parts(&mut self, range: Range<u32>) -> Vec<Bytes> {
        assert!(range.end <= self.length(), "only what was appended can be sent");
        let range = range.start as usize..range.end as usize;
        if range.end.saturating_sub(range.start.max(self.frozen)) >= SHARE_SIZE_MIN {
            self.freeze();
        }
        let mut parts: Vec<Bytes> = self.pieces[self.first_piece(range.start)..]
            .iter()
            .map(|(start, piece)| (piece, overlap(*start, piece.len(), &range)))
            .take_while(|(_, cut)| !cut.is_empty())
            .map(|(piece, cut)| piece.slice(cut))
            .collect();
        let cut = overlap(self.frozen, self.open().len(), &range);
        if !cut.is_empty() {
            parts.push(Bytes::copy_from_slice(&self.open()[cut]));
        }
        parts
    }

    /// Visits the slices that make up `range`.
    pub(crate) fn slices<'a>(&'a self, range: Range<u32>, mut visit: impl FnMut(&'a [u8])) {
        assert!(range.end <= self.length(), "only what was appended can be looked at");
        let range = range.start as usize..range.end as usize;
        let pieces = self.pieces[self.first_piece(range.start)..].iter().map(|(start, piece)| (*start, &piece[..]));
        for (start, piece) in pieces.chain([(self.frozen, self.open())]) {
            let cut = overlap(start, piece.len(), &range);
            if !cut.is_empty() {
                visit(&piece[cut]);
            } else if start >= range.end {
                break;
            }
        }
    }

    /// The bytes of `range` as one, shared if they lie in one piece.
    pub(crate) fn read(&mut self, range: Range<u32>) -> Bytes {
        let mut parts = self.parts(range);
        match parts.len() {
            0 => Bytes::new(),
            1 => parts.remove(0),
            _ => {
                let mut whole = BytesMut::with_capacity(parts.iter().map(Bytes::len).sum());
                parts.iter().for_each(|part| whole.extend_from_slice(part));
                whole.freeze()
            }
        }
    }

    /// Gives the memory back.
    pub(crate) fn retire(&mut self, pool: &mut Pool) {
        let StripeBytes { pieces, chunks, .. } = std::mem::take(self);
        drop(pieces);
        chunks.into_iter().for_each(|chunk| pool.put(chunk));
    }

    fn open(&self) -> &[u8] {
        self.chunks.last().map_or(&[], |chunk| &chunk[..])
    }

    /// What the open chunk holds becomes a piece; what is still free of the chunk stays open.
    fn freeze(&mut self) {
        if let Some(chunk) = self.chunks.last_mut()
            && !chunk.is_empty()
        {
            let piece = chunk.split().freeze();
            self.push(piece);
        }
    }

    fn push(&mut self, piece: Bytes) {
        let start = self.frozen;
        self.frozen += piece.len();
        self.pieces.push((start, piece));
    }

    /// The first piece that does not end before `at`.
    fn first_piece(&self, at: usize) -> usize {
        self.pieces.partition_point(|(start, piece)| start + piece.len() <= at)
    }

    fn crc(&self, range: Range<usize>) -> u32 {
        let mut sum = crc(&[]);
        self.slices(range.start as u32..range.end as u32, |slice| sum = crc_behind(sum, [slice]));
        sum
    }
}

/// What `range` covers of the `length` bytes that begin at `start`, counted from there.
fn overlap(start: usize, length: usize, range: &Range<usize>) -> Range<usize> {
    let cut = range.start.max(start)..range.end.min(start + length);
    if cut.is_empty() { 0..0 } else { cut.start - start..cut.end - start }
}

#[cfg(test)]
mod model;
