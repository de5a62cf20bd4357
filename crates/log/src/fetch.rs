//! Single questions to targets, with answers verified. This file awaits; it decides nothing.

use std::cmp::Ordering;
use std::ops::Range;

use bytes::Bytes;
use protocol::checksum::{BLOCK_SIZE, blocks_are_right, crc};
use protocol::fragment::{FragmentId, Part};
use protocol::id::{LogId, RunNumber, StripeNumber, TargetId};
use protocol::storage::{StorageError, StorageReply, StorageRequest, StoredFragment};

use crate::Cluster;

/// Fragments asked for at once.
const PAGE_SIZE: u32 = 256;
/// The same of a whole log.
const TAIL_PAGE_SIZE: u32 = 1024;
/// Pages of one stripe; a target that has more to say about one stripe talks rubbish.
const PAGES_MAX: usize = 16;

/// Why a target did not give right bytes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Refusal {
    /// It answered that it has no such fragment.
    Missing,
    /// It has less than was asked for.
    Short,
    /// Its bytes do not match their checksums.
    Damaged,
    /// It answers with an error.
    Failed(String),
    /// It does not answer.
    Silent(String),
}

impl std::fmt::Display for Refusal {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Refusal::Missing => f.write_str("no such fragment"),
            Refusal::Short => f.write_str("the fragment is too short"),
            Refusal::Damaged => f.write_str("the fragment is damaged"),
            Refusal::Failed(reason) | Refusal::Silent(reason) => f.write_str(reason),
        }
    }
}

/// The bytes of `range` of a fragment, verified, and not copied.
pub(crate) async fn read(
    cluster: &Cluster,
    target: TargetId,
    id: FragmentId,
    range: Range<u32>,
) -> Result<Bytes, Refusal> {
    let (blocks, offset, checksums) = blocks(cluster, target, id, range.clone()).await?;
    if !blocks_are_right(&blocks, &checksums) {
        return Err(Refusal::Damaged);
    }
    let skip = (range.start - offset) as usize;
    let length = range.len();
    if blocks.len() < skip + length {
        return Err(Refusal::Short);
    }
    Ok(blocks.slice(skip..skip + length))
}

/// As much of the beginning of a fragment, up to `length`, as its checksums vouch for. Where the target does not answer,
/// nobody knows.
pub(crate) async fn read_prefix(
    cluster: &Cluster,
    target: TargetId,
    id: FragmentId,
    length: u32,
) -> Result<Bytes, Refusal> {
    let (bytes, offset, checksums) = match blocks(cluster, target, id, 0..length).await {
        Ok(blocks) => blocks,
        Err(silent @ (Refusal::Failed(_) | Refusal::Silent(_))) => return Err(silent),
        Err(_) => return Ok(Bytes::new()),
    };
    if offset != 0 {
        return Ok(Bytes::new());
    }
    let right = bytes.chunks(BLOCK_SIZE).zip(&checksums).take_while(|(block, sum)| crc(block) == **sum).count();
    let size = (right * BLOCK_SIZE).min(bytes.len()).min(length as usize);
    Ok(bytes.slice(..size))
}

async fn blocks(
    cluster: &Cluster,
    target: TargetId,
    id: FragmentId,
    range: Range<u32>,
) -> Result<(Bytes, u32, Vec<u32>), Refusal> {
    let length = range.end - range.start;
    match cluster.ask(target, StorageRequest::Read { id, offset: range.start, length }).await {
        Ok(StorageReply::Blocks { offset, bytes, checksums }) => {
            let first = range.start / BLOCK_SIZE as u32 * BLOCK_SIZE as u32;
            match offset.cmp(&first) {
                Ordering::Equal => Ok((bytes, offset, checksums)),
                // It tells of its own end, which lies before.
                Ordering::Less => Err(Refusal::Short),
                Ordering::Greater => Err(Refusal::Failed("wrong blocks".into())),
            }
        }
        Ok(_) => Err(Refusal::Failed("no blocks".into())),
        Err(error) => Err(refusal(error)),
    }
}

/// What `target` says of a parity; `None` where it has none, or does not answer.
pub(crate) async fn find_parity(cluster: &Cluster, target: TargetId, id: FragmentId) -> Option<StoredFragment> {
    // Of the parts of a stripe parities are the last, and a target has one of them.
    let after = Some(FragmentId { part: Part::Copy { of: u8::MAX, at: u8::MAX }, ..id });
    match cluster.ask(target, StorageRequest::List { after, limit: 1 }).await {
        Ok(StorageReply::Fragments(page)) => page.into_iter().find(|fragment| fragment.header.id == id),
        _ => None,
    }
}

/// What `target` holds of the stripes `first..=last` of a log, of all runs.
pub(crate) async fn held(
    cluster: &Cluster,
    target: TargetId,
    log: LogId,
    (first, last): (StripeNumber, StripeNumber),
) -> Result<Vec<StoredFragment>, Refusal> {
    let mut found = Vec::new();
    let mut after = before(log, first);
    for _ in 0..PAGES_MAX {
        let request = StorageRequest::List { after: Some(after), limit: PAGE_SIZE };
        let page = match cluster.ask(target, request).await {
            Ok(StorageReply::Fragments(page)) => page,
            Ok(_) => return Err(Refusal::Failed("no fragments".into())),
            Err(error) => return Err(refusal(error)),
        };
        let size = page.len();
        let Some(end) = page.last().map(|fragment| fragment.header.id) else { break };
        let wanted = |id: FragmentId| id.log == log && (first..=last).contains(&id.stripe);
        found.extend(page.into_iter().filter(|fragment| wanted(fragment.header.id)));
        if size < PAGE_SIZE as usize || !wanted(end) {
            break;
        }
        after = end;
    }
    Ok(found)
}

/// What `target` holds of a log from stripe `from` on, of all runs: an answer has a bound, and a log has none. `None` where it
/// does not tell all of it.
pub(crate) async fn tail(
    cluster: &Cluster,
    target: TargetId,
    log: LogId,
    from: StripeNumber,
) -> Option<Vec<StoredFragment>> {
    let (mut found, mut after) = (Vec::new(), before(log, from));
    loop {
        let request = StorageRequest::List { after: Some(after), limit: TAIL_PAGE_SIZE };
        let Ok(StorageReply::Fragments(page)) = cluster.ask(target, request).await else { return None };
        let is_full = page.len() >= TAIL_PAGE_SIZE as usize;
        let end = page.last().map(|fragment| fragment.header.id).filter(|end| is_full && end.log == log);
        found.extend(page.into_iter().filter(|it| it.header.id.log == log && it.header.id.stripe >= from));
        match end {
            None => return Some(found),
            Some(end) if end <= after => return None,
            Some(end) => after = end,
        }
    }
}

fn refusal(error: StorageError) -> Refusal {
    match error {
        StorageError::Missing => Refusal::Missing,
        StorageError::Silent(_) => Refusal::Silent(error.to_string()),
        _ => Refusal::Failed(error.to_string()),
    }
}

/// The greatest id before all those of a stripe.
fn before(log: LogId, stripe: StripeNumber) -> FragmentId {
    let (log, stripe) = match stripe.0.checked_sub(1) {
        Some(previous) => (log, StripeNumber(previous)),
        None => (LogId(log.0.saturating_sub(1)), StripeNumber(u64::MAX)),
    };
    FragmentId { log, stripe, run: RunNumber(u32::MAX), part: Part::Parity(u8::MAX) }
}
