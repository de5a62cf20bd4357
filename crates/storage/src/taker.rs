//! Takes small durable appends in: `docs/format.md`, *The intake*.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use bytes::Bytes;
use futures_util::future::join;
use host::{BoxFuture, DiskError, File};
use protocol::storage::{Append, Durability, StorageError};

use crate::catalog::Extension;
use crate::halves::{Halves, Room};
use crate::intake::{Entry, INTAKE_SIZE_MAX, TAKEN_SIZE_MAX, entry_size};
use crate::superblock::SECTOR;
use crate::target::{Accepted, StripeLock, Target, skip_parts};

/// The intake is filled with zeros in pieces of this many bytes.
const PIECE_SIZE: usize = 256 << 10;

static ZEROS: [u8; PIECE_SIZE] = [0; PIECE_SIZE];

/// The intake of an open target.
pub(crate) struct Intake {
    file: File,
    halves: Arc<Mutex<Halves>>,
}

/// An entry on its way to the disk, or there. Its room is needed until the fragment says the same and a sync covers that; or
/// until the write is over, if this is dropped, as nobody has been promised anything.
struct Taken<'a> {
    target: &'a Target,
    halves: Arc<Mutex<Halves>>,
    room: Room,
    /// `None` when it is over.
    writing: Option<BoxFuture<'static, Result<(), DiskError>>>,
    until_sync: Option<u64>,
}

impl Intake {
    /// Opens an intake of which nothing is needed any more. `None` if the disk has no room for it.
    pub(crate) async fn open(file: File, size: u32, is_first: bool) -> Result<Option<Intake>, DiskError> {
        let size = size.min(INTAKE_SIZE_MAX) / (2 * SECTOR as u32) * (2 * SECTOR as u32);
        let filled = if is_first || file.size()? < u64::from(size) {
            fill(&file, size.into()).await
        } else {
            // A life that filled it may have ended before it was synced.
            file.sync().await
        };
        match filled {
            Ok(()) => Ok(Some(Intake { file, halves: Arc::new(Mutex::new(Halves::new(size))) })),
            Err(DiskError::Full) => {
                // Others need what is left; only room is lost if this fails.
                let _ = file.discard(0, size.into()).await;
                Ok(None)
            }
            Err(error) => Err(error),
        }
    }
}

fn lock(halves: &Mutex<Halves>) -> MutexGuard<'_, Halves> {
    // No panic is expected under this lock; if one comes, others are not to hang on it.
    halves.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Writes zeros, durably: writing over them later changes nothing but bytes, neither size nor place.
async fn fill(file: &File, size: u64) -> Result<(), DiskError> {
    for from in (0..size).step_by(PIECE_SIZE) {
        let piece = Bytes::from_static(&ZEROS[..PIECE_SIZE.min((size - from) as usize)]);
        file.write(from, vec![piece]).await?;
    }
    file.sync().await
}

impl Target {
    /// Makes a fragment longer. A small append that is to be durable goes through the intake, if it may.
    pub(crate) async fn lengthen(
        self: &Arc<Self>,
        append: &Append,
        mut extension: Extension,
        stripe: StripeLock<'_>,
    ) -> Result<Accepted, StorageError> {
        let Some(intake) = self.intake.as_ref().filter(|_| may_enter(append, &extension)) else {
            return self.extend(append, &extension).await;
        };
        let Some(mut taken) = self.take_in(intake, append, &extension)? else {
            return self.extend(append, &extension).await;
        };
        // The entry is begun first, and the rest is written while the disk takes it.
        let (entered, written) = join(taken.entered(), self.write_extension(append, &extension)).await;
        match entered {
            Ok(()) => extension.taken_in = true,
            // A file system that copies on writing may need room even here.
            Err(DiskError::Full) => {}
            Err(error) => return Err(self.fail("a write to the intake", &error)),
        }
        self.check_failed()?;
        let (length, until_sync) = self.extended(append, &extension, written?)?;
        taken.until_sync = until_sync;
        drop((taken, stripe));
        Ok((length, until_sync.filter(|_| !extension.taken_in)))
    }

    /// Begins to write an entry. `None` if there is no room for it.
    fn take_in<'a>(
        self: &'a Arc<Self>,
        intake: &Intake,
        append: &Append,
        extension: &Extension,
    ) -> Result<Option<Taken<'a>>, StorageError> {
        let sequence = self.catalog().entry_for(append.header.id, extension).ok_or(StorageError::Missing)?;
        let completed = self.syncs.completed();
        let size = entry_size(extension.from, extension.length) as u64;
        let (room, due) = {
            let mut halves = lock(&intake.halves);
            (halves.take(size, completed), halves.due(completed))
        };
        if let Some(need) = due {
            let target = self.clone();
            // Nobody waits for it; if it fails, the target has.
            self.host.spawn(async move { drop(target.sync_through(need).await) });
        }
        let Some(room) = room else { return Ok(None) };
        let parts = skip_parts(&append.parts, extension.skip as usize);
        let entry = Entry::of(append, extension, sequence, parts).encode(self.owner, room.place);
        let (file, halves) = (intake.file.clone(), intake.halves.clone());
        let writing = Some(Box::pin(async move { file.write_durably(room.place, entry).await }) as BoxFuture<_>);
        Ok(Some(Taken { target: self, halves, room, writing, until_sync: None }))
    }
}

impl Taken<'_> {
    /// The entry is on the disk, durably.
    async fn entered(&mut self) -> Result<(), DiskError> {
        let entered = self.writing.as_mut().expect("it is waited for once").await;
        self.writing = None;
        entered
    }
}

impl Drop for Taken<'_> {
    fn drop(&mut self) {
        let (halves, room, until_sync) = (self.halves.clone(), self.room, self.until_sync);
        match self.writing.take() {
            None => lock(&halves).release(room, until_sync),
            // It lands whenever it likes.
            Some(writing) => self.target.host.spawn(async move {
                drop(writing.await);
                lock(&halves).release(room, None);
            }),
        }
    }
}

fn may_enter(append: &Append, extension: &Extension) -> bool {
    let length = (extension.length - extension.from) as usize;
    append.durability == Durability::Disk && extension.may_enter && length <= TAKEN_SIZE_MAX
}
