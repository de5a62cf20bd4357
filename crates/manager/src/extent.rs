//! Virtual extents: the one place that knows where bytes of a file lie in a log (DESIGN §5, slot state).

use protocol::address::LogAddress;
use protocol::id::{LogId, SlotId, StripeNumber};
use serde::{Deserialize, Serialize};

/// Names a shared virtual extent: the log address of its first byte when it came to be shared. Nobody allocates it, and
/// it never repeats, since a byte of a log belongs to one virtual extent at most.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub(crate) struct SharedId {
    pub(crate) log: LogId,
    pub(crate) stripe: StripeNumber,
    pub(crate) offset: u32,
}

impl SharedId {
    /// The id of a virtual extent that lies at `address` when it is first shared.
    pub(crate) fn of(address: LogAddress) -> SharedId {
        SharedId { log: address.log, stripe: address.stripe, offset: address.offset }
    }
}

/// A virtual extent with several references.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Shared {
    /// Where it lies now: the cleaner may have moved it.
    pub(crate) address: LogAddress,
    /// How many extents refer to it.
    pub(crate) references: u32,
}

/// A part of a shared virtual extent.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Reference {
    /// The slot that keeps the virtual extent.
    pub(crate) slot: SlotId,
    /// Which.
    pub(crate) id: SharedId,
    /// Bytes of it before the part.
    pub(crate) skip: u32,
    /// Bytes of the part.
    pub(crate) length: u32,
}

/// What an extent record holds.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) enum Backing {
    /// The virtual extent itself, which has this one reference.
    Owned(LogAddress),
    /// A part of a shared one.
    Shared(Reference),
}

/// Whether bytes can lie there: no stripe has an end that its offsets do not reach. Addresses come from other nodes, and
/// whoever keeps one counts with it.
pub(crate) fn is_possible(address: LogAddress) -> bool {
    address.offset.checked_add(address.length).is_some()
}

impl Backing {
    /// How many bytes.
    pub(crate) fn length(self) -> u32 {
        match self {
            Backing::Owned(address) => address.length,
            Backing::Shared(reference) => reference.length,
        }
    }

    /// The `length` bytes that begin `skip` bytes into it.
    pub(crate) fn part(self, skip: u32, length: u32) -> Backing {
        match self {
            Backing::Owned(address) => Backing::Owned(address.part(skip, length)),
            Backing::Shared(reference) => {
                assert!(u64::from(skip) + u64::from(length) <= u64::from(reference.length), "a part lies within");
                Backing::Shared(Reference { skip: reference.skip + skip, length, ..reference })
            }
        }
    }
}

/// A piece of a file's map: the bytes `start..end` of the file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Mapped {
    pub(crate) start: u64,
    pub(crate) end: u64,
    pub(crate) backing: Backing,
}
