//! Bytes by log address.

use bytes::Bytes;
use protocol::address::LogAddress;
use protocol::fragment::FragmentId;
use protocol::id::TargetId;

use crate::{Cluster, LogWriter, ReadError};

/// Reads any log. Clones share what they found damaged.
#[derive(Clone, Debug)]
pub struct LogReader {
    cluster: Cluster,
}

/// A fragment that a target should hold and does not, or holds wrong.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Damage {
    /// Which fragment.
    pub id: FragmentId,
    /// On which target.
    pub target: TargetId,
}

impl LogReader {
    /// A reader of all logs of the cluster.
    pub fn new(cluster: Cluster) -> LogReader {
        LogReader { cluster }
    }

    /// From now on bytes that are still in `writer`'s memory are read from there.
    pub fn attach(&self, writer: &LogWriter) {
        let _ = writer;
    }

    /// The bytes at `address`, verified; decoded from the other fragments where a target fails.
    pub async fn read(&self, address: LogAddress) -> Result<Bytes, ReadError> {
        let _ = &self.cluster;
        Err(ReadError::Unreadable { address, reason: "the reader is not written yet".into() })
    }

    /// What was found broken since the last time, for repair.
    pub fn take_damages(&self) -> Vec<Damage> {
        Vec::new()
    }
}
