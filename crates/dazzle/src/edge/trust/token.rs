//! Tokens: the printable line that lets a machine join.
//!
//! The line names the CA by its fingerprint, so the joiner knows whom to believe before it says anything; and it has a proof
//! that only who has the CA's key can make, so that each machine that lets others in knows an invitation of the cluster when
//! it sees one. Which were used the registry knows.

use std::fmt;
use std::str::FromStr;

use protocol::checksum::crc;
use protocol::registry::Invitation;
use serde::{Deserialize, Serialize};

use super::Date;

/// SHA-256 of a CA's certificate.
pub type Fingerprint = [u8; 32];
/// What the CA's key makes of an invitation ([`Authority::invite`](super::Authority::invite)). Only who was given the token
/// knows it.
pub type Proof = [u8; 16];

const PREFIX: &str = "dazzle1-";
const BYTES: usize = 32 + 8 + 5 + 16 + 4;

/// An invitation for one machine, in full.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Token {
    /// The CA of the cluster that invites.
    pub fingerprint: Fingerprint,
    /// What to show there,
    pub invitation: Invitation,
    /// and that it comes from there.
    pub proof: Proof,
}

/// Why a token does not open the door.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error, Serialize, Deserialize)]
pub enum TokenError {
    /// Not a token, or not all of one.
    #[error("this is no token: copy the whole line that `dazzle token create` printed")]
    Garbled,
    /// Nobody of this cluster made it.
    #[error(
        "no machine of this cluster made this token: make one with `dazzle token create` on any of them that stores, and copy \
         the whole line"
    )]
    Wrong,
    /// Too late.
    #[error("the token expired at {}: make a new one there with `dazzle token create`", Date(*.0))]
    Expired(u64),
    /// A second machine came with it.
    #[error("the token was used before, and is good for one machine: make a new one there with `dazzle token create`")]
    Used,
}

impl fmt::Display for Token {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Invitation { number, expires } = self.invitation;
        let mut bytes =
            [&self.fingerprint[..], &number.to_le_bytes(), &expires.to_le_bytes()[..5], &self.proof].concat();
        bytes.extend(crc(&bytes).to_le_bytes());
        f.write_str(PREFIX)?;
        bytes.iter().try_for_each(|byte| write!(f, "{byte:02x}"))
    }
}

impl FromStr for Token {
    type Err = TokenError;

    fn from_str(line: &str) -> Result<Token, TokenError> {
        let digits = line.trim().strip_prefix(PREFIX).ok_or(TokenError::Garbled)?;
        if digits.len() != 2 * BYTES || !digits.bytes().all(|digit| digit.is_ascii_hexdigit()) {
            return Err(TokenError::Garbled);
        }
        let byte = |index: usize| u8::from_str_radix(&digits[2 * index..][..2], 16).map_err(|_| TokenError::Garbled);
        let bytes = (0..BYTES).map(byte).collect::<Result<Vec<u8>, _>>()?;
        let (said, sum) = bytes.split_at(BYTES - 4);
        if crc(said).to_le_bytes() != sum {
            return Err(TokenError::Garbled);
        }
        let mut expires = [0; 8];
        expires[..5].copy_from_slice(&said[40..45]);
        let part = "the lengths were checked above";
        Ok(Token {
            fingerprint: said[..32].try_into().expect(part),
            invitation: Invitation {
                number: u64::from_le_bytes(said[32..40].try_into().expect(part)),
                expires: u64::from_le_bytes(expires),
            },
            proof: said[45..].try_into().expect(part),
        })
    }
}

/// A number by which bytes are told apart: the first eight of their SHA-256.
pub fn number_of(bytes: &[u8]) -> u64 {
    u64::from_be_bytes(*hash(bytes).first_chunk().expect("SHA-256 has 32 bytes"))
}

/// SHA-256.
pub(super) fn hash(bytes: &[u8]) -> Fingerprint {
    let digest = aws_lc_rs::digest::digest(&aws_lc_rs::digest::SHA256, bytes);
    digest.as_ref().try_into().expect("SHA-256 has 32 bytes")
}

#[cfg(test)]
mod tests {
    use super::*;

    const TOKEN: Token =
        Token { fingerprint: [0xab; 32], invitation: Invitation { number: 7, expires: 1000 }, proof: [9; 16] };

    #[test]
    fn a_token_is_read_back_from_its_line() {
        let line = TOKEN.to_string();
        assert_eq!(line.len(), PREFIX.len() + 2 * BYTES);
        assert_eq!(format!(" {line}\n").parse(), Ok(TOKEN));
    }

    #[test]
    fn a_line_that_was_not_copied_whole_is_no_token() {
        let line = TOKEN.to_string();
        for end in 0..line.len() {
            assert_eq!(line[..end].parse::<Token>(), Err(TokenError::Garbled));
        }
        for at in PREFIX.len()..line.len() {
            let mut bytes = line.clone().into_bytes();
            bytes[at] = if bytes[at] == b'0' { b'1' } else { b'0' };
            assert_eq!(String::from_utf8(bytes).unwrap().parse::<Token>(), Err(TokenError::Garbled));
        }
        assert_eq!("dazzle1-é".repeat(14).parse::<Token>(), Err(TokenError::Garbled));
    }
}
