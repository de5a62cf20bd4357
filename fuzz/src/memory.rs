//! Counts what is allocated, so that a target can hold true that a few bytes never ask for many.

use std::alloc::{GlobalAlloc, Layout, System};
use std::cell::Cell;

/// What any input may take beside its own multiple: tables that are built once, an error's text.
const SLACK: usize = 64 << 10;

/// The system's allocator, with a count of what is held.
struct Counting;

thread_local! {
    static HELD: Cell<isize> = const { Cell::new(0) };
    static PEAK: Cell<isize> = const { Cell::new(0) };
}

fn count(change: isize) {
    // While a thread ends its counters are gone, and nobody asks any more.
    let _ = HELD.try_with(|held| {
        held.set(held.get() + change);
        let _ = PEAK.try_with(|peak| peak.set(peak.get().max(held.get())));
    });
}

// SAFETY: every call goes to the system's allocator as it came; counting allocates nothing.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        count(layout.size() as isize);
        // SAFETY: the caller's promises are the system's conditions.
        unsafe { System.alloc(layout) }
    }

    unsafe fn dealloc(&self, place: *mut u8, layout: Layout) {
        count(-(layout.size() as isize));
        // SAFETY: as above.
        unsafe { System.dealloc(place, layout) }
    }

    unsafe fn realloc(&self, place: *mut u8, layout: Layout, size: usize) -> *mut u8 {
        count(size as isize - layout.size() as isize);
        // SAFETY: as above.
        unsafe { System.realloc(place, layout, size) }
    }
}

#[global_allocator]
static ALLOCATOR: Counting = Counting;

/// Runs `parse` over `input` bytes of others' and returns its value.
///
/// # Panics
/// When it held more at any moment than `factor` times the input and a little.
pub fn bounded<T>(input: usize, factor: usize, parse: impl FnOnce() -> T) -> T {
    let before = HELD.with(Cell::get);
    PEAK.with(|peak| peak.set(before));
    let value = parse();
    let taken = usize::try_from(PEAK.with(Cell::get) - before).unwrap_or(0);
    assert!(taken <= input * factor + SLACK, "{taken} bytes of memory for {input} of input");
    value
}
