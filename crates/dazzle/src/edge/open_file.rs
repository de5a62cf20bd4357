//! One byte space of a target: a range of an open file or device.
//!
//! Bytes that the page cache has are taken from there. Long reads of what it has not go past it, where the file allows
//! that: the kernel caches what programs read at the mount, and filling a second cache on the way costs fresh pages.
//!
//! The kernel tells of what it could not write once for each open file, and keeps the pages as if they were written. So
//! somebody hears of each failure, and nothing that pages tell from before is believed when it is opened again.
//!
//! What is written durably goes past it, too, where the file takes sectors so. Such a space must not be written by both ways: a
//! page of the cache would be written back over what lies beneath it.

use std::io::{IoSlice, IoSliceMut};
use std::os::fd::{AsFd, OwnedFd};
use std::path::Path;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use bytes::Bytes;
use host::{BoxFuture, DiskError, SECTOR, StoredFile};
use rustix::fs::{Advice, AtFlags, FallocateFlags, Mode, OFlags, StatxFlags};
use rustix::io::{Errno, ReadWriteFlags};

use super::blocking::disk_error;
use super::buffers::IoBuffer;
use super::fuse_ring::transfers;
use super::page_cache;
use super::waiters::Waiters;

/// Up to so many bytes a write is made in place, if it may be.
const WRITE_IN_PLACE_MAX: usize = 64 << 10;
/// Reads from here on go past the page cache.
const DIRECT_MIN: usize = 64 << 10;
/// To what place, length and memory of a direct read must be aligned: enough for every disk of today.
const DIRECT_ALIGN: usize = 4096;

/// A range of an open file or device that is one byte space.
pub(super) struct OpenFile(Arc<Inner>);

struct Inner {
    file: OwnedFd,
    /// The same, past the page cache. `None` where that is not to be had.
    direct: Option<OwnedFd>,
    /// Whether it takes single sectors.
    takes_sectors: bool,
    name: String,
    /// Where the space begins in the file.
    base: u64,
    /// Where it ends at the latest; `None` for a file that grows.
    bytes_max: Option<u64>,
    /// The end of the last written byte.
    size: AtomicU64,
    syncs: Syncs,
    waiters: Waiters,
}

/// Syncs of one open file, one at a time. A failure is told to all who asked before it was known, and to one who asks later
/// where none of these has heard it: the kernel tells but once, and who asked may have stopped waiting.
#[derive(Default)]
struct Syncs {
    /// Held while one is under way.
    one: Mutex<()>,
    failures: Mutex<Failures>,
}

#[derive(Default)]
struct Failures {
    count: u64,
    last: Option<Errno>,
    is_unheard: bool,
}

/// How often syncs had failed when somebody asked for one.
#[derive(Clone, Copy)]
struct Asked(u64);

impl Syncs {
    fn ask(&self) -> Asked {
        Asked(self.failures().count)
    }

    fn run(&self, asked: Asked, sync: impl FnOnce() -> Result<(), Errno>) -> Result<(), Errno> {
        let _one = self.one.lock().unwrap_or_else(PoisonError::into_inner);
        let failed = {
            let failures = self.failures();
            failures.last.filter(|_| failures.is_unheard || failures.count > asked.0)
        };
        match failed {
            Some(error) => Err(error),
            None => sync().inspect_err(|error| self.note(*error)),
        }
    }

    fn note(&self, error: Errno) {
        let mut failures = self.failures();
        *failures = Failures { count: failures.count + 1, last: Some(error), is_unheard: true };
    }

    /// Somebody was told of the last failure.
    fn heard(&self) {
        self.failures().is_unheard = false;
    }

    fn failures(&self) -> MutexGuard<'_, Failures> {
        self.failures.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl OpenFile {
    pub(super) fn open(path: &Path, base: u64, bytes_max: Option<u64>, waiters: Waiters) -> Result<Self, DiskError> {
        let name = path.display().to_string();
        let flags = if bytes_max.is_some() { OFlags::RDWR } else { OFlags::RDWR | OFlags::CREATE };
        let file = rustix::fs::open(path, flags | OFlags::CLOEXEC, Mode::RUSR | Mode::WUSR)
            .map_err(|error| disk_error(&name, error))?;
        // Who reads in order tells us so by asking ahead; what the kernel would guess beside that is read for nothing.
        let _ = rustix::fs::fadvise(&file, 0, None, Advice::Random);
        // Pages that were never written, by a sync that failed in an earlier life, are not to be read as what lies on the disk.
        let _ = rustix::fs::fadvise(&file, 0, None, Advice::DontNeed);
        let size = match bytes_max {
            Some(bytes) => bytes,
            None => rustix::fs::fstat(&file).map_err(|error| disk_error(&name, error))?.st_size as u64,
        };
        let direct = rustix::fs::open(path, OFlags::RDWR | OFlags::DIRECT | OFlags::CLOEXEC, Mode::empty()).ok();
        let takes_sectors = direct.as_ref().is_some_and(takes_sectors);
        let (size, syncs) = (AtomicU64::new(size), Syncs::default());
        Ok(OpenFile(Arc::new(Inner { file, direct, takes_sectors, name, base, bytes_max, size, syncs, waiters })))
    }
}

impl StoredFile for OpenFile {
    fn read(&self, offset: u64, length: usize) -> BoxFuture<'_, Result<Bytes, DiskError>> {
        Box::pin(async move {
            let length = self.0.within(offset, length);
            let mut buffer = IoBuffer::new(length);
            let is_cold = self.0.is_cold(offset, length);
            let filled = if is_cold { 0 } else { self.0.read_cached(&mut buffer.bytes_mut()[..length], offset) };
            if filled == length {
                return Ok(buffer.into_bytes(length));
            }
            let inner = self.0.clone();
            // Where a thread serves a queue of requests, its own ring reads. What is left then meets its reason below.
            let (from, until) = match inner.direct.as_ref().filter(|_| is_cold) {
                Some(direct) => (direct, length / DIRECT_ALIGN * DIRECT_ALIGN),
                None => (&inner.file, length),
            };
            let place = (from.as_fd(), inner.base + offset + filled as u64);
            let (mut buffer, filled) = match transfers::read(buffer, (filled, until), place, inner.clone()) {
                Ok(read) => {
                    let (buffer, count) = read.await;
                    (buffer, filled + count.unwrap_or(0))
                }
                Err(buffer) => (buffer, filled),
            };
            if filled == length {
                return Ok(buffer.into_bytes(length));
            }
            let rest = move || {
                let bytes = &mut buffer.bytes_mut()[..length];
                let filled = if is_cold && filled == 0 { inner.read_direct(bytes, offset) } else { filled };
                let filled = inner.read_rest(bytes, offset, filled)?;
                Ok(buffer.into_bytes(filled))
            };
            self.0.waiters.wait_for(rest).await
        })
    }

    fn write(&self, offset: u64, parts: Vec<Bytes>) -> BoxFuture<'_, Result<(), DiskError>> {
        Box::pin(async move {
            let is_small = parts.iter().map(Bytes::len).sum::<usize>() <= WRITE_IN_PLACE_MAX;
            if let Some(_leave) = is_small.then(|| self.0.waiters.may_write_in_place()).flatten() {
                return self.0.write_all(offset, &parts);
            }
            let inner = self.0.clone();
            self.0.waiters.run_apart(move || inner.write_all(offset, &parts)).await
        })
    }

    fn write_durably(&self, offset: u64, parts: Vec<Bytes>) -> BoxFuture<'_, Result<(), DiskError>> {
        let inner = self.0.clone();
        Box::pin(async move {
            let length = parts.iter().map(Bytes::len).sum();
            inner.check_room(offset, length)?;
            let waiters = inner.waiters.clone();
            let Some(direct) = inner.direct.as_ref().filter(|_| inner.takes_sectors) else {
                let writer = inner.clone();
                waiters.run_apart(move || writer.write_all(offset, &parts)).await?;
                return inner.sync().await;
            };
            let _writing = waiters.writing_durably();
            let mut buffer = IoBuffer::aligned(length);
            fill(buffer.bytes_mut(), &parts);
            let place = (direct.as_fd(), inner.base + offset);
            let buffer = match transfers::write_durably(buffer, length, place, inner.clone()) {
                Ok(write) => match write.await {
                    (_, Ok(count)) if count == length => return Ok(()),
                    (buffer, Ok(_) | Err(Errno::AGAIN | Errno::INTR)) => buffer,
                    (_, Err(error)) => return Err(inner.error(error)),
                },
                Err(buffer) => buffer,
            };
            waiters.run_apart(move || inner.write_direct(buffer, length, offset)).await
        })
    }

    fn sync(&self) -> BoxFuture<'_, Result<(), DiskError>> {
        let inner = self.0.clone();
        Box::pin(async move { inner.sync().await })
    }

    fn reserve(&self, offset: u64, length: u64) -> BoxFuture<'_, Result<(), DiskError>> {
        let inner = self.0.clone();
        Box::pin(async move {
            let waiters = inner.waiters.clone();
            waiters.run_apart(move || inner.allocate(offset, length, FallocateFlags::KEEP_SIZE)).await
        })
    }

    fn discard(&self, offset: u64, length: u64) -> BoxFuture<'_, Result<(), DiskError>> {
        let inner = self.0.clone();
        let flags = FallocateFlags::PUNCH_HOLE | FallocateFlags::KEEP_SIZE;
        Box::pin(async move {
            let waiters = inner.waiters.clone();
            waiters.run_apart(move || inner.allocate(offset, length, flags)).await
        })
    }

    fn size(&self) -> Result<u64, DiskError> {
        Ok(self.0.size.load(Ordering::Acquire))
    }
}

impl Inner {
    fn error(&self, error: Errno) -> DiskError {
        disk_error(&self.name, error)
    }

    /// How much of a read lies before the end.
    fn within(&self, offset: u64, length: usize) -> usize {
        let left = self.size.load(Ordering::Acquire).saturating_sub(offset);
        length.min(usize::try_from(left).unwrap_or(usize::MAX))
    }

    /// Reads what the page cache has, without waiting. Returns how much that was.
    fn read_cached(&self, buffer: &mut [u8], offset: u64) -> usize {
        let at = self.base + offset;
        // A refusal is no error: whoever may wait asks again.
        rustix::io::preadv2(&self.file, &mut [IoSliceMut::new(buffer)], at, ReadWriteFlags::NOWAIT).unwrap_or(0)
    }

    /// Reads what lies behind the first `filled` bytes. Returns how many there are then: fewer only at the end.
    fn read_rest(&self, buffer: &mut [u8], offset: u64, mut filled: usize) -> Result<usize, DiskError> {
        while filled < buffer.len() {
            match rustix::io::pread(&self.file, &mut buffer[filled..], self.base + offset + filled as u64) {
                Ok(0) => break,
                Ok(count) => filled += count,
                Err(Errno::INTR) => {}
                Err(error) => return Err(self.error(error)),
            }
        }
        Ok(filled)
    }

    /// Whether a read should go past the page cache: it is long, aligned, and nothing of it is there.
    fn is_cold(&self, offset: u64, length: usize) -> bool {
        let at = self.base + offset;
        self.direct.is_some()
            && length >= DIRECT_MIN
            && at.is_multiple_of(DIRECT_ALIGN as u64)
            && page_cache::has_nothing(&self.file, at, length)
    }

    /// Reads whole blocks past the page cache; returns how many bytes. An error is no answer here: whoever reads the rest
    /// meets it again.
    fn read_direct(&self, buffer: &mut [u8], offset: u64) -> usize {
        let Some(direct) = &self.direct else { return 0 };
        let end = buffer.len() / DIRECT_ALIGN * DIRECT_ALIGN;
        let mut filled = 0;
        while filled < end && filled.is_multiple_of(DIRECT_ALIGN) {
            match rustix::io::pread(direct, &mut buffer[filled..end], self.base + offset + filled as u64) {
                Ok(count) if count > 0 => filled += count,
                _ => break,
            }
        }
        filled
    }

    fn check_room(&self, offset: u64, length: usize) -> Result<(), DiskError> {
        if self.bytes_max.is_some_and(|max| offset + length as u64 > max) { Err(DiskError::Full) } else { Ok(()) }
    }

    async fn sync(self: &Arc<Self>) -> Result<(), DiskError> {
        let (inner, asked) = (self.clone(), self.syncs.ask());
        let sync = move || {
            let _syncing = inner.waiters.syncing();
            let synced = inner.syncs.run(asked, || rustix::fs::fdatasync(&inner.file));
            synced.map_err(|error| inner.error(error))
        };
        self.waiters.run_apart(sync).await.inspect_err(|_| self.syncs.heard())
    }

    /// Writes past the page cache, durably.
    fn write_direct(&self, mut buffer: IoBuffer, length: usize, offset: u64) -> Result<(), DiskError> {
        let direct = self.direct.as_ref().expect("it was there when this was begun");
        let (bytes, mut written) = (&buffer.bytes_mut()[..length], 0);
        while written < length {
            let (slice, at) = (&[IoSlice::new(&bytes[written..])], self.base + offset + written as u64);
            match rustix::io::pwritev2(direct, slice, at, ReadWriteFlags::DSYNC) {
                Ok(count) if count > 0 => written += count,
                Ok(_) => return Err(self.error(Errno::IO)),
                Err(Errno::INTR) => {}
                Err(error) => return Err(self.error(error)),
            }
        }
        Ok(())
    }

    fn write_all(&self, offset: u64, parts: &[Bytes]) -> Result<(), DiskError> {
        let length: usize = parts.iter().map(Bytes::len).sum();
        self.check_room(offset, length)?;
        let mut slices: Vec<_> = parts.iter().map(|part| IoSlice::new(part)).collect();
        let mut left = &mut slices[..];
        let mut at = self.base + offset;
        while !left.is_empty() {
            // The kernel takes at most 1,024 parts at once.
            let batch = left.len().min(1024);
            match rustix::io::pwritev(&self.file, &left[..batch], at) {
                Ok(count) => {
                    at += count as u64;
                    IoSlice::advance_slices(&mut left, count);
                }
                Err(Errno::INTR) => {}
                Err(error) => return Err(self.error(error)),
            }
        }
        self.size.fetch_max(offset + length as u64, Ordering::AcqRel);
        Ok(())
    }

    fn allocate(&self, offset: u64, length: u64, flags: FallocateFlags) -> Result<(), DiskError> {
        match rustix::fs::fallocate(&self.file, flags, self.base + offset, length) {
            // A device or a file system without the call simply keeps or takes the room later.
            Ok(()) | Err(Errno::OPNOTSUPP | Errno::NODEV) => Ok(()),
            Err(error) => Err(self.error(error)),
        }
    }
}

/// Whether what goes past the page cache may begin and end with any sector.
fn takes_sectors(direct: &OwnedFd) -> bool {
    let told = rustix::fs::statx(direct, "", AtFlags::EMPTY_PATH, StatxFlags::DIOALIGN);
    told.is_ok_and(|told| {
        let is_told = told.stx_mask & StatxFlags::DIOALIGN.bits() != 0;
        is_told && (1..=SECTOR as u32).contains(&told.stx_dio_offset_align)
    })
}

fn fill(memory: &mut [u8], parts: &[Bytes]) {
    let mut rest = memory;
    for part in parts {
        let (place, behind) = rest.split_at_mut(part.len());
        place.copy_from_slice(part);
        rest = behind;
    }
}

#[cfg(test)]
mod tests {
    use std::sync::mpsc;

    use super::*;

    const FAILED: Result<(), Errno> = Err(Errno::IO);

    #[test]
    fn a_failure_is_told_until_somebody_hears_it() {
        let syncs = Syncs::default();
        assert_eq!(syncs.run(syncs.ask(), || Ok(())), Ok(()));
        assert_eq!(syncs.run(syncs.ask(), || FAILED), FAILED);
        assert_eq!(
            syncs.run(syncs.ask(), || Ok(())),
            FAILED,
            "who asked may not wait any more, and the kernel tells but once"
        );
        syncs.heard();
        assert_eq!(syncs.run(syncs.ask(), || Ok(())), Ok(()), "who heard may have written all anew");
    }

    #[test]
    fn who_asked_before_a_failure_was_known_is_told_of_it_too() {
        let (syncs, (begun, is_begun), (go_on, goes_on)) = (&Syncs::default(), mpsc::channel(), mpsc::channel());
        std::thread::scope(|threads| {
            let failing = threads.spawn(move || {
                syncs.run(syncs.ask(), || {
                    begun.send(()).unwrap();
                    goes_on.recv().unwrap();
                    FAILED
                })
            });
            is_begun.recv().unwrap();
            let asked = syncs.ask();
            go_on.send(()).unwrap();
            assert_eq!(failing.join().unwrap(), FAILED);
            syncs.heard();
            assert_eq!(syncs.run(asked, || Ok(())), FAILED, "it may be of what this one is to cover");
        });
    }
}
