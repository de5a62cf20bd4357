//! From the bytes of one read of the device to a `Request`.
//!
//! A request is a header of 40 bytes, the opcode's structure, then names and payload, then (since 7.38) extensions,
//! whose length the header gives. `decode.rs` knows the opcodes; here lie the frame around them and the errors.
//!
//! Invariants:
//! 1. No bytes whatever make this module panic; what does not parse is a `Malformed`.
//! 2. No payload byte is copied: names and data are slices of the buffer that was passed in.
//! 3. Bytes behind the last argument are ignored, since a newer kernel may lengthen a request.

use bytes::{Buf, Bytes};

use crate::abi::{self, InHeader, opcode};
use crate::extension::Extensions;
use crate::frame::Frame;
use crate::layout::Layout;
use crate::operation::{NodeId, Operation, Unique};
use crate::{Errno, decode, reply};

/// What the handshake settled that changes how requests read.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Dialect {
    /// SETXATTR carries its longer structure (SETXATTR_EXT was agreed on).
    pub setxattr_extended: bool,
}

/// One message of the kernel.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Request {
    /// Names the request in its reply; to be echoed with every bit.
    pub unique: Unique,
    /// The inode it is about; for operations on names, the directory.
    pub node: NodeId,
    /// The caller's file system user id.
    pub uid: u32,
    /// The caller's file system group id.
    pub gid: u32,
    /// The calling thread, or 0 where the kernel acts for itself or the caller is in another pid namespace.
    pub pid: u32,
    /// What is asked.
    pub operation: Operation,
    /// Groups and security labels that come with operations that make a name.
    pub extensions: Extensions,
}

impl Request {
    /// Parses what one read of the device returned: a whole request, no more and no less.
    pub fn parse(buffer: Bytes, dialect: Dialect) -> Result<Self, Malformed> {
        let header = header_of(&buffer)?;
        if header.len as usize != buffer.len() {
            let reason = Reason::Length { stated: header.len, read: buffer.len() };
            return Err(Malformed::of(&header, reason));
        }
        let rest = buffer.slice(InHeader::SIZE..);
        Self::assemble(&header, Body { structure: None, rest, dialect })
    }

    /// Parses a request whose parts lie apart, as the io_uring transport delivers them: the header, the opcode's
    /// structure (or room for one), and everything else.
    pub fn parse_parts(header: &[u8], structure: Bytes, payload: Bytes, dialect: Dialect) -> Result<Self, Malformed> {
        let header = header_of(header)?;
        Self::assemble(&header, Body { structure: Some(structure), rest: payload, dialect })
    }

    /// Whether the kernel sent it before: it may have been carried out already, by an earlier daemon (DESIGN §13,
    /// promise 3: a restarted daemon keeps the mount).
    pub fn is_resent(&self) -> bool {
        self.unique.0 & abi::UNIQUE_RESEND != 0
    }

    fn assemble(header: &InHeader, mut body: Body) -> Result<Self, Malformed> {
        let malformed = |reason| Malformed::of(header, reason);
        // Extensions are the tail; cut off first, they cannot be taken for a name.
        let extension_bytes = usize::from(header.total_extlen) * 8;
        let start = body.rest.len().checked_sub(extension_bytes).ok_or(malformed(Reason::Short))?;
        let extensions = Extensions::parse(body.rest.split_off(start)).map_err(malformed)?;
        let operation = decode::operation(header.opcode, &mut body).map_err(malformed)?;
        Ok(Self {
            unique: Unique(header.unique),
            node: NodeId(header.nodeid),
            uid: header.uid,
            gid: header.gid,
            pid: header.pid,
            operation,
            extensions,
        })
    }
}

fn header_of(mut bytes: &[u8]) -> Result<InHeader, Malformed> {
    let nameless = Malformed { unique: None, opcode: 0, reason: Reason::Short };
    InHeader::take(&mut bytes).ok_or(nameless)
}

/// The arguments of a request, taken off the front one by one.
pub(crate) struct Body {
    /// The opcode's structure where it lies apart; otherwise it starts `rest`.
    structure: Option<Bytes>,
    rest: Bytes,
    pub(crate) dialect: Dialect,
}

impl Body {
    /// The opcode's structure, which is always the first argument.
    pub(crate) fn structure<T: Layout>(&mut self) -> Result<T, Reason> {
        let source = self.structure.as_mut().unwrap_or(&mut self.rest);
        take(source)
    }

    /// One of a list of structures, or whatever else follows the first.
    pub(crate) fn item<T: Layout>(&mut self) -> Result<T, Reason> {
        take(&mut self.rest)
    }

    /// How many structures of type `T` are left at most.
    pub(crate) fn items_left<T: Layout>(&self) -> usize {
        self.rest.len() / T::SIZE
    }

    /// A string that ends in NUL, without it. The kernel never sends an empty one.
    pub(crate) fn string(&mut self) -> Result<Bytes, Reason> {
        string(&mut self.rest)
    }

    /// `size` bytes of payload.
    pub(crate) fn data(&mut self, size: u32) -> Result<Bytes, Reason> {
        split(&mut self.rest, size as usize)
    }
}

/// Takes a structure off the front of `source`.
pub(crate) fn take<T: Layout>(source: &mut Bytes) -> Result<T, Reason> {
    let mut view: &[u8] = source;
    let value = T::take(&mut view).ok_or(Reason::Short)?;
    source.advance(T::SIZE);
    Ok(value)
}

/// Takes a NUL-terminated, non-empty string off the front of `source`.
pub(crate) fn string(source: &mut Bytes) -> Result<Bytes, Reason> {
    let length = source.iter().position(|&byte| byte == 0).ok_or(Reason::Unterminated)?;
    if length == 0 {
        return Err(Reason::Empty);
    }
    let text = source.split_to(length);
    source.advance(1);
    Ok(text)
}

/// Takes `size` bytes off the front of `source`.
pub(crate) fn split(source: &mut Bytes, size: usize) -> Result<Bytes, Reason> {
    if source.len() < size { Err(Reason::Short) } else { Ok(source.split_to(size)) }
}

/// A message that is not FUSE 7.45. The kernel does not send such; the daemon refuses, counts and goes on.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("malformed request, opcode {opcode}: {reason}")]
pub struct Malformed {
    /// Its name, if the header could be read.
    pub unique: Option<Unique>,
    /// Its opcode, or 0.
    pub opcode: u32,
    /// What is wrong with it.
    pub reason: Reason,
}

impl Malformed {
    fn of(header: &InHeader, reason: Reason) -> Self {
        Self { unique: Some(Unique(header.unique)), opcode: header.opcode, reason }
    }

    /// The reply it gets, so that no process hangs on it; `None` if nobody waits.
    pub fn reply(&self) -> Option<Frame> {
        let silent = [opcode::FORGET, opcode::BATCH_FORGET, opcode::INTERRUPT, opcode::NOTIFY_REPLY];
        let unique = self.unique.filter(|_| !silent.contains(&self.opcode))?;
        Some(reply::error(unique, Errno::EIO))
    }
}

/// What is wrong with a malformed request.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Reason {
    /// It ends before its arguments do.
    #[error("it ends before its arguments do")]
    Short,
    /// Its header states another length than was read.
    #[error("its header says {stated} bytes, {read} were read")]
    Length {
        /// What the header says.
        stated: u32,
        /// What arrived.
        read: usize,
    },
    /// A name has no end.
    #[error("a name has no end")]
    Unterminated,
    /// A name is empty.
    #[error("a name is empty")]
    Empty,
    /// A name that must be one path component has a slash in it.
    #[error("a name has a slash in it")]
    Slash,
    /// A lock is neither read, write nor unlock.
    #[error("a lock of kind {0}")]
    LockKind(u32),
    /// An extension is shorter than its own header, or longer than what is left.
    #[error("an extension of {0} bytes")]
    Extension(u32),
}
