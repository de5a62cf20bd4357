//! What goes over a connection between nodes, as bytes: `docs/format-network.md`, *Frames*. Pure.

use bytes::Bytes;
use protocol::payload::PAYLOAD_COUNT_MAX;

/// The length of a header.
pub const HEADER_BYTES: usize = 32;
/// The longest body.
pub const BODY_BYTES_MAX: usize = 8 << 20;
/// The most that all payloads of a frame may hold.
pub const PAYLOAD_BYTES_MAX: usize = 8 << 20;

/// What a frame is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// A call.
    Request {
        /// How many bytes of answer the caller expects beyond a few.
        room: u32,
    },
    /// The answer to one.
    Answer,
    /// No answer comes.
    Refusal(Refusal),
    /// Are you there?
    Ping,
    /// Yes.
    Pong,
    /// The sender makes no more calls here.
    Bye,
}

/// Why no answer comes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Refusal {
    /// Nobody listens.
    #[error("nobody listens on that port")]
    NoPort,
    /// The request makes no sense.
    #[error("the request does not decode")]
    Garbled,
    /// The answer does not fit a frame.
    #[error("the answer is larger than a frame")]
    TooLarge,
    /// The handler did not come to an end.
    #[error("the handler failed")]
    Failed,
}

/// The fixed part of a frame.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Header {
    /// What it is.
    pub kind: Kind,
    /// The part that is called.
    pub port: u16,
    /// The caller's number for the call.
    pub call: u64,
    /// How long the body is.
    pub body_bytes: usize,
    /// How many payloads there are.
    pub payload_count: usize,
    /// How much they hold together.
    pub payload_bytes: usize,
}

/// Why bytes are no frame.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum FrameError {
    /// Of no kind that there is.
    #[error("a frame of unknown kind {0}")]
    Kind(u8),
    /// A refusal for no reason that there is.
    #[error("a refusal for an unknown reason {0}")]
    Reason(u8),
    /// Something stands where nothing may.
    #[error("a frame with something where it has nothing")]
    NotZero,
    /// Longer than any.
    #[error("a frame longer than any may be")]
    TooLong,
    /// The lengths of payloads contradict each other.
    #[error("a frame whose lengths do not add up")]
    Lengths,
}

impl Header {
    /// A frame without body.
    pub fn bare(kind: Kind, port: u16, call: u64) -> Header {
        Header { kind, port, call, body_bytes: 0, payload_count: 0, payload_bytes: 0 }
    }

    /// How much comes before the payloads, behind the header.
    pub fn head_bytes(&self) -> usize {
        self.body_bytes + 4 * self.payload_count
    }

    /// The whole frame.
    pub fn frame_bytes(&self) -> usize {
        HEADER_BYTES + self.head_bytes() + self.payload_bytes
    }

    /// As it goes over the wire.
    pub fn encode(&self) -> [u8; HEADER_BYTES] {
        let (kind, reason, room) = match self.kind {
            Kind::Request { room } => (1, 0, room),
            Kind::Answer => (2, 0, 0),
            Kind::Refusal(refusal) => (3, reason(refusal), 0),
            Kind::Ping => (4, 0, 0),
            Kind::Pong => (5, 0, 0),
            Kind::Bye => (6, 0, 0),
        };
        let mut bytes = [0; HEADER_BYTES];
        (bytes[0], bytes[1]) = (kind, reason);
        bytes[2..4].copy_from_slice(&self.port.to_le_bytes());
        bytes[4..6].copy_from_slice(&(self.payload_count as u16).to_le_bytes());
        bytes[8..16].copy_from_slice(&self.call.to_le_bytes());
        bytes[16..20].copy_from_slice(&(self.body_bytes as u32).to_le_bytes());
        bytes[20..24].copy_from_slice(&(self.payload_bytes as u32).to_le_bytes());
        bytes[24..28].copy_from_slice(&room.to_le_bytes());
        bytes
    }

    /// What a peer sent.
    pub fn decode(bytes: &[u8; HEADER_BYTES]) -> Result<Header, FrameError> {
        let four = |at: usize| u32::from_le_bytes([bytes[at], bytes[at + 1], bytes[at + 2], bytes[at + 3]]);
        let two = |at: usize| u16::from_le_bytes([bytes[at], bytes[at + 1]]);
        let room = four(24);
        let kind = match bytes[0] {
            1 => Kind::Request { room },
            2 => Kind::Answer,
            3 => Kind::Refusal(refusal(bytes[1])?),
            4 => Kind::Ping,
            5 => Kind::Pong,
            6 => Kind::Bye,
            other => return Err(FrameError::Kind(other)),
        };
        let header = Header {
            kind,
            port: two(2),
            call: u64::from(four(8)) | u64::from(four(12)) << 32,
            body_bytes: four(16) as usize,
            payload_count: usize::from(two(4)),
            payload_bytes: four(20) as usize,
        };
        if header.body_bytes > BODY_BYTES_MAX
            || header.payload_count > PAYLOAD_COUNT_MAX
            || header.payload_bytes > PAYLOAD_BYTES_MAX
        {
            return Err(FrameError::TooLong);
        }
        // What is written again the same has nothing where it means nothing.
        let canonical = header.encode() == *bytes;
        let carries = matches!(kind, Kind::Request { .. } | Kind::Answer) || header.frame_bytes() == HEADER_BYTES;
        let calls = !matches!(kind, Kind::Ping | Kind::Pong | Kind::Bye) || (header.port, header.call) == (0, 0);
        if canonical && carries && calls { Ok(header) } else { Err(FrameError::NotZero) }
    }

    /// The lengths of the payloads, which add up.
    pub fn payload_lengths(&self, table: &[u8]) -> Result<Vec<usize>, FrameError> {
        let lengths =
            table.chunks_exact(4).map(|four| u32::from_le_bytes([four[0], four[1], four[2], four[3]]) as usize);
        let lengths: Vec<usize> = lengths.collect();
        // At most 1024 numbers below 2^32: the sum does not overflow.
        let adds_up = lengths.iter().sum::<usize>() == self.payload_bytes && lengths.len() == self.payload_count;
        if adds_up && !lengths.contains(&0) { Ok(lengths) } else { Err(FrameError::Lengths) }
    }
}

/// A frame that came.
#[derive(Debug)]
pub struct Frame {
    /// Its header.
    pub header: Header,
    /// The encoded message.
    pub body: Bytes,
    /// What came beside it.
    pub payloads: Vec<Bytes>,
}

/// A frame to be sent.
#[derive(Debug)]
pub struct Outgoing {
    /// Header, body and table.
    pub head: Vec<u8>,
    /// What goes behind.
    pub payloads: Vec<Bytes>,
}

impl Outgoing {
    /// A frame without body.
    pub fn bare(kind: Kind, port: u16, call: u64) -> Outgoing {
        Outgoing { head: Header::bare(kind, port, call).encode().to_vec(), payloads: Vec::new() }
    }

    /// How long it is.
    pub fn bytes(&self) -> usize {
        self.head.len() + self.payloads.iter().map(Bytes::len).sum::<usize>()
    }
}

fn reason(refusal: Refusal) -> u8 {
    match refusal {
        Refusal::NoPort => 1,
        Refusal::Garbled => 2,
        Refusal::TooLarge => 3,
        Refusal::Failed => 4,
    }
}

fn refusal(reason: u8) -> Result<Refusal, FrameError> {
    match reason {
        1 => Ok(Refusal::NoPort),
        2 => Ok(Refusal::Garbled),
        3 => Ok(Refusal::TooLarge),
        4 => Ok(Refusal::Failed),
        other => Err(FrameError::Reason(other)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const HEADER: Header = Header {
        kind: Kind::Request { room: 0x0102_0304 },
        port: 0x0506,
        call: 0x0708_090a_0b0c_0d0e,
        body_bytes: 0x000f_1011,
        payload_count: 0x0112,
        payload_bytes: 0x0013_1415,
    };

    #[test]
    fn a_header_is_laid_out_as_the_page_says() {
        let expected = [
            1, 0, 6, 5, 0x12, 1, 0, 0, 14, 13, 12, 11, 10, 9, 8, 7, 0x11, 0x10, 0xf, 0, 0x15, 0x14, 0x13, 0, 4, 3, 2,
            1, 0, 0, 0, 0,
        ];
        assert_eq!(HEADER.encode(), expected);
        assert_eq!(Header::decode(&expected), Ok(HEADER));
    }

    #[test]
    fn headers_without_a_body_are_read_back() {
        let refusals = [Refusal::NoPort, Refusal::Garbled, Refusal::TooLarge, Refusal::Failed];
        for kind in refusals.map(Kind::Refusal).into_iter().chain([Kind::Answer]) {
            let header = Header::bare(kind, 3, 9);
            assert_eq!(Header::decode(&header.encode()), Ok(header));
        }
        for kind in [Kind::Ping, Kind::Pong, Kind::Bye] {
            assert_eq!(Header::decode(&Header::bare(kind, 0, 0).encode()), Ok(Header::bare(kind, 0, 0)));
            assert_eq!(Header::decode(&Header::bare(kind, 0, 1).encode()), Err(FrameError::NotZero));
        }
    }

    #[test]
    fn rubbish_is_no_header() {
        let with = |at: usize, byte: u8| {
            let mut bytes = HEADER.encode();
            bytes[at] = byte;
            Header::decode(&bytes)
        };
        assert_eq!(with(0, 0), Err(FrameError::Kind(0)));
        assert_eq!(with(0, 7), Err(FrameError::Kind(7)));
        assert_eq!(with(0, 2), Err(FrameError::NotZero), "an answer has no room");
        assert_eq!(with(0, 3), Err(FrameError::Reason(0)));
        for at in [1, 6, 7, 28, 31] {
            assert_eq!(with(at, 1), Err(FrameError::NotZero));
        }
        for (at, byte) in [(5, 5), (19, 1), (23, 1)] {
            assert_eq!(with(at, byte), Err(FrameError::TooLong));
        }
    }

    #[test]
    fn lengths_of_payloads_must_add_up() {
        let header = Header { payload_count: 2, payload_bytes: 7, ..HEADER };
        let table = |lengths: &[u32]| lengths.iter().flat_map(|length| length.to_le_bytes()).collect::<Vec<u8>>();
        assert_eq!(header.payload_lengths(&table(&[3, 4])), Ok(vec![3, 4]));
        for bad in [&[3, 5][..], &[7, 0], &[7], &[3, 3, 1], &[u32::MAX, 8]] {
            assert_eq!(header.payload_lengths(&table(bad)), Err(FrameError::Lengths));
        }
    }
}
