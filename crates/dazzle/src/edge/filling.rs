//! Filling a file system, as a program would that never stops writing.
#![allow(clippy::disallowed_types, reason = "a file of a mount, as any program has it")]

use std::fs::OpenOptions;
use std::io::{self, ErrorKind, Write};
use std::path::Path;

const BLOCK_SIZE: usize = 1 << 20;

/// Appends to a file until there is no room for more; how many bytes found room.
pub(crate) fn fill(path: &Path) -> io::Result<u64> {
    let mut file = OpenOptions::new().create(true).append(true).open(path)?;
    let block = vec![0x5a; BLOCK_SIZE];
    let mut written = 0;
    loop {
        match file.write(&block) {
            Ok(count) => written += count as u64,
            Err(error) if error.kind() == ErrorKind::Interrupted => {}
            Err(error) if is_full(&error) => break,
            Err(error) => return Err(error),
        }
    }
    // What was taken from us may find no room after all; then it says so here.
    match file.sync_all() {
        Err(error) if !is_full(&error) => Err(error),
        _ => Ok(written),
    }
}

fn is_full(error: &io::Error) -> bool {
    matches!(error.kind(), ErrorKind::StorageFull | ErrorKind::QuotaExceeded)
}
