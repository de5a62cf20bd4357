//! Which messages each port speaks, and how they become frames. A new port is one more line in [`TONGUES`].
//!
//! Copies of a payload, from the sender's memory to the receiver's, counting what the processor moves:
//!
//! 1. TLS encrypts it from where it lies into its records (copy and encryption in one place, 16 KiB at a time).
//! 2. The kernel takes the records; 3. the kernel gives them back on the other machine.
//! 4. They move from the socket's buffer into TLS's, which decrypts in place; 5. out of it as plain text;
//! 6. into the buffer that the message then points into.
//!
//! Encoding and decoding copy none of it. 4 to 6 are the price of `rustls` as a stream; what they cost is measured in
//! `docs/decisions/0015-network.md`. At most the first 64 KiB that come in one piece with their header are copied once more.

use std::any::Any;

use bytes::Bytes;
use host::byways::BYWAY_PORT;
use host::{Envelope, Port};
use protocol::manager::{MANAGER_PORT, ManagerAnswer, ManagerRequest};
use protocol::payload;
use protocol::rebuild::{REBUILD_PORT, Refill, Refilled};
use protocol::registry::{CONSENSUS_PORT, ConsensusMessage, REGISTRY_PORT, RegistryAnswer, RegistryRequest};
use protocol::storage::{STORAGE_PORT, StorageAnswer, StorageRequest, ToTarget};
use protocol::token::{CLIENT_PORT, ClientAnswer, ClientRequest};
use serde::Serialize;
use serde::de::DeserializeOwned;

use super::frame::{BODY_BYTES_MAX, Frame, HEADER_BYTES, Header, Kind, Outgoing, PAYLOAD_BYTES_MAX};
use super::hello::Lane;
use super::passing;

/// What the ports of a node speak.
pub static TONGUES: &[Tongue] = &[
    Tongue::of::<ToTarget, StorageAnswer>(STORAGE_PORT).expecting(storage_room),
    Tongue::of::<RegistryRequest, RegistryAnswer>(REGISTRY_PORT),
    Tongue::of::<ManagerRequest, ManagerAnswer>(MANAGER_PORT),
    Tongue::of::<ConsensusMessage, ConsensusMessage>(CONSENSUS_PORT),
    Tongue::of::<ClientRequest, ClientAnswer>(CLIENT_PORT),
    Tongue::of::<Refill, Refilled>(REBUILD_PORT),
    Tongue::passing(BYWAY_PORT, &TONGUES),
];

/// Calls up to this weight go on the small lane.
pub const SMALL_WEIGHT_MAX: usize = 64 << 10;
/// What the lightest call weighs: bounds how many are under way.
const WEIGHT_MIN: usize = 256;

/// Whatever may be said.
trait Message: Any + Send + Serialize + DeserializeOwned {}
impl<T: Any + Send + Serialize + DeserializeOwned> Message for T {}

/// The messages of one port.
#[derive(Clone, Copy)]
pub struct Tongue {
    port: u16,
    request: Codec,
    answer: Codec,
    room: fn(&Tongue, &(dyn Any + Send)) -> u32,
    /// What the ports speak for which messages are passed on here.
    passes: Option<&'static &'static [Tongue]>,
}

/// A message's bytes, within the scope of its frame's payloads.
#[derive(Clone, Copy)]
struct Codec {
    write: fn(&Tongue, &(dyn Any + Send), Vec<u8>) -> Vec<u8>,
    read: fn(&Tongue, &[u8]) -> Option<Envelope>,
}

impl Tongue {
    /// A port that is asked `Q` and answers `A`.
    #[allow(private_bounds)]
    pub const fn of<Q: Message, A: Message>(port: u16) -> Tongue {
        let request = Codec { write: write::<Q>, read: read::<Q> };
        Tongue { port, request, answer: Codec { write: write::<A>, read: read::<A> }, room: |_, _| 0, passes: None }
    }

    /// The port on which calls for others are passed on, whose messages those of other ports are within.
    pub const fn passing(port: u16, others: &'static &'static [Tongue]) -> Tongue {
        let request = Codec { write: passing::write_ask, read: passing::read_ask };
        let answer = Codec { write: passing::write_told, read: passing::read_told };
        Tongue { port, request, answer, room: passing::room, passes: Some(others) }
    }

    /// The same, where `room` tells how many bytes of answer a request is for: such answers are large.
    pub const fn expecting(self, room: fn(&Tongue, &(dyn Any + Send)) -> u32) -> Tongue {
        Tongue { room, ..self }
    }

    /// Who speaks it.
    pub fn port(&self) -> Port {
        Port(self.port)
    }

    /// A request as a frame.
    pub fn encode_request(&self, request: &Envelope) -> Result<Encoded, EncodeError> {
        let room = self.room(request.peek());
        let encoded = self.encode(self.request, request.peek(), Kind::Request { room })?;
        Ok(Encoded { is_urgent: request.is_urgent(), is_pass: passing::is_pass(request.peek()), ..encoded })
    }

    /// An answer as a frame.
    pub fn encode_answer(&self, answer: &Envelope) -> Result<Encoded, EncodeError> {
        self.encode(self.answer, answer.peek(), Kind::Answer)
    }

    /// The request in a frame, if it holds one.
    pub fn decode_request(&self, frame: Frame) -> Option<Envelope> {
        self.decode(self.request, frame)
    }

    /// The answer in a frame, if it holds one.
    pub fn decode_answer(&self, frame: Frame) -> Option<Envelope> {
        self.decode(self.answer, frame)
    }

    fn encode(&self, codec: Codec, message: &(dyn Any + Send), kind: Kind) -> Result<Encoded, EncodeError> {
        let space = vec![0; HEADER_BYTES];
        let (mut head, payloads) = payload::beside(|| (codec.write)(self, message, space));
        let body_bytes = head.len() - HEADER_BYTES;
        let payload_bytes = payloads.iter().map(Bytes::len).sum();
        if body_bytes > BODY_BYTES_MAX || payload_bytes > PAYLOAD_BYTES_MAX {
            return Err(EncodeError::TooLarge { body_bytes, payload_bytes });
        }
        payloads.iter().for_each(|payload| head.extend((payload.len() as u32).to_le_bytes()));
        let header =
            Header { kind, port: self.port, call: 0, body_bytes, payload_count: payloads.len(), payload_bytes };
        Ok(Encoded { header, frame: Outgoing { head, payloads }, is_urgent: false, is_pass: false })
    }

    fn decode(&self, codec: Codec, frame: Frame) -> Option<Envelope> {
        let (decoded, left) = payload::among(frame.payloads, || (codec.read)(self, &frame.body));
        decoded.filter(|_| left == 0)
    }

    // ---- messages within another ----

    /// What the port speaks for which a message is passed on.
    pub(super) fn of_port(&self, port: Port) -> Option<&'static Tongue> {
        let mut others = self.passes?.iter();
        others.find(|tongue| tongue.port() == port && tongue.passes.is_none())
    }

    /// How many bytes of answer a request is for.
    pub(super) fn room(&self, request: &(dyn Any + Send)) -> u32 {
        (self.room)(self, request)
    }

    /// Adds a request's bytes.
    pub(super) fn write_request(&self, request: &Envelope, bytes: Vec<u8>) -> Vec<u8> {
        (self.request.write)(self, request.peek(), bytes)
    }

    /// Adds an answer's bytes.
    pub(super) fn write_answer(&self, answer: &Envelope, bytes: Vec<u8>) -> Vec<u8> {
        (self.answer.write)(self, answer.peek(), bytes)
    }

    /// The request that these bytes are.
    pub(super) fn read_request(&self, bytes: &[u8]) -> Option<Envelope> {
        (self.request.read)(self, bytes)
    }

    /// The answer that these bytes are.
    pub(super) fn read_answer(&self, bytes: &[u8]) -> Option<Envelope> {
        (self.answer.read)(self, bytes)
    }
}

/// Why a message cannot be sent.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum EncodeError {
    /// It does not fit a frame.
    #[error("a message of {body_bytes} bytes with {payload_bytes} bytes beside it is larger than any may be")]
    TooLarge {
        /// How long its encoding is.
        body_bytes: usize,
        /// How much comes beside.
        payload_bytes: usize,
    },
}

/// A message as a frame that lacks nothing but the number of its call.
#[derive(Debug)]
pub struct Encoded {
    header: Header,
    frame: Outgoing,
    is_urgent: bool,
    is_pass: bool,
}

impl Encoded {
    /// The frame of this call.
    pub fn numbered(mut self, call: u64) -> Outgoing {
        self.header.call = call;
        self.frame.head[..HEADER_BYTES].copy_from_slice(&self.header.encode());
        self.frame
    }

    /// The port that it is for.
    pub fn port(&self) -> u16 {
        self.header.port
    }

    /// What it weighs while it is under way.
    pub fn weight(&self) -> usize {
        weight(&self.header)
    }

    /// Where it goes.
    pub fn lane(&self) -> Lane {
        match self.is_urgent {
            _ if self.weight() <= SMALL_WEIGHT_MAX => Lane::Small,
            _ if self.is_pass => Lane::Around,
            true => Lane::Urgent,
            false => Lane::Bulk,
        }
    }
}

/// What a call weighs while it is under way: its request and the answer that it expects. Both ends count alike.
pub fn weight(request: &Header) -> usize {
    let room = match request.kind {
        Kind::Request { room } => room as usize,
        _ => 0,
    };
    (request.frame_bytes() + room).max(WEIGHT_MIN)
}

fn write<T: Message>(tongue: &Tongue, message: &(dyn Any + Send), bytes: Vec<u8>) -> Vec<u8> {
    let port = tongue.port;
    let message: &T = message.downcast_ref().unwrap_or_else(|| panic!("port {port} does not speak of such things"));
    let written = postcard::to_extend(message, bytes);
    written.expect("messages have no form that cannot be encoded, and memory is all that could lack")
}

fn read<T: Message>(_: &Tongue, bytes: &[u8]) -> Option<Envelope> {
    match postcard::take_from_bytes::<T>(bytes) {
        Ok((message, [])) => Some(Envelope::new(message)),
        _ => None,
    }
}

/// How many bytes a target will send.
fn storage_room(_: &Tongue, request: &(dyn Any + Send)) -> u32 {
    match request.downcast_ref::<ToTarget>().map(|request| &request.request) {
        // Whole blocks, each with its checksum.
        Some(StorageRequest::Read { length, .. }) => length.saturating_add(length / 512).saturating_add(3 * 4096),
        Some(StorageRequest::List { limit, .. }) => limit.saturating_mul(64),
        _ => 0,
    }
}

#[cfg(test)]
pub(super) mod tests {
    use super::*;
    use protocol::address::Position;
    use protocol::fragment::{FragmentHeader, FragmentId, Geometry, Part};
    use protocol::id::{FenceEpoch, GroupId, LogId, RunNumber, StripeNumber, TargetId};
    use protocol::storage::{Append, Durability, Room};

    fn fragment() -> FragmentId {
        FragmentId { log: LogId(1), stripe: StripeNumber(2), run: RunNumber(0), part: Part::Data(0) }
    }

    fn append(parts: Vec<Bytes>) -> Envelope {
        let geometry = Geometry { data: 2, parity: 1, fragment_size: 1 << 20 };
        let header = FragmentHeader {
            id: fragment(),
            group: GroupId(0),
            geometry,
            mark: Position::START,
            previous_end: 0,
            complete_below: StripeNumber(0),
            data_lengths: Vec::new(),
        };
        let (fence, durability, room) = (FenceEpoch(1), Durability::Disk, Room::Data);
        let append = Append { header, fence, offset: 0, parts, checksums: vec![1, 2], durability, room };
        Envelope::new(ToTarget { target: TargetId(0), request: StorageRequest::Append(append) })
    }

    /// The frame as it comes when it went out as `encoded`.
    pub fn received(encoded: Encoded) -> Frame {
        let outgoing = encoded.numbered(7);
        let header = Header::decode(outgoing.head[..HEADER_BYTES].try_into().unwrap()).unwrap();
        let body = Bytes::from(outgoing.head).slice(HEADER_BYTES..HEADER_BYTES + header.body_bytes);
        Frame { header, body, payloads: outgoing.payloads }
    }

    #[test]
    fn an_append_arrives_as_it_was_and_its_bytes_are_never_copied() {
        let parts = vec![Bytes::from(vec![1; 100]), Bytes::from(vec![2; 1 << 20])];
        let encoded = TONGUES[0].encode_request(&append(parts.clone())).unwrap();
        assert!(encoded.frame.head.len() < 300);
        assert_eq!(encoded.lane(), Lane::Bulk);
        let frame = received(encoded);
        assert_eq!((frame.header.call, frame.header.port), (7, STORAGE_PORT));
        let decoded: ToTarget = TONGUES[0].decode_request(frame).unwrap().open().unwrap();
        let StorageRequest::Append(append) = decoded.request else { panic!("it was an append") };
        assert_eq!(append.parts, parts);
        assert_eq!(append.parts[1].as_ptr(), parts[1].as_ptr());
    }

    #[test]
    fn a_small_question_with_a_large_answer_goes_with_the_large_ones() {
        let read = |length| {
            let request = StorageRequest::Read { id: fragment(), offset: 0, length };
            Envelope::new(ToTarget { target: TargetId(0), request })
        };
        assert_eq!(TONGUES[0].encode_request(&read(4096)).unwrap().lane(), Lane::Small);
        assert_eq!(TONGUES[0].encode_request(&read(1 << 20)).unwrap().lane(), Lane::Bulk);
        assert_eq!(TONGUES[0].encode_request(&read(4096).urgent()).unwrap().lane(), Lane::Small);
        assert_eq!(TONGUES[0].encode_request(&read(1 << 20).urgent()).unwrap().lane(), Lane::Urgent);
        assert!(TONGUES[0].encode_request(&read(u32::MAX)).is_ok());
    }

    #[test]
    fn what_is_more_or_less_than_a_message_does_not_decode() {
        let frame = || received(TONGUES[0].encode_request(&append(vec![Bytes::from(vec![2; 5000])])).unwrap());
        assert!(TONGUES[0].decode_request(frame()).is_some());
        let mut more = frame();
        more.body = [&more.body[..], &[0]].concat().into();
        let mut less = frame();
        less.body.truncate(less.body.len() - 1);
        let mut bare = frame();
        bare.payloads.clear();
        let mut loaded = frame();
        loaded.payloads.push(Bytes::from_static(b"x"));
        for bad in [more, less, bare, loaded] {
            assert!(TONGUES[0].decode_request(bad).is_none());
        }
    }

    #[test]
    fn what_does_not_fit_a_frame_is_not_sent() {
        let huge = append(vec![Bytes::from(vec![0; PAYLOAD_BYTES_MAX]), Bytes::from(vec![0; 4096])]);
        assert!(matches!(TONGUES[0].encode_request(&huge), Err(EncodeError::TooLarge { .. })));
    }

    #[test]
    fn each_port_is_spoken_once() {
        let mut ports: Vec<_> = TONGUES.iter().map(Tongue::port).collect();
        ports.dedup();
        assert_eq!(ports.len(), TONGUES.len());
        assert!(ports.is_sorted());
    }
}
