//! Takes small durable appends in: `docs/format.md`, *The intake*.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use bytes::Bytes;
use futures_util::future::join;
use host::DiskError;
use protocol::storage::{Append, Durability, StorageError};

use crate::catalog::{Extension, WrittenSlot};
use crate::halves::{Halves, Room};
use crate::intake::{Entry, INTAKE_SIZE_MAX, TAKEN_SIZE_MAX, entry_size};
use crate::superblock::SECTOR;
use crate::target::{Accepted, StripeLock, Target, skip_parts};
use crate::watch::WatchedFile;

/// The intake is filled with zeros in pieces of this many bytes.
const PIECE_SIZE: usize = 256 << 10;

static ZEROS: [u8; PIECE_SIZE] = [0; PIECE_SIZE];

/// The intake of an open target.
pub(crate) struct Intake {
    file: WatchedFile,
    halves: Mutex<Halves>,
}

/// An entry to be written. Its room is needed until the fragment says the same and a sync covers that; or until the write is
/// over, if it was in vain, as nobody has been promised anything.
struct Taken {
    room: Room,
    entry: Vec<Bytes>,
}

impl Intake {
    /// Opens an intake of which nothing is needed any more. `None` if the disk has no room for it.
    pub(crate) async fn open(file: WatchedFile, size: u32, is_first: bool) -> Result<Option<Intake>, DiskError> {
        let size = size.min(INTAKE_SIZE_MAX) / (2 * SECTOR as u32) * (2 * SECTOR as u32);
        let filled = if is_first || file.size()? < u64::from(size) {
            fill(&file, size.into()).await
        } else {
            // A life that filled it may have ended before it was synced.
            file.sync().await
        };
        match filled {
            Ok(()) => Ok(Some(Intake { file, halves: Mutex::new(Halves::new(size)) })),
            Err(DiskError::Full) => {
                // Others need what is left; only room is lost if this fails.
                let _ = file.discard(0, size.into()).await;
                Ok(None)
            }
            Err(error) => Err(error),
        }
    }

    fn halves(&self) -> MutexGuard<'_, Halves> {
        // No panic is expected under this lock; if one comes, others are not to hang on it.
        self.halves.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Writes zeros, durably: writing over them later changes nothing but bytes, neither size nor place.
async fn fill(file: &WatchedFile, size: u64) -> Result<(), DiskError> {
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
        let Some(Taken { room, entry }) = self.take_in(intake, append, &extension)? else {
            return self.extend(append, &extension).await;
        };
        // The entry is begun first, and the rest is written while the disk takes it.
        let entering = intake.file.write_durably(room.place, entry);
        let (entered, written) = join(entering, self.write_extension(append, &extension)).await;
        let lengthened = self.entered(append, &mut extension, entered, written);
        intake.halves().release(room, lengthened.as_ref().map_or(None, |(_, until_sync)| *until_sync));
        drop(stripe);
        let (length, until_sync) = lengthened?;
        Ok((length, until_sync.filter(|_| !extension.taken_in)))
    }

    /// Both were written, or were not.
    fn entered(
        &self,
        append: &Append,
        extension: &mut Extension,
        entered: Result<(), DiskError>,
        written: Result<WrittenSlot, StorageError>,
    ) -> Result<Accepted, StorageError> {
        match entered {
            Ok(()) => extension.taken_in = true,
            // A file system that copies on writing may need room even here.
            Err(DiskError::Full) => {}
            Err(error) => return Err(self.fail("a write to the intake", &error)),
        }
        self.check_failed()?;
        self.extended(append, extension, written?)
    }

    /// Makes an entry. `None` if there is no room for it.
    fn take_in(
        self: &Arc<Self>,
        intake: &Intake,
        append: &Append,
        extension: &Extension,
    ) -> Result<Option<Taken>, StorageError> {
        let sequence = self.catalog().entry_for(append.header.id, extension).ok_or(StorageError::Missing)?;
        let completed = self.syncs.completed();
        let size = entry_size(extension.from, extension.length) as u64;
        let (room, due) = {
            let mut halves = intake.halves();
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
        Ok(Some(Taken { room, entry }))
    }
}

fn may_enter(append: &Append, extension: &Extension) -> bool {
    let length = (extension.length - extension.from) as usize;
    append.durability == Durability::Disk && extension.may_enter && length <= TAKEN_SIZE_MAX
}
