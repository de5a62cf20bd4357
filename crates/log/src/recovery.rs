//! A crashed writer's log: sealing it, finding its newest mark, scanning its records.

use bytes::Bytes;
use protocol::address::{LogAddress, Position};
use protocol::id::LogId;
use protocol::record::RecordHeader;

use crate::{Cluster, LogReader, ReadError, SealError};

/// A record as a scan meets it.
#[derive(Clone, Debug)]
pub struct Scanned {
    /// Its header, verified.
    pub header: RecordHeader,
    /// Where it begins.
    pub place: Position,
    /// Where its body lies.
    pub body: LogAddress,
    /// The body; empty for data records unless [`DataBodies::Read`] was asked for.
    pub bytes: Bytes,
}

/// Whether a scan brings the bodies of data records along.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum DataBodies {
    /// Only headers are read.
    Skip,
    /// Bodies too.
    Read,
}

/// Takes the log from its writer, dead or not, and fixes its length (DESIGN §3, fencing and sealing). A log that is
/// sealed already just tells its length.
pub async fn seal(cluster: &Cluster, log: LogId) -> Result<Position, SealError> {
    let _ = (cluster, log);
    Err(SealError::Unavailable("sealing is not written yet".into()))
}

/// The newest mark that the log's fragments name: [`Position::START`] if none does. Ask of sealed logs only.
pub async fn newest_mark(cluster: &Cluster, log: LogId) -> Result<Position, ReadError> {
    let _ = (cluster, log);
    Ok(Position::START)
}

/// Visits the records of `log` that begin in `from..to`, in order.
pub async fn scan(
    reader: &LogReader,
    log: LogId,
    range: std::ops::Range<Position>,
    bodies: DataBodies,
    visit: &mut (dyn FnMut(Scanned) + Send),
) -> Result<(), ReadError> {
    let _ = (reader, log, range, bodies, visit);
    Ok(())
}
