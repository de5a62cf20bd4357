//! The first words on a connection between nodes: `docs/format-network.md`, *Hello*. Pure.

use std::ops::RangeInclusive;

/// The versions of the page that this program speaks.
pub const VERSIONS: RangeInclusive<u16> = 17..=17;
/// The length of a hello.
pub const HELLO_BYTES: usize = 32;
const MAGIC: [u8; 8] = *b"DZNET\0\0\0";

/// What a connection carries.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Lane {
    /// Small calls, which nothing delays.
    Small,
    /// Large ones.
    Bulk,
    /// Large ones that many wait for, which do not wait behind others.
    Urgent,
    /// Large ones that are to be passed on. Who does not answer them holds up no others.
    Around,
}

impl Lane {
    /// All there are.
    pub const ALL: [Lane; 4] = [Lane::Small, Lane::Bulk, Lane::Urgent, Lane::Around];

    /// Its number.
    pub fn number(self) -> u8 {
        match self {
            Lane::Small => 0,
            Lane::Bulk => 1,
            Lane::Urgent => 2,
            Lane::Around => 3,
        }
    }
}

/// What the listener says to the dialler.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Verdict {
    /// Frames may follow.
    Welcome,
    /// They speak no version in common.
    NoVersion,
    /// Somebody else is that node.
    Duplicate,
}

/// One end's first words.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Hello {
    /// What it speaks.
    pub versions: RangeInclusive<u16>,
    /// What it thinks of the other.
    pub verdict: Verdict,
    /// What the connection is for.
    pub lane: Lane,
    /// Which life of the node it is.
    pub session: u64,
}

/// Why two programs do not talk.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum HelloError {
    /// It is no hello.
    #[error("that machine proves to be of the cluster, but does not speak as a node does: look at what runs there")]
    Garbled,
    /// The other program is too old.
    #[error(
        "the Dazzle there is too old: it speaks network version {theirs}, this one needs {ours} or later; upgrade it"
    )]
    Older {
        /// The newest it speaks.
        theirs: u16,
        /// The oldest we speak.
        ours: u16,
    },
    /// We are too old.
    #[error(
        "the Dazzle there is too new: it speaks network version {theirs} or later, this one {ours}; upgrade this one"
    )]
    Newer {
        /// The oldest it speaks.
        theirs: u16,
        /// The newest we speak.
        ours: u16,
    },
}

impl Hello {
    /// As it goes over the wire.
    pub fn encode(&self) -> [u8; HELLO_BYTES] {
        let mut bytes = [0; HELLO_BYTES];
        bytes[..8].copy_from_slice(&MAGIC);
        bytes[8..10].copy_from_slice(&self.versions.start().to_le_bytes());
        bytes[10..12].copy_from_slice(&self.versions.end().to_le_bytes());
        bytes[12] = match self.verdict {
            Verdict::Welcome => 0,
            Verdict::NoVersion => 1,
            Verdict::Duplicate => 2,
        };
        bytes[13] = self.lane.number();
        bytes[16..24].copy_from_slice(&self.session.to_le_bytes());
        bytes
    }

    /// What the other end said. One that speaks no version of ours is an error that says so, whatever else it says.
    pub fn decode(bytes: &[u8; HELLO_BYTES], spoken: RangeInclusive<u16>) -> Result<Hello, HelloError> {
        let two = |at: usize| u16::from_le_bytes([bytes[at], bytes[at + 1]]);
        let versions = two(8)..=two(10);
        if bytes[..8] != MAGIC || versions.is_empty() {
            return Err(HelloError::Garbled);
        }
        if versions.end() < spoken.start() {
            return Err(HelloError::Older { theirs: *versions.end(), ours: *spoken.start() });
        }
        if versions.start() > spoken.end() {
            return Err(HelloError::Newer { theirs: *versions.start(), ours: *spoken.end() });
        }
        let verdict = match bytes[12] {
            0 => Verdict::Welcome,
            1 => Verdict::NoVersion,
            2 => Verdict::Duplicate,
            _ => return Err(HelloError::Garbled),
        };
        let lane = Lane::ALL.into_iter().find(|lane| lane.number() == bytes[13]).ok_or(HelloError::Garbled)?;
        let session = bytes[16..24].try_into().expect("eight bytes are eight bytes");
        let hello = Hello { versions, verdict, lane, session: u64::from_le_bytes(session) };
        // Where nothing stands in a version that both speak, nothing may stand.
        if hello.encode() == *bytes { Ok(hello) } else { Err(HelloError::Garbled) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn hello(versions: RangeInclusive<u16>) -> Hello {
        Hello { versions, verdict: Verdict::Welcome, lane: Lane::Bulk, session: 0x0102_0304_0506_0708 }
    }

    #[test]
    fn a_hello_is_laid_out_as_the_page_says() {
        let bytes = hello(1..=2).encode();
        let expected = b"DZNET\0\0\0\x01\0\x02\0\0\x01\0\0\x08\x07\x06\x05\x04\x03\x02\x01\0\0\0\0\0\0\0\0";
        assert_eq!(&bytes, expected);
        assert_eq!(Hello::decode(&bytes, 1..=1), Ok(hello(1..=2)));
    }

    #[test]
    fn programs_without_a_version_in_common_say_who_is_to_be_upgraded() {
        let said = |theirs, ours| Hello::decode(&hello(theirs).encode(), ours);
        assert_eq!(said(1..=2, 3..=4), Err(HelloError::Older { theirs: 2, ours: 3 }));
        assert_eq!(said(5..=9, 3..=4), Err(HelloError::Newer { theirs: 5, ours: 4 }));
        assert!(said(1..=3, 3..=4).is_ok() && said(4..=9, 3..=4).is_ok());
    }

    #[test]
    fn rubbish_is_no_hello() {
        for at in [0, 7, 12, 13, 14, 15, 24, 31] {
            let mut bytes = hello(1..=1).encode();
            bytes[at] = 77;
            assert_eq!(Hello::decode(&bytes, 1..=1), Err(HelloError::Garbled), "byte {at}");
        }
        let mut empty = hello(1..=1).encode();
        empty[10] = 0;
        assert_eq!(Hello::decode(&empty, 1..=1), Err(HelloError::Garbled));
    }
}
