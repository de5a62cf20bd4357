//! Requests that take effect once: the answer is kept in the slot, together with what it tells of.
//!
//! Invariants
//! 1. An answer is kept if and only if its request took effect: both are in one journal record.
//! 2. A request whose number was given up takes no effect any more, though it was long on its way; nor does one for which
//!    nobody waits (`late`).
//! 3. One that takes several steps may take some of them again, as long as it is not answered: the client that asks holds what
//!    they change. Once it is answered, nobody who is still at it takes another one.
//! 4. After the log of its client is sealed a request has no effect (`late`): others may hold what it is about.
//! 5. One that was refused is not carried out again, though it could be by now: there is no record of that (`askings`).

use host::Moment;
use protocol::id::SlotId;
use protocol::manager::{Answer, ManagerError, ManagerRequest};
use protocol::once::{CallId, OnceName, needs_once};

use super::{Done, Operation, ask, asked_slots};
use crate::key::{self, Key};
use crate::records::{decode, encode};
use crate::snapshot::Wish;
use crate::transaction::{Effect, Stop, Transaction, behind};

/// So many answers that nobody asks for any more go with a new one.
const FORGOTTEN_MAX: u64 = 8;
/// One in so many calls over slots of several managers, by chance, looks for such, and for so many times more: it is carried
/// out again when others do.
const SPANNING: u64 = 16;

/// A call as it came.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Call {
    /// Its name.
    pub(crate) name: OnceName,
    /// Until then somebody waits for it: then it has no effect any more.
    pub(crate) until: Moment,
}

pub(super) fn run(tx: &mut Transaction<'_>, named: &Call, request: &ManagerRequest) -> Result<Done, Stop> {
    let refuse = |why: &str| Err(ManagerError::Invalid(why.into()).into());
    let OnceName { call, below, slot } = named.name;
    if !needs_once(request) || !asked_slots(request).contains(&slot) {
        return refuse("such a request cannot be sent to take effect once");
    }
    let range = |key: Key| Wish::Range(slot, (key.clone(), behind(&key)));
    tx.need(&[slot], || vec![range(key::given_up(call.client)), range(key::answer(call))])?;
    // Steps over slots of several managers may do with what was so a moment ago: else each other call has them taken again.
    let is_given_up = |known: Option<&[u8]>| Ok::<_, Stop>(call.number < number(known)?);
    if is_given_up(tx.glance(slot, &key::given_up(call.client))?)? {
        return refuse("this call was given up");
    }
    if let Some(answer) = tx.value(slot, &key::answer(call))?.map(decode::<Answer>).transpose()? {
        open_again(tx, request, &answer)?;
        return Ok(answer.into());
    }
    let done = ask(tx, request)?;
    match &done {
        Done::Answer(answer) => tx.put(slot, key::answer(call), encode(answer))?,
        Done::Then(Operation::Asked(rest)) => return Ok(Done::Then(Operation::Once(*named, rest.clone()))),
        Done::Again | Done::Then(_) | Done::Told(_) => return Ok(done),
    }
    if is_given_up(tx.value(slot, &key::given_up(call.client))?)? {
        return refuse("this call was given up");
    }
    let below = CallId { number: below.min(call.number), ..call };
    if tx.holds(slot) {
        give_up(tx, slot, below, FORGOTTEN_MAX)?;
    } else if is_drawn(call.number) {
        give_up(tx, slot, below, FORGOTTEN_MAX * SPANNING)?;
    }
    Ok(done)
}

/// Notes that a client has given up its calls before one, and forgets answers to such.
fn give_up(tx: &mut Transaction<'_>, slot: SlotId, below: CallId, forgotten_max: u64) -> Result<(), Stop> {
    if below.number > number(tx.value(slot, &key::given_up(below.client))?)? {
        tx.put(slot, key::given_up(below.client), encode(&below.number))?;
    }
    for _ in 0..forgotten_max {
        let oldest = tx.next(slot, &key::answers_before(below))?.map(|(key, _)| key.to_vec());
        let Some(oldest) = oldest else { break };
        tx.remove(slot, oldest)?;
    }
    Ok(())
}

fn number(record: Option<&[u8]>) -> Result<u64, Stop> {
    Ok(record.map(decode).transpose()?.unwrap_or_default())
}

fn is_drawn(number: u64) -> bool {
    number.wrapping_mul(0x9e37_79b9_7f4a_7c15) < u64::MAX / SPANNING
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
