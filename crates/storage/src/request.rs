//! Whether a request makes sense by itself, before anything stored is looked at.

use protocol::fragment::{FragmentHeader, Part};
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
    check(append)
}

fn check(append: &Append) -> Result<Box<[u8]>, StorageError> {
    check_header(&append.header)?;
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

fn check_header(header: &FragmentHeader) -> Result<(), StorageError> {
    let geometry = header.geometry;
    if !geometry.is_possible() {
        return refuse("no stripe has such a shape");
    }
    let within = match header.id.part {
        Part::Data(index) => index < geometry.data,
        Part::Copy { of, at } => of < geometry.data && at < geometry.parity,
        Part::Parity(at) => at < geometry.parity,
    };
    if !within {
        return refuse("the stripe has no such part");
    }
    let lengths = if header.ended() { usize::from(geometry.data) } else { 0 };
    if header.data_lengths.len() != lengths {
        return refuse("parity names the length of every data fragment, other parts of none");
    }
    if header.data_lengths.iter().any(|length| *length > geometry.fragment_size) {
        return refuse("a data fragment is longer than its size");
    }
    Ok(())
}

fn refuse<T>(why: &str) -> Result<T, StorageError> {
    Err(StorageError::Refused(why.into()))
}
