//! What the page cache holds of a file, for those who would rather not go through it.

use std::os::fd::{AsRawFd, OwnedFd};

/// cachestat(2), since Linux 6.5; the number is the same on every architecture.
const CACHESTAT: libc::c_long = 451;

/// The bytes asked about: `struct cachestat_range`.
#[repr(C)]
struct Range {
    offset: u64,
    length: u64,
}

/// How many pages of them are there and what state they are in: `struct cachestat`.
#[repr(C)]
#[derive(Default)]
struct Counts {
    cached: u64,
    dirty: u64,
    writeback: u64,
    evicted: u64,
    recently_evicted: u64,
}

/// Whether the page cache certainly has nothing of these bytes. `false` where the kernel does not tell.
///
/// Asking by a read without waiting would not do: the kernel answers that it has nothing, and begins to read all of it.
pub fn has_nothing(file: &OwnedFd, offset: u64, length: usize) -> bool {
    let range = Range { offset, length: length as u64 };
    let mut counts = Counts::default();
    // SAFETY: the kernel reads one `Range` through the first pointer and writes one `Counts` through the second.
    let outcome = unsafe { libc::syscall(CACHESTAT, file.as_raw_fd(), &raw const range, &raw mut counts, 0) };
    outcome == 0 && counts.cached == 0
}
