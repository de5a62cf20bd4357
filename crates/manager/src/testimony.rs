//! What a log says of itself to somebody who has no maps: who wrote it, and what the newest checkpoint table in it tells. The
//! logs of clients hold deltas, those of cleaners data and empty marks alone, those of managers all the rest
//! (`docs/format-log.md`). This file awaits.

use std::collections::BTreeSet;

use log::recovery::{self, Bodies, Scanned};
use log::{LogReader, ReadError};
use protocol::address::{LogAddress, Position};
use protocol::id::{LogId, SLOT_COUNT, StripeNumber};
use protocol::record::RecordKind;

use crate::image::{Mark, Table, decode};
use crate::start::StartError;

/// Who wrote a log.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Testimony {
    /// A manager.
    Manager {
        /// Where its newest checkpoint table lies.
        table: Option<LogAddress>,
        /// It handed slots over to another one, perhaps after that.
        hands_over: bool,
    },
    /// A client.
    Client,
    /// Nothing but data is seen: it is a cleaner's, or a client's of which nothing else is left.
    Data,
}

/// What a checkpoint table tells beside images.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TableTestimony {
    /// The sealed logs of clients of which all slots have all.
    pub replayed: BTreeSet<LogId>,
    /// Whether its writer had all slots, as far as it tells.
    pub had_all: bool,
}

/// What was seen of a log so far.
#[derive(Default)]
struct Seen {
    kinds: Vec<RecordKind>,
    mark: Option<Vec<u8>>,
}

impl Seen {
    fn has(&self, kind: RecordKind) -> bool {
        self.kinds.contains(&kind)
    }

    fn note(&mut self, scanned: &Scanned) {
        if !self.has(scanned.header.kind) {
            self.kinds.push(scanned.header.kind);
        }
        // A cleaner's mark says nothing.
        if scanned.header.kind == RecordKind::Mark && !scanned.bytes.is_empty() {
            self.mark = Some(scanned.bytes.to_vec());
        }
    }

    fn is_manager(&self) -> bool {
        use RecordKind as Kind;
        [Kind::Journal, Kind::Page, Kind::PageIndex, Kind::Checkpoint, Kind::Handover]
            .iter()
            .any(|&kind| self.has(kind))
    }
}

/// Reads `stripes`, all that are left of a log, from the last one back until they tell. What cannot be read tells nothing.
pub async fn testimony(
    reader: &LogReader,
    log: LogId,
    stripes: &BTreeSet<StripeNumber>,
) -> Result<Testimony, StartError> {
    let mut seen = Seen::default();
    for &stripe in stripes.iter().rev() {
        let range = Position::new(stripe, 0)..Position::new(stripe, u32::MAX);
        let mut note = |scanned: Scanned| seen.note(&scanned);
        match recovery::scan(reader, log, range, Bodies::Only(&[RecordKind::Mark]), &mut note).await {
            Ok(_) | Err(ReadError::Unreadable { .. } | ReadError::Deleted(_)) => {}
            Err(error) => return Err(error.into()),
        }
        if let Some(mark) = &seen.mark {
            let (table, hands_over) = (Some(decode::<Mark>(mark)?.table), seen.has(RecordKind::Handover));
            return Ok(Testimony::Manager { table, hands_over });
        }
        if seen.has(RecordKind::Deltas) {
            return Ok(Testimony::Client);
        }
    }
    let hands_over = seen.has(RecordKind::Handover);
    Ok(if seen.is_manager() { Testimony::Manager { table: None, hands_over } } else { Testimony::Data })
}

/// Reads a checkpoint table.
pub async fn table(reader: &LogReader, address: LogAddress) -> Result<TableTestimony, StartError> {
    let table = Table::decode(&reader.read(address).await?)?;
    let had_all = table.had.as_ref().is_none_or(|had| had.holds(0, SLOT_COUNT - 1));
    Ok(TableTestimony { replayed: table.replayed, had_all })
}
