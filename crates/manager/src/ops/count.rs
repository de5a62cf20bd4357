//! Counts that a slot keeps exactly: inodes, live bytes, live bytes per stripe (DESIGN §8).

use protocol::id::{LogId, SlotId, StripeNumber};
use protocol::manager::Answer;

use super::Done;
use crate::transaction::{Stop, Transaction};

pub(super) fn census(tx: &Transaction<'_>, slot: SlotId) -> Result<Done, Stop> {
    let head = tx.head(slot)?;
    Ok(Answer::Census(head.inodes, head.bytes_live).into())
}

pub(super) fn live(tx: &Transaction<'_>, slot: SlotId, stripes: &[(LogId, StripeNumber)]) -> Result<Done, Stop> {
    let counts: Result<Vec<u64>, Stop> = stripes.iter().map(|&(log, stripe)| tx.live(slot, log, stripe)).collect();
    Ok(Answer::Live(counts?).into())
}
