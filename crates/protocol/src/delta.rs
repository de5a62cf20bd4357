//! Deltas: records that say which bytes of which file now live at which log address (Zebra 3.3).
//!
//! A client appends them to its log behind the data that they name, and sends them to the inodes' managers. Either way
//! they are applied once, in log order for each slot: the slot keeps how far it has them (DESIGN §5, *applied*).

use bytes::Bytes;
use serde::{Deserialize, Serialize};

use crate::address::LogAddress;
use crate::file::Time;
use crate::id::InodeId;

/// One change of one file by its writer.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Delta {
    /// The file.
    pub inode: InodeId,
    /// What changed.
    pub change: Change,
}

/// What a delta changes.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Change {
    /// Bytes of the file from `offset` now live at `address`; what lay there before is dead.
    Extent {
        /// Where in the file.
        offset: u64,
        /// Where in the log, and how many bytes.
        address: LogAddress,
    },
    /// The whole content of a small file, kept in its inode. All extents are dead.
    Inline {
        /// The content.
        bytes: Bytes,
    },
    /// Size and times after the writes so far. Size only grows by this: truncation is a manager's operation.
    Wrote {
        /// The size is at least this, in bytes.
        size: u64,
        /// When it was last written. Becomes the modification and change time unless these are already later.
        time: Time,
    },
    /// When it was last read.
    Read {
        /// The access time.
        time: Time,
    },
}
