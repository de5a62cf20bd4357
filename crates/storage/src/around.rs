//! Reading around what a disk does not give. What a start looks through is told from rubbish by its checksums: bytes that
//! cannot be read are worth as much as others that are wrong, and the rest of the disk no less for them.

use bytes::Bytes;
use host::DiskError;
use protocol::checksum::BLOCK_SIZE;

use crate::watch::WatchedFile;

/// A disk that does not give more places than this is lost as a whole. Each may cost it seconds.
pub(crate) const UNREADABLE_MAX: usize = 64;

/// What lies from `offset` on, `length` bytes or fewer at the end, with zeros for the blocks that cannot be read; and how many
/// these are.
pub(crate) async fn read_around(file: &WatchedFile, offset: u64, length: usize) -> Result<(Bytes, usize), DiskError> {
    match file.read(offset, length).await {
        Err(DiskError::Failed(_)) => {}
        answer => return answer.map(|bytes| (bytes, 0)),
    }
    let end = file.size()?.min(offset + length as u64);
    let (mut found, mut unreadable) = (Vec::new(), 0);
    for at in (offset..end).step_by(BLOCK_SIZE) {
        let size = (end - at).min(BLOCK_SIZE as u64) as usize;
        match file.read(at, size).await {
            Ok(block) => found.extend_from_slice(&block),
            Err(DiskError::Failed(_)) if unreadable < UNREADABLE_MAX => unreadable += 1,
            Err(error) => return Err(error),
        }
        found.resize((at - offset) as usize + size, 0);
    }
    Ok((found.into(), unreadable))
}
