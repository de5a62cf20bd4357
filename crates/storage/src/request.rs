//! Whether a request makes sense by itself, before anything stored is looked at.

use protocol::fragment::Part;
use protocol::storage::{Append, StorageError};

use crate::head::{blocks_full, blocks_touched, encode_header};

/// Refuses an append that contradicts itself; returns its fragment header, encoded.
pub(crate) fn check_append(append: &Append) -> Result<Box<[u8]>, StorageError> {
    if matches!(append.header.id.part, Part::Parity(_)) {
        return refuse("parity is replaced, not appended to");
    }
    check(append)
}

/// Refuses a replace that contradicts itself; returns its fragment header, encoded.
pub(crate) fn check_replace(append: &Append) -> Result<Box<[u8]>, StorageError> {
    if !matches!(append.header.id.part, Part::Parity(_)) {
        return refuse("only parity is replaced");
    }
    if append.offset != 0 || append.length() == 0 {
        return refuse("parity is written whole");
    }
    if append.header.data_lengths.iter().any(|length| *length as usize > append.length()) {
        return refuse("parity is as long as the longest data fragment");
    }
    check(append)
}

fn check(append: &Append) -> Result<Box<[u8]>, StorageError> {
    if let Some(why) = append.header.contradiction() {
        return refuse(why);
    }
    let end = append.offset as usize + append.length();
    if end > append.header.geometry.fragment_size as usize {
        return refuse("the bytes reach beyond the fragment's size");
    }
    let touched = if append.length() == 0 { 0 } else { blocks_touched(end as u32) - blocks_full(append.offset) };
    if append.checksums.len() != touched {
        return refuse(&format!("{touched} blocks need as many checksums, not {}", append.checksums.len()));
    }
    encode_header(&append.header).ok_or_else(|| StorageError::Refused("the fragment header is too large".into()))
}

fn refuse<T>(why: &str) -> Result<T, StorageError> {
    Err(StorageError::Refused(why.into()))
}
