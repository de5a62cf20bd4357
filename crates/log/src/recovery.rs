//! A crashed writer's log: sealing it, finding its newest mark, scanning its records.

use std::ops::Range;

use bytes::Bytes;
use protocol::address::{LogAddress, Position};
use protocol::id::{LogId, StripeNumber};
use protocol::record::{RecordHeader, RecordKind};

use crate::{Cluster, LogReader, ReadError, SealError, scan, seal};

/// A record as a scan meets it.
#[derive(Clone, Debug)]
pub struct Scanned {
    /// Its header, verified as [`Bodies`] say.
    pub header: RecordHeader,
    /// Where it begins.
    pub place: Position,
    /// Where its body lies.
    pub body: LogAddress,
    /// The body; empty if [`Bodies`] leave it out.
    pub bytes: Bytes,
}

/// Of which records a scan brings the bodies along.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Bodies {
    /// Of all.
    All,
    /// Of all but data: of these only headers are read.
    NotOfData,
    /// Of these kinds. A record's checksum covers its body, so that what is passed over, other than data, is vouched for by the
    /// checksums of its header's block alone.
    Only(&'static [RecordKind]),
}

impl Bodies {
    /// Whether the body of a record of this kind is brought along.
    pub fn brings(self, kind: RecordKind) -> bool {
        match self {
            Bodies::All => true,
            Bodies::NotOfData => kind != RecordKind::Data,
            Bodies::Only(kinds) => kinds.contains(&kind),
        }
    }
}

/// Takes the log from its writer, dead or not, and fixes its length (DESIGN §3, fencing and sealing). A log that is
/// sealed already just tells its length. After any error but [`SealError::Unknown`] call it again.
pub async fn seal(cluster: &Cluster, log: LogId) -> Result<Position, SealError> {
    seal::seal(cluster, log).await
}

/// Whether as many targets answer this node as sealing the log takes.
pub async fn can_be_sealed(cluster: &Cluster, log: LogId) -> bool {
    seal::can_be_fenced(cluster, log).await
}

/// The newest mark that the log's fragments name: [`Position::START`] if none does. Ask of sealed logs only.
pub async fn newest_mark(cluster: &Cluster, log: LogId) -> Result<Position, ReadError> {
    scan::newest_mark(cluster, log).await
}

/// Visits the records of `log` that begin in `range`, in order. Stripes that are gone are passed over, and told: whoever
/// knows that none of them was ever to be deleted has lost them.
pub async fn scan(
    reader: &LogReader,
    log: LogId,
    range: Range<Position>,
    bodies: Bodies,
    visit: &mut (dyn FnMut(Scanned) + Send),
) -> Result<Vec<StripeNumber>, ReadError> {
    scan::scan(reader, log, range, bodies, visit).await
}

/// The records of a run: bytes of one stripe that begin with a record and end behind one.
pub async fn scan_run(reader: &LogReader, run: LogAddress, bodies: Bodies) -> Result<Vec<Scanned>, ReadError> {
    scan::scan_run(reader, run, bodies).await
}
