//! Stripes as things to list, verify, repair and delete: for cleaner, check and status.

use protocol::id::{GroupId, LogId, StripeNumber};

use crate::{Cluster, Damage, LogReader, ReadError};

/// What the targets hold of one stripe.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct StripeState {
    /// The log.
    pub log: LogId,
    /// The stripe of it.
    pub number: StripeNumber,
    /// Its data bytes, as far as the answering targets tell.
    pub length: u32,
    /// Whether it has its parity. An open stripe belongs to its writer or recoverer.
    pub ended: bool,
    /// The group in which it lies.
    pub group: GroupId,
    /// Fragments that should be there and are not.
    pub missing: Vec<Damage>,
}

/// Something wrong with a stripe.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Problem {
    /// A fragment is absent, or its target does not answer.
    Missing(Damage),
    /// Bytes do not match their checksums.
    Checksum(Damage),
    /// A parity fragment is not the parity of the data.
    Parity(Damage),
}

/// All stripes of one log, or of all logs, in order.
pub async fn list(cluster: &Cluster, log: Option<LogId>) -> Vec<StripeState> {
    let _ = (cluster, log);
    Vec::new()
}

/// Deletes stripes on all targets that answer; the others compare lists when they come back.
pub async fn delete(cluster: &Cluster, stripes: &[(LogId, StripeNumber)]) {
    let _ = (cluster, stripes);
}

/// Reads a whole stripe and says what is wrong with it.
pub async fn verify(cluster: &Cluster, log: LogId, stripe: StripeNumber) -> Result<Vec<Problem>, ReadError> {
    let _ = (cluster, log, stripe);
    Ok(Vec::new())
}

/// Makes the fragments of an ended stripe that are missing or wrong again. Returns how many.
pub async fn repair(
    cluster: &Cluster,
    reader: &LogReader,
    log: LogId,
    stripe: StripeNumber,
) -> Result<usize, ReadError> {
    let _ = (cluster, reader, log, stripe);
    Ok(0)
}
