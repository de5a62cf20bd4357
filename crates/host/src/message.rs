//! Messages between parts, as the machine sees them: an address and something opaque.
//!
//! Parts on one machine hand each other the very value ("payloads by reference"); the edge encodes it for another
//! machine, because only the edge sees both the wire and the words of `protocol`.

use std::any::Any;
use std::fmt;

use crate::BoxFuture;

/// One running daemon.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Default)]
pub struct NodeId(pub u32);

/// The part of a node that a message is for. The numbers are given in `protocol`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Port(pub u16);

/// Where a message goes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Address {
    /// The machine.
    pub node: NodeId,
    /// The part on it.
    pub port: Port,
}

/// A message whose meaning only its two ends know.
pub struct Envelope {
    message: Box<dyn Any + Send>,
    is_urgent: bool,
}

impl Envelope {
    /// Wraps a message.
    pub fn new<T: Any + Send>(message: T) -> Self {
        Envelope { message: Box::new(message), is_urgent: false }
    }

    /// The same, not to wait behind whatever else its sender sends, and neither its answer: many wait for what it is about.
    pub fn urgent(self) -> Self {
        Envelope { is_urgent: true, ..self }
    }

    /// Whether it is not to wait.
    pub fn is_urgent(&self) -> bool {
        self.is_urgent
    }

    /// Takes the message out, or hands the envelope back when it holds something else.
    pub fn open<T: Any + Send>(self) -> Result<T, Envelope> {
        let is_urgent = self.is_urgent;
        let opened = self.message.downcast::<T>().map(|message| *message);
        opened.map_err(|message| Envelope { message, is_urgent })
    }

    /// Another one with the same message, if that is of this type: for the simulator, which doubles.
    pub fn copied<T: Any + Send + Clone>(&self) -> Option<Envelope> {
        let message = self.message.downcast_ref::<T>()?.clone();
        Some(Envelope { message: Box::new(message), is_urgent: self.is_urgent })
    }

    /// Looks at the message without taking it: for the edge, which encodes, and the simulator, which counts.
    pub fn peek(&self) -> &(dyn Any + Send) {
        &*self.message
    }
}

impl fmt::Debug for Envelope {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Envelope")
    }
}

/// No answer came: the node is dead, cut off, or has no such part. Whether the call took effect is unknown.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("no answer from node {} port {}: whether the call took effect is unknown", .0.node.0, .0.port.0)]
pub struct Unreachable(pub Address);

/// What a part registers to be called.
pub trait Handler: Send + Sync {
    /// Answers one call. The future must make no assumption about which thread polls it.
    fn handle(&self, from: NodeId, request: Envelope) -> BoxFuture<'static, Envelope>;
}
