//! What comes on one connection, as frames. Nothing a peer sends makes more than a frame's memory.

use std::io;
use std::sync::atomic::{AtomicU64, Ordering};

use bytes::{Buf, Bytes, BytesMut};
use tokio::io::{AsyncRead, AsyncReadExt};

use crate::edge::buffers::IoBuffer;

use super::frame::{Frame, FrameError, HEADER_BYTES, Header};

/// How much is read at once while no payload is under way. Small frames come many at a time.
const READ_BYTES: usize = 64 << 10;

/// Why no frame came.
#[derive(Debug, thiserror::Error)]
pub(super) enum ReceiveError {
    /// The other end closed, between frames.
    #[error("the other end closed")]
    Closed,
    /// The connection failed, or ended within a frame.
    #[error("{0}")]
    Broken(#[from] io::Error),
    /// What came is no frame.
    #[error("{0}")]
    Rubbish(#[from] FrameError),
}

/// The receiving end of a connection.
pub(super) struct Inbound<'a, R> {
    read: R,
    buffer: BytesMut,
    counts: [&'a AtomicU64; 2],
}

impl<'a, R: AsyncRead + Unpin> Inbound<'a, R> {
    /// Reads from `read`, and adds the bytes to each of `counts`: those of the connection, and of the machine behind it.
    pub(super) fn new(read: R, counts: [&'a AtomicU64; 2]) -> Self {
        Inbound { read, buffer: BytesMut::new(), counts }
    }

    /// The next frame.
    pub(super) async fn next(&mut self) -> Result<Frame, ReceiveError> {
        self.fill(HEADER_BYTES).await?;
        let bytes = self.buffer.first_chunk().expect("as much was read");
        let header = Header::decode(bytes)?;
        self.fill(HEADER_BYTES + header.head_bytes()).await?;
        self.buffer.advance(HEADER_BYTES);
        let mut body = self.buffer.split_to(header.head_bytes()).freeze();
        let table = body.split_off(header.body_bytes);
        let lengths = header.payload_lengths(&table)?;
        let payloads = if lengths.is_empty() { Vec::new() } else { self.payloads(&lengths).await? };
        Ok(Frame { header, body, payloads })
    }

    /// Reads until the buffer holds `count` bytes.
    async fn fill(&mut self, count: usize) -> Result<(), ReceiveError> {
        while self.buffer.len() < count {
            let lacking = count - self.buffer.len();
            // The memory of frames that are gone is used again; that of frames still looked at is left to them.
            if self.buffer.capacity() - self.buffer.len() < lacking.max(READ_BYTES / 16) {
                self.buffer.reserve(lacking.max(READ_BYTES));
            }
            let read = self.read.read_buf(&mut self.buffer).await?;
            self.count(read);
            match (read, self.buffer.is_empty()) {
                (0, true) => return Err(ReceiveError::Closed),
                (0, false) => return Err(io::Error::from(io::ErrorKind::UnexpectedEof).into()),
                _ => {}
            }
        }
        Ok(())
    }

    /// Payloads, all in one buffer of their own: page-aligned and from a pool where they are large, so that they can go to
    /// a disk as they are, and nothing small that came beside is kept alive with them.
    async fn payloads(&mut self, lengths: &[usize]) -> Result<Vec<Bytes>, ReceiveError> {
        let total = lengths.iter().sum();
        let mut memory = IoBuffer::new(total);
        let whole = &mut memory.bytes_mut()[..total];
        let mut have = self.buffer.len().min(total);
        self.buffer.copy_to_slice(&mut whole[..have]);
        while have < total {
            let read = self.read.read(&mut whole[have..]).await?;
            if read == 0 {
                return Err(io::Error::from(io::ErrorKind::UnexpectedEof).into());
            }
            self.count(read);
            have += read;
        }
        let mut whole = memory.into_bytes(total);
        Ok(lengths.iter().map(|length| whole.split_to(*length)).collect())
    }

    fn count(&self, bytes: usize) {
        for count in self.counts {
            count.fetch_add(bytes as u64, Ordering::Relaxed);
        }
    }
}
