//! What the machine that sees to lost redundancy asks of the others: rebuilding is spread over all (DESIGN §9).
//!
//! Whoever stores listens on [`REBUILD_PORT`]. To ask twice, or two machines at once, does no harm: both write the same bytes.

use serde::{Deserialize, Serialize};

use crate::id::{LogId, StripeNumber};

/// The port where it is asked.
pub const REBUILD_PORT: u16 = 6;

/// Make again what the targets of an ended stripe lack.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Refill {
    /// The log.
    pub log: LogId,
    /// The stripe of it.
    pub stripe: StripeNumber,
    /// How many data bytes it has, which parity tells no more where all of it is lost.
    pub length: u32,
}

/// How many fragments were made again: none where too few targets answer, or the stripe was deleted meanwhile.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Refilled(pub u32);
