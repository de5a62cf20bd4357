//! Requests over io_uring (Linux 6.14): what lies where in an entry's memory and in a command. Nothing here asks the kernel.
//!
//! # How requests come
//!
//! 1. Agree on OVER_IO_URING in the handshake. From then on the kernel keeps all requests until every processor's queue has an
//!    entry; only FORGET, INTERRUPT and what was sent before still come by the device.
//! 2. An *entry* is memory for one request: a head of [`HEAD_BYTES`], and room for the largest payload. REGISTER gives one to
//!    a queue. Each command is a `IORING_OP_URING_CMD` on the device, in a ring of 128-byte submissions, with the two ranges
//!    as an array of two iovecs in `addr` and `len`, and [`command`] behind.
//! 3. A command is completed when the entry holds a request: [`request`]. It holds it until it is answered.
//! 4. [`answer`] writes the answer where the request was. COMMIT_AND_FETCH gives it to the kernel, and the entry with it; it
//!    completes with the next request. There is no answering without fetching.
//! 5. A request goes to the queue of the processor that its caller runs on. Where no entry is free there it waits until one is
//!    **answered**: an entry that is registered later takes newer requests, and those that wait only once it is answered.
//! 6. A command cannot be taken back. When the thread that submitted it ends, what the kernel was about to put into its entry
//!    is answered with ECANCELED. So who leaves an entry to another process has it hold a request before, and says nothing to
//!    that: the other answers it, for the kernel remembers where it lies. A head that names no request ([`forget`]) before
//!    it is given away tells which entries hold one.
//!
//! Points 5 and 6 were tried on Linux 6.18.44.

use bytes::Bytes;

use crate::frame::Frame;
use crate::layout::Layout;
use crate::request::{Dialect, Malformed, Request};

/// Bytes of an entry's head: the header of the request or of the answer, the opcode's structure, and what was sent with it.
pub const HEAD_BYTES: usize = STATE_AT + 32;
/// Gives an entry to a queue.
pub const REGISTER: u32 = 1;
/// Answers the request in an entry, and gives it to the queue again.
pub const COMMIT_AND_FETCH: u32 = 2;

/// Bytes of the header in front of an answer.
const OUT_HEADER_BYTES: usize = 16;
const STRUCTURE_AT: usize = 128;
const STATE_AT: usize = 256;
const COMMIT_AT: usize = STATE_AT + 8;
const PAYLOAD_AT: usize = STATE_AT + 16;

/// The bytes behind a submission's first 48: which request is answered, 0 for none, in which queue.
pub fn command(commit: u64, queue: u16) -> [u8; 80] {
    let mut bytes = [0; 80];
    bytes[8..16].copy_from_slice(&commit.to_ne_bytes());
    bytes[16..18].copy_from_slice(&queue.to_ne_bytes());
    bytes
}

/// The name of the request that an entry holds; 0: it holds none.
pub fn commit(head: &[u8; HEAD_BYTES]) -> u64 {
    number(&mut &head[COMMIT_AT..])
}

/// The entry holds no request. Said before it is given to the kernel.
pub fn forget(head: &mut [u8; HEAD_BYTES]) {
    head[COMMIT_AT..COMMIT_AT + 8].fill(0);
}

/// How many bytes of the payload's room belong to the request.
pub fn payload_bytes(head: &[u8; HEAD_BYTES]) -> usize {
    number::<u32>(&mut &head[PAYLOAD_AT..]) as usize
}

/// The request that an entry holds. `payload` are as many bytes as [`payload_bytes`] says: the entry's own, or a copy of them
/// that outlives the answer.
pub fn request(head: &[u8; HEAD_BYTES], payload: Bytes, dialect: Dialect) -> Result<Request, Malformed> {
    let structure = Bytes::copy_from_slice(&head[STRUCTURE_AT..STATE_AT]);
    Request::parse_parts(&head[..STRUCTURE_AT], structure, payload, dialect)
}

/// Puts the answer where the request was.
///
/// # Panics
/// When it does not fit: no answer is longer than the largest payload.
pub fn answer(frame: &Frame, head: &mut [u8; HEAD_BYTES], room: &mut [u8]) {
    let (header, structure) = frame.head().split_at(OUT_HEADER_BYTES);
    head[..OUT_HEADER_BYTES].copy_from_slice(header);
    let mut filled = 0;
    for piece in std::iter::once(structure).chain(frame.payload().iter().map(|piece| &piece[..])) {
        room[filled..filled + piece.len()].copy_from_slice(piece);
        filled += piece.len();
    }
    assert_eq!(filled + OUT_HEADER_BYTES, frame.size(), "a frame is its head and its payload");
    let filled = u32::try_from(filled).expect("a payload is a few megabytes at most");
    head[PAYLOAD_AT..PAYLOAD_AT + 4].copy_from_slice(&filled.to_ne_bytes());
}

fn number<T: Layout>(bytes: &mut &[u8]) -> T {
    T::take(bytes).expect("the head has room for it")
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::abi::{InHeader, opcode};
    use crate::operation::{NodeId, Operation, Unique};
    use crate::reply;

    /// A head as the kernel fills it for a LOOKUP whose name is in the payload.
    fn lookup(unique: u64, payload: &[u8]) -> [u8; HEAD_BYTES] {
        let mut head = [0; HEAD_BYTES];
        let mut header = Vec::new();
        let len = (InHeader::SIZE + payload.len()) as u32;
        InHeader { len, opcode: opcode::LOOKUP, unique, nodeid: 1, ..InHeader::default() }.put(&mut header);
        head[..header.len()].copy_from_slice(&header);
        head[COMMIT_AT..COMMIT_AT + 8].copy_from_slice(&unique.to_ne_bytes());
        head[PAYLOAD_AT..PAYLOAD_AT + 4].copy_from_slice(&(payload.len() as u32).to_ne_bytes());
        head
    }

    #[test]
    fn an_entry_says_which_request_it_holds_until_it_is_forgotten() {
        let mut head = lookup(6, b"name\0");
        assert_eq!((commit(&head), payload_bytes(&head)), (6, 5));
        let request = request(&head, Bytes::from_static(b"name\0"), Dialect::default()).expect("it is a request");
        assert_eq!((request.unique, request.node), (Unique(6), NodeId(1)));
        assert_eq!(request.operation, Operation::Lookup { name: Bytes::from_static(b"name") });
        forget(&mut head);
        assert_eq!(commit(&head), 0);
    }

    #[test]
    fn an_answer_lies_where_the_kernel_looks_for_it() {
        let mut head = lookup(6, b"name\0");
        let mut room = [0xff; 8];
        let frame = reply::data(Unique(6), vec![Bytes::from_static(b"ab"), Bytes::from_static(b"cde")]);
        answer(&frame, &mut head, &mut room);
        assert_eq!(head[..16], frame.to_bytes()[..16]);
        assert_eq!((payload_bytes(&head), &room[..5]), (5, &b"abcde"[..]));
        assert_eq!(commit(&head), 6, "the request is named until the kernel has its answer");
    }

    #[test]
    fn a_command_names_request_and_queue_where_the_kernel_reads_them() {
        let bytes = command(0x0102, 7);
        assert_eq!((&bytes[..8], &bytes[8..10], &bytes[16..18]), (&[0; 8][..], &[2, 1][..], &[7, 0][..]));
        assert!(bytes[18..].iter().all(|&byte| byte == 0));
    }
}
