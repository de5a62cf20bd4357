//! The operations, one file each: pure functions from what a transaction sees to its changes and an answer.
//!
//! An operation that would take long under the locks does a step and asks to be run again; each step leaves a state
//! that the operation may have been interrupted in.

mod attributes;
mod clean;
mod clone_range;
mod content;
mod count;
mod create;
mod deltas;
mod fetch;
mod free;
mod grow;
mod link;
mod list;
mod lookup;
mod once;
mod open;
mod prepare;
mod punch;
mod remove_directory;
mod rename;
mod root;
mod set_attributes;
mod settle;
mod split;
mod unlink;
mod why;
mod xattr;

use std::collections::BTreeSet;

use protocol::id::{InodeId, LogId, SlotId, StripeNumber};
use protocol::intention::IntentionId;
use protocol::manager::{Answer, ManagerError, ManagerRequest};

pub(crate) use once::Call;
pub(crate) use settle::Decide;

use crate::transaction::{Stop, Transaction};

/// What a manager carries out under its slots' locks.
#[derive(Clone, Debug)]
pub(crate) enum Operation {
    /// What somebody asked for.
    Asked(ManagerRequest),
    /// What somebody asked for who may ask again.
    Once(once::Call, ManagerRequest),
    /// Frees an orphan that nobody holds open.
    Reap(InodeId),
    /// Splits what a directory has in a slot.
    Split {
        /// The directory.
        directory: InodeId,
        /// The slot with too many names.
        slot: SlotId,
        /// Where the names go, once that is decided.
        way: Option<split::Way>,
    },
    /// Makes the root directory, unless it is there.
    MakeRoot {
        /// Its owner: who made the file system.
        uid: u32,
        /// Its group.
        gid: u32,
    },
    /// Adds up one slot's part of a census.
    Census(SlotId),
    /// One slot's live bytes in stripes.
    Live(SlotId, Vec<(LogId, StripeNumber)>),
    /// Forgets how far a slot has the deltas of logs that are forgotten themselves: of those before the first log, none
    /// of the second is.
    Forget(SlotId, LogId, BTreeSet<LogId>),
    /// A slot's orphans.
    Orphans(SlotId),
    /// Decides an operation over slots of several managers.
    Decide(Decide),
    /// Forgets an intention of which all slots know the outcome.
    ForgetIntention(SlotId, IntentionId),
}

/// How far an operation came.
#[derive(Clone, Debug)]
pub(crate) enum Done {
    /// To its end.
    Answer(Answer),
    /// A step: commit it, and run the same again.
    Again,
    /// A step: commit it, and go on with this.
    Then(Operation),
    /// What only this manager asks itself.
    Told(Told),
}

/// Answers to a manager's own questions.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Told {
    /// Inodes without a name.
    Orphans(Vec<InodeId>),
    /// Whether an intention took effect.
    Decided(bool),
}

impl From<Answer> for Done {
    fn from(answer: Answer) -> Done {
        Done::Answer(answer)
    }
}

/// The slots that an operation is sure to need.
pub(crate) fn slots(operation: &Operation) -> Vec<SlotId> {
    let inodes: &[InodeId] = match operation {
        Operation::Asked(request) | Operation::Once(_, request) => return asked_slots(request),
        Operation::Reap(inode) => &[*inode],
        Operation::Split { directory, slot, .. } => return sorted([directory.slot(), *slot].into_iter()),
        Operation::MakeRoot { .. } => &[InodeId::ROOT],
        Operation::Decide(decide) => {
            let own = decide.parts.iter().map(|part| part.slot);
            return sorted(own.chain([decide.coordinator]));
        }
        Operation::Census(slot)
        | Operation::Live(slot, _)
        | Operation::Forget(slot, ..)
        | Operation::Orphans(slot)
        | Operation::ForgetIntention(slot, _) => {
            return vec![*slot];
        }
    };
    sorted(inodes.iter().map(|inode| inode.slot()))
}

/// The slots that a request is sure to need.
fn asked_slots(request: &ManagerRequest) -> Vec<SlotId> {
    use ManagerRequest as R;
    let inodes: &[InodeId] = match request {
        R::Lookup { directory, .. }
        | R::Look { directory, .. }
        | R::Create { directory, .. }
        | R::CreateUnnamed { directory, .. }
        | R::Unlink { directory, .. }
        | R::RemoveDirectory { directory, .. }
        | R::List { directory, .. } => &[*directory],
        R::Attributes(inode)
        | R::SetAttributes(inode, _)
        | R::ReadLink(inode)
        | R::Parent(inode)
        | R::Open { inode, .. }
        | R::Close(inode)
        | R::Why(inode)
        | R::ListXattrs(inode)
        | R::Content { inode, .. }
        | R::Token { inode, .. }
        | R::Punch { inode, .. }
        | R::Grow { inode, .. }
        | R::Xattr { inode, .. }
        | R::SetXattr { inode, .. }
        | R::RemoveXattr { inode, .. }
        | R::Pieces { inode, .. } => &[*inode],
        R::Link { inode, directory, .. } => &[*inode, *directory],
        R::Rename(rename) => &[rename.from_directory, rename.to_directory],
        R::CloneRange(clone) => &[clone.source, clone.target],
        R::Deltas(deltas) => return sorted(deltas.list.iter().map(|delta| delta.inode.slot())),
        R::Fetch(fetch) => return vec![fetch.slot],
        R::Prepare(prepare) => return sorted(prepare.parts.iter().map(|part| part.slot)),
        R::Settle(settle) => return sorted(settle.slots.iter().copied()),
        R::Move(moves) => return sorted(moves.iter().map(|moved| moved.inode.slot())),
        _ => &[],
    };
    sorted(inodes.iter().map(|inode| inode.slot()))
}

/// The slot that coordinates an operation when it needs slots of other managers too: one that its manager has. None for
/// what is done in one manager's slots only.
pub(crate) fn coordinator(operation: &Operation, manages: impl Fn(SlotId) -> bool) -> Option<SlotId> {
    use ManagerRequest as R;
    match operation {
        Operation::Asked(R::Fetch(_) | R::Prepare(_) | R::Settle(_) | R::Move(_)) => None,
        Operation::Asked(_) | Operation::Once(..) | Operation::Reap(_) | Operation::Split { .. } => {
            slots(operation).into_iter().find(|&slot| manages(slot))
        }
        _ => None,
    }
}

fn sorted(slots: impl Iterator<Item = SlotId>) -> Vec<SlotId> {
    let mut slots: Vec<SlotId> = slots.collect();
    slots.sort_unstable();
    slots.dedup();
    slots
}

/// Runs an operation over a transaction.
pub(crate) fn run(tx: &mut Transaction<'_>, operation: &Operation) -> Result<Done, Stop> {
    match operation {
        Operation::Asked(request) => ask(tx, request),
        Operation::Once(call, request) => once::run(tx, call, request),
        Operation::Reap(inode) => free::reap(tx, *inode),
        Operation::Split { directory, slot, way } => split::run(tx, *directory, *slot, *way),
        Operation::MakeRoot { uid, gid } => root::run(tx, *uid, *gid),
        Operation::Census(slot) => count::census(tx, *slot),
        Operation::Live(slot, stripes) => count::live(tx, *slot, stripes),
        Operation::Forget(slot, before, known) => deltas::forget(tx, *slot, *before, known),
        Operation::Orphans(slot) => free::orphans(tx, *slot),
        Operation::Decide(decide) => settle::decide(tx, decide),
        Operation::ForgetIntention(slot, intention) => settle::forget(tx, *slot, *intention),
    }
}

fn ask(tx: &mut Transaction<'_>, request: &ManagerRequest) -> Result<Done, Stop> {
    use ManagerRequest as R;
    match request {
        R::Lookup { directory, name } => lookup::run(tx, *directory, name),
        R::Attributes(inode) => attributes::run(tx, *inode),
        R::SetAttributes(inode, set) => set_attributes::run(tx, *inode, set),
        R::Create { directory, name, new, open } => create::named(tx, (*directory, name), new, *open),
        R::CreateUnnamed { directory, new } => create::unnamed(tx, *directory, new),
        R::Link { inode, directory, name } => link::run(tx, *inode, *directory, name),
        R::Unlink { directory, name } => unlink::run(tx, *directory, name),
        R::RemoveDirectory { directory, name } => remove_directory::run(tx, *directory, name),
        R::Rename(rename) => rename::run(tx, rename),
        R::ReadLink(inode) => attributes::read_link(tx, *inode),
        R::List { directory, after, limit, attributes } => list::run(tx, *directory, (*after, *limit), *attributes),
        R::Parent(inode) => attributes::parent(tx, *inode),
        R::Open { inode, .. } => open::run(tx, *inode),
        R::Close(inode) => open::close(tx, *inode),
        R::Content { inode, offset, length } => content::run(tx, *inode, *offset, *length),
        R::Deltas(deltas) => deltas::run(tx, deltas),
        R::Punch { inode, offset, length } => punch::run(tx, *inode, *offset, *length),
        R::Grow { inode, size } => grow::run(tx, *inode, *size),
        R::CloneRange(clone) => clone_range::run(tx, clone),
        R::Xattr { inode, name } => xattr::run(tx, *inode, name),
        R::SetXattr { inode, name, value, mode, clear_set_gid } => {
            let set = xattr::Set { name, value, mode: *mode, clear_set_gid: *clear_set_gid };
            xattr::set(tx, *inode, &set)
        }
        R::ListXattrs(inode) => xattr::list(tx, *inode),
        R::RemoveXattr { inode, name } => xattr::remove(tx, *inode, name),
        R::Pieces { inode, file_offset, address } => clean::pieces(tx, *inode, *file_offset, *address),
        R::Move(moves) => clean::run(tx, moves),
        R::Why(inode) => why::run(tx, *inode),
        R::Fetch(fetch) => fetch::run(tx, fetch),
        R::Prepare(prepare) => prepare::run(tx, prepare),
        R::Settle(settle) => settle::run(tx, settle),
        R::Lock { .. }
        | R::CancelLock { .. }
        | R::Unlock { .. }
        | R::TestLock { .. }
        | R::Token { .. }
        | R::Look { .. }
        | R::Forgotten(_)
        | R::Greet(_)
        | R::UnlockAll { .. }
        | R::Flush(..)
        | R::Census
        | R::Live(..)
        | R::DeadStripes(..)
        | R::Admit(_)
        | R::Audit(..)
        | R::Freshen(..)
        | R::Once(_)
        | R::Ended(..) => Err(ManagerError::Unsupported.into()),
    }
}
