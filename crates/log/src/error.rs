//! What can go wrong, by what the caller must do about it.

use protocol::address::LogAddress;
use protocol::id::LogId;

/// Why a writer did not do as asked.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum LogError {
    /// Another has taken over: this writer never acknowledges anything again. Restart the role.
    #[error("the log {} was taken over: its writer must stop", .0.0)]
    Fenced(LogId),
    /// More than m targets lost what they had not synced, and it is no more in memory: there is a hole in the log.
    /// Restart the role.
    #[error("the log {} lost bytes that were not yet durable: too many targets lost power", .0.0)]
    Lost(LogId),
    /// The targets have no room of the writer's kind. Nothing is lost: commit again when there is room.
    #[error("the targets are full")]
    Full,
    /// The record is larger than a stripe can hold. Split it.
    #[error("a record of {length} bytes does not fit a stripe, which takes {length_max}")]
    TooLarge {
        /// The body's bytes.
        length: usize,
        /// The largest body's bytes.
        length_max: u32,
    },
    /// The owner closed the writer.
    #[error("the log's writer was closed")]
    Closed,
    /// Too few targets, or no registry, answer. Try again.
    #[error("the log cannot be written now: {0}")]
    Unavailable(String),
}

/// Why bytes could not be read.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ReadError {
    /// Its targets say that it was deleted, or the registry forgot the log: ask for the new address, once.
    #[error("stripe {} of log {} was deleted", .0.stripe.0, .0.log.0)]
    Deleted(LogAddress),
    /// The address lies beyond the end of a sealed log: nobody was ever given it.
    #[error("{0:?} lies beyond the end of its log")]
    Beyond(LogAddress),
    /// Too few targets have right bytes now. Try again: targets may come back.
    #[error("too few targets hold {address:?}: {reason}")]
    Unreadable {
        /// What was asked for.
        address: LogAddress,
        /// What the last target said.
        reason: String,
    },
    /// Too few targets answer that should. Try again: links may be full, or machines starting; if not, it is soon known that
    /// they are away.
    #[error("too few targets that should answer do, of those that hold {address:?}: {reason}")]
    Late {
        /// What was asked for.
        address: LogAddress,
        /// What is known of the last target.
        reason: String,
    },
    /// They are not where the maps of this machine say, and nobody confirms that these are the newest. Try again: machines that
    /// vote may be starting.
    #[error(
        "{address:?} is not where the maps of this machine say, and nobody confirms that these are the newest: {reason}"
    )]
    Unconfirmed {
        /// What was asked for.
        address: LogAddress,
        /// Why nobody confirms it.
        reason: String,
    },
}

impl ReadError {
    /// Whether it is known only for now: whoever can wait tries again.
    pub fn may_pass(&self) -> bool {
        matches!(self, ReadError::Late { .. } | ReadError::Unconfirmed { .. })
    }
}

/// Why a log could not be sealed.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum SealError {
    /// Another recoverer claimed it: look at the maps again, it may be sealed already.
    #[error("another recoverer claimed the log")]
    Lost,
    /// The registry knows no such log.
    #[error("the registry knows no log {}", .0.0)]
    Unknown(LogId),
    /// Too few of the targets answer that know what was written last: these are awaited, by the names that people know, and
    /// never a clock. People may give up what is gone for good.
    #[error(
        "too few of the targets answer that know where it ends: {} awaited. Start the machines that have them. What is gone \
         for good is given up, and what was fsynced last may be lost with it, by `dazzle node remove --force` on a machine \
         that takes part, or by `dazzle up --give-up TARGET` where none does", named(.0)
    )]
    Awaits(Vec<String>),
    /// Too few targets, or no registry, answer. Wait for them.
    #[error("the log cannot be sealed now: {0}")]
    Unavailable(String),
}

fn named(targets: &[String]) -> String {
    match targets {
        [only] => format!("{only} is"),
        _ => format!("{} are", targets.join(", ")),
    }
}
