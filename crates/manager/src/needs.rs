//! Which tokens of others stand against an operation. Decides, never awaits.
//!
//! | operation | of its own slots | of slots that it meets on its way |
//! |---|---|---|
//! | looks names up, lists, opens | nobody else holds the slot whole | a file's attributes: nobody else holds its slot whole |
//! | changes names, attributes | nobody else holds the slot whole | nobody else holds whole what it changes |
//! | makes an inode | the same | nothing: nobody can know a new inode |
//! | works on content | and nobody else holds a token that stands against it | |
//! | looks at an inode | nothing; a file's attributes as above | |
//! | deltas, cleaning, closing | nothing: who sends these holds what it needs, or compares addresses | |

use protocol::file::Attributes;
use protocol::id::{InodeId, SlotId};
use protocol::manager::{Answer, ManagerRequest, has_content};
use protocol::token::TokenMode;

use crate::ops::{self, Done, Operation};
use crate::state::SlotState;
use crate::tokens::Call;

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
    let Operation::Asked(request) = operation else { return Use::Unnoticed };
    match request {
        R::Lookup { .. } | R::List { .. } | R::Open(_) | R::Create { .. } | R::CreateUnnamed { .. } => Use::Own,
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
    let Operation::Asked(request) = operation else { return [None; 2] };
    match request {
        R::Content { inode, .. } => [Some((*inode, Read)), None],
        R::Punch { inode, .. } | R::Grow { inode, .. } => [Some((*inode, Write)), None],
        R::SetAttributes(inode, set) if set.size.is_some() || set.modified.is_some() => [Some((*inode, Write)), None],
        R::CloneRange(clone) => [Some((clone.target, Write)), Some((clone.source, Read))],
        _ => [None; 2],
    }
}

/// Whether `node` may carry out the operation now, on the slots that are locked for it.
pub(crate) fn admit<'a>(
    held: impl Iterator<Item = &'a mut SlotState>,
    operation: &Operation,
    node: u32,
) -> Result<(), Call> {
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
