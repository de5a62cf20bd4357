//! Which tokens of others stand against an operation. Decides, never awaits.
//!
//! | operation | of its own slots | of slots that it meets on its way |
//! |---|---|---|
//! | looks names up, lists, opens | nobody else holds the slot whole | a file's attributes: nobody else holds its slot whole |
//! | changes names, attributes | nobody else holds the slot whole | nobody else holds whole what it changes |
//! | makes an inode | the same | nothing: nobody can know a new inode |
//! | works on content | and nobody else holds a token that stands against it | |
//! | looks at an inode | nothing; a file's attributes as above | |
//! | changes an inode's record, in whatever way | and nobody else holds anything of it | the same |
//! | tells when a file was read | nothing: who keeps its attributes may learn of that late | |
//! | deltas, cleaning, closing | nothing: who sends these holds what it needs, or compares addresses | |

use std::collections::BTreeSet;

use protocol::file::Attributes;
use protocol::id::{InodeId, SlotId};
use protocol::intention::{Admission, IntentionId, Need, Part};
use protocol::manager::{Answer, ManagerRequest, has_content};
use protocol::token::TokenMode;

use crate::key::{self, Subject};
use crate::ops::{self, Done, Operation};
use crate::state::SlotState;
use crate::tokens::Call;
use crate::transaction::Changes;

/// How an operation uses the slots that it locks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Use {
    /// As no client can notice.
    Unnoticed,
    /// Its own slots only; what else it meets it looks at, or makes.
    Own,
    /// All.
    All,
}

fn usage(operation: &Operation) -> Use {
    use ManagerRequest as R;
    let (Operation::Asked(request) | Operation::Once(_, request)) = operation else { return Use::Unnoticed };
    match request {
        R::Lookup { .. } | R::List { .. } | R::Open { .. } | R::Create { .. } | R::CreateUnnamed { .. } => Use::Own,
        R::SetAttributes(_, set) if set.told_reading().is_some() => Use::Unnoticed,
        R::SetAttributes(..)
        | R::Link { .. }
        | R::Unlink { .. }
        | R::RemoveDirectory { .. }
        | R::Rename(_)
        | R::Content { .. }
        | R::Punch { .. }
        | R::Grow { .. }
        | R::CloneRange(_)
        | R::SetXattr { .. }
        | R::RemoveXattr { .. } => Use::All,
        _ => Use::Unnoticed,
    }
}

/// The files on whose content it works, and how.
fn content(operation: &Operation) -> [Option<(InodeId, TokenMode)>; 2] {
    use ManagerRequest as R;
    use TokenMode::{Read, Write};
    let (Operation::Asked(request) | Operation::Once(_, request)) = operation else { return [None; 2] };
    match request {
        R::Content { inode, .. } => [Some((*inode, Read)), None],
        R::Punch { inode, .. } | R::Grow { inode, .. } => [Some((*inode, Write)), None],
        R::SetAttributes(inode, set) if set.size.is_some() || set.modified.is_some() => [Some((*inode, Write)), None],
        R::CloneRange(clone) => [Some((clone.target, Write)), Some((clone.source, Read))],
        _ => [None; 2],
    }
}

/// Whether it makes a file that whoever asks has open from then on.
pub(crate) fn makes_open(operation: &Operation) -> bool {
    let (Operation::Asked(request) | Operation::Once(_, request)) = operation else { return false };
    matches!(request, ManagerRequest::Create { open: true, .. } | ManagerRequest::CreateUnnamed { .. })
}

/// The inodes that changes are about, whose home slots need not be where these are: of these, nobody else may keep
/// attributes, or names. Names of a split directory, and what they come to, lie in other slots than its own record.
fn changed<'a>(keys: impl Iterator<Item = &'a [u8]>) -> impl Iterator<Item = InodeId> {
    keys.filter_map(|key| match key::subject(key) {
        Some(Subject::Inode(inode) | Subject::Entry(inode, _) | Subject::Holding(inode)) => Some(inode),
        _ => None,
    })
}

/// What an operation over slots of several managers needs of each. Clients keep inodes, names and attributes in memory;
/// of what is changed otherwise in slots that it meets, none can notice anything.
pub(crate) fn of_span(operation: &Operation, parts: &[Part], node: u32) -> Admission {
    let usage = usage(operation);
    if usage == Use::Unnoticed {
        return Admission { node, needs: Vec::new() };
    }
    let own = ops::slots(operation);
    let kept =
        |key: &[u8]| matches!(key::subject(key), Some(Subject::Inode(_) | Subject::Entry(..) | Subject::Xattr(_)));
    let notices = |part: &Part| usage == Use::All && part.changes.iter().any(|(key, _)| kept(key));
    let mut slots: Vec<SlotId> = parts.iter().filter(|part| notices(part)).map(|part| part.slot).collect();
    slots.extend(own);
    slots.sort_unstable();
    slots.dedup();
    let need = |slot: SlotId| {
        let content = content(operation).into_iter();
        let keys = parts.iter().flat_map(|part| &part.changes).map(|(key, _)| &key[..]);
        let needed = content.flatten().chain(changed(keys).map(|inode| (inode, TokenMode::Names)));
        let needed: BTreeSet<_> = needed.filter(|(inode, _)| inode.slot() == slot).collect();
        Need { slot, content: needed.into_iter().collect() }
    };
    Admission { node, needs: slots.into_iter().map(need).collect() }
}

/// Whether nobody but `node` holds what stands against a need.
pub(crate) fn meet(state: &SlotState, need: &Need, node: u32) -> Result<(), Call> {
    assert_eq!(state.id, need.slot, "a need is met where it is");
    state.tokens.admit_look(state.id, node)?;
    let own = need.content.iter().filter(|(inode, _)| inode.slot() == state.id);
    own.copied().try_for_each(|(inode, mode)| match mode {
        TokenMode::Names => state.tokens.admit_change(state.id, node, inode),
        TokenMode::Read | TokenMode::Write => state.tokens.admit_content(state.id, node, inode, mode),
    })
}

/// Whether nobody but `node` keeps anything of the inodes that an operation changes. What a part of one over several
/// managers changes is among its needs.
pub(crate) fn admit_changes(
    held: &[&SlotState],
    operation: &Operation,
    changes: &[(SlotId, Changes)],
    node: u32,
) -> Result<(), Call> {
    if usage(operation) == Use::Unnoticed {
        return Ok(());
    }
    let keys = changes.iter().flat_map(|(_, changes)| changes.keys()).map(|key| &key[..]);
    changed(keys).try_for_each(|inode| {
        let home = held.iter().find(|state| state.id == inode.slot());
        // Who changes names has looked into the directory by its record.
        let home = home.expect("the home slot of what changes is locked");
        home.tokens.admit_change(home.id, node, inode)
    })
}

/// What a part of an operation over several managers' slots brings along.
fn admission(operation: &Operation) -> Option<(&Admission, IntentionId)> {
    match operation {
        Operation::Asked(ManagerRequest::Prepare(prepare)) => Some((&prepare.admission, prepare.intention)),
        Operation::Decide(decide) => Some((&decide.admission, decide.intention)),
        _ => None,
    }
}

/// Whether whoever carries it out may wait for clients: not while it holds parts, for what a client has to store may
/// need these.
pub(crate) fn may_wait(operation: &Operation) -> bool {
    admission(operation).is_none()
}

/// Whether some of the slots cannot be used yet as the operation wants.
pub(crate) fn is_early<'a>(mut held: impl Iterator<Item = &'a SlotState>, operation: &Operation) -> bool {
    let notices = match admission(operation) {
        Some((admission, _)) => !admission.needs.is_empty(),
        // Who holds an inode open that has no name, they may not have said yet.
        None => usage(operation) != Use::Unnoticed || matches!(operation, Operation::Reap(_)),
    };
    notices && held.any(|state| state.tokens.is_unheard())
}

/// Whether `node` may carry out the operation now, on the slots that are locked for it.
pub(crate) fn admit<'a>(
    held: impl Iterator<Item = &'a mut SlotState>,
    operation: &Operation,
    node: u32,
) -> Result<(), Call> {
    if let Some((admission, intention)) = admission(operation) {
        // What is held was admitted when it was prepared: what was granted since takes effect behind it.
        let mut fresh = held.filter(|state| state.intentions.held(intention).is_none());
        return fresh.try_for_each(|state| {
            let mut needs = admission.needs.iter().filter(|need| need.slot == state.id);
            needs.try_for_each(|need| meet(state, need, admission.node))
        });
    }
    let usage = usage(operation);
    if usage == Use::Unnoticed {
        return Ok(());
    }
    let own = if usage == Use::Own { ops::slots(operation) } else { Vec::new() };
    for state in held {
        if usage == Use::All || own.contains(&state.id) {
            state.tokens.admit(state.id, node)?;
        }
        for (inode, mode) in content(operation).into_iter().flatten().filter(|(inode, _)| inode.slot() == state.id) {
            state.tokens.admit_content(state.id, node, inode, mode)?;
        }
    }
    Ok(())
}

/// Whether the answer to `node` tells what is so. A listing leaves out attributes of which that is not known.
pub(crate) fn admit_answer(held: &[&SlotState], done: &mut Done, node: u32) -> Result<(), Call> {
    let tokens = |slot: SlotId| held.iter().find(|state| state.id == slot).map(|state| &state.tokens);
    let Done::Answer(answer) = done else { return Ok(()) };
    match answer {
        Answer::Entry(attributes, _) | Answer::Attributes(attributes) if has_content(attributes.kind) => {
            let slot = attributes.inode.slot();
            tokens(slot).map_or(Ok(()), |tokens| tokens.admit_look(slot, node))
        }
        Answer::Listing(entries, _) => {
            for entry in entries {
                let may_lag = |attributes: &Attributes| {
                    let inode = attributes.inode;
                    let writer = tokens(inode.slot()).and_then(|tokens| tokens.writer_besides(inode, node));
                    has_content(attributes.kind) && writer.is_some()
                };
                entry.attributes = entry.attributes.filter(|attributes| !may_lag(attributes));
            }
            Ok(())
        }
        _ => Ok(()),
    }
}
