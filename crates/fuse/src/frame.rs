//! What one `writev` to the device carries: a reply or a notification.
//!
//! Invariants:
//! 1. The length in the header is the length of all slices together; the kernel refuses a frame whose length is wrong
//!    and leaves its request waiting for ever.
//! 2. Payload is referred to, never copied, but for one case: more pieces than `writev` takes are joined.
//! 3. A frame is dropped once the kernel has it, and not before: whoever waits for that keeps a guard in it.

use std::fmt;
use std::sync::Arc;

use bytes::{Bytes, BytesMut};

use crate::abi::OutHeader;
use crate::layout::Layout;
use crate::operation::Unique;

/// Most slices of one `writev` (UIO_MAXIOV), less the one that holds the header.
const PIECES_MAX: usize = 1023;

/// A message to the kernel, ready to be written in one call.
#[derive(Clone)]
pub struct Frame {
    head: Vec<u8>,
    payload: Vec<Bytes>,
    guard: Option<Arc<dyn Send + Sync>>,
}

impl Frame {
    /// A frame whose header says `error` (a negated errno, or a notification's code), followed by what `body` appends
    /// and by the payload.
    pub(crate) fn new(unique: Unique, error: i32, body: impl FnOnce(&mut Vec<u8>), payload: Vec<Bytes>) -> Self {
        // Room for the longest usual reply: header, entry and open file.
        let mut head = Vec::with_capacity(160);
        let placeholder = OutHeader { len: 0, error, unique: unique.0 };
        placeholder.put(&mut head);
        body(&mut head);
        let mut frame = Self { head, payload: joined(payload), guard: None };
        let len = u32::try_from(frame.size()).expect("a frame holds at most max_write and a few hundred bytes");
        frame.head[..4].copy_from_slice(&len.to_ne_bytes());
        frame
    }

    /// The frame with a guard that is dropped when the kernel has it.
    pub(crate) fn guarded(self, guard: impl Send + Sync + 'static) -> Self {
        Self { guard: Some(Arc::new(guard)), ..self }
    }

    /// Whether it has one: then it is to be dropped as soon as the kernel has it.
    pub fn is_guarded(&self) -> bool {
        self.guard.is_some()
    }

    /// Its length in bytes; what `writev` must return.
    pub fn size(&self) -> usize {
        self.head.len() + self.payload.iter().map(Bytes::len).sum::<usize>()
    }

    /// The header of 16 bytes with the opcode's structure behind it.
    pub fn head(&self) -> &[u8] {
        &self.head
    }

    /// The bytes that follow the head, in order; none of them is empty.
    pub fn payload(&self) -> &[Bytes] {
        &self.payload
    }

    /// All slices in the order of `writev`, at most 1024.
    pub fn slices(&self) -> impl Iterator<Item = &[u8]> {
        std::iter::once(self.head.as_slice()).chain(self.payload.iter().map(|piece| &piece[..]))
    }

    /// The message as one piece: for tests and traces, since it copies.
    pub fn to_bytes(&self) -> Vec<u8> {
        self.slices().flatten().copied().collect()
    }
}

impl PartialEq for Frame {
    fn eq(&self, other: &Self) -> bool {
        (&self.head, &self.payload) == (&other.head, &other.payload)
    }
}

impl Eq for Frame {}

impl fmt::Debug for Frame {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Frame").field("head", &self.head).field("payload", &self.payload).finish_non_exhaustive()
    }
}

/// Drops empty pieces, which would use up slots of `writev`, and joins the rest if there are too many.
fn joined(mut payload: Vec<Bytes>) -> Vec<Bytes> {
    payload.retain(|piece| !piece.is_empty());
    if payload.len() <= PIECES_MAX {
        return payload;
    }
    let mut whole = BytesMut::with_capacity(payload.iter().map(Bytes::len).sum());
    for piece in &payload {
        whole.extend_from_slice(piece);
    }
    vec![whole.freeze()]
}
