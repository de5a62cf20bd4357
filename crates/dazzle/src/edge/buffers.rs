//! Memory for requests and for what is read, kept for reuse: fresh memory is the most expensive memory. A page that the
//! kernel first has to clear costs more than everything else that is done with it.

use std::alloc::{Layout, alloc_zeroed, dealloc};
use std::ptr::NonNull;
use std::sync::{Arc, LazyLock, Mutex};

use bytes::Bytes;

/// Reads from here on take a buffer from a pool.
pub(super) const POOLED_MIN: usize = 64 << 10;
/// The sizes of buffers for reads, and a small one for durable writes. None is more than twice what a read needs, since a slice
/// keeps the whole.
static POOLS: LazyLock<[Arc<BufferPool>; 7]> = LazyLock::new(|| {
    [40, 96, 128, 256, 512, 1024, 1088].map(|kib| Arc::new(BufferPool::new(kib << 10, IDLE_BYTES_MAX)))
});
/// How many bytes of idle buffers each of these pools keeps: what a few give back and take again.
const IDLE_BYTES_MAX: usize = 4 << 20;

/// Memory for one transfer.
pub(super) enum IoBuffer {
    /// Of its own.
    Own(Vec<u8>),
    /// From a pool.
    Pooled(Buffer),
}

impl IoBuffer {
    /// Memory for `length` bytes. What it holds means nothing.
    pub(super) fn new(length: usize) -> IoBuffer {
        let pool = POOLS.iter().find(|pool| length <= pool.buffer_bytes);
        match pool {
            Some(pool) if length >= POOLED_MIN => IoBuffer::Pooled(pool.take()),
            _ => IoBuffer::Own(vec![0; length]),
        }
    }

    /// The same, aligned to pages.
    ///
    /// # Panics
    /// When it is more than any pool has.
    pub(super) fn aligned(length: usize) -> IoBuffer {
        let pool = POOLS.iter().find(|pool| length <= pool.buffer_bytes);
        IoBuffer::Pooled(pool.expect("no transfer is longer").take())
    }

    /// The memory; at least as much as was asked for.
    pub(super) fn bytes_mut(&mut self) -> &mut [u8] {
        match self {
            IoBuffer::Own(bytes) => bytes,
            IoBuffer::Pooled(buffer) => buffer.bytes_mut(),
        }
    }

    /// The first `length` bytes, without a copy.
    pub(super) fn into_bytes(self, length: usize) -> Bytes {
        match self {
            IoBuffer::Own(bytes) => Bytes::from(bytes).slice(..length),
            IoBuffer::Pooled(buffer) => Bytes::from_owner(buffer).slice(..length),
        }
    }
}

/// Page-aligned buffers of one size, kept for reuse.
pub(super) struct BufferPool {
    pub(super) buffer_bytes: usize,
    idle_bytes_max: usize,
    free: Mutex<Vec<Allocation>>,
}

impl BufferPool {
    /// A pool of buffers of this size, which keeps so many bytes of idle ones.
    pub(super) fn new(buffer_bytes: usize, idle_bytes_max: usize) -> Self {
        BufferPool { buffer_bytes, idle_bytes_max, free: Mutex::default() }
    }

    /// A buffer, with whatever it held last.
    pub(super) fn take(self: &Arc<Self>) -> Buffer {
        let kept = self.free.lock().expect("no panic while buffers are held").pop();
        Buffer { memory: Some(kept.unwrap_or_else(|| Allocation::new(self.buffer_bytes))), pool: self.clone() }
    }
}

/// A buffer that goes back to its pool when nothing points into it any more.
pub(super) struct Buffer {
    memory: Option<Allocation>,
    pool: Arc<BufferPool>,
}

impl Buffer {
    pub(super) fn bytes(&self) -> &[u8] {
        self.memory.as_ref().expect("memory is there until the drop").bytes()
    }

    pub(super) fn bytes_mut(&mut self) -> &mut [u8] {
        self.memory.as_mut().expect("memory is there until the drop").bytes_mut()
    }
}

impl AsRef<[u8]> for Buffer {
    fn as_ref(&self) -> &[u8] {
        self.bytes()
    }
}

impl Drop for Buffer {
    fn drop(&mut self) {
        let mut free = self.pool.free.lock().expect("no panic while buffers are held");
        if (free.len() + 1) * self.pool.buffer_bytes <= self.pool.idle_bytes_max {
            free.extend(self.memory.take());
        }
    }
}

/// Zeroed, page-aligned memory.
struct Allocation {
    start: NonNull<u8>,
    layout: Layout,
}

// SAFETY: an allocation is owned memory, reached through no other pointer.
unsafe impl Send for Allocation {}
// SAFETY: shared access only reads.
unsafe impl Sync for Allocation {}

impl Allocation {
    fn new(bytes: usize) -> Self {
        let layout = Layout::from_size_align(bytes, 4096).expect("a request's buffer is a few megabytes at most");
        // SAFETY: the layout is not empty: a buffer holds at least a request's header.
        let start = NonNull::new(unsafe { alloc_zeroed(layout) });
        Allocation { start: start.unwrap_or_else(|| std::alloc::handle_alloc_error(layout)), layout }
    }

    fn bytes(&self) -> &[u8] {
        // SAFETY: the memory is allocated with this size, was zeroed, and lives as long as self.
        unsafe { std::slice::from_raw_parts(self.start.as_ptr(), self.layout.size()) }
    }

    fn bytes_mut(&mut self) -> &mut [u8] {
        // SAFETY: as above, and self is borrowed alone.
        unsafe { std::slice::from_raw_parts_mut(self.start.as_ptr(), self.layout.size()) }
    }
}

impl Drop for Allocation {
    fn drop(&mut self) {
        // SAFETY: allocated with this layout, and freed once.
        unsafe { dealloc(self.start.as_ptr(), self.layout) }
    }
}
