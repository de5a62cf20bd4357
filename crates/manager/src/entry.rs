//! A directory entry's record, and the hash that gives a name its place in the listing.

use protocol::file::Kind;
use protocol::id::InodeId;

use crate::encoding::Damaged;

/// Low bits of a cookie, which tell names of one hash apart.
const DISAMBIGUATOR_BITS: u32 = 15;
const HASH_MASK: u64 = (1 << 48) - 1;
const INODE_SIZE: usize = 8;

/// What a name names.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Entry<'a> {
    pub(crate) kind: Kind,
    pub(crate) inode: InodeId,
    pub(crate) name: &'a [u8],
}

/// No cookie is greater.
pub(crate) const COOKIE_LAST: u64 = i64::MAX as u64;

/// The cookies that a name may have: the first, and the last.
pub(crate) fn cookies(name: &[u8]) -> (u64, u64) {
    let first = name_hash(name) << DISAMBIGUATOR_BITS;
    (first, hash_last(first))
}

/// The last cookie of the same hash.
pub(crate) fn hash_last(cookie: u64) -> u64 {
    cookie | ((1 << DISAMBIGUATOR_BITS) - 1)
}

/// FNV-1a folded to 48 bits, never zero. Part of the format.
fn name_hash(name: &[u8]) -> u64 {
    let step = |hash: u64, &byte: &u8| (hash ^ u64::from(byte)).wrapping_mul(0x0100_0000_01b3);
    let hash = name.iter().fold(0xcbf2_9ce4_8422_2325, step);
    ((hash ^ (hash >> 48)) & HASH_MASK).max(1)
}

impl<'a> Entry<'a> {
    pub(crate) fn encode(&self) -> Vec<u8> {
        let mut bytes = Vec::with_capacity(1 + INODE_SIZE + self.name.len());
        bytes.push(kind_byte(self.kind));
        bytes.extend_from_slice(&self.inode.0.to_be_bytes());
        bytes.extend_from_slice(self.name);
        bytes
    }

    pub(crate) fn decode(bytes: &'a [u8]) -> Result<Entry<'a>, Damaged> {
        let damaged = Damaged("directory entry");
        let (&kind, rest) = bytes.split_first().ok_or(damaged)?;
        let (inode, name) = rest.split_first_chunk::<INODE_SIZE>().ok_or(damaged)?;
        let kind = KINDS.into_iter().find(|&known| kind_byte(known) == kind).ok_or(damaged)?;
        Ok(Entry { kind, inode: InodeId(u64::from_be_bytes(*inode)), name })
    }
}

const KINDS: [Kind; 7] =
    [Kind::File, Kind::Directory, Kind::Symlink, Kind::Pipe, Kind::Socket, Kind::CharacterDevice, Kind::BlockDevice];

fn kind_byte(kind: Kind) -> u8 {
    match kind {
        Kind::File => 1,
        Kind::Directory => 2,
        Kind::Symlink => 3,
        Kind::Pipe => 4,
        Kind::Socket => 5,
        Kind::CharacterDevice => 6,
        Kind::BlockDevice => 7,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn cookies_are_positive_offsets_and_none_is_reserved() {
        for name in [&b""[..], b"a", b"b", &[0xff; 255], b"some file.txt"] {
            let (first, last) = cookies(name);
            assert!(first > 2 && last <= COOKIE_LAST);
        }
        assert_eq!(cookies(b"a").0, ((0xaf63_dc4c_8601_ec8c_u64 ^ 0xaf63) & HASH_MASK) << 15);
    }

    #[test]
    fn an_entry_comes_back_and_rubbish_is_refused() {
        let entry = Entry { kind: Kind::Symlink, inode: InodeId(77), name: b"name" };
        assert_eq!(Entry::decode(&entry.encode()), Ok(entry));
        assert!(Entry::decode(&entry.encode()[..8]).is_err());
        assert!(Entry::decode(&[9; 20]).is_err());
    }
}
