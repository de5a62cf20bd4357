//! Tokens: the printable line that lets a machine join, and the book of those that were issued.
//!
//! The line names the CA by its fingerprint, so the joiner knows whom to believe before it says anything; and a secret, so
//! that the cluster knows whom it invited. The book keeps no secrets, only their hashes.

use std::collections::BTreeMap;
use std::fmt;
use std::str::FromStr;

use protocol::checksum::crc;
use serde::{Deserialize, Serialize};

use super::Date;

/// SHA-256 of a CA's certificate.
pub type Fingerprint = [u8; 32];
/// What only who was given the token knows.
pub type Secret = [u8; 16];

const PREFIX: &str = "dazzle1-";
const BYTES: usize = 32 + 16 + 5 + 4;
/// How many tokens may be out at once.
const TOKENS_MAX: usize = 1000;

/// An invitation.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Token {
    /// The CA of the cluster that invites.
    pub fingerprint: Fingerprint,
    /// What to show there.
    pub secret: Secret,
    /// From then on it is worth nothing.
    pub expires: Date,
}

/// Why a token does not open the door.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error, Serialize, Deserialize)]
pub enum TokenError {
    /// Not a token, or not all of one.
    #[error("this is no token: copy the whole line that `dazzle token create` printed")]
    Garbled,
    /// The machine that was asked never issued it, or has forgotten it.
    #[error(
        "the machine at this address did not make this token, or was started anew since: a token is good only at the \
         machine that made it, while its daemon runs. Make a new one there with `dazzle token create`"
    )]
    Wrong,
    /// Too late.
    #[error("the token expired at {}: make a new one there with `dazzle token create`", Date(*.0))]
    Expired(u64),
    /// A second machine came with it.
    #[error("the token was used before, and is good for one machine: make a new one there with `dazzle token create`")]
    Used,
    /// So many are out that no more are issued.
    #[error("{TOKENS_MAX} tokens are out: wait until some expire")]
    TooMany,
}

impl fmt::Display for Token {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut bytes = [&self.fingerprint[..], &self.secret, &self.expires.0.to_le_bytes()[..5]].concat();
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
        expires[..5].copy_from_slice(&said[48..]);
        let part = "the lengths were checked above";
        Ok(Token {
            fingerprint: said[..32].try_into().expect(part),
            secret: said[32..48].try_into().expect(part),
            expires: Date(u64::from_le_bytes(expires)),
        })
    }
}

/// How often a token may be used.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Uses {
    /// By one machine.
    Once,
    /// By any number, until it expires.
    UntilExpiry,
}

/// The book of tokens that are out. Times are seconds since 1970.
///
/// A token for one machine is good until a machine has come in with it, not merely shown it: what is asked for in vain is asked
/// for again in the same words.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Tokens {
    entries: BTreeMap<Fingerprint, Entry>,
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
struct Entry {
    expires: u64,
    uses: Uses,
    shown: Option<Shown>,
}

/// Who has shown a token.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
struct Shown {
    /// What the machine is called.
    machine: String,
    /// The node that it was told to be, once that is agreed on.
    node: Option<u32>,
}

/// How long an expired token is remembered, so that who comes late is told so.
const REMEMBERED_SECONDS: u64 = 7 * 86_400;

impl Tokens {
    /// Enters a token.
    pub fn issue(&mut self, token: &Token, uses: Uses, now: Date) -> Result<(), TokenError> {
        self.entries.retain(|_, entry| now.0 < entry.expires.saturating_add(REMEMBERED_SECONDS));
        if self.entries.len() >= TOKENS_MAX {
            return Err(TokenError::TooMany);
        }
        self.entries.insert(hash(&token.secret), Entry { expires: token.expires.0, uses, shown: None });
        Ok(())
    }

    /// Lets in `machine`, which knows `secret`, and notes it. The same machine may come again as long as the node that it was
    /// told to be `waits` for it.
    pub fn redeem(
        &mut self,
        secret: &Secret,
        machine: &str,
        waits: impl FnOnce(u32) -> bool,
        now: Date,
    ) -> Result<(), TokenError> {
        // Found by its hash: how long the search takes tells nothing about a secret.
        let entry = self.entries.get_mut(&hash(secret)).ok_or(TokenError::Wrong)?;
        if now.0 >= entry.expires {
            return Err(TokenError::Expired(entry.expires));
        }
        if let (Uses::Once, Some(shown)) = (entry.uses, &entry.shown) {
            let again = shown.machine == machine && shown.node.is_none_or(waits);
            return if again { Ok(()) } else { Err(TokenError::Used) };
        }
        entry.shown = Some(Shown { machine: machine.to_owned(), node: None });
        Ok(())
    }

    /// Who has shown `secret` is `node` from now on.
    pub fn settle(&mut self, secret: &Secret, node: u32) {
        if let Some(shown) = self.entries.get_mut(&hash(secret)).and_then(|entry| entry.shown.as_mut()) {
            shown.node = Some(node);
        }
    }

    /// Who has shown `secret` was refused for another reason: the token is as good as before.
    pub fn give_back(&mut self, secret: &Secret) {
        if let Some(entry) = self.entries.get_mut(&hash(secret)) {
            entry.shown.take_if(|shown| shown.node.is_none());
        }
    }
}

/// SHA-256.
pub(super) fn hash(bytes: &[u8]) -> Fingerprint {
    let digest = aws_lc_rs::digest::digest(&aws_lc_rs::digest::SHA256, bytes);
    digest.as_ref().try_into().expect("SHA-256 has 32 bytes")
}

#[cfg(test)]
mod tests {
    use super::*;

    const TOKEN: Token = Token { fingerprint: [0xab; 32], secret: [7; 16], expires: Date(1000) };

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

    /// Whether `machine` is let in at second 1; no node waits for anybody.
    fn redeemed(book: &mut Tokens, token: &Token, machine: &str) -> Result<(), TokenError> {
        book.redeem(&token.secret, machine, |_| false, Date(1))
    }

    #[test]
    fn a_token_opens_once_or_until_it_expires() {
        let mut book = Tokens::default();
        let other = Token { secret: [8; 16], ..TOKEN };
        book.issue(&TOKEN, Uses::Once, Date(0)).unwrap();
        book.issue(&other, Uses::UntilExpiry, Date(0)).unwrap();
        assert_eq!(redeemed(&mut book, &Token { secret: [9; 16], ..TOKEN }, "a"), Err(TokenError::Wrong));
        assert_eq!(redeemed(&mut book, &TOKEN, "a"), Ok(()));
        assert_eq!(redeemed(&mut book, &TOKEN, "b"), Err(TokenError::Used));
        assert_eq!(redeemed(&mut book, &other, "a"), Ok(()));
        assert_eq!(book.redeem(&other.secret, "b", |_| false, Date(999)), Ok(()));
        assert_eq!(book.redeem(&other.secret, "c", |_| false, Date(1000)), Err(TokenError::Expired(1000)));
    }

    #[test]
    fn a_machine_that_is_not_in_yet_may_come_again_with_its_token_and_no_other_may() {
        let mut book = Tokens::default();
        book.issue(&TOKEN, Uses::Once, Date(0)).unwrap();
        // Nobody knows what became of the first attempt.
        assert_eq!(redeemed(&mut book, &TOKEN, "a"), Ok(()));
        assert_eq!(redeemed(&mut book, &TOKEN, "a"), Ok(()));
        assert_eq!(redeemed(&mut book, &TOKEN, "b"), Err(TokenError::Used));
        // It was refused: whoever comes next may have it.
        book.give_back(&TOKEN.secret);
        assert_eq!(redeemed(&mut book, &TOKEN, "b"), Ok(()));
        book.settle(&TOKEN.secret, 5);
        book.give_back(&TOKEN.secret);
        assert_eq!(redeemed(&mut book, &TOKEN, "a"), Err(TokenError::Used));
        assert_eq!(book.redeem(&TOKEN.secret, "b", |node| node == 5, Date(2)), Ok(()), "its answer was lost");
        assert_eq!(redeemed(&mut book, &TOKEN, "b"), Err(TokenError::Used), "node 5 has begun, or was removed");
    }

    #[test]
    fn the_book_forgets_what_expired_long_ago_and_is_bounded() {
        let mut book = Tokens::default();
        for number in 0..TOKENS_MAX {
            let mut token = TOKEN;
            token.secret[..8].copy_from_slice(&number.to_le_bytes());
            book.issue(&token, Uses::Once, Date(0)).unwrap();
        }
        assert_eq!(book.issue(&TOKEN, Uses::Once, Date(0)), Err(TokenError::TooMany));
        let later = Date(1000 + REMEMBERED_SECONDS);
        book.issue(&Token { expires: Date(u64::MAX), ..TOKEN }, Uses::Once, later).unwrap();
        assert_eq!(book.entries.len(), 1);
    }
}
