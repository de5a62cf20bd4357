//! The tail of requests that make a name (CREATE, MKNOD, MKDIR, SYMLINK, TMPFILE): supplementary groups and labels.
//!
//! Each extension starts with its size and type and is padded to eight bytes. Types up to 31 are really the number of
//! security contexts that follow; a type this crate does not know is skipped, as the kernel's rule for extensions
//! wants.

use bytes::{Buf, Bytes};

use crate::abi::{self, ExtHeader};
use crate::layout::Layout;
use crate::request::{Reason, split, string, take};

/// What came behind a request's arguments.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Extensions {
    /// The caller's group that is the directory's, if it has that group: enough to inherit set-group-id rightly.
    pub groups: Vec<u32>,
    /// Labels for the new inode; sent only if SECURITY_CTX was agreed on, which Dazzle does not ask for.
    pub security: Vec<SecurityLabel>,
}

/// An extended attribute that a security module wants on a new inode.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SecurityLabel {
    /// The attribute's name, "security.selinux" say.
    pub name: Bytes,
    /// Its value.
    pub value: Bytes,
}

impl Extensions {
    /// Parses the tail of a request; no tail is no extensions.
    pub(crate) fn parse(mut tail: Bytes) -> Result<Self, Reason> {
        let mut extensions = Self::default();
        // Every turn takes at least a header off the tail, so the loop is bounded by the request's length.
        while tail.len() >= ExtHeader::SIZE {
            let header: ExtHeader = take(&mut tail)?;
            let content_bytes = (header.size as usize).checked_sub(ExtHeader::SIZE);
            let content_bytes = content_bytes.ok_or(Reason::Extension(header.size))?;
            let content = split(&mut tail, content_bytes).map_err(|_| Reason::Extension(header.size))?;
            skip_padding(&mut tail, content_bytes);
            match header.kind {
                abi::EXT_GROUPS => extensions.take_groups(content)?,
                count if count <= abi::EXT_SECURITY_CONTEXTS_MAX => extensions.take_labels(content, count)?,
                _ => {}
            }
        }
        Ok(extensions)
    }

    fn take_groups(&mut self, mut content: Bytes) -> Result<(), Reason> {
        let count: u32 = take(&mut content)?;
        for _ in 0..count {
            self.groups.push(take(&mut content)?);
        }
        Ok(())
    }

    fn take_labels(&mut self, mut content: Bytes, count: u32) -> Result<(), Reason> {
        for _ in 0..count {
            let before = content.len();
            let context: abi::SecurityContext = take(&mut content)?;
            let name = string(&mut content)?;
            let value = split(&mut content, context.size as usize)?;
            let taken = before - content.len();
            skip_padding(&mut content, taken);
            self.security.push(SecurityLabel { name, value });
        }
        Ok(())
    }
}

/// Skips what rounds `taken` up to eight bytes. The last item's padding may be missing.
fn skip_padding(source: &mut Bytes, taken: usize) {
    let padding = taken.next_multiple_of(8) - taken;
    source.advance(padding.min(source.len()));
}
