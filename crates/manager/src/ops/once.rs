//! Requests that take effect once: the answer is kept in the slot, together with what it tells of.
//!
//! Invariants
//! 1. An answer is kept if and only if its request took effect: both are in one journal record.
//! 2. A request whose number was given up takes no effect any more, though it was long on its way.

use protocol::id::{LogId, SlotId};
use protocol::manager::{Answer, ManagerError, ManagerRequest};
use protocol::once::{OnceName, needs_once};
use serde::{Deserialize, Serialize};

use super::{Done, ask, asked_slots};
use crate::key;
use crate::records::{decode, encode};
use crate::transaction::{Effect, Stop, Transaction};

/// Answers that one client may have waiting in one slot.
const ANSWERS_MAX: usize = 4096;

/// What a slot keeps of a client's requests.
#[derive(Default, Serialize, Deserialize)]
struct Kept {
    /// Numbers before this are given up.
    below: u64,
    /// By ascending numbers.
    answers: Vec<(u64, Answer)>,
}

pub(super) fn run(tx: &mut Transaction<'_>, name: &OnceName, request: &ManagerRequest) -> Result<Done, Stop> {
    let refuse = |why: &str| Err(ManagerError::Invalid(why.into()).into());
    let OnceName { call, below, slot } = *name;
    if !needs_once(request) || !asked_slots(request).contains(&slot) {
        return refuse("such a request cannot be sent to take effect once");
    }
    let mut kept: Kept = kept(tx, slot, call.client)?;
    if call.number < kept.below {
        return refuse("this call was given up");
    }
    if let Ok(at) = kept.answers.binary_search_by_key(&call.number, |(number, _)| *number) {
        let answer = kept.answers.swap_remove(at).1;
        open_again(tx, request, &answer)?;
        return Ok(answer.into());
    }
    let done = ask(tx, request)?;
    let Done::Answer(answer) = &done else { unreachable!("what takes effect once does so in one step") };
    kept.below = kept.below.max(below.min(call.number));
    kept.answers.retain(|(number, _)| *number >= kept.below);
    if kept.answers.len() >= ANSWERS_MAX {
        return refuse("too many calls of one client wait");
    }
    let at = kept.answers.partition_point(|(number, _)| *number < call.number);
    kept.answers.insert(at, (call.number, answer.clone()));
    tx.put(slot, key::answered(call.client), encode(&kept))?;
    Ok(done)
}

/// Which files are open is in no journal: what was made under another manager, and open from then on, is open here too.
fn open_again(tx: &mut Transaction<'_>, request: &ManagerRequest, answer: &Answer) -> Result<(), Stop> {
    let opens = matches!(request, ManagerRequest::Create { open: true, .. } | ManagerRequest::CreateUnnamed { .. });
    let (true, Answer::Entry(attributes, _) | Answer::Attributes(attributes)) = (opens, answer) else { return Ok(()) };
    // It may be gone, where it lost its name before this.
    tx.inode(attributes.inode)?;
    tx.effect(Effect::Open(attributes.inode, tx.node()));
    Ok(())
}

fn kept(tx: &Transaction<'_>, slot: SlotId, client: LogId) -> Result<Kept, Stop> {
    Ok(tx.value(slot, &key::answered(client))?.map(decode).transpose()?.unwrap_or_default())
}
