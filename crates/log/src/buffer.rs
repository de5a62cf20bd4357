//! The bytes of one stripe in memory, whatever its geometry: chunks of one size, filled in order, with a checksum a
//! block. Laying the stripe anew in another shape only cuts the same bytes differently.
//!
//! Invariants
//! 1. Bytes never change once appended; a part that was handed out as [`Bytes`] shares the chunk's memory.
//! 2. `sums` has the checksum of every block that is full. The sum of the block being filled is made when asked for.
//! 3. A chunk goes back to the pool when the stripe is done, and is used again once nobody else holds a part of it:
//!    memory fresh from the system costs more than filling it.

use std::ops::Range;

use bytes::{Buf, Bytes, BytesMut};
use protocol::checksum::{BLOCK_SIZE, crc_parts};

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

/// One chunk: frozen pieces in front, the growing rest behind.
#[derive(Debug)]
struct Chunk {
    frozen: Vec<Bytes>,
    frozen_size: usize,
    open: BytesMut,
}

impl Chunk {
    fn freeze(&mut self) {
        if !self.open.is_empty() {
            let piece = self.open.split().freeze();
            self.frozen_size += piece.len();
            self.frozen.push(piece);
        }
    }

    /// Visits the slices that make up `range`.
    fn slices<'a>(&'a self, range: Range<usize>, mut visit: impl FnMut(&'a [u8])) {
        let mut start = 0;
        for piece in self.frozen.iter().map(|piece| &piece[..]).chain([&self.open[..]]) {
            let (from, to) = (range.start.max(start), range.end.min(start + piece.len()));
            if from < to {
                visit(&piece[from - start..to - start]);
            }
            start += piece.len();
        }
    }

    /// The bytes of `range`, shared where that is cheaper than copying.
    fn parts(&mut self, range: Range<usize>, parts: &mut Vec<Bytes>) {
        if range.end > self.frozen_size && range.len() >= SHARE_SIZE_MIN {
            self.freeze();
        }
        let mut start = 0;
        for piece in &self.frozen {
            let (from, to) = (range.start.max(start), range.end.min(start + piece.len()));
            if from < to {
                parts.push(piece.slice(from - start..to - start));
            }
            start += piece.len();
        }
        if range.end > start {
            let from = range.start.max(start);
            parts.push(Bytes::copy_from_slice(&self.open[from - start..range.end - start]));
        }
    }
}

/// The bytes of one stripe.
#[derive(Debug)]
pub(crate) struct StripeBytes {
    chunk_size: usize,
    chunks: Vec<Chunk>,
    length: usize,
    sums: Vec<u32>,
}

impl StripeBytes {
    pub(crate) fn new(chunk_size: usize) -> StripeBytes {
        StripeBytes { chunk_size, chunks: Vec::new(), length: 0, sums: Vec::new() }
    }

    pub(crate) fn length(&self) -> u32 {
        self.length as u32
    }

    /// Adds bytes. Call [`StripeBytes::sum`] when a record is whole.
    pub(crate) fn append(&mut self, pool: &mut Pool, mut bytes: &[u8]) {
        while bytes.has_remaining() {
            let at = self.length % self.chunk_size;
            if at == 0 && self.length / self.chunk_size == self.chunks.len() {
                self.chunks.push(Chunk { frozen: Vec::new(), frozen_size: 0, open: pool.take() });
            }
            let chunk = self.chunks.last_mut().expect("a chunk was just made");
            let now = bytes.len().min(self.chunk_size - at);
            chunk.open.extend_from_slice(&bytes[..now]);
            bytes.advance(now);
            self.length += now;
        }
    }

    /// Makes the checksums of the blocks that have become full, while they are hot.
    pub(crate) fn sum(&mut self) {
        while (self.sums.len() + 1) * BLOCK_SIZE <= self.length {
            let start = self.sums.len() * BLOCK_SIZE;
            let sum = self.crc(start..start + BLOCK_SIZE);
            self.sums.push(sum);
        }
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
        let (mut at, end) = (range.start as usize, range.end as usize);
        assert!(end <= self.length, "only what was appended can be sent");
        let mut parts = Vec::with_capacity(2);
        while at < end {
            let start = at / self.chunk_size * self.chunk_size;
            let to = end.min(start + self.chunk_size);
            self.chunks[at / self.chunk_size].parts(at - start..to - start, &mut parts);
            at = to;
        }
        parts
    }

    /// Visits the slices that make up `range`.
    pub(crate) fn slices(&self, range: Range<u32>, mut visit: impl FnMut(&[u8])) {
        let (mut at, end) = (range.start as usize, range.end as usize);
        assert!(end <= self.length, "only what was appended can be looked at");
        while at < end {
            let start = at / self.chunk_size * self.chunk_size;
            let to = end.min(start + self.chunk_size);
            self.chunks[at / self.chunk_size].slices(at - start..to - start, &mut visit);
            at = to;
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
        for chunk in self.chunks.drain(..) {
            drop(chunk.frozen);
            pool.put(chunk.open);
        }
        self.sums = Vec::new();
    }

    fn crc(&self, range: Range<usize>) -> u32 {
        let mut slices: [&[u8]; 4] = [&[]; 4];
        let mut count = 0;
        let (chunk, start) = (&self.chunks[range.start / self.chunk_size], range.start % self.chunk_size);
        let mut many = Vec::new();
        chunk.slices(start..start + range.len(), |slice| {
            match slices.get_mut(count) {
                Some(place) => *place = slice,
                None => many.push(slice),
            }
            count += 1;
        });
        crc_parts(slices.into_iter().chain(many))
    }
}
