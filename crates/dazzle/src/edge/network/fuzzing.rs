//! A way in for fuzzers: everything that reads bytes of another machine.

use std::sync::atomic::AtomicU64;

use futures_util::FutureExt;

use crate::edge::trust::{NodeName, Token};

use super::frame::{Frame, Kind};
use super::hello::{Hello, VERSIONS};
use super::inbound::Inbound;
use super::join;
use super::wire::{TONGUES, weight};

/// A stream of frames, as a connection reads it. What decodes is encoded again and decodes to the same.
pub fn check_frames(mut bytes: &[u8]) {
    let received = AtomicU64::new(0);
    let mut inbound = Inbound::new(&mut bytes, [&received; 2]);
    while let Some(Ok(frame)) = inbound.next().now_or_never() {
        assert!(weight(&frame.header) >= frame.header.frame_bytes());
        check_message(frame);
    }
}

/// The first words of a connection, names in certificates, tokens and what machines say that want to join.
pub fn check_greetings(bytes: &[u8]) {
    if let Some(first) = bytes.first_chunk()
        && let Ok(hello) = Hello::decode(first, VERSIONS)
    {
        assert_eq!(hello.encode(), *first);
    }
    if let Ok(text) = std::str::from_utf8(bytes) {
        if let Some(name) = NodeName::parse(text) {
            assert_eq!(name.to_string(), text);
        }
        if let Ok(token) = text.parse::<Token>() {
            assert_eq!(token.to_string().parse(), Ok(token));
        }
    }
    let _ = join::hear(&mut &bytes[..]).now_or_never();
}

fn check_message(frame: Frame) {
    let Some(tongue) = TONGUES.iter().find(|tongue| tongue.port().0 == frame.header.port) else { return };
    let call = frame.header.call;
    let again = match frame.header.kind {
        Kind::Request { .. } => tongue.decode_request(frame).map(|request| tongue.encode_request(&request)),
        Kind::Answer => tongue.decode_answer(frame).map(|answer| tongue.encode_answer(&answer)),
        _ => return,
    };
    let Some(Ok(encoded)) = again else { return };
    let outgoing = encoded.numbered(call);
    let bytes = [&outgoing.head[..], &outgoing.payloads.concat()].concat();
    let (received, mut bytes) = (AtomicU64::new(0), &bytes[..]);
    let mut inbound = Inbound::new(&mut bytes, [&received; 2]);
    let frame = inbound.next().now_or_never().expect("all is there").expect("what is encoded is a frame");
    let decoded = match frame.header.kind {
        Kind::Request { .. } => tongue.decode_request(frame),
        _ => tongue.decode_answer(frame),
    };
    assert!(decoded.is_some(), "what is encoded decodes");
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    use crate::edge::network::frame::Header;

    proptest! {
        #[test]
        fn no_bytes_break_the_readers(bytes in prop::collection::vec(any::<u8>(), 0..300)) {
            check_frames(&bytes);
            check_greetings(&bytes);
        }

        #[test]
        fn no_body_breaks_the_readers(
            (answer, port, body) in (any::<bool>(), 1..8u16, prop::collection::vec(0..20u8, 0..200)),
            payloads in prop::collection::vec(1..50usize, 0..4),
        ) {
            let kind = if answer { Kind::Answer } else { Kind::Request { room: 0 } };
            let (body_bytes, payload_bytes) = (body.len(), payloads.iter().sum());
            let header = Header { kind, port, call: 1, body_bytes, payload_count: payloads.len(), payload_bytes };
            let mut bytes = [&header.encode()[..], &body].concat();
            payloads.iter().for_each(|length| bytes.extend((*length as u32).to_le_bytes()));
            bytes.resize(header.frame_bytes(), 7);
            check_frames(&bytes);
        }
    }
}
