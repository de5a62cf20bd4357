//! Why a node cannot be called: what happened, and what to do.

use host::NodeId;

use crate::edge::trust::{TokenError, TrustError};

use super::frame::Refusal;
use super::hello::HelloError;
use super::wire::EncodeError;

/// Why a call has no answer, or a node no connection.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum NetworkError {
    /// Nobody said where the node is.
    #[error("no address of node {} is known, and it has not called either: see whether it is up", .0.0)]
    NoAddress(NodeId),
    /// The address is not understood by the resolver.
    #[error("{address} does not resolve ({why}): correct the name, or let /etc/hosts or the DNS know it")]
    Unresolved {
        /// What was looked up.
        address: String,
        /// What the resolver says.
        why: String,
    },
    /// Nobody listens there.
    #[error("{address} refuses connections: start dazzle there, or correct the address or port")]
    Refused {
        /// Where.
        address: String,
    },
    /// The way there is broken.
    #[error("{address} cannot be reached ({why}): look at the network, its firewall, and whether the machine is up")]
    NoWay {
        /// Where.
        address: String,
        /// What the kernel says.
        why: String,
    },
    /// It took too long.
    #[error("{address} does not answer in time: look at the network, its firewall, and whether the machine is up")]
    TimedOut {
        /// Where.
        address: String,
    },
    /// Something listens that is no daemon.
    #[error(
        "{address} takes connections and then says nothing for {seconds} s: either something else than Dazzle listens there, \
         or that daemon stands still; check the address and port, and ask there with `dazzle status`"
    )]
    Silent {
        /// Where.
        address: String,
        /// How long it was listened to.
        seconds: u64,
    },
    /// It closed.
    #[error(
        "{address} hung up before it had answered: either something else than Dazzle listens there, or that daemon stops or \
         has too many guests; check the address and port, then try again"
    )]
    HungUp {
        /// Where.
        address: String,
    },
    /// One end does not believe the other.
    #[error("{address}: {why}")]
    Trust {
        /// Where.
        address: String,
        /// Why not.
        why: TrustError,
    },
    /// The programs do not understand each other.
    #[error("{address}: {why}")]
    Hello {
        /// Where.
        address: String,
        /// Why not.
        why: HelloError,
    },
    /// Two machines are the same node.
    #[error(
        "node {} runs on another machine too, which answers: stop one of the two; if one is a copy of the other's disk, \
         let it join anew as a node of its own",
        .node.0
    )]
    Duplicate {
        /// Which.
        node: NodeId,
    },
    /// The connection ended.
    #[error("the connection to node {} ended before the answer: whether the call took effect is unknown", .0.0)]
    Lost(NodeId),
    /// The other end says why.
    #[error("node {} refused the call: {why}", .node.0)]
    NoAnswer {
        /// Who.
        node: NodeId,
        /// What it says.
        why: Refusal,
    },
    /// The answer makes no sense.
    #[error("node {}'s answer does not decode: upgrade the older of the two", .0.0)]
    Garbled(NodeId),
    /// What was to be said is too much.
    #[error("{0}")]
    TooLarge(EncodeError),
    /// Others would not find this machine there.
    #[error(
        "{address} is no address that other machines can call: give one of this machine's own, such as \"192.0.2.7:4747\""
    )]
    Nowhere {
        /// Where.
        address: String,
    },
    /// Nobody can be listened to.
    #[error("{address} cannot be listened on ({why}): choose an address of this machine, and a port that is free")]
    NoListening {
        /// Where.
        address: String,
        /// What the kernel says.
        why: String,
    },
}

impl NetworkError {
    /// Whether the other end was there and said what no waiting changes: somebody must upgrade or correct something.
    pub fn is_final(&self) -> bool {
        match self {
            NetworkError::Hello { why, .. } => matches!(why, HelloError::Older { .. } | HelloError::Newer { .. }),
            NetworkError::Trust { why, .. } => matches!(why, TrustError::WrongCluster { .. } | TrustError::Foreign),
            _ => false,
        }
    }

    /// What the kernel says of `address`.
    pub(super) fn of(address: &str, error: &std::io::Error) -> NetworkError {
        let address = address.to_owned();
        if let Some(tls) = error.get_ref().and_then(|inner| inner.downcast_ref::<rustls::Error>()) {
            return NetworkError::Trust { address, why: TrustError::of(tls) };
        }
        match error.kind() {
            std::io::ErrorKind::ConnectionRefused => NetworkError::Refused { address },
            std::io::ErrorKind::TimedOut => NetworkError::TimedOut { address },
            std::io::ErrorKind::UnexpectedEof
            | std::io::ErrorKind::ConnectionReset
            | std::io::ErrorKind::ConnectionAborted
            | std::io::ErrorKind::BrokenPipe => NetworkError::HungUp { address },
            _ => NetworkError::NoWay { address, why: error.to_string() },
        }
    }
}

/// Why a machine does not join.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum JoinError {
    /// The cluster is not reached, or is not the right one.
    #[error("{0}")]
    Network(#[from] NetworkError),
    /// The token cannot be used.
    #[error("{0}")]
    Token(#[from] TokenError),
    /// Our own key or what came back cannot be used.
    #[error("{0}")]
    Trust(#[from] TrustError),
    /// The cluster says neither yes nor no.
    #[error(
        "{address} has not answered yet, and is waited for no longer: whether the cluster knows of this machine now is \
         unknown, and does no harm. Look there with `dazzle status`, then join again with the same token"
    )]
    Undecided {
        /// Where.
        address: String,
    },
    /// The cluster says no.
    #[error("{0}")]
    Refused(#[from] super::join::JoinRefusal),
}
