//! Takes small durable appends in: `docs/format.md`, *The intake*.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use bytes::Bytes;
use futures_util::future::join;
use host::{DiskError, File};
use protocol::storage::{Append, Durability, StorageError};

use crate::catalog::Extension;
use crate::halves::{Halves, Room};
use crate::intake::{Entry, INTAKE_SIZE_MAX, TAKEN_SIZE_MAX, entry_size};
use crate::rounds::Rounds;
use crate::superblock::SECTOR;
use crate::target::{Accepted, StripeLock, Target, skip_parts};

/// The intake is filled with zeros in pieces of this many bytes.
const PIECE_SIZE: usize = 256 << 10;

static ZEROS: [u8; PIECE_SIZE] = [0; PIECE_SIZE];

/// The intake of an open target.
pub(crate) struct Intake {
    file: File,
    syncs: Arc<Rounds>,
    halves: Mutex<Halves>,
}

/// An entry that is written. Its room is needed until the fragment says the same and a sync covers that, or until this is
/// dropped, as nobody has been promised anything.
struct Taken<'a> {
    intake: &'a Intake,
    room: Room,
    until_sync: Option<u64>,
}

impl Intake {
    /// Opens an intake of which nothing is needed any more. `None` if the disk has no room for it.
    pub(crate) async fn open(file: File, size: u32, is_first: bool) -> Result<Option<Intake>, DiskError> {
        let size = size.min(INTAKE_SIZE_MAX) / (2 * SECTOR as u32) * (2 * SECTOR as u32);
        if is_first || file.size()? < u64::from(size) {
            match fill(&file, size.into()).await {
                Ok(()) => {}
                Err(DiskError::Full) => {
                    // Others need what is left; only room is lost if this fails.
                    let _ = file.discard(0, size.into()).await;
                    return Ok(None);
                }
                Err(error) => return Err(error),
            }
        }
        Ok(Some(Intake { file, syncs: Arc::new(Rounds::new(0)), halves: Mutex::new(Halves::new(size)) }))
    }

    fn halves(&self) -> MutexGuard<'_, Halves> {
        // No panic is expected under this lock; if one comes, others are not to hang on it.
        self.halves.lock().unwrap_or_else(PoisonError::into_inner)
    }
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
        let Some(mut taken) = self.take_in(intake, append, &extension).await? else {
            return self.extend(append, &extension).await;
        };
        extension.taken_in = true;
        let need = intake.syncs.started() + 1;
        let durable = self.sync_file_through((&intake.file, &intake.syncs), need, "a sync of the intake");
        let written = async {
            let (length, until_sync) = self.extend(append, &extension).await?;
            taken.until_sync = until_sync;
            drop((taken, stripe));
            Ok(length)
        };
        // The sync is begun first: another thread does it while this one writes.
        let (durable, written) = join(durable, written).await;
        durable.and(written.map(|length| (length, None)))
    }

    /// Writes an entry. `None` if there is no room for it.
    async fn take_in<'a>(
        self: &Arc<Self>,
        intake: &'a Intake,
        append: &Append,
        extension: &Extension,
    ) -> Result<Option<Taken<'a>>, StorageError> {
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
        // Whoever is dropped here keeps the room for good: the entry may land whenever it likes.
        let written = intake.file.write(room.place, entry).await;
        let taken = Taken { intake, room, until_sync: None };
        match written {
            Ok(()) => Ok(Some(taken)),
            // A file system that copies on writing may need room even here.
            Err(DiskError::Full) => Ok(None),
            Err(error) => Err(self.disk_failed(error)),
        }
    }
}

impl Drop for Taken<'_> {
    fn drop(&mut self) {
        self.intake.halves().release(self.room, self.until_sync);
    }
}

fn may_enter(append: &Append, extension: &Extension) -> bool {
    let length = (extension.length - extension.from) as usize;
    append.durability == Durability::Disk && extension.may_enter && length <= TAKEN_SIZE_MAX
}
