//! One durable copy of the maps, on one target: two byte spaces written alternately, so that the older survives while
//! the newer is being written (`docs/format.md`, Registry).

use bytes::Bytes;
use host::{Disk, DiskError, File};
use protocol::checksum::crc;
use protocol::maps::Maps;

const MAGIC: &[u8; 8] = b"DZREG\0\0\x01";
const HEAD_SIZE: usize = 24;
const SPACES: [&str; 2] = ["registry.0", "registry.1"];
/// Larger than the maps of 1,000 nodes; a length beyond it is rubbish.
const LENGTH_MAX: usize = 64 << 20;

/// One copy.
pub struct Replica {
    spaces: [File; 2],
    /// Which space the next write goes to: the one that does not hold the newest maps.
    next: usize,
}

/// Why a copy could not be read or written.
#[derive(Debug, thiserror::Error)]
pub enum ReplicaError {
    /// The disk said so.
    #[error(transparent)]
    Disk(#[from] DiskError),
    /// Both spaces hold something, and neither verifies.
    #[error("both copies of the registry on this target are damaged")]
    Damaged,
}

impl Replica {
    /// Opens the copy on `disk`, and reads the newest maps that verify. `None`: nothing was ever written.
    pub async fn open(disk: &Disk) -> Result<(Replica, Option<Maps>), ReplicaError> {
        let spaces = [disk.open(SPACES[0])?, disk.open(SPACES[1])?];
        let (next, maps) = match [read(&spaces[0]).await?, read(&spaces[1]).await?] {
            [Found::Maps(a), Found::Maps(b)] if a.epoch > b.epoch => (1, Some(a)),
            [_, Found::Maps(b)] => (0, Some(b)),
            [Found::Maps(a), _] => (1, Some(a)),
            [Found::Nothing, Found::Nothing] => (0, None),
            _ => return Err(ReplicaError::Damaged),
        };
        Ok((Replica { spaces, next }, maps))
    }

    /// Stores `maps`, durably.
    pub async fn store(&mut self, maps: &Maps) -> Result<(), ReplicaError> {
        let space = &self.spaces[self.next];
        space.write(0, vec![encode(maps)]).await?;
        space.sync().await?;
        self.next = 1 - self.next;
        Ok(())
    }
}

fn encode(maps: &Maps) -> Bytes {
    assert_eq!(maps.verify(), Ok(()), "nothing is stored that a start would refuse");
    let body = postcard::to_stdvec(maps).expect("maps have no unserializable part");
    let mut bytes = Vec::with_capacity(HEAD_SIZE + body.len());
    bytes.extend_from_slice(MAGIC);
    bytes.extend_from_slice(&(body.len() as u64).to_le_bytes());
    bytes.extend_from_slice(&crc(&body).to_le_bytes());
    bytes.extend_from_slice(&crc(&bytes).to_le_bytes());
    bytes.extend_from_slice(&body);
    bytes.into()
}

/// What a byte space holds.
enum Found {
    Nothing,
    Maps(Maps),
    Damage,
}

async fn read(space: &File) -> Result<Found, DiskError> {
    let head = space.read(0, HEAD_SIZE).await?;
    if head.iter().all(|&byte| byte == 0) {
        return Ok(Found::Nothing);
    }
    let Some((length, sum)) = decode_head(&head) else { return Ok(Found::Damage) };
    let body = space.read(HEAD_SIZE as u64, length).await?;
    Ok(decode_body(&body, length, sum).map_or(Found::Damage, Found::Maps))
}

/// The maps in all that a byte space holds.
#[cfg(any(test, fuzzing))]
pub(crate) fn decode(space: &[u8]) -> Option<Maps> {
    let (length, sum) = decode_head(space)?;
    decode_body(space.get(HEAD_SIZE..)?.get(..length)?, length, sum)
}

fn decode_body(body: &[u8], length: usize, sum: u32) -> Option<Maps> {
    let maps: Maps = (body.len() == length && crc(body) == sum).then(|| postcard::from_bytes(body).ok())??;
    maps.verify().is_ok().then_some(maps)
}

fn decode_head(head: &[u8]) -> Option<(usize, u32)> {
    let head: &[u8; HEAD_SIZE] = head.first_chunk()?;
    let word = |at: usize| u32::from_le_bytes(head[at..at + 4].try_into().expect("four bytes"));
    let length = u64::from_le_bytes(head[8..16].try_into().expect("eight bytes"));
    let whole = head[..8] == MAGIC[..] && word(20) == crc(&head[..20]) && length <= LENGTH_MAX as u64;
    whole.then_some((length as usize, word(16)))
}
