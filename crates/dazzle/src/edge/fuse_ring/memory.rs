//! The memory that requests over io_uring come in, and their answers go out of.
//!
//! 1. It lies at the same place in the process after this one (`exec`), for the kernel remembers where an entry lies: a request
//!    that was not answered is answered there.
//! 2. What an entry holds belongs to the kernel from when it is given away until its command is completed, and to the one
//!    thread that serves its queue from then on.
//! 3. Pages that nothing was ever written to take no memory.

use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use std::sync::Arc;

use fuse::ring::HEAD_BYTES;
use rustix::fs::MemfdFlags;
use rustix::mm::{MapFlags, ProtFlags};
use serde::{Deserialize, Serialize};

/// Where it is tried to lie, one place after the other: far from where Linux puts anything by itself, on every processor with
/// addresses of 47 bits or more.
const PLACES: std::ops::Range<u64> = 0x2000_0000_0000..0x3000_0000_0000;
const PLACE_STEP: u64 = 0x0100_0000_0000;
const PAGE_BYTES: usize = 4096;

const _: () = assert!(HEAD_BYTES <= PAGE_BYTES);

/// What it is divided into, and where it lies.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(in crate::edge) struct Shape {
    /// How many queues there are.
    pub(super) queues: u16,
    /// How many entries each has at most.
    pub(super) entries: u32,
    /// The room for a payload: whole pages.
    pub(super) payload_bytes: u32,
    place: u64,
}

impl Shape {
    pub(super) fn new(queues: u16, entries: u32, payload_bytes: u32) -> Shape {
        let payload_bytes = payload_bytes.next_multiple_of(PAGE_BYTES as u32);
        Shape { queues, entries, payload_bytes, place: 0 }
    }

    fn entry_bytes(&self) -> usize {
        PAGE_BYTES + self.payload_bytes as usize
    }

    fn bytes(&self) -> usize {
        usize::from(self.queues) * self.entries as usize * self.entry_bytes()
    }
}

/// The memory of all entries of a mount.
pub(in crate::edge) struct EntryMemory {
    shape: Shape,
    file: OwnedFd,
}

/// Where one entry lies, for a command that gives it to the kernel: two iovecs.
#[repr(C)]
pub(super) struct Ranges([libc::iovec; 2]);

// SAFETY: addresses in memory that lives as long as the mount; who reads or writes there is said above.
unsafe impl Send for Ranges {}

impl EntryMemory {
    pub(super) fn new(shape: Shape) -> io::Result<EntryMemory> {
        let file = rustix::fs::memfd_create("dazzle requests", MemfdFlags::CLOEXEC)?;
        rustix::fs::ftruncate(&file, shape.bytes() as u64)?;
        let mut refused = io::Error::other("no place was tried");
        for place in PLACES.step_by(PLACE_STEP as usize) {
            let shape = Shape { place, ..shape };
            match map(&shape, file.as_fd()) {
                Ok(()) => return Ok(EntryMemory { shape, file }),
                Err(error) => refused = error,
            }
        }
        Err(refused)
    }

    /// That of the process before, where it was.
    pub(in crate::edge) fn adopt(shape: Shape, file: OwnedFd) -> io::Result<EntryMemory> {
        map(&shape, file.as_fd())?;
        Ok(EntryMemory { shape, file })
    }

    pub(super) fn shape(&self) -> Shape {
        self.shape
    }

    pub(super) fn descriptor(&self) -> i32 {
        self.file.as_raw_fd()
    }

    /// The part of one queue.
    ///
    /// # Safety
    /// Whoever had the same part before has it no more, and no thread serves that queue.
    pub(super) unsafe fn part(self: &Arc<Self>, queue: u16) -> QueueMemory {
        assert!(queue < self.shape.queues, "there is no such queue");
        QueueMemory { whole: self.clone(), queue }
    }
}

/// The memory of one queue's entries, for the one thread that serves it.
pub(super) struct QueueMemory {
    whole: Arc<EntryMemory>,
    queue: u16,
}

impl QueueMemory {
    fn start(&self, index: u32) -> *mut u8 {
        let shape = &self.whole.shape;
        assert!(index < shape.entries, "there is no such entry");
        let number = usize::from(self.queue) * shape.entries as usize + index as usize;
        (shape.place as usize + number * shape.entry_bytes()) as *mut u8
    }

    /// Where an entry lies.
    pub(super) fn ranges(&self, index: u32) -> Ranges {
        let start = self.start(index);
        let range = |start: *mut u8, bytes| libc::iovec { iov_base: start.cast(), iov_len: bytes };
        // SAFETY: an entry is longer than its first page.
        let room = unsafe { start.add(PAGE_BYTES) };
        Ranges([range(start, HEAD_BYTES), range(room, self.whole.shape.payload_bytes as usize)])
    }

    /// What an entry holds: its head, and the room for its payload.
    ///
    /// # Safety
    /// The kernel does not have the entry.
    pub(super) unsafe fn entry(&mut self, index: u32) -> (&mut [u8; HEAD_BYTES], &mut [u8]) {
        let start = self.start(index);
        // SAFETY: the memory is mapped for as long as the whole, starts zeroed, and nobody else has this part: not another
        // thread, for self is the part, and not the kernel, by the caller's promise.
        unsafe {
            let room = std::slice::from_raw_parts_mut(start.add(PAGE_BYTES), self.whole.shape.payload_bytes as usize);
            (&mut *start.cast(), room)
        }
    }
}

impl Drop for EntryMemory {
    fn drop(&mut self) {
        // SAFETY: mapped in `new` or `adopt`; whoever had a reference had it from self.
        let _ = unsafe { rustix::mm::munmap(self.shape.place as *mut _, self.shape.bytes()) };
    }
}

/// Maps the memory to its place, unless something lies there.
fn map(shape: &Shape, file: BorrowedFd<'_>) -> io::Result<()> {
    let (protection, flags) = (ProtFlags::READ | ProtFlags::WRITE, MapFlags::SHARED | MapFlags::FIXED_NOREPLACE);
    let place = shape.place as *mut _;
    // SAFETY: nothing is replaced: where something lies already the call fails, or on Linux before 4.17, where the place is but
    // wished for, another one is taken and given back.
    unsafe {
        let found = rustix::mm::mmap(place, shape.bytes(), protection, flags, file, 0)?;
        if found != place {
            rustix::mm::munmap(found, shape.bytes())?;
            return Err(io::Error::other("something lies where requests are to be"));
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_an_entry_holds_is_found_where_it_was_by_whoever_maps_it_next() {
        let memory = Arc::new(EntryMemory::new(Shape::new(2, 3, 5000)).expect("there is a place"));
        assert_eq!(memory.shape().payload_bytes, 8192);
        // SAFETY: nobody else has it, neither thread nor kernel; likewise below.
        let mut part = unsafe { memory.part(1) };
        let (head, room) = part.entry_of_nobody(2);
        (head[0], room[8191]) = (7, 9);
        let file = memory.file.try_clone().expect("there is a descriptor");
        let shape = memory.shape();
        drop(part);
        assert!(
            EntryMemory::adopt(shape, file.try_clone().expect("there is a descriptor")).is_err(),
            "its place is taken"
        );
        drop(memory);
        let memory = Arc::new(EntryMemory::adopt(shape, file).expect("its place is free"));
        // SAFETY: as above.
        let mut part = unsafe { memory.part(1) };
        let (head, room) = part.entry_of_nobody(2);
        assert_eq!((head[0], room[8191]), (7, 9));
        assert_eq!(part.entry_of_nobody(1).1[0], 0);
    }

    impl QueueMemory {
        fn entry_of_nobody(&mut self, index: u32) -> (&mut [u8; HEAD_BYTES], &mut [u8]) {
            // SAFETY: no kernel has any of it.
            unsafe { self.entry(index) }
        }
    }
}
