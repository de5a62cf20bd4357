//! Long byte strings of messages, which travel beside the encoding instead of in it.
//!
//! A field marked `#[serde(with = "payload")]`, or `payload::parts` for several, is encoded like any byte string, except
//! inside [`beside`]: there long ones are set aside, uncopied, and only their number is written. Inside [`among`] such
//! numbers are read back as slices of what came beside. Disk formats are encoded outside of both and know nothing of it.
//!
//! The scope is the thread's: serde hands no context to a field, and encoding never leaves its thread.

use std::cell::RefCell;

use bytes::Bytes;
use serde::de::{Deserialize, Deserializer, Error};
use serde::ser::{Serialize, Serializer};

/// From this length on a byte string is set aside: below, copying costs less than one more piece to send.
pub const PAYLOAD_BYTES_MIN: usize = 4096;
/// At most so many are set aside of one message; further ones are encoded in place.
pub const PAYLOAD_COUNT_MAX: usize = 1024;

thread_local! {
    static SCOPE: RefCell<Scope> = const { RefCell::new(Scope::Plain) };
}

/// How byte strings are encoded and decoded on this thread now.
#[derive(Default)]
enum Scope {
    /// As everywhere: in place.
    #[default]
    Plain,
    /// Encoding for a peer: long ones go here.
    Setting(Vec<Bytes>),
    /// Decoding what a peer sent: these came beside, and are taken in order.
    Taking(std::vec::IntoIter<Bytes>, u32),
}

/// Ends the scope however its body ends, so that no disk format is ever written inside it.
struct Entered;

impl Entered {
    fn enter(scope: Scope) -> Entered {
        let outside = SCOPE.with_borrow(|scope| matches!(scope, Scope::Plain));
        assert!(outside, "a message is encoded within no other message");
        SCOPE.set(scope);
        Entered
    }
}

impl Drop for Entered {
    fn drop(&mut self) {
        SCOPE.set(Scope::Plain);
    }
}

/// Runs `encode`, which must encode one message, and returns the byte strings that were set aside.
pub fn beside<T>(encode: impl FnOnce() -> T) -> (T, Vec<Bytes>) {
    let _entered = Entered::enter(Scope::Setting(Vec::new()));
    let encoded = encode();
    match SCOPE.take() {
        Scope::Setting(set_aside) => (encoded, set_aside),
        _ => unreachable!("scopes do not change within each other"),
    }
}

/// Runs `decode`, which must decode one message, with the byte strings that came beside it. Returns how many of them
/// the message did not mention.
pub fn among<T>(payloads: Vec<Bytes>, decode: impl FnOnce() -> T) -> (T, usize) {
    let _entered = Entered::enter(Scope::Taking(payloads.into_iter(), 0));
    let decoded = decode();
    match SCOPE.take() {
        Scope::Taking(left, _) => (decoded, left.len()),
        _ => unreachable!("scopes do not change within each other"),
    }
}

/// Where a byte string of a message for a peer is.
#[derive(serde::Serialize, serde::Deserialize)]
enum Placed {
    /// Here.
    Inside(Bytes),
    /// The payload with this number.
    Beside(u32),
}

/// Encodes one byte string.
pub fn serialize<S: Serializer>(bytes: &Bytes, serializer: S) -> Result<S::Ok, S::Error> {
    let placed = SCOPE.with_borrow_mut(|scope| match scope {
        Scope::Plain | Scope::Taking(..) => None,
        Scope::Setting(aside) if bytes.len() >= PAYLOAD_BYTES_MIN && aside.len() < PAYLOAD_COUNT_MAX => {
            aside.push(bytes.clone());
            Some(Placed::Beside(aside.len() as u32 - 1))
        }
        Scope::Setting(_) => Some(Placed::Inside(bytes.clone())),
    });
    match placed {
        Some(placed) => placed.serialize(serializer),
        None => bytes.serialize(serializer),
    }
}

/// Decodes one byte string.
pub fn deserialize<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Bytes, D::Error> {
    if !SCOPE.with_borrow(|scope| matches!(scope, Scope::Taking(..))) {
        return Bytes::deserialize(deserializer);
    }
    match Placed::deserialize(deserializer)? {
        Placed::Inside(bytes) => Ok(bytes),
        Placed::Beside(number) => {
            take(number).ok_or_else(|| D::Error::custom("payloads are named in order, each once"))
        }
    }
}

fn take(number: u32) -> Option<Bytes> {
    SCOPE.with_borrow_mut(|scope| match scope {
        Scope::Taking(payloads, next) if *next == number => {
            *next += 1;
            payloads.next()
        }
        _ => None,
    })
}

/// For a field of several byte strings: `#[serde(with = "payload::parts")]`.
pub mod parts {
    use bytes::Bytes;
    use serde::de::{Deserialize, Deserializer};
    use serde::ser::Serializer;

    #[derive(serde::Serialize, serde::Deserialize)]
    #[serde(transparent)]
    struct Part(#[serde(with = "super")] Bytes);

    /// Encodes them as a sequence.
    pub fn serialize<S: Serializer>(parts: &[Bytes], serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_seq(parts.iter().map(|part| Part(part.clone())))
    }

    /// Decodes a sequence.
    pub fn deserialize<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Vec<Bytes>, D::Error> {
        let parts = Vec::<Part>::deserialize(deserializer)?;
        Ok(parts.into_iter().map(|part| part.0).collect())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[derive(Debug, PartialEq, serde::Serialize, serde::Deserialize)]
    struct Message {
        before: u8,
        #[serde(with = "super")]
        one: Bytes,
        #[serde(with = "super::parts")]
        several: Vec<Bytes>,
        after: u8,
    }

    fn message() -> Message {
        let (short, long) = (Bytes::from_static(b"short"), Bytes::from(vec![7; PAYLOAD_BYTES_MIN]));
        Message { before: 1, one: long.clone(), several: vec![short, long.clone(), long.slice(1..)], after: 2 }
    }

    fn decode(encoded: &[u8], payloads: Vec<Bytes>) -> (Result<Message, postcard::Error>, usize) {
        among(payloads, || postcard::from_bytes(encoded))
    }

    #[test]
    fn outside_of_a_scope_byte_strings_are_encoded_as_ever() {
        let message = message();
        let plain = (message.before, &message.one, &message.several, message.after);
        let encoded = postcard::to_stdvec(&message).unwrap();
        assert_eq!(encoded, postcard::to_stdvec(&plain).unwrap());
        assert_eq!(postcard::from_bytes::<Message>(&encoded).unwrap(), message);
    }

    #[test]
    fn long_byte_strings_travel_beside_uncopied() {
        let message = message();
        let (encoded, payloads) = beside(|| postcard::to_stdvec(&message).unwrap());
        assert_eq!(payloads.len(), 2);
        assert!(encoded.len() < PAYLOAD_BYTES_MIN + 32);
        assert_eq!(payloads[0].as_ptr(), message.one.as_ptr());
        let (decoded, left) = decode(&encoded, payloads.clone());
        let decoded = decoded.unwrap();
        assert_eq!((&decoded, left), (&message, 0));
        assert_eq!(decoded.several[1].as_ptr(), payloads[1].as_ptr());
    }

    #[test]
    fn payloads_that_are_not_named_in_order_are_an_error() {
        let encode = |numbers: &[u32]| {
            let mut encoded = vec![1, 1];
            encoded.extend(postcard::to_stdvec(&numbers[0]).unwrap());
            encoded.push(numbers.len() as u8 - 1);
            numbers[1..]
                .iter()
                .for_each(|number| encoded.extend([vec![1], postcard::to_stdvec(number).unwrap()].concat()));
            encoded.push(2);
            encoded
        };
        let payloads = || vec![Bytes::from_static(b"a"), Bytes::from_static(b"b")];
        assert!(decode(&encode(&[0, 1]), payloads()).0.is_ok());
        assert_eq!(decode(&encode(&[0]), payloads()).1, 1, "one is left over");
        for bad in [&[1, 0][..], &[0, 0], &[0, 2], &[0, 1, 2], &[u32::MAX]] {
            assert!(decode(&encode(bad), payloads()).0.is_err(), "{bad:?}");
        }
    }

    #[test]
    fn a_scope_ends_even_when_encoding_fails() {
        let failed = std::panic::catch_unwind(|| beside(|| panic!("on purpose")));
        assert!(failed.is_err());
        outside_of_a_scope_byte_strings_are_encoded_as_ever();
    }
}
